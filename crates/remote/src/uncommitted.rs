// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that a server has acknowledged and not put on stable storage: kept until the server says that it is there.
//!
//! Each write comes with a verifier of the server's life. Where the server has another one when it is asked to store what was
//! written, it may have lost that, and it is to be written once more, in the order in which it was written. A process that takes
//! over has no content, but knows of the files and their verifiers.

use crate::notes::Notes;
use bytes::Bytes;
use outrigger_core::{Error, Keep, Node, Result, lock};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::RwLock;

/// With so much content of all files, writes are to be stable at once, in bytes.
const ALL_MAX: usize = 128 << 20;
/// What a piece takes beside its content, in bytes.
const PIECE: usize = 256;
/// Smaller pieces are copied, so that none of them keeps a large buffer in memory.
const COPIED: usize = 64 << 10;
/// How many files can be noted.
const NOTED_MAX: usize = 1 << 14;

outrigger_core::record! {
    /// A file with such content, as a former process has left it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LeftUncommitted {
        /// The file.
        pub node: Node,
        /// The verifier of the first write.
        pub verifier: u64,
        /// Who wrote, as the driver has it in a number.
        pub user: u64,
    }
}

/// A write.
#[derive(Debug, Clone)]
pub struct Piece<A> {
    /// Grows from one to the next; given by [`Uncommitted::add`].
    pub number: u64,
    /// Where it begins.
    pub offset: u64,
    /// What was written.
    pub data: Bytes,
    /// The server's life.
    pub verifier: u64,
    /// On whose behalf.
    pub by: A,
}

/// What is kept of one file.
pub struct UncommittedFile<A> {
    /// Held by each write; for writing while nobody else may write.
    pub order: RwLock<()>,
    state: Mutex<State<A>>,
}

struct State<A> {
    pieces: VecDeque<Piece<A>>,
    next: u64,
    bytes: usize,
    lost: Option<Error>,
}

impl<A> Default for UncommittedFile<A> {
    fn default() -> Self {
        let state = State { pieces: VecDeque::new(), next: 0, bytes: 0, lost: None };
        UncommittedFile { order: RwLock::default(), state: Mutex::new(state) }
    }
}

impl<A: Clone> UncommittedFile<A> {
    /// The oldest piece.
    pub fn first(&self) -> Option<Piece<A>> {
        lock(&self.state).pieces.front().cloned()
    }

    /// The number that the next piece gets.
    pub fn end(&self) -> u64 {
        lock(&self.state).next
    }

    /// How much memory the content takes, in bytes.
    pub fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    /// Notes that content is lost, for whoever asks next.
    pub fn lose(&self, error: Error) {
        lock(&self.state).lost = Some(error);
    }

    /// That content was lost, once.
    pub fn take_lost(&self) -> Option<Error> {
        lock(&self.state).lost.take()
    }
}

/// What is kept of all files. `A` is what the driver needs to write once more on somebody's behalf.
pub struct Uncommitted<A> {
    files: Mutex<HashMap<Node, Arc<UncommittedFile<A>>>>,
    bytes: AtomicUsize,
    notes: Option<Notes<Node, LeftUncommitted>>,
    left: Mutex<Vec<LeftUncommitted>>,
}

impl<A: Clone> Uncommitted<A> {
    /// Nothing but what former processes noted in `keep`.
    ///
    /// # Errors
    /// Those of [`Notes::open`].
    pub fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let open =
            |keep| Notes::open(keep, "remote-uncommitted", NOTED_MAX, |note: &LeftUncommitted| note.node);
        let notes = keep.map(open).transpose()?;
        let left = Mutex::new(notes.iter().flat_map(Notes::all).collect());
        Ok(Uncommitted { files: Mutex::default(), bytes: AtomicUsize::new(0), notes, left })
    }

    /// What is kept of a file, for somebody who writes to it.
    pub fn of(&self, node: Node) -> Arc<UncommittedFile<A>> {
        Arc::clone(lock(&self.files).entry(node).or_default())
    }

    /// What is kept of a file, if anything is.
    pub fn get(&self, node: Node) -> Option<Arc<UncommittedFile<A>>> {
        lock(&self.files).get(&node).cloned()
    }

    /// Files of which something is kept.
    pub fn all(&self) -> Vec<(Node, Arc<UncommittedFile<A>>)> {
        lock(&self.files).iter().map(|(node, file)| (*node, Arc::clone(file))).collect()
    }

    /// Whether a write has to be stable, because too much is kept.
    pub fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= ALL_MAX
    }

    /// Keeps a piece; false where it cannot be noted, so that it has to be stored at once.
    pub fn add(&self, node: Node, file: &UncommittedFile<A>, user: u64, mut piece: Piece<A>) -> bool {
        let mut state = lock(&file.state);
        if let Some(notes) = self.notes.as_ref().filter(|_| state.pieces.is_empty()) {
            let note = LeftUncommitted { node, verifier: piece.verifier, user };
            if notes.put(node, &note).is_err() {
                return false;
            }
        }
        if piece.data.len() < COPIED {
            piece.data = Bytes::copy_from_slice(&piece.data);
        }
        self.bytes.fetch_add(piece.data.len() + PIECE, Ordering::Relaxed);
        state.bytes += piece.data.len() + PIECE;
        (piece.number, state.next) = (state.next, state.next + 1);
        state.pieces.push_back(piece);
        true
    }

    /// Drops the pieces before the one numbered `end`, up to the first whose verifier is another one than `life`, if that is given;
    /// whether there is such a piece.
    pub fn drop_before(&self, node: Node, file: &UncommittedFile<A>, end: u64, life: Option<u64>) -> bool {
        let mut state = lock(&file.state);
        let count = state.pieces.partition_point(|piece| piece.number < end);
        let is_lost = |piece: &Piece<A>| life.is_some_and(|life| piece.verifier != life);
        let lost = state.pieces.iter().take(count).position(is_lost);
        let bytes: usize =
            state.pieces.drain(..lost.unwrap_or(count)).map(|piece| piece.data.len() + PIECE).sum();
        state.bytes -= bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if state.pieces.is_empty() {
            self.notes.iter().for_each(|notes| notes.remove(&node));
        }
        lost.is_some()
    }

    /// Forgets a file of which nothing is kept and that nobody writes to.
    pub fn tidy(&self, node: Node) {
        let mut files = lock(&self.files);
        let is_unused = |file: &Arc<UncommittedFile<A>>| {
            let state = lock(&file.state);
            Arc::strong_count(file) == 1 && state.pieces.is_empty() && state.lost.is_none()
        };
        if files.get(&node).is_some_and(is_unused) {
            files.remove(&node);
        }
    }

    /// A file that a former process has left; none when all were taken. It stays noted until [`Uncommitted::found_out`].
    pub fn next_left(&self) -> Option<LeftUncommitted> {
        lock(&self.left).last().copied()
    }

    /// It is found out what became of a file that a former process has left; an error says that content is lost.
    pub fn found_out(&self, left: &LeftUncommitted, outcome: Result<()>) {
        lock(&self.left).retain(|other| other.node != left.node);
        if let Err(error) = outcome {
            self.of(left.node).lose(error);
        }
        self.notes.iter().for_each(|notes| notes.remove(&left.node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{Errno, HeapKeep};

    const NODE: Node = Node(7);

    fn piece(offset: u64, verifier: u64) -> Piece<()> {
        Piece { number: 0, offset, data: Bytes::from_static(b"content"), verifier, by: () }
    }

    #[test]
    fn what_was_stored_is_dropped_and_what_may_be_lost_stays_in_order() {
        let kept = Uncommitted::open(None).unwrap();
        let file = kept.of(NODE);
        for (at, life) in [(0, 1), (7, 1), (3, 2), (14, 1)] {
            assert!(kept.add(NODE, &file, 0, piece(at, life)));
        }
        let end = file.end() - 1;
        assert!(kept.drop_before(NODE, &file, end, Some(1)), "the third one is of another life");
        assert_eq!(file.first().map(|piece| (piece.number, piece.offset)), Some((2, 3)));
        assert!(kept.drop_before(NODE, &file, u64::MAX, Some(1)), "and keeps what came later");
        assert!(!kept.drop_before(NODE, &file, 3, None));
        assert_eq!((file.first().map(|piece| piece.offset), file.bytes()), (Some(14), PIECE + 7));
        assert!(!kept.drop_before(NODE, &file, end, Some(2)), "it came after what was stored");
        assert_eq!(file.bytes(), PIECE + 7);
        assert!(!kept.drop_before(NODE, &file, u64::MAX, Some(1)));
        drop(file);
        kept.tidy(NODE);
        assert!(kept.get(NODE).is_none() && !kept.is_full());
    }

    #[test]
    fn the_next_process_knows_of_files_and_that_content_is_lost_is_told_once() {
        let keep = HeapKeep::default();
        let kept = Uncommitted::open(Some(&keep)).unwrap();
        let file = kept.of(NODE);
        assert!(kept.add(NODE, &file, 5, piece(0, 1)) && kept.add(NODE, &file, 5, piece(7, 2)));
        let later = Uncommitted::<()>::open(Some(&keep)).unwrap();
        let left = later.next_left().unwrap();
        assert_eq!(left, LeftUncommitted { node: NODE, verifier: 1, user: 5 });
        later.found_out(&left, Err(Errno::EIO.into()));
        assert_eq!(later.next_left(), None);
        let file = later.get(NODE).unwrap();
        assert_eq!((file.take_lost().map(|error| error.errno), file.take_lost()), (Some(Errno::EIO), None));
        assert_eq!(Uncommitted::<()>::open(Some(&keep)).unwrap().next_left(), None);
    }
}
