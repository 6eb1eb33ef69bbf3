// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that were acknowledged and then failed, until a program gets the error.

use crate::inner::Inner;
use outrigger_core::ops::{Locate, Lookup};
use outrigger_core::{Credentials, Error, Node, OpCode, Target, ask, lock};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Of at most so many files it is noted that writes failed without a report to a program.
const MOST: usize = 1000;

/// A file of which something was lost.
#[derive(Debug, Clone)]
pub struct Lost {
    /// The file.
    pub node: Node,
    /// Its path then, where the tree below knew it.
    pub path: Option<Target>,
    /// The directory and the name, if the file itself could not be made: the tree below does not know it.
    pub unmade: Option<Lookup>,
    /// Why.
    pub error: Error,
}

/// All losses that no program got an error for.
#[derive(Default)]
pub(crate) struct Losses(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<Node, Lost>,
    /// Those of which a program was told by close(2) only. It may not have looked, or have ended without a call.
    closed: HashMap<Node, Lost>,
    /// Those that a server of whole files did not take when they were flushed, of which close(2) told.
    refused: HashMap<Node, Refused>,
    /// Files of which a program that gave them another name was told.
    told: HashSet<Node>,
    /// Those of `files` that [`Losses::since`] has returned.
    returned: HashSet<Node>,
    /// Why the first write failed since the tree was synchronised.
    unsynced: Option<Error>,
}

struct Refused {
    lost: Lost,
    /// It was closed below: what was written is not there to be stored later.
    ended: bool,
    /// It was emptied since: what is stored next is all of it.
    emptied: bool,
}

impl Losses {
    /// All of them.
    pub(crate) fn all(&self) -> Vec<Lost> {
        lock(&self.0).files.values().cloned().collect()
    }

    /// Those that this has not returned before.
    pub(crate) fn since(&self) -> Vec<Lost> {
        let Known { files, returned, .. } = &mut *lock(&self.0);
        files.values().filter(|lost| returned.insert(lost.node)).cloned().collect()
    }

    /// The path of a file of which something was lost.
    fn locate(&self, node: Node, path: Target) {
        let mut known = lock(&self.0);
        let Known { files, closed, .. } = &mut *known;
        let lost = files.get_mut(&node).into_iter().chain(closed.get_mut(&node));
        lost.for_each(|lost| lost.path = Some(path.clone()));
    }

    /// Those of which a program was told by close(2) only.
    pub(crate) fn told_at_close(&self) -> Vec<Lost> {
        let known = lock(&self.0);
        known.closed.values().chain(known.refused.values().map(|refused| &refused.lost)).cloned().collect()
    }

    /// Why a write to a file failed.
    pub(crate) fn error_of(&self, node: Node) -> Option<Error> {
        lock(&self.0).files.get(&node).map(|lost| lost.error.clone())
    }

    /// Notes one. Of a file that has one already, the first error stays.
    pub(crate) fn add(&self, lost: Lost) {
        let mut known = lock(&self.0);
        known.unsynced.get_or_insert_with(|| lost.error.clone());
        known.told.remove(&lost.node);
        known.returned.remove(&lost.node);
        if known.files.len() < MOST {
            known.files.entry(lost.node).or_insert(lost);
        }
    }

    /// A program got the error of a file, from close(2) or not.
    pub(crate) fn remove(&self, node: Node, by_close: bool) {
        let mut known = lock(&self.0);
        known.told.remove(&node);
        known.returned.remove(&node);
        let lost = known.files.remove(&node);
        if by_close && known.closed.len() < MOST {
            known.closed.extend(lost.map(|lost| (node, lost)));
        }
    }

    /// A server of whole files did not take a file when it was flushed.
    pub(crate) fn refused(&self, lost: Lost) {
        let Known { refused, .. } = &mut *lock(&self.0);
        if refused.len() < MOST {
            refused.entry(lost.node).or_insert(Refused { lost, ended: false, emptied: false });
        }
    }

    /// It took the file when that was flushed.
    pub(crate) fn taken(&self, node: Node) {
        let Known { refused, .. } = &mut *lock(&self.0);
        if refused.get(&node).is_some_and(|refused| !refused.ended || refused.emptied) {
            refused.remove(&node);
        }
    }

    /// A file was closed below, which took what was written or not.
    pub(crate) fn closed(&self, node: Node, taken: bool) {
        if taken {
            return self.taken(node);
        }
        if let Some(refused) = lock(&self.0).refused.get_mut(&node) {
            refused.ended = true;
        }
    }

    /// A file was emptied.
    pub(crate) fn emptied(&self, node: Node) {
        if let Some(refused) = lock(&self.0).refused.get_mut(&node) {
            refused.emptied = true;
        }
    }

    /// Whether a program that gives a file another name is the first to be told.
    pub(crate) fn tell(&self, node: Node) -> bool {
        lock(&self.0).told.insert(node)
    }

    /// Why the first write failed since this was asked last.
    pub(crate) fn take_unsynced(&self) -> Option<Error> {
        lock(&self.0).unsynced.take()
    }
}

impl Inner {
    /// Notes where a file of which something was lost is: later it may have no name any more, nor a node.
    pub(crate) fn locate_loss(self: &Arc<Self>, node: Node) {
        if !self.has(OpCode::Locate) {
            return;
        }
        let (inner, cx) = (Arc::clone(self), self.own_cx(&Credentials::ROOT, 0));
        self.runtime.spawn(Box::pin(async move {
            if let Ok(path) = ask(&*inner.below().service, &cx, Locate { node }).await {
                inner.writeback.losses.locate(node, path);
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    fn lost(node: u64, errno: Errno) -> Lost {
        Lost { node: Node(node), path: None, unmade: None, error: errno.into() }
    }

    #[test]
    fn a_file_is_returned_again_only_when_more_of_it_is_lost() {
        let losses = Losses::default();
        losses.add(lost(1, Errno::ENOSPC));
        losses.add(lost(2, Errno::EIO));
        assert_eq!((losses.since().len(), losses.since().len(), losses.all().len()), (2, 0, 2));
        losses.add(lost(1, Errno::EIO));
        assert_eq!(losses.since().iter().map(|lost| lost.node).collect::<Vec<_>>(), [Node(1)]);
        assert_eq!(losses.error_of(Node(1)), Some(Errno::ENOSPC.into()), "the first one");
        losses.remove(Node(1), false);
        assert_eq!((losses.error_of(Node(1)), losses.all().len()), (None, 1));
        losses.remove(Node(2), true);
        let closed: Vec<_> = losses.told_at_close().iter().map(|lost| lost.node).collect();
        assert_eq!((closed, losses.all().len()), (vec![Node(2)], 0));
    }

    #[test]
    fn what_a_server_refuses_is_lost_unless_it_takes_it_before_the_file_is_closed_or_all_is_new() {
        let losses = Losses::default();
        (1..=4).for_each(|node| losses.refused(lost(node, Errno::ENOSPC)));
        losses.taken(Node(1));
        losses.closed(Node(2), true);
        [3, 4].into_iter().for_each(|node| losses.closed(Node(node), false));
        losses.emptied(Node(4));
        [3, 4].into_iter().for_each(|node| losses.taken(Node(node)));
        assert_eq!(losses.told_at_close().iter().map(|lost| lost.node).collect::<Vec<_>>(), [Node(3)]);
    }
}
