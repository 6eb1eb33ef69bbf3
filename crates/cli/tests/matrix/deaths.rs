// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program dies, or the process that serves its tree, while the program is at work in the tree.

use crate::support::{PROGRAM, descendant, is_running, signal, within};
use crate::{MECHANISMS, Mechanism, Scene};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

/// Works in the tree for ever, with a line for each round, until something fails; then a local program says so.
const WORK: &str = "while echo content >/data/file && mv /data/file /data/moved && [ \"$(cat /data/moved)\" = content ] \
    && rm /data/moved; do echo round || exit; done; env echo failed";

/// A run of a program, which has said that it is at work.
struct AtWork {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl AtWork {
    fn start(scene: &Scene, mechanism: &Mechanism, options: &[&str], work: &str) -> Self {
        let run = [&["run", "--no-hosts", "--map", "/data=tree"], mechanism.options, options].concat();
        let mut command = scene.place.command(PROGRAM, &[&run[..], &["--", "sh", "-c", work]].concat());
        // What a server leaves that was killed is not what other tests find.
        let copies = scene.place.at("copies");
        fs::create_dir_all(&copies).unwrap();
        let output = command.env("TMPDIR", copies).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = output.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "round\n");
        AtWork { child, out }
    }
}

/// Whether it waits in the kernel, or for who traces it.
fn sleeps(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['S', 'D', 't']))
}

/// The moments at which something dies, from the first round on.
fn moments() -> impl Iterator<Item = Duration> {
    (0..8).map(|number| Duration::from_micros(number * 731))
}

#[test]
fn the_death_of_the_program_at_work_is_its_exit_status_and_the_tree_is_as_it_left_it() {
    for (mechanism, moment) in
        MECHANISMS.iter().flat_map(|mechanism| moments().map(move |moment| (mechanism, moment)))
    {
        let Some(scene) = Scene::new() else { return };
        let mut work = AtWork::start(&scene, mechanism, &[], WORK);
        let program = descendant(work.child.id(), "sh").unwrap();
        // Which moment it is, is what is tried.
        thread::sleep(moment);
        signal(program, "KILL");
        let rest = thread::spawn(move || {
            let mut rest = String::new();
            work.out.read_to_string(&mut rest).map(|_| rest)
        });
        assert_eq!(work.child.wait().unwrap().code(), Some(128 + 9));
        assert!(!rest.join().unwrap().unwrap().contains("failed"));
        assert!(!is_running(program));
        assert_eq!(fs::read_to_string(scene.place.at("tree/sub/file")).unwrap(), "content\n");
    }
}

/// It gets errors from then on, whatever it was doing, and does not wait. Local files stay.
#[test]
fn the_death_of_the_server_ends_the_work_with_errors() {
    for (mechanism, moment) in
        MECHANISMS.iter().flat_map(|mechanism| moments().map(move |moment| (mechanism, moment)))
    {
        let Some(scene) = Scene::new() else { return };
        let mut work = AtWork::start(&scene, mechanism, &[], WORK);
        // Which moment it is, is what is tried.
        thread::sleep(moment);
        signal(work.child.id(), "KILL");
        assert_eq!(work.child.wait().unwrap().signal(), Some(9));
        let mut rest = String::new();
        work.out.read_to_string(&mut rest).unwrap();
        // Without the server, programs that are traced end, and see no other files than those of the trees.
        assert_eq!(rest.ends_with("failed\n"), mechanism.outlives, "{rest}");
    }
}

/// Also a call that waits for an answer.
#[test]
fn the_death_of_the_server_ends_a_call_that_it_has_not_answered() {
    for (mechanism, call) in
        MECHANISMS.iter().flat_map(|mechanism| ["read", "open", "lookup"].map(|call| (mechanism, call)))
    {
        let Some(scene) = Scene::new() else { return };
        let late = format!("fault=op={call},path=/sub/file,delay=1000s");
        let work = "echo round; cat /data/sub/file; ls -l /data/sub/file; env echo failed";
        let mut work = AtWork::start(&scene, mechanism, &["--layer", &late], work);
        let waiting =
            || ["cat", "ls"].iter().any(|name| descendant(work.child.id(), name).is_some_and(sleeps));
        within("a call waits", waiting);
        signal(work.child.id(), "KILL");
        assert_eq!(work.child.wait().unwrap().signal(), Some(9));
        let mut rest = String::new();
        work.out.read_to_string(&mut rest).unwrap();
        // Without the server, programs that are traced end, and see no other files than those of the trees.
        assert_eq!(rest.ends_with("failed\n"), mechanism.outlives, "{rest}");
    }
}
