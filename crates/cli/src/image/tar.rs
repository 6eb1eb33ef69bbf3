// SPDX-License-Identifier: MIT OR Apache-2.0
//! tar archives (POSIX.1-2001, pax(1)): what does not fit a header is in the records of an extended one. Holes are stored as GNU tar does
//! (its "PAX format 1.0"), extended attributes as star does (`SCHILY.xattr`).

use super::source::{Found, Sink};
use super::stream::{Stream, pieces};
use crate::format::mode::device;
use crate::status::Failure;
use outrigger_core::{FileKind, Time};

/// The unit of an archive, in bytes.
const BLOCK: u64 = 512;

/// Writes an archive.
pub struct Tar<'a>(Stream<'a>);

/// A header in the making.
struct Header {
    bytes: [u8; BLOCK as usize],
    /// The records of the extended header.
    records: Vec<u8>,
}

impl<'a> Tar<'a> {
    /// Into this stream.
    pub fn new(stream: Stream<'a>) -> Self {
        Tar(stream)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<(), Failure> {
        for _ in 0..2 {
            self.0.put(&[0; BLOCK as usize])?;
        }
        Ok(())
    }

    fn regular(&mut self, found: &Found, mut header: Header) -> Result<(), Failure> {
        let file = self.0.open(found)?;
        let pieces = pieces(found, &file).map_err(|error| self.0.unread(found, &error))?;
        let size = found.attr.size;
        let (map, pieces) = match pieces {
            None => (Vec::new(), vec![(0, size)]),
            Some(pieces) => (header.sparse(found, &pieces), pieces),
        };
        let stored = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        header.number("size", 124..136, stored);
        self.header(found, header)?;
        self.0.put(&map)?;
        for piece in pieces {
            self.0.content(found, &file, piece)?;
        }
        self.0.file_done(found, &file)?;
        self.0.fill(BLOCK)
    }

    /// Writes a header, after the extended one if it needs that.
    fn header(&mut self, found: &Found, mut header: Header) -> Result<(), Failure> {
        let records = std::mem::take(&mut header.records);
        if !records.is_empty() {
            let mut extended = Header::new(b'x');
            let name = [b"PaxHeaders/", found.name()].concat();
            extended.bytes[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
            extended.number("mode", 100..108, 0o644);
            extended.number("size", 124..136, records.len() as u64);
            self.0.put(&extended.sealed())?;
            self.0.put(&records)?;
            self.0.fill(BLOCK)?;
        }
        self.0.put(&header.sealed())
    }

    fn attributes(&self, found: &Found, header: &mut Header) -> Result<(), Failure> {
        for (name, value) in found.attributes(self.0.shown())? {
            header.record(&[b"SCHILY.xattr.", &key(name.as_bytes())[..]].concat(), &value);
        }
        Ok(())
    }
}

/// The name of an attribute as a part of a key, which ends at the first `=`; as GNU tar writes and reads it.
fn key(name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            _ => key.push(*byte),
        }
    }
    key
}

impl Sink for Tar<'_> {
    fn put(&mut self, found: &Found) -> Result<(), Failure> {
        let kind = found.attr.kind();
        let further = found.link.as_ref().filter(|_| found.is_further_name());
        let mut header = Header::new(match (further, kind) {
            (Some(_), _) => b'1',
            (None, FileKind::Regular) => b'0',
            (None, FileKind::Symlink) => b'2',
            (None, FileKind::CharDevice) => b'3',
            (None, FileKind::BlockDevice) => b'4',
            (None, FileKind::Directory) => b'5',
            (None, FileKind::Fifo) => b'6',
            (None, FileKind::Socket) => return Err(self.0.refused(found, "tar archives have no sockets")),
        });
        header.name("path", 0..100, &path(found));
        header.owner(found);
        if let Some(link) = further {
            header.name("linkpath", 157..257, &link.first);
        } else {
            if kind == FileKind::Symlink {
                let target = found.inode.readlink().map_err(|error| self.0.unread(found, &error))?;
                header.name("linkpath", 157..257, target.as_bytes());
            }
            self.attributes(found, &mut header)?;
            if kind == FileKind::Regular {
                return self.regular(found, header);
            }
        }
        header.number("size", 124..136, 0);
        self.header(found, header)
    }
}

/// How a file is called in the archive.
fn path(found: &Found) -> Vec<u8> {
    let mut path = if found.path.is_empty() { b".".to_vec() } else { found.path.clone() };
    if found.attr.is_dir() {
        path.push(b'/');
    }
    path
}

impl Header {
    fn new(kind: u8) -> Self {
        let mut header = Header { bytes: [0; BLOCK as usize], records: Vec::new() };
        header.bytes[156] = kind;
        header.bytes[257..265].copy_from_slice(b"ustar\x0000");
        // All fields with numbers have one.
        for (place, value) in
            [(100..108, 0), (108..116, 0), (116..124, 0), (136..148, 0), (329..337, 0), (337..345, 0)]
        {
            header.number("", place, value);
        }
        header
    }

    /// Mode, owner, time, and the numbers of a device.
    fn owner(&mut self, found: &Found) {
        let attr = &found.attr;
        self.number("mode", 100..108, attr.permissions().into());
        self.number("uid", 108..116, attr.uid.into());
        self.number("gid", 116..124, attr.gid.into());
        let Time { secs, nanos } = attr.mtime;
        match u64::try_from(secs) {
            Ok(seconds) if nanos == 0 => self.number("mtime", 136..148, seconds),
            seconds => {
                self.number("", 136..148, seconds.unwrap_or(0).min(0o77_777_777_777));
                self.record(b"mtime", decimal(attr.mtime).as_bytes());
            }
        }
        if matches!(attr.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
            let (major, minor) = device(attr.rdev);
            self.number("SCHILY.devmajor", 329..337, major.into());
            self.number("SCHILY.devminor", 337..345, minor.into());
        }
    }

    /// Puts a name into a field, or into a record if the field is too short.
    fn name(&mut self, key: &str, place: std::ops::Range<usize>, name: &[u8]) {
        let field = &mut self.bytes[place];
        let kept = name.len().min(field.len());
        field[..kept].copy_from_slice(&name[..kept]);
        if kept < name.len() {
            self.record(key.as_bytes(), name);
        }
    }

    /// Puts a number into a field in octal digits, or into a record if the field is too short.
    fn number(&mut self, key: &str, place: std::ops::Range<usize>, value: u64) {
        let digits = place.len() - 1;
        let text = format!("{value:0digits$o}");
        if text.len() > digits {
            self.record(key.as_bytes(), value.to_string().as_bytes());
            return;
        }
        self.bytes[place.start..place.end - 1].copy_from_slice(text.as_bytes());
    }

    /// Adds a record: its own length in decimal digits, the key, the value.
    fn record(&mut self, key: &[u8], value: &[u8]) {
        // A blank, '=' and the end of the line.
        let rest = key.len() + value.len() + 3;
        let digits = |number: usize| number.to_string().len();
        let mut length = rest + digits(rest);
        length = rest + digits(length);
        self.records.extend_from_slice(format!("{length} ").as_bytes());
        for part in [key, b"=", value, b"\n"] {
            self.records.extend_from_slice(part);
        }
    }

    /// Says that the content has holes, and gives the map that comes before it.
    fn sparse(&mut self, found: &Found, pieces: &[(u64, u64)]) -> Vec<u8> {
        let size = found.attr.size;
        for (key, value) in [("major", 1), ("minor", 0), ("realsize", size)] {
            self.record(format!("GNU.sparse.{key}").as_bytes(), value.to_string().as_bytes());
        }
        self.record(b"GNU.sparse.name", &found.path);
        self.bytes[..100].fill(0);
        let name = [b"GNUSparseFile.0/", found.name()].concat();
        self.name("path", 0..100, &name[..name.len().min(100)]);
        // What ends in a hole has an empty piece at its end.
        let last = pieces.last().is_none_or(|(start, length)| start + length < size).then_some((size, 0));
        let count = pieces.len() + usize::from(last.is_some());
        let mut map = format!("{count}\n");
        for (start, length) in pieces.iter().chain(&last) {
            map += &format!("{start}\n{length}\n");
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
        map
    }

    /// Its bytes with their checksum: the sum of all, with blanks in place of the sum.
    fn sealed(mut self) -> [u8; BLOCK as usize] {
        self.bytes[148..156].fill(b' ');
        let sum: u32 = self.bytes.iter().map(|&byte| u32::from(byte)).sum();
        self.bytes[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.bytes
    }
}

/// A time in seconds since 1970, as pax(1) writes it.
fn decimal(Time { secs, nanos }: Time) -> String {
    let text = match (secs < 0, nanos) {
        (_, 0) => return secs.to_string(),
        (false, nanos) => format!("{secs}.{nanos:09}"),
        // The fraction counts from the whole number towards 0.
        (true, nanos) => format!("-{}.{:09}", -(secs + 1), 1_000_000_000 - nanos),
    };
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_its_own_length() {
        for length in [1, 2, 85, 86, 87, 88, 89, 90, 979, 980, 981, 982, 983, 984, 985, 990] {
            let mut header = Header::new(b'0');
            header.record(b"path", &vec![b'x'; length]);
            let said: usize = String::from_utf8(header.records.clone())
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(said, header.records.len());
        }
    }

    #[test]
    fn times_are_decimal_fractions() {
        let cases = [
            ((5, 0), "5"),
            ((5, 500_000_000), "5.5"),
            ((-1, 0), "-1"),
            ((-2, 750_000_000), "-1.25"),
            ((-1, 1), "-0.999999999"),
        ];
        for ((secs, nanos), text) in cases {
            assert_eq!(decimal(Time { secs, nanos }), text);
        }
    }
}
