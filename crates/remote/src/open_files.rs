// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are open, for drivers whose servers have no open files.

use crate::slots::Slots;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Keep, Node, Result, lock};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// How many files can be open in a tree that outlives its process.
const NOTES: usize = 1 << 14;

outrigger_core::record! {
    /// An open file, for the process that takes over.
    struct Note { handle: Handle, node: Node, flags: u32 }
}

/// Open files.
pub struct OpenFiles {
    notes: Option<Slots<Note>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    files: HashMap<Handle, OpenFile>,
    /// How often each node is open.
    nodes: HashMap<Node, usize>,
    /// Open nodes that were renamed because they lost their last name.
    removed: HashSet<Node>,
}

struct OpenFile {
    node: Node,
    flags: OpenFlags,
    slot: Option<usize>,
}

/// What became of a node whose file was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// It is open elsewhere.
    InUse,
    /// It is not open any more.
    Last,
    /// The same, and it had lost its last name.
    LastRemoved,
}

impl State {
    fn insert(&mut self, handle: Handle, file: OpenFile) {
        *self.nodes.entry(file.node).or_default() += 1;
        self.files.insert(handle, file);
    }

    /// What was open, and whether its node is not any more.
    fn remove(&mut self, handle: Handle) -> Option<(OpenFile, bool)> {
        let file = self.files.remove(&handle)?;
        let count = self.nodes.get_mut(&file.node)?;
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.nodes.remove(&file.node);
        }
        Some((file, is_last))
    }
}

impl OpenFiles {
    /// None but those that former processes left in `keep`; `is_removed` tells those whose name is a silly one.
    ///
    /// # Errors
    /// Those of [`Slots::open`].
    pub fn open(keep: Option<&dyn Keep>, is_removed: impl Fn(Node) -> bool) -> Result<Self> {
        let notes = keep.map(|keep| Slots::open(keep, "open-files", NOTES)).transpose()?;
        let mut state = State::default();
        for (slot, Note { handle, node, flags }) in notes.iter().flat_map(Slots::all) {
            let flags = OpenFlags::from_bits_retain(flags);
            state.last = state.last.max(handle.0);
            state.insert(handle, OpenFile { node, flags, slot: Some(slot) });
            if is_removed(node) {
                state.removed.insert(node);
            }
        }
        Ok(OpenFiles { notes, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A handle for a file that is opened with these flags.
    ///
    /// # Errors
    /// `ENFILE` when too many are open.
    pub fn add(&self, node: Node, flags: OpenFlags) -> Result<Handle> {
        let mut state = self.lock();
        let handle = Handle(state.last + 1);
        let note = Note { handle, node, flags: flags.bits() };
        let slot = self.notes.as_ref().map(|notes| notes.add(&note)).transpose()?;
        state.last = handle.0;
        state.insert(handle, OpenFile { node, flags, slot });
        Ok(handle)
    }

    /// The flags that a file was opened with.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub fn flags(&self, handle: Handle) -> Result<OpenFlags> {
        let state = self.lock();
        let file = state.files.get(&handle).ok_or_else(|| Errno::EBADF.because("the file is not open"))?;
        Ok(file.flags)
    }

    /// Closes a file.
    pub fn close(&self, handle: Handle) -> Closed {
        let mut state = self.lock();
        let Some((OpenFile { node, slot, .. }, is_last)) = state.remove(handle) else { return Closed::InUse };
        if let (Some(notes), Some(slot)) = (&self.notes, slot) {
            notes.remove(slot);
        }
        match is_last {
            false => Closed::InUse,
            true if state.removed.remove(&node) => Closed::LastRemoved,
            true => Closed::Last,
        }
    }

    /// Whether a node is open.
    pub fn is_open(&self, node: Node) -> bool {
        self.lock().nodes.contains_key(&node)
    }

    /// Notes that an open node lost its last name; false when it is not open any more.
    pub fn mark_removed(&self, node: Node) -> bool {
        let mut state = self.lock();
        let is_open = state.nodes.contains_key(&node);
        if is_open {
            state.removed.insert(node);
        }
        is_open
    }

    /// Takes [`OpenFiles::mark_removed`] back.
    pub fn mark_named(&self, node: Node) {
        self.lock().removed.remove(&node);
    }

    /// Whether an open node lost its last name.
    pub fn is_removed(&self, node: Node) -> bool {
        self.lock().removed.contains(&node)
    }

    /// The open nodes that lost their last name.
    pub fn removed(&self) -> Vec<Node> {
        self.lock().removed.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn the_last_close_is_told_and_open_files_outlive_the_process() {
        let keep = HeapKeep::default();
        let open = || OpenFiles::open(Some(&keep), |node| node == Node(7)).expect("memory");
        let files = open();
        let flags = OpenFlags::APPEND | OpenFlags::WRITE_ONLY;
        let (one, two) = (files.add(Node(7), flags).expect("room"), files.add(Node(7), flags).expect("room"));
        let other = files.add(Node(8), OpenFlags::empty()).expect("room");
        assert_eq!((files.close(one), files.flags(one).is_err()), (Closed::InUse, true));
        let later = open();
        assert_eq!(later.flags(two), Ok(flags));
        assert!(later.is_removed(Node(7)) && !later.is_removed(Node(8)) && later.is_open(Node(8)));
        assert_eq!((later.close(two), later.close(other)), (Closed::LastRemoved, Closed::Last));
        assert_eq!((later.close(other), later.mark_removed(Node(8))), (Closed::InUse, false));
    }
}
