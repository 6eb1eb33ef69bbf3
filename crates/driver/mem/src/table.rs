// SPDX-License-Identifier: MIT OR Apache-2.0
//! All inodes by number, in shards so that lookups of different files do not meet.

use crate::inode::{Body, Inode};
use outrigger_core::{Errno, Node, Result};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many parts the table has.
pub(crate) const SHARDS: usize = 64;

/// Inode numbers are counted up, so spreading their low bits is all a hash has to do.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 ^ u64::from(byte)));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Something for each of some inodes, by their numbers.
pub(crate) type ByNumber<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

type Shard = ByNumber<Arc<Inode>>;

/// All inodes that have a name or are referred to.
pub(crate) struct Table {
    shards: Vec<RwLock<Shard>>,
    last: AtomicU64,
}

impl Table {
    /// An empty table; the first inode will be [`Node::ROOT`].
    pub fn new() -> Self {
        Table { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), last: AtomicU64::new(0) }
    }

    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// A number never used before.
    pub fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    /// The last number that was given out.
    pub fn last(&self) -> u64 {
        self.last.load(Relaxed)
    }

    /// Numbers up to `last` have been given out by former processes.
    pub fn set_last(&self, last: u64) {
        self.last.store(last, Relaxed);
    }

    /// Makes an inode one that can be found.
    pub fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).write().insert(inode.ino, inode);
    }

    /// The numbers of all inodes in one of [`SHARDS`] parts.
    pub fn numbers(&self, shard: usize) -> Vec<u64> {
        self.shards[shard].read().keys().copied().collect()
    }

    /// The inode with this number; `ESTALE` when it is gone.
    pub fn get(&self, node: Node) -> Result<Arc<Inode>> {
        match self.shard(node.0).read().get(&node.0) {
            Some(inode) => Ok(Arc::clone(inode)),
            None => Err(Errno::ESTALE.because(format!("there is no inode {} any more", node.0))),
        }
    }

    pub fn remove(&self, ino: u64) {
        self.shard(ino).write().remove(&ino);
    }
}

impl Drop for Table {
    /// Empties the directories one by one: dropping a deep tree from its root would recurse as deep.
    fn drop(&mut self) {
        for shard in &mut self.shards {
            for inode in shard.get_mut().values() {
                if inode.is_dir() {
                    inode.state.write().body = Body::Special;
                }
            }
        }
    }
}
