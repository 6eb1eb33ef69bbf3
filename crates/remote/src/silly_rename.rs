// SPDX-License-Identifier: MIT OR Apache-2.0
//! Silly rename: a file that is removed while it is open is renamed, and removed when it is closed, since servers find a file
//! by its name only.

use crate::notes::Notes;
use outrigger_core::{Keep, Name, Node, NodeTable, Result, lock};
use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// What the names of removed files begin with.
pub const SILLY_PREFIX: &str = ".outrigger-removed-";

/// How many files can be noted that lost their names while they are open.
const NOTES: usize = 1 << 10;

/// A name beginning with `prefix` that no other file has.
///
/// # Errors
/// `ENAMETOOLONG` for a prefix that leaves no room.
pub fn unique_name(prefix: &str) -> Result<Name> {
    Name::try_from(&*format!("{prefix}{:016x}", fastrand::u64(..)))
}

outrigger_core::record! {
    /// A file that was renamed, or was about to be: where it is, and the number in its name there.
    #[derive(Clone, Copy)]
    struct Note { node: Node, dir: Node, number: u64 }
}

/// Silly names that files have or are about to get, noted for the process that takes over.
pub struct SillyNames {
    notes: Option<Notes<u64, Note>>,
    /// Of former processes, until it is found out what became of them.
    left: Mutex<Vec<Note>>,
}

/// A silly name that a former process has left at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftName {
    /// Where it is.
    pub dir: Node,
    /// The name.
    pub name: Name,
    /// The removed file, if the name is known to be the only one that it has.
    pub node: Option<Node>,
}

fn silly_name(number: u64) -> Result<Name> {
    Name::try_from(&*format!("{SILLY_PREFIX}{number:016x}"))
}

fn number_in(name: &Name) -> Option<u64> {
    let digits = name.strip_prefix(SILLY_PREFIX.as_bytes())?;
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

impl SillyNames {
    /// None but those that former processes noted in `keep`.
    ///
    /// # Errors
    /// Those of [`Notes::open`].
    pub fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let open = |keep| Notes::open(keep, "silly-names", NOTES, |note: &Note| note.number);
        let notes = keep.map(open).transpose()?;
        let left = notes.iter().flat_map(Notes::all).collect();
        Ok(SillyNames { notes, left: Mutex::new(left) })
    }

    /// A name that no other file has, for a file that is about to be renamed in `dir`. It is noted if `node` is given and
    /// there is room.
    ///
    /// # Errors
    /// None: it is short enough.
    pub fn begin(&self, dir: Node, node: Option<Node>) -> Result<Name> {
        let number = fastrand::u64(..);
        if let (Some(notes), Some(node)) = (&self.notes, node) {
            let _ = notes.put(number, &Note { node, dir, number });
        }
        silly_name(number)
    }

    /// The file with this name has moved to the same one in `dir`.
    pub fn moved(&self, name: &Name, dir: Node) {
        if let (Some(notes), Some(number)) = (&self.notes, number_in(name)) {
            notes.change(&number, |note| note.dir = dir);
        }
    }

    /// No file has this name any more, or got it.
    pub fn end(&self, name: &Name) {
        if let (Some(notes), Some(number)) = (&self.notes, number_in(name)) {
            notes.remove(&number);
        }
    }

    /// Files to which former processes gave silly names, as far as `table` shows that.
    pub fn given(&self, table: &NodeTable) -> Vec<Node> {
        let is_given = |note: &&Note| {
            silly_name(note.number).is_ok_and(|name| table.get(note.dir, &name) == Some(note.node))
        };
        lock(&self.left).iter().filter(is_given).map(|note| note.node).collect()
    }

    /// Finds out what became of the files that former processes renamed, or were about to: `is_there` asks the server for a name.
    /// `table` then has each by the name it has.
    pub async fn settle<F: Future<Output = Result<bool>>>(
        &self,
        table: &NodeTable,
        is_there: impl Fn(Node, Name) -> F,
    ) -> Vec<LeftName> {
        let notes = std::mem::take(&mut *lock(&self.left));
        let mut left = Vec::new();
        for Note { node, dir, number } in notes {
            let Ok(name) = silly_name(number) else { continue };
            let known = table.get(dir, &name);
            let outcome = match known {
                Some(known) => Ok(known == node),
                None => is_there(dir, name.clone()).await,
            };
            // It had one name, and has that still as far as is known here, or the silly one.
            let names = table.names(node).unwrap_or_default();
            let node = match (outcome, &names[..]) {
                (Ok(true), [(place, former)]) if *place == dir => {
                    if known.is_none() && table.renamed((dir, former), (dir, &name)).is_err() {
                        continue;
                    }
                    Some(node)
                }
                (Ok(true), _) => None,
                (Ok(false), _) => {
                    self.end(&name);
                    continue;
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "a removed file may be left behind");
                    continue;
                }
            };
            left.push(LeftName { dir, name, node });
        }
        left
    }
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
