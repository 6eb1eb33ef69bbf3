// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the program comes to see trees: in a namespace with a FUSE mount, or by answers to its system calls.

use super::{Phase, code, failed, forward, wait_for_others};
use crate::context::Context;
use crate::status::Failure;
use crate::trees::Tree;
use clap::ValueEnum;
use outrigger_client::{Client, Settings};
use outrigger_core::{Credentials, Runtime};
use outrigger_door_intercept::{Filtered, Kept, Launch, Launched, Notified, Prefix, Start, Urls};
use outrigger_host::{allow_descriptors, users_state};
use rustix::event::Timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, set_child_subreaper, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often programs are let go of that have ended.
const REAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The mechanisms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Via {
    /// The first one that works.
    #[default]
    Auto,
    /// A mount namespace, with FUSE.
    Namespace,
    /// Answers to system calls.
    Seccomp,
}

/// A program that waits for its trees.
pub enum Begun {
    /// In a namespace.
    Namespace(Launched),
    /// Under a filter of its system calls.
    Seccomp(Filtered),
}

impl Via {
    /// The mechanism where URLs may have to be names of files: for a namespace they are paths like others.
    pub fn with_urls(self, urls: bool) -> Result<Self, Failure> {
        match (self, urls) {
            (Via::Namespace, true) => Err(Failure::serious(
                "--urls takes --via seccomp: in a namespace, the kernel looks for a directory 'https:'"
                    .to_owned(),
            )),
            (Via::Auto, true) => Ok(Via::Seccomp),
            _ => Ok(self),
        }
    }

    /// Starts the program in the first way that this system permits. With `verbose`, it is said which one that is.
    /// With `gate`, programs under a filter reach local files by themselves.
    pub fn begin(self, launch: &Launch, verbose: bool, gate: bool) -> Result<Begun, Failure> {
        let refused =
            |why: String| Failure::serious(format!("no file system of its own for the program: {why}"));
        let why = match self {
            Via::Seccomp => None,
            Via::Auto | Via::Namespace => match launch.start() {
                Ok(launched) => {
                    say(verbose, "namespace", None);
                    return Ok(Begun::Namespace(launched));
                }
                Err(why) => Some(why),
            },
        };
        let (Start::Program(command), Via::Auto | Via::Seccomp) = (&launch.start, self) else {
            return Err(refused(why.unwrap_or_default()));
        };
        for prefix in &launch.prefixes {
            prefix.check(&launch.prefixes).map_err(refused)?;
        }
        match (Filtered::start(command, gate), why) {
            (Ok(filtered), why) => {
                say(verbose, "seccomp", why.as_deref());
                Ok(Begun::Seccomp(filtered))
            }
            (Err(other), Some(why)) => Err(refused(format!("namespace: {why}; seccomp: {other}"))),
            (Err(why), None) => Err(refused(why)),
        }
    }
}

/// Says which mechanism is used.
fn say(verbose: bool, via: &str, because: Option<&str>) {
    if verbose {
        let because = because.map(|why| format!(" (not namespace: {why})")).unwrap_or_default();
        let _ = writeln!(io::stderr(), "outrigger run: via {via}{because}");
    }
}

/// Answers the calls of the program, and of what it starts, until all have ended.
pub fn answer(
    context: &Context,
    tree: &Tree,
    (prefixes, urls): (&[Prefix], Urls),
    filtered: Filtered,
    verbose: bool,
) -> Result<ExitStatus, Failure> {
    let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]).map_err(failed)?;
    allow_descriptors();
    // Where only ancestors may look at a process (yama(5)), this one has to be that of all.
    set_child_subreaper(Some(Pid::INIT)).map_err(|error| failed(error.into()))?;
    let Filtered { mut child, listener, waiting, gate } = filtered;
    let kept = Kept::start(child.id(), &listener).map_err(not_served)?;
    drop(listener);
    let notified = serve(context, tree, (prefixes, urls), (kept, "run"), gate)?;
    let phase = Arc::new(Phase::default());
    forward(signals, child.id(), Arc::clone(&phase)).map_err(failed)?;
    let executed = waiting.go();
    let status = ended(&mut child).map_err(failed)?;
    if let Err(why) = executed {
        context.end_with(code(status));
        notified.finish();
        return Err(Failure::serious(why));
    }
    phase.ended.store(true, Ordering::Release);
    let ends_within = |limit| {
        reap(None);
        notified.ends_within(limit)
    };
    wait_for_others(ends_within, &phase);
    if verbose {
        let _ = writeln!(io::stderr(), "outrigger run: {}", answered(notified.counts()));
    }
    let lost = notified.finish();
    match &lost[..] {
        [] => Ok(status),
        _ => Err(Failure::serious(lost.join("; "))),
    }
}

/// How many calls were answered, and in how many programs the gate was.
fn answered((calls, gates): (u64, Option<u64>)) -> String {
    let gate = match gates {
        Some(gates @ 1..) => format!("{GATE} {gates} times"),
        Some(0) => "no program needed a gate for local files, or none could get it".to_owned(),
        None => "no gate for local files".to_owned(),
    };
    format!("{calls} system calls were answered; {gate}")
}

/// Trees cannot be served.
fn not_served(why: String) -> Failure {
    Failure::serious(format!("the trees cannot be served: {why}"))
}

/// Answers calls for a command with what is in a tree.
pub fn serve(
    context: &Context,
    tree: &Tree,
    (prefixes, urls): (&[Prefix], Urls),
    calls: (Kept, &'static str),
    gate: bool,
) -> Result<Notified, Failure> {
    let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let settings = Settings {
        cred: Credentials::new(uid, gid),
        timeout: context.options().timeout.filter(|timeout| !timeout.is_zero()),
        ..Settings::default()
    };
    let client = Client::new(Arc::clone(&tree.service), runtime, settings);
    Notified::serve(calls, prefixes, urls, client, &std::env::temp_dir(), unsaved(), gate).map_err(not_served)
}

/// Waits for the program. A thread that stops it for a moment (ptrace) is the one to wait for that, so its end alone is waited for here.
fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&REAP)) {
            Ok(0) => reap(Some(pid)),
            Ok(_) => return child.wait(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lets go of programs that have ended, and whose parents had ended before: they are children of this process then. Others that this
/// process has started are under one filter less. The program itself is waited for elsewhere.
fn reap(program: Option<Pid>) {
    let field = |pid: &str, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let filters = |pid: &str| field(pid, "Seccomp_filters:")?.parse::<u32>().ok();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children: String =
        tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    for child in children.split_whitespace() {
        let has_ended = field(child, "State:").is_some_and(|state| state.starts_with('Z'));
        let pid = child.parse().ok().and_then(Pid::from_raw);
        if has_ended && pid != program && filters(child) > filters("self") {
            // There is nothing to be told about it.
            let _ = waitpid(pid, WaitOptions::NOHANG);
        }
    }
}

/// Where content goes that no tree takes.
fn unsaved() -> PathBuf {
    users_state().unwrap_or_else(std::env::temp_dir).join("outrigger/unsaved")
}

/// What is said of the gate, before how often.
pub const GATE: &str = "programs got a gate for local files";

/// The words for `outrigger run` to try a mechanism.
pub fn trial(via: &str) -> Vec<OsString> {
    let words = [
        "run",
        "-v",
        "--via",
        via,
        "--no-hosts",
        "--mounts",
        "/dev/null",
        "--map",
        "/outrigger-doctor=mem:",
        "--",
        "sh",
        "-c",
        // Enough local files that a gate is worth it.
        "cd /outrigger-doctor && ls && for n in $(seq 32); do test -e /etc/$n || test -e /etc/.; done",
    ];
    words.map(OsString::from).to_vec()
}
