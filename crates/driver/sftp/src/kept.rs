// SPDX-License-Identifier: MIT OR Apache-2.0
//! What outlives the process that serves, in a [`Keep`] beside nodes, open files and silly names (see `InodeTable`, `OpenFiles`, `SillyNames`).
//!
//! | region | what |
//! |---|---|
//! | `sftp` | [`Words`]: where the tree begins, the connection, by which connection files were changed |
//! | `sftp-handles` | handles of the server that are open, and whose they are |
//! | `sftp-ids` | identities (`idmap`) |

use crate::line::LineWords;
use crate::origin::Kept as UnsyncedBy;
use bytes::Bytes;
use outrigger_core::survive::{Area, Layout, Stored, Text};
use outrigger_core::{Keep, Result, lock};
use outrigger_proto_sftp::{Extensions, Owner};
use outrigger_toolkit_remote::Notes;
use std::sync::{Arc, Mutex};

/// How many handles can be open.
const HANDLES_MAX: usize = 1 << 14;
/// The longest handle of a server that is noted, in words; OpenSSH's have four bytes.
const HANDLE: usize = 6;
/// A handle of the server: its owner, its length in bytes, and itself.
type HandleNote = [u64; 2 + HANDLE];

outrigger_core::fields! {
    /// See the [module](self).
    pub(crate) struct Words {
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

/// What is noted.
pub(crate) struct Kept {
    pub(crate) keep: Arc<dyn Keep>,
    words: Area,
    handles: Notes<Bytes, HandleNote>,
    /// The connection of which the handles are.
    handles_epoch: Mutex<u64>,
}

/// Where the tree begins at the server, and our identity there.
pub(crate) struct Origins {
    pub(crate) home: Bytes,
    pub(crate) base: Bytes,
    pub(crate) owner: Option<Owner>,
    pub(crate) extensions: Extensions,
}

/// A handle of the server with its owner, if that fits into a note.
fn handle_note(handle: &[u8], owner: u64) -> Option<HandleNote> {
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

/// The handle and the owner in a note.
fn noted_handle([owner, len, words @ ..]: &HandleNote) -> (Bytes, u64) {
    (words.iter().flat_map(|word| word.to_le_bytes()).take(*len as usize).collect(), *owner)
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
            handles: Notes::open(&*keep, "sftp-handles", HANDLES_MAX, |note| noted_handle(note).0)?,
            handles_epoch: Mutex::default(),
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

    /// A connection of its own handles begins: what was open on others is none of its.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        let mut now = lock(&self.handles_epoch);
        self.handles.clear();
        *now = epoch;
    }

    /// Notes that the server gave out a handle. One that is too long, or one too many, is open until the connection ends.
    pub(crate) fn note_handle(&self, epoch: u64, handle: &Bytes) {
        let now = lock(&self.handles_epoch);
        if *now == epoch
            && let Some(note) = handle_note(handle, 0)
        {
            let _ = self.handles.put(handle.clone(), &note);
        }
    }

    /// Whom a handle is for.
    pub(crate) fn owns(&self, epoch: u64, handle: &Bytes, owner: u64) {
        let now = lock(&self.handles_epoch);
        if *now == epoch {
            self.handles.change(handle, |note| note[0] = owner);
        }
    }

    /// A handle is about to be closed at the server.
    pub(crate) fn erase_handle(&self, epoch: u64, handle: &Bytes) {
        let now = lock(&self.handles_epoch);
        if *now == epoch {
            self.handles.remove(handle);
        }
    }

    /// Takes over the handles of a connection, each with whom it is for.
    pub(crate) fn handles(&self, epoch: u64) -> Vec<(Bytes, u64)> {
        *lock(&self.handles_epoch) = epoch;
        self.handles.all().iter().map(noted_handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending_create::PendingCreate;
    use outrigger_core::ops::OpenFlags;
    use outrigger_core::survive::testing::each_death;
    use outrigger_core::{HeapKeep, Node};
    use outrigger_toolkit_remote::known::Facts;
    use outrigger_toolkit_remote::{OpenFiles, WasOpen};

    #[test]
    fn the_next_process_finds_each_note_as_it_was_before_or_after_a_change() {
        let old = Facts { size: Some((7, 9)), changed: Some(5), later: false };
        let new = Facts { size: Some((70, 90)), changed: Some(6), later: true };
        let handle = Bytes::from_static(b"handle");
        let deaths = each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let open = |keep| Kept::open(keep).expect("memory");
            let files = |keep: &dyn Keep| OpenFiles::open(Some(keep), |_, was, ()| was).expect("memory");
            let (kept, mut own) = (open(Arc::clone(&keep) as _), PendingCreate::note(Some(0o644)));
            old.note(&mut own);
            let (node, flags) = (Node(7), OpenFlags::WRITE_ONLY);
            let was = |handle, _: &mut ()| WasOpen { handle, node, flags, own };
            let file = files(&*keep).add(node, flags, (false, own), was).expect("room");
            kept.begin_epoch(1);
            kept.note_handle(1, &handle);
            let mortal_keep = Arc::new(life.of(&keep));
            let mortal = open(Arc::clone(&mortal_keep) as _);
            mortal.handles(1);
            files(&*mortal_keep).notes().expect("notes").change(file, |own| new.note(own));
            mortal.owns(1, &handle, 3);
            let home = Bytes::from_static(b"/home");
            let (owner, extensions) = (Some(Owner { uid: 1, gid: 2 }), Extensions::FSYNC);
            mortal.note_origins(&Origins { base: home.clone(), home, owner, extensions });
            let left = open(Arc::clone(&keep) as _);
            let files = files(&*keep).all();
            let WasOpen { node, own: is, .. } = files[0];
            assert_eq!((files.len(), node, is[0]), (1, Node(7), own[0]));
            assert!([old, new].contains(&Facts::noted(&is)), "{is:?}");
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
