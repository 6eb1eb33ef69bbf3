// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening and closing files that exist.

use crate::file::Content;
use crate::inner::Inner;
use crate::losses::Lost;
use crate::moment::after;
use crate::open::{OpenFile, is_own};
use crate::options::{Policy, Ttls, Writes, age};
use futures_util::future::join;
use outrigger_core::ops::{FSync, Flush, GetAttr, Locate, Open, OpenFlags, Release};
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Answer, Backing, Cx, Errno, Error, FileKind, Handle, Node, OpCode, Reply, ask, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a file that was read ahead counts as read when it is opened.
const AHEAD: Duration = Duration::from_secs(1);

impl Inner {
    /// Opens a file. One of which all content is known and fresh is not opened below before that becomes necessary.
    pub(crate) fn open<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Open) -> Answer<'a> {
        if only_reads(op.flags) {
            self.read_siblings(cx, op.node);
        }
        let asks = self.asks_at_open(op.node);
        if !asks && let Some(opened) = self.open_known(cx, &op, false) {
            self.tell_door();
            return Answer::Ready(Reply::Opened(opened));
        }
        Answer::later(async move {
            self.know_path(cx, op.node).await;
            if !asks && only_reads(op.flags) {
                self.wait_for_content(op.node).await;
                let on_disk = self.is_on_disk(op.node).await;
                if let Some(opened) = self.open_known(cx, &op, on_disk) {
                    return Reply::Opened(opened);
                }
            }
            let may_be_known = self.may_be_known(&op);
            if asks || may_be_known {
                if asks {
                    self.doubt_ours(op.node);
                }
                // One question tells whether what is known is still right.
                let reply = self.getattr_below(cx, GetAttr { node: op.node, handle: None }).await;
                if let Reply::Error(mut error) = reply
                    && asks
                {
                    self.note_displaced(op.node, &mut error);
                    return Reply::Error(error);
                }
                if let Some(opened) = self.open_known(cx, &op, false) {
                    return Reply::Opened(opened);
                }
            }
            let (node, flags, age) = (op.node, op.flags, self.age(op.node));
            let confirms = !asks && !may_be_known && self.continues_content(&op);
            let opening = self.make_change(cx, op.into());
            let mut reply = match confirms {
                // At the same time: it costs no round trip.
                true => join(opening, self.getattr_below(cx, GetAttr { node, handle: None })).await.0,
                false => opening.await,
            };
            match &mut reply {
                Reply::Opened(opened) => self.note_opened(node, (flags, age), opened),
                Reply::Error(error) => self.note_displaced(node, error),
                _ => {}
            }
            reply
        })
    }

    /// The kind of a file, if it is known.
    pub(crate) fn kind(&self, node: Node) -> Option<FileKind> {
        lock(&self.table).record(node)?.kind()
    }

    /// Refuses attributes of a file of another kind than was `known`, which others have put in the place of this one: a kernel would give up the node.
    pub(crate) fn check_kind(&self, node: Node, known: Option<FileKind>, reply: &mut Reply) {
        let Reply::Attrs(attrs) = reply else { return };
        if known.is_some_and(|known| known != attrs.attr.kind()) {
            let mut error = Errno::ESTALE.because("another kind of file has taken its place");
            self.note_displaced(node, &mut error);
            *reply = Reply::Error(error);
        }
    }

    /// Notes if something could not be done with a file by its node because it is gone, or under another name. The name is asked about
    /// anew then, and `ESTALE` has the kernel look it up again: open(2) with `O_CREAT` makes the file.
    pub(crate) fn note_displaced(&self, node: Node, error: &mut Error) {
        if [Errno::ENOENT, Errno::ESTALE].contains(&error.errno) {
            lock(&self.table).displaced(node);
            error.errno = Errno::ESTALE;
        }
    }

    /// Whether a file is asked about now that it is opened, whatever is known: anything is, and the tree below wants that.
    fn asks_at_open(&self, node: Node) -> bool {
        if !self.below().abilities.close_to_open {
            return false;
        }
        let (now, mut table) = (self.now(), lock(&self.table));
        let Some(file) = table.known_file(node).filter(|_| table.policy(node).ttls != Ttls::Always) else {
            return false;
        };
        let mut content = lock(&file.content);
        // The program that reads one file after the other opens it about when it was read.
        let is_new = content.ahead.take().is_some_and(|read| now < after(read, AHEAD));
        !is_new && content.is_kept()
    }

    /// Gives up content that was written here, of a file that is not being written now: nothing tells whether others have written since.
    fn doubt_ours(&self, node: Node) {
        let is_written = self.writeback.file(node).is_some()
            || self.is_being_closed(node)
            || self.handles.written_files().iter().any(|(open, _)| open.node == node);
        if !is_written {
            lock(&self.table).doubt_ours(node);
        }
    }

    /// Whether all content of a file that is opened for reading was known once.
    fn may_be_known(&self, op: &Open) -> bool {
        let Some(file) = lock(&self.table).known_file(op.node).filter(|_| only_reads(op.flags)) else {
            return false;
        };
        let content = lock(&file.content);
        content.size.is_some_and(|size| size > 0 && lock(&self.pool).covers(content.id, 0, size))
    }

    /// Whether what is read of a file that is opened below comes beside content that is kept, which must be of one version however
    /// fresh the attributes are. A server of whole files gives out one version by each handle.
    fn continues_content(&self, op: &Open) -> bool {
        let Some(file) = lock(&self.table).known_file(op.node) else { return false };
        let is_kept = lock(&file.content).is_kept();
        is_kept && !op.flags.contains(OpenFlags::TRUNC) && !self.below().abilities.whole_files
    }

    /// Opens a file of which all content is in memory, or was just found `on_disk`, without asking below.
    fn open_known(&self, cx: &Cx, op: &Open, on_disk: bool) -> Option<Opened> {
        if !only_reads(op.flags) || self.below().abilities.decides_at_open && cx.cred.uid != 0 {
            return None;
        }
        let now = self.now();
        let mut table = lock(&self.table);
        let attr = table.attrs(op.node, now)?.attr;
        let file = table.known_file(op.node).filter(|_| attr.kind() == FileKind::Regular)?;
        let mut content = lock(&file.content);
        let size = content.size.filter(|&size| size > 0 && now < content.until)?;
        if !on_disk && !lock(&self.pool).covers(content.id, 0, size) {
            return None;
        }
        let handle = self.handles.open_own(op.node, Arc::clone(&file), op.flags)?;
        let how = keep_cache(&mut content, true);
        table.pin(op.node);
        Some(Opened { handle, how, backing: Backing::NONE })
    }

    /// How old a file is; zero where we have changed it since it was asked for.
    fn age(&self, node: Node) -> Duration {
        let wall = self.when().wall;
        let mut table = lock(&self.table);
        let told = table.record(node).filter(|record| record.changed <= record.attr_sequence);
        told.and_then(|record| record.attr.as_ref()).map_or(Duration::ZERO, |attr| age(attr, wall))
    }

    /// Notes that a file of this age was opened below, and what the kernel may do with it.
    pub(crate) fn note_opened(&self, node: Node, (flags, age): (OpenFlags, Duration), opened: &mut Opened) {
        let now = self.now();
        let mut table = lock(&self.table);
        let past = OpenHow::DIRECT_IO | OpenHow::NONSEEKABLE;
        let Policy { ttls, writes } = table.policy(node);
        let never = ttls == Ttls::Never;
        let direct = never || opened.how.intersects(past) || flags.contains(OpenFlags::DIRECT);
        let file = table.file(node, now);
        table.pin(node);
        drop(table);
        let flushes = !opened.how.contains(OpenHow::NO_FLUSH);
        if flags.writes() && writes != Writes::Through {
            // close(2) writes what was written, or begins to, and returns the errors that are known.
            opened.how -= OpenHow::NO_FLUSH;
        }
        // What is read and written past this layer would not be seen.
        opened.backing = Backing::NONE;
        let mut content = lock(&file.content);
        let fresh = !direct && now < content.until;
        opened.how = (opened.how - OpenHow::KEEP_CACHE) | keep_cache(&mut content, fresh);
        drop(content);
        let open = OpenFile::new(node, opened.handle, file, Some(flags), direct);
        self.handles.add_file(open.opened(age, flushes));
    }

    /// Synchronises a file. It fails with what was lost of it and not reported, by whatever open file.
    pub(crate) fn fsync<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: FSync) -> Answer<'a> {
        let node = op.node;
        let open = self.handles.file(node, op.handle).filter(|open| open.delays());
        let file = open.as_ref().map(|open| Arc::clone(&open.file)).or_else(|| self.writeback.file(node));
        if file.is_none() && !self.is_being_closed(node) && self.writeback.losses.error_of(node).is_none() {
            return self.storing(node, self.pass(cx, op.into()));
        }
        Answer::later(async move {
            // What other programs have written and closed is synchronised, too, by whatever handle.
            self.closed(Some(node)).await;
            if let Some(file) = file {
                self.written(node, &file).await;
            }
            let reply = self.storing(node, self.pass(cx, op.into())).await;
            let error =
                open.and_then(|open| lock(&open.file.delayed).fsync_error(&mut lock(&open.errors_seen)));
            let Some(error) = error.or_else(|| self.writeback.losses.error_of(node)) else { return reply };
            self.writeback.reported(node);
            Reply::Error(error)
        })
    }

    /// Closes a file, after what was written through it has been.
    pub(crate) fn release<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Release) -> Answer<'a> {
        let file = self.writeback.file(op.node);
        if file.is_none() && !op.flags.writes() {
            return self.close(cx, op);
        }
        let closing = self.begins_to_close(op.node, op.handle);
        Answer::later(async move {
            let _closing = closing;
            if let Some(file) = file {
                self.written(op.node, &file).await;
            }
            self.close(cx, op).await
        })
    }

    /// Closes a file.
    pub(crate) fn close<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Release) -> Answer<'a> {
        let Some((open, last)) = self.handles.close_file(op.node, op.handle) else {
            return self.close_of_former(cx, op);
        };
        self.closing.note_close(op.node);
        Answer::later(async move {
            if last {
                // Others may wait for what is on its way by this handle, and one that is not open below may be in a moment.
                open.unused().await;
                // What was set by it since.
                self.written(open.node, &open.file).await;
                if lock(&open.file.delayed).last_close(&mut lock(&open.errors_seen)) {
                    self.writeback.reported_at_close(open.node);
                }
                if let Some(wait) = self.may_close_later(&open, &op) {
                    self.close_when_due(cx, open, op, wait);
                    return Reply::Done(());
                }
            }
            self.release_below(cx, &open, op).await
        })
    }

    /// Closes what is open below, if anything is.
    pub(crate) async fn release_below(self: &Arc<Self>, cx: &Cx, open: &OpenFile, mut op: Release) -> Reply {
        lock(&self.table).unpin(op.node);
        match open.real() {
            Some(real) => {
                op.handle = real;
                let early = open.flushed_early.load(Ordering::Relaxed);
                let (tells, writes) = (self.closing_tells_of_writes(early, op.flags), op.flags.writes());
                let reply = self.end_of_file(cx, op, early).await;
                self.note_close(cx, open.node, tells, &reply).await;
                if writes {
                    self.writeback.losses.closed(open.node, reply.error().is_none());
                }
                reply
            }
            None => {
                self.settle(cx).await;
                Reply::Done(())
            }
        }
    }

    /// Closes a file that a former process opened, and may have flushed early.
    fn close_of_former<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Release) -> Answer<'a> {
        let early = op.flags.writes() && lock(&self.table).policy(op.node).writes.is_behind();
        let tells = self.closing_tells_of_writes(early, op.flags);
        if !tells {
            return self.end_of_file(cx, op, early);
        }
        Answer::later(async move {
            let node = op.node;
            let reply = self.end_of_file(cx, op, early).await;
            self.note_close(cx, node, tells, &reply).await;
            reply
        })
    }

    /// Whether an error at the close of a file below means that something is lost that was written to it: close(2) had succeeded early,
    /// or the tree below says only then that it could not store it, when close(2) has returned.
    fn closing_tells_of_writes(&self, early: bool, flags: OpenFlags) -> bool {
        early || (flags.writes() && self.below().abilities.refuses_at_close)
    }

    /// A file was closed below; `tells` as [`Self::closing_tells_of_writes`] answers it.
    pub(crate) async fn note_close(&self, cx: &Cx, node: Node, tells: bool, reply: &Reply) {
        let Some(error) = reply.error().filter(|_| tells) else { return };
        // Later it may have no name any more, nor a node.
        let path = ask(&*self.below().service, cx, Locate { node }).await.ok();
        let mut table = lock(&self.table);
        let is_unlinked = table.record(node).is_some_and(|record| record.dying);
        let file = table.known_file(node);
        table.changed_elsewhere(node);
        table.replace_content(node);
        drop(table);
        if !is_unlinked {
            // Whoever opens it next is told when that is closed.
            file.iter().for_each(|file| lock(&file.delayed).failed(error.clone()));
            self.writeback.lose(node, path, None, error);
        }
    }

    /// A server of whole files has stored a file when it was flushed, or refused it: close(2) tells of that, at which programs may not look.
    pub(crate) async fn note_flush(&self, cx: &Cx, node: Node, reply: &Reply) {
        match reply.error() {
            None => self.writeback.losses.taken(node),
            Some(_) if lock(&self.table).record(node).is_some_and(|record| record.dying) => {}
            Some(error) => {
                let path = ask(&*self.below().service, cx, Locate { node }).await.ok();
                self.writeback.losses.refused(Lost { node, path, unmade: None, error: error.clone() });
            }
        }
    }

    /// Gives a handle back below. A tree with locks learns first that descriptors were closed, if that was answered early.
    pub(crate) fn end_of_file<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Release, early: bool) -> Answer<'a> {
        // What was never opened below need not be closed there.
        if is_own(op.handle) || !self.has(OpCode::Release) {
            return Answer::Ready(Reply::Done(()));
        }
        Answer::later(async move {
            let flush = Flush { node: op.node, handle: op.handle, owner: op.owner };
            let flushed = match early && self.has(OpCode::SetLock) {
                true => self.flush_below(cx, flush).await,
                false => Reply::Done(()),
            };
            let (node, stores) = (op.node, op.flags.writes());
            let ended = self.below().service.call(cx, op.into());
            let released = if stores { self.storing(node, ended).await } else { ended.await };
            self.settle(cx).await;
            if flushed.error().is_some() { flushed } else { released }
        })
    }

    /// Has a file stored by what is answered. A server of whole files has another time for it then than while it waited to be stored.
    pub(crate) fn storing<'a>(&'a self, node: Node, answer: Answer<'a>) -> Answer<'a> {
        if !self.below().abilities.whole_files {
            return answer;
        }
        Answer::later(async move {
            let reply = answer.await;
            lock(&self.table).was_written(node);
            self.mark_change();
            reply
        })
    }

    /// The handle below that stands for a handle; `None` when that is ours and nothing was opened below.
    pub(crate) fn below_handle(&self, node: Node, handle: Handle) -> Option<Handle> {
        match is_own(handle) {
            true => self.handles.file(node, handle)?.real(),
            false => Some(handle),
        }
    }
}

/// Whether a file opened with these flags is only read, and by way of caches.
fn only_reads(flags: OpenFlags) -> bool {
    !flags.writes() && !flags.intersects(OpenFlags::TRUNC | OpenFlags::DIRECT)
}

/// Whether pages that the kernel has of the file are of the content, which is fresh or not; from now on they are.
fn keep_cache(content: &mut Content, fresh: bool) -> OpenHow {
    let same = content.kernel == Some(content.id);
    content.kernel = Some(content.id);
    if fresh && same { OpenHow::KEEP_CACHE } else { OpenHow::empty() }
}
