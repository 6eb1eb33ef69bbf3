// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that was started for one open file.

use outrigger_core::runtime::until;
use outrigger_core::{Errno, Error, Result, Runtime};
use outrigger_host::Confined;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Plain, Stdio};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long a program may take to end after `SIGTERM`.
const GRACE: Duration = Duration::from_secs(1);

/// A program with all that it starts. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    /// Readable once the program has ended, whether it was waited for or not.
    ended: AsyncFd<OwnedFd>,
    name: String,
}

impl Process {
    /// Starts a program in a group of its own, with the streams that are asked for. The others are `/dev/null`, but for its standard
    /// error, which is ours.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) fn start(
        (words, dir): (&[OsString], &Path),
        (reads, writes): (bool, bool),
    ) -> Result<(Self, Option<ChildStdout>, Option<ChildStdin>)> {
        let [program, arguments @ ..] = words else {
            return Err(Errno::EINVAL.because("no program is named"));
        };
        let stream = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut command = Plain::new(program);
        // Ctrl-C ends what reads the file first, and the program after it.
        command.args(arguments).current_dir(dir).process_group(0).stdin(stream(writes)).stdout(stream(reads));
        command.stderr(Stdio::inherit()).confined(&[]);
        let name = program.display().to_string();
        let mut child = Command::from(command).spawn().map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            errno.because(format!("cannot start {name}: {error}"))
        })?;
        let (output, input) = (child.stdout.take(), child.stdin.take());
        let ended = match child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            Some(number) => pidfd_open(number, PidfdFlags::NONBLOCK).map_err(std::io::Error::from)?,
            None => return Err(Errno::EIO.because(format!("{name} has no process"))),
        };
        Ok((Process { child, ended: watched(ended)?, name }, output, input))
    }

    /// Why what it said may not be all, once it has closed its output: it failed. One that goes on after `limit` has not.
    pub(crate) async fn failure(&self, limit: Duration, runtime: &dyn Runtime) -> Option<Error> {
        // The caller need not be a task of the runtime, which has a timer.
        let _is_ready =
            until(runtime, runtime.monotonic().saturating_add(limit), self.ended.readable()).await?.ok()?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.ended.as_fd()), options).ok()??;
        let how = how(&status)?;
        Some(Errno::EIO.because(format!("{} has ended: {how}", self.name)))
    }

    /// Waits for its end for so long, then ends it; what it has started ends with it.
    pub(crate) async fn end(mut self, patience: Duration) {
        if timeout(patience, self.ended.readable()).await.is_err() {
            self.signal(Signal::TERM);
            // Then it is killed.
            let _ = timeout(GRACE, self.ended.readable()).await;
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// Until it is waited for, its number cannot come to mean another group.
    fn signal(&self, signal: Signal) {
        let number = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(group) = number {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    /// The runtime waits for what was not waited for.
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// A descriptor that a task can wait for.
#[expect(
    deprecated,
    reason = "what takes its place is unsafe, for descriptors that another one closes; this one is owned"
)]
fn watched(file: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    Ok(AsyncFd::new(file)?)
}

/// How a program has failed, if it has.
fn how(status: &WaitIdStatus) -> Option<String> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit status {code}")),
        (None, Some(signal)) => Some(format!("signal {signal}")),
        (None, None) => None,
    }
}
