// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits and the errors at them.

use crate::report::Case;
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, OpCode};

pub(super) const CASES: &[Case] = &[
    Case::new("limits/statfs_is_consistent", &[OpCode::StatFs], statfs),
    Case::new("limits/a_path_of_1000_directories", &[OpCode::Rename], deep),
    Case::new("limits/the_largest_offset", &[], largest),
    Case::new("limits/truncating_beyond_the_largest_size", &[OpCode::SetAttr], beyond),
    Case::new("limits/500_links_to_one_file", &[OpCode::Link, OpCode::Unlink], links),
    Case::new("limits/300_open_files", &[], open_files),
];

fn statfs(t: &Tester<'_>) {
    let stat = t.statfs("").must();
    assert!(stat.bfree <= stat.blocks && stat.bavail <= stat.bfree, "{stat:?}");
    assert!(stat.ffree <= stat.files, "{stat:?}");
    assert!(stat.frsize.is_power_of_two() && stat.bsize > 0, "{stat:?}");
    assert_eq!(stat.namelen, 255);
}

fn deep(t: &Tester<'_>) {
    let mut path = String::new();
    for _ in 0..1000 {
        path.push('d');
        t.mkdir(&path, 0o755).must();
        path.push('/');
    }
    path.push_str("file");
    t.write_file(&path, b"deep");
    assert_eq!(t.read_file(&path), b"deep");
    t.rename("d", "e").must();
    path.replace_range(..1, "e");
    assert_eq!(t.read_file(&path), b"deep");
}

fn largest(t: &Tester<'_>) {
    let fd = t.create("f");
    let largest = i64::MAX as u64;
    t.fs.write_at(fd, largest, b"x").must_fail_with_one_of(&[Errno::EFBIG, Errno::EINVAL]);
    assert_eq!(t.fs.fstat(fd).must().size, 0);
    t.close(fd);
}

fn beyond(t: &Tester<'_>) {
    t.write_file("f", b"x");
    match t.truncate("f", i64::MAX as u64) {
        Ok(()) => assert_eq!(t.stat("f").must().size, i64::MAX as u64),
        Err(errno) => {
            assert!([Errno::EFBIG, Errno::EINVAL].contains(&errno), "{errno:?}");
            assert_eq!(t.stat("f").must().size, 1);
        }
    }
}

fn links(t: &Tester<'_>) {
    t.write_file("f", b"x");
    for i in 1..500 {
        t.link("f", format!("l{i}")).must();
    }
    assert_eq!(t.stat("f").must().nlink, 500);
    for i in 1..500 {
        t.unlink(format!("l{i}")).must();
    }
    assert_eq!(t.stat("f").must().nlink, 1);
}

fn open_files(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let fds: Vec<_> = (0..300).map(|_| t.open("f", Flags::READ).must()).collect();
    for &fd in &fds {
        assert_eq!(t.fs.read_at(fd, 0, 2).must(), b"x");
    }
    fds.into_iter().for_each(|fd| t.close(fd));
}
