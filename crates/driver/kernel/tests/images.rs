// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suite for all drivers does not ask: images as such.

mod support;

use outrigger_conformance::block_on;
use outrigger_core::ops::{
    Create, GetAttr, Lookup, MkDir, Open, OpenDir, OpenFlags, Read, ReadDirPlus, Release, Write,
};
use outrigger_core::{Credentials, Cx, Errno, Name, Node, Op, Result, Service, ask};
use outrigger_driver_kernel::{Kernel, Options};
use support::{Image, KINDS, content, kind};

const ME: Credentials = Credentials { uid: 1000, gid: 100 };

fn call<O: Op>(kernel: &Kernel, op: O) -> Result<O::Out> {
    block_on(ask(kernel, &Cx::new(1, ME, "test"), op))
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn write_file(kernel: &Kernel, dir: Node, called: &str, data: &[u8]) {
    let flags = OpenFlags::WRITE_ONLY | OpenFlags::EXCL;
    let created = call(kernel, Create { dir, name: name(called), mode: 0o640, flags }).expect("create");
    let (node, handle) = (created.entry.node, created.opened.handle);
    let data = data.to_vec().into();
    call(kernel, Write { node, handle, offset: 0, data, cached: false, kill_setid: false }).expect("write");
    let owner = outrigger_core::LockOwner(0);
    call(kernel, Release { node, handle, flags, owner, flock_release: false }).expect("release");
}

fn read_file(kernel: &Kernel, dir: Node, called: &str) -> Vec<u8> {
    let node = call(kernel, Lookup { dir, name: name(called) }).expect("lookup").node;
    let handle = call(kernel, Open { node, flags: OpenFlags::empty() }).expect("open").handle;
    let data = call(kernel, Read { node, handle, offset: 0, len: 1 << 20 }).expect("read");
    data.into_bytes().expect("content").to_vec()
}

fn names(kernel: &Kernel, node: Node) -> Vec<String> {
    let handle = call(kernel, OpenDir { node }).expect("opendir").handle;
    let listed = call(kernel, ReadDirPlus { node, handle, cookie: 0, size: 1 << 16 }).expect("readdirplus");
    let mut names: Vec<String> = listed.entries.iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    names
}

/// What one opening writes the next one reads, and the type's own tool has nothing to say.
#[test]
fn what_was_written_is_there_when_the_image_is_opened_again() {
    for kind in KINDS.iter().filter_map(|row| kind(row.name)) {
        let image = Image::new(kind);
        let data: Vec<u8> = (0..300_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let kernel = image.open();
        let dir = call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755 }).expect("mkdir");
        write_file(&kernel, dir.node, "file", &data);
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
        let kernel = image.open();
        let dir = call(&kernel, Lookup { dir: Node::ROOT, name: name("dir") }).expect("lookup");
        assert!(read_file(&kernel, dir.node, "file") == data, "{}", kind.name);
        assert_eq!(names(&kernel, dir.node), ["file"], "{}", kind.name);
    }
}

#[test]
fn new_files_are_those_of_who_asked() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = image.open();
    let dir = call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o750 }).expect("mkdir");
    assert_eq!((dir.attr.uid, dir.attr.gid, dir.attr.mode & 0o7777), (1000, 100, 0o750));
}

#[test]
fn looking_at_an_image_does_not_change_it() {
    for kind in KINDS.iter().filter_map(|row| kind(row.name)) {
        let image = Image::new(kind);
        let before = content(&image.path());
        let kernel = image.open();
        call(&kernel, GetAttr { node: Node::ROOT, handle: None }).expect("getattr");
        names(&kernel, Node::ROOT);
        drop(kernel);
        assert!(before == content(&image.path()), "{}", kind.name);
    }
}

#[test]
fn an_image_that_is_read_only_refuses_changes() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let options = Options { read_only: true, ..Options::default() };
    let kernel = Kernel::start(&image.path(), &options).expect("it opens");
    assert!(kernel.abilities().read_only);
    let made = call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755 });
    assert_eq!(made.map_err(|error| error.errno), Err(Errno::EROFS));
}

#[test]
fn two_writers_of_one_image_are_refused() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let _first = image.open();
    let second = Kernel::start(&image.path(), &Options::default());
    assert_eq!(second.map(drop).map_err(|error| error.errno), Err(Errno::EBUSY));
}

#[test]
fn a_damaged_image_is_an_error_that_says_why() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let mut bytes = content(&image.path());
    // The group descriptors.
    bytes[4096..8192].fill(0xa5);
    std::fs::write(image.path(), bytes).expect("a write");
    let error = Kernel::start(&image.path(), &Options::default()).map(drop).expect_err("a damaged image");
    let reason = error.reason.expect("a reason");
    assert!(reason.contains("EXT4-fs"), "{reason}");
}

#[test]
fn what_is_no_file_system_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let error = Kernel::start(file.path(), &Options::default()).map(drop).expect_err("zeroes");
    assert_eq!(error.errno, Errno::EINVAL);
}
