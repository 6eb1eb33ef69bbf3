// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were opened by handles of ours, which the tree below may not know of, in memory that outlives the process.
//!
//! Such a file has to be opened below before it loses a name: without one it cannot be, when its content is not kept any more. The
//! process that takes over has to know that of files that a former one has opened, too.
//!
//! | from word | what |
//! |---|---|
//! | 0 | mark and version |
//! | 1 | how many slots were ever used |
//! | [`FIRST`] | slots: node (0: free), handle, the handle below and one more (0: there is none) |

use crate::record::lock;
use outrigger_core::{Errno, Handle, Keep, Node, Region, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};

/// "OROpen" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"OROpen\0\x01");
const USED: usize = 1;
const FIRST: usize = 2;
const SLOT: usize = 3;
/// So many files may be open like that; others are opened below at once.
const SLOTS: usize = 1 << 15;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Unopened {
    region: Option<Arc<dyn Region>>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    /// Node, slot, and the handle below.
    open: HashMap<Handle, (Node, usize, Option<Handle>)>,
    of: HashMap<Node, Vec<Handle>>,
    free: Vec<usize>,
    used: usize,
}

impl Files {
    fn insert(&mut self, handle: Handle, node: Node, slot: usize, below: Option<Handle>) {
        self.open.insert(handle, (node, slot, below));
        self.of.entry(node).or_default().push(handle);
    }
}

impl Unopened {
    /// Those in `keep`, of former processes.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when the region holds something else.
    pub(crate) fn open(keep: &dyn Keep) -> Result<Self> {
        let region = keep.region("cache-open", FIRST + SLOT * SLOTS)?;
        let unopened = Unopened { region: Some(region), files: Mutex::default() };
        match unopened.get(0) {
            MAGIC => {}
            0 => unopened.put(0, MAGIC),
            _ => return Err(Errno::EUCLEAN.because("the region cache-open is of another version")),
        }
        let mut files = lock(&unopened.files);
        files.used = (unopened.get(USED) as usize).min(SLOTS);
        for slot in 0..files.used {
            let [node, handle, below] = [0, 1, 2].map(|word| unopened.get(FIRST + SLOT * slot + word));
            match node {
                0 => files.free.push(slot),
                _ => files.insert(Handle(handle), Node(node), slot, below.checked_sub(1).map(Handle)),
            }
        }
        drop(files);
        Ok(unopened)
    }

    fn get(&self, word: usize) -> u64 {
        self.region.as_ref().map_or(0, |region| region.word(word).load(Acquire))
    }

    fn put(&self, word: usize, value: u64) {
        self.region.iter().for_each(|region| region.word(word).store(value, Release));
    }

    /// A file is open here alone; false when there is no room to note that.
    pub(crate) fn note(&self, node: Node, handle: Handle) -> bool {
        let mut files = lock(&self.files);
        let slot = match files.free.pop() {
            Some(slot) => slot,
            None if files.used == SLOTS => return false,
            None => {
                files.used += 1;
                files.used - 1
            }
        };
        let at = FIRST + SLOT * slot;
        self.put(at + 1, handle.0);
        self.put(at + 2, 0);
        self.put(at, node.0);
        self.put(USED, files.used as u64);
        files.insert(handle, node, slot, None);
        true
    }

    /// It is open below, too, by this handle.
    pub(crate) fn opened(&self, handle: Handle, below: Handle) {
        if let Some((_, slot, known)) = lock(&self.files).open.get_mut(&handle) {
            self.put(FIRST + SLOT * *slot + 2, below.0.wrapping_add(1));
            *known = Some(below);
        }
    }

    /// Whether a handle is one of these.
    pub(crate) fn has(&self, handle: Handle) -> bool {
        lock(&self.files).open.contains_key(&handle)
    }

    /// The handle below, as far as it is known.
    pub(crate) fn below(&self, handle: Handle) -> Option<Handle> {
        lock(&self.files).open.get(&handle)?.2
    }

    /// A file is closed; gives the handle below.
    pub(crate) fn closed(&self, handle: Handle) -> Option<Handle> {
        let mut files = lock(&self.files);
        let (node, slot, below) = files.open.remove(&handle)?;
        if let Some(handles) = files.of.get_mut(&node) {
            handles.retain(|one| *one != handle);
            if handles.is_empty() {
                files.of.remove(&node);
            }
        }
        self.put(FIRST + SLOT * slot, 0);
        files.free.push(slot);
        below
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.files).open.is_empty()
    }

    /// The handles of a file.
    pub(crate) fn of(&self, node: Node) -> Vec<Handle> {
        lock(&self.files).of.get(&node).cloned().unwrap_or_default()
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
