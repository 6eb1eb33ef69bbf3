// SPDX-License-Identifier: MIT OR Apache-2.0
//! copy_file_range(2).

use crate::report::Case;
use crate::subject::{Fd, Flags};
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, OpCode};

const COPY: &[OpCode] = &[OpCode::CopyRange];

pub(super) const CASES: &[Case] = &[
    Case::new("copies/a_whole_file", COPY, whole),
    Case::new("copies/any_offsets", COPY, offsets),
    Case::new("copies/stop_at_the_end_of_the_source", COPY, end),
    Case::new("copies/within_one_file", COPY, within),
    Case::new("copies/refuse_overlapping_ranges", COPY, overlap),
    Case::new("copies/holes_read_as_zeroes", COPY, holes),
    Case::new("copies/are_independent_of_their_source", COPY, independent),
    Case::new("copies/need_the_right_access", COPY, access),
    Case::new("copies/extend_the_target", COPY, extends),
];

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 | 1).collect()
}

fn files(t: &Tester<'_>, len: usize) -> (Fd, Fd, Vec<u8>) {
    let content = data(len);
    let from = t.create("from");
    t.fs.write_at(from, 0, &content).must();
    (from, t.create("to"), content)
}

/// Copies until `len` bytes are copied or the source ends; answers how many.
#[track_caller]
fn copy(t: &Tester<'_>, from: Fd, offset: u64, to: Fd, to_offset: u64, len: u64) -> u64 {
    let mut done = 0;
    while done < len {
        match t.fs.copy_range(from, offset + done, to, to_offset + done, len - done).must() {
            0 => break,
            count => done += count,
        }
    }
    done
}

fn whole(t: &Tester<'_>) {
    let (from, to, content) = files(t, 300_000);
    assert_eq!(copy(t, from, 0, to, 0, 300_000), 300_000);
    t.close(from);
    t.close(to);
    assert!(t.read_file("to") == content);
}

fn offsets(t: &Tester<'_>) {
    let (from, to, content) = files(t, 100_000);
    let mut expected = data(60_000);
    t.fs.write_at(to, 0, &expected).must();
    for (offset, to_offset, len) in [(0, 4096, 8192), (5, 5, 20_000), (1, 2, 9_000), (4095, 30_000, 12_345)] {
        assert_eq!(copy(t, from, offset as u64, to, to_offset as u64, len as u64), len as u64);
        expected[to_offset..to_offset + len].copy_from_slice(&content[offset..offset + len]);
        assert!(t.fs.read_at(to, 0, 60_000).must() == expected, "{len} bytes from {offset} to {to_offset}");
    }
    t.close(from);
    t.close(to);
}

fn end(t: &Tester<'_>) {
    let (from, to, content) = files(t, 10_000);
    assert_eq!(copy(t, from, 9_000, to, 0, 50_000), 1_000);
    assert_eq!(t.fs.copy_range(from, 10_000, to, 0, 10).must(), 0);
    t.close(from);
    t.close(to);
    assert!(t.read_file("to") == content[9_000..]);
}

fn within(t: &Tester<'_>) {
    let (from, to, content) = files(t, 20_000);
    assert_eq!(copy(t, from, 0, from, 20_000, 20_000), 20_000);
    t.close(from);
    t.close(to);
    assert!(t.read_file("from") == [&content[..], &content[..]].concat());
}

fn overlap(t: &Tester<'_>) {
    let (from, to, content) = files(t, 20_000);
    t.fs.copy_range(from, 0, from, 100, 1000).must_fail(Errno::EINVAL);
    t.fs.copy_range(from, 100, from, 0, 1000).must_fail(Errno::EINVAL);
    t.close(from);
    t.close(to);
    assert!(t.read_file("from") == content);
}

fn holes(t: &Tester<'_>) {
    let (from, to) = (t.create("from"), t.create("to"));
    t.fs.write_at(from, 1 << 20, b"end").must();
    t.fs.write_at(to, 0, &[7; 100_000]).must();
    let len = (1 << 20) + 3;
    assert_eq!(copy(t, from, 0, to, 0, len), len);
    t.close(from);
    t.close(to);
    let found = t.read_file("to");
    assert!(found[..1 << 20].iter().all(|&byte| byte == 0) && found.ends_with(b"end"));
}

fn independent(t: &Tester<'_>) {
    let (from, to, content) = files(t, 100_000);
    copy(t, from, 0, to, 0, 100_000);
    t.fs.write_at(from, 0, &[0xee; 50_000]).must();
    t.fs.ftruncate(from, 10).must();
    assert!(t.fs.read_at(to, 0, 100_000).must() == content, "the copy changed with its source");
    t.fs.write_at(to, 3, b"!").must();
    assert_eq!(t.fs.read_at(from, 0, 20).must(), [0xee; 10]);
    t.close(from);
    t.close(to);
}

fn access(t: &Tester<'_>) {
    t.write_file("a", b"aaa");
    t.write_file("b", b"bbb");
    let (a, b) = (t.open("a", Flags::READ).must(), t.open("b", Flags::READ).must());
    t.fs.copy_range(a, 0, b, 0, 3).must_fail(Errno::EBADF);
    t.close(b);
    let b = t.open("b", Flags::WRITE | Flags::APPEND).must();
    t.fs.copy_range(a, 0, b, 0, 3).must_fail(Errno::EBADF);
    t.close(a);
    t.close(b);
    assert_eq!(t.read_file("b"), b"bbb");
}

fn extends(t: &Tester<'_>) {
    let (from, to, content) = files(t, 5_000);
    copy(t, from, 0, to, 10_000, 5_000);
    t.close(from);
    t.close(to);
    let found = t.read_file("to");
    assert_eq!(found.len(), 15_000);
    assert!(found[..10_000].iter().all(|&byte| byte == 0) && found[10_000..] == content[..]);
}
