// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is so by a filter only.

use crate::answers::{Answered, command, run};
use crate::support::{PROGRAM, has, signal};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

fn place() -> Answered {
    crate::answers::place("seccomp")
}

#[test]
fn what_a_server_leaves_that_was_killed_is_removed_and_what_was_written_kept() {
    let place = place();
    for (before, is_left) in
        [("cat /data/sub/file", false), ("exec 3>/data/new; echo precious >&3; echo", true)]
    {
        let words = ["sh", "-c", &format!("{before}; echo ready; read line; cat tree/sub/file")];
        let mut server =
            command(&place, &[], &words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let mut input = server.stdin.take().unwrap();
        signal(server.id(), "KILL");
        server.wait().unwrap();
        input.write_all(b"go\n").unwrap();
        assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>(), ["content"], "local files stay");
        let next = run(&place, &[], &["true"]);
        assert_eq!(next.err.contains("ended before it had stored"), is_left, "{next:?}");
        assert_eq!(fs::read_dir(place.at("copies")).unwrap().count(), 0);
        let kept = fs::read_dir(place.at("state/outrigger/unsaved")).into_iter().flatten();
        let kept: Vec<_> = kept.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
        assert_eq!(kept, if is_left { vec!["precious\n"] } else { vec![] });
    }
}

#[test]
fn a_second_filter_is_refused_with_a_reason() {
    let place = place();
    let inner = format!("{PROGRAM} run --via seccomp --no-hosts --map /more=tree cat /more/sub/file");
    let said = run(&place, &[], &["sh", "-c", &inner]);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("answered by another one"), "{said:?}");
}

#[test]
fn where_no_namespace_can_be_made_system_calls_are_answered() {
    if !has("unshare") || !has("setpriv") {
        return;
    }
    let place = place();
    // A user namespace of its own has limits of its own.
    let setup = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all {PROGRAM} run -v \
            --no-hosts --map /data=tree sh -c 'cat /data/sub/file; cd /data; echo new >new; chmod 600 new; grep CapEff /proc/self/status'"
    );
    let said = place.run_as("unshare", &["-Ur", "sh", "-c", &setup]);
    assert!(said.err.starts_with("outrigger run: via seccomp (not namespace: no user namespace"), "{said:?}");
    assert!(said.err.contains("max_user_namespaces is 0"), "{said:?}");
    assert_eq!(said.ok(), "content\nCapEff:\t0000000000000000\n");
    assert_eq!(fs::metadata(place.at("tree/new")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_is_not_emptied_where_its_copy_cannot_be_watched() {
    if !has("unshare") {
        return;
    }
    let place = place();
    let setup = format!(
        "echo 0 >/proc/sys/user/max_inotify_watches; exec {PROGRAM} run --via seccomp --no-hosts --map /data=tree \
            sh -c 'echo new >/data/sub/file; cat /data/sub/file'"
    );
    let said = place.run_as("unshare", &["-Ur", "sh", "-c", &setup]);
    assert!(said.err.contains("No space left"), "{said:?}");
    assert_eq!(said.out, "content\n", "{said:?}");
    assert_eq!(fs::read_to_string(place.at("tree/sub/file")).unwrap(), "content\n");
}
