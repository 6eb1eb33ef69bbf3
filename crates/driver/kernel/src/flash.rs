// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of flash memory: how much of it is erased together, which no superblock says. Source: the nodes of JFFS2 as
//! Linux' `include/uapi/linux/jffs2.h` describes them.

use outrigger_core::Result;
use outrigger_proto_disk::Medium;

/// The start of each piece that was erased before anything was written into it: magic, type and length of a node.
const CLEAN: [u8; 8] = *b"\x85\x19\x03\x20\x0c\0\0\0";
/// The smallest and the largest unit there is flash memory with, in bytes.
const SMALLEST: u64 = 4 << 10;
const LARGEST: u64 = 4 << 20;
/// The unit of mkfs.jffs2(1) if nothing is asked for, in bytes.
const USUAL: u32 = 64 << 10;

/// Whether a node of JFFS2 begins here: its magic, little-endian, one of its types, and a length that can be.
pub(crate) fn is_jffs2(head: &[u8]) -> bool {
    const TYPES: [u16; 7] = [0x2003, 0x2004, 0x2006, 0xe001, 0xe002, 0xe008, 0xe009];
    let Some([0x85, 0x19, low, high, length @ ..]) = head.first_chunk::<8>() else { return false };
    TYPES.contains(&u16::from_le_bytes([*low, *high]))
        && (12..=LARGEST).contains(&u32::from_le_bytes(*length).into())
}

/// How many bytes are erased together, in the image that begins at `start`: where the second mark of an erased piece is.
///
/// # Errors
/// Those of reading it.
pub(crate) fn erase_size(image: &dyn Medium, start: u64) -> Result<u32> {
    let mut unit = SMALLEST;
    while unit <= LARGEST && start + unit + CLEAN.len() as u64 <= image.size() {
        let mut bytes = [0; CLEAN.len()];
        image.read(&mut bytes, start + unit)?;
        if bytes == CLEAN {
            return Ok(unit as u32);
        }
        unit *= 2;
    }
    Ok(USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Plain;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_second_mark_tells_the_unit() {
        for (unit, marked) in [(4096, true), (131_072, true), (65_536, false)] {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(1 << 20).expect("a size");
            for place in (0..1 << 20).step_by(unit as usize).filter(|&place| place == 0 || marked) {
                file.write_all_at(&CLEAN, place).expect("a write");
            }
            assert_eq!(erase_size(&Plain::new(file).expect("a size"), 0), Ok(unit));
        }
        let empty = Plain::new(tempfile::tempfile().expect("a file")).expect("a size");
        assert_eq!(erase_size(&empty, 0), Ok(USUAL));
    }

    #[test]
    fn nodes_are_known_by_their_header() {
        assert!(is_jffs2(&CLEAN) && is_jffs2(b"\x85\x19\x01\xe0\x2b\0\0\0"));
        for other in [&b""[..], b"\x85\x19", b"\x85\x19\x03\x20\x01\0\0\0", b"\x85\x19\x99\x20\x0c\0\0\0"] {
            assert!(!is_jffs2(other), "{other:?}");
        }
    }
}
