// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files whose changes are kept apart: the program gets a descriptor of the file in the overlay, so that content is there as soon
//! as it is written.

use super::answers::kind;
use super::{Overlay, Side, Spot};
use crate::notify::decode::At;
use crate::notify::mirror::{open, open_as_it_is, os};
use crate::notify::names::{Where, as_path};
use crate::notify::open::Opening;
use crate::notify::process::Process;
use crate::notify::server::{Reply, Server};
use crate::notify::source::Call;
use outrigger_client::Inode;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, FileKind, Result};
use rustix::fs::{FileType, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

impl Server {
    /// Opens a file; one that is to be written is copied first.
    pub(super) fn open_apart(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        (overlay, spot): (&Overlay, &Spot),
        (at, how): (&At, Opening),
    ) -> Result<Reply> {
        if how.has(libc::O_TMPFILE) {
            // Programs make one with a name then.
            return Err(Errno::EOPNOTSUPP.into());
        }
        if how.has(libc::O_CREAT) && spot.slash && spot.dots == 0 {
            return Err(Errno::EISDIR.into());
        }
        let changes = how.flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
        let can_give = self.source.can_give(call, as_path(&overlay.real(b"")), changes);
        can_give.map_err(|why| self.cannot_give(process, why))?;
        if changes && !process.has_room()? {
            return Err(Errno::EMFILE.into());
        }
        let Some((place, found)) = spot.found(overlay) else {
            return self.create_apart(process, (overlay, spot), how);
        };
        if how.has(libc::O_CREAT | libc::O_EXCL) {
            return Err(Errno::EEXIST.into());
        }
        match kind(&found) {
            FileType::Directory if how.writes() || how.flags & (libc::O_CREAT | libc::O_TRUNC) != 0 => {
                Err(Errno::EISDIR.into())
            }
            FileType::Directory => {
                overlay.permits(spot, how)?;
                Ok(how.reply(open(&place, how.of_copy() | OFlags::DIRECTORY)?))
            }
            _ if spot.slash || how.has(libc::O_DIRECTORY) => Err(Errno::ENOTDIR.into()),
            FileType::Symlink => Err(Errno::ELOOP.into()),
            FileType::Socket => Err(Errno::ENXIO.into()),
            FileType::Fifo => {
                // Both ends have to be those of the same one; it waits for the other one in the program.
                let before = overlay.before(spot);
                let real = overlay.copied(spot, OpenFlags::empty())?;
                overlay.after(before, &spot.path);
                self.again(call, &real, Vec::new(), &[(at.argument, 0)])
            }
            FileType::RegularFile if how.writes() || how.has(libc::O_TRUNC) => {
                let real = overlay.copied(spot, flags_of(how))?;
                Ok(how.reply(open(&real, how.of_copy())?))
            }
            FileType::RegularFile => {
                overlay.permits(spot, how)?;
                let is_locked = how.has(libc::O_CREAT) && spot.side == Side::Real;
                let place = if is_locked { overlay.settled(spot)? } else { place };
                let is_copy = overlay.shown(place.as_os_str().as_bytes()).is_some();
                // The permissions of a real file stay as they are.
                let open_real = || os(open_as_it_is(&place, how.of_copy()));
                Ok(how.reply(if is_copy { open(&place, how.of_copy()) } else { open_real() }?))
            }
            // What is behind a device is not kept apart: neither is it without a change of the file.
            _ if spot.side == Side::Upper => self.again(call, &place, Vec::new(), &[(at.argument, 0)]),
            _ if spot.crossed => {
                let request = crate::notify::decode::Asked::of(call)?.ok_or(Errno::EIO)?;
                self.locally(call, process, &request, &[Where::Beyond(spot.path.clone())])
            }
            _ => Ok(Reply::Pass),
        }
    }

    /// Makes a file.
    fn create_apart(
        &self,
        process: Process,
        (overlay, spot): (&Overlay, &Spot),
        how: Opening,
    ) -> Result<Reply> {
        if !how.has(libc::O_CREAT) {
            return Err(Errno::ENOENT.into());
        }
        if spot.slash || how.has(libc::O_DIRECTORY) {
            return Err(Errno::EISDIR.into());
        }
        let place = overlay.found(spot)?;
        let (parent, name) = place.place()?;
        let mode = (how.mode & 0o7777, process.umask()?);
        let exclusive = if how.has(libc::O_EXCL) { OpenFlags::EXCL } else { OpenFlags::empty() };
        parent.create_masked(&name, mode, flags_of(how) | exclusive)?;
        Ok(how.reply(open(as_path(&overlay.real(&spot.path)), how.of_copy())?))
    }
}

/// How the tree is to open a file that the program writes.
fn flags_of(how: Opening) -> OpenFlags {
    let access = match how.flags & libc::O_ACCMODE {
        libc::O_RDWR => OpenFlags::READ_WRITE,
        libc::O_RDONLY if !how.has(libc::O_TRUNC) => OpenFlags::empty(),
        _ => OpenFlags::WRITE_ONLY,
    };
    access | if how.has(libc::O_TRUNC) { OpenFlags::TRUNC } else { OpenFlags::empty() }
}

impl Overlay {
    /// Whether the user may read a file: the tree knows whose it is where the copies are the user's.
    fn permits(&self, spot: &Spot, how: Opening) -> Result<()> {
        if !self.own_copies {
            return Ok(());
        }
        let found = self.found(spot)?;
        let inode = found.there()?;
        if inode.is_dir() {
            return inode.entries().map(drop);
        }
        inode.open(flags_of(how)).map(drop)
    }

    /// Where a file is that a program would have made, if it may be copied: what it locks is what the next one writes to and locks then.
    fn settled(&self, spot: &Spot) -> Result<PathBuf> {
        match self.copy(&self.found(spot)?) {
            Ok(()) => Ok(as_path(&self.real(&spot.path)).to_owned()),
            Err(error) if matches!(error.errno, Errno::EACCES | Errno::EPERM | Errno::EROFS) => {
                // Who may only read it cannot change it either.
                Ok(as_path(&self.place(spot.side, &spot.path).ok_or(Errno::ENOENT)?).to_owned())
            }
            Err(error) => Err(error),
        }
    }

    /// Where the copy of a file is, which is made unless it is there: a regular one by being opened in the tree.
    fn copied(&self, spot: &Spot, flags: OpenFlags) -> Result<PathBuf> {
        let found = self.found(spot)?;
        let inode: &Inode = found.there()?;
        match inode.kind() {
            FileKind::Regular => drop(inode.open(flags)?),
            _ if spot.side == Side::Upper => {}
            _ => self.copy(&found)?,
        }
        Ok(as_path(&self.real(&spot.path)).to_owned())
    }
}
