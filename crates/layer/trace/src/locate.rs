// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of nodes that were looked up before tracing was on: the driver is asked for them in the background.

use outrigger_core::ops::Locate;
use outrigger_core::{Cx, Node, OpCode, Reply, Runtime, Service, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Ids of requests that no door made; doors count from 0.
const OWN_IDS: u64 = 1 << 63;

/// Answers of the driver to [`Locate`].
#[derive(Default)]
pub(crate) struct Located {
    /// `None` for a node that was asked for.
    paths: Arc<Mutex<Answers>>,
    /// Whether the driver can tell.
    possible: OnceLock<bool>,
    next_id: AtomicU64,
}

type Answers = HashMap<Node, Option<Vec<u8>>>;

impl Located {
    /// The path of `node` if a reply of the driver has shown it; otherwise it will be known a little later.
    pub(crate) fn path(
        &self,
        node: Node,
        next: &Arc<dyn Service>,
        cx: &Cx,
        runtime: &dyn Runtime,
    ) -> Option<Vec<u8>> {
        if node == Node::ROOT || !self.is_possible(next) {
            return None;
        }
        let mut paths = lock(&self.paths);
        if let Some(known) = paths.get(&node) {
            return known.clone();
        }
        if paths.len() >= crate::NODES {
            paths.clear();
        }
        paths.insert(node, None);
        drop(paths);
        self.ask(node, Arc::clone(next), cx, runtime);
        None
    }

    /// Forgets everything: a directory was renamed, so any path may have changed.
    pub(crate) fn clear(&self) {
        lock(&self.paths).clear();
    }

    fn is_possible(&self, next: &Arc<dyn Service>) -> bool {
        *self.possible.get_or_init(|| next.abilities().ops.has(OpCode::Locate))
    }

    fn ask(&self, node: Node, next: Arc<dyn Service>, cx: &Cx, runtime: &dyn Runtime) {
        let id = OWN_IDS | self.next_id.fetch_add(1, Ordering::Relaxed);
        let (cx, paths) = (Cx::new(id, cx.cred.clone(), "trace"), Arc::clone(&self.paths));
        runtime.spawn(Box::pin(async move {
            let reply = next.call(&cx, Locate { node }.into()).await;
            // Not if a rename has made everybody forget meanwhile: the path may be the old one.
            if let (Reply::Target(path), Some(place)) = (reply, lock(&paths).get_mut(&node)) {
                *place = Some(path.to_vec());
            }
        }));
    }
}
