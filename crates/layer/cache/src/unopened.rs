// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were opened by handles of ours, which the tree below may not know of, in memory that outlives the process.
//!
//! Such a file has to be opened below before it loses a name: without one it cannot be, when its content is not kept any more. The
//! process that takes over has to know that of files that a former one has opened, too.

use crate::record::lock;
use outrigger_core::survive::{Layout, Slots};
use outrigger_core::{Handle, Keep, Node, Result};
use std::collections::HashMap;
use std::sync::Mutex;

const LAYOUT: Layout = Layout::of("cache-open");
/// So many files may be open like that; others are opened below at once.
const SLOTS: usize = 1 << 15;

outrigger_core::record! {
    /// A file that is open here.
    #[derive(Clone, Copy)]
    struct Opened {
        node: Node,
        handle: Handle,
        /// The handle below and one more; 0 when there is none.
        below: u64,
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Unopened(Mutex<Files>);

#[derive(Default)]
struct Files {
    /// What is open, and in which slot that is noted.
    open: HashMap<Handle, (Opened, u32)>,
    of: HashMap<Node, Vec<Handle>>,
    /// Where another process finds it, if one would go on.
    notes: Option<Slots<Opened>>,
}

impl Files {
    fn insert(&mut self, opened: Opened, slot: u32) {
        self.open.insert(opened.handle, (opened, slot));
        self.of.entry(opened.node).or_default().push(opened.handle);
    }
}

impl Unopened {
    /// Those in `keep`, of former processes.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub(crate) fn open(keep: &dyn Keep) -> Result<Self> {
        let notes = Slots::open(LAYOUT.attach(keep, Slots::<Opened>::words(SLOTS))?.area);
        let mut files = Files::default();
        notes.iter().for_each(|(slot, opened)| files.insert(opened, slot.index));
        Ok(Unopened(Mutex::new(Files { notes: Some(notes), ..files })))
    }

    /// A file is open here alone; false when there is no room to note that.
    pub(crate) fn note(&self, node: Node, handle: Handle) -> bool {
        let (mut files, opened) = (lock(&self.0), Opened { node, handle, below: 0 });
        if files.open.len() >= SLOTS {
            return false;
        }
        let slot = match &mut files.notes {
            Some(notes) => notes.insert(&opened).map(|slot| slot.index),
            None => Some(0),
        };
        slot.map(|slot| files.insert(opened, slot)).is_some()
    }

    /// It is open below, too, by this handle.
    pub(crate) fn opened(&self, handle: Handle, below: Handle) {
        let Files { open, notes, .. } = &mut *lock(&self.0);
        if let Some((opened, slot)) = open.get_mut(&handle) {
            opened.below = below.0.wrapping_add(1);
            notes.iter().for_each(|notes| notes.update(*slot, opened));
        }
    }

    /// Whether a handle is one of these.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        lock(&self.0).open.contains_key(&handle)
    }

    /// The handle below, as far as it is known.
    pub(crate) fn below(&self, handle: Handle) -> Option<Handle> {
        lock(&self.0).open.get(&handle)?.0.below.checked_sub(1).map(Handle)
    }

    /// A file is closed; gives the handle below.
    pub(crate) fn closed(&self, handle: Handle) -> Option<Handle> {
        let Files { open, of, notes } = &mut *lock(&self.0);
        let (opened, slot) = open.remove(&handle)?;
        if let Some(handles) = of.get_mut(&opened.node) {
            handles.retain(|one| *one != handle);
            if handles.is_empty() {
                of.remove(&opened.node);
            }
        }
        notes.iter_mut().for_each(|notes| notes.remove(slot));
        opened.below.checked_sub(1).map(Handle)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).open.is_empty()
    }

    /// The handles of a file.
    pub(crate) fn of(&self, node: Node) -> Vec<Handle> {
        lock(&self.0).of.get(&node).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn who_takes_over_knows_what_was_open() {
        let keep = HeapKeep::default();
        let first = Unopened::open(&keep).expect("a region");
        for number in 1..=4 {
            assert!(first.note(Node(number % 2 + 1), Handle(number)));
        }
        first.opened(Handle(3), Handle(0));
        assert_eq!((first.closed(Handle(2)), first.closed(Handle(7))), (None, None));
        let next = Unopened::open(&keep).expect("a region");
        assert_eq!((next.of(Node(1)), next.of(Node(2))), (vec![Handle(4)], vec![Handle(1), Handle(3)]));
        assert_eq!((next.below(Handle(1)), next.below(Handle(3))), (None, Some(Handle(0))));
        assert!(next.note(Node(5), Handle(9)));
        assert_eq!((next.closed(Handle(3)), next.of(Node(2))), (Some(Handle(0)), vec![Handle(1)]));
        let last = Unopened::open(&keep).expect("a region");
        assert_eq!((last.of(Node(2)), last.of(Node(5))), (vec![Handle(1)], vec![Handle(9)]));
    }

    #[test]
    fn there_is_an_end_of_it() {
        let unopened = Unopened::default();
        let all = (0..SLOTS as u64).all(|number| unopened.note(Node(2), Handle(number)));
        assert!(all && !unopened.note(Node(2), Handle(SLOTS as u64)));
        unopened.closed(Handle(5));
        assert!(unopened.note(Node(2), Handle(5)));
    }
}
