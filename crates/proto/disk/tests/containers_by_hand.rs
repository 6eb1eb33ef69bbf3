// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of forms other than qcow2, put together by hand: what `qemu-img` does not make.

#[path = "support/bounded.rs"]
mod bounded;

use bounded::{Bounded, content, disk};
use outrigger_proto_disk::form::{Form, Other, open};
use outrigger_proto_disk::{Bytes, DiskError};

const SECTOR: usize = 512;
const MOST: u64 = 16 << 20;

/// Bytes at their places.
fn put(file: &mut [u8], pieces: &[(usize, &[u8])]) {
    for (place, piece) in pieces {
        file[*place..*place + piece.len()].copy_from_slice(piece);
    }
}

fn said(found: Result<Bytes, DiskError>) -> String {
    found.err().map(|error| error.to_string()).unwrap_or_default()
}

/// A VDI image of four blocks of 4096 bytes: the second one of the file, none, the first one, one that is zero.
fn vdi() -> Vec<u8> {
    let mut file = vec![0; 0x400 + 2 * 4096];
    put(
        &mut file,
        &[(0x40, b"\x7f\x10\xda\xbe\x01\0\x01\0"), (0x4c, &[1]), (0x154, &[0, 2]), (0x158, &[0, 4])],
    );
    put(&mut file, &[(0x170, &[0, 0x40]), (0x178, &[0, 0x10]), (0x180, &[4])]);
    put(&mut file, &[(0x200, &[1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 254, 255, 255, 255])]);
    file[0x400..0x1400].fill(1);
    file[0x1400..].fill(2);
    file
}

#[test]
fn a_vdi_has_its_blocks_where_its_table_says() {
    let expected = [[2; 4096], [0; 4096], [1; 4096], [0; 4096]].concat();
    assert!(content(&disk(vdi()).expect("it opens"), MOST).expect("it can be read") == expected);
    let damages: &[(usize, &[u8], &str)] = &[
        (0x4c, &[4], "with differences"),
        (0x46, &[2], "version 2"),
        (0x4c, &[9], "its type"),
        (0x178, &[0, 0x11], "the size of its blocks"),
        (0x178, &[0, 0, 0, 0], "the size of its blocks"),
        (0x17c, &[1], "the size of its blocks"),
        (0x177, &[0xff], "too few blocks"),
        (0x174, &[1], "too few blocks"),
        (0x183, &[0xff], "table lies outside"),
        (0x157, &[0xff], "table lies outside"),
    ];
    for (place, bytes, what) in damages {
        let mut file = vdi();
        put(&mut file, &[(*place, bytes)]);
        let error = said(disk(file));
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut file = vdi();
    put(&mut file, &[(0x203, &[0x7f])]);
    let error = content(&disk(file).expect("it opens"), MOST).expect_err("it is elsewhere").to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// The bytes with the sum of VHD at a place.
fn summed(mut bytes: Vec<u8>, place: usize) -> Vec<u8> {
    let sum = !bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
    put(&mut bytes, &[(place, &sum.to_be_bytes())]);
    bytes
}

/// A footer of a VHD of this type and size, with an identifier of these bytes.
fn footer(kind: u8, size: u32, id: u8) -> Vec<u8> {
    let mut footer = vec![0; SECTOR];
    put(
        &mut footer,
        &[(0, b"conectix"), (22, &[2, 0]), (52, &size.to_be_bytes()), (63, &[kind]), (68, &[id; 16])],
    );
    summed(footer, 64)
}

/// A VHD with differences: of its two blocks of 4096 bytes the first has the sectors 0, 5 and 6, and the other one nothing.
fn differencing(name: &str, base: u8) -> Vec<u8> {
    let mut header = vec![0; 1024];
    put(&mut header, &[(0, b"cxsparse"), (22, &[6, 0]), (31, &[2]), (34, &[0x10, 0]), (40, &[base; 16])]);
    let utf16: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = "C:\\images\\whole.vhd".encode_utf16().flat_map(u16::to_be_bytes).collect();
    put(&mut header, &[(64, &big)]);
    if !name.is_empty() {
        put(&mut header, &[(576, b"W2ru"), (587, &[utf16.len() as u8]), (598, &[8, 0])]);
    }
    let mut file = [footer(4, 8192, 9), summed(header, 36), vec![0; 8192]].concat();
    put(&mut file, &[(0x600, &[0, 0, 0, 5, 255, 255, 255, 255]), (0x800, &utf16)]);
    put(&mut file, &[(0xa00, &[0b1000_0110]), (0xc00, &[9; 4096])]);
    file.truncate(0x1c00);
    file.extend(footer(4, 8192, 9));
    file
}

#[test]
fn a_vhd_with_differences_has_the_sectors_that_its_bitmaps_name() {
    let base = [vec![3; 8192], footer(2, 8192, 7)].concat();
    let parts = |name, id, base: &[u8]| -> Vec<(Form, Bytes)> {
        vec![
            (Form::Vhd, Box::new(Bounded(differencing(name, id)))),
            (Form::Vhd, Box::new(Bounded(base.to_vec()))),
        ]
    };
    let mut expected = vec![3; 8192];
    for sector in [0, 5, 6] {
        expected[sector * SECTOR..(sector + 1) * SECTOR].fill(9);
    }
    assert!(
        content(&open(parts("", 7, &base)).expect("it opens"), MOST).expect("it can be read") == expected
    );
    for (name, shown) in
        [("", "whole.vhd"), (".\\sub\\base.vhd", "./sub/base.vhd"), ("D:\\x\\y.vhd", "y.vhd")]
    {
        let others = Form::Vhd.others(&Bounded(differencing(name, 7))).expect("it names one");
        assert_eq!(others.below, Some(Other { name: shown.into(), form: Some("vhd".into()) }));
    }
    assert!(said(open(parts("", 6, &base))).contains("another one"));
    assert!(said(disk(differencing("", 7))).contains("missing"));
    let mut cut = differencing("", 7);
    put(&mut cut, &[(0x240, &[1])]);
    assert!(said(disk(cut)).contains("its header"), "a sum that is wrong");
}

#[test]
fn a_vhd_of_fixed_size_ends_before_its_footer() {
    let file = [vec![3; 8192], footer(2, 8192, 7)].concat();
    assert!(content(&disk(file.clone()).expect("it opens"), MOST).expect("it can be read") == [3; 8192]);
    // One that says it is larger than its file is none.
    let file = [vec![3; 8192], footer(2, 9216, 7)].concat();
    assert_eq!(Form::of(&Bounded(file)).expect("it can be read"), Form::Raw);
}

#[test]
fn a_vmdk_is_made_of_the_parts_that_its_text_names() {
    let text = "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\ncreateType=\"custom\"\n\
                RW 2 FLAT \"a b.bin\" 1\nRW 3 ZERO\nRDONLY 1 FLAT \"sub/c.bin\"\n";
    let others = Form::Vmdk.others(&Bounded(text.into())).expect("it names files");
    let names: Vec<_> = others.extents.iter().map(|other| String::from_utf8_lossy(&other.name)).collect();
    assert_eq!(names, ["a b.bin", "sub/c.bin"]);
    let parts = |text: &str, first: usize| -> Vec<(Form, Bytes)> {
        vec![
            (Form::Vmdk, Box::new(Bounded(text.into()))),
            (Form::Extent, Box::new(Bounded(vec![4; first]))),
            (Form::Extent, Box::new(Bounded(vec![5; SECTOR]))),
        ]
    };
    let found = content(&open(parts(text, 1536)).expect("it opens"), MOST).expect("it can be read");
    assert!(found == [vec![4; 1024], vec![0; 1536], vec![5; 512]].concat());
    for (from, to, first, what) in [
        ("", "", 1535, "too short"),
        ("RW 2 FLAT", "RW 2 SPARSE", 1536, "no header"),
        ("RW 2 FLAT", "RW 2 SESPARSE", 1536, "SESPARSE"),
        ("RW 2 FLAT", "RW 99999999999999999999 FLAT", 1536, "the size of a part"),
        ("\" 1\n", "\" 36028797018963969\n", 1536, "the place of a part"),
        ("RW 3 ZERO", "RW 18014398509481983 ZERO", 1536, "the size of its disk"),
        ("parentCID=ffffffff", "parentCID=1", 1536, "does not name"),
        ("# Disk", "COWD", 1536, "COWD"),
    ] {
        let error = said(open(parts(&text.replacen(from, to, 1), first)));
        assert!(error.contains(what), "{what}: {error}");
    }
    let error = said(open(parts("# Disk DescriptorFile\n", 0).into_iter().take(1).collect()));
    assert!(error.contains("no part"), "{error}");
}

/// CRC-32C.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    })
}

/// The bytes with the sum of VHDX in them.
fn checked(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc(&bytes);
    put(&mut bytes, &[(4, &sum.to_le_bytes())]);
    bytes
}

const MB: usize = 1 << 20;
/// The identifier of the log.
const LOG: [u8; 16] = [0x4c; 16];

fn guid(text: &str) -> Vec<u8> {
    let hex = text.replace('-', "");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("digits");
    [6, 4, 2, 0, 10, 8, 14, 12, 16, 18, 20, 22, 24, 26, 28, 30].map(byte).to_vec()
}

/// A VHDX image of three blocks of 1 MiB, of which the first is in the file at 4 MiB, with the log at 1 MiB.
fn vhdx(log: bool) -> Vec<u8> {
    let mut file = vec![0; 6 * MB];
    let mut header = vec![0; 4096];
    put(&mut header, &[(0, b"head"), (8, &[5]), (66, &[1]), (70, &[0x10]), (74, &[0x10])]);
    if log {
        put(&mut header, &[(48, &LOG)]);
    }
    let mut regions = vec![0; 64 << 10];
    put(&mut regions, &[(0, b"regi"), (8, &[2]), (16, &guid("2dc27766-f623-4200-9d64-115e9bfd4a08"))]);
    put(&mut regions, &[(34, &[0x30]), (42, &[0x10]), (44, &[1])]);
    put(
        &mut regions,
        &[(48, &guid("8b7ca206-4790-4b9a-b8fe-575f050f886e")), (66, &[0x20]), (74, &[0x10]), (76, &[1])],
    );
    put(&mut file, &[(0, b"vhdxfile"), (128 << 10, &checked(header)), (192 << 10, &checked(regions))]);
    put(&mut file, &[(2 * MB, b"metadata"), (2 * MB + 10, &[3])]);
    let items: [(&str, u8, &[u8]); 3] = [
        ("caa16737-fa36-4d43-b3b6-33f0aa44e76b", 8, &[0, 0, 0x10]),
        ("2fa54224-cd1b-4876-b211-5dbed83bf4b8", 8, &[0, 0, 0x30]),
        ("8141bf1d-a96f-4709-ba47-f233a8faab5f", 4, &[0, 2]),
    ];
    for (number, (id, length, bytes)) in items.into_iter().enumerate() {
        let (entry, place) = (2 * MB + 32 + 32 * number, number * 16);
        put(&mut file, &[(entry, &guid(id)), (entry + 16, &[place as u8, 0, 1]), (entry + 20, &[length])]);
        put(&mut file, &[(entry + 24, &[4]), (2 * MB + 0x1_0000 + place, bytes)]);
    }
    put(&mut file, &[(3 * MB, &[6, 0, 0x40]), (3 * MB + 8, &[2]), (4 * MB, &[1; MB])]);
    file
}

/// An entry of the log that makes the third block the one at 5 MiB and fills 4096 bytes of the first one with zeroes.
fn entry(number: u8, tail: usize) -> Vec<u8> {
    let mut entry = vec![0; 8192];
    put(
        &mut entry,
        &[(0, b"loge"), (9, &[0x20]), (12, &(tail as u32).to_le_bytes()), (16, &[number]), (24, &[2])],
    );
    put(&mut entry, &[(32, &LOG), (50, &[0x60]), (58, &[0x60])]);
    // The entry of the first block is in what the descriptor has.
    put(&mut entry, &[(64, b"desc"), (72, &[6, 0, 0x40]), (82, &[0x30]), (88, &[number])]);
    put(&mut entry, &[(96, b"zero"), (105, &[0x10]), (113, &[0x20, 0x40]), (120, &[number])]);
    put(&mut entry, &[(4096, b"data"), (4096 + 16, &[6, 0, 0x50]), (8188, &[number])]);
    checked(entry)
}

#[test]
fn the_log_of_a_vhdx_is_read_as_if_it_were_in_its_place() {
    let whole = |file: Vec<u8>| content(&disk(file).expect("it opens"), MOST).expect("it can be read");
    let mut expected = vec![0; 3 * MB];
    expected[..MB].fill(1);
    assert!(whole(vhdx(false)) == expected, "without a log");
    let mut replayed = expected.clone();
    replayed[0x2000..0x3000].fill(0);
    replayed[2 * MB..].fill(8);
    // The second over the end of the log, with one before it that is older and does not belong to it.
    for start in [0, 0x8000, MB - 4096] {
        let mut file = vhdx(true);
        file[5 * MB..].fill(8);
        let newest = entry(7, start);
        let (first, second) = newest.split_at((MB - start).min(newest.len()));
        put(&mut file, &[(MB + start, first), (MB + 0x4000, &entry(3, 0x4000))]);
        put(&mut file, &[(MB, second)]);
        assert!(whole(file) == replayed, "{start:#x}");
    }
    assert!(said(disk(vhdx(true))).contains("no whole entry"));
    let mut file = vhdx(true);
    put(&mut file, &[(MB, &entry(7, 0)), (MB + 100, &[1])]);
    assert!(said(disk(file)).contains("no whole entry"), "a sum that is wrong");
    let mut file = vhdx(true);
    put(&mut file, &[(MB, &entry(7, 0x1000))]);
    assert!(said(disk(file)).contains("no whole entry"), "it begins with one that is not there");
    let mut file = vhdx(true);
    put(&mut file, &[(MB, &entry(7, 0))]);
    file.truncate(5 * MB);
    assert!(said(disk(file)).contains("cut off"));
}

#[test]
fn a_damaged_vhdx_is_refused() {
    let damages: &[(usize, &[u8], &str)] = &[
        (128 << 10, b"xxxx", "both of its headers"),
        (192 << 10, b"xxxx", "both of its tables of regions"),
        (2 * MB, b"x", "its metadata"),
        (2 * MB + 0x1_0000, &[1], "the size of its blocks"),
        (2 * MB + 0x1_0004, &[2], "differences"),
        (2 * MB + 0x1_0010, &[1], "the size of its disk"),
        (2 * MB + 0x1_0017, &[1], "the size of its disk"),
        (2 * MB + 0x1_0021, &[1], "the size of its disk or its sectors"),
        (2 * MB + 32, &[0], "the item"),
        (2 * MB + 10, &[2], "is missing"),
    ];
    for (place, bytes, what) in damages {
        let mut file = vhdx(false);
        put(&mut file, &[(*place, bytes)]);
        let error = said(disk(file));
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut file = vhdx(false);
    put(&mut file, &[(3 * MB, &[7])]);
    assert!(content(&disk(file).expect("it opens"), MOST).is_err(), "a block that is partly there");
}
