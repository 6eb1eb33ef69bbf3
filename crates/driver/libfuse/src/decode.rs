// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program answers, checked as the kernel checks it, in the words of the core.

use crate::message::Fault;
use outrigger_core::ops::{Lock, LockKind};
use outrigger_core::reply::{FsStat, OpenHow, Ttl};
use outrigger_core::{Attr, Errno, Error, FileKind, Name, Time, XattrName};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{AttrOut, EntryOut};

/// The number of the root, which no name leads to.
pub(crate) const ROOT: u64 = fuse::ROOT_ID;
/// The end of every file, where the core has `u64::MAX` (`OFFSET_MAX` of the kernel).
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// A reply that a correct program does not give.
pub(crate) fn wrong(what: impl std::fmt::Display) -> Error {
    Errno::EIO.because(format!("the program answered {what}"))
}

/// Attributes, with the kind of the file.
///
/// # Errors
/// `EIO` for a mode without a kind and for an impossible size.
pub(crate) fn attr(attr: &fuse::Attr) -> Result<(Attr, FileKind), Error> {
    let kind = FileKind::of_mode(attr.mode).ok_or_else(|| wrong(format!("the mode {:#o}", attr.mode)))?;
    if attr.size > OFFSET_MAX {
        return Err(wrong(format!("the size {}", attr.size)));
    }
    let time = |secs: u64, nanos: u32| Time::new(secs.cast_signed(), nanos.min(999_999_999));
    let attr = Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime, attr.atimensec),
        mtime: time(attr.mtime, attr.mtimensec),
        ctime: time(attr.ctime, attr.ctimensec),
        btime: None,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: if attr.blksize == 0 { 4096 } else { attr.blksize },
        ..Attr::default()
    };
    Ok((attr, kind))
}

/// A lifetime in whole milliseconds.
pub(crate) fn ttl(secs: u64, nanos: u32) -> Ttl {
    let millis = secs.saturating_mul(1000).saturating_add(u64::from(nanos / 1_000_000));
    Ttl(u32::try_from(millis).unwrap_or(u32::MAX))
}

/// The attributes of a GETATTR or SETATTR reply with their lifetime.
pub(crate) fn attr_out(body: &[u8]) -> Result<(Attr, FileKind, Ttl), Fault> {
    let (out, _) = AttrOut::decode(body)?;
    let (attr, kind) = attr(&out.attr)?;
    Ok((attr, kind, ttl(out.attr_valid, out.attr_valid_nsec)))
}

/// A name's node in a LOOKUP reply; `ENOENT` for the knowledge that there is none.
pub(crate) fn found(body: &[u8]) -> Result<(EntryOut, &[u8]), Fault> {
    let (entry, rest) = EntryOut::decode(body)?;
    match entry.nodeid {
        0 => Err(Errno::ENOENT.into()),
        ROOT => Err(wrong("that a name leads to the root").into()),
        _ => Ok((entry, rest)),
    }
}

/// The new node in a reply to a request that made it.
pub(crate) fn made(body: &[u8]) -> Result<(EntryOut, &[u8]), Fault> {
    found(body).map_err(|fault| match fault.errno() {
        Some(Errno::ENOENT) => wrong("that it made something without a number").into(),
        _ => fault,
    })
}

/// A name in a listing; `None` for `.` and `..`, which are the door's.
pub(crate) fn listed(name: &[u8]) -> Result<Option<Name>, Error> {
    if matches!(name, b"." | b"..") {
        return Ok(None);
    }
    Name::new(name.to_vec()).map(Some).map_err(|_| wrong(format!("the name \"{}\"", name.escape_ascii())))
}

/// How a file may be cached. A backing file of the program's kernel means nothing here.
pub(crate) fn how(flags: u32) -> OpenHow {
    let flags = fuse::OpenFlags::from_bits_retain(flags);
    let mut how = OpenHow::empty();
    for (flag, means) in [
        (fuse::OpenFlags::DIRECT_IO, OpenHow::DIRECT_IO),
        (fuse::OpenFlags::KEEP_CACHE, OpenHow::KEEP_CACHE),
        (fuse::OpenFlags::NONSEEKABLE, OpenHow::NONSEEKABLE),
        (fuse::OpenFlags::STREAM, OpenHow::NONSEEKABLE),
        (fuse::OpenFlags::CACHE_DIR, OpenHow::CACHE_DIR),
        (fuse::OpenFlags::PARALLEL_DIRECT_WRITES, OpenHow::PARALLEL_DIRECT_WRITES),
    ] {
        how.set(means, how.contains(means) || flags.contains(flag));
    }
    how
}

/// Size and free space.
pub(crate) fn statfs(body: &[u8]) -> Result<FsStat, Fault> {
    let (out, _) = fuse::StatfsOut::decode(body)?;
    Ok(FsStat {
        blocks: out.blocks,
        bfree: out.bfree,
        bavail: out.bavail,
        files: out.files,
        ffree: out.ffree,
        bsize: out.bsize,
        // As the kernel has it for programs that leave it out.
        frsize: if out.frsize == 0 { out.bsize } else { out.frsize },
        namelen: out.namelen,
    })
}

/// Names of extended attributes, each ended by a NUL.
pub(crate) fn xattr_names(body: &[u8]) -> Result<Vec<XattrName>, Fault> {
    let names = body.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let checked = names.map(|name| {
        let shown = || wrong(format!("the attribute name \"{}\"", name.escape_ascii()));
        XattrName::new(name.to_vec()).map_err(|_| shown())
    });
    Ok(checked.collect::<Result<_, _>>()?)
}

/// A lock in the way.
pub(crate) fn lock(body: &[u8]) -> Result<Option<Lock>, Fault> {
    let (out, _) = fuse::LkOut::decode(body)?;
    let kind = match out.lk.kind.cast_signed() {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => return Ok(None),
        kind => return Err(wrong(format!("a lock of kind {kind}")).into()),
    };
    if out.lk.start > OFFSET_MAX || out.lk.end < out.lk.start {
        return Err(wrong("a lock of an impossible range").into());
    }
    let end = if out.lk.end >= OFFSET_MAX { u64::MAX } else { out.lk.end };
    Ok(Some(Lock { start: out.lk.start, end, kind, pid: out.lk.pid }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(change: impl FnOnce(&mut EntryOut)) -> Vec<u8> {
        let attr = fuse::Attr { mode: 0o100_644, ..fuse::Attr::default() };
        let mut entry = EntryOut { nodeid: 7, attr, ..EntryOut::default() };
        change(&mut entry);
        entry.encode().to_vec()
    }

    #[test]
    fn nodes_are_checked() {
        assert!(found(&entry(|_| ())).is_ok());
        assert_eq!(found(&entry(|entry| entry.nodeid = 0)).unwrap_err().errno(), Some(Errno::ENOENT));
        assert_eq!(found(&entry(|entry| entry.nodeid = 1)).unwrap_err().errno(), Some(Errno::EIO));
        assert_eq!(made(&entry(|entry| entry.nodeid = 0)).unwrap_err().errno(), Some(Errno::EIO));
        assert_eq!(found(&[0; 100]).unwrap_err().errno(), Some(Errno::EIO));
    }

    #[test]
    fn attributes_are_checked() {
        let good = fuse::Attr { mode: 0o100_644, mtimensec: u32::MAX, ..fuse::Attr::default() };
        assert_eq!(attr(&good).unwrap().0.mtime.nanos, 999_999_999);
        assert!(attr(&fuse::Attr { mode: 0o644, ..good }).is_err());
        assert!(attr(&fuse::Attr { size: 1 << 63, ..good }).is_err());
    }

    #[test]
    fn lifetimes_are_whole_milliseconds_that_fit() {
        assert_eq!(ttl(1, 500_000_000), Ttl(1500));
        assert_eq!(ttl(u64::MAX, u32::MAX), Ttl::FOREVER);
    }

    #[test]
    fn names_in_listings_are_components() {
        assert!(listed(b"..").unwrap().is_none());
        assert!(listed(b"a").unwrap().is_some());
        assert!(listed(b"a/b").is_err());
    }
}
