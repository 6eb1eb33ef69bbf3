// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device and inode numbers of copies: a copy shows those of the real file that it was made from, so that it is the same file for a program
//! that looked at it before it was changed.
//!
//! The real file is hidden then, so that no other file shows its number. A file with several names keeps none of this: the other names
//! lead to the real file still, and programs would take both for one file.
//!
//! What shows the number of no real file shows the device of the directory that it seems to be in all the same: programs that stay on one
//! file system (`tar --one-file-system`) would leave it out.

use super::answers::{Worn, wear, wear_x};
use super::{Overlay, Side, Spot, is_dir, look};
use crate::notify::answers::{stat_at, statx_at};
use crate::notify::decode::Asked;
use crate::notify::names::{above, as_path, is_gone};
use crate::notify::process::Process;
use crate::notify::server::{Reply, Server};
use outrigger_core::{Result, lock};
use rustix::fs::{AtFlags, CWD, Stat, statat};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

/// Set in inode numbers of files of the overlay that show another device than their own: there, a file may have the same number.
const ELSEWHERE: u64 = 1 << 48;

/// A device and an inode number on it.
pub(super) type Number = (u64, u64);

/// What copies show, by the numbers that they have.
#[derive(Default)]
pub(crate) struct Numbers(Mutex<HashMap<Number, Number>>);

/// What a name leads to before a call that may change it.
pub(super) enum Before {
    /// Nothing: what is there afterwards is new.
    Nothing,
    /// A real file that has one name.
    Real(Number),
    /// What keeps its number, or has a copy already.
    Other,
}

fn number(found: &Stat) -> Number {
    (found.st_dev, found.st_ino)
}

impl Numbers {
    /// What a copy shows that is found with these numbers; directories have none.
    fn shown(&self, own: Number, is_dir: bool) -> Option<Number> {
        lock(&self.0).get(&own).filter(|_| !is_dir).copied()
    }

    /// The inode number that a file of the overlay shows; `elsewhere` where it shows another device.
    pub(super) fn ino(&self, own: Number, is_dir: bool, elsewhere: bool) -> u64 {
        self.shown(own, is_dir).map_or(if elsewhere { own.1 | ELSEWHERE } else { own.1 }, |(_, ino)| ino)
    }
}

impl Overlay {
    /// What a file shows that is found with these numbers at this path, if those are not its own.
    fn number_at(&self, own: Number, is_dir: bool, path: &[u8]) -> Option<Number> {
        self.numbers.shown(own, is_dir).or_else(|| {
            let dir = if is_dir { path } else { above(path) };
            self.elsewhere(own.0, dir).map(|device| (device, own.1 | ELSEWHERE))
        })
    }

    /// The device that a directory of the overlay shows, if that is another than its own.
    pub(super) fn elsewhere(&self, own: u64, dir: &[u8]) -> Option<u64> {
        if own != self.device {
            return None;
        }
        let mut at = dir;
        loop {
            match look(at) {
                Ok(found) if is_dir(&found) => return Some(found.st_dev).filter(|&real| real != own),
                _ if at.is_empty() => return None,
                _ => at = above(at),
            }
        }
    }

    /// Puts the numbers that a file shows into its attributes.
    pub(super) fn put(&self, path: &[u8], stat: &mut libc::stat) {
        let is_dir = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        if let Some(shown) = self.number_at((stat.st_dev, stat.st_ino), is_dir, path) {
            (stat.st_dev, stat.st_ino) = shown;
        }
    }

    /// The same for those of statx(2).
    pub(super) fn put_x(&self, path: &[u8], stat: &mut libc::statx) {
        let device = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let is_dir = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
        if let Some((device, ino)) = self.number_at((device, stat.stx_ino), is_dir, path) {
            stat.stx_ino = ino;
            (stat.stx_dev_major, stat.stx_dev_minor) = (libc::major(device), libc::minor(device));
        }
    }

    /// Takes over which inode numbers real files had when earlier programs copied them. Where another file has the name by now, the copy has
    /// its own: the number may be that of any file.
    pub(super) fn remember(&self, copies: Vec<(PathBuf, u64)>) {
        for (path, ino) in copies {
            let path = path.as_os_str().as_bytes();
            if let Ok(found) = look(path)
                && found.st_ino == ino
            {
                self.after(Before::Real(number(&found)), path);
            }
        }
    }

    /// What is at a place that is about to be changed.
    pub(super) fn before(&self, spot: &Spot) -> Before {
        match spot.found(self) {
            None => Before::Nothing,
            Some((_, found)) if spot.side == Side::Real && !is_dir(&found) && found.st_nlink == 1 => {
                Before::Real(number(&found))
            }
            Some(_) => Before::Other,
        }
    }

    /// It was changed, and is at this path of the overlay if it was copied or made.
    pub(super) fn after(&self, before: Before, path: &[u8]) {
        if let Before::Other = before {
            return;
        }
        let Ok(copy) = look(&self.real(path)) else { return };
        let mut numbers = lock(&self.numbers.0);
        match before {
            Before::Real(shown) if !is_dir(&copy) => drop(numbers.insert(number(&copy), shown)),
            // Numbers of files that were removed come again.
            _ => drop(numbers.remove(&number(&copy))),
        }
    }

    /// What an open directory shows that is on both sides: the kernel has the real one.
    fn worn_open(&self, process: Process, file: i32) -> Option<Worn> {
        let mut path = process.file(file).ok().filter(|path| !is_gone(path))?;
        if path == b"/" {
            path.clear();
        }
        let side = self.side(&path);
        let spot = Spot { path, side, slash: false, dots: 0, crossed: false };
        if side == Side::Both { self.worn(&spot).ok()?.1 } else { None }
    }
}

impl Server {
    /// The answer to what looks at an open file.
    pub(in crate::notify) fn stat_open(&self, process: Process, file: i32, request: &Asked) -> Result<Reply> {
        let Some(overlay) = self.names.overlay() else { return Ok(Reply::Pass) };
        let link = process.link(file);
        // What is not open the kernel says, and what may not be looked at shows what it has.
        let Ok(found) = statat(CWD, &link[..], AtFlags::empty()) else { return Ok(Reply::Pass) };
        let Ok(path) = process.file(file) else { return Ok(Reply::Pass) };
        let path = overlay.shown(&path).unwrap_or(if path == b"/" { b"" } else { &path });
        let shows_others = overlay.number_at(number(&found), is_dir(&found), path).is_some();
        let worn = if is_dir(&found) { overlay.worn_open(process, file) } else { None };
        if !shows_others && worn.is_none() {
            return Ok(Reply::Pass);
        }
        let (to, bytes) = match *request {
            Asked::StatxOpen { flags, mask, to, .. } => {
                let bytes = statx_at(as_path(&link), flags & !libc::AT_SYMLINK_NOFOLLOW, mask, |stat| {
                    overlay.put_x(path, stat);
                    worn.into_iter().for_each(|worn| wear_x(stat, worn));
                });
                (to, bytes?)
            }
            Asked::StatOpen { to, .. } => {
                let bytes = stat_at(as_path(&link), 0, |stat| {
                    overlay.put(path, stat);
                    worn.into_iter().for_each(|worn| wear(stat, worn));
                });
                (to, bytes?)
            }
            _ => return Ok(Reply::Pass),
        };
        process.memory().write(to, &bytes).map(|()| Reply::Value(0))
    }
}
