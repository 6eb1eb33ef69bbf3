// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who takes a mount's requests: this process, or the one the tree's kernel code runs in, which saves each request two changes
//! of process. This one then keeps another descriptor of the connection, and takes over when that one dies.

use crate::trees::{OpenedImage, Tree};
use outrigger_core::{Reply, Service, Wire};
use outrigger_door_fuse::{Connection, Force, Negotiated, Options, Order, Session, Status, unmount};
use outrigger_driver_kernel::Kernel;
use outrigger_runtime::Threads;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long the other process may take to answer what is no request.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long unmounting what is not served may take.
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
    image: Arc<Kernel>,
    mountpoint: PathBuf,
    negotiated: Negotiated,
    /// What this process would serve, and how.
    service: Arc<dyn Service>,
    options: Options,
    runtime: Arc<Threads>,
    /// Until this process serves.
    connection: Mutex<Option<Connection>>,
    /// Tells when the other process is done.
    done: Mutex<Receiver<Reply>>,
    /// Since the other has died.
    here: OnceLock<Session>,
}

/// The image whose kernel code could serve a mount of the tree by itself: nothing is to be done with its messages elsewhere.
pub fn direct<'a>(tree: &'a Tree, options: &Options) -> Option<&'a Arc<Kernel>> {
    match &tree.image {
        Some(OpenedImage::One(image)) if tree.layers.is_empty() && options.timeout.is_none() => Some(image),
        _ => None,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl There {
    /// Hands the mount over to the process of `image`, with the `-o` list. `service` is what this process would serve.
    ///
    /// # Errors
    /// When the kernel does not speak, or there are no descriptors left.
    pub fn begin(
        image: &Arc<Kernel>,
        (mountpoint, list): (PathBuf, String),
        service: Arc<dyn Service>,
        options: Options,
        runtime: Arc<Threads>,
        (mut connection, deadline): (Connection, Duration),
    ) -> io::Result<Self> {
        let negotiated = connection.negotiate(deadline, &service.abilities(), &options)?;
        let device = connection.device_fd()?;
        let done = ask(&runtime, image, &Order::Serve { options: list, negotiated }, Some(device));
        Ok(There {
            image: Arc::clone(image),
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
        let reply = locked(&self.done).recv();
        let Ok(Reply::Error(error)) = reply else { return };
        tracing::warn!(%error, "'{}' is served by another process from here on", self.mountpoint.display());
        match self.take_over() {
            Ok(Some(session)) => drop(session.wait()),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "no server for '{}'", self.mountpoint.display()),
        }
    }

    /// Serves here from now on, if nobody does so yet.
    fn take_over(&self) -> io::Result<Option<&Session>> {
        // Whoever asks meanwhile waits for the session: a mount that changes hands has not gone.
        let mut held = locked(&self.connection);
        let Some(connection) = held.take() else { return Ok(None) };
        let (service, runtime) = (Arc::clone(&self.service), self.runtime.clone());
        let session = Session::resume(connection, self.negotiated, service, runtime, self.options.clone())?;
        Ok(Some(self.here.get_or_init(|| session)))
    }

    /// What `session` finds when this process serves, else what `connection` finds; nothing when nobody serves.
    fn with<R>(
        &self,
        session: impl FnOnce(&Session) -> R,
        connection: impl FnOnce(&Connection) -> R,
    ) -> Option<R> {
        let held = locked(&self.connection);
        self.here.get().map(session).or_else(|| held.as_ref().map(connection))
    }

    fn ask(&self, order: &Order, file: Option<OwnedFd>) -> Option<Reply> {
        ask(&self.runtime, &self.image, order, file).recv_timeout(PATIENCE).ok()
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

/// Gives an order; the reply arrives where the receiver waits.
fn ask(runtime: &Threads, image: &Arc<Kernel>, order: &Order, file: Option<OwnedFd>) -> Receiver<Reply> {
    let (sender, receiver) = mpsc::channel();
    let (image, bytes, serves) = (Arc::clone(image), order.to_bytes(), matches!(order, Order::Serve { .. }));
    runtime.handle().spawn(async move {
        let file = file.as_ref().map(AsFd::as_fd);
        let reply = if serves { image.hand_over(bytes, file) } else { image.order(bytes, file) }.await;
        // Whoever has waited long enough needs none.
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

    /// A picture of what goes on.
    pub fn status(&self) -> Status {
        match (self.here(), self) {
            (Some(session), _) | (None, Served::Here(session)) => session.status(),
            (None, Served::There(there)) => there.status(),
        }
    }

    /// Makes the kernel ask for every name and its attributes again before it believes them.
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

    /// Has other processes print messages as JSON to a descriptor as they pass, each while it serves; `None` when none does. What this
    /// process serves, it has to print itself.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn trace(&self, file: BorrowedFd<'_>) -> io::Result<Option<Tracing<'_>>> {
        let Served::There(there) = self else { return Ok(None) };
        let (order, another) = (Order::Trace, file.try_clone_to_owned()?);
        there.image.before_hand_over(Some((order.to_bytes(), file.try_clone_to_owned()?)));
        // One that is handed the mount in between is told twice, and starts again.
        there.ask(&order, Some(another));
        Ok(Some(Tracing(there)))
    }
}

/// Other processes print messages until this is dropped.
pub struct Tracing<'a>(&'a There);

impl Drop for Tracing<'_> {
    fn drop(&mut self) {
        self.0.image.before_hand_over(None);
        self.0.ask(&Order::Silence, None);
    }
}

impl Drop for There {
    fn drop(&mut self) {
        let connected = locked(&self.connection).as_ref().is_some_and(Connection::is_connected);
        if connected && let Err(error) = unmount(&self.mountpoint, Force::Abort, UNMOUNT_DEADLINE) {
            tracing::warn!(%error, "the mount could not be removed");
        }
    }
}
