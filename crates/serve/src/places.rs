// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many connections there may be at once.

use crate::notice::Seldom;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Connections at once; further ones are closed.
const CONNECTIONS: usize = 512;
/// The same for clients at ports that any user can use, where these are not trusted.
const STRANGERS: usize = 32;
/// How long to wait when no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    connections: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    network: Seldom,
    full: Seldom,
}

impl Default for Places {
    fn default() -> Self {
        let [connections, strangers] = [CONNECTIONS, STRANGERS].map(|count| Arc::new(Semaphore::new(count)));
        Places { connections, strangers, network: Seldom::default(), full: Seldom::default() }
    }
}

impl Places {
    /// A place for the client at `peer`, until the permit is dropped; none, which is logged, where it may not ask, or where there are
    /// too many.
    pub fn enter(
        &self,
        peer: &dyn Display,
        is_admitted: bool,
        is_trusted: bool,
    ) -> Option<OwnedSemaphorePermit> {
        if !is_admitted {
            if let Some(more) = self.network.due() {
                tracing::warn!("{peer} was refused: it is in no network that may ask (option allow){more}");
            }
            return None;
        }
        // Any user of an admitted machine can make connections of strangers: they have few places, of their own.
        let places = if is_trusted { &self.connections } else { &self.strangers };
        let permit = places.clone().try_acquire_owned().ok();
        if permit.is_none()
            && let Some(more) = self.full.due()
        {
            tracing::warn!("{peer} was refused: there are too many connections{more}");
        }
        permit
    }

    /// Waits until the connections of trusted clients have ended, for at most `limit`.
    pub async fn emptied(&self, limit: Duration) {
        if timeout(limit, self.connections.acquire_many(CONNECTIONS as u32)).await.is_err() {
            tracing::warn!("calls still run");
        }
    }
}

/// A connection that was taken. Where none could be, that is logged, and the next one is to be waited for.
pub async fn taken<T>(accepted: io::Result<T>) -> Option<T> {
    match accepted {
        Ok(taken) => Some(taken),
        Err(error) => {
            tracing::warn!(%error, "a connection was not taken");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}
