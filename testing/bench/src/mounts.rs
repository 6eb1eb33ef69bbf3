// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers of FUSE mounts, ours and of other programs.

use crate::priority;
use crate::scratch;
use crate::watch;
use anyhow::{Context, Result, bail, ensure};
use outrigger_remote::processes;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to mount or to end.
const DEADLINE: Duration = Duration::from_secs(300);
const SHORT_WAIT: Duration = Duration::from_millis(1);

fn log_of(dir: &Path) -> PathBuf {
    dir.with_extension("log")
}

/// A mount and the process that serves it. Dropping it unmounts and ends the process.
#[derive(Debug)]
pub struct Mount {
    /// The column of the table.
    pub name: &'static str,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// How long it took until the root answered, in seconds.
    pub opened_in: f64,
    server: Child,
}

impl Mount {
    /// What the server has printed.
    pub fn printed(&self) -> String {
        fs::read_to_string(log_of(&self.dir)).unwrap_or_default().trim_end().to_owned()
    }

    /// Starts `server`, which must stay in the foreground and mount on `dir`, and waits until the root answers.
    ///
    /// # Errors
    /// When it ends before, with what it said, or nothing is mounted within the deadline.
    pub fn start(name: &'static str, dir: PathBuf, mut server: Command) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        watch::step(&format!("mounting {name}"), DEADLINE);
        let log = log_of(&dir);
        let output = File::create(&log)?;
        let start = Instant::now();
        let child = server
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {server:?}"))?;
        watch::adopt(child.id());
        let mut mount = Mount { name, dir, opened_in: 0.0, server: child };
        while !scratch::mounts_below(&mount.dir).iter().any(|m| m.dir == mount.dir) {
            if let Some(status) = mount.server.try_wait()? {
                bail!("{server:?}: {status}: {}", fs::read_to_string(&log).unwrap_or_default().trim_end());
            }
            ensure!(start.elapsed() < DEADLINE, "{server:?}: nothing is mounted after {DEADLINE:?}");
            thread::sleep(SHORT_WAIT);
        }
        fs::metadata(&mount.dir).with_context(|| format!("{name}: the root of the mount"))?;
        mount.opened_in = start.elapsed().as_secs_f64();
        priority::raise_sessions(mount.server.id());
        Ok(mount)
    }

    /// Process id of the server: of the worker where there is a keeper.
    pub fn pid(&self) -> u32 {
        let started = self.server.id();
        worker_of(started).unwrap_or(started)
    }

    /// Lets every thread of the server, and of the processes it has started, run on `cpus` only.
    fn pin(&self, cpus: &CpuSet) -> Result<()> {
        let server = self.server.id() as i32;
        for process in Pid::from_raw(server).into_iter().chain(processes::descendants(server)) {
            for task in fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))? {
                let id = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
                // A thread that has ended meanwhile need not be pinned.
                let _ = sched_setaffinity(id, cpus);
            }
        }
        Ok(())
    }

    /// Resident memory of the server now, and the most it ever was, in bytes.
    ///
    /// # Errors
    /// When the server has ended.
    pub fn resident(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
        };
        field("VmRSS:").zip(field("VmHWM:")).with_context(|| format!("{}: the server has ended", self.name))
    }
}

/// Runs `measure` with this thread and all servers on one CPU.
///
/// # Errors
/// Those of `measure`; when there is no CPU or the system refuses.
pub fn pinned<T>(mounts: &[Mount], measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let all = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).context("there is no CPU to run on")?);
    let move_to = |cpus: &CpuSet| -> Result<()> {
        sched_setaffinity(None, cpus)?;
        mounts.iter().try_for_each(|mount| mount.pin(cpus))
    };
    move_to(&one)?;
    let measured = measure();
    move_to(&all)?;
    measured
}

/// The child of a keeper; nothing when the process is none.
fn worker_of(keeper: u32) -> Option<u32> {
    let name = fs::read_to_string(format!("/proc/{keeper}/comm")).ok()?;
    let worker = processes::children(keeper as i32).first()?.as_raw_nonzero().get() as u32;
    (name.trim_end() == "outrigger-keep").then_some(worker)
}

impl Drop for Mount {
    fn drop(&mut self) {
        scratch::release(&self.dir);
        // Aborting ends a server; one that does not notice gets SIGTERM, then SIGKILL.
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            if let Some(signal) = signal {
                watch::kill(self.server.id(), signal);
            }
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_secs(2) {
                if !matches!(self.server.try_wait(), Ok(None)) {
                    watch::forget(self.server.id());
                    let _ = fs::remove_dir(&self.dir);
                    return;
                }
                thread::sleep(SHORT_WAIT);
            }
        }
        eprintln!("outrigger-bench: the server of {} does not end", self.dir.display());
    }
}

/// A command that mounts `source` with `outrigger` on `dir`.
pub fn outrigger(program: &Path, source: &str, dir: &Path, options: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["mount", "--foreground"]);
    if !options.is_empty() {
        command.args(["-o", options]);
    }
    command.arg(source).arg(dir);
    command
}
