// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images to test with, made by the host's tools.
#![allow(dead_code, reason = "each test program uses its own part")]

use outrigger_driver_kernel::{Kernel, Options, program};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image in a directory of its own.
pub struct Image {
    dir: tempfile::TempDir,
    kind: &'static Kind,
}

/// How images of a type are made and checked.
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// The command that formats.
    pub mkfs: &'static [&'static str],
    /// The command that checks, without changing anything.
    pub fsck: &'static [&'static str],
    /// The size of an image, in MiB.
    pub size: u64,
}

/// The types that can be written.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "ext4",
        // Room for what the suite asks for: long targets of links, many large attributes, files of 4 TiB.
        mkfs: &["mkfs.ext4", "-q", "-b", "4096", "-O", "ea_inode"],
        fsck: &["e2fsck", "-fn"],
        size: 64,
    },
    Kind { name: "ext2", mkfs: &["mkfs.ext2", "-q"], fsck: &["e2fsck", "-fn"], size: 32 },
    Kind { name: "vfat", mkfs: &["mkfs.vfat"], fsck: &["fsck.vfat", "-n"], size: 32 },
];

/// The type with this name, if everything it needs is here; else says what is missing.
pub fn kind(name: &str) -> Option<&'static Kind> {
    let kind = KINDS.iter().find(|kind| kind.name == name).expect("a type of the table");
    let missing = match program() {
        None => Some("outrigger-kernel: make kernel"),
        Some(_) => [kind.mkfs[0], kind.fsck[0]]
            .into_iter()
            .find(|tool| command(tool).arg("--help").output().is_err()),
    };
    match missing {
        None => Some(kind),
        Some(what) => {
            println!("SKIPPED: {name} images need {what}");
            None
        }
    }
}

/// A command of the system's, which may be where only administrators look.
pub fn command(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

impl Image {
    /// A new one.
    pub fn new(kind: &'static Kind) -> Self {
        let image = Image { dir: tempfile::tempdir().expect("a directory"), kind };
        let file = std::fs::File::create(image.path()).expect("a file");
        file.set_len(kind.size << 20).expect("a size");
        image.run(kind.mkfs, "mkfs");
        image
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Opens it.
    pub fn open(&self) -> Kernel {
        Kernel::start(&self.path(), &Options::default()).expect("the image opens")
    }

    /// The host's tool finds nothing wrong with it.
    pub fn must_be_clean(&self) {
        self.run(self.kind.fsck, "fsck");
    }

    fn run(&self, words: &[&str], what: &str) {
        let output = command(words[0]).args(&words[1..]).arg(self.path()).output().expect(what);
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{what} of {}: {}", self.kind.name, String::from_utf8_lossy(&text));
    }
}

/// The content of a file, to see whether it changes.
pub fn content(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file that can be read")
}
