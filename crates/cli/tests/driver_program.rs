// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drivers that are programs: examples/python/notes.py, by commands and on a mount.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use support::{Place, can_mount, descendant, kill_server, signal};

const DRIVER: [&str; 2] = ["--driver-program", "notes=./notes.py"];

/// A place with the driver and no notes.
fn place() -> Place {
    let place = Place::new();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/notes.py");
    fs::copy(driver, place.at("notes.py")).expect("the driver");
    place.file("notes.json", "{}");
    place
}

fn with_driver<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&DRIVER, args].concat()
}

#[test]
fn commands_work_on_the_tree_of_a_program() {
    let place = place();
    let run = |args: &[&str]| place.run(&with_driver(args));
    place.file("one", "first\n");
    run(&["cp", "one", "notes:notes.json::/"]).ok();
    run(&["cp", "one", "notes://notes.json::/two"]).ok();
    assert_eq!(run(&["cat", "notes:notes.json::/two"]).ok(), "first\n");
    run(&["mv", "notes:notes.json::/two", "notes:notes.json::/three"]).ok();
    run(&["rm", "notes:notes.json::/one"]).ok();
    run(&["touch", "notes:notes.json"]).ok();
    // The name of the tree is empty: this is a path in it, not the file `notes` and what is in that.
    let said = run(&["ls", "notes:::/two"]).refused(2);
    assert!(
        said.contains("cannot open 'notes:': No such file or directory: the notes cannot be read"),
        "{said}"
    );
    let found = run(&["find", "notes:notes.json", "-type", "f"]).ok();
    assert_eq!(found, "notes:notes.json::/three\n");
    assert_eq!(run(&["cat", found.trim_end()]).ok(), "first\n");
    run(&["df", "notes:notes.json"]).ok();
    let said = run(&["mkdir", "notes:notes.json::/d"]).refused(1);
    assert!(said.contains("Function not implemented"), "{said}");
    let said = run(&["ls", "notes:other.json"]).refused(2);
    assert!(
        said.contains("cannot open 'notes:other.json': No such file or directory: the notes cannot be read"),
        "{said}"
    );
}

#[test]
fn a_file_of_that_name_is_that_file_and_no_name_starts_a_program() {
    let place = place();
    place.file("notes:x", "a file");
    assert_eq!(place.run(&with_driver(&["cat", "notes:x"])).ok(), "a file");
    let said = place.run(&["ls", "--driver-program", "notes=./notes.py", "notes:notes.json"]).refused(2);
    assert!(said.contains("it stands in front of the command"), "{said}");
}

#[test]
fn a_file_is_written_in_place_where_the_program_cannot_rename() {
    let place = place();
    let driver = fs::read_to_string(place.at("notes.py")).unwrap();
    let without = driver.replace(" RENAME: 0x", " 99: 0x");
    assert_ne!(without, driver);
    fs::write(place.at("notes.py"), without).unwrap();
    let note = "notes:notes.json::/note";
    let said = place.run(&with_driver(&["write", "--opt", "timeout=20", note]));
    assert!(
        said.err.contains("is written in place: its tree cannot rename a new file over it"),
        "{}",
        said.err
    );
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(place.run(&with_driver(&["cat", "--opt", "patience=20", note])).ok(), "");
    let said = place.run(&with_driver(&["ls", "--opt", "timeout=0", "notes:notes.json"])).refused(2);
    assert!(said.contains("a number of seconds above 0 is expected"), "{said}");
}

/// The driver, with another way to read.
fn reading_otherwise(reads: &str) -> Place {
    let place = place();
    let driver = fs::read_to_string(place.at("notes.py")).unwrap();
    let otherwise = driver.replace("return 8, pack_bytes(text[start:start + length])", reads);
    assert_ne!(otherwise, driver);
    fs::write(place.at("notes.py"), otherwise).unwrap();
    place
}

#[test]
fn content_that_is_less_than_the_size_is_an_error_and_no_file() {
    let place = reading_otherwise("return 8, pack_bytes(text[start:min(start + length, 40)])");
    fs::write(place.at("hundred"), [b'x'; 100]).unwrap();
    let note = "notes:notes.json::/note";
    place.run(&with_driver(&["cp", "hundred", note])).ok();
    let message = "Input/output error: the tree declares 100 bytes and gives 40";
    let fails = |args: &[&str]| {
        let said = place.run(&with_driver(args));
        assert!(said.code == Some(1) && said.err.contains(message), "{said:?}");
        said
    };
    assert!(fails(&["cp", note, "part"]).err.contains("has the first 40 of 100 bytes"));
    fs::write(place.at("over"), "old").unwrap();
    fails(&["cp", note, "over"]);
    fails(&["mv", note, "moved"]);
    assert!(!place.at("moved").exists());
    assert_eq!(fails(&["cat", note]).out, "x".repeat(40));
    assert_eq!(place.run(&with_driver(&["ls", note])).ok(), format!("{note}\n"), "it has not been moved");
    let place = reading_otherwise("return 8, pack_bytes(b'')");
    fs::write(place.at("hundred"), [b'x'; 100]).unwrap();
    place.run(&with_driver(&["cp", "hundred", note])).ok();
    let said = place.run(&with_driver(&["cp", note, "none"]));
    assert!(said.code == Some(1) && said.err.contains("the tree declares 100 bytes and gives 0"), "{said:?}");
    assert!(!place.at("none").exists(), "nothing of it came");
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_copied_is_copied_as_it_is_then() {
    let place = reading_otherwise(
        "notes[name]['text'] = notes[name]['text'][:40]; return 8, pack_bytes(text[start:min(start + length, 40)])",
    );
    fs::write(place.at("hundred"), [b'x'; 100]).unwrap();
    let note = "notes:notes.json::/note";
    place.run(&with_driver(&["cp", "hundred", note])).ok();
    place.run(&with_driver(&["cp", note, "shorter"])).ok();
    assert_eq!(fs::read(place.at("shorter")).unwrap(), [b'x'; 40]);
}

#[test]
fn a_file_of_which_the_size_is_not_known_is_copied_to_its_end() {
    let place = place();
    let driver = fs::read_to_string(place.at("notes.py")).unwrap();
    let unknown = driver.replace(r#"len(note["text"])"#, "0");
    assert_ne!(unknown, driver);
    fs::write(place.at("notes.py"), unknown).unwrap();
    fs::write(place.at("hundred"), [b'x'; 100]).unwrap();
    let note = "notes:notes.json::/note";
    place.run(&with_driver(&["cp", "hundred", note])).ok();
    place.run(&with_driver(&["cp", note, "all"])).ok();
    assert_eq!(fs::read(place.at("all")).unwrap(), [b'x'; 100]);
    assert_eq!(place.run(&with_driver(&["cat", note])).ok(), "x".repeat(100));
}

#[test]
fn a_mount_survives_the_program_its_server_and_an_upgrade() {
    if !can_mount() {
        return;
    }
    let place = place();
    place.run(&with_driver(&["mount", "notes:notes.json", "m"])).ok();
    let note = place.at("m/note");
    let is = |expected: &str| assert_eq!(fs::read_to_string(&note).unwrap(), expected);
    fs::write(&note, "one").unwrap();
    is("one");
    signal(descendant(place.server(), "python3").expect("the program"), "KILL");
    is("one");
    fs::write(&note, "two").unwrap();
    kill_server(&place, "KILL");
    is("two");
    fs::write(&note, "three").unwrap();
    place.run(&["upgrade", "m"]).ok();
    is("three");
    place.run(&["umount", "m"]).ok();
    assert!(fs::read_to_string(place.at("notes.json")).unwrap().contains("three"));
}

#[test]
fn a_mount_with_a_time_limit_holds_a_program_that_cannot_be_started_for_a_while() {
    if !can_mount() {
        return;
    }
    for (options, is_held) in [("rw", false), ("timeout=60", true)] {
        let place = place();
        // From when the file `broken` is there, seven starts fail.
        let script = "#!/bin/sh\n\
            if [ -e PLACE/broken ]; then echo >> PLACE/fails; [ $(wc -l < PLACE/fails) -lt 8 ] && exit 1; fi\n\
            exec PLACE/notes.py\n";
        fs::write(place.at("held.sh"), script.replace("PLACE", place.at("").to_str().unwrap())).unwrap();
        fs::set_permissions(place.at("held.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        place
            .run(&["--driver-program", "notes=./held.sh", "mount", "-o", options, "notes:notes.json", "m"])
            .ok();
        fs::write(place.at("m/note"), "one").unwrap();
        place.file("broken", "");
        signal(descendant(place.server(), "python3").expect("the program"), "KILL");
        let read = fs::read_to_string(place.at("m/note"));
        assert_eq!(read.as_deref().ok(), is_held.then_some("one"), "{options}: {read:?}");
        place.run(&["umount", "m"]).ok();
    }
}

/// A program whose only directory is in itself, by another node each time.
#[test]
fn a_directory_in_itself_is_an_error_and_walked_into_once() {
    let place = place();
    let driver = fs::read_to_string(place.at("notes.py")).unwrap();
    let node = "    node = take(ask, \"Q\")\n";
    let endless = format!(
        r#"{node}    if operation == LOOKUP:
        return 2, struct.pack("<QQ", time.time_ns(), 0) + pack_attr({{}}, "") + bytes(8)
    if operation == READDIR:
        entries = [] if take(ask, "QQ")[1] else [struct.pack("<QQBB", 1, 1, 1, 4) + pack_bytes(b"d")]
        return 11, struct.pack("<I", len(entries)) + b"".join(entries) + b"\1"
    if operation == GETATTR:
        return 4, pack_attr({{}}, "") + bytes(4)
"#
    );
    let driver = driver.replace(node, &endless);
    assert!(driver.contains("time.time_ns(), 0)"));
    fs::write(place.at("notes.py"), driver).unwrap();
    let tree = "notes:notes.json::/";
    // Where a name is in front of it, messages leave out the reason.
    for (args, code, expected) in [
        (&["find", tree][..], 1, "Too many levels of symbolic links"),
        (&["du", tree], 1, "Too many levels of symbolic links"),
        (&["tree", tree], 2, "file system loop"),
        (&["cp", "-r", tree, "copy"], 1, "file system loop"),
        (&["ls", "-R", tree], 2, "not listing already-listed directory"),
    ] {
        let said = place.run(&with_driver(args));
        assert_eq!(said.code, Some(code), "{args:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(expected), "{args:?}: {}", said.err);
    }
    assert!(!place.at("copy/d/d").exists());
}
