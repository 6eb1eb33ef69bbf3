// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every command has the driver and the layer of `outside`. The tests run this test program as outrigger.

use crate::cli::Cli;
use crate::complete::values;
use clap::Parser;
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The words of the command line that [`program`] runs, one a line.
const WORDS: &str = "OUTRIGGER_TEST_WORDS";

/// Runs the command line in the environment; without one there is nothing to do.
#[test]
fn program() -> ExitCode {
    let Ok(words) = env::var(WORDS) else { return ExitCode::SUCCESS };
    match Cli::try_parse_from(["outrigger"].into_iter().chain(words.lines())) {
        Ok(cli) => crate::run(cli),
        Err(error) => panic!("{error}"),
    }
}

/// This test program as outrigger.
fn outrigger(words: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["outside_test::program", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(WORDS, words.join("\n"));
    command
}

/// What a command prints, which succeeds.
fn said(words: &[&str]) -> String {
    let Output { status, stdout, stderr } = outrigger(words).output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{words:?}: {out}{err}");
    out.into_owned()
}

#[test]
fn commands_know_a_driver_by_one_line_in_the_list() {
    for (words, expected) in [
        (&["ls", "notes:"][..], "hello\n"),
        (&["ls", "notes:/hello"], "notes:/hello\n"),
        (&["cat", "notes:hello"], "Hello, world!\n"),
        (&["find", "notes:", "-type", "f"], "notes:hello\n"),
        (&["df", "notes:/hello"], " notes:/hello\n"),
        (&["stat", "-c", "%s", "notes:/hello"], "14\n"),
        (
            &["drivers", "notes"],
            "notes: notes:[PATH]  (read only)\n  notes that are compiled into the program\n",
        ),
        (&["--layer", "shout", "cat", "notes:/HELLO"], "Hello, world!\n"),
        (&["drivers", "shout"], "--layer shout\n  asks for every name in lower case\n"),
    ] {
        let said = said(words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn the_manual_and_completion_know_them_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().to_str().expect("UTF-8");
    said(&["generate", "man", pages]);
    let page = fs::read_to_string(dir.path().join("outrigger-drivers.7")).expect("the page");
    for expected in [".SS notes\nOpens notes that are compiled into the program.\n", ".SS shout\n"] {
        assert!(page.contains(expected), "{page}");
    }
    let names = |candidates: Vec<clap_complete::CompletionCandidate>| {
        let names = candidates.iter().map(|name| name.get_value().display().to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(values::drivers("no".as_ref())), ["notes"]);
    assert_eq!(names(values::layers("sh".as_ref())), ["shout"]);
    assert_eq!(names(values::locations("notes:he".as_ref())), ["notes:hello"]);
}

#[test]
fn it_is_mounted() {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED: /dev/fuse cannot be opened");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().to_str().expect("UTF-8");
    let mut server = outrigger(&["mount", "-f", "--no-guard", "notes:", at]).spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(30);
    let read = loop {
        match fs::read_to_string(dir.path().join("hello")) {
            Err(_) if Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) => {
                thread::sleep(Duration::from_millis(10));
            }
            read => break read,
        }
    };
    let unmounted = outrigger(&["umount", at]).output();
    if !unmounted.is_ok_and(|output| output.status.success()) {
        let _ = server.kill();
    }
    let _ = server.wait();
    assert_eq!(read.ok().as_deref(), Some("Hello, world!\n"));
}
