// SPDX-License-Identifier: MIT OR Apache-2.0
//! What outlives the process that serves: words in one region of a [`Keep`], and the node table in another.
//!
//! | from word | what |
//! |---|---|
//! | 0 | mark and version |
//! | 1 | the last number of an open file |
//! | 2 to 4 | how many places of the three kinds below were ever used |
//! | [`UNSYNCED`] | the connection by which files were changed that may not be on stable storage |
//! | [`TREE`] | where the tree begins at the server, and who we are there |
//! | [`LINE`] | the connection: descriptors, positions, what its server can do (`line`) |
//! | [`FILES`] | open files: number, node, flags, and the permissions of one that is still to be made |
//! | [`HANDLES`] | handles of the server that are open: length, owner, bytes |
//! | [`HIDDEN`] | files renamed aside, or about to be: node, directory, both names |
//! | [`RECENT`] | nodes that are remembered though nobody refers to them, a ring |
//!
//! What open files must look like is in a region of its own, which builds that do not know of it leave alone: for each place of
//! an open file the least size plus one (0: nothing is known), the greatest one, and the time of change.
//!
//! Each note is begun and ended by one store, of its first word, so a kill leaves it there or not.

use crate::inner::lock;
use crate::known::Facts;
use crate::origin::Kept as UnsyncedBy;
use bytes::Bytes;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Keep, Name, Node, NodeTable, Region, Result};
use outrigger_proto_sftp::{Extensions, Owner};
use outrigger_toolkit_remote::{PINNED_MAX, PinNotes};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex};

/// "ORSftp" and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ORSftp\0\x02");
/// Room for the nodes known, in words; taken as it fills.
const NODES: usize = 1 << 26;
const LAST_FILE: usize = 1;
/// Whether the two words after it are kept, and what they say: by which connection files were changed that may not be on
/// stable storage (0: none were).
const UNSYNCED: usize = 5;
const TREE: usize = 16;
/// Words of a path.
const PATH: usize = 1 + 512;
pub(crate) const LINE: usize = 2048;
const FILES: usize = 4096;
/// How many files can be open.
const FILES_MAX: usize = 1 << 14;
const FILE: usize = 4;
/// Words of what an open file must look like.
const FACTS: usize = 3;
/// With its time of change: that is known, and it may be a later one.
const TIMED: u64 = 1 << 32;
const LATER: u64 = 1 << 33;
/// The file is still to be made.
const PENDING: u64 = 1 << 63;
const HANDLES: usize = FILES + FILES_MAX * FILE;
const HANDLES_MAX: usize = 1 << 14;
const HANDLE: usize = 8;
/// The longest handle of a server that is noted, in bytes; OpenSSH's have four.
const HANDLE_BYTES: usize = (HANDLE - 2) * 8;
const HIDDEN: usize = HANDLES + HANDLES_MAX * HANDLE;
const HIDDEN_MAX: usize = 1 << 10;
/// Words of a name.
const NAME: usize = 1 + 32;
const HIDDEN_ONE: usize = 3 + 2 * NAME;
const RECENT: usize = HIDDEN + HIDDEN_MAX * HIDDEN_ONE;
const WORDS: usize = RECENT + 2 + PINNED_MAX + 1;

/// Notes of one kind.
struct Kind {
    /// Where it is told how many places were ever used: others were never touched, and take no memory.
    used: usize,
    at: usize,
    words: usize,
    max: usize,
}

const OF_FILES: Kind = Kind { used: 2, at: FILES, words: FILE, max: FILES_MAX };
const OF_HANDLES: Kind = Kind { used: 3, at: HANDLES, words: HANDLE, max: HANDLES_MAX };
const OF_HIDDEN: Kind = Kind { used: 4, at: HIDDEN, words: HIDDEN_ONE, max: HIDDEN_MAX };

/// The region, and what is free in it.
pub(crate) struct Kept {
    pub(crate) keep: Arc<dyn Keep>,
    region: Arc<dyn Region>,
    /// What open files must look like; nowhere when there is no room for it.
    facts: Option<Arc<dyn Region>>,
    files: Mutex<FilesOpen>,
    handles: Mutex<HandlesOpen>,
    hidden: Mutex<Vec<usize>>,
}

/// Where the notes of open files are, and places that are free again.
#[derive(Default)]
struct FilesOpen {
    used: HashMap<Handle, usize>,
    free: Vec<usize>,
}

/// The same for handles of the server, of one connection.
#[derive(Default)]
struct HandlesOpen {
    epoch: u64,
    used: HashMap<Bytes, usize>,
    free: Vec<usize>,
}

/// Where the tree begins at the server, and who we are there.
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

/// A file that was renamed aside, or was about to be.
pub(crate) struct Aside {
    /// Which note this is.
    pub(crate) note: usize,
    pub(crate) node: Node,
    pub(crate) dir: Node,
    pub(crate) name: Name,
    pub(crate) aside: Name,
}

impl Kept {
    /// What former processes left in `keep`, or nothing yet; and the nodes they knew.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when a region holds something else.
    pub(crate) fn open(keep: Arc<dyn Keep>) -> Result<(Self, NodeTable)> {
        let region = keep.region("sftp", WORDS)?;
        let nodes = NodeTable::attach(keep.region("sftp-nodes", NODES)?)?;
        let facts = keep.region("sftp-facts", FILES_MAX * FACTS).ok();
        let kept = Kept {
            keep,
            region,
            facts: facts.filter(|facts| facts.words() == FILES_MAX * FACTS),
            files: Mutex::default(),
            handles: Mutex::default(),
            hidden: Mutex::default(),
        };
        match kept.get(0) {
            MAGIC if kept.region.words() == WORDS => {}
            0 if kept.region.words() == WORDS => kept.put(0, MAGIC),
            _ => return Err(Errno::EUCLEAN.because("the region sftp holds no notes of this version")),
        }
        kept.find_free();
        Ok((kept, nodes))
    }

    fn find_free(&self) {
        let free = |kind| self.places(kind).filter(|&at| self.get(at) == 0).collect();
        lock(&self.files).free = free(&OF_FILES);
        lock(&self.handles).free = free(&OF_HANDLES);
        *lock(&self.hidden) = free(&OF_HIDDEN);
    }

    /// The places that were ever used for notes of a kind.
    fn places(&self, kind: &'static Kind) -> impl Iterator<Item = usize> {
        let used = usize::try_from(self.get(kind.used)).map_or(kind.max, |used| used.min(kind.max));
        (0..used).map(|number| kind.at + number * kind.words)
    }

    /// A place for a note: a free one, or one that was never used, if there is any.
    fn place(&self, kind: &Kind, free: &mut Vec<usize>) -> Option<usize> {
        if let Some(at) = free.pop() {
            return Some(at);
        }
        let used = self.get(kind.used);
        let number = usize::try_from(used).ok().filter(|&used| used < kind.max)?;
        self.put(kind.used, used + 1);
        Some(kind.at + number * kind.words)
    }

    pub(crate) fn get(&self, at: usize) -> u64 {
        self.word(at).load(Acquire)
    }

    pub(crate) fn put(&self, at: usize, value: u64) {
        self.word(at).store(value, Release);
    }

    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        self.region.word(at)
    }

    /// Stores bytes, and before them how many they are.
    fn put_bytes(&self, at: usize, bytes: &[u8]) {
        self.put(at, bytes.len() as u64);
        for (index, eight) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.put(at + 1 + index, u64::from_le_bytes(word));
        }
    }

    /// The bytes that [`Kept::put_bytes`] stored, at most so many.
    fn bytes(&self, at: usize, most: usize) -> Bytes {
        let len = usize::try_from(self.get(at)).map_or(most, |len| len.min(most));
        let words = (0..len.div_ceil(8)).flat_map(|index| self.get(at + 1 + index).to_le_bytes());
        words.take(len).collect()
    }

    /// Where the tree begins, if a former process knew.
    pub(crate) fn origins(&self) -> Option<Origins> {
        if self.get(TREE) == 0 {
            return None;
        }
        let owner = Owner { uid: self.get(TREE + 2) as u32, gid: self.get(TREE + 3) as u32 };
        Some(Origins {
            owner: (self.get(TREE + 1) != 0).then_some(owner),
            extensions: Extensions::from_bits_truncate(self.get(TREE + 4) as u32),
            home: self.bytes(TREE + 5, (PATH - 1) * 8),
            base: self.bytes(TREE + 5 + PATH, (PATH - 1) * 8),
        })
    }

    /// Notes where the tree begins. Where a path is too long for that, the next process finds out by itself.
    pub(crate) fn note_origins(&self, origins: &Origins) {
        let Origins { home, base, owner, extensions } = origins;
        if home.len().max(base.len()) > (PATH - 1) * 8 {
            return;
        }
        let Owner { uid, gid } = owner.unwrap_or_default();
        for (index, word) in [u64::from(owner.is_some()), uid.into(), gid.into(), extensions.bits().into()]
            .into_iter()
            .enumerate()
        {
            self.put(TREE + 1 + index, word);
        }
        self.put_bytes(TREE + 5, home);
        self.put_bytes(TREE + 5 + PATH, base);
        self.put(TREE, 1);
    }

    /// Files were changed by a connection; `is_first` when all that was changed before is on stable storage.
    pub(crate) fn note_unsynced(&self, by: UnsyncedBy, is_first: bool) {
        let [epoch, boot] = [1, 2].map(|word| self.get(UNSYNCED + word));
        if is_first || epoch == 0 {
            self.put(UNSYNCED + 2, by.boot);
            self.put(UNSYNCED + 1, by.epoch);
        } else if epoch == by.epoch && boot == 0 {
            self.put(UNSYNCED + 2, by.boot);
        }
    }

    /// By which connection former processes changed files that may not be on stable storage, if they did: a build that did
    /// not note that may have done so by any.
    pub(crate) fn unsynced(&self) -> Option<UnsyncedBy> {
        let [is_kept, epoch, boot] = [0, 1, 2].map(|word| self.get(UNSYNCED + word));
        match (is_kept, epoch) {
            (0, _) => Some(UnsyncedBy::default()),
            (_, 0) => None,
            _ => Some(UnsyncedBy { epoch, boot }),
        }
    }

    /// From now on it is noted by which connection files are changed.
    pub(crate) fn keep_unsynced(&self, so_far: Option<UnsyncedBy>) {
        let UnsyncedBy { epoch, boot } = so_far.unwrap_or_default();
        self.put(UNSYNCED + 2, boot);
        self.put(UNSYNCED + 1, epoch);
        self.put(UNSYNCED, 1);
    }

    /// A number that no open file had before.
    pub(crate) fn next_file(&self) -> Handle {
        Handle(self.word(LAST_FILE).fetch_add(1, AcqRel) + 1)
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
        let mut files = lock(&self.files);
        let full =
            || Errno::ENFILE.because(format!("{FILES_MAX} files are open, which is all that can be noted"));
        let at = self.place(&OF_FILES, &mut files.free).ok_or_else(full)?;
        files.used.insert(handle, at);
        self.put_facts(at, &Facts::default());
        self.put(at + 1, node.0);
        self.put(at + 2, flags.bits().into());
        self.put(at + 3, pending.map_or(0, |mode| PENDING | u64::from(mode)));
        self.put(at, handle.0);
        Ok(())
    }

    /// It has been made, or will not be.
    pub(crate) fn file_is_made(&self, handle: Handle) {
        if let Some(&at) = lock(&self.files).used.get(&handle) {
            self.put(at + 3, 0);
        }
    }

    /// What an open file must look like.
    pub(crate) fn note_facts(&self, handle: Handle, facts: &Facts) {
        if let Some(&at) = lock(&self.files).used.get(&handle) {
            self.put_facts(at, facts);
        }
    }

    fn put_facts(&self, at: usize, facts: &Facts) {
        let Some(region) = &self.facts else { return };
        let word = |index| region.word((at - FILES) / FILE * FACTS + index);
        let time = |later: bool| {
            facts.mtime.map_or(0, |mtime| TIMED | u64::from(mtime)) | if later { LATER } else { 0 }
        };
        // Whoever finds it half done must not expect too much.
        word(2).store(time(true), Release);
        let (low, high) = facts.size.map_or((0, 0), |(low, high)| (low.saturating_add(1), high));
        word(1).fetch_max(high, AcqRel);
        word(0).store(low, Release);
        word(1).store(high, Release);
        word(2).store(time(facts.later), Release);
    }

    fn facts(&self, at: usize) -> Facts {
        let Some(region) = &self.facts else { return Facts::default() };
        let [low, high, time] =
            [0, 1, 2].map(|index| region.word((at - FILES) / FILE * FACTS + index).load(Acquire));
        Facts {
            size: low.checked_sub(1).map(|low| (low, high)),
            mtime: (time & TIMED != 0).then_some(time as u32),
            later: time & LATER != 0,
        }
    }

    /// It was closed.
    pub(crate) fn erase_file(&self, handle: Handle) {
        let mut files = lock(&self.files);
        let Some(at) = files.used.remove(&handle) else { return };
        self.put(at, 0);
        files.free.push(at);
    }

    /// The files that former processes had open.
    pub(crate) fn files(&self) -> Vec<WasOpen> {
        let mut files = lock(&self.files);
        let mut open = Vec::new();
        for at in self.places(&OF_FILES).filter(|&at| self.get(at) != 0) {
            let (handle, node) = (Handle(self.get(at)), Node(self.get(at + 1)));
            let (flags, pending) = (self.get(at + 2), self.get(at + 3));
            files.used.insert(handle, at);
            open.push(WasOpen {
                handle,
                node,
                flags: OpenFlags::from_bits_truncate(flags as u32),
                mode: (pending & PENDING != 0).then_some(pending as u32),
                facts: self.facts(at),
            });
        }
        open
    }

    /// A connection of its own handles begins: what was open on others is none of its.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        let mut handles = lock(&self.handles);
        self.places(&OF_HANDLES).for_each(|at| self.put(at, 0));
        *handles = HandlesOpen { epoch, used: HashMap::new(), free: self.places(&OF_HANDLES).collect() };
    }

    /// Notes that the server gave out a handle. One that is too long, or one too many, is open until the connection ends.
    pub(crate) fn note_handle(&self, epoch: u64, handle: &Bytes) {
        let mut handles = lock(&self.handles);
        if handles.epoch != epoch || handle.len() > HANDLE_BYTES {
            return;
        }
        let Some(at) = self.place(&OF_HANDLES, &mut handles.free) else { return };
        self.put(at + 1, 0);
        for (index, eight) in handle.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.put(at + 2 + index, u64::from_le_bytes(word));
        }
        self.put(at, handle.len() as u64 + 1);
        handles.used.insert(handle.clone(), at);
    }

    /// Whom a handle is for.
    pub(crate) fn owns(&self, epoch: u64, handle: &Bytes, owner: u64) {
        let handles = lock(&self.handles);
        if let Some(&at) = handles.used.get(handle).filter(|_| handles.epoch == epoch) {
            self.put(at + 1, owner);
        }
    }

    /// The server is about to be told that a handle is not needed any more.
    pub(crate) fn erase_handle(&self, epoch: u64, handle: &Bytes) {
        let mut handles = lock(&self.handles);
        if handles.epoch != epoch {
            return;
        }
        if let Some(at) = handles.used.remove(handle) {
            self.put(at, 0);
            handles.free.push(at);
        }
    }

    /// Takes over the handles of a connection, each with whom it is for.
    pub(crate) fn handles(&self, epoch: u64) -> Vec<(Bytes, u64)> {
        let mut handles = lock(&self.handles);
        handles.epoch = epoch;
        let mut open = Vec::new();
        for at in self.places(&OF_HANDLES).filter(|&at| self.get(at) != 0) {
            let len = (self.get(at) as usize - 1).min(HANDLE_BYTES);
            let words = (0..len.div_ceil(8)).flat_map(|index| self.get(at + 2 + index).to_le_bytes());
            let handle: Bytes = words.take(len).collect();
            handles.used.insert(handle.clone(), at);
            open.push((handle, self.get(at + 1)));
        }
        open
    }

    /// Notes that a file is about to be called `aside`; the number of the note, if there is room for one.
    pub(crate) fn note_aside(&self, node: Node, dir: Node, name: &Name, aside: &Name) -> Option<usize> {
        let at = self.place(&OF_HIDDEN, &mut lock(&self.hidden))?;
        self.put(at + 2, dir.0);
        self.put_bytes(at + 3, name);
        self.put_bytes(at + 3 + NAME, aside);
        self.put(at + 1, node.0);
        self.put(at, 1);
        Some(at)
    }

    /// It is in another directory now.
    pub(crate) fn move_aside(&self, note: usize, dir: Node) {
        self.put(note + 2, dir.0);
    }

    /// It is not there any more.
    pub(crate) fn erase_aside(&self, note: usize) {
        self.put(note, 0);
        lock(&self.hidden).push(note);
    }

    /// The files that were renamed aside by former processes, or were about to be.
    pub(crate) fn asides(&self) -> Vec<Aside> {
        let all = self.places(&OF_HIDDEN).filter(|&at| self.get(at) != 0);
        let name = |at| Name::new(self.bytes(at, (NAME - 1) * 8));
        let read = |at: usize| {
            Some(Aside {
                note: at,
                node: Node(self.get(at + 1)),
                dir: Node(self.get(at + 2)),
                name: name(at + 3).ok()?,
                aside: name(at + 3 + NAME).ok()?,
            })
        };
        all.filter_map(read).collect()
    }
}

impl PinNotes for Kept {
    fn pinned(&self) -> Vec<Node> {
        let (start, end) = (self.get(RECENT), self.get(RECENT + 1));
        let nodes = start..end;
        let at = |index: u64| RECENT + 2 + index as usize % (PINNED_MAX + 1);
        nodes.take(PINNED_MAX).map(|index| Node(self.get(at(index)))).collect()
    }

    fn pin(&self, node: Node) {
        let end = self.get(RECENT + 1);
        self.put(RECENT + 2 + end as usize % (PINNED_MAX + 1), node.0);
        self.put(RECENT + 1, end + 1);
    }

    fn unpin_oldest(&self) {
        self.put(RECENT, self.get(RECENT) + 1);
    }
}
