// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that stops answering, behind sshfs: with us in between, and without.

use crate::cleanup;
use crate::mounted::{Place, Subject};
use crate::processes;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a request may take behind us, in seconds.
const LIMIT: &str = "2";
/// When a command that has not ended is interrupted, when it is killed, and when it is no longer waited for.
const IMPATIENT: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(7), Duration::from_secs(9)];
/// The same for a user who presses Ctrl-C soon.
const HASTY: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(7), Duration::from_secs(9)];

/// Prints the transcripts; false when a command behind us did not end by itself, or the mount did not work again.
pub fn run(place: &Place) -> Result<bool> {
    let sshd = place.sshd()?;
    println!("$ outrigger --timeout {LIMIT} guard -- sshfs host: mnt");
    let guarded = place.mount(Subject::Sshfs, &["--timeout", LIMIT])?;
    let mut user = User::new(place, &guarded.dir)?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    user.run("cat mnt/dir/file", IMPATIENT)?;
    user.run("ls mnt/dir", IMPATIENT)?;
    user.run("cat mnt/dir/file", HASTY)?;
    sshd.signal_sessions(Signal::CONT);
    println!("# the server goes on");
    let works = user.run("cat mnt/dir/file", IMPATIENT)?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    let ended = user.run("umount mnt", IMPATIENT)?;
    sshd.signal_sessions(Signal::CONT);
    let fine = works && ended && user.waiting.is_empty();
    user.leave(&guarded.dir)?;

    println!("\n$ sshfs host: plain");
    let plain = place.undisturbed(Subject::Sshfs)?;
    let mut user = User::new(place, &plain.dir)?;
    sshd.signal_sessions(Signal::STOP);
    println!("# the server is frozen");
    user.run("cat plain/dir/file", IMPATIENT)?;
    user.run("ls plain/dir", IMPATIENT)?;
    user.run("umount plain", IMPATIENT)?;
    sshd.signal_sessions(Signal::CONT);
    user.leave(&plain.dir)?;
    Ok(fine)
}

/// Somebody at a terminal.
struct User<'a> {
    place: &'a Place,
    /// What even SIGKILL did not end.
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

    /// Types a command, and waits so long. Whether it succeeded.
    fn run(&mut self, line: &str, [interrupt, kill, forget]: [Duration; 3]) -> Result<bool> {
        println!("$ {line}");
        let said = self.place.scratch().join("said");
        let file = File::create(&said)?;
        let mut words = line.split(' ');
        let mut child = Command::new(words.next().context("no command")?)
            .args(words)
            .current_dir(self.place.scratch())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        let (began, pid) = (Instant::now(), Pid::from_child(&child));
        let mut signals =
            [(interrupt, Signal::INT, "^C"), (kill, Signal::KILL, "# SIGKILL")].into_iter().peekable();
        let ended = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if let Some((_, signal, shown)) = signals.next_if(|(when, ..)| began.elapsed() >= *when) {
                println!("{shown}");
                kill_process(pid, signal)?;
            }
            if began.elapsed() >= forget {
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let took = began.elapsed().as_secs_f64();
        print!("{}", fs::read_to_string(&said)?);
        match ended {
            Some(_) => println!("# after {took:.2} s"),
            None => {
                let state = processes::name_and_state(pid).map_or('?', |(_, state)| state);
                println!("# not ended after {took:.2} s, in state {state}");
                self.waiting.push(child);
            }
        }
        Ok(ended.is_some_and(|status| status.success()))
    }

    /// Whoever still waits is freed by ending the connection.
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
