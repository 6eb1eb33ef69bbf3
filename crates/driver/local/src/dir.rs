// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories and their listings.

use crate::attr::failed;
use crate::tree::Tree;
use bytes::BytesMut;
use outrigger_core::listing::Window;
use outrigger_core::reply::{COOKIE_MAX, Dirent, DirentPlus, Dirents, DirentsPlus};
use outrigger_core::{Errno, FileKind, Name, Node, Result, lock};
use rustix::fs::{FileType, RawDir, SeekFrom, seek};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

/// How much one getdents64(2) may return, in bytes.
const BUFFER: usize = 16 << 10;
/// What a usual name takes of that, in bytes.
const USUAL: usize = 48;
/// What a dirent costs beside its name: see [`outrigger_core::ops::ReadDir`].
const DIRENT: usize = 24;
/// What a dirent with attributes costs beside its name: see [`outrigger_core::ops::ReadDirPlus`].
const DIRENT_PLUS: usize = 152;

/// A directory some client has open.
#[derive(Debug)]
pub(crate) struct OpenDir {
    fd: OwnedFd,
    window: Mutex<Window>,
    /// It serves one request: what is read beyond that is read for nothing.
    once: bool,
}

impl OpenDir {
    /// A directory opened for listing and not read yet.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        OpenDir { fd, window: Mutex::new(Window::opened()), once: false }
    }

    /// A directory opened for one request.
    pub(crate) fn once(fd: OwnedFd) -> Self {
        OpenDir { once: true, ..Self::new(fd) }
    }

    /// A directory that a former process opened and read some of.
    pub(crate) fn adopt(fd: OwnedFd) -> Self {
        OpenDir { fd, window: Mutex::new(Window::elsewhere()), once: false }
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Entries after `cookie`, about `size` bytes of them.
    pub(crate) fn list(&self, cookie: u64, size: u32) -> Result<Dirents> {
        let mut dirents = Dirents::default();
        dirents.eof = self.each(cookie, size, DIRENT, |dirent| {
            dirents.entries.push(dirent);
            Ok(())
        })?;
        Ok(dirents)
    }

    /// Entries after `cookie` with what they lead to, about `size` bytes of them. What was removed meanwhile is
    /// left out.
    pub(crate) fn list_plus(&self, tree: &Tree, node: Node, cookie: u64, size: u32) -> Result<DirentsPlus> {
        let mut dirents = DirentsPlus::default();
        dirents.eof = self.each(cookie, size, DIRENT_PLUS, |Dirent { cookie, name, .. }| {
            match tree.find_at(node, self.fd(), &name) {
                Ok(entry) => dirents.entries.push(DirentPlus { cookie, name, entry }),
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        Ok(dirents)
    }

    /// Passes entries after `cookie` to `take` until they cost `size`, but at least one. Tells whether the directory
    /// ended. An error of `take` counts only when it strikes the first entry: the others are asked for again.
    fn each(
        &self,
        cookie: u64,
        size: u32,
        cost: usize,
        mut take: impl FnMut(Dirent) -> Result<()>,
    ) -> Result<bool> {
        let mut window = lock(&self.window);
        if !window.go_to(cookie) {
            *window = Window::elsewhere();
            seek(&self.fd, SeekFrom::Start(position(cookie))).map_err(failed)?;
            window.restart(cookie);
        }
        let mut used = 0;
        loop {
            while let Some(dirent) = window.peek() {
                let cost = cost + dirent.name.len();
                if used > 0 && used + cost > size as usize {
                    return Ok(false);
                }
                match take(dirent.clone()) {
                    Err(_) if used > 0 => return Ok(false),
                    taken => taken?,
                }
                used += cost;
                window.advance();
            }
            let wanted = if self.once { (size as usize).saturating_sub(used) / cost * USUAL } else { BUFFER };
            match read_more(self.fd.as_fd(), &mut window, wanted) {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                // What was read of the buffer is dropped too: the rest of it is gone.
                Err(error) => {
                    *window = Window::elsewhere();
                    return Err(error);
                }
            }
        }
    }
}

/// Reads what fits into one buffer, with about `wanted` bytes; `false` at the end.
fn read_more(fd: BorrowedFd<'_>, window: &mut Window, wanted: usize) -> Result<bool> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER];
    let len = wanted.clamp(1 << 10, BUFFER);
    let mut raw = RawDir::new(fd, &mut buffer[..len]);
    let mut names = BytesMut::with_capacity(len / 2);
    let mut any = false;
    while let Some(entry) = raw.next() {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.extend_from_slice(name);
            window.push(Dirent {
                ino: entry.ino(),
                cookie: cookie(entry.next_entry_cookie())?,
                kind: kind(entry.file_type()),
                // All names of a batch share one allocation.
                name: Name::new(names.split().freeze())?,
            });
            any = true;
        }
        if raw.is_buffer_empty() && any {
            return Ok(true);
        }
    }
    Ok(any)
}

/// How far a host's position may lie beyond [`COOKIE_MAX`]: ext4 ends each directory at `i64::MAX`, and no file system
/// uses the numbers just below its end.
const SHIFT: u64 = i64::MAX as u64 - COOKIE_MAX;

/// The cookie for a position of the host.
fn cookie(position: u64) -> Result<u64> {
    match position {
        1..=COOKIE_MAX => Ok(position),
        _ if position > COOKIE_MAX && position <= i64::MAX as u64 => Ok(position - SHIFT),
        _ => Err(Errno::EOVERFLOW.because(format!("the host's directory position {position} is no cookie"))),
    }
}

/// The position of the host for a cookie.
fn position(cookie: u64) -> u64 {
    if cookie > COOKIE_MAX - SHIFT && cookie <= COOKIE_MAX { cookie + SHIFT } else { cookie }
}

fn kind(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_ext4_directory_is_a_cookie() {
        for host in [1, 2, 0x7fff_fffe_ffff_ffff, i64::MAX as u64 - 1, i64::MAX as u64] {
            let cookie = cookie(host).expect("a position");
            assert!((1..=COOKIE_MAX).contains(&cookie), "{host:#x}");
            assert_eq!(position(cookie), host);
        }
        assert_eq!(position(0), 0);
        assert!(cookie(0).is_err() && cookie(u64::MAX).is_err());
    }
}
