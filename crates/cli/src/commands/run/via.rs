// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the program comes to see trees: in a namespace with a FUSE mount, or by answers to its system calls.

use super::signals::{Forwarding, caught};
use super::{COMMAND, code, failed};
use crate::context::Context;
use crate::status::Failure;
use crate::trees::Tree;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use outrigger_client::{Client, Settings};
use outrigger_core::{Credentials, Groups, Runtime};
use outrigger_door_intercept::{
    Caught, Filter, Filtered, Kept, Launch, Launched, Notified, Start, Traced, Tracer, View, Waiting,
};
use outrigger_host::{allow_descriptors, users_state};
use rustix::event::Timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, set_child_subreaper, waitpid};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

/// How often programs are let go of that have ended.
const REAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long a tree may still take for a change when the user has given up.
const GRACE: Duration = Duration::from_secs(1);

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
    /// Answers to the system calls of a program that is traced.
    Ptrace,
}

/// A program that waits for its trees.
pub enum Begun {
    /// In a namespace.
    Namespace(Launched),
    /// Under a filter of its system calls.
    Seccomp(Filtered),
    /// Traced.
    Ptrace(Traced),
}

impl Via {
    /// Reads the name of a mechanism for a program that runs already: only one that is started can be traced.
    pub fn for_attach() -> impl TypedValueParser<Value = Via> {
        let all = Via::value_variants().iter().filter(|via| **via != Via::Ptrace);
        let names = all.filter_map(ValueEnum::to_possible_value);
        PossibleValuesParser::new(names).try_map(|name| <Via as ValueEnum>::from_str(&name, false))
    }

    /// The mechanism where URLs may have to be names of files: for a namespace they are paths like others.
    pub fn with_urls(self, urls: bool) -> Result<Self, Failure> {
        match (self, urls) {
            (Via::Namespace, true) => Err(Failure::serious(
                "--urls needs --via seccomp or ptrace: in a namespace, the kernel looks for a directory 'https:'"
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
        let mut whys = Vec::new();
        for via in [Via::Namespace, Via::Seccomp, Via::Ptrace] {
            if self != Via::Auto && self != via {
                continue;
            }
            match via.start(launch, gate) {
                Ok(begun) => {
                    say(verbose, via, &whys);
                    return Ok(begun);
                }
                Err(why) => whys.push((via, why)),
            }
        }
        Err(refused(match &whys[..] {
            [(_, why)] => why.clone(),
            whys => listed(whys),
        }))
    }

    /// Starts the program in this way.
    fn start(self, launch: &Launch, gate: bool) -> Result<Begun, String> {
        if self == Via::Namespace {
            return launch.start().map(Begun::Namespace);
        }
        match (self, &launch.start) {
            (Via::Ptrace, Start::Whole { command, .. }) => {
                Traced::start(command, Filter::Apart).map(Begun::Ptrace)
            }
            // Where trees can stand in the overlay was looked at.
            (_, Start::Whole { command, .. }) => Filtered::start(command, Filter::Apart).map(Begun::Seccomp),
            (_, Start::Program(command)) => {
                launch.prefixes.iter().try_for_each(|prefix| prefix.check(&launch.prefixes))?;
                let filter = if gate { Filter::Gate } else { Filter::Plain };
                match self {
                    Via::Ptrace => Traced::start(command, Filter::Plain).map(Begun::Ptrace),
                    _ => Filtered::start(command, filter).map(Begun::Seccomp),
                }
            }
            (_, Start::Process(_)) => Err("only a program that is started has its calls answered".to_owned()),
        }
    }

    /// As `--via` names it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Begun {
    /// How the program comes to see trees.
    pub fn via(&self) -> Via {
        match self {
            Begun::Namespace(_) => Via::Namespace,
            Begun::Seccomp(_) => Via::Seccomp,
            Begun::Ptrace(_) => Via::Ptrace,
        }
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        match self {
            Begun::Namespace(launched) => launched.child.id(),
            Begun::Seccomp(filtered) => filtered.child.id(),
            Begun::Ptrace(traced) => traced.pid,
        }
    }
}

/// Why mechanisms do not work.
fn listed(whys: &[(Via, String)]) -> String {
    let whys: Vec<_> = whys.iter().map(|(via, why)| format!("{}: {why}", via.name())).collect();
    whys.join("; ")
}

/// Says which mechanism is used, and why not those before it.
fn say(verbose: bool, via: Via, whys: &[(Via, String)]) {
    if verbose {
        let because = if whys.is_empty() { String::new() } else { format!(" (not {})", listed(whys)) };
        let _ = writeln!(io::stderr(), "outrigger run: via {}{because}", via.name());
    }
}

/// A program whose calls are answered.
pub enum Program {
    /// A child of this process.
    Filtered(Child),
    /// One that only its tracer can wait for.
    Traced(Arc<Tracer>),
}

impl Program {
    /// Waits for its end.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Program::Filtered(child) => ended(child),
            Program::Traced(tracer) => Ok(tracer.wait()),
        }
    }

    /// Lets go of what it has started, and that has ended.
    fn reap_others(&self) {
        if let Program::Filtered(_) = self {
            reap(None);
        }
    }
}

/// How a program ended, and whether all that programs wrote is stored.
type Answered = (ExitStatus, Result<(), Failure>);

/// Answers the calls of a program that is under a filter, and of what it starts, until all have ended.
pub fn answer_filtered(
    context: &Context,
    view: View<'_>,
    filtered: Filtered,
    verbose: bool,
) -> Result<Answered, Failure> {
    // Where only ancestors may look at a process (yama(5)), this one has to be that of all.
    set_child_subreaper(Some(Pid::INIT)).map_err(|error| failed(error.into()))?;
    let Filtered { child, listener, waiting, gate } = filtered;
    let pid = child.id();
    let kept = Kept::start(pid, &listener).map_err(not_served)?;
    drop(listener);
    let begin = || serve(view, (Caught::Filtered(kept), COMMAND), gate);
    answer(context, begin, (Program::Filtered(child), pid, waiting), verbose)
}

/// The same for one that is traced.
pub fn answer_traced(
    context: &Context,
    view: View<'_>,
    traced: Traced,
    verbose: bool,
) -> Result<Answered, Failure> {
    let Traced { tracer, pid, waiting } = traced;
    let caught = Caught::Traced(Arc::clone(&tracer));
    let begin = || serve(view, (caught, COMMAND), false);
    answer(context, begin, (Program::Traced(tracer), pid, waiting), verbose)
}

/// Answers the calls of a program, and of what it starts, until all have ended.
fn answer(
    context: &Context,
    begin: impl FnOnce() -> Result<Notified, Failure>,
    (mut program, pid, waiting): (Program, u32, Waiting),
    verbose: bool,
) -> Result<Answered, Failure> {
    let signals = caught().map_err(failed)?;
    allow_descriptors();
    let notified = begin()?;
    let forwarding = Forwarding::start(signals, pid, || ()).map_err(failed)?;
    let executed = waiting.go();
    let status = program.wait().map_err(failed)?;
    if let Err(why) = executed {
        context.end_with(code(status));
        notified.finish();
        return Err(Failure::serious(why));
    }
    let ends_within = |limit| {
        program.reap_others();
        notified.ends_within(limit)
    };
    forwarding.end(ends_within, || true, &context.cancel).map_err(failed)?;
    if verbose {
        let _ = writeln!(io::stderr(), "outrigger run: {}", answered(notified.counts()));
    }
    Ok((status, stored(notified)))
}

/// Stores what programs have written.
///
/// # Errors
/// What could not be stored, and where it is.
pub fn stored(notified: Notified) -> Result<(), Failure> {
    match &notified.finish()[..] {
        [] => Ok(()),
        lost => Err(Failure::serious(lost.join("; "))),
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

/// Answers calls for a command with what is shown.
pub fn serve(view: View<'_>, calls: (Caught, &'static str), gate: bool) -> Result<Notified, Failure> {
    Notified::serve(calls, view, &std::env::temp_dir(), unsaved(), gate).map_err(not_served)
}

/// Asks a tree for programs of this user, in these groups.
pub fn client(context: &Context, tree: &Tree, groups: Groups) -> Client {
    let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let settings = Settings {
        cred: Credentials { groups, ..Credentials::new(uid, gid) },
        timeout: context.options().timeout.filter(|timeout| !timeout.is_zero()),
        cancel: context.cancel.clone(),
        grace: GRACE,
    };
    Client::new(Arc::clone(&tree.service), runtime, settings)
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
