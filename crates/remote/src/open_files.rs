// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are open, what drivers know of them, and what of that is noted for the process that takes over.

use crate::notes::Notes;
use outrigger_core::ops::OpenFlags;
use outrigger_core::survive::{Area, Layout, Stored};
use outrigger_core::{Errno, Handle, HeapRegion, Keep, Node, Region, Result, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// How many files can be open in a tree that outlives its process.
const NOTES: usize = 1 << 14;

/// What a driver notes of an open file beside its node and flags.
pub type OwnWords = [u64; 4];

outrigger_core::fields! {
    struct Last {
        handle: u64,
    }
}

/// Notes of open files: handle, node, flags, and the words of the driver.
pub struct OpenNotes(Notes<Handle, [u64; 7]>);

impl OpenNotes {
    /// Changes the words of the driver, if the file is noted.
    pub fn change(&self, handle: Handle, change: impl FnOnce(&mut OwnWords)) {
        self.0.change(&handle, |[_, _, _, own @ ..]| change(own));
    }
}

/// An open file of a former process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WasOpen {
    /// What it is called by.
    pub handle: Handle,
    /// The file.
    pub node: Node,
    /// The flags that it was opened with.
    pub flags: OpenFlags,
    /// What the driver noted.
    pub own: OwnWords,
}

/// Open files: a driver has an `F` for each, and an `N` for each node as long as that is open. No handle is given twice, also not by
/// a process that takes over: a request that comes once more is not about another file.
pub struct OpenFiles<F, N = ()> {
    notes: Option<Arc<OpenNotes>>,
    /// The last handle.
    last: Area,
    state: Mutex<State<F, N>>,
}

struct State<F, N> {
    files: HashMap<Handle, (Node, F)>,
    nodes: HashMap<Node, OpenNode<N>>,
}

#[derive(Default)]
struct OpenNode<N> {
    /// How often it is open.
    count: usize,
    /// It was renamed because it lost its last name.
    is_removed: bool,
    of: N,
}

/// A file that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed<F, N = ()> {
    /// What the driver had for it.
    pub file: F,
    /// What it had for the node, if that is not open any more.
    pub last: Option<N>,
    /// Whether the node is not open any more and had lost its last name.
    pub was_removed: bool,
}

impl<F: Clone, N: Default> OpenFiles<F, N> {
    /// None but those that former processes left in `keep`; `file` is what the driver has for one of them.
    ///
    /// # Errors
    /// Those of [`Notes::open`].
    pub fn open(
        keep: Option<&dyn Keep>,
        mut file: impl FnMut(&Arc<OpenNotes>, WasOpen, &mut N) -> F,
    ) -> Result<Self> {
        let (last, notes) = match keep {
            Some(keep) => {
                let notes = Notes::open(keep, "open-files", NOTES, |note: &[u64; 7]| Handle(note[0]))?;
                (Layout::of("last-handle").attach(keep, Last::WORDS)?.area, Some(Arc::new(OpenNotes(notes))))
            }
            None => (Area::whole(Arc::new(HeapRegion::new(Last::WORDS)) as Arc<dyn Region>), None),
        };
        let mut state = State { files: HashMap::new(), nodes: HashMap::new() };
        if let Some(notes) = &notes {
            for [handle, node, flags, own @ ..] in notes.0.all() {
                let (handle, node) = (Handle(handle), Node(node));
                let was = WasOpen { handle, node, flags: OpenFlags::from_bits_retain(flags as u32), own };
                state.insert(handle, node, |of| file(notes, was, of));
            }
        }
        Ok(OpenFiles { notes, last, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<F, N>> {
        lock(&self.state)
    }

    /// Where open files are noted, in a tree that outlives its process.
    pub fn notes(&self) -> Option<&Arc<OpenNotes>> {
        self.notes.as_ref()
    }

    /// A handle for a file that is opened with these flags; `file` is what the driver has for it. It is noted, with `own`, unless a
    /// layer has opened it for itself, of which the process that takes over would not know.
    ///
    /// # Errors
    /// `ENFILE` when as many are open as can be noted.
    pub fn add(
        &self,
        node: Node,
        flags: OpenFlags,
        (is_by_layer, own): (bool, OwnWords),
        file: impl FnOnce(Handle, &mut N) -> F,
    ) -> Result<Handle> {
        let handle = Handle(self.last.view::<Last<'_>>().handle().increase(1) + 1);
        if let Some(notes) = self.notes.as_ref().filter(|_| !is_by_layer) {
            let [a, b, c, d] = own;
            notes.0.put(handle, &[handle.0, node.0, flags.bits().into(), a, b, c, d])?;
        }
        self.lock().insert(handle, node, |of| file(handle, of));
        Ok(handle)
    }

    /// What the driver has for an open file.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub fn get(&self, handle: Handle) -> Result<F> {
        let file = self.lock().files.get(&handle).map(|(_, file)| file.clone());
        file.ok_or_else(|| Errno::EBADF.because("the file is not open"))
    }

    /// What the driver has for each open file.
    pub fn all(&self) -> Vec<F> {
        self.lock().files.values().map(|(_, file)| file.clone()).collect()
    }

    /// Does `work` with what the driver has for a node, if that is open.
    pub fn with_node<T>(&self, node: Node, work: impl FnOnce(&mut N) -> T) -> Option<T> {
        self.lock().nodes.get_mut(&node).map(|open| work(&mut open.of))
    }

    /// Closes a file.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub fn close(&self, handle: Handle) -> Result<Closed<F, N>> {
        let mut state = self.lock();
        let file = state.files.remove(&handle);
        let (node, file) = file.ok_or_else(|| Errno::EBADF.because("the file is not open"))?;
        self.notes.iter().for_each(|notes| notes.0.remove(&handle));
        let last = state.nodes.get_mut(&node).is_some_and(|open| {
            open.count -= 1;
            open.count == 0
        });
        let last = if last { state.nodes.remove(&node) } else { None };
        let was_removed = last.as_ref().is_some_and(|open| open.is_removed);
        Ok(Closed { file, last: last.map(|open| open.of), was_removed })
    }

    /// The handles by which a node is open.
    pub fn handles(&self, node: Node) -> Vec<Handle> {
        let state = self.lock();
        state.files.iter().filter(|(_, (open, _))| *open == node).map(|(&handle, _)| handle).collect()
    }

    /// Whether a node is open.
    pub fn is_open(&self, node: Node) -> bool {
        self.lock().nodes.contains_key(&node)
    }

    /// Whether a node is open by a file that is like this.
    pub fn is_open_as(&self, node: Node, is_it: impl Fn(&F) -> bool) -> bool {
        self.lock().files.values().any(|(open, file)| *open == node && is_it(file))
    }

    /// Notes that an open node lost its last name; false when it is not open any more.
    pub fn mark_removed(&self, node: Node) -> bool {
        self.lock().nodes.get_mut(&node).map(|open| open.is_removed = true).is_some()
    }

    /// Notes that an open node that lost its last name has one again.
    pub fn mark_named(&self, node: Node) {
        self.lock().nodes.get_mut(&node).into_iter().for_each(|open| open.is_removed = false);
    }

    /// Whether an open node lost its last name.
    pub fn is_removed(&self, node: Node) -> bool {
        self.lock().nodes.get(&node).is_some_and(|open| open.is_removed)
    }

    /// The open nodes that lost their last names.
    pub fn removed(&self) -> Vec<Node> {
        self.lock().nodes.iter().filter(|(_, open)| open.is_removed).map(|(&node, _)| node).collect()
    }
}

impl<F, N: Default> State<F, N> {
    fn insert(&mut self, handle: Handle, node: Node, file: impl FnOnce(&mut N) -> F) {
        let open = self.nodes.entry(node).or_default();
        open.count += 1;
        let file = file(&mut open.of);
        self.files.insert(handle, (node, file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn the_last_close_is_told_and_open_files_outlive_the_process() {
        let keep = HeapKeep::default();
        let open = || {
            let count = |_: &Arc<OpenNotes>, was: WasOpen, opens: &mut u32| {
                *opens += 1;
                was
            };
            OpenFiles::<WasOpen, u32>::open(Some(&keep), count).expect("memory")
        };
        let files = open();
        let flags = OpenFlags::APPEND | OpenFlags::WRITE_ONLY;
        let add = |files: &OpenFiles<WasOpen, u32>, node, is_by_layer| {
            let own = [1, 2, 3, 4];
            let file = |handle, opens: &mut u32| {
                *opens += 1;
                WasOpen { handle, node, flags, own }
            };
            files.add(node, flags, (is_by_layer, own), file).expect("room")
        };
        let [one, two, other] = [7, 7, 8].map(|node| add(&files, Node(node), false));
        let own = add(&files, Node(8), true);
        assert!(files.mark_removed(Node(7)) && !files.mark_removed(Node(9)));
        assert!(files.close(one).is_ok_and(|closed| closed.last.is_none() && !closed.was_removed));
        assert_eq!(files.get(one).unwrap_err().errno, Errno::EBADF);
        files.notes().expect("notes").change(two, |own| own[3] = 5);
        let later = open();
        assert_eq!(later.get(two), Ok(WasOpen { handle: two, node: Node(7), flags, own: [1, 2, 3, 5] }));
        assert!(later.is_open(Node(8)) && later.get(own).is_err(), "a layer's own is not known any more");
        assert!(later.mark_removed(Node(7)) && later.removed() == [Node(7)]);
        let [two, other] = [two, other].map(|handle| later.close(handle).expect("open"));
        assert_eq!(
            (two.last, two.was_removed, other.last, other.was_removed),
            (Some(1), true, Some(1), false)
        );
        assert!(!later.mark_removed(Node(8)) && later.all().is_empty());
    }

    /// The kernel sends requests again whose replies a killed process did not give.
    #[test]
    fn no_handle_is_given_twice_also_when_the_last_one_was_closed_before_a_kill() {
        let keep = HeapKeep::default();
        let open = || OpenFiles::<()>::open(Some(&keep), |_, _, _| ()).expect("memory");
        let add = |files: &OpenFiles<()>| {
            files.add(Node(7), OpenFlags::empty(), (false, [0; 4]), |_, _| ()).expect("room")
        };
        let files = open();
        let handle = add(&files);
        files.close(handle).expect("open");
        assert_ne!(add(&open()), handle);
    }
}
