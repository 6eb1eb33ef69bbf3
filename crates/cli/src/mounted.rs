// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that serves a mount: assembles the stack, answers the kernel and the control socket, ends cleanly.

use crate::commands::mount::{Mount, READY};
use crate::context::Context;
use crate::control::{
    self, Answer, Controlled, ErrorStatus, Health, MountStatus, OperationStatus, RequestStatus, Server,
};
use crate::status::Failure;
use crate::trees::{self, Tree};
use outrigger_client::{Client, Settings};
use outrigger_core::ops::{Locate, OpCode};
use outrigger_core::{Error, Node, Stack};
use outrigger_door_fuse::{Force, InFlight, MountEntry, OpCount, Options, Session, UnmountError};
use outrigger_layer_trace::{Format, Trace, TraceControl};
use outrigger_runtime::Threads;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long the kernel may take to answer the first message.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// How long unmounting may wait for requests in flight.
const UNMOUNT_DEADLINE: Duration = Duration::from_millis(500);
/// How long finding out a path for `status` may take.
const LOCATE_DEADLINE: Duration = Duration::from_millis(200);

/// Mounts what `mount` says and serves it until it is unmounted. With `background`, tells standard output when the
/// mount answers and leaves the terminal.
///
/// # Errors
/// Why nothing was mounted.
pub fn serve(context: &Context, mount: &Mount, background: bool) -> Result<(), Failure> {
    let parsed = Options::parse(&mount.options.join(","));
    let (mut options, others) = parsed.map_err(|error| Failure::serious(error.to_string()))?;
    options.fsname.get_or_insert_with(|| mount.source.to_string_lossy().into_owned());
    let mountpoint = free_place(&mount.mountpoint)?;
    let tree = trees::mountable(context, &mount.source, &others)?;
    // Where the kernel reads and writes files by itself, the layers would not see it.
    options.passthrough &= tree.layers.is_empty();
    let (trace, control) = Trace::new(context.runtime.clone());
    let stack =
        Stack::new(tree.service.clone()).push(trace).map_err(|error| Failure::serious(error.to_string()))?;
    let service = stack.service();
    // The root must answer before anybody is told that there is a mount.
    let probe = Client::new(service.clone(), context.runtime.clone(), context.settings());
    probe
        .root()
        .map_err(|error| Failure::new(format!("'{}' does not answer: {error}", mount.source.display())))?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::serious(format!("cannot catch signals: {error}")))?;
    let session = Session::mount(&mountpoint, service, context.runtime.clone(), options)
        .map_err(|error| Failure::new(error.to_string()))?;
    session.wait_ready(READY_DEADLINE).map_err(|error| {
        Failure::new(format!(
            "the kernel does not answer on '{}': {}",
            mountpoint.display(),
            Error::from(error)
        ))
    })?;
    let mounted = Arc::new(Mounted::new(context, mount, mountpoint, tree, session, control));
    let server = Server::start(mounted.clone(), &mounted.mountpoint, mounted.connection)
        .map_err(|error| {
            let error = Error::from(error);
            eprintln!("outrigger mount: status and trace will not find this mount: {error}");
        })
        .ok()
        .map(Arc::new);
    watch_signals(signals, mounted.clone(), server.clone());
    if background {
        leave_terminal().map_err(|error| Failure::serious(format!("cannot leave the terminal: {error}")))?;
    }
    mounted.session.wait();
    Ok(())
}

/// The absolute path to mount on: a directory that no mount of ours hides already.
fn free_place(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let shown = mountpoint.display();
    let cannot =
        |error: io::Error| Failure::new(format!("cannot mount on '{shown}': {}", Error::from(error)));
    let path = control::resolve(mountpoint).map_err(cannot)?;
    if let Some(entry) = MountEntry::at(&path).map_err(cannot)?.filter(control::is_ours) {
        let what = match control::probe(&path) {
            Health::Alive => format!("{} is mounted there already", entry.source.display()),
            Health::Dead => "the server of the mount there has died".to_owned(),
            Health::Silent => "the server of the mount there does not answer".to_owned(),
        };
        return Err(Failure::new(format!(
            "cannot mount on '{shown}': {what}; `outrigger umount {shown}` ends that mount"
        )));
    }
    match fs::metadata(&path).map_err(cannot)?.is_dir() {
        true => Ok(path),
        false => Err(Failure::new(format!("cannot mount on '{shown}': it is not a directory"))),
    }
}

/// Tells the waiting parent that the mount answers, then lets go of the terminal.
fn leave_terminal() -> io::Result<()> {
    // The parent ends as soon as it reads that the mount answers.
    rustix::process::set_parent_process_death_signal(None)?;
    rustix::process::setsid()?;
    io::stdout().write_all(READY.as_bytes())?;
    io::stdout().flush()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

/// SIGTERM and SIGINT end the mount, SIGHUP drops caches.
fn watch_signals(mut signals: Signals, mounted: Arc<Mounted>, server: Option<Arc<Server>>) {
    thread::spawn(move || {
        let mut ending = false;
        for signal in signals.forever() {
            match signal {
                SIGHUP => mounted.flush(),
                // Asked again: the connection ends with this process, and programs that wait get an error.
                _ if ending => {
                    server.iter().for_each(|server| server.remove());
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
    session: Session,
    trace: Arc<TraceControl>,
    /// One tracer at a time: the lines go to one place.
    tracer: Mutex<()>,
    since: Instant,
    locator: Client,
}

impl Mounted {
    fn new(
        context: &Context,
        mount: &Mount,
        mountpoint: PathBuf,
        tree: Tree,
        session: Session,
        trace: Arc<TraceControl>,
    ) -> Self {
        // A runtime of its own, so that a stuck driver cannot keep `status` from answering.
        let settings = Settings { timeout: Some(LOCATE_DEADLINE), ..context.settings() };
        let locator = Client::new(tree.service.clone(), Arc::new(Threads::new()), settings);
        Mounted {
            connection: MountEntry::at(&mountpoint).ok().flatten().map_or(0, |entry| entry.minor),
            mountpoint,
            source: mount.source.to_string_lossy().into_owned(),
            tree,
            session,
            trace,
            tracer: Mutex::new(()),
            since: Instant::now(),
            locator,
        }
    }

    /// Ends the mount: at once when nobody uses it, else detached so that nothing new can start.
    fn end(&self) {
        for force in [Force::No, Force::Lazy, Force::Abort] {
            match self.session.stop(force, UNMOUNT_DEADLINE) {
                Ok(()) | Err(UnmountError::NotMounted { .. }) => return,
                Err(error) => tracing::warn!(%error, "unmounting"),
            }
        }
    }

    fn request(&self, request: InFlight) -> RequestStatus {
        RequestStatus {
            id: request.id,
            operation: request.op.to_owned(),
            node: request.node.0,
            path: self.path(request.node),
            age_seconds: request.age.as_secs_f64(),
            pid: request.pid,
            command: fs::read_to_string(format!("/proc/{}/comm", request.pid))
                .ok()
                .map(|comm| comm.trim().to_owned()),
        }
    }

    /// Whether it is in the mount table no more.
    fn is_detached(&self) -> bool {
        MountEntry::all().is_ok_and(|all| all.iter().all(|entry| entry.minor != self.connection))
    }

    fn path(&self, node: Node) -> Option<String> {
        if !self.locator.has(OpCode::Locate) {
            return None;
        }
        self.locator.call(Locate { node }).ok().map(|path| path.to_string())
    }
}

impl Controlled for Mounted {
    fn status(&self) -> MountStatus {
        let status = self.session.status();
        let operation = |count: OpCount| OperationStatus {
            operation: count.op.to_owned(),
            count: count.requests,
            errors: count.errors,
        };
        MountStatus {
            mountpoint: self.mountpoint.to_string_lossy().into_owned(),
            source: self.source.clone(),
            driver: self.tree.service.abilities().driver.to_owned(),
            layers: self.tree.layers.iter().map(|&layer| layer.to_owned()).collect(),
            pid: std::process::id(),
            detached: self.is_detached(),
            uptime_seconds: self.since.elapsed().as_secs(),
            in_flight: status.in_flight.into_iter().map(|request| self.request(request)).collect(),
            operations: status.counts.into_iter().map(operation).collect(),
            last_error: status.last_failure.map(|failure| ErrorStatus {
                operation: failure.op.to_owned(),
                errno: format!("{:?}", failure.error.errno),
                reason: failure.error.reason.as_deref().map(str::to_owned),
                age_seconds: SystemTime::now().duration_since(failure.at).unwrap_or_default().as_secs_f64(),
            }),
        }
    }

    fn flush(&self) {
        self.session.invalidate_all();
    }

    fn trace(&self, json: bool, mut out: UnixStream) {
        let _one_at_a_time = match self.tracer.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // A client that hangs up early is its own affair, here and below.
                let _ = control::answer(&out, &Answer::Failed("somebody traces this mount already".into()));
                return;
            }
        };
        let ready = out.set_read_timeout(None).and_then(|()| control::answer(&out, &Answer::Done));
        let (Ok(sink), Ok(())) = (out.try_clone(), ready) else { return };
        self.trace.start(Box::new(sink), if json { Format::Json } else { Format::Human });
        // The client never writes: reading ends when it hangs up.
        let _ = out.read(&mut [0]);
        self.trace.stop();
    }
}
