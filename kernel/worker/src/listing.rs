// SPDX-License-Identifier: GPL-2.0-only
//! Reading directories: getdents64(2) in portions of the asker's choice.

use crate::task::{Fd, Task};
use bytes::Bytes;
use outrigger_core::reply::{COOKIE_MAX, Dirent};
use outrigger_core::{Errno, FileKind, Name, Result};
use std::collections::VecDeque;

/// How much one getdents64(2) may return.
const BUFFER: usize = 32 << 10;
/// Length of the fields before the name in `struct linux_dirent64`: inode, offset, length, kind.
const HEADER: usize = 19;

/// An open directory and what was read of it, but not yet asked for.
pub struct Listing {
    /// The open directory.
    pub fd: Fd,
    ahead: VecDeque<Dirent>,
    /// The cookie of the entry before `ahead`; none when the descriptor stands elsewhere.
    at: Option<u64>,
}

impl Listing {
    /// Of a directory that was just opened.
    pub fn new(fd: Fd) -> Self {
        Listing { fd, ahead: VecDeque::new(), at: Some(0) }
    }

    /// The entries behind `cookie` that cost no more than `size`, but at least one; each costs `cost` and its name.
    /// Tells whether the directory ended.
    pub fn take(&mut self, task: &Task, cookie: u64, size: u32, cost: usize) -> Result<(Vec<Dirent>, bool)> {
        if self.at != Some(cookie) {
            self.ahead.clear();
            self.at = None;
            task.seek(self.fd, position(cookie), libc::SEEK_SET)?;
            self.at = Some(cookie);
        }
        let (mut taken, mut used) = (Vec::new(), 0);
        loop {
            if self.ahead.is_empty() && !self.read_more(task)? {
                return Ok((taken, true));
            }
            while let Some(entry) = self.ahead.pop_front() {
                used += cost + entry.name.len();
                if !taken.is_empty() && used > size as usize {
                    self.ahead.push_front(entry);
                    return Ok((taken, false));
                }
                self.at = Some(entry.cookie);
                taken.push(entry);
            }
        }
    }

    /// Reads what fits into one buffer; `false` at the end.
    fn read_more(&mut self, task: &Task) -> Result<bool> {
        let (mut buffer, mut stood) = (vec![0; BUFFER], None);
        while self.ahead.is_empty() {
            let length = task.entries(self.fd, &mut buffer)?;
            if length == 0 {
                return Ok(false);
            }
            let stands = self.decode(Bytes::copy_from_slice(&buffer[..length]))?;
            // Entries without a name that can be, again and again: nobody would ever be answered.
            if self.ahead.is_empty() && stood.replace(stands) == Some(stands) {
                return Err(Errno::EIO.because("the directory does not end"));
            }
        }
        Ok(true)
    }

    /// Takes entries in; tells the position behind the last one.
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
            if name[..] == b"."[..] || name[..] == b".."[..] {
                continue;
            }
            // A damaged directory may hold names that cannot be: nobody could open them.
            let Ok(name) = Name::new(name) else { continue };
            self.ahead.push_back(Dirent {
                ino: number(&entry[..8])?,
                cookie: cookie(position)?,
                kind: FileKind::of_mode(u32::from(entry[18]) << 12),
                name,
            });
        }
        Ok(position)
    }
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
