// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of content that programs write to trees, in the end and beside others.

use crate::answers::*;
use crate::support::{PROGRAM, signal, within};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

pub fn what_others_have_stored_since_a_file_was_opened_is_not_undone(via: &'static str) {
    let place = place(via);
    let own = place.at("tree/log").display().to_string();
    for before in ["echo one >/data/log; exec 5>>/data/log", "exec 5>/data/log"] {
        let said =
            script(&place, &format!("{before}; echo of-others >>{own}; echo ours >&5; exec 5>&-; true"));
        assert!(said.code == Some(125) && said.err.contains("changed by another program"), "{said:?}");
        assert!(fs::read_to_string(&own).unwrap().ends_with("of-others\n"), "{said:?}");
        let unsaved = said.err.rsplit_once(" is in '").unwrap().1.split('\'').next().unwrap().to_owned();
        assert!(fs::read_to_string(unsaved).unwrap().ends_with("ours\n"));
    }
    script(&place, "exec 5>>/data/log; echo a >&5; sync /data/log; chmod 600 /data/log; echo b >&5").ok();
    assert!(fs::read_to_string(&own).unwrap().ends_with("a\nb\n"));
}

/// Each time: what a program stores first must not be the only thing that is compared.
pub fn what_others_have_stored_since_a_file_was_stored_is_not_undone(via: &'static str) {
    let stores = ["sync /data/log", "mv /data/log /data/log2; mv /data/log2 /data/log"];
    for (number, store) in stores.into_iter().enumerate() {
        for others in ["echo of-others >>", "echo b >tmp; touch -d @5 tmp; cat tmp >OWN; touch -d @5 "] {
            let place = place(via);
            let own = place.at("tree/log").display().to_string();
            let others = format!("{}{own}", others.replace("OWN", &own));
            let text =
                format!("exec 5>/data/log; echo a >&5; {store}; {others}; echo ours >&5; exec 5>&-; true");
            let said = script(&place, &text);
            assert!(
                said.code == Some(125) && said.err.contains("changed by another program"),
                "{number}: {text}: {said:?}"
            );
            assert!(!fs::read_to_string(&own).unwrap().contains("ours"), "{number}: {text}");
            let kept = fs::read_dir(place.at("state/outrigger/unsaved")).unwrap().next().unwrap().unwrap();
            assert_eq!(fs::read_to_string(kept.path()).unwrap(), "a\nours\n");
        }
        let place = place(via);
        let text = format!(
            "exec 5>/data/log; for i in 1 2 3; do echo $i >&5; {store}; done; chmod 600 /data/log; echo 4 >&5; {store}; touch -d @7 /data/log; echo 5 >&5"
        );
        script(&place, &text).ok();
        assert_eq!(fs::read_to_string(place.at("tree/log")).unwrap(), "1\n2\n3\n4\n5\n");
    }
}

pub fn content_that_is_refused_when_its_file_is_closed_is_kept(via: &'static str) {
    let place = place(via);
    let layer = ["--layer", "fault=op=release,error=ENOSPC"];
    let said = run(&place, &layer, &["sh", "-c", "echo precious >/data/new"]);
    assert!(said.code == Some(125) && said.err.contains("'/data/new' is not stored: No space"), "{said:?}");
    let unsaved = said.err.rsplit_once(" is in '").unwrap().1.split('\'').next().unwrap().to_owned();
    assert_eq!(fs::read_to_string(unsaved).unwrap(), "precious\n");
}

/// Nothing can have their writes fail.
pub fn files_that_are_written_to_when_the_trees_are_taken_away_are_named(via: &'static str) {
    let place = place(via);
    place.file("gate", "");
    let gate = place.at("gate").display().to_string();
    let writer =
        format!("(exec 5>/data/late; echo one >&5; while [ -e {gate} ]; do sleep 0.05; done) & exit 0");
    let mut server = command(&place, &[], &["sh", "-c", &writer]);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("still run"), "{line}");
    signal(server.id(), "TERM");
    said.read_line(&mut line).unwrap();
    assert!(line.contains("'/data/late' is open for writing"), "{line}");
    assert_eq!(server.wait().unwrap().code(), Some(125));
    assert_eq!(fs::read_to_string(place.at("tree/late")).unwrap(), "one\n");
    fs::remove_file(&gate).unwrap();
}

/// A run that was told to end, and is storing `/data/late`, which takes a while: a program has it open, and does what it is told then.
struct Ending {
    server: Child,
    said: BufReader<ChildStderr>,
}

impl Ending {
    fn begin(place: &Answered, then: &str) -> Self {
        let slow = ["--layer", "fault=op=setattr,delay=3s"];
        let run = ["run", "--via", place.via, "--no-hosts", "--map", "/data=tree", "sh", "-c"];
        let go = place.at("go").display().to_string();
        let writer = format!(
            "(exec 5>/data/late; echo one >&5; exec 6<>/data/late; until [ -e {go} ]; do sleep 0.02; done; {then}; echo >{go}.done) & exit 0"
        );
        let mut command = place.command(PROGRAM, &[&slow[..], &run, &[&writer]].concat());
        command.env("TMPDIR", place.at("copies"));
        let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("still run"), "{line}");
        signal(server.id(), "TERM");
        let late = place.at("tree/late");
        within("it is being stored", || fs::read(&late).is_ok_and(|content| content == b"one\n"));
        place.file("go", "");
        within("the program is done", || place.at("go.done").exists());
        Ending { server, said }
    }

    /// What is said in the end.
    fn ends(mut self) -> String {
        assert_eq!(self.server.wait().unwrap().code(), Some(125));
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        said
    }
}

pub fn what_is_written_and_closed_while_the_end_stores_it_is_named_and_kept(via: &'static str) {
    let place = place(via);
    let ending = Ending::begin(&place, "echo two >&6; exec 5>&- 6>&-");
    let said = ending.ends();
    assert!(said.contains("'/data/late' is open for writing"), "{said}");
    let next = run(&place, &[], &["true"]);
    assert!(next.code == Some(0) && next.err.contains("ended before it had stored"), "{next:?}");
    let kept = fs::read_dir(place.at("state/outrigger/unsaved")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept).unwrap(), "two\n");
}

pub fn trees_are_closed_to_programs_while_the_end_stores_what_they_wrote(via: &'static str) {
    let place = place(via);
    let then = "{ cat /data/sub/file; echo new >/data/new; mkdir /data/dir; cat go; echo $?; } >said 2>&1; exec 5>&- 6>&-";
    Ending::begin(&place, then).ends();
    let said = fs::read_to_string(place.at("said")).unwrap();
    assert_eq!(said.matches("not connected").count(), 3, "{said}");
    assert!(said.ends_with("\n0\n"), "local files stay: {said}");
    let mut names: Vec<_> =
        fs::read_dir(place.at("tree")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["late", "sub"]);
}
