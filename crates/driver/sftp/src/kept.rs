// SPDX-License-Identifier: MIT OR Apache-2.0
//! What outlives the process that serves, in a [`Keep`] beside the nodes (see `InodeTable`).
//!
//! | region | what |
//! |---|---|
//! | `sftp` | [`Words`]: where the tree begins, the connection, by which connection files were changed |
//! | `sftp-files` | [`FileNote`]: open files, and what they must look like |
//! | `sftp-handles` | handles of the server that are open, and whose they are |
//! | `sftp-asides` | [`AsideNote`]: files renamed aside, or about to be |
//! | `sftp-ids` | identities (`idmap`) |

use crate::known::Facts;
use crate::line::LineWords;
use crate::origin::Kept as UnsyncedBy;
use bytes::Bytes;
use outrigger_core::ops::OpenFlags;
use outrigger_core::survive::{Area, Layout, Stored, Text};
use outrigger_core::{Handle, Keep, Node, Result, lock};
use outrigger_proto_sftp::{Extensions, Owner};
use outrigger_toolkit_remote::Slots;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// How many files and handles can be open, and how many files renamed aside.
const FILES_MAX: usize = 1 << 14;
const HANDLES_MAX: usize = 1 << 14;
const ASIDES_MAX: usize = 1 << 10;
/// With the time of change of an open file: that is known, and it may be a later one.
const TIMED: u64 = 1 << 32;
const LATER: u64 = 1 << 33;
/// With the permissions of a file that is still to be made.
const PENDING: u64 = 1 << 63;
/// The longest handle of a server that is noted, in words; OpenSSH's have four bytes.
const HANDLE: usize = 6;

outrigger_core::fields! {
    /// See the [module](self).
    pub(crate) struct Words {
        /// The last number of an open file.
        last_file: u64,
        /// The connection by which files were changed that may not be on stable storage: 0 when none were.
        unsynced_epoch: u64,
        unsynced_boot: u64,
        /// See [`Origins`]. The last one of these is noted last.
        has_owner: u64,
        uid: u64,
        gid: u64,
        extensions: u64,
        base: Text<'static, 512>,
        home: Text<'static, 512>,
        line: LineWords<'static>,
    }
}

outrigger_core::record! {
    /// An open file: the permissions of one that is still to be made, and its [`Facts`].
    #[derive(Clone, Copy)]
    struct FileNote { handle: Handle, node: Node, flags: u32, pending: u64, low: u64, high: u64, time: u64 }
}

outrigger_core::record! {
    /// A file that was renamed aside, or was about to be: where it is, and the number in its name there.
    pub(crate) struct AsideNote { pub(crate) node: Node, pub(crate) dir: Node, pub(crate) number: u64 }
}

/// What is noted.
pub(crate) struct Kept {
    pub(crate) keep: Arc<dyn Keep>,
    words: Area,
    files: Slots<FileNote>,
    /// Where the notes of open files are, and what they say.
    files_open: Mutex<HashMap<Handle, (usize, FileNote)>>,
    handles: Slots<[u64; 2 + HANDLE]>,
    handles_open: Mutex<HandlesOpen>,
    pub(crate) asides: Slots<AsideNote>,
}

/// Where the notes of handles are, which are of one connection.
#[derive(Default)]
struct HandlesOpen {
    epoch: u64,
    used: HashMap<Bytes, usize>,
}

/// Where the tree begins at the server, and our identity there.
pub(crate) struct Origins {
    pub(crate) home: Bytes,
    pub(crate) base: Bytes,
    pub(crate) owner: Option<Owner>,
    pub(crate) extensions: Extensions,
}

/// An open file of a former process.
pub(crate) struct WasOpen {
    pub(crate) handle: Handle,
    pub(crate) node: Node,
    pub(crate) flags: OpenFlags,
    /// The permissions it is to have, if it is still to be made.
    pub(crate) mode: Option<u32>,
    pub(crate) facts: Facts,
}

impl FileNote {
    fn with(self, Facts { size, mtime, later }: Facts) -> Self {
        let (low, high) = size.map_or((0, 0), |(low, high)| (low.saturating_add(1), high));
        let time = mtime.map_or(0, |mtime| TIMED | u64::from(mtime)) | if later { LATER } else { 0 };
        FileNote { low, high, time, ..self }
    }

    fn was_open(self) -> WasOpen {
        let FileNote { handle, node, flags, pending, low, high, time } = self;
        let facts = Facts {
            size: low.checked_sub(1).map(|low| (low, high)),
            mtime: (time & TIMED != 0).then_some(time as u32),
            later: time & LATER != 0,
        };
        let mode = (pending & PENDING != 0).then_some(pending as u32);
        WasOpen { handle, node, flags: OpenFlags::from_bits_truncate(flags), mode, facts }
    }
}

/// A handle of the server with its owner, if that fits into a note.
fn handle_note(handle: &[u8], owner: u64) -> Option<[u64; 2 + HANDLE]> {
    let mut bytes = [0; HANDLE * 8];
    bytes.get_mut(..handle.len())?.copy_from_slice(handle);
    let mut note = [0; 2 + HANDLE];
    (note[0], note[1]) = (owner, handle.len() as u64);
    note[2..]
        .iter_mut()
        .zip(bytes.as_chunks().0)
        .for_each(|(word, &bytes)| *word = u64::from_le_bytes(bytes));
    Some(note)
}

impl Kept {
    /// What former processes left in `keep`, or nothing yet.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub(crate) fn open(keep: Arc<dyn Keep>) -> Result<Self> {
        let words = Layout::of("sftp").attach(&*keep, Words::WORDS)?.area.take_for::<Words<'_>>()?;
        Ok(Kept {
            words,
            files: Slots::open(&*keep, "sftp-files", FILES_MAX)?,
            files_open: Mutex::default(),
            handles: Slots::open(&*keep, "sftp-handles", HANDLES_MAX)?,
            handles_open: Mutex::default(),
            asides: Slots::open(&*keep, "sftp-asides", ASIDES_MAX)?,
            keep,
        })
    }

    fn words(&self) -> Words<'_> {
        self.words.view::<Words<'_>>()
    }

    /// What is noted of connections.
    pub(crate) fn line(&self) -> LineWords<'_> {
        self.words().line()
    }

    /// Where the tree begins, if a former process knew.
    pub(crate) fn origins(&self) -> Option<Origins> {
        let words = self.words();
        let owner = Owner { uid: words.uid().get() as u32, gid: words.gid().get() as u32 };
        Some(Origins {
            home: words.home().get()?.into(),
            base: words.base().get()?.into(),
            owner: (words.has_owner().get() != 0).then_some(owner),
            extensions: Extensions::from_bits_truncate(words.extensions().get() as u32),
        })
    }

    /// Notes where the tree begins. Where a path is too long for that, the next process finds out by itself.
    pub(crate) fn note_origins(&self, Origins { home, base, owner, extensions }: &Origins) {
        let (words, Owner { uid, gid }) = (self.words(), owner.unwrap_or_default());
        words.has_owner().set(owner.is_some().into());
        words.uid().set(uid.into());
        words.gid().set(gid.into());
        words.extensions().set(extensions.bits().into());
        let _ = words.base().set(base).and_then(|()| words.home().set(home));
    }

    /// Files were changed by a connection; `is_first` when all that was changed before is on stable storage.
    pub(crate) fn note_unsynced(&self, by: UnsyncedBy, is_first: bool) {
        let (epoch, boot) = (self.words().unsynced_epoch(), self.words().unsynced_boot());
        if is_first || epoch.get() == 0 {
            boot.set(by.boot);
            epoch.set(by.epoch);
        } else if epoch.get() == by.epoch && boot.get() == 0 {
            boot.set(by.boot);
        }
    }

    /// By which connection former processes changed files that may not be on stable storage, if they did.
    pub(crate) fn unsynced(&self) -> Option<UnsyncedBy> {
        let (epoch, boot) = (self.words().unsynced_epoch().get(), self.words().unsynced_boot().get());
        (epoch != 0).then_some(UnsyncedBy { epoch, boot })
    }

    /// A number that no open file had before.
    pub(crate) fn next_file(&self) -> Handle {
        Handle(self.words().last_file().increase(1) + 1)
    }

    /// Notes an open file, and that it is still to be made with these permissions if it is.
    ///
    /// # Errors
    /// `ENFILE` when as many are open as can be noted.
    pub(crate) fn note_file(
        &self,
        handle: Handle,
        node: Node,
        flags: OpenFlags,
        pending: Option<u32>,
    ) -> Result<()> {
        let pending = pending.map_or(0, |mode| PENDING | u64::from(mode));
        let note = FileNote { handle, node, flags: flags.bits(), pending, low: 0, high: 0, time: 0 };
        let slot = self.files.add(&note)?;
        lock(&self.files_open).insert(handle, (slot, note));
        Ok(())
    }

    fn change_file(&self, handle: Handle, change: impl FnOnce(FileNote) -> FileNote) {
        if let Some((slot, note)) = lock(&self.files_open).get_mut(&handle) {
            *note = change(*note);
            self.files.set(*slot, note);
        }
    }

    /// It has been made, or will not be.
    pub(crate) fn file_is_made(&self, handle: Handle) {
        self.change_file(handle, |note| FileNote { pending: 0, ..note });
    }

    /// What an open file must look like.
    pub(crate) fn note_facts(&self, handle: Handle, facts: Facts) {
        self.change_file(handle, |note| note.with(facts));
    }

    /// It was closed.
    pub(crate) fn erase_file(&self, handle: Handle) {
        if let Some((slot, _)) = lock(&self.files_open).remove(&handle) {
            self.files.remove(slot);
        }
    }

    /// The files that former processes had open.
    pub(crate) fn files(&self) -> Vec<WasOpen> {
        let all = self.files.all();
        lock(&self.files_open).extend(all.iter().map(|(slot, note)| (note.handle, (*slot, *note))));
        all.into_iter().map(|(_, note)| note.was_open()).collect()
    }

    /// A connection of its own handles begins: what was open on others is none of its.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        let mut handles = lock(&self.handles_open);
        self.handles.clear();
        *handles = HandlesOpen { epoch, used: HashMap::new() };
    }

    /// Notes that the server gave out a handle. One that is too long, or one too many, is open until the connection ends.
    pub(crate) fn note_handle(&self, epoch: u64, handle: &Bytes) {
        let mut handles = lock(&self.handles_open);
        if handles.epoch == epoch
            && let Some(note) = handle_note(handle, 0)
            && let Ok(slot) = self.handles.add(&note)
        {
            handles.used.insert(handle.clone(), slot);
        }
    }

    /// Whom a handle is for.
    pub(crate) fn owns(&self, epoch: u64, handle: &Bytes, owner: u64) {
        let handles = lock(&self.handles_open);
        if handles.epoch == epoch
            && let Some(note) = handle_note(handle, owner)
            && let Some(&slot) = handles.used.get(handle)
        {
            self.handles.set(slot, &note);
        }
    }

    /// A handle is about to be closed at the server.
    pub(crate) fn erase_handle(&self, epoch: u64, handle: &Bytes) {
        let mut handles = lock(&self.handles_open);
        if handles.epoch == epoch
            && let Some(slot) = handles.used.remove(handle)
        {
            self.handles.remove(slot);
        }
    }

    /// Takes over the handles of a connection, each with whom it is for.
    pub(crate) fn handles(&self, epoch: u64) -> Vec<(Bytes, u64)> {
        let mut handles = lock(&self.handles_open);
        handles.epoch = epoch;
        let mut open = Vec::new();
        for (slot, [owner, len, words @ ..]) in self.handles.all() {
            let handle: Bytes = words.into_iter().flat_map(u64::to_le_bytes).take(len as usize).collect();
            handles.used.insert(handle.clone(), slot);
            open.push((handle, owner));
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;

    #[test]
    fn the_next_process_finds_each_note_as_it_was_before_or_after_a_change() {
        let old = Facts { size: Some((7, 9)), mtime: Some(5), later: false };
        let new = Facts { size: Some((70, 90)), mtime: Some(6), later: true };
        let (handle, file) = (Bytes::from_static(b"handle"), Handle(1));
        let deaths = each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let open = |keep| Kept::open(keep).expect("memory");
            let kept = open(Arc::clone(&keep) as _);
            kept.note_file(file, Node(7), OpenFlags::WRITE_ONLY, Some(0o644)).expect("room");
            kept.note_facts(file, old);
            kept.begin_epoch(1);
            kept.note_handle(1, &handle);
            let mortal = open(Arc::new(life.of(&keep)));
            mortal.files();
            mortal.handles(1);
            mortal.note_facts(file, new);
            mortal.owns(1, &handle, 3);
            let home = Bytes::from_static(b"/home");
            let (owner, extensions) = (Some(Owner { uid: 1, gid: 2 }), Extensions::FSYNC);
            mortal.note_origins(&Origins { base: home.clone(), home, owner, extensions });
            let left = open(Arc::clone(&keep) as _);
            let files = left.files();
            let WasOpen { node, mode, facts, .. } = files[0];
            assert_eq!((files.len(), node, mode), (1, Node(7), Some(0o644)));
            assert!([old, new].contains(&facts), "{facts:?}");
            let handles = left.handles(1);
            assert!(handles == [(handle.clone(), 0)] || handles == [(handle.clone(), 3)], "{handles:?}");
            let origins = left.origins();
            assert!(origins.is_some() || life.is_over(), "nothing is noted");
            if let Some(Origins { home, base, owner: left, extensions: has }) = origins {
                assert_eq!(
                    (&home[..], &base[..], left, has),
                    (&b"/home"[..], &b"/home"[..], owner, extensions)
                );
            }
        });
        assert!(deaths > 30, "{deaths}");
    }
}
