// SPDX-License-Identifier: MIT OR Apache-2.0
//! Local files whose changes are kept apart (`docs/design/0033-cow-by-calls.md`).
//!
//! The real files are one side, the upper tree of an overlay is the other one. What is on the real side only the kernel looks at, as
//! always; what the overlay has the program gets from there. Whatever changes a file is done by the tree, which is the union of both.
//!
//! | module | what it holds |
//! |---|---|
//! | `mod.rs` | which side a path is on |
//! | `answers.rs` | what becomes of a call, and what programs ask about files of the overlay |
//! | `changes.rs` | changes of names and attributes |
//! | `open.rs` | opening files |
//! | `listing.rs` | directories that are on both sides |
//! | `numbers.rs` | device and inode numbers of copies |
//! | `devices.rs` | requests to open files (ioctl), and sockets |

mod answers;
mod changes;
mod devices;
mod listing;
mod numbers;
mod open;

use super::names::{DELETED, above, as_path, is_below, is_gone, last};
use numbers::Numbers;
use outrigger_client::{Client, Inode};
use outrigger_core::whiteout::{OPAQUE, is_reserved, whiteout};
use outrigger_core::{Errno, Name, Result};
use rustix::fs::{AtFlags, CWD, FileType, Stat, statat};
use rustix::io::Errno as Os;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What is the system's: changes are made there.
const SYSTEM: [&[u8]; 4] = [b"/proc", b"/sys", b"/dev", b"/run"];

/// Local files whose changes are kept apart.
pub struct Apart {
    /// The tree: the root directory, with the overlay on it.
    pub client: Client,
    /// The overlay's own directory, in which programs find nothing.
    pub dir: PathBuf,
    /// The upper tree, in that directory.
    pub upper: PathBuf,
    /// Whether copies belong to this user, and the tree alone knows whose the files are.
    pub own_copies: bool,
    /// Real files with one name that have been copied, and the inode numbers that they had.
    pub copies: Vec<(PathBuf, u64)>,
}

/// The same for this process: paths are as in [`super::names`].
pub(crate) struct Overlay {
    client: Client,
    dir: Vec<u8>,
    upper: Vec<u8>,
    own_copies: bool,
    /// That of the overlay.
    device: u64,
    numbers: Numbers,
}

/// Where a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Among those of the system, which are not kept apart.
    System,
    /// On the real side only, or nowhere and not hidden.
    Real,
    /// A directory that is on both sides, and shows the names of both.
    Both,
    /// In the overlay.
    Upper,
    /// Nowhere: the overlay hides it, or it is not in a directory that is in the overlay only.
    Hidden,
    /// The overlay's own directory.
    Own,
}

/// A file that is not the system's, or the place for one.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    /// Its path; no name in it but the last one is a symbolic link.
    pub(crate) path: Vec<u8>,
    pub(crate) side: Side,
    /// Whether the path that was given ends with a slash.
    pub(crate) slash: bool,
    /// Whether it ends with `.` or `..`.
    pub(crate) dots: usize,
    /// Whether the path that was given leads elsewhere for the kernel.
    pub(crate) crossed: bool,
}

fn look(path: &[u8]) -> rustix::io::Result<Stat> {
    statat(CWD, if path.is_empty() { b"/" } else { path }, AtFlags::SYMLINK_NOFOLLOW)
}

fn is_dir(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

/// Whether nothing has this name.
fn is_missing(path: &[u8]) -> bool {
    matches!(look(path), Err(Os::NOENT | Os::NOTDIR))
}

/// The name in the upper tree that hides a file.
fn whiteout_of(path: &[u8]) -> Vec<u8> {
    [above(path), b"/", &whiteout(last(path))].concat()
}

/// Whether a path is one below which everything is the system's.
pub(crate) fn is_top_of_system(path: &[u8]) -> bool {
    SYSTEM.contains(&path)
}

/// Whether a link in /proc is that of a file that is open for writing.
fn is_writable(link: &[u8]) -> bool {
    let (dir, name) = (above(link), last(link));
    if last(dir) != b"fd" {
        return false;
    }
    let about =
        std::fs::read_to_string(as_path(&[above(dir), b"/fdinfo/", name].concat())).unwrap_or_default();
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0)
}

impl Overlay {
    pub(crate) fn new(apart: Apart) -> Self {
        let Apart { client, dir, upper, own_copies, copies } = apart;
        let bytes = |path: PathBuf| path.into_os_string().into_vec();
        let (dir, upper) = (bytes(dir), bytes(upper));
        // Without an upper tree nothing is found in it.
        let device = look(&upper).map_or(0, |found| found.st_dev);
        let overlay = Overlay { client, dir, upper, own_copies, device, numbers: Numbers::default() };
        overlay.remember(copies);
        overlay
    }

    /// Where the copy of a file is.
    pub(crate) fn real(&self, path: &[u8]) -> Vec<u8> {
        [&self.upper[..], path].concat()
    }

    /// The path of the file for that of a copy.
    pub(crate) fn shown<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        is_below(path, &self.upper).then(|| &path[self.upper.len()..])
    }

    /// The path that a file of the overlay had, for that of one which has lost its name.
    pub(crate) fn had<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let former = path.strip_suffix(DELETED).filter(|_| is_gone(path))?;
        self.shown(former)
    }

    /// Whether the kernel may change the file that a link in /proc leads to, whose path it says is `target`: a pipe or a socket, a file that has no
    /// name or is in the upper tree under another one, and one that the program has open for writing, if it is only opened once more.
    ///
    /// # Errors
    /// `EROFS` for a real file that is not found by that path any more, and may have others.
    pub(crate) fn is_free(&self, link: &[u8], target: &[u8], opens: bool) -> Result<bool> {
        if !target.starts_with(b"/") || opens && is_writable(link) {
            return Ok(true);
        }
        if !is_gone(target) {
            return Ok(false);
        }
        let found = statat(CWD, link, AtFlags::empty()).map_err(std::io::Error::from)?;
        let is_named = found.st_nlink > 0
            && matches!(FileType::from_raw_mode(found.st_mode), FileType::RegularFile | FileType::Directory);
        match is_named && self.had(target).is_none() {
            true => Err(Errno::EROFS.because("a real file that has lost its name")),
            false => Ok(true),
        }
    }

    /// Whether a path is that of the upper tree itself.
    pub(crate) fn is_upper(&self, path: &[u8]) -> bool {
        path == self.upper
    }

    /// Where a file is.
    pub(crate) fn side(&self, path: &[u8]) -> Side {
        let mut side = Side::Both;
        let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(end, _)| end);
        for end in ends.chain([path.len()]).filter(|&end| end > 0) {
            side = self.below(side, &path[..end]);
        }
        side
    }

    /// Where a file is, in a directory of this side.
    pub(crate) fn below(&self, dir: Side, path: &[u8]) -> Side {
        if path == self.dir {
            return Side::Own;
        }
        match dir {
            Side::System | Side::Real => dir,
            Side::Hidden | Side::Own => Side::Hidden,
            Side::Upper | Side::Both if is_reserved(last(path)) => Side::Hidden,
            Side::Upper if is_missing(&self.real(path)) => Side::Hidden,
            Side::Upper => Side::Upper,
            Side::Both if is_top_of_system(path) && look(path).is_ok_and(|found| is_dir(&found)) => {
                Side::System
            }
            Side::Both => self.in_both(path),
        }
    }

    /// Where a file is whose directory is on both sides.
    fn in_both(&self, path: &[u8]) -> Side {
        let real = self.real(path);
        let is_hidden = || !is_missing(&whiteout_of(&real));
        match look(&real) {
            Ok(found) if is_dir(&found) => {
                let is_merged = look(path).is_ok_and(|found| is_dir(&found))
                    && !is_hidden()
                    && is_missing(&[&real, &b"/"[..], OPAQUE.as_bytes()].concat());
                if is_merged { Side::Both } else { Side::Upper }
            }
            Ok(_) => Side::Upper,
            Err(_) if is_hidden() => Side::Hidden,
            Err(_) => Side::Real,
        }
    }

    /// Whether a file may be changed: the overlay's own directory stays as it is.
    ///
    /// # Errors
    /// `EROFS` there.
    pub(crate) fn keeps(&self, spot: &Spot) -> Result<()> {
        match is_below(&spot.path, &self.dir) {
            true => Err(Errno::EROFS.because("the directory of the overlay itself")),
            false => Ok(()),
        }
    }

    /// Where this process finds a file; `None` where there is none.
    pub(crate) fn place(&self, side: Side, path: &[u8]) -> Option<Vec<u8>> {
        match side {
            Side::System | Side::Real | Side::Both | Side::Own => Some(path.to_vec()),
            Side::Upper => Some(self.real(path)),
            Side::Hidden => None,
        }
    }

    /// A file as the tree has it.
    ///
    /// # Errors
    /// Those of the tree.
    pub(crate) fn inode(&self, path: &[u8]) -> Result<Inode> {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let names = names.map(|name| Name::new(name.to_vec())).collect::<Result<Vec<_>>>()?;
        let (mut inode, mut left) = (self.client.root()?, &names[..]);
        while !left.is_empty() {
            let mut found = inode.descend(left)?;
            left = &left[found.len()..];
            inode = found.pop().ok_or(Errno::ENOENT)?;
        }
        Ok(inode)
    }
}

impl Spot {
    /// What is there, as this process finds it.
    fn found(&self, overlay: &Overlay) -> Option<(PathBuf, Stat)> {
        let place = overlay.place(self.side, &self.path)?;
        let found = look(&place).ok()?;
        Some((as_path(if place.is_empty() { b"/" } else { &place }).to_owned(), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_client::Settings;
    use outrigger_core::{Reply, Stack};
    use outrigger_sim::{Scripted, Sim, Step};
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn bytes(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_vec()
    }

    #[test]
    fn the_overlay_decides_where_a_file_is() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let (dir, real) = (place.join("kept"), place.join("real"));
        let upper = dir.join("upper");
        let above = upper.join(real.strip_prefix("/").unwrap());
        for path in ["both/only", "opaque", "hidden", "gone/in"] {
            fs::create_dir_all(real.join(path)).unwrap();
        }
        for path in ["both/new", "opaque", "hidden"] {
            fs::create_dir_all(above.join(path)).unwrap();
        }
        for path in [".wh.hidden", ".wh.gone", "opaque/.wh..wh..opq", "file", "both/.wh.file"] {
            fs::write(above.join(path), "").unwrap();
        }
        let sim = Sim::new(1);
        let tree = Scripted::new(&sim, |_, _| Step::Now(Reply::Error(Errno::ENOSYS.into())));
        let client = Client::new(Stack::new(tree).service(), sim, Settings::default());
        let overlay =
            Overlay::new(Apart { client, dir: dir.clone(), upper, own_copies: false, copies: Vec::new() });
        for (path, side) in [
            ("both", Side::Both),
            ("both/only", Side::Real),
            ("both/only/none", Side::Real),
            ("both/new", Side::Upper),
            ("both/new/none", Side::Hidden),
            ("both/file", Side::Hidden),
            ("both/.wh.file", Side::Hidden),
            ("opaque", Side::Upper),
            ("opaque/only", Side::Hidden),
            ("hidden", Side::Upper),
            ("gone", Side::Hidden),
            ("gone/in", Side::Hidden),
            ("file", Side::Upper),
            ("none", Side::Real),
        ] {
            assert_eq!(overlay.side(&bytes(&real.join(path))), side, "{path}");
        }
        assert_eq!((overlay.side(b""), overlay.side(b"/run/x")), (Side::Both, Side::System));
        assert_eq!(
            (overlay.side(&bytes(&dir)), overlay.side(&bytes(&dir.join("upper")))),
            (Side::Own, Side::Hidden)
        );
        assert_eq!(overlay.shown(&overlay.real(b"/a/b")), Some(&b"/a/b"[..]));
    }
}
