// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device and inode numbers of copies: a copy shows those of the real file that it was made from, so that it is the same file for a program
//! that looked at it before it was changed.
//!
//! The real file is hidden then, so that no other file shows its number. A file with several names keeps none of this: the other names
//! lead to the real file still, and programs would take both for one file.

use super::answers::{Worn, wear, wear_x};
use super::{Overlay, Side, Spot, is_dir, look};
use crate::notify::answers::{stat_at, statx_at};
use crate::notify::decode::Asked;
use crate::notify::mirror::lock;
use crate::notify::names::{as_path, is_gone};
use crate::notify::process::Process;
use crate::notify::server::{Reply, Server};
use outrigger_core::Result;
use rustix::fs::{AtFlags, CWD, Stat, statat};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

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
    /// What a file shows that is found with these numbers, if those are not its own.
    pub(super) fn shown(&self, own: Number) -> Option<Number> {
        lock(&self.0).get(&own).copied()
    }

    /// The inode number that a file shows, but for directories.
    pub(super) fn shown_of(&self, found: &Stat) -> u64 {
        let shown = if is_dir(found) { None } else { self.shown(number(found)) };
        shown.map_or(found.st_ino, |(_, ino)| ino)
    }

    /// Puts the numbers that a file shows into its attributes.
    pub(super) fn put(&self, stat: &mut libc::stat) {
        if stat.st_mode & libc::S_IFMT != libc::S_IFDIR
            && let Some(shown) = self.shown((stat.st_dev, stat.st_ino))
        {
            (stat.st_dev, stat.st_ino) = shown;
        }
    }

    /// The same for those of statx(2).
    pub(super) fn put_x(&self, stat: &mut libc::statx) {
        let device = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFDIR
            && let Some((device, ino)) = self.shown((device, stat.stx_ino))
        {
            stat.stx_ino = ino;
            (stat.stx_dev_major, stat.stx_dev_minor) = (libc::major(device), libc::minor(device));
        }
    }
}

impl Overlay {
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
        let is_copy = !is_dir(&found) && overlay.numbers.shown(number(&found)).is_some();
        let worn = if is_dir(&found) { overlay.worn_open(process, file) } else { None };
        if !is_copy && worn.is_none() {
            return Ok(Reply::Pass);
        }
        let (to, bytes) = match *request {
            Asked::StatxOpen { flags, mask, to, .. } => {
                let bytes = statx_at(as_path(&link), flags & !libc::AT_SYMLINK_NOFOLLOW, mask, |stat| {
                    overlay.numbers.put_x(stat);
                    worn.into_iter().for_each(|worn| wear_x(stat, worn));
                });
                (to, bytes?)
            }
            Asked::StatOpen { to, .. } => {
                let bytes = stat_at(as_path(&link), 0, |stat| {
                    overlay.numbers.put(stat);
                    worn.into_iter().for_each(|worn| wear(stat, worn));
                });
                (to, bytes?)
            }
            _ => return Ok(Reply::Pass),
        };
        process.memory().write(to, &bytes).map(|()| Reply::Value(0))
    }
}
