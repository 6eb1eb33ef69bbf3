// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small files of one directory that are read one after the other: those that come next are read ahead.
//!
//! Some programs take files as the directory lists them, others by their names. Whichever it was the last times, it is
//! expected to go on like that.

use crate::file::{Content, Fetch};
use crate::inner::Inner;
use crate::moment::Moment;
use crate::names::Names;
use crate::open::OpenFile;
use crate::table::Table;
use outrigger_core::ops::{OpenFlags, Release};
use outrigger_core::{Cx, FileKind, LockOwner, Node, lock};
use std::collections::VecDeque;
use std::sync::Arc;

/// The largest file that counts as small, in bytes.
const SMALL: u64 = 64 << 10;
/// So many files in a row are a beginning.
const ENOUGH: u32 = 3;
/// Files that a program may leave out.
const NEAR: usize = 4;
/// How many files are read ahead, at first and at most.
const FIRST: usize = 8;
const MOST: usize = 64;
/// In larger directories no beginning is looked for: that would take longer than it saves.
const NAMES_MAX: usize = 10_000;

/// In which order files are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// As the directory lists them.
    #[default]
    Listed,
    /// By their names, byte by byte.
    Named,
}

/// Where a program is that reads the files of a directory one after the other.
#[derive(Default)]
pub(crate) struct Siblings {
    /// The file that was opened last.
    last: Node,
    /// How many there were in a row.
    row: u32,
    order: Order,
    /// Those that are expected and were asked for.
    coming: VecDeque<Node>,
    window: usize,
}

impl Siblings {
    /// A small file is opened; answers which ones to read ahead.
    fn advance(&mut self, names: &Names, node: Node) -> Vec<Node> {
        if let Some(at) = self.coming.iter().take(NEAR).position(|&coming| coming == node) {
            self.coming.drain(..=at);
        } else {
            self.coming.clear();
            self.window = 0;
            let follows = |order| names.successors(self.last, order, NEAR).contains(&node);
            let looked_for = self.last != Node::default() && names.len() <= NAMES_MAX;
            match [Order::Listed, Order::Named].into_iter().find(|&order| looked_for && follows(order)) {
                Some(order) => (self.order, self.row) = (order, self.row + 1),
                None => self.row = 1,
            }
        }
        self.last = node;
        if self.row < ENOUGH || self.coming.len() > self.window / 2 {
            return Vec::new();
        }
        self.window = (2 * self.window).clamp(FIRST, MOST);
        let from = self.coming.back().copied().unwrap_or(node);
        let next = names.successors(from, self.order, self.window - self.coming.len());
        self.coming.extend(&next);
        next
    }
}

/// How large a small file is that is opened, or about to be; `None` for all others.
fn small(table: &mut Table, node: Node, now: Moment) -> Option<u64> {
    let attr = table.attrs(node, now)?.attr;
    let counts = attr.kind() == FileKind::Regular && (1..=SMALL).contains(&attr.size);
    counts.then_some(attr.size)
}

/// What brings all of the content, if that is on its way.
fn whole(content: &Content) -> Option<Arc<Fetch>> {
    let size = content.size?;
    let brings_it =
        |fetch: &&Arc<Fetch>| content.is_current(fetch) && fetch.offset == 0 && fetch.end() >= size;
    content.fetches.iter().find(brings_it).cloned()
}

impl Inner {
    /// A file is opened for reading: has those read that are likely to be next.
    pub(crate) fn read_siblings(self: &Arc<Self>, cx: &Cx, node: Node) {
        let now = self.now();
        let mut table = lock(&self.table);
        let Some(dir) = small(&mut table, node, now).and_then(|_| table.record(node)?.dir) else { return };
        let Some(names) = table.names_of(dir) else { return };
        let next = table.directory(dir).siblings.advance(&lock(&names), node);
        let mut room = self.files_ahead;
        for node in next {
            let Some(size) = small(&mut table, node, now) else { continue };
            if size > room {
                break;
            }
            room -= size;
            let file = table.file(node, now);
            let mut content = lock(&file.content);
            let known = whole(&content).is_some() || lock(&self.pool).covers(content.id, 0, size);
            if known || now >= content.until || content.size != Some(size) {
                continue;
            }
            table.pin(node);
            let (handle, flags) = (self.handles.number(false), OpenFlags::empty());
            let open = Arc::new(OpenFile::new(node, handle, Arc::clone(&file), Some(flags), false));
            content.ahead = Some(now);
            self.start_fetch(cx, &open, &mut content, 0, size as u32);
            self.close_later(cx, open);
        }
    }

    /// Closes a file that only this layer has open, when its content has come.
    fn close_later(self: &Arc<Self>, cx: &Cx, open: Arc<OpenFile>) {
        let (inner, cx) = (Arc::clone(self), self.cx(cx));
        self.runtime.spawn(Box::pin(async move {
            let (node, handle, owner) = (open.node, open.handle, LockOwner::default());
            let op = Release { node, handle, flags: OpenFlags::empty(), owner, flock_release: false };
            open.unused().await;
            inner.release_below(&cx, &open, op).await;
        }));
    }

    /// Waits for the content of a file if all of it is on its way.
    pub(crate) async fn wait_for_content(&self, node: Node) {
        let Some(file) = lock(&self.table).known_file(node) else { return };
        let fetch = whole(&lock(&file.content));
        if let Some(fetch) = fetch {
            // The next caller gets the error.
            let _ = file.gate.wait(|| fetch.result()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{File, Placing, Slot};
    use outrigger_core::{Generation, Name};

    /// A directory with one file for each text, which have the nodes 1, 2, ...
    fn listed(texts: &[String]) -> Names {
        let mut names = Names::filling(None, (0, 100), Placing::Last);
        for (number, text) in (1..).zip(texts) {
            let name = Name::try_from(text.as_str()).expect("a name");
            let (node, kind) = (Node(number), Some(FileKind::Regular));
            let file = File { node, generation: Generation::default(), ino: number, kind };
            assert!(names.receive(Slot { name: Some(name), cookie: number, file }));
        }
        names.finish();
        names
    }

    fn numbered(count: u64) -> Names {
        listed(&(0..count).map(|number| format!("{number:05}")).rev().collect::<Vec<_>>())
    }

    /// Opens files in this order; answers how many were expected when they came, and that none was asked for twice.
    fn expected(names: &Names, order: impl Iterator<Item = u64>) -> usize {
        let (mut siblings, mut asked) = (Siblings::default(), Vec::new());
        let mut expected = 0;
        for node in order.map(Node) {
            expected += usize::from(asked.contains(&node));
            let next = siblings.advance(names, node);
            assert!(next.iter().all(|node| !asked.contains(node)), "{next:?} again");
            asked.extend(next);
        }
        expected
    }

    #[test]
    fn files_in_the_order_of_the_listing_are_expected() {
        assert_eq!(expected(&numbered(200), 1..=200), 197);
    }

    #[test]
    fn files_in_the_order_of_their_names_are_expected() {
        assert_eq!(expected(&numbered(200), (1..=200).rev()), 197);
    }

    #[test]
    fn some_may_be_left_out() {
        let with_gaps = (1..=200).filter(|number| number % 3 != 0);
        assert!(expected(&numbered(200), with_gaps) > 120);
    }

    #[test]
    fn nothing_is_expected_of_who_jumps_about() {
        let names = numbered(100);
        let mut siblings = Siblings::default();
        let jumps = (0..100).map(|step| Node(1 + step * 37 % 100));
        assert!(jumps.into_iter().all(|node| siblings.advance(&names, node).is_empty()));
    }
}
