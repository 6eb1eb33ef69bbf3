// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that the program has acknowledged but may not have passed on: kept until FLUSH or FSYNC, to be repeated when
//! it dies before.

use bytes::Bytes;
use outrigger_core::{Handle, Node, lock};
use std::collections::HashMap;
use std::sync::Mutex;

/// A write that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) handle: Handle,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

/// All of them.
pub(crate) struct Writes {
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    files: HashMap<Node, Vec<Kept>>,
    bytes: usize,
}

impl Writes {
    /// Keeps about `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Writes { most, inner: Mutex::default() }
    }

    /// Keeps one more write; gives the file that now should be flushed, if there are too many.
    pub(crate) fn keep(&self, node: Node, kept: Kept) -> Option<Node> {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        inner.bytes += kept.data.len();
        inner.files.entry(node).or_default().push(kept);
        let largest = |inner: &Inner| {
            let bytes = |writes: &[Kept]| writes.iter().map(|kept| kept.data.len()).sum::<usize>();
            inner.files.iter().max_by_key(|(_, writes)| bytes(writes)).map(|(&node, _)| node)
        };
        if inner.bytes > self.most { largest(inner) } else { None }
    }

    /// The handles of `node` with writes that are kept.
    pub(crate) fn handles(&self, node: Node) -> Vec<Handle> {
        let inner = lock(&self.inner);
        let mut handles: Vec<Handle> =
            inner.files.get(&node).into_iter().flatten().map(|kept| kept.handle).collect();
        handles.sort_unstable();
        handles.dedup();
        handles
    }

    /// How many writes of `node` are kept: those that a flush which begins now may commit.
    pub(crate) fn count(&self, node: Node) -> usize {
        lock(&self.inner).files.get(&node).map_or(0, Vec::len)
    }

    /// The first `count` writes of `node` are committed as far as they came through `handle`.
    pub(crate) fn committed(&self, node: Node, handle: Handle, count: usize) {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        let Some(writes) = inner.files.get_mut(&node) else { return };
        let mut at = 0;
        writes.retain(|kept| {
            at += 1;
            let stays = at > count || kept.handle != handle;
            if !stays {
                inner.bytes -= kept.data.len();
            }
            stays
        });
        if writes.is_empty() {
            inner.files.remove(&node);
        }
    }

    /// `node` was cut to `size`: what was written beyond is gone for good.
    pub(crate) fn cut(&self, node: Node, size: u64) {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        let Some(writes) = inner.files.get_mut(&node) else { return };
        let bytes = &mut inner.bytes;
        writes.retain_mut(|kept| {
            let left = usize::try_from(size.saturating_sub(kept.offset)).unwrap_or(usize::MAX);
            let left = left.min(kept.data.len());
            *bytes -= kept.data.len() - left;
            kept.data.truncate(left);
            left > 0
        });
        if writes.is_empty() {
            inner.files.remove(&node);
        }
    }

    /// Everything to repeat, by file and in order.
    pub(crate) fn all(&self) -> Vec<(Node, Vec<Kept>)> {
        lock(&self.inner).files.iter().map(|(&node, writes)| (node, writes.clone())).collect()
    }

    /// The file of these writes is gone.
    pub(crate) fn give_up(&self, node: Node) {
        let mut inner = lock(&self.inner);
        let lost = inner.files.remove(&node).unwrap_or_default();
        inner.bytes -= lost.iter().map(|kept| kept.data.len()).sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(handle: u64, offset: u64, data: &'static [u8]) -> Kept {
        Kept { handle: Handle(handle), offset, data: Bytes::from_static(data) }
    }

    #[test]
    fn a_flush_commits_what_came_before_it_through_its_handle() {
        let writes = Writes::new(100);
        let node = Node(5);
        writes.keep(node, kept(1, 0, b"abc"));
        writes.keep(node, kept(2, 3, b"def"));
        let count = writes.count(node);
        writes.keep(node, kept(1, 6, b"ghi"));
        writes.committed(node, Handle(1), count);
        assert_eq!(writes.all(), [(node, vec![kept(2, 3, b"def"), kept(1, 6, b"ghi")])]);
        assert_eq!(writes.handles(node), [Handle(1), Handle(2)]);
    }

    #[test]
    fn truncation_cuts_what_is_kept() {
        let writes = Writes::new(100);
        writes.keep(Node(5), kept(1, 0, b"abcdef"));
        writes.keep(Node(5), kept(1, 8, b"xyz"));
        writes.cut(Node(5), 4);
        assert_eq!(writes.all(), [(Node(5), vec![kept(1, 0, b"abcd")])]);
        writes.cut(Node(5), 0);
        assert!(writes.all().is_empty());
        assert_eq!(lock(&writes.inner).bytes, 0);
    }

    #[test]
    fn too_much_is_reported() {
        let writes = Writes::new(6);
        assert_eq!(writes.keep(Node(5), kept(1, 0, b"abcd")), None);
        assert_eq!(writes.keep(Node(6), kept(2, 0, b"hi")), None);
        assert_eq!(writes.keep(Node(6), kept(2, 2, b"j")), Some(Node(5)));
        writes.committed(Node(5), Handle(1), 1);
        assert_eq!(writes.keep(Node(6), kept(2, 3, b"k")), None);
    }
}
