// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open file: positioned reads and writes, and streams over them.

use crate::client::Client;
use crate::client::lacks;
use crate::inode::Held;
use bytes::{Buf, Bytes, BytesMut};
use outrigger_core::ops::{
    CopyRange, FSync, Flush, GetAttr, OpCode, OpenFlags, Read, Release, Seek, SetAttr, Whence, Write,
};
use outrigger_core::reply::{Count, OpenHow, Opened};
use outrigger_core::{Attr, Backing, Errno, Error, Exchange, Handle, LockOwner, Payload, Result, SetAttrs};
use std::io;
use std::sync::Arc;

/// An open file. [`File::close`] reports delayed errors; dropping it closes it without asking for any.
pub struct File {
    held: Arc<Held>,
    handle: Handle,
    flags: OpenFlags,
    open: bool,
    how: OpenHow,
    backing: Backing,
}

impl File {
    pub(crate) fn opened(held: &Arc<Held>, opened: Opened, flags: OpenFlags) -> Self {
        let Opened { handle, how, backing } = opened;
        File { held: Arc::clone(held), handle, flags, open: true, how, backing }
    }

    pub(crate) fn stateless(held: &Arc<Held>, flags: OpenFlags) -> Self {
        let (handle, how, backing) = (Handle(0), OpenHow::empty(), Backing::NONE);
        File { held: Arc::clone(held), handle, flags, open: false, how, backing }
    }

    /// The most bytes one read or write of this tree may have.
    pub fn max_io(&self) -> usize {
        self.held.client.abilities().max_io as usize
    }

    /// Reads up to `len` bytes at `offset`; empty at the end of the file.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let len = len.min(self.max_io()) as u32;
        self.held.client.call(Read { node: self.held.node, handle: self.handle, offset, len })?.into_bytes()
    }

    /// Whether the file ends after `block`, which was read where `len` bytes were asked for. Of a stream fewer bytes are what has come so
    /// far: its end is where a read gives none.
    pub fn ends_after(&self, block: &Bytes, len: usize) -> bool {
        block.is_empty() || (!self.is_stream() && block.len() < len.min(self.max_io()))
    }

    /// All of it.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn read_to_end(&self) -> Result<Bytes> {
        let (mut all, mut reader) = (BytesMut::new(), self.reader(0));
        loop {
            match reader.chunk()? {
                chunk if chunk.is_empty() => return Ok(all.freeze()),
                chunk => all.extend_from_slice(&chunk),
            }
        }
    }

    /// Writes at `offset`; returns the number of bytes.
    ///
    /// # Errors
    /// `ENOSPC`, or whatever the tree answers; `EIO` when it accepts nothing or more than was given.
    pub fn write_at(&self, offset: u64, data: Bytes) -> Result<usize> {
        let data = data.slice(..data.len().min(self.max_io()));
        let len = data.len();
        self.held.client.call(self.to_write(offset, data)).and_then(|count| accepted(count, len))
    }

    fn to_write(&self, offset: u64, data: Bytes) -> Write {
        let (node, handle, data) = (self.held.node, self.handle, Payload::Bytes(data));
        Write { node, handle, offset, data, cached: false, kill_setid: false }
    }

    /// Writes the whole content of several empty files of one tree at once.
    ///
    /// # Errors
    /// Of each file as [`File::write_all_at`].
    pub fn fill_all<'a>(files: impl IntoIterator<Item = (&'a File, Bytes)>) -> Vec<Result<()>> {
        let files: Vec<(&File, Bytes)> = files.into_iter().collect();
        let Some((first, _)) = files.first() else { return Vec::new() };
        let most = first.max_io();
        let writes = files.iter().map(|(file, data)| file.to_write(0, data.slice(..data.len().min(most))));
        let written = first.held.client.call_all(writes);
        let rest = |((file, mut data), count): ((&File, Bytes), Result<Count>)| {
            let count = accepted(count?, data.len())?;
            data.advance(count);
            file.write_all_at(count as u64, data)
        };
        files.into_iter().zip(written).map(rest).collect()
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_all_at(&self, mut offset: u64, mut data: Bytes) -> Result<()> {
        while !data.is_empty() {
            let count = self.write_at(offset, data.clone())?;
            data.advance(count);
            offset += count as u64;
        }
        Ok(())
    }

    /// The first data or hole at or after `offset`; `None` when there is none before the end.
    ///
    /// # Errors
    /// `ENOSYS` or `EINVAL` when the tree does not know about holes; `EIO` when its answer is before `offset`: who goes on from
    /// there would never end.
    pub fn seek(&self, offset: u64, whence: Whence) -> Result<Option<u64>> {
        match self.held.client.call(Seek { node: self.held.node, handle: self.handle, offset, whence }) {
            Ok(found) if found.0 < offset => {
                Err(Errno::EIO.because(format!("asked from byte {offset} on, the tree answers {}", found.0)))
            }
            Ok(found) => Ok(Some(found.0)),
            Err(error) if error.errno == Errno::ENXIO => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first piece of content between holes at or after `offset`, as its start and its end, which is after its start; one whose
    /// end the tree does not tell ends at `size`. `None` when there is none before the end.
    ///
    /// # Errors
    /// As [`File::seek`], and `EIO` when the tree says of one byte that it is content and a hole.
    pub fn data(&self, offset: u64, size: u64) -> Result<Option<(u64, u64)>> {
        let Some(start) = self.seek(offset, Whence::Data)? else { return Ok(None) };
        match self.seek(start, Whence::Hole)? {
            Some(end) if end == start => {
                let why = format!("the tree says of byte {start} that it is content, and that it is a hole");
                Err(Errno::EIO.because(why))
            }
            end => Ok(Some((start, end.unwrap_or(size))).filter(|(start, end)| start < end)),
        }
    }

    /// Copies `len` bytes to another open file of the same tree inside the tree; returns how many.
    ///
    /// # Errors
    /// `ENOSYS`, `EOPNOTSUPP` or `EXDEV` when the tree cannot.
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let copied = self.held.client.call(CopyRange {
            node: self.held.node,
            handle: self.handle,
            offset,
            to_node: to.held.node,
            to_handle: to.handle,
            to_offset,
            len,
        })?;
        Ok(copied.0)
    }

    /// Lets the tree write up to `len` bytes of another tree's file by itself; returns how many it did: none at the end of
    /// that file.
    ///
    /// # Errors
    /// `ENOSYS` or `EOPNOTSUPP` when it cannot, or the other file is none of the host; else what stood in the way, of either
    /// file.
    pub fn take_from(&self, offset: u64, other: &File, other_offset: u64, len: u64) -> Result<u64> {
        self.exchange(offset, other, other_offset, len, true)
    }

    /// Lets the tree read up to `len` bytes into another tree's file by itself; returns how many it did: none at the end of
    /// this file.
    ///
    /// # Errors
    /// As [`File::take_from`].
    pub fn give_to(&self, offset: u64, other: &File, other_offset: u64, len: u64) -> Result<u64> {
        self.exchange(offset, other, other_offset, len, false)
    }

    fn exchange(&self, offset: u64, other: &File, host_offset: u64, len: u64, inward: bool) -> Result<u64> {
        let host = other.backing.fd().ok_or(Errno::EOPNOTSUPP)?;
        let (node, handle) = (self.held.node, self.handle);
        self.held.client.exchange(Exchange { node, handle, offset, host_offset, len, inward }, host)
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.held.client
    }

    /// Its attributes now.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn attr(&self) -> Result<Attr> {
        Ok(self.held.client.call(GetAttr { node: self.held.node, handle: Some(self.handle) })?.attr)
    }

    /// Its attributes now, which no cache of this process answers ([`Cx::fresh`](outrigger_core::Cx::fresh)).
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn fresh_attr(&self) -> Result<Attr> {
        let (node, handle) = (self.held.node, Some(self.handle));
        Ok(self.held.client.call_fresh(GetAttr { node, handle })?.attr)
    }

    /// Looks whether content that ends at `end` is all of a regular file, which had these attributes when it was found. More than
    /// these say is well: a tree that does not know the size of a file in advance declares 0.
    ///
    /// # Errors
    /// `EIO` when that is less than the size, and the file has not changed since; what the tree answers when it is asked about that.
    pub fn check_end(&self, found: &Attr, end: u64) -> Result<()> {
        // The host's kernel declares a page for what it makes up when it is read (sysfs).
        let is_made_up = found.blocks == 0 && self.held.client.abilities().driver == "local";
        if end >= found.size || is_made_up || self.how.contains(OpenHow::DIRECT_IO) {
            return Ok(());
        }
        let now = self.attr()?;
        if (now.size, now.mtime, now.ctime) != (found.size, found.mtime, found.ctime) {
            return Ok(());
        }
        Err(Errno::EIO.because(format!("the tree declares {} bytes and gives {end}", found.size)))
    }

    /// Changes attributes of the open file.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn set(&self, attrs: SetAttrs) -> Result<Attr> {
        Ok(self.held.client.call(SetAttr { node: self.held.node, handle: Some(self.handle), attrs })?.attr)
    }

    /// As [`File::set`], for several files of one tree at once.
    ///
    /// # Errors
    /// Of each file what the tree answers.
    pub fn set_all<'a>(files: impl IntoIterator<Item = (&'a File, SetAttrs)>) -> Vec<Result<()>> {
        let files: Vec<(&File, SetAttrs)> = files.into_iter().collect();
        let Some((first, _)) = files.first() else { return Vec::new() };
        let client = &first.held.client;
        let set = |(file, attrs): (&File, SetAttrs)| SetAttr {
            node: file.held.node,
            handle: Some(file.handle),
            attrs,
        };
        client.call_all(files.iter().cloned().map(set)).into_iter().map(|set| set.map(drop)).collect()
    }

    /// Whether it has no position and no size: what it has must be read to its end, which may never come.
    pub fn is_stream(&self) -> bool {
        self.how.contains(OpenHow::STREAM)
    }

    /// Puts its content on stable storage; trees without such a thing accept silently.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if !self.held.client.has(OpCode::FSync) {
            return Ok(());
        }
        self.held.client.call(FSync { node: self.held.node, handle: self.handle, data_only })
    }

    /// The same, where trees that cannot do it for this file (`EINVAL`, `ENOSYS`, `EOPNOTSUPP`) accept silently too.
    ///
    /// # Errors
    /// What else the tree answers.
    pub fn sync_if_able(&self) -> Result<()> {
        able(self.sync(false))
    }

    /// As [`File::sync_if_able`], for several files of one tree at once, in this order.
    ///
    /// # Errors
    /// Of each file what the tree answers.
    pub fn sync_all<'a>(files: impl IntoIterator<Item = &'a File>) -> Vec<Result<()>> {
        let files: Vec<&File> = files.into_iter().collect();
        match files.first() {
            Some(first) if first.held.client.has(OpCode::FSync) => {
                let sync =
                    |file: &&File| FSync { node: file.held.node, handle: file.handle, data_only: false };
                first.held.client.call_all(files.iter().map(sync)).into_iter().map(able).collect()
            }
            _ => files.iter().map(|_| Ok(())).collect(),
        }
    }

    /// Closes the file; the result says whether everything written has arrived.
    ///
    /// # Errors
    /// A write error the tree had kept for later, or that it answers when the file is closed there.
    pub fn close(mut self) -> Result<()> {
        let flushed = self.flush();
        flushed.and(self.release())
    }

    /// Gives the handle back, after [`File::flush`], once; nothing can be done by it from then on. The result says whether the tree accepts
    /// what was written.
    ///
    /// # Errors
    /// Those that the tree answers when the file is closed there.
    pub fn release(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        let (node, handle, flags) = (self.held.node, self.handle, self.flags);
        let release = Release { node, handle, flags, owner: LockOwner(0), flock_release: false };
        self.held.client.finish(release).unwrap_or(Ok(()))
    }

    /// Says whether everything written so far has arrived, and leaves the file open.
    ///
    /// # Errors
    /// A write error the tree had kept for later.
    pub fn flush(&self) -> Result<()> {
        if !self.held.client.has(OpCode::Flush) {
            return Ok(());
        }
        self.held.client.call(Flush { node: self.held.node, handle: self.handle, owner: LockOwner(0) })
    }

    /// A stream of its content from `offset` on.
    pub fn reader(&self, offset: u64) -> Reader<'_> {
        Reader { file: self, offset, chunk: Bytes::new() }
    }

    /// A stream that writes from `offset` on, each call at once.
    pub fn writer(&self, offset: u64) -> Writer<'_> {
        Writer { file: self, offset }
    }
}

/// The outcome of a synchronisation, where not being able to do one is none.
fn able(synced: Result<()>) -> Result<()> {
    match synced {
        Err(error) if lacks(&error) => Ok(()),
        synced => synced,
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Who drops it does not ask what becomes of it.
        let _ = self.release();
    }
}

/// See [`File::reader`].
pub struct Reader<'a> {
    file: &'a File,
    offset: u64,
    chunk: Bytes,
}

impl Reader<'_> {
    /// The next piece of content, as large as the tree answers; empty at the end.
    ///
    /// # Errors
    /// Whatever the tree answers.
    pub fn chunk(&mut self) -> Result<Bytes> {
        if self.chunk.is_empty() {
            self.chunk = self.file.read_at(self.offset, self.file.max_io())?;
            self.offset += self.chunk.len() as u64;
        }
        Ok(std::mem::take(&mut self.chunk))
    }
}

impl io::Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut chunk = self.chunk().map_err(io_error)?;
        let count = buf.len().min(chunk.len());
        chunk.copy_to_slice(&mut buf[..count]);
        self.chunk = chunk;
        Ok(count)
    }
}

/// See [`File::writer`].
pub struct Writer<'a> {
    file: &'a File,
    offset: u64,
}

impl io::Write for Writer<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let count = self.file.write_at(self.offset, Bytes::copy_from_slice(buf)).map_err(io_error)?;
        self.offset += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many bytes of `len` a tree has written.
fn accepted(count: Count, len: usize) -> Result<usize> {
    match count.0 as usize {
        0 if len > 0 => Err(Errno::EIO.because("the tree accepted no byte of a write")),
        count if count > len => {
            Err(Errno::EIO.because("the tree claims to have written more than it was given"))
        }
        count => Ok(count),
    }
}

/// An interruption must end the stream: `ErrorKind::Interrupted` would make callers try again for ever.
fn io_error(error: Error) -> io::Error {
    if error.errno == Errno::EINTR { io::Error::other(error) } else { error.into() }
}
