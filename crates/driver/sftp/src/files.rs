// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files: reading and writing them.

use crate::fault::Fault;
use crate::inner::{Inner, lock};
use crate::kept::{Kept, WasOpen};
use crate::link::Again;
use crate::read_ahead::{Budget, ReadAhead, Version, no_budget};
use crate::session::Session;
use crate::slots::{Held, Slot, open};
use crate::trouble::Attempt;
use bytes::Bytes;
use outrigger_core::ops::{CopyRange, OpenFlags, Read, Write};
use outrigger_core::reply::{Count, OpenHow, Opened};
use outrigger_core::{Cx, Errno, FileKind, Handle, Node, Payload, Result};
use outrigger_proto_sftp::{Attrs, Extensions, OpenFlags as Flags, Request, StatusCode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often a request on an open file is made again when connections are lost.
const REPEATS: u32 = 3;
/// The longest piece of a copy that a server is asked for at once, in bytes: it does nothing else meanwhile.
const COPY_MAX: u64 = 16 << 20;
/// The longest piece of a copy that passes through this side, in bytes.
const THROUGH_MAX: u64 = 1 << 20;
/// The largest position in a file.
const POSITION_MAX: u64 = i64::MAX as u64;

/// All open files.
#[derive(Default)]
pub(crate) struct Files {
    next: AtomicU64,
    kept: Option<Arc<Kept>>,
    open: Mutex<Table>,
    budget: Budget,
}

#[derive(Default)]
struct Table {
    files: HashMap<Handle, Arc<OpenFile>>,
    /// What the open files of each node share.
    uses: HashMap<Node, Use>,
    /// Open nodes whose last name was taken, and where that is noted.
    hidden: HashMap<Node, Option<usize>>,
}

/// What is known of a node while it is open.
#[derive(Default)]
struct Use {
    /// How often it is open.
    count: usize,
    /// How often it was changed.
    version: Version,
}

/// An open file.
pub(crate) struct OpenFile {
    handle: Handle,
    pub(crate) node: Node,
    flags: OpenFlags,
    /// What it was opened for.
    main: Slot,
    /// What it was not opened for, but the kernel's cache may want: reading what it will only write, or writing at a place
    /// to a file that appends.
    other: Slot,
    ahead: ReadAhead,
    /// Raised when the file is changed here.
    version: Version,
}

/// Set in the owner of a handle that is not what the file was opened for.
const OTHER: u64 = 1;

/// What a handle is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Anything,
    Reading,
    Writing,
    Appending,
}

impl OpenFile {
    fn new(handle: Handle, node: Node, flags: OpenFlags, main: Slot, usage: &Use, budget: &Budget) -> Self {
        let other = if flags.writes() && !flags.reads() && !flags.contains(OpenFlags::APPEND) {
            Flags::READ
        } else {
            Flags::READ | Flags::WRITE
        };
        let version = Arc::clone(&usage.version);
        let ahead = ReadAhead::new(Arc::clone(&version), Arc::clone(budget));
        OpenFile { handle, node, flags, main, other: Slot::new(other), ahead, version }
    }

    /// Takes over a handle that a former process had opened for the file.
    fn adopt(&self, owner: u64, held: Held) {
        let slot = if owner & OTHER == 0 { &self.main } else { &self.other };
        slot.adopt(held);
    }

    /// Notes that a handle of the server is one of this file.
    fn owns(&self, slot: &Slot, held: &Held) {
        let other = if std::ptr::eq(slot, &self.other) { OTHER } else { 0 };
        held.note_owner(self.handle.0 << 1 | other);
    }

    fn slot(&self, purpose: For) -> &Slot {
        let has = self.main.flags();
        let fits = match purpose {
            For::Anything => true,
            For::Reading => has.contains(Flags::READ),
            For::Writing => has.contains(Flags::WRITE) && !has.contains(Flags::APPEND),
            For::Appending => has.contains(Flags::APPEND),
        };
        if fits { &self.main } else { &self.other }
    }

    /// A handle that is open at this moment.
    pub(crate) fn present(&self) -> Option<Arc<Held>> {
        self.main.present()
    }

    /// The same, if it may write.
    pub(crate) fn present_for_writing(&self) -> Option<Arc<Held>> {
        self.main.present().filter(|_| self.main.flags().contains(Flags::WRITE))
    }
}

/// The server's flags for a file opened with ours; emptying is not among them.
pub(crate) fn server_flags(flags: OpenFlags) -> Flags {
    let mut theirs = Flags::empty();
    theirs.set(Flags::READ, flags.reads());
    theirs.set(Flags::WRITE, flags.writes());
    theirs.set(Flags::APPEND, flags.contains(OpenFlags::APPEND) && flags.writes());
    theirs
}

impl Files {
    /// None but those of former processes; content is read ahead of readers or not.
    pub(crate) fn new(read_ahead: bool, kept: Option<Arc<Kept>>) -> Self {
        let budget = if read_ahead { Budget::default() } else { no_budget() };
        let files = Files { budget, kept, ..Files::default() };
        for WasOpen { handle, node, flags } in files.kept.iter().flat_map(|kept| kept.files()) {
            files.insert(handle, node, flags, Slot::new(server_flags(flags)));
        }
        files
    }

    /// Gives the handles of the server that a former process had to the files that they are for, and closes the others.
    pub(crate) fn adopt(&self, session: &Session, kept: &Kept) {
        for (handle, owner) in kept.handles(session.epoch) {
            let held = Held::new(session.clone(), handle);
            if let Ok(file) = self.get(Handle(owner >> 1)) {
                file.adopt(owner, held);
            }
        }
    }

    /// A handle for a file opened with these flags, whose handle at the server is or will be in `slot`.
    ///
    /// # Errors
    /// `ENFILE` when as many are open as can be noted.
    pub(crate) fn add(&self, cx: &Cx, node: Node, flags: OpenFlags, slot: Slot) -> Result<Opened> {
        let handle = match &self.kept {
            Some(kept) => kept.next_file(),
            None => Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1),
        };
        // What a layer has opened for itself, that layer does not know any more when it dies.
        if let Some(kept) = self.kept.as_ref().filter(|_| cx.slot != Cx::NO_SLOT) {
            kept.note_file(handle, node, flags)?;
        }
        let file = self.insert(handle, node, flags, slot);
        if let Some(held) = file.main.present() {
            file.owns(&file.main, &held);
        }
        // Writes are answered when they were made, so that closing has nothing to tell.
        Ok(Opened { handle, how: OpenHow::NO_FLUSH, ..Opened::default() })
    }

    fn insert(&self, handle: Handle, node: Node, flags: OpenFlags, slot: Slot) -> Arc<OpenFile> {
        let mut table = lock(&self.open);
        let usage = table.uses.entry(node).or_default();
        usage.count += 1;
        let file = Arc::new(OpenFile::new(handle, node, flags, slot, usage, &self.budget));
        table.files.insert(handle, Arc::clone(&file));
        file
    }

    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = lock(&self.open).files.get(&handle).cloned();
        file.ok_or_else(|| Errno::EBADF.because("the file is not open"))
    }

    /// Takes a file out; tells whether it was hidden and nobody has it open any more, and where that is noted.
    pub(crate) fn remove(&self, handle: Handle) -> Option<(Arc<OpenFile>, Option<Option<usize>>)> {
        let mut table = lock(&self.open);
        let file = table.files.remove(&handle)?;
        let usage = table.uses.get_mut(&file.node)?;
        usage.count -= 1;
        let last = usage.count == 0;
        if last {
            table.uses.remove(&file.node);
        }
        let was_hidden = if last { table.hidden.remove(&file.node) } else { None };
        self.kept.iter().for_each(|kept| kept.erase_file(handle));
        Some((file, was_hidden))
    }

    /// Notes that the content of a file is being changed, or was a moment ago: what was read before is out of date.
    pub(crate) fn changes(&self, node: Node) {
        if let Some(usage) = lock(&self.open).uses.get(&node) {
            usage.version.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_open(&self, node: Node) -> bool {
        lock(&self.open).uses.contains_key(&node)
    }

    pub(crate) fn is_hidden(&self, node: Node) -> bool {
        lock(&self.open).hidden.contains_key(&node)
    }

    /// Notes that an open node lost its last name, as `note` tells processes to come; false when it is not open any more.
    pub(crate) fn hide(&self, node: Node, note: Option<usize>) -> bool {
        let mut table = lock(&self.open);
        let is_open = table.uses.contains_key(&node);
        if is_open {
            table.hidden.insert(node, note);
        }
        is_open
    }

    /// Where it is noted that an open node lost its last name.
    pub(crate) fn note_of(&self, node: Node) -> Option<usize> {
        lock(&self.open).hidden.get(&node).copied().flatten()
    }

    pub(crate) fn hidden(&self) -> Vec<Node> {
        lock(&self.open).hidden.keys().copied().collect()
    }
}

impl Inner {
    /// Opens a file that exists.
    pub(crate) async fn open_file(&self, cx: &Cx, node: Node, flags: OpenFlags) -> Result<Opened> {
        match self.places.kind(node)? {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            FileKind::Symlink => return Err(Errno::ELOOP.into()),
            // Opening a pipe would keep the server waiting for its other end.
            _ => return Err(Errno::ENXIO.because("only regular files are opened")),
        }
        let path = self.places.path(node)?;
        let (theirs, empties) = (server_flags(flags), flags.contains(OpenFlags::TRUNC));
        let slot = if theirs == Flags::READ && !empties && self.is_readable(node) {
            let session = self.link.session().await?;
            let request = Request::Open { path: &path, flags: theirs, attrs: Attrs::NONE };
            let pending = session.begin(&request).await;
            Slot::opening(theirs, session, pending)
        } else {
            let first = if empties { theirs | Flags::WRITE | Flags::TRUNC } else { theirs };
            match open(&self.link, &path, first, Attrs::NONE).await {
                Ok(held) => {
                    if empties {
                        self.note_unsynced(node, &held.session);
                    }
                    Slot::open(theirs, held)
                }
                Err(fault) => return Err(self.why(fault, Attempt::Open { path: &path, flags: first }).await),
            }
        };
        if empties {
            self.files.changes(node);
        }
        self.files.add(cx, node, flags, slot)
    }

    /// Does `work` with a handle of the server that is fit for `purpose`, and again with another one when the connection is
    /// lost, if that does no harm.
    async fn with_handle<T, F>(
        &self,
        file: &OpenFile,
        purpose: For,
        again: Again,
        mut work: impl FnMut(Arc<Held>) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut repeats = 0;
        loop {
            let slot = file.slot(purpose);
            let held = slot.get(&self.link, || self.places.path(file.node)).await?;
            file.owns(slot, &held);
            again.prepare(&held.session).await;
            let fault = match work(Arc::clone(&held)).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            repeats += 1;
            if repeats > REPEATS || !self.link.may_repeat(again, &held.session, &fault).await {
                return Err(fault);
            }
        }
    }

    pub(crate) async fn read_file(&self, op: Read) -> Result<Payload> {
        let file = self.files.get(op.handle)?;
        let len = u64::from(op.len).min(POSITION_MAX.saturating_sub(op.offset)) as usize;
        let read = |held: Arc<Held>| {
            let ahead = &file.ahead;
            async move { ahead.read(&held, op.offset, len).await }
        };
        match self.with_handle(&file, For::Reading, Again::Always, read).await {
            Ok(pieces) => Ok(Payload::Chunks(pieces)),
            Err(fault) => {
                let path = self.places.path(file.node)?;
                Err(self.why(fault, Attempt::Open { path: &path, flags: Flags::READ }).await)
            }
        }
    }

    pub(crate) async fn write_file(&self, cx: &Cx, op: Write) -> Result<Count> {
        let file = self.files.get(op.handle)?;
        if !file.flags.writes() {
            return Err(Errno::EBADF.because("the file is not open for writing"));
        }
        let data = op.data.into_bytes()?;
        let len = data.len() as u64;
        if op.offset.checked_add(len).is_none_or(|end| end > POSITION_MAX) {
            return Err(Errno::EFBIG.into());
        }
        if data.is_empty() {
            return Ok(Count(0));
        }
        let appends = file.flags.contains(OpenFlags::APPEND) && !op.cached;
        let purpose = if appends { For::Appending } else { For::Writing };
        let then = After {
            sync: file.flags.contains(OpenFlags::DSYNC),
            clear: self.clears_setid(cx, op.kill_setid),
        };
        let write = |held: Arc<Held>| {
            let (data, node) = (data.clone(), file.node);
            async move {
                let written = write_range(Arc::clone(&held), op.offset, data, then).await?;
                if !then.sync {
                    self.note_unsynced(node, &held.session);
                }
                Ok(written)
            }
        };
        file.version.fetch_add(1, Ordering::AcqRel);
        let again = if appends { Again::Never } else { Again::WhenGone };
        let written = self.with_handle(&file, purpose, again, write).await;
        // What was asked for while it was being written may be either.
        file.version.fetch_add(1, Ordering::AcqRel);
        match written {
            Ok(count) => Ok(Count(count)),
            Err(fault) => {
                let path = self.places.path(file.node)?;
                Err(self.why(fault, Attempt::Write { path: &path }).await)
            }
        }
    }

    /// Whether what the caller writes clears set-id bits (see write(2)): the server does that by itself unless its user is
    /// the superuser.
    pub(crate) fn clears_setid(&self, cx: &Cx, demanded: bool) -> bool {
        demanded || (cx.cred.uid != 0 && self.people.there().is_none_or(|there| there.uid == 0))
    }

    pub(crate) async fn sync_file(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle)?;
        self.require_fsync()?;
        let ino = self.places.ino(file.node)?;
        let written = self.unsynced.take(ino);
        let sync = |held: Arc<Held>| async move {
            held.session.begin(&Request::FSync { handle: &held.handle }).await.done().await?;
            Ok(held)
        };
        let synced = self.with_handle(&file, For::Anything, Again::Always, sync).await;
        match (written, synced) {
            (Some(written), Ok(held)) if !held.session.has_what_came_by(&written).await => Err(Errno::EIO
                .because(
                    "the connection was lost since the file was written to, and whether the server still has \
                     what was written is not known",
                )),
            (_, Ok(_)) => Ok(()),
            (written, Err(fault)) => {
                written.iter().for_each(|session| self.unsynced.note(ino, session));
                Err(fault.into())
            }
        }
    }

    /// A file was changed by way of a connection.
    pub(crate) fn note_unsynced(&self, node: Node, session: &Session) {
        if let Ok(ino) = self.places.ino(node) {
            self.unsynced.note(ino, session);
        }
    }

    /// As sync(2) says it of a file, `EINVAL`: it does not support synchronisation.
    pub(crate) fn require_fsync(&self) -> Result<()> {
        if self.extensions.contains(Extensions::FSYNC) {
            return Ok(());
        }
        Err(Errno::EINVAL
            .because("the server does not have fsync@openssh.com: it cannot say what is on stable storage"))
    }

    /// Copies within the server, as much at once as it can do in short time; through this side where it refuses.
    pub(crate) async fn copy(&self, op: CopyRange) -> Result<Count> {
        let (from, to) = (self.files.get(op.handle)?, self.files.get(op.to_handle)?);
        if !to.flags.writes() || to.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::EBADF.because("the file is not open for writing at a place"));
        }
        let within = from.node == to.node;
        if within && op.offset.abs_diff(op.to_offset) < op.len {
            return Err(Errno::EINVAL.because("the ranges overlap"));
        }
        let copied = match within {
            true => self.copy_through(&from, &to, &op).await,
            false => match self.copy_there(&from, &to, &op).await {
                // OpenSSH's does not copy between files that it opened by one name, though they may be two by now.
                Err(fault) if fault.code() == Some(StatusCode::Failure) => {
                    self.copy_through(&from, &to, &op).await
                }
                copied => copied,
            },
        };
        self.files.changes(to.node);
        match copied {
            Ok(count) => Ok(Count(count)),
            Err(fault) => {
                let path = self.places.path(to.node)?;
                Err(self.why(fault, Attempt::Write { path: &path }).await)
            }
        }
    }

    /// Has the server copy from one file to another one.
    async fn copy_there(&self, from: &OpenFile, to: &OpenFile, op: &CopyRange) -> Result<u64, Fault> {
        self.with_handle(to, For::Writing, Again::WhenGone, |target| async move {
            let source = from.slot(For::Reading).get(&self.link, || self.places.path(from.node)).await?;
            let len = op.len.min(COPY_MAX);
            let copied = copy_range(&source, op.offset, &target, op.to_offset, len).await?;
            self.note_unsynced(to.node, &target.session);
            Ok(copied)
        })
        .await
    }

    /// Reads what is to be copied, and writes it.
    async fn copy_through(&self, from: &OpenFile, to: &OpenFile, op: &CopyRange) -> Result<u64, Fault> {
        let len = op.len.min(THROUGH_MAX) as usize;
        let read = |held: Arc<Held>| {
            let ahead = &from.ahead;
            async move { ahead.read(&held, op.offset, len).await }
        };
        let content = self.with_handle(from, For::Reading, Again::Always, read).await?;
        let content = Payload::Chunks(content).into_bytes()?;
        if content.is_empty() {
            return Ok(0);
        }
        let write = |target: Arc<Held>| {
            let content = content.clone();
            async move {
                let nothing = After { sync: false, clear: false };
                let written = write_range(Arc::clone(&target), op.to_offset, content, nothing).await?;
                self.note_unsynced(to.node, &target.session);
                Ok(written)
            }
        };
        self.with_handle(to, For::Writing, Again::WhenGone, write).await
    }

    /// Closes a file. What was hidden goes with its last handle.
    pub(crate) fn close_file(&self, handle: Handle) -> Result<()> {
        let Some((file, was_hidden)) = self.files.remove(handle) else {
            return Err(Errno::EBADF.because("the file is not open"));
        };
        let node = file.node;
        drop(file);
        if let Some(note) = was_hidden {
            self.remove_hidden(node, note);
        }
        Ok(())
    }
}

/// What follows a write.
#[derive(Clone, Copy)]
struct After {
    /// It is to be on stable storage.
    sync: bool,
    /// Set-id bits are cleared.
    clear: bool,
}

/// Pieces of a range that are asked for at once: their positions and lengths.
fn pieces(
    session: &Session,
    offset: u64,
    len: usize,
    max: u32,
) -> impl Iterator<Item = (u64, usize)> + use<> {
    let chunk = session.chunk(max);
    (0..len).step_by(chunk).map(move |done| (offset + done as u64, chunk.min(len - done)))
}

/// Writes, and tells how many bytes were written before the first failure.
async fn write_range(held: Arc<Held>, offset: u64, data: Bytes, then: After) -> Result<u64, Fault> {
    let Held { session, handle, .. } = &*held;
    let mut asked = Vec::new();
    for (at, len) in pieces(session, offset, data.len(), session.max_write) {
        let start = (at - offset) as usize;
        asked.push((len, session.begin_write(handle, at, data.slice(start..start + len)).await));
    }
    let sync = match then.sync {
        true => Some(session.begin(&Request::FSync { handle }).await),
        false => None,
    };
    let look = match then.clear {
        true => Some(session.begin(&Request::FStat { handle }).await),
        false => None,
    };
    let mut written = 0;
    let mut failed = None;
    for (len, pending) in asked {
        // All are waited for: when this returns, none is on its way any more.
        match pending.done().await {
            Ok(()) if failed.is_none() => written += len as u64,
            Ok(()) => {}
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    if let Some(fault) = failed.filter(|fault| written == 0 || fault.is_lost_connection()) {
        return Err(fault);
    }
    if let Some(sync) = sync {
        sync.done().await?;
    }
    if let Some(look) = look {
        clear_setid(&held, look.attrs().await?).await?;
    }
    Ok(written)
}

/// Clears set-id bits as write(2) does: the group's only where its members may execute.
async fn clear_setid(held: &Held, attrs: Attrs) -> Result<(), Fault> {
    let Some(cleared) = attrs.permissions.and_then(without_setid) else { return Ok(()) };
    let attrs = Attrs { permissions: Some(cleared), ..Attrs::NONE };
    held.session.begin(&Request::FSetStat { handle: &held.handle, attrs }).await.done().await
}

/// The permissions without set-id bits, when they have any.
pub(crate) fn without_setid(mode: u32) -> Option<u32> {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    let cleared = mode & !(0o4000 | group);
    (cleared != mode).then_some(cleared & 0o7777)
}

async fn copy_range(
    source: &Held,
    offset: u64,
    target: &Held,
    to_offset: u64,
    len: u64,
) -> Result<u64, Fault> {
    let session = &target.session;
    if session.epoch != source.session.epoch {
        // The source was opened on a connection that is gone.
        return Err(Fault::Lost(outrigger_mux::Error::Lost { why: "it was made anew".into(), sent: false }));
    }
    // The server does not tell how much it has copied, so it must not reach the end.
    let size = session.begin(&Request::FStat { handle: &source.handle }).await.attrs().await?.size;
    let len = len.min(size.unwrap_or(0).saturating_sub(offset));
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (&source.handle[..], &target.handle[..]);
    session.begin(&Request::CopyData { from, offset, len, to, to_offset }).await.done().await?;
    Ok(len)
}
