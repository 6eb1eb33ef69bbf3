// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that the worker moves between the image and files of the host by itself.

use outrigger_conformance::block_on;
use outrigger_core::ops::*;
use outrigger_core::reply::Created;
use outrigger_core::{Credentials, Cx, Errno, Exchange, Name, Node, Op, Reply, Service, ask};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, WRITTEN, kind};
use std::fs::File;
use std::os::fd::AsFd;

/// Neither a number of blocks nor of what is moved at once.
const SIZE: u64 = (9 << 20) + 1234;

fn cx() -> Cx {
    Cx::new(1, Credentials::ROOT, "test")
}

fn call<O: Op>(kernel: &Kernel, op: O) -> O::Out {
    block_on(ask(kernel, &cx(), op)).expect("an answer")
}

fn exchange(
    kernel: &Kernel,
    file: &Created,
    from: u64,
    len: u64,
    host: &File,
    inward: bool,
) -> Result<u64, Errno> {
    let (node, handle) = (file.entry.node, file.opened.handle);
    let exchange = Exchange { node, handle, offset: from, host_offset: from, len, inward };
    let cx = cx();
    match block_on(async { kernel.exchange(&cx, exchange, host.as_fd()).await }) {
        Reply::Count(count) => Ok(count.0),
        Reply::Error(error) => Err(error.errno),
        other => panic!("{other:?}"),
    }
}

fn create(kernel: &Kernel, name: &str) -> Created {
    let (name, flags) = (Name::try_from(name).expect("a name"), OpenFlags::READ_WRITE | OpenFlags::EXCL);
    call(kernel, Create { dir: Node::ROOT, name, mode: 0o644, umask: 0, flags, initial: None })
}

/// A file of the host with content in which no two blocks are alike.
fn host_file(image: &Image, size: u64) -> (File, Vec<u8>) {
    let content: Vec<u8> = (0..size).map(|at| (at / 4096 * 31 + at % 251) as u8).collect();
    let path = image.path().with_file_name("host");
    std::fs::write(&path, &content).expect("a file");
    (File::open(path).expect("a file"), content)
}

#[test]
fn content_goes_in_and_comes_out_as_it_was() {
    let large = WRITTEN.iter().filter(|kind| kind.size >= 32);
    for kind in large.filter_map(|large| kind(large.name)) {
        let image = Image::new(kind);
        let (host, content) = host_file(&image, SIZE);
        let out = image.path().with_file_name("out");
        let sink = File::create(&out).expect("a file");
        let kernel = image.open();
        let file = create(&kernel, "file");
        // In pieces, the second of which begins inside a block, and beyond the end.
        let first = 5_000_001;
        assert_eq!(exchange(&kernel, &file, 0, first, &host, true), Ok(first), "{}", kind.name);
        assert_eq!(exchange(&kernel, &file, first, 1 << 30, &host, true), Ok(SIZE - first));
        assert_eq!(exchange(&kernel, &file, SIZE, 1 << 20, &host, true), Ok(0));
        assert_eq!(exchange(&kernel, &file, 0, first, &sink, false), Ok(first));
        assert_eq!(exchange(&kernel, &file, first, 1 << 30, &sink, false), Ok(SIZE - first));
        assert_eq!(exchange(&kernel, &file, SIZE, 1 << 20, &sink, false), Ok(0));
        assert!(std::fs::read(&out).expect("a file") == content, "{}", kind.name);
        let (node, handle) = (file.entry.node, file.opened.handle);
        let read = call(&kernel, Read { node, handle, offset: SIZE - 100_000, len: 1 << 20 });
        assert!(read.into_bytes().expect("bytes")[..] == content[content.len() - 100_000..]);
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
    }
}

#[test]
fn what_stands_in_the_way_is_told() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = image.open();
    let file = create(&kernel, "file");
    let space = call(&kernel, StatFs { node: Node::ROOT });
    let (host, _) = host_file(&image, space.bfree * u64::from(space.frsize) + (1 << 20));
    // What fitted counts; then there is an error, of either side.
    let fitted = exchange(&kernel, &file, 0, u64::MAX >> 1, &host, true).expect("some of it");
    assert_eq!(exchange(&kernel, &file, fitted, 1 << 20, &host, true), Err(Errno::ENOSPC));
    assert_eq!(exchange(&kernel, &file, 0, 1 << 20, &host, false), Err(Errno::EBADF), "not open for writing");
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
    let options = Options { guard: true, ..Options::default() };
    let guarded = Kernel::start(&image.path(), &options).expect("it opens");
    let name = Name::try_from("file").expect("a name");
    let entry = call(&guarded, Lookup { dir: Node::ROOT, name });
    let opened = call(&guarded, Open { node: entry.node, flags: OpenFlags::READ_WRITE });
    let file = Created { entry, opened };
    assert_eq!(exchange(&guarded, &file, 0, 1 << 20, &host, true), Err(Errno::EOPNOTSUPP), "a successor");
}
