// SPDX-License-Identifier: GPL-2.0-only
//! Reading directories: getdents64(2) in portions of the requester's choice.

use crate::attr::ino;
use crate::task::{Fd, Task};
use crate::tree::{Open, Tree, c_string};
use bytes::Bytes;
use outrigger_core::listing::Window;
use outrigger_core::ops::{FSyncDir, ReadDir, ReadDirPlus};
use outrigger_core::reply::{COOKIE_MAX, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Opened, Ttl};
use outrigger_core::{Attr, Errno, FileKind, Generation, Handle, Name, Node, Result};
use outrigger_succession::place::REMOVED_NAME;

/// How much one getdents64(2) may return.
const BUFFER: usize = 32 << 10;
/// Length of the fields before the name in `struct linux_dirent64`: inode, offset, length, kind.
const HEADER: usize = 19;

/// What a dirent costs beside its name, see [`ReadDir`] and [`ReadDirPlus`].
const DIRENT: usize = 24;
const DIRENT_PLUS: usize = 152;

/// An open directory and what was read of it.
pub struct Listing {
    /// The open directory.
    pub fd: Fd,
    /// The subvolume it is in.
    subvolume: u64,
    window: Window,
    /// What is not listed.
    hidden: Option<&'static [u8]>,
}

impl Listing {
    /// Of a directory in this subvolume that was just opened, without one name.
    pub fn new(fd: Fd, subvolume: u64, hidden: Option<&'static [u8]>) -> Self {
        Listing { fd, subvolume, window: Window::opened(), hidden }
    }

    /// The entries after `cookie` that cost no more than `size`, but at least one; each costs `cost` and its name.
    /// Tells whether the directory ended.
    pub fn take(&mut self, task: &Task, cookie: u64, size: u32, cost: usize) -> Result<(Vec<Dirent>, bool)> {
        if !self.window.go_to(cookie) {
            self.window = Window::elsewhere();
            task.seek(self.fd, position(cookie), libc::SEEK_SET)?;
            self.window.restart(cookie);
        }
        let (mut taken, mut used) = (Vec::new(), 0);
        loop {
            while let Some(entry) = self.window.peek() {
                used += cost + entry.name.len();
                if !taken.is_empty() && used > size as usize {
                    return Ok((taken, false));
                }
                taken.push(entry.clone());
                self.window.advance();
            }
            match self.read_more(task) {
                Ok(true) => {}
                Ok(false) => return Ok((taken, true)),
                Err(error) => {
                    self.window = Window::elsewhere();
                    return Err(error);
                }
            }
        }
    }

    /// Reads what fits into one buffer; `false` at the end.
    fn read_more(&mut self, task: &Task) -> Result<bool> {
        let (mut buffer, mut stood) = (vec![0; BUFFER], None);
        while self.window.peek().is_none() {
            let length = task.entries(self.fd, &mut buffer)?;
            if length == 0 {
                return Ok(false);
            }
            let stands = self.decode(Bytes::copy_from_slice(&buffer[..length]))?;
            // Entries without a name that can be, again and again: the caller would wait for ever.
            if self.window.peek().is_none() && stood.replace(stands) == Some(stands) {
                return Err(Errno::EIO.because("the directory does not end"));
            }
        }
        Ok(true)
    }

    /// Takes entries in; gives the position after the last one.
    fn decode(&mut self, mut entries: Bytes) -> Result<u64> {
        let malformed = || Errno::EIO.because("the kernel lists a directory in a form of its own");
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).map_err(|_| malformed());
        let mut position = 0;
        while !entries.is_empty() {
            let length = entries.get(16..18).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
            let length = usize::from(length.ok_or_else(malformed)?);
            if length <= HEADER || length > entries.len() {
                return Err(malformed());
            }
            let entry = entries.split_to(length);
            position = number(&entry[8..16])?;
            let end = entry[HEADER..].iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
            let name = entry.slice(HEADER..HEADER + end);
            if name[..] == b"."[..] || name[..] == b".."[..] || self.hidden == Some(&name[..]) {
                continue;
            }
            // A damaged directory may hold names that cannot be: they could not be opened.
            let Ok(name) = Name::new(name) else { continue };
            self.window.push(Dirent {
                ino: ino(self.subvolume, number(&entry[..8])?),
                cookie: cookie(position)?,
                kind: FileKind::of_mode(u32::from(entry[18]) << 12),
                name,
            });
        }
        Ok(position)
    }
}

impl Tree {
    pub(crate) fn opendir(&self, task: &Task, node: Node) -> Result<Opened> {
        let dir = self.node(node)?;
        let subvolume = task.stat(dir, c"")?.stx_subvol;
        let fd = task.reopen(dir, (libc::O_RDONLY | libc::O_DIRECTORY) as u32)?;
        let hidden = self.removed.as_ref().filter(|_| node == Node::ROOT).map(|_| REMOVED_NAME.as_bytes());
        let handle = self.open.borrow_mut().insert(Open::Dir(Some(Listing::new(fd, subvolume, hidden))));
        Ok(Opened { handle, ..Opened::default() })
    }

    /// Lends the listing of `handle` to `work`.
    fn listing<T>(
        &self,
        task: &Task,
        handle: Handle,
        work: impl FnOnce(&mut Listing) -> Result<T>,
    ) -> Result<T> {
        let mut listing = match self.open.borrow_mut().files.get_mut(&handle) {
            Some(Open::Dir(listing)) => listing
                .take()
                .ok_or(Errno::EBUSY.because("the directory is being read by another request"))?,
            _ => return Err(Errno::EBADF.into()),
        };
        let result = work(&mut listing);
        let released = match self.open.borrow_mut().files.get_mut(&handle) {
            Some(Open::Dir(place)) => {
                *place = Some(listing);
                None
            }
            _ => Some(listing.fd),
        };
        released.into_iter().for_each(|fd| task.close(fd));
        result
    }

    pub(crate) fn readdir(&self, task: &Task, op: &ReadDir) -> Result<Dirents> {
        let (entries, eof) =
            self.listing(task, op.handle, |listing| listing.take(task, op.cookie, op.size, DIRENT))?;
        Ok(Dirents { entries, eof })
    }

    pub(crate) fn readdirplus(&self, task: &Task, op: &ReadDirPlus) -> Result<DirentsPlus> {
        let (names, eof) =
            self.listing(task, op.handle, |listing| listing.take(task, op.cookie, op.size, DIRENT_PLUS))?;
        let dir = self.node(op.node)?;
        let mut entries = Vec::with_capacity(names.len());
        for dirent in names {
            // What cannot be looked at exists all the same; a later request for it gets the reason.
            let entry = match self.find_at(task, dir, &c_string(&dirent.name)?) {
                Ok(entry) => entry,
                Err(error) if error.errno == Errno::ENOENT => continue,
                Err(_) => silly_rename(&dirent),
            };
            entries.push(DirentPlus { cookie: dirent.cookie, name: dirent.name, entry });
        }
        Ok(DirentsPlus { entries, eof })
    }

    pub(crate) fn fsyncdir(&self, task: &Task, op: &FSyncDir) -> Result<()> {
        let fd = match self.open.borrow().files.get(&op.handle) {
            Some(Open::Dir(Some(listing))) => listing.fd,
            _ => return Err(Errno::EBADF.into()),
        };
        self.settled(task.fsync(fd, op.data_only))
    }
}

/// An entry that says that the name exists and nothing more.
fn silly_rename(dirent: &Dirent) -> Entry {
    let mode = dirent.kind.unwrap_or(FileKind::Regular).bits();
    let attr = Attr { ino: dirent.ino, mode, ..Attr::default() };
    Entry { node: Node(0), generation: Generation(0), attr, entry_ttl: Ttl::NEVER, attr_ttl: Ttl::NEVER }
}

/// How far a position may lie beyond [`COOKIE_MAX`]: ext4 ends each directory at `i64::MAX`, and no file system uses the
/// numbers just below its end.
const SHIFT: u64 = i64::MAX as u64 - COOKIE_MAX;

/// The cookie for a position of the kernel.
fn cookie(position: u64) -> Result<u64> {
    match position {
        1..=COOKIE_MAX => Ok(position),
        _ if position > COOKIE_MAX && position <= i64::MAX as u64 => Ok(position - SHIFT),
        _ => Err(Errno::EOVERFLOW.because(format!("the directory position {position} is no cookie"))),
    }
}

/// The position of the kernel for a cookie.
fn position(cookie: u64) -> u64 {
    if cookie > COOKIE_MAX - SHIFT && cookie <= COOKIE_MAX { cookie + SHIFT } else { cookie }
}
