// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger attach` and `outrigger detach`: trees for a program that runs.

use super::run::{CLOSE_DEADLINE, Trees, is_in, session, tree};
use crate::context::Context;
use crate::run::Run;
use crate::status::{Exits, Failure};
use clap::Args;
use outrigger_core::{Error, lock};
use outrigger_door_intercept::{Launch, Launched, Namespace, Start};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;

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
/// Ctrl-C does not wait for this.
///
/// The program has to be one of the same user, with one thread: Linux lets no other one
/// enter a user namespace. A program with more threads can be started with `outrigger run`,
/// and then be attached to. Programs of 32 bits, in containers, with privileges of their
/// own, with filters of system calls (seccomp), in `run --cow` or in a debugger are
/// refused. Programs that become another user when they are executed (sudo) do not work
/// afterwards, also when the trees have been taken away, unless the superuser attached.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Attach {
    /// What is shown.
    #[command(flatten)]
    trees: Trees,
    /// The process.
    #[arg(value_name = "PID")]
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
    #[arg(value_name = "PID")]
    process: u32,
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
        let tree = tree(context, map, Self::NAME)?;
        let Launched { mut child, device, connection, waiting, .. } =
            Launch { prefixes, start: Start::Process(process) }.start().map_err(refused)?;
        let failed = |error| refused(Error::from(error).to_string());
        let signals = signals().map_err(failed)?;
        let session = session(context, &tree, device)?;
        let moved = waiting.go().map_err(refused);
        // It ends by itself.
        let _ = child.wait();
        moved?;
        let _ = writeln!(io::stderr(), "attached to {}; Ctrl-C takes the trees away", name(process));
        let busy = Arc::new(Mutex::new(()));
        Namespace::of(process)
            .and_then(|namespace| on_signal(signals, namespace, connection, &busy))
            .map_err(failed)?;
        session.wait();
        // Directories that were made for trees may still be removed.
        drop(lock(&busy));
        let patience = context.options().timeout.unwrap_or(CLOSE_DEADLINE);
        tree.many.as_ref().map_or(Ok(()), |many| many.close(&context.trees.runtime, patience))
    }
}

impl Run for Detach {
    const NAME: &'static str = "detach";
    const EXITS: Exits = Exits::Own;

    fn run(self, _: &Context) -> Result<(), Failure> {
        let process = self.process;
        let namespace = Namespace::of(process)
            .map_err(|error| Failure::new(format!("process {process}: {}", Error::from(error))))?;
        namespace.detach(None).map_err(|why| Failure::new(format!("process {process}: {why}")))
    }
}

/// What a process is called, for messages.
fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("'{}' ({process})", name.trim_end().escape_debug())
}

/// The signals that take the trees away. The second one has its default effect, whatever this process waits for.
fn signals() -> io::Result<Signals> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal only arms what the next one finds armed.
        flag::register_conditional_default(signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    Signals::new([SIGINT, SIGTERM, SIGHUP])
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
