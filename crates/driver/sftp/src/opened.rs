// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are open, and what of that is noted for the next process.

use crate::files::{Content, OpenFile, server_flags};
use crate::kept::{Kept, WasOpen};
use crate::known::{Change, Known, UnderWay};
use crate::pending_create::PendingCreate;
use crate::session::Session;
use crate::slots::{Held, Slot};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Cx, Errno, Handle, Node, Result, Time, lock};
use outrigger_proto_sftp::Attrs;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// All open files.
#[derive(Default)]
pub(crate) struct Files {
    next: AtomicU64,
    kept: Option<Arc<Kept>>,
    open: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    files: HashMap<Handle, Arc<OpenFile>>,
    /// What the open files of each node share.
    uses: HashMap<Node, Use>,
    /// Open nodes whose last name was taken, and where that is noted.
    hidden: HashMap<Node, Option<usize>>,
}

/// What is known of a node while it is open.
#[derive(Default)]
struct Use {
    /// How often it is open.
    count: usize,
    content: Arc<Content>,
    /// What is known of the file that has its name now.
    known: Arc<Known>,
}

/// An open file that was closed.
pub(crate) struct Removed {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) known: Option<Arc<Known>>,
    pub(crate) was_hidden: Option<Option<usize>>,
}

/// The reply to an open: writes are answered when they were made, so that closing has nothing to report.
fn opened(handle: Handle) -> Opened {
    Opened { handle, how: OpenHow::NO_FLUSH, ..Opened::default() }
}

impl Files {
    /// None but those of former processes.
    pub(crate) fn new(kept: Option<Arc<Kept>>) -> Self {
        let files = Files { kept, ..Files::default() };
        for WasOpen { handle, node, flags, mode, facts } in files.kept.iter().flat_map(|kept| kept.files()) {
            let create = mode.map_or_else(PendingCreate::made, |mode| PendingCreate::pending(mode, true));
            let known = files.known(node).filter(|known| known.facts() == facts);
            let known = known.unwrap_or_else(|| Known::new(facts));
            files.insert((handle, node, flags), (Slot::new(server_flags(flags)), create, 0), known);
        }
        files
    }

    /// Gives the handles of the server that a former process had to the files that they are for, and closes the others.
    pub(crate) fn adopt(&self, session: &Session, kept: &Kept) {
        for (handle, owner) in kept.handles(session.epoch) {
            let held = Held::new(session.clone(), handle);
            if let Ok(file) = self.get(Handle(owner >> 1)) {
                file.adopt(owner, held);
            }
        }
    }

    /// A handle for a file opened with these flags, whose handle at the server is or will be in `slot`, asked for after the
    /// change elsewhere with the number `asked` was seen, when `known` was what is known of it unless it is open already.
    ///
    /// # Errors
    /// `ENFILE` when as many are open as can be noted.
    pub(crate) fn add(
        &self,
        cx: &Cx,
        node: Node,
        flags: OpenFlags,
        (slot, asked, known): (Slot, u64, Arc<Known>),
    ) -> Result<Opened> {
        let handle = self.note(cx, node, flags, None)?;
        let known = self.known(node).unwrap_or(known);
        let file = self.insert((handle, node, flags), (slot, PendingCreate::made(), asked), known);
        file.owns_its_handle();
        Ok(opened(handle))
    }

    /// A handle for a file that is still to be made, with these permissions.
    ///
    /// # Errors
    /// As [`Files::add`].
    pub(crate) fn add_pending(&self, cx: &Cx, node: Node, flags: OpenFlags, mode: u32) -> Result<Opened> {
        let flags = flags - OpenFlags::ASYNC_CREATE;
        let handle = self.note(cx, node, flags, Some(mode))?;
        let pending = (Slot::new(server_flags(flags)), PendingCreate::pending(mode, false), 0);
        self.insert((handle, node, flags), pending, Arc::default());
        Ok(opened(handle))
    }

    /// A new handle, which is noted.
    fn note(&self, cx: &Cx, node: Node, flags: OpenFlags, pending: Option<u32>) -> Result<Handle> {
        let handle = match &self.kept {
            Some(kept) => kept.next_file(),
            None => Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1),
        };
        // What a layer has opened for itself, that layer does not know any more when it dies.
        if let Some(kept) = self.kept.as_ref().filter(|_| cx.slot != Cx::NO_SLOT) {
            kept.note_file(handle, node, flags, pending)?;
        }
        Ok(handle)
    }

    /// A file was made, or will not be.
    pub(crate) fn is_made(&self, handle: Handle) {
        self.kept.iter().for_each(|kept| kept.file_is_made(handle));
    }

    /// All that are open.
    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        lock(&self.open).files.values().cloned().collect()
    }

    fn insert(
        &self,
        (handle, node, flags): (Handle, Node, OpenFlags),
        slot: (Slot, PendingCreate, u64),
        known: Arc<Known>,
    ) -> Arc<OpenFile> {
        let mut table = lock(&self.open);
        let usage = table.uses.entry(node).or_default();
        usage.count += 1;
        usage.known = known;
        let file = Arc::new(OpenFile::new((handle, node, flags), slot, &usage.content));
        file.slots().iter().for_each(|slot| drop(slot.set_known(&usage.known)));
        self.kept.iter().for_each(|kept| usage.known.keep_with(kept, handle));
        table.files.insert(handle, Arc::clone(&file));
        file
    }

    /// What is known of the file that has the name of a node now, while that is open.
    pub(crate) fn known(&self, node: Node) -> Option<Arc<Known>> {
        lock(&self.open).uses.get(&node).map(|usage| Arc::clone(&usage.known))
    }

    /// What is known of what a slot of an open file leads to is this.
    pub(crate) fn is_known_by(&self, file: &OpenFile, slot: &Slot, known: &Arc<Known>) {
        let before = slot.set_known(known);
        // What an open file has beside what it was opened for is opened anew by the next process.
        if let Some(kept) = self.kept.as_ref().filter(|_| file.is_main(slot)) {
            before.leave(file.handle);
            known.keep_with(kept, file.handle);
        }
    }

    /// A file of this node was seen by its path, at this time of day, by a request of the moment `asked`.
    pub(crate) fn saw(&self, node: Node, attrs: &Attrs, asked: u64, now: Time) {
        let mut table = lock(&self.open);
        if let Some(usage) = table.uses.get_mut(&node)
            && usage.known.saw(attrs, asked, now)
        {
            usage.known = Known::of(attrs);
        }
    }

    /// What has the name of a node is not the file that was `known` under it.
    pub(crate) fn is_another(&self, node: Node, known: &Arc<Known>, attrs: &Attrs) {
        let mut table = lock(&self.open);
        if let Some(usage) = table.uses.get_mut(&node).filter(|usage| Arc::ptr_eq(&usage.known, known)) {
            usage.known = Known::of(attrs);
        }
    }

    /// What has the name of an open node is about to be changed.
    pub(crate) fn begin(&self, node: Node, change: Change, now: Time) -> Option<UnderWay> {
        Some(self.known(node)?.begin(change, now))
    }

    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = lock(&self.open).files.get(&handle).cloned();
        file.ok_or_else(|| Errno::EBADF.because("the file is not open"))
    }

    /// Takes a file out; gives what is known of it if it is not open any more, and whether it was hidden and where that is
    /// noted.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Removed> {
        let mut table = lock(&self.open);
        let file = table.files.remove(&handle)?;
        let usage = table.uses.get_mut(&file.node)?;
        usage.count -= 1;
        let last = usage.count == 0;
        let known = last.then(|| Arc::clone(&usage.known));
        if last {
            table.uses.remove(&file.node);
        }
        let was_hidden = if last { table.hidden.remove(&file.node) } else { None };
        file.slots().iter().for_each(|slot| slot.known().leave(handle));
        self.kept.iter().for_each(|kept| kept.erase_file(handle));
        Some(Removed { file, known, was_hidden })
    }

    /// Notes that a file was made `size` bytes long.
    pub(crate) fn is_resized(&self, node: Node, size: u64) {
        if let Some(usage) = lock(&self.open).uses.get(&node) {
            usage.content.end.store(size, Ordering::Release);
        }
    }

    pub(crate) fn is_open(&self, node: Node) -> bool {
        lock(&self.open).uses.contains_key(&node)
    }

    pub(crate) fn is_hidden(&self, node: Node) -> bool {
        lock(&self.open).hidden.contains_key(&node)
    }

    /// Notes that an open node lost its last name, which later processes find in `note`; false when it is not open any more.
    pub(crate) fn hide(&self, node: Node, note: Option<usize>) -> bool {
        let mut table = lock(&self.open);
        let is_open = table.uses.contains_key(&node);
        if is_open {
            table.hidden.insert(node, note);
        }
        is_open
    }

    /// Where it is noted that an open node lost its last name.
    pub(crate) fn note_of(&self, node: Node) -> Option<usize> {
        lock(&self.open).hidden.get(&node).copied().flatten()
    }

    pub(crate) fn hidden(&self) -> Vec<Node> {
        lock(&self.open).hidden.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::Facts;
    use outrigger_core::{Credentials, HeapKeep, Keep};
    use outrigger_proto_sftp::{OpenFlags as Flags, Times};

    #[test]
    fn the_next_process_knows_what_open_files_must_look_like() {
        let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
        let files = || {
            let kept = Kept::open(Arc::clone(&keep)).expect("memory");
            Files::new(Some(Arc::new(kept)))
        };
        let attrs = Attrs { size: Some(100), times: Some(Times { atime: 0, mtime: 50 }), ..Attrs::NONE };
        let (before, now) = (files(), Time::new(10_000, 0));
        let cx = Cx { slot: 0, ..Cx::new(1, Credentials::new(0, 0), "test") };
        let open = |node| {
            let slot = (Slot::new(Flags::WRITE), 0, Known::of(&attrs));
            before.add(&cx, node, OpenFlags::WRITE_ONLY, slot).expect("opened").handle
        };
        let opened = [open(Node(7)), open(Node(7)), open(Node(8))];
        // It dies while it writes.
        std::mem::forget(before.begin(Node(7), Change::Write { offset: 100, len: 50 }, now));
        let after = files();
        let known = |handle| after.get(handle).expect("open").main().known();
        let [one, same, other] = opened.map(known);
        assert_eq!(one.facts(), Facts { size: Some((100, 150)), mtime: Some(50), later: true });
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(other.facts(), Facts { size: Some((100, 100)), mtime: Some(50), later: false });
        // What is written by one of them is known of both, also to the process after that one.
        one.begin(Change::Size(0), now).done(0);
        let last = files();
        let facts = last.get(opened[1]).expect("open").main().known().facts();
        assert_eq!(facts, Facts { size: Some((0, 0)), mtime: Some(50), later: true });
    }
}
