// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files: a header, then blocks. docs/CRYPT-FORMAT.md describes the bytes.

use crate::keys::{FileKey, ID, Id, Keys, NONCE, TAG, random};
use outrigger_core::attr::{Attr, FileKind};
use outrigger_core::{Result, Visit};
use std::sync::Arc;

/// The bytes of a file that one block has at most.
pub const BLOCK: usize = 4096;
/// What encryption adds to a block.
pub const OVERHEAD: usize = NONCE + TAG;
/// The place that a block takes.
pub const SLOT: usize = BLOCK + OVERHEAD;
/// The length of a header.
pub const HEADER: usize = 64;
/// The most bytes that a file can have: its place in the tree below ends before 2^63.
pub const SIZE_MAX: u64 = (i64::MAX as u64 - HEADER as u64) / SLOT as u64 * BLOCK as u64;

const MAGIC: &[u8; 4] = b"ORC1";
/// The authenticated part of a header: a size, and flags.
const RECORD: usize = 16;
/// Where the sealed record stands in a header.
const RECORD_AT: usize = MAGIC.len() + ID;
const SPARSE: u64 = 1;

/// What the header of a file vouches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// The file has at least so many bytes: it was cut if there are fewer.
    pub size: u64,
    /// There may be blocks that were never written. Elsewhere a block of zeroes is damage.
    pub sparse: bool,
}

/// The key and the record of a file.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) key: Arc<FileKey>,
    pub(crate) record: Record,
}

/// The header of a file with this key and record.
///
/// # Errors
/// `EIO` when the system has no random numbers.
pub(crate) fn header(key: &FileKey, record: Record) -> Result<[u8; HEADER]> {
    let mut nonce = [0; NONCE];
    random(&mut nonce)?;
    Ok(header_with(key, record, nonce))
}

/// The same with a nonce that was chosen.
pub(crate) fn header_with(key: &FileKey, record: Record, nonce: [u8; NONCE]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..RECORD_AT].copy_from_slice(&key.id);
    let text = &mut bytes[RECORD_AT + NONCE..];
    text[..8].copy_from_slice(&record.size.to_le_bytes());
    text[8..RECORD].copy_from_slice(&(u64::from(record.sparse) * SPARSE).to_le_bytes());
    key.seal(&about_header(&key.id), nonce, &mut bytes[RECORD_AT..]);
    bytes
}

fn about_header(id: &Id) -> [u8; ID + 6] {
    let mut about = [0; ID + 6];
    about[..ID].copy_from_slice(id);
    about[ID..].copy_from_slice(b"header");
    about
}

/// Reads a header; `None` when it is damaged, or of another tree.
pub(crate) fn read_header(keys: &Keys, bytes: &[u8]) -> Option<Known> {
    let mut bytes: [u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let key = keys.file(*rest.first_chunk::<ID>()?);
    let about = about_header(&key.id);
    key.open(&about, &mut bytes[RECORD_AT..])?;
    let text = &bytes[RECORD_AT + NONCE..][..RECORD];
    let word = |at: usize| Some(u64::from_le_bytes(*text[at..].first_chunk()?));
    let (size, flags) = (word(0)?, word(8)?);
    let known = Known { key: Arc::new(key), record: Record { size, sparse: flags & SPARSE != 0 } };
    (flags & !SPARSE == 0 && size <= SIZE_MAX).then_some(known)
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Which one.
    pub(crate) block: u64,
    /// It has nothing but zeroes, in a file without holes.
    pub(crate) empty: bool,
}

fn about_block(id: &Id, block: u64) -> [u8; ID + 8] {
    let mut about = [0; ID + 8];
    about[..ID].copy_from_slice(id);
    about[ID..].copy_from_slice(&block.to_le_bytes());
    about
}

/// Encrypts the blocks from `first` on in place: `bytes` has slots, with room for nonces and tags.
///
/// # Errors
/// `EIO` when the system has no random numbers.
pub(crate) fn seal_blocks(key: &FileKey, first: u64, bytes: &mut [u8]) -> Result<()> {
    /// How many nonces are asked for at once.
    const NONCES: usize = 64;
    let mut nonces = [0; NONCES * NONCE];
    for (group, slots) in (0..).step_by(NONCES).zip(bytes.chunks_mut(NONCES * SLOT)) {
        let nonces = &mut nonces[..slots.len().div_ceil(SLOT) * NONCE];
        random(nonces)?;
        for ((at, slot), nonce) in (0..).zip(slots.chunks_mut(SLOT)).zip(nonces.as_chunks().0) {
            seal_block(key, first + group + at, *nonce, slot);
        }
    }
    Ok(())
}

/// Encrypts one block in its slot.
pub(crate) fn seal_block(key: &FileKey, block: u64, nonce: [u8; NONCE], slot: &mut [u8]) {
    key.seal(&about_block(&key.id, block), nonce, slot);
}

/// Decrypts the slots in `bytes`, of which the first is that of the block `first`, and moves the blocks together. The answer is how many
/// bytes of the file there are. What is too short to be a block is none.
pub(crate) fn open_blocks(known: &Known, first: u64, bytes: &mut [u8]) -> Result<usize, Damage> {
    let Known { key, record } = known;
    let mut done = 0;
    for (block, at) in (first..).zip((0..bytes.len()).step_by(SLOT)) {
        let len = (bytes.len() - at).min(SLOT);
        if len <= OVERHEAD {
            break;
        }
        let slot = &mut bytes[at..at + len];
        // A nonce of zeroes is as likely as a forgery.
        if slot[..NONCE] == [0; NONCE] && slot.iter().all(|&byte| byte == 0) {
            if !record.sparse {
                return Err(Damage { block, empty: true });
            }
            bytes[done..done + len - OVERHEAD].fill(0);
        } else {
            key.open(&about_block(&key.id, block), slot).ok_or(Damage { block, empty: false })?;
            bytes.copy_within(at + NONCE..at + len - TAG, done);
        }
        done += len - OVERHEAD;
    }
    Ok(done)
}

/// The place in the tree below of a file of `size` bytes, which is not more than [`SIZE_MAX`].
pub fn sealed_size(size: u64) -> u64 {
    let (blocks, rest) = (size / BLOCK as u64, size % BLOCK as u64);
    slot_at(blocks) + if rest == 0 { 0 } else { rest + OVERHEAD as u64 }
}

/// The size of a file whose place in the tree below is `sealed` bytes.
pub fn plain_size(sealed: u64) -> u64 {
    let body = sealed.saturating_sub(HEADER as u64);
    let (blocks, rest) = (body / SLOT as u64, body % SLOT as u64);
    blocks * BLOCK as u64 + rest.saturating_sub(OVERHEAD as u64)
}

/// Where the slot of a block begins.
pub fn slot_at(block: u64) -> u64 {
    HEADER as u64 + block * SLOT as u64
}

/// Makes the attributes of the tree below those of files and links.
pub(crate) struct Sizes;

impl Visit for Sizes {
    fn attr(&mut self, attr: &mut Attr) {
        match attr.kind() {
            FileKind::Regular => attr.size = plain_size(attr.size),
            FileKind::Symlink => attr.size = crate::names::target_len(attr.size),
            _ => {}
        }
    }
}
