// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices that wait until the kernel takes them: in order, each once, and never more than the kernel can have cached.
//!
//! The kernel may take none for a while (it waits for a page that a request of ours holds), and who sends must not wait. So
//! an invalidation that waits already is not queued again, two ranges of a file become the whole file, and content beyond
//! [`CONTENT`] is invalidated instead of stored. What is left is one entry for each node and name the door has given
//! to the kernel; beyond [`NAMES`] names a kernel that can do so is asked to check all names.

use outrigger_core::{Name, Node, Notice};
use std::collections::{HashMap, HashSet, VecDeque};

/// The most bytes of content that wait.
const CONTENT: usize = 8 << 20;
/// What a stored piece counts as at least, so that many empty pieces are bounded, too.
const PIECE: usize = 4096;
/// The most names that wait to be invalidated one by one.
const NAMES: usize = 1 << 16;
/// The most waiting notices beside which hints are kept.
const HINTS: usize = 1 << 16;

/// What makes two notices the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Attributes(Node),
    Range(Node),
    Content(Node),
    Doubt(Node),
    Entry(Node, Name),
    Deleted(Node, Node, Name),
    All,
    Wake(u64),
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<Notice>,
    waiting: HashSet<Key>,
    /// How many invalidations of a file are in the queue.
    outdated: HashMap<Node, usize>,
    content: usize,
    names: usize,
    /// The kernel knows [`Notice::InvalidateAll`]; one that does not would go on to use names that were not queued.
    pub(crate) knows_epochs: bool,
}

impl Backlog {
    /// Appends what `notice` asks for, unless a notice that waits does it already.
    pub(crate) fn push(&mut self, notice: Notice) {
        match notice {
            Notice::Prune { .. } if self.queue.len() >= HINTS => {}
            Notice::Store { node, offset, data } => self.store(node, offset, data),
            Notice::InvalidateNode { node, offset, .. }
                if offset >= 0 && self.waiting.contains(&Key::Range(node)) =>
            {
                self.append(Notice::InvalidateNode { node, offset: 0, len: 0 });
            }
            Notice::InvalidateEntry { .. } | Notice::Deleted { .. }
                if self.knows_epochs && self.names >= NAMES =>
            {
                self.append(Notice::InvalidateAll);
            }
            notice => self.append(notice),
        }
    }

    /// Takes the oldest notice.
    pub(crate) fn pop(&mut self) -> Option<Notice> {
        let notice = self.queue.pop_front()?;
        if let Notice::InvalidateNode { node, .. } = &notice
            && let Some(count) = self.outdated.get_mut(node)
        {
            *count -= 1;
            if *count == 0 {
                self.outdated.remove(node);
            }
        }
        if let Notice::Store { data, .. } = &notice {
            self.content -= data.len().max(PIECE);
        }
        if let Some(key) = key(&notice) {
            self.names -= usize::from(is_name(&key));
            self.waiting.remove(&key);
        }
        Some(notice)
    }

    /// Whether an invalidation of a file waits.
    pub(crate) fn invalidates(&self, node: Node) -> bool {
        self.outdated.contains_key(&node)
    }

    fn append(&mut self, notice: Notice) {
        if let Some(key) = key(&notice) {
            let name = is_name(&key);
            if !self.waiting.insert(key) {
                return;
            }
            self.names += usize::from(name);
        }
        if let Notice::InvalidateNode { node, .. } = notice {
            *self.outdated.entry(node).or_default() += 1;
        }
        self.queue.push_back(notice);
    }

    /// An invalidation after this piece is not the same as one before it, which would leave the piece in the cache.
    fn store(&mut self, node: Node, offset: u64, data: outrigger_core::Payload) {
        let size = data.len().max(PIECE);
        if self.content + size > CONTENT {
            return self.push(Notice::InvalidateNode {
                node,
                offset: i64::try_from(offset).unwrap_or(0),
                len: i64::try_from(data.len()).unwrap_or(0),
            });
        }
        self.content += size;
        self.waiting.remove(&Key::Range(node));
        self.waiting.remove(&Key::Content(node));
        self.queue.push_back(Notice::Store { node, offset, data });
    }
}

fn is_name(key: &Key) -> bool {
    matches!(key, Key::Entry(..) | Key::Deleted(..))
}

/// What `notice` is compared by; nothing for what is sent each time.
fn key(notice: &Notice) -> Option<Key> {
    Some(match notice {
        Notice::InvalidateNode { node, offset: ..0, .. } => Key::Attributes(*node),
        Notice::InvalidateNode { node, offset: 0, len: 0 } => Key::Content(*node),
        Notice::InvalidateNode { node, .. } => Key::Range(*node),
        Notice::Revalidate { node } => Key::Doubt(*node),
        Notice::InvalidateEntry { dir, name } => Key::Entry(*dir, name.clone()),
        Notice::Deleted { dir, node, name } => Key::Deleted(*dir, *node, name.clone()),
        Notice::InvalidateAll => Key::All,
        Notice::Wake { key } => Key::Wake(*key),
        Notice::Store { .. } | Notice::Prune { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(node: u64, offset: i64, len: i64) -> Notice {
        Notice::InvalidateNode { node: Node(node), offset, len }
    }

    fn entry(number: usize) -> Notice {
        Notice::InvalidateEntry { dir: Node::ROOT, name: Name::new(format!("n{number}")).unwrap() }
    }

    fn store(node: u64, len: usize) -> Notice {
        Notice::Store { node: Node(node), offset: 0, data: vec![0; len].into() }
    }

    fn drained(notices: impl IntoIterator<Item = Notice>) -> Vec<Notice> {
        let mut backlog = Backlog::default();
        notices.into_iter().for_each(|notice| backlog.push(notice));
        let sent: Vec<_> = std::iter::from_fn(|| backlog.pop()).collect();
        assert!(backlog.waiting.is_empty() && backlog.content == 0 && backlog.names == 0, "{backlog:?}");
        sent
    }

    #[test]
    fn what_waits_already_is_not_queued_again() {
        let twice = [changed(2, 0, 0), entry(1), changed(2, 0, 0), entry(1), changed(2, -1, 0), entry(2)];
        assert_eq!(drained(twice), [changed(2, 0, 0), entry(1), changed(2, -1, 0), entry(2)]);
        let ranges = [changed(2, 4, 4), changed(2, 16, 4), changed(2, 32, 4), changed(3, 4, 4)];
        assert_eq!(drained(ranges), [changed(2, 4, 4), changed(2, 0, 0), changed(3, 4, 4)]);
    }

    #[test]
    fn what_was_sent_is_sent_again() {
        let mut backlog = Backlog::default();
        for _ in 0..2 {
            backlog.push(changed(2, 0, 0));
            assert_eq!((backlog.pop(), backlog.pop()), (Some(changed(2, 0, 0)), None));
        }
    }

    #[test]
    fn content_that_changes_after_it_was_stored_is_invalidated_after_it() {
        let order = [changed(2, 0, 0), store(2, 8), changed(2, 0, 0)];
        assert_eq!(drained(order.clone()), order);
        let mut backlog = Backlog::default();
        order.into_iter().for_each(|notice| backlog.push(notice));
        let waits: Vec<bool> =
            (0..3).map(|_| backlog.pop().is_some() && backlog.invalidates(Node(2))).collect();
        assert_eq!(waits, [true, true, false]);
    }

    #[test]
    fn an_endless_stream_of_notices_takes_bounded_memory() {
        let mut backlog = Backlog { knows_epochs: true, ..Backlog::default() };
        for number in 0..2 * NAMES {
            backlog.push(entry(number));
            backlog.push(changed(2 + number as u64 % 8, number as i64 + 1, 1));
            backlog.push(store(2, 1 << 14));
            backlog.push(store(3, 0));
            backlog.push(Notice::Prune { nodes: vec![Node(number as u64)] });
        }
        assert!(backlog.content <= CONTENT);
        assert!(backlog.queue.len() <= NAMES + HINTS + CONTENT / PIECE + 64, "{}", backlog.queue.len());
        assert!(backlog.queue.contains(&Notice::InvalidateAll), "names that were not queued are checked");
        assert!(backlog.queue.contains(&changed(2, 0, 0)), "content that was not stored is invalidated");
    }

    #[test]
    fn a_kernel_without_epochs_is_told_of_every_name() {
        assert_eq!(drained((0..NAMES + 5).map(entry)).len(), NAMES + 5);
    }
}
