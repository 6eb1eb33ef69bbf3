// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of mounted images that lose their last name while they are open, and deaths of the kernel code.

mod support;

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use support::{Place, can_mount, can_serve, has, kernel_code};

/// Types of images: how each is made, and checked without being changed.
const TYPES: [(&str, [&str; 2]); 3] = [
    ("mkfs.ext4", ["e2fsck", "-fn"]),
    ("mkfs.xfs", ["xfs_repair", "-n"]),
    ("mkfs.vfat", ["fsck.vfat", "-n"]),
];

const HIDDEN: &str = "m/.outrigger-removed";

fn made(mkfs: &str) -> Option<Place> {
    if !can_serve() || !can_mount() || !has(mkfs) {
        return None;
    }
    let place = Place::new();
    File::create(place.at("image")).unwrap().set_len(320 << 20).unwrap();
    place.run_as(mkfs, &["image"]).ok();
    Some(place)
}

fn mounted(mkfs: &str) -> Option<Place> {
    let place = made(mkfs)?;
    place.run(&["mount", "image", "m"]).ok();
    Some(place)
}

/// Everything that was done is in the image when this returns.
fn checkpoint(place: &Place) {
    File::open(place.at("m")).unwrap().sync_all().unwrap();
}

/// Kills what runs the kernel code.
fn dies(place: &Place) {
    support::signal(kernel_code(place), "KILL");
}

fn open(place: &Place, name: &str) -> File {
    File::options().read(true).write(true).open(place.at(name)).unwrap()
}

fn content(file: &File) -> String {
    let mut content = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut content, 0).unwrap();
    String::from_utf8(content).unwrap()
}

fn names(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.at("m")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != "lost+found");
    names.sort();
    names
}

fn is_hidden(place: &Place) {
    assert_eq!(fs::metadata(place.at(HIDDEN)).unwrap_err().kind(), io::ErrorKind::NotFound);
    let refused = [
        fs::create_dir(place.at(HIDDEN)).unwrap_err(),
        fs::write(place.at(HIDDEN), "").unwrap_err(),
        fs::rename(place.at("m/dir"), place.at(HIDDEN)).unwrap_err(),
    ];
    refused.iter().for_each(|error| assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"));
    assert_eq!(names(place), ["dir", "replaced"]);
}

fn unmounts_clean(place: &Place, check: [&str; 2]) {
    place.run(&["umount", "m"]).ok();
    place.run_as(check[0], &[check[1], "image"]).ok();
    assert!(!place.run(&["ls", "-a", "image::/"]).ok().contains("outrigger"));
}

/// How many blocks and files there is room for.
fn free(place: &Place) -> (u64, u64) {
    let stat = statvfs(place.at("m")).unwrap();
    (stat.f_bfree, stat.f_ffree)
}

/// Removes and replaces files that are open, with deaths, and with a checkpoint before the first one or without.
fn survive(mkfs: &str, check: [&str; 2], has_checkpoint: bool) {
    let Some(place) = mounted(mkfs) else { return };
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::write(place.at("m/replaced"), "small").unwrap();
    let (before, root) = (free(&place), fs::metadata(place.at("m")).unwrap());
    fs::write(place.at("m/dir/removed"), vec![b'x'; 1 << 20]).unwrap();
    fs::write(place.at("m/new"), "small").unwrap();
    let (removed, replaced) = (open(&place, "m/dir/removed"), open(&place, "m/replaced"));
    fs::remove_file(place.at("m/dir/removed")).unwrap();
    fs::rename(place.at("m/new"), place.at("m/replaced")).unwrap();
    if has_checkpoint {
        checkpoint(&place);
    }
    for word in ["once", "twice", "again"] {
        dies(&place);
        removed.write_all_at(word.as_bytes(), 1 << 20).unwrap();
        replaced.write_all_at(word.as_bytes(), 0).unwrap();
        assert!(content(&removed).ends_with(&format!("xxx{word}")));
        assert!(content(&replaced).starts_with(word));
        assert_eq!([&removed, &replaced].map(|file| file.metadata().unwrap().nlink()), [0, 0]);
        assert_eq!(fs::read_to_string(place.at("m/replaced")).unwrap(), "small");
        is_hidden(&place);
        assert_eq!(fs::metadata(place.at("m")).unwrap().nlink(), root.nlink());
    }
    fs::remove_dir(place.at("m/dir")).unwrap();
    drop((removed, replaced));
    fs::create_dir(place.at("m/dir")).unwrap();
    unmounts_clean(&place, check);
    place.run(&["mount", "image", "m"]).ok();
    // Some types set blocks aside when they are written.
    fs::set_permissions(place.at("m/dir"), fs::Permissions::from_mode(0o755)).unwrap();
    let after = free(&place);
    // What was removed has 256 blocks; xfs has some at hand for its trees.
    assert!(after.0.abs_diff(before.0) < 64 && after.1 == before.1, "{before:?}, {after:?}");
    assert_eq!(names(&place), ["dir", "replaced"]);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn open_files_that_are_removed_or_replaced_survive_deaths() {
    for (mkfs, check) in TYPES {
        survive(mkfs, check, false);
    }
}

#[test]
fn open_files_that_are_removed_or_replaced_survive_deaths_after_a_checkpoint() {
    for (mkfs, check) in TYPES {
        survive(mkfs, check, true);
    }
}

#[test]
fn removing_an_open_file_elsewhere_leaves_the_times_of_the_root_alone() {
    let Some(place) = mounted("mkfs.ext4") else { return };
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::write(place.at("m/dir/file"), "content").unwrap();
    let root = || fs::metadata(place.at("m")).unwrap().modified().unwrap();
    let (before, file) = (root(), open(&place, "m/dir/file"));
    fs::remove_file(place.at("m/dir/file")).unwrap();
    drop(file);
    unmounts_clean(&place, ["e2fsck", "-fn"]);
    place.run(&["mount", "image", "m"]).ok();
    assert_eq!(root(), before);
}

#[test]
fn a_file_that_is_made_without_a_name_survives_and_may_get_one() {
    let Some(place) = mounted("mkfs.ext4") else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let [file, other] = [(); 2]
        .map(|()| File::from(openat(CWD, place.at("m"), flags, Mode::from_raw_mode(0o640)).expect("a file")));
    file.write_all_at(b"content", 0).unwrap();
    other.write_all_at(b"goes", 0).unwrap();
    dies(&place);
    assert_eq!((content(&file), file.metadata().unwrap().nlink()), ("content".to_owned(), 0));
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let named = place.at("m/named");
    rustix::fs::linkat(CWD, own, CWD, &named, rustix::fs::AtFlags::SYMLINK_FOLLOW).expect("a name");
    dies(&place);
    let found = fs::metadata(&named).unwrap();
    assert_eq!((found.nlink(), found.ino()), (1, file.metadata().unwrap().ino()));
    assert_eq!(content(&other), "goes");
    drop((file, other));
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["ls", "-A", "image::/"]).ok(), "lost+found\nnamed\n");
}

#[test]
fn a_file_with_two_names_that_loses_one_while_it_is_open_keeps_the_other() {
    let Some(place) = mounted("mkfs.ext4") else { return };
    fs::write(place.at("m/one"), "content").unwrap();
    fs::hard_link(place.at("m/one"), place.at("m/two")).unwrap();
    let file = open(&place, "m/one");
    let links = |file: &File| file.metadata().unwrap().nlink();
    fs::remove_file(place.at("m/one")).unwrap();
    assert_eq!(links(&file), 1);
    checkpoint(&place);
    dies(&place);
    let two = fs::metadata(place.at("m/two")).unwrap();
    assert_eq!((links(&file), two.nlink(), two.ino()), (1, 1, file.metadata().unwrap().ino()));
    fs::remove_file(place.at("m/two")).unwrap();
    checkpoint(&place);
    dies(&place);
    assert_eq!((links(&file), content(&file)), (0, "content".to_owned()));
    drop(file);
    unmounts_clean(&place, ["e2fsck", "-fn"]);
}

#[test]
fn what_open_files_have_kept_goes_with_the_next_mount_when_everything_dies() {
    for (mkfs, check) in TYPES {
        let Some(place) = mounted(mkfs) else { return };
        fs::write(place.at("m/file"), "content").unwrap();
        let file = open(&place, "m/file");
        fs::remove_file(place.at("m/file")).unwrap();
        checkpoint(&place);
        // The process that lives longer cleans the image.
        let (server, worker) = (place.server(), kernel_code(&place));
        support::signal(worker, "STOP");
        support::signal(server, "KILL");
        support::signal(worker, "KILL");
        support::within("both die", || !support::is_running(server) && !support::is_running(worker));
        drop(file);
        place.run(&["umount", "m"]).ok();
        assert!(place.run(&["ls", "-a", "image::/"]).ok().contains(".outrigger-removed"), "{mkfs}");
        if mkfs == "mkfs.vfat" {
            // It is marked as in use until it is repaired.
            place.run_as("fsck.vfat", &["-a", "image"]);
        }
        place.run(&["mount", "image", "m"]).ok();
        fs::create_dir(place.at("m/dir")).unwrap();
        dies(&place);
        assert_eq!(names(&place), ["dir"]);
        unmounts_clean(&place, check);
    }
}

#[test]
fn a_full_file_system_does_not_keep_what_is_removed() {
    let Some(place) = mounted("mkfs.ext4") else { return };
    fs::write(place.at("m/file"), vec![b'x'; 1 << 20]).unwrap();
    let file = open(&place, "m/file");
    let all = File::create(place.at("m/all")).unwrap();
    let mut end = 0;
    while all.write_all_at(&[b'y'; 1 << 16], end).is_ok() {
        end += 1 << 16;
    }
    fs::remove_file(place.at("m/file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(content(&file).len(), 1 << 20);
    drop(all);
    fs::remove_file(place.at("m/all")).unwrap();
    checkpoint(&place);
    file.write_all_at(b"lost", 0).unwrap();
    // The mount continues without that file.
    dies(&place);
    fs::write(place.at("m/other"), "content").unwrap();
    dies(&place);
    assert_eq!(names(&place), ["other"]);
    assert!(file.read_at(&mut [0], 1 << 19).is_err() || file.sync_all().is_err());
    drop(file);
    unmounts_clean(&place, ["e2fsck", "-fn"]);
}
