// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access lists on mounts: the host's kernel obeys them, and new files get the ones they get without us.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{PROGRAM, Place, can_mount, can_serve, has};

/// What runs as root in a directory: files that users 70001 and 70002, and group 70003, are granted or denied.
const MAKE: &str = "
    umask 022; chmod 755 .
    echo secret >granted; chmod 600 granted; setfacl -m u:70001:r granted
    echo secret >denied; chmod 644 denied; setfacl -m u:70001:--- denied
    echo secret >group; chmod 600 group; setfacl -m g:70003:rw group
    echo secret >masked; chmod 600 masked; setfacl -m u:70001:rw masked; chmod g-r masked
    mkdir closed; echo secret >closed/file; setfacl -m u:70001:--- closed
";

/// Who may read what: user, groups, path.
const RULES: &[(&str, &str, &str, bool)] = &[
    ("70001", "70001", "granted", true),
    ("70002", "70002", "granted", false),
    ("70001", "70001", "denied", false),
    ("70002", "70002", "denied", true),
    ("70002", "70003", "group", true),
    ("70002", "70002", "group", false),
    ("70001", "70001", "masked", false),
    ("70001", "70001", "closed/file", false),
    ("70002", "70002", "closed/file", true),
];

/// What a directory with a default list makes of new files, with a umask that the list overrides.
const INHERIT: &str = "
    mkdir src; chmod 2770 src; setfacl -d -m u::rwx,g::rwx,o::---,u:1234:rwx src
    umask 027; mkdir src/a; : >src/f; mknod src/p p; mkdir src/a/b; chmod 711 src/a; setfacl -m g:77:x src/f
    mkdir plain; mkdir plain/d; : >plain/f; mknod plain/q p; setfacl -m u:5:rwx,m::r plain/f; chmod g+w plain/f
    setfacl -b src/a/b; setfacl -k src/a
";

fn shell(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Modes, owners and lists below a directory.
fn lists(dir: &Path) -> String {
    shell(dir, "find src plain | sort | xargs getfacl -npE; find src plain -printf '%p %m %u %g\\n' | sort")
}

fn may_read(dir: &Path, (user, group): (&str, &str), path: &str) -> bool {
    let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
    let mut command = Command::new("setpriv");
    command.args([&*user, &group, "--clear-groups", "cat"]).arg(dir.join(path));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn can_test() -> bool {
    can_mount() && has("setfacl") && has("setpriv")
}

/// Others may reach what is mounted here.
fn open_place() -> Place {
    let place = Place::new();
    shell(&place.at(""), "chmod 755 .");
    place
}

/// Makes the same on the mount and in a directory of the host, and compares what is there and who may read it.
fn compare(place: &Place, what: &str) {
    let host = place.at("host");
    fs::create_dir(&host).unwrap();
    let mount = place.at("m");
    for dir in [&host, &mount] {
        shell(dir, MAKE);
        shell(dir, INHERIT);
    }
    assert_eq!(lists(&mount), lists(&host), "{what}");
    for &(user, group, path, may) in RULES {
        assert_eq!(may_read(&host, (user, group), path), may, "the host itself: {user} {path}");
        assert_eq!(may_read(&mount, (user, group), path), may, "{what}: user {user}, group {group}, {path}");
    }
    fs::remove_dir_all(host).unwrap();
}

#[test]
fn access_lists_of_a_directory_of_the_host_are_obeyed_and_inherited_as_there() {
    if !can_test() {
        return;
    }
    for options in ["allow_other", "allow_other,handles=off", "allow_other,no_passthrough"] {
        let place = open_place();
        fs::create_dir(place.at("served")).unwrap();
        place.run(&["mount", "-o", options, "served", "m"]).ok();
        compare(&place, options);
        // Lists that are there already, made by others, count the same.
        shell(&place.at("served"), "echo secret >later; chmod 644 later; setfacl -m u:70001:--- later");
        assert!(!may_read(&place.at("m"), ("70001", "70001"), "later"));
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn access_lists_in_memory_are_obeyed_and_inherited_as_on_the_host() {
    if !can_test() {
        return;
    }
    let place = open_place();
    place.run(&["mount", "-o", "allow_other", "mem:", "m"]).ok();
    compare(&place, "mem:");
    // They outlive the process that serves them.
    let before = lists(&place.at("m"));
    support::signal(place.server(), "KILL");
    support::within("the mount is served again", || fs::metadata(place.at("m/src")).is_ok());
    assert_eq!(lists(&place.at("m")), before);
}

#[test]
fn access_lists_in_images_are_obeyed_and_inherited_as_on_the_host() {
    if !can_test() || !can_serve() {
        return;
    }
    for (make, size) in [("mkfs.ext4", 64), ("mkfs.xfs", 320), ("mkfs.btrfs", 128), ("mkfs.f2fs", 64)] {
        if !has(make) {
            continue;
        }
        let place = open_place();
        fs::File::create(place.at("image")).unwrap().set_len(size << 20).unwrap();
        place.run_as(make, &["-q", "image"]).ok();
        place.run(&["mount", "-o", "allow_other", "image", "m"]).ok();
        compare(&place, make);
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn a_tree_without_access_lists_is_open_to_whom_its_modes_say() {
    if !can_test() || !can_serve() || !has("mkfs.vfat") {
        return;
    }
    let place = open_place();
    fs::File::create(place.at("image")).unwrap().set_len(16 << 20).unwrap();
    place.run_as("mkfs.vfat", &["image"]).ok();
    place.run(&["mount", "-o", "allow_other", "image", "m"]).ok();
    fs::write(place.at("m/file"), "content").unwrap();
    assert!(may_read(&place.at("m"), ("70001", "70001"), "file"), "{PROGRAM}");
}

/// What runs as one of these users, with no other groups.
fn as_user(place: &Place, user: &str, script: &str) -> support::Said {
    let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    place.run_as("setpriv", &[&user, &group, "--clear-groups", "sh", "-ec", script])
}

#[test]
fn a_program_that_another_user_has_changed_runs_as_who_starts_it() {
    if !can_test() {
        return;
    }
    let mut trees = vec!["mem:", "host"];
    trees.extend((can_serve() && has("mkfs.ext4")).then_some("image"));
    for (tree, options) in trees
        .into_iter()
        .flat_map(|tree| ["suid,allow_other", "suid,allow_other,writeback"].map(|o| (tree, o)))
    {
        let place = open_place();
        shell(&place.at(""), "mkdir host; truncate -s 64M image; mkfs.ext4 -q image");
        place.run(&["mount", "-o", options, tree, "m"]).ok();
        shell(&place.at("m"), "chmod 755 .; cp /usr/bin/id id; chown 70001 id; chmod 4777 id");
        assert_eq!(as_user(&place, "70002", "m/id -u").ok(), "70001\n", "{tree} {options}");
        let changed = as_user(&place, "70002", "echo >>m/id; m/id -u; stat -c %a m/id").ok();
        assert_eq!(changed, "70002\n777\n", "{tree} {options}");
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn owners_give_access_also_where_the_group_is_not_theirs() {
    if !can_test() {
        return;
    }
    let place = open_place();
    shell(&place.at(""), "mkdir -m 777 host; : >host/f; chown 70001:70009 host/f; chmod 2755 host/f");
    place.run(&["mount", "-o", "allow_other", "host", "m"]).ok();
    as_user(&place, "70001", "setfacl -m u:70002:rw m/f").ok();
    assert_eq!(shell(&place.at("m"), "getfacl -cp f | head -n 2"), "user::rwx\nuser:70002:rw-\n");
    assert_eq!(shell(&place.at("m"), "stat -c %a f"), "775\n", "set-gid goes as on the host");
    place.run(&["umount", "m"]).ok();
}
