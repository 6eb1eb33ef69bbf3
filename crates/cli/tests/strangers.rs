// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another user of the machine: no socket, directory or file of ours is for him.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use support::{PROGRAM, Place, Said, can_mount, can_serve, has};

/// A user id without a user.
const STRANGER: &str = "1879048191";

/// Runs a program as another user in no group.
fn as_stranger(place: &Place, words: &[&str]) -> Said {
    let user = ["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "--"];
    place.run_as("setpriv", &[&user, words].concat())
}

/// Everything below a directory.
fn all(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(all(&entry.path()));
        }
    }
    found
}

#[test]
fn another_user_reaches_no_socket_and_no_file_of_a_mount() {
    if !can_mount() || !can_serve() || !has("setpriv") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    // So that it is our own directories that keep him out.
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    place.file("src/text", "text");
    place.tar("a.tar.gz", "src");
    fs::File::create(place.at("image")).unwrap().set_len(16 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run(&["ls", "a.tar.gz::/"]).ok();
    place.run(&["mount", "image", "m"]).ok();
    let sockets = sockets(place.server());
    assert!(!sockets.is_empty(), "a mount has a socket");
    let mut ours: Vec<PathBuf> = ["cache", "state"].iter().flat_map(|name| all(&place.at(name))).collect();
    assert!(ours.iter().any(|path| path.is_file()), "the index of the archive is kept: {ours:?}");
    ours.retain(|path| !path.ends_with("cache/outrigger") && !path.ends_with("state/outrigger"));
    ours.extend(sockets);
    // One that is for everyone, to see that what is tried finds something.
    ours.push(place.at("src/text"));
    let tries = "for path; do if [ -r \"$path\" ] || [ -w \"$path\" ]; then echo \"$path\"; fi; done";
    let paths: Vec<&str> = ours.iter().filter_map(|path| path.to_str()).collect();
    let said = as_stranger(&place, &[&["sh", "-c", tries, "sh"], &paths[..]].concat());
    assert_eq!((said.code, said.out.trim_end()), (Some(0), place.at("src/text").to_str().unwrap()));
    assert_ne!(as_stranger(&place, &["ls", "m"]).code, Some(0), "without allow_other it is the user's own");
    let seen = as_stranger(&place, &["ls", &format!("/proc/{}/fd", place.server())]);
    assert_ne!(seen.code, Some(0), "the descriptors of the server");
}

/// The sockets in the directories where a process, and those around it, have made some.
fn sockets(process: u32) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let parent = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let parent: u32 = parent.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let open: Vec<String> = [process, parent]
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let is_open = |inode: &str| open.contains(&format!("socket:[{inode}]"));
    let named = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.len() > 7 && is_open(words[6])).then(|| PathBuf::from(words[7]))
    });
    // The table has the names sockets were made with; they were renamed since.
    let directories: BTreeSet<PathBuf> = named.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    directories.iter().flat_map(|directory| all(directory)).filter(is_socket).collect()
}

#[test]
fn another_user_ends_traces_and_upgrades_no_mount() {
    if !can_mount() || !has("setpriv") {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    place.run(&["mount", "-o", "allow_other", "mem:", "m"]).ok();
    // The other one may not be let into where it was built.
    let program = place.at("program").display().to_string();
    fs::copy(PROGRAM, &program).unwrap();
    as_stranger(&place, &[&program, "--version"]).ok();
    let server = place.server();
    for words in [&["umount", "m"][..], &["umount", "--force", "m"], &["upgrade", "m"], &["flush", "m"]] {
        let said = as_stranger(&place, &[&["env", "HOME=/nonexistent", &program], words].concat());
        assert_ne!(said.code, Some(0), "{words:?}: {said:?}");
        assert_eq!((place.is_mounted(), place.server()), (true, server), "{words:?}");
    }
}

/// What a user types where `/sys/fs/fuse/connections` is not mounted, as in a container; `$1` is the program.
const CUT_OFF: &str = r#"
    "$1" mount src mine --layer 'fault=op=lookup,path=slow,delay=60s'
    cat mine/slow & reader=$!
    until "$1" status mine | grep -q lookup; do :; done
    "$1" umount --force mine
    ! wait "$reader"
    ! "$1" status mine 2>/dev/null
"#;

#[test]
fn a_user_cuts_off_a_mount_where_connections_are_not_shown() {
    if !can_mount() || !has("setpriv") || !has("unshare") || !has("fusermount3") {
        return;
    }
    let place = Place::new();
    place.file("src/slow", "");
    fs::create_dir(place.at("mine")).unwrap();
    fs::create_dir(place.at("run")).unwrap();
    fs::copy(PROGRAM, place.at("program")).unwrap();
    fs::write(place.at("script"), CUT_OFF).unwrap();
    // fusermount3 serves users that have a name only.
    let setup = "chmod 755 . src; chown nobody mine run; mknod fuse c 10 229; chmod 666 fuse
        mount --bind fuse /dev/fuse; umount /sys/fs/fuse/connections 2>/dev/null
        exec setpriv --reuid nobody --regid nogroup --clear-groups env HOME=$PWD/run XDG_RUNTIME_DIR=$PWD/run \
            XDG_CACHE_HOME=$PWD/run XDG_STATE_HOME=$PWD/run timeout 30 sh -e script $PWD/program";
    let said = place.run_as("unshare", &["-m", "sh", "-c", setup]);
    assert_eq!(said.code, Some(0), "{said:?}");
}
