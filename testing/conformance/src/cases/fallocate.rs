// SPDX-License-Identifier: MIT OR Apache-2.0
//! fallocate(2).

use crate::report::{Case, Place};
use crate::subject::{Fd, Flags, Result};
use crate::tester::{Expect, Tester};
use outrigger_core::ops::FallocateMode as Mode;
use outrigger_core::{Errno, OpCode};

const FALLOCATE: &[OpCode] = &[OpCode::Fallocate];
/// The unit of ranges that are collapsed or inserted: a multiple of every usual block size.
const UNIT: usize = 64 << 10;

pub(super) const CASES: &[Case] = &[
    Case::new("fallocate/reserves_and_extends", FALLOCATE, reserve),
    Case::new("fallocate/keeps_the_size_when_asked", FALLOCATE, keep_size),
    Case::new("fallocate/keeps_the_content", FALLOCATE, keeps_content),
    Case::new("fallocate/punches_holes", FALLOCATE, punch),
    Case::new("fallocate/punches_parts_of_blocks", FALLOCATE, punch_part),
    Case::new("fallocate/a_hole_beyond_the_end_changes_nothing", FALLOCATE, punch_beyond),
    Case::new("fallocate/punching_frees_space", FALLOCATE, punch_frees),
    Case::new("fallocate/zeroes_a_range", FALLOCATE, zero),
    Case::new("fallocate/zeroing_extends_unless_asked", FALLOCATE, zero_extends),
    Case::new("fallocate/collapses_a_range", FALLOCATE, collapse).at(Place::NotFuse),
    Case::new("fallocate/collapse_refuses_odd_ranges", FALLOCATE, collapse_bad).at(Place::NotFuse),
    Case::new("fallocate/inserts_a_range", FALLOCATE, insert).at(Place::NotFuse),
    Case::new("fallocate/insert_refuses_odd_ranges", FALLOCATE, insert_bad).at(Place::NotFuse),
    Case::new("fallocate/an_empty_range_is_einval", FALLOCATE, empty_range),
    Case::new("fallocate/needs_an_open_file_for_writing", FALLOCATE, needs_writing),
    Case::new("fallocate/punch_needs_keep_size", FALLOCATE, punch_alone),
];

fn filled(t: &Tester<'_>, len: usize) -> (Fd, Vec<u8>) {
    let data: Vec<u8> = (0..len).map(|i| (i / 1000) as u8 | 1).collect();
    let fd = t.create("f");
    assert_eq!(t.fs.write_at(fd, 0, &data).must(), len);
    (fd, data)
}

/// The result of a mode that file systems may lack.
#[track_caller]
fn supported(t: &Tester<'_>, result: Result<()>) -> Result<()> {
    if result == Err(Errno::EOPNOTSUPP) {
        t.skip("the file system has no such mode");
    }
    result
}

#[track_caller]
fn check(t: &Tester<'_>, fd: Fd, expected: &[u8]) {
    assert_eq!(t.fs.fstat(fd).must().size, expected.len() as u64);
    assert!(t.fs.read_at(fd, 0, expected.len() + 1).must() == expected, "the content");
    t.close(fd);
}

fn reserve(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.fallocate(fd, Mode::empty(), 1000, 100_000).must();
    let attr = t.fs.fstat(fd).must();
    assert_eq!(attr.size, 101_000);
    assert!(attr.blocks * 512 >= 100_000, "{} blocks", attr.blocks);
    check(t, fd, &[0; 101_000]);
}

fn keep_size(t: &Tester<'_>) {
    let fd = t.create("f");
    t.fs.write_at(fd, 0, b"abc").must();
    t.fs.fallocate(fd, Mode::KEEP_SIZE, 0, 100_000).must();
    let attr = t.fs.fstat(fd).must();
    assert_eq!(attr.size, 3);
    assert!(attr.blocks * 512 >= 100_000, "{} blocks", attr.blocks);
    check(t, fd, b"abc");
}

fn keeps_content(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 50_000);
    t.fs.fallocate(fd, Mode::empty(), 10_000, 60_000).must();
    data.resize(70_000, 0);
    check(t, fd, &data);
}

fn punch(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 300_000);
    supported(t, t.fs.fallocate(fd, Mode::PUNCH_HOLE | Mode::KEEP_SIZE, 65_536, 131_072)).must();
    data[65_536..65_536 + 131_072].fill(0);
    check(t, fd, &data);
}

fn punch_part(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 30_000);
    for (offset, len) in [(10, 20), (4000, 200), (8000, 9000), (29_990, 10)] {
        supported(t, t.fs.fallocate(fd, Mode::PUNCH_HOLE | Mode::KEEP_SIZE, offset as u64, len as u64))
            .must();
        data[offset..offset + len].fill(0);
    }
    check(t, fd, &data);
}

fn punch_beyond(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 10_000);
    supported(t, t.fs.fallocate(fd, Mode::PUNCH_HOLE | Mode::KEEP_SIZE, 20_000, 10_000)).must();
    supported(t, t.fs.fallocate(fd, Mode::PUNCH_HOLE | Mode::KEEP_SIZE, 9_000, 10_000)).must();
    data[9_000..].fill(0);
    check(t, fd, &data);
}

fn punch_frees(t: &Tester<'_>) {
    let (fd, _) = filled(t, 1 << 20);
    t.fs.fsync(fd, false).must();
    let before = t.fs.fstat(fd).must().blocks;
    supported(t, t.fs.fallocate(fd, Mode::PUNCH_HOLE | Mode::KEEP_SIZE, 0, 1 << 19)).must();
    let after = t.fs.fstat(fd).must().blocks;
    assert!(after * 512 + (1 << 18) < before * 512, "{before} blocks before, {after} after");
    t.close(fd);
}

fn zero(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 100_000);
    supported(t, t.fs.fallocate(fd, Mode::ZERO_RANGE, 5_000, 70_000)).must();
    data[5_000..75_000].fill(0);
    check(t, fd, &data);
}

fn zero_extends(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, 10_000);
    supported(t, t.fs.fallocate(fd, Mode::ZERO_RANGE | Mode::KEEP_SIZE, 9_000, 50_000)).must();
    assert_eq!(t.fs.fstat(fd).must().size, 10_000);
    supported(t, t.fs.fallocate(fd, Mode::ZERO_RANGE, 9_500, 50_000)).must();
    data[9_000..].fill(0);
    data.resize(59_500, 0);
    check(t, fd, &data);
}

fn collapse(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, UNIT * 4 + 100);
    supported(t, t.fs.fallocate(fd, Mode::COLLAPSE_RANGE, UNIT as u64, UNIT as u64 * 2)).must();
    data.drain(UNIT..UNIT * 3);
    check(t, fd, &data);
}

fn collapse_bad(t: &Tester<'_>) {
    let (fd, data) = filled(t, UNIT * 2);
    supported(t, t.fs.fallocate(fd, Mode::COLLAPSE_RANGE, 1, UNIT as u64)).must_fail(Errno::EINVAL);
    let end = UNIT as u64;
    supported(t, t.fs.fallocate(fd, Mode::COLLAPSE_RANGE, end, end)).must_fail(Errno::EINVAL);
    check(t, fd, &data);
}

fn insert(t: &Tester<'_>) {
    let (fd, mut data) = filled(t, UNIT * 2 + 100);
    supported(t, t.fs.fallocate(fd, Mode::INSERT_RANGE, UNIT as u64, UNIT as u64)).must();
    data.splice(UNIT..UNIT, vec![0; UNIT]);
    check(t, fd, &data);
}

fn insert_bad(t: &Tester<'_>) {
    let (fd, data) = filled(t, UNIT * 2);
    supported(t, t.fs.fallocate(fd, Mode::INSERT_RANGE, 1, UNIT as u64)).must_fail(Errno::EINVAL);
    let end = UNIT as u64 * 2;
    supported(t, t.fs.fallocate(fd, Mode::INSERT_RANGE, end, UNIT as u64)).must_fail(Errno::EINVAL);
    check(t, fd, &data);
}

fn empty_range(t: &Tester<'_>) {
    let (fd, data) = filled(t, 10);
    t.fs.fallocate(fd, Mode::empty(), 0, 0).must_fail(Errno::EINVAL);
    check(t, fd, &data);
}

fn needs_writing(t: &Tester<'_>) {
    t.write_file("f", b"abc");
    let fd = t.open("f", Flags::READ).must();
    t.fs.fallocate(fd, Mode::empty(), 0, 100).must_fail(Errno::EBADF);
    t.close(fd);
    assert_eq!(t.read_file("f"), b"abc");
}

fn punch_alone(t: &Tester<'_>) {
    let (fd, data) = filled(t, 10_000);
    t.fs.fallocate(fd, Mode::PUNCH_HOLE, 0, 4096).must_fail_with_one_of(&[Errno::EOPNOTSUPP, Errno::EINVAL]);
    check(t, fd, &data);
}
