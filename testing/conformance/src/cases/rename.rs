// SPDX-License-Identifier: MIT OR Apache-2.0
//! rename(2) and renameat2(2).

use crate::report::Case;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Errno, OpCode};

const RENAME: &[OpCode] = &[OpCode::Rename];

pub(super) const CASES: &[Case] = &[
    Case::new("rename/moves_within_a_directory", RENAME, within),
    Case::new("rename/moves_between_directories", RENAME, between),
    Case::new("rename/replaces_a_file", RENAME, replaces),
    Case::new("rename/replaces_an_empty_directory", RENAME, replaces_dir),
    Case::new("rename/refuses_a_full_directory", RENAME, full_dir),
    Case::new("rename/refuses_file_over_directory", RENAME, file_over_dir),
    Case::new("rename/refuses_directory_over_file", RENAME, dir_over_file),
    Case::new("rename/onto_itself_does_nothing", RENAME, itself),
    Case::new("rename/onto_another_link_does_nothing", &[OpCode::Rename, OpCode::Link], same_file),
    Case::new("rename/refuses_a_directory_into_itself", RENAME, cycle),
    Case::new("rename/refuses_to_replace_an_ancestor", RENAME, ancestor),
    Case::new("rename/moves_a_tree", RENAME, tree),
    Case::new("rename/dot_dot_follows_a_moved_directory", RENAME, dot_dot),
    Case::new("rename/link_counts_follow_a_moved_directory", RENAME, link_counts),
    Case::new("rename/link_counts_after_replacing_a_directory", RENAME, link_counts_replaced),
    Case::new("rename/replaced_file_loses_a_link", &[OpCode::Rename, OpCode::Link], replaced_link),
    Case::new("rename/open_file_follows", RENAME, open_file),
    Case::new("rename/noreplace_moves_to_a_free_name", RENAME, noreplace_free),
    Case::new("rename/noreplace_refuses_an_existing_name", RENAME, noreplace),
    Case::new("rename/exchange_swaps_files", RENAME, exchange),
    Case::new("rename/exchange_swaps_file_and_directory", RENAME, exchange_kinds),
    Case::new("rename/exchange_needs_both", RENAME, exchange_missing),
    Case::new("rename/exchange_refuses_a_cycle", RENAME, exchange_cycle),
    Case::new("rename/exchange_and_noreplace_exclude_each_other", RENAME, flags_exclude),
    Case::new("rename/symlinks_are_moved_not_followed", &[OpCode::Rename, OpCode::SymLink], symlink),
    Case::new("rename/back_and_forth_many_times", RENAME, many),
];

fn within(t: &Tester<'_>) {
    t.write_file("a", b"x");
    let ino = t.stat("a").must().ino;
    t.rename("a", "b").must();
    assert!(!t.exists("a"));
    assert_eq!(t.stat("b").must().ino, ino);
    assert_eq!(t.read_file("b"), b"x");
}

fn between(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.mkdir("e", 0o755).must();
    t.write_file("d/a", b"x");
    t.rename("d/a", "e/b").must();
    assert!(t.names("d").is_empty());
    assert_eq!(t.read_file("e/b"), b"x");
}

fn replaces(t: &Tester<'_>) {
    t.write_file("a", b"new");
    t.write_file("b", b"old");
    t.rename("a", "b").must();
    assert_eq!(t.read_file("b"), b"new");
    assert_eq!(t.names("").len(), 1);
}

fn replaces_dir(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.write_file("a/f", b"x");
    t.mkdir("b", 0o755).must();
    t.rename("a", "b").must();
    assert!(!t.exists("a"));
    assert_eq!(t.read_file("b/f"), b"x");
}

fn full_dir(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("b", 0o755).must();
    t.write_file("b/f", b"x");
    t.rename("a", "b").must_fail_with_one_of(&[Errno::ENOTEMPTY, Errno::EEXIST]);
    assert!(t.exists("a") && t.exists("b/f"));
}

fn file_over_dir(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.mkdir("d", 0o755).must();
    t.rename("f", "d").must_fail(Errno::EISDIR);
}

fn dir_over_file(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.mkdir("d", 0o755).must();
    t.rename("d", "f").must_fail(Errno::ENOTDIR);
}

fn itself(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.mkdir("d", 0o755).must();
    t.rename("f", "f").must();
    t.rename("d", "d").must();
    assert_eq!(t.read_file("f"), b"x");
    assert!(t.exists("d"));
}

fn same_file(t: &Tester<'_>) {
    t.write_file("a", b"x");
    t.link("a", "b").must();
    t.rename("a", "b").must();
    assert!(t.exists("a") && t.exists("b"));
    assert_eq!(t.stat("a").must().nlink, 2);
}

fn cycle(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("a/b", 0o755).must();
    t.mkdir("a/b/c", 0o755).must();
    t.rename("a", "a/x").must_fail(Errno::EINVAL);
    t.rename("a", "a/b/c/x").must_fail(Errno::EINVAL);
    t.rename("a", "a/b/c").must_fail(Errno::EINVAL);
    assert!(t.exists("a/b/c"));
}

fn ancestor(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("a/b", 0o755).must();
    t.mkdir("a/b/c", 0o755).must();
    t.rename("a/b/c", "a/b").must_fail_with_one_of(&[Errno::ENOTEMPTY, Errno::EEXIST]);
    t.rename("a/b/c", "a").must_fail_with_one_of(&[Errno::ENOTEMPTY, Errno::EEXIST]);
    assert!(t.exists("a/b/c"));
}

fn tree(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("a/b", 0o755).must();
    t.write_file("a/b/f", b"deep");
    t.mkdir("to", 0o755).must();
    t.rename("a", "to/here").must();
    assert_eq!(t.read_file("to/here/b/f"), b"deep");
    assert!(!t.exists("a"));
}

fn dot_dot(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("to", 0o755).must();
    t.write_file("to/f", b"new parent");
    t.rename("a", "to/a").must();
    assert_eq!(t.read_file("to/a/../f"), b"new parent");
}

fn link_counts(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("b", 0o755).must();
    t.mkdir("a/d", 0o755).must();
    t.rename("a/d", "b/d").must();
    assert_eq!(t.stat("a").must().nlink, 2);
    assert_eq!(t.stat("b").must().nlink, 3);
    assert_eq!(t.stat("b/d").must().nlink, 2);
}

fn link_counts_replaced(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("b", 0o755).must();
    t.mkdir("a/d", 0o755).must();
    t.mkdir("b/d", 0o755).must();
    t.rename("a/d", "b/d").must();
    assert_eq!(t.stat("a").must().nlink, 2);
    assert_eq!(t.stat("b").must().nlink, 3);
    t.mkdir("b/e", 0o755).must();
    t.rename("b/e", "b/d").must();
    assert_eq!(t.stat("b").must().nlink, 3);
}

fn replaced_link(t: &Tester<'_>) {
    t.write_file("a", b"new");
    t.write_file("b", b"old");
    t.link("b", "c").must();
    t.rename("a", "b").must();
    assert_eq!(t.stat("c").must().nlink, 1);
    assert_eq!(t.read_file("c"), b"old");
}

fn open_file(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    let fd = t.create("f");
    t.rename("f", "d/g").must();
    t.fs.write_at(fd, 0, b"later").must();
    t.close(fd);
    assert_eq!(t.read_file("d/g"), b"later");
}

fn noreplace_free(t: &Tester<'_>) {
    t.write_file("a", b"x");
    t.rename2("a", "b", RenameFlags::NOREPLACE).must();
    assert_eq!(t.read_file("b"), b"x");
}

fn noreplace(t: &Tester<'_>) {
    t.write_file("a", b"a");
    t.write_file("b", b"b");
    t.mkdir("d", 0o755).must();
    t.rename2("a", "b", RenameFlags::NOREPLACE).must_fail(Errno::EEXIST);
    t.rename2("a", "d", RenameFlags::NOREPLACE).must_fail(Errno::EEXIST);
    t.rename2("a", "a", RenameFlags::NOREPLACE).must_fail(Errno::EEXIST);
    assert_eq!(t.read_file("a"), b"a");
    assert_eq!(t.read_file("b"), b"b");
}

fn exchange(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("a", b"a");
    t.write_file("d/b", b"b");
    t.rename2("a", "d/b", RenameFlags::EXCHANGE).must();
    assert_eq!(t.read_file("a"), b"b");
    assert_eq!(t.read_file("d/b"), b"a");
}

fn exchange_kinds(t: &Tester<'_>) {
    t.mkdir("p", 0o755).must();
    t.mkdir("q", 0o755).must();
    t.write_file("p/x", b"file");
    t.mkdir("q/y", 0o755).must();
    t.write_file("q/y/in", b"inside");
    t.rename2("p/x", "q/y", RenameFlags::EXCHANGE).must();
    assert_eq!(t.read_file("p/x/in"), b"inside");
    assert_eq!(t.read_file("q/y"), b"file");
    assert_eq!(t.stat("p").must().nlink, 3);
    assert_eq!(t.stat("q").must().nlink, 2);
}

fn exchange_missing(t: &Tester<'_>) {
    t.write_file("a", b"a");
    t.rename2("a", "b", RenameFlags::EXCHANGE).must_fail(Errno::ENOENT);
    assert_eq!(t.read_file("a"), b"a");
}

fn exchange_cycle(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("a/b", 0o755).must();
    t.rename2("a", "a/b", RenameFlags::EXCHANGE).must_fail(Errno::EINVAL);
    t.rename2("a/b", "a", RenameFlags::EXCHANGE).must_fail(Errno::EINVAL);
    assert!(t.exists("a/b"));
}

fn flags_exclude(t: &Tester<'_>) {
    t.write_file("a", b"a");
    t.write_file("b", b"b");
    t.rename2("a", "b", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE).must_fail(Errno::EINVAL);
}

fn symlink(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.symlink("f", "l").must();
    t.symlink("nowhere", "m").must();
    t.rename("l", "l2").must();
    assert_eq!(t.readlink("l2").must(), b"f");
    t.rename("f", "m").must();
    assert_eq!(t.read_file("m"), b"x");
    assert!(!t.exists("nowhere"));
}

fn many(t: &Tester<'_>) {
    t.mkdir("p", 0o755).must();
    t.mkdir("q", 0o755).must();
    t.mkdir("p/d", 0o755).must();
    t.write_file("p/d/f", b"x");
    for _ in 0..100 {
        t.rename("p/d", "q/d").must();
        t.rename("q/d", "p/d").must();
    }
    assert_eq!(t.read_file("p/d/f"), b"x");
    assert_eq!((t.stat("p").must().nlink, t.stat("q").must().nlink), (3, 2));
}
