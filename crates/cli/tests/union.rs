// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `union`: archives and directories that look changeable.

mod support;

use outrigger_remote::{HOST, Sshd};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use support::{Place, can_mount, kill_server, status};

#[test]
fn an_archive_is_changed_in_another_directory() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/d/file", "content");
    place.file("src/d/other", "other");
    place.file("src/top", "top");
    place.tar("image.tar", "src");
    fs::create_dir(place.at("upper")).unwrap();
    let upper = format!("union=upper={}", place.at("upper").display());
    place.run(&["mount", "--layer", &upper, "image.tar", "m"]).ok();
    fs::write(place.at("m/d/file"), "changed").unwrap();
    fs::remove_file(place.at("m/d/other")).unwrap();
    fs::rename(place.at("m/top"), place.at("m/bottom")).unwrap();
    let inode = fs::metadata(place.at("m/bottom")).unwrap().ino();
    place.unmount("m");
    place.run(&["mount", "--layer", &upper, "image.tar", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/d/file")).unwrap(), "changed");
    assert_eq!(fs::read_to_string(place.at("m/bottom")).unwrap(), "top");
    assert!(!place.at("m/d/other").exists() && !place.at("m/top").exists() && inode != 0);
    place.unmount("m");
    assert!(place.at("upper/d/.wh.other").exists() && place.at("upper/.wh.top").exists());
    let listed = place.run(&["--layer", &upper, "ls", "image.tar::/"]).ok();
    assert_eq!(listed, "bottom\nd\n");
    let refused =
        place.run(&["mount", "--layer", "union=lowerdir=a,upperdir=b", "image.tar", "m"]).refused(1);
    assert!(refused.contains("the lower tree is the LOCATION"), "{refused}");
    let refused = place.run(&["mount", "--layer", "union", "image.tar", "m"]).refused(1);
    assert!(refused.contains("upper=LOCATION"), "{refused}");
}

#[test]
fn an_upper_tree_that_is_part_of_the_lower_one_is_refused() {
    let place = Place::new();
    place.file("lower/d/file", "content");
    let union = |upper: &str| format!("union=upper={}", place.at(upper).display());
    for upper in ["lower", "lower/d", ""] {
        let refused = place.run(&["mount", "--layer", &union(upper), "lower", "m"]).refused(1);
        assert!(refused.contains("must lie apart"), "{refused}");
    }
    // The tree of a plain path is that of the whole machine.
    fs::create_dir(place.at("upper")).unwrap();
    let refused = place.run(&["--layer", &union("upper"), "ls", "lower"]).refused(2);
    assert!(refused.contains("DIR::/PATH"), "{refused}");
}

#[test]
fn files_stay_open_when_the_server_dies() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("lower/d/file", "content of the lower tree");
    place.file("lower/gone", "without a name");
    fs::create_dir(place.at("upper")).unwrap();
    let upper = format!("union=upper={}", place.at("upper").display());
    place.run(&["mount", "--layer", &upper, "lower", "m"]).ok();
    let reader = fs::File::open(place.at("m/gone")).unwrap();
    fs::remove_file(place.at("m/gone")).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(place.at("m/d/file")).unwrap();
    let inode = writer.metadata().unwrap().ino();
    for number in 0..3_u64 {
        kill_server(&place, "KILL");
        writer.write_all_at(b"!", number).unwrap();
        let mut read = [0; 14];
        reader.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"without a name");
    }
    assert_eq!(fs::read_to_string(place.at("m/d/file")).unwrap(), "!!!tent of the lower tree");
    assert_eq!(fs::metadata(place.at("m/d/file")).unwrap().ino(), inode);
    assert_eq!(status(&place, "/guard/deaths"), Some(3));
    drop((reader, writer));
    place.unmount("m");
    assert_eq!(fs::read_to_string(place.at("lower/d/file")).unwrap(), "content of the lower tree");
    assert!(place.at("lower/gone").exists());
}

#[test]
fn a_copy_that_does_not_fit_leaves_its_room_to_others() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("lower/large", vec![1; 3 << 20]);
    place.file("lower/small", vec![1; 300_000]);
    fs::create_dir(place.at("upper")).unwrap();
    place.run_as("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", "upper"]).ok();
    let union = format!("union=upper={}", place.at("upper").display());
    place.run(&["mount", "--layer", &union, "lower", "m"]).ok();
    let append = |name: &str| {
        let mut file = fs::File::options().append(true).open(place.at("m").join(name))?;
        std::io::Write::write_all(&mut file, b"x")
    };
    assert_eq!(append("large").unwrap_err().raw_os_error(), Some(28));
    append("small").unwrap();
    place.unmount("m");
    // umount(8) does not wait for the server, which has a directory of it open until it ends.
    place.unmount("upper");
    assert!(place.at("lower/small").exists());
}

/// Files of which all content is cached are opened by handles of the cache, which the union passes on.
#[test]
fn a_union_over_a_host_is_read_again_and_its_links_stay_inside() {
    if let Some(missing) = Sshd::missing() {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        eprintln!("SKIPPED: there is no {missing}");
        return;
    }
    if !can_mount() {
        return;
    }
    let place = Place::new().trusting();
    fs::create_dir(place.at("sshd")).unwrap();
    fs::create_dir(place.at("upper")).unwrap();
    let sshd = Sshd::start(place.at("sshd")).unwrap();
    place.file("far/sub/deep/file", "inside\n");
    place.file("out", "of this machine\n");
    std::os::unix::fs::symlink("../out", place.at("far/sub/up")).unwrap();
    let option = format!("F={}", sshd.configuration().display());
    let location = format!("{HOST}:{}", place.at("far").display());
    place.run(&["mount", "--layer", "union=upper=upper", "-o", &option, &location, "m"]).ok();
    for _ in 0..3 {
        assert_eq!(fs::read_to_string(place.at("m/sub/deep/file")).unwrap(), "inside\n");
    }
    assert_eq!(fs::read_link(place.at("m/sub/up")).unwrap().to_str(), Some("../out"));
    fs::rename(place.at("m/sub/up"), place.at("m/up")).unwrap();
    assert_eq!(fs::read(place.at("m/up")).unwrap_err().raw_os_error(), Some(1));
    assert_eq!(fs::write(place.at("m/up"), "").unwrap_err().raw_os_error(), Some(1));
    assert_eq!(fs::read_to_string(place.at("out")).unwrap(), "of this machine\n");
    place.run(&["umount", "m"]).ok();
}
