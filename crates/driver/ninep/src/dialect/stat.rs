// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes as 9P2000 and 9P2000.u have them (stat(5) of Plan 9).

use super::People;
use outrigger_core::attr::{SET_GID, SET_UID};
use outrigger_core::{Errno, FileKind, Result, Time};
use outrigger_proto_ninep::{AttrMask, Attrs, Dialect, SetAttrs, SetMask, Stat, Text, Timespec};

/// Bits of a mode, of 9P2000.
pub(super) const DIR: u32 = 1 << 31;
/// Those of 9P2000.u.
pub(super) const SYMLINK: u32 = 1 << 25;
pub(super) const LINK: u32 = 1 << 24;
const DEVICE: u32 = 1 << 23;
const PIPE: u32 = 1 << 21;
const SOCKET: u32 = 1 << 20;
/// `S_ISVTX`.
const STICKY: u32 = 0o1000;
/// The bits that are kept elsewhere than where Unix has them: of 9P2000.u, and as `st_mode` has them.
const MOVED: [(u32, u32); 3] = [(1 << 19, SET_UID), (1 << 18, SET_GID), (1 << 16, STICKY)];
const RWX: u32 = 0o777;

/// What a server says of a file, as 9P2000.L would say it.
///
/// # Errors
/// `EIO` for a device of which it does not say which one it is.
pub(super) fn attrs(stat: &Stat, dialect: Dialect, people: &People) -> Result<Attrs> {
    let told = |number: Option<u32>| number.filter(|&number| number != u32::MAX);
    let (kind, rdev) = kind(stat, dialect)?;
    let moved = MOVED.iter().filter(|(bit, _)| dialect == Dialect::Unix && stat.mode & bit != 0);
    let time = |secs: u32| Timespec { secs: secs.into(), nanos: 0 };
    let size = match kind {
        FileKind::Directory => 0,
        FileKind::Symlink => stat.extension.as_ref().map_or(0, |target| target.len() as u64),
        _ => stat.length,
    };
    Ok(Attrs {
        // How many names a file has, and when its attributes were changed, is not told.
        valid: AttrMask::BASIC.difference(AttrMask::NLINK) | AttrMask::DATA_VERSION,
        qid: stat.qid,
        mode: kind.bits() | stat.mode & RWX | moved.fold(0, |all, (_, bit)| all | bit),
        uid: told(stat.n_uid).unwrap_or_else(|| people.user(&stat.uid)),
        gid: told(stat.n_gid).unwrap_or_else(|| people.group(&stat.gid)),
        nlink: 1,
        rdev,
        size,
        blksize: 0,
        blocks: size.div_ceil(512),
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.mtime),
        data_version: version(stat),
        ..Attrs::default()
    })
}

/// A number that changes with content and attributes, where the server counts the versions of a file: times have whole seconds. Else 0.
fn version(stat: &Stat) -> u64 {
    match stat.qid.version {
        0 => 0,
        count => {
            let (times, rest) = (u64::from(stat.mtime) << 32 | u64::from(count), u64::from(stat.mode) << 32);
            outrigger_toolkit_remote::hash(&[
                &times.to_le_bytes(),
                &(rest | stat.length).to_le_bytes(),
                &stat.uid,
                &stat.gid,
            ]) | 1
        }
    }
}

/// The kind of a file, and of a device which one.
fn kind(stat: &Stat, dialect: Dialect) -> Result<(FileKind, u64)> {
    let of_unix = if dialect == Dialect::Unix { stat.mode } else { 0 };
    let first = [
        (stat.mode & DIR, FileKind::Directory),
        (of_unix & SYMLINK, FileKind::Symlink),
        (of_unix & PIPE, FileKind::Fifo),
        (of_unix & SOCKET, FileKind::Socket),
    ];
    match first.into_iter().find(|(bit, _)| *bit != 0) {
        Some((_, kind)) => Ok((kind, 0)),
        None if of_unix & DEVICE != 0 => device(stat.extension.as_deref().unwrap_or_default()),
        None => Ok((FileKind::Regular, 0)),
    }
}

/// The device that an extension names, as in `b 8 1`.
///
/// # Errors
/// `EIO` for any other extension: there is no device that could stand for it.
fn device(extension: &[u8]) -> Result<(FileKind, u64)> {
    let words: Vec<&str> = std::str::from_utf8(extension).unwrap_or_default().split_whitespace().collect();
    let named = match words[..] {
        ["b", major, minor] => Some((FileKind::BlockDevice, major, minor)),
        ["c", major, minor] => Some((FileKind::CharDevice, major, minor)),
        _ => None,
    };
    let number = |word: &str| word.parse::<u32>().ok();
    let found = named
        .and_then(|(kind, major, minor)| Some((kind, rustix::fs::makedev(number(major)?, number(minor)?))));
    found.ok_or_else(|| {
        let extension = extension.escape_ascii().take(100).map(char::from).collect::<String>();
        Errno::EIO.because(format!("the server tells of a device '{extension}', which names none"))
    })
}

/// The bits of a mode that permissions are.
///
/// # Errors
/// `EPERM` for those that the dialect does not have.
pub(super) fn permissions(mode: u32, dialect: Dialect) -> Result<u32> {
    let moved = MOVED.iter().filter(|(_, bit)| mode & bit != 0).fold(0, |all, (bit, _)| all | bit);
    if moved != 0 && dialect != Dialect::Unix {
        return Err(Errno::EPERM.because("9P2000 has no set-id bits and no sticky bit"));
    }
    Ok(mode & RWX | moved)
}

/// What to make of something that is no directory, regular file or link: the bits of its mode, and its extension.
pub(super) fn special(kind: FileKind, (major, minor): (u32, u32)) -> Result<(u32, Text)> {
    let text = |text: String| Text::new(text).unwrap_or_default();
    match kind {
        FileKind::Regular => Ok((0, Text::default())),
        FileKind::Fifo => Ok((PIPE, Text::default())),
        FileKind::Socket => Ok((SOCKET, Text::default())),
        FileKind::CharDevice => Ok((DEVICE, text(format!("c {major} {minor}")))),
        FileKind::BlockDevice => Ok((DEVICE, text(format!("b {major} {minor}")))),
        FileKind::Directory | FileKind::Symlink => Err(Errno::EINVAL.into()),
    }
}

/// The change of a file that `is` like that now, as [`outrigger_proto_ninep::Twstat`] has it; `None` where nothing is to be changed.
///
/// # Errors
/// `EPERM` for what the dialect cannot change, `EINVAL` for times that it does not have.
pub(super) fn changes(
    set: &SetAttrs,
    is: &Stat,
    (dialect, people): (Dialect, &People),
    now: Time,
) -> Result<Option<Stat>> {
    let (untouched, is_unix) = (Stat::untouched(), dialect == Dialect::Unix);
    let wants = |bit| set.valid.contains(bit);
    let mut to = untouched.clone();
    if wants(SetMask::MODE) {
        let bits = MOVED.iter().fold(RWX, |all, (bit, _)| if is_unix { all | bit } else { all });
        to.mode = is.mode & !bits | permissions(set.mode, dialect)?;
    }
    if wants(SetMask::SIZE) {
        to.length = set.size;
    }
    let has = attrs(is, dialect, people)?;
    if wants(SetMask::UID) && (is_unix || set.uid != has.uid) {
        if !is_unix {
            return Err(Errno::EPERM.because("9P2000 cannot give a file to another owner"));
        }
        to.n_uid = Some(set.uid);
    }
    if wants(SetMask::GID) && is_unix {
        to.n_gid = Some(set.gid);
    } else if wants(SetMask::GID) && set.gid != has.gid {
        let nameless =
            || Errno::EPERM.because("9P2000 knows groups by their names, and this one has none here");
        to.gid = people.group_name(set.gid).ok_or_else(nameless)?;
    }
    if wants(SetMask::MTIME) {
        to.mtime = seconds(if wants(SetMask::MTIME_SET) { set.mtime.secs as i64 } else { now.secs })?;
    }
    if wants(SetMask::ATIME) && is_unix {
        to.atime = seconds(if wants(SetMask::ATIME_SET) { set.atime.secs as i64 } else { now.secs })?;
    } else if wants(SetMask::ATIME) && !wants(SetMask::MTIME) {
        return Err(Errno::EPERM.because("9P2000 lets only the server set the time of access"));
    }
    Ok((to != untouched).then_some(to))
}

/// A time in the messages; the last one there is means to leave it alone.
fn seconds(secs: i64) -> Result<u32> {
    let early = u32::try_from(secs).ok().filter(|&secs| secs != u32::MAX);
    early.ok_or_else(|| Errno::EINVAL.because("9P2000 has times from 1970 to 2106"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_proto_ninep::{Qid, QidKind};

    const NOW: Time = Time::new(1_000, 5);

    fn people() -> People {
        People::new("glenda", (7, 70))
    }

    fn text(text: &'static str) -> Text {
        Text::new(text).unwrap()
    }

    fn stat(mode: u32, extension: &'static str) -> Stat {
        let (uid, gid) = (text("glenda"), text("glenda"));
        let qid = Qid { kind: QidKind::empty(), version: 0, path: 9 };
        let stat = Stat { qid, mode, length: 1000, mtime: 5, uid, gid, ..Stat::default() };
        Stat { extension: Some(text(extension)), n_uid: Some(u32::MAX), ..stat }
    }

    #[test]
    fn modes_have_the_kinds_and_bits_of_their_dialect() {
        for (mode, extension, plain, unix) in [
            (0o644, "", 0o100_644, 0o100_644),
            (DIR | 0o755, "", 0o040_755, 0o040_755),
            (SYMLINK | 0o777, "target", 0o100_777, 0o120_777),
            (PIPE | 0o600, "", 0o100_600, 0o010_600),
            (SOCKET | 0o600, "", 0o100_600, 0o140_600),
            (DEVICE | 0o600, "b 8 1", 0o100_600, 0o060_600),
            (1 << 19 | 1 << 16 | 0o755, "", 0o100_755, 0o105_755),
            // A file for appending, that one at a time may open.
            (3 << 29 | 0o644, "", 0o100_644, 0o100_644),
        ] {
            let told = [Dialect::Plain, Dialect::Unix]
                .map(|dialect| attrs(&stat(mode, extension), dialect, &people()).unwrap().mode);
            assert_eq!(told, [plain, unix], "{mode:o}");
        }
        let told = attrs(&stat(DEVICE, "b 8 1"), Dialect::Unix, &people()).unwrap();
        assert_eq!((told.rdev, told.uid, told.gid), (0x801, 7, 70));
        assert_eq!(attrs(&stat(SYMLINK, "target"), Dialect::Unix, &people()).unwrap().size, 6);
        assert_eq!(attrs(&stat(DIR, ""), Dialect::Plain, &people()).unwrap().size, 0);
        let numbered = Stat { n_uid: Some(5), ..stat(0, "") };
        assert_eq!(attrs(&numbered, Dialect::Unix, &people()).unwrap().uid, 5);
    }

    #[test]
    fn a_device_that_is_not_named_is_refused_rather_than_taken_for_another_one() {
        for extension in ["", "no device", "b 8", "b 8 1 1", "c 4294967296 0", "c -1 0", "u 1 1", "c"] {
            let told = attrs(&stat(DEVICE | 0o600, extension), Dialect::Unix, &people());
            assert_eq!(told.unwrap_err().errno, Errno::EIO, "{extension}");
        }
    }

    #[test]
    fn the_version_is_another_one_after_each_change_that_the_server_counts() {
        let at = |version, mode| {
            let stat = stat(mode, "");
            attrs(&Stat { qid: Qid { version, ..stat.qid }, ..stat }, Dialect::Plain, &people())
                .unwrap()
                .data_version
        };
        assert_eq!(at(0, 0o644), 0, "the server counts nothing");
        assert!(at(1, 0o644) != at(2, 0o644) && at(1, 0o644) != at(1, 0o600) && at(1, 0o644) != 0);
    }

    fn changed(valid: SetMask, dialect: Dialect) -> Result<Option<Stat>> {
        let mtime = Timespec { secs: 77, nanos: 5 };
        let set = SetAttrs { valid, mode: 0o600, uid: 8, gid: 70, size: 3, mtime, ..SetAttrs::default() };
        changes(&set, &stat(1 << 30 | 0o644, ""), (dialect, &people()), NOW)
    }

    #[test]
    fn what_is_set_is_changed_and_nothing_else() {
        let untouched = Stat::untouched();
        assert_eq!(changed(SetMask::empty(), Dialect::Plain), Ok(None));
        assert_eq!(changed(SetMask::GID, Dialect::Plain), Ok(None), "its group already");
        let mode = Stat { mode: 1 << 30 | 0o600, ..untouched.clone() };
        assert_eq!(changed(SetMask::MODE, Dialect::Plain), Ok(Some(mode)), "it stays one for appending");
        let size = Stat { length: 3, mtime: 1000, ..untouched.clone() };
        assert_eq!(
            changed(SetMask::SIZE | SetMask::MTIME, Dialect::Plain),
            Ok(Some(size)),
            "the time is now"
        );
        let times = SetMask::ATIME | SetMask::MTIME | SetMask::MTIME_SET;
        assert_eq!(changed(times, Dialect::Plain), Ok(Some(Stat { mtime: 77, ..untouched.clone() })));
        let both = Stat { mtime: 77, atime: 1000, ..untouched.clone() };
        assert_eq!(changed(times, Dialect::Unix), Ok(Some(both)));
        let owner = Stat { n_uid: Some(8), n_gid: Some(70), ..untouched };
        assert_eq!(changed(SetMask::UID | SetMask::GID, Dialect::Unix), Ok(Some(owner)));
    }

    #[test]
    fn what_cannot_be_set_is_refused_and_not_left_out() {
        for valid in [SetMask::UID, SetMask::ATIME] {
            assert_eq!(changed(valid, Dialect::Plain).unwrap_err().errno, Errno::EPERM);
        }
        assert_eq!(permissions(SET_UID | 0o755, Dialect::Plain).unwrap_err().errno, Errno::EPERM);
        assert_eq!(permissions(SET_UID | STICKY | 0o755, Dialect::Unix), Ok(1 << 19 | 1 << 16 | 0o755));
        for secs in [-1, i64::from(u32::MAX), i64::MAX] {
            assert_eq!(seconds(secs).unwrap_err().errno, Errno::EINVAL);
        }
        let set = SetAttrs { valid: SetMask::GID, gid: 4_000_000_000, ..SetAttrs::default() };
        let refused = changes(&set, &stat(0, ""), (Dialect::Plain, &people()), NOW);
        assert_eq!(refused.unwrap_err().errno, Errno::EPERM, "a group without a name");
    }
}
