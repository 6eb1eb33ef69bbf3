// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bounded cache of decompressed blocks, shared by all streams of an archive.

use bytes::Bytes;
use outrigger_core::lock;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

/// Size of a block; the last one of a stream may be shorter.
pub(crate) const BLOCK: usize = 256 << 10;

/// Stream number and block number.
pub(crate) type Key = (u32, u64);

#[derive(Default)]
struct State {
    blocks: HashMap<Key, (Bytes, u64)>,
    /// Keys by the tick of their last use.
    order: BTreeMap<u64, Key>,
    tick: u64,
    bytes: usize,
}

/// Least-recently-used blocks, at most a fixed number of bytes.
pub(crate) struct BlockCache {
    max: usize,
    state: Mutex<State>,
}

impl BlockCache {
    /// A cache of at most `max` bytes, but at least 4 blocks, without which reading could not proceed smoothly.
    pub fn new(max: usize) -> Self {
        BlockCache { max: max.max(4 * BLOCK), state: Mutex::default() }
    }

    /// The block, now the most recently used.
    pub fn get(&self, key: Key) -> Option<Bytes> {
        let mut s = lock(&self.state);
        s.tick += 1;
        let tick = s.tick;
        let (bytes, used) = s.blocks.get_mut(&key)?;
        let (bytes, before) = (bytes.clone(), std::mem::replace(used, tick));
        s.order.remove(&before);
        s.order.insert(tick, key);
        Some(bytes)
    }

    /// Adds a block, forgetting the least recently used ones beyond the bound.
    pub fn put(&self, key: Key, bytes: Bytes) {
        let mut s = lock(&self.state);
        s.tick += 1;
        let tick = s.tick;
        s.bytes += bytes.len();
        s.order.insert(tick, key);
        if let Some((old, used)) = s.blocks.insert(key, (bytes, tick)) {
            s.bytes -= old.len();
            s.order.remove(&used);
        }
        while s.bytes > self.max {
            let Some((_, oldest)) = s.order.pop_first() else { break };
            if let Some((old, _)) = s.blocks.remove(&oldest) {
                s.bytes -= old.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_recently_used_within_the_bound() {
        let c = BlockCache::new(0);
        let block = |b| Bytes::from(vec![b; BLOCK]);
        for i in 0..4 {
            c.put((0, i), block(i as u8));
        }
        assert_eq!(c.get((0, 0)), Some(block(0)));
        c.put((0, 4), block(4));
        assert_eq!(c.get((0, 1)), None, "the least recently used went");
        assert_eq!(c.get((0, 0)), Some(block(0)));
        c.put((0, 0), block(9));
        assert_eq!(c.get((0, 0)), Some(block(9)));
        assert_eq!(c.get((0, 4)), Some(block(4)));
    }
}
