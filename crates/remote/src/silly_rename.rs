// SPDX-License-Identifier: MIT OR Apache-2.0
//! Silly rename: a file that is removed while it is open is renamed, and removed when it is closed, since servers find a file
//! by its name only.

use outrigger_core::{Name, Node, Result, lock};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// What the names of removed files begin with.
pub const SILLY_PREFIX: &str = ".outrigger-removed-";

/// Whether it is the name of a removed file.
pub fn is_silly(name: &Name) -> bool {
    name.starts_with(SILLY_PREFIX.as_bytes())
}

/// The name of a removed file with this number, which is a random one.
///
/// # Errors
/// None: it is short enough.
pub fn silly_name(number: u64) -> Result<Name> {
    Name::try_from(&*format!("{SILLY_PREFIX}{number:016x}"))
}

/// A name beginning with `prefix` that no other file has.
///
/// # Errors
/// `ENAMETOOLONG` for a prefix that leaves no room.
pub fn unique_name(prefix: &str) -> Result<Name> {
    Name::try_from(&*format!("{prefix}{:016x}", fastrand::u64(..)))
}

/// Names at the server that are this client's own, and are not shown.
#[derive(Debug, Default)]
pub struct HiddenNames {
    names: Mutex<HashSet<(Node, Name)>>,
    shown: Notify,
}

/// Hides a name until it is dropped.
#[derive(Debug)]
pub struct Hiding {
    all: Arc<HiddenNames>,
    place: (Node, Name),
}

impl HiddenNames {
    /// Hides `name` in `dir`.
    pub fn hide(self: &Arc<Self>, dir: Node, name: &Name) -> Hiding {
        let place = (dir, name.clone());
        self.lock().insert(place.clone());
        Hiding { all: Arc::clone(self), place }
    }

    /// Whether `name` in `dir` is hidden.
    pub fn has(&self, dir: Node, name: &Name) -> bool {
        self.lock().contains(&(dir, name.clone()))
    }

    /// Waits until none is hidden in `dir`.
    pub async fn none_in(&self, dir: Node) {
        loop {
            let shown = self.shown.notified();
            if !self.lock().iter().any(|(place, _)| *place == dir) {
                return;
            }
            shown.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(Node, Name)>> {
        lock(&self.names)
    }
}

impl Drop for Hiding {
    fn drop(&mut self) {
        self.all.lock().remove(&self.place);
        self.all.shown.notify_waiters();
    }
}
