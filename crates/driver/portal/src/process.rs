// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that was started for one open file.

use crate::programs::Groups;
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
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How long a program may take to end after `SIGTERM`.
const GRACE: Duration = Duration::from_secs(1);

/// A program that was started, its standard output and its standard input.
pub(crate) type Started = (Process, Option<ChildStdout>, Option<ChildStdin>);

/// A program with all that it starts. It is killed when this is dropped, and when the thread ends that has started it.
pub(crate) struct Process {
    child: Child,
    /// The group that it leads, until it is waited for.
    group: Option<Pid>,
    groups: Arc<Groups>,
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
        groups: Arc<Groups>,
    ) -> Result<Started> {
        let [program, arguments @ ..] = words else {
            return Err(Errno::EINVAL.because("no program is named"));
        };
        let stream = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut command = Plain::new(program);
        // Ctrl-C ends what reads the file first, and the program after it.
        command.args(arguments).current_dir(dir).process_group(0).stdin(stream(writes)).stdout(stream(reads));
        command.stderr(Stdio::inherit()).confined(&[]).dies_with_thread();
        let name = program.display().to_string();
        let mut child = Command::from(command).spawn().map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
            errno.because(format!("cannot start {name}: {error}"))
        })?;
        let (output, input) = (child.stdout.take(), child.stdin.take());
        let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) else {
            return Err(Errno::EIO.because(format!("{name} has no process")));
        };
        let ended =
            pidfd_open(group, PidfdFlags::NONBLOCK).map_err(|errno| std::io::Error::from(errno).into());
        match ended.and_then(watched) {
            Ok(ended) => {
                groups.add(group);
                Ok((Process { child, group: Some(group), groups, ended, name }, output, input))
            }
            Err(error) => {
                let _ = kill_process_group(group, Signal::KILL);
                Err(error)
            }
        }
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

    /// Waits for its end, at most so long; whether it has come.
    pub(crate) async fn has_ended(&self, patience: Duration) -> bool {
        timeout(patience, self.ended.readable()).await.is_ok()
    }

    /// Ends it, and what it has started.
    pub(crate) async fn end(mut self) {
        if !self.has_ended(Duration::ZERO).await {
            self.signal(Signal::TERM);
            // Then it is killed.
            self.has_ended(GRACE).await;
        }
        self.kill();
        let _ = self.child.wait().await;
    }

    /// Until it is waited for, its number cannot come to mean another group.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        if let Some(group) = self.group.take() {
            self.groups.remove(group);
        }
    }
}

impl Drop for Process {
    /// The runtime waits for what was not waited for.
    fn drop(&mut self) {
        self.kill();
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
