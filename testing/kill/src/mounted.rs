// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts to be hurt.

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A directory of the host.
    Local,
    /// Memory.
    Mem,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Local => "local",
            Subject::Mem => "mem",
        })
    }
}

/// Where mounts are made.
#[derive(Debug)]
pub struct Place {
    program: PathBuf,
    scratch: tempfile::TempDir,
}

/// How long a command about a mount may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl Place {
    /// A scratch directory, and the program to test.
    pub fn new(program: Option<PathBuf>) -> Result<Self> {
        let program = match program {
            Some(program) => program,
            None => std::env::current_exe()?.with_file_name("outrigger"),
        };
        ensure!(
            program.is_file(),
            "{} is not there: build it or name it with --outrigger",
            program.display()
        );
        Ok(Place { program, scratch: tempfile::Builder::new().prefix("outrigger-kill.").tempdir()? })
    }

    /// A new empty directory that is no mount.
    pub fn plain(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Mounts an empty tree.
    pub fn mount(&self, subject: Subject, arguments: &[&str]) -> Result<Mounted> {
        let dir = self.plain("mnt")?;
        let source = match subject {
            Subject::Local => self.plain("source")?.into_os_string(),
            Subject::Mem => "mem:".into(),
        };
        let output = Command::new(&self.program)
            .arg("mount")
            .args(arguments)
            .args(["-o", "dev,suid"])
            .arg(source)
            .arg(&dir)
            .stdin(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "cannot mount: {}", String::from_utf8_lossy(&output.stderr));
        let mut mounted = Mounted { program: self.program.clone(), dir, keeper: 0 };
        mounted.keeper = mounted.guard()?["keeper"].as_i64().context("the mount has no keeper")? as i32;
        Ok(mounted)
    }
}

/// A guarded mount; dropping it ends it, whatever state it is in.
#[derive(Debug)]
pub struct Mounted {
    program: PathBuf,
    /// Where it is.
    pub dir: PathBuf,
    keeper: i32,
}

impl Mounted {
    /// What `outrigger status` says about deaths. A server that has just died is waited for.
    pub fn guard(&self) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.ask_guard() {
                Err(_) if Instant::now() < until => thread::yield_now(),
                result => return result,
            }
        }
    }

    fn ask_guard(&self) -> Result<Value> {
        let output = Command::new(&self.program).args(["--json", "status"]).arg(&self.dir).output()?;
        ensure!(output.status.success(), "status: {}", String::from_utf8_lossy(&output.stderr));
        let status: Value = serde_json::from_slice(&output.stdout)?;
        Ok(status["guard"].clone())
    }

    /// How often its server has died.
    pub fn deaths(&self) -> Result<u64> {
        self.guard()?["deaths"].as_u64().context("no count of deaths")
    }

    /// The process that serves now: the keeper's only child.
    pub fn worker(&self) -> Option<Pid> {
        child_of(self.keeper)
    }

    /// Descriptors and resident kilobytes of the process that serves.
    pub fn size(&self) -> Result<(usize, u64)> {
        let worker = self.worker().context("nobody serves")?.as_raw_nonzero();
        let fds = fs::read_dir(format!("/proc/{worker}/fd"))?.count();
        let status = fs::read_to_string(format!("/proc/{worker}/status"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kilobytes = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok((fds, kilobytes))
    }

    /// Kills the process that serves. False when there was none just then.
    pub fn kill(&self, signal: Signal) -> bool {
        self.worker().is_some_and(|worker| kill_process(worker, signal).is_ok())
    }

    /// Kills again and again, with pauses up to `pause`, until `most` deaths or until the killer is stopped.
    pub fn killer(&self, pause: Duration, most: u32, seed: u64) -> Killer {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let keeper = self.keeper;
        let thread = thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut killed, mut last) = (0, None);
            while killed < most && !stopped.load(Ordering::Relaxed) {
                thread::sleep(pause.mul_f64(random.f64()));
                let worker = child_of(keeper);
                let signal = if random.bool() { Signal::KILL } else { Signal::SEGV };
                // One that has just been started may get away once, before it catches its signals.
                if worker.is_some_and(|worker| kill_process(worker, signal).is_ok()) && worker != last {
                    killed += 1;
                    last = worker;
                }
            }
            killed
        });
        Killer { stop, thread }
    }

    /// Unmounts; an error when that is refused or takes too long.
    pub fn end(self) -> Result<()> {
        self.umount(&[])
    }

    fn umount(&self, arguments: &[&str]) -> Result<()> {
        let limit = PATIENCE.as_secs().to_string();
        let output = Command::new("timeout")
            .arg(limit)
            .arg(&self.program)
            .arg("umount")
            .args(arguments)
            .arg(&self.dir)
            .output()?;
        if !output.status.success() {
            bail!("umount: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.dir)
            && let Err(error) = self.umount(&["--force"])
        {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

fn child_of(keeper: i32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// A thread that kills.
#[derive(Debug)]
pub struct Killer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Killer {
    /// Stops it; gives how often it killed.
    pub fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }

    /// Whether it has killed as often as it was to.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}
