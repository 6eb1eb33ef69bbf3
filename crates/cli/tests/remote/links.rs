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
