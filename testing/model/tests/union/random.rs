// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operations on the union of two trees, on a copy of the lower one, and on the kernel's overlayfs.

use super::tree::{Tree, list, populate, write};
use super::{Trees, mem};
use outrigger_conformance::{Direct, Flags, HostDir, Kind, Subject};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{Errno, FileKind};
use outrigger_runtime::Threads;
use outrigger_sim::sample::Random;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Steps of one run.
const STEPS: usize = 100;

/// What a step answers.
type Outcome = Result<(), Errno>;

/// Every directory of a tree, the root first.
fn directories(subject: &dyn Subject) -> Vec<String> {
    let mut dirs = vec![String::new()];
    let mut next = 0;
    while let Some(dir) = dirs.get(next).cloned() {
        let mut names = list(subject, &dir);
        names.sort();
        let paths = names.into_iter().map(|name| if dir.is_empty() { name } else { format!("{dir}/{name}") });
        let is_dir = |path: &String| subject.stat(Path::new(path)).is_ok_and(|attr| attr.is_dir());
        dirs.extend(paths.filter(is_dir).collect::<Vec<_>>());
        next += 1;
    }
    dirs
}

/// A step, the same on each subject.
struct Step {
    what: u64,
    one: String,
    two: String,
    number: u64,
}

impl Step {
    fn random(random: &mut Random, subject: &dyn Subject) -> Self {
        let dirs = directories(subject);
        let tree = Tree::of(subject);
        let known: Vec<&str> = tree.names().collect();
        let mut path = || {
            if random.bool() && !known.is_empty() {
                return known[random.usize(0..known.len())].to_owned();
            }
            let dir = &dirs[random.usize(0..dirs.len())];
            let name = ["one", "file", "sub", "deep", "x"][random.usize(0..5)];
            if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
        };
        let (one, two) = (path(), path());
        Step { what: random.u64(0..14), one, two, number: random.u64(0..1 << 16) }
    }

    fn run(&self, on: &dyn Subject) -> Outcome {
        let (one, two) = (Path::new(&self.one), Path::new(&self.two));
        let kind = on.stat(one).map(|attr| attr.kind());
        let opens = |flags, at: u64| {
            // A pipe would wait for its other end.
            if kind.is_ok_and(|kind| !matches!(kind, FileKind::Regular | FileKind::Directory)) {
                return Ok(());
            }
            let fd = on.open(one, flags, 0o644)?;
            let done = on.write_at(fd, at, &self.number.to_le_bytes()).map(drop);
            on.close(fd).and(done)
        };
        match self.what {
            0 => on.mkdir(one, 0o700 | self.number as u32 & 0o77),
            1 => on.symlink(b"somewhere", one),
            2 => on.mknod(one, FileKind::Fifo, 0o644, 0),
            3 => on.link(one, two),
            4 | 5 => on.unlink(one),
            6 => on.rmdir(one),
            7 | 8 => on.rename(one, two, RenameFlags::empty()),
            9 if self.number & 1 == 0 => on.rename(one, two, RenameFlags::NOREPLACE),
            9 => on.rename(one, two, RenameFlags::EXCHANGE),
            10 if kind == Ok(FileKind::Symlink) => Ok(()),
            10 => on.chmod(one, 0o600 | self.number as u32 & 0o77),
            11 => opens(Flags::WRITE | Flags::CREATE | Flags::TRUNC, 0),
            12 => opens(Flags::WRITE, self.number),
            _ if !matches!(kind, Ok(FileKind::Regular | FileKind::Directory)) => Ok(()),
            _ => on.set_xattr(one, "user.x", &self.number.to_le_bytes(), XattrFlags::empty()),
        }
    }
}

/// Runs steps on both; `answers` compares what they answer to one. Steps that the first one refuses with `EXDEV` are left out.
fn compare(seed: u64, one: &dyn Subject, other: &dyn Subject) {
    let mut random = Random::with_seed(seed);
    let mut done = Vec::new();
    for _ in 0..STEPS {
        let step = Step::random(&mut random, other);
        let Step { what, one: path, two, number } = &step;
        done.push(format!("{what} {path} {two} {number}"));
        let found = step.run(one);
        if found == Err(Errno::EXDEV) {
            continue;
        }
        let expected = step.run(other);
        assert_eq!(found, expected, "seed {seed}: {done:#?}");
        Tree::of(one).must_equal(&Tree::of(other), &format!("seed {seed}: {done:#?}"));
    }
}

#[test]
fn the_union_looks_like_a_changed_copy_of_the_lower_tree() {
    for seed in 0..12 {
        let trees = Trees::new();
        let before = Tree::of(&trees.lower);
        let copy = Direct::new(mem(&Arc::new(Threads::new())));
        populate(&copy);
        // What is one file in the lower tree becomes two when it is changed.
        copy.unlink(Path::new("two")).expect("a removal");
        write(&copy, "two", b"linked");
        compare(seed, &trees.both, &copy);
        assert_eq!(Tree::of(&trees.lower), before, "the lower tree stays as it is");
    }
}

/// An overlay of the kernel in a memory file system; unmounted at the end.
struct Overlay(tempfile::TempDir);

fn mount(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("mount").args(arguments).output().map_err(|error| format!("mount: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Whether the kernel has overlayfs; a mount has loaded it by then where it is a module.
fn has_overlayfs() -> bool {
    let known = fs::read_to_string("/proc/filesystems").expect("the kernel's file systems");
    known.lines().any(|line| line.split_whitespace().last() == Some("overlay"))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("this process").uid() == 0
}

impl Overlay {
    /// # Errors
    /// What mount(8) says.
    fn new() -> Result<Self, String> {
        let overlay = Overlay(tempfile::tempdir().expect("a temporary directory"));
        let base = overlay.0.path().to_str().expect("UTF-8").to_owned();
        mount(&["-t", "tmpfs", "union-test", &base])?;
        let [lower, upper, work, merged] = ["l", "u", "w", "m"].map(|name| format!("{base}/{name}"));
        [&lower, &upper, &work, &merged]
            .into_iter()
            .for_each(|dir| fs::create_dir(dir).expect("a directory"));
        populate(&HostDir::new(Path::new(&lower), Kind::Native).expect("the lower directory"));
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=off");
        mount(&["-t", "overlay", "union-test", "-o", &options, &merged]).map(|()| overlay)
    }

    fn dir(&self) -> std::path::PathBuf {
        self.0.path().join("m")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        for dir in [self.dir(), self.0.path().to_owned()] {
            let _ = Command::new("umount").arg(dir).output();
        }
    }
}

#[test]
fn the_union_looks_like_overlayfs() {
    for seed in 100..104 {
        let overlay = match Overlay::new() {
            Ok(overlay) => overlay,
            Err(reason) => {
                let must_work = is_root() && has_overlayfs();
                assert!(!must_work, "root cannot mount overlayfs, which the kernel has: {reason}");
                return println!("SKIPPED: overlayfs cannot be mounted: {reason}");
            }
        };
        let kernel = HostDir::new(&overlay.dir(), Kind::Native).expect("the overlay");
        compare(seed, &Trees::new().both, &kernel);
    }
}
