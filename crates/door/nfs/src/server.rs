// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket.

use crate::answer::Dispatch;
use crate::caller::Callers;
use crate::connection;
use crate::export::Export;
use crate::handle::{KEY_LEN, Sealer};
use crate::stand_in::Root;
use outrigger_core::{Credentials, Cx, Errno, Result, Service};
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Connections at once; further ones are closed.
const CONNECTIONS: usize = 512;
/// The same for clients at ports that any user can use, where these are not trusted.
const STRANGERS: usize = 32;
/// How long to wait when no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A tree to export.
pub struct Tree {
    /// What clients mount it by: a path; slashes at its ends mean nothing.
    pub name: String,
    /// What no other tree has, such as the path of its LOCATION: handles of one tree are none of another that is exported by the
    /// same name later.
    pub identity: Vec<u8>,
    /// The tree.
    pub service: Arc<dyn Service>,
    /// Whether it is the same after this process has ended. Handles of a tree in memory are stale then.
    pub is_lasting: bool,
}

/// How trees are exported.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who may ask.
    pub callers: Callers,
    /// What file handles are made with: those of another run with the same key are valid.
    pub key: [u8; KEY_LEN],
    /// How many files of a tree are remembered; others are found again by their number or path.
    pub held: usize,
}

/// A new key for [`Options::key`].
///
/// # Errors
/// When the system gives no random numbers.
pub fn new_key() -> Result<[u8; KEY_LEN]> {
    random()
}

/// The socket, of which the runtime tells when somebody connects.
fn registered(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Errno::EIO.because("the system gives no random numbers"))?;
    Ok(bytes)
}

/// Trees that are exported.
pub struct Server {
    listener: TcpListener,
    dispatch: Arc<Dispatch>,
    connections: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Server {
    /// Exports `trees` to those who connect to `address`, once [`Server::run`] is called.
    ///
    /// # Errors
    /// `EEXIST` for two trees with one name; when the address, memory or random numbers cannot be had.
    pub async fn bind(address: SocketAddr, trees: Vec<Tree>, options: Options) -> Result<Self> {
        Self::with(TcpListener::bind(address).await?, trees, options)
    }

    /// Exports `trees` to those who connect to a socket that listens already.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub async fn on(listener: std::net::TcpListener, trees: Vec<Tree>, options: Options) -> Result<Self> {
        Self::with(registered(listener)?, trees, options)
    }

    /// Answers in place of a server that has ended: the root of its tree keeps its attributes, all else is stale.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub async fn standing_in(listener: std::net::TcpListener, root: Root, options: Options) -> Result<Self> {
        let sealer = Arc::new(Sealer::new(&options.key));
        Self::of(registered(listener)?, (Vec::new(), Some(root)), sealer, options.callers)
    }

    fn with(listener: TcpListener, trees: Vec<Tree>, options: Options) -> Result<Self> {
        let run = u64::from_ne_bytes(random()?);
        let sealer = Arc::new(Sealer::new(&options.key));
        let mut exports: Vec<Export> = Vec::new();
        for Tree { name, identity, service, is_lasting } in trees {
            let name = name.trim_matches('/').to_owned();
            let export =
                Export::new((name, &identity), service, sealer.clone(), options.held, (run, is_lasting))?;
            if exports.iter().any(|other| other.name == export.name || other.id == export.id) {
                return Err(Errno::EEXIST.because(format!("two trees are exported as '/{}'", export.name)));
            }
            exports.push(export);
        }
        Self::of(listener, (exports, None), sealer, options.callers)
    }

    fn of(
        listener: TcpListener,
        (exports, root): (Vec<Export>, Option<Root>),
        sealer: Arc<Sealer>,
        callers: Callers,
    ) -> Result<Self> {
        let (connections, strangers) =
            (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(STRANGERS)));
        let port = listener.local_addr()?.port();
        let dispatch = Arc::new(Dispatch::new(exports, root, sealer, callers, port));
        Ok(Server { listener, dispatch, connections, strangers })
    }

    /// The root of its first tree, for [`Server::standing_in`].
    ///
    /// # Errors
    /// `ENOENT` without a tree, `EIO` when it does not answer.
    pub async fn root(&self) -> Result<Root> {
        let export = self.dispatch.exports.first().ok_or(Errno::ENOENT)?;
        let cx = &Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::ROOT, "nfs") };
        let id = export.files.root();
        let attrs = async { export.attr(cx, export.file(cx, id).await?.node).await };
        let attrs = attrs.await.map_err(|status| Errno::EIO.because(format!("the root: {status}")))?;
        Ok(Root::new(export.handle(id), export.attrs(&attrs)))
    }

    /// Gives out no more handles of roots: what is mounted goes on, and whoever else connects gets nothing.
    pub fn refuse_mounts(&self) {
        self.dispatch.mounts.store(false, Ordering::Relaxed);
    }

    /// Waits until somebody asks for what [`Server::standing_in`] cannot answer.
    pub async fn wanted(&self) {
        self.dispatch.wanted.notified().await;
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes no more calls, and waits for those that run, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        self.dispatch.closing.send_replace(true);
        if timeout(limit, self.connections.acquire_many(CONNECTIONS as u32)).await.is_err() {
            tracing::warn!("calls still run");
        }
    }

    /// Serves clients until the future is dropped. Connections stay until [`Server::close`].
    pub async fn run(&self) {
        let sessions = AtomicU64::new(1);
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            if !self.dispatch.callers.admit(peer) {
                tracing::warn!(%peer, "refused: not in a network that may ask");
                continue;
            }
            // Any user of an admitted machine can make connections of strangers: they have few places, of their own.
            let is_trusted = self.dispatch.callers.trusts(peer);
            let places = if is_trusted { &self.connections } else { &self.strangers };
            let Ok(permit) = places.clone().try_acquire_owned() else {
                tracing::warn!(%peer, is_trusted, "refused: there are too many connections");
                continue;
            };
            tracing::debug!(%peer, "connected");
            let session = sessions.fetch_add(1, Ordering::Relaxed);
            let dispatch = self.dispatch.clone();
            tokio::spawn(async move {
                connection::serve(dispatch, stream, peer, session).await;
                drop(permit);
            });
        }
    }
}
