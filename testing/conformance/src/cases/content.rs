// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading, writing, truncating.

use crate::report::Case;
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, FileKind, OpCode};

pub(super) const CASES: &[Case] = &[
    Case::new("content/a_new_file_is_empty", &[], new_file),
    Case::new("content/what_was_written_is_read", &[], round_trip),
    Case::new("content/at_any_offset_and_length", &[], offsets),
    Case::new("content/overwriting_keeps_the_rest", &[], overwrite),
    Case::new("content/reading_stops_at_the_end", &[], end),
    Case::new("content/writing_nothing_changes_nothing", &[], nothing),
    Case::new("content/append_goes_to_the_end", &[], append),
    Case::new("content/append_ignores_other_positions", &[], append_after_growth),
    Case::new("content/several_megabytes", &[], large),
    Case::new("content/small_pieces_add_up", &[], pieces),
    Case::new("content/two_open_files_see_each_other", &[], shared),
    Case::new("content/open_with_trunc_empties", &[OpCode::SetAttr], open_trunc),
    Case::new("content/truncate_shortens", &[OpCode::SetAttr], shorten),
    Case::new("content/truncate_extends_with_zeroes", &[OpCode::SetAttr], extend),
    Case::new("content/truncated_bytes_do_not_come_back", &[OpCode::SetAttr], gone),
    Case::new("content/ftruncate_works_on_the_open_file", &[OpCode::SetAttr], ftruncate),
    Case::new("content/ftruncate_needs_writing", &[OpCode::SetAttr], ftruncate_readonly),
    Case::new("content/access_modes_are_kept", &[], modes),
    Case::new("content/fsync_and_fdatasync", &[OpCode::FSync], sync),
    Case::new("content/size_and_blocks", &[], blocks),
    Case::new("content/a_file_is_written_while_read", &[], interleaved),
    Case::new("content/created_unwritable_is_writable_when_open", &[], unwritable),
];

/// Bytes that differ from those of another seed, and from their neighbours.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed) | 1).collect()
}

fn new_file(t: &Tester<'_>) {
    let fd = t.fs.open(&t.path("f"), Flags::NEW, 0o640).must();
    let attr = t.fs.fstat(fd).must();
    assert_eq!((attr.kind(), attr.permissions()), (FileKind::Regular, 0o640));
    assert_eq!((attr.size, attr.blocks, attr.nlink), (0, 0, 1));
    assert_eq!(t.fs.read_at(fd, 0, 10).must(), b"");
    t.close(fd);
}

fn round_trip(t: &Tester<'_>) {
    t.write_file("f", b"hello");
    assert_eq!(t.read_file("f"), b"hello");
    assert_eq!(t.stat("f").must().size, 5);
}

fn offsets(t: &Tester<'_>) {
    let fd = t.create("f");
    let mut expected = Vec::new();
    let places =
        [(0, 1), (4095, 2), (4096, 4096), (10_000, 5), (8191, 8194), (65_536, 1), (1, 70_000), (131_071, 3)];
    for (seed, (offset, len)) in places.into_iter().enumerate() {
        let data = pattern(len, seed as u8);
        assert_eq!(t.fs.write_at(fd, offset as u64, &data).must(), len);
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&data);
    }
    for (offset, len) in places {
        assert!(
            t.fs.read_at(fd, offset as u64, len).must() == expected[offset..offset + len],
            "{offset}+{len}"
        );
    }
    t.close(fd);
    assert!(t.read_file("f") == expected);
}

fn overwrite(t: &Tester<'_>) {
    t.write_file("f", b"0123456789");
    let fd = t.open("f", Flags::WRITE).must();
    t.fs.write_at(fd, 3, b"abc").must();
    t.close(fd);
    assert_eq!(t.read_file("f"), b"012abc6789");
}

fn end(t: &Tester<'_>) {
    t.write_file("f", b"0123456789");
    let fd = t.open("f", Flags::READ).must();
    assert_eq!(t.fs.read_at(fd, 8, 100).must(), b"89");
    assert_eq!(t.fs.read_at(fd, 10, 100).must(), b"");
    assert_eq!(t.fs.read_at(fd, 1 << 40, 100).must(), b"");
    assert_eq!(t.fs.read_at(fd, 0, 0).must(), b"");
    t.close(fd);
}

fn nothing(t: &Tester<'_>) {
    t.write_file("f", b"abc");
    let fd = t.open("f", Flags::WRITE).must();
    assert_eq!(t.fs.write_at(fd, 100, b"").must(), 0);
    t.close(fd);
    assert_eq!(t.stat("f").must().size, 3);
}

fn append(t: &Tester<'_>) {
    t.write_file("f", b"one");
    let fd = t.open("f", Flags::WRITE | Flags::APPEND).must();
    assert_eq!(t.fs.append(fd, b"two").must(), 3);
    assert_eq!(t.fs.append(fd, b"three").must(), 5);
    t.close(fd);
    assert_eq!(t.read_file("f"), b"onetwothree");
}

fn append_after_growth(t: &Tester<'_>) {
    t.write_file("f", b"one");
    let appends = t.open("f", Flags::WRITE | Flags::APPEND).must();
    let writes = t.open("f", Flags::WRITE).must();
    t.fs.append(appends, b"A").must();
    t.fs.write_at(writes, 4, b"middle").must();
    t.fs.append(appends, b"B").must();
    t.close(appends);
    t.close(writes);
    assert_eq!(t.read_file("f"), b"oneAmiddleB");
}

fn large(t: &Tester<'_>) {
    let data = pattern(5_000_001, 9);
    t.write_file("f", &data);
    assert!(t.read_file("f") == data);
}

fn pieces(t: &Tester<'_>) {
    let fd = t.create("f");
    let mut expected = Vec::new();
    for i in 0..500_usize {
        let piece = pattern(i % 37 + 1, i as u8);
        t.fs.write_at(fd, expected.len() as u64, &piece).must();
        expected.extend_from_slice(&piece);
    }
    t.close(fd);
    assert!(t.read_file("f") == expected);
}

fn shared(t: &Tester<'_>) {
    let writer = t.create("f");
    let reader = t.open("f", Flags::READ).must();
    t.fs.write_at(writer, 0, b"first").must();
    assert_eq!(t.fs.read_at(reader, 0, 10).must(), b"first");
    t.fs.write_at(writer, 5, b"second").must();
    assert_eq!(t.fs.fstat(reader).must().size, 11);
    assert_eq!(t.fs.read_at(reader, 0, 20).must(), b"firstsecond");
    t.close(writer);
    t.close(reader);
}

fn open_trunc(t: &Tester<'_>) {
    t.write_file("f", &pattern(10_000, 1));
    let fd = t.open("f", Flags::BOTH | Flags::TRUNC).must();
    let attr = t.fs.fstat(fd).must();
    assert_eq!((attr.size, attr.blocks), (0, 0));
    t.close(fd);
    t.write_file("g", b"x");
    let fd = t.open("g", Flags::WRITE | Flags::CREATE | Flags::TRUNC).must();
    t.close(fd);
    assert_eq!(t.read_file("g"), b"");
}

fn shorten(t: &Tester<'_>) {
    let data = pattern(10_000, 2);
    t.write_file("f", &data);
    for size in [9_999, 8192, 4097, 4096, 4095, 1, 0] {
        t.truncate("f", size).must();
        assert!(t.read_file("f") == data[..size as usize], "{size}");
    }
}

fn extend(t: &Tester<'_>) {
    t.write_file("f", b"abc");
    t.truncate("f", 10_000).must();
    let data = t.read_file("f");
    assert_eq!(data.len(), 10_000);
    assert!(data.starts_with(b"abc") && data[3..].iter().all(|&byte| byte == 0));
}

fn gone(t: &Tester<'_>) {
    t.write_file("f", &pattern(9000, 3));
    t.truncate("f", 100).must();
    t.truncate("f", 9000).must();
    let data = t.read_file("f");
    assert!(data[..100] == pattern(100, 3)[..] && data[100..].iter().all(|&byte| byte == 0));
}

fn ftruncate(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, b"0123456789").must();
    t.fs.ftruncate(fd, 4).must();
    assert_eq!(t.fs.fstat(fd).must().size, 4);
    t.fs.ftruncate(fd, 6).must();
    assert_eq!(t.fs.read_at(fd, 0, 10).must(), b"0123\0\0");
    t.close(fd);
}

fn ftruncate_readonly(t: &Tester<'_>) {
    t.write_file("f", b"abc");
    let fd = t.open("f", Flags::READ).must();
    t.fs.ftruncate(fd, 0).must_fail(Errno::EINVAL);
    t.close(fd);
    assert_eq!(t.read_file("f"), b"abc");
}

fn modes(t: &Tester<'_>) {
    t.write_file("f", b"abc");
    let fd = t.open("f", Flags::READ).must();
    t.fs.write_at(fd, 0, b"x").must_fail(Errno::EBADF);
    t.close(fd);
    let fd = t.open("f", Flags::WRITE).must();
    t.fs.read_at(fd, 0, 1).must_fail(Errno::EBADF);
    t.close(fd);
    t.fs.close(fd).must_fail(Errno::EBADF);
}

fn sync(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, b"durable").must();
    t.fs.fsync(fd, true).must();
    t.fs.fsync(fd, false).must();
    t.close(fd);
    assert_eq!(t.read_file("f"), b"durable");
}

fn blocks(t: &Tester<'_>) {
    t.write_file("f", &pattern(100_000, 4));
    let fd = t.open("f", Flags::READ).must();
    // Delayed allocation counts blocks late on some file systems.
    let _ = t.fs.fsync(fd, false);
    let attr = t.fs.fstat(fd).must();
    assert_eq!(attr.size, 100_000);
    assert!(attr.blocks * 512 >= 100_000, "{} blocks hold 100000 bytes", attr.blocks);
    assert!(attr.blksize.is_power_of_two() && attr.blksize >= 512, "blksize {}", attr.blksize);
    t.close(fd);
}

fn interleaved(t: &Tester<'_>) {
    let fd = t.create("f");
    for round in 0..50_u64 {
        let data = pattern(1000, round as u8);
        t.fs.write_at(fd, round * 700, &data).must();
        assert!(t.fs.read_at(fd, round * 700, 1000).must() == data);
    }
    t.close(fd);
}

fn unwritable(t: &Tester<'_>) {
    let fd = t.fs.open(&t.path("f"), Flags::NEW, 0o444).must();
    t.fs.write_at(fd, 0, b"written").must();
    t.close(fd);
    assert_eq!(t.read_file("f"), b"written");
}
