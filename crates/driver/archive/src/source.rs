// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bytes of an archive come from. An archive may be a host file, bytes in memory, or a file inside another
//! tree, so the driver reads through [`Source`] and never opens anything by itself.

use bytes::Bytes;
use outrigger_host::HostFile;
use std::io;
use std::sync::Arc;

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

impl ReadAt for HostFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        HostFile::read_at(self, buf, offset)
    }
}

impl Source for HostFile {
    fn size(&self) -> u64 {
        HostFile::size(self)
    }
    fn name(&self) -> &str {
        HostFile::name(self)
    }
    fn identity(&self) -> Option<Identity> {
        let (key, version) = self.version()?;
        Some(Identity { key, size: HostFile::size(self), version })
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
