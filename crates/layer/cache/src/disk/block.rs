// SPDX-License-Identifier: MIT OR Apache-2.0
//! A block of content as a file holds it.
//!
//! Magic, a CRC-32 of all that follows, what it is a block of, the bytes. The reader knows what it has to be a block of,
//! so nothing in it is trusted that would have to be interpreted.

use bytes::Bytes;
use outrigger_core::Time;
use outrigger_core::hash::fnv1a;
use std::sync::Arc;

/// Bytes of content in a block; the last one of a file has fewer.
pub(crate) const LEN: u64 = 128 << 10;
/// Raised whenever the layout changes.
const MAGIC: &[u8; 8] = b"outrigd\x01";
/// Magic and checksum.
const SEAL: usize = 12;

/// Which bytes of which version of which file a block holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What identifies the tree.
    pub tree: Arc<str>,
    /// The file's inode number.
    pub ino: u64,
    /// The size of the file in bytes.
    pub size: u64,
    /// When its content was changed.
    pub mtime: Time,
    /// When anything about it was changed.
    pub ctime: Time,
    /// Which of its blocks it is, counted from 0.
    pub number: u64,
}

impl Block {
    /// How many bytes of content it has.
    pub fn len(&self) -> u64 {
        self.size.saturating_sub(self.number.saturating_mul(LEN)).min(LEN)
    }

    /// Whether it lies behind the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of its file: one block of a file has one, whatever the version, so that a newer one takes the place of an
    /// older one. Others may have the same; then one takes the place of the other.
    pub(crate) fn name(&self) -> u64 {
        let words = [self.ino, self.number];
        fnv1a(words.into_iter().flat_map(u64::to_le_bytes))
    }

    /// What stands before the content, apart from the seal.
    fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(72 + self.tree.len());
        for word in [self.tree.len() as u64, self.ino, self.size, self.number] {
            key.extend_from_slice(&word.to_le_bytes());
        }
        for time in [self.mtime, self.ctime] {
            key.extend_from_slice(&time.secs.to_le_bytes());
            key.extend_from_slice(&time.nanos.to_le_bytes());
        }
        key.extend_from_slice(self.tree.as_bytes());
        key
    }

    /// The largest file that can be such a block, in bytes.
    pub(crate) fn file_max(&self) -> u64 {
        (SEAL + self.key().len()) as u64 + self.len()
    }

    /// What its file holds, given its content.
    pub fn encode(&self, content: &[Bytes]) -> Vec<u8> {
        let mut file = Vec::with_capacity(self.file_max() as usize);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&[0; 4]);
        file.extend_from_slice(&self.key());
        content.iter().for_each(|piece| file.extend_from_slice(piece));
        let sum = crc32fast::hash(&file[SEAL..]);
        file[SEAL - 4..SEAL].copy_from_slice(&sum.to_le_bytes());
        file
    }

    /// The content in a file, if that holds this very block, whole and undamaged.
    pub fn decode(&self, file: impl Into<Bytes>) -> Option<Bytes> {
        let file = file.into();
        let (seal, rest) = file.split_at_checked(SEAL)?;
        let (magic, sum) = seal.split_at_checked(MAGIC.len())?;
        let content = rest.strip_prefix(&self.key()[..])?;
        let whole = magic == MAGIC && content.len() as u64 == self.len();
        (whole && sum == crc32fast::hash(rest).to_le_bytes()).then(|| file.slice_ref(content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(size: u64, number: u64) -> Block {
        let tree = Arc::from("sftp host:/srv");
        Block { tree, ino: 7, size, mtime: Time::new(5, 6), ctime: Time::new(-7, 8), number }
    }

    #[test]
    fn lengths_end_with_the_file() {
        for (size, number, len) in
            [(0, 0, 0), (1, 0, 1), (LEN, 0, LEN), (LEN, 1, 0), (LEN + 3, 1, 3), (9, u64::MAX, 0)]
        {
            assert_eq!(block(size, number).len(), len, "{size} {number}");
        }
    }

    #[test]
    fn a_block_of_anything_else_is_refused() {
        let own = block(3, 0);
        let file = own.encode(&[Bytes::from_static(b"abc")]);
        assert_eq!(own.decode(file.clone()), Some(Bytes::from_static(b"abc")));
        for other in [
            Block { tree: Arc::from("sftp host:/srw"), ..own.clone() },
            Block { tree: Arc::from("sftp host:/sr"), ..own.clone() },
            Block { ino: 8, ..own.clone() },
            Block { size: 4, ..own.clone() },
            Block { mtime: Time::new(5, 7), ..own.clone() },
            Block { ctime: Time::new(-7, 9), ..own.clone() },
            Block { number: 1, ..own.clone() },
        ] {
            assert_eq!(other.decode(file.clone()), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded_and_damage_is_found(
            content in proptest::collection::vec(any::<u8>(), 1..5000),
            at in any::<proptest::sample::Index>(),
            bit in 0..8_u32,
            cut in any::<proptest::sample::Index>(),
        ) {
            let block = block(content.len() as u64, 0);
            let (one, two) = content.split_at(cut.index(content.len()));
            let file = block.encode(&[Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)]);
            prop_assert_eq!(block.decode(file.clone()), Some(Bytes::from(content)));
            prop_assert_eq!(block.decode(file[..cut.index(file.len())].to_vec()), None);
            let mut damaged = file;
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
            prop_assert_eq!(block.decode(damaged), None);
        }

        #[test]
        fn anything_else_is_refused(file in proptest::collection::vec(any::<u8>(), 0..300), size in 0..300_u64) {
            prop_assert_eq!(block(size, 0).decode(file), None);
        }
    }
}
