// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known by name only.

use outrigger_proto_disk::marks::{content, form};
use proptest::prelude::*;

/// A medium with these bytes at their places.
fn medium(size: usize, pieces: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (place, piece) in pieces {
        bytes[*place..*place + piece.len()].copy_from_slice(piece);
    }
    bytes
}

const SIZE: usize = 1 << 20;
const MD: &[u8] = b"\xfc\x4e\x2b\xa9\x01\0\0\0";

/// Bytes at a place.
type Piece<'a> = (usize, &'a [u8]);

#[test]
fn contents_that_are_not_served_have_names() {
    let table: &[(&str, &[Piece])] = &[
        ("LUKS1", &[(0, b"LUKS\xba\xbe\0\x01")]),
        ("LUKS2", &[(0, b"LUKS\xba\xbe\0\x02")]),
        ("LUKS2", &[(0x4000, b"SKUL\xba\xbe\0\x02")]),
        ("BitLocker", &[(0, b"\xeb\x58\x90-FVE-FS-")]),
        ("LVM2", &[(512, b"LABELONE\x01"), (536, b"LVM2 001")]),
        ("md", &[(0, MD)]),
        ("md", &[(4096, MD)]),
        ("md", &[(SIZE - 8192, MD)]),
        ("md", &[(SIZE - 65_536, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")]),
        ("bcache", &[(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")]),
        ("bcachefs", &[(4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")]),
        ("APFS", &[(32, b"NXSB\0\x10\0\0")]),
        ("ReFS", &[(3, b"ReFS\0\0\0\0")]),
        ("reiserfs", &[(0x1_0034, b"ReIsEr2Fs")]),
        ("GFS2", &[(0x1_0000, b"\x01\x16\x19\x70\0\0\0\x01")]),
        ("OCFS2", &[(0x1000, b"OCFSV2")]),
        ("swap", &[(4086, b"SWAPSPACE2")]),
        ("swap", &[(65_526, b"SWAPSPACE2")]),
        ("ZFS", &[((128 + 77) << 10, b"\x0c\xb1\xba\0\0\0\0\0")]),
        ("ZFS", &[(128 << 10, b"\0\0\0\0\0\xba\xb1\x0c")]),
    ];
    for (name, pieces) in table {
        let found = content(&medium(SIZE, pieces).as_slice()).expect("it can be read");
        assert_eq!(found.map(|found| found.name), Some(*name));
    }
    for (what, pieces) in [
        ("nothing", &[][..]),
        ("a label of another program", &[(512, &b"LABELONE"[..]), (536, b"other")]),
        ("md of a version that is not known", &[(4096, b"\xfc\x4e\x2b\xa9\x09\0\0\0")]),
        ("a LUKS that is not known", &[(0, b"LUKS\xba\xbe\0\x09")]),
    ] {
        assert_eq!(content(&medium(SIZE, pieces).as_slice()).expect("it can be read"), None, "{what}");
    }
}

#[test]
fn forms_of_images_have_names() {
    let table: &[(&str, usize, &[u8])] = &[
        ("qcow2", 0, b"QFI\xfb"),
        ("QED", 0, b"QED\0"),
        ("VMDK", 0, b"KDMV"),
        ("VMDK", 0, b"# Disk DescriptorFile\n"),
        ("VHDX", 0, b"vhdxfile"),
        ("VHD", 0, b"conectix"),
        ("VDI", 64, b"\x7f\x10\xda\xbe"),
    ];
    for (name, place, mark) in table {
        let found = form(&medium(4096, &[(*place, mark)]).as_slice()).expect("it can be read");
        assert_eq!(found, Some(*name));
    }
    // A VHD of fixed size has a whole footer.
    assert_eq!(form(&medium(4096, &[(3584, b"conectix")]).as_slice()).expect("it can be read"), None);
}

proptest! {
    #[test]
    fn no_medium_is_too_short_or_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), times in 0_usize..500) {
        let medium = bytes.repeat(times);
        prop_assert!(content(&medium.as_slice()).is_ok() && form(&medium.as_slice()).is_ok());
    }
}
