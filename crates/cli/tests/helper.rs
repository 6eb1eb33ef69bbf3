// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper of mount(8), called as mount(8) calls it.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use support::{PROGRAM, Place, can_mount, is_running, mounted_ext4};

#[test]
fn mount_8_finds_everything_it_expects() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/t", "text");
    let archive = place.tar("a.tar.gz", "src").display().to_string();
    let helper = place.at("mount.outrigger").display().to_string();
    symlink(PROGRAM, &helper).unwrap();
    let dir = place.at("m").display().to_string();
    let options = "ro,allow_other,_netdev,nofail,noauto,user,x-systemd.automount,x-foo=bar";
    place.run_as(&helper, &[&archive, &dir, "-o", options]).ok();
    assert!(place.at("m/t").exists());
    place.run_as("umount", &[&dir]).ok();
    place.run_as(&helper, &[&archive, &dir, "-f"]).ok();
    assert!(!place.is_mounted(), "-f only pretends");
    assert!(place.run_as(&helper, &["/nothing", &dir]).refused(32).contains("'/nothing'"));
    assert!(place.run_as(&helper, &["mem:", &dir, "-o", "bogus"]).refused(32).contains("bogus"));
    place.run_as(&helper, &["mem:"]).refused(1);
}

#[test]
fn umount_8_finds_everything_it_expects() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let helper = place.at("umount.fuse.outrigger").display().to_string();
    symlink(PROGRAM, &helper).unwrap();
    let dir = place.at("m").display().to_string();
    let server = place.server();
    place.run_as(&helper, &[&dir, "-x"]).refused(1);
    place.run_as(&helper, &[&dir, "-n", "-t", "fuse.outrigger.kernel"]).ok();
    assert!(!place.is_mounted() && !is_running(server), "it waits for the end");
    place.run_as(&helper, &[&dir]).refused(32);
}

/// For an absolute path the superuser's umount(8) looks for a helper only where libmount's table has a line for it.
#[test]
fn umount_8_is_told_of_its_helper_as_long_as_the_mount_is_there() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let noted = || {
        let table = fs::read_to_string("/run/mount/utab").unwrap_or_default();
        let target = format!(" TARGET={} ", place.at("m").display());
        table.lines().filter(|line| line.contains(&target)).map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        place.run(&["mount", "mem:", "m"]).ok();
        let lines = noted();
        assert!(lines.len() == 1 && lines[0].ends_with(" OPTS=uhelper=fuse.outrigger"), "{lines:?}");
        place.run(&["umount", "m"]).ok();
        assert_eq!(noted(), [""; 0]);
    }
}

#[test]
fn options_of_a_mount_that_cannot_be_changed_are_named() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let said = place.run(&["mount", "-o", "remount,ro", "mem:", "m"]).refused(1);
    assert!(said.contains("outrigger umount DIR"), "{said}");
    place.run(&["mount", "-o", "strictatime", "mem:", "m"]).ok();
    place.run(&["umount", "m"]).ok();
}
