// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing outside the directory is reached, whatever names and links lie inside it.

mod common;

use common::*;
use outrigger_core::ops::{Create, Open, OpenDir, OpenFlags, SetAttr, SymLink};
use outrigger_core::{BlockingDriver, Errno, Node, SetAttrs, Target};
use outrigger_driver_local::{Local, LocalOptions};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

fn modes() -> [LocalOptions; 2] {
    [LocalOptions::default(), LocalOptions { handles: false, ..LocalOptions::default() }]
}

/// A directory with a secret beside the one that is served.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("served")).expect("mkdir");
    fs::create_dir(dir.path().join("outside")).expect("mkdir");
    fs::write(dir.path().join("outside/secret"), b"secret").expect("write");
    dir
}

#[test]
fn symbolic_links_are_told_and_never_followed() {
    for options in modes() {
        let dir = place();
        let local = Local::open(dir.path().join("served"), options).expect("open");
        let outside = dir.path().join("outside");
        for (link, target) in [("up", "../outside".as_ref()), ("far", outside.as_path())] {
            symlink(target, dir.path().join("served").join(link)).expect("symlink");
            let node = find(&local, link).expect("lookup").node;
            let through = find(&local, &format!("{link}/secret")).unwrap_err().errno;
            assert_eq!(through, Errno::ENOTDIR);
            assert_eq!(local.opendir(&cx(), OpenDir { node }).unwrap_err().errno, Errno::ENOTDIR);
            let op = Open { node, flags: OpenFlags::empty() };
            assert_eq!(local.open(&cx(), op).unwrap_err().errno, Errno::ELOOP);
            let op = Create {
                dir: node,
                name: name("new"),
                mode: 0o600,
                umask: 0,
                flags: OpenFlags::WRITE_ONLY,
                initial: None,
            };
            assert_eq!(local.create(&cx(), op).unwrap_err().errno, Errno::ENOTDIR);
            let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
            assert!(local.setattr(&cx(), SetAttr { node, handle: None, attrs }).is_err());
            let attrs = SetAttrs { mode: Some(0), ..SetAttrs::default() };
            assert!(local.setattr(&cx(), SetAttr { node, handle: None, attrs }).is_err());
        }
        let target = Target::new("/proc/self/root").expect("a target");
        let op = SymLink { dir: Node::ROOT, name: name("magic"), target, initial: None };
        let node = local.symlink(&cx(), op).expect("symlink").node;
        assert_eq!(local.opendir(&cx(), OpenDir { node }).unwrap_err().errno, Errno::ENOTDIR);
        assert_eq!(fs::read(outside.join("secret")).expect("read"), b"secret");
        assert_eq!(fs::read_dir(outside).expect("list").count(), 1);
    }
}

#[test]
fn a_directory_that_becomes_a_link_while_it_is_used_leads_nowhere() {
    for options in modes() {
        let dir = place();
        let served = dir.path().join("served");
        fs::create_dir(served.join("dir")).expect("mkdir");
        fs::write(served.join("dir/secret"), b"inside").expect("write");
        symlink("../outside", served.join("link")).expect("symlink");
        let local = Local::open(&served, LocalOptions { descriptors: 1, ..options }).expect("open");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = (served.join("dir"), served.join("link"));
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags)
                        .expect("swap");
                }
            });
            for _ in 0..5000 {
                if let Ok(entry) = find(&local, "dir/secret")
                    && let Ok(data) = read_all(&local, entry.node)
                {
                    assert_eq!(data, b"inside");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn made_up_nodes_are_refused() {
    // Where nodes are handles, one that names an inode of the same file system works: doors authenticate nodes that
    // come from strangers.
    let by_path = [2, 3, u64::MAX, 0xdead_beef_0000_0001];
    for (options, more) in modes().into_iter().zip([&[][..], &by_path[..]]) {
        let dir = place();
        let local = Local::open(dir.path().join("served"), options).expect("open");
        for number in [0, 7 << 32, 1 << 32].iter().chain(more) {
            let refused = stat(&local, Node(*number)).unwrap_err().errno;
            assert_eq!(refused, Errno::ESTALE, "{number:#x}");
        }
    }
}

#[test]
fn a_missing_directory_is_a_clear_error() {
    let error = Local::open("/nowhere/at/all", LocalOptions::default()).unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(error.reason.is_some_and(|reason| reason.contains("/nowhere/at/all")));
}
