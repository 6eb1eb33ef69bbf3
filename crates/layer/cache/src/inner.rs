// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all parts of the layer share.

use crate::OnDisk;
use crate::clock::Asked;
use crate::closing::{Closing, KeptClose};
use crate::disk::Disk;
use crate::log::Log;
use crate::moment::{self, Moment};
use crate::open::{Handles, KeptFile};
use crate::options::Options;
use crate::pool::Pool;
use crate::saved::Metadata;
use crate::set::Settable;
use crate::table::{Table, When};
use crate::walk_ahead::Walks;
use crate::writeback::Writeback;
use outrigger_core::ops::{Forget, Locate};
use outrigger_core::survive::Slots;
use outrigger_core::{
    Abilities, Credentials, Cx, Node, Notify, OpCode, Request, Runtime, Service, ask, lock,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Ids of the requests this layer makes by itself start here, far from those of any door.
const OWN_IDS: u64 = 1 << 62;

/// What waits to be written to disk may take this part of the memory for content, and no more than so many bytes.
const DISK_PARTS: usize = 4;
const DISK_MAX: usize = 32 << 20;

/// The layer's state.
pub(crate) struct Inner {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) table: Mutex<Table>,
    pub(crate) handles: Handles,
    /// Content in memory.
    pub(crate) pool: Mutex<Pool>,
    /// Content on disk, where that is wanted.
    pub(crate) disk: Option<Disk>,
    /// Metadata on disk, where that is wanted.
    pub(crate) metadata: Option<Metadata>,
    /// Writes that were answered and have not been made yet.
    pub(crate) writeback: Writeback,
    pub(crate) closing: Closing,
    /// The user as whom files are made, known from those that were.
    pub(crate) creator: Mutex<Option<u32>>,
    /// What the tree below is known to set.
    pub(crate) settable: Settable,
    /// Writes are delayed somewhere in the tree.
    pub(crate) delays: bool,
    /// Another process goes on when this one dies.
    pub(crate) has_successor: bool,
    /// Programs that walk through the tree.
    pub(crate) walks: Mutex<Walks>,
    /// Until when a program that asks for extended attributes of one file after the other is expected to go on.
    pub(crate) xattrs_wanted: AtomicU64,
    /// The most bytes to read ahead of one reader.
    pub(crate) read_ahead: u64,
    /// The most bytes of small files to read ahead.
    pub(crate) files_ahead: u64,
    /// Where notices go.
    pub(crate) above: OnceLock<Arc<dyn Notify>>,
    /// Held while the door is told of changes: who finds none to tell of answers after those that another task has taken.
    telling: Mutex<()>,
    pub(crate) below: OnceLock<Below>,
    next_id: AtomicU64,
}

/// The tree this layer stands on.
pub(crate) struct Below {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) abilities: Abilities,
}

impl Inner {
    pub(crate) fn new(
        options: &Options,
        runtime: Arc<dyn Runtime>,
        disk: OnDisk,
        (log, kept, closes): (Option<Log>, Option<Slots<KeptFile>>, Option<Slots<KeptClose>>),
    ) -> Self {
        let OnDisk { content: disk, metadata } = disk;
        let queue = disk.as_ref().map_or(0, |_| (options.memory / DISK_PARTS).min(DISK_MAX));
        disk.iter().for_each(|disk| disk.may_use(queue));
        let has_successor = kept.is_some();
        let inner = Inner {
            table: Mutex::new(Table::new(options)),
            handles: Handles::new(runtime.wall(), kept),
            pool: Mutex::new(Pool::new(options.memory - queue)),
            disk,
            metadata,
            creator: Mutex::default(),
            settable: Settable::default(),
            delays: options.delays(),
            has_successor,
            writeback: Writeback::new(options.write_memory, log),
            closing: Closing::new(closes),
            walks: Mutex::new(Walks::new(options)),
            xattrs_wanted: AtomicU64::new(0),
            read_ahead: options.read_ahead.min(options.memory as u64 / 4),
            files_ahead: options.files_ahead.min(options.memory as u64 / 4),
            above: OnceLock::new(),
            telling: Mutex::default(),
            below: OnceLock::new(),
            next_id: AtomicU64::new(OWN_IDS),
            runtime,
        };
        for (slot, file) in inner.handles.kept() {
            inner.adopt(&file, Some(slot));
        }
        inner
    }

    /// The present moment and the time of day.
    pub(crate) fn when(&self) -> When {
        When { now: self.now(), wall: self.runtime.wall() }
    }

    /// For a query that sets out now.
    pub(crate) fn asked(&self) -> Asked {
        let when = self.when();
        lock(&self.table).asked(when)
    }

    /// The present moment.
    pub(crate) fn now(&self) -> Moment {
        moment::now(&*self.runtime)
    }

    /// Stands on `service` from the first request on.
    pub(crate) fn stand_on(&self, service: &Arc<dyn Service>) -> &Below {
        self.below.get_or_init(|| {
            let abilities = service.abilities();
            lock(&self.table).hides_names = abilities.hides_names;
            Below { service: Arc::clone(service), abilities }
        })
    }

    /// The tree below.
    ///
    /// # Panics
    /// Before the first request.
    pub(crate) fn below(&self) -> &Below {
        self.below.get().expect("a request has come by")
    }

    /// Whether the tree below has an operation.
    pub(crate) fn has(&self, op: OpCode) -> bool {
        self.below().abilities.ops.has(op)
    }

    /// The context of a request of our own on behalf of the one that `cx` belongs to. It outlives that one, and its
    /// cancellation.
    pub(crate) fn cx(&self, cx: &Cx) -> Cx {
        self.own_cx(&cx.cred, cx.origin.pid)
    }

    /// The context of a request of our own on behalf of a user and a process.
    pub(crate) fn own_cx(&self, cred: &Credentials, pid: u32) -> Cx {
        let mut own = Cx::new(self.next_id.fetch_add(1, Ordering::Relaxed), cred.clone(), "cache");
        (own.slot, own.origin.pid) = (Cx::NO_SLOT, pid);
        own
    }

    /// Asks below without an interest in the answer, for as long as it takes.
    pub(crate) async fn tell(&self, cx: &Cx, request: impl Into<Request>) {
        self.below().service.call(&self.cx(cx), request.into()).await;
    }

    /// Tells the door what has changed. What is answered after that comes after it.
    pub(crate) fn tell_door(&self) {
        let _telling = lock(&self.telling);
        let notices = std::mem::take(&mut lock(&self.table).notices);
        if let Some(above) = self.above.get() {
            notices.into_iter().for_each(|notice| above.notify(notice));
        }
    }

    /// Does what is left to do about changes to what is known: gives back references, forgets content, tells doors.
    pub(crate) async fn settle(&self, cx: &Cx) {
        self.metadata.iter().for_each(Metadata::learn);
        self.tell_door();
        let (returns, leftovers) = lock(&self.table).take_outstanding();
        if !leftovers.is_empty() {
            let mut pool = lock(&self.pool);
            leftovers.into_iter().for_each(|content| pool.forget(content));
        }
        for (node, count) in returns {
            self.tell(cx, Forget { node, count }).await;
        }
    }

    /// Asks for the path of `node`, where its policy depends on that and it is not known.
    pub(crate) async fn know_path(&self, cx: &Cx, node: Node) {
        if !lock(&self.table).needs_path(node) {
            return;
        }
        if let Ok(path) = ask(&*self.below().service, cx, Locate { node }).await {
            lock(&self.table).learn_path(node, &path);
        }
    }
}
