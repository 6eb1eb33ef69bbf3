// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs Outrigger is compared with, found or compiled. One that is missing is left out, and said to be.

use crate::programs::{find_peer, first_line};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's libfuse3-dev has libfuse's own example of a pass-through file system.
const PASSTHROUGH_LL: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
const CALLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/calls.c");
const NULL_LIBFUSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/null_libfuse.c");

/// Paths of the peers; `None` for one that is missing.
#[derive(Debug)]
pub struct Peers {
    /// The null tree with libfuse.
    pub null_libfuse: Option<PathBuf>,
    /// libfuse's example.
    pub passthrough_ll: Option<PathBuf>,
    /// bindfs(1).
    pub bindfs: Option<PathBuf>,
    /// sshfs(1).
    pub sshfs: Option<PathBuf>,
    /// rclone(1).
    pub rclone: Option<PathBuf>,
    /// curlftpfs(1), which Debian 12 lacks: that of Debian 11, in the build directory.
    pub curlftpfs: Option<PathBuf>,
    /// ganesha.nfsd(8).
    pub ganesha: Option<PathBuf>,
    /// diod(8).
    pub diod: Option<PathBuf>,
    /// gocryptfs(1).
    pub gocryptfs: Option<PathBuf>,
    /// archivemount(1).
    pub archivemount: Option<PathBuf>,
    /// fuse2fs(1).
    pub fuse2fs: Option<PathBuf>,
    /// ratarmount, in the virtual environment `make bench-deps` makes.
    pub ratarmount: Option<PathBuf>,
    /// strace(1), which counts system calls.
    pub strace: Option<PathBuf>,
    /// bwrap(1), which gives a program a mount namespace.
    pub bwrap: Option<PathBuf>,
    /// proot(1), which gives it another file system by ptrace(2).
    pub proot: Option<PathBuf>,
    /// fakechroot(1), which does so by a preloaded library.
    pub fakechroot: Option<PathBuf>,
    /// gdb(1), which stops a program that runs and lets it go.
    pub gdb: Option<PathBuf>,
    /// What makes system calls to be measured.
    pub calls: Option<PathBuf>,
}

impl Peers {
    /// Finds and compiles them; programs are kept in the build directory `target`.
    pub fn find(target: &Path) -> Self {
        let built = target.join("bench-peers");
        Peers {
            null_libfuse: compile(Path::new(NULL_LIBFUSE), &built),
            passthrough_ll: compile(Path::new(PASSTHROUGH_LL), &built),
            bindfs: find_peer("bindfs"),
            sshfs: find_peer("sshfs"),
            rclone: find_peer("rclone"),
            curlftpfs: unpacked(target.join("test-tools/curlftpfs/usr/bin/curlftpfs")),
            ganesha: find_peer("ganesha.nfsd"),
            diod: find_peer("diod"),
            gocryptfs: find_peer("gocryptfs"),
            archivemount: find_peer("archivemount"),
            fuse2fs: find_peer("fuse2fs"),
            ratarmount: unpacked(target.join("bench-venv/bin/ratarmount")),
            strace: find_peer("strace"),
            bwrap: find_peer("bwrap"),
            proot: find_peer("proot"),
            fakechroot: find_peer("fakechroot"),
            gdb: find_peer("gdb"),
            calls: compile(Path::new(CALLS), &built),
        }
    }

    /// Names and versions, for the description of a run.
    pub fn versions(&self) -> Vec<String> {
        let mut versions = Vec::new();
        if let Some(version) = first_line("pkg-config", &["--modversion", "fuse3"]) {
            versions.push(format!("libfuse {version}"));
        }
        versions.push("fuser 0.18".to_owned());
        for (name, program) in [
            ("bindfs", &self.bindfs),
            ("sshfs", &self.sshfs),
            ("rclone", &self.rclone),
            ("curlftpfs", &self.curlftpfs),
            ("diod", &self.diod),
            ("gocryptfs", &self.gocryptfs),
            ("archivemount", &self.archivemount),
            ("ganesha", &self.ganesha),
            ("ratarmount", &self.ratarmount),
            ("bwrap", &self.bwrap),
            ("proot", &self.proot),
            ("fakechroot", &self.fakechroot),
            ("gdb", &self.gdb),
        ] {
            let line = program.as_ref().and_then(|path| first_line(&path.to_string_lossy(), &["--version"]));
            let version =
                line.as_deref().and_then(|line| line.split_whitespace().find(|word| is_version(word)));
            if let Some(version) = version {
                let version = version.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                versions.push(format!("{name} {version}"));
            }
        }
        versions
    }
}

/// What `make bench-deps` puts into the build directory.
fn unpacked(program: PathBuf) -> Option<PathBuf> {
    let found = program.is_file();
    if !found {
        eprintln!("SKIPPED: {} is missing; its columns are left out (make bench-deps)", program.display());
    }
    found.then_some(program)
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit())
}

/// Compiles a C file that needs libfuse 3 only, unless that has been done before.
fn compile(source: &Path, built: &Path) -> Option<PathBuf> {
    let program = built.join(source.file_stem()?);
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if modified(&program) > modified(source) {
        return Some(program);
    }
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]).output();
    let flags = flags.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let compiled = fs::create_dir_all(built).is_ok()
        && Command::new("cc")
            .args(["-O2", "-Wall", "-o"])
            .args([&program, source])
            .args(flags.split_whitespace())
            .status()
            .is_ok_and(|status| status.success());
    if !compiled {
        eprintln!("SKIPPED: cannot compile {}; its columns are left out (make bench-deps)", source.display());
    }
    compiled.then_some(program)
}
