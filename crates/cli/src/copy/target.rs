// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operands of cp, mv and ln mean.

use crate::context::{Context, Place};
use crate::location::{Base, Location};
use crate::say::{operand, quoted, usage};
use crate::status::{Failure, Status};
use outrigger_client::{Follow, Inode};
use outrigger_core::{Errno, Name};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Where everything goes.
pub enum Destination {
    /// Into this directory.
    Into(Place),
    /// The one source becomes this.
    As(Place),
}

/// `-t` and `-T`, which cp, mv and ln share.
#[derive(Debug, Clone, Default)]
pub struct TargetOptions {
    /// Put everything into this directory.
    pub target_directory: Option<OsString>,
    /// The last operand is a name, even if it is a directory.
    pub no_target_directory: bool,
}

/// Whether `place` is a directory, following symbolic links; the reason when it is none.
fn directory(place: &Place) -> Result<(), Errno> {
    match place.find(Follow::Yes) {
        Ok(inode) if inode.is_dir() => Ok(()),
        Ok(_) => Err(Errno::ENOTDIR),
        Err(error) => Err(error.errno),
    }
}

impl TargetOptions {
    /// What names the destination, if anything does.
    pub fn named<'a>(&'a self, files: &'a [OsString]) -> &'a [OsString] {
        match &self.target_directory {
            Some(target) => std::slice::from_ref(target),
            None => files.last().map_or(&[], std::slice::from_ref),
        }
    }

    /// Splits the operands into sources and destination as cp(1) does.
    ///
    /// # Errors
    /// Too few operands, too many for `-T`, several sources for what is no directory, or a LOCATION whose tree
    /// cannot be opened.
    pub fn destination(
        &self,
        context: &Context,
        files: Vec<OsString>,
    ) -> Result<(Vec<OsString>, Destination), Failure> {
        let target = self.named(&files).first().cloned().unwrap_or_default();
        let (mut sources, destination) = self.split(context, files)?;
        sources.retain(|source| {
            let fits = !source_holds(source, &target);
            if !fits {
                let what = if context.command == "mv" { "move" } else { "copy" };
                let (source, target) = (operand(source), operand(&target));
                context.complain(Status::Minor, format_args!("cannot {what} {source} into itself, {target}"));
            }
            fits
        });
        Ok((sources, destination))
    }

    fn split(
        &self,
        context: &Context,
        mut files: Vec<OsString>,
    ) -> Result<(Vec<OsString>, Destination), Failure> {
        let command = context.command;
        if files.is_empty() {
            return Err(usage(command, "missing file operand"));
        }
        if let Some(target) = &self.target_directory {
            if self.no_target_directory {
                let problem = "cannot combine --target-directory (-t) and --no-target-directory (-T)";
                return Err(Failure::new(problem));
            }
            let place = context.place(target)?;
            let what = if command == "ln" { "failed to access" } else { "target directory" };
            directory(&place)
                .map_err(|errno| Failure::new(format!("{what} {}: {errno}", operand(target))))?;
            return Ok((files, Destination::Into(place)));
        }
        let last = match files.pop() {
            Some(last) if !files.is_empty() => last,
            last => {
                let only = operand(&last.unwrap_or_default());
                return Err(usage(command, format!("missing destination file operand after {only}")));
            }
        };
        if self.no_target_directory {
            if files.len() > 1 {
                let extra = files.get(2).unwrap_or(&last);
                return Err(usage(command, format!("extra operand {}", operand(extra))));
            }
            return Ok((files, Destination::As(context.place(&last)?)));
        }
        let place = context.place(&last)?;
        match directory(&place) {
            Ok(()) => Ok((files, Destination::Into(place))),
            Err(errno) if files.len() > 1 => Err(Failure::new(format!("target {}: {errno}", operand(&last)))),
            Err(_) => Ok((files, Destination::As(place))),
        }
    }
}

/// Whether the source is a file of this machine in which the target is, or a directory with such a file in it.
fn source_holds(source: &OsStr, target: &OsStr) -> bool {
    let source = Location::parse(source);
    let (Base::Host(file), true) = (&source.base, source.nested.is_empty()) else { return false };
    let inside = match Location::of(target) {
        Ok(Location { base: Base::Host(outer), nested }) if !nested.is_empty() => outer.canonicalize().ok(),
        _ => None,
    };
    inside.is_some_and(|outer| file.canonicalize().is_ok_and(|file| outer.starts_with(file)))
}

/// Where one source goes.
pub enum Spot {
    /// To this name in this directory.
    Named(Inode, Name),
    /// To this directory itself: its content is merged.
    Itself(Inode),
}

/// The last component of a path without trailing slashes; empty for a root.
pub fn base_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}

impl Destination {
    /// The place a source gets. `..` and the root of a tree have no name of their own: their content goes into the
    /// directory itself.
    pub fn place_of(&self, source: &Place) -> Place {
        match self {
            Destination::As(place) => place.clone(),
            Destination::Into(place) => match base_name(&source.path) {
                b"" | b".." => place.clone(),
                name => place.child(name),
            },
        }
    }
}

/// Finds the spot a place names.
///
/// # Errors
/// As [`Place::parent`].
pub fn spot(place: &Place) -> outrigger_core::Result<Spot> {
    match base_name(&place.path) {
        b"" | b"." | b".." => place.find(Follow::Yes).map(Spot::Itself),
        _ => place.parent().map(|(dir, name)| Spot::Named(dir, name)),
    }
}

/// The directory a place is in, named as the user would; `None` when the user's words do not name one.
pub fn above(place: &Place) -> Option<Place> {
    let path = cut(&place.path)?;
    let shown = OsStr::from_bytes(cut(shown(place))?).to_owned();
    Some(place.at(path.to_vec(), shown))
}

/// A path without its last component and the slashes before it.
fn cut(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let slash = path[..end].iter().rposition(|&byte| byte == b'/')?;
    let kept = path[..slash].iter().rposition(|&byte| byte != b'/').map_or(1, |last| last + 1);
    Some(&path[..kept])
}

/// Whether the user wrote a slash at the end: only a directory will do.
pub fn wants_directory(place: &Place) -> bool {
    place.shown.as_bytes().ends_with(b"/")
}

/// A name below another, for messages.
pub fn shown_below(above: &[u8], name: &[u8]) -> Vec<u8> {
    let mut shown = above.to_vec();
    if !shown.is_empty() && !shown.ends_with(b"/") {
        shown.push(b'/');
    }
    shown.extend_from_slice(name);
    shown
}

/// `'from' -> 'to'`.
pub fn arrow(from: &[u8], to: &[u8]) -> String {
    format!("{} -> {}", quoted(from), quoted(to))
}

/// How a place is named in messages, as bytes.
pub fn shown(place: &Place) -> &[u8] {
    let shown: &OsStr = &place.shown;
    shown.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"/", b""),
            (b"", b""),
            (b"a", b"a"),
            (b"/a/b//", b"b"),
            (b"/a/.", b"."),
            (b"/a/..", b".."),
            (b"a/b", b"b"),
        ];
        for (path, name) in cases {
            assert_eq!(base_name(path), name, "{}", path.escape_ascii());
        }
    }

    #[test]
    fn cutting_a_path() {
        let cases: [(&[u8], Option<&[u8]>); 6] = [
            (b"a/b", Some(b"a")),
            (b"a//b/", Some(b"a")),
            (b"/a", Some(b"/")),
            (b"a", None),
            (b"/", None),
            (b"", None),
        ];
        for (path, above) in cases {
            assert_eq!(cut(path), above, "{}", path.escape_ascii());
        }
    }
}
