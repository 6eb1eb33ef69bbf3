// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of NFS: attributes, times, permissions, errors.

use outrigger_core::attr::{MODE_PERMISSIONS, R_OK, W_OK, X_OK};
use outrigger_core::wcc::Before;
use outrigger_core::{Attr, Errno, Error, FileKind, SetAttrs, SetTime, Time};
use outrigger_proto_nfs3::types::{self as nfs, FileType, Mode, Status};

/// Bytes of a unit of [`Attr::blocks`].
const BLOCK: u64 = 512;

/// Attributes as NFS has them; `fsid` is that of the export.
pub(crate) fn attrs(attr: &Attr, fsid: u64) -> nfs::Attrs {
    nfs::Attrs {
        kind: file_type(attr.kind()),
        mode: Mode(attr.mode & MODE_PERMISSIONS),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.blocks.saturating_mul(BLOCK),
        rdev: device(attr.rdev),
        fsid: fsid ^ attr.dev,
        fileid: attr.ino,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::Block,
        FileKind::CharDevice => FileType::Char,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
        FileKind::Fifo => FileType::Fifo,
    }
}

/// The parts of a device number of 32 bits (makedev(3)).
fn device(rdev: u32) -> nfs::Device {
    nfs::Device { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
}

/// A device number of 32 bits; `None` where the parts do not fit.
pub(crate) fn rdev(device: nfs::Device) -> Option<u32> {
    let nfs::Device { major, minor } = device;
    let fits = major <= 0xfff && minor <= 0xf_ffff;
    fits.then_some(minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12)
}

/// A time of the 136 years that NFS has; the nearest one for others.
pub(crate) fn time(time: Time) -> nfs::Time {
    match u32::try_from(time.secs) {
        Ok(seconds) => nfs::Time { seconds, nanos: time.nanos },
        Err(_) if time.secs < 0 => nfs::Time { seconds: 0, nanos: 0 },
        Err(_) => nfs::Time { seconds: u32::MAX, nanos: 0 },
    }
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

/// The permissions of access(2) that are needed for those of NFS: each with its equal.
const PERMISSIONS: [(nfs::Access, u32); 6] = [
    (nfs::Access::READ, R_OK),
    (nfs::Access::LOOKUP, X_OK),
    (nfs::Access::MODIFY, W_OK),
    (nfs::Access::EXTEND, W_OK),
    (nfs::Access::DELETE, W_OK),
    (nfs::Access::EXECUTE, X_OK),
];

/// Those of `asked` that make sense for this kind of file.
fn sensible(asked: nfs::Access, is_dir: bool) -> nfs::Access {
    asked & if is_dir { !nfs::Access::EXECUTE } else { !(nfs::Access::LOOKUP | nfs::Access::DELETE) }
}

/// What access(2) asks for instead.
pub(crate) fn mask(asked: nfs::Access, is_dir: bool) -> u32 {
    let sensible = sensible(asked, is_dir);
    PERMISSIONS.iter().filter(|(access, _)| sensible.contains(*access)).fold(0, |mask, (_, bit)| mask | bit)
}

/// Those of `asked` that `granted` means.
pub(crate) fn granted(asked: nfs::Access, is_dir: bool, granted: u32) -> nfs::Access {
    let has = PERMISSIONS.iter().filter(|(_, bit)| granted & bit != 0).map(|(access, _)| *access);
    sensible(asked, is_dir) & has.collect::<nfs::Access>()
}

/// The code of an error (RFC 1813, section 2.6).
pub(crate) fn status(error: &Error) -> Status {
    match error.errno {
        Errno::EPERM => Status::PERM,
        Errno::ENOENT => Status::NOENT,
        Errno::ENXIO => Status::NXIO,
        // A mount point stays one, however often the client asks.
        Errno::EACCES | Errno::EBUSY => Status::ACCES,
        Errno::EEXIST => Status::EXIST,
        Errno::EXDEV => Status::XDEV,
        Errno::ENODEV => Status::NODEV,
        Errno::ENOTDIR => Status::NOTDIR,
        Errno::EISDIR => Status::ISDIR,
        Errno::EINVAL => Status::INVAL,
        Errno::EFBIG => Status::FBIG,
        Errno::ENOSPC => Status::NOSPC,
        Errno::EROFS => Status::ROFS,
        Errno::EMLINK => Status::MLINK,
        Errno::ENAMETOOLONG => Status::NAMETOOLONG,
        Errno::ENOTEMPTY => Status::NOTEMPTY,
        Errno::EDQUOT => Status::DQUOT,
        Errno::ESTALE => Status::STALE,
        Errno::ENOSYS | Errno::EOPNOTSUPP => Status::NOTSUPP,
        // The client asks again.
        Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM => Status::JUKEBOX,
        _ => Status::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for number in [0, 0x103, 0x0801, u32::MAX, 0xfff0_0000, 0x000f_ff00] {
            assert_eq!(rdev(device(number)), Some(number), "{number:#x}");
        }
        assert_eq!(device(0x0801), nfs::Device { major: 8, minor: 1 });
        assert_eq!(rdev(nfs::Device { major: 0x1000, minor: 0 }), None);
        assert_eq!(rdev(nfs::Device { major: 0, minor: 0x10_0000 }), None);
    }

    #[test]
    fn times_beyond_those_of_nfs_are_its_first_and_last() {
        assert_eq!(time(Time::new(-1, 5)), nfs::Time { seconds: 0, nanos: 0 });
        assert_eq!(time(Time::new(1 << 40, 5)), nfs::Time { seconds: u32::MAX, nanos: 0 });
        assert_eq!(time(Time::new(7, 5)), nfs::Time { seconds: 7, nanos: 5 });
    }

    #[test]
    fn a_time_that_is_none_is_refused() {
        let atime = nfs::SetTime::To(nfs::Time { seconds: 1, nanos: 1_000_000_000 });
        assert_eq!(set_attrs(&nfs::SetAttrs { atime, ..nfs::SetAttrs::NONE }), Err(Status::INVAL));
    }

    #[test]
    fn permissions_of_files_and_directories() {
        use nfs::Access;
        assert_eq!(mask(Access::all(), true), R_OK | W_OK | X_OK);
        assert_eq!(mask(Access::LOOKUP | Access::DELETE, false), 0);
        let of_dir = granted(Access::all(), true, R_OK | X_OK);
        assert_eq!(of_dir, Access::READ | Access::LOOKUP);
        assert_eq!(granted(Access::READ | Access::EXECUTE, false, X_OK), Access::EXECUTE);
        assert_eq!(granted(Access::all(), false, W_OK), Access::MODIFY | Access::EXTEND);
    }
}
