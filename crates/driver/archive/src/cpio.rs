// SPDX-License-Identifier: MIT OR Apache-2.0
//! cpio: the binary (both byte orders), odc, newc and crc formats of `cpio(5)`. Several archives may follow each
//! other with zeros between, as in an initramfs (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

use crate::{
    Kind, Result,
    cursor::Cursor,
    entry::{Entry, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, Time},
    index::Warning,
    tree::Tree,
};
use std::collections::HashMap;

const TRAILER: &[u8] = b"TRAILER!!!";
/// Longest name and link target; PATH_MAX of Linux is 4096, but deeper trees exist.
const MAX_NAME: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// 16-bit words; `swapped` when the first byte is the high one.
    Binary {
        swapped: bool,
    },
    Odc,
    /// With or without a checksum of each file.
    New {
        crc: bool,
    },
}

impl Format {
    fn detect(head: &[u8]) -> Option<Format> {
        Some(match head {
            [b'0', b'7', b'0', b'7', b'0', b'7', ..] => Format::Odc,
            [b'0', b'7', b'0', b'7', b'0', b'1', ..] => Format::New { crc: false },
            [b'0', b'7', b'0', b'7', b'0', b'2', ..] => Format::New { crc: true },
            [0xc7, 0x71, ..] => Format::Binary { swapped: false },
            [0x71, 0xc7, ..] => Format::Binary { swapped: true },
            _ => return None,
        })
    }

    /// Header size, magic included.
    fn header(self) -> usize {
        match self {
            Format::Binary { .. } => 26,
            Format::Odc => 76,
            Format::New { .. } => 110,
        }
    }

    /// Names and data are padded to a multiple of this.
    fn align(self) -> u64 {
        match self {
            Format::Binary { .. } => 2,
            Format::Odc => 1,
            Format::New { .. } => 4,
        }
    }
}

/// Whether `head` begins a cpio archive: a magic number, and a plausible header after it.
pub(crate) fn is_head(head: &[u8]) -> bool {
    let Some(format) = Format::detect(head) else { return false };
    head.get(..format.header()).and_then(|h| Header::parse(format, h)).is_some_and(|h| h.is_plausible())
}

/// The fields of a header, whatever the format.
#[derive(Debug, Default)]
struct Header {
    dev: (u64, u64),
    ino: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    rdev: (u32, u32),
    mtime: i64,
    name_len: u64,
    size: u64,
    check: u32,
}

impl Header {
    fn parse(format: Format, h: &[u8]) -> Option<Header> {
        match format {
            Format::Binary { swapped } => Self::binary(h, swapped),
            Format::Odc => Self::odc(h),
            Format::New { .. } => Self::new(h),
        }
    }

    fn binary(h: &[u8], swapped: bool) -> Option<Header> {
        let word = |i: usize| {
            let b = [*h.get(2 * i)?, *h.get(2 * i + 1)?];
            Some(u32::from(if swapped { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) }))
        };
        // Long numbers have their high word first in either byte order.
        let long = |i: usize| Some(word(i)? << 16 | word(i + 1)?);
        let rdev = word(7)?;
        Some(Header {
            dev: (0, word(1)?.into()),
            ino: word(2)?.into(),
            mode: word(3)?,
            uid: word(4)?,
            gid: word(5)?,
            nlink: word(6)?,
            rdev: (rdev >> 8, rdev & 0xff),
            mtime: long(8)?.into(),
            name_len: word(10)?.into(),
            size: long(11)?.into(),
            check: 0,
        })
    }

    fn odc(h: &[u8]) -> Option<Header> {
        let number = |from: usize, len: usize| digits(h.get(from..from + len)?, 8);
        let small = |from: usize| number(from, 6).map(|v| v as u32);
        let rdev = small(42)?;
        Some(Header {
            dev: (0, number(6, 6)?),
            ino: number(12, 6)?,
            mode: small(18)?,
            uid: small(24)?,
            gid: small(30)?,
            nlink: small(36)?,
            rdev: (rdev >> 8, rdev & 0xff),
            mtime: number(48, 11)?.cast_signed(),
            name_len: number(59, 6)?,
            size: number(65, 11)?,
            check: 0,
        })
    }

    fn new(h: &[u8]) -> Option<Header> {
        let field = |i: usize| digits(h.get(6 + 8 * i..14 + 8 * i)?, 16);
        let small = |i: usize| field(i).map(|v| v as u32);
        Some(Header {
            ino: field(0)?,
            mode: small(1)?,
            uid: small(2)?,
            gid: small(3)?,
            nlink: small(4)?,
            mtime: field(5)?.cast_signed(),
            size: field(6)?,
            dev: (field(7)?, field(8)?),
            rdev: (small(9)?, small(10)?),
            name_len: field(11)?,
            check: small(12)?,
        })
    }

    fn is_plausible(&self) -> bool {
        let kinds = [0, S_IFIFO, S_IFCHR, S_IFDIR, S_IFBLK, S_IFREG, S_IFLNK, S_IFSOCK];
        let known = kinds.contains(&(self.mode & S_IFMT));
        known && self.mode <= 0o177_777 && (1..=MAX_NAME).contains(&self.name_len)
    }
}

/// Exactly these digits of `base`.
fn digits(text: &[u8], base: u32) -> Option<u64> {
    text.iter().try_fold(0u64, |v, b| Some(v * u64::from(base) + u64::from(char::from(*b).to_digit(base)?)))
}

/// Files with several links seen so far, by device and inode number.
type Links = HashMap<((u64, u64), u64), u32>;

/// Parses all archives in `c` into `tree`.
pub(crate) fn parse(c: &mut Cursor<'_>, tree: &mut Tree) -> Result<()> {
    let mut links = Links::new();
    let mut start = c.pos();
    loop {
        let at = c.pos();
        let mut magic = [0; 6];
        let n = c.read_up_to(&mut magic)?;
        let Some(format) = Format::detect(&magic[..n]) else {
            return Err(match n {
                6 => c.corrupt(format!("no cpio header at {at}")),
                _ => c.truncated("a cpio archive (it has no trailer)"),
            });
        };
        let mut h = magic.to_vec();
        h.extend(c.take(format.header() - magic.len(), "a cpio header")?);
        let header = Header::parse(format, &h).filter(Header::is_plausible);
        let header = header.ok_or_else(|| c.corrupt(format!("invalid cpio header at {at}")))?;
        let mut p = Parser { c: &mut *c, tree: &mut *tree, format, links: &mut links, start };
        if !p.entry(at, &header)? {
            links.clear();
            if !skip_zeros(c)? {
                return Ok(());
            }
            start = c.pos();
            let next = c.fill()?;
            if Format::detect(next).is_none() {
                // The compressed part of an initramfs, for example.
                tree.warnings.add(Warning::TrailingData, format!("from byte {start}").as_bytes());
                return Ok(());
            }
        }
    }
}

/// Passes over zeros; `false` at the end.
fn skip_zeros(c: &mut Cursor<'_>) -> Result<bool> {
    loop {
        let have = c.fill()?;
        let zeros = have.iter().take_while(|b| **b == 0).count();
        let (end, more) = (have.is_empty(), zeros < have.len());
        c.consume(zeros);
        if end || more {
            return Ok(!end);
        }
    }
}

struct Parser<'p, 'c> {
    c: &'p mut Cursor<'c>,
    tree: &'p mut Tree,
    format: Format,
    links: &'p mut Links,
    /// Where this archive starts: alignment counts from there.
    start: u64,
}

impl Parser<'_, '_> {
    fn align(&mut self, what: &str) -> Result<()> {
        let align = self.format.align();
        let over = (self.c.pos() - self.start) % align;
        if over > 0 { self.c.skip(align - over, what) } else { Ok(()) }
    }

    /// Reads one entry after its header; `false` for the trailer.
    fn entry(&mut self, at: u64, h: &Header) -> Result<bool> {
        let mut name = self.c.take(h.name_len as usize, "a cpio name")?;
        if name.pop() != Some(0) {
            return Err(self.c.corrupt("a cpio name without its final NUL"));
        }
        self.align("a cpio name")?;
        if name == TRAILER {
            return Ok(false);
        }
        let mut entry = Entry {
            mode: if h.mode & S_IFMT == 0 { h.mode | S_IFREG } else { h.mode },
            uid: h.uid,
            gid: h.gid,
            size: h.size,
            mtime: Time::seconds(h.mtime),
            data: self.c.pos(),
            ..Entry::default()
        };
        match entry.mode & S_IFMT {
            S_IFLNK => {
                if h.size > MAX_NAME {
                    return Err(self.c.error(Kind::Limit, "a link target longer than 64 KiB"));
                }
                entry.extra.target = Some(self.c.take(h.size as usize, "a link target")?);
            }
            S_IFCHR | S_IFBLK => {
                entry.extra.rdev = Some(h.rdev);
                self.c.skip(h.size, "the data of a device")?;
            }
            _ => self.data(h)?,
        }
        self.align("the padding of an entry")?;
        self.add(at, &name, h, &entry)?;
        self.c.count();
        Ok(true)
    }

    /// Passes over the data of a file, verifying its sum in the crc format.
    fn data(&mut self, h: &Header) -> Result<()> {
        if self.format != (Format::New { crc: true }) || h.size == 0 {
            return self.c.skip(h.size, "the data of an entry");
        }
        let (mut left, mut sum) = (h.size, 0u32);
        while left > 0 {
            let have = self.c.fill()?;
            if have.is_empty() {
                return Err(self.c.truncated("the data of an entry"));
            }
            let n = usize::try_from(left).unwrap_or(have.len()).min(have.len());
            sum = have[..n].iter().fold(sum, |s, b| s.wrapping_add(u32::from(*b)));
            self.c.consume(n);
            left -= n as u64;
        }
        if sum != h.check {
            return Err(self.c.corrupt("the checksum of a file does not match its data"));
        }
        Ok(())
    }

    fn add(&mut self, at: u64, name: &[u8], h: &Header, entry: &Entry) -> Result<()> {
        let linked = h.nlink > 1 && entry.mode & S_IFMT == S_IFREG;
        let key = (h.dev, h.ino);
        if linked && let Some(inode) = self.links.get(&key).copied() {
            self.tree.link_to(at, name, inode)?;
            // newc stores the data with the last name only.
            if h.size > 0 {
                self.tree.set_data(inode, entry.size, entry.data);
            }
        } else if let Some(inode) = self.tree.add(at, name, entry)?
            && linked
        {
            self.links.insert(key, inode);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_strict() {
        assert_eq!(digits(b"00ff", 16), Some(255));
        assert_eq!(digits(b"00FF", 16), Some(255));
        assert_eq!(digits(b"0o17", 8), None);
        assert_eq!(digits(b" 17", 8), None);
        assert_eq!(digits(b"777777", 8), Some(0o777_777));
    }

    #[test]
    fn detection_wants_a_whole_header() {
        assert!(!is_head(b"070701"));
        assert!(!is_head(&[0xc7; 26]));
        assert!(!is_head(&[b'0'; 110]));
    }
}
