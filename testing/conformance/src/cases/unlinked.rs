// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files without a name that are still in use.

use crate::report::Case;
use crate::subject::{Fd, Flags};
use crate::tester::{Expect, Tester};
use outrigger_core::{DriverClass, Errno, OpCode};

const UNLINK: &[OpCode] = &[OpCode::Unlink];
const TMPFILE: &[OpCode] = &[OpCode::TmpFile, OpCode::Link];

pub(super) const CASES: &[Case] = &[
    Case::new("unlinked/an_open_file_lives_on", UNLINK, lives_on),
    Case::new("unlinked/an_open_file_can_still_change", &[OpCode::Unlink, OpCode::SetAttr], changes),
    Case::new("unlinked/its_name_can_be_used_again", UNLINK, name_reused),
    Case::new("unlinked/replaced_by_rename_lives_on", &[OpCode::Rename], replaced),
    Case::new("unlinked/cannot_be_named_again", &[OpCode::Unlink, OpCode::Link], not_again).root(),
    Case::new("unlinked/an_open_directory_lists_nothing", &[OpCode::RmDir], directory),
    Case::new("unlinked/space_is_given_back", &[OpCode::Unlink, OpCode::StatFs], space),
    Case::new("unlinked/tmpfile_has_no_name", TMPFILE, tmpfile),
    Case::new("unlinked/tmpfile_can_be_named", TMPFILE, tmpfile_named).root(),
    Case::new("unlinked/tmpfile_is_gone_when_closed", &[OpCode::TmpFile, OpCode::StatFs], tmpfile_gone),
    Case::new("unlinked/tmpfile_with_excl_stays_nameless", TMPFILE, tmpfile_excl).root(),
];

fn opened_and_removed(t: &Tester<'_>) -> Fd {
    t.write_file("f", b"content");
    let fd = t.open("f", Flags::BOTH).must();
    t.unlink("f").must();
    fd
}

fn lives_on(t: &Tester<'_>) {
    let fd = opened_and_removed(t);
    assert!(!t.exists("f"));
    assert_eq!(t.fs.read_at(fd, 0, 100).must(), b"content");
    assert_eq!(t.fs.fstat(fd).must().nlink, 0);
    t.close(fd);
}

fn changes(t: &Tester<'_>) {
    let fd = opened_and_removed(t);
    t.fs.write_at(fd, 7, b" and more").must();
    t.fs.ftruncate(fd, 11).must();
    assert_eq!(t.fs.read_at(fd, 0, 100).must(), b"content and");
    assert_eq!(t.fs.fstat(fd).must().size, 11);
    t.close(fd);
}

fn name_reused(t: &Tester<'_>) {
    let fd = opened_and_removed(t);
    t.write_file("f", b"other");
    assert_eq!(t.fs.read_at(fd, 0, 100).must(), b"content");
    t.fs.write_at(fd, 0, b"C").must();
    assert_eq!(t.read_file("f"), b"other");
    t.close(fd);
}

fn replaced(t: &Tester<'_>) {
    t.write_file("f", b"old");
    t.write_file("g", b"new");
    let fd = t.open("f", Flags::BOTH).must();
    t.rename("g", "f").must();
    assert_eq!(t.fs.read_at(fd, 0, 100).must(), b"old");
    assert_eq!(t.fs.fstat(fd).must().nlink, 0);
    t.close(fd);
    assert_eq!(t.read_file("f"), b"new");
}

fn not_again(t: &Tester<'_>) {
    let fd = opened_and_removed(t);
    t.fs.link_open(fd, &t.path("again")).must_fail(Errno::ENOENT);
    t.close(fd);
}

fn directory(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    let fd = t.open("d", Flags::READ | Flags::DIRECTORY).must();
    t.rmdir("d").must();
    let listing = t.fs.read_dir(fd, 0, 4096).map(|listing| listing.entries.len());
    assert!(matches!(listing, Ok(0) | Err(Errno::ENOENT)), "{listing:?}");
    t.close(fd);
}

/// Skips the case unless nothing else uses the space of the file system.
fn needs_own_space(t: &Tester<'_>) {
    if t.fs.direct().is_none_or(|direct| direct.abilities().class != DriverClass::Memory) {
        t.skip("others share the space");
    }
}

fn space(t: &Tester<'_>) {
    needs_own_space(t);
    let before = t.statfs("").must();
    let fd = t.create("f");
    t.fs.write_at(fd, 0, &[1; 100_000]).must();
    let full = t.statfs("").must();
    assert!(full.bfree < before.bfree && full.ffree < before.ffree);
    t.unlink("f").must();
    assert_eq!(t.statfs("").must().bfree, full.bfree, "while it is open its space is in use");
    t.close(fd);
    assert_eq!(t.statfs("").must(), before);
}

fn tmpfile_open(t: &Tester<'_>, flags: Flags) -> Fd {
    match t.fs.open(&t.path(""), Flags::BOTH | Flags::TMPFILE | flags, 0o600) {
        Err(Errno::EOPNOTSUPP) => t.skip("the file system has no O_TMPFILE"),
        result => result.must(),
    }
}

fn tmpfile(t: &Tester<'_>) {
    let fd = tmpfile_open(t, Flags::empty());
    t.fs.write_at(fd, 0, b"hidden").must();
    let attr = t.fs.fstat(fd).must();
    assert_eq!((attr.nlink, attr.size, attr.permissions()), (0, 6, 0o600));
    assert!(t.names("").is_empty());
    assert_eq!(t.fs.read_at(fd, 0, 10).must(), b"hidden");
    t.close(fd);
}

fn tmpfile_named(t: &Tester<'_>) {
    let fd = tmpfile_open(t, Flags::empty());
    t.fs.write_at(fd, 0, b"hidden").must();
    t.fs.link_open(fd, &t.path("shown")).must();
    assert_eq!(t.fs.fstat(fd).must().nlink, 1);
    t.close(fd);
    assert_eq!(t.read_file("shown"), b"hidden");
}

fn tmpfile_gone(t: &Tester<'_>) {
    needs_own_space(t);
    let before = t.statfs("").must();
    let fd = tmpfile_open(t, Flags::empty());
    t.fs.write_at(fd, 0, &[1; 100_000]).must();
    assert!(t.statfs("").must().bfree < before.bfree);
    t.close(fd);
    assert_eq!(t.statfs("").must(), before);
}

fn tmpfile_excl(t: &Tester<'_>) {
    let fd = tmpfile_open(t, Flags::EXCL);
    t.fs.link_open(fd, &t.path("shown")).must_fail(Errno::ENOENT);
    t.close(fd);
}
