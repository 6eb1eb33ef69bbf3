// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of every type to test with, made by the host's tools, and a tree to fill them with.
//!
//! [`kind`] says `SKIPPED` where a tool is missing. What goes wrong panics: all of it is for tests.
#![forbid(unsafe_code)]

mod hfsplus;
mod tree;

use outrigger_conformance::sample;
use outrigger_driver_kernel::{Kernel, Options, program};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use tree::Tree;

/// An image in a directory of its own.
#[derive(Debug)]
pub struct Image {
    dir: tempfile::TempDir,
    kind: &'static Kind,
}

/// How images of a type are made and checked. In commands, `IMAGE` stands for the image and `TREE` for a directory,
/// which is empty for a type that is written and has the sample tree for one that is made of it.
#[derive(Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// The command that makes one; empty where we do.
    pub make: &'static [&'static str],
    /// The command that checks one without changing anything; empty where there is none.
    pub check: &'static [&'static str],
    /// The size of an image, in MiB; 0 where the command decides.
    pub size: u64,
    /// The type to ask for, where an image is of two.
    pub asked: Option<&'static str>,
}

/// A type that is written: formatted, and checked afterwards.
const fn written(
    name: &'static str,
    size: u64,
    make: &'static [&'static str],
    check: &'static [&'static str],
) -> Kind {
    Kind { name, make, check, size, asked: None }
}

/// A type that is made of a directory.
const fn made(name: &'static str, make: &'static [&'static str]) -> Kind {
    Kind { name, make, check: &[], size: 0, asked: None }
}

/// The types that can be written.
pub const WRITTEN: &[Kind] = &[
    // Room for what the suite asks for: long targets of links, many large attributes, files of 4 TiB.
    written(
        "ext4",
        64,
        &["mkfs.ext4", "-q", "-b", "4096", "-O", "ea_inode", "IMAGE"],
        &["e2fsck", "-fn", "IMAGE"],
    ),
    written("ext3", 32, &["mkfs.ext3", "-q", "IMAGE"], &["e2fsck", "-fn", "IMAGE"]),
    written("ext2", 32, &["mkfs.ext2", "-q", "IMAGE"], &["e2fsck", "-fn", "IMAGE"]),
    written("xfs", 320, &["mkfs.xfs", "-q", "IMAGE"], &["xfs_repair", "-n", "-f", "IMAGE"]),
    written("btrfs", 128, &["mkfs.btrfs", "-q", "IMAGE"], &["btrfs", "check", "--readonly", "IMAGE"]),
    written("f2fs", 64, &["mkfs.f2fs", "-q", "IMAGE"], &["fsck.f2fs", "--dry-run", "IMAGE"]),
    written("nilfs2", 160, &["mkfs.nilfs2", "-q", "IMAGE"], &[]),
    written("jfs", 32, &["mkfs.jfs", "-q", "IMAGE"], &["fsck.jfs", "-n", "IMAGE"]),
    written("ntfs", 32, &["mkfs.ntfs", "-q", "-F", "-f", "IMAGE"], &["ntfsfix", "-n", "IMAGE"]),
    written("exfat", 32, &["mkfs.exfat", "IMAGE"], &["fsck.exfat", "-n", "IMAGE"]),
    written("vfat", 32, &["mkfs.vfat", "IMAGE"], &["fsck.vfat", "-n", "IMAGE"]),
    written("udf", 32, &["mkudffs", "--utf8", "IMAGE"], &["udfinfo", "--utf8", "IMAGE"]),
    written("minix", 16, &["mkfs.minix", "-3", "IMAGE"], &["fsck.minix", "-f", "IMAGE"]),
    written("hfs", 16, &["hformat", "IMAGE"], &[]),
    written("hfs+", 32, &[], &[]),
    written("ufs1", 16, &["makefs", "-t", "ffs", "-s", "16m", "-o", "version=1", "IMAGE", "TREE"], &[]),
    written("jffs2", 8, &["mkfs.jffs2", "-r", "TREE", "-e", "64KiB", "--pad=8388608", "-o", "IMAGE"], &[]),
];

/// In words of a shell.
const UFS2: &str = r#"makefs -t ffs -s 4m -o version=2,density=2048 "$0" "$1" &&
    dd if="$0" of="$0" bs=8192 skip=1 seek=8 count=1 conv=notrunc status=none"#;

/// The types that are made of a directory.
pub const MADE: &[Kind] = &[
    made("squashfs", &["mksquashfs", "TREE", "IMAGE", "-quiet", "-no-progress", "-noappend"]),
    made("erofs", &["mkfs.erofs", "-zlz4", "IMAGE", "TREE"]),
    made("iso9660", &["genisoimage", "-quiet", "-R", "-cache-inodes", "-o", "IMAGE", "TREE"]),
    Kind {
        asked: Some("hfsplus"),
        ..made("hfsplus", &["xorriso", "-as", "mkisofs", "-hfsplus", "-o", "IMAGE", "TREE"])
    },
    made("romfs", &["genromfs", "-d", "TREE", "-f", "IMAGE"]),
    made("cramfs", &["mkfs.cramfs", "TREE", "IMAGE"]),
    made("ufs", &["makefs", "-t", "ffs", "-s", "4m", "-o", "version=1", "IMAGE", "TREE"]),
    // makefs puts the superblock where that of ufs1 is. Where Linux looks for it there are unused inodes.
    made("ufs2", &["sh", "-c", UFS2, "IMAGE", "TREE"]),
    // No whole number of what is erased together, and too small for the kernel as it is.
    Kind {
        asked: Some("jffs2"),
        ..made("small jffs2", &["mkfs.jffs2", "-r", "TREE", "-e", "128KiB", "-o", "IMAGE"])
    },
];

/// The type with this name, if everything it needs is here; else says what is missing.
pub fn kind(name: &str) -> Option<&'static Kind> {
    let kind = WRITTEN.iter().chain(MADE).find(|kind| kind.name == name).expect("a type of the tables");
    let tools = [kind.make, kind.check].into_iter().filter_map(|words| words.first());
    let missing = match program() {
        None => Some("outrigger-kernel: make kernel"),
        Some(_) => tools.copied().find(|tool| command(tool).arg("--help").output().is_err()),
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
        std::fs::create_dir(image.tree()).expect("a directory");
        if kind.size > 0 {
            let file = std::fs::File::create(image.path()).expect("a file");
            file.set_len(kind.size << 20).expect("a size");
        } else {
            sample::build(&image.tree()).expect("the sample");
        }
        match kind.make {
            [] => hfsplus::format(&image.path()).expect("a volume"),
            command => image.run(command, "making it"),
        }
        image
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// The name of its type.
    pub fn name(&self) -> &'static str {
        self.kind.name
    }

    /// Opens it.
    pub fn open(&self) -> Kernel {
        let kind = self.kind.asked.map(str::to_owned);
        let options = Options {
            kind,
            read_only: self.kind.check.is_empty() && self.kind.size == 0,
            ..Options::default()
        };
        Kernel::start(&self.path(), &options)
            .unwrap_or_else(|error| panic!("the image of type {} opens: {error}", self.kind.name))
    }

    /// The host's tool, if there is one, finds nothing wrong with it.
    pub fn must_be_clean(&self) {
        if !self.kind.check.is_empty() {
            self.run(self.kind.check, "checking it");
        }
    }

    fn run(&self, words: &[&str], what: &str) {
        let place = |word: &str| match word {
            "IMAGE" => self.path().into_os_string(),
            "TREE" => self.tree().into_os_string(),
            word => word.into(),
        };
        let output = command(words[0]).args(words[1..].iter().map(|word| place(word))).output().expect(what);
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}: {what}: {}", self.kind.name, String::from_utf8_lossy(&text));
    }
}

/// A hash of a file's content, to see whether it changes.
pub fn content(path: &Path) -> u64 {
    use std::hash::Hasher;
    let mut file = std::fs::File::open(path).expect("a file that can be read");
    let (mut hasher, mut buffer) = (std::hash::DefaultHasher::new(), vec![0; 1 << 20]);
    loop {
        match std::io::Read::read(&mut file, &mut buffer).expect("a file that can be read") {
            0 => return hasher.finish(),
            count => hasher.write(&buffer[..count]),
        }
    }
}
