// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suite for all drivers does not ask: images as such.

use outrigger_conformance::{Direct, Flags, Subject, block_on};
use outrigger_core::ops::{
    Create, Forget, GetAttr, GetXattr, Lookup, MkDir, OpenDir, OpenFlags, Read, ReadDirPlus, SetXattr,
    SyncFs, Write, XattrFlags,
};
use outrigger_core::{
    Answer, Credentials, Cx, Errno, Name, Node, Op, Reply, Result, Service, XattrName, ask,
};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, Tree, WRITTEN, content, kind};
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const ME: Credentials = Credentials::new(1000, 100);

fn call<O: Op>(kernel: &Kernel, op: O) -> Result<O::Out> {
    block_on(ask(kernel, &Cx::new(1, ME, "test"), op))
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
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
    for kind in WRITTEN.iter().filter_map(|row| kind(row.name)) {
        let image = Image::new(kind);
        let kernel = Arc::new(image.open());
        Tree::new(&Direct::new(kernel.clone())).make();
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
        println!("{}: as it was written", kind.name);
        let kernel = Arc::new(image.open());
        Tree::new(&Direct::new(kernel.clone())).must_be_there();
        kernel.unmount().expect("it unmounts");
    }
}

/// What a power failure leaves: the file that was synced is only in the journal, where the type has one.
#[test]
fn a_journal_is_replayed_for_who_only_reads_and_the_image_stays_as_it_is() {
    let (dir, file) = (Path::new("dir"), Path::new("dir/file"));
    for kind in WRITTEN.iter().filter_map(|row| kind(row.name)) {
        let image = Image::new(kind);
        let kernel = Arc::new(image.open());
        let tree = Direct::new(kernel.clone());
        tree.mkdir(dir, 0o755).expect("mkdir");
        let opened = tree.open(file, Flags::NEW, 0o644).expect("create");
        tree.write_at(opened, 0, b"content").expect("write");
        tree.fsync(opened, false).expect("fsync");
        tree.close(opened).expect("close");
        call(&kernel, SyncFs { node: Node::ROOT }).expect("sync");
        let copy = image.path().with_extension("copy");
        fs::copy(image.path(), &copy).expect("a copy");
        let before = content(&copy);
        let options = Options { read_only: true, ..Options::default() };
        let reader =
            Arc::new(Kernel::start(&copy, &options).unwrap_or_else(|error| panic!("{}: {error}", kind.name)));
        let tree = Direct::new(reader.clone());
        let size = tree.stat(file).map(|attr| attr.size);
        assert_eq!((size, tree.mkdir(Path::new("new"), 0o755)), (Ok(7), Err(Errno::EROFS)), "{}", kind.name);
        reader.unmount().expect("it unmounts");
        assert_eq!(content(&copy), before, "{}", kind.name);
    }
}

#[test]
fn new_files_are_those_of_who_asked() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = image.open();
    let dir =
        call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o750, umask: 0, initial: None })
            .expect("mkdir");
    assert_eq!((dir.attr.uid, dir.attr.gid, dir.attr.mode & 0o7777), (1000, 100, 0o750));
}

#[test]
fn looking_at_an_image_does_not_change_it() {
    // XFS writes a record into its log when it is unmounted, F2FS a checkpoint, whatever was done with them.
    const RECORD: [&str; 3] = ["xfs", "f2fs", "hfs+"];
    for kind in WRITTEN.iter().filter(|row| !RECORD.contains(&row.name)).filter_map(|row| kind(row.name)) {
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
    let made =
        call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755, umask: 0, initial: None });
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
    let mut bytes = fs::read(image.path()).expect("a file");
    // The group descriptors.
    bytes[4096..8192].fill(0xa5);
    fs::write(image.path(), bytes).expect("a write");
    let error = Kernel::start(&image.path(), &Options::default()).map(drop).expect_err("a damaged image");
    let reason = error.reason.expect("a reason");
    assert!(reason.contains("EXT4-fs"), "{reason}");
}

/// Does it with an ext4 image that is not guarded, then with one that is.
fn guarded_or_not(test: impl Fn(Kernel)) {
    let Some(kind) = kind("ext4") else { return };
    for guard in [false, true] {
        let image = Image::new(kind);
        let options = Options { guard, ..Options::default() };
        test(Kernel::start(&image.path(), &options).expect("it opens"));
    }
}

/// More than fits into the connection is on its way in both directions.
#[test]
fn large_requests_and_replies_pass_each_other() {
    guarded_or_not(read_and_write_much);
}

fn read_and_write_much(kernel: Kernel) {
    const SIZE: u32 = 1 << 20;
    let flags = OpenFlags::READ_WRITE;
    let create = Create { dir: Node::ROOT, name: name("file"), mode: 0o644, umask: 0, flags, initial: None };
    let made = call(&kernel, create).expect("create");
    let (node, handle) = (made.entry.node, made.opened.handle);
    let piece = |number: u64| u64::from(SIZE) * (number % 4);
    let write = |number: u64| {
        let data = bytes::Bytes::from(vec![number as u8; SIZE as usize]).into();
        call(&kernel, Write { node, handle, offset: piece(number), data, cached: false, kill_setid: false })
            .expect("write");
    };
    (0..4).for_each(write);
    std::thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || (0..20).for_each(|round| write(first + 4 * round)));
            scope.spawn({
                let kernel = &kernel;
                move || {
                    for _ in 0..20 {
                        let read = Read { node, handle, offset: piece(first), len: SIZE };
                        let data = call(kernel, read).expect("read");
                        assert_eq!(data.len(), SIZE as usize);
                    }
                }
            });
        }
    });
}

/// More requests than the connection holds back, and whoever asked waits for the last one first.
#[test]
fn requests_that_leave_together_are_all_answered() {
    guarded_or_not(ask_all_at_once);
}

fn ask_all_at_once(kernel: Kernel) {
    let asked = Cx { more_to_follow: true, ..Cx::new(1, ME, "test") };
    let start = |_| kernel.call(&asked, GetAttr { node: Node::ROOT, handle: None }.into());
    let mut answers: Vec<Answer<'_>> = (0..500).map(start).collect();
    while let Some(answer) = answers.pop() {
        assert!(matches!(block_on(answer.into_future()), Reply::Attrs(_)), "{} are left", answers.len());
    }
}

/// As a kernel does that drops its caches: it waits for no reply, so none is read.
#[test]
fn references_may_be_returned_without_reading() {
    guarded_or_not(|kernel| {
        const FILES: usize = 30_000;
        let (node, handle, name) = (Node::ROOT, None, name("file"));
        let dir =
            call(&kernel, MkDir { dir: node, name: name.clone(), mode: 0o755, umask: 0, initial: None })
                .expect("mkdir")
                .node;
        for _ in 1..FILES {
            assert_eq!(call(&kernel, Lookup { dir: node, name: name.clone() }).expect("lookup").node, dir);
        }
        let (done, waits) = mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..FILES {
                call(&kernel, Forget { node: dir, count: 1 }).expect("forget");
            }
            let attrs = call(&kernel, GetAttr { node, handle });
            done.send(attrs.is_ok()).expect("the test waits");
        });
        assert_eq!(waits.recv_timeout(Duration::from_secs(60)), Ok(true));
    });
}

/// What the kernel code needs to read an attribute it gives back.
#[test]
fn reading_attributes_again_and_again_takes_no_memory() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let options = Options { memory: Some(64 << 20), ..Options::default() };
    let kernel = Kernel::start(&image.path(), &options).expect("it opens");
    let (node, name) = (Node::ROOT, XattrName::new("user.large").expect("a name"));
    let value = bytes::Bytes::from(vec![7; 40_000]);
    let flags = XattrFlags::empty();
    call(&kernel, SetXattr { node, name: name.clone(), value: value.clone(), flags }).expect("setxattr");
    for _ in 0..2_000 {
        let read = call(&kernel, GetXattr { node, name: name.clone() }).expect("getxattr");
        assert_eq!(read.len(), value.len());
    }
}

#[test]
fn what_is_no_file_system_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("a size");
    let error = Kernel::start(file.path(), &Options::default()).map(drop).expect_err("zeroes");
    assert_eq!(error.errno, Errno::EINVAL);
}
