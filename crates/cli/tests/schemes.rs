// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths in the trees of schemes: `SCHEME:PATH`.

mod support;

use support::Place;

#[test]
fn a_path_follows_the_colon_in_every_command() {
    let place = Place::new();
    for location in ["null:", "null:/", "null:/.", "NULL:"] {
        assert_eq!(place.run(&["ls", location]).ok(), "file\n", "{location}");
    }
    for location in ["null:/file", "null:file", "null:///file"] {
        assert_eq!(place.run(&["ls", location]).ok(), format!("{location}\n"));
        assert_eq!(place.run(&["stat", "-c", "%s", "--opt", "size=9", location]).ok(), "9\n");
        let said = place.run(&["df", location]).ok();
        assert!(said.ends_with(&format!(" {location}\n")), "{said}");
        place.run(&["cp", "--opt", "size=9", location, "copy"]).ok();
        assert_eq!(std::fs::metadata(place.at("copy")).unwrap().len(), 9);
    }
    let said = place.run(&["cat", "null:/nothing"]).refused(1);
    assert!(said.contains("null:/nothing': No such file or directory"), "{said}");
    assert_eq!(place.run(&["ls", "null:::/file"]).ok(), "null:::/file\n", "the tree of its root");
}

#[test]
fn what_find_and_du_print_is_a_location() {
    let place = Place::new();
    for (root, file) in [("null:", "null:file"), ("null:/", "null:/file"), ("null://", "null://file")] {
        assert_eq!(place.run(&["find", root, "-type", "f"]).ok(), format!("{file}\n"));
        assert_eq!(place.run(&["du", "-a", root]).ok().lines().next(), Some(&*format!("0\t{file}")));
        assert_eq!(place.run(&["ls", file]).ok(), format!("{file}\n"));
    }
}

/// A move into memory would remove the source, and the copy would end with the command.
#[test]
fn commands_do_not_put_files_where_they_end_with_the_command() {
    let place = Place::new();
    place.file("f", "content");
    for args in [
        &["mv", "f", "mem:"][..],
        &["mv", "f", "mem:/f"],
        &["cp", "f", "mem:f"],
        &["cp", "f", "tmpfs:/f"],
        &["touch", "mem:f"],
        &["mkdir", "mem:d"],
    ] {
        let said = place.run(args).refused(1);
        assert!(said.contains("is lost when the command ends"), "{args:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(place.at("f")).unwrap(), "content");
    assert_eq!(place.run(&["find", "mem:"]).ok(), "mem:\n");
}

/// Two colons are one too many for a scheme: that is a place in the archive `null`.
#[test]
fn a_file_with_the_name_of_a_location_is_that_file() {
    let place = Place::new();
    place.file("null:file", "here");
    assert_eq!(place.run(&["cat", "null:file"]).ok(), "here");
    place.file("null", "no archive");
    let said = place.run(&["ls", "null::/file"]).refused(2);
    assert!(said.contains("cannot open 'null': neither a disk image"), "{said}");
}

/// `find` prints a name so that the next command takes it for the same file, whatever is in it.
#[test]
fn what_find_prints_of_a_name_with_two_colons_is_that_file() {
    let place = Place::new();
    place.file("in/c/f", "inner");
    place.tar("t.tar", "in");
    place.file("in/t.tar::f", "right");
    place.file("in/x%41:::", "percent");
    std::fs::rename(place.at("t.tar"), place.at("in/t.tar")).unwrap();
    place.tar("all.tar", "in");
    for (pattern, content) in [("*::f", "right"), ("x*", "percent")] {
        let said = place.run(&["find", "all.tar::/", "-name", pattern]).ok();
        assert_eq!(place.run(&["cat", said.trim_end()]).ok(), content, "{said}");
    }
}

/// `find DIR -name x -o $EMPTY -delete` would delete everything.
#[test]
fn an_operator_at_the_end_is_refused() {
    let place = Place::new();
    place.file("d/f", "");
    for operator in ["-o", "-or", ",", "-a"] {
        let said = place.run(&["find", "d", "-type", "f", "-delete", operator]).refused(1);
        assert!(said.contains("expression is missing"), "{operator}: {said}");
    }
    assert!(place.at("d/f").exists());
}
