// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hard and symbolic links.

use crate::report::Case;
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, FileKind, OpCode};

const HARD: &[OpCode] = &[OpCode::Link, OpCode::Unlink];
const SYMBOLIC: &[OpCode] = &[OpCode::SymLink, OpCode::ReadLink];

pub(super) const CASES: &[Case] = &[
    Case::new("links/two_names_one_file", HARD, two_names),
    Case::new("links/counts_go_up_and_down", HARD, counts),
    Case::new("links/the_last_name_standing_keeps_the_content", HARD, last_name),
    Case::new("links/a_directory_has_one_name", HARD, no_directories),
    Case::new(
        "links/of_a_symlink_is_of_the_link_itself",
        &[OpCode::Link, OpCode::SymLink, OpCode::ReadLink],
        of_symlink,
    ),
    Case::new("links/across_directories", HARD, across),
    Case::new("links/changes_show_under_every_name", &[OpCode::Link, OpCode::SetAttr], shared_attributes),
    Case::new("links/symlink_has_target_and_size", SYMBOLIC, symlink),
    Case::new("links/symlink_target_is_kept_verbatim", SYMBOLIC, verbatim),
    Case::new("links/symlink_is_followed_by_open", SYMBOLIC, followed),
    Case::new("links/symlink_is_followed_midway", SYMBOLIC, midway),
    Case::new("links/dangling_symlink_leads_nowhere", SYMBOLIC, dangling),
    Case::new("links/creating_through_a_symlink_with_excl_fails", SYMBOLIC, excl),
    Case::new("links/a_loop_is_eloop", SYMBOLIC, looping),
    Case::new("links/nofollow_refuses_a_symlink", SYMBOLIC, nofollow),
    Case::new("links/readlink_of_a_file_is_einval", SYMBOLIC, not_a_link),
    Case::new("links/unlink_removes_the_symlink_only", &[OpCode::SymLink, OpCode::Unlink], unlink_symlink),
    Case::new("links/target_of_4095_bytes", SYMBOLIC, long_target),
];

fn two_names(t: &Tester<'_>) {
    t.write_file("a", b"one");
    t.link("a", "b").must();
    let (a, b) = (t.stat("a").must(), t.stat("b").must());
    assert_eq!(a.ino, b.ino);
    let fd = t.open("b", Flags::BOTH).must();
    t.fs.write_at(fd, 0, b"two").must();
    t.close(fd);
    assert_eq!(t.read_file("a"), b"two");
}

fn counts(t: &Tester<'_>) {
    t.write_file("a", b"");
    assert_eq!(t.stat("a").must().nlink, 1);
    t.link("a", "b").must();
    t.link("b", "c").must();
    assert_eq!(t.stat("a").must().nlink, 3);
    t.unlink("b").must();
    assert_eq!(t.stat("c").must().nlink, 2);
}

fn last_name(t: &Tester<'_>) {
    t.write_file("a", b"kept");
    t.link("a", "b").must();
    t.unlink("a").must();
    assert_eq!(t.read_file("b"), b"kept");
    assert_eq!(t.stat("b").must().nlink, 1);
}

fn no_directories(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.link("d", "e").must_fail(Errno::EPERM);
}

fn of_symlink(t: &Tester<'_>) {
    t.symlink("nowhere", "l").must();
    t.link("l", "m").must();
    assert_eq!(t.readlink("m").must(), b"nowhere");
    assert_eq!(t.stat("l").must().nlink, 2);
}

fn across(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.mkdir("e", 0o755).must();
    t.write_file("d/f", b"x");
    t.link("d/f", "e/g").must();
    t.unlink("d/f").must();
    assert_eq!(t.read_file("e/g"), b"x");
}

fn shared_attributes(t: &Tester<'_>) {
    t.write_file("a", b"");
    t.link("a", "b").must();
    t.stat("b").must();
    t.chmod("a", 0o600).must();
    t.truncate("a", 77).must();
    let b = t.stat("b").must();
    assert_eq!((b.permissions(), b.size), (0o600, 77));
}

fn symlink(t: &Tester<'_>) {
    t.symlink("some/target", "l").must();
    let attr = t.stat("l").must();
    assert_eq!(attr.kind(), FileKind::Symlink);
    assert_eq!(attr.size, 11);
    assert_eq!(t.readlink("l").must(), b"some/target");
}

fn verbatim(t: &Tester<'_>) {
    for (name, target) in
        [("a", "/"), ("b", "../../.."), ("c", "x//y/./z/"), ("d", " "), ("e", "\u{fffd}*\n")]
    {
        t.symlink(target, name).must();
        assert_eq!(t.readlink(name).must(), target.as_bytes());
    }
}

fn followed(t: &Tester<'_>) {
    t.write_file("f", b"content");
    t.symlink("f", "l").must();
    t.symlink("l", "m").must();
    assert_eq!(t.read_file("m"), b"content");
}

fn midway(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"content");
    t.symlink("d", "l").must();
    assert_eq!(t.read_file("l/f"), b"content");
    t.write_file("l/g", b"new");
    assert_eq!(t.read_file("d/g"), b"new");
}

fn dangling(t: &Tester<'_>) {
    t.symlink("nowhere", "l").must();
    t.open("l", Flags::READ).must_fail(Errno::ENOENT);
    assert!(t.exists("l"));
}

fn excl(t: &Tester<'_>) {
    t.symlink("nowhere", "l").must();
    t.open("l", Flags::NEW).must_fail(Errno::EEXIST);
    assert!(!t.exists("nowhere"));
}

fn looping(t: &Tester<'_>) {
    t.symlink("b", "a").must();
    t.symlink("a", "b").must();
    t.open("a", Flags::READ).must_fail(Errno::ELOOP);
    t.stat("a/x").must_fail(Errno::ELOOP);
}

fn nofollow(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.symlink("f", "l").must();
    t.open("l", Flags::READ | Flags::NOFOLLOW).must_fail(Errno::ELOOP);
}

fn not_a_link(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.readlink("f").must_fail(Errno::EINVAL);
    t.mkdir("d", 0o755).must();
    t.readlink("d").must_fail(Errno::EINVAL);
}

fn unlink_symlink(t: &Tester<'_>) {
    t.write_file("f", b"kept");
    t.symlink("f", "l").must();
    t.unlink("l").must();
    assert_eq!(t.read_file("f"), b"kept");
}

fn long_target(t: &Tester<'_>) {
    let target = "t/".repeat(2047) + "t";
    assert_eq!(target.len(), 4095);
    t.symlink(&target, "l").must();
    assert_eq!(t.readlink("l").must(), target.as_bytes());
    assert_eq!(t.stat("l").must().size, 4095);
}
