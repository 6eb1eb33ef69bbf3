// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must not hang, panic or reach outside: files that are no archives, damaged ones, and ones made to do harm.

mod support;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use support::Place;

#[test]
fn what_is_no_archive_is_refused_and_never_waited_for() {
    let place = Place::new();
    place.file("empty", "");
    place.file("text", "hello\n");
    place.run_as("mkfifo", &["fifo"]).ok();
    let _listener = std::os::unix::net::UnixListener::bind(place.at("socket")).unwrap();
    for name in ["empty", "text", "fifo", "socket", "/dev/zero", "/dev/null", "missing"] {
        for args in [["ls", &format!("{name}::/")][..].to_vec(), vec!["cat", &format!("{name}::/x")]] {
            let said = place.run(&args);
            assert!(matches!(said.code, Some(1 | 2)), "{name}: {said:?}");
            assert!(said.err.contains(name) && !said.err.contains("panicked"), "{name}: {said:?}");
        }
    }
}

#[test]
fn damaged_archives_are_an_error_at_any_length() {
    let place = Place::new();
    place.file("src/a", "hello ".repeat(1000));
    place.file("src/d/b", "x");
    for (name, option) in [("a.tar", "-cf"), ("a.tgz", "-czf"), ("a.tbz", "-cjf"), ("a.txz", "-cJf")] {
        place.run_as("tar", &[option, name, "-C", "src", "."]).ok();
        let whole = fs::read(place.at(name)).unwrap();
        for part in 1..8 {
            place.file("cut", &whole[..whole.len() * part / 10]);
            let said = place.run(&["ls", "-R", "cut::/"]);
            assert!(matches!(said.code, Some(0 | 2)) && !said.err.contains("panicked"), "{name}: {said:?}");
            let mut damaged = whole.clone();
            let middle = damaged.len() * part / 10;
            damaged[middle] ^= 0x55;
            place.file("damaged", damaged);
            let said = place.run(&["ls", "-R", "damaged::/"]);
            assert!(matches!(said.code, Some(0 | 2)) && !said.err.contains("panicked"), "{name}: {said:?}");
        }
    }
}

#[test]
fn nothing_is_written_or_read_outside() {
    let place = Place::new();
    place.file("outside/secret", "secret");
    let outside = place.at("outside").display().to_string();
    // A link to a directory of the host, then a file "through" it; and names that climb.
    fs::create_dir_all(place.at("one")).unwrap();
    std::os::unix::fs::symlink(&outside, place.at("one/evil")).unwrap();
    place.file("two/evil/planted", "planted");
    place.file("climber", "climbed");
    place.run_as("tar", &["-cf", "a.tar", "-C", "one", "evil"]).ok();
    place.run_as("tar", &["-rf", "a.tar", "-C", &place.at("two").display().to_string(), "evil/planted"]).ok();
    place.run_as("tar", &["-rPf", "a.tar", "--transform", "s,^,../../../,", "climber"]).ok();
    let said = place.run(&["cp", "-a", "a.tar::/", "target/"]);
    assert!(!said.err.contains("panicked"), "{said:?}");
    fs::create_dir_all(place.at("out/deep")).unwrap();
    place.run(&["cp", "-a", "a.tar::/.", "out/deep"]);
    assert!(!place.at("outside/planted").exists());
    assert!(!place.at("out/climber").exists() && place.at("out/deep/climber").exists());
    assert_ne!(place.run(&["cat", "a.tar::/evil/secret"]).out, "secret", "links stay inside the tree");
}

#[test]
fn device_nodes_leave_an_archive_only_where_everything_is_kept() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: making device nodes needs root");
        return;
    }
    let place = Place::new();
    place.file("src/f", "text");
    if place.run_as("mknod", &["src/null", "c", "1", "3"]).code != Some(0) {
        eprintln!("SKIPPED: no device nodes can be made here");
        return;
    }
    place.tar("a.tar.gz", "src");
    let said = place.run(&["cp", "-r", "a.tar.gz::/.", "out"]).refused(1);
    assert!(said.contains("out/null") && said.contains("-a only"), "{said}");
    assert!(place.at("out/f").exists() && !place.at("out/null").exists());
    place.run(&["cp", "-a", "a.tar.gz::/.", "all"]).ok();
    place.run(&["cp", "-r", "src", "copy"]).ok();
    for made in ["all/null", "copy/null"] {
        assert!(fs::metadata(place.at(made)).unwrap().file_type().is_char_device(), "{made}");
    }
}

#[test]
fn a_member_that_no_tree_can_have_is_named_and_no_success() {
    let place = Place::new();
    // A file below a link, and a hard link to nothing.
    place.file("one/ok", "ok");
    place.file("two/lnk/through", "through");
    fs::create_dir(place.at("three")).unwrap();
    std::os::unix::fs::symlink("real", place.at("one/lnk")).unwrap();
    place.file("three/gone", "gone");
    fs::hard_link(place.at("three/gone"), place.at("three/hl")).unwrap();
    let parts = "tar cf m.tar -C one . && tar rf m.tar -C two lnk/through && tar rf m.tar -C three gone hl && \
                 tar --delete -f m.tar gone";
    place.run_as("sh", &["-c", parts]).ok();
    let said = place.run(&["cp", "-a", "m.tar::/", "out"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    for name in ["lnk/through", "'hl'", "m.tar: 1 entry skipped"] {
        assert!(said.err.contains(name), "{said:?}");
    }
    assert_eq!(fs::read(place.at("out/ok")).unwrap(), b"ok");
    assert_eq!(place.run(&["find", "m.tar::/"]).code, Some(1));
}

#[test]
fn what_is_missing_in_a_damaged_archive_is_said_and_no_success() {
    let place = Place::new();
    // Content that does not get smaller, so that the second file is cut in the middle.
    let noise = |seed: u32| -> Vec<u8> {
        let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        std::iter::successors(Some(seed), next).take(10_000).map(|state| (state >> 24) as u8).collect()
    };
    place.file("src/a", noise(1));
    place.file("src/b", noise(2));
    place.run_as("python3", &["-m", "zipfile", "-c", "whole.zip", "src/a", "src/b"]).ok();
    place.run_as("tar", &["-cf", "whole.tar", "-C", "src", "a", "b"]).ok();
    for (name, kept, shown) in
        [("zip", 10, "none of its entries"), ("zip", 75, "only 1 entry"), ("tar", 60, "only ")]
    {
        let whole = fs::read(place.at(&format!("whole.{name}"))).unwrap();
        place.file("cut", &whole[..whole.len() * kept / 100]);
        let said = place.run(&["ls", "--opt", "partial", "cut::/"]);
        assert_eq!(said.code, Some(1), "{name}: {said:?}");
        assert!(said.err.contains(&format!("cut: the archive is damaged: {shown}")), "{name}: {said:?}");
        assert!(said.err.contains("be read, all else in it is missing (at byte"), "{name}: {said:?}");
        let read = place.run(&["cp", "--opt", "partial", "cut::/a", &format!("{kept}")]);
        let expected = (kept > 50).then(|| noise(1));
        assert_eq!(fs::read(place.at(&format!("{kept}"))).ok(), expected, "{name}: {read:?}");
    }
}
