// SPDX-License-Identifier: MIT OR Apache-2.0
//! Features of ext4 without which an image would be refused, or only read; and what the process that reads it still has.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_driver_kernel::{Kernel, Options, program};
use outrigger_images::command;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A new image of ext4 that mkfs made with further words; none where it cannot be served or made.
fn made(dir: &Path, words: &[&str]) -> Option<PathBuf> {
    if program().is_none() || command("mkfs.ext4").arg("-V").output().is_err() {
        println!("SKIPPED: needs outrigger-kernel and mkfs.ext4");
        return None;
    }
    let image = dir.join("image");
    File::create(&image).expect("a file").set_len(64 << 20).expect("a size");
    run("mkfs.ext4", words, &image);
    Some(image)
}

/// Runs a tool on an image, which must succeed; gives what it said.
fn run(tool: &str, words: &[&str], image: &Path) -> String {
    let output = command(tool).args(words).arg(image).output().expect("a tool");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{tool} {words:?}: {text}");
    text
}

fn opened(image: &Path, options: &Options) -> (Arc<Kernel>, Direct) {
    let kernel = Kernel::start(image, options).unwrap_or_else(|error| panic!("{error}"));
    let kernel = Arc::new(kernel);
    (Arc::clone(&kernel), Direct::new(kernel))
}

fn write(tree: &Direct, path: &str, content: &[u8]) {
    let file = tree.open(Path::new(path), Flags::NEW, 0o644).expect("create");
    tree.write_at(file, 0, content).expect("write");
    tree.close(file).expect("close");
}

#[test]
fn names_in_a_directory_that_folds_case_are_alike() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(image) = made(dir.path(), &["-q", "-O", "casefold", "-E", "encoding=utf8"]) else { return };
    let (kernel, tree) = opened(&image, &Options::default());
    tree.mkdir(Path::new("folds"), 0o755).expect("mkdir");
    kernel.unmount().expect("it unmounts");
    // EXT4_CASEFOLD_FL and EXT4_EXTENTS_FL, which chattr +F sets.
    run("debugfs", &["-w", "-R", "set_inode_field folds flags 0x40080000"], &image);
    for guard in [false, true] {
        let (kernel, tree) = opened(&image, &Options { guard, ..Options::default() });
        if !guard {
            write(&tree, "folds/Stra\u{df}e", b"content");
        }
        for alike in ["folds/stra\u{df}e", "folds/STRASSE"] {
            assert_eq!(tree.stat(Path::new(alike)).map(|attr| attr.size), Ok(7), "{alike}");
        }
        assert!(tree.stat(Path::new("FOLDS")).is_err(), "the directory around it does not");
        kernel.unmount().expect("it unmounts");
    }
    run("e2fsck", &["-fn"], &image);
}

#[test]
fn an_image_with_quotas_is_written_and_its_accounts_are_right() {
    let dir = tempfile::tempdir().expect("a directory");
    let quotas = ["-q", "-O", "quota,project", "-I", "256", "-E", "quotatype=usrquota:grpquota:prjquota"];
    let Some(image) = made(dir.path(), &quotas) else { return };
    for (guard, name) in [(false, "plain"), (true, "guarded")] {
        let (kernel, tree) = opened(&image, &Options { guard, ..Options::default() });
        write(&tree, name, &[b'x'; 100_000]);
        write(&tree, "gone", &[b'y'; 100_000]);
        tree.unlink(Path::new("gone")).expect("unlink");
        kernel.unmount().expect("it unmounts");
        // Fails when an account says something else than what is there.
        run("e2fsck", &["-fn"], &image);
    }
    let accounts = run("debugfs", &["-R", "list_quota user"], &image);
    assert!(accounts.lines().count() > 1, "{accounts}");
}

/// Lines of `/proc/PID/status` of the process that serves, and whether it shares a namespace with this one.
#[test]
fn the_process_of_the_superusers_kernel_code_is_nobody_with_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(image) = made(dir.path(), &["-q"]) else { return };
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let (kernel, tree) = opened(&image, &Options::default());
    let process = serves(&image);
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("its status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("none").trim();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert!(field("Uid:").split_whitespace().all(|id| id != "0"), "{status}");
    assert!(field("Gid:").split_whitespace().all(|id| id != "0"), "{status}");
    assert_eq!((field("Groups:"), field("NoNewPrivs:"), field("Seccomp:")), ("", "1", "2"));
    let said = kernel.isolation().expect("it says so");
    for (name, space) in
        [("user", "user"), ("mount", "mnt"), ("network", "net"), ("ipc", "ipc"), ("uts", "uts")]
    {
        let link = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/{space}")).expect("a namespace");
        assert_eq!(link(&process.to_string()) != link("self"), said.contains(name), "{space}: {said}");
    }
    assert_eq!(std::fs::read_dir(format!("/proc/{process}/root")).expect("its root").count(), 0, "{said}");
    write(&tree, "file", b"it serves all the same");
    kernel.unmount().expect("it unmounts");
}

/// The child of this process that has a file open.
fn serves(image: &Path) -> u32 {
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |number: &u32| {
        *number != std::process::id()
            && std::fs::read_link(format!("/proc/{number}/fd/0")).is_ok_and(|open| open == image)
    };
    numbers.find(has).expect("a process that serves the image")
}
