// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are open, and what the next process is told of that.

use crate::files::{Content, OpenFile, server_flags};
use crate::inner::lock;
use crate::kept::{Kept, WasOpen};
use crate::newborn::Birth;
use crate::read_ahead::Budget;
use crate::session::Session;
use crate::slots::{Held, Slot};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Cx, Errno, Handle, Node, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// All open files.
#[derive(Default)]
pub(crate) struct Files {
    next: AtomicU64,
    kept: Option<Arc<Kept>>,
    open: Mutex<Table>,
    budget: Arc<Budget>,
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
}

/// What is told of an open file: writes are answered when they were made, so that closing has nothing to tell.
fn opened(handle: Handle) -> Opened {
    Opened { handle, how: OpenHow::NO_FLUSH, ..Opened::default() }
}

impl Files {
    /// None but those of former processes; of each at most so many bytes are read ahead of its reader.
    pub(crate) fn new(read_ahead: usize, kept: Option<Arc<Kept>>) -> Self {
        let files = Files { budget: Budget::new(read_ahead), kept, ..Files::default() };
        for WasOpen { handle, node, flags, mode } in files.kept.iter().flat_map(|kept| kept.files()) {
            let birth = mode.map_or_else(Birth::made, |mode| Birth::unmade(mode, true));
            files.insert(handle, node, flags, (Slot::new(server_flags(flags)), birth, 0));
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
    /// change elsewhere with the number `asked` was seen.
    ///
    /// # Errors
    /// `ENFILE` when as many are open as can be noted.
    pub(crate) fn add(
        &self,
        cx: &Cx,
        node: Node,
        flags: OpenFlags,
        (slot, asked): (Slot, u64),
    ) -> Result<Opened> {
        let handle = self.note(cx, node, flags, None)?;
        let file = self.insert(handle, node, flags, (slot, Birth::made(), asked));
        file.owns_its_handle();
        Ok(opened(handle))
    }

    /// A handle for a file that is still to be made, with these permissions.
    ///
    /// # Errors
    /// As [`Files::add`].
    pub(crate) fn add_unmade(&self, cx: &Cx, node: Node, flags: OpenFlags, mode: u32) -> Result<Opened> {
        let flags = flags - OpenFlags::BEHIND;
        let handle = self.note(cx, node, flags, Some(mode))?;
        self.insert(handle, node, flags, (Slot::new(server_flags(flags)), Birth::unmade(mode, false), 0));
        Ok(opened(handle))
    }

    /// A new handle, which is noted.
    fn note(&self, cx: &Cx, node: Node, flags: OpenFlags, unmade: Option<u32>) -> Result<Handle> {
        let handle = match &self.kept {
            Some(kept) => kept.next_file(),
            None => Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1),
        };
        // What a layer has opened for itself, that layer does not know any more when it dies.
        if let Some(kept) = self.kept.as_ref().filter(|_| cx.slot != Cx::NO_SLOT) {
            kept.note_file(handle, node, flags, unmade)?;
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
        handle: Handle,
        node: Node,
        flags: OpenFlags,
        slot: (Slot, Birth, u64),
    ) -> Arc<OpenFile> {
        let mut table = lock(&self.open);
        let usage = table.uses.entry(node).or_default();
        usage.count += 1;
        let file = Arc::new(OpenFile::new((handle, node, flags), slot, &usage.content, &self.budget));
        table.files.insert(handle, Arc::clone(&file));
        file
    }

    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = lock(&self.open).files.get(&handle).cloned();
        file.ok_or_else(|| Errno::EBADF.because("the file is not open"))
    }

    /// Takes a file out; tells whether it was hidden and nobody has it open any more, and where that is noted.
    pub(crate) fn remove(&self, handle: Handle) -> Option<(Arc<OpenFile>, Option<Option<usize>>)> {
        let mut table = lock(&self.open);
        let file = table.files.remove(&handle)?;
        let usage = table.uses.get_mut(&file.node)?;
        usage.count -= 1;
        let last = usage.count == 0;
        if last {
            table.uses.remove(&file.node);
        }
        let was_hidden = if last { table.hidden.remove(&file.node) } else { None };
        self.kept.iter().for_each(|kept| kept.erase_file(handle));
        Some((file, was_hidden))
    }

    /// Notes that the content of a file is being changed, or was a moment ago: what was read before is out of date.
    pub(crate) fn changes(&self, node: Node) {
        if let Some(usage) = lock(&self.open).uses.get(&node) {
            usage.content.version.fetch_add(1, Ordering::AcqRel);
        }
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

    /// Notes that an open node lost its last name, as `note` tells processes to come; false when it is not open any more.
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
