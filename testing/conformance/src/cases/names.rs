// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which names a directory can hold.

use crate::report::Case;
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Errno, OpCode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(super) const CASES: &[Case] = &[
    Case::new("names/255_bytes_fit", &[], fits_255),
    Case::new("names/256_bytes_are_too_long", &[], too_long),
    Case::new("names/any_byte_but_slash_and_nul", &[], any_byte),
    Case::new("names/not_utf8_is_kept", &[OpCode::Rename, OpCode::Unlink], not_utf8),
    Case::new("names/case_matters", &[], case_matters),
    Case::new("names/unicode_is_not_normalised", &[], not_normalised),
    Case::new("names/dots_and_spaces", &[], odd_names),
    Case::new("names/missing_is_enoent", &[OpCode::Unlink, OpCode::RmDir, OpCode::Rename], missing),
    Case::new("names/below_a_file_is_enotdir", &[], below_a_file),
    Case::new("names/existing_is_eexist", &[OpCode::MkNod, OpCode::SymLink, OpCode::Link], existing),
    Case::new("names/create_with_excl_refuses_existing", &[], excl),
    Case::new("names/create_without_excl_opens_existing", &[], opens_existing),
    Case::new("names/a_removed_name_can_be_used_again", &[OpCode::Unlink, OpCode::RmDir], reuse),
];

fn fits_255(t: &Tester<'_>) {
    let name = "n".repeat(255);
    t.write_file(&name, b"long");
    assert_eq!(t.read_file(&name), b"long");
    assert!(t.names("").contains(&name));
}

fn too_long(t: &Tester<'_>) {
    let name = "n".repeat(256);
    t.stat(&name).must_fail(Errno::ENAMETOOLONG);
    t.mkdir(&name, 0o755).must_fail(Errno::ENAMETOOLONG);
    t.open(&name, Flags::NEW).must_fail(Errno::ENAMETOOLONG);
}

fn any_byte(t: &Tester<'_>) {
    let bytes = (1..=255_u8).filter(|&byte| byte != b'/');
    let names: Vec<Vec<u8>> = bytes.map(|byte| vec![b'x', byte]).collect();
    for name in &names {
        t.write_file(OsStr::from_bytes(name), name);
    }
    let mut listed: Vec<Vec<u8>> = t.list("", 1000).into_iter().map(|entry| entry.name).collect();
    listed.sort();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(&t.read_file(OsStr::from_bytes(name)), name);
    }
}

fn not_utf8(t: &Tester<'_>) {
    let (name, other) = (OsStr::from_bytes(b"caf\xe9"), OsStr::from_bytes(b"\xff\xfe\xc3"));
    t.write_file(name, b"latin1");
    t.rename(name, other).must();
    assert!(!t.exists(name));
    assert_eq!(t.read_file(other), b"latin1");
    t.unlink(other).must();
    assert!(!t.exists(other));
}

fn case_matters(t: &Tester<'_>) {
    t.write_file("name", b"lower");
    t.write_file("NAME", b"upper");
    assert_eq!(t.read_file("name"), b"lower");
    assert_eq!(t.read_file("NAME"), b"upper");
}

fn not_normalised(t: &Tester<'_>) {
    t.write_file("\u{e9}", b"composed");
    t.write_file("e\u{301}", b"decomposed");
    assert_eq!(t.read_file("\u{e9}"), b"composed");
    assert_eq!(t.read_file("e\u{301}"), b"decomposed");
}

fn odd_names(t: &Tester<'_>) {
    let names = ["...", ".hidden", " ", "a b", "-rf", "*", "trailing.", "new\nline"];
    for name in names {
        t.write_file(name, name.as_bytes());
    }
    assert_eq!(t.names(""), names.iter().map(|name| name.to_string()).collect());
    for name in names {
        assert_eq!(t.read_file(name), name.as_bytes());
    }
}

fn missing(t: &Tester<'_>) {
    t.stat("no").must_fail(Errno::ENOENT);
    t.open("no", Flags::READ).must_fail(Errno::ENOENT);
    t.unlink("no").must_fail(Errno::ENOENT);
    t.rmdir("no").must_fail(Errno::ENOENT);
    t.rename("no", "new").must_fail(Errno::ENOENT);
    t.mkdir("no/below", 0o755).must_fail(Errno::ENOENT);
    t.open("no/below", Flags::NEW).must_fail(Errno::ENOENT);
}

fn below_a_file(t: &Tester<'_>) {
    t.write_file("file", b"");
    t.stat("file/x").must_fail(Errno::ENOTDIR);
    t.mkdir("file/x", 0o755).must_fail(Errno::ENOTDIR);
    t.open("file/x", Flags::NEW).must_fail(Errno::ENOTDIR);
    t.open("file", Flags::READ | Flags::DIRECTORY).must_fail(Errno::ENOTDIR);
}

fn existing(t: &Tester<'_>) {
    t.write_file("file", b"");
    t.mkdir("dir", 0o755).must();
    for name in ["file", "dir"] {
        t.mkdir(name, 0o755).must_fail(Errno::EEXIST);
        t.mknod(name, outrigger_core::FileKind::Fifo, 0o644, 0).must_fail(Errno::EEXIST);
        t.symlink("x", name).must_fail(Errno::EEXIST);
        t.link("file", name).must_fail(Errno::EEXIST);
    }
}

fn excl(t: &Tester<'_>) {
    t.write_file("file", b"kept");
    t.mkdir("dir", 0o755).must();
    t.open("file", Flags::NEW).must_fail(Errno::EEXIST);
    t.open("dir", Flags::NEW).must_fail(Errno::EEXIST);
    assert_eq!(t.read_file("file"), b"kept");
}

fn opens_existing(t: &Tester<'_>) {
    t.write_file("file", b"kept");
    let before = t.stat("file").must();
    let fd = t.open("file", Flags::BOTH | Flags::CREATE).must();
    assert_eq!(t.fs.read_at(fd, 0, 10).must(), b"kept");
    t.close(fd);
    assert_eq!(t.stat("file").must().ino, before.ino);
}

fn reuse(t: &Tester<'_>) {
    t.write_file("x", b"file");
    t.unlink("x").must();
    t.mkdir("x", 0o755).must();
    assert!(t.stat("x").must().is_dir());
    t.rmdir("x").must();
    t.write_file("x", b"again");
    assert_eq!(t.read_file("x"), b"again");
}
