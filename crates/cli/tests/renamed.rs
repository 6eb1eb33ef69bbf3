// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts whose tree, or the directory above whose mountpoint, gets another name while they are served.

mod support;

use std::fs;
use support::{Place, can_mount, has, is_running, kill_server, signal, within};

/// Whatever another process can take over a mount for.
const TAKEOVERS: [fn(&Place); 2] =
    [|place| kill_server(place, "KILL"), |place| drop(place.run(&["upgrade", "m"]).ok())];

#[test]
fn a_directory_that_was_renamed_goes_on_though_another_one_has_its_name() {
    if !can_mount() {
        return;
    }
    for guard in ["guard=auto", "guard=none"] {
        let place = Place::new();
        place.file("src/f", "content");
        place.run(&["mount", "-o", guard, "src", "m"]).ok();
        fs::rename(place.at("src"), place.at("elsewhere")).unwrap();
        place.file("src/f", "another file");
        for (number, take_over) in TAKEOVERS.iter().rev().enumerate() {
            take_over(&place);
            assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "content", "{guard}");
            fs::write(place.at(&format!("m/new{number}")), "new").unwrap();
            assert_eq!(
                fs::read_to_string(place.at(&format!("elsewhere/new{number}"))).unwrap(),
                "new",
                "{guard}"
            );
        }
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn an_archive_that_was_renamed_or_removed_goes_on_though_another_file_has_its_name() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("in/f", "inner");
    place.file("out/f", "outer");
    place.tar("kept.tar", "in");
    fs::rename(place.at("kept.tar"), place.at("out/kept.tar")).unwrap();
    place.file("other/f", "of another archive");
    for (source, content) in [
        ("a.tar", "outer"),
        ("a.tar::/", "outer"),
        ("a.tar::/kept.tar::/", "inner"),
        ("a.tar::kept.tar", "inner"),
        ("a*.tar::/kept.tar", "inner"),
    ] {
        place.tar("a.tar", "out");
        place.run(&["mount", source, "m"]).ok();
        fs::rename(place.at("a.tar"), place.at("renamed")).unwrap();
        place.tar("a.tar", "other");
        for take_over in TAKEOVERS {
            take_over(&place);
            assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), content, "{source}");
        }
        fs::remove_file(place.at("renamed")).unwrap();
        fs::remove_file(place.at("a.tar")).unwrap();
        kill_server(&place, "KILL");
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), content, "{source}");
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn a_compressed_file_keeps_the_name_it_had_at_the_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("a", "content");
    assert!(place.run_as("gzip", &["a"]).ok().is_empty());
    place.run(&["mount", "a.gz", "m"]).ok();
    fs::rename(place.at("a.gz"), place.at("b.gz")).unwrap();
    kill_server(&place, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/a")).unwrap(), "content");
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_location_means_what_it_meant_at_the_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    fs::write(place.at("m/f"), "in memory").unwrap();
    place.file("mem:/f", "on disk");
    for take_over in TAKEOVERS {
        take_over(&place);
        assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "in memory");
    }
    place.run(&["umount", "m"]).ok();

    // A directory with the name of a place on another host; and of a program.
    for name in ["host:dir", "fuse:false"] {
        place.file(&format!("{name}/f"), "on disk");
        place.run(&["mount", name, "m"]).ok();
        fs::rename(place.at(name), place.at("elsewhere")).unwrap();
        for take_over in TAKEOVERS {
            take_over(&place);
            assert_eq!(fs::read_to_string(place.at("m/f")).unwrap(), "on disk", "{name}");
        }
        place.run(&["umount", "m"]).ok();
        fs::remove_dir_all(place.at("elsewhere")).unwrap();
    }
}

#[test]
fn a_mount_is_found_where_it_is_when_a_directory_above_it_was_renamed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    fs::create_dir_all(place.at("above/m")).unwrap();
    place.run(&["mount", "src", "above/m"]).ok();
    fs::rename(place.at("above"), place.at("other")).unwrap();
    let status = || place.run(&["--json", "status", "other/m"]).ok();
    assert!(status().contains("other/m"), "{}", status());
    place.run(&["upgrade", "other/m"]).ok();
    let keeper: serde_json::Value = serde_json::from_str(&status()).unwrap();
    let keeper = keeper.pointer("/guard/keeper").unwrap().as_u64().unwrap();
    assert_eq!(fs::read_to_string(place.at("other/m/f")).unwrap(), "content");
    assert!(status().contains("other/m"), "{}", status());
    fs::create_dir_all(place.at("above/m")).unwrap();
    assert!(place.run(&["status", "above/m"]).refused(1).contains("not a mount"));
    let said = place.run(&["status"]);
    assert!(!said.err.contains(place.at("other").to_str().unwrap()), "{said:?}");
    let sockets = || {
        let names = fs::read_dir("/run/outrigger").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(&format!("-{keeper}.sock"))).count()
    };
    assert_eq!(sockets(), 1);
    place.run(&["umount", "other/m"]).ok();
    assert!(!place.at("other/m/f").exists());
    assert_eq!(sockets(), 0);
}

/// Numbers of FUSE connections are minor numbers, which block devices have, too.
#[test]
fn a_block_device_with_the_number_of_a_mount_is_not_taken_for_it() {
    if !can_mount() || !rustix::process::geteuid().is_root() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    place.run(&["mount", "src", "m"]).ok();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = |line: &&str| line.split(' ').nth(4) == place.at("m").to_str();
    let device = table.lines().find(at).unwrap().split(' ').nth(2).unwrap();
    let minor = device.strip_prefix("0:").unwrap();
    fs::File::create(place.at("disk")).unwrap().set_len(8 << 20).unwrap();
    fs::create_dir(place.at("other")).unwrap();
    place.run_as("mkfs.ext4", &["-q", "disk"]).ok();
    let node = place.at("loop");
    let node = node.to_str().unwrap();
    place.run_as("mknod", &[node, "b", "7", minor]).ok();
    place.run_as("losetup", &[node, "disk"]).ok();
    place.run_as("mount", &[node, "other"]).ok();
    place.run_as("losetup", &["-d", node]).ok();
    let is_mounted = |name: &str| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == place.at(name).to_str())
    };
    let said = place.run(&["status", "other"]);
    // In use, so that the server of the detached mount is there to be ended.
    let (server, open) = (place.server(), fs::File::open(place.at("m/f")).unwrap());
    place.run_as("umount", &["-l", "m"]).ok();
    signal(server, "TERM");
    drop(open);
    within("the server's end", || !is_running(server));
    let stays = is_mounted("other");
    if stays {
        place.run_as("umount", &["other"]).ok();
    }
    assert!(stays, "it was unmounted in place of the mount");
    assert!(said.refused(1).contains("not a mount of yours"));
}
