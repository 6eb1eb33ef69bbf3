// SPDX-License-Identifier: MIT OR Apache-2.0
//! What archives are written to, and the content of files on its way there.

use super::failed;
use super::source::Found;
use crate::progress::Progress;
use crate::status::Failure;
use outrigger_client::File;
use outrigger_core::ops::{OpCode, OpenFlags};
use outrigger_core::{Errno, Error, Result};
use std::io::Write;

/// The unit of reading, in bytes.
const PIECE: u64 = 1 << 20;
/// Zeroes to fill up with.
const ZEROES: [u8; 512] = [0; 512];

/// The bytes of an archive.
pub struct Stream<'a> {
    out: &'a mut dyn Write,
    progress: &'a Progress,
    /// How messages call the tree.
    shown: String,
    written: u64,
}

impl<'a> Stream<'a> {
    /// Into `out`, of a tree that users call `shown`.
    pub fn new(out: &'a mut dyn Write, progress: &'a Progress, shown: String) -> Self {
        Stream { out, progress, shown, written: 0 }
    }

    /// How messages call the tree.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The error message for a file that archives of this kind cannot have.
    pub fn refused(&self, found: &Found, why: &str) -> Failure {
        failed("cannot put into the image", &self.shown, &found.path, &Errno::EINVAL.because(why.to_owned()))
    }

    /// The error message for a file of the tree that cannot be read.
    pub fn unread(&self, found: &Found, error: &Error) -> Failure {
        failed("cannot read", &self.shown, &found.path, error)
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| Failure::new(format!("cannot write the image: {}", Error::from(error))))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeroes up to the next multiple of `unit`, which is at most 512.
    ///
    /// # Errors
    /// As [`Stream::put`].
    pub fn fill(&mut self, unit: u64) -> Result<(), Failure> {
        let missing = self.written.next_multiple_of(unit) - self.written;
        self.put(&ZEROES[..missing as usize])
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// What its tree answers.
    pub fn open(&self, found: &Found) -> Result<File, Failure> {
        found
            .inode
            .open(OpenFlags::empty())
            .map_err(|error| failed("cannot open", &self.shown, &found.path, &error))
    }

    /// Writes `length` bytes of a file, from `start` on.
    ///
    /// # Errors
    /// What its tree answers, and when it has become shorter.
    pub fn content(
        &mut self,
        found: &Found,
        file: &File,
        (start, length): (u64, u64),
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < length {
            let block = file.read_at(start + done, (length - done).min(PIECE) as usize);
            let block = block.map_err(|error| self.unread(found, &error))?;
            if block.is_empty() {
                return Err(self.unread(found, &Errno::EIO.because("it has become shorter meanwhile")));
            }
            self.put(&block)?;
            self.progress.bytes(block.len() as u64);
            done += block.len() as u64;
        }
        Ok(())
    }

    /// A file is done, if it has no more content than its size says: files of /proc have, and those that have grown.
    ///
    /// # Errors
    /// What its tree answers, and when there is more.
    pub fn file_done(&self, found: &Found, file: &File) -> Result<(), Failure> {
        let more = file.read_at(found.attr.size, 1).map_err(|error| self.unread(found, &error))?;
        if !more.is_empty() {
            return Err(self.unread(found, &Errno::EIO.because("it has more content than its size says")));
        }
        self.progress.file();
        Ok(())
    }
}

/// The pieces of a file between holes, each with its start and its length; none when it has no holes, or its tree does not know.
///
/// # Errors
/// What the tree answers.
pub fn pieces(found: &Found, file: &File) -> Result<Option<Vec<(u64, u64)>>> {
    let size = found.attr.size;
    if found.attr.blocks.saturating_mul(512) >= size || !file.client().has(OpCode::Seek) {
        return Ok(None);
    }
    let (mut pieces, mut at) = (Vec::new(), 0);
    loop {
        match file.data(at, size) {
            Ok(Some((start, end))) if start < size => {
                at = end.min(size);
                pieces.push((start, at - start));
            }
            Ok(_) => break,
            Err(error)
                if at == 0 && matches!(error.errno, Errno::ENOSYS | Errno::EINVAL | Errno::EOPNOTSUPP) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((pieces != [(0, size)]).then_some(pieces))
}
