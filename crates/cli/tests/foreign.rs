// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE programs of others under `outrigger guard`: what they list and hold is what it is without us, also when they are
//! killed in the middle of it.
//!
//! Each speaks the protocol in a way of its own: go-fuse (`loopback`) would splice its replies, `restic` and `rclone` speak
//! version 7.12, and borg, over pyfuse3, lists with attributes only.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use support::{Place, can_mount, descendant, has, signal};

/// A program that shows the directory `src`.
struct Program {
    /// Its process.
    name: &'static str,
    /// Shell commands that make what it shows.
    prepare: &'static str,
    command: &'static [&'static str],
    /// Where `src` is in its mount.
    shows: &'static str,
    writes: bool,
}

const LOOPBACK: Program =
    Program { name: "loopback", prepare: "", command: &["m", "src"], shows: "", writes: true };
const RCLONE: Program = Program {
    name: "rclone",
    prepare: "",
    command: &["rclone", "--config=none", "mount", "src", "m"],
    shows: "",
    writes: true,
};
const RESTIC: Program = Program {
    name: "restic",
    prepare: "export RESTIC_PASSWORD=x; restic init -q --no-cache -r store && restic backup -q --no-cache -r store src",
    command: &["env", "RESTIC_PASSWORD=x", "restic", "mount", "--no-cache", "-r", "store", "m"],
    shows: "snapshots/latest/src",
    writes: false,
};
const BORG: Program = Program {
    name: "borg",
    prepare: "export HOME=$PWD; borg init -e none store && borg create store::a src",
    command: &["env", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "borg", "mount", "-f", "store", "m"],
    shows: "a/src",
    writes: false,
};
const FUSE_ZIP: Program = Program {
    name: "fuse-zip",
    prepare: "zip -q -r store.zip src",
    command: &["fuse-zip", "-f", "-r", "store.zip", "m"],
    shows: "src",
    writes: false,
};

/// The file of `src` in bytes: more than one reply, and than what is read ahead of a killed reader.
const SIZE: usize = 32 << 20;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Reads a file that is in no cache, in two halves.
fn read(path: &Path, between: impl FnOnce()) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut content = vec![0; SIZE / 2];
    file.read_exact(&mut content).unwrap();
    between();
    file.read_to_end(&mut content).unwrap();
    content
}

fn serves(program: &Program, path: Option<&Path>) {
    if !can_mount() || (path.is_none() && !has(program.name)) {
        return;
    }
    let place = Place::new();
    let random = format!("mkdir src/dir && echo x >src/dir/x && head -c {SIZE} /dev/urandom >src/big");
    fs::create_dir_all(place.at("src")).unwrap();
    place.run_as("sh", &["-c", &random]).ok();
    place.run_as("sh", &["-c", program.prepare]).ok();
    let own = path.map(|path| path.to_str().unwrap());
    let command: Vec<&str> = own.into_iter().chain(program.command.iter().copied()).collect();
    place.run(&[&["guard", "--"], &command[..]].concat()).ok();
    let (source, shown) = (place.at("src"), place.at("m").join(program.shows));
    let content = fs::read(source.join("big")).unwrap();
    let kill = || signal(descendant(place.server(), program.name).unwrap(), "KILL");
    for round in 0..4 {
        assert_eq!(names(&shown), ["big", "dir"], "{}", program.name);
        assert_eq!(names(&shown.join("dir")), ["x"], "{}", program.name);
        let read = read(&shown.join("big"), || {
            if round == 2 {
                kill()
            }
        });
        assert!(read == content, "{} in round {round}", program.name);
    }
    if program.writes {
        writes(&source, &shown, kill);
    }
    place.run(&["umount", "m"]).ok();
}

fn writes(source: &Path, shown: &Path, kill: impl Fn()) {
    fs::write(shown.join("new"), "new content").unwrap();
    kill();
    fs::rename(shown.join("new"), shown.join("renamed")).unwrap();
    kill();
    fs::remove_file(shown.join("dir/x")).unwrap();
    assert_eq!(names(source), ["big", "dir", "renamed"]);
    assert_eq!(names(&source.join("dir")), [""; 0]);
    assert_eq!(fs::read(source.join("renamed")).unwrap(), b"new content");
}

#[test]
fn go_fuse_that_would_splice_its_replies() {
    let tools = PathBuf::from(support::PROGRAM).ancestors().nth(2).unwrap().join("test-tools/bin/loopback");
    if !tools.exists() {
        return eprintln!("SKIPPED: needs go-fuse's loopback: testing/tools/test-programs.sh");
    }
    serves(&LOOPBACK, Some(&tools));
}

#[test]
fn rclone_that_speaks_an_old_version() {
    serves(&RCLONE, None);
}

#[test]
fn restic_that_speaks_an_old_version() {
    serves(&RESTIC, None);
}

#[test]
fn borg_that_lists_with_attributes_only() {
    serves(&BORG, None);
}

#[test]
fn fuse_zip_that_reads() {
    serves(&FUSE_ZIP, None);
}

#[test]
fn programs_that_keep_changes_until_they_end_are_warned_of() {
    if !can_mount() || !has("fuse-zip") {
        return;
    }
    for (read_only, warned) in [(&["-r"][..], false), (&[][..], true)] {
        let place = Place::new();
        place.run_as("sh", &["-c", "echo x >x && zip -q store.zip x"]).ok();
        let said = place.run(&[&["guard", "--", "fuse-zip", "-f"], read_only, &["store.zip", "m"]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.err.contains("those since its start are lost"), warned, "{said:?}");
        place.run(&["umount", "m"]).ok();
    }
}
