// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways in which the bytes of an image are moved (`io=`).

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::Errno;
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, Tree, kind};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BACK_ENDS: [&str; 4] = ["buffered", "direct", "mmap", "uring"];

fn options(io: &str) -> Options {
    Options { io: Some(io.to_owned()), ..Options::default() }
}

fn opened(image: &Image, io: &str) -> Arc<Kernel> {
    Arc::new(Kernel::start(&image.path(), &options(io)).unwrap_or_else(|error| panic!("{io}: {error}")))
}

/// Whether files beside the image can be opened past the page cache.
fn has(io: &str, image: &Image) -> bool {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let can = io != "direct" || File::options().read(true).custom_flags(flags).open(image.path()).is_ok();
    if !can {
        println!("SKIPPED: io=direct needs O_DIRECT where temporary files are");
    }
    can
}

#[test]
fn what_each_has_written_is_clean_and_read_by_all() {
    for kind in ["ext4", "xfs", "vfat"].into_iter().filter_map(kind) {
        for io in BACK_ENDS {
            let image = Image::new(kind);
            if !has(io, &image) {
                continue;
            }
            let kernel = opened(&image, io);
            Tree::new(&Direct::new(kernel.clone())).make();
            kernel.unmount().unwrap_or_else(|error| panic!("{io}: {error}"));
            image.must_be_clean();
            for reader in BACK_ENDS.into_iter().filter(|reader| has(reader, &image)) {
                let kernel = opened(&image, reader);
                Tree::new(&Direct::new(kernel.clone())).must_be_there();
                kernel.unmount().unwrap_or_else(|error| panic!("{io}, {reader}: {error}"));
            }
        }
    }
}

/// A partition that begins at an odd sector: nothing in it is where the host's blocks are.
#[test]
fn an_image_may_begin_at_any_sector() {
    let Some(kind) = kind("ext2") else { return };
    let image = Image::new(kind);
    let content = std::fs::read(image.path()).expect("an image");
    for io in BACK_ENDS.into_iter().filter(|io| has(io, &image)) {
        let mut disk = vec![0; 512 + content.len()];
        disk[512..].copy_from_slice(&content);
        disk[510..512].copy_from_slice(b"\x55\xaa");
        disk[450] = 0x83;
        disk[454..458].copy_from_slice(&1_u32.to_le_bytes());
        disk[458..462].copy_from_slice(&((content.len() / 512) as u32).to_le_bytes());
        std::fs::write(image.path(), &disk).expect("a disk");
        let options = Options { partition: Some(1), ..options(io) };
        let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("it opens"));
        Tree::new(&Direct::new(kernel.clone())).make();
        kernel.unmount().expect("it unmounts");
        let disk = std::fs::read(image.path()).expect("a disk");
        std::fs::write(image.path(), &disk[512..]).expect("an image");
        image.must_be_clean();
        Tree::new(&Direct::new(opened(&image, io))).must_be_there();
    }
}

/// How many system calls that read files the worker of this image has made.
fn reads(image: &Image) -> u64 {
    let path = image.path().canonicalize().expect("a path");
    let process = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let command = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let input = std::fs::read_link(entry.path().join("fd/0")).ok()?;
        (command.starts_with("outrigger-kerne") && input == path).then(|| entry.path())
    };
    let process = std::fs::read_dir("/proc").expect("processes").find_map(process).expect("the worker");
    let counts = std::fs::read_to_string(process.join("io")).expect("its counts");
    let count = counts.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("a count");
    count.parse().expect("a number")
}

#[test]
fn windows_need_no_system_call_to_be_looked_into() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let direct = Direct::new(opened(&image, "buffered"));
    let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
    for piece in 0..40 {
        assert_eq!(direct.write_at(file, piece * MIB, &[piece as u8 + 1; MIB as usize]), Ok(MIB as usize));
    }
    direct.close(file).expect("close");
    drop(direct);
    let count = |io: &str| {
        // Less memory than the file has, and more of it than the windows show.
        let options = Options { memory: Some(32 << 20), ..options(io) };
        let direct = Direct::new(Arc::new(Kernel::start(&image.path(), &options).expect("it opens")));
        let file = direct.open(Path::new("file"), Flags::READ, 0).expect("open");
        let before = reads(&image);
        for piece in (0..40).chain(0..40) {
            let expected = vec![piece as u8 + 1; MIB as usize];
            assert!(direct.read_at(file, piece * MIB, MIB as usize) == Ok(expected), "{io}: {piece}");
        }
        let made = reads(&image) - before;
        direct.close(file).expect("close");
        made
    };
    let (buffered, mapped) = (count("buffered"), count("mmap"));
    assert!(buffered >= 80, "{buffered}");
    assert!(mapped <= buffered / 8, "{mapped} of {buffered}");
}

#[test]
fn an_image_that_shrinks_under_its_windows_is_an_error_that_says_so() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = opened(&image, "mmap");
    File::options().write(true).open(image.path()).expect("the image").set_len(4096).expect("a size");
    let direct = Direct::new(kernel.clone());
    let errors = (0..50).map(|number| direct.mkdir(Path::new(&format!("dir{number}")), 0o755));
    let error = errors.filter_map(Result::err).next().or_else(|| direct.stat(Path::new("x")).err());
    assert_eq!(error, Some(Errno::EIO));
    let reason = kernel.unmount().map_or_else(|error| error.to_string(), |()| String::new());
    assert!(reason.contains("shorter") || reason.contains("EXT4-fs"), "{reason}");
}

/// What files no longer need is a hole again, and what was never written stays one.
#[test]
fn images_stay_sparse() {
    let Some(kind) = kind("ext4") else { return };
    for io in BACK_ENDS {
        let image = Image::new(kind);
        if !has(io, &image) {
            continue;
        }
        let blocks = || std::fs::metadata(image.path()).expect("an image").blocks() * 512;
        let options = Options { passed: vec!["discard".into()], ..options(io) };
        let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("it opens"));
        let direct = Direct::new(kernel.clone());
        let empty = blocks();
        let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
        for piece in 0..16 {
            assert_eq!(direct.write_at(file, piece * MIB, &[7; MIB as usize]), Ok(MIB as usize));
        }
        direct.fsync(file, false).expect("fsync");
        direct.close(file).expect("close");
        let full = blocks();
        assert!(full >= empty + 16 * MIB, "{io}: {empty} {full}");
        direct.unlink(Path::new("file")).expect("unlink");
        drop(direct);
        kernel.unmount().expect("it unmounts");
        assert!(blocks() < empty + 4 * MIB, "{io}: {empty} {full} {}", blocks());
        image.must_be_clean();
    }
}

#[test]
fn an_unknown_way_is_refused() {
    let error = Options::default().set("io", "telepathy").expect_err("there is none");
    assert!(error.reason.expect("a reason").contains("io=buffered|direct|mmap|uring is expected"));
}
