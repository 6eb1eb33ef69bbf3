// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of NFS: attributes, times, errors.

use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::{Attr, Errno, Error, FileKind, SetAttrs, SetTime, Time};
use outrigger_proto_nfs3::types::{self as nfs, FileType, Mode, Status};

/// The largest size that files have on Linux: more is nothing that a program could count with.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Attributes of a file in the file system `home`; what is in others gets another device number.
pub(crate) fn attr(attrs: &nfs::Attrs, home: u64) -> Attr {
    Attr {
        ino: attrs.fileid,
        size: attrs.size.min(SIZE_MAX),
        blocks: attrs.used.min(SIZE_MAX).div_ceil(512),
        atime: time(attrs.atime),
        mtime: time(attrs.mtime),
        ctime: time(attrs.ctime),
        mode: attrs.kind.mode() | attrs.mode.0 & MODE_PERMISSIONS,
        nlink: attrs.nlink,
        uid: attrs.uid,
        gid: attrs.gid,
        // A number of more than 32 bits is none that a program here could use.
        rdev: attrs.rdev.rdev().unwrap_or_default(),
        blksize: 1 << 17,
        dev: attrs.fsid ^ home,
        ..Attr::default()
    }
}

pub(crate) fn kind(kind: FileType) -> FileKind {
    FileKind::of_mode(kind.mode()).unwrap_or(FileKind::Regular)
}

fn time(time: nfs::Time) -> Time {
    Time::new(time.seconds.into(), time.nanos.min(999_999_999))
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
        Some(SetTime::To(Time { secs, nanos })) => nfs::SetTime::To(nfs::Time::nearest(secs, nanos)),
    }
}

/// Attributes of something new.
pub(crate) fn initial(mode: u32, initial: Option<&SetAttrs>) -> nfs::SetAttrs {
    let attrs = initial.map_or(nfs::SetAttrs::NONE, set_attrs);
    nfs::SetAttrs { mode: attrs.mode.or(Some(Mode(mode & MODE_PERMISSIONS))), size: None, ..attrs }
}

/// The error that a status means.
pub(crate) fn error(status: Status) -> Error {
    match (status, status.errno()) {
        (Status::BADTYPE, _) => Errno::EPERM.into(),
        (Status::BAD_COOKIE, _) => Errno::EAGAIN.into(),
        (Status::JUKEBOX, _) => Errno::ETIMEDOUT.into(),
        (_, Some(number)) => Errno(number).into(),
        (other, None) => Errno::EIO.because(format!("the server answers {other}")),
    }
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
            rdev: nfs::Device::of_rdev(0x000f_ff08),
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
