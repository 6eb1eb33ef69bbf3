// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE passthrough: open files that the kernel reads and writes by itself.
//!
//! The kernel wants one decision per inode while it is open anywhere: either all its open files go through the page
//! cache of the mount, or all go to one and the same backing file (or past the cache). The first open decides.
use crate::device::Device;
use crate::slot::lock;
use outrigger_core::Node;
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
    files: Mutex<HashMap<u64, Shared>>,
}

/// One inode while it is open.
#[derive(Debug)]
struct Shared {
    /// The backing file, if the first open had one the kernel accepted.
    id: Option<i32>,
    opens: u64,
}

impl Backings {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self { device, enabled: AtomicBool::new(false), files: Mutex::default() }
    }

    /// Called when passthrough was negotiated.
    pub(crate) fn enable(&self) {
        self.enabled.store(true, Ordering::Relaxed);
    }

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Decides how a file is opened and counts the open.
    pub(crate) fn open(&self, node: Node, backing: Option<BorrowedFd<'_>>) -> Mode {
        if !self.is_enabled() {
            return Mode::Cached;
        }
        let mut files = lock(&self.files);
        match files.entry(node.0) {
            Entry::Occupied(mut file) => {
                let file = file.get_mut();
                file.opens += 1;
                match (file.id, backing) {
                    (Some(id), Some(_)) => Mode::Passthrough(id),
                    (Some(_), None) => Mode::Direct,
                    (None, _) => Mode::Cached,
                }
            }
            Entry::Vacant(place) => {
                let id = backing.and_then(|fd| self.register(fd));
                place.insert(Shared { id, opens: 1 });
                id.map_or(Mode::Cached, Mode::Passthrough)
            }
        }
    }

    /// Counts an open past the cache, which gets along with every decision.
    pub(crate) fn open_direct(&self, node: Node) {
        if self.is_enabled() {
            lock(&self.files).entry(node.0).or_insert(Shared { id: None, opens: 0 }).opens += 1;
        }
    }

    /// Counts a close; the last one forgets the backing file.
    pub(crate) fn release(&self, node: Node) {
        if !self.is_enabled() {
            return;
        }
        let mut files = lock(&self.files);
        let Entry::Occupied(mut file) = files.entry(node.0) else { return };
        file.get_mut().opens -= 1;
        if file.get().opens == 0
            && let Some(id) = file.remove().id
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
