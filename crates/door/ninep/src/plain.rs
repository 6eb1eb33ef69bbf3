// SPDX-License-Identifier: MIT OR Apache-2.0
//! What 9P2000 and 9P2000.u have in place of the requests of Linux: users by name, attributes in one piece, directories that are read.

use crate::answer::Asking;
use crate::convert;
use crate::export::Held;
use crate::fids::{File, Found, Grip};
use crate::open::Open;
use bytes::{Bytes, BytesMut};
use outrigger_core::attr::{SET_GID, SET_UID};
use outrigger_core::ops::{Link, MkDir, MkNod, OpenDir, OpenFlags, ReadDirPlus, ReadLink, SymLink};
use outrigger_core::reply::{DirentPlus, Entry};
use outrigger_core::{Attr, Cx, Errno, FileKind, Handle, Node, Result, SetAttrs, SetTime, Target, Time};
use outrigger_proto_ninep::{
    Dialect, Rcreate, Ropen, Rread, Rstat, Rwstat, Stat, Tcreate, Text, Topen, Twstat,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bits of a mode of 9P2000.
const DIR: u32 = 1 << 31;
const APPEND: u32 = 1 << 30;
const EXCLUSIVE: u32 = 1 << 29;
/// Those of 9P2000.u.
const SYMLINK: u32 = 1 << 25;
const LINK: u32 = 1 << 24;
const DEVICE: u32 = 1 << 23;
const PIPE: u32 = 1 << 21;
const SOCKET: u32 = 1 << 20;
/// Where 9P2000.u has the bits of permissions that 9P2000 lacks, and where Unix has them: set-id bits, and `S_ISVTX`.
const MOVED: [(u32, u32); 3] = [(1 << 19, SET_UID), (1 << 18, SET_GID), (1 << 16, 0o1000)];
/// All that make something else than a regular file.
const SPECIAL: u32 = SYMLINK | LINK | DEVICE | PIPE | SOCKET;
const RWX: u32 = 0o777;

/// Bits of the mode of an open.
const ACCESS: u8 = 3;
const TRUNC: u8 = 0x10;
const REMOVE: u8 = 0x40;
/// Of 9P2000.u: what is written goes to the end. Clients of Linux send it.
const TO_END: u8 = 0x80;
/// Flags of open(2).
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;

/// The least that is listed at once, in bytes as the core counts them.
const LISTED: u32 = 4096;

/// Where reading a directory goes on.
#[derive(Default)]
pub(crate) struct Listing {
    /// Of the content that was read.
    offset: u64,
    /// Of the tree's listing.
    cookie: u64,
    /// What was listed and not read yet.
    rest: VecDeque<BytesMut>,
    is_at_end: bool,
}

/// The fid of the file that a hard link is to be of, which the extension has.
pub(crate) fn linked(call: &Tcreate) -> Option<u32> {
    let extension = call.extension.as_deref().filter(|_| call.perm & SPECIAL == LINK)?;
    std::str::from_utf8(extension).ok()?.trim().parse().ok()
}

/// Flags of open(2) for the mode of an open.
///
/// # Errors
/// `EINVAL` for bits that mean nothing.
fn flags_of(mode: u8, dialect: Dialect) -> Result<u32> {
    let of_unix = if dialect == Dialect::Unix { TO_END } else { 0 };
    if mode & !(ACCESS | TRUNC | REMOVE | 0x20 | of_unix) != 0 {
        return Err(Errno::EINVAL.because(format!("the mode {mode:#x} of an open")));
    }
    let access = match mode & ACCESS {
        1 => OpenFlags::WRITE_ONLY.bits(),
        2 => OpenFlags::READ_WRITE.bits(),
        _ => 0,
    };
    let flag = |bit, flag| if mode & bit != 0 { flag } else { 0 };
    Ok(access | flag(TRUNC, O_TRUNC) | flag(TO_END, O_APPEND))
}

fn seconds(time: Time) -> u32 {
    u32::try_from(time.secs.max(0)).unwrap_or(u32::MAX)
}

fn text(text: impl Into<Bytes>) -> Text {
    Text::new(text).unwrap_or_default()
}

/// The mode of a file as the dialect has it.
fn mode(attr: &Attr, dialect: Dialect) -> u32 {
    let mut mode = attr.mode & RWX;
    if attr.is_dir() {
        mode |= DIR;
    }
    if dialect == Dialect::Unix {
        mode |= match attr.kind() {
            FileKind::Symlink => SYMLINK,
            FileKind::BlockDevice | FileKind::CharDevice => DEVICE,
            FileKind::Fifo => PIPE,
            FileKind::Socket => SOCKET,
            FileKind::Regular | FileKind::Directory => 0,
        };
        mode |= MOVED.iter().filter(|(_, bit)| attr.mode & bit != 0).fold(0, |all, (bit, _)| all | bit);
    }
    mode
}

/// Permissions as the tree has them.
fn permissions(mode: u32, dialect: Dialect) -> u32 {
    let moved = MOVED.iter().filter(|(bit, _)| dialect == Dialect::Unix && mode & bit != 0);
    moved.fold(mode & RWX, |all, (_, bit)| all | bit)
}

impl Asking {
    /// What is told of a file with this name.
    async fn stat_of(&self, at: (&Found, &Cx, Node), attr: &Attr, name: &[u8]) -> Stat {
        let ((found, cx, node), users) = (at, &self.session.shared.users);
        let (n_uid, n_gid) = found.export.callers.shown((attr.uid, attr.gid));
        let user = users.user_name(attr.uid).unwrap_or_else(|| n_uid.to_string());
        let group = users.group_name(attr.gid).unwrap_or_else(|| n_gid.to_string());
        let extension = match attr.kind() {
            _ if self.session.dialect != Dialect::Unix => None,
            FileKind::Symlink => {
                let target = found.export.ask(cx, ReadLink { node }).await;
                target.ok().map(|target| text(target.into_bytes()))
            }
            kind @ (FileKind::BlockDevice | FileKind::CharDevice) => {
                let letter = if kind == FileKind::BlockDevice { 'b' } else { 'c' };
                let (major, minor) =
                    ((attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | (attr.rdev >> 12 & !0xff));
                Some(text(format!("{letter} {major} {minor}")))
            }
            _ => None,
        };
        Stat {
            kind: 0,
            dev: 0,
            qid: convert::qid(attr),
            mode: mode(attr, self.session.dialect),
            atime: seconds(attr.atime),
            mtime: seconds(attr.mtime),
            length: if attr.is_dir() { 0 } else { attr.size },
            name: text(name.to_vec()),
            uid: text(user.clone()),
            gid: text(group),
            muid: text(user),
            extension,
            n_uid: Some(n_uid),
            n_gid: Some(n_gid),
            n_muid: Some(n_uid),
        }
    }

    pub(crate) async fn stat(&self, file: &File) -> Result<Rstat> {
        let attr = self.attr(file).await?;
        let name = file.at.place.as_ref().map_or(&b"/"[..], |(_, name)| name);
        let cx = self.cx(&file.at.who.cred);
        let stat = self.stat_of((&file.at, &cx, file.held().node), &attr, name).await;
        let len = stat.encode(self.session.dialect).len() as u16;
        Ok(Rstat { len, stat })
    }

    /// The content of a directory, which is read from its beginning to its end.
    pub(crate) async fn read_names(&self, dir: &File, offset: u64, count: u32) -> Result<Rread> {
        if self.session.dialect == Dialect::Linux {
            return Err(Errno::EISDIR.into());
        }
        let open = dir.opened()?;
        let mut listing = open.listing.lock().await;
        if offset == 0 {
            *listing = Listing::default();
        }
        if offset != listing.offset {
            return Err(Errno::EINVAL.because("a directory is read from its beginning to its end"));
        }
        let mut data = BytesMut::new();
        loop {
            if listing.rest.is_empty() && !listing.is_at_end {
                match self.list(dir, open.handle, &mut listing, count).await {
                    // The client gets the names that are there; the next read answers the error.
                    Err(_) if !data.is_empty() => break,
                    listed => listed?,
                }
            }
            let Some(next) = listing.rest.front() else { break };
            if data.len() + next.len() > count as usize {
                if data.is_empty() {
                    return Err(Errno::EINVAL.because("no room for a name"));
                }
                break;
            }
            data.extend_from_slice(next);
            listing.rest.pop_front();
        }
        listing.offset += data.len() as u64;
        Ok(Rread { data: data.freeze() })
    }

    /// Lists some more names.
    async fn list(&self, dir: &File, handle: Handle, listing: &mut Listing, size: u32) -> Result<()> {
        let (node, cookie, cx) = (dir.held().node, listing.cookie, self.cx(&dir.at.who.cred));
        let read = ReadDirPlus { node, handle, cookie, size: size.max(LISTED) };
        let listed = dir.at.export.ask(&cx, read).await?;
        listing.is_at_end = listed.eof || listed.entries.is_empty();
        // What is not looked at is given back all the same.
        let held = listed.entries.into_iter().map(|dirent| {
            let held = (dirent.entry.node != Node(0)).then(|| Held::of(&dir.at.export, &dirent.entry));
            (dirent, held)
        });
        for (DirentPlus { cookie, name, entry }, _held) in held.collect::<Vec<_>>() {
            let stat = self.stat_of((&dir.at, &cx, entry.node), &entry.attr, &name).await;
            listing.cookie = cookie;
            listing.rest.push_back(stat.encode(self.session.dialect));
        }
        Ok(())
    }

    pub(crate) async fn topen(&self, call: &Topen, file: &mut File) -> Result<Ropen> {
        self.open(file, flags_of(call.mode, self.session.dialect)?).await?;
        let qid = convert::qid(&self.attr(file).await?);
        if let Some(open) = &mut file.open {
            open.is_removed_at_end = call.mode & REMOVE != 0;
        }
        Ok(Ropen { qid, iounit: self.iounit(&file.at) })
    }

    /// Makes something in a directory, for which the fid stands then; `other` is the file that a hard link is of.
    pub(crate) async fn tcreate(&self, call: &Tcreate, file: &mut File, other: &Grip) -> Result<Rcreate> {
        let (dialect, cx) = (self.session.dialect, self.cx(&file.at.who.cred));
        if call.perm & (APPEND | EXCLUSIVE) != 0 || dialect == Dialect::Plain && call.perm & SPECIAL != 0 {
            return Err(Errno::EOPNOTSUPP.because("there are directories and ordinary files only"));
        }
        let mut mode = permissions(call.perm, dialect);
        if dialect == Dialect::Plain {
            // As open(5) of Plan 9 has it.
            let inherited = if call.perm & DIR != 0 { RWX } else { 0o666 };
            mode &= !inherited | self.attr(file).await?.mode & inherited;
        }
        let qid = match (call.perm & DIR != 0, call.perm & SPECIAL) {
            (true, _) => self.create_dir(&cx, call, mode, file).await?,
            (false, 0) => {
                let flags = flags_of(call.mode, dialect)? | OpenFlags::EXCL.bits();
                self.create(&cx, file, (&call.name, mode), flags).await?
            }
            (false, special) => self.create_special(&cx, call, (special, mode), (file, other)).await?,
        };
        if let Some(open) = &mut file.open {
            open.is_removed_at_end = call.mode & REMOVE != 0;
        }
        Ok(Rcreate { qid, iounit: self.iounit(&file.at) })
    }

    /// Makes the fid of a directory stand for what was made in it.
    fn enter(file: &mut File, entry: &Entry, name: outrigger_core::Name) {
        let node = Held::of(&file.at.export, entry);
        let (dir, kind, dev) = (Arc::clone(&file.at.node), entry.attr.kind(), entry.attr.dev);
        file.at = Found { node, kind, dev, place: Some((dir, name)), ..file.at.clone() };
    }

    async fn create_dir(
        &self,
        cx: &Cx,
        call: &Tcreate,
        mode: u32,
        file: &mut File,
    ) -> Result<outrigger_proto_ninep::Qid> {
        if file.open.is_some() || call.mode & ACCESS != 0 {
            return Err(Errno::EISDIR.because("a new directory is opened for reading"));
        }
        let (name, dir, place) = (convert::name(&call.name)?, file.held().node, self.place()?);
        let make = MkDir { dir, name: name.clone(), mode, umask: 0, initial: None };
        let entry = file.at.export.ask(cx, make).await?;
        Asking::enter(file, &entry, name);
        // The directory is there, also if its mode does not let its owner read it: then the fid is not open.
        if let Ok(opened) = file.at.export.ask(cx, OpenDir { node: entry.node }).await {
            file.open = Some(Open::new(file.at.clone(), &opened, OpenFlags::empty(), place));
        }
        Ok(convert::qid(&entry.attr))
    }

    /// What 9P2000.u makes besides: the extension says what it is.
    async fn create_special(
        &self,
        cx: &Cx,
        call: &Tcreate,
        (special, mode): (u32, u32),
        (file, other): (&mut File, &Grip),
    ) -> Result<outrigger_proto_ninep::Qid> {
        if file.open.is_some() {
            return Err(Errno::EBADF.because("the fid is open already"));
        }
        let (name, dir) = (convert::name(&call.name)?, file.held().node);
        let extension = call.extension.clone().unwrap_or_default();
        let export = &file.at.export;
        let node = |kind: FileKind, rdev| {
            let mode = kind.bits() | mode;
            MkNod { dir, name: name.clone(), mode, umask: 0, rdev, initial: None }
        };
        let entry = match special {
            SYMLINK => {
                let target = Target::new(Bytes::copy_from_slice(&extension))?;
                export.ask(cx, SymLink { dir, name: name.clone(), target, initial: None }).await?
            }
            PIPE => export.ask(cx, node(FileKind::Fifo, 0)).await?,
            SOCKET => export.ask(cx, node(FileKind::Socket, 0)).await?,
            DEVICE => {
                let (kind, rdev) = device(&extension)?;
                export.ask(cx, node(kind, rdev)).await?
            }
            LINK => {
                let node = other.file()?.held().node;
                export.ask(cx, Link { node, dir, name: name.clone() }).await?
            }
            _ => return Err(Errno::EINVAL.because("several kinds of file at once")),
        };
        let qid = convert::qid(&entry.attr);
        Asking::enter(file, &entry, name);
        Ok(qid)
    }

    /// Changes what `call` does not leave alone: attributes, then the name.
    pub(crate) async fn wstat(&self, call: &Twstat, file: &mut File) -> Result<Rwstat> {
        let (untouched, stat) = (Stat::untouched(), &call.stat);
        let attrs = file.at.export.callers.meant(self.changes(stat, file)?)?;
        let name = match &stat.name {
            name if name.is_empty() => None,
            name => Some(convert::name(name)?),
        };
        let name = name.filter(|name| file.at.place.as_ref().is_none_or(|(_, own)| own != name));
        if attrs == SetAttrs::default() && name.is_none() {
            if stat.length == untouched.length && stat.mode == untouched.mode {
                self.fsync(file, false).await?;
            }
            return Ok(Rwstat {});
        }
        self.set(file, attrs).await?;
        if let Some(name) = name {
            let Some((dir, _)) = file.at.place.clone() else {
                return Err(Errno::EBUSY.because("the root has no name"));
            };
            self.move_to(file, &dir, name).await?;
        }
        Ok(Rwstat {})
    }

    fn changes(&self, stat: &Stat, file: &File) -> Result<SetAttrs> {
        let (untouched, dialect) = (Stat::untouched(), self.session.dialect);
        let is_dir = file.at.kind == FileKind::Directory;
        let mode = (stat.mode != untouched.mode).then_some(stat.mode);
        if mode.is_some_and(|mode| (mode & DIR != 0) != is_dir) {
            return Err(Errno::EINVAL.because("a file stays of its kind"));
        }
        let number = |number: Option<u32>| number.filter(|&number| number != u32::MAX);
        if dialect == Dialect::Plain && !(stat.uid.is_empty() && stat.muid.is_empty()) {
            return Err(Errno::EPERM.because("9P2000 cannot change the owner of a file"));
        }
        let gid = match number(stat.n_gid) {
            None if !stat.gid.is_empty() => {
                let known = self.session.shared.users.group_number(&stat.gid);
                let known = known.or_else(|| std::str::from_utf8(&stat.gid).ok()?.parse().ok());
                Some(known.ok_or_else(|| Errno::EINVAL.because("there is no such group"))?)
            }
            gid => gid,
        };
        let time = |secs: u32| (secs != u32::MAX).then(|| SetTime::To(Time::new(secs.into(), 0)));
        let size = (stat.length != untouched.length).then_some(stat.length);
        if size.is_some_and(|size| size > convert::SIZE_MAX || is_dir && size > 0) {
            return Err(Errno::EINVAL.because("a length that a file cannot have"));
        }
        Ok(SetAttrs {
            mode: mode.map(|mode| permissions(mode, dialect)),
            uid: number(stat.n_uid),
            gid,
            size: size.filter(|_| !is_dir),
            // In 9P2000 only the server sets it.
            atime: time(stat.atime).filter(|_| dialect == Dialect::Unix),
            mtime: time(stat.mtime),
            ..SetAttrs::default()
        })
    }
}

/// The device that an extension names, as in `b 8 1`.
fn device(extension: &[u8]) -> Result<(FileKind, u32)> {
    let words: Vec<&str> = std::str::from_utf8(extension).unwrap_or_default().split_whitespace().collect();
    let (kind, [major, minor]) = match words[..] {
        ["b", major, minor] => (FileKind::BlockDevice, [major, minor]),
        ["c", major, minor] => (FileKind::CharDevice, [major, minor]),
        _ => return Err(Errno::EINVAL.because("a device is named as in 'b 8 1'")),
    };
    let number = |word: &str| word.parse().map_err(|_| Errno::EINVAL.because("the number of a device"));
    Ok((kind, convert::device(number(major)?, number(minor)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_opens_are_those_of_plan_9() {
        for (mode, flags) in [(0, 0), (1, 1), (2, 2), (3, 0), (0x11, 0o1001), (0x42, 2), (0x20, 0)] {
            assert_eq!(flags_of(mode, Dialect::Plain), Ok(flags), "{mode:#x}");
        }
        assert_eq!(flags_of(0x81, Dialect::Unix), Ok(1 | O_APPEND));
        assert!(flags_of(0x80, Dialect::Plain).is_err() && flags_of(4, Dialect::Unix).is_err());
    }

    #[test]
    fn modes_of_files_have_what_the_dialect_knows() {
        let attr = |mode| Attr { mode, ..Attr::default() };
        assert_eq!(mode(&attr(0o40_755), Dialect::Plain), DIR | 0o755);
        assert_eq!(mode(&attr(0o120_777), Dialect::Plain), 0o777);
        assert_eq!(mode(&attr(0o120_777), Dialect::Unix), SYMLINK | 0o777);
        assert_eq!(mode(&attr(0o104_755), Dialect::Unix), 1 << 19 | 0o755);
        assert_eq!(mode(&attr(0o41_777), Dialect::Unix), DIR | 1 << 16 | 0o777);
        assert_eq!(permissions(DIR | 1 << 18 | 1 << 16 | 0o750, Dialect::Unix), 0o3750);
        assert_eq!(permissions(1 << 18 | 0o750, Dialect::Plain), 0o750);
    }

    #[test]
    fn devices_are_named_by_letter_and_numbers() {
        assert_eq!(device(b"c 1 3"), Ok((FileKind::CharDevice, 0x103)));
        for wrong in [&b""[..], b"c 1", b"d 1 3", b"b x 3", b"b 1 3 4", b"\xff"] {
            assert!(device(wrong).is_err());
        }
    }
}
