// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations do on the file systems of this machine.

mod common;

use common::*;
use outrigger_core::ops::{Create, Open, OpenDir, OpenFlags, ReadDir, ReadDirPlus, Unlink, Write};
use outrigger_core::reply::{COOKIE_MAX, DirentPlus};
use outrigger_core::{BlockingDriver, Errno, Node, Payload};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Directories on each kind of file system there is here: the disk and memory.
fn places() -> Vec<tempfile::TempDir> {
    let roots = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    roots.iter().filter_map(|root| tempfile::tempdir_in(root).ok()).collect()
}

#[test]
fn a_file_is_made_written_read_and_found_again() {
    for place in places() {
        let local = open(place.path());
        let dir = mkdir(&local, Node::ROOT, "dir").expect("mkdir").node;
        let file = create(&local, dir, "file").expect("create");
        let (node, handle) = (file.entry.node, file.opened.handle);
        assert_eq!(file.entry.attr.permissions(), 0o640, "no umask is applied");
        assert_eq!(write(&local, node, handle, 3, b"content"), Ok(7));
        assert_eq!(read(&local, node, handle, 0, 100).as_deref(), Ok(&b"\0\0\0content"[..]));
        release(&local, node, handle).expect("release");
        assert_eq!(read(&local, node, handle, 0, 1).unwrap_err().errno, Errno::EBADF);
        let found = find(&local, "dir/file").expect("lookup");
        assert_eq!((found.node, found.attr.size), (node, 10));
        assert_eq!(read_all(&local, node).map(|data| data.len()), Ok(10));
        assert_eq!(find(&local, "dir/none").unwrap_err().errno, Errno::ENOENT);
        assert_eq!(create(&local, dir, "file").unwrap_err().errno, Errno::EEXIST);
    }
}

#[test]
fn a_removed_file_lives_while_it_is_open() {
    for place in places() {
        let local = open(place.path());
        let file = create(&local, Node::ROOT, "file").expect("create");
        let (node, handle) = (file.entry.node, file.opened.handle);
        local.unlink(&cx(), Unlink { dir: Node::ROOT, name: name("file") }).expect("unlink");
        assert_eq!(write(&local, node, handle, 0, b"alive"), Ok(5));
        let attr = stat(&local, node).expect("getattr by node of an open file without a name");
        assert_eq!((attr.nlink, attr.size), (0, 5));
        // The backing offered to doors is the file, too.
        drop(file);
        release(&local, node, handle).expect("release");
        local.forget(&cx(), outrigger_core::ops::Forget { node, count: 1 }).expect("forget");
        assert_eq!(stat(&local, node).unwrap_err().errno, Errno::ESTALE, "{}", place.path().display());
    }
}

#[test]
fn appending_ignores_the_offset_unless_a_cache_wrote() {
    for place in places() {
        let local = open(place.path());
        std::fs::write(place.path().join("log"), b"12345").expect("write");
        let node = find(&local, "log").expect("lookup").node;
        let flags = OpenFlags::WRITE_ONLY | OpenFlags::APPEND;
        let handle = local.open(&cx(), Open { node, flags }).expect("open").handle;
        let put = |data: &[u8], cached| {
            let data = Payload::from(data.to_vec());
            local.write(&cx(), Write { node, handle, offset: 0, data, cached, kill_setid: false })
        };
        put(b"678", false).expect("append");
        put(b"ab", true).expect("from the cache");
        assert_eq!(std::fs::read(place.path().join("log")).expect("read"), b"ab345678");
    }
}

#[test]
fn a_large_directory_lists_once_with_any_piece_size() {
    for place in places() {
        let expected: BTreeSet<String> = (0..3000).map(|i| format!("{i}-a-name-of-some-length")).collect();
        for file in &expected {
            std::fs::write(place.path().join(file), b"").expect("write");
        }
        let local = open(place.path());
        for size in [1, 500, 4096, 1 << 20] {
            let entries = list(&local, Node::ROOT, size).expect("readdir");
            assert!(entries.iter().all(|entry| (1..=COOKIE_MAX).contains(&entry.cookie)));
            let names: Vec<String> = entries.iter().map(|entry| entry.name.to_string()).collect();
            assert_eq!(names.len(), expected.len(), "{} with pieces of {size}", place.path().display());
            assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}

#[test]
fn any_cookie_can_be_returned_to_while_names_come_and_go() {
    for place in places() {
        for i in 0..500 {
            std::fs::write(place.path().join(format!("f{i}")), b"").expect("write");
        }
        let local = open(place.path());
        let node = Node::ROOT;
        let handle = local.opendir(&cx(), OpenDir { node }).expect("opendir").handle;
        let piece =
            |cookie, size| local.readdir(&cx(), ReadDir { node, handle, cookie, size }).expect("readdir");
        let all = piece(0, 1 << 20).entries;
        assert_eq!(all.len(), 500);
        for removed in &all[..100] {
            std::fs::remove_file(place.path().join(removed.name.as_os_str())).expect("remove");
        }
        for at in [150, 499, 200, 120] {
            let rest: Vec<_> = piece(all[at].cookie, 1 << 20).entries.into_iter().map(|e| e.name).collect();
            let expected: Vec<_> = all[at + 1..].iter().map(|e| e.name.clone()).collect();
            assert_eq!(rest, expected, "from entry {at} on {}", place.path().display());
        }
    }
}

#[test]
fn a_listing_with_attributes_gives_the_nodes_lookup_gives() {
    for place in places() {
        std::fs::create_dir(place.path().join("dir")).expect("mkdir");
        std::fs::write(place.path().join("file"), b"xyz").expect("write");
        std::os::unix::fs::symlink("/nowhere", place.path().join("link")).expect("symlink");
        let local = open(place.path());
        let node = Node::ROOT;
        let handle = local.opendir(&cx(), OpenDir { node }).expect("opendir").handle;
        let op = ReadDirPlus { node, handle, cookie: 0, size: 1 << 16 };
        let listing = local.readdirplus(&cx(), op).expect("readdirplus");
        assert!(listing.eof && listing.entries.len() == 3);
        for DirentPlus { name, entry, .. } in listing.entries {
            assert_eq!(find(&local, &name.to_string()), Ok(entry));
        }
    }
}

#[test]
fn creating_over_what_is_no_file_never_opens_it() {
    for place in places() {
        let local = open(place.path());
        let fifo = place.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("mkfifo");
        std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).expect("symlink");
        for (file, errno) in [("fifo", Errno::ENXIO), ("link", Errno::ELOOP)] {
            let op = Create { dir: Node::ROOT, name: name(file), mode: 0o600, flags: OpenFlags::WRITE_ONLY };
            assert_eq!(local.create(&cx(), op).unwrap_err().errno, errno);
            let node = find(&local, file).expect("lookup").node;
            let op = Open { node, flags: OpenFlags::empty() };
            assert_eq!(local.open(&cx(), op).unwrap_err().errno, errno);
        }
    }
}
