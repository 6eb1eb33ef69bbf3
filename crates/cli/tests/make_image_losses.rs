// SPDX-License-Identifier: MIT OR Apache-2.0
//! `make-image` where something is lost, in the way, or not what it seems: nothing of that goes unsaid.

mod support;

use rustix::fs::{XattrFlags, setxattr};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use support::{PROGRAM, Place, Said, can_mount, can_serve, has};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes an image of this type of `tree`, which is made, though something is lost.
fn with_losses(place: &Place, kind: &str) -> String {
    let said = place.run(&["make-image", "--force", "--type", kind, "tree", "image"]);
    assert_eq!(said.code, Some(1), "{kind}: {said:?}");
    assert_eq!(place.run(&["cat", "image::/dir/one"]).ok(), "content", "{kind}");
    said.err
}

#[test]
fn what_an_image_cannot_keep_is_told_once_with_how_many_files_lose_it() {
    if !can_serve() || !has("setfacl") {
        return;
    }
    let place = Place::new();
    for name in ["one", "two", "three"] {
        place.file(&format!("tree/dir/{name}"), "content");
    }
    setxattr(place.at("tree/dir"), "user.colour", b"green", XattrFlags::empty()).unwrap();
    setxattr(place.at("tree/dir/one"), "user.colour", b"red", XattrFlags::empty()).unwrap();
    place.run_as("setfacl", &["-m", "u:1234:r", "tree/dir/two"]).ok();
    fs::set_permissions(place.at("tree/dir/three"), Permissions::from_mode(0o4755)).unwrap();
    if is_root() {
        chown(place.at("tree/dir/one"), Some(1234), None).unwrap();
    }
    let attributes = |kind: &str| {
        [
            format!("setting attributes for 'tree/dir': {kind} has no extended attributes (2 files)\n"),
            format!("preserving permissions for 'tree/dir/two': {kind} has no access lists (1 file)\n"),
        ]
    };
    let said = with_losses(&place, "cpio");
    assert!(attributes("cpio").iter().all(|line| said.contains(line)), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    for (kind, tool) in [("vfat", "mkfs.vfat"), ("exfat", "mkfs.exfat"), ("ntfs", "mkfs.ntfs")] {
        if !has(tool) {
            continue;
        }
        let said = with_losses(&place, kind);
        let kind = if kind == "ntfs" { "ntfs3" } else { kind };
        assert!(attributes(kind).iter().all(|line| said.contains(line)), "{said}");
        let owner = "failed to preserve ownership for 'tree/dir/one'";
        assert_eq!(said.contains(owner), is_root(), "{said}");
        let special = "preserving permissions for 'tree/dir/three'";
        assert!(said.contains(special), "{said}");
    }
}

#[test]
fn a_tree_of_one_owner_without_attributes_loses_nothing_in_a_vfat_image() {
    if !can_serve() || !has("mkfs.vfat") {
        return;
    }
    let place = Place::new();
    place.file("tree/dir/one", "content");
    if is_root() {
        place.run_as("chown", &["-R", "1234:1234", "tree"]).ok();
    }
    place.run(&["make-image", "--type=vfat", "tree", "image"]).ok();
}

#[test]
fn links_that_a_type_does_not_have_are_refused_with_their_number() {
    let place = Place::new();
    place.file("tree/file", "content");
    fs::hard_link(place.at("tree/file"), place.at("tree/hard")).unwrap();
    symlink("file", place.at("tree/soft")).unwrap();
    for kind in ["vfat", "exfat", "ntfs"] {
        let said = place.run(&["make-image", "--type", kind, "tree", "image"]).refused(1);
        assert!(said.contains("'tree/hard' is another thing (2 files)"), "{said}");
        assert!(!place.at("image").exists());
    }
}

#[test]
fn a_tree_whose_files_are_streams_is_refused_and_no_stream_is_opened() {
    let place = Place::new().trusting();
    place.file("portal.conf", "run exec touch opened\n");
    for kind in ["tar", "cpio", "ext4"] {
        let said = place.run(&["make-image", "--type", kind, "portal:portal.conf::/", "image"]).refused(1);
        assert!(said.contains("opening it connects or starts a program"), "{said}");
        assert!(!place.at("image").exists() && !place.at("opened").exists());
    }
}

#[test]
fn a_label_that_a_type_has_no_room_for_is_refused_with_the_limit() {
    let place = Place::new();
    place.file("tree/file", "content");
    let limits = [
        ("ext4", 16),
        ("xfs", 12),
        ("btrfs", 254),
        ("f2fs", 512),
        ("vfat", 11),
        ("exfat", 11),
        ("ntfs", 128),
    ];
    for (kind, most) in limits {
        let label = "L".repeat(most + 1);
        let said = place.run(&["make-image", "-t", kind, "-L", &label, "tree", "image"]).refused(1);
        assert!(said.contains(&format!("labels of at most {most}")), "{said}");
        assert!(!place.at("image").exists());
    }
    if !can_serve() {
        return;
    }
    let tools = [("ext4", "mke2fs"), ("xfs", "mkfs.xfs"), ("btrfs", "mkfs.btrfs"), ("vfat", "mkfs.vfat")];
    for (kind, tool) in tools {
        if has(tool) {
            let label = "L".repeat(limits.iter().find(|(known, _)| *known == kind).unwrap().1);
            place.run(&["make-image", "--force", "-t", kind, "-L", &label, "tree", "image"]).ok();
            let known = place.run(&["inspect", "image"]).ok();
            assert!(known.contains(&label), "{known}");
        }
    }
}

#[test]
fn a_file_that_is_put_in_the_place_of_the_image_in_the_making_is_not_written() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    place.file("tree/file", "content");
    place.file("victim", "precious");
    // What another user does while the file system is made.
    let real = place.run_as("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v mke2fs"]).ok();
    let swap = "name=$(echo .image.outrigger-*); rm \"$name\" && ln -s victim \"$name\"";
    let tool = format!("#!/bin/sh\n{swap} && exec {} \"$@\"\n", real.trim());
    let tool = place.file("tools/mke2fs", tool);
    fs::set_permissions(tool, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.at("tools").display());
    let output = place.command(PROGRAM, &["make-image", "tree", "image"]).env("PATH", path).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another process has removed or replaced"), "{said}");
    assert_eq!(fs::read(place.at("victim")).unwrap(), b"precious");
    assert!(!place.at("image").exists());
}

#[test]
fn an_image_gets_its_name_where_rename_cannot_refuse_to_replace() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("tree/file", "content");
    fs::create_dir(place.at("store")).unwrap();
    // As NFS answers each rename with flags.
    place.run(&["mount", "store", "m", "--layer", "fault=op=rename,error=EINVAL"]).ok();
    place.run(&["make-image", "--type=tar", "tree", "m/image"]).ok();
    let said = place.run(&["make-image", "--type=tar", "tree", "m/image"]).refused(1);
    assert!(said.contains("--force"), "{said}");
    place.run(&["umount", "m"]).ok();
    let names: Vec<_> =
        fs::read_dir(place.at("store")).unwrap().map(|name| name.unwrap().file_name()).collect();
    assert_eq!(names, ["image"]);
    assert_eq!(place.run(&["cat", "store/image::/file"]).ok(), "content");
}

/// Runs a script in a mount namespace of its own.
fn apart(place: &Place, script: &str) -> Said {
    place.run_as("unshare", &["--mount", "sh", "-e", "-c", script])
}

#[test]
fn an_ext4_image_does_not_depend_on_the_configuration_of_this_system() {
    if !can_serve() || !has("mke2fs") || !has("unshare") || !is_root() {
        return;
    }
    let place = Place::new();
    place.file("tree/dir/file", "content");
    place.run(&["make-image", "tree", "one"]).ok();
    place.file("conf", "[defaults]\n\tinode_size = 512\n\tbase_features = sparse_super\n[fs_types]\n\text4 = {\n\t\tfeatures = extent\n\t\thash_alg = tea\n\t}\n");
    fs::create_dir(place.at("empty")).unwrap();
    let script = format!(
        "mount --bind conf /etc/mke2fs.conf
        test ! -d /sys/fs/ext4/features || mount --bind empty /sys/fs/ext4/features
        {PROGRAM} make-image tree other"
    );
    apart(&place, &script).ok();
    place.run_as("cmp", &["one", "other"]).ok();
}

#[test]
fn the_order_in_which_a_file_got_its_attributes_does_not_show_in_an_image() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    for (tree, names) in [("one", ["user.a", "user.b", "user.c"]), ("other", ["user.c", "user.a", "user.b"])]
    {
        let file = place.file(&format!("{tree}/file"), "content");
        for name in names {
            setxattr(&file, name, name.as_bytes(), XattrFlags::empty()).unwrap();
        }
        place.run_as("touch", &["--date=@1000000000", &format!("{tree}/file"), tree]).ok();
        place.run(&["make-image", tree, &format!("{tree}.img")]).ok();
    }
    place.run_as("cmp", &["one.img", "other.img"]).ok();
}

#[test]
fn a_date_of_the_source_that_a_type_cannot_have_is_refused() {
    let place = Place::new();
    place.file("tree/file", "content");
    let cases = [
        ("ext4", "4294967296"),
        ("xfs", "99999999999999999999"),
        ("ext4", "-1"),
        ("ext4", ""),
        ("vfat", "0"),
        ("cpio", "4294967296"),
        ("tar", "18446744073709551615"),
    ];
    for (kind, date) in cases {
        let mut make = place.command(PROGRAM, &["make-image", "-t", kind, "tree", "image"]);
        let output = make.env("SOURCE_DATE_EPOCH", date).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{kind} {date}: {said}");
        assert!(said.contains("SOURCE_DATE_EPOCH is "), "{said}");
        assert!(!place.at("image").exists());
    }
}
