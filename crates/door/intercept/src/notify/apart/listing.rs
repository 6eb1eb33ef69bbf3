// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories that are on both sides.
//!
//! A program has the real directory open, or one of the overlay. The real one is listed first, by the kernel, with the place where the
//! program is in it: names that the overlay hides are left out. Names that the overlay alone has follow, in the order of a number that
//! their bytes give; then the place is [`BEHIND`] and the number of the last one. So a directory may change its side while it is listed, and
//! descriptors that were duplicated share their place, as always.

use super::numbers::Numbers;
use super::{Overlay, Side, is_dir, is_missing, look};
use crate::notify::mirror::os;
use crate::notify::names::{as_path, is_gone};
use crate::notify::process::Process;
use crate::notify::server::{Reply, Server};
use crate::notify::source::Call;
use outrigger_core::whiteout::{is_reserved, whiteout};
use outrigger_core::{Errno, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, seek};
use rustix::io::Errno as Os;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

/// Where names of the overlay begin: farther than the kernel counts in directories that it numbers.
const BEHIND: u64 = 1 << 40;
/// How many numbers names have.
const NUMBERS: u64 = 1 << 31;
/// The most bytes that are read at once.
const SIZE_MAX: usize = 64 << 10;
/// Where the length, the kind and the name of an entry stand (`struct linux_dirent64`), behind its inode number.
const LENGTH: usize = 16;
/// How long the inode number is.
const INO: usize = size_of::<u64>();
const KIND: usize = 18;
const NAME: usize = 19;

/// What is to be listed.
enum Listed {
    /// What the kernel has.
    AsItIs,
    /// A directory of the overlay: without names that say what is hidden.
    Upper { path: Vec<u8> },
    /// The real directory, and then that of the overlay; without the former where the overlay hides it.
    Both { path: Vec<u8>, shows_real: bool },
    /// Nothing is there.
    Empty,
}

/// The names of a directory in the overlay.
struct Above<'a> {
    names: HashSet<Vec<u8>>,
    real: Vec<u8>,
    numbers: &'a Numbers,
    /// Whether files of the overlay show another device than their own.
    elsewhere: bool,
}

impl Server {
    /// The answer to getdents64(2).
    pub(in crate::notify) fn list(
        &self,
        call: &Call,
        process: Process,
        file: i32,
        (to, size): (u64, u64),
    ) -> Result<Reply> {
        let overlay = self.names.overlay().ok_or(Errno::EIO)?;
        let path = process.file(file)?;
        let listed = match overlay.shown(&path) {
            _ if self.names.in_mirror(&path).is_some() => Listed::AsItIs,
            Some(_) if is_gone(&path) => Listed::Empty,
            Some(path) => Listed::Upper { path: path.to_vec() },
            None => overlay.listed(path),
        };
        if let Listed::AsItIs = listed {
            return Ok(Reply::Pass);
        }
        let (dir, is_shared) = opened(process, file)?;
        let before = os(seek(&dir, SeekFrom::Current(0)))?;
        let mut buffer = vec![0; (size as usize).min(SIZE_MAX)];
        let entries = match &listed {
            Listed::AsItIs | Listed::Empty => Vec::new(),
            Listed::Upper { path } => {
                let device = os(fstat(&dir))?.st_dev;
                let elsewhere = overlay.elsewhere(device, path).is_some();
                some(&dir, &mut buffer, |name, head| {
                    overlay.numbers.put_entry((device, elsewhere), head);
                    !is_reserved(name)
                })?
            }
            Listed::Both { path, shows_real } => {
                overlay.list(&dir, (path, *shows_real), before, &mut buffer)?
            }
        };
        if let Err(error) = process.memory().write(to, &entries) {
            os(seek(&dir, SeekFrom::Start(before)))?;
            return Err(error);
        }
        if !is_shared {
            let close = process.opened(file)?.0 & libc::O_CLOEXEC != 0;
            self.source.replace(call, file, dir.as_fd(), close)?;
        }
        Ok(Reply::Value(entries.len() as i64))
    }
}

/// The open directory of a program, with the place where it is in it, and whether that is shared with the program. Containers may refuse
/// that; it is opened once more then, and put in the place of the former one afterwards.
fn opened(process: Process, file: i32) -> Result<(OwnedFd, bool)> {
    let pid = Pid::from_raw(process.number()?).ok_or(Errno(libc::ESRCH))?;
    let pid = os(pidfd_open(pid, PidfdFlags::empty()))?;
    match pidfd_getfd(pid, file, PidfdGetfdFlags::empty()) {
        Err(Os::PERM | Os::NOSYS) => {}
        shared => return Ok((os(shared)?, true)),
    }
    let link = format!("/proc/{}/fd/{file}", process.thread);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = os(openat(CWD, link, flags, Mode::empty()))?;
    os(seek(&dir, SeekFrom::Start(process.opened(file)?.1)))?;
    Ok((dir, false))
}

/// Reads entries until some are to be seen, or there are no more.
fn some(
    dir: &OwnedFd,
    buffer: &mut [u8],
    mut shows: impl FnMut(&[u8], &mut [u8]) -> bool,
) -> Result<Vec<u8>> {
    loop {
        // SAFETY: the kernel writes no more than its length to the buffer, which outlives the call.
        let count = unsafe {
            libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let (mut seen, mut rest) = (Vec::with_capacity(count), &mut buffer[..count]);
        while rest.len() > NAME {
            let length = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]));
            let (entry, after) = rest.split_at_mut_checked(length.max(1)).ok_or(Errno::EIO)?;
            let (head, name) = entry.split_at_mut_checked(NAME).ok_or(Errno::EIO)?;
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if shows(name, head) {
                seen.extend_from_slice(entry);
            }
            rest = after;
        }
        if count == 0 || !seen.is_empty() {
            return Ok(seen);
        }
    }
}

impl Overlay {
    /// How a real directory is to be listed that a program has open.
    fn listed(&self, path: Vec<u8>) -> Listed {
        let path = if path == b"/" { Vec::new() } else { path };
        match self.side(&path) {
            Side::System | Side::Real => Listed::AsItIs,
            Side::Both => Listed::Both { path, shows_real: true },
            // Another directory has its name now.
            Side::Upper => Listed::Both { path, shows_real: false },
            Side::Hidden | Side::Own => Listed::Empty,
        }
    }

    fn list(
        &self,
        dir: &OwnedFd,
        (path, shows_real): (&[u8], bool),
        before: u64,
        buffer: &mut [u8],
    ) -> Result<Vec<u8>> {
        let elsewhere = self.elsewhere(self.device, path).is_some();
        let above = Above::of(self.real(path), &self.numbers, elsewhere)?;
        let is_behind = (BEHIND..=BEHIND + NUMBERS).contains(&before);
        if shows_real && !is_behind {
            let seen = some(dir, buffer, |name, head| above.shows(name, head))?;
            if !seen.is_empty() {
                return Ok(seen);
            }
        }
        let from = if is_behind { before } else { BEHIND };
        let (entries, end) = above.alone(path, shows_real, from, buffer.len())?;
        os(seek(dir, SeekFrom::Start(end)))?;
        Ok(entries)
    }
}

impl<'a> Above<'a> {
    fn of(real: Vec<u8>, numbers: &'a Numbers, elsewhere: bool) -> Result<Self> {
        let names = fs::read_dir(as_path(&real)).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().into_vec())).collect::<io::Result<HashSet<_>>>()
        })?;
        Ok(Above { names, real, numbers, elsewhere })
    }

    /// The inode number that a file of the overlay shows.
    fn ino(&self, found: &Stat) -> u64 {
        self.numbers.ino((found.st_dev, found.st_ino), is_dir(found), self.elsewhere)
    }

    /// Whether a name of the real directory is to be seen; what file it leads to is put into its entry. A directory on both sides has the
    /// number of the real one.
    fn shows(&self, name: &[u8], head: &mut [u8]) -> bool {
        if matches!(name, b"." | b"..") {
            return true;
        }
        if self.names.contains(name) {
            if let Ok(found) = look(&[&self.real, &b"/"[..], name].concat()) {
                head[KIND] = kind_of(&found);
                if !is_dir(&found) {
                    put_ino(head, self.ino(&found));
                }
            }
            return true;
        }
        !is_reserved(name) && !self.names.contains(&whiteout(name))
    }

    /// Entries with names that the overlay alone has, from this place on, and the place behind them.
    fn alone(&self, path: &[u8], shows_real: bool, from: u64, size: usize) -> Result<(Vec<u8>, u64)> {
        let is_alone = |name: &&Vec<u8>| {
            let is_seen = || shows_real && !is_missing(&[path, b"/", name].concat());
            !is_reserved(name) && !is_seen()
        };
        let mut names: Vec<_> = self.names.iter().map(|name| (number(name), name)).collect();
        names.retain(|(number, name)| *number >= from && is_alone(name));
        names.sort();
        let (mut entries, mut end) = (Vec::new(), from);
        // What has the same number is answered at once.
        for group in names.chunk_by(|(one, _), (other, _)| one == other) {
            let next = group[0].0 + 1;
            let added = group.iter().filter_map(|(_, name)| {
                let found = look(&[&self.real, &b"/"[..], name].concat()).ok()?;
                Some(entry(name, (&found, self.ino(&found)), next))
            });
            let added: Vec<u8> = added.flatten().collect();
            if entries.len() + added.len() > size {
                return if entries.is_empty() { Err(Errno::EINVAL.into()) } else { Ok((entries, end)) };
            }
            entries.extend(added);
            end = next;
        }
        Ok((entries, end))
    }
}

/// The place of a name.
fn number(name: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(name);
    BEHIND + hash.finish() % NUMBERS
}

/// An entry as getdents64(2) has it, with the place behind it.
fn entry(name: &[u8], (found, ino): (&Stat, u64), next: u64) -> Vec<u8> {
    let length = (NAME + name.len() + 1).next_multiple_of(8);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(ino.to_ne_bytes());
    bytes.extend(next.to_ne_bytes());
    bytes.extend((length as u16).to_ne_bytes());
    bytes.push(kind_of(found));
    bytes.extend_from_slice(name);
    bytes.resize(length, 0);
    bytes
}

/// Puts an inode number into the head of an entry.
fn put_ino(head: &mut [u8], ino: u64) {
    head[..INO].copy_from_slice(&ino.to_ne_bytes());
}

impl Numbers {
    /// Puts the number that a file shows into the head of an entry of a directory on this device, and whether its files show another one.
    fn put_entry(&self, (device, elsewhere): (u64, bool), head: &mut [u8]) {
        if let Some(own) = head.first_chunk().map(|ino| u64::from_ne_bytes(*ino)) {
            put_ino(head, self.ino((device, own), head[KIND] == libc::DT_DIR, elsewhere));
        }
    }
}

fn kind_of(found: &Stat) -> u8 {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        _ => libc::DT_UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, from all calls that it takes with so much room.
    fn all(above: &Above, path: &[u8], shows_real: bool, size: usize) -> Vec<String> {
        let (mut names, mut from) = (Vec::new(), BEHIND);
        loop {
            let (entries, end) = above.alone(path, shows_real, from, size).unwrap();
            if entries.is_empty() {
                names.sort();
                return names;
            }
            assert!(entries.len() <= size && end > from);
            let mut rest = &entries[..];
            while !rest.is_empty() {
                let length = usize::from(u16::from_ne_bytes([rest[LENGTH], rest[LENGTH + 1]]));
                let name = rest[NAME..length].split(|&byte| byte == 0).next().unwrap();
                names.push(String::from_utf8(name.to_vec()).unwrap());
                rest = &rest[length..];
            }
            from = end;
        }
    }

    #[test]
    fn names_of_the_overlay_are_listed_once_in_pieces_of_any_size() {
        let place = tempfile::tempdir().unwrap();
        let (real, upper) = (place.path().join("real"), place.path().join("upper"));
        for dir in [&real, &upper] {
            fs::create_dir(dir).unwrap();
        }
        let mut new: Vec<String> = (0..300).map(|number| format!("new-{number}")).collect();
        new.sort();
        for name in new.iter().map(String::as_str).chain(["both", ".wh.gone", ".wh..wh.work"]) {
            fs::write(upper.join(name), "").unwrap();
        }
        for name in ["both", "gone", "real"] {
            fs::write(real.join(name), "").unwrap();
        }
        let path = real.into_os_string().into_vec();
        let numbers = Numbers::default();
        let above = Above::of(upper.into_os_string().into_vec(), &numbers, false).unwrap();
        for size in [64, 4096, SIZE_MAX] {
            assert_eq!(all(&above, &path, true, size), new);
        }
        assert_eq!(all(&above, &path, false, 4096).len(), new.len() + 1, "the copy, too");
        let mut head = [0; NAME];
        let seen = ["both", "gone", "real", ".", ".wh.x"].map(|name| above.shows(name.as_bytes(), &mut head));
        assert_eq!((seen, head[KIND]), ([true, false, true, true, false], libc::DT_REG));
        assert!(above.alone(&path, true, BEHIND, 8).is_err(), "no room for one");
    }
}
