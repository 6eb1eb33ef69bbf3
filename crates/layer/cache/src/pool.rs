// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content in memory: pieces of files, of which those unused for longest go first.

use crate::lru::Lru;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Names the content of one file as of one time. Content that is no longer fresh gets no requests any more, and goes
/// with time.
pub(crate) type ContentId = u64;

/// Bytes of their own: small ones may be a slice of all of a message.
pub(crate) fn own(bytes: Bytes) -> Bytes {
    if bytes.len() < COPIED { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// A piece of content.
struct Extent {
    content: ContentId,
    offset: u64,
    bytes: Bytes,
}

/// All content in memory.
pub(crate) struct Pool {
    extents: Lru<Extent>,
    /// By content, then by offset; those of one content do not overlap.
    places: HashMap<ContentId, BTreeMap<u64, u32>>,
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
        Pool { extents: Lru::default(), places: HashMap::new(), bytes: 0, bytes_max }
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
        let bytes = own(bytes);
        self.add(Extent { content, offset, bytes });
        while self.bytes > self.bytes_max {
            let Some(at) = self.extents.oldest() else { break };
            self.remove(at);
        }
    }

    /// The pieces of `start..end` that are there, in order, each with its offset.
    pub(crate) fn get(&mut self, content: ContentId, start: u64, end: u64) -> Vec<(u64, Bytes)> {
        let mut pieces = Vec::new();
        let Some(places) = self.places.get(&content) else { return pieces };
        let first = places.range(..=start).next_back().map_or(start, |(&offset, _)| offset);
        for (&offset, &at) in places.range(first..end.max(first)) {
            let Some(extent) = self.extents.get(at) else { continue };
            let (from, to) = (start.max(offset), end.min(offset + extent.bytes.len() as u64));
            if from < to {
                pieces.push((from, extent.bytes.slice((from - offset) as usize..(to - offset) as usize)));
                self.extents.touch(at);
            }
        }
        pieces
    }

    /// Whether all of `start..end` is there.
    pub(crate) fn covers(&self, content: ContentId, start: u64, end: u64) -> bool {
        let Some(places) = self.places.get(&content) else { return start >= end };
        let first = places.range(..=start).next_back().map_or(start, |(&offset, _)| offset);
        let mut reached = start;
        for (&offset, &at) in places.range(first..end.max(first)) {
            if offset > reached {
                break;
            }
            let len = self.extents.get(at).map_or(0, |extent| extent.bytes.len() as u64);
            reached = reached.max(offset + len);
        }
        reached >= end
    }

    /// Forgets content.
    pub(crate) fn forget(&mut self, content: ContentId) {
        for at in self.places.remove(&content).into_iter().flatten().map(|(_, at)| at) {
            if let Some(extent) = self.extents.remove(at) {
                self.bytes -= extent.bytes.len() + EXTENT_COST;
            }
        }
    }

    fn add(&mut self, extent: Extent) {
        let (content, offset) = (extent.content, extent.offset);
        self.bytes += extent.bytes.len() + EXTENT_COST;
        let at = self.extents.insert(extent);
        self.places.entry(content).or_default().insert(offset, at);
    }

    fn remove(&mut self, at: u32) -> Option<Extent> {
        let extent = self.extents.remove(at)?;
        self.bytes -= extent.bytes.len() + EXTENT_COST;
        if let Some(places) = self.places.get_mut(&extent.content) {
            places.remove(&extent.offset);
            if places.is_empty() {
                self.places.remove(&extent.content);
            }
        }
        Some(extent)
    }

    /// Removes `start..end`; what lies partly in it keeps the rest.
    pub(crate) fn discard(&mut self, content: ContentId, start: u64, end: u64) {
        let Some(places) = self.places.get(&content) else { return };
        let first = places.range(..=start).next_back().map_or(start, |(&offset, _)| offset);
        let touched: Vec<u32> = places.range(first..end.max(first)).map(|(_, &at)| at).collect();
        for at in touched {
            let Some(extent) = self.extents.get(at) else { continue };
            let (offset, stop) = (extent.offset, extent.offset + extent.bytes.len() as u64);
            if stop <= start || offset >= end {
                continue;
            }
            let Some(Extent { bytes, .. }) = self.remove(at) else { continue };
            if offset < start {
                self.add(Extent { content, offset, bytes: bytes.slice(..(start - offset) as usize) });
            }
            if stop > end {
                self.add(Extent { content, offset: end, bytes: bytes.slice((end - offset) as usize..) });
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
