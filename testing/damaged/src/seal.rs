// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checksums of metadata: where every block has one, damage is found out before it does anything. So what was sealed is
//! sealed again after it was damaged.
//!
//! Sources: `fs/xfs/libxfs/xfs_format.h` and `xfs_da_format.h`, `fs/btrfs/disk-io.c`, `fs/romfs/super.c`.

use crate::bytes::{BLOCK, Bytes};

/// A form of sealed metadata: its length, the place of its checksum, and from where on that covers it. Bytes of the checksum
/// that are covered count as zeroes.
#[derive(Debug, Clone, Copy)]
struct Seal {
    length: usize,
    at: usize,
    from: usize,
    sum: Sum,
}

/// What a checksum is.
#[derive(Debug, Clone, Copy)]
enum Sum {
    Crc32c,
    /// All words of four bytes, most significant first, are nothing together.
    Nothing,
}

/// The forms of a type.
#[derive(Debug, Clone, Copy)]
pub struct Seals(&'static [Seal]);

/// Tree blocks and superblocks.
const BTRFS: &[Seal] = &[Seal { from: 32, ..whole(16 << 10, 0) }, Seal { from: 32, ..whole(BLOCK, 0) }];

/// Superblock, the three headers of a group, inodes; blocks of trees with short and with long pointers, of directories, and of
/// attributes.
const XFS: &[Seal] = &[
    whole(512, 224),
    whole(512, 216),
    whole(512, 312),
    whole(512, 32),
    whole(512, 100),
    whole(BLOCK, 52),
    whole(BLOCK, 64),
    whole(BLOCK, 4),
    whole(BLOCK, 12),
];

const fn whole(length: usize, at: usize) -> Seal {
    Seal { length, at, from: 0, sum: Sum::Crc32c }
}

impl Seals {
    /// Of a type without.
    pub const NONE: Self = Seals(&[]);

    /// Those of this type.
    pub fn of(name: &str) -> Self {
        match name {
            "btrfs" => Seals(BTRFS),
            "xfs" => Seals(XFS),
            "romfs" => Seals(&[Seal { length: 512, at: 12, from: 0, sum: Sum::Nothing }]),
            _ => Self::NONE,
        }
    }

    /// Seals again what was sealed in `before` and is damaged in the block at `offset`.
    pub fn renew(self, before: &Bytes, damaged: &mut Bytes, offset: u64) {
        for seal in self.0 {
            let length = seal.length as u64;
            let first = offset / length * length;
            for start in (first..offset + BLOCK as u64).step_by(seal.length) {
                let old = before.get(start, seal.length);
                let new = damaged.get(start, seal.length);
                if old != new && seal.of(&old) == old[seal.at..seal.at + 4] {
                    damaged.set(start + seal.at as u64, &seal.of(&new));
                }
            }
        }
    }
}

impl Seal {
    fn of(&self, bytes: &[u8]) -> [u8; 4] {
        let own = |at: usize| self.from == 0 && (self.at..self.at + 4).contains(&at);
        let covered: Vec<u8> =
            (self.from..bytes.len()).map(|at| if own(at) { 0 } else { bytes[at] }).collect();
        match self.sum {
            Sum::Crc32c => crc32c(covered.into_iter()).to_le_bytes(),
            Sum::Nothing => {
                let word = |word: &[u8]| word.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
                let sum = covered.chunks(4).map(word).fold(0, u32::wrapping_add);
                sum.wrapping_neg().to_be_bytes()
            }
        }
    }
}

/// CRC-32C (RFC 3720, appendix B.4), bit by bit.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 3720.
    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc32c([0; 32].into_iter()), 0x8a91_36aa);
        assert_eq!(crc32c(0..32), 0x46dd_794e);
    }
}
