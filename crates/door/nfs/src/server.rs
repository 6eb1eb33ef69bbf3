// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket.

use crate::answer::Dispatch;
use crate::caller::Callers;
use crate::connection;
use crate::export::Export;
use crate::handle::{KEY_LEN, Sealer};
use outrigger_core::{Errno, Result, Service};
use ring::rand::{SecureRandom, SystemRandom};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at once; further ones are closed.
const CONNECTIONS: usize = 512;
/// How long to wait when no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A tree to export.
pub struct Tree {
    /// What clients mount it by: a path; slashes at its ends mean nothing.
    pub name: String,
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
}

impl Server {
    /// Exports `trees` to those who connect to `address`, once [`Server::run`] is called.
    ///
    /// # Errors
    /// `EEXIST` for two trees with one name; when the address, memory or random numbers cannot be had.
    pub async fn bind(address: SocketAddr, trees: Vec<Tree>, options: Options) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let run = u64::from_ne_bytes(random()?);
        let sealer = Arc::new(Sealer::new(&options.key));
        let mut exports: Vec<Export> = Vec::new();
        for Tree { name, service, is_lasting } in trees {
            let name = name.trim_matches('/').to_owned();
            let export = Export::new(name, service, sealer.clone(), options.held, (run, is_lasting))?;
            if exports.iter().any(|other| other.id == export.id) {
                return Err(Errno::EEXIST.because(format!("two trees are exported as '/{}'", export.name)));
            }
            exports.push(export);
        }
        let port = listener.local_addr()?.port();
        let dispatch = Arc::new(Dispatch::new(exports, sealer, options.callers, port));
        Ok(Server { listener, dispatch })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until the task is dropped. What runs then goes on to its end.
    pub async fn run(&self) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
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
            let Ok(permit) = connections.clone().try_acquire_owned() else {
                tracing::warn!(%peer, "refused: there are {CONNECTIONS} connections already");
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
