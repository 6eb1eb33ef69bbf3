// SPDX-License-Identifier: MIT OR Apache-2.0
//! File content on its way through a stack, in whatever form avoids a copy.

use crate::error::{Errno, Result};
use bytes::{Bytes, BytesMut};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Something that can be read at any position; what a [`FileSlice`] is a slice of.
pub trait ReadAt: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; 0 only at the end.
    ///
    /// # Errors
    /// Whatever the read fails with.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// The descriptor to splice from, when there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// `len` bytes at `offset` of an open file: content that has not been read yet.
#[derive(Clone)]
pub struct FileSlice {
    /// The open file.
    pub file: Arc<dyn ReadAt>,
    /// Where the content starts, in bytes.
    pub offset: u64,
    /// How many bytes are wanted; the file may end earlier.
    pub len: u32,
}

/// The content of a read or a write.
#[derive(Clone)]
pub enum Payload {
    /// One buffer.
    Bytes(Bytes),
    /// Several buffers, to be taken one after the other.
    Chunks(Vec<Bytes>),
    /// A piece of an open file, so that a door may splice it.
    File(FileSlice),
}

impl FileSlice {
    /// Reads the slice into one buffer; shorter when the file ends earlier.
    ///
    /// # Errors
    /// Whatever the read fails with.
    pub fn read(&self) -> Result<Bytes> {
        let mut buf = BytesMut::zeroed(self.len as usize);
        let mut done = 0;
        while done < buf.len() {
            let count = self.file.read_at(self.offset + done as u64, &mut buf[done..])?;
            if count == 0 {
                break;
            }
            done += count;
        }
        buf.truncate(done);
        Ok(buf.freeze())
    }
}

impl Payload {
    /// No bytes.
    pub const EMPTY: Payload = Payload::Bytes(Bytes::new());

    /// The length in bytes; for a [`FileSlice`] the most it can be.
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Chunks(chunks) => chunks.iter().map(Bytes::len).sum(),
            Payload::File(slice) => slice.len as usize,
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The content in one buffer: free for one buffer, a copy for several, a read for a file.
    ///
    /// # Errors
    /// Whatever reading the file fails with.
    pub fn into_bytes(self) -> Result<Bytes> {
        match self {
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Chunks(chunks) => {
                let mut all = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
                chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
                Ok(all.freeze())
            }
            Payload::File(slice) => slice.read(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Bytes(bytes.into())
    }
}

impl PartialEq for Payload {
    /// Compares content for buffers, identity for files.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Payload::File(a), Payload::File(b)) => {
                Arc::ptr_eq(&a.file, &b.file) && a.offset == b.offset && a.len == b.len
            }
            (Payload::File(_), _) | (_, Payload::File(_)) => false,
            (a, b) => a.clone().into_bytes() == b.clone().into_bytes(),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Payload::Chunks(chunks) => write!(f, "{} bytes in {} chunks", self.len(), chunks.len()),
            Payload::File(slice) => write!(f, "<= {} bytes of a file at {}", slice.len, slice.offset),
        }
    }
}

/// A host file the kernel may read and write directly on behalf of an open file (FUSE passthrough), or none.
///
/// It never crosses a [`crate::Wire`]: a descriptor means nothing to a peer.
#[derive(Clone, Default)]
pub struct Backing(Option<Arc<OwnedFd>>);

impl Backing {
    /// No host file.
    pub const NONE: Backing = Backing(None);

    /// Offers `fd`, opened with the access the open file has.
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        Backing(Some(fd))
    }

    /// The descriptor, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_deref().map(AsFd::as_fd)
    }
}

impl PartialEq for Backing {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Backing" } else { "no backing" })
    }
}

impl ReadAt for Bytes {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let start = usize::try_from(offset).map_err(|_| Errno::EINVAL)?.min(self.len());
        let count = buf.len().min(self.len() - start);
        buf[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_payload_does_not_change_its_content() {
        let whole = Payload::from(b"abcdef".to_vec());
        let chunks = Payload::Chunks(vec![Bytes::from_static(b"abc"), Bytes::from_static(b"def")]);
        assert_eq!(whole, chunks);
        let file: Arc<dyn ReadAt> = Arc::new(Bytes::from_static(b"__abcdef"));
        let slice = Payload::File(FileSlice { file, offset: 2, len: 100 });
        assert_eq!(slice.into_bytes().unwrap(), whole.into_bytes().unwrap());
    }
}
