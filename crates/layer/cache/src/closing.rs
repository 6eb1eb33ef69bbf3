// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing files below that were open for writing: those that are being closed now, and with `write=SECONDS` or `write=PERCENT%` those of which that waits.
//!
//! A server of whole files gets a file when it is closed below. With such an option that is up to so long after the program has
//! closed it, so a file that is written several times meanwhile is stored once. The release is answered before: who waits for its answer
//! for long would keep others from being answered. So it is noted for the process that takes over, which closes the file at once.
//! What asks for a stable file ends the wait: fsync(2), synchronising the tree, and the end of the mount.

use crate::delayed::Number;
use crate::inner::Inner;
use crate::open::{OpenFile, is_own};
use outrigger_core::gate::Gate;
use outrigger_core::ops::{OpenFlags, Release};
use outrigger_core::runtime::until;
use outrigger_core::survive::{Layout, Slots};
use outrigger_core::{Credentials, Cx, Handle, Keep, LockOwner, Node, OpCode, Result, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Of at most so many files closing waits; others are closed at once. Each takes room for content where files are staged.
const WAITING_MAX: usize = 1024;
const REGION: &str = "cache-closing";

/// A file and a handle of it.
type Key = (Node, Handle);

outrigger_core::record! {
    /// A file that a program has closed and that is still open below, for the process that takes over.
    pub(crate) struct KeptClose {
        node: Node,
        handle: Handle,
        flags: u32,
        owner: u64,
    }
}

/// The files in `keep` that former processes were going to close below.
///
/// # Errors
/// Those of [`Layout::attach`].
pub(crate) fn kept_closes(keep: &dyn Keep) -> Result<Slots<KeptClose>> {
    Ok(Slots::open(Layout::of(REGION).attach(keep, Slots::<KeptClose>::words(WAITING_MAX))?.area))
}

/// How a file is being closed.
#[derive(Debug, Clone, Copy)]
struct Ending {
    /// How often.
    count: u32,
    /// The last write of all that was answered before.
    since: Number,
    /// It waits for its time.
    waits: bool,
    /// It is to be closed without waiting for its time: for fsync(2), unmounting, or another request that needs it stored.
    at_once: bool,
}

/// Files that were open for writing and are being closed.
#[derive(Default)]
pub(crate) struct Closing {
    files: Mutex<BTreeMap<Key, Ending>>,
    /// Those that wait, for another process, if one would go on.
    kept: Option<Mutex<Slots<KeptClose>>>,
    /// Opens when one is closed.
    gate: Gate,
    /// Opens when one that waits need not wait any more.
    end_of_wait: Gate,
}

impl Closing {
    /// Nothing is being closed but what former processes left.
    pub(crate) fn new(kept: Option<Slots<KeptClose>>) -> Self {
        Closing { kept: kept.map(Mutex::new), ..Closing::default() }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Key, Ending>> {
        lock(&self.files)
    }

    /// Has those that are meant be closed without waiting; returns which.
    fn hurry(&self, is_meant: impl Fn(Key, &Ending) -> bool) -> BTreeSet<Key> {
        let mut files = self.files();
        let meant = files.iter_mut().filter(|(key, ending)| is_meant(**key, ending));
        let meant = meant.map(|(key, ending)| {
            ending.at_once = true;
            *key
        });
        let meant = meant.collect();
        drop(files);
        self.end_of_wait.open();
        meant
    }

    /// Waits until all of these are closed.
    async fn ended(&self, meant: BTreeSet<Key>) {
        let are_closed = || {
            let files = self.files();
            meant.iter().all(|file| !files.contains_key(file)).then_some(())
        };
        self.gate.wait(are_closed).await;
    }

    fn waits(&self, key: Key) -> bool {
        self.files().get(&key).is_some_and(|ending| !ending.at_once)
    }

    /// Some file was closed by a handle: one that waits for that goes on.
    pub(crate) fn note_close(&self, node: Node) {
        if self.files().range(of(node)).any(|(_, ending)| ending.waits) {
            self.end_of_wait.open();
        }
    }

    /// The nodes of files that began to be closed when no more than so many writes had been answered.
    fn nodes(&self, until: Number) -> BTreeSet<Node> {
        let files = self.files();
        files.iter().filter(|(_, ending)| ending.since <= until).map(|((node, _), _)| *node).collect()
    }
}

/// The keys of a node.
fn of(node: Node) -> std::ops::RangeInclusive<Key> {
    (node, Handle(0))..=(node, Handle(u64::MAX))
}

/// A file is being closed until this is dropped.
pub(crate) struct BeingClosed(Arc<Inner>, Key);

impl Drop for BeingClosed {
    fn drop(&mut self) {
        let closing = &self.0.closing;
        let mut files = closing.files();
        if let Some(ending) = files.get_mut(&self.1) {
            ending.count -= 1;
            if ending.count == 0 {
                files.remove(&self.1);
            }
        }
        drop(files);
        closing.gate.open();
    }
}

/// Closing a file waits.
pub(crate) struct Wait {
    delay: Duration,
    slot: Option<u32>,
}

impl Inner {
    /// Notes until it is dropped that a file is being closed.
    pub(crate) fn begins_to_close(self: &Arc<Self>, node: Node, handle: Handle) -> BeingClosed {
        let since = self.writeback.last();
        let new = Ending { count: 0, since, waits: false, at_once: false };
        self.closing.files().entry((node, handle)).or_insert(new).count += 1;
        BeingClosed(Arc::clone(self), (node, handle))
    }

    /// Whether a file is being closed now that was open for writing.
    pub(crate) fn is_being_closed(&self, node: Node) -> bool {
        self.closing.files().range(of(node)).next().is_some()
    }

    /// Has the files closed at once that were open for writing and are being closed now, all or this one, and waits for that.
    pub(crate) async fn closed(&self, only: Option<Node>) {
        let meant = self.closing.hurry(|(node, _), _| only.is_none_or(|only| only == node));
        self.closing.ended(meant).await;
    }

    /// The same for those that began to be closed when no more than so many writes had been answered.
    pub(crate) async fn closed_to(&self, number: Number) {
        let meant = self.closing.hurry(|_, ending| ending.since <= number);
        self.closing.ended(meant).await;
    }

    /// Has the files closed at once of which that waits: they take room. Answers whether there were any.
    pub(crate) async fn closed_for_room(&self) -> bool {
        let meant = self.closing.hurry(|_, ending| ending.waits);
        let any = !meant.is_empty();
        self.closing.ended(meant).await;
        any
    }

    /// How many files have writes up to `number` that are still to be made or stored, and how many bytes are to be written.
    pub(crate) fn left(&self, number: Number) -> (usize, u64) {
        let (written, bytes) = self.writeback.left(number);
        let closing = self.closing.nodes(number);
        let others = closing.into_iter().filter(|&node| self.writeback.file(node).is_none());
        (written + others.count(), bytes)
    }

    /// The files of which something was answered that is not stored: their writes are still to be made, or they are still to be closed.
    pub(crate) fn unstored(&self) -> Vec<Node> {
        let early = |open: &OpenFile| open.flushed_early.load(Ordering::Relaxed);
        let flushed = self.handles.written_files().into_iter().filter(|(open, _)| early(open));
        let writes = self.writeback.files().into_iter().map(|(node, _)| node);
        let nodes = writes.chain(self.closing.nodes(Number::MAX)).chain(flushed.map(|(open, _)| open.node));
        nodes.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Closes the files that are open for writing, for a tree that is asked no more, and waits for those that are being closed.
    pub(crate) async fn close_all(self: &Arc<Self>) {
        let closing = self.closing.files().clone();
        for (open, count) in self.handles.written_files() {
            let (node, handle, owner) = (open.node, open.handle, LockOwner(0));
            // No program asks whether it is stored.
            open.flushed_early.store(true, Ordering::Relaxed);
            let flags = open.flags.unwrap_or(OpenFlags::WRITE_ONLY);
            for _ in closing.get(&(node, handle)).map_or(0, |ending| ending.count)..count {
                let (inner, closing) = (Arc::clone(self), self.begins_to_close(node, handle));
                self.runtime.spawn(Box::pin(async move {
                    let _closing = closing;
                    let cx = inner.own_cx(&Credentials::ROOT, 0);
                    inner.release(&cx, Release { node, handle, flags, owner, flock_release: false }).await;
                }));
            }
        }
        self.closed(None).await;
    }

    /// Whether closing a file below may wait, as it is noted then: it was closed before it is stored anyway, for the last time by this
    /// handle, and something is stored when it is closed.
    pub(crate) fn may_close_later(&self, open: &OpenFile, op: &Release) -> Option<Wait> {
        let delay = lock(&self.table).policy(op.node).writes.delay(open.age)?;
        let is_stored = open.flushed_early.load(Ordering::Relaxed) && self.has(OpCode::Release);
        if !is_stored || is_own(op.handle) {
            return None;
        }
        let mut files = self.closing.files();
        let waiting = files.values().filter(|ending| ending.waits).count();
        let ending = files.get_mut(&(op.node, op.handle)).filter(|ending| !ending.at_once)?;
        if waiting >= WAITING_MAX {
            return None;
        }
        let slot = match &self.closing.kept {
            Some(kept) => {
                let Release { node, handle, flags, owner, .. } = *op;
                let note = KeptClose { node, handle, flags: flags.bits(), owner: owner.0 };
                Some(lock(kept).insert(&note)?.index)
            }
            None => None,
        };
        ending.waits = true;
        Some(Wait { delay, slot })
    }

    /// Closes a file below when its time has come.
    pub(crate) fn close_when_due(self: &Arc<Self>, cx: &Cx, open: Arc<OpenFile>, op: Release, wait: Wait) {
        let (inner, cx) = (Arc::clone(self), self.cx(cx));
        let closing = self.begins_to_close(op.node, op.handle);
        self.runtime.spawn(Box::pin(async move {
            inner.wait_to_close(&open, &wait).await;
            inner.release_below(&cx, &open, op).await;
            inner.end_note(wait.slot);
            drop(closing);
        }));
    }

    /// Waits for the time of a file; and while another program writes to it, which will have it stored as well, for as long again.
    async fn wait_to_close(&self, open: &OpenFile, wait: &Wait) {
        let (key, gate) = ((open.node, open.handle), &self.closing.end_of_wait);
        let due = self.runtime.monotonic() + wait.delay;
        let hurried = || (!self.closing.waits(key)).then_some(());
        if until(&*self.runtime, due, gate.wait(hurried)).await.is_none() {
            let free = || (!self.closing.waits(key) || open.file.writer().is_none()).then_some(());
            until(&*self.runtime, due + wait.delay, gate.wait(free)).await;
        }
        if let Some(ending) = self.closing.files().get_mut(&key) {
            (ending.waits, ending.at_once) = (false, true);
        }
    }

    fn end_note(&self, slot: Option<u32>) {
        if let (Some(slot), Some(kept)) = (slot, &self.closing.kept) {
            lock(kept).remove(slot);
        }
    }

    /// Closes what former processes were going to close.
    pub(crate) fn close_for_formers(self: &Arc<Self>) {
        let Some(kept) = &self.closing.kept else { return };
        let left: Vec<_> = lock(kept).iter().map(|(slot, note)| (slot.index, note)).collect();
        for (slot, KeptClose { node, handle, flags, owner }) in left {
            let (inner, closing) = (Arc::clone(self), self.begins_to_close(node, handle));
            lock(&self.table).pin(node);
            self.runtime.spawn(Box::pin(async move {
                let (flags, owner) = (OpenFlags::from_bits_retain(flags), LockOwner(owner));
                let op = Release { node, handle, flags, owner, flock_release: false };
                let cx = inner.own_cx(&Credentials::ROOT, 0);
                let reply = inner.end_of_file(&cx, op, true).await;
                lock(&inner.table).unpin(node);
                inner.note_close(&cx, node, true, &reply).await;
                inner.end_note(Some(slot));
                drop(closing);
            }));
        }
    }
}
