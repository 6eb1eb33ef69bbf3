// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content on disk, for the next process that is asked for it.
//!
//! A block is kept when the tree below, asked after the block had come, has the same version of the file as before: so
//! what is on disk under a version is of that version, also where the file was exchanged in between and exchanged back. What
//! is kept is written by a job of its own, for which no request waits; while too much waits to be written, no more is kept. A block
//! is used again for a file of the same version only.

mod block;
mod glue;
mod store;

pub use block::Block;
pub(crate) use glue::Unsaved;
pub(crate) use store::Store;

use crate::file::Version;
use bytes::{Bytes, BytesMut};
use futures_channel::oneshot;
use outrigger_core::gate::Gate;
use outrigger_core::{Result, Runtime, lock};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For so long nothing is written after that went wrong.
const PAUSE: Duration = Duration::from_secs(30);
/// What a block that waits to be written takes beside its bytes.
const COST: usize = 256;

/// A place for content on disk.
#[derive(Clone)]
pub struct Disk(Arc<Shared>);

/// How much is on disk, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Bytes, of all mounts that use the directory.
    pub bytes: u64,
    /// The most of them that this mount allows.
    pub bytes_max: u64,
    /// Files, of all mounts that use the directory.
    pub files: u64,
    /// Reads that were answered from disk, since the present server began.
    pub hits: u64,
    /// Reads of which something was not there.
    pub misses: u64,
    /// Blocks of 128 KiB that were written.
    pub kept: u64,
    /// Blocks that could not be written, or not fast enough.
    pub dropped: u64,
}

struct Shared {
    store: Store,
    tree: Arc<str>,
    runtime: Arc<dyn Runtime>,
    queue: Mutex<Queue>,
    /// Opens when nothing waits to be written.
    gate: Gate,
}

/// What waits to be written.
#[derive(Default)]
struct Queue {
    blocks: VecDeque<(Block, Vec<Bytes>)>,
    /// Memory they take, and the most they may.
    bytes: usize,
    bytes_max: usize,
    /// Everything that was written before is to be removed first.
    clears: bool,
    /// Nothing is read: what is to be removed may still be there.
    reads_off: bool,
    /// A job writes.
    busy: bool,
    /// Nothing is written before then.
    paused: Duration,
    /// What became of it.
    usage: DiskUsage,
}

impl Disk {
    /// Content of the tree that `tree` identifies, in a directory below `caches` (`$XDG_CACHE_HOME`) with
    /// that of all others, which takes at most `bytes_max`; reading and writing happen on `runtime`.
    ///
    /// # Errors
    /// Why there is no such directory, or `EPERM` where others could look into it.
    pub fn open(caches: &Path, tree: &str, bytes_max: u64, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let store = Store::below(caches, "content", tree, bytes_max)?;
        let queue = Queue { usage: DiskUsage { bytes_max, ..DiskUsage::default() }, ..Queue::default() };
        let (tree, queue, gate) = (Arc::from(tree), Mutex::new(queue), Gate::default());
        Ok(Disk(Arc::new(Shared { store, tree, runtime, queue, gate })))
    }

    /// At most so much memory is used for what waits to be written, in bytes.
    pub(crate) fn may_use(&self, bytes_max: usize) {
        lock(&self.0.queue).bytes_max = bytes_max;
    }

    /// A block of a file of this version.
    pub(crate) fn block(&self, version: Version, number: u64) -> Block {
        let Version { ino, size, mtime, ctime, .. } = version;
        Block { tree: Arc::clone(&self.0.tree), ino, size, mtime, ctime, number }
    }

    /// All of these blocks, one behind the other, if all are there.
    pub(crate) async fn read(&self, blocks: Vec<Block>) -> Option<Bytes> {
        let shared = Arc::clone(&self.0);
        let (sender, receiver) = oneshot::channel();
        self.0.runtime.spawn_blocking(Box::new(move || {
            // The caller may have gone.
            let _ = sender.send(shared.read(&blocks));
        }));
        let found = receiver.await.ok().flatten();
        let usage = &mut lock(&self.0.queue).usage;
        *if found.is_some() { &mut usage.hits } else { &mut usage.misses } += 1;
        found
    }

    /// Whether there is something under the names of all of these blocks. Reading them tells whether it is that.
    pub(crate) async fn has(&self, blocks: Vec<Block>) -> bool {
        let shared = Arc::clone(&self.0);
        let (sender, receiver) = oneshot::channel();
        self.0.runtime.spawn_blocking(Box::new(move || {
            let has = |block: &Block| shared.store.len(block.name()) == Some(block.file_max());
            // The caller may have gone.
            let _ = sender.send(!lock(&shared.queue).reads_off && blocks.iter().all(has));
        }));
        receiver.await.unwrap_or(false)
    }

    /// Has a block written one day, if there is time for it.
    pub(crate) fn keep(&self, block: Block, content: Vec<Bytes>) {
        let weight = weight(&block);
        let mut queue = lock(&self.0.queue);
        if queue.bytes + weight > queue.bytes_max || self.0.runtime.monotonic() < queue.paused {
            queue.usage.dropped += 1;
            return;
        }
        queue.bytes += weight;
        queue.blocks.push_back((block, content));
        self.wake(&mut queue);
    }

    /// Removes what is kept of the tree; from now on none of that is read.
    pub(crate) fn clear(&self) {
        let mut queue = lock(&self.0.queue);
        queue.blocks.clear();
        (queue.bytes, queue.clears, queue.reads_off) = (0, true, true);
        self.wake(&mut queue);
    }

    /// Waits until nothing waits to be written.
    pub(crate) async fn settled(&self) {
        self.0.gate.wait(|| (!lock(&self.0.queue).busy).then_some(())).await;
    }

    /// How much there is, and what became of it.
    pub(crate) fn usage(&self) -> DiskUsage {
        let store::Usage { bytes, files } = self.0.store.usage();
        DiskUsage { bytes, files, ..lock(&self.0.queue).usage }
    }

    fn wake(&self, queue: &mut Queue) {
        if !std::mem::replace(&mut queue.busy, true) {
            let shared = Arc::clone(&self.0);
            self.0.runtime.spawn_blocking(Box::new(move || shared.write()));
        }
    }
}

/// The memory a block takes that waits to be written.
fn weight(block: &Block) -> usize {
    block.len() as usize + COST
}

impl Shared {
    fn read(&self, blocks: &[Block]) -> Option<Bytes> {
        let mut all = BytesMut::new();
        for block in blocks {
            if lock(&self.queue).reads_off {
                return None;
            }
            let content = block.decode(self.store.read(block.name(), block.file_max())?)?;
            if blocks.len() == 1 {
                return Some(content);
            }
            all.extend_from_slice(&content);
        }
        Some(all.freeze())
    }

    /// Writes until nothing waits any more.
    fn write(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let clears = std::mem::take(&mut queue.clears);
            let block = if clears { None } else { queue.blocks.pop_front() };
            if block.is_none() && !clears {
                queue.busy = false;
                drop(queue);
                return self.gate.open();
            }
            queue.bytes -= block.as_ref().map_or(0, |(block, _)| weight(block));
            drop(queue);
            let done = match &block {
                Some((block, content)) => self.store.write(block.name(), &block.encode(content)),
                None => self.store.clear(),
            };
            let mut queue = lock(&self.queue);
            match block {
                Some(_) if done.is_ok() => queue.usage.kept += 1,
                Some(_) => queue.usage.dropped += 1,
                None => queue.reads_off = queue.clears || done.is_err(),
            }
            if done.is_err() {
                // Something is wrong with the disk: nothing is written for a while.
                queue.usage.dropped += queue.blocks.len() as u64;
                queue.blocks.clear();
                (queue.bytes, queue.paused) = (0, self.runtime.monotonic() + PAUSE);
            }
        }
    }
}
