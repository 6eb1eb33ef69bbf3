// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that lose their last name while they are open.

use crate::{Far, kill_server};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// When the process that serves dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Never,
    Before,
    After,
}

#[test]
fn what_was_opened_without_asking_the_host_is_not_lost_with_its_name() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "cache=always"]);
    let at = |name: String| place.at("m").join(name);
    for death in [Death::Never, Death::Before, Death::After] {
        let [removed, replaced] = ["removed", "replaced"].map(|name| at(format!("{name} {death:?}")));
        let open = [&removed, &replaced].map(|path| {
            // From here on its content is known.
            fs::write(path, "content").unwrap();
            File::open(path).unwrap()
        });
        fs::write(at("new".into()), "new").unwrap();
        if death == Death::Before {
            kill_server(place, "KILL");
        }
        fs::remove_file(removed).unwrap();
        fs::rename(at("new".into()), &replaced).unwrap();
        if death == Death::After {
            kill_server(place, "KILL");
        }
        place.run(&["flush", "m"]).ok();
        for file in open {
            let mut read = [0; 7];
            file.read_exact_at(&mut read, 0).unwrap_or_else(|error| panic!("{death:?}: {error}"));
            assert_eq!(&read, b"content");
        }
        assert_eq!(fs::read_to_string(replaced).unwrap(), "new");
    }
    place.run(&["umount", "m"]).ok();
    let left = fs::read_dir(place.at("far")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<String> = left.map(|name| name.to_string_lossy().into_owned()).collect();
    left.sort();
    assert_eq!(left, ["replaced After", "replaced Before", "replaced Never"]);
}

#[test]
fn a_name_that_another_client_removed_can_be_made_again_at_once() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&[]);
    for name in ["written", "emptied", "read"] {
        fs::write(place.at("m").join(name), "old").unwrap();
        assert_eq!(fs::read(place.at("m").join(name)).unwrap(), b"old");
        fs::remove_file(place.at("far").join(name)).unwrap();
    }
    fs::write(place.at("m/written"), "new").unwrap();
    assert_eq!(fs::read(place.at("far/written")).unwrap(), b"new");
    File::options().write(true).create(true).truncate(false).open(place.at("m/emptied")).unwrap();
    assert_eq!(fs::read(place.at("far/emptied")).unwrap(), b"");
    let missing = File::options().append(true).open(place.at("m/read")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(2));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_file_whose_place_was_taken_by_a_link_is_looked_up_again() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&[]);
    place.file("far/target", "target\n");
    for name in ["read", "written", "stat"] {
        fs::write(place.at("m").join(name), "old").unwrap();
        fs::remove_file(place.at("far").join(name)).unwrap();
        std::os::unix::fs::symlink("target", place.at("far").join(name)).unwrap();
    }
    fs::set_permissions(place.at("m/stat"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert!(fs::symlink_metadata(place.at("m/stat")).unwrap().is_symlink());
    fs::write(place.at("m/written"), "new\n").unwrap();
    assert_eq!(fs::read_to_string(place.at("far/target")).unwrap(), "new\n");
    assert!(fs::symlink_metadata(place.at("m/written")).unwrap().is_symlink());
    place.run(&["umount", "m"]).ok();
}
