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

/// A program that waits for a line where it says `ready`.
struct Started {
    server: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    /// Its errors are in its output.
    fn new(place: &Place, options: &[&str], script: &str) -> Self {
        let fixed = ["run", "--via", "seccomp", "--no-hosts", "--map", "/data=tree"];
        let script = format!("exec 2>&1; {script}");
        let mut command = place.command(PROGRAM, &[options, &fixed[..], &["sh", "-c", &script]].concat());
        command.env("TMPDIR", place.at("copies"));
        let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = streams.spawn().unwrap();
        let (input, output) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
        let mut started = Started { server, input, lines: BufReader::new(output).lines() };
        started.until("ready");
        started
    }

    fn until(&mut self, wanted: &str) {
        assert!(self.lines.any(|line| line.unwrap() == wanted), "the program ended before it said {wanted}");
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

/// The keepers of what runs in a place.
fn keepers(place: &Place) -> Vec<u32> {
    let copies = place.at("copies").canonicalize().unwrap().display().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.starts_with("outrigger-keeper\0") && words.contains(&copies) && is_running(pid)
    })
    .collect()
}

#[test]
fn local_files_stay_when_the_server_is_killed() {
    let place = place();
    let text = "exec 3</data/sub/file; until [ -e stop ]; do cat local; echo ready; done; read line; cat <&3; cat /data/sub/file; \
        echo x >/data/new; mkdir -p /data/sub /data; env cat local; ls tree";
    let mut started = Started::new(&place, &[], text);
    started.kill_server();
    for _ in 0..20 {
        started.until("local");
    }
    place.file("stop", "");
    let said = started.rest();
    let at = said.iter().rposition(|line| line == "ready").unwrap() + 1;
    let said = &said[at..];
    assert_eq!((&*said[0], &said[said.len() - 3..]), ("content", &["local", "stop", "sub"].map(str::to_owned)[..]));
    within("no keeper is left", || keepers(&place).is_empty());
}
