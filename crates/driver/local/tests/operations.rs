// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations do on the file systems of this machine.

mod common;

use common::*;
use outrigger_core::ops::{
    Create, Locate, MkDir, Open, OpenDir, OpenFlags, ReadDir, ReadDirPlus, SetAttr, Unlink, Write,
};
use outrigger_core::reply::{COOKIE_MAX, DirentPlus};
use outrigger_core::{BlockingDriver, Credentials, Cx, Errno, Node, Payload, SetAttrs, SetTime, Time};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

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

/// fcntl(2) sets and clears `O_APPEND` of an open file, and the kernel says so with each write.
#[test]
fn a_write_that_says_whether_it_appends_is_believed_rather_than_its_open_file() {
    for place in places() {
        let local = open(place.path());
        for (opened, appends, expected) in [
            (OpenFlags::APPEND, Some(false), &b"ab345"[..]),
            (OpenFlags::empty(), Some(true), b"12345ab"),
            (OpenFlags::APPEND, None, b"12345ab"),
        ] {
            std::fs::write(place.path().join("log"), b"12345").expect("write");
            let node = find(&local, "log").expect("lookup").node;
            let flags = OpenFlags::WRITE_ONLY | opened;
            let handle = local.open(&cx(), Open { node, flags }).expect("open").handle;
            let (data, cx) = (Payload::from(b"ab".to_vec()), Cx { appends, ..cx() });
            let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
            local.write(&cx, write).expect("write");
            let content = std::fs::read(place.path().join("log")).expect("read");
            assert_eq!(content, expected, "{opened:?} {appends:?}");
        }
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
            let op = Create {
                dir: Node::ROOT,
                name: name(file),
                mode: 0o600,
                umask: 0,
                flags: OpenFlags::WRITE_ONLY,
                initial: None,
            };
            assert_eq!(local.create(&cx(), op).unwrap_err().errno, errno);
            let node = find(&local, file).expect("lookup").node;
            let op = Open { node, flags: OpenFlags::empty() };
            assert_eq!(local.open(&cx(), op).unwrap_err().errno, errno);
        }
    }
}

/// Set for the run of this program as nobody.
const AS_NOBODY: &str = "OUTRIGGER_LOCAL_TEST_AS_NOBODY";
const NOBODY: u32 = 65534;

#[test]
fn all_of_this_holds_without_privileges() {
    if std::env::var_os(AS_NOBODY).is_some() {
        assert!(!is_root());
        return;
    }
    if !is_root() {
        eprintln!("SKIPPED: already running without privileges");
        return;
    }
    // The program may lie where nobody may not go.
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let program = dir.path().join("operations");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copy");
    let output = Command::new(program).uid(NOBODY).gid(NOBODY).env(AS_NOBODY, "1").current_dir("/").output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_root_makes_for_others_is_theirs() {
    if !is_root() {
        eprintln!("SKIPPED: only root can make files for others");
        return;
    }
    for place in places() {
        let local = open(place.path());
        let cred = Credentials::new(NOBODY, 1234);
        let theirs = Cx::new(2, cred, "test");
        let op = Create {
            dir: Node::ROOT,
            name: name("file"),
            mode: 0o4711,
            umask: 0,
            flags: OpenFlags::WRITE_ONLY | OpenFlags::EXCL,
            initial: None,
        };
        // The directory is root's and closed: whether the caller may write there is the door's to decide.
        let attr = local.create(&theirs, op).expect("create").entry.attr;
        assert_eq!((attr.uid, attr.gid, attr.permissions()), (NOBODY, 1234, 0o4711));
        let op = MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o775, umask: 0, initial: None };
        let dir = local.mkdir(&theirs, op).expect("mkdir");
        std::fs::set_permissions(place.path().join("dir"), PermissionsExt::from_mode(0o2775)).expect("chmod");
        assert_eq!((dir.attr.uid, dir.attr.gid), (NOBODY, 1234));
        let inside = local
            .mkdir(&cx(), MkDir { dir: dir.node, name: name("in"), mode: 0o755, umask: 0, initial: None })
            .expect("mkdir");
        assert_eq!((inside.attr.uid, inside.attr.gid), (0, 1234), "a set-group-id directory gives its group");
        assert_eq!(
            mkdir(&local, Node::ROOT, "own").expect("mkdir").attr.uid,
            0,
            "the thread is itself again"
        );
    }
}

#[test]
fn a_combined_change_happens_as_a_whole_or_not_at_all() {
    for place in places() {
        let local = open(place.path());
        std::fs::write(place.path().join("file"), b"content").expect("write");
        let entry = find(&local, "file").expect("lookup");
        let change = |attrs| local.setattr(&cx(), SetAttr { node: entry.node, handle: None, attrs });
        let times = (Some(SetTime::To(Time::new(-5, 7))), Some(SetTime::To(Time::new(1 << 33, 999_999_999))));
        let all = SetAttrs {
            mode: Some(0o4600),
            size: Some(3),
            atime: times.0,
            mtime: times.1,
            ..SetAttrs::default()
        };
        let attr = change(all).expect("setattr").attr;
        assert_eq!((attr.permissions(), attr.size, attr.atime), (0o4600, 3, Time::new(-5, 7)));
        assert_eq!(attr.mtime, Time::new(1 << 33, 999_999_999), "cutting did not touch it afterwards");
        let refused = SetAttrs { mode: Some(0o777), size: Some(u64::MAX), ..SetAttrs::default() };
        assert_eq!(change(refused).unwrap_err().errno, Errno::EINVAL);
        let refused = SetAttrs { mode: Some(0o777), size: Some(i64::MAX as u64), ..SetAttrs::default() };
        if change(refused).is_err() {
            assert_eq!(stat(&local, entry.node).expect("stat").permissions(), 0o4600, "the mode is back");
        }
    }
}

#[test]
fn a_node_is_located_where_it_is_now() {
    for place in places() {
        let local = open(place.path());
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let dir = mkdir(&local, Node::ROOT, "dir").expect("mkdir").node;
        let file = create(&local, dir, "file").expect("create").entry.node;
        let path = |node| local.locate(&cx, Locate { node }).map(|path| path.to_string());
        assert_eq!(path(Node::ROOT).as_deref(), Ok("/"));
        assert_eq!(path(file).as_deref(), Ok("/dir/file"));
        std::fs::rename(place.path().join("dir/file"), place.path().join("moved")).expect("rename");
        assert_eq!(path(file).as_deref(), Ok("/moved"));
    }
}
