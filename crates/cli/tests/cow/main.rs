// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run --cow`: real programs whose changes are kept apart; and `diff`, `commit` and `discard` of these.

mod calls;
mod each;
mod mapped;
mod native;
mod refused;
#[path = "../support/mod.rs"]
mod support;
mod traced;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use support::{PROGRAM, Place, Said, can_mount, has, signal};

/// A place where programs are run with an overlay in one way.
pub struct Cow {
    place: Place,
    via: &'static str,
}

impl Deref for Cow {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// Tests that programs are run for each way.
macro_rules! each_way {
    ($($file:ident::$test:ident)*) => {
        mod namespace {
            $(#[test] fn $test() { crate::$file::$test("namespace"); })*
        }
        mod seccomp {
            $(#[test] fn $test() { crate::$file::$test("seccomp"); })*
        }
        mod ptrace {
            $(#[test] fn $test() { crate::$file::$test("ptrace"); })*
        }
    };
}

each_way! {
    each::the_real_files_stay_as_they_are_and_the_next_program_goes_on
    each::each_kind_of_change_is_told
    each::a_commit_leaves_what_the_program_would_have_left
    each::files_that_were_changed_meanwhile_are_conflicts
    each::an_overlay_is_of_one_program_at_a_time
    each::the_death_of_the_server_loses_nothing_that_was_done
    each::without_room_the_program_gets_an_error_and_nothing_is_lost
    each::a_user_without_privileges_has_an_overlay
    each::what_is_behind_a_new_symlink_stays
    each::a_directory_becomes_a_fifo
    each::directories_that_their_owner_may_not_look_into_are_shown_and_committed
    each::a_part_of_the_changes_is_committed_and_the_rest_stays
    each::a_part_of_the_changes_is_given_up_and_the_rest_stays
    each::a_name_makes_no_line_of_diff_or_commit
    each::an_open_file_is_changed_also_when_its_first_name_is_gone
    each::directories_that_their_owner_made_read_only_are_committed
    native::an_editor_saves_a_file_that_it_has_looked_at
    native::a_copy_keeps_its_device_and_inode_number
    native::new_files_are_on_the_file_system_of_their_directory
    native::a_default_access_list_takes_the_place_of_the_umask
    native::who_opens_a_lock_for_reading_locks_it_for_all
    native::errors_of_odd_places_are_those_of_the_system
    native::a_directory_that_is_given_open_leads_to_the_overlay
    mapped::a_tree_is_copied_into_the_overlay_and_stays_as_it_is
    mapped::a_rename_across_the_border_is_one_between_disks
    mapped::a_build_reads_a_tree_and_writes_to_the_overlay
}

/// A place with two directories that are alike, `here` and `there`.
fn place(via: &'static str) -> Option<Cow> {
    if via == "namespace" && !can_mount() {
        return None;
    }
    let place = Place::new();
    for dir in ["here", "there"] {
        let setup = "mkdir -p tree/sub/deep empty many; echo one >tree/one; echo two >tree/sub/two; echo 3 >tree/sub/deep/three
            ln -s one tree/link; ln tree/one tree/hard; chmod 4755 tree/sub/two; echo other >many/a; echo other >many/b
            setfattr -n user.mine -v yes tree/sub/two; truncate -s 1M many/holes; mkfifo many/pipe; touch -d 2001-01-01 many/old";
        fs::create_dir(place.at(dir)).unwrap();
        place.run_as("sh", &["-ec", &format!("cd {dir}; {setup}")]).ok();
    }
    Some(Cow { place, via })
}

/// Runs a script in `dir` with the overlay `kept`.
fn apart(place: &Cow, dir: &str, script: &str) -> Said {
    let script = format!("cd {dir}; {script}");
    place.run(&["run", "--via", place.via, "--cow=kept", "--", "sh", "-ec", &script])
}

/// What differs, by the names below a directory.
fn changes(place: &Place, dir: &str) -> Vec<String> {
    let said = place.run(&["diff", "kept"]);
    assert!(said.code == Some(i32::from(!said.out.is_empty())) && said.err.is_empty(), "{said:?}");
    let inside = format!("{}/", place.at(dir).display());
    said.out.lines().map(|line| line.replacen(&inside, "", 1)).collect()
}

/// Everything about the files in a directory but their times of change.
fn all(place: &Place, dir: &str) -> String {
    let list = "find . -mindepth 1 ! -type d -printf '%p %y %m %U %G %n %s %l\\n' -o -type d -printf '%p %m %U %G\\n' | sort
        find . -type f | sort | xargs -d '\\n' sha256sum; getfattr -R -h -d -m - . 2>/dev/null";
    place.run_as("sh", &["-ec", &format!("cd {dir}; {list}")]).ok()
}

#[test]
fn what_both_sides_did_alike_is_no_change() {
    let Some(place) = place("namespace") else { return };
    let script = "rm many/a; echo same >many/b; touch -d 2003-03-03 many/b; mkdir made";
    apart(&place, "here", script).ok();
    place.run_as("sh", &["-ec", &format!("cd here; {script}")]).ok();
    assert_eq!(changes(&place, "here"), Vec::<String>::new());
    place.run(&["commit", "kept"]).ok();
}

/// A commit that has told some changes, and cannot tell many more until somebody reads.
fn slowly(place: &Place, lines: usize) -> (Child, BufReader<PipeReader>) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut command = place.command(PROGRAM, &["commit", "--json", "kept"]);
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut out = BufReader::with_capacity(1, reader);
    let mut line = String::new();
    for _ in 0..lines {
        assert!(out.read_line(&mut line).unwrap() > 0, "it has ended after {line}");
    }
    (child, out)
}

#[test]
fn a_commit_that_was_killed_is_repeated() {
    let Some(place) = place("namespace") else { return };
    let script = "for i in $(seq 300); do echo $i >many/$i; done; rm -r tree; mkdir -p tree/x; echo in >tree/x/in; rm -r empty; echo f >empty
        chmod 700 many; ln many/b many/b2; rm many/a";
    place.run_as("sh", &["-ec", &format!("cd there; {script}")]).ok();
    apart(&place, "here", script).ok();
    let count = changes(&place, "here").len();
    let mut left = count;
    for lines in [1, 20, 150] {
        let (mut child, _out) = slowly(&place, lines);
        signal(child.id(), "KILL");
        child.wait().unwrap();
        let now = changes(&place, "here").len();
        // The lines that were read are done; what the pipe has no room for is not.
        assert!(now > 0 && now < left, "{now} of {count} changes are left after {lines} lines, {left} were");
        left = now;
    }
    let told = place.run(&["commit", "kept"]).ok();
    assert!(told.lines().count() >= left && !place.at("kept").exists(), "{told}");
    assert_eq!(all(&place, "here"), all(&place, "there"));
}

#[test]
fn an_audit_shows_all_files_of_the_program() {
    let Some(place) = place("namespace") else { return };
    let script = "echo x >here/new; rm -f here/many/a; ! cat here/none 2>/dev/null; echo";
    place.run(&["run", "--cow=kept", "--audit=audit", "sh", "-ec", script]).ok();
    let text = fs::read_to_string(place.at("audit")).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let here = place.at("here").display().to_string();
    let has = |op: &str, name: &str, key: &str, value: Value| {
        let path = Value::from(format!("{here}/{name}"));
        let found = all.iter().any(|line| line["op"] == op && line["paths"][0] == path && line[key] == value);
        assert!(found, "no {op} of {name} in {text}");
    };
    has("write", "new", "bytes", 2.into());
    has("unlink", "many/a", "state", "done".into());
    has("lookup", "none", "error", "ENOENT".into());
    let programs = ["/bin/sh", "/usr/bin/sh", "/usr/bin/dash", "/usr/bin/bash"];
    assert!(all.iter().any(|line| programs.iter().any(|path| line["paths"][0] == *path)), "{text}");
}

#[test]
fn an_overlay_in_an_overlay_lies_elsewhere() {
    let Some(place) = place("namespace") else { return };
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let inner = format!("{PROGRAM} run --cow={}/inner -- sh -ec", elsewhere.path().display());
    let script = format!(
        "echo outer >new; {PROGRAM} run --cow=inner true 2>said && exit 9; {inner} 'cat new; echo inner >new; cat new'; cat new"
    );
    assert_eq!(apart(&place, "here", &script).ok(), "outer\ninner\nouter\n");
    place.run(&["commit", "kept"]).ok();
    let said = fs::read_to_string(place.at("here/said")).unwrap();
    assert!(said.contains("in an overlay itself"), "{said}");
}

#[test]
fn programs_of_the_superuser_become_other_users() {
    let Some(place) = place("namespace") else { return };
    if !has("setpriv") {
        return;
    }
    let script = "cp /usr/bin/id id; chmod 4755 id; chmod 777 .; chmod 755 ..
        setpriv --reuid nobody --regid nogroup --clear-groups sh -c './id -un; echo x >nobodys; echo x >tree/no 2>/dev/null || echo refused'";
    assert_eq!(apart(&place, "here", script).ok(), "root\nrefused\n");
    place.run(&["commit", "kept"]).ok();
    assert_eq!(fs::metadata(place.at("here/nobodys")).unwrap().uid(), 65534);
}

/// What somebody does while the changes are committed, what the program did, and the file that says who has won.
const MEANWHILE: [(&str, &str, &str); 6] = [
    ("echo mine >many/z", "echo theirs >many/z", "many/z"),
    ("chmod 600 tree/one", "echo theirs >tree/one", "tree/one"),
    ("rm tree/one", "echo theirs >tree/one", "tree/one"),
    ("rm -r tree; echo mine >tree", "echo theirs >tree/theirs", "tree/theirs"),
    ("rm -r tree; ln -s many tree", "echo theirs >tree/sub/two", "tree/sub/two"),
    (
        "rm -r tree",
        "mv tree away; mkdir elsewhere; echo theirs >elsewhere/one; ln -s elsewhere tree",
        "tree/one",
    ),
];

#[test]
fn what_is_changed_during_a_commit_survives() {
    for (mine, theirs, path) in MEANWHILE {
        let Some(place) = place("namespace") else { return };
        apart(&place, "here", &format!("for i in $(seq 100); do echo $i >many/$i; done; {mine}")).ok();
        let (child, mut out) = slowly(&place, 1);
        place.run_as("sh", &["-ec", &format!("cd here; {theirs}")]).ok();
        let mut told = String::new();
        out.read_to_string(&mut told).unwrap();
        let said = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.status.code() == Some(1) && err.contains("while the overlay was being"),
            "{mine}: {err}"
        );
        assert_eq!(fs::read_to_string(place.at("here").join(path)).unwrap(), "theirs\n", "{mine}");
        let again = place.run(&["commit", "kept"]);
        assert!(again.code == Some(1) && again.err.contains("nothing was committed"), "{mine}: {again:?}");
    }
}

#[test]
fn an_interrupted_change_of_attributes_excuses_no_content() {
    let Some(place) = place("namespace") else { return };
    apart(&place, "here", "chmod 600 many/a; echo mine >many/old").ok();
    let here = place.at("here").display().to_string();
    fs::write(place.at("kept/commit"), format!("attributes {here}/many/a\nattributes {here}/many/old\n"))
        .unwrap();
    place.run_as("chmod", &["640", "here/many/a"]).ok();
    place.file("here/many/old", "theirs\n");
    let said = place.run(&["commit", "kept"]);
    assert!(said.code == Some(1) && said.err.contains("many/old' was changed"), "{said:?}");
    assert!(!said.err.contains("many/a' was changed"), "{said:?}");
    assert_eq!(fs::read_to_string(place.at("here/many/old")).unwrap(), "theirs\n");
}

#[test]
fn a_directory_that_an_interrupted_commit_has_put_in_the_place_of_a_file_is_no_conflict() {
    let Some(place) = place("namespace") else { return };
    apart(&place, "here", "rm many/a; mkdir many/a; echo in >many/a/in").ok();
    fs::write(place.at("kept/commit"), format!("temporary {}/many/a\n", place.at("here").display())).unwrap();
    place.run_as("sh", &["-ec", "rm here/many/a; mkdir -m 700 here/many/a"]).ok();
    place.run(&["commit", "kept"]).ok();
    assert_eq!(fs::read_to_string(place.at("here/many/a/in")).unwrap(), "in\n");
}

#[test]
fn a_file_with_a_name_like_a_temporary_one_is_committed() {
    let Some(place) = place("namespace") else { return };
    apart(&place, "here", "echo x >.outrigger-commit-1").ok();
    assert_eq!(changes(&place, "here"), ["added    .outrigger-commit-1"]);
    place.run(&["commit", "kept"]).ok();
    assert_eq!(fs::read_to_string(place.at("here/.outrigger-commit-1")).unwrap(), "x\n");
}

#[test]
fn a_mark_that_was_not_completed_is_no_obstacle() {
    let Some(place) = place("namespace") else { return };
    fs::create_dir(place.at("kept")).unwrap();
    place.file("kept/overlay.part.1", "outrigger ov");
    apart(&place, "here", "echo x >new").ok();
    place.run(&["commit", "kept"]).ok();
}
