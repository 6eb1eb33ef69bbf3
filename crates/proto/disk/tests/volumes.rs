// SPDX-License-Identifier: MIT OR Apache-2.0
//! Superblocks of any content.

use outrigger_proto_disk::volume::describe;
use outrigger_proto_disk::{Medium, Window};
use proptest::prelude::*;

/// The names that Linux has for the types.
const TYPES: &[&str] = &[
    "btrfs", "cramfs", "erofs", "exfat", "ext4", "f2fs", "hfs", "hfsplus", "iso9660", "jfs", "minix",
    "nilfs2", "ntfs3", "romfs", "squashfs", "udf", "ufs", "vfat", "xfs",
];

#[test]
fn every_type_is_described_however_short_the_medium() {
    for kind in TYPES {
        for length in [0, 1, 511, 512, 1024, 40_000, 70_000, 300_000] {
            for byte in [0, 0xff] {
                let found = describe(kind, &vec![byte; length].as_slice()).expect("it can be read");
                assert!(found.is_some_and(|volume| !volume.kind.is_empty()), "{kind}");
            }
        }
    }
    assert!(describe("zfs", &[].as_slice()).expect("it can be read").is_none());
}

#[test]
fn a_window_ends_where_it_ends() {
    let medium: Vec<u8> = (0..100).collect();
    let window = Window { medium: &medium.as_slice(), start: 10, size: 20 };
    let mut bytes = [0; 4];
    window.read(&mut bytes, 16).expect("its last bytes");
    assert_eq!(bytes, [26, 27, 28, 29]);
    assert!(window.read(&mut bytes, 17).is_err() && window.read(&mut bytes, u64::MAX).is_err());
}

proptest! {
    #[test]
    fn no_superblock_is_too_strange(kind in prop::sample::select(TYPES), bytes in prop::collection::vec(any::<u8>(), 2048)) {
        // The same bytes wherever a superblock may be.
        let medium = bytes.repeat(80);
        prop_assert!(describe(kind, &medium.as_slice()).is_ok());
    }
}
