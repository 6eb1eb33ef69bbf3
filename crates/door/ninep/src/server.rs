// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket, and what all connections share.

use crate::connection;
use crate::export::Export;
use crate::fids::Total;
use crate::users::Users;
use outrigger_core::{Errno, Peer, Result, Service};
use outrigger_toolkit_serve::{Budget, Callers, Inside, Places, Seldom, taken};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// A tree to export.
pub struct Tree {
    /// What clients attach to: a path; slashes at its ends mean nothing.
    pub name: String,
    /// The tree.
    pub service: Arc<dyn Service>,
    /// Who may ask for it.
    pub callers: Callers,
}

/// Where a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum At {
    /// At this address.
    Socket(SocketAddr),
    /// On this machine, connected to this socket.
    Local {
        /// The path of the socket.
        path: PathBuf,
        /// The user of the program, if it is known.
        uid: Option<u32>,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Socket(address) => write!(f, "{address}"),
            At::Local { path, uid: Some(uid) } => write!(f, "user {uid} at {}", path.display()),
            At::Local { path, uid: None } => write!(f, "{}", path.display()),
        }
    }
}

impl At {
    fn is_admitted(&self, callers: &Callers) -> bool {
        match self {
            At::Socket(address) => callers.admit(*address),
            At::Local { .. } => true,
        }
    }

    /// Whether what it says of users can be believed. A program of this machine is at a socket that not everyone can connect to, and is
    /// no other user than its own.
    fn is_trusted(&self, callers: &Callers) -> bool {
        match self {
            At::Socket(address) => callers.trusts(*address),
            At::Local { .. } => true,
        }
    }
}

/// A client.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) at: At,
    pub(crate) peer: Arc<Peer>,
    /// Whether there is an export that it may use.
    pub(crate) is_trusted: bool,
}

/// The reasons to refuse a client that has connected.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    network: Seldom,
    port: Seldom,
    pub(crate) export: Seldom,
    /// A user who was not refused, and is nobody here.
    pub(crate) user: Seldom,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) exports: Vec<Arc<Export>>,
    pub(crate) users: Arc<dyn Users>,
    pub(crate) budget: Budget,
    pub(crate) inside: Arc<Inside>,
    pub(crate) fids: Arc<Total>,
    pub(crate) refusals: Refusals,
    /// True once no more requests are taken.
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) requests: AtomicU64,
    pub(crate) sessions: AtomicU64,
}

impl Shared {
    /// Lets a client use an export.
    ///
    /// # Errors
    /// `EACCES` where it may not.
    pub(crate) fn enter(&self, client: &Client, export: &Export) -> Result<()> {
        let (at, name) = (&client.at, &export.name);
        if !at.is_trusted(&export.callers) {
            if let Some(more) = self.refusals.port.due() {
                tracing::warn!("{at} was refused: its port is not below 1024 (option insecure){more}");
            }
            return Err(Errno::EACCES.because("your port is not below 1024"));
        }
        if !at.is_admitted(&export.callers) {
            if let Some(more) = self.refusals.network.due() {
                tracing::warn!(
                    "{at} was refused: it is in no network that may use '/{name}' (option allow){more}"
                );
            }
            return Err(Errno::EACCES.because("you are in no network that may use it"));
        }
        Ok(())
    }
}

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// By TCP.
    Tcp(std::net::TcpListener),
    /// By a socket of this machine.
    Unix(std::os::unix::net::UnixListener, PathBuf),
    /// Nowhere: for [`Server::converse`].
    None,
}

enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    None,
}

/// Trees that are exported.
pub struct Server {
    listening: Listening,
    shared: Arc<Shared>,
    places: Places,
    connections: AtomicU64,
}

impl Server {
    /// Exports `trees` to those who connect, once [`Server::run`] is called. Called on a thread of a tokio runtime.
    ///
    /// # Errors
    /// `EEXIST` for two trees with one name; when the runtime does not take the socket.
    pub fn on(listener: Listener, trees: Vec<Tree>, users: Arc<dyn Users>) -> Result<Self> {
        let listening = match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Listening::Tcp(TcpListener::from_std(listener)?)
            }
            Listener::Unix(listener, path) => {
                listener.set_nonblocking(true)?;
                Listening::Unix(UnixListener::from_std(listener)?, path)
            }
            Listener::None => Listening::None,
        };
        let mut exports: Vec<Arc<Export>> = Vec::new();
        for Tree { name, service, callers } in trees {
            let export = Export::new(&name, service, callers, Handle::current());
            if exports.iter().any(|other| other.name == export.name) {
                return Err(Errno::EEXIST.because(format!("two trees are exported as '/{}'", export.name)));
            }
            exports.push(Arc::new(export));
        }
        let shared = Shared {
            exports,
            users,
            budget: Budget::default(),
            inside: Inside::new(),
            fids: Arc::default(),
            refusals: Refusals::default(),
            closing: watch::Sender::new(false),
            requests: AtomicU64::new(1),
            sessions: AtomicU64::new(1),
        };
        let shared = Arc::new(shared);
        Ok(Server { listening, shared, places: Places::default(), connections: AtomicU64::new(1) })
    }

    /// Where it listens, by TCP.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        match &self.listening {
            Listening::Tcp(listener) => listener.local_addr().map(Some),
            Listening::Unix(..) | Listening::None => Ok(None),
        }
    }

    /// Takes no more requests, and waits for those that run, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        self.shared.closing.send_replace(true);
        self.places.emptied(limit).await;
    }

    /// Serves clients until the future is dropped. Connections stay until [`Server::close`].
    pub async fn run(&self) {
        match &self.listening {
            Listening::Tcp(listener) => loop {
                let Some((stream, peer)) = taken(listener.accept().await).await else { continue };
                // Replies are whole when they are written.
                let _ = stream.set_nodelay(true);
                self.take(At::Socket(peer), stream.into_split());
            },
            Listening::Unix(listener, path) => loop {
                let Some((stream, _)) = taken(listener.accept().await).await else { continue };
                let uid = stream.peer_cred().ok().map(|cred| cred.uid());
                self.take(At::Local { path: path.clone(), uid }, stream.into_split());
            },
            Listening::None => std::future::pending().await,
        }
    }

    /// Serves a connection that was made in another way, such as one end of a pair of sockets, on behalf of the superuser of this machine.
    pub async fn converse(&self, from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin + Send + 'static) {
        let client = self.client(At::Local { path: Path::new("a connection").to_owned(), uid: Some(0) });
        connection::serve(Arc::clone(&self.shared), (from, to), client).await;
    }

    fn client(&self, at: At) -> Client {
        let session = self.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let is_trusted = self.shared.exports.iter().any(|export| at.is_trusted(&export.callers));
        let peer = Arc::new(Peer { address: at.to_string(), session });
        Client { at, peer, is_trusted }
    }

    fn take<R, W>(&self, at: At, (from, to): (R, W))
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let client = self.client(at);
        let is_admitted = self.shared.exports.iter().any(|export| client.at.is_admitted(&export.callers));
        let Some(permit) = self.places.enter(&client.at, is_admitted, client.is_trusted) else { return };
        tracing::debug!(at = %client.at, "connected");
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            connection::serve(shared, (from, to), client).await;
            drop(permit);
        });
    }
}
