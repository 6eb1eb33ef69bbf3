// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running other programs and measuring how long they take.

use crate::watch;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The exit status of timeout(1) for a program that took too long.
const TIMED_OUT: i32 = 124;

/// Runs `command` without standard input and output.
///
/// # Errors
/// When it cannot be started or fails, with what it said.
pub fn run(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("cannot run {what}"))?;
    let pid = child.id();
    watch::adopt(pid);
    let output = child.wait_with_output();
    watch::forget(pid);
    let output = output?;
    if !output.status.success() {
        bail!("{what}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}

/// How many seconds `command` takes from start to end.
///
/// # Errors
/// As [`run`].
pub fn seconds(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    run(command)?;
    Ok(start.elapsed().as_secs_f64())
}

/// How many seconds the shell takes for `script`, or nothing when it takes longer than `limit`. In it `$1` and so on
/// are `arguments`.
///
/// # Errors
/// As [`run`].
pub fn shell_seconds(script: &str, arguments: &[&std::path::Path], limit: Duration) -> Result<Option<f64>> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit.as_secs().to_string(), "sh", "-c", script, "sh"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status().context("cannot run timeout")?;
    let elapsed = start.elapsed().as_secs_f64();
    if status.code() == Some(TIMED_OUT) {
        return Ok(None);
    }
    ensure!(status.success(), "{script}: {status}");
    Ok(Some(elapsed))
}

/// The first line `command` prints, for versions.
pub fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
}

/// Where `program` is, searched as a shell does.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// As [`find`]; says on standard error that the peer is left out when it is missing.
pub fn find_peer(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        eprintln!("SKIPPED: {program} is not installed; its columns are left out (make bench-deps)");
    }
    found
}

/// A process that ends when this is dropped.
pub struct Process(Child);

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child =
            command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run {command:?}"))?;
        watch::adopt(child.id());
        Ok(Process(child))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// When it fails.
    pub fn wait(&mut self) -> Result<()> {
        let status = self.0.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Its standard output, where that is a pipe and was not taken before.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Its standard error, where that is a pipe and was not taken before.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
        watch::forget(self.0.id());
    }
}
