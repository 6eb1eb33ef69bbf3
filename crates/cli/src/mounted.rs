// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that serves a mount: assembles the stack, answers the kernel and the control socket, ends cleanly.

use crate::context::Context;
use crate::control::{self, Controlled, Health, Server, Unwritten};
use crate::guarded;
use crate::location::{Base, Location};
use crate::messages::warn;
use crate::notes::{self, Notes};
use crate::reserved::reserve;
use crate::served::{Served, There, direct};
use crate::status::Failure;
use crate::trees::{self, Tree, Trees};
use outrigger_client::{Client, Settings};
use outrigger_core::ops::{Locate, OpCode, SyncFs};
use outrigger_core::registry::Direct;
use outrigger_core::{Error, Keep, Node, Service, Stack, StackError};
use outrigger_door_fuse::{Connection, Force, Kept, Negotiated, Options, Session, UnmountError, unmount};
use outrigger_guard::{Inherited, Seat};
use outrigger_host::MountEntry;
use outrigger_layer_cache::{Control as Cache, Lost};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_journal::Journal;
use outrigger_layer_trace::{Trace, TraceControl};
use outrigger_runtime::Threads;
use signal_hook::consts::{SIGHUP, SIGINT, SIGIO, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

mod by_nfs;
mod controlled;
mod wanted;

pub use controlled::written;

use wanted::with_similar_option;
pub use wanted::{Chosen, Guarding, OPTIONS, Wanted};

/// How long the kernel may take to answer the first message.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// How long unmounting may wait for requests in flight.
const UNMOUNT_DEADLINE: Duration = Duration::from_millis(500);
/// How long writing to disk what was read may take in the end.
const KEEP_DEADLINE: Duration = Duration::from_secs(2);
/// How long storing what programs have written in one of many trees may take in the end.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);
/// How long finding out a path for `status` may take.
const LOCATE_DEADLINE: Duration = Duration::from_millis(200);

/// What is to be served, and where.
pub struct Job {
    /// How the user names the tree.
    pub source: OsString,
    /// The directory.
    pub mountpoint: PathBuf,
    /// The tree.
    pub tree: Tree,
    /// Of the mount.
    pub options: Options,
    /// The same as the `-o` list.
    pub list: String,
    /// This process's place among those that serve the mount one after the other, if there can be several.
    pub seat: Option<Arc<Seat>>,
    /// Whether it is guarded by way of a proxy even where the kernel could do without.
    pub proxy: bool,
    /// What it takes over.
    pub inherited: Option<Inherited>,
}

impl Job {
    /// What `mount` says; with a `seat`, the mount of a worker that died, if there is one.
    ///
    /// # Errors
    /// Why that cannot be mounted.
    pub fn new(context: &Context, mount: &Wanted, seat: Option<Arc<Seat>>) -> Result<Self, Failure> {
        let Chosen { door: mut options, driver: mut others, guarding, .. } = mount.chosen()?;
        let image = seat.is_none() && trees::guards_itself(&context.trees, &mount.source, &others);
        if guarding != Guarding::None && image {
            others.push("guard".to_owned());
        }
        let inherited = match &seat {
            Some(seat) => seat.inherited()?,
            None => None,
        };
        let mountpoint = match &inherited {
            Some(_) => place(&mount.mountpoint, seat.as_deref().and_then(noted_connection)),
            None => free_place(&mount.mountpoint)?,
        };
        options.timeout = options.timeout.or(context.options().timeout.filter(|timeout| !timeout.is_zero()));
        context.trees.hold_for(options.timeout.unwrap_or_default());
        context.trees.are_read_only(options.read_only);
        let keep = seat.clone().map(|seat| seat as Arc<dyn Keep>);
        let tree = trees::mountable(&context.trees, &mount.source, &others, keep.as_ref());
        let tree = tree.map_err(|failure| with_similar_option(failure, &others))?;
        let (seat, keep) = match context.trees.do_end() {
            true => (mount.without_successor(seat)?, None),
            false => (seat, keep),
        };
        // What the permission bits allow to others only the server knows; with other users about, they are all there is.
        options.default_permissions &= !tree.one_user || options.allow_other || wants_checks(mount);
        options.lock_buffers |= seat.as_ref().is_some_and(|seat| seat.is_guarded());
        options.keep = keep.map(Kept);
        // Where the kernel reads and writes files by itself, the layers would not see it.
        options.passthrough &= tree.layers.is_empty();
        let (source, proxy) = (mount.source.clone(), guarding == Guarding::Proxy);
        let list = mount.options.all.join(",");
        Ok(Job { source, mountpoint, tree, options, list, seat, proxy, inherited })
    }
}

/// Whether the user says that the kernel is to check permissions.
fn wants_checks(mount: &Wanted) -> bool {
    mount.options.all.iter().flat_map(|list| list.split(',')).any(|item| item == "default_permissions")
}

/// The source in the mount table. Files have absolute paths, because other programs have other working directories.
pub fn shown(source: &OsStr) -> String {
    let mut location = Location::parse(source);
    match &mut location.base {
        Base::Host(path) => {
            if let Ok(absolute) = std::path::absolute(&path) {
                *path = absolute;
            }
            location.to_string()
        }
        // Without the password that a URL may have.
        Base::Url { .. } if trees::asks(source) => location.to_string(),
        _ => source.to_string_lossy().into_owned(),
    }
}

/// Serves a job until it is unmounted. Calls `ready` once the mount answers.
///
/// # Errors
/// Why nothing was mounted, or what an image may lack.
pub fn serve(context: &Context, job: Job, ready: fn() -> io::Result<()>) -> Result<(), Failure> {
    let Job { source, mountpoint, tree, mut options, list, seat, proxy, inherited } = job;
    options.fsname.get_or_insert_with(|| shown(&source));
    let (trace, control) = Trace::new(context.trees.runtime.clone());
    let journal = match &seat {
        Some(seat) => guarded::journal(seat, context.trees.runtime.clone(), &mountpoint)?,
        None => None,
    };
    let deadline = options.timeout.map(|limit| Deadline::new(limit, context.trees.runtime.clone()));
    let service = stack(&tree, deadline, trace, journal.clone())?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGIO])
        .map_err(|error| Failure::serious(format!("cannot catch signals: {error}")))?;
    // The control socket is bound before the mount serves programs, so that it is found once they have their answers.
    let (session, connection, server) = match inherited {
        Some(inherited) => {
            let connection = seat.as_deref().and_then(noted_connection);
            let connection = connection.unwrap_or_else(|| connection_at(&mountpoint));
            let server = Server::bind(&mountpoint, connection, seat.as_deref());
            (Served::Here(resume(context, service, options, inherited)?), connection, server)
        }
        None => {
            answers(context, &source, &service)?;
            let device = connect(&mountpoint, &service, &options, seat.as_deref(), proxy)?;
            let connection = connection_at(&mountpoint);
            if let Some(seat) = &seat {
                notes::of(&**seat)?.view::<Notes<'_>>().connection().set(connection.into());
            }
            let server = Server::bind(&mountpoint, connection, seat.as_deref());
            let session = match direct(&tree, &options) {
                Some(process) => hand_over(context, (&mountpoint, list), service, options, process, device)?,
                None => Served::Here(start(context, &mountpoint, service, options, device)?),
            };
            (session, connection, server)
        }
    };
    let mounted =
        Arc::new(Mounted::new(context, &source, (mountpoint, connection), tree, session, control, seat));
    let server = server.and_then(|server| server.answer(mounted.clone()).map(|()| Arc::new(server)));
    let server = server.map_err(Error::from).inspect_err(|error| {
        warn(format_args!("outrigger: status and trace will not find this mount: {error}"));
    });
    let server = server.ok();
    watch_signals(signals, mounted.clone(), server.as_ref().map(Arc::downgrade));
    let program = guarded::program(&mounted.tree);
    program.iter().for_each(|program| guarded::report_programs(program, &mounted.mountpoint));
    if let Some(journal) = &journal {
        guarded::report_poison(journal, &mounted.mountpoint, Arc::downgrade(&mounted));
    }
    mounted.serves(ready)?;
    // Staying where we were started would only keep that file system busy.
    let _ = std::env::set_current_dir("/");
    mounted.session.wait();
    let stored = mounted.write_out();
    context.trees.at_end.run();
    // It is killed when this process ends.
    let ended = program.map_or(Ok(()), |program| program.close());
    let ended = ended.map_err(|error| Failure::new(error.why()));
    let patience = context.options().timeout.unwrap_or(CLOSE_DEADLINE);
    let ended = ended.and_then(|()| mounted.close_many(patience));
    let ended = ended.and_then(|()| context.trees.changed.close());
    let lost = || control::what_was_lost(&mounted.locator.lost_since(&mounted.tree));
    let words = ended.as_ref().map_err(ToString::to_string).and_then(|()| lost());
    if let (Err(words), Some(server)) = (words, &server) {
        server.leave(&words);
    }
    ended.and_then(|()| {
        stored.map_err(|what| Failure::new(format!("'{}': {what}", mounted.mountpoint.display())))
    })
}

/// The number of the FUSE connection; 0 when the mount table cannot be read.
fn connection_at(mountpoint: &Path) -> u32 {
    MountEntry::at(mountpoint).ok().flatten().map_or(0, |entry| entry.minor)
}

/// The number of the FUSE connection that a former process made, if it is known.
fn noted_connection(seat: &Seat) -> Option<u32> {
    let number = notes::of(seat).ok()?.view::<Notes<'_>>().connection().get();
    u32::try_from(number).ok().filter(|&number| number > 0)
}

/// The current mount point of the connection that was mounted at `given`.
pub fn place(given: &Path, connection: Option<u32>) -> PathBuf {
    let given = control::resolve(given).unwrap_or_else(|_| given.to_owned());
    let entries = MountEntry::all().unwrap_or_default();
    let is_it = |entry: &MountEntry| connection.is_some_and(|number| control::is_connection(entry, number));
    let mut places = entries.into_iter().filter(is_it);
    let first = places.next().map(|entry| entry.mountpoint);
    match first {
        Some(first) if first != given && places.all(|entry| entry.mountpoint != given) => first,
        _ => given,
    }
}

/// The service for the door: the tree with its layers, the trace, and the journal for exactly-once execution.
fn stack(
    tree: &Tree,
    deadline: Option<Deadline>,
    trace: Trace,
    journal: Option<Journal>,
) -> Result<Arc<dyn Service>, Failure> {
    let wrong = |error: StackError| Failure::serious(error.to_string());
    let mut stack = Stack::new(tree.service.clone());
    if let Some(deadline) = deadline {
        stack = stack.push(deadline).map_err(wrong)?;
    }
    stack = stack.push(trace).map_err(wrong)?;
    if let Some(journal) = journal {
        stack = stack.push(journal).map_err(wrong)?;
    }
    Ok(stack.service())
}

/// Checks that the root answers; only then the mount is reported as ready.
///
/// # Errors
/// What it answers instead.
pub fn answers(context: &Context, source: &OsStr, service: &Arc<dyn Service>) -> Result<(), Failure> {
    let probe = Client::new(service.clone(), context.trees.runtime.clone(), context.trees.settings());
    let root = probe.root();
    root.map(drop).map_err(|error| Failure::new(format!("'{}' does not answer: {error}", source.display())))
}

/// Makes the mount. A guarded one goes through a proxy where the kernel does not resend requests.
fn connect(
    mountpoint: &Path,
    service: &Arc<dyn Service>,
    options: &Options,
    seat: Option<&Seat>,
    proxy: bool,
) -> Result<Connection, Failure> {
    let mut connection = Connection::mount(mountpoint, &service.abilities(), options)
        .map_err(|error| Failure::new(error.to_string()))?;
    let Some(seat) = seat.filter(|seat| seat.is_guarded()) else { return Ok(connection) };
    let proxied = match connection.sends_again(READY_DEADLINE) {
        Ok(true) if !proxy => return Ok(connection),
        Ok(_) => connection.through(READY_DEADLINE, |device, init| seat.interpose(device, init)),
        Err(error) => Err(error.into()),
    };
    proxied.map_err(|error| {
        // It would have no server.
        let _ = unmount(mountpoint, Force::Abort, UNMOUNT_DEADLINE);
        Failure::serious(format!("the mount on '{}' cannot be guarded: {error}", mountpoint.display()))
    })
}

/// Has the process of the tree itself serve a new mount, where the kernel resends unanswered requests after that process died.
fn hand_over(
    context: &Context,
    (mountpoint, list): (&Path, String),
    service: Arc<dyn Service>,
    options: Options,
    process: Arc<dyn Direct>,
    mut connection: Connection,
) -> Result<Served, Failure> {
    if !connection.sends_again(READY_DEADLINE).is_ok_and(|again| again) {
        return Ok(Served::Here(start(context, mountpoint, service, options, connection)?));
    }
    let (place, connection) = ((mountpoint.to_owned(), list), (connection, READY_DEADLINE));
    There::begin(process, place, service, options, context.trees.runtime.clone(), connection)
        .map(|there| Served::There(Box::new(there)))
        .map_err(|error| {
            // It would have no server.
            let _ = unmount(mountpoint, Force::Abort, UNMOUNT_DEADLINE);
            no_answer(mountpoint, error)
        })
}

fn no_answer(mountpoint: &Path, error: io::Error) -> Failure {
    let error = Error::from(error);
    Failure::new(format!("the kernel does not answer on '{}': {error}", mountpoint.display()))
}

/// Serves a new mount.
fn start(
    context: &Context,
    mountpoint: &Path,
    service: Arc<dyn Service>,
    options: Options,
    connection: Connection,
) -> Result<Session, Failure> {
    let session = Session::serve(connection, service, context.trees.runtime.clone(), options)
        .map_err(|error| Failure::new(Error::from(error).to_string()))?;
    session.wait_ready(READY_DEADLINE).map_err(|error| no_answer(mountpoint, error))?;
    Ok(session)
}

/// Takes over the mount of a worker that died.
fn resume(
    context: &Context,
    service: Arc<dyn Service>,
    options: Options,
    inherited: Inherited,
) -> Result<Session, Failure> {
    let cannot = |why: String| Failure::serious(format!("cannot take the mount over: {why}"));
    let negotiated =
        Negotiated::from_bytes(&inherited.negotiated).map_err(|error| cannot(error.to_string()))?;
    let connection = match inherited.proxied {
        true => Connection::proxied(inherited.device),
        false => inherited.device.into(),
    };
    Session::resume(connection, negotiated, service, context.trees.runtime.clone(), options)
        .map_err(|error| cannot(error.to_string()))
}

/// The absolute path to mount on: a directory that no mount of ours hides already.
///
/// # Errors
/// What hides it, or why it is no such directory.
pub fn free_place(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let shown = mountpoint.display();
    let cannot =
        |error: io::Error| Failure::new(format!("cannot mount on '{shown}': {}", Error::from(error)));
    let path = control::resolve(mountpoint).map_err(cannot)?;
    if let Some(why) = taken_by(mountpoint, &path).map_err(cannot)? {
        return Err(Failure::new(why));
    }
    match fs::metadata(&path).map_err(cannot)?.is_dir() {
        true => Ok(path),
        false => Err(Failure::new(format!("cannot mount on '{shown}': it is not a directory"))),
    }
}

/// Why nothing can be mounted at `path`, which the user calls `mountpoint`, if a mount of ours is there already.
///
/// # Errors
/// When the mounts of this machine cannot be read.
pub fn taken_by(mountpoint: &Path, path: &Path) -> io::Result<Option<String>> {
    let Some(entry) = MountEntry::at(path)?.filter(control::is_ours) else { return Ok(None) };
    let what = match control::probe(path) {
        Health::Alive => format!("{} is mounted there already", entry.source.display()),
        Health::Dead => "the server of the mount there has died".to_owned(),
        Health::Silent => "the server of the mount there does not answer".to_owned(),
    };
    let shown = mountpoint.display();
    Ok(Some(format!("cannot mount on '{shown}': {what}; `outrigger umount {shown}` ends that mount")))
}

/// SIGTERM and SIGINT end the mount, SIGHUP drops caches, SIGIO means that another process opens the image.
fn watch_signals(mut signals: Signals, mounted: Arc<Mounted>, server: Option<Weak<Server>>) {
    let kept = mounted.clone();
    let control = mounted.tree.control.clone();
    let wanted = control.map(|control| reserve(control, move || kept.session.is_connected()));
    thread::spawn(move || {
        let mut ending = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => mounted.flush(),
                // Without the thread that receives it there is no lease either.
                SIGIO => wanted.iter().for_each(|wanted| _ = wanted.send(())),
                // Second signal: the process exits, and pending requests fail with its connection.
                _ if ending => {
                    let lost = mounted.locator.lost_if_it_ends(&mounted.tree, &mounted.mountpoint);
                    for server in server.iter().filter_map(Weak::upgrade) {
                        lost.iter().for_each(|what| server.leave(what));
                        server.remove();
                    }
                    std::process::exit(1);
                }
                _ => {
                    ending = true;
                    mounted.end();
                }
            }
        }
    });
}

/// A mount and what is known about it.
struct Mounted {
    mountpoint: PathBuf,
    /// Number of the FUSE connection; 0 when the mount table could not be read.
    connection: u32,
    source: String,
    tree: Tree,
    session: Served,
    trace: Arc<TraceControl>,
    /// One tracer at a time: the lines go to one place.
    tracer: Mutex<()>,
    runtime: Arc<Threads>,
    locator: Locator,
    seat: Option<Arc<Seat>>,
}

impl Mounted {
    fn new(
        context: &Context,
        source: &OsStr,
        (mountpoint, connection): (PathBuf, u32),
        tree: Tree,
        session: Served,
        trace: Arc<TraceControl>,
        seat: Option<Arc<Seat>>,
    ) -> Self {
        let locator = Locator::new(&context.trees, &tree);
        Mounted {
            connection,
            mountpoint,
            source: if trees::asks(source) { shown(source) } else { source.to_string_lossy().into_owned() },
            tree,
            session,
            trace,
            tracer: Mutex::new(()),
            runtime: context.trees.runtime.clone(),
            locator,
            seat,
        }
    }

    /// Marks the mount as serving: from now on it outlives this process.
    fn serves(&self, ready: fn() -> io::Result<()>) -> Result<(), Failure> {
        match (&self.seat, self.session.here()) {
            (Some(seat), _) if seat.predecessors() > 0 => {
                seat.took_over();
                return Ok(());
            }
            (Some(seat), Some(session)) => {
                let device = session.device_fd().map_err(Error::from);
                let negotiated = session.wait_ready(READY_DEADLINE).map_err(Error::from);
                device
                    .and_then(|device| seat.mounted(device, &negotiated?.to_bytes()))
                    .map_err(|error| Failure::serious(format!("the mount cannot be guarded: {error}")))?;
            }
            _ => {}
        }
        ready().map_err(|error| Failure::serious(format!("cannot leave the terminal: {error}")))
    }

    /// Unmounts: at once when the mount is not busy, else lazily, so that nothing new can start.
    fn end(&self) {
        // Where something may be left to be stored then, a process that dies meanwhile has a successor.
        if let Some(seat) = self.seat.as_ref().filter(|_| self.tree.caches.is_empty()) {
            seat.ending();
        }
        for force in [Force::No, Force::Lazy, Force::Abort] {
            if self.is_detached() {
                return;
            }
            match unmount(&self.place(), force, UNMOUNT_DEADLINE) {
                Ok(()) | Err(UnmountError::NotMounted { .. }) => return,
                Err(error) => tracing::warn!(%error, "unmounting"),
            }
        }
    }

    /// Writes out what programs have written, before the process ends.
    ///
    /// # Errors
    /// What was lost, in a sentence that names the files.
    fn write_out(&self) -> Result<(), String> {
        let mut stored = Ok(());
        if self.has_an_estate() {
            // Which no program will ask for: the first request has the layers take it over.
            let settings = Settings { timeout: None, ..Settings::default() };
            let client = Client::new(self.tree.service.clone(), self.runtime.clone(), settings);
            stored = client.call(SyncFs { node: Node::ROOT }).map_err(|error| error.to_string());
        }
        for cache in &self.tree.caches {
            self.runtime.handle().block_on(async {
                // Another process may go on with files that are open.
                match self.session.is_connected() {
                    true => cache.written().await,
                    false => cache.end().await,
                }
            });
            self.runtime.handle().block_on(cache.kept_within(KEEP_DEADLINE));
        }
        control::what_was_lost(&self.locator.lost(&self.tree)).and(stored).inspect_err(|what| {
            tracing::error!("{}: {what}", self.mountpoint.display());
        })
    }

    /// Whether a process that has died may have left something to be stored of a mount that is gone.
    fn has_an_estate(&self) -> bool {
        let had_others = self.seat.as_ref().is_some_and(|seat| seat.predecessors() > 0);
        had_others && !self.tree.caches.is_empty() && !self.session.is_connected()
    }

    /// Closes the trees, where the mount is one of many.
    fn close_many(&self, patience: Duration) -> Result<(), Failure> {
        self.tree.many.as_ref().map_or(Ok(()), |many| many.close(&self.runtime, patience, str::to_owned))
    }

    /// Whether it has left the mount table. The number may have been reused for another mount.
    fn is_detached(&self) -> bool {
        !self.session.is_connected()
            || MountEntry::all()
                .is_ok_and(|all| !all.iter().any(|entry| control::is_connection(entry, self.connection)))
    }

    /// Its current mount point.
    fn place(&self) -> PathBuf {
        place(&self.mountpoint, Some(self.connection))
    }
}

/// Finds out paths for `status`.
pub struct Locator(Client);

impl Locator {
    /// In this tree.
    pub fn new(trees: &Trees, tree: &Tree) -> Self {
        // A runtime of its own, so that a stuck driver cannot keep `status` from answering.
        let settings = Settings { timeout: Some(LOCATE_DEADLINE), ..trees.settings() };
        Locator(Client::new(tree.service.clone(), Arc::new(Threads::new()), settings))
    }

    /// The path of a file, where the tree knows it.
    pub fn path(&self, node: Node) -> Option<String> {
        if !self.0.has(OpCode::Locate) {
            return None;
        }
        self.0.call(Locate { node }).ok().map(|path| path.to_string())
    }

    /// The files with lost writes that no program got an error for, and the errors.
    pub fn lost(&self, tree: &Tree) -> Vec<(String, String)> {
        self.named(tree, Cache::lost)
    }

    /// Those of them that this has not returned before.
    pub fn lost_since(&self, tree: &Tree) -> Vec<(String, String)> {
        self.named(tree, Cache::lost_since)
    }

    /// The same for those of which close(2) has told.
    pub fn lost_at_close(&self, tree: &Tree) -> Vec<(String, String)> {
        self.named(tree, Cache::lost_at_close)
    }

    fn named(&self, tree: &Tree, lost: fn(&Cache) -> Vec<Lost>) -> Vec<(String, String)> {
        let lost = tree.caches.iter().flat_map(lost);
        lost.map(|lost| (control::lost_name(&lost, |node| self.path(node)), lost.error.to_string())).collect()
    }

    /// What waits to be written now, and all that was lost.
    pub fn unwritten(&self, tree: &Tree) -> Unwritten {
        let left = tree.caches.iter().map(|cache| cache.unwritten(cache.mark()));
        let (files, bytes) = left.fold((0, 0), |sum, left| (sum.0 + left.0 as u64, sum.1 + left.1));
        Unwritten { files, bytes, marks: Vec::new(), lost: self.lost(tree) }
    }

    /// Says on standard error and in the log what is lost when the process ends now, if anything is.
    pub fn lost_if_it_ends(&self, tree: &Tree, mountpoint: &Path) -> Option<String> {
        let unstored = tree.caches.iter().flat_map(Cache::unstored);
        let name = |node: Node| self.path(node).unwrap_or_else(|| format!("#{}", node.0));
        let cut_off = unstored.map(|node| (name(node), "a signal came before it was stored".to_owned()));
        let lost: Vec<_> = self.lost(tree).into_iter().chain(cut_off).collect();
        let what = control::what_was_lost(&lost).err()?;
        tracing::error!("{}: {what}", mountpoint.display());
        warn(format_args!("outrigger: '{}': {what}", mountpoint.display()));
        Some(what)
    }
}
