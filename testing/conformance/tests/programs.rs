// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that serve trees: the suite, their deaths, and what is said about those that do not do as they should.

use outrigger_conformance::{Direct, Flags, Subject, Target, run};
use outrigger_core::registry::Site;
use outrigger_core::{Abilities, Errno, Error, OpCode, Runtime, Service};
use outrigger_driver_program::{Options, Program};
use outrigger_runtime::Threads;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Starts `words`, which are a program and its arguments.
fn start(words: &[&str], location: &str, options: Options) -> Result<Arc<dyn Service>, Error> {
    let threads = Arc::new(Threads::new());
    let command: Vec<OsString> = words.iter().map(OsString::from).collect();
    let runtime: Arc<dyn Runtime> = threads.clone();
    let site = Site::new(&runtime);
    let program = threads.handle().block_on(Program::start(command, location.as_bytes(), options, &site))?;
    Ok(Arc::new(Kept { program, _threads: threads }))
}

/// The program, and the threads that it needs for as long as it is asked.
struct Kept {
    program: Program,
    _threads: Arc<Threads>,
}

impl Service for Kept {
    fn call<'a>(
        &'a self,
        cx: &'a outrigger_core::Cx,
        request: outrigger_core::Request,
    ) -> outrigger_core::Answer<'a> {
        self.program.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.program.abilities()
    }
    fn attach(&self, notify: Arc<dyn outrigger_core::Notify>) {
        self.program.attach(notify);
    }
}

/// The example that serves a directory; tests are built with it beside them.
fn directory_program() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.ancestors().nth(2).expect("target/debug").join("examples/directory")
}

/// A command that notes the number of each process before it becomes the program.
fn noted(place: &Path, program: &str) -> Vec<String> {
    let script = format!("echo $$ >> {}/lives; exec {program}", place.display());
    vec!["sh".into(), "-c".into(), script]
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// The processes there were so far.
fn lives(place: &Path) -> Vec<String> {
    fs::read_to_string(place.join("lives")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn kill_last(place: &Path) {
    let last: i32 = lives(place).pop().expect("a process").parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(last).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

#[test]
fn every_case_holds() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = directory_program();
    let service =
        start(&[program.to_str().expect("UTF-8")], dir.path().to_str().expect("UTF-8"), Options::default());
    let direct = Direct::new(service.expect("the program serves"));
    let slow =
        ("limits/a_path_of_1000_directories", "each step of each path is a request: a million of them");
    let target = Target { abilities: direct.abilities(), has_sample: false, exceptions: &[slow] };
    let report = run(&direct, &target);
    println!("{report}");
    report.must_hold(150);
}

#[test]
fn files_stay_open_when_the_program_is_killed() {
    let (dir, place) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    fs::write(dir.path().join("f"), "content").expect("write");
    let command = noted(place.path(), directory_program().to_str().expect("UTF-8"));
    let service = start(&words(&command), dir.path().to_str().expect("UTF-8"), Options::default());
    let direct = Direct::new(service.expect("the program serves"));
    let reader = direct.open(Path::new("f"), Flags::READ, 0).expect("open");
    let writer = direct.open(Path::new("new"), Flags::NEW, 0o644).expect("create");
    direct.write_at(writer, 0, b"first ").expect("write");
    kill_last(place.path());
    assert_eq!(direct.read_at(reader, 0, 100).expect("read"), b"content");
    kill_last(place.path());
    // That it had died is found out before the write is sent, or by it; then it may have been made, and is made again.
    let written = direct.write_at(writer, 6, b"second");
    if let Err(errno) = written {
        assert_eq!(errno, Errno::EIO);
        direct.write_at(writer, 6, b"second").expect("the next one reaches a new process");
    }
    direct.close(writer).expect("close");
    direct.close(reader).expect("close");
    assert_eq!(fs::read(dir.path().join("new")).expect("read"), b"first second");
    assert_eq!(lives(place.path()).len(), 3);
}

#[test]
fn a_program_that_always_dies_is_not_started_for_ever() {
    let (dir, place) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let command = noted(place.path(), directory_program().to_str().expect("UTF-8"));
    let service = start(&words(&command), dir.path().to_str().expect("UTF-8"), Options::default());
    let direct = Direct::new(service.expect("the program serves"));
    let mut failed = None;
    for _ in 0..20 {
        let asked = direct.stat(Path::new(""));
        if let Err(errno) = asked {
            failed = Some(errno);
            break;
        }
        kill_last(place.path());
    }
    assert_eq!(failed, Some(Errno::EIO));
    assert_eq!(lives(place.path()).len(), 5, "as often as is documented");
}

#[test]
fn what_is_no_such_program_is_said_to_be_none() {
    let patient = Options { timeout: Duration::from_millis(300), ..Options::default() };
    for (words, expected) in [
        (&["/no/such/program"][..], "cannot start /no/such/program: No such file or directory"),
        (&["true"], "the program has ended (exit status: 0)"),
        (&["sh", "-c", "echo 'usage: tool FILE'; sleep 100"], "it greeted with 'usage:' instead of ORIG"),
        (&["cat"], "its answer to the offer"),
        (&["sleep", "100"], "the program said nothing for 0.3 s"),
    ] {
        let error = start(words, "", patient.clone()).err().expect("no tree").to_string();
        assert!(error.contains(expected), "{words:?}: {error}");
    }
}

/// The driver in Python.
fn notes(place: &Path) -> Result<Direct, Error> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/notes.py");
    let command = noted(place, &format!("python3 {}", script.display()));
    let file = place.join("notes.json");
    start(&words(&command), file.to_str().expect("UTF-8"), Options::default()).map(Direct::new)
}

#[test]
fn a_program_of_another_release_is_told_what_it_lacks() {
    let place = tempfile::tempdir().expect("a directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python/notes.py");
    let text = fs::read_to_string(script).expect("the driver");
    let layout = format!("LOOKUP: {:#010x}", OpCode::Lookup.layout());
    assert!(text.contains(&layout), "its numbers are those of this release");
    fs::write(place.path().join("old.py"), text.replace(&layout, "LOOKUP: 7")).expect("write");
    fs::write(place.path().join("notes.json"), "{}").expect("write");
    let at = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    let error = start(&["python3", &at("old.py")], &at("notes.json"), Options::default()).err();
    let error = error.expect("it cannot be spoken to").to_string();
    assert!(error.contains("the program encodes lookup as 0x00000007"), "{error}");
}

#[test]
fn a_driver_in_python_serves_notes() {
    let place = tempfile::tempdir().expect("a directory");
    let refused = notes(place.path()).err().expect("there are no notes");
    assert_eq!(refused.errno, Errno::ENOENT);
    fs::write(place.path().join("notes.json"), "{}").expect("write");
    let direct = notes(place.path()).expect("the notes");
    assert!(!direct.abilities().ops.has(OpCode::MkDir) && direct.abilities().stateless_files);
    for name in ["one", "two"] {
        let fd = direct.open(Path::new(name), Flags::NEW, 0o644).expect("create");
        direct.write_at(fd, 0, name.as_bytes()).expect("write");
        direct.close(fd).expect("close");
    }
    kill_last(place.path());
    let fd = direct.open(Path::new("one"), Flags::BOTH, 0).expect("open");
    direct.write_at(fd, 3, b" more").expect("write");
    assert_eq!(direct.read_at(fd, 0, 100).expect("read"), b"one more");
    direct.unlink(Path::new("two")).expect("unlink");
    let root = direct.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).expect("opendir");
    let listed = direct.read_dir(root, 0, 4096).expect("a listing").entries;
    assert_eq!(listed.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"one"]);
    let stored = fs::read_to_string(place.path().join("notes.json")).expect("read");
    assert!(stored.contains("one more") && !stored.contains("two"), "{stored}");
}
