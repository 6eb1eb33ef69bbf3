// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disks in qcow2 images, made and checked by QEMU's tools.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::Errno;
use outrigger_driver_kernel::{Kernel, Options, inspect};
use outrigger_images::{Image, Tree, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Whether the tools are here.
fn has_tools() -> bool {
    let there = Command::new("qemu-img").arg("--version").output().is_ok();
    if !there {
        println!("SKIPPED: needs qemu-img");
    }
    there
}

/// Runs `qemu-img` where the image is.
fn qemu(image: &Image, words: &str) -> (i32, String) {
    let folder = image.path().parent().map(Path::to_owned).expect("a folder");
    let output = Command::new("qemu-img").args(words.split(' ')).current_dir(folder).output();
    let output = output.expect("qemu-img");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

fn must(image: &Image, words: &str) {
    let (status, text) = qemu(image, words);
    assert_eq!(status, 0, "qemu-img {words}: {text}");
}

fn beside(image: &Image, name: &str) -> PathBuf {
    image.path().with_file_name(name)
}

/// What becomes of a plain image `base`: a qcow2 image `image`.
const FORMS: &[&str] = &[
    "convert -O qcow2 base image",
    "convert -O qcow2 -o compat=0.10,cluster_size=512 base image",
    "convert -c -O qcow2 -o compression_type=zstd base image",
    "create -q -f qcow2 -F raw -b base image",
];

fn made(name: &str, form: &str) -> Option<Image> {
    let image = Image::new(kind(name)?);
    std::fs::rename(image.path(), beside(&image, "base")).expect("a file");
    must(&image, form);
    Some(image)
}

/// The image is one that is clean, by QEMU's tools, and the file system in it by its own.
fn must_be_clean(image: &Image) {
    must(image, "check -q image");
    std::fs::rename(image.path(), beside(image, "kept")).expect("a file");
    must(image, "convert -O raw kept image");
    image.must_be_clean();
    std::fs::rename(beside(image, "kept"), image.path()).expect("a file");
}

fn opened(image: &Image, options: &Options) -> Arc<Kernel> {
    Arc::new(Kernel::start(&image.path(), options).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn what_is_written_into_an_image_is_clean_and_there() {
    if !has_tools() {
        return;
    }
    for form in FORMS {
        for (io, guard) in [("buffered", false), ("direct", false), ("mmap", false), ("buffered", true)] {
            let Some(image) = made("ext4", form) else { return };
            let options = Options { io: Some(io.into()), guard, ..Options::default() };
            let kernel = opened(&image, &options);
            Tree::new(&Direct::new(kernel.clone())).make();
            kernel.unmount().unwrap_or_else(|error| panic!("{form}, {io}: {error}"));
            must_be_clean(&image);
            let kernel = opened(&image, &options);
            Tree::new(&Direct::new(kernel.clone())).must_be_there();
            kernel.unmount().unwrap_or_else(|error| panic!("{form}, {io}: {error}"));
        }
    }
}

#[test]
fn what_files_no_longer_need_is_given_back() {
    if !has_tools() {
        return;
    }
    let Some(image) = made("ext4", FORMS[0]) else { return };
    let used = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(image.path()).expect("an image").blocks() * 512
    };
    let options = Options { passed: vec!["discard".into()], ..Options::default() };
    let kernel = opened(&image, &options);
    let direct = Direct::new(kernel.clone());
    let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
    for piece in 0..16_u64 {
        assert_eq!(direct.write_at(file, piece << 20, &[7; 1 << 20]), Ok(1 << 20));
    }
    direct.fsync(file, false).expect("fsync");
    direct.close(file).expect("close");
    let full = used();
    assert!(full > 16 << 20);
    direct.unlink(Path::new("file")).expect("unlink");
    drop(direct);
    kernel.unmount().expect("it unmounts");
    assert!(used() < full - (12 << 20), "{full} {}", used());
    must_be_clean(&image);
}

/// The process that serves this image.
fn worker(image: &Image) -> Pid {
    let path = image.path().canonicalize().expect("a path");
    let serves = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let command = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let input = std::fs::read_link(entry.path().join("fd/0")).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        (command.starts_with("outrigger-kerne") && input == path).then(|| Pid::from_raw(number)).flatten()
    };
    std::fs::read_dir("/proc").expect("processes").find_map(serves).expect("the worker")
}

/// Nothing worse than lost clusters, and everything that was fsynced.
#[test]
fn a_worker_that_is_killed_harms_nothing() {
    if !has_tools() {
        return;
    }
    for form in FORMS {
        let Some(image) = made("ext4", form) else { return };
        for round in 0..4_u64 {
            let kernel = opened(&image, &Options::default());
            let direct = Direct::new(kernel.clone());
            let name = format!("kept{round}");
            let file = direct.open(Path::new(&name), Flags::NEW, 0o644).expect("create");
            assert_eq!(direct.write_at(file, 0, &[round as u8 + 1; 300_000]), Ok(300_000));
            direct.fsync(file, false).expect("fsync");
            let process = worker(&image);
            // Killed while it is at work on a request, after some.
            let (sender, begun) = std::sync::mpsc::channel();
            let killer = std::thread::spawn(move || {
                begun.iter().nth(5 + 40 * round as usize);
                kill_process(process, Signal::KILL).expect("it is there");
            });
            let mut number = 0_u64;
            loop {
                // When that thread has killed it, it has ended.
                let _ = sender.send(());
                let written = direct.write_at(file, 400_000 + number * 70_000, &[9; 20_000]);
                if written.is_err() || number.is_multiple_of(9) && direct.fsync(file, false).is_err() {
                    break;
                }
                number = (number + 1) % 300;
            }
            killer.join().expect("it ends");
            drop(direct);
            assert!(kernel.unmount().is_err());
            let (status, text) = qemu(&image, "check image");
            assert!(status == 0 || status == 3, "{form}: {text}");
            let direct = Direct::new(opened(&image, &Options::default()));
            for round in 0..=round {
                let file = direct.open(Path::new(&format!("kept{round}")), Flags::READ, 0).expect("open");
                let expected = vec![round as u8 + 1; 300_000];
                assert!(direct.read_at(file, 0, 300_000) == Ok(expected), "{form}: {round}");
                direct.close(file).expect("close");
            }
        }
        must(&image, "check -q -r leaks image");
        must_be_clean(&image);
    }
}

/// What was sealed is applied to the image by the next worker, whatever the one before had done of it.
#[test]
fn a_guarded_image_survives_its_workers() {
    if !has_tools() {
        return;
    }
    for form in FORMS {
        let Some(image) = made("ext4", form) else { return };
        let kernel = opened(&image, &Options { guard: true, ..Options::default() });
        let direct = Direct::new(kernel.clone());
        for round in 0..6_u64 {
            let file = direct.open(Path::new(&format!("file{round}")), Flags::NEW, 0o644).expect("create");
            let pid = kernel.worker().and_then(|pid| Pid::from_raw(pid as i32)).expect("a worker");
            let (sender, begun) = std::sync::mpsc::channel();
            let killer = std::thread::spawn(move || {
                begun.iter().nth(2 + round as usize);
                kill_process(pid, Signal::KILL).expect("it is there");
            });
            for number in 0..12 {
                let _ = sender.send(());
                let data = [number as u8 + 1; 20_000];
                assert_eq!(direct.write_at(file, number * 70_000, &data), Ok(data.len()));
                assert_eq!(direct.fsync(file, false), Ok(()));
            }
            killer.join().expect("it ends");
            direct.close(file).expect("close");
        }
        drop(direct);
        kernel.unmount().unwrap_or_else(|error| panic!("{form}: {error}"));
        let (status, text) = qemu(&image, "check image");
        assert!(status == 0 || status == 3, "{form}: {text}");
        must(&image, "check -q -r leaks image");
        must_be_clean(&image);
        let direct = Direct::new(opened(&image, &Options::default()));
        for round in 0..6 {
            let file = direct.open(Path::new(&format!("file{round}")), Flags::READ, 0).expect("open");
            for number in 0..12 {
                let expected = vec![number as u8 + 1; 20_000];
                assert!(direct.read_at(file, number * 70_000, 20_000) == Ok(expected), "{form}: {round}");
            }
            direct.close(file).expect("close");
        }
    }
}

/// The names in an untrusted image lead only to files in its own directory or below.
#[test]
fn an_image_is_based_on_what_is_beside_it_only() {
    if !has_tools() {
        return;
    }
    let Some(image) = made("ext4", FORMS[3]) else { return };
    let elsewhere = tempfile::tempdir().expect("a directory");
    let (inner, outer) = (beside(&image, "sub/base"), elsewhere.path().join("base"));
    std::fs::create_dir(beside(&image, "sub")).expect("a directory");
    std::fs::copy(beside(&image, "base"), &outer).expect("a copy");
    std::fs::rename(beside(&image, "base"), &inner).expect("a file");
    let refused = |options: &Options| Kernel::start(&image.path(), options).err();
    assert!(refused(&Options::default()).is_some_and(|error| error.errno == Errno::ENOENT));
    must(&image, "rebase -u -f qcow2 -F raw -b sub/base image");
    assert_eq!(refused(&Options::default()), None, "below");
    for named in [outer.display().to_string(), "base".into()] {
        // The second time by a link that leads out.
        must(&image, &format!("rebase -u -f qcow2 -F raw -b {named} image"));
        let error = refused(&Options::default()).expect("it is elsewhere");
        assert_eq!(error.errno, Errno::EACCES);
        assert!(error.to_string().contains("backing=allow"), "{error}");
        assert!(inspect(&image.path()).is_err());
        assert_eq!(refused(&Options { backing: true, ..Options::default() }), None);
        let _ = std::os::unix::fs::symlink(&outer, beside(&image, "base"));
    }
    must(&image, "rebase -u -f qcow2 -F qcow2 -b image image");
    let error = refused(&Options::default()).expect("a loop");
    assert!(matches!(error.errno, Errno::ELOOP | Errno::EBUSY), "{error}");
}

#[test]
fn an_image_that_is_marked_is_read_and_not_written() {
    use std::os::unix::fs::FileExt;
    if !has_tools() {
        return;
    }
    let Some(image) = made("ext4", FORMS[0]) else { return };
    let file = std::fs::File::options().write(true).open(image.path()).expect("an image");
    file.write_all_at(&[1], 79).expect("the mark of an image that was not closed");
    let found = inspect(&image.path()).expect("it can be read");
    assert_eq!((found.format, found.size), ("qcow2", 64 << 20));
    assert_eq!(found.volume.map(|volume| volume.kind), Some("ext4"));
    let kernel = opened(&image, &Options::default());
    let direct = Direct::new(kernel);
    assert!(direct.stat(Path::new("lost+found")).is_ok());
    assert_eq!(direct.mkdir(Path::new("new"), 0o755), Err(Errno::EROFS));
}

#[test]
fn a_virtual_machine_and_we_keep_each_other_out() {
    if !has_tools() {
        return;
    }
    for form in ["convert -O raw base image", "convert -O qcow2 base image"] {
        let Some(image) = made("ext4", form) else { return };
        let mut machine = Command::new("qemu-io")
            .arg(image.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("qemu-io");
        machine.stdin.as_mut().expect("a pipe").write_all(b"read 0 512\n").expect("it listens");
        let answers = BufReader::new(machine.stdout.take().expect("a pipe")).lines();
        let has_read = answers.map_while(Result::ok).any(|line| line.contains("512/512"));
        assert!(has_read, "it reads");
        for read_only in [false, true] {
            let options = Options { read_only, ..Options::default() };
            let error = Kernel::start(&image.path(), &options).map(drop).expect_err("it is in use");
            let reason = error.reason.unwrap_or_default();
            assert!(error.errno == Errno::EBUSY && reason.contains("virtual machine"), "{reason}");
        }
        drop(machine.stdin.take());
        machine.wait().expect("an end");

        let kernel = opened(&image, &Options::default());
        let (status, text) = qemu(&image, "convert -O raw image copy");
        assert!(status != 0 && text.contains("lock"), "{text}");
        kernel.unmount().expect("it unmounts");
        drop(kernel);
        let reader = opened(&image, &Options { read_only: true, ..Options::default() });
        must(&image, "convert -O raw image copy");
        drop(reader);
        must(&image, "convert -O raw image copy");
    }
}
