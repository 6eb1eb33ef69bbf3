// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run --via seccomp`: the process that answers system calls when the server has died.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use support::{PROGRAM, Place, descendant, is_running, signal, within};

/// What a call gets that leads into a tree without a server.
const GONE: &str = "Transport endpoint is not connected";

/// A place with a tree, a directory that a tree covers, and the directory of the copies.
fn place() -> Place {
    let place = Place::new().trusting();
    place.file("tree/sub/file", "content\n");
    place.file("covered/below", "below\n");
    place.file("local", "local\n");
    fs::create_dir(place.at("copies")).unwrap();
    place
}

/// Reads until the program says that.
fn until(lines: &mut Lines<BufReader<ChildStdout>>, wanted: &str) {
    assert!(lines.any(|line| line.unwrap() == wanted), "the program ended before it said {wanted}");
}

/// A program that waits for a line where it says `ready`.
struct Started {
    server: Child,
    keeper: u32,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    /// With options about trees, and of `run`. What the program says about errors is in its output.
    fn new(place: &Place, trees: &[&str], options: &[&str], script: &str) -> Self {
        let fixed = ["run", "--via", "seccomp", "--no-hosts", "--map", "/data=tree"];
        let script = format!("exec 2>&1; {script}");
        let words = [trees, &fixed[..], options, &["sh", "-c", &script]].concat();
        let mut command = place.command(PROGRAM, &words);
        command.env("TMPDIR", place.at("copies"));
        let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = streams.spawn().unwrap();
        let (input, output) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        until(&mut lines, "ready");
        let keeper = descendant(server.id(), "outrigger-keep").expect("a keeper");
        Started { server, keeper, input, lines }
    }

    fn kill_server(&mut self) {
        signal(self.server.id(), "KILL");
        assert_eq!(self.server.wait().unwrap().signal(), Some(9));
    }

    /// Lets the program go on, and answers what it says until all that have its output have ended.
    fn rest(mut self) -> Vec<String> {
        self.input.write_all(b"go\n").unwrap();
        self.lines.map(Result::unwrap).collect()
    }
}

#[test]
fn local_files_stay_when_the_server_is_killed() {
    let place = place();
    let text = "exec 3</data/sub/file; until [ -e stop ]; do cat local; echo ready; done; read line; cat <&3; cat /data/sub/file; \
        echo x >/data/new; mkdir -p /data/sub /data; env cat local; ls tree";
    let mut started = Started::new(&place, &[], &[], text);
    started.kill_server();
    for _ in 0..20 {
        until(&mut started.lines, "local");
    }
    place.file("stop", "");
    let keeper = started.keeper;
    let said = started.rest();
    let at = said.iter().rposition(|line| line == "ready").unwrap() + 1;
    let (open, gone, local) = (&said[at], &said[at + 1..at + 5], &said[at + 5..]);
    assert!(gone.iter().all(|line| line.contains(GONE)), "{said:?}");
    assert_eq!((&**open, local), ("content", &["local", "sub"].map(str::to_owned)[..]));
    within("the keeper ends", || !is_running(keeper));
}

/// Passed on to the kernel, such a path would lead to a local directory under the prefix, or to a copy that is never stored in the tree.
#[test]
fn what_led_into_a_tree_leads_nowhere_else_when_the_server_is_killed() {
    let place = place();
    let covered = place.at("covered");
    let map = format!("{}=tree", covered.display());
    let text = "cd /data/sub; echo ready; read line; cat file; echo x >new; cat ../../etc/passwd; cd $OLDPWD; cat covered/below; echo x >covered/new; \
        mv local covered/moved; cat local";
    let mut started = Started::new(&place, &[], &["--map", &map], text);
    started.kill_server();
    let said = started.rest();
    let (last, failed) = said.split_last().unwrap();
    assert!(
        last == "local" && failed.len() == 6 && failed.iter().all(|line| line.contains(GONE)),
        "{said:?}"
    );
    let names: Vec<_> = fs::read_dir(&covered).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["below"]);
}

#[test]
fn a_call_that_the_server_had_received_ends_when_it_is_killed() {
    let place = place();
    let late = ["--layer", "fault=op=open,path=/sub/file,delay=1000s"];
    let mut started = Started::new(&place, &late, &[], "echo ready; read line </data/sub/file; cat local");
    // openat(2)
    let waits = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("257 "))
    };
    within("a call waits", || descendant(started.server.id(), "sh").is_some_and(waits));
    started.kill_server();
    let said: Vec<_> = started.lines.map(Result::unwrap).collect();
    assert!(said.len() == 2 && said[0].contains(GONE) && said[1] == "local", "{said:?}");
}

#[test]
fn no_keeper_is_left_by_a_run_that_ends() {
    let place = place();
    let mut started = Started::new(&place, &[], &[], "echo ready; read line; exit 3");
    let keeper = started.keeper;
    assert!(is_running(keeper));
    started.input.write_all(b"go\n").unwrap();
    assert_eq!(started.server.wait().unwrap().code(), Some(3));
    assert!(!is_running(keeper));
}

#[test]
fn a_run_goes_on_without_its_keeper() {
    let place = place();
    let text = "echo ready; read line; cat /data/sub/file local";
    let mut started = Started::new(&place, &[], &[], text);
    let keeper = started.keeper;
    signal(keeper, "KILL");
    within("it has ended", || !is_running(keeper));
    started.input.write_all(b"go\n").unwrap();
    assert_eq!(started.server.wait().unwrap().code(), Some(0));
    assert_eq!(started.lines.map(Result::unwrap).collect::<Vec<_>>(), ["content", "local"]);
}

#[test]
fn programs_keep_local_files_when_the_trees_are_taken_away() {
    let place = place();
    let text = "(echo ready; until [ -e stop ]; do sleep 0.05; done; cat /data/sub/file local) & exit 0";
    let mut started = Started::new(&place, &[], &[], text);
    let mut said = String::new();
    BufReader::new(started.server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("still run"), "{said}");
    let keeper = started.keeper;
    signal(started.server.id(), "TERM");
    started.server.wait().unwrap();
    place.file("stop", "");
    let said: Vec<_> = started.lines.map(Result::unwrap).collect();
    assert!(said.len() == 2 && said[0].contains(GONE) && said[1] == "local", "{said:?}");
    within("the keeper ends", || !is_running(keeper));
}
