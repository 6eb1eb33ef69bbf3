// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of NFS: attributes, times, errors.

use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::wcc::Before;
use outrigger_core::{Attr, Errno, Error, SetAttrs, SetTime, Time};
use outrigger_proto_nfs3::types::{self as nfs, FileType, Mode, Status};

/// Bytes of a unit of [`Attr::blocks`].
const BLOCK: u64 = 512;

/// Attributes as NFS has them; `fsid` is that of the export.
pub(crate) fn attrs(attr: &Attr, fsid: u64) -> nfs::Attrs {
    nfs::Attrs {
        kind: FileType::of_mode(attr.mode).unwrap_or(FileType::Regular),
        mode: Mode(attr.mode & MODE_PERMISSIONS),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.blocks.saturating_mul(BLOCK),
        rdev: nfs::Device::of_rdev(attr.rdev),
        fsid: fsid ^ attr.dev,
        fileid: attr.ino,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

/// A time of the 136 years that NFS has; the nearest one for others.
pub(crate) fn time(time: Time) -> nfs::Time {
    nfs::Time::nearest(time.secs, time.nanos)
}

/// What a client sets.
///
/// # Errors
/// `INVAL` for a second of a thousand million nanoseconds or more.
pub(crate) fn set_attrs(set: &nfs::SetAttrs) -> Result<SetAttrs, Status> {
    let (mode, uid, gid) = (set.mode.map(|mode| mode.0 & MODE_PERMISSIONS), set.uid, set.gid);
    let (atime, mtime) = (set_time(set.atime)?, set_time(set.mtime)?);
    Ok(SetAttrs { mode, uid, gid, size: set.size, atime, mtime, ..SetAttrs::default() })
}

fn set_time(set: nfs::SetTime) -> Result<Option<SetTime>, Status> {
    match set {
        nfs::SetTime::Keep => Ok(None),
        nfs::SetTime::Now => Ok(Some(SetTime::Now)),
        nfs::SetTime::To(time) if time.nanos >= 1_000_000_000 => Err(Status::INVAL),
        nfs::SetTime::To(time) => Ok(Some(SetTime::To(Time::new(time.seconds.into(), time.nanos)))),
    }
}

/// A file before a change.
pub(crate) fn before(before: &Before) -> nfs::WccAttrs {
    nfs::WccAttrs { size: before.size, mtime: time(before.mtime), ctime: time(before.ctime) }
}

/// The code of an error (RFC 1813, section 2.6).
pub(crate) fn status(error: &Error) -> Status {
    match error.errno {
        // A mount point stays one, however often the client asks.
        Errno::EBUSY => Status::ACCES,
        Errno::ENOSYS => Status::NOTSUPP,
        // The client asks again.
        Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM => Status::JUKEBOX,
        Errno(number) => Status::of_errno(number).unwrap_or(Status::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_none_is_refused() {
        let atime = nfs::SetTime::To(nfs::Time { seconds: 1, nanos: 1_000_000_000 });
        assert_eq!(set_attrs(&nfs::SetAttrs { atime, ..nfs::SetAttrs::NONE }), Err(Status::INVAL));
    }
}
