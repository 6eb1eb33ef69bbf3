// SPDX-License-Identifier: MIT OR Apache-2.0
//! `run --cow` with trees under prefixes: they are seen, and only local files change.

use crate::support::{PROGRAM, Said, has};
use crate::{Cow, all, changes, place};
use outrigger_remote::{HOST, Sshd};
use serde_json::Value;
use std::fs;

/// Runs a script in `here` with the overlay `kept`, and `there` under `/data`.
fn mapped(place: &Cow, options: &[&str], script: &str) -> Said {
    let script = format!("cd here; {script}");
    let words = ["run", "--via", place.via, "--cow=kept", "--no-hosts", "--map", "/data=there"];
    place.run(&[&words, options, &["--", "sh", "-ec", &script]].concat())
}

pub fn a_tree_is_copied_into_the_overlay_and_stays_as_it_is(via: &'static str) {
    let Some(place) = place(via) else { return };
    let before = all(&place, "there");
    let script = "cat /data/tree/one; cp -a /data/tree/sub copy; diff -r copy /data/tree/sub; cd /data/tree/sub; pwd; /bin/pwd; ls -d /data
        cat $OLDPWD/many/a";
    let seen = mapped(&place, &[], script).ok();
    assert_eq!(seen, "one\n/data/tree/sub\n/data/tree/sub\n/data\nother\n");
    assert_eq!((all(&place, "there"), fs::metadata("/data").is_ok()), (before, false));
    let copied = ["added    copy/", "added    copy/deep/", "added    copy/deep/three", "added    copy/two"];
    assert_eq!(changes(&place, "here"), copied);
    place.run(&["commit", "kept"]).ok();
    place.run_as("diff", &["-r", "here/copy", "there/tree/sub"]).ok();
}

#[test]
fn a_tree_refuses_changes_and_so_does_the_way_to_it() {
    let Some(place) = place("namespace") else { return };
    let before = all(&place, "there");
    let script = "for change in 'touch /data/new' 'rm /data/tree/one' 'chmod 600 /data/tree/one' 'mkdir /data/dir' 'touch /way/x' 'mkdir /way/dir'
        do $change 2>&1 | grep -c 'Read-only file system'; done
        (echo x >>/data/tree/one) 2>&1 | grep -c Read-only; ! test -w /data/tree/one; ! rmdir /data 2>/dev/null
        ! mv /way /other 2>/dev/null; ls /way; cat /way/to/tree/one";
    let words = ["--map", "/way/to=there"];
    for options in [&words[..], &["--map", "/way/to=there", "--read-only"]] {
        let seen = mapped(&place, options, script).ok();
        assert_eq!(seen, format!("{}to\none\n", "1\n".repeat(7)));
    }
    // The server refuses changes, too.
    let remounted = "mount -i -o remount,rw /data; ! touch /data/new 2>&1";
    let seen = mapped(&place, &[], remounted).ok();
    assert_eq!(seen, "touch: cannot touch '/data/new': Read-only file system\n");
    assert_eq!((all(&place, "there"), changes(&place, "here")), (before, Vec::new()));
}

pub fn a_rename_across_the_border_is_one_between_disks(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("python3") {
        return;
    }
    let script = "exec python3 -c '
import os, errno
for one, other in ((\"many/a\", \"/data/new\"), (\"/data/many/a\", \"new\")):
    for call in (os.rename, os.link) if one[0] == \"/\" else (os.rename,):
        try: call(one, other)
        except OSError as error: print(errno.errorcode[error.errno])'";
    assert_eq!(mapped(&place, &[], script).ok(), "EXDEV\n".repeat(3));
}

#[test]
fn a_tree_covers_a_directory_and_stands_in_another_tree() {
    let Some(place) = place("namespace") else { return };
    let covered = format!("{}=there/many", place.at("here/tree").display());
    let options = ["--map", &covered, "--map", "/data/empty=there/tree"];
    let seen =
        mapped(&place, &options, "ls tree | head -2; cat /data/empty/one; ls / | grep -c data; echo x >new")
            .ok();
    assert_eq!(seen, "a\nb\none\n1\n");
    assert_eq!(changes(&place, "here"), ["added    new"]);
    // A directory that is in the overlay only is as good.
    mapped(&place, &[], "mkdir only; mkdir /only").ok();
    let only = format!("{}=there/many", place.at("here/only").display());
    let options = ["--map", &only, "--map", "/only=there/many"];
    assert_eq!(mapped(&place, &options, "ls only /only | grep -c pipe").ok(), "2\n");
    let inside = place.at("here/none/dir").display().to_string();
    for (prefix, why) in
        [(&*inside, "make one there"), (place.at("kept").to_str().unwrap(), "is in the overlay itself")]
    {
        let said = mapped(&place, &["--map", &format!("{prefix}=there")], "true").refused(125);
        assert!(said.contains(why) && said.contains(prefix), "{said}");
    }
    assert!(!fs::exists("/only").unwrap());
    place.run(&["discard", "kept"]).ok();
}

pub fn a_build_reads_a_tree_and_writes_to_the_overlay(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("cc") || !has("make") {
        return;
    }
    place.file("there/main.c", "#include <stdio.h>\nint main(void) { return puts(\"built\") < 0; }\n");
    place.file("there/Makefile", "prog: /data/main.c\n\tcc -o $@ $<\n");
    assert_eq!(mapped(&place, &[], "make -s -f /data/Makefile && ./prog").ok(), "built\n");
    assert_eq!(changes(&place, "here"), ["added    prog"]);
    place.run(&["commit", "kept"]).ok();
    assert_eq!(place.run_as("here/prog", &[]).ok(), "built\n");
}

#[test]
fn an_audit_shows_trees_by_their_prefixes_and_local_files() {
    let Some(place) = place("namespace") else { return };
    mapped(&place, &["--audit", "audit"], "cat /data/tree/one >new").ok();
    let text = fs::read_to_string(place.at("audit")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let new = place.at("here/new").display().to_string();
    for (op, path) in [("read", "/data/tree/one"), ("write", &*new)] {
        assert!(
            lines.iter().any(|line| line["op"] == op && line["paths"][0] == path),
            "no {op} {path}: {text}"
        );
    }
}

#[test]
fn layers_and_options_are_those_of_trees() {
    let Some(place) = place("namespace") else { return };
    let seen = mapped(&place, &["--layer", "trace"], "cat many/a /data/many/a");
    assert!(seen.err.contains("lookup /many/a") && !seen.err.contains("here"), "{seen:?}");
    let none =
        place.run(&["run", "--cow=kept", "--no-hosts", "--mounts", "/dev/null", "--layer", "trace", "true"]);
    let none = none.refused(125);
    assert!(none.contains("'trace' is for trees of --map"), "{none}");
}

#[test]
fn the_file_of_mounts_and_hosts_count() {
    let Some(place) = place("namespace") else { return };
    if let Some(missing) = Sshd::missing() {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        eprintln!("SKIPPED: there is no {missing}");
        return;
    }
    let place = place.place.trusting();
    fs::create_dir(place.at("sshd")).unwrap();
    let sshd = Sshd::start(place.at("sshd")).unwrap();
    place.file("config", format!("/mine '{HOST}:{}' rw\n", place.at("there").display()));
    let option = format!("F={}", sshd.configuration().display());
    let host = format!("/sftp/{HOST}{}", place.at("there").display());
    let script = format!(
        "cat /mine/tree/one {host}/tree/one; cp {host}/many/a here/new; ls -d /sftp; ! touch {host}/x /mine/x 2>/dev/null"
    );
    let words = ["run", "--cow=kept", "--mounts", "config", "--opt", &option, "sh", "-ec", &script];
    assert_eq!(place.run(&words).ok(), "one\none\n/sftp\n");
    assert!(!place.at("there/x").exists());
    assert_eq!(changes(&place, "here"), ["added    new"]);
    assert_eq!(place.run(&["run", "--cow=kept", "--no-hosts", "ls", "-d", "/sftp"]).code, Some(2));
}

#[test]
fn a_user_without_privileges_has_both() {
    let Some(place) = place("namespace") else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    let setup = "chmod 755 .; chown -R nobody:nogroup here; mkdir mine; chown nobody:nogroup mine; mknod fuse c 10 229; chmod 666 fuse
        mount --bind fuse /dev/fuse; as='setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 20'
        $as ./program run --cow=mine/kept --map /data=there --map /way/to=there --map $PWD/here/empty=there sh -ec 'id -un; cp /data/tree/one here/new
            ls /way here/empty/tree; pwd; ! touch /data/x 2>&1; ls -d /sftp; grep CapEff /proc/self/status'
        $as ./program diff mine/kept || $as ./program commit mine/kept; cat here/new";
    let said = place.run_as("unshare", &["-m", "sh", "-c", setup]);
    let dir = place.at("").display().to_string();
    let lines: Vec<String> = said.out.lines().map(|line| line.replace(&dir, "")).collect();
    let pwd = dir.trim_end_matches('/');
    let expected = [
        "nobody",
        "/way:",
        "to",
        "",
        "here/empty/tree:",
        "hard",
        "link",
        "one",
        "sub",
        pwd,
        "touch: cannot touch '/data/x': Read-only file system",
        "/sftp",
        "CapEff:\t0000000000000000",
        "added    here/new",
        "added    here/new",
        "one",
    ];
    let sorted = |mut lines: Vec<String>| {
        lines[1..9].sort();
        lines
    };
    assert!(lines.len() == expected.len(), "{said:?}");
    assert_eq!(sorted(lines), sorted(expected.map(str::to_owned).to_vec()), "{said:?}");
}
