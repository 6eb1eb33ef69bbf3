// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bytes of an archive come from. An archive may be a host file, bytes in memory, or a file inside another
//! tree, so the driver reads through [`Source`] and never opens anything by itself.

use bytes::Bytes;
use rustix::fs::OFlags;
use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

/// Positioned reads, without a shared cursor: several threads may read at once.
pub trait ReadAt: Send + Sync {
    /// Reads at most `buf.len()` bytes at byte `offset` and returns how many; 0 only at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// What makes two openings of a source the same bytes. The index cache is keyed by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Names the source among all sources: device and inode, or a location with its options.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content or attributes (`ctime`, which no program can set back), in nanoseconds since the epoch,
    /// or any other version number of the store.
    pub version: i128,
}

/// The bytes of one archive.
pub trait Source: ReadAt {
    /// Size in bytes; it must not change while the archive is open.
    fn size(&self) -> u64;
    /// The name used in messages, and from which the name of a single compressed file is made.
    fn name(&self) -> &str;
    /// The identity for the index cache; `None` keeps the index of this source out of the cache.
    fn identity(&self) -> Option<Identity> {
        None
    }
    /// Whether reads return promptly (memory, the host's file system), so that a door may wait for them.
    fn is_prompt(&self) -> bool {
        false
    }
}

/// A regular file or block device of the host.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    name: String,
    size: u64,
    identity: Option<Identity>,
    /// What a regular file had when it was opened.
    opened: Option<Content>,
}

/// By what a change of content is noticed.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    size: u64,
    mtime: (i64, i64),
}

impl Content {
    fn of(m: &Metadata) -> Self {
        Content { size: m.len(), mtime: (m.mtime(), m.mtime_nsec()) }
    }
}

impl FileSource {
    /// Opens `path` for reading. Never waits for the other end of a pipe or for a terminal.
    ///
    /// # Errors
    /// Those of `open(2)`, and `InvalidInput` for anything but a regular file or block device.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_as(path, path)
    }

    /// As [`FileSource::open`], with another name in messages.
    ///
    /// # Errors
    /// As [`FileSource::open`].
    pub fn open_as(path: &Path, name: &Path) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        Self::new(file, name.to_string_lossy().into_owned())
    }

    /// Uses an already open file; `name` is for messages.
    ///
    /// # Errors
    /// Those of `fstat(2)`, and `InvalidInput` for anything but a regular file or block device.
    pub fn new(file: File, name: String) -> io::Result<Self> {
        let m = file.metadata()?;
        if !m.is_file() && !m.file_type().is_block_device() {
            let what = if m.is_dir() { "a directory is not an archive" } else { "it is not a regular file" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let size = if m.is_file() { m.len() } else { rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))? };
        let identity = m.is_file().then(|| Identity {
            key: format!("file:{}:{}", m.dev(), m.ino()),
            size,
            version: i128::from(m.ctime()) * 1_000_000_000 + i128::from(m.ctime_nsec()),
        });
        let opened = m.is_file().then(|| Content::of(&m));
        Ok(FileSource { file, name, size, identity, opened })
    }
}

impl ReadAt for FileSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buf, offset)?;
        // Looked at after the read: what was read before a change is what was there.
        if let Some(opened) = &self.opened
            && Content::of(&self.file.metadata()?) != *opened
        {
            return Err(io::Error::other("the archive was changed after it was opened"));
        }
        Ok(count)
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }
    fn is_prompt(&self) -> bool {
        true
    }
}

/// An archive held in memory.
#[derive(Debug, Clone)]
pub struct MemSource {
    name: String,
    bytes: Bytes,
}

impl MemSource {
    /// Uses `bytes` under `name`.
    pub fn new(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        MemSource { name: name.into(), bytes: bytes.into() }
    }
}

impl ReadAt for MemSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let n = buf.len().min(self.bytes.len() - start);
        buf[..n].copy_from_slice(&self.bytes[start..start + n]);
        Ok(n)
    }
}

impl Source for MemSource {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn is_prompt(&self) -> bool {
        true
    }
}

/// Reads until `buf` is full or the source ends, and returns how many bytes were read.
pub(crate) fn read_full(source: &dyn Source, mut buf: &mut [u8], mut offset: u64) -> io::Result<usize> {
    let wanted = buf.len();
    while !buf.is_empty() {
        match source.read_at(buf, offset) {
            Ok(0) => break,
            Ok(n) => {
                let n = n.min(buf.len());
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(wanted - buf.len())
}

/// A source with the name shared by everything that reports errors about it.
#[derive(Clone)]
pub(crate) struct Origin {
    pub source: Arc<dyn Source>,
    pub name: Arc<str>,
}

impl Origin {
    pub fn new(source: Arc<dyn Source>) -> Self {
        let name = Arc::from(source.name());
        Origin { source, name }
    }

    /// Fills `buf` from byte `offset`, or fails naming `what` as truncated.
    pub fn exact(&self, buf: &mut [u8], offset: u64, what: &str) -> crate::Result<()> {
        let n =
            read_full(&*self.source, buf, offset).map_err(|e| crate::Error::io(&self.name, offset, &e))?;
        if n < buf.len() {
            let end = offset.saturating_add(n as u64);
            return Err(self.error(crate::Kind::Truncated, end, format!("the file ends inside {what}")));
        }
        Ok(())
    }

    pub fn error(&self, kind: crate::Kind, offset: u64, what: impl Into<String>) -> crate::Error {
        crate::Error::new(kind, &self.name, offset, what)
    }
}
