// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small fixed tree for drivers that only read: their tests pack it into whatever they read, and the cases of theme
//! `sample` look at it.

use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// When everything in the tree was last modified, in seconds since the epoch.
pub const MTIME: u64 = 1_600_000_000;

/// What a path of the tree leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A directory.
    Directory,
    /// A regular file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this target.
    Symlink(&'static str),
    /// Another name of the file at this path.
    HardLink(&'static str),
}

/// One path of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// From the root, without a leading slash; parents come first.
    pub path: &'static str,
    /// Permission bits.
    pub mode: u32,
    /// What is there.
    pub content: Content,
}

/// The tree, without its root.
pub fn tree() -> Vec<Sample> {
    let file = |path, mode, bytes: &[u8]| Sample { path, mode, content: Content::File(bytes.to_vec()) };
    let dir = |path| Sample { path, mode: 0o755, content: Content::Directory };
    let link = |path, target| Sample { path, mode: 0o777, content: Content::Symlink(target) };
    let big: Vec<u8> = (0..300_000_u32).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    vec![
        file("hello.txt", 0o644, b"hello, world\n"),
        file("empty", 0o600, b""),
        file("run.sh", 0o755, b"#!/bin/sh\necho ran\n"),
        file("big.bin", 0o644, &big),
        file("sp ace \u{fc}.txt", 0o640, "gr\u{fc}n\n".as_bytes()),
        dir("dir"),
        dir("dir/sub"),
        file("dir/sub/deep.txt", 0o444, b"deep\n"),
        dir("dir/void"),
        link("dir/up", "../hello.txt"),
        link("dangling", "no/where"),
        Sample { path: "dir/hard", mode: 0o644, content: Content::HardLink("hello.txt") },
    ]
}

/// Makes the tree in the existing host directory `root`.
///
/// # Errors
/// Whatever the system refuses.
pub fn build(root: &Path) -> io::Result<()> {
    for sample in tree() {
        let path = root.join(sample.path);
        match &sample.content {
            Content::Directory => fs::create_dir(&path)?,
            Content::File(bytes) => fs::write(&path, bytes)?,
            Content::Symlink(target) => symlink(target, &path)?,
            Content::HardLink(of) => fs::hard_link(root.join(of), &path)?,
        }
        if !matches!(sample.content, Content::Symlink(_)) {
            fs::set_permissions(&path, Permissions::from_mode(sample.mode))?;
        }
    }
    let time = UNIX_EPOCH + Duration::from_secs(MTIME);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    // Children first: making them changed their parents' times.
    for sample in tree().iter().rev().filter(|sample| !matches!(sample.content, Content::Symlink(_))) {
        File::open(root.join(sample.path))?.set_times(times)?;
    }
    Ok(())
}
