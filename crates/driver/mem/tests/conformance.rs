// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a tree in memory.

use outrigger_conformance::{Direct, Subject, Target, run};
use outrigger_core::{Inline, Service};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

fn mem() -> Arc<dyn Service> {
    let threads = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads))
}

#[test]
fn every_case_holds() {
    let direct = Direct::new(mem());
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("{report}");
    report.must_hold(190);
}

#[test]
fn everything_is_given_back() {
    let direct = Direct::new(mem());
    let root = std::path::Path::new("");
    let before = direct.statfs(root).expect("statfs");
    run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    remove_all(&direct, root);
    assert_eq!(direct.statfs(root).expect("statfs"), before, "space and inodes after everything was removed");
}

/// Removes everything in a directory.
fn remove_all(direct: &Direct, dir: &std::path::Path) {
    use outrigger_conformance::Flags;
    use std::os::unix::ffi::OsStrExt;
    loop {
        let fd = direct.open(dir, Flags::READ | Flags::DIRECTORY, 0).expect("opendir");
        let entries = direct.read_dir(fd, 0, 1 << 16).expect("readdir").entries;
        direct.close(fd).expect("close");
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            let path = dir.join(std::ffi::OsStr::from_bytes(&entry.name));
            if entry.kind == Some(outrigger_core::FileKind::Directory) {
                remove_all(direct, &path);
                direct.rmdir(&path).expect("rmdir");
            } else {
                direct.unlink(&path).expect("unlink");
            }
        }
    }
}
