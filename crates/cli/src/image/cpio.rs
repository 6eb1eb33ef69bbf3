// SPDX-License-Identifier: MIT OR Apache-2.0
//! cpio archives of the form "newc", which Linux takes as its first file system (Documentation/driver-api/early-userspace/buffer-format.rst).

use super::source::{Found, Sink};
use super::stream::Stream;
use crate::format::mode::device;
use crate::status::Failure;
use outrigger_core::FileKind;

/// Names and content begin at multiples of this, in bytes.
const UNIT: u64 = 4;
/// The name that ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";
/// The archive ends at a multiple of this, in bytes.
const BLOCK: u64 = 512;

/// Writes an archive.
pub struct Cpio<'a> {
    stream: Stream<'a>,
    /// The number of the last file.
    last: u32,
    /// The numbers of files with several names.
    links: Vec<u32>,
}

/// What is in a header beside the attributes.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    file: u32,
    names: u32,
    size: u32,
}

impl<'a> Cpio<'a> {
    /// Into this stream.
    pub fn new(stream: Stream<'a>) -> Self {
        Cpio { stream, last: 0, links: Vec::new() }
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.header([0; 11], 1, TRAILER)?;
        self.stream.fill(BLOCK)
    }

    /// Writes a header: the fields before the length of the name, without the number of links, which is the fifth; and the name.
    fn header(&mut self, fields: [u32; 11], names: u32, name: &[u8]) -> Result<(), Failure> {
        let [file, mode, uid, gid, mtime, size, major, minor, device_major, device_minor, check] = fields;
        let length = name.len() as u32 + 1;
        let all = [
            file,
            mode,
            uid,
            gid,
            names,
            mtime,
            size,
            major,
            minor,
            device_major,
            device_minor,
            length,
            check,
        ];
        let text: String = all.iter().map(|field| format!("{field:08x}")).collect();
        self.stream.put(b"070701")?;
        self.stream.put(text.as_bytes())?;
        self.stream.put(name)?;
        self.stream.put(&[0])?;
        self.stream.fill(UNIT)
    }

    fn file(&mut self, found: &Found, Numbers { file, names, size }: Numbers) -> Result<(), Failure> {
        let attr = &found.attr;
        let mtime = u32::try_from(attr.mtime.secs);
        let mtime = mtime
            .map_err(|_| self.stream.refused(found, "cpio archives have times from 1970 to 2106 only"))?;
        let (major, minor) = device(attr.rdev);
        let name = if found.path.is_empty() { b"." } else { &found.path[..] };
        self.header([file, attr.mode, attr.uid, attr.gid, mtime, size, 0, 0, major, minor, 0], names, name)
    }

    /// The number of a file, and how many names it has.
    fn number(&mut self, found: &Found) -> (u32, u32) {
        if let (true, Some(link)) = (found.is_further_name(), &found.link)
            && let Some(&number) = self.links.get(link.number)
        {
            return (number, link.names);
        }
        self.last += 1;
        match &found.link {
            Some(link) => {
                self.links.resize(self.links.len().max(link.number + 1), 0);
                self.links[link.number] = self.last;
                (self.last, link.names)
            }
            None => (self.last, if found.attr.is_dir() { 2 } else { 1 }),
        }
    }
}

impl Sink for Cpio<'_> {
    fn put(&mut self, found: &Found) -> Result<(), Failure> {
        if found.path == TRAILER {
            return Err(self.stream.refused(found, "this name is the end of a cpio archive"));
        }
        let (file, names) = self.number(found);
        let numbers = Numbers { file, names, size: 0 };
        match found.attr.kind() {
            // The first name has the content.
            FileKind::Regular if !found.is_further_name() => {
                let size = u32::try_from(found.attr.size);
                let size = size
                    .map_err(|_| self.stream.refused(found, "files in cpio archives have less than 4 GiB"))?;
                let open = self.stream.open(found)?;
                self.file(found, Numbers { size, ..numbers })?;
                self.stream.content(found, &open, (0, size.into()))?;
                self.stream.file_done(found, &open)?;
                self.stream.fill(UNIT)
            }
            FileKind::Symlink => {
                let target = found.inode.readlink().map_err(|error| self.stream.unread(found, &error))?;
                self.file(found, Numbers { size: target.len() as u32, ..numbers })?;
                self.stream.put(target.as_bytes())?;
                self.stream.fill(UNIT)
            }
            _ => self.file(found, numbers),
        }
    }
}
