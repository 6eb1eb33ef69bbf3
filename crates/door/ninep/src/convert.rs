// SPDX-License-Identifier: MIT OR Apache-2.0
//! Between the messages of the core and those of 9P: attributes, times, errors.

use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Attr, Errno, Error, FileKind, Generation, Name, Result, SetAttrs, SetTime, Time, hash};
use outrigger_proto_ninep as ninep;
use outrigger_proto_ninep::{
    AttrMask, Attrs, Dialect, Qid, QidKind, Reply, Rerror, Rlerror, SetMask, Text, Timespec,
};

/// The largest size and offset of files on Linux.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;
/// `O_SYNC` beside `O_DSYNC`.
const SYNC: u32 = 0o4_000_000;

/// The kind of a file in its [`Qid`].
pub(crate) fn qid_kind(kind: FileKind) -> QidKind {
    match kind {
        FileKind::Directory => QidKind::DIRECTORY,
        FileKind::Symlink => QidKind::SYMLINK,
        _ => QidKind::empty(),
    }
}

/// The number of a file: its inode number, mixed with the file system that it is in where the tree has several.
pub(crate) fn path(ino: u64, dev: u64) -> u64 {
    if dev == 0 { ino } else { ino ^ hash::siphash13(&dev.to_le_bytes()) }
}

/// The identity of a file.
pub(crate) fn qid(attr: &Attr) -> Qid {
    Qid { kind: qid_kind(attr.kind()), version: version(attr), path: path(attr.ino, attr.dev) }
}

/// A number that changes with the content. It is never 0, by which Linux' client knows files that are not to be cached.
fn version(attr: &Attr) -> u32 {
    let number = match attr.change {
        0 => {
            let nanos =
                (attr.mtime.secs as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.mtime.nanos.into());
            nanos ^ attr.size.rotate_left(42)
        }
        change => change,
    };
    ((number ^ number >> 32) as u32).max(1)
}

/// What is known of a file, as far as `mask` asks for it.
pub(crate) fn attrs(attr: &Attr, generation: Generation, owner: (u32, u32), mask: AttrMask) -> Attrs {
    let mut known = AttrMask::BASIC | AttrMask::GEN;
    known.set(AttrMask::BTIME, attr.btime.is_some());
    known.set(AttrMask::DATA_VERSION, attr.change != 0);
    Attrs {
        valid: known & mask,
        qid: qid(attr),
        mode: attr.mode,
        uid: owner.0,
        gid: owner.1,
        nlink: attr.nlink.into(),
        rdev: attr.rdev.into(),
        size: attr.size,
        blksize: attr.blksize.into(),
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: attr.btime.map(time).unwrap_or_default(),
        generation: generation.0,
        data_version: attr.change,
    }
}

fn time(time: Time) -> Timespec {
    Timespec { secs: time.secs as u64, nanos: time.nanos.into() }
}

/// What a client sets, with its own numbers of users.
///
/// # Errors
/// `EINVAL` for a time or a size that there is not.
pub(crate) fn set_attrs(set: &ninep::SetAttrs) -> Result<SetAttrs> {
    let has = |bits| set.valid.contains(bits);
    if has(SetMask::SIZE) && set.size > SIZE_MAX {
        return Err(Errno::EINVAL.because("a size of more than 63 bits"));
    }
    let number = |bit, value: u32| has(bit).then_some(value).filter(|&value| value != u32::MAX);
    let time = |now, given, time: Timespec| match (has(now), has(given)) {
        (false, _) => Ok(None),
        (true, false) => Ok(Some(SetTime::Now)),
        (true, true) if time.nanos >= 1_000_000_000 => Err(Errno::EINVAL.because("a time that there is not")),
        (true, true) => Ok(Some(SetTime::To(Time::new(time.secs as i64, time.nanos as u32)))),
    };
    Ok(SetAttrs {
        mode: has(SetMask::MODE).then_some(set.mode & MODE_PERMISSIONS),
        uid: number(SetMask::UID, set.uid),
        gid: number(SetMask::GID, set.gid),
        size: has(SetMask::SIZE).then_some(set.size),
        atime: time(SetMask::ATIME, SetMask::ATIME_SET, set.atime.clone())?,
        mtime: time(SetMask::MTIME, SetMask::MTIME_SET, set.mtime.clone())?,
        ..SetAttrs::default()
    })
}

/// Flags of open(2) that mean something to a tree.
pub(crate) fn open_flags(flags: u32) -> OpenFlags {
    let known = OpenFlags::WRITE_ONLY
        | OpenFlags::READ_WRITE
        | OpenFlags::TRUNC
        | OpenFlags::APPEND
        | OpenFlags::DSYNC
        | OpenFlags::NOATIME;
    let sync = if flags & SYNC != 0 { OpenFlags::DSYNC } else { OpenFlags::empty() };
    (OpenFlags::from_bits_retain(flags) & known) | sync
}

/// A name as the core has it. The message that it came in is not kept alive.
///
/// # Errors
/// Why it is none.
pub(crate) fn name(text: &[u8]) -> Result<Name> {
    Name::new(bytes::Bytes::copy_from_slice(text))
}

/// A device as the core has it.
///
/// # Errors
/// `EINVAL` for numbers that Linux does not have.
pub(crate) fn device(major: u32, minor: u32) -> Result<u32> {
    if major > 0xfff || minor > 0xf_ffff {
        return Err(Errno::EINVAL.because(format!("there is no device {major}:{minor}")));
    }
    Ok((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// The answer to a request that was not done.
pub(crate) fn refused(error: &Error, dialect: Dialect) -> Reply {
    let errno = match error.errno {
        // What no one has is no failure of this server: clients do without.
        Errno::ENOSYS => Errno::EOPNOTSUPP,
        errno => errno,
    };
    let ecode = errno.0.unsigned_abs();
    match dialect {
        Dialect::Linux => Rlerror { ecode }.into(),
        Dialect::Plain | Dialect::Unix => {
            let said = error.to_string();
            let end = said.floor_char_boundary(SAID_MAX);
            let ename = Text::new(said.as_bytes()[..end].to_vec()).unwrap_or_default();
            Rerror { ename, errno: Some(ecode) }.into()
        }
    }
}

/// The longest message of an error: Plan 9 cuts longer ones (`ERRMAX`).
const SAID_MAX: usize = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_a_file_is_its_inode_number_and_the_version_is_never_that_of_an_uncached_one() {
        let attr = Attr { ino: 5, mode: 0o40_755, ..Attr::default() };
        assert_eq!(qid(&attr), Qid { kind: QidKind::DIRECTORY, version: 1, path: 5 });
        assert_ne!(qid(&Attr { dev: 1, ..attr.clone() }).path, qid(&Attr { dev: 2, ..attr.clone() }).path);
        let counted = |change| qid(&Attr { change, ..attr.clone() }).version;
        assert!(counted(3) != counted(4) && counted(1 << 32 | 1) == 1);
        let grown = Attr { size: 1, ..attr.clone() };
        assert_ne!(qid(&grown).version, qid(&attr).version);
    }

    #[test]
    fn what_is_set_is_what_its_bits_say() {
        let given = ninep::SetAttrs {
            valid: SetMask::MODE | SetMask::UID | SetMask::ATIME | SetMask::MTIME | SetMask::MTIME_SET,
            mode: 0o100_4755,
            uid: u32::MAX,
            gid: 7,
            mtime: Timespec { secs: -5_i64 as u64, nanos: 7 },
            ..Default::default()
        };
        let expected = SetAttrs {
            mode: Some(0o4755),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(Time::new(-5, 7))),
            ..SetAttrs::default()
        };
        assert_eq!(set_attrs(&given), Ok(expected));
        let late = Timespec { secs: 1, nanos: 1_000_000_000 };
        assert!(set_attrs(&ninep::SetAttrs { mtime: late, ..given.clone() }).is_err());
        let valid = SetMask::SIZE;
        assert!(set_attrs(&ninep::SetAttrs { valid, size: u64::MAX, ..given }).is_err());
    }

    #[test]
    fn flags_without_a_meaning_for_a_tree_are_left_out() {
        let sent = 0o2 | 0o100 | 0o200 | 0o1000 | 0o40_000 | 0o100_000 | 0o400_000 | 1 << 31;
        assert_eq!(open_flags(sent), OpenFlags::READ_WRITE | OpenFlags::TRUNC);
        assert_eq!(open_flags(SYNC), OpenFlags::DSYNC);
    }

    #[test]
    fn devices_are_packed_as_linux_does() {
        assert_eq!((device(8, 1), device(8, 0x1_00)), (Ok(0x801), Ok(0x10_0800)));
        assert!(device(0x1000, 0).is_err() && device(0, 0x10_0000).is_err());
    }

    #[test]
    fn errors_are_numbers_or_sentences() {
        let error = Errno::ENOSYS.because("ä".repeat(100));
        assert_eq!(refused(&error, Dialect::Linux), Rlerror { ecode: 95 }.into());
        let Reply::Rerror(Rerror { ename, errno: Some(95) }) = refused(&error, Dialect::Plain) else {
            panic!("another message")
        };
        assert!(ename.len() <= SAID_MAX && ename.starts_with(b"Function not implemented"));
        assert!(std::str::from_utf8(&ename).is_ok());
    }
}
