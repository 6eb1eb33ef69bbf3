// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses: those of the program of the same name where there is one, and for other commands 1 for what failed and 2 for a
//! wrong command line.

mod support;

use support::Place;

/// Commands with a program of the same name on the host, and operands that exist.
const NAMESAKES: &[(&str, &[&str])] = &[
    ("cat", &["file"]),
    ("chmod", &["644", "file"]),
    ("chown", &["0", "file"]),
    ("cp", &["file", "copy"]),
    ("df", &["."]),
    ("diff", &["file", "file"]),
    ("du", &["file"]),
    ("find", &["file"]),
    ("ln", &["file", "link"]),
    ("ls", &["file"]),
    ("mkdir", &["made"]),
    ("mv", &["file", "moved"]),
    ("readlink", &["symbolic"]),
    ("rm", &["file"]),
    ("rmdir", &["empty"]),
    ("stat", &["file"]),
    ("touch", &["file"]),
    ("truncate", &["-s", "1", "file"]),
];

/// Those that exist here only, with operands that cannot be had.
const OWN: &[(&str, &[&str])] = &[
    ("drivers", &["nothing"]),
    ("flush", &["dir"]),
    ("inspect", &["nothing"]),
    ("make-image", &["nothing", "image"]),
    ("mount", &["nothing", "dir"]),
    ("trace", &["dir"]),
    ("umount", &["dir"]),
    ("upgrade", &["dir"]),
    ("write", &["nothing/file"]),
];

fn place() -> Place {
    let place = Place::new();
    place.file("file", "content");
    place.file("dir/file", "content");
    std::fs::create_dir(place.at("empty")).unwrap();
    std::os::unix::fs::symlink("file", place.at("symbolic")).unwrap();
    place
}

#[test]
fn namesakes_end_as_the_programs_of_the_host() {
    for (name, operands) in NAMESAKES {
        let missing: Vec<&str> = operands
            .iter()
            .map(|word| if *word == *operands.last().unwrap() { "no/such/name" } else { word })
            .collect();
        let unknown = [&["--no-such-option"], *operands].concat();
        for words in [operands.to_vec(), missing, unknown] {
            let theirs = place().run_as(name, &words).code;
            let ours = place().run(&[&[*name], &words[..]].concat());
            assert_eq!(ours.code, theirs, "{name} {words:?}: {}", ours.err);
        }
    }
}

#[test]
fn a_tree_that_cannot_be_opened_is_as_bad_as_a_file() {
    for (name, operands) in NAMESAKES {
        let words: Vec<&str> =
            operands.iter().map(|word| if word.contains("file") { "file::/x" } else { word }).collect();
        if words == *operands {
            continue;
        }
        let ours = place().run(&[&[*name], &words[..]].concat());
        let expected = if matches!(*name, "ls" | "diff") { 2 } else { 1 };
        assert_eq!(ours.code, Some(expected), "{name} {words:?}: {}", ours.err);
    }
}

#[test]
fn own_commands_tell_failures_from_wrong_command_lines() {
    for (name, operands) in OWN {
        let failed = place().run(&[&[*name], *operands].concat());
        assert_eq!(failed.code, Some(1), "{name} {operands:?}: {}", failed.err);
        let wrong = place().run(&[&[*name, "--no-such-option"], *operands].concat());
        assert_eq!(wrong.code, Some(2), "{name}: {}", wrong.err);
    }
    assert_eq!(place().run(&["no-such-command"]).code, Some(2));
}
