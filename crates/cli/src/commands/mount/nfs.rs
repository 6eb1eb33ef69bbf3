// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree mounted by the NFS client of the kernel, which asks the NFS door of this process
//! (`docs/design/0026-mount-by-nfs.md`).
//!
//! | module | what it does |
//! |---|---|
//! | `kernel` | the call of mount(2), and what the kernel knows of the mount |
//! | `left` | what a worker leaves to the next one |
//! | `controlled` | what the control socket can ask |

mod controlled;
mod kernel;
mod left;

use crate::commands::serve::common::{PATIENCE, identity, store};
use crate::commands::serve::nfs::{HELD, end, stack};
use crate::context::Context;
use crate::control::{Controlled, Server as ControlServer};
use crate::guarded;
use crate::messages::warn;
use crate::mounted::{Chosen, Wanted, answers, free_place, shown};
use crate::status::Failure;
use crate::trees::{self, Tree};
use controlled::{Mounted, Served};
use left::Left;
use outrigger_core::node_table::NodeTable;
use outrigger_core::supervise::GIVEN_UP_FOR;
use outrigger_core::{Error, Keep, Stack, StackError};
use outrigger_door_nfs::{self as door, Callers, KEY_LEN, Paths, Server, Squash, needs_paths};
use outrigger_guard::{GIVE_UP, Seat, TRY_AGAIN};
use outrigger_layer_closesim::Control as Closes;
use outrigger_layer_deadline::Deadline;
use outrigger_layer_trace::{Trace, TraceControl};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

/// Words of a table of paths: 64 MiB, more than a million files. What is not used takes no memory.
const PATH_WORDS: usize = 8 << 20;

/// How a worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Nothing is mounted any more.
    Unmounted,
    /// Another worker is to be tried.
    TryAgain,
    /// The next one only has to answer with errors.
    GiveUp,
}

impl Ended {
    /// What tells the keeper, if it has to know.
    pub fn status(self) -> Option<i32> {
        match self {
            Ended::Unmounted => None,
            Ended::TryAgain => Some(TRY_AGAIN),
            Ended::GiveUp => Some(GIVE_UP),
        }
    }
}

/// What serves a tree.
struct Serving {
    tree: Arc<Tree>,
    closes: Closes,
    trace: Arc<TraceControl>,
    server: Arc<Server>,
}

/// Serves a mount by NFS until it is unmounted: a new one, or that of a worker that has died. With `restarts`, workers that die are
/// replaced.
///
/// # Errors
/// Why nothing was mounted, why the mount cannot be taken over, or what was lost in the end.
pub fn serve(context: &Context, wanted: &Wanted, seat: Arc<Seat>, restarts: bool) -> Result<Ended, Failure> {
    let cannot = |error: Error| Failure::serious(format!("cannot take the mount over: {error}"));
    context.trees.runtime.serve();
    // Before the mount, so that a signal ends that, too.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::serious(format!("cannot catch signals: {error}")))?;
    let left = seat.inherited()?.map(Left::of).transpose().map_err(cannot)?;
    let mountpoint = match &left {
        Some(left) => left.superblock.place(&wanted.mountpoint),
        None => free_place(&wanted.mountpoint)?,
    };
    guarded::report_crash(&seat, &mountpoint);
    let (left, serving) = match left {
        Some(left) if seat.stands_in() => (left, None),
        Some(left) => {
            let serving = open(context, wanted, &seat, restarts, &left.listener, left.key)?;
            serving.server.refuse_mounts();
            (left, Some(serving))
        }
        None => {
            let (left, serving) = begin(context, wanted, &seat, restarts, mountpoint.clone())?;
            (left, Some(serving))
        }
    };
    attend(context, wanted, (seat, signals, restarts), mountpoint, left, serving)
}

/// Mounts, and notes what the next worker needs.
fn begin(
    context: &Context,
    wanted: &Wanted,
    seat: &Arc<Seat>,
    restarts: bool,
    mountpoint: PathBuf,
) -> Result<(Left, Serving), Failure> {
    let failed =
        |error: Error| Failure::serious(format!("cannot export '{}': {error}", wanted.source.display()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed(error.into()))?;
    let port = listener.local_addr().map_err(|error| failed(error.into()))?.port();
    // Handles are for this mount alone, so its key is, too.
    let key = door::new_key().map_err(failed)?;
    let serving = open(context, wanted, seat, restarts, &listener, key)?;
    let Chosen { door: options, by_nfs, .. } = wanted.chosen()?;
    let list = kernel::data(port, &by_nfs.unwrap_or_default());
    let superblock = kernel::mount(&shown(&wanted.source), &mountpoint, options.flags(), &list)?;
    serving.server.refuse_mounts();
    let root = context.trees.runtime.handle().block_on(serving.server.root()).map_err(failed)?;
    Ok((Left { listener, key, superblock, root }, serving))
}

/// Opens the tree and exports it to the clients that connect to `listener`.
fn open(
    context: &Context,
    wanted: &Wanted,
    seat: &Arc<Seat>,
    restarts: bool,
    listener: &TcpListener,
    key: [u8; KEY_LEN],
) -> Result<Serving, Failure> {
    let Chosen { door: options, mut driver, .. } = wanted.chosen()?;
    context.trees.hold_for(options.timeout.unwrap_or_default());
    if !restarts && trees::guards_itself(&context.trees, &wanted.source, &driver) {
        driver.push("guard".to_owned());
    }
    context.trees.are_read_only(options.read_only);
    let keep = restarts.then(|| Arc::clone(seat) as Arc<dyn Keep>);
    let tree = trees::mountable(&context.trees, &wanted.source, &driver, keep.as_ref())?;
    let wrong = |error: StackError| Failure::serious(error.to_string());
    let (service, closes) = stack(context, &tree, options.read_only).map_err(wrong)?;
    let (trace, control) = Trace::new(context.trees.runtime.clone());
    let mut stack = Stack::new(service).push(trace).map_err(wrong)?;
    if let Some(limit) = options.timeout {
        stack = stack.push(Deadline::new(limit, context.trees.runtime.clone())).map_err(wrong)?;
    }
    let service = stack.service();
    answers(context, &wanted.source, &service)?;
    let kept = keep.filter(|_| needs_paths(&*service)).map(|keep| paths(&*keep)).transpose();
    let paths =
        kept.map_err(|error| Failure::serious(format!("the paths of files cannot be kept: {error}")))?;
    let exported = door::Tree {
        name: shown(&wanted.source),
        identity: identity(&wanted.source),
        service,
        // What has a worker after this one is the same in it.
        is_lasting: restarts,
        callers: None,
        paths,
    };
    let server = async { Server::on(listener.try_clone()?, vec![exported], options_of(key)) };
    let server = context.trees.runtime.handle().block_on(server);
    let server = Arc::new(server.map_err(|error| Failure::serious(format!("cannot serve: {error}")))?);
    run(context, &server);
    Ok(Serving { tree: Arc::new(tree), closes, trace: control, server })
}

/// The paths of files for the workers to come. Handles are for this mount alone, and so is the table: no number tells it from others.
fn paths(keep: &dyn Keep) -> Result<Paths, Error> {
    let table = NodeTable::attach(keep.region("nfs-paths", PATH_WORDS)?)?;
    Ok(Paths { table, run: 0 })
}

/// Who may ask: the kernel, at a port that only the superuser can use; it says for whom.
fn options_of(key: [u8; KEY_LEN]) -> door::Options {
    let callers = Callers { squash: Squash::None, ..Callers::default() };
    door::Options { callers, key, held: HELD }
}

fn run(context: &Context, server: &Arc<Server>) {
    let server = Arc::clone(server);
    context.trees.runtime.handle().spawn(async move { server.run().await });
}

/// Serves until nothing is mounted, or another worker has to.
fn attend(
    context: &Context,
    wanted: &Wanted,
    (seat, signals, restarts): (Arc<Seat>, Signals, bool),
    mountpoint: PathBuf,
    left: Left,
    serving: Option<Serving>,
) -> Result<Ended, Failure> {
    let (events, ended) = mpsc::channel();
    let served = match &serving {
        Some(serving) => Some(Served::new(context, &serving.tree, &serving.trace)),
        None => {
            stand_in(context, &left, events.clone(), restarts)?;
            None
        }
    };
    let place = (mountpoint.clone(), left.superblock.clone());
    let mounted = Arc::new(Mounted::new(context, &wanted.source, place, seat.clone(), served));
    let control = ControlServer::bind(&mountpoint, left.superblock.number(), Some(&*seat));
    let control = control.and_then(|control| control.answer(mounted.clone()).map(|()| control));
    let control = control.map_err(Error::from).inspect_err(|error| {
        warn(format_args!("outrigger: status and trace will not find this mount: {error}"));
    });
    let waits = events.clone();
    let superblock = left.superblock.clone();
    spawn("mount", move || {
        superblock.wait_until_gone();
        // The other side is there until this process ends.
        let _ = waits.send(Ended::Unmounted);
    })?;
    watch_signals(signals, mounted.clone(), events)?;
    note(&seat, &left)?;
    let _ = std::env::set_current_dir("/");
    let how = ended.recv().unwrap_or(Ended::Unmounted);
    if how != Ended::Unmounted {
        // The next worker answers at the same socket.
        std::mem::forget(control);
        return Ok(how);
    }
    drop(ended);
    // Where something may be left to be stored, a worker that dies meanwhile has a successor.
    if serving.as_ref().is_none_or(|serving| serving.tree.caches.is_empty()) {
        seat.ending();
    }
    let finished = serving
        .map_or(Ok(()), |serving| finish(context, &serving).and_then(|()| context.trees.changed.close()));
    seat.ending();
    finished.inspect_err(|failure| control.iter().for_each(|control| control.leave(&failure.to_string())))?;
    Ok(how)
}

/// Notes that the mount is served: from now on a death is repaired.
fn note(seat: &Seat, left: &Left) -> Result<(), Failure> {
    if seat.predecessors() > 0 {
        seat.took_over();
        return Ok(());
    }
    let listener = left.listener.try_clone().map_err(Error::from);
    let noted = listener.and_then(|listener| seat.mounted(listener.into(), &left.to_bytes()));
    noted.map_err(|error| Failure::serious(format!("the mount cannot be guarded: {error}")))
}

/// Serves the stand-in after the last worker was given up. With `restarts`, the next request after a pause has a worker started again.
fn stand_in(context: &Context, left: &Left, events: Sender<Ended>, restarts: bool) -> Result<(), Failure> {
    let runtime = context.trees.runtime.clone();
    let server =
        async { Server::standing_in(left.listener.try_clone()?, left.root.clone(), options_of(left.key)) };
    let server = runtime.handle().block_on(server);
    let server = Arc::new(server.map_err(|error| Failure::serious(format!("cannot serve: {error}")))?);
    run(context, &server);
    let superblock = left.superblock.clone();
    if !restarts {
        return Ok(());
    }
    spawn("wanted", move || {
        thread::sleep(GIVEN_UP_FOR);
        runtime.handle().block_on(server.wanted());
        // One that is detached is about to end.
        if superblock.is_mounted() {
            let _ = events.send(Ended::TryAgain);
        }
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work).map(drop);
    spawned.map_err(|error: io::Error| Failure::serious(format!("no thread can be started: {error}")))
}

/// SIGTERM and SIGINT end the mount, SIGHUP drops caches. When the mount stays in use, the second SIGTERM or SIGINT has programs get
/// errors; what is not stored then is lost.
fn watch_signals(mut signals: Signals, mounted: Arc<Mounted>, events: Sender<Ended>) -> Result<(), Failure> {
    spawn("signals", move || {
        let mut ending = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => mounted.flush(),
                _ if ending && mounted.serves() => {
                    mounted.name_losses();
                    if events.send(Ended::GiveUp).is_err() {
                        // Nothing is mounted any more, and storing the rest takes too long.
                        mounted.cut_off();
                    }
                }
                _ => {
                    ending = true;
                    let mounted = mounted.clone();
                    // Unmounting writes what programs have written, to this process.
                    let _ = spawn("unmount", move || mounted.unmount());
                }
            }
        }
    })
}

/// Stores what clients have written.
fn finish(context: &Context, serving: &Serving) -> Result<(), Failure> {
    context.trees.runtime.handle().block_on(serving.server.close(PATIENCE));
    // Both, whatever became of the first.
    let (closed, stored) = (end(context, &serving.closes), store(context, &serving.tree));
    closed.and(stored)
}
