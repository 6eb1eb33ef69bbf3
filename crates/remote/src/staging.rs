// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole-object staging: what is written to a file anywhere and in any order is collected in a spool file on this machine, and
//! goes to the server as one object. For servers that take whole files only.
//!
//! A spool file has no name and is readable for its owner only. With a [`Keep`] it outlives the process.

use crate::notes::Notes;
use crate::tree::Version;
use bytes::Bytes;
use outrigger_core::{Errno, Keep, Node, Result, Time, lock};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How many files can be staged in a tree that outlives its process.
const NOTES: usize = 4096;
/// What stands for a time that the server does not tell.
const NO_TIME: i64 = i64::MIN;
/// What stands for an entity tag that it does not tell: a hash is not that, but once in a very long time.
const NO_TAG: u64 = 0;

/// What is known of a staged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedState {
    /// Where the spool file begins in the file: 0, or where what is appended begins.
    pub base: u64,
    /// The size of the file.
    pub size: u64,
    /// Whether the server lacks something of it.
    pub dirty: bool,
    /// Whether the server has no file of its name yet.
    pub is_new: bool,
    /// Whether it must not replace a file that another client has made meanwhile.
    pub exclusive: bool,
    /// Whether it lost its last name, so that the server is never to have it.
    pub nameless: bool,
    /// The permissions it has or is to get.
    pub mode: u32,
    /// When it was changed last.
    pub mtime: Time,
    /// What the server's file was when it was fetched, unless it was replaced by this client since: if it is another one when it is
    /// sent, another client has changed it. With a size.
    pub seen: Option<Version>,
    /// The number in the temporary name of an upload that was begun and has not ended; 0 for none.
    pub under_way: u64,
}

outrigger_core::record! {
    /// A staged file, for the process that takes over.
    struct Note {
        fd: RawFd,
        node: Node,
        base: u64,
        flags: u32,
        mode: u32,
        mtime: i64,
        seen_size: u64,
        seen_time: i64,
        seen_tag: u64,
        under_way: u64,
    }
}

impl StagedState {
    fn note(&self, fd: RawFd, node: Node) -> Note {
        let bits = [self.dirty, self.is_new, self.nameless, self.seen.is_some(), self.exclusive];
        let flags = bits.into_iter().enumerate().map(|(bit, is_set)| u32::from(is_set) << bit).sum();
        let Version { size, modified, tag } = self.seen.unwrap_or_default();
        let StagedState { base, mode, mtime, under_way, .. } = *self;
        let (seen_size, seen_time) = (size.unwrap_or_default(), modified.unwrap_or(NO_TIME));
        let (mtime, seen_tag) = (mtime.secs, tag.unwrap_or(NO_TAG));
        Note { fd, node, base, flags, mode, mtime, seen_size, seen_time, seen_tag, under_way }
    }

    fn of(note: &Note, len: u64) -> Self {
        let is_set = |bit: u32| note.flags >> bit & 1 != 0;
        let modified = Some(note.seen_time).filter(|time| *time != NO_TIME);
        let tag = Some(note.seen_tag).filter(|tag| *tag != NO_TAG);
        let seen = Version { size: Some(note.seen_size), modified, tag };
        StagedState {
            base: note.base,
            size: note.base.saturating_add(len),
            dirty: is_set(0),
            is_new: is_set(1),
            exclusive: is_set(4),
            nameless: is_set(2),
            mode: note.mode,
            mtime: Time::new(note.mtime, 0),
            seen: is_set(3).then_some(seen),
            under_way: note.under_way,
        }
    }
}

/// All staged files of a tree.
pub struct Staging {
    dir: PathBuf,
    limit: u64,
    used: Arc<AtomicU64>,
    files: Mutex<HashMap<Node, Arc<Staged>>>,
    notes: Option<(Arc<dyn Keep>, Notes<Node, Note>)>,
}

/// A staged file.
pub struct Staged {
    file: File,
    state: Mutex<StagedState>,
    used: Arc<AtomicU64>,
    limit: u64,
}

impl Staging {
    /// Spool files go to `dir`, at most `limit` bytes of them, with those that former processes left in `keep`.
    ///
    /// # Errors
    /// Those of [`Notes::open`].
    pub fn open(dir: PathBuf, limit: u64, keep: Option<Arc<dyn Keep>>) -> Result<Self> {
        let notes = match keep {
            Some(keep) => {
                let notes = Notes::open(&*keep, "staging", NOTES, |note: &Note| note.node)?;
                Some((keep, notes))
            }
            None => None,
        };
        let staging = Staging { dir, limit, used: Arc::default(), files: Mutex::default(), notes };
        staging.take_over()?;
        Ok(staging)
    }

    fn take_over(&self) -> Result<()> {
        let Some((keep, notes)) = &self.notes else { return Ok(()) };
        for note in notes.all() {
            let file = File::from(keep.adopt(note.fd)?);
            let (node, len) = (note.node, file.metadata()?.len());
            let state = StagedState::of(&note, len);
            notes.put(node, &state.note(file.as_raw_fd(), node))?;
            self.used.fetch_add(len, Ordering::Relaxed);
            self.lock().insert(node, Arc::new(self.staged(file, state)));
        }
        Ok(())
    }

    fn staged(&self, file: File, state: StagedState) -> Staged {
        let used = Arc::clone(&self.used);
        Staged { file, state: Mutex::new(state), used, limit: self.limit }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Node, Arc<Staged>>> {
        lock(&self.files)
    }

    /// The staged file of a node, if there is one.
    pub fn get(&self, node: Node) -> Option<Arc<Staged>> {
        self.lock().get(&node).cloned()
    }

    /// The state of every staged file.
    pub fn all(&self) -> Vec<(Node, StagedState)> {
        self.lock().iter().map(|(&node, staged)| (node, staged.state())).collect()
    }

    /// Begins to stage a file, whose spool file is empty.
    ///
    /// # Errors
    /// When no spool file can be made, or none can be held.
    pub fn begin(&self, node: Node, state: StagedState) -> Result<Arc<Staged>> {
        self.put(node, self.spool(state)?)
    }

    /// An empty spool file, which is staged for a node with [`Staging::put`] only.
    ///
    /// # Errors
    /// When no spool file can be made.
    pub fn spool(&self, state: StagedState) -> Result<Staged> {
        let file = tempfile::tempfile_in(&self.dir).map_err(|error| {
            let why = format!("no spool file can be made in {}: {error}", self.dir.display());
            Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)).because(why)
        })?;
        Ok(self.staged(file, state))
    }

    /// Stages a spool file for a node, in place of the one that it has: a kill leaves either the one or the other.
    ///
    /// # Errors
    /// When it cannot be held.
    pub fn put(&self, node: Node, staged: Staged) -> Result<Arc<Staged>> {
        if let Some((keep, notes)) = &self.notes {
            let fd = staged.file.as_fd();
            keep.hold(fd)?;
            let note = staged.state().note(fd.as_raw_fd(), node);
            notes.put(node, &note).inspect_err(|_| keep.let_go(fd))?;
            self.get(node).iter().for_each(|former| keep.let_go(former.file.as_fd()));
        }
        let staged = Arc::new(staged);
        self.lock().insert(node, Arc::clone(&staged));
        Ok(staged)
    }

    /// Changes what is known of a staged file.
    pub fn update(&self, node: Node, change: impl FnOnce(&mut StagedState)) {
        let Some(staged) = self.get(node) else { return };
        let mut state = staged.lock();
        change(&mut state);
        if let Some((_, notes)) = &self.notes {
            notes.change(&node, |note| *note = state.note(staged.file.as_raw_fd(), node));
        }
    }

    /// Drops a staged file.
    pub fn end(&self, node: Node) {
        let Some(staged) = self.lock().remove(&node) else { return };
        if let Some((keep, notes)) = &self.notes {
            notes.remove(&node);
            keep.let_go(staged.file.as_fd());
        }
    }
}

impl Staged {
    fn lock(&self) -> MutexGuard<'_, StagedState> {
        lock(&self.state)
    }

    /// What is known of it.
    pub fn state(&self) -> StagedState {
        *self.lock()
    }

    /// Writes at a place of the file that is not before its base.
    ///
    /// # Errors
    /// `EFBIG` for a file that no spool takes, `ENOSPC` when the spool is full, or the disk.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        self.reserve(&state, end)?;
        self.file.write_all_at(data, offset - state.base).inspect_err(|_| self.take_back(&state, end))?;
        state.size = state.size.max(end);
        Ok(())
    }

    /// Makes the file `size` bytes long, which is not less than its base.
    ///
    /// # Errors
    /// As [`Staged::write`].
    pub fn resize(&self, size: u64) -> Result<()> {
        let mut state = self.lock();
        self.reserve(&state, size)?;
        self.file.set_len(size - state.base).inspect_err(|_| self.take_back(&state, size))?;
        let less = state.size.saturating_sub(size);
        self.used.fetch_sub(less, Ordering::Relaxed);
        state.size = size;
        Ok(())
    }

    fn reserve(&self, state: &StagedState, end: u64) -> Result<()> {
        let (more, limit) = (end.saturating_sub(state.size), self.limit);
        if end - state.base > limit {
            let why = format!(
                "a file that is being written takes more than {limit} bytes; spool=BYTES permits more"
            );
            return Err(Errno::EFBIG.because(why));
        }
        let before = self.used.fetch_add(more, Ordering::Relaxed);
        if before.saturating_add(more) > limit {
            self.used.fetch_sub(more, Ordering::Relaxed);
            let why = format!(
                "files that are being written take more than {limit} bytes; spool=BYTES permits more"
            );
            return Err(Errno::ENOSPC.because(why));
        }
        Ok(())
    }

    /// Gives back what was reserved for a file that did not get longer, and what came of it.
    fn take_back(&self, state: &StagedState, end: u64) {
        self.used.fetch_sub(end.saturating_sub(state.size), Ordering::Relaxed);
        // Where that fails, the file has bytes behind its end, which are overwritten or never sent.
        let _ = self.file.set_len(state.size - state.base);
    }

    /// Reads at most `len` bytes at a place that is not before the base.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let StagedState { base, size, .. } = self.state();
        let len = usize::try_from(size.saturating_sub(offset)).map_or(len, |rest| rest.min(len));
        let mut data = vec![0; len];
        self.file.read_exact_at(&mut data, offset - base)?;
        Ok(data.into())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let state = self.state();
        self.used.fetch_sub(state.size - state.base, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;

    const NEW: StagedState = StagedState {
        base: 0,
        size: 0,
        dirty: true,
        is_new: true,
        exclusive: true,
        nameless: false,
        mode: 0o600,
        mtime: Time::new(7, 0),
        seen: Some(Version { size: Some(9), modified: None, tag: Some(5) }),
        under_way: 7,
    };

    #[test]
    fn writes_in_any_order_are_one_file_and_outlive_the_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
        let open = || Staging::open(dir.path().into(), 100, Some(Arc::clone(&keep))).expect("staging");
        let staging = open();
        let staged = staging.begin(Node(5), NEW).expect("a spool file");
        staged.write(4, b"efg").expect("room");
        staged.write(0, b"abcd").expect("room");
        staged.resize(6).expect("shorter");
        staging.update(Node(5), |state| state.dirty = false);
        let tail = StagedState { base: 1000, size: 1000, is_new: false, ..NEW };
        staging.begin(Node(6), tail).expect("a spool file").write(1000, b"more").expect("room");
        let later = open();
        let staged = later.get(Node(5)).expect("staged");
        assert_eq!(staged.state(), StagedState { size: 6, dirty: false, ..NEW });
        assert_eq!(staged.read(2, 100).as_deref(), Ok(&b"cdef"[..]));
        assert_eq!(later.get(Node(6)).expect("staged").state(), StagedState { size: 1004, ..tail });
        later.end(Node(5));
        assert!(open().get(Node(5)).is_none());
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_kill_while_the_whole_of_a_file_replaces_its_end_leaves_either() {
        let dir = tempfile::tempdir().expect("a directory");
        let tail = StagedState { base: 4, size: 4, is_new: false, ..NEW };
        let mut left = Vec::new();
        let deaths = each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let open =
                |keep: Arc<dyn Keep>| Staging::open(dir.path().into(), 100, Some(keep)).expect("staging");
            let mortal = open(Arc::new(life.of(&keep)));
            let staged = mortal.begin(Node(5), tail).expect("a spool file");
            staged.write(4, b"tail").expect("room");
            let was_answered = !life.is_over();
            let whole = mortal.spool(StagedState { base: 0, size: 0, ..tail }).expect("a spool file");
            whole.write(0, b"headtail").expect("room");
            mortal.put(Node(5), whole).expect("held");
            let later = open(keep);
            let found = later.get(Node(5));
            assert_eq!(found.is_some(), was_answered);
            let Some(found) = found else { return };
            let state = found.state();
            assert_eq!(state, StagedState { base: state.base, size: 8, ..tail });
            left.push(found.read(state.base, 100).expect("content"));
        });
        left.sort();
        left.dedup();
        assert!(deaths > 2 && left == [&b"headtail"[..], b"tail"], "{deaths} {left:?}");
    }

    #[test]
    fn the_spool_is_bounded_and_what_ends_makes_room() {
        let staging = Staging::open(std::env::temp_dir(), 10, None).expect("staging");
        let staged = staging.begin(Node(5), NEW).expect("a spool file");
        staged.write(0, b"0123456789").expect("room");
        assert_eq!(staged.write(10, b"x").unwrap_err().errno, Errno::EFBIG);
        assert_eq!(staged.resize(11).unwrap_err().errno, Errno::EFBIG);
        let other = staging.begin(Node(7), NEW).expect("a spool file");
        assert_eq!(other.write(0, b"x").unwrap_err().errno, Errno::ENOSPC);
        staged.write(3, b"x").expect("no more than before");
        staged.resize(5).expect("shorter");
        staged.resize(8).expect("room again");
        drop(staged);
        staging.end(Node(5));
        staging.begin(Node(6), NEW).expect("a spool file").resize(10).expect("room again");
    }
}
