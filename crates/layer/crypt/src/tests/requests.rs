// SPDX-License-Identifier: MIT OR Apache-2.0
//! What requests do to the tree below, also when they are interrupted.

use super::*;
use outrigger_core::ops::{Flush, Open, Read, RenameFlags, Whence, XattrFlags};
use outrigger_core::{Answer, Credentials, Payload, Target, XattrName, ask};
use std::sync::atomic::{AtomicU64, Ordering};

fn sizes(at: usize) -> usize {
    [1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17][at]
}

#[test]
fn nothing_that_is_stored_tells_what_it_is() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    root.mkdir(&named("secret directory"), 0o755).expect("a directory");
    root.symlink(&named("secret link"), Target::new(&b"secret target"[..]).unwrap()).expect("a link");
    both.write("secret file", &b"secret content ".repeat(1000));
    let name = XattrName::new(&b"user.secret"[..]).expect("a name");
    let file = root.lookup(&named("secret file")).expect("it is there");
    file.set_xattr(&name, Bytes::from_static(b"secret value"), XattrFlags::empty()).expect("it is set");
    assert_eq!(file.xattr(&name).expect("it is there"), "secret value");
    assert_eq!(file.xattrs().expect("a list"), vec![name.clone()]);
    let mut all = Vec::new();
    for (name, inode) in
        both.stored().root().unwrap().entries().unwrap().map(|entry| entry.expect("an entry"))
    {
        all.extend_from_slice(&name);
        all.extend(inode.readlink().map(|target| target.to_vec()).unwrap_or_default());
        if inode.kind() == outrigger_core::FileKind::Regular {
            all.extend_from_slice(&inode.open(OpenFlags::empty()).unwrap().read_at(0, 1 << 20).unwrap());
        }
        for name in inode.xattrs().expect("a list") {
            all.extend_from_slice(&name);
            all.extend_from_slice(&inode.xattr(&name).expect("a value"));
        }
    }
    assert!(all.len() > 15_000 && !all.windows(6).any(|part| part == b"secret"));
    let removed = file.remove_xattr(&name);
    assert!(removed.is_ok() && file.xattrs().expect("a list").is_empty());
}

#[test]
fn attributes_have_the_sizes_of_what_is_shown() {
    let both = Both::new();
    for at in 0..6 {
        both.write(&format!("file {at}"), &content(sizes(at)));
    }
    let target = Target::new("t".repeat(3039).into_bytes()).expect("a target");
    let root = both.shown().root().expect("a root");
    root.symlink(&named("link"), target.clone()).expect("a link");
    let longer = Target::new("t".repeat(3040).into_bytes()).expect("a target");
    let refused = root.symlink(&named("longer"), longer).map_err(|error| error.errno).err();
    assert_eq!(refused, Some(Errno::ENAMETOOLONG));
    let mut seen = 0;
    for (name, inode) in both.shown().root().unwrap().entries().unwrap().map(|entry| entry.expect("an entry"))
    {
        let name = name.to_string();
        match name.strip_prefix("file ") {
            Some(at) => assert_eq!(inode.attr().size, sizes(at.parse().unwrap()) as u64, "{name}"),
            None => assert_eq!((inode.attr().size, inode.readlink()), (3039, Ok(target.clone()))),
        }
        seen += 1;
    }
    assert_eq!(seen, 7, "its own files are not shown");
}

#[test]
fn long_names_are_names_like_others() {
    let both = Both::new();
    let [long, other] = ["a", "b"].map(|letter| named(&letter.repeat(255)));
    let root = both.shown().root().expect("a root");
    let stored = || both.stored().root().unwrap().entries().unwrap().count();
    root.mknod(&long, 0o100_644, 0).expect("a file");
    let names = || -> Vec<Name> {
        both.shown().root().unwrap().entries().unwrap().map(|entry| entry.expect("an entry").0).collect()
    };
    assert_eq!(names(), vec![long.clone()]);
    root.rename(&long, &root, &other, RenameFlags::empty()).expect("it is moved");
    assert_eq!((names(), stored()), (vec![other.clone()], 2));
    root.rename(&other, &root, &named("short"), RenameFlags::empty()).expect("it is moved");
    assert_eq!((names(), stored()), (vec![named("short")], 1));
    root.link(&root.lookup(&named("short")).unwrap(), &long).expect("a link");
    root.unlink(&long).expect("it is removed");
    assert_eq!((names(), stored()), (vec![named("short")], 1));
    root.mkdir(&long, 0o755).expect("a directory");
    root.rmdir(&long).expect("it is removed");
    assert_eq!(stored(), 1);
}

#[test]
fn directories_are_empty_when_nothing_is_shown_in_them() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let [one, two, name] = ["one", "two", "name"].map(named);
    let full = root.mkdir(&one, 0o755).expect("a directory");
    full.mknod(&named(&"x".repeat(255)), 0o100_644, 0).expect("a file");
    let not_empty = |result: Result<()>| result.err().map(|error| error.errno) == Some(Errno::ENOTEMPTY);
    assert!(not_empty(root.rmdir(&one)));
    let empty = root.mkdir(&two, 0o755).expect("a directory");
    empty.mknod(&name, 0o100_644, 0).expect("a file");
    assert!(not_empty(root.rename(&one, &root, &two, RenameFlags::empty())));
    empty.unlink(&name).expect("it is removed");
    // It has a number now, which is not seen.
    root.rename(&one, &root, &two, RenameFlags::empty()).expect("it takes the place of an empty one");
    assert_eq!(both.shown().walk(b"/two", Follow::No).unwrap().entries().unwrap().count(), 1);
    let both_names = root.mkdir(&one, 0o755).expect("a directory");
    both_names.mknod(&name, 0o100_644, 0).expect("a file");
    both_names.unlink(&name).expect("it is removed");
    root.rmdir(&one).expect("it is empty");
    assert!(root.lookup(&one).is_err());
}

#[test]
fn what_is_moved_stays_what_it_is() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let [one, two, name] = ["one", "two", "name"].map(named);
    let from = root.mkdir(&one, 0o755).expect("a directory");
    let to = root.mkdir(&two, 0o755).expect("a directory");
    let target = Target::new(&b"there"[..]).expect("a target");
    from.symlink(&name, target.clone()).expect("a link");
    both.write("file", &content(5000));
    let file = root.lookup(&named("file")).expect("it is there");
    to.link(&file, &named("again")).expect("a link");
    from.rename(&name, &to, &named("link"), RenameFlags::empty()).expect("it is moved");
    root.rename(&two, &from, &two, RenameFlags::empty()).expect("it is moved");
    assert_eq!(both.shown().walk(b"/one/two/link", Follow::No).unwrap().readlink(), Ok(target));
    assert_eq!(both.read("one/two/again"), Ok(content(5000)));
    root.unlink(&named("file")).expect("it is removed");
    root.rename(&one, &root, &named("other"), RenameFlags::empty()).expect("it is moved");
    assert_eq!(both.read("other/two/again"), Ok(content(5000)));
}

#[test]
fn holes_stay_holes_and_are_found() {
    let both = Both::new();
    both.write("file", &content(100));
    let mut inode = both.shown().walk(b"/file", Follow::No).expect("it is there");
    let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
    file.write_all_at(1 << 30, Bytes::from_static(b"end")).expect("room");
    assert_eq!(inode.refresh().unwrap().size, (1 << 30) + 3);
    assert!(both.only().attr().blocks < 200, "a gigabyte of holes takes room");
    assert_eq!(file.read_at(50, 100).unwrap(), [&content(100)[50..], &[0; 50]].concat());
    assert_eq!(file.seek(0, Whence::Data), Ok(Some(0)));
    let hole = file.seek(0, Whence::Hole).expect("it is told").expect("there is one");
    assert!(hole >= 100 && hole <= 4 * BLOCK as u64, "{hole}");
    let data = file.seek(hole, Whence::Data).expect("it is told").expect("there is some");
    assert!(data > (1 << 30) - (8 << 10) - 1 && data <= 1 << 30, "{data}");
}

#[test]
fn parts_of_a_block_can_be_written_at_once() {
    let both = Both::new();
    both.write("file", &[]);
    let shown = both.shown();
    let part = 64;
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let shown = shown.clone();
            scope.spawn(move || {
                let inode = shown.walk(b"/file", Follow::No).expect("it is there");
                let file = inode.open(OpenFlags::WRITE_ONLY).expect("it opens");
                for round in 0..16 {
                    let offset = (round * 8 + u64::from(writer)) * part;
                    let bytes = Bytes::from(vec![writer + 1; part as usize]);
                    file.write_all_at(offset, bytes).expect("room");
                }
                file.close().expect("it is stored");
            });
        }
    });
    let expected: Vec<u8> = (0..16 * 8 * part).map(|at| (at / part % 8) as u8 + 1).collect();
    assert_eq!(both.read("file"), Ok(expected));
}

#[test]
fn appends_of_several_programs_follow_one_another() {
    let both = Both::new();
    both.write("file", &[]);
    let shown = both.shown();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let shown = shown.clone();
            scope.spawn(move || {
                (0..30).for_each(|_| append(&shown, "/file", &[writer; 300]));
            });
        }
    });
    let found = both.read("file").expect("it can be read");
    assert_eq!(found.len(), 4 * 30 * 300);
    assert!(found.chunks(300).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
}

/// A tree that stores the first bytes of one write, and answers nothing from then on.
struct Torn {
    below: Arc<dyn Service>,
    /// How many bytes are still stored.
    left: AtomicU64,
}

impl Service for Torn {
    fn call<'a>(&'a self, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let left = self.left.load(Ordering::Relaxed);
        if !request.changes_tree() {
            return self.below.call(cx, request);
        }
        if left == 0 {
            return Answer::error(Errno::EIO);
        }
        if let Request::Write(write) = &mut request {
            let bytes = write.data.clone().into_bytes().expect("bytes");
            // A header lies in one sector of a disk, and in one page: it is written, or it is not.
            let whole = if bytes.len() <= HEADER { bytes.len() } else { 0 };
            let stored = bytes.len().min(left as usize);
            if stored < whole {
                self.left.store(0, Ordering::Relaxed);
                return Answer::error(Errno::EIO);
            }
            write.data = Payload::Bytes(bytes.slice(..stored));
            self.left.fetch_sub(stored as u64, Ordering::Relaxed);
        } else {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        self.below.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

#[test]
fn a_torn_write_costs_no_more_than_the_blocks_it_was_writing() {
    let old = content(8 * BLOCK + 10);
    let block = BLOCK as u64;
    // Where is written, and how much; a size that the file is given.
    let changes = [
        (5000, 100, None),
        (2 * block, 9000, None),
        (8 * block + 5, 20_000, None),
        (0, 0, Some(3 * block + 7)),
        (0, 0, Some(20 * block)),
    ];
    for (offset, len, size) in changes {
        for left in [1_u64, 2, 30, 64, 65, 70, 100, 2000, 4124, 5000, 8300, 13_000] {
            let both = Both::new();
            both.write("file", &old);
            let torn = Torn { below: Arc::clone(&both.below), left: AtomicU64::new(left) };
            let service =
                Stack::new(Arc::new(torn)).push(Crypt::new(Keys::of(&both.master))).unwrap().service();
            let client = Client::new(service, both.runtime.clone(), Settings::default());
            let mut inode = client.walk(b"/file", Follow::No).expect("it is there");
            match size {
                Some(size) => {
                    drop(inode.set(outrigger_core::SetAttrs { size: Some(size), ..Default::default() }))
                }
                None => {
                    let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
                    let _ = file.write_all_at(offset, vec![7; len].into());
                }
            }
            let (first, last) = match size {
                Some(size) => (size.min(8 * block) / block, u64::MAX),
                None => (offset / block, (offset + len as u64 - 1) / block),
            };
            let client = both.shown();
            let inode = client.walk(b"/file", Follow::No).expect("it is there");
            let file = inode.open(OpenFlags::empty()).expect("it opens");
            for (at, old) in (0_u64..).zip(old.chunks(BLOCK)) {
                let found = file.read_at(at * block, old.len());
                let why = format!("block {at} after {left} bytes of {offset} {len} {size:?}");
                match found {
                    Ok(found) if at < first || at > last => assert!(found == old, "{why}"),
                    // What was on its way is the former content, the new one, or an error.
                    Ok(_) => {}
                    Err(error) => assert!(
                        error.errno == Errno::EBADMSG && (first..=last).contains(&at),
                        "{why}: {error:?}"
                    ),
                }
            }
        }
    }
}

#[test]
fn the_next_process_goes_on_with_open_files() {
    let both = Both::new();
    both.write("file", &content(100));
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let first = both.shown();
    let inode = first.walk(b"/file", Follow::No).expect("it is there");
    let node = inode.node();
    let handle = first.call(Open { node, flags: OpenFlags::READ_WRITE }).expect("it opens").handle;
    let write = |offset, len: usize| ops::Write {
        node,
        handle,
        offset,
        data: Payload::from(vec![9; len]),
        cached: false,
        kill_setid: false,
    };
    first.call(write(100, 3 * BLOCK)).expect("room");
    // It dies before it has written how long the file is.
    let second = both.service();
    let data =
        wait(ask(&*second, &cx, Read { node, handle, offset: 0, len: 1 << 20 })).expect("it can be read");
    assert_eq!(data.len(), 100 + 3 * BLOCK);
    wait(ask(&*second, &cx, write(100 + 3 * BLOCK as u64, 10))).expect("room");
    wait(ask(&*second, &cx, Flush { node, handle, owner: Default::default() })).expect("it is stored");
    let whole = both.bytes();
    both.store(&whole[..whole.len() - 38]);
    assert!(both.read("file").is_err(), "the header says how long the file is");
    both.store(&whole);
    assert_eq!(both.read("file").map(|content| content.len()), Ok(110 + 3 * BLOCK));
    // A file that others have cut is not made a whole one by who closes it.
    both.store(&whole[..HEADER + SLOT]);
    let third = both.service();
    wait(ask(&*third, &cx, Flush { node, handle, owner: Default::default() })).expect("it is closed");
    assert!(both.read("file").is_err());
}

/// Counts requests that change the tree below.
struct Counted {
    below: Arc<dyn Service>,
    changes: AtomicU64,
}

impl Service for Counted {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.changes.fetch_add(request.changes_tree().into(), Ordering::Relaxed);
        self.below.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

#[test]
fn a_small_file_takes_as_many_changes_as_without_the_layer() {
    let both = Both::new();
    let counted = Arc::new(Counted { below: Arc::clone(&both.below), changes: AtomicU64::new(0) });
    let layer = Crypt::new(Keys::of(&both.master));
    let service = Stack::new(counted.clone()).push(layer).expect("a stack").service();
    let root = Client::new(service, both.runtime.clone(), Settings::default()).root().expect("a root");
    let (_, file) = root.create(&named("file"), 0o644, OpenFlags::WRITE_ONLY).expect("a file");
    file.write_all_at(0, content(10_000).into()).expect("room");
    file.close().expect("it is stored");
    assert_eq!(counted.changes.load(Ordering::Relaxed), 2, "it is made, and written");
    assert_eq!(both.read("file"), Ok(content(10_000)));
}

#[test]
fn a_file_that_was_made_and_not_closed_can_be_written_again() {
    let both = Both::new();
    both.write("file", b"content");
    both.store(b"");
    assert_eq!(both.read("file").map_err(|error| error.errno), Err(Errno::EBADMSG));
    let file = both.shown().walk(b"/file", Follow::No).and_then(|it| it.open(OpenFlags::WRITE_ONLY));
    file.and_then(|file| file.close()).expect("it is stored");
    assert_eq!(both.read("file"), Ok(Vec::new()));
}

#[test]
fn a_file_that_is_made_by_an_open_for_reading_is_whole() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let (_, file) = root.create(&named("file"), 0o644, OpenFlags::empty()).expect("a file");
    assert_eq!(file.write_at(0, Bytes::from_static(b"x")).map_err(|error| error.errno), Err(Errno::EBADF));
    file.close().expect("it is closed");
    assert_eq!(both.read("file"), Ok(Vec::new()));
    // One that is there and cannot be written is opened.
    let (_, file) = root.create(&named("file"), 0o644, OpenFlags::empty()).expect("it opens");
    assert_eq!(file.read_at(0, 10).expect("it can be read"), "");
}

/// The process that takes over knows nothing of a file but its handle.
#[test]
fn a_file_that_was_made_or_emptied_can_be_written_by_the_next_process() {
    let both = Both::new();
    for flags in [OpenFlags::READ_WRITE, OpenFlags::READ_WRITE | OpenFlags::TRUNC] {
        let of = |layer: Crypt| {
            Stack::new(Arc::clone(&both.below)).push(layer).expect("it may stand there").service()
        };
        let first = of(Crypt::new(Keys::of(&both.master)).with_successor());
        let first = Client::new(first, both.runtime.clone(), Settings::default());
        let op =
            ops::Create { dir: Node::ROOT, name: named("file"), mode: 0o644, umask: 0, flags, initial: None };
        let made = first.call(op).expect("it is made");
        let next = Client::new(both.service(), both.runtime.clone(), Settings::default());
        let data = Payload::from(b"content".to_vec());
        let (node, handle) = (made.entry.node, made.opened.handle);
        let write = ops::Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
        assert_eq!(next.call(write).map(|count| count.0), Ok(7), "{flags:?}");
        next.call(Flush { node, handle, owner: Default::default() }).expect("it is stored");
        assert_eq!(both.read("file"), Ok(b"content".to_vec()), "{flags:?}");
    }
}
