// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are open, and what of that is noted for the next process.

use crate::attr::looks;
use crate::files::{Content, OpenFile, server_flags};
use crate::kept::Kept;
use crate::pending_create::PendingCreate;
use crate::session::Session;
use crate::slots::{Held, Slot};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Cx, Handle, Keep, Node, Result, Time};
use outrigger_proto_sftp::Attrs;
use outrigger_toolkit_remote::known::{Change, Facts, Known, UnderWay};
use outrigger_toolkit_remote::{Closed, OpenFiles, OpenNotes, WasOpen};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// All open files.
pub(crate) struct Files(OpenFiles<Arc<OpenFile>, Use>);

/// What is known of a node while it is open.
#[derive(Default)]
pub(crate) struct Use {
    content: Arc<Content>,
    /// What is known of the file that has its name now.
    pub(crate) known: Arc<Known>,
}

/// The reply to an open: writes are answered when they were made, so that closing has nothing to report.
fn opened(handle: Handle) -> Opened {
    Opened { handle, how: OpenHow::NO_FLUSH, ..Opened::default() }
}

impl Deref for Files {
    type Target = OpenFiles<Arc<OpenFile>, Use>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Use {
    /// An open file that shares what is known of its node, which is noted.
    fn open(
        &self,
        file: (Handle, Node, OpenFlags),
        slot: (Slot, PendingCreate, u64),
        notes: Option<&Arc<OpenNotes>>,
    ) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile::new(file, slot, &self.content));
        file.slots().iter().for_each(|slot| drop(slot.set_known(&self.known)));
        notes.iter().for_each(|notes| self.known.keep_with(notes, file.handle));
        file
    }
}

impl Files {
    /// None but those that former processes left in `keep`.
    ///
    /// # Errors
    /// Those of [`OpenFiles::open`].
    pub(crate) fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let files = OpenFiles::open(keep, |notes, was, usage: &mut Use| {
            let WasOpen { handle, node, flags, own } = was;
            let facts = Facts::noted(&own);
            if usage.known.facts() != facts {
                usage.known = Known::new(facts);
            }
            let slot = (Slot::new(server_flags(flags)), PendingCreate::noted(&own), 0);
            usage.open((handle, node, flags), slot, Some(notes))
        });
        files.map(Files)
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
        let known = self.known(node).unwrap_or(known);
        let slot = (slot, PendingCreate::made(), asked);
        let handle = self.enter(cx, (node, flags), None, slot, known)?;
        self.get(handle)?.owns_its_handle();
        Ok(opened(handle))
    }

    /// A handle for a file that is still to be made, with these permissions.
    ///
    /// # Errors
    /// As [`Files::add`].
    pub(crate) fn add_pending(&self, cx: &Cx, node: Node, flags: OpenFlags, mode: u32) -> Result<Opened> {
        let flags = flags - OpenFlags::ASYNC_CREATE;
        let slot = (Slot::new(server_flags(flags)), PendingCreate::pending(mode, false), 0);
        self.enter(cx, (node, flags), Some(mode), slot, Arc::default()).map(opened)
    }

    fn enter(
        &self,
        cx: &Cx,
        (node, flags): (Node, OpenFlags),
        pending: Option<u32>,
        slot: (Slot, PendingCreate, u64),
        known: Arc<Known>,
    ) -> Result<Handle> {
        let own = PendingCreate::note(pending);
        self.0.add(node, flags, (cx.slot == Cx::NO_SLOT, own), |handle, usage| {
            usage.known = known;
            usage.open((handle, node, flags), slot, self.notes())
        })
    }

    /// A file was made, or will not be.
    pub(crate) fn is_made(&self, handle: Handle) {
        self.notes().iter().for_each(|notes| notes.change(handle, |[pending, ..]| *pending = 0));
    }

    /// What is known of the file that has the name of a node now, while that is open.
    pub(crate) fn known(&self, node: Node) -> Option<Arc<Known>> {
        self.with_node(node, |usage| Arc::clone(&usage.known))
    }

    /// What is known of what a slot of an open file leads to is this.
    pub(crate) fn is_known_by(&self, file: &OpenFile, slot: &Slot, known: &Arc<Known>) {
        let before = slot.set_known(known);
        // What an open file has beside what it was opened for is opened anew by the next process.
        if let Some(notes) = self.notes().filter(|_| file.is_main(slot)) {
            before.leave(file.handle);
            known.keep_with(notes, file.handle);
        }
    }

    /// A file of this node was seen by its path, at this time of day, by a request of the moment `asked`.
    pub(crate) fn saw(&self, node: Node, attrs: &Attrs, asked: u64, now: Time) {
        self.with_node(node, |usage| {
            if usage.known.saw(looks(attrs), asked, now) {
                usage.known = Known::of(looks(attrs));
            }
        });
    }

    /// What has the name of a node is not the file that was `known` under it.
    pub(crate) fn is_another(&self, node: Node, known: &Arc<Known>, attrs: &Attrs) {
        self.with_node(node, |usage| {
            if Arc::ptr_eq(&usage.known, known) {
                usage.known = Known::of(looks(attrs));
            }
        });
    }

    /// What has the name of an open node is about to be changed.
    pub(crate) fn begin(&self, node: Node, change: Change, now: Time) -> Option<UnderWay> {
        Some(self.known(node)?.begin(change, now))
    }

    /// Takes a file out.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Closed<Arc<OpenFile>, Use>> {
        let closed = self.close(handle)?;
        closed.file.slots().iter().for_each(|slot| slot.known().leave(handle));
        Ok(closed)
    }

    /// Notes that a file was made `size` bytes long.
    pub(crate) fn is_resized(&self, node: Node, size: u64) {
        self.with_node(node, |usage| usage.content.end.store(size, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::changed_at;
    use outrigger_core::{Credentials, HeapKeep};
    use outrigger_proto_sftp::{OpenFlags as Flags, Times};

    #[test]
    fn the_next_process_knows_what_open_files_must_look_like() {
        let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
        let files = || Files::open(Some(&*keep)).expect("memory");
        let attrs = Attrs { size: Some(100), times: Some(Times { atime: 0, mtime: 50 }), ..Attrs::NONE };
        let (before, now) = (files(), Time::new(10_000, 0));
        let cx = Cx { slot: 0, ..Cx::new(1, Credentials::new(0, 0), "test") };
        let open = |node| {
            let slot = (Slot::new(Flags::WRITE), 0, Known::of(looks(&attrs)));
            before.add(&cx, node, OpenFlags::WRITE_ONLY, slot).expect("opened").handle
        };
        let opened = [open(Node(7)), open(Node(7)), open(Node(8))];
        // It dies while it writes.
        std::mem::forget(before.begin(Node(7), Change::Write { offset: 100, len: 50 }, now));
        let after = files();
        let known = |handle| after.get(handle).expect("open").main().known();
        let [one, same, other] = opened.map(known);
        assert_eq!(one.facts(), Facts { size: Some((100, 150)), changed: Some(changed_at(50)), later: true });
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!(
            other.facts(),
            Facts { size: Some((100, 100)), changed: Some(changed_at(50)), later: false }
        );
        // What is written by one of them is known of both, also to the process after that one.
        one.begin(Change::Size(0), now).done(0);
        let last = files();
        let facts = last.get(opened[1]).expect("open").main().known().facts();
        assert_eq!(facts, Facts { size: Some((0, 0)), changed: Some(changed_at(50)), later: true });
    }
}
