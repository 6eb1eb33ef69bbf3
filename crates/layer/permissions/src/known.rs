// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners and modes of files, remembered for as long as the driver says and never longer than [`LONGEST`].

use outrigger_core::acl::Acl;
use outrigger_core::reply::{Attrs, Entry, Reply, Ttl};
use outrigger_core::{Attr, Credentials, Effect, Node, Notice, Notify, Request, Runtime, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many files at most.
const FILES: usize = 1 << 10;
/// A change that a caller did not wait for may happen unnoticed: after this time it counts all the same.
const LONGEST: Duration = Duration::from_secs(1);

/// What decides about access to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl From<&Attr> for Owner {
    fn from(attr: &Attr) -> Self {
        Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid }
    }
}

impl Owner {
    fn attr(self) -> Attr {
        Attr { mode: self.mode, uid: self.uid, gid: self.gid, ..Attr::default() }
    }

    pub fn is_dir(self) -> bool {
        self.attr().is_dir()
    }

    /// As [`Attr::granted`].
    pub fn granted(self, cred: &Credentials) -> u32 {
        self.attr().granted(cred)
    }
}

/// The access list of a file, if it has one.
pub(crate) type List = Option<Arc<Acl>>;

/// What is known of one file, and until when.
#[derive(Clone)]
struct Of {
    node: Node,
    owner: Owner,
    list: Option<List>,
    until: Duration,
}

/// The files.
pub(crate) struct Known {
    /// A node has its place by number and displaces what is there.
    slots: Box<[Mutex<Option<Of>>]>,
    /// How many changes there were: what was asked for before one of them is not remembered.
    changes: AtomicU64,
    runtime: Arc<dyn Runtime>,
}

/// A file that a request changes. Nothing is known of it before, and nothing from before after.
pub(crate) struct Changing<'a>(&'a Known, Node);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

impl Known {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let slots = (0..FILES).map(|_| Mutex::default()).collect();
        Known { slots, changes: AtomicU64::new(0), runtime }
    }

    fn slot(&self, node: Node) -> &Mutex<Option<Of>> {
        &self.slots[(node.0 ^ node.0 >> 32) as usize % FILES]
    }

    fn of<T>(&self, node: Node, get: impl FnOnce(&Of) -> Option<T>) -> Option<T> {
        let slot = lock(self.slot(node));
        slot.as_ref().filter(|of| of.node == node && self.runtime.monotonic() < of.until).and_then(get)
    }

    pub fn owner(&self, node: Node) -> Option<Owner> {
        self.of(node, |of| Some(of.owner))
    }

    pub fn list(&self, node: Node) -> Option<List> {
        self.of(node, |of| of.list.clone())
    }

    /// To be noted before something is asked that [`Known::learn`] is to remember.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Remembers what `attrs` tells of a file.
    pub fn learn(&self, changes: u64, node: Node, attrs: &Attrs) {
        self.remember(changes, node, &attrs.attr, attrs.ttl);
    }

    /// Remembers what a reply tells that finds files.
    pub fn learn_found(&self, changes: u64, reply: &Reply) {
        let found = match reply {
            Reply::Entry(entry) => std::slice::from_ref(entry),
            Reply::Entries(entries) => entries,
            _ => return,
        };
        found.iter().for_each(|Entry { node, attr, attr_ttl, .. }| {
            self.remember(changes, *node, attr, *attr_ttl);
        });
    }

    fn remember(&self, changes: u64, node: Node, attr: &Attr, ttl: Ttl) {
        if ttl == Ttl::NEVER {
            return;
        }
        let until = self.runtime.monotonic() + Duration::from(ttl).min(LONGEST);
        let mut slot = lock(self.slot(node));
        // Under the lock: whoever counts a change afterwards empties the slot once we are out.
        if self.changes() == changes {
            *slot = Some(Of { node, owner: attr.into(), list: None, until });
        }
    }

    /// Remembers an access list for as long as the owner of its file.
    pub fn learn_list(&self, changes: u64, node: Node, list: &List) {
        let mut slot = lock(self.slot(node));
        if let Some(of) = slot.as_mut().filter(|of| of.node == node)
            && self.changes() == changes
        {
            of.list = Some(list.clone());
        }
    }

    fn forget(&self, node: Node) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let mut slot = lock(self.slot(node));
        slot.take_if(|of| of.node == node);
    }

    fn forget_all(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.slots.iter().for_each(|slot| *lock(slot) = None);
    }

    /// To be held until the reply to `request` is there.
    pub fn changing(&self, request: &Request) -> Option<Changing<'_>> {
        let node = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Attributes { node, .. }
            | Effect::SetsXattr { node, .. }
            | Effect::RemovesXattr { node, .. }
            | Effect::Anything { node }
            // The number may be another file's from now on.
            | Effect::Returns { node, .. } => Some(node),
            _ => None,
        })?;
        self.forget(node);
        Some(Changing(self, node))
    }
}

/// Notices on their way up.
pub(crate) struct Noticed {
    pub known: Arc<Known>,
    pub above: Arc<dyn Notify>,
}

impl Notify for Noticed {
    fn notify(&self, notice: Notice) {
        match &notice {
            Notice::InvalidateNode { node, .. }
            | Notice::Deleted { node, .. }
            | Notice::Revalidate { node } => self.known.forget(*node),
            Notice::InvalidateAll => self.known.forget_all(),
            // What a name leads to is not known here, nor content.
            Notice::InvalidateEntry { .. }
            | Notice::Store { .. }
            | Notice::Prune { .. }
            | Notice::Wake { .. } => {}
        }
        self.above.notify(notice);
    }
}
