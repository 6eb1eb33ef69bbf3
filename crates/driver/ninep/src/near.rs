// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fids of directories that were found a moment ago: a walk begins at the nearest of them, not at the root.
//!
//! A server knows a fid by its file, or, as diod does, by the path that has led there. Where both differ, because a directory was moved, the
//! fid is not used: it has to have been found by the path that its directory has here. Of what other clients move nothing is known, so it is
//! not used for longer than the name of a file may be, and what is changed is reached by a walk that tells what it has led to.

use crate::files::is_misled;
use crate::inner::Inner;
use crate::link::text;
use crate::wire::{Fault, Fid, Session};
use outrigger_core::{Name, Node, Result, lock};
use outrigger_proto_ninep::Text;
use std::collections::HashMap;
use std::mem::{replace, take};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// For how long a fid is used: as [`Ttl::SECOND`](outrigger_core::reply::Ttl).
pub(crate) const LASTS: Duration = Duration::from_secs(1);
/// How many fids there are in each half.
const HALF: usize = 512;

/// A directory, and the user who has found it.
type Key = (Node, u32);

struct Near {
    fid: Arc<Fid>,
    path: Vec<Name>,
    until: Instant,
}

/// The fids that are kept, in two halves: those that were used lately, and those that are given back when the first half is full.
#[derive(Default)]
pub(crate) struct NearDirs(Mutex<[HashMap<Key, Near>; 2]>);

impl NearDirs {
    /// Keeps the fid of a directory that was found.
    pub(crate) fn keep(&self, node: Node, Trail { uid, path, fid }: Trail) {
        self.put((node, uid), Near { fid: Arc::new(fid), path, until: Instant::now() + LASTS });
    }

    fn put(&self, key: Key, near: Near) {
        let mut halves = lock(&self.0);
        halves[0].insert(key, near);
        if halves[0].len() >= HALF {
            let lately = take(&mut halves[0]);
            let unused = replace(&mut halves[1], lately);
            drop(halves);
            // Each is given back by a message.
            drop(unused);
        }
    }

    fn take(&self, key: &Key) -> Option<Near> {
        lock(&self.0).iter_mut().find_map(|half| half.remove(key))
    }

    /// The fid of a directory that has this path now.
    fn get(&self, session: &Arc<Session>, key: Key, path: &[Name]) -> Option<Arc<Fid>> {
        let mut halves = lock(&self.0);
        let [lately, before] = &mut *halves;
        if let Some(near) = before.remove(&key) {
            lately.insert(key, near);
        }
        let near = lately.get(&key)?;
        let is_of_now = Arc::ptr_eq(&near.fid.session, session) && Instant::now() < near.until;
        if is_of_now && near.path == path {
            return Some(Arc::clone(&near.fid));
        }
        let gone = lately.remove(&key);
        drop(halves);
        drop(gone);
        None
    }

    /// Gives the fid of a directory back, if there is one.
    fn forget(&self, key: &Key) -> bool {
        self.take(key).is_some()
    }
}

/// How a directory was found: by whom, and by which path from the root.
pub(crate) struct Trail {
    pub(crate) uid: u32,
    pub(crate) path: Vec<Name>,
    pub(crate) fid: Fid,
}

/// Where a way leads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal<'a> {
    /// To this name in a directory, by at least the directory's own name: the walk tells which directory it was.
    Name(Node, &'a Name),
    /// To a node, by its own fid where that is known: what is answered has to tell which file it is about.
    Node(Node),
    /// To a node by at least one name: the walk tells what it has led to.
    Walk(Node),
}

/// The way to a file.
pub(crate) struct Way {
    /// From the root.
    pub(crate) path: Vec<Name>,
    /// The directory that the walk begins at, where that is not the root.
    near: Option<(Key, Arc<Fid>)>,
    /// Its fid, or that of the root.
    pub(crate) from: u32,
    /// The names from there.
    pub(crate) names: Vec<Text>,
}

impl Inner {
    /// The way to a file; `Err` with the path above all that the server attaches.
    pub(crate) async fn way(
        &self,
        session: &Arc<Session>,
        uid: u32,
        goal: Goal<'_>,
    ) -> Result<Result<Way, Vec<Name>>, Fault> {
        let (Goal::Name(node, _) | Goal::Node(node) | Goal::Walk(node)) = goal;
        let mut path = self.files.table().path(node)?;
        let tells = matches!(goal, Goal::Walk(_) | Goal::Name(..));
        let depth = path.len().saturating_sub(usize::from(tells));
        let near = self.nearest(session, (node, uid), (&path, depth));
        if let Goal::Name(_, name) = goal {
            path.push(name.clone());
        }
        Ok(match near {
            Some((depth, key, fid)) => {
                let names = path[depth..].iter().map(text).collect::<Result<Vec<_>>>()?;
                Ok(Way { path, from: fid.number, near: Some((key, fid)), names })
            }
            None => match self.start(session, uid, &path).await? {
                Some((from, names)) => Ok(Way { path, near: None, from, names }),
                None => Err(path),
            },
        })
    }

    /// The directory nearest to a node on its path, at most `most` names below the root, of which a fid is known; how many names lead there.
    fn nearest(
        &self,
        session: &Arc<Session>,
        (mut at, uid): Key,
        (path, most): (&[Name], usize),
    ) -> Option<(usize, Key, Arc<Fid>)> {
        for depth in (1..=path.len()).rev() {
            if depth <= most
                && let Some(fid) = self.near.get(session, (at, uid), &path[..depth])
            {
                return Some((depth, (at, uid), fid));
            }
            // The path is by the first of the names.
            (at, _) = self.files.table().names(at).ok()?.into_iter().next()?;
        }
        None
    }

    /// Whether a walk began at a directory that may not be there any more: the next one does not.
    pub(crate) fn is_astray(&self, way: &Way, fault: &Fault) -> bool {
        is_misled(fault) && way.near.as_ref().is_some_and(|(key, _)| self.near.forget(key))
    }
}
