// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of NFS: attributes, times, errors.

use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::{Attr, Errno, Error, FileKind, SetAttrs, SetTime, Time};
use outrigger_proto_nfs3::types::{self as nfs, FileType, Mode, Status};

/// The largest size that files have on Linux: more is nothing that a program could count with.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Attributes of a file in the file system `home`; what is in others gets another device number.
pub(crate) fn attr(attrs: &nfs::Attrs, home: u64) -> Attr {
    let nfs::Device { major, minor } = attrs.rdev;
    Attr {
        ino: attrs.fileid,
        size: attrs.size.min(SIZE_MAX),
        blocks: attrs.used.min(SIZE_MAX).div_ceil(512),
        atime: time(attrs.atime),
        mtime: time(attrs.mtime),
        ctime: time(attrs.ctime),
        mode: kind(attrs.kind).bits() | attrs.mode.0 & MODE_PERMISSIONS,
        nlink: attrs.nlink,
        uid: attrs.uid,
        gid: attrs.gid,
        rdev: minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12,
        blksize: 1 << 17,
        dev: attrs.fsid ^ home,
        ..Attr::default()
    }
}

pub(crate) fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Block => FileKind::BlockDevice,
        FileType::Char => FileKind::CharDevice,
        FileType::Symlink => FileKind::Symlink,
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Fifo,
    }
}

fn time(time: nfs::Time) -> Time {
    Time::new(time.seconds.into(), time.nanos.min(999_999_999))
}

/// A device number of 32 bits in its parts (makedev(3)).
pub(crate) fn device(rdev: u32) -> nfs::Device {
    nfs::Device { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
}

/// What to set; times that the protocol does not have become the nearest.
pub(crate) fn set_attrs(set: &SetAttrs) -> nfs::SetAttrs {
    nfs::SetAttrs {
        mode: set.mode.map(|mode| Mode(mode & MODE_PERMISSIONS)),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time(set.atime),
        mtime: set_time(set.mtime),
    }
}

fn set_time(set: Option<SetTime>) -> nfs::SetTime {
    match set {
        None => nfs::SetTime::Keep,
        Some(SetTime::Now) => nfs::SetTime::Now,
        Some(SetTime::To(Time { secs, nanos })) => nfs::SetTime::To(match u32::try_from(secs) {
            Ok(seconds) => nfs::Time { seconds, nanos },
            Err(_) if secs < 0 => nfs::Time { seconds: 0, nanos: 0 },
            Err(_) => nfs::Time { seconds: u32::MAX, nanos: 0 },
        }),
    }
}

/// Attributes of something new.
pub(crate) fn initial(mode: u32, initial: Option<&SetAttrs>) -> nfs::SetAttrs {
    let attrs = initial.map_or(nfs::SetAttrs::NONE, set_attrs);
    nfs::SetAttrs { mode: attrs.mode.or(Some(Mode(mode & MODE_PERMISSIONS))), size: None, ..attrs }
}

/// The error that a status means.
pub(crate) fn error(status: Status) -> Error {
    let errno = match status {
        Status::PERM => Errno::EPERM,
        Status::NOENT => Errno::ENOENT,
        Status::NXIO => Errno::ENXIO,
        Status::ACCES => Errno::EACCES,
        Status::EXIST => Errno::EEXIST,
        Status::XDEV => Errno::EXDEV,
        Status::NODEV => Errno::ENODEV,
        Status::NOTDIR => Errno::ENOTDIR,
        Status::ISDIR => Errno::EISDIR,
        Status::INVAL => Errno::EINVAL,
        Status::FBIG => Errno::EFBIG,
        Status::NOSPC => Errno::ENOSPC,
        Status::ROFS => Errno::EROFS,
        Status::MLINK => Errno::EMLINK,
        Status::NAMETOOLONG => Errno::ENAMETOOLONG,
        Status::NOTEMPTY => Errno::ENOTEMPTY,
        Status::DQUOT => Errno::EDQUOT,
        Status::STALE | Status::BADHANDLE => Errno::ESTALE,
        Status::REMOTE => Errno::EREMOTE,
        Status::NOTSUPP => Errno::EOPNOTSUPP,
        Status::BADTYPE => Errno::EPERM,
        Status::BAD_COOKIE => Errno::EAGAIN,
        Status::JUKEBOX => Errno::ETIMEDOUT,
        // NFS3ERR_IO says it all.
        Status::IO => return Errno::EIO.into(),
        other => return Errno::EIO.because(format!("the server answers {other}")),
    };
    errno.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_make_no_sense_are_bounded() {
        let time = nfs::Time { seconds: u32::MAX, nanos: u32::MAX };
        let attrs = nfs::Attrs {
            kind: FileType::Char,
            mode: Mode(u32::MAX),
            nlink: 1,
            uid: 1,
            gid: 2,
            size: u64::MAX,
            used: u64::MAX,
            rdev: device(0x000f_ff08),
            fsid: 7,
            fileid: 9,
            atime: time,
            mtime: time,
            ctime: time,
        };
        let attr = attr(&attrs, 7);
        assert_eq!((attr.size, attr.mode, attr.rdev), (SIZE_MAX, 0o027_777, 0x000f_ff08));
        assert_eq!((attr.mtime, attr.dev), (Time::new(u32::MAX.into(), 999_999_999), 0));
    }
}
