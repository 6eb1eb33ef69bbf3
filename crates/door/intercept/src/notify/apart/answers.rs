// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of calls about files whose changes are kept apart.

use super::{Overlay, Side, Spot, look};
use crate::notify::answers::{stat_of, statfs_of, statx_of};
use crate::notify::decode::{Asked, At};
use crate::notify::mirror::os;
use crate::notify::names::{Found, Where, above, as_path, last};
use crate::notify::open::Opening;
use crate::notify::process::Process;
use crate::notify::say;
use crate::notify::server::{Reply, Server};
use crate::notify::source::Call;
use outrigger_core::{Errno, Name, Result};
use rustix::fs::{CWD, FileType, Stat, readlinkat};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A program for this processor begins so (elf(5)): class and data of the header.
const ELF: &[u8] = b"\x7fELF";
/// Where the header says its class, and the class of programs of 64 bits.
const CLASS: (usize, u8) = (4, 2);

/// Attributes of a file that are not those of where it is found.
#[derive(Clone, Copy)]
pub(super) struct Worn {
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: Option<u64>,
    mtime: Option<(i64, i64)>,
}

impl Overlay {
    /// The file in the tree, and its directory.
    ///
    /// # Errors
    /// Those of the tree; `ENOENT` when there is no such directory.
    pub(super) fn found(&self, spot: &Spot) -> Result<Found> {
        let (mut inode, mut parent) = (None, None);
        if spot.path.is_empty() {
            inode = Some(Arc::new(self.client.root()?));
        } else {
            let dir = self.inode(above(&spot.path))?;
            inode = dir.find(&Name::new(last(&spot.path).to_vec())?)?.map(Arc::new).or(inode);
            parent = Some(Arc::new(dir));
        }
        let (path, slash, dots) = (spot.path.clone(), spot.slash, spot.dots);
        Ok(Found { path, tree: Some(usize::MAX), inode, parent, slash, dots, _way: Vec::new(), seen: 0 })
    }

    /// Where a file is looked at, and what is to be said of it in place of what is found there.
    pub(super) fn worn(&self, spot: &Spot) -> Result<(PathBuf, Option<Worn>)> {
        let (place, _) = spot.found(self).ok_or(Errno::ENOENT)?;
        if self.own_copies {
            let found = self.found(spot)?;
            let attr = found.there()?.attr();
            let is_merged = spot.side == Side::Both;
            let nlink = is_merged.then_some(attr.nlink.into());
            let mtime = is_merged.then_some((attr.mtime.secs, attr.mtime.nanos.into()));
            return Ok((place, Some(Worn { mode: attr.mode, uid: attr.uid, gid: attr.gid, nlink, mtime })));
        }
        let copy = || look(&self.real(&spot.path)).map_err(std::io::Error::from);
        // The directories in it are not counted: find(1) takes a link count of 1 for unknown.
        let of = |copy: Stat| Worn {
            mode: copy.st_mode,
            uid: copy.st_uid,
            gid: copy.st_gid,
            nlink: Some(1),
            mtime: Some((copy.st_mtime, copy.st_mtime_nsec as i64)),
        };
        Ok((place, if spot.side == Side::Both { Some(of(copy()?)) } else { None }))
    }
}

impl Server {
    /// The answer to a call that names files whose changes are kept apart.
    pub(crate) fn apart(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        places: &[Where],
    ) -> Result<Reply> {
        let overlay = Arc::clone(self.names.overlay().ok_or(Errno::EIO)?);
        if !self.source.waits(call) {
            return Ok(Reply::Answered);
        }
        let is_there = |place: &Where| place.apart().is_some_and(|spot| spot.side == Side::Upper);
        if (request.changes() || places.iter().any(is_there)) && !process.is_of(self.user) {
            return Err(Errno::EACCES.because("a program of another user"));
        }
        match places {
            [Where::Apart(spot)] if request.changes() => {
                self.asks();
                self.change(call, process, request, (&overlay, spot))
            }
            [Where::Apart(spot)] => self.look(call, process, request, (&overlay, spot)),
            [from, to] => {
                self.asks();
                self.move_apart(&overlay, &request, (from, to))
            }
            _ => Err(Errno::EIO.into()),
        }
    }

    /// Does what changes nothing.
    fn look(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        (overlay, spot): (&Overlay, &Spot),
    ) -> Result<Reply> {
        let opens_fifo = matches!(request, Asked::Open { flags, .. } if flags & libc::O_PATH == 0)
            && spot.found(overlay).is_some_and(|(_, found)| kind(&found) == FileType::Fifo);
        let is_answered = match spot.side {
            // A working directory that was removed: the kernel has it.
            Side::Hidden if spot.dots == 1 => return Ok(Reply::Pass),
            Side::Hidden => return Err(Errno::ENOENT.into()),
            Side::System | Side::Real | Side::Own => opens_fifo,
            // The kernel has the real directory opened, which is listed as both are.
            Side::Both => matches!(
                request,
                Asked::Stat { .. }
                    | Asked::Statx { .. }
                    | Asked::Access { .. }
                    | Asked::GetXattr { .. }
                    | Asked::ListXattr { .. }
                    | Asked::Watch { .. }
            ),
            Side::Upper => true,
        };
        if !is_answered {
            return self.look_locally(call, process, &request, spot);
        }
        let is_dir = spot.found(overlay).is_some_and(|(_, found)| kind(&found) == FileType::Directory);
        if spot.slash && !is_dir {
            return Err(Errno::ENOTDIR.into());
        }
        self.answer_apart(call, process, request, (overlay, spot))
    }

    /// Has the kernel look at a real file.
    fn look_locally(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: &Asked,
        spot: &Spot,
    ) -> Result<Reply> {
        if matches!(request, Asked::Execute { .. }) {
            self.must_be_known(as_path(&spot.path))?;
        }
        let mut path = spot.path.clone();
        if spot.slash || path.is_empty() {
            path.push(b'/');
        }
        let place = match request {
            Asked::Connect { .. } if spot.crossed => return self.with_address(call, as_path(&path)),
            _ if spot.crossed => Where::Beyond(path),
            _ => Where::Local,
        };
        self.locally(call, process, request, &[place])
    }

    /// Answers what the overlay alone knows.
    fn answer_apart(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        (overlay, spot): (&Overlay, &Spot),
    ) -> Result<Reply> {
        let memory = process.memory();
        let real = || as_path(&overlay.real(&spot.path)).to_owned();
        let done = |()| Ok(Reply::Value(0));
        match request {
            Asked::Open { at, flags, .. } if flags & libc::O_PATH != 0 => {
                self.again(call, &real(), Vec::new(), &[(at.argument, 0)])
            }
            Asked::Open { at, flags, mode, .. } => {
                self.open_apart(call, process, (overlay, spot), (&at, Opening { flags, mode }))
            }
            Asked::Stat { to, .. } => {
                let (place, worn) = overlay.worn(spot)?;
                let bytes = stat_of(&place, |stat| {
                    overlay.put(&spot.path, stat);
                    worn.into_iter().for_each(|worn| wear(stat, worn));
                })?;
                memory.write(to, &bytes).and_then(done)
            }
            Asked::Statx { flags, mask, to, .. } => {
                let (place, worn) = overlay.worn(spot)?;
                let wear = |stat: &mut libc::statx| {
                    overlay.put_x(&spot.path, stat);
                    worn.into_iter().for_each(|worn| wear_x(stat, worn));
                };
                memory.write(to, &statx_of(&place, flags, mask, wear)?).and_then(done)
            }
            Asked::Access { mode, .. } => self.access(&overlay.found(spot)?, mode).and_then(done),
            Asked::ReadLink { to, size, .. } => {
                let target = os(readlinkat(CWD, real(), Vec::new()))?.into_bytes();
                memory.cut(to, size, &target).map(Reply::Value)
            }
            Asked::ChangeDir { .. } => {
                let found = overlay.found(spot)?;
                if !found.there()?.is_dir() {
                    return Err(Errno::ENOTDIR.into());
                }
                self.access(&found, libc::X_OK.unsigned_abs())?;
                self.again(call, &real(), Vec::new(), &[(0, 0)])
            }
            Asked::Execute { at } => self.execute_apart(call, &real(), spot, &at),
            Asked::StatFs { to, .. } => memory.write(to, &statfs_of(&real(), |_| ())?).and_then(done),
            Asked::GetXattr { name, to, size, .. } => {
                memory.all(to, size, &self.xattr(&overlay.found(spot)?, &name)?).map(Reply::Value)
            }
            Asked::ListXattr { to, size, .. } => {
                memory.all(to, size, &self.xattrs(&overlay.found(spot)?)?).map(Reply::Value)
            }
            Asked::Watch { watcher, mask, .. } => {
                self.watch_at(process, &real(), watcher, mask).map(Reply::Value)
            }
            Asked::Connect { .. } => self.with_address(call, &real()),
            Asked::FileHandle { .. } => Err(Errno::EOPNOTSUPP.into()),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// Executes a file of the overlay.
    fn execute_apart(self: &Arc<Self>, call: &Call, real: &Path, spot: &Spot, at: &At) -> Result<Reply> {
        let found = os(look(real.as_os_str().as_encoded_bytes()))?;
        if kind(&found) != FileType::RegularFile || found.st_mode & 0o111 == 0 {
            return Err(Errno::EACCES.into());
        }
        self.must_be_known(real)?;
        self.execute_copy(call, real, &spot.path, at)
    }

    /// Refuses to execute a program whose calls are not known here.
    fn must_be_known(&self, path: &Path) -> Result<()> {
        let mut head = [0; CLASS.0 + 1];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
        if read.is_err() || !head.starts_with(ELF) || head[CLASS.0] == CLASS.1 {
            return Ok(());
        }
        say(format_args!(
            "'{}' is a program of 32 bits, whose changes cannot be kept apart by answers to its calls: EACCES",
            path.display()
        ));
        Err(Errno::EACCES.into())
    }
}

pub(super) fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

pub(super) fn wear(stat: &mut libc::stat, Worn { mode, uid, gid, nlink, mtime }: Worn) {
    (stat.st_mode, stat.st_uid, stat.st_gid) = (mode, uid, gid);
    nlink.into_iter().for_each(|nlink| stat.st_nlink = nlink);
    mtime.into_iter().for_each(|mtime| (stat.st_mtime, stat.st_mtime_nsec) = mtime);
}

pub(super) fn wear_x(stat: &mut libc::statx, Worn { mode, uid, gid, nlink, mtime }: Worn) {
    (stat.stx_mode, stat.stx_uid, stat.stx_gid) = (mode as u16, uid, gid);
    nlink.into_iter().for_each(|nlink| stat.stx_nlink = nlink as u32);
    if let Some((secs, nanos)) = mtime {
        (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec) = (secs, nanos as u32);
    }
}
