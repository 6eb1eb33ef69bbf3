// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files and directories.

use crate::answer::Asking;
use crate::convert;
use crate::export::Held;
use crate::fids::{File, Found};
use crate::plain::Listing;
use outrigger_core::ops::{self, Flush, OpenDir, OpenFlags, Release, ReleaseDir};
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Cx, Errno, FileKind, Handle, LockOwner, OpCode, Reply, Result, lock};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::OwnedSemaphorePermit;

/// `O_DIRECTORY`.
const DIRECTORY: u32 = 0o200_000;

/// An open file or directory. It is closed when this is dropped, if not before.
pub(crate) struct Open {
    at: Found,
    pub(crate) handle: Handle,
    pub(crate) flags: OpenFlags,
    how: OpenHow,
    /// Whether something was written to it.
    pub(crate) is_written: AtomicBool,
    /// Who has taken locks by it.
    pub(crate) lockers: Mutex<HashSet<LockOwner>>,
    /// Where reading a directory as a file goes on.
    pub(crate) listing: tokio::sync::Mutex<Listing>,
    /// Whether it is removed when it is closed.
    pub(crate) is_removed_at_end: bool,
    is_closed: bool,
    _place: OwnedSemaphorePermit,
}

impl Open {
    pub(crate) fn new(at: Found, opened: &Opened, flags: OpenFlags, place: OwnedSemaphorePermit) -> Self {
        Open {
            at,
            handle: opened.handle,
            flags,
            how: opened.how,
            is_written: AtomicBool::new(false),
            lockers: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            is_removed_at_end: false,
            is_closed: false,
            _place: place,
        }
    }

    fn release(&self) -> outrigger_core::Request {
        let (node, handle, flags) = (self.at.node.node, self.handle, self.flags);
        match self.at.kind {
            FileKind::Directory => ReleaseDir { node, handle }.into(),
            _ => {
                let owner = LockOwner::default();
                Release { node, handle, flags, owner, flock_release: true }.into()
            }
        }
    }

    /// Closes it: its locks end, too.
    ///
    /// # Errors
    /// Why what was written may be lost.
    pub(crate) async fn close(mut self, cx: &Cx) -> Result<()> {
        let export = Arc::clone(&self.at.export);
        let lockers = std::mem::take(&mut *lock(&self.lockers));
        for owner in lockers {
            self.at.unlock(cx, self.handle, owner).await;
        }
        let (node, handle, owner) = (self.at.node.node, self.handle, LockOwner::default());
        let flushes = self.is_written.load(Relaxed)
            && !self.how.contains(OpenHow::NO_FLUSH)
            && export.abilities.ops.has(OpCode::Flush);
        let flushed = match flushes {
            true => export.ask(cx, Flush { node, handle, owner }).await.map(drop),
            false => Ok(()),
        };
        self.is_closed = true;
        match export.service.call(cx, self.release()).await {
            Reply::Error(error) if self.is_written.load(Relaxed) => flushed.and(Err(error)),
            _ => flushed,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_closed {
            let lockers = std::mem::take(&mut *lock(&self.lockers));
            lockers.into_iter().for_each(|owner| self.at.unlock_aside(self.handle, owner));
            self.at.export.aside(self.release());
        }
    }
}

impl Asking {
    /// A place for one more open file.
    ///
    /// # Errors
    /// `EMFILE` when the connection has too many.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.session.opens).try_acquire_owned();
        place.map_err(|_| Errno::EMFILE.because("the connection has too many open files"))
    }

    /// Opens a file or directory as open(2) does, with its flags.
    ///
    /// # Errors
    /// Why it is not opened.
    pub(crate) async fn open(&self, file: &mut File, flags: u32) -> Result<()> {
        let (flags, wants_dir) = (convert::open_flags(flags), flags & DIRECTORY != 0);
        let File { at, open } = file;
        if open.is_some() {
            return Err(Errno::EBADF.because("the fid is open already"));
        }
        let node = at.node.node;
        let opened = match at.kind {
            FileKind::Directory if flags.writes() => return Err(Errno::EISDIR.into()),
            FileKind::Directory => {
                let place = self.place()?;
                (at.export.ask(&self.cx(&at.who.cred), OpenDir { node }).await?, place)
            }
            _ if wants_dir => return Err(Errno::ENOTDIR.into()),
            FileKind::Regular => {
                let place = self.place()?;
                (at.export.ask(&self.cx(&at.who.cred), ops::Open { node, flags }).await?, place)
            }
            FileKind::Symlink => return Err(Errno::ELOOP.into()),
            // What a device of this machine does is not for a client to use: it has its own.
            _ => return Err(Errno::ENXIO.because("devices, pipes and sockets are opened at the client")),
        };
        *open = Some(Open::new(at.clone(), &opened.0, flags, opened.1));
        Ok(())
    }
}

impl File {
    /// What was opened.
    ///
    /// # Errors
    /// `EBADF` for a fid that was not.
    pub(crate) fn opened(&self) -> Result<&Open> {
        self.open.as_ref().ok_or_else(|| Errno::EBADF.because("the fid is not open"))
    }

    /// The handle, for requests that do without.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let handle = self.open.as_ref().map(|open| open.handle);
        handle.filter(|handle| *handle != Handle::NONE && self.at.kind != FileKind::Directory)
    }

    /// Its reference.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.at.node
    }
}
