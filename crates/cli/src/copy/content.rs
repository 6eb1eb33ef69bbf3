// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a file, from one open file to another.

use super::options::Sparse;
use super::shared::Shared;
use bytes::Bytes;
use outrigger_client::File;
use outrigger_core::ops::OpCode;
use outrigger_core::{Attr, Errno, Error, SetAttrs};
use std::sync::mpsc::sync_channel;
use std::thread;

/// The unit of reading and writing, in bytes.
pub const BLOCK: usize = 1 << 20;
/// Blocks read ahead of the one being written.
const AHEAD: usize = 3;
/// The unit in which runs of zeroes become holes, in bytes: the block size of nearly every file system.
const HOLE: usize = 4096;
/// The most a tree copies inside itself before the user's Ctrl-C is looked at, in bytes.
const INSIDE: u64 = 64 << 20;

/// The most a tree moves by itself before the user's Ctrl-C is looked at, in bytes.
const PIECE: u64 = 8 << 20;

/// Which side of a copy failed.
pub(super) enum Fault {
    Read(Error),
    Write(Error),
}

/// One copy of content in progress.
pub(super) struct Content<'a> {
    pub(super) shared: &'a Shared,
    pub(super) source: &'a File,
    /// The source's attributes when it was found.
    pub(super) attr: &'a Attr,
    pub(super) target: &'a File,
    /// Both files belong to one tree.
    pub(super) same_tree: bool,
    /// The source's tree reports holes.
    pub(super) knows_holes: bool,
    /// The target's tree copies ranges by itself.
    pub(super) copies_inside: bool,
}

impl Content<'_> {
    /// Copies everything. The target must be empty.
    pub(super) fn copy(&self) -> Result<(), Fault> {
        let sparse = self.shared.options.sparse;
        let holes = sparse != Sparse::Never && self.attr.blocks.saturating_mul(512) < self.attr.size;
        let inside =
            self.same_tree && self.copies_inside && self.shared.options.inside && sparse != Sparse::Always;
        if holes && self.knows_holes && self.copy_extents(inside)? {
            return Ok(());
        }
        let mut done = 0;
        if inside && self.attr.size > 0 {
            // What the file has grown by is found by reading on.
            done = self.copy_inside(0, self.attr.size)?;
        }
        let end = self.pump(done, None, holes || sparse == Sparse::Always)?;
        self.check_end(end)
    }

    /// Copies everything over what the target has. Where that is the source itself, reached in another way, each byte is
    /// written back as it was read.
    pub(super) fn copy_over(&self) -> Result<(), Fault> {
        let end = self.attr.size;
        let reached = self.pump(0, Some(end), false)?;
        self.check_end(reached)?;
        self.set_size(reached)
    }

    /// Looks whether the content that ends there is all of it.
    fn check_end(&self, end: u64) -> Result<(), Fault> {
        self.source.check_end(self.attr, end).map_err(Fault::Read)
    }

    /// Copies the pieces between holes; `false` when the tree does not know them after all.
    fn copy_extents(&self, inside: bool) -> Result<bool, Fault> {
        let mut at = 0;
        loop {
            let (data, end) = match self.source.data(at, self.attr.size) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error)
                    if at == 0
                        && matches!(error.errno, Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(Fault::Read(error)),
            };
            let copied = if inside { self.copy_inside(data, end - data)? } else { 0 };
            let reached =
                self.pump(data + copied, Some(end), self.shared.options.sparse == Sparse::Always)?;
            if reached < end {
                self.check_end(reached)?;
                self.set_size(reached)?;
                return Ok(true);
            }
            at = end;
        }
        self.set_size(self.attr.size)?;
        Ok(true)
    }

    /// Lets the tree copy up to `len` bytes by itself; returns how many it copied.
    fn copy_inside(&self, start: u64, len: u64) -> Result<u64, Fault> {
        let mut done = 0;
        while done < len {
            let at = start + done;
            let rest = self.attr.size.saturating_sub(at).clamp(1, INSIDE).min(len - done);
            match self.source.copy_range(at, self.target, at, rest) {
                Ok(0) => break,
                Ok(count) => {
                    self.shared.progress.bytes(count);
                    done += count;
                }
                // Space and interruptions are final; everything else may work the other way.
                Err(error)
                    if matches!(error.errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EINTR) =>
                {
                    return Err(Fault::Write(error));
                }
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Lets one of the trees move data between a file of its own and a host file of the other; returns the number of bytes.
    /// Errors are ignored: `pump` meets them again, and finds out which side failed.
    fn exchange(&self, start: u64, end: u64) -> u64 {
        let mut at = start;
        while end.saturating_sub(at) > BLOCK as u64 && !self.shared.cancel.is_raised() {
            let len = (end - at).min(PIECE);
            let inward = self.target.take_from(at, self.source, at, len);
            match inward.or_else(|_| self.source.give_to(at, self.target, at, len)) {
                Ok(count) if (1..=len).contains(&count) => {
                    self.shared.progress.bytes(count);
                    at += count;
                }
                _ => break,
            }
        }
        at - start
    }

    /// Reads and writes from `start` to `end`, or to the end of the file; returns where that was.
    fn pump(&self, start: u64, end: Option<u64>, find_holes: bool) -> Result<u64, Fault> {
        let start = start + if find_holes { 0 } else { self.exchange(start, end.unwrap_or(self.attr.size)) };
        let expected = end.unwrap_or(self.attr.size).saturating_sub(start);
        let mut writer = Writer { content: self, at: start, find_holes, hole: false };
        let mut reader = ReadOn { file: self.source, at: start, end, expected: self.attr.size, unit: BLOCK };
        if expected <= 2 * BLOCK as u64 {
            while let Some(block) = reader.next().transpose().map_err(Fault::Read)? {
                writer.write(block)?;
            }
            return writer.finish();
        }
        thread::scope(|scope| {
            let (sender, blocks) = sync_channel(AHEAD);
            scope.spawn(move || {
                // The writer hangs up when it fails.
                for block in reader {
                    if sender.send(block).is_err() {
                        return;
                    }
                }
            });
            for block in blocks {
                writer.write(block.map_err(Fault::Read)?)?;
            }
            writer.finish()
        })
    }

    fn set_size(&self, size: u64) -> Result<(), Fault> {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.target.set(attrs).map(drop).map_err(Fault::Write)
    }
}

/// Whether `attr`'s tree can say where holes are; see [`Content::knows_holes`].
pub(super) fn knows_holes(client: &outrigger_client::Client) -> bool {
    client.has(OpCode::Seek)
}

/// Reads block after block.
struct ReadOn<'a> {
    file: &'a File,
    at: u64,
    end: Option<u64>,
    expected: u64,
    /// The most that is read at once, in bytes.
    unit: usize,
}

impl Iterator for ReadOn<'_> {
    type Item = Result<Bytes, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = match self.end {
            Some(end) => end.saturating_sub(self.at),
            None if self.file.is_stream() => self.unit as u64,
            // One byte more than expected shows whether the file has grown or has ended.
            None => self.expected.saturating_sub(self.at).saturating_add(1).max(HOLE as u64),
        };
        let len = usize::try_from(rest).unwrap_or(self.unit).min(self.unit);
        if len == 0 {
            return None;
        }
        match self.file.read_at(self.at, len) {
            Ok(block) if block.is_empty() => None,
            Ok(block) => {
                self.at += block.len() as u64;
                // Fewer bytes than asked for are answered at the end, and before what cannot be read.
                if self.file.ends_after(&block, len) && self.at >= self.expected && self.end.is_none() {
                    self.end = Some(self.at);
                }
                Some(Ok(block))
            }
            // What comes before the damage is read in small units.
            Err(error) if error.errno == Errno::EIO && len > HOLE && !self.file.is_stream() => {
                self.unit = HOLE;
                self.next()
            }
            Err(error) => {
                self.end = Some(self.at);
                Some(Err(error))
            }
        }
    }
}

/// Writes block after block, leaving holes for zeroes if it should.
struct Writer<'a> {
    content: &'a Content<'a>,
    at: u64,
    find_holes: bool,
    /// The last thing was a hole, so that the file still ends before it.
    hole: bool,
}

impl Writer<'_> {
    fn write(&mut self, block: Bytes) -> Result<(), Fault> {
        let len = block.len() as u64;
        if self.find_holes {
            for (piece, zero) in runs(&block) {
                self.put(block.slice(piece), zero)?;
            }
        } else {
            self.put(block, false)?;
        }
        self.content.shared.progress.bytes(len);
        Ok(())
    }

    fn put(&mut self, piece: Bytes, zero: bool) -> Result<(), Fault> {
        let len = piece.len() as u64;
        if !zero {
            self.content.target.write_all_at(self.at, piece).map_err(Fault::Write)?;
        }
        self.hole = zero;
        self.at += len;
        Ok(())
    }

    /// Where it has come to.
    fn finish(self) -> Result<u64, Fault> {
        if self.hole {
            self.content.set_size(self.at)?;
        }
        Ok(self.at)
    }
}

/// The runs of zero and other blocks in `data`, as ranges.
fn runs(data: &[u8]) -> Vec<(std::ops::Range<usize>, bool)> {
    let mut runs: Vec<(std::ops::Range<usize>, bool)> = Vec::new();
    let mut start = 0;
    for block in data.chunks(HOLE) {
        let zero = is_zero(block);
        let end = start + block.len();
        match runs.last_mut() {
            Some((range, same)) if *same == zero => range.end = end,
            _ => runs.push((start..end, zero)),
        }
        start = end;
    }
    runs
}

fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_found_block_by_block() {
        let mut data = vec![0; 3 * HOLE + 100];
        assert_eq!(runs(&data), [(0..data.len(), true)]);
        data[HOLE + 4095] = 1;
        assert_eq!(runs(&data), [(0..HOLE, true), (HOLE..2 * HOLE, false), (2 * HOLE..data.len(), true)]);
        data[3 * HOLE + 99] = 1;
        assert_eq!(runs(&data).len(), 4);
        assert!(runs(&[]).is_empty());
    }
}
