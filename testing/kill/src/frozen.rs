// SPDX-License-Identifier: MIT OR Apache-2.0
//! An SSH server that stops answering sshfs, with `outrigger guard` and with sshfs alone. The promises of the first are checked;
//! the second is for comparison.

use crate::cleanup;
use crate::mounted::{Place, Subject};
use crate::processes;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a request may take under `outrigger guard`, in seconds.
const LIMIT: u64 = 2;
/// When a command is interrupted, when it is killed, and when it is no longer waited for.
const IMPATIENT: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(7), Duration::from_secs(9)];
/// The same for a user who presses Ctrl-C soon.
const HASTY: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(7), Duration::from_secs(9)];

/// Prints the transcripts; false when a promise of `outrigger guard` was broken.
pub fn run(place: &Place) -> Result<bool> {
    let wrong = guarded(place)?;
    wrong.iter().for_each(|what| eprintln!("✗ {what}"));
    plain(place)?;
    Ok(wrong.is_empty())
}

/// With `outrigger guard`. Returns the broken promises.
fn guarded(place: &Place) -> Result<Vec<&'static str>> {
    let sshd = place.sshd()?;
    println!("$ outrigger --timeout {LIMIT} guard -- sshfs host: mnt");
    let mounted = place.mount(Subject::Sshfs, &["--timeout", &LIMIT.to_string()])?;
    let mut user = User::new(place, &mounted.dir)?;
    let open = File::open(mounted.dir.join("dir/other"))?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    let read = user.run("cat mnt/dir/file", IMPATIENT)?;
    let listed = user.run("ls mnt/dir", IMPATIENT)?;
    let interrupted = user.run("cat mnt/dir/file", HASTY)?;
    let with_a_file = user.run_with(open.into(), "sleep 60 < mnt/dir/other", HASTY)?;
    sshd.signal_sessions(Signal::CONT);
    println!("# the server goes on");
    let resumed = user.run("cat mnt/dir/file", IMPATIENT)?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    let unmounted = user.run("umount mnt", IMPATIENT)?;
    let gone = cleanup::mounts_below(&mounted.dir).is_empty();
    sshd.signal_sessions(Signal::CONT);
    user.leave(&mounted.dir)?;
    let promises = [
        (
            read.failed_by_itself() && read.said.contains("timed out"),
            "a request does not fail by its deadline",
        ),
        (listed.succeeded() && listed.said == "file\nother\n", "what is cached cannot be listed"),
        (interrupted.is_interrupted(), "Ctrl-C does not end a program that waits"),
        (with_a_file.is_interrupted(), "Ctrl-C does not end a program with an open file"),
        (resumed.succeeded() && resumed.said == "content\n", "the mount does not go on when the server does"),
        (unmounted.succeeded() && gone, "umount does not return"),
    ];
    Ok(promises.into_iter().filter(|(kept, _)| !kept).map(|(_, broken)| broken).collect())
}

/// The same with sshfs alone.
fn plain(place: &Place) -> Result<()> {
    let sshd = place.sshd()?;
    println!("\n$ sshfs host: plain");
    let plain = place.undisturbed(Subject::Sshfs)?;
    let mut user = User::new(place, &plain.dir)?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    user.run("cat plain/dir/file", IMPATIENT)?;
    user.run("ls plain/dir", IMPATIENT)?;
    user.run("umount plain", IMPATIENT)?;
    sshd.signal_sessions(Signal::CONT);
    user.leave(&plain.dir)
}

/// How a command ended.
struct Outcome {
    /// `None` when even SIGKILL did not end it.
    ended: Option<ExitStatus>,
    took: Duration,
    /// It was sent a signal.
    signalled: bool,
    said: String,
}

impl Outcome {
    fn succeeded(&self) -> bool {
        !self.signalled && self.ended.is_some_and(|status| status.success())
    }

    fn failed_by_itself(&self) -> bool {
        !self.signalled && self.ended.is_some_and(|status| !status.success())
    }

    /// The interrupt ended it, and not the deadline of what it waited for.
    fn is_interrupted(&self) -> bool {
        let signal = self.ended.and_then(|status| status.signal());
        signal == Some(Signal::INT.as_raw()) && self.took < Duration::from_secs(LIMIT)
    }
}

/// A user at a terminal.
struct User<'a> {
    place: &'a Place,
    /// Commands that even SIGKILL did not end.
    waiting: Vec<Child>,
}

impl<'a> User<'a> {
    fn new(place: &'a Place, mount: &Path) -> Result<Self> {
        let dir = mount.join("dir");
        fs::create_dir(&dir)?;
        fs::write(dir.join("file"), "content\n")?;
        fs::write(dir.join("other"), "")?;
        let mut user = User { place, waiting: Vec::new() };
        user.run(&format!("ls {}/dir", mount.file_name().context("no name")?.display()), IMPATIENT)?;
        Ok(user)
    }

    /// Types a command, and waits so long.
    fn run(&mut self, line: &str, patience: [Duration; 3]) -> Result<Outcome> {
        self.run_with(Stdio::null(), line, patience)
    }

    /// The same with an input of its own, which the line may name.
    fn run_with(&mut self, input: Stdio, line: &str, patience: [Duration; 3]) -> Result<Outcome> {
        println!("$ {line}");
        let said = self.place.scratch().join("said");
        let file = File::create(&said)?;
        let mut words = line.split(' ').take_while(|word| *word != "<");
        let mut child = Command::new(words.next().context("no command")?)
            .args(words)
            .current_dir(self.place.scratch())
            .env("LC_ALL", "C")
            .stdin(input)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let (ended, took, signalled) = wait(&mut child, patience)?;
        let said = fs::read_to_string(&said)?;
        print!("{said}");
        let seconds = took.as_secs_f64();
        match ended {
            Some(_) => println!("# after {seconds:.2} s"),
            None => {
                let state =
                    processes::name_and_state(Pid::from_child(&child)).map_or('?', |(_, state)| state);
                println!("# not ended after {seconds:.2} s, in state {state}");
                self.waiting.push(child);
            }
        }
        Ok(Outcome { ended, took, signalled, said })
    }

    /// Ends the connection, which frees commands that still wait.
    fn leave(self, mount: &Path) -> Result<()> {
        if !self.waiting.is_empty() {
            cleanup::abort(mount);
        }
        for mut child in self.waiting {
            child.wait()?;
        }
        Ok(())
    }
}

/// Waits for the end of a command, which is interrupted, killed and given up after so long. How it ended, when, and
/// whether it was sent a signal.
fn wait(
    child: &mut Child,
    [interrupt, kill, forget]: [Duration; 3],
) -> Result<(Option<ExitStatus>, Duration, bool)> {
    let (began, pid) = (Instant::now(), Pid::from_child(child));
    let mut signals =
        [(interrupt, Signal::INT, "^C"), (kill, Signal::KILL, "# SIGKILL")].into_iter().peekable();
    let mut signalled = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), began.elapsed(), signalled));
        }
        if let Some((_, signal, shown)) = signals.next_if(|(when, ..)| began.elapsed() >= *when) {
            println!("{shown}");
            signalled = true;
            kill_process(pid, signal)?;
        }
        if began.elapsed() >= forget {
            return Ok((None, began.elapsed(), signalled));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
