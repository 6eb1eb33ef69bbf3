// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes here and there.

use crate::idmap::People;
use outrigger_core::attr::MODE_KIND;
use outrigger_core::{Attr, FileKind, Result, SetTime, Time};
use outrigger_proto_sftp::{Attrs, Owner, Times};
use outrigger_toolkit_remote::known::{Looks, instant};

/// The unit of efficient I/O that files show, in bytes.
const BLKSIZE: u32 = 4096;

/// The kind of file in attributes; a server that leaves it out means a regular file.
pub(crate) fn kind(attrs: &Attrs) -> FileKind {
    attrs.permissions.and_then(FileKind::of_mode).unwrap_or(FileKind::Regular)
}

/// By what a file is known again.
pub(crate) fn looks(attrs: &Attrs) -> Looks {
    Looks { size: attrs.size, changed: attrs.times.map(|times| changed_at(times.mtime)) }
}

/// A time of change, as it is compared.
pub(crate) fn changed_at(mtime: u32) -> u64 {
    instant(Time::new(mtime.into(), 0))
}

/// The attributes of a file with the inode number `ino` from what the server says.
///
/// The protocol knows neither the number of links nor the time of change: one link, and the time of modification.
///
/// # Errors
/// `EPERM` when its owner has no number here.
pub(crate) fn attr(attrs: &Attrs, ino: u64, people: &People) -> Result<Attr> {
    // More is nothing that a program could count with.
    let size = attrs.size.unwrap_or(0).min(i64::MAX as u64);
    let Owner { uid, gid } = people.shown(attrs.owner.unwrap_or_default())?;
    let Times { atime, mtime } = attrs.times.unwrap_or_default();
    let time = |secs: u32| Time::new(secs.into(), 0);
    let kind = kind(attrs);
    let permissions = attrs
        .permissions
        .map_or(if kind == FileKind::Directory { 0o755 } else { 0o644 }, |mode| mode & !MODE_KIND);
    Ok(Attr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: time(atime),
        mtime: time(mtime),
        ctime: time(mtime),
        btime: None,
        mode: kind.bits() | permissions & 0o7777,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        blksize: BLKSIZE,
        ..Attr::default()
    })
}

/// The seconds of a time to set; what the protocol cannot say becomes what is next to it.
pub(crate) fn seconds(time: SetTime, now: Time) -> u32 {
    let time = match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    time.secs.clamp(0, u32::MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    const THERE: Owner = Owner { uid: 1000, gid: 100 };

    #[test]
    fn what_a_server_does_not_say_has_a_value_all_the_same() {
        let people = People::open(&Options::default(), None).expect("no files are read");
        let shown = attr(&Attrs::NONE, 9, &people).expect("root's");
        assert_eq!(
            (shown.kind(), shown.permissions(), shown.size, shown.nlink),
            (FileKind::Regular, 0o644, 0, 1)
        );
        let known = Attrs {
            size: Some(1025),
            owner: Some(THERE),
            permissions: Some(0o104_755),
            times: Some(Times { atime: 1, mtime: u32::MAX }),
        };
        let shown = attr(&known, 9, &people).expect("as it is there");
        assert_eq!((shown.mode, shown.blocks, shown.uid, shown.gid), (0o104_755, 3, 1000, 100));
        assert_eq!((shown.atime.secs, shown.mtime.secs), (1, i64::from(u32::MAX)));
        let endless = attr(&Attrs { size: Some(u64::MAX), ..Attrs::NONE }, 9, &people).expect("root's");
        assert_eq!((endless.size, endless.blocks), (i64::MAX as u64, 1 << 54));
    }

    #[test]
    fn times_beyond_the_protocol_become_its_first_or_last() {
        let now = Time::new(5, 7);
        for (time, expected) in [
            (SetTime::Now, 5),
            (SetTime::To(Time::new(-1, 0)), 0),
            (SetTime::To(Time::new(1 << 40, 0)), u32::MAX),
            (SetTime::To(Time::new(12, 999_999_999)), 12),
        ] {
            assert_eq!(seconds(time, now), expected);
        }
    }
}
