// SPDX-License-Identifier: MIT OR Apache-2.0
//! A medium with any superblock: describing and naming it never panics, whatever type it is taken for. The first byte says which.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_disk::marks;
use outrigger_proto_disk::volume::describe;

const TYPES: &[&str] = &[
    "btrfs", "cramfs", "erofs", "exfat", "ext4", "f2fs", "hfs", "hfsplus", "iso9660", "jfs", "minix",
    "nilfs2", "ntfs3", "romfs", "squashfs", "udf", "ufs", "vfat", "xfs",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((which, medium)) = bytes.split_first() else { return };
    let kind = TYPES[usize::from(*which) % TYPES.len()];
    let volume = describe(kind, &medium).expect("memory can be read");
    assert!(marks::content(&medium).is_ok() && marks::form(&medium).is_ok());
    assert!(volume.is_some_and(|volume| volume.features.len() <= 3 * 64));
});
