// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images in which blocks are not where they are on the disk: VDI, VHD, VMDK and VHDX, made by `qemu-img`.

mod support;

use std::fs::{self, File};
use support::{Place, can_mount, can_serve, has};

/// Forms, and what `qemu-img convert` makes them with.
const FORMS: &[(&str, &str)] = &[
    ("vdi", "vdi"),
    ("vhd", "vpc"),
    ("vhd", "vpc -o subformat=fixed"),
    ("vmdk", "vmdk"),
    ("vmdk", "vmdk -o subformat=streamOptimized"),
    ("vmdk", "vmdk -o subformat=monolithicFlat"),
    ("vmdk", "vmdk -o subformat=twoGbMaxExtentSparse"),
    ("vhdx", "vhdx"),
    ("vhdx", "vhdx -o subformat=fixed"),
];

/// A directory with an ext4 in the plain image `raw`; none where something is missing.
fn with_ext4() -> Option<Place> {
    if !can_serve() || !has("qemu-img") || !has("mkfs.ext4") {
        return None;
    }
    let place = Place::new();
    place.file("src/dir/file", vec![b'x'; 3_000_000]);
    place.file("src/empty", "");
    File::create(place.at("raw")).unwrap().set_len(64 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "-d", "src", "raw"]).ok();
    Some(place)
}

fn convert(place: &Place, options: &str) {
    let words = ["convert", "-O"].into_iter().chain(options.split(' ')).chain(["raw", "disk"]);
    place.run_as("qemu-img", &words.collect::<Vec<_>>()).ok();
}

#[test]
fn images_of_every_form_are_read_as_plain_ones_are() {
    let Some(place) = with_ext4() else { return };
    let listed = |tree: &str| place.run(&["find", tree, "-printf", "%P %y %m %n %s %l %Ts\n"]).ok();
    let expected = listed("raw::/");
    for (form, options) in FORMS {
        convert(&place, options);
        assert_eq!(listed("disk::/"), expected, "{options}");
        assert_eq!(place.run(&["cat", "disk::/dir/file"]).ok(), "x".repeat(3_000_000), "{options}");
        let text = place.run(&["inspect", "disk"]).ok();
        assert!(text.starts_with(&format!("disk: {form}, ")) && text.contains("ext4"), "{text}");
        if options.contains("vpc -o subformat=fixed") {
            place.run(&["cp", "src/dir/file", "disk::/new"]).ok();
            place.run(&["inspect", "disk"]).ok();
            place.run_as("qemu-img", &["convert", "-f", "vpc", "-O", "raw", "disk", "back"]).ok();
            place.run_as("e2fsck", &["-fn", "back"]).ok();
            assert_eq!(place.run(&["cat", "back::/new"]).ok().len(), 3_000_000);
        } else {
            let before = fs::read(place.at("disk")).unwrap();
            let complaint = place.run(&["mkdir", "disk::/new"]).refused(1);
            assert!(complaint.contains("only read") && complaint.contains("qemu-img convert"), "{complaint}");
            assert!(fs::read(place.at("disk")).unwrap() == before, "{options}: it stays as it is");
        }
        fs::remove_file(place.at("disk")).unwrap();
    }
}

#[test]
fn an_image_that_is_only_read_is_mounted() {
    let Some(place) = with_ext4().filter(|_| can_mount()) else { return };
    convert(&place, "vmdk");
    place.run(&["mount", "disk", "m"]).ok();
    assert_eq!(fs::read(place.at("m/dir/file")).unwrap().len(), 3_000_000);
    let refused = fs::create_dir(place.at("m/new")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    place.run(&["umount", "m"]).ok();
}

/// The names in an untrusted image lead only to files in its own directory or below.
#[test]
fn the_parts_of_an_image_are_beside_it() {
    let place = Place::new();
    place.file("secret", vec![b's'; 4096]);
    for name in ["../secret".to_owned(), place.at("secret").display().to_string()] {
        place.file("images/disk", format!("# Disk DescriptorFile\nversion=1\nRW 8 FLAT \"{name}\" 0\n"));
        let complaint = place.run(&["inspect", "images/disk"]).refused(1);
        assert!(complaint.contains("outside") && complaint.contains("backing=allow"), "{complaint}");
    }
    place.file("images/disk", "# Disk DescriptorFile\nversion=1\nRW 8 FLAT \"none\" 0\n");
    assert!(place.run(&["inspect", "images/disk"]).refused(1).contains("a part of it is in"));
    // One that is based on itself.
    place.file(
        "images/disk",
        "# Disk DescriptorFile\nCID=1\nparentCID=1\nparentFileNameHint=\"disk\"\nRW 8 ZERO\n",
    );
    assert!(place.run(&["inspect", "images/disk"]).refused(1).contains("too many images"));
}
