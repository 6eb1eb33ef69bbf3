// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE passthrough: open files that the kernel reads and writes by itself.
//!
//! The kernel wants one decision per inode while it is open anywhere: either all its open files go through the page
//! cache of the mount, or all go to one and the same backing file (or past the cache). The first open decides.
//!
//! The ids of backing files live in the kernel and outlast the process. With a [`Keep`](outrigger_core::Keep) the table
//! does too ([`Notes`]), so that a successor neither opens a file against the first decision nor loses an id.
use crate::device::Device;
use outrigger_core::survive::{Layout, Slots};
use outrigger_core::{Keep, Node, Result, lock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
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
    fn noted(self, node: u64) -> Noted {
        let id = u64::from(self.id.unwrap_or(0).cast_unsigned());
        Noted { node, id_and_opens: id << 32 | u64::from(self.opens) }
    }

    /// Whether its attributes may change without a request: the kernel does not notice what is written through a mapping.
    fn changes_unseen(self) -> bool {
        self.id.is_some() && self.writable
    }
}

impl Files {
    /// What a predecessor has noted.
    fn reopen(notes: Notes) -> Self {
        let shared = |Noted { id_and_opens, .. }| Shared {
            id: Some((id_and_opens >> 32) as i32).filter(|&id| id > 0),
            opens: id_and_opens as u32,
            // Not noted: any may have been opened for writing.
            writable: true,
            note: None,
        };
        let open = notes.iter().map(|(slot, noted)| {
            let node = noted.node;
            (node, Shared { note: Some(slot.index), ..shared(noted) })
        });
        Files { open: open.collect(), notes: Some(notes) }
    }

    fn insert(&mut self, node: u64, id: Option<i32>, writable: bool) {
        let mut file = Shared { id, opens: 1, writable, note: None };
        file.note =
            self.notes.as_mut().and_then(|notes| notes.insert(&file.noted(node))).map(|slot| slot.index);
        self.open.insert(node, file);
    }

    /// Counts one more open; `None` when it is the first.
    fn count_open(&mut self, node: u64, writable: bool) -> Option<Shared> {
        let file = self.open.get_mut(&node)?;
        file.writable |= writable;
        file.opens = file.opens.saturating_add(1);
        if let (Some(notes), Some(note)) = (&self.notes, file.note) {
            notes.update(note, &file.noted(node));
        }
        Some(*file)
    }

    /// Counts a close; gives the id when that was the last use of it.
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
            if left.opens == 0 { notes.remove(note) } else { notes.update(note, &left.noted(node)) }
        }
        left.id.filter(|_| left.opens == 0)
    }
}

impl Backings {
    /// An empty table, noted in `notes` if there are some, which are emptied.
    pub(crate) fn new(device: Arc<Device>, mut notes: Option<Notes>) -> Self {
        notes.iter_mut().for_each(Slots::clear);
        Self::with(device, Files { open: HashMap::new(), notes })
    }

    /// The table a predecessor left in `notes`.
    pub(crate) fn reopen(device: Arc<Device>, notes: Option<Notes>) -> Self {
        Self::with(device, notes.map(Files::reopen).unwrap_or_default())
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

    /// Whether the kernel must not cache attributes of `node`.
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

outrigger_core::record! {
    /// An open inode, in memory that may outlive the process. A kill leaves at worst an id in the kernel that is in no slot: it
    /// stays there until the mount ends.
    pub(crate) struct Noted {
        node: u64,
        /// The id in the upper half and the number of opens in the lower.
        id_and_opens: u64,
    }
}

/// Where they are noted.
pub(crate) type Notes = Slots<Noted>;

/// Inodes open at once that are noted; what is open beyond that, a successor does not know of.
const SLOTS: usize = 1 << 18;

/// The notes in `keep`.
///
/// # Errors
/// Those of [`Layout::attach`].
pub(crate) fn notes(keep: &dyn Keep) -> Result<Notes> {
    let opened = Layout::of("fuse-backings").attach(keep, Notes::words(SLOTS))?;
    Ok(Notes::open(opened.area))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;

    fn reopen(keep: &dyn Keep) -> Files {
        Files::reopen(notes(keep).unwrap())
    }

    #[test]
    fn a_successor_knows_what_is_open() {
        let keep = HeapKeep::default();
        let mut before = reopen(&keep);
        for (node, id) in [(3, Some(1)), (1 << 40, None), (5, Some(2)), (6, Some(4))] {
            before.insert(node, id, true);
        }
        before.count_open(5, false);
        assert_eq!(before.count_close(3), Some(1), "no handle is open");
        assert_eq!(before.count_close(5), None, "still open");
        before.insert(7, Some(1), true);
        assert_eq!(before.count_open(6, true).unwrap().opens, 2);
        let known = before.open.clone();
        drop(before);

        let mut after = reopen(&keep);
        assert_eq!(after.open, known);
        assert_eq!((after.count_close(6), after.count_close(6)), (None, Some(4)));
        assert_eq!(after.count_close(6), None, "a close too many");
        assert_eq!(reopen(&keep).open, after.open);
        let device = Arc::new(Device::from_fd(std::fs::File::open("/dev/null").unwrap().into()));
        drop(Backings::new(device, Some(notes(&keep).unwrap())));
        assert!(reopen(&keep).open.is_empty(), "a new mount begins anew");
    }

    #[test]
    fn a_full_region_limits_only_what_a_successor_knows() {
        let keep = HeapKeep::default();
        keep.region("fuse-backings", Layout::words(Notes::words(3))).unwrap();
        let mut table = reopen(&keep);
        (1..=5).for_each(|node| table.insert(node, None, true));
        assert_eq!((table.open.len(), reopen(&keep).open.len()), (5, 3));
    }

    /// Whatever a kill leaves of a change is what was before it or what is after it.
    #[test]
    fn every_store_is_whole() {
        each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let mut table = Files::reopen(notes(&life.of(&keep)).unwrap());
            table.insert(3, Some(1), true);
            table.count_open(3, true);
            table.count_close(3);
            table.count_close(3);
            let left = reopen(&*keep).open;
            let is_whole = |file: &Shared| file.id == Some(1) && (1..=2).contains(&file.opens);
            assert!(left.is_empty() || left.len() == 1 && is_whole(&left[&3]), "{left:?}");
        });
    }
}
