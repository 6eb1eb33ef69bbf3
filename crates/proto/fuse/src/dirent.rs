// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directory entries in READDIR and READDIRPLUS replies.
use crate::layout::{DecodeError, layout};
use crate::output::EntryOut;

layout! {
    /// Head of a directory entry (`fuse_dirent`); the name follows, padded to 8 bytes.
    pub struct DirentHead: 24 {
        /// Inode number.
        ino: u64 = 0,
        /// Cookie of the position after this entry.
        off: u64 = 8,
        /// Bytes of the name.
        namelen: u32 = 16,
        /// `DT_*`.
        kind: u32 = 20,
    }
}

/// Records are padded to this many bytes.
const ALIGN: usize = 8;

/// One directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Inode number.
    pub ino: u64,
    /// Cookie: reading goes on after this entry when the next request names it as offset.
    pub off: u64,
    /// File type, `DT_*` of readdir(3).
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

/// Bytes a READDIR entry with this name takes.
#[must_use]
pub const fn dirent_size(name: &[u8]) -> usize {
    (DirentHead::SIZE + name.len()).next_multiple_of(ALIGN)
}

/// Bytes a READDIRPLUS entry with this name takes.
#[must_use]
pub const fn direntplus_size(name: &[u8]) -> usize {
    (EntryOut::SIZE + DirentHead::SIZE + name.len()).next_multiple_of(ALIGN)
}

/// Packs directory entries after what a buffer already holds, up to a limit.
#[derive(Debug)]
pub struct DirBuf<'b> {
    out: &'b mut Vec<u8>,
    left: usize,
}

impl<'b> DirBuf<'b> {
    /// Appends to `out` at most `limit` bytes: the `size` of the request.
    pub fn new(out: &'b mut Vec<u8>, limit: usize) -> Self {
        Self { out, left: limit }
    }

    /// Adds a READDIR entry. False when it does not fit: nothing was added, and the reply is full.
    #[must_use]
    pub fn push(&mut self, entry: &Dirent<'_>) -> bool {
        let size = dirent_size(entry.name);
        if size > self.left {
            return false;
        }
        self.append(entry, size);
        true
    }

    /// Adds a READDIRPLUS entry. False when it does not fit: nothing was added, and the reply is full.
    ///
    /// A `node` with node number zero lists the name without giving the kernel a reference.
    #[must_use]
    pub fn push_plus(&mut self, entry: &Dirent<'_>, node: &EntryOut) -> bool {
        let size = direntplus_size(entry.name);
        if size > self.left {
            return false;
        }
        self.out.extend_from_slice(&node.encode());
        self.append(entry, size - EntryOut::SIZE);
        self.left -= EntryOut::SIZE;
        true
    }

    /// Adds head, name and padding: `size` bytes.
    fn append(&mut self, entry: &Dirent<'_>, size: usize) {
        let head =
            DirentHead { ino: entry.ino, off: entry.off, namelen: entry.name.len() as u32, kind: entry.kind };
        let end = self.out.len() + size;
        self.out.extend_from_slice(&head.encode());
        self.out.extend_from_slice(entry.name);
        self.out.resize(end, 0);
        self.left -= size;
    }
}

/// Reads the entries of a READDIR reply.
#[derive(Debug, Clone, Copy)]
pub struct Dirents<'a>(&'a [u8]);

impl<'a> Dirents<'a> {
    /// Over the body of a reply.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn take_entry(&mut self) -> Result<Dirent<'a>, DecodeError> {
        let (head, rest) = DirentHead::decode(self.0)?;
        let len = head.namelen as usize;
        let name = rest.get(..len).filter(|name| !name.is_empty()).ok_or(DecodeError::Name("readdir"))?;
        self.0 = self.0.get(dirent_size(name)..).unwrap_or_default();
        Ok(Dirent { ino: head.ino, off: head.off, kind: head.kind, name })
    }
}

impl<'a> Iterator for Dirents<'a> {
    type Item = Result<Dirent<'a>, DecodeError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.take_entry();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}

/// Reads the entries of a READDIRPLUS reply.
#[derive(Debug, Clone, Copy)]
pub struct DirentsPlus<'a>(&'a [u8]);

impl<'a> DirentsPlus<'a> {
    /// Over the body of a reply.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn take_entry(&mut self) -> Result<(Dirent<'a>, EntryOut), DecodeError> {
        let (node, rest) = EntryOut::decode(self.0)?;
        let mut inner = Dirents(rest);
        let entry = inner.take_entry()?;
        self.0 = inner.0;
        Ok((entry, node))
    }
}

impl<'a> Iterator for DirentsPlus<'a> {
    type Item = Result<(Dirent<'a>, EntryOut), DecodeError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.take_entry();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}
