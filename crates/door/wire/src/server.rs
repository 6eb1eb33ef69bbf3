// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is served, and the connections that share it.

use crate::hub::{FromTree, Hub};
use crate::leases::Leases;
use crate::watch::Watch;
use crate::{connection, descriptors, network};
use outrigger_core::{Abilities, Credentials, OpCode, OpSet, Result, Runtime, Service};
use outrigger_toolkit_serve::{Budget, taken};
use outrigger_toolkit_tls::Acceptor;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as Listener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Connections at once; further ones are closed.
const CONNECTIONS: usize = 256;
/// What does not cross: locks end with a connection that the kernel of the client knows nothing of, poll and ioctl are about devices of
/// this machine, and numbers that a client makes up could name files outside of the tree.
const NOT_SERVED: OpSet =
    OpSet::of(&[OpCode::GetLock, OpCode::SetLock, OpCode::Poll, OpCode::Ioctl, OpCode::Resolve]);

/// What is served, and how.
pub struct Options {
    /// The tree: it lists directories without open handles.
    pub service: Arc<dyn Service>,
    /// Clock and timers.
    pub runtime: Arc<dyn Runtime>,
    /// This release, as messages name it.
    pub release: String,
    /// As whom all requests are made; `None` for whom the client says.
    pub one_user: Option<Credentials>,
    /// The directory of this machine that the tree is, if it is one: what others change there is told to clients.
    pub directory: Option<PathBuf>,
}

/// What connections share.
pub(crate) struct Shared {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) abilities: Abilities,
    pub(crate) ops: OpSet,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) release: String,
    pub(crate) one_user: Option<Credentials>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) leases: Leases,
    pub(crate) watch: Option<Arc<Watch>>,
    _watching: Option<Watching>,
    pub(crate) sessions: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) budget: Budget,
    pub(crate) closing: watch::Sender<bool>,
}

/// The task that passes on what others change; it ends with the server.
struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A tree that is served. Clones serve the same one.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    connections: Arc<Semaphore>,
}

impl Server {
    /// Serves a tree to those whose connections it is given. Called on a thread of a tokio runtime.
    ///
    /// # Errors
    /// When the directory cannot be watched.
    pub fn new(options: Options) -> Result<Self> {
        let Options { service, runtime, release, one_user, directory } = options;
        // A connection keeps the order itself, and what is made under a lease is made of a file without a name.
        let tree = service.abilities();
        let leases = !tree.read_only && tree.ops.has(OpCode::TmpFile) && tree.ops.has(OpCode::Link);
        let abilities = Abilities { in_order: true, leases, ..tree };
        let hub = Arc::<Hub>::default();
        service.attach(Arc::new(FromTree(Arc::clone(&hub))));
        let watch = directory.map(Watch::new).transpose()?;
        let watching = watch.clone().map(|watch| {
            Watching(tokio::spawn(watch.run(Arc::clone(&service), Arc::clone(&hub))).abort_handle())
        });
        let shared = Shared {
            ops: abilities.ops.without(NOT_SERVED),
            service,
            abilities,
            runtime,
            release,
            one_user,
            hub,
            leases: Leases::default(),
            watch,
            _watching: watching,
            sessions: AtomicU64::new(1),
            requests: AtomicU64::new(1),
            budget: Budget::default(),
            closing: watch::channel(false).0,
        };
        Ok(Server { shared: Arc::new(shared), connections: Arc::new(Semaphore::new(CONNECTIONS)) })
    }

    /// Serves the client at the other end of two descriptors, pipes or sockets, to the end of the connection, which goes on when the future
    /// is dropped: see [`Server::close`].
    ///
    /// # Errors
    /// When they are neither; `EPROTO` where the other side has said what no client says.
    pub async fn serve(&self, input: OwnedFd, output: OwnedFd) -> Result<()> {
        let (reader, writer) = (descriptors::reader(input)?, descriptors::writer(output)?);
        self.serve_stream(reader, writer, "standard input").await
    }

    /// The same for a client at the other end of a stream, which messages call `address`.
    ///
    /// # Errors
    /// When the runtime is ending; `EPROTO` where the other side has said what no client says.
    pub async fn serve_stream<R, W>(&self, reader: R, writer: W, address: &str) -> Result<()>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        let (shared, address) = (Arc::clone(&self.shared), address.to_owned());
        let served = tokio::spawn(async move {
            let served = connection::serve(shared, reader, writer, address).await;
            drop(permit);
            served
        });
        served.await.map_err(io::Error::other)?
    }

    /// Serves all who connect to a socket of this machine, until the future is dropped. Connections stay until [`Server::close`].
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn listen(&self, listener: Listener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        loop {
            let Some((stream, _)) = taken(listener.accept().await).await else { continue };
            let address = stream.peer_cred().map_or_else(
                |_| "a program of this machine".to_owned(),
                |peer| format!("user {}, process {}", peer.uid(), peer.pid().unwrap_or_default()),
            );
            if let Some(serving) = self.serving(stream.into_split(), address) {
                tokio::spawn(serving);
            }
        }
    }

    /// Serves all who connect by TCP and show a certificate that `acceptor` takes, as [`Server::listen`] does.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn listen_tls(&self, listener: TcpListener, acceptor: Acceptor) -> io::Result<()> {
        network::listen(self, listener, Arc::new(acceptor)).await
    }

    /// What serves the client at the other end of a stream to the end of the connection; none, which is logged, where there are too many.
    pub(crate) fn serving<R, W>(
        &self,
        (reader, writer): (R, W),
        address: String,
    ) -> Option<impl Future<Output = ()> + Send + use<R, W>>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
            tracing::warn!("{address} was refused: there are {CONNECTIONS} connections already");
            return None;
        };
        let shared = Arc::clone(&self.shared);
        Some(async move {
            // What became of it is in the log: there may be other clients.
            let _ = connection::serve(shared, reader, writer, address).await;
            drop(permit);
        })
    }

    /// Takes no more requests, and waits for those that run, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        self.shared.closing.send_replace(true);
        if timeout(limit, self.connections.acquire_many(CONNECTIONS as u32)).await.is_err() {
            tracing::warn!("requests still run");
        }
    }
}
