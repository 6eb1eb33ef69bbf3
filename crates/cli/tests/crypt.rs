// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encrypted trees as users meet them.

mod support;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use support::{PROGRAM, Place, can_mount, kill_server};

/// A place with an encrypted tree in `below`, whose passphrase is in `pass`.
fn encrypted() -> Place {
    let place = Place::new();
    secret(&place, "pass", "correct horse\n");
    fs::create_dir(place.at("below")).expect("a directory");
    init(&place, "below").ok();
    place
}

fn secret(place: &Place, name: &str, text: &str) {
    let path = place.file(name, text);
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("permissions");
}

fn init(place: &Place, location: &str) -> support::Said {
    place.run(&["crypt", "init", "--memory", "1", "--passes", "1", "--passfile", "pass", location])
}

/// The files that are stored for those of users.
fn stored(place: &Place) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(place.at("below")).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.is_file() && path.extension().is_none()).collect()
}

fn flip(path: &PathBuf, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is there");
    file.write_all_at(&[byte[0] ^ 1], at).expect("room");
}

#[test]
fn commands_show_what_is_encrypted() {
    let place = encrypted();
    let refused = init(&place, "below").refused(1);
    assert!(refused.contains("there is an outrigger-crypt.json already"), "{refused}");
    // It is refused before a passphrase is asked for: there is no terminal here.
    let refused = place.run_as("setsid", &["-w", PROGRAM, "crypt", "init", "below"]).refused(1);
    assert!(refused.contains("there is an outrigger-crypt.json already"), "{refused}");
    let content = "secret words ".repeat(1000);
    place.file("letter", &content);
    let layer = |rest: &[&'static str]| [&["--layer", "crypt=passfile=pass,plain"], rest].concat();
    place.run(&layer(&["cp", "letter", "below::/copy"])).ok();
    place.run(&layer(&["mkdir", "below::/dir"])).ok();
    place.run(&layer(&["cp", "letter", "below::/dir/again"])).ok();
    assert_eq!(place.run(&layer(&["cat", "below::/copy"])).ok(), content);
    assert_eq!(place.run(&["--layer", "crypt=passfile=pass", "ls", "below::/"]).ok(), "copy\ndir\n");
    assert_eq!(place.run(&layer(&["stat", "-c", "%s", "below::/copy"])).ok(), "13000\n");
    place.run(&layer(&["cp", "below::/dir/again", "back"])).ok();
    assert_eq!(fs::read_to_string(place.at("back")).expect("it is there"), content);
    let paths = stored(&place);
    assert!(
        paths.len() == 1
            && !fs::read(&paths[0]).expect("it is there").windows(6).any(|part| part == b"secret")
    );
    // Nothing is stored in clear by mistake.
    let refused = place.run(&["--layer", "crypt=passfile=pass", "cp", "letter", "below/clear"]).refused(1);
    assert!(refused.contains("outrigger crypt init"), "{refused}");
    assert!(refused.contains("cp: '/': --layer crypt=") && refused.contains("crypt=plain"), "{refused}");
    assert!(!place.at("below/clear").exists());
    secret(&place, "wrong", "battery staple\n");
    let refused = place.run(&["--layer", "crypt=passfile=wrong", "ls", "below::/"]).refused(2);
    assert!(refused.contains("the passphrase is wrong"), "{refused}");
    // A copy of what is stored opens.
    place.run(&["cp", "-r", "below", "backup"]).ok();
    assert_eq!(place.run(&layer(&["cat", "backup::/dir/again"])).ok(), content);
}

#[test]
fn check_names_what_is_damaged() {
    let place = encrypted();
    place.file("letter", vec![7; 3 * 4096 + 10]);
    let layer = ["--layer", "crypt=passfile=pass,plain"];
    place.run(&[&layer[..], &["cp", "letter", "below::/letter"]].concat()).ok();
    let check = || place.run(&["crypt", "check", "--passfile", "pass", "below"]);
    assert_eq!(check().ok(), "1 file with 12298 bytes, 0 damaged\n");
    let path = &stored(&place)[0];
    for block in [0, 2] {
        flip(path, 64 + 4124 * block + 100);
    }
    fs::write(place.at("below/foreign"), "").expect("a file");
    let said = check();
    let lines: Vec<&str> = said.out.lines().collect();
    let expected = [
        "/foreign: the name is damaged, or was not made by this tree",
        "/letter: block 0 is damaged, or of another place",
        "/letter: block 2 is damaged, or of another place",
        "1 file with 4106 bytes, 2 damaged",
    ];
    assert_eq!((lines, said.code), (expected.to_vec(), Some(1)));
    let said = place.run(&["crypt", "check", "--json", "--passfile", "pass", "below"]);
    let last: serde_json::Value =
        serde_json::from_str(said.out.lines().last().expect("a line")).expect("JSON");
    assert_eq!((last["damaged"].as_u64(), said.code), (Some(2), Some(1)));
    let first: serde_json::Value =
        serde_json::from_str(said.out.lines().nth(1).expect("a line")).expect("JSON");
    assert_eq!((first["path"].as_str(), first["damage"].is_string()), (Some("/letter"), true));
}

#[test]
fn a_cut_file_is_not_copied_though_it_ends_in_a_hole() {
    let place = encrypted();
    fs::File::create(place.at("hole")).unwrap().set_len(1 << 20).unwrap();
    let layer = ["--layer", "crypt=passfile=pass,plain"];
    let run = |words: &[&str]| place.run(&[&layer[..], words].concat());
    run(&["cp", "--sparse=always", "hole", "below::/hole"]).ok();
    let path = stored(&place).pop().unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    for copy in [&["cp", "below::/hole", "out"][..], &["cp", "-a", "below::/", "dir"]] {
        let said = run(copy);
        assert!(said.code == Some(1) && said.err.contains("the file was cut"), "{said:?}");
    }
}

#[test]
fn check_counts_each_damaged_name_of_a_directory() {
    let place = encrypted();
    for at in 0..5 {
        fs::write(place.at(&format!("below/foreign{at}")), "").expect("a file");
    }
    let said = place.run(&["crypt", "check", "--passfile", "pass", "below"]);
    assert_eq!((said.out.lines().count(), said.code), (6, Some(1)));
    assert_eq!(said.out.lines().last(), Some("0 files with 0 bytes, 5 damaged"));
}

#[test]
fn a_secret_that_cannot_be_had_is_what_the_error_names() {
    let place = Place::new();
    fs::create_dir(place.at("below")).expect("a directory");
    let refused = place.run_as("setsid", &["-w", PROGRAM, "crypt", "init", "below"]).refused(1);
    assert!(refused.contains("no terminal") && refused.contains("passfile=FILE"), "{refused}");
    assert!(refused.contains("--passfile FILE"), "{refused}");
    secret(&place, "pass", "right");
    init(&place, "below").ok();
    secret(&place, "other", "wrong");
    let other = ["crypt", "passwd", "--passfile", "other", "--new-passfile", "pass", "below"];
    let refused = place.run(&other).refused(1);
    assert!(refused.contains("the passphrase is wrong"), "{refused}");
}

#[test]
fn another_passphrase_or_a_key_file_opens_the_same_files() {
    let place = encrypted();
    place.file("letter", "text");
    place.run(&["--layer", "crypt=passfile=pass,plain", "cp", "letter", "below::/letter"]).ok();
    secret(&place, "key", &"k".repeat(40));
    place.run(&["crypt", "passwd", "--passfile", "pass", "--new-keyfile", "key", "below"]).ok();
    assert_eq!(place.run(&["--layer", "crypt=keyfile=key", "cat", "below::/letter"]).ok(), "text");
    let refused = place.run(&["--layer", "crypt=passfile=pass", "cat", "below::/letter"]).refused(1);
    assert!(refused.contains("the tree has a key file"), "{refused}");
    secret(&place, "new", "another one\n");
    place.run(&["crypt", "passwd", "--keyfile", "key", "--new-passfile", "new", "below"]).ok();
    assert_eq!(place.run(&["--layer", "crypt=passfile=new", "cat", "below::/letter"]).ok(), "text");
    fs::set_permissions(place.at("new"), Permissions::from_mode(0o644)).expect("permissions");
    let refused = place.run(&["--layer", "crypt=passfile=new", "cat", "below::/letter"]).refused(1);
    assert!(refused.contains("chmod 600"), "{refused}");
}

#[test]
fn a_mount_survives_its_server_and_shows_damage() {
    if !can_mount() {
        return;
    }
    let place = encrypted();
    secret(&place, "wrong", "battery staple\n");
    let refused = place.run(&["mount", "--layer", "crypt=passfile=wrong", "below", "m"]).refused(1);
    assert!(refused.contains("the passphrase is wrong"), "{refused}");
    place.run(&["mount", "--layer", "crypt=passfile=pass", "below", "m"]).ok();
    // The next process has the key.
    fs::remove_file(place.at("pass")).expect("it is removed");
    let path = place.at("m/file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    let (block, mut expected) = (vec![b'x'; 5000], Vec::new());
    for _ in 0..3 {
        file.write_all(&block).expect("room");
        expected.extend_from_slice(&block);
        kill_server(&place, "KILL");
        file.write_all(b"after").expect("room");
        expected.extend_from_slice(b"after");
    }
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut found)).expect("it can be read");
    assert!(found == expected);
    drop(file);
    symlink("file", place.at("m/link")).expect("a link");
    fs::create_dir(place.at("m/dir")).expect("a directory");
    fs::rename(place.at("m/link"), place.at("m/dir/link")).expect("it is moved");
    assert_eq!(fs::read_link(place.at("m/dir/link")).expect("a link"), PathBuf::from("file"));
    place.run(&["umount", "m"]).ok();
    secret(&place, "pass", "correct horse\n");
    let whole = fs::read(&stored(&place)[0]).expect("it is there");
    // A file that was cut at a block's boundary ends as one that was not, but for what its header says.
    fs::write(&stored(&place)[0], &whole[..64 + 4124 * 2]).expect("it is cut");
    place.run(&["mount", "--layer", "crypt=passfile=pass", "below", "m"]).ok();
    let error = fs::read(&path).map(|content| content.len()).expect_err("it was cut");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BADMSG.raw_os_error()));
    place.run(&["umount", "m"]).ok();
}

/// What a cache below the layer writes later goes where the layer said, also by a file that was opened for appending.
#[test]
fn appends_reach_a_tree_whose_cache_writes_later_and_nothing_else_is_said_to_be_lost() {
    if !can_mount() {
        return;
    }
    let place = encrypted();
    let mount = ["mount", "--layer", "cache=write=close", "--layer", "crypt=passfile=pass", "below", "m"];
    let (mut expected, path) = (vec![b'x'; 11_099], place.at("m/file"));
    place.run(&mount).ok();
    fs::write(&path, &expected).expect("room");
    place.run(&["umount", "m"]).ok();
    for round in 0..3 {
        place.run(&mount).ok();
        let mut file = OpenOptions::new().append(true).open(&path).expect("it opens");
        for number in 0..2 {
            let line = format!("line {round} {number}\n");
            file.write_all(line.as_bytes()).expect("room");
            expected.extend_from_slice(line.as_bytes());
        }
        drop(file);
        assert!(fs::read(&path).expect("it is whole") == expected, "round {round}");
        place.run(&["umount", "m"]).ok();
    }
    place.run(&["crypt", "check", "--passfile", "pass", "below"]).ok();
}

/// Two that write to one tree lose each other's changes, by whatever they do it.
#[test]
fn a_tree_is_changed_in_one_place_at_a_time() {
    if !can_mount() {
        return;
    }
    let place = encrypted();
    fs::create_dir(place.at("n")).expect("a directory");
    place.file("letter", "text");
    let mount = |options: &str, at: &'static str| {
        place.run(&["mount", "--layer", "crypt=passfile=pass", "-o", options, "below", at])
    };
    let layer =
        |rest: &[&'static str]| place.run(&[&["--layer", "crypt=passfile=pass,plain"][..], rest].concat());
    mount("rw", "m").ok();
    fs::write(place.at("m/file"), "mounted").expect("it is written");
    let is_busy = |said: support::Said| {
        let why = said.refused(1);
        let expected = ["another process uses the encrypted tree", "`outrigger status`"];
        assert!(expected.iter().all(|part| why.contains(part)), "{why}");
        why
    };
    assert!(is_busy(mount("rw", "n")).contains("(process "), "it is named");
    is_busy(mount("ro", "n"));
    is_busy(place.run(&["crypt", "passwd", "--passfile", "pass", "--new-passfile", "pass", "below"]));
    // The next worker has the lock of the one that died.
    kill_server(&place, "KILL");
    assert_eq!(fs::read_to_string(place.at("m/file")).expect("it is read"), "mounted");
    is_busy(layer(&["cp", "letter", "below::/letter"]));
    // Reading is safe: what is read is authentic.
    assert_eq!(layer(&["cat", "below::/file"]).ok(), "mounted");
    layer(&["cp", "below::/file", "copy"]).ok();
    place.run(&["umount", "m"]).ok();
    layer(&["cp", "letter", "below::/letter"]).ok();
    mount("ro", "m").ok();
    mount("ro", "n").ok();
    is_busy(layer(&["rm", "below::/letter"]));
    assert_eq!(fs::read_to_string(place.at("n/letter")).expect("it is read"), "text");
    place.run(&["umount", "m"]).ok();
    place.run(&["umount", "n"]).ok();
    layer(&["rm", "below::/letter"]).ok();
}
