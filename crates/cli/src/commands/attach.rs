// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger attach` and `outrigger detach`: trees for a program that runs.

use super::run::via::{Via, client, serve, stored};
use super::run::{CLOSE_DEADLINE, POLL, Trees, is_in, prefix_of, session, tree, view_of};
use crate::context::Context;
use crate::control::ProgramView;
use crate::interrupt::{self, GIVES_UP};
use crate::run::Run;
use crate::status::{Exits, Failure};
use crate::trees::Tree;
use clap::Args;
use outrigger_core::{Cancel, Error, Groups, lock};
use outrigger_door_intercept::{
    Caught, Kept, Launch, Launched, Namespace, Notified, Start, View, detach_kept, not_seen,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::thread;

/// What is waited for in the end.
const WAITS: &str = "files are open for writing, and are stored when they are closed";
/// The signals that take the trees away.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Arguments of `attach`.
///
/// Shows trees to a program that runs, and to what it starts from then on:
///
///     outrigger attach 4711
///     outrigger attach --map /data=backup.tar::/ 4711
///
/// The trees are those of `outrigger run`: other hosts under /SCHEME/HOST, --map, and the
/// file $XDG_CONFIG_HOME/outrigger/mounts. The program goes on where it is; it is stopped
/// for one or two milliseconds, and a system call that waits then begins again, or fails
/// with EINTR where it would after SIGSTOP and SIGCONT (signal(7)). What it had open,
/// directories too, stays open as it was.
///
/// This command serves the trees until the program, and what it has started since, has
/// ended, or until Ctrl-C, SIGTERM or `outrigger detach PID` takes them away. Files that
/// are open then can be used until they are closed, and are stored after that; a second
/// Ctrl-C stores them as they are, and a third one does not wait for a host that hangs.
///
/// The program has to be one of the same user. Programs of 32 bits, in containers, with
/// privileges of their own, with filters of system calls (seccomp), in `run --cow` or in a
/// debugger are refused. Programs that become another user when they are executed (sudo) do
/// not work afterwards, also when the trees have been taken away, unless the superuser
/// attached.
///
/// A program with one thread enters a namespace. Linux does not permit that to one with
/// several, and some systems to none: then its system calls with paths are answered, as by
/// `outrigger run --via seccomp`. That cannot be undone: when the trees have been taken away,
/// a small process (outrigger-keep) has the kernel do these calls until the program ends. If
/// this command was killed, local files go on, and trees are ENOTCONN. In both cases the
/// next `outrigger attach` shows trees again.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Attach {
    /// What is shown.
    #[command(flatten)]
    trees: Trees,
    /// How the program comes to see trees.
    #[arg(long, value_name = "MECHANISM", default_value = "auto", value_parser = Via::for_attach())]
    via: Via,
    /// The process.
    #[arg(value_name = "PID", value_parser = number)]
    process: u32,
}

/// Arguments of `detach`.
///
/// Takes all trees away from a program that `outrigger attach` or `outrigger run` has shown
/// them to, and from all that it has started; Ctrl-C at `attach` takes away those of that
/// command only. Files that are open can be used until they are closed.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Detach {
    /// The process.
    #[arg(value_name = "PID", value_parser = number)]
    process: u32,
}

/// Reads the number of a process.
fn number(word: &str) -> Result<u32, &'static str> {
    word.parse().map_err(|_| "PID is a number")
}

impl Run for Attach {
    const NAME: &'static str = "attach";
    const EXITS: Exits = Exits::Own;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let process = self.process;
        let refused = |why: String| Failure::serious(format!("cannot attach: {why}"));
        let shown = self.trees.shown()?;
        let root = PathBuf::from(format!("/proc/{process}/root"));
        let (map, prefixes) = self.trees.plan(&shown, is_in(&root));
        if prefixes.is_empty() {
            return Err(refused("there is nothing to show (--map PREFIX=LOCATION)".to_owned()));
        }
        let via = self.via.with_urls(self.trees.urls)?;
        let urls = self.trees.urls_of(&prefixes);
        let tree = tree(context, map, Self::NAME)?;
        let launch = Launch { prefixes, start: Start::Process(process) };
        let begun = begin(via, &launch, process).map_err(refused)?;
        let mechanism = if matches!(begun, Begun::Namespace(_)) { Via::Namespace } else { Via::Seccomp };
        // Where that is not possible, `outrigger status` lacks it.
        let _listed = ProgramView {
            argv: words(process),
            process,
            mechanism: mechanism.name(),
            ..view_of(Self::NAME, &shown, &launch.prefixes)
        }
        .list();
        let stored = match begun {
            Begun::Namespace(launched) => in_namespace(context, &tree, launched, process),
            Begun::Seccomp(kept) => {
                let client = client(context, &tree, Groups::UNKNOWN);
                let view = View { prefixes: &launch.prefixes, urls, client, apart: None };
                let notified = serve(view, (Caught::Filtered(kept), Self::NAME), false)?;
                let answered = answer(&notified, process, &context.cancel);
                let answered = answered.map_err(|error| refused(Error::from(error).to_string()));
                stored(notified).and(answered)
            }
        };
        let patience = context.options().timeout.unwrap_or(CLOSE_DEADLINE);
        let prefix = |path: &str| prefix_of(&launch.prefixes, path);
        let closed =
            tree.many.as_ref().map_or(Ok(()), |many| many.close_unless_cancelled(context, patience, prefix));
        stored.and(closed)
    }
}

/// A process that waits for its trees.
enum Begun {
    Namespace(Launched),
    Seccomp(Kept),
}

/// Begins in the first way that is possible for a process.
fn begin(via: Via, launch: &Launch, process: u32) -> Result<Begun, String> {
    let why = match via {
        // `Via::for_attach` leaves ptrace out.
        Via::Seccomp | Via::Ptrace => None,
        Via::Auto | Via::Namespace => match launch.start() {
            Ok(launched) => return Ok(Begun::Namespace(launched)),
            Err(why) if via == Via::Namespace => return Err(why),
            Err(why) => Some(why),
        },
    };
    Kept::attach(process, &launch.prefixes).map(Begun::Seccomp).map_err(|other| match why {
        Some(why) if why != other => format!("namespace: {why}; seccomp: {other}"),
        _ => other,
    })
}

/// Says that the trees are there.
fn say(process: u32) {
    let _ = writeln!(io::stderr(), "attached to {}; Ctrl-C takes the trees away", name(process));
}

/// Waits until the programs have ended, or the trees are taken away; then until files that are open for writing are closed and stored. From
/// then on a signal raises `enough`.
fn answer(notified: &Notified, process: u32, enough: &Cancel) -> io::Result<()> {
    let mut signals = Signals::new(ENDING)?;
    say(process);
    while !notified.ends_within(POLL) && !notified.is_detached() && signals.pending().next().is_none() {}
    notified.detach();
    let gives_up = || interrupt::install(enough, GIVES_UP).map(drop);
    let (written, mut is_told) = (notified.store_closed()?, false);
    while written.recv_timeout(POLL) != Err(RecvTimeoutError::Disconnected) {
        if signals.pending().next().is_some() {
            gives_up()?;
            let _ = writeln!(io::stderr(), "outrigger attach: storing what is there; Ctrl-C gives up");
            return Ok(());
        }
        if !std::mem::replace(&mut is_told, true) {
            let _ = writeln!(io::stderr(), "outrigger attach: {WAITS}; Ctrl-C does not wait for that");
        }
    }
    gives_up()
}

/// Serves trees to a process that enters a namespace.
fn in_namespace(context: &Context, tree: &Tree, launched: Launched, process: u32) -> Result<(), Failure> {
    let refused = |why: String| Failure::serious(format!("cannot attach: {why}"));
    let Launched { mut child, device, connection, waiting, .. } = launched;
    let failed = |error| refused(Error::from(error).to_string());
    let (signals, asked) = signals().map_err(failed)?;
    let session = session(context, tree, device)?;
    let moved = waiting.go().map_err(refused);
    // It ends by itself.
    let _ = child.wait();
    moved?;
    say(process);
    let busy = Arc::new(Mutex::new(()));
    Namespace::of(process)
        .and_then(|namespace| on_signal(signals, namespace, connection, &busy))
        .map_err(failed)?;
    session.wait();
    // Directories that were made for trees may still be removed.
    drop(lock(&busy));
    asked.store(false, Ordering::Release);
    interrupt::install(&context.cancel, GIVES_UP).map(drop).map_err(failed)
}

impl Run for Detach {
    const NAME: &'static str = "detach";
    const EXITS: Exits = Exits::Own;

    fn run(self, _: &Context) -> Result<(), Failure> {
        let process = self.process;
        let failed = |why: String| Failure::new(format!("process {process}: {why}"));
        let tell = || {
            let _ = writeln!(io::stderr(), "outrigger detach: {WAITS}; Ctrl-C does not wait for that");
        };
        if detach_kept(process, tell).map_err(failed)? {
            return Ok(());
        }
        let namespace = Namespace::of(process).map_err(|error| Failure::new(not_seen(process, error)))?;
        namespace.detach(None).map_err(failed)
    }
}

/// The command line of a process.
fn words(process: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|&byte| byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// What a process is called, for messages.
fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("'{}' ({process})", name.trim_end().escape_debug())
}

/// The signals that take the trees away. The second one has its default effect, whatever this process waits for.
/// With the flag that says that the first one came.
fn signals() -> io::Result<(Signals, Arc<AtomicBool>)> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        // In this order: the first signal only arms what the next one finds armed.
        flag::register_conditional_default(signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    Ok((Signals::new(ENDING)?, asked))
}

/// Takes the trees away at the first signal.
fn on_signal(
    mut signals: Signals,
    namespace: Namespace,
    connection: u32,
    busy: &Arc<Mutex<()>>,
) -> io::Result<()> {
    let busy = Arc::clone(busy);
    let wait = move || {
        if signals.forever().next().is_some() {
            let detaching = lock(&busy);
            if let Err(why) = namespace.detach(Some(connection)) {
                let _ = writeln!(io::stderr(), "outrigger attach: the trees cannot be taken away: {why}");
            }
            drop(detaching);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}
