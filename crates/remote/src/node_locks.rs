// SPDX-License-Identifier: MIT OR Apache-2.0
//! One request at a time for each file, where the order of requests matters.

use outrigger_core::{Node, lock};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks by node. A lock exists while it is held or waited for.
#[derive(Debug, Default)]
pub struct NodeLocks(Mutex<HashMap<Node, Weak<AsyncMutex<()>>>>);

impl NodeLocks {
    /// Locks a node, first come, first served.
    pub async fn lock(&self, node: Node) -> OwnedMutexGuard<()> {
        self.of(node).lock_owned().await
    }

    /// Locks several nodes, in an order in which no two callers wait for each other.
    pub async fn lock_all(&self, nodes: impl IntoIterator<Item = Node>) -> Vec<OwnedMutexGuard<()>> {
        let mut locks = Vec::new();
        for node in nodes.into_iter().collect::<BTreeSet<_>>() {
            locks.push(self.lock(node).await);
        }
        locks
    }

    fn of(&self, node: Node) -> Arc<AsyncMutex<()>> {
        let mut locks = lock(&self.0);
        if let Some(lock) = locks.get(&node).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() > 64 {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(node, Arc::downgrade(&lock));
        lock
    }
}
