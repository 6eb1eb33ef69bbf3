// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of an image that are not zero, to be damaged and written out again and again.

use anyhow::Result;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How much is kept together, in bytes.
pub const BLOCK: usize = 4096;

/// An image in memory.
#[derive(Debug, Clone)]
pub struct Bytes {
    /// In bytes.
    pub size: u64,
    /// The blocks that are not empty, by their numbers.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Bytes {
    /// Those of a file.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn of(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let (size, mut blocks, mut buffer) = (file.metadata()?.len(), BTreeMap::new(), vec![0; 1 << 20]);
        let mut number = 0;
        loop {
            let mut filled = 0;
            while filled < buffer.len() {
                match file.read(&mut buffer[filled..])? {
                    0 => break,
                    count => filled += count,
                }
            }
            for block in buffer[..filled].chunks(BLOCK) {
                if block.iter().any(|&byte| byte != 0) {
                    let mut block = block.to_vec();
                    block.resize(BLOCK, 0);
                    blocks.insert(number, block);
                }
                number += 1;
            }
            if filled < buffer.len() {
                return Ok(Bytes { size, blocks });
            }
        }
    }

    /// Writes them to a new file.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        for (number, block) in &self.blocks {
            let offset = number * BLOCK as u64;
            let there = self.size.saturating_sub(offset).min(BLOCK as u64) as usize;
            file.write_all_at(&block[..there], offset)?;
        }
        Ok(())
    }

    /// The same, ending after `size` bytes.
    pub fn cut(&self, size: u64) -> Self {
        let kept = self.blocks.range(..size.div_ceil(BLOCK as u64));
        Bytes { size, blocks: kept.map(|(number, block)| (*number, block.clone())).collect() }
    }

    /// Those from `offset` on.
    pub fn get(&self, offset: u64, length: usize) -> Vec<u8> {
        (offset..offset + length as u64)
            .map(|at| self.blocks.get(&(at / BLOCK as u64)).map_or(0, |block| block[at as usize % BLOCK]))
            .collect()
    }

    /// Puts others there.
    pub fn set(&mut self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let block = self.blocks.entry(at / BLOCK as u64).or_insert_with(|| vec![0; BLOCK]);
            block[at as usize % BLOCK] = *byte;
        }
    }

    /// A number in the order of bytes of x86, or in the other one.
    pub fn number(&self, offset: u64, length: usize, big_endian: bool) -> u64 {
        let bytes = self.get(offset, length);
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        if big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
    }

    /// Puts a number there.
    pub fn set_number(&mut self, offset: u64, length: usize, big_endian: bool, number: u64) {
        let mut bytes = number.to_le_bytes()[..length].to_vec();
        if big_endian {
            bytes.reverse();
        }
        self.set(offset, &bytes);
    }

    /// Where blocks that are not empty begin.
    pub fn used(&self) -> Vec<u64> {
        self.blocks.keys().map(|number| number * BLOCK as u64).collect()
    }

    /// Every place of a pattern that lies within one block.
    pub fn find(&self, pattern: &[u8]) -> Vec<u64> {
        let places = |(number, block): (&u64, &Vec<u8>)| {
            let start = number * BLOCK as u64;
            let found = block.windows(pattern.len()).enumerate().filter(|(_, window)| *window == pattern);
            found.map(|(at, _)| start + at as u64).collect::<Vec<_>>()
        };
        self.blocks.iter().flat_map(places).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_there_and_written() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(10_000).expect("a size");
        let mut bytes = Bytes::of(file.path()).expect("it reads");
        assert!(bytes.used().is_empty());
        bytes.set(4094, b"name");
        bytes.set_number(9_998, 4, true, 0x0102_0304);
        assert_eq!(bytes.number(9_998, 4, false), 0x0403_0201);
        assert_eq!((bytes.find(b"na"), bytes.find(b"name")), (vec![4094], vec![]));
        bytes.write(file.path()).expect("it writes");
        let again = Bytes::of(file.path()).expect("it reads");
        assert_eq!(
            (again.size, again.get(4094, 4), again.get(9_998, 2)),
            (10_000, b"name".into(), vec![1, 2])
        );
    }
}
