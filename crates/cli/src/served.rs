// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which process serves a mount: this one, or the one that runs the tree's kernel code, which saves two context switches per
//! request. In the second case this process keeps a duplicate descriptor of the connection, and takes over when the other dies.

use crate::trees::Tree;
use outrigger_core::registry::Direct;
use outrigger_core::{Reply, Service, Wire, lock};
use outrigger_door_fuse::{Connection, Force, Negotiated, Options, Order, Session, Status, unmount};
use outrigger_runtime::Threads;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long the other process may take to answer an order, except `Order::Serve`.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long unmounting a mount without a server may take.
const UNMOUNT_DEADLINE: Duration = Duration::from_millis(500);

/// See the [module](self).
pub enum Served {
    /// By this process.
    Here(Session),
    /// By another.
    There(Box<There>),
}

/// A mount that another process serves.
pub struct There {
    process: Arc<dyn Direct>,
    mountpoint: PathBuf,
    negotiated: Negotiated,
    /// What this process would serve, and how.
    service: Arc<dyn Service>,
    options: Options,
    runtime: Arc<Threads>,
    /// `None` once this process serves.
    connection: Mutex<Option<Connection>>,
    /// Receives the reply to `Order::Serve`: the other process has stopped serving.
    done: Mutex<Receiver<Reply>>,
    /// Set when the other process has died.
    here: OnceLock<Session>,
}

/// The process that could serve a mount of the tree by itself: nothing is to be done with its messages elsewhere.
pub fn direct(tree: &Tree, options: &Options) -> Option<Arc<dyn Direct>> {
    let is_bare = tree.layers.is_empty() && options.timeout.is_none();
    tree.control.as_ref().filter(|_| is_bare)?.direct()
}

impl There {
    /// Hands the mount over to `process`, with the `-o` list. `service` is what this process would serve.
    ///
    /// # Errors
    /// When the kernel does not speak, or there are no descriptors left.
    pub fn begin(
        process: Arc<dyn Direct>,
        (mountpoint, list): (PathBuf, String),
        service: Arc<dyn Service>,
        options: Options,
        runtime: Arc<Threads>,
        (mut connection, deadline): (Connection, Duration),
    ) -> io::Result<Self> {
        let negotiated = connection.negotiate(deadline, &service.abilities(), &options)?;
        let device = connection.device_fd()?;
        let done = ask(&runtime, &process, &Order::Serve { options: list, negotiated }, Some(device));
        Ok(There {
            process,
            mountpoint,
            negotiated,
            service,
            options,
            runtime,
            connection: Mutex::new(Some(connection)),
            done: Mutex::new(done),
            here: OnceLock::new(),
        })
    }

    /// Waits until the mount has ended.
    fn wait(&self) {
        let reply = lock(&self.done).recv();
        let Ok(Reply::Error(error)) = reply else { return };
        tracing::warn!(%error, "'{}' is served by another process from here on", self.mountpoint.display());
        match self.take_over() {
            Ok(Some(session)) => drop(session.wait()),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "no server for '{}'", self.mountpoint.display()),
        }
    }

    /// Starts the session in this process; `None` when that was done before.
    fn take_over(&self) -> io::Result<Option<&Session>> {
        // Held until the session exists: during the takeover other threads wait instead of finding no server.
        let mut held = lock(&self.connection);
        let Some(connection) = held.take() else { return Ok(None) };
        let (service, runtime) = (Arc::clone(&self.service), self.runtime.clone());
        let session = Session::resume(connection, self.negotiated, service, runtime, self.options.clone())?;
        Ok(Some(self.here.get_or_init(|| session)))
    }

    /// `session` when this process serves, else `connection`; `None` when there is no server.
    fn with<R>(
        &self,
        session: impl FnOnce(&Session) -> R,
        connection: impl FnOnce(&Connection) -> R,
    ) -> Option<R> {
        let held = lock(&self.connection);
        self.here.get().map(session).or_else(|| held.as_ref().map(connection))
    }

    fn ask(&self, order: &Order, file: Option<OwnedFd>) -> Option<Reply> {
        ask(&self.runtime, &self.process, order, file).recv_timeout(PATIENCE).ok()
    }

    fn status(&self) -> Status {
        let nothing = Status {
            negotiated: Some(self.negotiated),
            in_flight: Vec::new(),
            counts: Vec::new(),
            last_failure: None,
            readers: 0,
        };
        match self.ask(&Order::Status, None) {
            Some(Reply::Value(mut bytes)) => Status::get(&mut bytes).unwrap_or(nothing),
            _ => nothing,
        }
    }
}

/// Sends an order to the process; the reply arrives at the receiver.
fn ask(
    runtime: &Threads,
    process: &Arc<dyn Direct>,
    order: &Order,
    file: Option<OwnedFd>,
) -> Receiver<Reply> {
    let (sender, receiver) = mpsc::channel();
    let (process, bytes, serves) =
        (Arc::clone(process), order.to_bytes(), matches!(order, Order::Serve { .. }));
    runtime.handle().spawn(async move {
        let file = file.as_ref().map(AsFd::as_fd);
        let reply = if serves { process.hand_over(bytes, file) } else { process.order(bytes, file) }.await;
        // Fails when the receiver has timed out.
        let _ = sender.send(reply);
    });
    receiver
}

impl Served {
    /// The session, if this process has it.
    pub fn here(&self) -> Option<&Session> {
        match self {
            Served::Here(session) => Some(session),
            Served::There(there) => there.here.get(),
        }
    }

    /// Waits until the mount has ended.
    pub fn wait(&self) {
        match self {
            Served::Here(session) => drop(session.wait()),
            Served::There(there) => there.wait(),
        }
    }

    /// A snapshot of the session.
    pub fn status(&self) -> Status {
        match (self.here(), self) {
            (Some(session), _) | (None, Served::Here(session)) => session.status(),
            (None, Served::There(there)) => there.status(),
        }
    }

    /// Invalidates all names and attributes that the kernel has cached.
    pub fn invalidate_all(&self) {
        match self {
            Served::Here(session) => session.invalidate_all(),
            Served::There(there) => {
                there.with(Session::invalidate_all, Connection::invalidate_all);
            }
        }
    }

    /// Whether the kernel still has the connection.
    pub fn is_connected(&self) -> bool {
        match self {
            Served::Here(session) => session.is_connected(),
            Served::There(there) => {
                there.with(Session::is_connected, Connection::is_connected).unwrap_or(false)
            }
        }
    }

    /// Makes the other processes that serve trace their messages as JSON to a descriptor; `None` when this process serves,
    /// and has to trace by itself.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn trace(&self, file: BorrowedFd<'_>) -> io::Result<Option<Tracing<'_>>> {
        let Served::There(there) = self else { return Ok(None) };
        let (order, another) = (Order::Trace, file.try_clone_to_owned()?);
        there.process.before_hand_over(Some((order.to_bytes(), file.try_clone_to_owned()?)));
        // A process that takes over between these two lines gets the order twice, and restarts its trace.
        there.ask(&order, Some(another));
        Ok(Some(Tracing(there)))
    }
}

/// Other processes trace until this is dropped.
pub struct Tracing<'a>(&'a There);

impl Drop for Tracing<'_> {
    fn drop(&mut self) {
        self.0.process.before_hand_over(None);
        self.0.ask(&Order::Silence, None);
    }
}

impl Drop for There {
    fn drop(&mut self) {
        let connected = lock(&self.connection).as_ref().is_some_and(Connection::is_connected);
        if connected && let Err(error) = unmount(&self.mountpoint, Force::Abort, UNMOUNT_DEADLINE) {
            tracing::warn!(%error, "the mount could not be removed");
        }
    }
}
