// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing several attributes at once, all or none as far as the host permits.
//!
//! The host has one call per attribute. What can be undone comes first, what cannot be undone (cutting a file) comes
//! last, and a failure in between restores owner and mode. Times follow the size, which changes them.

use crate::attr::{failed, stat_fd};
use crate::caller::Callers;
use crate::file::checked_offset;
use crate::tree::proc_path;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::attr::SET_ID;
use outrigger_core::{Attr, Credentials, Errno, Error, Result, SetAttrs, SetTime};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::process::{Gid, Uid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The file whose attributes change.
pub(crate) struct Subject<'a, O> {
    /// A descriptor of it; `O_PATH` will do.
    pub(crate) fd: BorrowedFd<'a>,
    /// Opens it for writing, to cut it.
    pub(crate) open: O,
    /// Who cuts it, if that clears its set-id bits.
    pub(crate) unprivileged: Option<&'a Credentials>,
}

impl<F: AsFd, O: FnOnce() -> Result<F>> Subject<'_, O> {
    /// Applies `attrs`.
    ///
    /// # Errors
    /// Those of chown(2), chmod(2), truncate(2) and utimensat(2); then owner, mode and size are as before.
    pub(crate) fn apply(self, callers: &Callers, attrs: &SetAttrs) -> Result<()> {
        let Subject { fd, open, unprivileged } = self;
        let changes_owner = attrs.uid.is_some() || attrs.gid.is_some();
        let changes_times = attrs.atime.is_some() || attrs.mtime.is_some();
        let steps = [changes_owner, attrs.mode.is_some(), attrs.size.is_some()];
        let before = if steps.iter().filter(|&&step| step).count() > 1 { Some(stat_fd(fd)?) } else { None };
        // Opened before anything changes: this is what most often fails.
        let cut = attrs.size.map(|size| Ok::<_, Error>((open()?, checked_offset(size)?))).transpose()?;
        let all = || {
            if changes_owner {
                chown(fd, attrs.uid, attrs.gid)?;
            }
            if let Some(mode) = attrs.mode {
                chmod(fd, mode)?;
            }
            if let Some((file, size)) = &cut {
                let resize = || rustix::fs::ftruncate(file, *size).map_err(failed);
                match unprivileged {
                    Some(caller) => callers.run_clearing_setid(caller, fd, resize)?,
                    None => resize()?,
                }
                // Without privileges that clears the set-id bits just given.
                attrs.mode.filter(|mode| mode & SET_ID != 0).map_or(Ok(()), |mode| chmod(fd, mode))?;
            }
            Ok(())
        };
        if let Err(error) = all() {
            undo(fd, before.as_ref());
            return Err(error);
        }
        if changes_times { set_times(fd, attrs) } else { Ok(()) }
    }
}

/// Puts owner and mode back. A file that refuses stays as it is: the first error is the one to report.
fn undo(fd: BorrowedFd<'_>, before: Option<&Attr>) {
    if let Some(attr) = before {
        drop(chown(fd, Some(attr.uid), Some(attr.gid)));
        drop(chmod(fd, attr.mode));
    }
}

fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // -1 means "leave alone" to the host, and is no id.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::EINVAL.because("4294967295 is not a user or group"));
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(failed)
}

fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    let mode = Mode::from_raw_mode(mode & MODE_PERMISSIONS);
    match rustix::fs::fchmod(fd, mode) {
        // An `O_PATH` descriptor.
        Err(rustix::io::Errno::BADF) => rustix::fs::chmodat(CWD, proc_path(fd), mode, AtFlags::empty()),
        done => done,
    }
    .map_err(failed)
}

fn set_times(fd: BorrowedFd<'_>, attrs: &SetAttrs) -> Result<()> {
    let times = Timestamps { last_access: timespec(attrs.atime), last_modification: timespec(attrs.mtime) };
    rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH).map_err(failed)
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}

/// What opens a file for cutting: a handle that is open for writing already, or a new descriptor.
pub(crate) enum ForWriting<'a> {
    /// The descriptor of an open handle.
    Open(BorrowedFd<'a>),
    /// One made for this purpose.
    New(OwnedFd),
}

impl AsFd for ForWriting<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ForWriting::Open(fd) => *fd,
            ForWriting::New(fd) => fd.as_fd(),
        }
    }
}
