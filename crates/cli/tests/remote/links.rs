// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbolic links whose targets a host has chosen.

use crate::Far;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn links_that_lead_out_of_a_mount_are_refused_unless_wanted() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    fs::create_dir(place.at("far/dir")).unwrap();
    place.file("far/file", "inside\n");
    place.file("secret", "of this machine\n");
    let (inside, outside) = (place.at("far/file"), place.at("secret"));
    let targets = ["../file", "../../secret", inside.to_str().unwrap(), outside.to_str().unwrap()];
    for (name, target) in ["in", "up", "absolute", "out"].into_iter().zip(targets) {
        symlink(target, place.at("far/dir").join(name)).unwrap();
    }
    let there = |name: &str| place.at("m/dir").join(name);
    far.mount(&[]);
    for name in ["in", "absolute"] {
        assert_eq!(fs::read_to_string(there(name)).unwrap(), "inside\n", "{name}");
    }
    for name in ["up", "out"] {
        let refused = [fs::read(there(name)).unwrap_err(), fs::read_link(there(name)).unwrap_err()];
        assert!(
            refused.iter().all(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error())),
            "{name}"
        );
        assert!(fs::symlink_metadata(there(name)).unwrap().is_symlink(), "{name}");
    }
    place.run(&["umount", "m"]).ok();
    far.mount(&["-o", "no_contain_symlinks"]);
    assert_eq!(fs::read_to_string(there("out")).unwrap(), "of this machine\n");
    assert_eq!(fs::read_link(there("up")).unwrap(), Path::new("../../secret"));
    place.run(&["umount", "m"]).ok();
    place.run(&["cp", "-a", &far.location("/dir"), "copy", "--opt", &far.option()]).ok();
    assert_eq!(fs::read_link(place.at("copy/out")).unwrap(), outside);
}

#[test]
fn a_link_that_leads_out_after_its_directory_was_moved_is_refused() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    fs::create_dir_all(place.at("far/a/b/c")).unwrap();
    place.file("far/file", "inside\n");
    place.file("file", "of this machine\n");
    symlink("../../file", place.at("far/a/b/up")).unwrap();
    symlink(place.at("far/file"), place.at("far/a/b/c/absolute")).unwrap();
    far.mount(&[]);
    let read = |path: &str| fs::read_to_string(place.at("m").join(path));
    assert_eq!(
        (read("a/b/up").unwrap(), read("a/b/c/absolute").unwrap()),
        ("inside\n".into(), "inside\n".into())
    );
    fs::rename(place.at("m/a/b"), place.at("m/moved")).unwrap();
    let refused = read("moved/up").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
    assert_eq!(read("moved/c/absolute").unwrap(), "inside\n", "it has another way to the same file");
    fs::rename(place.at("m/moved"), place.at("m/a/b")).unwrap();
    assert_eq!(read("a/b/up").unwrap(), "inside\n");
    fs::rename(place.at("m/a/b/up"), place.at("m/up")).unwrap();
    assert_eq!(read("up").unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    place.run(&["umount", "m"]).ok();
}
