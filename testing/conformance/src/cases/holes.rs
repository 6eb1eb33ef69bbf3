// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sparse files. Where exactly a hole begins is up to the file system; what it must not do is lose data.

use crate::report::Case;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::Whence;
use outrigger_core::{Errno, OpCode};

const SEEK: &[OpCode] = &[OpCode::Seek, OpCode::SetAttr];
const MIB: u64 = 1 << 20;

pub(super) const CASES: &[Case] = &[
    Case::new("holes/read_as_zeroes", &[], zeroes),
    Case::new("holes/take_no_space", &[OpCode::SetAttr], no_space),
    Case::new("holes/files_larger_than_any_memory", &[OpCode::SetAttr], huge),
    Case::new("holes/seek_finds_data_and_hole", SEEK, seek),
    Case::new("holes/an_empty_file_has_neither", SEEK, empty),
    Case::new("holes/a_full_file_has_one_at_its_end", SEEK, full),
    Case::new("holes/a_file_that_is_a_hole", SEEK, only_hole),
    Case::new("holes/seeking_beyond_the_end_is_enxio", SEEK, beyond),
    Case::new("holes/walking_them_finds_all_data", SEEK, walk),
];

fn zeroes(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 100_000, b"end").must();
    let data = t.fs.read_at(fd, 0, 200_000).must();
    assert_eq!(data.len(), 100_003);
    assert!(data[..100_000].iter().all(|&byte| byte == 0));
    assert_eq!(&data[100_000..], b"end");
    t.close(fd);
}

fn no_space(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.truncate("f", 100 * MIB).must();
    let attr = t.stat("f").must();
    assert_eq!(attr.size, 100 * MIB);
    assert!(attr.blocks * 512 < MIB, "{} blocks for one byte and a hole", attr.blocks);
}

fn huge(t: &Tester<'_>) {
    let size = 1_u64 << 42;
    let fd = t.create("f");
    t.fs.write_at(fd, size - 3, b"end").must();
    assert_eq!(t.fs.fstat(fd).must().size, size);
    assert_eq!(t.fs.read_at(fd, size - 5, 10).must(), b"\0\0end");
    assert!(t.fs.fstat(fd).must().blocks * 512 < MIB);
    t.close(fd);
}

fn seek(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, &[1; 4096]).must();
    t.fs.write_at(fd, 4 * MIB, &[1; 4096]).must();
    t.fs.ftruncate(fd, 8 * MIB).must();
    let at = |whence, offset| t.fs.seek(fd, whence, offset).must();
    assert_eq!(at(Whence::Data, 0), 0);
    let hole = at(Whence::Hole, 0);
    assert!((4096..=MIB).contains(&hole), "the first hole at {hole}");
    let data = at(Whence::Data, 2 * MIB);
    assert!((3 * MIB..=4 * MIB).contains(&data), "the second data at {data}");
    let hole = at(Whence::Hole, 4 * MIB);
    assert!((4 * MIB + 4096..=5 * MIB).contains(&hole), "the last hole at {hole}");
    assert_eq!(at(Whence::Hole, 6 * MIB), 6 * MIB, "within a hole, the hole is here");
    t.fs.seek(fd, Whence::Data, 6 * MIB).must_fail(Errno::ENXIO);
    t.close(fd);
}

fn empty(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.seek(fd, Whence::Data, 0).must_fail(Errno::ENXIO);
    t.fs.seek(fd, Whence::Hole, 0).must_fail(Errno::ENXIO);
    t.close(fd);
}

fn full(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, &[1; 10_000]).must();
    assert_eq!(t.fs.seek(fd, Whence::Data, 9_999).must(), 9_999);
    assert_eq!(t.fs.seek(fd, Whence::Hole, 0).must(), 10_000);
    assert_eq!(t.fs.seek(fd, Whence::Hole, 5_000).must(), 10_000);
    t.close(fd);
}

fn only_hole(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.ftruncate(fd, MIB).must();
    t.fs.seek(fd, Whence::Data, 0).must_fail(Errno::ENXIO);
    assert_eq!(t.fs.seek(fd, Whence::Hole, 5).must(), 5);
    t.close(fd);
}

fn beyond(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, b"abc").must();
    for whence in [Whence::Data, Whence::Hole] {
        t.fs.seek(fd, whence, 3).must_fail(Errno::ENXIO);
        t.fs.seek(fd, whence, 1000).must_fail(Errno::ENXIO);
    }
    t.close(fd);
}

fn walk(t: &Tester<'_>) {
    let fd = t.create("f");
    let places: Vec<u64> = (0..20).map(|i| i * i * 40_000).collect();
    for &place in &places {
        t.fs.write_at(fd, place, b"data").must();
    }
    let size = t.fs.fstat(fd).must().size;
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(data) = t.fs.seek(fd, Whence::Data, at) {
        at = t.fs.seek(fd, Whence::Hole, data).must();
        assert!(data < at && at <= size, "data from {data} to {at}");
        ranges.push(data..at);
    }
    for place in places {
        assert!(ranges.iter().any(|range| range.contains(&place)), "nothing found at {place}");
    }
    t.close(fd);
}
