// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dying and silent workers: whatever happens costs that worker at worst, every call ends, and the error says why. Damaged
//! images are in `testing/damaged`.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::Errno;
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The worker that serves this image: its standard input is the image.
fn worker(image: &Image) -> Pid {
    let path = std::fs::canonicalize(image.path()).expect("a path");
    let process = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let command = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let input = std::fs::read_link(entry.path().join("fd/0")).ok()?;
        let is_it = command.starts_with("outrigger-kerne") && input == path;
        is_it.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    let number = std::fs::read_dir("/proc").expect("processes").find_map(process).expect("the worker");
    Pid::from_raw(number).expect("a process")
}

fn reason_of(kernel: &Kernel) -> String {
    kernel.unmount().expect_err("the worker has died").reason.expect("a reason").to_string()
}

#[test]
fn a_worker_that_dies_is_an_error_and_the_image_is_good() {
    let Some(kind) = kind("ext4") else { return };
    for (signal, words) in [(Signal::SEGV, "a signal of another process"), (Signal::KILL, "signal: 9")] {
        let image = Image::new(kind);
        let kernel = Arc::new(image.open());
        let direct = Direct::new(kernel.clone());
        direct.mkdir(Path::new("dir"), 0o755).expect("mkdir");
        let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
        direct.write_at(file, 0, b"kept").expect("write");
        direct.fsync(file, false).expect("fsync");
        kill_process(worker(&image), signal).expect("a signal");
        // A request may still be answered before the signal arrives.
        while direct.stat(Path::new("dir")).is_ok() {}
        assert_eq!(direct.stat(Path::new("dir")).map(drop), Err(Errno::EIO));
        let reason = reason_of(&kernel);
        assert!(reason.contains(words), "{reason}");
        drop((direct, kernel));

        let direct = Direct::new(Arc::new(image.open()));
        let file = direct.open(Path::new("file"), Flags::READ, 0).expect("what was synced is there");
        assert_eq!(direct.read_at(file, 0, 10), Ok(b"kept".to_vec()));
        // Makes the mount writable, so that the journal is replayed into the image.
        direct.unlink(Path::new("file")).expect("unlink");
        drop(direct);
        image.must_be_clean();
    }
}

#[test]
fn a_panic_ends_the_worker_and_says_why() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let direct = Direct::new(Arc::new(image.open()));
    direct.mkdir(Path::new("dir"), 0o755).expect("mkdir");
    direct.mkdir(Path::new("dir/needle-in-a-block"), 0o755).expect("mkdir");
    drop(direct);
    // The blocks with this name: that of the directory, and its copy in the journal.
    let mut bytes = std::fs::read(image.path()).expect("an image");
    for block in bytes.chunks_mut(4096).filter(|block| block.windows(17).any(|at| at == b"needle-in-a-block"))
    {
        block.fill(0xa5);
    }
    std::fs::write(image.path(), bytes).expect("a write");
    let options = Options { passed: vec!["errors=panic".into()], ..Options::default() };
    let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("the image opens"));
    let direct = Direct::new(kernel.clone());
    assert_eq!(direct.stat(Path::new("dir/needle-in-a-block")).map(drop), Err(Errno::EIO));
    let reason = reason_of(&kernel);
    assert!(reason.contains("Kernel panic") && reason.contains("EXT4-fs"), "{reason}");
}

#[test]
fn a_silent_worker_is_given_up_when_unmounting() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let options = Options { patience: Some(Duration::from_secs(1)), ..Options::default() };
    let kernel = Kernel::start(&image.path(), &options).expect("the image opens");
    kill_process(worker(&image), Signal::STOP).expect("a signal");
    let reason = reason_of(&kernel);
    assert!(reason.contains("patience="), "{reason}");
}

#[test]
fn a_file_larger_than_the_memory_is_written_and_read() {
    for name in ["ext4", "xfs", "btrfs"] {
        let Some(kind) = kind(name) else { continue };
        let image = Image::new(kind);
        let options = Options { memory: Some(32 << 20), ..Options::default() };
        let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("the image opens"));
        let direct = Direct::new(kernel.clone());
        let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
        let piece = |number: u64| vec![number as u8; 1 << 20];
        for number in 0..40 {
            assert_eq!(direct.write_at(file, number << 20, &piece(number)), Ok(1 << 20), "{name}");
        }
        for number in 0..40 {
            assert!(direct.read_at(file, number << 20, 1 << 20) == Ok(piece(number)), "{name}");
        }
        direct.close(file).expect("close");
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
    }
}
