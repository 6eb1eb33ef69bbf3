// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files: reading and writing them. Copies between them are in `copy`.

use crate::attr::looks;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use crate::origin::Kept as UnsyncedBy;
use crate::pending_create::PendingCreate;
use crate::read::read_range;
use crate::session::Session;
use crate::slots::{Held, Slot, open};
use bytes::Bytes;
use outrigger_core::attr::without_set_id;
use outrigger_core::ops::{OpenFlags, Read, Write};
use outrigger_core::order::{Kind, Order};
use outrigger_core::reply::{Count, Opened};
use outrigger_core::{Cx, Errno, FileKind, Handle, Node, Payload, Result, lock};
use outrigger_proto_sftp::{Attrs, Extensions, OpenFlags as Flags, Request, Times};
use outrigger_toolkit_remote::known::{Change, Known, moment};
use outrigger_toolkit_remote::{Attempt, Closed, REPEATS};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The largest position in a file.
const POSITION_MAX: u64 = i64::MAX as u64;

/// What is known of the content of a node while it is open.
#[derive(Default)]
pub(crate) struct Content {
    /// The file is at least so long, unless it was truncated elsewhere: the end of what was written here.
    pub(crate) end: AtomicU64,
}

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) handle: Handle,
    pub(crate) node: Node,
    pub(crate) flags: OpenFlags,
    /// Whether it is still to be made.
    pub(crate) create: PendingCreate,
    /// What it was opened for.
    main: Slot,
    /// What it was not opened for, but the kernel's cache may want: reading what it will only write, or writing at a place
    /// to a file that appends.
    other: Slot,
    content: Arc<Content>,
    /// The last change elsewhere that had been seen when the handle was asked for by which it is read.
    asked: tokio::sync::Mutex<u64>,
    /// It is read by the other handle.
    reads_by_other: AtomicBool,
    /// Writes and settings of attributes by this handle.
    pub(crate) order: Arc<Order>,
    /// Its times when they were last seen.
    seen: Mutex<Option<Times>>,
    /// There is another file now where it was when its connection was lost.
    dead: AtomicBool,
    /// What it was compared with last.
    compared: Mutex<Option<Arc<Known>>>,
}

/// Set in the owner of a handle that is not what the file was opened for.
const OTHER: u64 = 1;

/// What a handle is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Anything,
    Reading,
    Writing,
    Appending,
}

impl OpenFile {
    /// One that shares what is known of its content with the other open files of its node.
    pub(crate) fn new(
        (handle, node, flags): (Handle, Node, OpenFlags),
        (main, create, asked): (Slot, PendingCreate, u64),
        content: &Arc<Content>,
    ) -> Self {
        let other = if flags.writes() && !flags.reads() && !flags.contains(OpenFlags::APPEND) {
            Flags::READ
        } else {
            Flags::READ | Flags::WRITE
        };
        OpenFile {
            handle,
            node,
            flags,
            create,
            main,
            other: Slot::new(other),
            content: Arc::clone(content),
            asked: tokio::sync::Mutex::new(asked),
            reads_by_other: AtomicBool::new(false),
            order: Arc::default(),
            seen: Mutex::default(),
            dead: AtomicBool::new(false),
            compared: Mutex::default(),
        }
    }

    /// Takes over a handle that a former process had opened for the file.
    pub(crate) fn adopt(&self, owner: u64, held: Held) {
        let slot = if owner & OTHER == 0 { &self.main } else { &self.other };
        slot.adopt(held);
    }

    /// It has been made, and opened by that.
    pub(crate) fn is_made(&self, held: Held) {
        self.owns(&self.main, &held);
        self.main.adopt(held);
    }

    /// Notes that the handle it was opened with is its own.
    pub(crate) fn owns_its_handle(&self) {
        if let Some(held) = self.main.present() {
            self.owns(&self.main, &held);
        }
    }

    /// Notes that a handle of the server is one of this file.
    pub(crate) fn owns(&self, slot: &Slot, held: &Held) {
        let other = if self.is_main(slot) { 0 } else { OTHER };
        held.note_owner(self.handle.0 << 1 | other);
    }

    pub(crate) fn slot(&self, purpose: For) -> &Slot {
        let has = self.main.flags();
        let fits = match purpose {
            For::Anything => true,
            For::Reading => has.contains(Flags::READ) && !self.reads_by_other.load(Ordering::Acquire),
            For::Writing => has.contains(Flags::WRITE) && !has.contains(Flags::APPEND),
            For::Appending => has.contains(Flags::APPEND),
        };
        if fits { &self.main } else { &self.other }
    }

    pub(crate) fn main(&self) -> &Slot {
        &self.main
    }

    pub(crate) fn is_main(&self, slot: &Slot) -> bool {
        std::ptr::eq(slot, &self.main)
    }

    pub(crate) fn slots(&self) -> [&Slot; 2] {
        [&self.main, &self.other]
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Nothing is done by it any more.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether it was compared with this last.
    pub(crate) fn has_compared(&self, known: &Arc<Known>) -> bool {
        lock(&self.compared).as_ref().is_some_and(|last| Arc::ptr_eq(last, known))
    }

    pub(crate) fn compared(&self, known: &Arc<Known>) {
        *lock(&self.compared) = Some(Arc::clone(known));
    }

    /// A handle that is open at this moment.
    pub(crate) fn present(&self) -> Option<Arc<Held>> {
        self.main.present()
    }

    /// The server sent these attributes of it.
    pub(crate) fn saw(&self, attrs: &Attrs) {
        let mut seen = lock(&self.seen);
        *seen = attrs.times.or(*seen);
    }

    /// The time of its last access, when that was last seen: writing alone does not change it.
    pub(crate) fn seen_atime(&self) -> Option<u32> {
        lock(&self.seen).map(|times| times.atime).filter(|_| !self.flags.reads())
    }

    /// Whether it was opened for writing.
    pub(crate) fn writes(&self) -> bool {
        self.main.flags().contains(Flags::WRITE)
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

/// Whether a file of this kind can be opened.
///
/// # Errors
/// Why not.
pub(crate) fn must_be_regular(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Symlink => Err(Errno::ELOOP.into()),
        // Opening a pipe would keep the server waiting for its other end.
        _ => Err(Errno::ENXIO.because("only regular files are opened")),
    }
}

impl Inner {
    /// Opens a file that exists.
    pub(crate) async fn open_file(&self, cx: &Cx, node: Node, flags: OpenFlags) -> Result<Opened> {
        must_be_regular(self.inodes.kind(node)?)?;
        let path = self.inodes.path(node)?;
        let (theirs, empties) = (server_flags(flags), flags.contains(OpenFlags::TRUNC));
        let (asked, known) = (self.seen.last(), self.known_before(node));
        let slot = if theirs == Flags::READ && !empties && self.seen.is_readable(node) {
            let session = self.link.session().await?;
            let request = Request::Open { path: &path, flags: theirs, attrs: Attrs::NONE };
            let pending = session.begin(&request).await;
            Slot::opening(theirs, session, pending)
        } else {
            let first = if empties { theirs | Flags::WRITE | Flags::TRUNC } else { theirs };
            let emptied = empties.then(|| known.begin(Change::Size(0), self.link.runtime().coarse_wall()));
            let opened = open(&self.link, &path, first, Attrs::NONE).await;
            let attempt = Attempt::Open { path: &path, writes: first.contains(Flags::WRITE) };
            let held = self.explained(opened, attempt).await?;
            if let Some(emptied) = emptied {
                emptied.done(0);
                self.files.is_resized(node, 0);
                self.note_unsynced(node, &held.session);
            }
            Slot::open(theirs, held)
        };
        self.files.add(cx, node, flags, (slot, asked, known))
    }

    /// Does `work` with a handle of the server that is fit for `purpose`, and again with another one when the connection is
    /// lost, if that does no harm.
    pub(crate) async fn with_handle<T, F>(
        &self,
        file: &OpenFile,
        purpose: For,
        again: Again,
        mut work: impl FnMut(Arc<Held>) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        self.until_made(file).await?;
        if purpose == For::Reading {
            self.renew(file).await;
        }
        let mut repeats = 0;
        loop {
            let held = self.handle_for(file, purpose).await?;
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

    /// Sees to it that a file is read that is at its path now: where another was seen there since its handle was asked for,
    /// it is opened again. What the server does not open any more is read as it was. After a lost connection it is not this
    /// that decides: what is there must be the file that was open.
    async fn renew(&self, file: &OpenFile) {
        let mut asked = file.asked.lock().await;
        if !self.seen.changed_after(file.node, *asked) || file.main.is_lost().await {
            return;
        }
        let now = self.seen.last();
        // What was written stays with the handle by which it was: it is the one that is synchronised.
        let slot = if file.writes() { &file.other } else { &file.main };
        let Ok(path) = self.inodes.path(file.node) else { return };
        match slot.open_again(&self.link, &path).await {
            Ok(()) => {
                file.reads_by_other.store(file.writes(), Ordering::Release);
                let known = self.known_before(file.node);
                self.files.is_known_by(file, slot, &known);
            }
            Err(Fault::Refused(_)) => {}
            Err(_) => return,
        }
        *asked = now;
    }

    pub(crate) async fn read_file(&self, op: Read) -> Result<Payload> {
        let file = self.files.get(op.handle)?;
        let len = u64::from(op.len).min(POSITION_MAX.saturating_sub(op.offset)) as usize;
        let mut read = self.read_range(&file, op.offset, len).await;
        if let Ok(pieces) = &read {
            let end = op.offset + pieces.iter().map(Bytes::len).sum::<usize>() as u64;
            let known = file.content.end.load(Ordering::Acquire).min(op.offset + len as u64);
            if end < known && self.look_again(&file).await {
                read = self.read_range(&file, op.offset, len).await;
            }
        }
        let read = self.explained_by(read, file.node, |path| Attempt::Open { path, writes: false }).await;
        read.map(Payload::Chunks)
    }

    async fn read_range(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Vec<Bytes>, Fault> {
        let read = |held: Arc<Held>| async move { read_range(&held, offset, len).await };
        self.with_handle(file, For::Reading, Again::Always, read).await
    }

    /// Has a file read by a new handle from now on, for the server says that it ends before what was written here: proftpd
    /// knows the length a file had when the handle was opened. Whether there is one.
    async fn look_again(&self, file: &OpenFile) -> bool {
        let slot = if file.writes() { &file.other } else { &file.main };
        let Ok(path) = self.inodes.path(file.node) else { return false };
        let known = self.known_before(file.node);
        let opened = slot.open_again(&self.link, &path).await.is_ok();
        if opened {
            self.files.is_known_by(file, slot, &known);
            file.reads_by_other.store(file.writes(), Ordering::Release);
        }
        opened
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
        // Only a handle that was opened for it makes the server append.
        let appends = file.flags.contains(OpenFlags::APPEND) && cx.writes_at_end(file.flags, op.cached);
        let purpose = if appends { For::Appending } else { For::Writing };
        let then = After {
            sync: file.flags.contains(OpenFlags::DSYNC) && self.can_fsync()?,
            clear: self.clears_setid(cx, op.kill_setid),
        };
        let turn = file.order.turn(Kind::Write);
        let write = |held: Arc<Held>| {
            let (data, node, turn) = (data.clone(), file.node, &turn);
            let epoch = held.session.epoch;
            let sent = move || turn.sent(epoch);
            async move {
                turn.comes(epoch).await;
                let written = write_range(Arc::clone(&held), op.offset, data, then, sent).await?;
                if !then.sync {
                    self.note_unsynced(node, &held.session);
                }
                Ok(written)
            }
        };
        let again = if appends { Again::Never } else { Again::IfServerExited };
        let change = match appends {
            true => Change::Append { len },
            false => Change::Write { offset: op.offset, len },
        };
        let written: Result<u64, Fault> = async {
            let change = self.begin_by(&file, purpose, change).await?;
            self.with_handle(&file, purpose, again, write).await.inspect(|&count| change.done(count))
        }
        .await;
        if let (Ok(count), false) = (&written, appends) {
            file.content.end.fetch_max(op.offset + count, Ordering::AcqRel);
        }
        self.explained_by(written, file.node, |path| Attempt::Write { path }).await.map(Count)
    }

    /// Whether what the caller writes clears set-id bits (see write(2)): the server does that by itself unless its user is
    /// the superuser.
    pub(crate) fn clears_setid(&self, cx: &Cx, demanded: bool) -> bool {
        demanded || (cx.cred.uid != 0 && self.people.there().is_none_or(|there| there.uid == 0))
    }

    pub(crate) async fn sync_file(&self, handle: Handle) -> Result<()> {
        let file = self.files.get(handle)?;
        if !self.can_fsync()? {
            return Ok(());
        }
        let ino = self.inodes.ino(file.node)?;
        let written = self.unsynced.take(ino);
        let (asked, changes) = (moment(), written.is_some());
        let sync = |held: Arc<Held>| async move {
            let synced = held.session.begin(&Request::FSync { handle: &held.handle }).await;
            // What the file is like then it has to be like when it is opened again after a lost connection.
            let look = Request::FStat { handle: &held.handle };
            let looked = if changes { Some(held.session.begin(&look).await) } else { None };
            synced.done().await?;
            let attrs = match looked {
                Some(looked) => looked.attrs().await.ok(),
                None => None,
            };
            Ok((held, attrs))
        };
        let synced = self.with_handle(&file, For::Anything, Again::Always, sync).await;
        let synced = synced.map(|(held, attrs)| {
            attrs.iter().for_each(|attrs| file.slot(For::Anything).known().is_synced(looks(attrs), asked));
            held
        });
        match (written, synced) {
            (Some(written), Ok(held)) if !held.session.has_what_came_by(&written).await => Err(Errno::EIO
                .because(
                    "the connection was lost since the file was written to, and whether the server still has \
                     what was written is not known",
                )),
            (_, Ok(_)) => Ok(()),
            (written, Err(fault)) => {
                written.iter().for_each(|earlier| self.unsynced.put_back(ino, earlier));
                Err(fault.into())
            }
        }
    }

    /// A file was changed by way of a connection.
    pub(crate) fn note_unsynced(&self, node: Node, session: &Session) {
        if let Ok(ino) = self.inodes.ino(node) {
            let is_first = self.unsynced.note(ino, session);
            self.kept.iter().for_each(|kept| kept.note_unsynced(UnsyncedBy::of(session), is_first));
        }
    }

    /// Whether the server can be asked to put content on stable storage; without that it has what was answered.
    ///
    /// # Errors
    /// As sync(2) says it of a file, `EINVAL`, unless the user permits such a server.
    pub(crate) fn can_fsync(&self) -> Result<bool> {
        match (self.extensions.contains(Extensions::FSYNC), self.link.options().no_fsync) {
            (false, false) => Err(Errno::EINVAL.because(
                "the server does not have fsync@openssh.com: it cannot say what is on stable storage (-o no_fsync goes on without)",
            )),
            (can, _) => Ok(can),
        }
    }

    /// Closes a file. What was hidden goes with its last handle.
    pub(crate) async fn close_file(&self, handle: Handle) -> Result<()> {
        let Closed { file, last, was_removed } = self.files.remove(handle)?;
        let node = file.node;
        last.into_iter().for_each(|usage| self.seen.closed(node, usage.known));
        drop(file);
        if was_removed {
            self.silly_rename().remove(node).await?;
        }
        Ok(())
    }
}

/// What follows a write.
#[derive(Clone, Copy)]
pub(crate) struct After {
    /// It is to be on stable storage.
    pub(crate) sync: bool,
    /// Set-id bits are cleared.
    pub(crate) clear: bool,
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

/// Writes, and returns how many bytes were written before the first failure. Calls `sent` when all is on its way.
pub(crate) async fn write_range(
    held: Arc<Held>,
    offset: u64,
    data: Bytes,
    then: After,
    sent: impl FnOnce(),
) -> Result<u64, Fault> {
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
    sent();
    let (mut written, mut failed, mut is_seen) = (0, None, false);
    for (len, pending) in asked {
        // All are waited for: when this returns, none is on its way any more.
        let done = pending.done().await;
        is_seen |= done.as_ref().err().is_none_or(|fault| !fault.is_unsent());
        match done {
            Ok(()) if failed.is_none() => written += len as u64,
            Ok(()) => {}
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    if let Some(fault) = failed.filter(|fault| written == 0 || fault.is_lost_connection()) {
        return Err(if is_seen { fault.after_others() } else { fault });
    }
    let then = async {
        if let Some(sync) = sync {
            sync.done().await?;
        }
        if let Some(look) = look {
            clear_setid(&held, look.attrs().await?).await?;
        }
        Ok(written)
    };
    then.await.map_err(Fault::after_others)
}

/// Clears set-id bits as write(2) does: the group's only where its members may execute.
async fn clear_setid(held: &Held, attrs: Attrs) -> Result<(), Fault> {
    let Some(cleared) = attrs.permissions.and_then(without_setid) else { return Ok(()) };
    let attrs = Attrs { permissions: Some(cleared), ..Attrs::NONE };
    held.session.begin(&Request::FSetStat { handle: &held.handle, attrs }).await.done().await
}

/// The permissions without set-id bits, when they have any.
pub(crate) fn without_setid(mode: u32) -> Option<u32> {
    let cleared = without_set_id(mode);
    (cleared != mode).then_some(cleared & 0o7777)
}
