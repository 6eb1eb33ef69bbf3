// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of 9P: attributes, times, errors.

use outrigger_core::attr::AttrFields;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::{Attr, Errno, Error, FileKind, SetTime, Time};
use outrigger_proto_ninep as ninep;
use outrigger_proto_ninep::{AttrMask, Attrs, Qid, QidKind, SetMask, Timespec};
use outrigger_toolkit_remote::KnownFile;
use outrigger_toolkit_remote::known::{Looks, instant};

/// The largest size that files have on Linux: more is nothing that a program could count with.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;
/// The largest error number of Linux.
pub(crate) const ERRNO_MAX: u32 = 4095;

/// The error that a number of Linux means.
pub(crate) fn error(ecode: u32) -> Error {
    match ecode {
        1..=ERRNO_MAX => Errno(ecode as i32).into(),
        _ => Errno::EIO.because(format!("the server answers with the error {ecode}, which there is not")),
    }
}

/// What the server calls a file: its identity without the version, which changes with the content.
pub(crate) fn handle(qid: &Qid) -> [u8; 9] {
    let kind = qid.kind & (QidKind::DIRECTORY | QidKind::SYMLINK);
    let mut handle = [kind.bits(); 9];
    handle[1..].copy_from_slice(&qid.path.to_le_bytes());
    handle
}

/// The file that has these attributes.
pub(crate) fn known(attrs: &Attrs) -> outrigger_core::Result<KnownFile> {
    KnownFile::new(&handle(&attrs.qid), attrs.qid.path, kind(attrs.mode)?)
}

/// By what a file is known again.
pub(crate) fn looks(attr: &Attr) -> Looks {
    Looks { size: Some(attr.size), changed: Some(instant(attr.ctime)) }
}

pub(crate) fn kind(mode: u32) -> outrigger_core::Result<FileKind> {
    let odd = || Errno::EIO.because(format!("the server tells the mode {mode:o}, which no kind of file has"));
    FileKind::of_mode(mode).ok_or_else(odd)
}

pub(crate) fn attr(attrs: &Attrs) -> Attr {
    // Only 9P2000 and 9P2000.u, which do not tell these, leave the number of names out.
    let untold = AttrFields::NLINK | AttrFields::CTIME | AttrFields::BLOCKS;
    let is_told = attrs.valid.contains(AttrMask::NLINK);
    Attr {
        ino: attrs.qid.path,
        size: attrs.size.min(SIZE_MAX),
        blocks: attrs.blocks.min(SIZE_MAX),
        atime: time(&attrs.atime),
        mtime: time(&attrs.mtime),
        ctime: time(&attrs.ctime),
        mode: attrs.mode & (outrigger_core::attr::MODE_KIND | MODE_PERMISSIONS),
        nlink: attrs.nlink.try_into().unwrap_or(u32::MAX),
        uid: attrs.uid,
        gid: attrs.gid,
        // A number of more than 32 bits is none that a program here could use.
        rdev: attrs.rdev.try_into().unwrap_or_default(),
        blksize: 1 << 17,
        // 9P2000.L is not asked for it, since it need not change with the attributes.
        change: if attrs.valid.contains(AttrMask::DATA_VERSION) { attrs.data_version } else { 0 },
        unknown: if is_told { AttrFields::empty() } else { untold },
        ..Attr::default()
    }
}

fn time(time: &Timespec) -> Time {
    Time::new(time.secs as i64, time.nanos.min(999_999_999) as u32)
}

/// The time of modification that is to be set, as files are known again by it where a server does not tell that of their last change.
pub(crate) fn mtime(set: &outrigger_core::SetAttrs) -> Option<u64> {
    match set.mtime {
        Some(SetTime::To(time)) => Some(instant(Time::new(time.secs, 0))),
        Some(SetTime::Now) | None => None,
    }
}

/// What to set.
pub(crate) fn set_attrs(set: &outrigger_core::SetAttrs) -> ninep::SetAttrs {
    let mut out = ninep::SetAttrs::default();
    let mut valid = SetMask::empty();
    let mut number = |bit, value: Option<u32>| {
        valid.set(bit, value.is_some());
        value.unwrap_or_default()
    };
    out.mode = number(SetMask::MODE, set.mode.map(|mode| mode & MODE_PERMISSIONS));
    out.uid = number(SetMask::UID, set.uid);
    out.gid = number(SetMask::GID, set.gid);
    if let Some(size) = set.size {
        (valid, out.size) = (valid | SetMask::SIZE, size);
    }
    for (time, place, bits) in [
        (set.atime, &mut out.atime, [SetMask::ATIME, SetMask::ATIME_SET]),
        (set.mtime, &mut out.mtime, [SetMask::MTIME, SetMask::MTIME_SET]),
    ] {
        match time {
            None => {}
            Some(SetTime::Now) => valid |= bits[0],
            Some(SetTime::To(Time { secs, nanos })) => {
                valid |= bits[0] | bits[1];
                *place = Timespec { secs: secs as u64, nanos: nanos.into() };
            }
        }
    }
    ninep::SetAttrs { valid, ..out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_make_no_sense_are_bounded() {
        let time = Timespec { secs: u64::MAX, nanos: u64::MAX };
        let told = Attrs {
            mode: u32::MAX,
            size: u64::MAX,
            nlink: u64::MAX,
            rdev: u64::MAX,
            mtime: time,
            ..Attrs::default()
        };
        let attr = attr(&told);
        assert_eq!((attr.size, attr.nlink, attr.rdev), (SIZE_MAX, u32::MAX, 0));
        assert_eq!(attr.mtime, Time::new(-1, 999_999_999));
        assert!(known(&told).is_err(), "no kind of file");
        assert_eq!(error(2), Errno::ENOENT.into());
        assert_eq!(error(0).errno, Errno::EIO);
        assert_eq!(error(u32::MAX).errno, Errno::EIO);
    }

    #[test]
    fn times_are_set_to_now_or_to_what_is_given() {
        let set = outrigger_core::SetAttrs {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(Time::new(-5, 7))),
            mode: Some(0o100_644),
            ..Default::default()
        };
        let out = set_attrs(&set);
        assert_eq!(out.valid, SetMask::MODE | SetMask::ATIME | SetMask::MTIME | SetMask::MTIME_SET);
        assert_eq!((out.mode, out.mtime), (0o644, Timespec { secs: -5_i64 as u64, nanos: 7 }));
    }
}
