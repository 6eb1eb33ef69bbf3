// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server and its successor exchange beside requests: a part of a memory file that both hold. In its
//! first page are a few words, after it a ring with the times of changes, the ring of the [record](crate::record), and blocks of
//! content.
//!
//! The file is read and written, not mapped, so each call here is one change that a kill leaves done or not done.

use crate::place::FIRST_CHANGE;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Seconds and nanoseconds since 1970.
pub type Stamp = [u64; 2];

/// Changes happen now.
const NOW: Stamp = [u64::MAX; 2];

/// The first page: eight bytes a word, little-endian.
#[repr(C)]
struct Words {
    /// How many checkpoints there were.
    checkpoints: u64,
    /// Where the list of sealed writes is; zero when none are sealed.
    sealed: u64,
    /// How long it is.
    sealed_len: u64,
    /// The time of day at which the next change is to happen.
    clock: Stamp,
    /// How the image was found by the first server.
    found: u64,
    /// Up to where the record was read.
    consumed: u64,
}

/// The ring with the times of changes.
const TIMES: u64 = 4096;
/// How many it holds.
const CHANGES: u64 = 1 << 16;
/// Where the record is.
const RECORD: u64 = TIMES + CHANGES * size_of::<Stamp>() as u64;
/// And how long.
pub(crate) const RECORD_SIZE: u64 = 16 << 20;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Control {
    file: Arc<File>,
    /// Where it starts in the file, in bytes.
    start: u64,
}

impl Control {
    /// What is in `file` from `start` on.
    pub fn at(file: Arc<File>, start: u64) -> Self {
        Control { file, start }
    }

    /// The file, and where in it this starts.
    pub fn parts(&self) -> (Arc<File>, u64) {
        (Arc::clone(&self.file), self.start)
    }

    /// Where the blocks of content start in the file.
    pub fn blocks(&self) -> u64 {
        self.start + RECORD + RECORD_SIZE
    }

    fn get<const N: usize>(&self, place: usize) -> io::Result<[u64; N]> {
        let mut bytes = [[0; 8]; N];
        self.read(bytes.as_flattened_mut(), place as u64)?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    fn put<const N: usize>(&self, place: usize, words: [u64; N]) -> io::Result<()> {
        self.file.write_all_at(words.map(u64::to_le_bytes).as_flattened(), self.start + place as u64)
    }

    /// Reads what is there; where the file ends there are zeroes.
    fn read(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        match self.file.read_exact_at(bytes, self.start + place) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(()),
        }
    }

    /// How many checkpoints there were.
    ///
    /// # Errors
    /// Here and below, when the file cannot be read or written.
    pub fn checkpoints(&self) -> io::Result<u64> {
        self.get(offset_of!(Words, checkpoints)).map(|[count]| count)
    }

    /// Everything that was sealed is in the image.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn has_happened(&self) -> io::Result<()> {
        // After a kill between the two the same is done again, and counted twice, which does no harm.
        self.put(offset_of!(Words, checkpoints), [self.checkpoints()? + 1])?;
        self.break_seal()
    }

    /// Where the list of sealed writes is, and its length.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn sealed(&self) -> io::Result<Option<(u64, u64)>> {
        let [place, length] = self.get(offset_of!(Words, sealed))?;
        Ok((place != 0).then_some((place, length)))
    }

    /// From here on the checkpoint has happened: the place is written last, and at once.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn seal(&self, place: u64, length: u64) -> io::Result<()> {
        self.put(offset_of!(Words, sealed_len), [length])?;
        self.put(offset_of!(Words, sealed), [place])
    }

    /// What was sealed is not any more.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn break_seal(&self) -> io::Result<()> {
        self.put(offset_of!(Words, sealed), [0])
    }

    /// When the next change is to happen; none for now.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn clock(&self) -> io::Result<Option<Stamp>> {
        Ok(Some(self.get(offset_of!(Words, clock))?).filter(|stamp| *stamp != NOW))
    }

    /// Says when the next change is to happen; none from now on means now.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn set_clock(&self, stamp: Option<Stamp>) -> io::Result<()> {
        self.put(offset_of!(Words, clock), stamp.unwrap_or(NOW))
    }

    /// What was noted about the image by the first process, or zero.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn found(&self) -> io::Result<u64> {
        self.get(offset_of!(Words, found)).map(|[found]| found)
    }

    /// Notes something about the image for later processes.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn note_found(&self, what: u64) -> io::Result<()> {
        self.put(offset_of!(Words, found), [what])
    }

    /// When the change with this number happened.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn time(&self, change: u64) -> io::Result<Stamp> {
        self.get(time_place(change))
    }

    /// Notes when the change in the frame with this number happens.
    ///
    /// # Errors
    /// See [`Control::checkpoints`].
    pub fn note_time(&self, frame: u64, stamp: Stamp) -> io::Result<()> {
        self.put(time_place(frame - FIRST_CHANGE), stamp)
    }

    /// Up to where the record was read, as the reader says.
    pub(crate) fn consumed(&self) -> io::Result<u64> {
        self.get(offset_of!(Words, consumed)).map(|[consumed]| consumed)
    }

    /// Says so.
    pub(crate) fn set_consumed(&self, place: u64) -> io::Result<()> {
        self.put(offset_of!(Words, consumed), [place])
    }

    /// Reads what is in the ring of the record at this place of the stream.
    pub(crate) fn read_record(&self, bytes: &mut [u8], from: u64) -> io::Result<()> {
        let place = from % RECORD_SIZE;
        let part = bytes.len().min((RECORD_SIZE - place) as usize);
        let (before, after) = bytes.split_at_mut(part);
        self.read(before, RECORD + place)?;
        self.read(after, RECORD)
    }

    /// Puts something into the ring of the record at this place of the stream.
    pub(crate) fn write_record(&self, bytes: &[u8], to: u64) -> io::Result<()> {
        let place = to % RECORD_SIZE;
        let (before, after) = bytes.split_at(bytes.len().min((RECORD_SIZE - place) as usize));
        self.file.write_all_at(before, self.start + RECORD + place)?;
        if after.is_empty() { Ok(()) } else { self.file.write_all_at(after, self.start + RECORD) }
    }
}

fn time_place(change: u64) -> usize {
    (TIMES + change % CHANGES * size_of::<Stamp>() as u64) as usize
}
