// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making and removing directories.

use crate::report::Case;
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, FileKind, OpCode};

pub(super) const CASES: &[Case] = &[
    Case::new("directories/mkdir_gives_kind_and_mode", &[], mkdir),
    Case::new("directories/sticky_bit_is_kept", &[], sticky),
    Case::new("directories/rmdir_removes_an_empty_one", &[OpCode::RmDir], rmdir),
    Case::new("directories/rmdir_refuses_a_full_one", &[OpCode::RmDir], rmdir_full),
    Case::new("directories/rmdir_refuses_a_file", &[OpCode::RmDir], rmdir_file),
    Case::new("directories/unlink_refuses_a_directory", &[OpCode::Unlink], unlink_dir),
    Case::new("directories/links_count_subdirectories", &[OpCode::RmDir], link_count),
    Case::new("directories/files_do_not_change_its_links", &[OpCode::Unlink], files_do_not_count),
    Case::new("directories/cannot_be_opened_for_writing", &[], no_writing),
    Case::new("directories/cannot_be_truncated", &[OpCode::SetAttr], no_truncation),
    Case::new("directories/cannot_be_read_as_a_file", &[], no_reading),
    Case::new("directories/dot_dot_leads_back", &[], dot_dot),
    Case::new("directories/a_removed_one_takes_no_names", &[OpCode::RmDir], removed)
        .at(crate::report::Place::Direct),
    Case::new("directories/can_be_synced", &[OpCode::FSyncDir], sync),
    Case::new("directories/many_levels", &[OpCode::RmDir], many_levels),
    Case::new("directories/same_names_in_different_ones", &[], same_names),
];

fn mkdir(t: &Tester<'_>) {
    t.mkdir("d", 0o751).must();
    let attr = t.stat("d").must();
    assert_eq!(attr.kind(), FileKind::Directory);
    assert_eq!(attr.permissions(), 0o751);
    assert!(t.names("d").is_empty());
}

fn sticky(t: &Tester<'_>) {
    t.mkdir("d", 0o1777).must();
    assert_eq!(t.stat("d").must().permissions(), 0o1777);
}

fn rmdir(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.rmdir("d").must();
    t.stat("d").must_fail(Errno::ENOENT);
    assert!(t.names("").is_empty());
}

fn rmdir_full(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"");
    t.rmdir("d").must_fail(Errno::ENOTEMPTY);
    assert!(t.exists("d/f"));
}

fn rmdir_file(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.rmdir("f").must_fail(Errno::ENOTDIR);
}

fn unlink_dir(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.unlink("d").must_fail_with_one_of(&[Errno::EISDIR, Errno::EPERM]);
    assert!(t.exists("d"));
}

fn link_count(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    assert_eq!(t.stat("d").must().nlink, 2);
    t.mkdir("d/a", 0o755).must();
    t.mkdir("d/b", 0o755).must();
    assert_eq!(t.stat("d").must().nlink, 4);
    t.rmdir("d/a").must();
    assert_eq!(t.stat("d").must().nlink, 3);
}

fn files_do_not_count(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"");
    assert_eq!(t.stat("d").must().nlink, 2);
    t.unlink("d/f").must();
    assert_eq!(t.stat("d").must().nlink, 2);
}

fn no_writing(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.open("d", Flags::BOTH).must_fail(Errno::EISDIR);
    t.open("d", Flags::WRITE).must_fail(Errno::EISDIR);
}

fn no_truncation(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.truncate("d", 0).must_fail(Errno::EISDIR);
}

fn no_reading(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    let fd = t.open("d", Flags::READ).must();
    t.fs.read_at(fd, 0, 10).must_fail(Errno::EISDIR);
    t.close(fd);
}

fn dot_dot(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.mkdir("d/e", 0o755).must();
    t.write_file("f", b"up");
    assert_eq!(t.read_file("d/e/../../f"), b"up");
}

fn removed(t: &Tester<'_>) {
    use outrigger_core::Name;
    use outrigger_core::ops::{Create, Forget, MkDir};
    t.mkdir("d", 0o755).must();
    let dir = t.direct().node_of(&t.path("d")).must();
    t.rmdir("d").must();
    let name = Name::try_from("x").expect("a name");
    let gone = [Errno::ENOENT, Errno::ESTALE];
    t.direct()
        .ask(MkDir { dir, name: name.clone(), mode: 0o755, umask: 0, initial: None })
        .must_fail_with_one_of(&gone);
    let create = Create { dir, name, mode: 0o644, umask: 0, flags: Default::default(), initial: None };
    t.direct().ask(create).must_fail_with_one_of(&gone);
    t.direct().ask(Forget { node: dir, count: 1 }).must();
}

fn sync(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"");
    let fd = t.open("d", Flags::READ).must();
    t.fs.fsync(fd, false).must();
    t.close(fd);
}

fn many_levels(t: &Tester<'_>) {
    let mut path = String::from("d");
    for _ in 0..300 {
        t.mkdir(&path, 0o755).must();
        path.push_str("/d");
    }
    t.write_file(&path, b"bottom");
    assert_eq!(t.read_file(&path), b"bottom");
    t.rmdir("d/d/d").must_fail(Errno::ENOTEMPTY);
}

fn same_names(t: &Tester<'_>) {
    for dir in ["a", "b"] {
        t.mkdir(dir, 0o755).must();
        t.write_file(format!("{dir}/f"), dir.as_bytes());
    }
    assert_eq!(t.read_file("a/f"), b"a");
    assert_eq!(t.read_file("b/f"), b"b");
    assert_ne!(t.stat("a/f").must().ino, t.stat("b/f").must().ino);
}
