// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decompressed blocks on disk, for streams that cannot be entered in the middle (one long zstd frame, one xz block).
//!
//! When a read has to decompress a long way only to get somewhere, the blocks on the way are stored, each compressed
//! on its own at the fastest level, so that this way is never walked twice. The file is append-only: records of
//! a header (`number`, `packed length`, `checksum`: 8 + 4 + 4 bytes, little endian) and the packed block. A record
//! that does not check out ends the file.

use crate::{blocks::BLOCK, decode};
use bytes::Bytes;
use outrigger_core::lock;
use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt, sync::Mutex};

const HEADER: usize = 16;

struct Slot {
    offset: u64,
    packed: u32,
    crc: u32,
}

struct State {
    slots: HashMap<u64, Slot>,
    end: u64,
}

/// A store of packed blocks in one file.
pub(crate) struct Spill {
    file: File,
    max: u64,
    state: Mutex<State>,
}

impl Spill {
    /// Uses `file`, which no other process writes to, taking over the records it has; keeps at most `max` bytes.
    pub fn new(file: File, max: u64) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let mut state = State { slots: HashMap::new(), end: 0 };
        let mut header = [0; HEADER];
        while state.end + HEADER as u64 <= size && file.read_exact_at(&mut header, state.end).is_ok() {
            let (number, packed, crc) = split(&header);
            let next = state.end + HEADER as u64 + u64::from(packed);
            if next > size || packed as usize > 2 * BLOCK {
                break;
            }
            state.slots.insert(number, Slot { offset: state.end + HEADER as u64, packed, crc });
            state.end = next;
        }
        Ok(Spill { file, max, state: Mutex::new(state) })
    }

    /// Whether no block is stored.
    pub fn is_empty(&self) -> bool {
        lock(&self.state).slots.is_empty()
    }

    /// Whether the block is stored.
    pub fn has(&self, number: u64) -> bool {
        lock(&self.state).slots.contains_key(&number)
    }

    /// The block, when it is stored and intact; a damaged one is forgotten.
    pub fn get(&self, number: u64) -> Option<Bytes> {
        let (offset, packed, crc) = {
            let state = lock(&self.state);
            let s = state.slots.get(&number)?;
            (s.offset, s.packed, s.crc)
        };
        let mut data = vec![0; packed as usize];
        let block =
            self.file.read_exact_at(&mut data, offset).ok().filter(|()| checksum(number, &data) == crc);
        let block = block.and_then(|()| decode::unpack(&data, BLOCK));
        if block.is_none() {
            lock(&self.state).slots.remove(&number);
        }
        block.map(Bytes::from)
    }

    /// Stores a block unless there is no room. Failing to is no error: the block can be made again.
    pub fn put(&self, number: u64, block: &[u8]) {
        let Some(packed) = decode::pack(block) else { return };
        let crc = checksum(number, &packed);
        let mut record = Vec::with_capacity(HEADER + packed.len());
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        record.extend_from_slice(&crc.to_le_bytes());
        record.extend_from_slice(&packed);
        let mut state = lock(&self.state);
        let end = state.end + record.len() as u64;
        if end > self.max || state.slots.contains_key(&number) {
            return;
        }
        if self.file.write_all_at(&record, state.end).is_ok() {
            let slot = Slot { offset: state.end + HEADER as u64, packed: packed.len() as u32, crc };
            state.slots.insert(number, slot);
            state.end = end;
        }
    }
}

fn checksum(number: u64, packed: &[u8]) -> u32 {
    let mut h = crc32fast::Hasher::new();
    h.update(&number.to_le_bytes());
    h.update(packed);
    h.finalize()
}

fn split(header: &[u8; HEADER]) -> (u64, u32, u32) {
    let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
    (u64::from(word(0)) | u64::from(word(4)) << 32, word(8), word(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_reopening_and_ignores_damage() {
        let file = tempfile::tempfile().unwrap();
        let s = Spill::new(file.try_clone().unwrap(), 1 << 20).unwrap();
        s.put(7, b"seven");
        s.put(9, b"nine");
        drop(s);
        let s = Spill::new(file.try_clone().unwrap(), 1 << 20).unwrap();
        assert_eq!(s.get(7).as_deref(), Some(&b"seven"[..]));
        assert!(s.has(9) && !s.has(8));
        let at = s.state.lock().unwrap().slots[&9].offset;
        file.write_all_at(&[0xff], at + 5).unwrap();
        assert_eq!(s.get(9), None);
        assert!(!s.has(9));
        s.put(9, b"again");
        assert_eq!(s.get(9).as_deref(), Some(&b"again"[..]));
    }

    #[test]
    fn stays_within_its_bound() {
        let file = tempfile::tempfile().unwrap();
        let s = Spill::new(file, 40).unwrap();
        s.put(1, b"fits");
        s.put(2, b"does not fit any more");
        assert!(s.has(1) && !s.has(2));
    }
}
