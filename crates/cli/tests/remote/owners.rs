// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users and groups that have other numbers at the host.

use crate::{Far, forbidden, kill_server};
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

/// Numbers at the host: of daemon, and one that the id files do not name.
const DAEMON: u32 = 200_001;
const STRANGER: u32 = 200_002;
/// A number that the files do not name, here.
const UNNAMED: u32 = 300_003;

/// A host with files of several owners, and files that say who is who.
fn peopled() -> Option<Far> {
    let far = Far::new()?;
    for (name, text) in [
        ("uids", format!("# here:there\nroot:0\ndaemon:{DAEMON}\n")),
        ("gids", format!("root:x:0:\ndaemon:x:{DAEMON}:root,daemon\n")),
    ] {
        let file = far.place.file(name, text);
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    for (name, owner) in [("root", 0), ("daemon", DAEMON), ("stranger", STRANGER)] {
        chown(far.place.file(&format!("far/{name}"), name), Some(owner), Some(owner)).unwrap();
    }
    Some(far)
}

#[test]
fn owners_are_those_whom_files_name_and_nothing_is_given_to_anybody_else() {
    let Some(far) = peopled() else { return };
    let place = &far.place;
    let daemon = uzers::get_user_by_name("daemon").expect("every system has it").uid();
    let group = uzers::get_group_by_name("daemon").expect("every system has it").gid();
    far.mount(&["-o", "idmap=file,uidfile=uids,gidfile=gids"]);
    let (here, there) = (|name: &str| place.at("m").join(name), |name: &str| place.at("far").join(name));
    let owner = |path| fs::symlink_metadata(path).map(|meta| (meta.uid(), meta.gid()));

    let mut names: Vec<_> = fs::read_dir(here("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["daemon", "root", "stranger"], "all are listed");
    assert_eq!(owner(here("root")).unwrap(), (0, 0));
    assert_eq!(owner(here("daemon")).unwrap(), (daemon, group));
    assert_eq!(forbidden("looking", owner(here("stranger"))), Errno::PERM);
    assert_eq!(forbidden("reading", fs::read(here("stranger"))), Errno::PERM);
    assert_eq!(forbidden("replacing", fs::rename(here("root"), here("stranger"))), Errno::PERM);

    fs::create_dir(here("dir")).unwrap();
    fs::write(here("dir/file"), "new").unwrap();
    symlink("nowhere", here("dir/link")).unwrap();
    for name in ["dir", "dir/file", "dir/link"] {
        assert_eq!(owner(here(name)).unwrap(), (0, 0));
        lchown(here(name), Some(daemon), None).unwrap();
        assert_eq!(owner(there(name)).unwrap(), (DAEMON, 0));
        lchown(here(name), None, Some(group)).unwrap();
        assert_eq!(owner(there(name)).unwrap(), (DAEMON, DAEMON));
        for who in [UNNAMED, STRANGER, DAEMON] {
            assert_eq!(forbidden("giving away", lchown(here(name), Some(who), None)), Errno::PERM);
            assert_eq!(forbidden("giving away", lchown(here(name), None, Some(who))), Errno::PERM);
        }
        assert_eq!(owner(there(name)).unwrap(), (DAEMON, DAEMON));
    }

    // The next process knows what the files said when the first one read them.
    fs::write(place.at("uids"), "daemon:0\n").unwrap();
    fs::remove_file(place.at("gids")).unwrap();
    kill_server(place, "KILL");
    place.run(&["flush", "m"]).ok();
    assert_eq!(owner(here("daemon")).unwrap(), (daemon, group));
    chown(here("root"), Some(daemon), Some(group)).unwrap();
    assert_eq!(owner(there("root")).unwrap(), (DAEMON, DAEMON));
    place.run(&["umount", "m"]).ok();
}

#[test]
fn numbers_that_no_file_names_stay_what_they_are_if_wanted() {
    let Some(far) = peopled() else { return };
    far.mount(&["-o", "idmap=file,uidfile=uids,nomap=ignore"]);
    let at = |name: &str| far.place.at("m").join(name);
    let meta = fs::metadata(at("stranger")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (STRANGER, STRANGER));
    let meta = fs::metadata(at("daemon")).unwrap();
    assert_ne!(meta.uid(), DAEMON);
    assert_eq!(meta.gid(), DAEMON, "no file is about groups");
    chown(at("root"), Some(UNNAMED), Some(UNNAMED)).unwrap();
    assert_eq!(fs::metadata(far.place.at("far/root")).unwrap().uid(), UNNAMED);
    far.place.run(&["umount", "m"]).ok();
}

#[test]
fn nothing_is_mounted_when_nobody_could_use_it_or_a_file_cannot_be_meant() {
    let Some(far) = peopled() else { return };
    let place = &far.place;
    let refused = |options: &str| {
        place.run(&["mount", &far.location(""), "m", "-o", &far.option(), "-o", options]).refused(1)
    };
    place.file("wrong", "root:0\ndaemon\n");
    fs::set_permissions(place.at("wrong"), Permissions::from_mode(0o644)).unwrap();
    for (options, expected) in [
        ("idmap=file", "idmap=file takes uidfile=FILE"),
        ("idmap=file,uidfile=missing", "/missing: No such file"),
        ("idmap=file,uidfile=wrong", "/wrong, line 2: NAME:NUMBER is needed"),
        ("directport=2222", "command='nc HOST PORT'"),
    ] {
        let said = refused(options);
        assert!(said.contains(expected), "{options}: {said}");
    }
    chown(place.at("far"), Some(STRANGER), None).unwrap();
    let said = refused("idmap=file,uidfile=uids");
    assert!(said.contains(&format!("user {STRANGER} there is nobody here, by uidfile")), "{said}");
}
