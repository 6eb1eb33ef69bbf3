// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log: sectors that a writer has put there before it put them in their places.
//!
//! The log is a ring of entries. Those that count are the newest sequence of whole ones whose last says where the first is.

use super::damaged;
use crate::bytes::{le32, le64};
use crate::container::{ends_within, piece, read_padded};
use crate::{Bytes, DiskError, Medium};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The unit of entries, and of what they change, in bytes.
const SECTOR: u64 = 4096;
const ENTRY_HEADER: u64 = 64;
const DESCRIPTOR: u64 = 32;
/// The most sectors of which the log may have the content: so many are remembered.
const MOST: u64 = 1 << 20;
/// The longest log that is looked through, in bytes.
const LONGEST: u64 = 64 << 20;

/// CRC-32C (Castagnoli) of pieces one after the other.
pub(super) fn sum(pieces: &[&[u8]]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut number = 0;
        while number < 256 {
            let (mut value, mut bit) = (number as u32, 0);
            while bit < 8 {
                value = (value >> 1) ^ (if value & 1 != 0 { 0x82f6_3b78 } else { 0 });
                bit += 1;
            }
            table[number] = value;
            number += 1;
        }
        table
    };
    let step = |sum: u32, byte: &u8| (sum >> 8) ^ TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize];
    !pieces.iter().flat_map(|piece| piece.iter()).fold(!0, step)
}

/// What a sector of the file is instead.
#[derive(Clone)]
enum Patch {
    Zero,
    /// This at its start and its end, and between them what is in the log there.
    Logged {
        leading: [u8; 8],
        place: u64,
        trailing: [u8; 4],
    },
}

/// A file as it is when its log has been replayed.
pub(super) struct Replayed {
    file: Bytes,
    size: u64,
    patches: BTreeMap<u64, Patch>,
}

/// An entry.
struct Entry {
    number: u64,
    /// Where it starts in the log, and its length, in bytes.
    start: u64,
    length: u64,
    tail: u64,
    descriptors: u64,
    /// How long the file was when it was written, and how long it was to become, in bytes.
    flushed: u64,
    last: u64,
}

/// The ring.
struct Ring<'a> {
    file: &'a dyn Medium,
    place: u64,
    length: u64,
    id: [u8; 16],
}

impl Ring<'_> {
    /// Bytes of the log, from `start` on, over its end.
    fn piece(&self, start: u64, length: u64) -> Result<Vec<u8>, DiskError> {
        let start = start % self.length;
        let first = length.min(self.length - start);
        let mut bytes = piece(self.file, self.place + start, first, "the log")?;
        bytes.extend(piece(self.file, self.place, length - first, "the log")?);
        Ok(bytes)
    }

    /// The entry at a place, if there is one that is whole.
    fn entry(&self, start: u64) -> Result<Option<Entry>, DiskError> {
        let start = start % self.length;
        let head = self.piece(start, SECTOR)?;
        let (length, descriptors) = (u64::from(le32(&head, 8)), u64::from(le32(&head, 24)));
        let entry = Entry {
            number: le64(&head, 16),
            start,
            length,
            tail: u64::from(le32(&head, 12)),
            descriptors,
            flushed: le64(&head, 48),
            last: le64(&head, 56),
        };
        let is_one = head.starts_with(b"loge")
            && head[32..48] == self.id
            && entry.number != 0
            && (SECTOR..=self.length).contains(&length)
            && length.is_multiple_of(SECTOR)
            && entry.tail.is_multiple_of(SECTOR)
            && entry.tail < self.length
            && entry.data() <= length;
        if !is_one {
            return Ok(None);
        }
        let whole = self.piece(start, length)?;
        let is_whole = sum(&[&whole[..4], &[0; 4], &whole[8..]]) == le32(&whole, 4);
        Ok((is_whole && entry.patches(self, &whole).is_some()).then_some(entry))
    }

    /// The entries of the sequence that begins at a place, and the length of all that follow each other there.
    fn sequence(&self, start: u64) -> Result<(Vec<Entry>, u64), DiskError> {
        let (mut found, mut starts, mut length) = (Vec::<Entry>::new(), BTreeSet::new(), 0);
        while let Some(entry) = self.entry(start + length)? {
            let follows = found.last().is_none_or(|last| last.number.checked_add(1) == Some(entry.number));
            if !follows || length + entry.length > self.length {
                break;
            }
            length += entry.length;
            starts.insert(entry.start);
            found.push(entry);
        }
        // Those at the end that do not belong to it say of another one where it begins.
        while let Some(last) = found.pop_if(|last| !starts.contains(&last.tail)) {
            starts.remove(&last.start);
        }
        Ok((found, length))
    }

    /// The newest sequence, from the entry on that its last one names.
    fn newest(&self) -> Result<Vec<Entry>, DiskError> {
        let (mut newest, mut place) = (Vec::<Entry>::new(), 0);
        while place < self.length {
            let (found, length) = self.sequence(place)?;
            let number = |all: &[Entry]| all.last().map_or(0, |entry| entry.number);
            if number(&found) > number(&newest) {
                newest = found;
            }
            // What begins within these ends as they do, with fewer of them.
            place += length.max(SECTOR);
        }
        let tail = newest.last().map_or(0, |entry| entry.tail);
        let first = newest.iter().position(|entry| entry.start == tail).unwrap_or(0);
        Ok(newest.split_off(first))
    }
}

impl Entry {
    /// Where its data sectors begin in it.
    fn data(&self) -> u64 {
        (ENTRY_HEADER + self.descriptors * DESCRIPTOR).next_multiple_of(SECTOR)
    }

    /// What it changes: places, lengths in bytes, and what is there instead; none when it makes no sense.
    fn patches(&self, ring: &Ring<'_>, whole: &[u8]) -> Option<Vec<(u64, u64, Patch)>> {
        let (mut found, mut data) = (Vec::new(), self.data());
        for number in 0..self.descriptors {
            let one =
                whole.get((ENTRY_HEADER + number * DESCRIPTOR) as usize..)?.get(..DESCRIPTOR as usize)?;
            let (offset, length) = (le64(one, 16), le64(one, 8));
            if le64(one, 24) != self.number || !offset.is_multiple_of(SECTOR) {
                return None;
            }
            if one.starts_with(b"zero") && length.is_multiple_of(SECTOR) {
                found.push((offset, length, Patch::Zero));
                continue;
            }
            let sector = whole.get(data as usize..)?.get(..SECTOR as usize)?;
            let number = u64::from(le32(sector, 4)) << 32 | u64::from(le32(sector, 4092));
            if !one.starts_with(b"desc") || !sector.starts_with(b"data") || number != self.number {
                return None;
            }
            let place = ring.place + (self.start + data) % ring.length;
            let leading = length.to_le_bytes();
            found.push((
                offset,
                SECTOR,
                Patch::Logged { leading, place, trailing: le32(one, 4).to_le_bytes() },
            ));
            data += SECTOR;
        }
        Some(found)
    }
}

impl Replayed {
    /// A file, and what its header says of the log.
    pub fn open(file: Bytes, header: &[u8]) -> Result<Self, DiskError> {
        let mut replayed = Replayed { size: file.size(), file, patches: BTreeMap::new() };
        let mut id = [0; 16];
        id.copy_from_slice(&header[48..64]);
        if id == [0; 16] {
            return Ok(replayed);
        }
        let (length, place) = (u64::from(le32(header, 68)), le64(header, 72));
        let fits = length.is_multiple_of(1 << 20) && (1..=LONGEST).contains(&length);
        if !fits || !ends_within(place, length, replayed.size) {
            return damaged("its log lies outside the file");
        }
        let ring = Ring { file: &*replayed.file, place, length, id };
        let entries = ring.newest()?;
        let Some(last) = entries.last() else { return damaged("its log has no whole entry") };
        if last.flushed > replayed.size || last.last > i64::MAX as u64 {
            return damaged("it is cut off: it was longer when its log was written");
        }
        replayed.size = replayed.size.max(last.last);
        replayed.patches = patches(&ring, &entries, replayed.size)?;
        Ok(replayed)
    }
}

/// What entries change in a file of so many bytes.
fn patches(ring: &Ring<'_>, entries: &[Entry], size: u64) -> Result<BTreeMap<u64, Patch>, DiskError> {
    let (mut patches, mut count) = (BTreeMap::new(), 0);
    for entry in entries {
        let whole = ring.piece(entry.start, entry.length)?;
        for (offset, length, patch) in entry.patches(ring, &whole).unwrap_or_default() {
            if !ends_within(offset, length, size) {
                return damaged("its log changes what lies outside the file");
            }
            count += length / SECTOR;
            if count > MOST {
                return damaged("its log changes too much");
            }
            let places = (offset..offset + length).step_by(SECTOR as usize);
            patches.extend(places.map(|place| (place, patch.clone())));
        }
    }
    Ok(patches)
}

impl Medium for Replayed {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if !ends_within(offset, buffer.len() as u64, self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read_padded(&*self.file, buffer, offset)?;
        let end = offset + buffer.len() as u64;
        for (&start, patch) in self.patches.range(offset / SECTOR * SECTOR..end) {
            let mut sector = [0; SECTOR as usize];
            if let Patch::Logged { leading, place, trailing } = patch {
                self.file.read(&mut sector, *place)?;
                sector[..8].copy_from_slice(leading);
                sector[SECTOR as usize - 4..].copy_from_slice(trailing);
            }
            let (from, to) = (start.max(offset), (start + SECTOR).min(end));
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }
}
