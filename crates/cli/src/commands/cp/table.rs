// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of `cp`.

use crate::getopt::Table;
use crate::switches::{Switch, Takes};

/// See [`super::Cp`].
#[derive(Debug, Clone)]
pub struct Cp;

impl Table for Cp {
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "What to copy; the last one is where to";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("archive", Some('a'), Some("archive"), "Same as -dR --preserve=all"),
        Switch::flag("attributes-only", None, Some("attributes-only"), "Copy attributes, not content"),
        Switch::with(
            "backup",
            None,
            Some("backup"),
            Takes::Optional("CONTROL", ""),
            "Not supported: backups of replaced files are refused",
        ),
        Switch::flag("b", Some('b'), None, "Not supported, as --backup"),
        Switch::flag("copy-contents", None, Some("copy-contents"), "Copy the content of special files"),
        Switch::flag("d", Some('d'), None, "Same as --no-dereference --preserve=links"),
        Switch::flag(
            "force",
            Some('f'),
            Some("force"),
            "Remove a destination that cannot be opened, or is a symbolic link inside a directory, and try again",
        ),
        Switch::flag("interactive", Some('i'), Some("interactive"), "Ask before overwriting"),
        Switch::flag("H", Some('H'), None, "Follow symbolic links named on the command line"),
        Switch::flag("link", Some('l'), Some("link"), "Make hard links instead of copies"),
        Switch::flag(
            "dereference",
            Some('L'),
            Some("dereference"),
            "Follow all symbolic links in the source",
        ),
        Switch::flag("no-clobber", Some('n'), Some("no-clobber"), "Do not overwrite"),
        Switch::flag(
            "no-dereference",
            Some('P'),
            Some("no-dereference"),
            "Follow no symbolic links in the source",
        ),
        Switch::flag("p", Some('p'), None, "Same as --preserve=mode,ownership,timestamps"),
        Switch::with(
            "preserve",
            None,
            Some("preserve"),
            Takes::Optional("LIST", "mode,ownership,timestamps"),
            "Keep attributes: mode, ownership, timestamps, links, xattr, context, all",
        ),
        Switch::with(
            "no-preserve",
            None,
            Some("no-preserve"),
            Takes::Value("LIST"),
            "Do not keep these attributes",
        ),
        Switch::flag("parents", None, Some("parents"), "Keep the directories of the source's name"),
        Switch::flag("R", Some('R'), None, "Copy directories with their content"),
        Switch::flag("recursive", Some('r'), Some("recursive"), "Copy directories with their content"),
        Switch::with(
            "reflink",
            None,
            Some("reflink"),
            Takes::Optional("WHEN", "always"),
            "Let a tree copy inside itself, sharing blocks where it can: auto or never",
        ),
        Switch::flag(
            "remove-destination",
            None,
            Some("remove-destination"),
            "Remove each existing destination before copying",
        ),
        Switch::with(
            "sparse",
            None,
            Some("sparse"),
            Takes::Value("WHEN"),
            "Make holes: auto, always or never",
        ),
        Switch::flag(
            "strip-trailing-slashes",
            None,
            Some("strip-trailing-slashes"),
            "Remove slashes at the end of each source",
        ),
        Switch::flag(
            "symbolic-link",
            Some('s'),
            Some("symbolic-link"),
            "Make symbolic links instead of copies",
        ),
        Switch::with(
            "target-directory",
            Some('t'),
            Some("target-directory"),
            Takes::Value("LOCATION"),
            "Copy everything into this directory",
        ),
        Switch::flag(
            "no-target-directory",
            Some('T'),
            Some("no-target-directory"),
            "The destination is a name, even if it is a directory",
        ),
        Switch::flag("update", Some('u'), Some("update"), "Copy only what is newer than the destination"),
        Switch::flag("verbose", Some('v'), Some("verbose"), "Name each file"),
        Switch::with(
            "progress",
            None,
            Some("progress"),
            Takes::Optional("WHEN", "always"),
            "Show progress: auto (on a terminal), always or never",
        ),
    ];
}
