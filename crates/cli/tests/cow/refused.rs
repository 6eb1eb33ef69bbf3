// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `run --cow`, `diff`, `commit` and `discard` refuse.

use crate::support::{PROGRAM, has};
use crate::{apart, place};
use std::fs;

#[test]
fn what_does_not_fit_is_refused() {
    let Some(place) = place("namespace") else { return };
    let said = place.run(&["run", "--cow=here", "true"]).refused(125);
    assert!(said.contains("not an overlay"), "{said}");
    assert_eq!(place.run(&["run", "--cow=kept", "--urls", "true"]).code, Some(125));
    assert_eq!(place.run(&["run", "--cow=kept", "sh", "-c", "exit 3"]).code, Some(3));
    let none = place.run(&["commit"]).refused(1);
    assert!(none.contains("state/outrigger/cow/default"), "{none}");
    assert_eq!(place.run(&["diff", "here"]).code, Some(2));
}

#[test]
fn what_is_mounted_where_a_program_removed_a_directory_stays() {
    let Some(place) = place("namespace") else { return };
    let script = format!(
        "cd here; mkdir src; echo precious >src/file; mount --bind src empty
        {PROGRAM} run --cow=../kept -- sh -ec 'mv empty moved; rm -r tree'
        if {PROGRAM} commit ../kept; then exit 1; fi; if {PROGRAM} commit --force ../kept; then exit 1; fi
        cat src/file tree/one; umount empty; {PROGRAM} commit ../kept >/dev/null; ls; cat moved/file"
    );
    let said = place.run_as("unshare", &["-m", "sh", "-ec", &script]);
    assert_eq!((&*said.out, said.code), ("precious\none\nmany\nmoved\nsrc\nprecious\n", Some(0)), "{said:?}");
    assert_eq!(said.err.matches("is a mount point").count(), 2, "{said:?}");
}

#[test]
fn an_overlay_of_another_user_is_refused() {
    let Some(place) = place("namespace") else { return };
    apart(&place, "here", "echo more >>tree/one").ok();
    place.run_as("chown", &["-R", "nobody", "kept"]).ok();
    for command in ["diff", "commit", "discard"] {
        let said = place.run(&[command, "kept"]);
        assert!(said.code != Some(0) && said.err.contains("one of user"), "{said:?}");
    }
    assert_ne!(apart(&place, "here", "true").code, Some(0));
    place.run_as("chown", &["-R", "root", "kept"]).ok();
    fs::rename(place.at("kept/upper"), place.at("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", place.at("kept/upper")).unwrap();
    assert!(apart(&place, "here", "echo more >>tree/one").err.contains("is damaged"));
}

/// A commit that this user can never complete begins with nothing.
#[test]
fn what_cannot_be_committed_is_refused_before_anything_is_done() {
    let Some(place) = place("namespace") else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    let setup = "chmod 755 .; chown -R nobody:nogroup here; mkdir mine theirs; chown nobody:nogroup mine; echo theirs >theirs/file
        chmod 666 theirs/file; mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        as='setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 50'
        $as ./program run --cow=mine/1 -- sh -ec 'echo new >here/a; echo more >>theirs/file'
        if $as ./program commit mine/1; then exit 1; fi
        mount --bind here/tree here/tree; $as ./program run --cow=mine/2 -- sh -ec 'echo new >here/b; echo more >>here/tree/one'
        mount -o remount,bind,ro here/tree
        if $as ./program commit mine/2; then exit 1; fi
        if $as ./program commit --force mine/2; then exit 1; fi
        if ls here/a here/b 2>/dev/null; then exit 1; fi; cat theirs/file here/tree/one
        umount here/tree; $as ./program commit mine/2; cat here/tree/one";
    let said = place.run_as("unshare", &["-m", "sh", "-ec", setup]);
    let done = ["added    here/b", "modified here/tree/one (content, time)"].map(|line| line.to_owned());
    let lines: Vec<String> =
        said.out.lines().map(|line| line.replace(&place.at("").display().to_string(), "")).collect();
    assert_eq!(lines[..2], ["theirs", "one"], "{said:?}");
    assert_eq!(lines[2..lines.len() - 2], done, "{said:?}");
    assert_eq!(lines[lines.len() - 2..], ["one", "more"], "{said:?}");
    for (part, count) in [("nothing was committed", 3), ("belongs to user 0", 1), ("mounted read-only", 2)] {
        assert_eq!(said.err.matches(part).count(), count, "{said:?}");
    }
}

/// A program finds the directories `tree` and `many`; before the commit, something is mounted on `many`.
#[test]
fn what_was_mounted_after_the_program_is_not_written_to() {
    let Some(place) = place("namespace") else { return };
    let script = format!(
        "cd here; {PROGRAM} run --cow=../kept -- sh -ec 'echo new >many/new; mkdir -p many/x/y; echo more >>tree/one'
        mount -t tmpfs none many
        if {PROGRAM} commit ../kept; then exit 1; fi; if {PROGRAM} commit --force ../kept; then exit 1; fi
        ls -A many; cat tree/one; {PROGRAM} commit --only tree ../kept; ls -A many; umount many
        {PROGRAM} commit ../kept; cat many/new"
    );
    let said = place.run_as("unshare", &["-m", "sh", "-ec", &script]);
    let here = place.at("here").display().to_string();
    let expected = [
        "one",
        "modified /tree/one (content, time)",
        "added    /many/new",
        "added    /many/x/",
        "added    /many/x/y/",
        "new",
    ];
    let lines: Vec<String> = said.out.lines().map(|line| line.replace(&here, "")).collect();
    assert_eq!((&lines[..], said.code), (&expected.map(str::to_owned)[..], Some(0)), "{said:?}");
    assert_eq!(said.err.matches("something else is mounted now").count(), 2, "{said:?}");
}

/// The roots of both have the same inode number.
#[test]
fn another_disk_in_the_place_of_the_former_one_is_not_written_to() {
    let Some(place) = place("namespace") else { return };
    let script = format!(
        "cd here; mount -t tmpfs one many; {PROGRAM} run --cow=../kept -- sh -ec 'echo new >many/new'
        stat -c %i many; umount many; mount -t tmpfs two many; stat -c %i many
        if {PROGRAM} commit ../kept; then exit 1; fi; umount many
        if {PROGRAM} commit ../kept; then exit 1; fi; test ! -e many/new"
    );
    let said = place.run_as("unshare", &["-m", "sh", "-ec", &script]);
    let numbers: Vec<&str> = said.out.lines().collect();
    assert!(said.code == Some(0) && matches!(numbers[..], [one, two] if one == two), "{said:?}");
    assert_eq!(said.err.matches("something else is mounted now").count(), 2, "{said:?}");
}

#[test]
fn a_directory_behind_cow_without_an_equals_sign_is_no_program() {
    let Some(place) = place("namespace") else { return };
    for words in [&["here", "true"][..], &["kept", "--", "true"], &["kept", "true"]] {
        let said = place.run(&[&["run", "--cow"], words].concat());
        assert!(said.err.contains(&format!("--cow={}", words[0])), "{said:?}");
        assert!([Some(125), Some(127)].contains(&said.code), "{said:?}");
    }
    let said = place.run(&["run", "--cow", "sh", "-c", "exit 3"]);
    assert_eq!((&*said.err, said.code), ("", Some(3)));
}
