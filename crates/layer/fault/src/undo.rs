// SPDX-License-Identifier: MIT OR Apache-2.0
//! What content was before each change that is not on stable storage yet, so that a power cut can be played.
//!
//! Names, owners, permissions and times are not among it: like a file system with a journal, a power cut keeps their order.
//! The most recent 256 MiB of former content are remembered, with what remembering takes; what was changed before counts as
//! synchronised. So does a change of more than that or whose former content cannot be read, and with it all that was changed
//! in that file before: a file is put back whole or not at all.
//!
//! What is appended needs nothing of its own when an earlier change of the file is remembered whose undoing cuts it off; it
//! counts as synchronised together with that change.

use bytes::Bytes;
use outrigger_core::ops::{FSync, GetAttr, Open, OpenFlags, Read, Release, SetAttr, Write};
use outrigger_core::{
    Cx, Effect, Errno, Handle, LockOwner, Node, Payload, Request, Result, Service, SetAttrs, Synced, ask,
    lock,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// How much former content is remembered, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// How much is read and written at once, in bytes.
const PIECE: u32 = 128 << 10;
/// Among how many of the latest changes one of the same file is looked for.
const NEAR: usize = 16;

/// Former content.
#[derive(Default)]
pub(crate) struct Undo(Mutex<Log>);

#[derive(Default)]
struct Log {
    /// By which generation of rules the changes are remembered.
    generation: u64,
    changes: VecDeque<Former>,
    /// What the changes take together, in bytes.
    bytes: usize,
    /// The number of the next change.
    next: u64,
    /// The changes before this number are among what some fsync under way may confirm.
    marked: u64,
}

/// What a change replaced.
struct Former {
    number: u64,
    node: Node,
    /// None until it was read.
    was: Option<Was>,
}

struct Was {
    size: u64,
    offset: u64,
    content: Vec<Bytes>,
}

impl Former {
    /// How many bytes it takes.
    fn weight(&self) -> usize {
        let pieces = self.was.iter().flat_map(|was| &was.content);
        size_of::<Former>() + pieces.map(|piece| size_of::<Bytes>() + piece.len()).sum::<usize>()
    }
}

impl Log {
    /// Goes on for these rules, unless later ones were there already. What was changed under former ones counts as synchronised:
    /// the client that replaced them may have synchronised it, or changed it again, and the layer did not look.
    fn turn(&mut self, generation: u64) -> bool {
        if generation > self.generation {
            self.generation = generation;
            self.changes.clear();
            self.bytes = 0;
        }
        generation == self.generation
    }

    /// A number for a change of `node` from `offset` on; none when undoing an earlier one undoes it.
    fn begin(&mut self, node: Node, offset: u64) -> Option<u64> {
        // Who appends to many files in turn gets an entry each time: that is only a matter of memory, and bounded.
        let last = self.changes.iter().rev().take(NEAR).find(|former| former.node == node);
        let cuts_off = |former: &Former| {
            former.number >= self.marked && former.was.as_ref().is_some_and(|was| was.size <= offset)
        };
        if last.is_some_and(cuts_off) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        // It has its place before it is read, so that an fsync that ends meanwhile takes it away.
        let former = Former { number, node, was: None };
        self.bytes += former.weight();
        self.changes.push_back(former);
        self.shrink();
        Some(number)
    }

    /// Remembers what change `number` replaces, unless that counts as synchronised by now.
    fn fill(&mut self, number: u64, was: Was) {
        let Ok(place) = self.changes.binary_search_by_key(&number, |former| former.number) else { return };
        if let Some(former) = self.changes.get_mut(place) {
            self.bytes -= former.weight();
            former.was = Some(was);
            self.bytes += former.weight();
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.weight();
        }
    }

    /// The changes before `mark` of what is `synced` count as synchronised.
    fn forget(&mut self, synced: Synced, mark: u64) {
        self.changes.retain(|former| former.number >= mark || !synced.has_content_of(former.node));
        self.bytes = self.changes.iter().map(Former::weight).sum();
    }
}

/// The file and the range of it that a request changes; no length for all that follows.
fn change(request: &Request) -> Option<(Node, u64, Option<u64>)> {
    request.effects().into_iter().find_map(|effect| match effect {
        Effect::Writes { node, offset, len } => Some((node, offset, len)),
        _ => None,
    })
}

/// Whether `request` changes content.
pub(crate) fn changes(request: &Request) -> bool {
    change(request).is_some()
}

impl Undo {
    fn lock(&self) -> MutexGuard<'_, Log> {
        lock(&self.0)
    }

    /// A number for a change, when there is something to remember of it by these rules.
    fn begin(&self, generation: u64, node: Node, offset: u64) -> Option<u64> {
        let mut log = self.lock();
        if log.turn(generation) { log.begin(node, offset) } else { None }
    }

    /// Remembers what `request` is about to replace, for a cut by the rules of this generation.
    pub(crate) async fn note(&self, generation: u64, next: &Arc<dyn Service>, cx: &Cx, request: &Request) {
        let Some((node, offset, len)) = change(request) else { return };
        let Some(number) = self.begin(generation, node, offset) else { return };
        match former(next, cx, node, offset, len).await {
            Ok(was) => self.lock().fill(number, was),
            Err(error) => {
                tracing::warn!(%error, node = node.0, "a power cut will not undo what is changed in a file now");
                // Earlier content alone would be put into a file that has lost what belongs to it.
                self.lock().forget(Synced::File(node), number + 1);
            }
        }
    }

    /// The number of the next change, for an fsync that is about to begin.
    pub(crate) fn mark(&self) -> u64 {
        let mut log = self.lock();
        log.marked = log.next;
        log.marked
    }

    /// The changes before `mark` of what is `synced` are on stable storage.
    pub(crate) fn synced(&self, synced: Synced, mark: u64) {
        self.lock().forget(synced, mark);
    }

    fn take(&self, generation: u64) -> VecDeque<Former> {
        let mut log = self.lock();
        log.turn(generation);
        std::mem::take(&mut *log).changes
    }

    /// Puts back what was there before the changes that are remembered by these rules. Files that are gone stay so.
    pub(crate) async fn undo(&self, generation: u64, next: &Arc<dyn Service>, cx: &Cx) {
        let changes = self.take(generation);
        for former in changes.into_iter().rev() {
            let Former { node, was: Some(was), .. } = former else { continue };
            if let Err(error) = put_back(next, cx, node, was).await {
                tracing::warn!(%error, node = node.0, "a file keeps what a power cut would have taken");
            }
        }
    }
}

/// The size of a file, and its content in a range: all of it, or an error.
async fn former(next: &Arc<dyn Service>, cx: &Cx, node: Node, offset: u64, len: Option<u64>) -> Result<Was> {
    let size = ask(&**next, cx, GetAttr { node, handle: None }).await?.attr.size;
    let end = len.map_or(size, |len| size.min(offset.saturating_add(len)));
    let mut was = Was { size, offset, content: Vec::new() };
    if offset >= end {
        return Ok(was);
    }
    if end - offset > BYTES_MAX as u64 {
        return Err(Errno::EFBIG.because(format!("more than {BYTES_MAX} bytes would be replaced")));
    }
    let flags = OpenFlags::empty();
    let handle = ask(&**next, cx, Open { node, flags }).await?.handle;
    let read = async {
        let mut at = offset;
        while at < end {
            let len = (end - at).min(PIECE.into()) as u32;
            let bytes = ask(&**next, cx, Read { node, handle, offset: at, len }).await?.into_bytes()?;
            if bytes.is_empty() {
                return Err(Errno::EIO.because("the file ends before its size"));
            }
            at += bytes.len() as u64;
            was.content.push(bytes);
        }
        Ok(was)
    };
    let read = read.await;
    close(next, cx, node, handle, flags).await;
    read
}

async fn put_back(next: &Arc<dyn Service>, cx: &Cx, node: Node, was: Was) -> Result<()> {
    let Was { size, offset, content } = was;
    let flags = OpenFlags::WRITE_ONLY;
    let handle = ask(&**next, cx, Open { node, flags }).await?.handle;
    let done = async {
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        ask(&**next, cx, SetAttr { node, handle: Some(handle), attrs }).await?;
        let mut at = offset;
        for piece in content {
            let (len, data) = (piece.len() as u64, Payload::Bytes(piece));
            ask(&**next, cx, Write { node, handle, offset: at, data, cached: false, kill_setid: false })
                .await?;
            at += len;
        }
        ask(&**next, cx, FSync { node, handle, data_only: false }).await
    };
    let done = done.await;
    close(next, cx, node, handle, flags).await;
    done
}

async fn close(next: &Arc<dyn Service>, cx: &Cx, node: Node, handle: Handle, flags: OpenFlags) {
    let release = Release { node, handle, flags, owner: LockOwner(0), flock_release: false };
    // A file that was only looked at has nothing left to say.
    let _ = ask(&**next, cx, release).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::reply::{Attrs, Ttl};
    use outrigger_core::{Attr, Credentials, Reply};
    use outrigger_sim::{Scripted, Sim, Step};

    const LEN: u64 = 16;

    /// Notes an append of a few bytes to a file of `size`, and gives what is remembered: how many changes, in how many bytes.
    fn append(undo: &Arc<Undo>, node: Node, size: u64) -> (usize, usize) {
        let sim = Sim::new(1);
        let attrs = Attrs { attr: Attr { size, ..Attr::default() }, ttl: Ttl::NEVER };
        let next: Arc<dyn Service> = Scripted::new(&sim, move |_, _| Step::Now(Reply::Attrs(attrs.clone())));
        let (noted, data) = (Arc::clone(undo), Payload::from(vec![7; LEN as usize]));
        let write = Write { node, handle: Handle(1), offset: size, data, cached: false, kill_setid: false };
        let cx = Cx::new(1, Credentials::ROOT, "test");
        sim.block_on(async move { noted.note(0, &next, &cx, &write.into()).await });
        let log = undo.lock();
        (log.changes.len(), log.bytes)
    }

    #[test]
    fn appends_take_no_memory_each_and_what_a_change_takes_itself_counts() {
        let undo = Arc::new(Undo::default());
        let taken: Vec<_> = (0..1000).map(|n| append(&undo, Node(2), n * LEN)).collect();
        assert!(taken.iter().all(|taken| *taken == (1, size_of::<Former>())), "{:?}", taken.last());
        // An fsync may take away what is remembered so far, and what comes now would lose its undoing with it.
        let mark = undo.mark();
        assert_eq!(append(&undo, Node(2), 1000 * LEN).0, 2);
        undo.synced(Synced::File(Node(2)), mark);
        assert_eq!(append(&undo, Node(2), 1001 * LEN), (1, size_of::<Former>()));
        for node in 3..100 {
            assert_eq!(append(&undo, Node(node), 0).1, (node as usize - 1) * size_of::<Former>());
        }
    }

    #[test]
    fn what_was_read_before_an_fsync_ended_is_not_put_back_after_it() {
        let undo = Undo::default();
        let number = undo.lock().begin(Node(2), 4).expect("a number");
        undo.synced(Synced::File(Node(2)), undo.mark());
        undo.lock().fill(number, Was { size: 4, offset: 4, content: Vec::new() });
        assert!(undo.lock().changes.is_empty() && undo.lock().bytes == 0);
    }
}
