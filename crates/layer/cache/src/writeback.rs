// SPDX-License-Identifier: MIT OR Apache-2.0
//! Write-back: writes are answered at once and made in the background, and whatever must come after them waits for them.

use crate::async_create::not_created;
use crate::clock::Asked;
use crate::delayed::{Job, Number, Piece, WriteContext};
use crate::file::File;
use crate::inner::Inner;
use crate::log::Log;
use crate::losses::{Losses, Lost};
use crate::moment::Moment;
use crate::open::{OpenFile, is_own};
use crate::options::Writes;
use crate::pool;
use crate::table::Table;
use bytes::Bytes;
use outrigger_core::gate::Gate;
use outrigger_core::ops::{Flush, Lookup, OpenFlags, RenameFlags, SetAttr, Write};
use outrigger_core::paths::subjects;
use outrigger_core::reply::Count;
use outrigger_core::{
    Added, Answer, Attr, Cx, Effect, Errno, Error, Node, OpCode, Payload, Reply, Request, Result, Synced,
    Target, ask, lock,
};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// All writes that were answered and have not been made yet.
#[derive(Default)]
pub(crate) struct Writeback {
    /// Files with such writes.
    files: Mutex<HashMap<Node, Arc<File>>>,
    /// Those of them that failed without a report to a program.
    pub(crate) losses: Losses,
    bytes: Mutex<usize>,
    bytes_max: usize,
    /// The number of the last one that was answered.
    last: AtomicU64,
    /// Where they are for the next process.
    log: Option<Log>,
    /// Whether what is there was taken over.
    taken_over: AtomicBool,
    /// How many files are being made.
    creating: AtomicUsize,
    /// Opens when there is more room, and when a file has no such writes any more.
    pub(crate) gate: Gate,
}

impl Writeback {
    /// No writes but those in the log, and never more than so many bytes.
    pub(crate) fn new(bytes_max: usize, log: Option<Log>) -> Self {
        let taken_over = AtomicBool::new(log.is_none());
        Writeback { bytes_max, log, taken_over, ..Writeback::default() }
    }

    /// Memory they take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        *lock(&self.bytes)
    }

    /// The files they belong to.
    pub(crate) fn files(&self) -> Vec<(Node, Arc<File>)> {
        lock(&self.files).iter().map(|(&node, file)| (node, Arc::clone(file))).collect()
    }

    /// The number of the last one that was answered.
    pub(crate) fn last(&self) -> Number {
        // Numbers are given out under this lock, so that all up to the last one have been noted.
        let _files = lock(&self.files);
        self.last.load(Ordering::Acquire)
    }

    /// How many files have some up to `number`, and how many bytes those are.
    pub(crate) fn left(&self, number: Number) -> (usize, u64) {
        let mut left = (0, 0);
        for (_, file) in self.files() {
            let delayed = lock(&file.delayed);
            left = (left.0 + usize::from(!delayed.made(number)), left.1 + delayed.left(number));
        }
        left
    }

    /// A write to a file failed after it was answered, or what makes it last.
    pub(crate) fn lose(&self, node: Node, path: Option<Target>, unmade: Option<&Lookup>, error: &Error) {
        if let Some(log) = &self.log {
            log.lose(node, error.errno);
        }
        let unmade = unmade.cloned();
        self.losses.add(Lost { node, path, unmade, error: error.clone() });
    }

    /// A program got the error of the writes to a file.
    pub(crate) fn reported(&self, node: Node) {
        self.log.iter().for_each(|log| log.reported(node));
        self.losses.remove(node, false);
    }

    /// close(2) had the error of the writes to a file.
    pub(crate) fn reported_at_close(&self, node: Node) {
        self.log.iter().for_each(|log| log.reported(node));
        self.losses.remove(node, true);
    }

    /// What synchronising the tree, or the names in a directory, has to report.
    fn unsynced(&self, dir: Option<Node>) -> Option<Error> {
        let Some(dir) = dir else { return self.losses.take_unsynced() };
        let is_in_it = |lost: &Lost| lost.unmade.as_ref().is_some_and(|name| name.dir == dir);
        let lost = self.losses.all().into_iter().find(is_in_it)?;
        self.reported(lost.node);
        Some(lost.error)
    }

    /// How many files are being made.
    pub(crate) fn creating(&self) -> usize {
        self.creating.load(Ordering::Acquire)
    }

    /// Takes room for a write, if there is any; one of any size has it when it is the only one.
    pub(crate) fn take(&self, weight: usize) -> bool {
        let mut bytes = lock(&self.bytes);
        let fits = *bytes == 0 || *bytes + weight <= self.bytes_max;
        if fits {
            *bytes += weight;
        }
        fits
    }

    /// Gives it back.
    pub(crate) fn give_back(&self, weight: usize) {
        *lock(&self.bytes) -= weight;
        self.gate.open();
    }

    /// The file of a node with such writes.
    pub(crate) fn file(&self, node: Node) -> Option<Arc<File>> {
        lock(&self.files).get(&node).cloned()
    }
}

/// A change under way: however it ends, it is known to have ended.
struct RunningJob {
    inner: Arc<Inner>,
    node: Node,
    file: Arc<File>,
    number: Number,
    piece: Arc<Piece>,
    /// The attributes the file has then, if the reply has them.
    outcome: Result<Option<Attr>>,
}

impl RunningJob {
    fn ends(mut self, outcome: Result<Option<Attr>>) {
        self.outcome = outcome;
    }

    /// Makes it; returns the attributes the file has then, if the reply has them.
    async fn make(&self) -> Result<Option<Attr>> {
        let RunningJob { inner, node, file, number, piece, .. } = self;
        let context = &piece.context;
        let set = match &piece.job {
            Job::Create(name) => return inner.outcome(*node, context, name).await.map(Some),
            Job::Write(_) => return self.until_begun(inner.write_out(*node, piece)).await.map(|()| None),
            Job::Set(set) => set,
        };
        file.gate.wait(|| lock(&file.delayed).have_begun(*number).then_some(())).await;
        let cx = inner.own_cx(&context.cred, context.pid);
        let set = SetAttr { node: *node, handle: Some(context.handle), attrs: (**set).clone() };
        let set = self.until_begun(ask(&*inner.below().service, &cx, set)).await;
        // For a process that makes them once more this must stay the last one.
        file.gate.wait(|| lock(&file.delayed).made(number - 1).then_some(())).await;
        Ok(Some(set?.attr))
    }

    /// Notes that the tree below knows of it as soon as that has been asked.
    async fn until_begun<T>(&self, asked: impl Future<Output = T>) -> T {
        let (mut asked, mut begun) = (pin!(asked), false);
        poll_fn(|context| {
            let poll = asked.as_mut().poll(context);
            if !std::mem::replace(&mut begun, true) {
                lock(&self.file.delayed).begins(self.number);
                self.file.gate.open();
            }
            poll
        })
        .await
    }

    /// The name of the file, if this creates it.
    fn creates(&self) -> Option<&Lookup> {
        if let Job::Create(name) = &self.piece.job { Some(name) } else { None }
    }

    /// Of a creation: the file exists and its attributes are known, or the name leads nowhere.
    fn creation_ended(&self, table: &mut Table) {
        let Some(name) = self.creates() else { return };
        self.inner.writeback.creating.fetch_sub(1, Ordering::AcqRel);
        match &self.outcome {
            Ok(Some(attr)) => {
                let until = self.inner.predicted_until(table, self.node, attr);
                lock(&self.file.delayed).was_created(attr, until);
            }
            Ok(None) => {}
            Err(_) => not_created(table, self.node, name),
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let failed = self.outcome.as_ref().err().cloned();
        let inner = Arc::clone(&self.inner);
        let mut table = lock(&inner.table);
        let before = table.last_change_of(self.node);
        let last = table.was_written(self.node);
        inner.mark_change();
        if let Some(error) = &failed {
            inner.writeback.lose(self.node, None, self.creates(), error);
            inner.locate_loss(self.node);
            // A write that was taken for done is not there.
            table.replace_content(self.node);
        }
        if let Some(log) = &inner.writeback.log {
            self.piece.logged.iter().for_each(|&place| log.done(place));
        }
        self.creation_ended(&mut table);
        let mut files = lock(&inner.writeback.files);
        let mut delayed = lock(&self.file.delayed);
        // Writes that came after it may have been made before its reply was received.
        let alone = delayed.changed == before && delayed.is_last(self.number);
        delayed.changed = last;
        let unmade = self.creates().filter(|_| failed.is_some());
        delayed.ended(self.number, failed, last);
        let all = delayed.is_empty();
        if all {
            files.remove(&self.node);
            if self.file.writer().is_none() {
                delayed.forget_predicted();
            }
        }
        drop((delayed, files));
        // The attributes in the last reply, if nothing else happened to the file meanwhile.
        if let (Ok(Some(attr)), true) = (&self.outcome, alone && all) {
            table.learn_attr(self.node, &mut attr.clone(), Asked { sequence: last, when: inner.when() });
        }
        drop(table);
        unmade.into_iter().for_each(|name| inner.notify_not_created(name));
        inner.writeback.give_back(self.piece.weight);
        inner.send_next(self.node, &self.file);
        self.file.gate.open();
    }
}

impl Inner {
    pub(crate) fn write<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Write) -> Answer<'a> {
        let Some((open, data)) = self.may_delay(cx, &op) else { return self.change(cx, op.into()) };
        let weight = Piece::weight_of(data.len());
        if self.writeback.take(weight) {
            return match self.delay(cx, &op, &open, data) {
                Some(reply) => Answer::Ready(reply),
                None => self.change(cx, op.into()),
            };
        }
        Answer::later(async move {
            self.writeback.gate.wait(|| self.writeback.take(weight).then_some(())).await;
            match self.delay(cx, &op, &open, data) {
                Some(reply) => reply,
                None => self.change(cx, op.into()).await,
            }
        })
    }

    /// The file and the bytes of a write that need not be made before it is answered.
    fn may_delay(&self, cx: &Cx, op: &Write) -> Option<(Arc<OpenFile>, Bytes)> {
        let open = self.handles.file(op.node, op.handle)?;
        let flags = open.flags?;
        let at_once =
            cx.writes_at_end(flags, op.cached) || flags.intersects(OpenFlags::DSYNC | OpenFlags::DIRECT);
        let too_far = op.offset.checked_add(op.data.len() as u64).is_none_or(|end| end > i64::MAX as u64);
        if at_once || too_far || is_own(op.handle) || !flags.writes() || op.data.is_empty() {
            return None;
        }
        let mut table = lock(&self.table);
        // The mode that such a write leaves is known to the tree below only.
        let strips = op.kill_setid && table.may_have_setid(op.node);
        if strips || table.policy(op.node).writes == Writes::Through {
            return None;
        }
        drop(table);
        match &op.data {
            Payload::File(_) => None,
            data => Some((open, pool::own(data.clone().into_bytes().ok()?))),
        }
    }

    /// Notes a write, for which room was taken, and answers it. `None`, and the room is free, when it could not be noted for
    /// the next process.
    fn delay(self: &Arc<Self>, cx: &Cx, op: &Write, open: &OpenFile, data: Bytes) -> Option<Reply> {
        let Write { handle, cached, kill_setid, .. } = *op;
        let context = WriteContext { cached, kill_setid, ..WriteContext::new(cx, handle) };
        let (count, file) = (data.len() as u64, &open.file);
        if !self.note(op.node, file, Piece::new(context, op.offset, Job::Write(vec![data])), None) {
            return None;
        }
        self.send_next(op.node, file);
        Some(Reply::Count(Count(count)))
    }

    /// Notes what is answered before it is made, for which room was taken, of a file whose attributes are perhaps predicted, and
    /// fresh until then. When it cannot be noted for the next process, or its handle was closed, the room is free.
    pub(crate) fn note(
        &self,
        node: Node,
        file: &Arc<File>,
        mut piece: Piece,
        predicted: Option<(Attr, Moment)>,
    ) -> bool {
        let now = self.now();
        let mut table = lock(&self.table);
        let base = predicted.or_else(|| table.fresh_attr(node, now));
        let mut files = lock(&self.writeback.files);
        let is_open = !matches!(piece.job, Job::Set(_)) || file.is_written_by(piece.context.handle);
        // In the order of their numbers, which is that of what overlaps.
        let logged = self.writeback.log.as_ref().filter(|_| is_open).map(|log| log.append(node, &piece));
        if !is_open || logged == Some(None) {
            drop((files, table));
            self.writeback.give_back(piece.weight);
            return false;
        }
        piece.logged.extend(logged.flatten());
        files.entry(node).or_insert_with(|| Arc::clone(file));
        lock(&file.delayed).begin(now, base);
        let (offset, data) = (piece.offset, piece.rest(0).into_iter().next());
        // Before it can be read: a reader that does not find it in the pool waits for it.
        self.add(file, piece);
        lock(&file.delayed).changed = table.was_written(node);
        self.mark_change();
        if let Some(data) = data {
            let mut content = lock(&file.content);
            content.is_ours();
            let changes = content.changes;
            self.overlay(&mut content, offset, data, changes);
        }
        true
    }

    /// Puts what is to be made of a file, which is noted as one with such writes, in line.
    fn add(&self, file: &File, piece: Piece) {
        let most = u64::from(self.below().abilities.max_io);
        let number = self.writeback.last.fetch_add(1, Ordering::AcqRel) + 1;
        self.writeback.creating.fetch_add(usize::from(matches!(piece.job, Job::Create(_))), Ordering::AcqRel);
        lock(&file.delayed).add(number, piece, self.in_units(self.runtime.coarse_wall()), most);
    }

    /// Goes on with the writes that a former process answered, once.
    pub(crate) fn take_over(self: &Arc<Self>) {
        if self.writeback.taken_over.load(Ordering::Relaxed)
            || self.writeback.taken_over.swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.close_for_formers();
        let Some(log) = &self.writeback.log else { return };
        for (node, errno) in log.lost() {
            let file = lock(&self.table).file(node, self.now());
            lock(&file.delayed).failed(errno.into());
            self.writeback.lose(node, None, None, &errno.into());
            self.locate_loss(node);
        }
        for (node, piece) in log.left() {
            let open = self.open_file(node, piece.context.handle);
            let mut files = lock(&self.writeback.files);
            files.entry(node).or_insert_with(|| Arc::clone(&open.file));
            *lock(&self.writeback.bytes) += piece.weight;
            self.add(&open.file, piece);
        }
        for (node, file) in self.writeback.files() {
            lock(&self.table).was_written(node);
            self.mark_change();
            self.send_next(node, &file);
        }
    }

    /// Makes what can be made now of the writes to a file.
    pub(crate) fn send_next(self: &Arc<Self>, node: Node, file: &Arc<File>) {
        let (most, in_order) = (u64::from(self.below().abilities.max_io), self.below().abilities.in_order);
        loop {
            let Some((number, piece)) = lock(&file.delayed).next(most, in_order) else { return };
            let (inner, file) = (Arc::clone(self), Arc::clone(file));
            let outcome = Err(Errno::EIO.because("a delayed write was given up"));
            let job = RunningJob { inner, node, file, number, piece, outcome };
            self.runtime.spawn(Box::pin(async move {
                let outcome = job.make().await;
                job.ends(outcome);
            }));
        }
    }

    async fn write_out(&self, node: Node, piece: &Piece) -> Result<()> {
        let WriteContext { handle, ref cred, pid, cached, kill_setid } = piece.context;
        let mut done = 0;
        while done < piece.len {
            // It has its place, also where its file was opened with `O_APPEND` and the layer above chose the place.
            let cx = Cx { appends: Some(false), ..self.own_cx(cred, pid) };
            let data = match &piece.rest(done)[..] {
                [one] => Payload::Bytes(one.clone()),
                several => Payload::Chunks(several.to_vec()),
            };
            let offset = piece.offset + done;
            let write = Write { node, handle, offset, data, cached, kill_setid };
            match ask(&*self.below().service, &cx, write).await {
                Ok(Count(0)) => return Err(Errno::EIO.because("nothing of a delayed write was written")),
                Ok(Count(count)) => done += count,
                Err(error) if error.errno == Errno::ENOSPC && self.closed_for_room().await => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until all writes to a file have been made that were answered so far.
    pub(crate) async fn written(self: &Arc<Self>, node: Node, file: &Arc<File>) {
        let Some(number) = lock(&file.delayed).expedite() else { return };
        self.send_next(node, file);
        file.gate.wait(|| lock(&file.delayed).made(number).then_some(())).await;
    }

    /// Waits until all writes up to `number` have been made, whatever is written meanwhile.
    pub(crate) async fn written_to(self: &Arc<Self>, number: Number) {
        let files = self.writeback.files();
        for (node, file) in &files {
            lock(&file.delayed).expedite_to(number);
            self.send_next(*node, file);
        }
        for (_, file) in files {
            file.gate.wait(|| lock(&file.delayed).made(number).then_some(())).await;
        }
    }

    /// The files of a request with writes that must be made before it.
    pub(crate) fn written_first(&self, request: &mut Request) -> Vec<(Node, Arc<File>)> {
        if self.writeback.bytes() == 0 || !request.depends_on_content() {
            return Vec::new();
        }
        let replaced = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Adds { dir, name, file: Added::New { exclusive: false, .. } } => self.leads_to(dir, name),
            _ => None,
        });
        let named = self.get_names(request).into_iter().chain(replaced);
        let nodes = subjects(request).into_iter().map(|subject| subject.node).chain(named);
        nodes.filter_map(|node| Some((node, self.writeback.file(node)?))).collect()
    }

    /// Waits for the writes that must be made before a request.
    ///
    /// # Errors
    /// Of a file that is to get another name: what went wrong with them, if that was not reported. It might replace one that is
    /// well. That is told once, and counts for no report: who renames a file need not be who wrote it.
    pub(crate) async fn write_first(self: &Arc<Self>, request: &mut Request) -> Result<()> {
        let mut named = self.get_names(request);
        for file in self.created_first(request) {
            file.gate.wait(|| (!lock(&file.delayed).is_being_created()).then_some(())).await;
        }
        for (node, file) in self.written_first(request) {
            self.written(node, &file).await;
        }
        named.extend(self.get_names(request));
        named.into_iter().find_map(|node| self.loss_to_tell(node)).map_or(Ok(()), Err)
    }

    /// The files to which a request gives another name, as far as that is known.
    fn get_names(&self, request: &Request) -> Vec<Node> {
        let mut nodes = Vec::new();
        for effect in request.effects() {
            match effect {
                Effect::Moves { dir, name, to_dir, to_name, flags } => {
                    nodes.extend(self.leads_to(dir, name));
                    let exchanges = flags.contains(RenameFlags::EXCHANGE);
                    nodes.extend(exchanges.then(|| self.leads_to(to_dir, to_name)).flatten());
                }
                Effect::Adds { file: Added::Existing(node), .. } => nodes.push(node),
                _ => {}
            }
        }
        nodes
    }

    /// Why a write to a file failed that is to get another name, if that was neither reported nor told so before.
    fn loss_to_tell(&self, node: Node) -> Option<Error> {
        let file = lock(&self.table).known_file(node);
        let error = file.and_then(|file| lock(&file.delayed).unreported());
        let error = error.or_else(|| self.writeback.losses.error_of(node))?;
        self.writeback.losses.tell(node).then_some(error)
    }

    /// A descriptor was closed. What was written of the file reaches the tree below before it learns that, which is when locks end
    /// and some programs store content: close(2) waits for it, or it is told when the file is closed there.
    pub(crate) fn flush<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Flush) -> Answer<'a> {
        let open = self.handles.file(op.node, op.handle);
        let may_be_locked =
            || open.as_ref().is_none_or(|open| open.file.may_be_locked.load(Ordering::Acquire));
        let ends_locks = self.has(OpCode::SetLock) && may_be_locked();
        let Some(open) = open.filter(|open| open.delays()) else {
            return self.flush_after_writes(cx, op, ends_locks);
        };
        Answer::later(async move {
            let is_behind = lock(&self.table).policy(op.node).writes.is_behind();
            // Shells close a copy of the descriptor before they write: a server of whole files would have an empty one until then.
            let may_wait = is_behind || lock(&open.file.content).emptied;
            let reply = if !ends_locks && may_wait {
                open.flushed_early.store(true, Ordering::Relaxed);
                lock(&open.file.delayed).expedite();
                self.send_next(op.node, &open.file);
                Reply::Done(())
            } else {
                self.written(op.node, &open.file).await;
                lock(&open.file.delayed).forget_predicted();
                // What fails when it is closed below was told by this then.
                open.flushed_early.store(false, Ordering::Relaxed);
                if ends_locks || open.flushes { self.flush_below(cx, op).await } else { Reply::Done(()) }
            };
            let error = lock(&open.file.delayed).close_error(&mut lock(&open.errors_seen));
            error.map_or(reply, Reply::Error)
        })
    }

    /// Flushes by a handle through which nothing is written, as far as is known; waits for what is written by others if that
    /// matters to them.
    fn flush_after_writes<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Flush, waits: bool) -> Answer<'a> {
        match self.writeback.file(op.node).filter(|_| waits) {
            None => self.flush_below(cx, op),
            Some(file) => Answer::later(async move {
                self.written(op.node, &file).await;
                self.flush_below(cx, op).await
            }),
        }
    }

    /// Synchronises the tree, or the names in a directory, after what was delayed. It fails with what failed of that, since
    /// the caller may have no file open that would say so.
    pub(crate) fn sync<'a>(self: &'a Arc<Self>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let dir = if let Some(Synced::Directory(dir)) = request.syncs() { Some(dir) } else { None };
        Answer::later(async move {
            for (node, file) in self.writeback.files() {
                match dir {
                    Some(_) => {
                        file.gate.wait(|| (!lock(&file.delayed).is_being_created()).then_some(())).await
                    }
                    None => self.written(node, &file).await,
                }
            }
            // A file of a server of whole files has its name there when it is closed.
            self.closed(None).await;
            let reply = match dir.is_some() || self.has(OpCode::SyncFs) {
                true => self.pass(cx, request).await,
                false => Reply::Done(()),
            };
            self.writeback.unsynced(dir).map_or(reply, Reply::Error)
        })
    }

    pub(crate) fn flush_below<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut op: Flush) -> Answer<'a> {
        let Some(real) = self.below_handle(op.node, op.handle).filter(|_| self.has(OpCode::Flush)) else {
            return Answer::Ready(Reply::Done(()));
        };
        let node = op.node;
        let open = self.handles.file(node, op.handle).and_then(|open| open.flags);
        op.handle = real;
        let flushed = self.storing(node, self.below().service.call(cx, op.into()));
        if !(self.below().abilities.whole_files && open.is_some_and(OpenFlags::writes)) {
            return flushed;
        }
        Answer::later(async move {
            let reply = flushed.await;
            self.note_flush(cx, node, &reply).await;
            reply
        })
    }
}
