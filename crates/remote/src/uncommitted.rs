// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that a server has acknowledged and not put on stable storage: kept until the server says that it is there.
//!
//! Each write comes with a verifier of the server's life. Where the server has another one when it is asked to store what was
//! written, it may have lost that, and it is to be written once more, in the order in which it was written. A process that takes
//! over has no content, but knows of the files and their verifiers.

use crate::notes::Notes;
use bytes::Bytes;
use outrigger_core::{Errno, Error, Keep, Node, Result, lock};
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
const LOST: &str = "what a former process has written may be lost: the server has restarted, or does not say";

outrigger_core::record! {
    /// A file with such content, as a former process has left it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct LeftUncommitted {
        node: Node,
        /// The verifier of the first write.
        verifier: u64,
        /// Who wrote, as the driver has it in a number.
        user: u64,
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
    fn first(&self) -> Option<Piece<A>> {
        lock(&self.state).pieces.front().cloned()
    }

    /// How much memory the content takes, in bytes.
    pub fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    /// Notes that content is lost, for whoever asks next.
    fn lose(&self, error: Error) {
        lock(&self.state).lost = Some(error);
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
    fn drop_before(&self, node: Node, file: &UncommittedFile<A>, end: u64, life: Option<u64>) -> bool {
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
    fn next_left(&self) -> Option<LeftUncommitted> {
        lock(&self.left).last().copied()
    }

    /// It is found out what became of a file that a former process has left; an error says that content is lost.
    fn found_out(&self, left: &LeftUncommitted, outcome: Result<()>) {
        lock(&self.left).retain(|other| other.node != left.node);
        if let Err(error) = outcome {
            self.of(left.node).lose(error);
        }
        self.notes.iter().for_each(|notes| notes.remove(&left.node));
    }
}

/// A server that puts content on stable storage when it is asked to. What it is asked goes by the connection `via`, and no other.
pub trait StableStore<A>: Sync {
    /// A connection.
    type Via: Send + Sync;

    /// The connection there is, made when there is none.
    fn connection(&self) -> impl Future<Output = Result<Self::Via>> + Send;

    /// Why a connection has ended, if it has.
    fn ended(&self, via: &Self::Via) -> Option<Error>;

    /// Whether what was to be stored is given up when so many connections were lost meanwhile.
    fn gives_up(&self, losses: u32) -> bool;

    /// Puts what was written to a file on stable storage; the verifier of the server's life.
    fn commit(&self, via: &Self::Via, node: Node, by: &A) -> impl Future<Output = Result<u64>> + Send;

    /// Writes to stable storage.
    fn write(&self, via: &Self::Via, node: Node, piece: Piece<A>) -> impl Future<Output = Result<()>> + Send;

    /// On whose behalf a user writes whom a former process has noted.
    fn by(&self, user: u64) -> A;
}

impl<A: Clone + Send + Sync> Uncommitted<A> {
    /// Puts what was written to a file on stable storage.
    ///
    /// # Errors
    /// What the server says, in which case the content is kept; and that content is lost, once.
    pub async fn commit(&self, server: &impl StableStore<A>, node: Node) -> Result<()> {
        let Some(file) = lock(&self.files).get(&node).cloned() else { return Ok(()) };
        let stored = self.store(server, node, &file, false).await;
        let lost = lock(&file.state).lost.take();
        drop(file);
        self.tidy(node);
        stored.and(lost.map_or(Ok(()), Err))
    }

    /// The same for all files.
    ///
    /// # Errors
    /// The first one of those of [`Uncommitted::commit`].
    pub async fn commit_all(&self, server: &impl StableStore<A>) -> Result<()> {
        let (mut outcome, nodes) = (Ok(()), lock(&self.files).keys().copied().collect::<Vec<_>>());
        for node in nodes {
            outcome = outcome.and(self.commit(server, node).await);
        }
        outcome
    }

    /// Puts what is kept of a file on stable storage, after losses of the connection, too. `is_alone` says that no request writes to it
    /// meanwhile.
    ///
    /// # Errors
    /// What the server says, in which case the content is kept.
    pub async fn store(
        &self,
        server: &impl StableStore<A>,
        node: Node,
        file: &UncommittedFile<A>,
        is_alone: bool,
    ) -> Result<()> {
        let mut losses = 0;
        while file.first().is_some() {
            let via = server.connection().await?;
            let stored = self.store_by(server, &via, (node, file), is_alone).await;
            losses += 1;
            if stored.is_ok() || server.ended(&via).is_none() || server.gives_up(losses) {
                return stored;
            }
        }
        Ok(())
    }

    /// COMMIT, and once more what the server has lost. By one connection only: on the next one, what is kept is written again before
    /// anything else, and a call of here that was made again after that would bring older content.
    async fn store_by<S: StableStore<A>>(
        &self,
        server: &S,
        via: &S::Via,
        (node, file): (Node, &UncommittedFile<A>),
        is_alone: bool,
    ) -> Result<()> {
        let (Some(first), end) = (file.first(), lock(&file.state).next) else { return Ok(()) };
        let life = match server.commit(via, node, &first.by).await {
            Err(error) if error.errno == Errno::ESTALE => {
                // There is no file any more that it could be written to. Nobody may wait for this answer.
                self.drop_before(node, file, u64::MAX, None);
                file.lose(error.clone());
                return Err(error);
            }
            life => life?,
        };
        if !self.drop_before(node, file, end, Some(life)) {
            return Ok(());
        }
        tracing::warn!(?node, "the server has restarted: what it may have lost is written again");
        let _order = if is_alone { None } else { Some(file.order.write().await) };
        // All that is kept, in its order: what came later lies over it.
        while let Some(piece) = file.first() {
            let number = piece.number;
            server.write(via, node, piece).await?;
            self.drop_before(node, file, number + 1, None);
        }
        Ok(())
    }

    /// Does what has to be done on a new connection before anything else: the server may have lost what it has acknowledged.
    ///
    /// # Errors
    /// That the connection is lost.
    pub async fn recover<S: StableStore<A>>(&self, server: &S, via: &S::Via) -> Result<()> {
        let ended = || server.ended(via).map_or(Ok(()), Err);
        let files: Vec<_> = lock(&self.files).iter().map(|(node, file)| (*node, Arc::clone(file))).collect();
        for (node, file) in files {
            // What the server refuses now is told by the next fsync(2), which tries once more.
            if let Err(error) = self.store_by(server, via, (node, &file), true).await {
                tracing::warn!(?node, %error, "what was written could not be stored again yet");
            }
            ended()?;
        }
        while let Some(left) = self.next_left() {
            let life = server.commit(via, left.node, &server.by(left.user)).await;
            ended()?;
            let outcome = if life == Ok(left.verifier) { Ok(()) } else { Err(Errno::EIO.because(LOST)) };
            self.found_out(&left, outcome);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

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
        let end = lock(&file.state).next - 1;
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
        assert!(lock(&kept.files).is_empty() && !kept.is_full());
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
        let lost = || lock(&later.of(NODE).state).lost.take();
        assert_eq!((lost().map(|error| error.errno), lost()), (Some(Errno::EIO), None));
        assert_eq!(Uncommitted::<()>::open(Some(&keep)).unwrap().next_left(), None);
    }
}
