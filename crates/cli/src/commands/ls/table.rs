// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of `ls`.

use crate::switches::{Switch, Takes};

const fn flag(id: &'static str, short: char, long: &'static str, help: &'static str) -> Switch {
    Switch::flag(id, Some(short), Some(long), help)
}

const fn short(id: &'static str, short: char, help: &'static str) -> Switch {
    Switch::flag(id, Some(short), None, help)
}

const fn long(id: &'static str, long: &'static str, help: &'static str) -> Switch {
    Switch::flag(id, None, Some(long), help)
}

const fn word(id: &'static str, long: &'static str, name: &'static str, help: &'static str) -> Switch {
    Switch::with(id, None, Some(long), Takes::Value(name), help)
}

const fn when(id: &'static str, long: &'static str, help: &'static str) -> Switch {
    Switch::with(id, None, Some(long), Takes::Optional("WHEN", "always"), help)
}

/// Every option, in the order of the alphabet.
pub const SWITCHES: [Switch; 57] = [
    flag("all", 'a', "all", "Show names that start with a dot"),
    flag("almost-all", 'A', "almost-all", "As -a, without . and .."),
    long("author", "author", "With -l, show the author of each file"),
    flag("escape", 'b', "escape", "Write characters that cannot be shown as escapes of C"),
    word("block-size", "block-size", "SIZE", "Show sizes in units of SIZE, as in 1M, MB, KiB"),
    flag("ignore-backups", 'B', "ignore-backups", "Leave out names that end in ~"),
    short("ctime", 'c', "Sort by, and with -l show, the time of the last status change"),
    short("columns", 'C', "Print columns, sorted downwards"),
    when("colour", "color", "Colour the names: always, auto or never"),
    flag("directory", 'd', "directory", "Show directories themselves, not what is in them"),
    short("raw", 'f', "As -aU, without -l, -s and --color"),
    short("classify-always", 'F', "Append one of */=>@| to names"),
    when("classify", "classify", "Append one of */=>@| to names: always, auto or never"),
    long("file-type", "file-type", "As -F, without *"),
    word(
        "format",
        "format",
        "WORD",
        "One of across, commas, horizontal, long, single-column, verbose, vertical",
    ),
    long("full-time", "full-time", "As -l --time-style=full-iso"),
    short("no-owner", 'g', "As -l, without the owner"),
    long("directories-first", "group-directories-first", "Directories before other files"),
    flag("no-group", 'G', "no-group", "With -l, leave out the group"),
    flag("human", 'h', "human-readable", "With -l and -s, sizes like 1K 234M 2G"),
    long("si", "si", "As -h, with powers of 1000"),
    flag("follow-given", 'H', "dereference-command-line", "Follow symbolic links on the command line"),
    long(
        "follow-given-directories",
        "dereference-command-line-symlink-to-dir",
        "Follow symbolic links on the command line that lead to directories",
    ),
    word("hide", "hide", "PATTERN", "Leave out names that match PATTERN unless -a or -A is given"),
    word("indicator-style", "indicator-style", "WORD", "One of none, slash, file-type, classify"),
    flag("inode", 'i', "inode", "Show inode numbers"),
    Switch::with("ignore", Some('I'), Some("ignore"), Takes::Value("PATTERN"), "Leave out names that match"),
    flag("kibibytes", 'k', "kibibytes", "Count disk usage in units of 1024 bytes"),
    short("long", 'l', "Show everything about each file"),
    flag("follow", 'L', "dereference", "Show what symbolic links lead to instead of the links"),
    short("commas", 'm', "Fill lines with names and commas"),
    flag("numeric", 'n', "numeric-uid-gid", "As -l, with numbers of users and groups"),
    flag("literal", 'N', "literal", "Write names without quotes"),
    short("long-no-group", 'o', "As -l, without the group"),
    Switch::flag("slash", Some('p'), None, "Append / to directories"),
    flag("question-marks", 'q', "hide-control-chars", "Write ? for characters that cannot be shown"),
    long("show-control", "show-control-chars", "Write characters that cannot be shown as they are"),
    flag("quote-name", 'Q', "quote-name", "Write names in double quotes"),
    word(
        "quoting-style",
        "quoting-style",
        "WORD",
        "One of literal, locale, shell, shell-always, shell-escape, shell-escape-always, c, escape",
    ),
    flag("reverse", 'r', "reverse", "Reverse the order"),
    flag("recursive", 'R', "recursive", "List directories in directories"),
    flag("size", 's', "size", "Show the allocated size of each file"),
    short("by-size", 'S', "Sort by size, largest first"),
    word("sort", "sort", "WORD", "One of none, size, time, version, extension, width"),
    word("time", "time", "WORD", "One of atime, access, use, ctime, status, birth, creation"),
    word("time-style", "time-style", "STYLE", "One of full-iso, long-iso, iso, locale, +FORMAT"),
    short("by-time", 't', "Sort by time, newest first"),
    Switch::with("tabsize", Some('T'), Some("tabsize"), Takes::Value("COLUMNS"), "Width of tab stops"),
    short("atime", 'u', "Sort by, and with -l show, the time of the last access"),
    short("unsorted", 'U', "Do not sort"),
    short("by-version", 'v', "Sort by the numbers in names"),
    Switch::with(
        "width",
        Some('w'),
        Some("width"),
        Takes::Value("COLUMNS"),
        "Width of the output; 0 for no limit",
    ),
    short("across", 'x', "Print columns, sorted across"),
    short("by-extension", 'X', "Sort by what follows the last dot"),
    flag("context", 'Z', "context", "Show security contexts: trees have none, so ?"),
    long("zero", "zero", "End each line with NUL"),
    Switch::flag("one", Some('1'), None, "One name a line"),
];
