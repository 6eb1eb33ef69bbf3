// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE passthrough: open files that the kernel reads and writes by itself.
//!
//! The kernel wants one decision per inode while it is open anywhere: either all its open files go through the page
//! cache of the mount, or all go to one and the same backing file (or past the cache). The first open decides.
//!
//! The ids of backing files live in the kernel and outlast the process. With a [`Keep`](outrigger_core::Keep) the table
//! does too ([`Notes`]), so that a successor neither opens a file against the first decision nor loses an id.
use crate::device::Device;
use crate::slot::lock;
use outrigger_core::{Node, Region};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Through the page cache of the mount.
    Cached,
    /// Past the page cache, because others have the same file open in passthrough.
    Direct,
    /// Served by the kernel from the backing file with this id.
    Passthrough(i32),
}

/// The backing files of a session.
pub(crate) struct Backings {
    device: Arc<Device>,
    /// False when passthrough was not negotiated or the kernel refuses this process.
    enabled: AtomicBool,
    files: Mutex<Files>,
}

/// The inodes that are open.
#[derive(Default)]
struct Files {
    open: HashMap<u64, Shared>,
    notes: Option<Notes>,
}

/// One inode while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shared {
    /// The backing file, if the first open had one the kernel accepted.
    id: Option<i32>,
    opens: u32,
    /// Whether it was opened for writing.
    writable: bool,
    /// Where it is noted for a successor.
    note: Option<u32>,
}

impl Shared {
    /// Whether its attributes may change without a request: the kernel does not notice what is written through a mapping.
    fn changes_unseen(self) -> bool {
        self.id.is_some() && self.writable
    }
}

impl Files {
    fn insert(&mut self, node: u64, id: Option<i32>, writable: bool) {
        let mut file = Shared { id, opens: 1, writable, note: None };
        file.note = self.notes.as_mut().and_then(|notes| notes.add(node, file));
        self.open.insert(node, file);
    }

    /// Counts one more open; `None` when it is the first.
    fn count_open(&mut self, node: u64, writable: bool) -> Option<Shared> {
        let file = self.open.get_mut(&node)?;
        file.writable |= writable;
        file.opens = file.opens.saturating_add(1);
        if let (Some(notes), Some(note)) = (&self.notes, file.note) {
            notes.change(note, *file);
        }
        Some(*file)
    }

    /// Counts a close; gives the id that nobody needs any more.
    fn count_close(&mut self, node: u64) -> Option<i32> {
        let Entry::Occupied(mut entry) = self.open.entry(node) else { return None };
        let file = entry.get_mut();
        // A count that went to its limit is none any more.
        file.opens = file.opens.saturating_sub(u32::from(file.opens != u32::MAX));
        let (left, note) = (*file, file.note);
        if left.opens == 0 {
            entry.remove();
        }
        if let (Some(notes), Some(note)) = (&mut self.notes, note) {
            if left.opens == 0 { notes.remove(note) } else { notes.change(note, left) }
        }
        left.id.filter(|_| left.opens == 0)
    }
}

impl Backings {
    /// An empty table, noted in `region` if there is one.
    pub(crate) fn new(device: Arc<Device>, region: Option<Arc<dyn Region>>) -> Self {
        let notes = region.map(Notes::empty);
        Self::with(device, Files { open: HashMap::new(), notes })
    }

    /// The table a predecessor left in `region`.
    pub(crate) fn reopen(device: Arc<Device>, region: Option<Arc<dyn Region>>) -> Self {
        let Some(region) = region else { return Self::new(device, None) };
        let (notes, open) = Notes::reopen(region);
        Self::with(device, Files { open, notes: Some(notes) })
    }

    fn with(device: Arc<Device>, files: Files) -> Self {
        Self { device, enabled: AtomicBool::new(false), files: Mutex::new(files) }
    }

    /// Called when passthrough was negotiated.
    pub(crate) fn enable(&self) {
        self.enabled.store(true, Ordering::Relaxed);
    }

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Decides how a file is opened and counts the open.
    pub(crate) fn open(&self, node: Node, backing: Option<BorrowedFd<'_>>, writable: bool) -> Mode {
        if !self.is_enabled() {
            return Mode::Cached;
        }
        let mut files = lock(&self.files);
        match (files.count_open(node.0, writable).map(|file| file.id), backing) {
            (Some(Some(id)), Some(_)) => Mode::Passthrough(id),
            (Some(Some(_)), None) => Mode::Direct,
            (Some(None), _) => Mode::Cached,
            (None, backing) => {
                let id = backing.and_then(|fd| self.register(fd));
                files.insert(node.0, id, writable);
                id.map_or(Mode::Cached, Mode::Passthrough)
            }
        }
    }

    /// Counts an open past the cache, which gets along with every decision.
    pub(crate) fn open_direct(&self, node: Node) {
        if self.is_enabled() {
            let mut files = lock(&self.files);
            if files.count_open(node.0, false).is_none() {
                files.insert(node.0, None, false);
            }
        }
    }

    /// Whether the kernel may not believe attributes of `node` for any time.
    pub(crate) fn changes_unseen(&self, node: Node) -> bool {
        self.is_enabled() && lock(&self.files).open.get(&node.0).is_some_and(|file| file.changes_unseen())
    }

    /// Counts a close; the last one forgets the backing file. `again` says that the kernel sends the request once more:
    /// a predecessor may have counted it, so it is not counted. A count too high costs one id until the mount ends; one
    /// too low would give open files a second backing file, which the kernel refuses.
    pub(crate) fn release(&self, node: Node, again: bool) {
        if !self.is_enabled() || again {
            return;
        }
        let mut files = lock(&self.files);
        // The note is gone before the id is: the kernel gives a free id to the next file.
        if let Some(id) = files.count_close(node.0)
            && let Err(error) = self.device.backing_close(id)
        {
            tracing::debug!(%error, id, "the kernel did not know the backing file");
        }
    }

    /// Registers a file; refusals are not errors: the file is then served by requests.
    fn register(&self, fd: BorrowedFd<'_>) -> Option<i32> {
        match self.device.backing_open(fd) {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(%error, "the kernel refuses a backing file");
                None
            }
        }
    }
}

/// The table of open inodes in memory that may outlive the process.
///
/// Word 0 counts the slots ever used; each slot is two words: the node (zero when the slot is free), then the id in the
/// upper half and the number of opens in the lower. A kill between any two stores leaves at worst an id in the kernel
/// that is in no slot: it stays there until the mount ends.
struct Notes {
    region: Arc<dyn Region>,
    free: Vec<u32>,
}

/// Inodes open at once that are noted; what is open beyond that, a successor does not know of.
const SLOTS: usize = 1 << 18;
/// How large the region is, in words.
pub(crate) const WORDS: usize = 1 + 2 * SLOTS;
/// Name of the region.
pub(crate) const REGION: &str = "fuse-backings";

impl Notes {
    fn empty(region: Arc<dyn Region>) -> Self {
        region.word(0).store(0, Ordering::Release);
        Self { region, free: Vec::new() }
    }

    fn reopen(region: Arc<dyn Region>) -> (Self, HashMap<u64, Shared>) {
        let mut notes = Self { region, free: Vec::new() };
        let mut open = HashMap::new();
        for slot in 0..notes.used() {
            let state = notes.state(slot).load(Ordering::Acquire);
            let (id, opens) = ((state >> 32) as i32, state as u32);
            match notes.node(slot).load(Ordering::Acquire) {
                0 => notes.free.push(slot),
                node => {
                    // Not noted: any may have been opened for writing.
                    let (id, writable) = ((id > 0).then_some(id), true);
                    open.insert(node, Shared { id, opens, writable, note: Some(slot) });
                }
            }
        }
        (notes, open)
    }

    /// Slots that were ever used.
    fn used(&self) -> u32 {
        let slots = self.region.words().saturating_sub(1) / 2;
        self.region.word(0).load(Ordering::Acquire).min(slots as u64) as u32
    }

    fn node(&self, slot: u32) -> &AtomicU64 {
        self.region.word(1 + 2 * slot as usize)
    }

    fn state(&self, slot: u32) -> &AtomicU64 {
        self.region.word(2 + 2 * slot as usize)
    }

    fn add(&mut self, node: u64, file: Shared) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.used();
                if 2 * slot as usize + 2 >= self.region.words() {
                    return None;
                }
                // What was there before an earlier session's end must not come back.
                self.node(slot).store(0, Ordering::Release);
                self.region.word(0).store(u64::from(slot) + 1, Ordering::Release);
                slot
            }
        };
        self.change(slot, file);
        self.node(slot).store(node, Ordering::Release);
        Some(slot)
    }

    fn change(&self, slot: u32, file: Shared) {
        let id = u64::from(file.id.unwrap_or(0).cast_unsigned());
        self.state(slot).store(id << 32 | u64::from(file.opens), Ordering::Release);
    }

    fn remove(&mut self, slot: u32) {
        self.node(slot).store(0, Ordering::Release);
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{HeapKeep, Keep};

    fn files(notes: Notes) -> Files {
        Files { open: HashMap::new(), notes: Some(notes) }
    }

    #[test]
    fn a_successor_knows_what_is_open() {
        let keep = HeapKeep::default();
        let mut before = files(Notes::empty(keep.region(REGION, WORDS).unwrap()));
        for (node, id) in [(3, Some(1)), (1 << 40, None), (5, Some(2)), (6, Some(4))] {
            before.insert(node, id, true);
        }
        before.count_open(5, false);
        assert_eq!(before.count_close(3), Some(1), "nobody has it open");
        assert_eq!(before.count_close(5), None, "still open");
        before.insert(7, Some(1), true);
        assert_eq!(before.count_open(6, true).unwrap().opens, 2);
        let known = before.open.clone();
        drop(before);

        let (notes, open) = Notes::reopen(keep.region(REGION, WORDS).unwrap());
        assert_eq!(open, known);
        let mut after = Files { open, notes: Some(notes) };
        assert_eq!((after.count_close(6), after.count_close(6)), (None, Some(4)));
        assert_eq!(after.count_close(6), None, "a close too many");
        assert_eq!(Notes::reopen(keep.region(REGION, WORDS).unwrap()).1, after.open);

        assert!(Notes::empty(keep.region(REGION, WORDS).unwrap()).free.is_empty());
        assert!(Notes::reopen(keep.region(REGION, WORDS).unwrap()).1.is_empty(), "a new mount begins anew");
    }

    /// Whatever a kill leaves of one change is what was before it or what is after it.
    #[test]
    fn every_store_is_whole() {
        let keep = HeapKeep::default();
        let region = keep.region(REGION, 7).unwrap();
        let mut table = files(Notes::empty(Arc::clone(&region)));
        table.insert(3, Some(1), true);
        table.count_close(3);
        // A slot whose owner died between the two stores: noted before it is filled.
        region.word(2).store(9 << 32 | 1, Ordering::Relaxed);
        let (notes, open) = Notes::reopen(Arc::clone(&region));
        assert!(open.is_empty());
        let mut table = Files { open, notes: Some(notes) };
        for node in 1..=5 {
            table.insert(node, None, true);
        }
        assert_eq!(table.open.len(), 5, "a full region limits only what a successor knows");
        assert_eq!(Notes::reopen(Arc::clone(&region)).1.len(), 3);
        region.word(0).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Notes::reopen(region).1.len(), 3, "a count that is no count");
    }
}
