// SPDX-License-Identifier: MIT OR Apache-2.0
//! File handles: what a client names a file by, for ever (RFC 1813, section 2.3.3).
//!
//! A handle has an export, a node and a generation, and a code that only the owner of the key can make: a client cannot
//! invent a handle of a file that it was never given one of.

use outrigger_core::{Generation, Node};
use ring::hmac;
use std::fmt;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of a handle.
pub(crate) const LEN: usize = BODY + 32;
/// Bytes that are authenticated.
const BODY: usize = 21;
/// The first byte of a handle.
const VERSION: u8 = 1;

/// The number of an export in handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ExportId(pub(crate) u32);

/// What a handle means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// Where it is.
    pub(crate) export: ExportId,
    /// Which file; for trees that know files by path only, its number in the door's own table.
    pub(crate) node: Node,
    /// Which of the files that had this number.
    pub(crate) generation: Generation,
}

/// Makes and checks handles.
pub struct Sealer(hmac::Key);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    /// With this key: the handles of one run are valid in another that has the same.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        Sealer(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    pub(crate) fn seal(&self, file: FileId) -> [u8; LEN] {
        let mut handle = [0; LEN];
        handle[0] = VERSION;
        handle[1..5].copy_from_slice(&file.export.0.to_be_bytes());
        handle[5..13].copy_from_slice(&file.node.0.to_be_bytes());
        handle[13..BODY].copy_from_slice(&file.generation.0.to_be_bytes());
        let tag = hmac::sign(&self.0, &handle[..BODY]);
        handle[BODY..].copy_from_slice(tag.as_ref());
        handle
    }

    /// What `handle` means; `None` where it was not made with this key.
    pub(crate) fn open(&self, handle: &[u8]) -> Option<FileId> {
        let (body, tag) = handle.split_at_checked(BODY)?;
        hmac::verify(&self.0, body, tag).ok()?;
        let number = |range: std::ops::Range<usize>| {
            body[range].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let known = FileId {
            export: ExportId(number(1..5) as u32),
            node: Node(number(5..13)),
            generation: Generation(number(13..BODY)),
        };
        (body[0] == VERSION).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId =
        FileId { export: ExportId(0x0102_0304), node: Node(u64::MAX - 7), generation: Generation(9) };

    #[test]
    fn a_handle_means_what_it_was_made_for_with_the_same_key_only() {
        let sealer = Sealer::new(&[1; KEY_LEN]);
        let handle = sealer.seal(FILE);
        assert_eq!(sealer.open(&handle), Some(FILE));
        assert_eq!(Sealer::new(&[1; KEY_LEN]).open(&handle), Some(FILE));
        assert_eq!(Sealer::new(&[2; KEY_LEN]).open(&handle), None);
    }

    #[test]
    fn no_changed_and_no_cut_handle_is_taken() {
        let sealer = Sealer::new(&[1; KEY_LEN]);
        let handle = sealer.seal(FILE);
        for bit in 0..LEN * 8 {
            let mut forged = handle;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sealer.open(&forged), None, "bit {bit}");
        }
        for len in 0..LEN {
            assert_eq!(sealer.open(&handle[..len]), None);
        }
        assert_eq!(sealer.open(&[&handle[..], &[0]].concat()), None);
        assert_eq!(sealer.open(&[0; 64]), None);
    }
}
