// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content asked for before the program that reads a file front to back wants it.
//!
//! A read that begins where the one before it ended is taken as one of many; so is one a little further on, and then one of what
//! was passed over, for kernels ask for several at once, and these overtake each other. When its reader has had to wait, more
//! is asked for ahead of the next one: twice as much each time, until the reader waits no more. So the connection is kept busy
//! by a reader that is faster than it, and a slow reader has little waiting for it that may grow old. No byte that was asked
//! for ahead is given out twice: who reads it again wants to know what it is now.
//!
//! What was asked for ahead is dropped when the file is changed here or seen to have been changed elsewhere (each raises its
//! version), when the reader jumps, and when the connection is lost.

use crate::fault::Fault;
use crate::session::Pending;
use crate::slots::Held;
use bytes::{Bytes, BytesMut};
use outrigger_proto_sftp::{Extensions, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Mutex;

/// How far on a read may be, in its own lengths.
const NEAR: u64 = 4;
/// So many readers of a tree may each have all asked for ahead that one may have.
const READERS: usize = 4;

/// How much may be asked for ahead of the readers of a tree, in bytes.
#[derive(Default)]
pub(crate) struct Budget {
    /// Of one.
    window: usize,
    /// What is asked for, of all.
    used: AtomicUsize,
}

impl Budget {
    /// At most so many bytes ahead of one reader.
    pub(crate) fn new(window: usize) -> Arc<Self> {
        Arc::new(Budget { window, used: AtomicUsize::new(0) })
    }

    fn room(&self) -> usize {
        READERS.saturating_mul(self.window).saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

/// What is known of one reader.
pub(crate) struct ReadAhead {
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    version: u64,
    epoch: u64,
    /// Up to where was read.
    next: u64,
    /// What of that was passed over.
    passed: Vec<(u64, u64)>,
    /// Where what was asked for ends.
    asked: u64,
    /// How much is to be asked for ahead.
    window: usize,
    /// The end of the file was seen: nothing more is asked for ahead.
    ended: bool,
    /// What was asked for ahead, in order.
    pieces: VecDeque<Arc<Piece>>,
}

/// A piece of the file, asked for or received.
struct Piece {
    offset: u64,
    len: usize,
    content: Mutex<Content>,
    /// What it counts, when it was asked for ahead.
    _counted: Option<Counted>,
}

enum Content {
    Asked(Pending),
    Here(Result<Bytes, Fault>),
}

/// Bytes that count until they are dropped.
struct Counted(Arc<Budget>, usize);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl ReadAhead {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        ReadAhead { budget, state: Mutex::default() }
    }

    /// Reads `len` bytes at `offset`, fewer at the end of the file, of this `version` or a later one.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) async fn read(
        &self,
        held: &Held,
        version: u64,
        offset: u64,
        len: usize,
    ) -> Result<Vec<Bytes>, Fault> {
        let pieces = self.ask_for(held, version, offset, len).await;
        let (content, ended) = join(held, &pieces, offset, len).await?;
        if ended {
            let mut state = self.state.lock().await;
            // Another read may have begun elsewhere meanwhile: it is none of its business that this one met the end.
            if state.next == offset + len as u64 {
                state.ended = true;
                state.asked = state.next;
                state.pieces.clear();
            }
        }
        Ok(content)
    }

    /// The pieces that cover a range; asks for those that were not asked for ahead, and then for what may follow.
    async fn ask_for(&self, held: &Held, version: u64, offset: u64, len: usize) -> Vec<Arc<Piece>> {
        let epoch = held.session.epoch;
        let end = offset + len as u64;
        let mut state = self.state.lock().await;
        let near = NEAR * len as u64;
        let goes_on = (state.version, state.epoch) == (version, epoch) && state.goes_on(offset, end, near);
        if !goes_on {
            *state = State { version, epoch, next: offset, asked: offset, ..State::default() };
        }
        let pieces = state.cover(held, offset, end).await;
        if end > state.next {
            if goes_on && (state.asked < end || pieces.iter().any(|piece| !piece.is_here())) {
                state.window = (2 * state.window).max(2 * len).min(self.budget.window);
            }
            (state.next, state.asked) = (end, state.asked.max(end));
            self.ask_ahead(&mut state, held).await;
        }
        state.forget(near);
        pieces
    }

    async fn ask_ahead(&self, state: &mut State, held: &Held) {
        let end = (state.next + state.window as u64).min(state.asked + self.budget.room() as u64);
        // In steps of a quarter of the window, so that not every small read asks for a little.
        let step = (state.window / 4).max(1) as u64;
        if !state.ended && end >= state.asked + step {
            state.pieces.extend(ask(held, state.asked, end, Some(&self.budget)).await);
            state.asked = end;
        }
    }
}

impl State {
    /// Whether a read is one of those that go through the file, of which each byte is read once.
    fn goes_on(&mut self, offset: u64, end: u64, near: u64) -> bool {
        if offset >= self.next {
            self.passed.extend(Some((self.next, offset)).filter(|_| offset > self.next));
            return offset - self.next <= near;
        }
        let within = |&(start, stop): &(u64, u64)| start <= offset && end <= stop;
        let Some(index) = self.passed.iter().position(within) else { return false };
        let (start, stop) = self.passed.swap_remove(index);
        self.passed.extend([(start, offset), (end, stop)].into_iter().filter(|(start, stop)| start < stop));
        true
    }

    /// Drops what is not to be given out any more.
    fn forget(&mut self, near: u64) {
        let State { next, passed, pieces, .. } = self;
        passed.retain(|&(_, stop)| stop + near > *next);
        let is_passed =
            |piece: &Piece| passed.iter().any(|&(start, stop)| start < piece.end() && piece.offset < stop);
        pieces.retain(|piece| piece.end() > *next || is_passed(piece));
    }

    /// Pieces that cover a range, in order: those that were asked for ahead, and new ones in between.
    async fn cover(&self, held: &Held, offset: u64, end: u64) -> Vec<Arc<Piece>> {
        let mut pieces = Vec::new();
        let mut at = offset;
        for piece in self.pieces.iter().filter(|piece| piece.offset < end && offset < piece.end()) {
            pieces.extend(ask(held, at, piece.offset, None).await);
            at = piece.end();
            pieces.push(Arc::clone(piece));
        }
        pieces.extend(ask(held, at, end, None).await);
        pieces
    }
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// Whether nobody has to wait for it.
    fn is_here(&self) -> bool {
        let Ok(mut content) = self.content.try_lock() else { return false };
        if let Content::Asked(pending) = &mut *content
            && let Some(data) = pending.data_if_here()
        {
            *content = Content::Here(data);
        }
        matches!(*content, Content::Here(_))
    }

    async fn get(&self) -> Result<Bytes, Fault> {
        let mut content = self.content.lock().await;
        if let Content::Asked(pending) = &mut *content {
            *content = Content::Here(pending.data().await);
        }
        match &*content {
            Content::Here(Ok(data)) if data.len() <= self.len => Ok(data.clone()),
            Content::Here(Ok(data)) => {
                let (got, len) = (data.len(), self.len);
                Err(Fault::Odd(format!("it answered {got} bytes where {len} were asked for")))
            }
            Content::Here(Err(fault)) => Err(fault.clone()),
            Content::Asked(_) => Err(Fault::Odd("a reply got lost".into())),
        }
    }
}

/// Asks for a range in pieces that suit the connection.
async fn ask(held: &Held, start: u64, end: u64, budget: Option<&Arc<Budget>>) -> Vec<Arc<Piece>> {
    let Held { session, handle, .. } = held;
    let chunk = session.chunk(session.max_read) as u64;
    let mut pieces = Vec::new();
    let mut offset = start;
    while offset < end {
        let len = chunk.min(end - offset) as usize;
        let counted = budget.map(|budget| {
            budget.used.fetch_add(len, Ordering::Relaxed);
            Counted(Arc::clone(budget), len)
        });
        let pending = session.begin(&Request::Read { handle, offset, len: len as u32 }).await;
        let content = Mutex::new(Content::Asked(pending));
        pieces.push(Arc::new(Piece { offset, len, content, _counted: counted }));
        offset += len as u64;
    }
    pieces
}

/// The content of a range that pieces cover, and whether the file ends in it.
async fn join(
    held: &Held,
    pieces: &[Arc<Piece>],
    offset: u64,
    len: usize,
) -> Result<(Vec<Bytes>, bool), Fault> {
    // A server that states its limits answers fewer bytes at the end of the file only; from others, nothing but an empty
    // answer says that it ends there.
    let short_is_the_end = held.session.has(Extensions::LIMITS);
    let end = offset + len as u64;
    let mut read = Vec::with_capacity(pieces.len());
    for piece in pieces {
        // All are waited for: when this fails, none of them is on its way any more.
        read.push(piece.get().await);
    }
    let mut content = Vec::with_capacity(pieces.len());
    let mut read = read.into_iter().peekable();
    for piece in pieces {
        let Some(data) = read.next() else { break };
        let data = data?;
        let got = data.len();
        content.push(part(&data, piece.offset, offset, end));
        if got == piece.len {
            continue;
        }
        let follows = read.peek().is_some_and(|next| next.as_ref().is_ok_and(|next| !next.is_empty()));
        if (short_is_the_end || got == 0) && !follows {
            return Ok((content, true));
        }
        let missing = piece.end().min(end).saturating_sub(piece.offset + got as u64) as usize;
        let rest = read_on(held, piece.offset + got as u64, missing).await?;
        let is_all = rest.len() == missing;
        content.push(rest);
        if !is_all {
            return Ok((content, true));
        }
    }
    Ok((content, false))
}

/// The part of `data`, which is at `at`, between two positions.
fn part(data: &Bytes, at: u64, start: u64, end: u64) -> Bytes {
    let within = |position: u64| (position.saturating_sub(at) as usize).min(data.len());
    data.slice(within(start)..within(end))
}

/// Reads until there is enough or nothing more.
async fn read_on(held: &Held, offset: u64, len: usize) -> Result<Bytes, Fault> {
    let mut content = BytesMut::new();
    while content.len() < len {
        let (offset, len) = (offset + content.len() as u64, len - content.len());
        let request = Request::Read { handle: &held.handle, offset, len: len as u32 };
        let data = held.session.begin(&request).await.data().await?;
        if data.is_empty() {
            break;
        }
        if data.len() > len {
            return Err(Fault::Odd(format!("it answered {} bytes where {len} were asked for", data.len())));
        }
        content.extend_from_slice(&data);
    }
    Ok(content.freeze())
}
