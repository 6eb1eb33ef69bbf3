// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket.

use crate::answer::Dispatch;
use crate::connection;
use crate::export::{Common, Export};
use crate::handle::{KEY_LEN, Sealer};
use crate::stand_in::Root;
use outrigger_core::node_table::NodeTable;
use outrigger_core::{Credentials, Cx, Errno, OpCode, Result, Service};
use outrigger_toolkit_serve::{Callers, Places, taken};
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;

/// Files that are not used for twice as long are not held any more.
const IDLE: Duration = Duration::from_secs(30);

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
    /// Who may ask for it; `None` for those of [`Options::callers`].
    pub callers: Option<Callers>,
    /// The paths of its files, where it [`needs_paths`] and they are kept for the next process. Without, handles are stale then.
    pub paths: Option<Paths>,
}

/// The paths of the files that clients have handles of, for a tree that does not find files by number.
pub struct Paths {
    /// What numbers in handles stand for; kept where it outlives this process.
    pub table: NodeTable,
    /// What no other table has: it is in handles, and those of another table are stale.
    pub run: u64,
}

/// Whether handles of files of this tree last over a restart of the server only with [`Tree::paths`].
pub fn needs_paths(tree: &dyn Service) -> bool {
    !tree.abilities().ops.has(OpCode::Resolve)
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

/// The socket, registered with the runtime.
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
    places: Places,
}

impl Server {
    /// Exports `trees` to those who connect to `address`, once [`Server::run`] is called.
    ///
    /// # Errors
    /// `EEXIST` for two trees with one name; when the address, memory or random numbers cannot be had.
    pub async fn bind(address: SocketAddr, trees: Vec<Tree>, options: Options) -> Result<Self> {
        Server::with(TcpListener::bind(address).await?, trees, options)
    }

    /// The same with a socket that listens already. Called on a thread of a tokio runtime.
    ///
    /// # Errors
    /// `EEXIST` for two trees with one name; when memory or random numbers cannot be had.
    pub fn on(listener: std::net::TcpListener, trees: Vec<Tree>, options: Options) -> Result<Self> {
        Server::with(registered(listener)?, trees, options)
    }

    /// Answers in place of a server that has ended: the root of its tree keeps its attributes, all else is stale. Called on a thread of
    /// a tokio runtime.
    ///
    /// # Errors
    /// When the system does not say where `listener` listens.
    pub fn standing_in(listener: std::net::TcpListener, root: Root, options: Options) -> Result<Self> {
        let sealer = Arc::new(Sealer::new(&options.key));
        Server::of(registered(listener)?, Vec::new(), Some((root, options.callers)), sealer)
    }

    fn with(listener: TcpListener, trees: Vec<Tree>, options: Options) -> Result<Self> {
        let sealer = Arc::new(Sealer::new(&options.key));
        let common =
            Common { sealer: sealer.clone(), held: options.held, run: u64::from_ne_bytes(random()?) };
        let mut exports: Vec<Export> = Vec::new();
        for Tree { name, identity, service, is_lasting, callers, paths } in trees {
            let name = name.trim_matches('/').to_owned();
            let callers = callers.unwrap_or_else(|| options.callers.clone());
            let tree = (service, is_lasting);
            let export = Export::new((name, &identity), tree, callers, &common, paths)?;
            if exports.iter().any(|other| other.name == export.name || other.id == export.id) {
                return Err(Errno::EEXIST.because(format!("two trees are exported as '/{}'", export.name)));
            }
            exports.push(export);
        }
        Server::of(listener, exports, None, sealer)
    }

    fn of(
        listener: TcpListener,
        exports: Vec<Export>,
        root: Option<(Root, Callers)>,
        sealer: Arc<Sealer>,
    ) -> Result<Self> {
        let port = listener.local_addr()?.port();
        let dispatch = Arc::new(Dispatch::new(exports, root, sealer, port));
        Ok(Server { listener, dispatch, places: Places::default() })
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

    /// Gives out no more handles of roots: clients that have mounted go on, and MNT is refused.
    pub fn refuse_mounts(&self) {
        self.dispatch.mounts.store(false, Ordering::Relaxed);
    }

    /// Waits until a client asks for what [`Server::standing_in`] cannot answer.
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
        self.places.emptied(limit).await;
    }

    /// Serves clients until the future is dropped. Connections stay until [`Server::close`].
    pub async fn run(&self) {
        tokio::join!(self.accept(), self.let_go_idle());
    }

    async fn let_go_idle(&self) {
        let cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::ROOT, "nfs") };
        loop {
            tokio::time::sleep(IDLE).await;
            for export in &self.dispatch.exports {
                export.files.let_go_idle(&cx).await;
            }
        }
    }

    async fn accept(&self) {
        let sessions = AtomicU64::new(1);
        loop {
            let Some((stream, peer)) = taken(self.listener.accept().await).await else { continue };
            let (is_admitted, is_trusted) = (self.dispatch.admits(peer), self.dispatch.trusts(peer));
            let Some(permit) = self.places.enter(&peer, is_admitted, is_trusted) else { continue };
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
