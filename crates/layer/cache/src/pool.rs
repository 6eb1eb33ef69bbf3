// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content in memory: pieces of files, of which those unused for longest go first.

use crate::lru::Lru;
use bytes::Bytes;
use std::collections::BTreeSet;

/// Names the content of one file as of one time. Content that is no longer fresh gets no requests any more, and goes
/// with time.
pub(crate) type ContentId = u64;

/// Bytes of their own: small ones may be a slice of all of a message.
pub(crate) fn own(bytes: Bytes) -> Bytes {
    if bytes.len() < COPIED { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// All content in memory.
pub(crate) struct Pool {
    /// By content and offset; those of one content do not overlap.
    extents: Lru<(ContentId, u64), Bytes>,
    order: BTreeSet<(ContentId, u64)>,
    bytes: usize,
    bytes_max: usize,
}

/// What an extent takes beside its bytes.
const EXTENT_COST: usize = 160;
/// Smaller pieces are copied, so that they do not keep a whole message in memory.
const COPIED: usize = 64 << 10;

impl Pool {
    /// No content, and never more than so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Pool { extents: Lru::default(), order: BTreeSet::new(), bytes: 0, bytes_max }
    }

    /// How many bytes there are.
    pub(crate) fn size(&self) -> usize {
        self.bytes
    }

    /// Puts `bytes` at `offset` in place of what is there.
    pub(crate) fn insert(&mut self, content: ContentId, offset: u64, bytes: Bytes) {
        self.discard(content, offset, offset + bytes.len() as u64);
        if bytes.is_empty() || bytes.len() > self.bytes_max {
            return;
        }
        self.add((content, offset), own(bytes));
        while self.bytes > self.bytes_max
            && let Some(key) = self.extents.oldest()
        {
            self.remove(key);
        }
    }

    /// The pieces of `start..end` that are there, in order, each with its offset.
    pub(crate) fn get(&mut self, content: ContentId, start: u64, end: u64) -> Vec<(u64, Bytes)> {
        let found: Vec<(u64, u64)> = self.extents_in(content, start, end).collect();
        let mut pieces = Vec::with_capacity(found.len());
        for (offset, stop) in found {
            let (from, to) = (start.max(offset), end.min(stop));
            let bytes = self.extents.get(&(content, offset));
            pieces.extend(
                bytes.map(|bytes| (from, bytes.slice((from - offset) as usize..(to - offset) as usize))),
            );
        }
        pieces
    }

    /// Whether all of `start..end` is there.
    pub(crate) fn covers(&self, content: ContentId, start: u64, end: u64) -> bool {
        let mut extents = self.extents_in(content, start, end);
        let reached = extents.try_fold(start, |reached, (offset, stop)| (offset <= reached).then_some(stop));
        reached.is_some_and(|reached| reached >= end)
    }

    /// Forgets content.
    pub(crate) fn forget(&mut self, content: ContentId) {
        self.discard(content, 0, u64::MAX);
    }

    /// Where extents begin and end of which bytes are in `start..end`, in order.
    fn extents_in(&self, content: ContentId, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.order.range((content, 0)..=(content, start)).next_back();
        let first = before.map_or(start, |&(_, offset)| offset);
        let extents = self.order.range((content, first)..(content, end.max(first)));
        let ends = extents.map(|key| (key.1, key.1 + self.extents.peek(key).map_or(0, Bytes::len) as u64));
        ends.filter(move |&(offset, stop)| offset < end && start < stop)
    }

    fn add(&mut self, key: (ContentId, u64), bytes: Bytes) {
        self.bytes += bytes.len() + EXTENT_COST;
        self.extents.insert(key, bytes);
        self.order.insert(key);
    }

    fn remove(&mut self, key: (ContentId, u64)) -> Option<Bytes> {
        let bytes = self.extents.remove(&key)?;
        self.bytes -= bytes.len() + EXTENT_COST;
        self.order.remove(&key);
        Some(bytes)
    }

    /// Removes `start..end`; what lies partly in it keeps the rest.
    pub(crate) fn discard(&mut self, content: ContentId, start: u64, end: u64) {
        let touched: Vec<(u64, u64)> = self.extents_in(content, start, end).collect();
        for (offset, stop) in touched {
            let Some(bytes) = self.remove((content, offset)) else { continue };
            if offset < start {
                self.add((content, offset), bytes.slice(..(start - offset) as usize));
            }
            if stop > end {
                self.add((content, end), bytes.slice((end - offset) as usize..));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there of the first 64 bytes; a dot where nothing is.
    fn shown(pool: &mut Pool, content: ContentId) -> String {
        let mut text = ".".repeat(64).into_bytes();
        for (offset, bytes) in pool.get(content, 0, 64) {
            text[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        }
        String::from_utf8(text).expect("ASCII").trim_end_matches('.').to_owned()
    }

    #[test]
    fn pieces_lie_over_each_other_the_latest_on_top() {
        let mut pool = Pool::new(1 << 20);
        let content = 1;
        for (offset, bytes, expected) in [
            (4, "aaaa", "....aaaa"),
            (10, "bbbb", "....aaaa..bbbb"),
            (6, "cccccc", "....aaccccccbb"),
            (11, "d", "....aacccccdbb"),
            (0, "eeee", "eeeeaacccccdbb"),
            (2, "ffffffffffffff", "eeffffffffffffff"),
        ] {
            pool.insert(content, offset, Bytes::from_static(bytes.as_bytes()));
            assert_eq!(shown(&mut pool, content), expected);
        }
        assert!(pool.covers(content, 1, 16) && !pool.covers(content, 1, 17));
        assert_eq!(pool.get(content, 3, 5), [(3, Bytes::from_static(b"ff"))]);
        pool.forget(content);
        assert_eq!((shown(&mut pool, content).as_str(), pool.size()), ("", 0));
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut pool = Pool::new(10 * (1000 + EXTENT_COST));
        let (hot, cold) = (1, 2);
        pool.insert(hot, 0, Bytes::from(vec![1; 1000]));
        for round in 0..100 {
            pool.insert(cold, round * 1000, Bytes::from(vec![2; 1000]));
            assert_eq!(pool.get(hot, 0, 1).len(), 1);
            assert!(pool.size() <= 10 * (1000 + EXTENT_COST));
        }
        assert!(pool.covers(cold, 91_000, 100_000) && !pool.covers(cold, 90_000, 91_000));
        pool.insert(cold, 0, Bytes::from(vec![3; 1 << 20]));
        assert!(!pool.covers(cold, 0, 1), "what is larger than all of the memory is not kept");
        for byte in 0..100_000 {
            pool.insert(hot, byte * 2, Bytes::from_static(b"x"));
        }
        assert!(pool.size() <= 10 * (1000 + EXTENT_COST));
    }
}
