// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is open stays open when the process that serves dies and another takes over.

mod common;

use common::*;
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::ops::{
    Forget, GetAttr, Ioctl, Open, OpenDir, OpenFlags, ReadDir, ReadDirPlus, ReleaseDir, RmDir, TmpFile,
    Unlink,
};
use outrigger_core::survive::Layout;
use outrigger_core::{BlockingDriver, Errno, Handle, HeapKeep, Inline, Keep, Node, Result};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_runtime::Threads;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// One process after the other, over the same directory with the same keep.
struct Workers {
    keep: Arc<HeapKeep>,
    options: LocalOptions,
}

impl Workers {
    fn start(&self, path: &Path) -> Local {
        Local::open_with_keep(path, self.options.clone(), Arc::clone(&self.keep) as _).expect("open")
    }
}

/// As the end of a process does, this closes every descriptor that nobody holds, and tidies nothing up.
fn kill(local: Local) {
    drop(local);
}

/// By path, and through handles where that is permitted; without passthrough, because replies would hold descriptors.
fn every_way() -> Vec<Workers> {
    let through_handles = LocalOptions { passthrough: false, ..LocalOptions::default() };
    let mut ways = vec![LocalOptions { handles: false, ..through_handles.clone() }];
    if is_root() {
        ways.push(through_handles);
    } else {
        eprintln!("SKIPPED: opening file handles needs root");
    }
    ways.into_iter().map(|options| Workers { keep: Arc::default(), options }).collect()
}

fn unlink(local: &Local, file: &str) {
    local.unlink(&cx(), Unlink { dir: Node::ROOT, name: name(file) }).expect("unlink");
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.expect_err("a refusal").errno
}

#[test]
fn open_files_go_on_under_their_handles_also_removed_ones() {
    for workers in every_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = workers.start(dir.path());
        let kept = create(&first, Node::ROOT, "kept").expect("create");
        let removed = create(&first, Node::ROOT, "removed").expect("create");
        let closed = create(&first, Node::ROOT, "closed").expect("create");
        for file in [&kept, &removed] {
            write(&first, file.entry.node, file.opened.handle, 0, b"before ").expect("write");
        }
        unlink(&first, "removed");
        release(&first, closed.entry.node, closed.opened.handle).expect("release");
        kill(first);

        let second = workers.start(dir.path());
        for file in [&kept, &removed] {
            let (node, handle) = (file.entry.node, file.opened.handle);
            write(&second, node, handle, 7, b"after").expect("write");
            assert_eq!(read(&second, node, handle, 0, 99).as_deref(), Ok(&b"before after"[..]));
            assert_eq!(stat(&second, node).map(|attr| attr.size), Ok(12), "also without a handle");
        }
        assert_eq!(errno(read(&second, closed.entry.node, closed.opened.handle, 0, 1)), Errno::EBADF);
        let fresh = create(&second, Node::ROOT, "fresh").expect("create");
        let old = [kept.opened.handle, removed.opened.handle, closed.opened.handle];
        assert!(!old.contains(&fresh.opened.handle), "a handle means one file for ever");
        for file in [&kept, &removed, &fresh] {
            release(&second, file.entry.node, file.opened.handle).expect("release");
            second.forget(&cx(), Forget { node: file.entry.node, count: 1 }).expect("forget");
        }
        assert_eq!(errno(stat(&second, removed.entry.node)), Errno::ESTALE, "nobody refers to it any more");
        assert_eq!(workers.keep.held(), 1, "the root alone");
    }
}

#[test]
fn a_file_keeps_the_access_it_was_opened_with() {
    for workers in every_way() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), b"12345").expect("write");
        let first = workers.start(dir.path());
        let node = find(&first, "file").expect("lookup").node;
        let open = |flags| first.open(&cx(), Open { node, flags }).expect("open").handle;
        let reader = open(OpenFlags::empty());
        let appender = open(OpenFlags::WRITE_ONLY | OpenFlags::APPEND);
        kill(first);

        let second = workers.start(dir.path());
        assert_eq!(errno(write(&second, node, reader, 0, b"x")), Errno::EBADF);
        assert_eq!(errno(read(&second, node, appender, 0, 1)), Errno::EBADF);
        write(&second, node, appender, 0, b"67").expect("write");
        assert_eq!(read(&second, node, reader, 0, 99).as_deref(), Ok(&b"1234567"[..]));
    }
}

#[test]
fn a_file_without_a_name_survives() {
    for workers in every_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = workers.start(dir.path());
        let op = TmpFile { dir: Node::ROOT, mode: 0o600, umask: 0, flags: OpenFlags::READ_WRITE };
        let made = match first.tmpfile(&cx(), op) {
            Ok(made) => made,
            Err(error) => {
                eprintln!("SKIPPED: no nameless files here: {error}");
                return;
            }
        };
        write(&first, made.entry.node, made.opened.handle, 0, b"content").expect("write");
        kill(first);

        let second = workers.start(dir.path());
        assert_eq!(stat(&second, made.entry.node).map(|attr| attr.nlink), Ok(0));
        assert_eq!(read(&second, made.entry.node, made.opened.handle, 0, 9).as_deref(), Ok(&b"content"[..]));
    }
}

/// The names behind `cookie`, and the cookie of the last.
fn names(local: &Local, handle: Handle, cookie: u64, size: u32) -> (Vec<String>, u64, bool) {
    let op = ReadDir { node: Node::ROOT, handle, cookie, size };
    let piece = local.readdir(&cx(), op).expect("readdir");
    let last = piece.entries.last().map_or(cookie, |dirent| dirent.cookie);
    (piece.entries.iter().map(|dirent| dirent.name.to_string()).collect(), last, piece.eof)
}

#[test]
fn a_listing_goes_on_where_it_was() {
    for workers in every_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let expected: BTreeSet<String> = (0..2000).map(|i| format!("file {i}")).collect();
        for file in &expected {
            fs::write(dir.path().join(file), b"").expect("write");
        }
        let first = workers.start(dir.path());
        let handle = first.opendir(&cx(), OpenDir { node: Node::ROOT }).expect("opendir").handle;
        let (mut listed, mut cookie, _) = names(&first, handle, 0, 4096);
        kill(first);
        let mut eof = false;
        while !eof {
            let local = workers.start(dir.path());
            let (more, last, end) = names(&local, handle, cookie, 16 << 10);
            listed.extend(more);
            (cookie, eof) = (last, end);
            kill(local);
        }
        assert_eq!(listed.len(), expected.len(), "no name twice");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);

        let last = workers.start(dir.path());
        let op = ReadDirPlus { node: Node::ROOT, handle, cookie: 0, size: 4096 };
        assert!(
            !last.readdirplus(&cx(), op).expect("readdirplus").entries.is_empty(),
            "from the start again"
        );
        last.releasedir(&cx(), ReleaseDir { node: Node::ROOT, handle }).expect("releasedir");
        kill(last);
        let op = ReadDir { node: Node::ROOT, handle, cookie: 0, size: 4096 };
        assert_eq!(errno(workers.start(dir.path()).readdir(&cx(), op)), Errno::EBADF, "closed for ever");
    }
}

#[test]
fn a_removed_file_that_is_referred_to_survives_by_path() {
    let options = LocalOptions { handles: false, ..LocalOptions::default() };
    let workers = Workers { keep: Arc::default(), options };
    let dir = tempfile::tempdir().expect("a directory");
    let first = workers.start(dir.path());
    let entry = mkdir(&first, Node::ROOT, "dir").expect("mkdir");
    let full = mkdir(&first, Node::ROOT, "full").expect("mkdir").node;
    mkdir(&first, full, "in it").expect("mkdir");
    let remove = |local: &Local, dir: &str| local.rmdir(&cx(), RmDir { dir: Node::ROOT, name: name(dir) });
    remove(&first, "dir").expect("rmdir");
    assert_eq!(workers.keep.held(), 2, "the root and the removed directory");
    assert_eq!(errno(remove(&first, "full")), Errno::ENOTEMPTY);
    assert_eq!(workers.keep.held(), 2, "what could not be removed is not held");
    kill(first);

    let second = workers.start(dir.path());
    assert_eq!(stat(&second, entry.node).map(|attr| attr.nlink), Ok(0));
    second.forget(&cx(), Forget { node: entry.node, count: 1 }).expect("forget");
    assert_eq!(workers.keep.held(), 1);
}

#[test]
fn the_directory_itself_may_move() {
    for workers in every_way() {
        let above = tempfile::tempdir().expect("a directory");
        let (before, after) = (above.path().join("before"), above.path().join("after"));
        fs::create_dir(&before).expect("mkdir");
        fs::write(before.join("file"), b"content").expect("write");
        let first = workers.start(&before);
        let node = find(&first, "file").expect("lookup").node;
        kill(first);
        fs::rename(&before, &after).expect("rename");
        fs::create_dir(&before).expect("mkdir");
        let second = workers.start(&before);
        assert_eq!(find(&second, "file").map(|entry| entry.node), Ok(node));
        assert_eq!(read_all(&second, node).as_deref(), Ok(&b"content"[..]));
    }
}

#[test]
fn more_than_can_be_noted_is_refused_before_anything_is_made() {
    let keep = Arc::<HeapKeep>::default();
    // Room for three notes: whoever makes a region decides its size.
    keep.region("local-files", Layout::words(1 + 3 * 5)).expect("memory");
    let dir = tempfile::tempdir().expect("a directory");
    let options = LocalOptions::default();
    let local = Local::open_with_keep(dir.path(), options, Arc::clone(&keep) as _).expect("open");
    let files: Vec<_> =
        (0..3).map(|i| create(&local, Node::ROOT, &format!("{i}")).expect("create")).collect();
    assert_eq!(errno(create(&local, Node::ROOT, "one too many")), Errno::ENFILE);
    assert!(!dir.path().join("one too many").exists());
    let again = Open { node: files[0].entry.node, flags: OpenFlags::TRUNC | OpenFlags::WRITE_ONLY };
    write(&local, files[0].entry.node, files[0].opened.handle, 0, b"safe").expect("write");
    assert_eq!(errno(local.open(&cx(), again)), Errno::ENFILE);
    assert_eq!(fs::read(dir.path().join("0")).ok().as_deref(), Some(&b"safe"[..]), "not cut either");
    assert_eq!(errno(local.opendir(&cx(), OpenDir { node: Node::ROOT })), Errno::ENFILE);
    release(&local, files[1].entry.node, files[1].opened.handle).expect("release");
    create(&local, Node::ROOT, "fits").expect("a place is free again");
}

#[test]
fn a_directorys_handle_is_never_taken_for_a_files() {
    const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
    let dir = tempfile::tempdir().expect("a directory");
    let local = open(dir.path());
    let file = create(&local, Node::ROOT, "file").expect("create");
    let directory = local.opendir(&cx(), OpenDir { node: Node::ROOT }).expect("opendir").handle;
    assert_ne!(file.opened.handle, directory);
    let attr =
        local.getattr(&cx(), GetAttr { node: Node::ROOT, handle: Some(directory) }).expect("getattr").attr;
    assert!(attr.is_dir());
    assert_eq!(errno(read(&local, Node::ROOT, directory, 0, 1)), Errno::EBADF);
    let op = Ioctl {
        node: Node::ROOT,
        handle: directory,
        command: FS_IOC_GETFLAGS,
        argument: 0,
        input: bytes::Bytes::new(),
        output_size: 4,
    };
    let flags = local.ioctl(&cx(), op);
    assert!(!matches!(&flags, Err(error) if error.errno == Errno::EBADF), "{flags:?}");
}

#[test]
fn every_case_holds_with_a_keep() {
    for workers in every_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let local = workers.start(dir.path());
        let direct = Direct::new(Arc::new(Inline::new(local, Arc::new(Threads::new()))));
        let report =
            run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
        report.must_hold(180);
        assert!(workers.keep.held() < 8, "what is closed is not held");
    }
}
