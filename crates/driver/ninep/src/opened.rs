// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files, and whether what has their path after a lost connection is still the same file.
//!
//! While a server has a file open, no other file gets its number, so what it says of the node then is said of that file. When the connection
//! is lost, the number may be given to the next file that is made. So a file that is opened again is compared with what is known
//! of the one that was open (see `known` of the toolkit), and if it is another one the open file is dead.

use crate::convert;
use crate::dialect::Opened as ByServer;
use crate::files::is_written;
use crate::inner::Inner;
use crate::late::Doing;
use crate::wire::{Fault, Fid, Session};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::{OpenHow, Opened};
use outrigger_core::{Attr, Cx, Errno, Error, Handle, Keep, Node, Result, lock};
use outrigger_proto_ninep::{Attrs, Qid, QidKind};
use outrigger_toolkit_remote::known::{Change, Facts, Known, Looks, UnderWay, moment};
use outrigger_toolkit_remote::{OpenFiles, OwnWords, WasOpen};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::oneshot;

/// All open files.
pub(crate) type Files = OpenFiles<Arc<OpenFile>, Use>;

/// What there is of a node while it is open.
#[derive(Default)]
pub(crate) struct Use {
    files: Vec<Weak<OpenFile>>,
    /// What is known of the file that its path leads to now.
    known: Arc<Known>,
}

/// An open file, and what it is by the last connection that it was used by.
pub(crate) struct OpenFile {
    pub(crate) flags: OpenFlags,
    /// The user who has opened it.
    pub(crate) uid: u32,
    by: Mutex<Option<Arc<OpenFid>>>,
    known: Arc<Known>,
    /// Its path leads to another file.
    is_dead: AtomicBool,
    /// A request for its attributes after a change is under way.
    is_asked_about: AtomicBool,
}

/// An open file at the server.
pub(crate) struct OpenFid {
    pub(crate) fid: Fid,
    /// How much content one message moves, in bytes.
    pub(crate) each: u32,
    /// Whether the server writes at its end only, wherever a write is meant to go.
    pub(crate) only_appends: bool,
    /// Whether what is written is to be on stable storage at once (`O_DSYNC`), and the server does not know that.
    pub(crate) must_sync: bool,
}

impl OpenFid {
    pub(crate) fn new(fid: Fid, (qid, iounit): ByServer, flags: OpenFlags) -> Self {
        let each = fid.session.io_size(iounit);
        let must_sync = flags.contains(OpenFlags::DSYNC) && !fid.session.knows_sync_writes();
        OpenFid { fid, each, only_appends: qid.kind.contains(QidKind::APPEND), must_sync }
    }
}

impl OpenFile {
    fn new((flags, uid): (OpenFlags, u32), by: Option<OpenFid>, known: &Arc<Known>) -> Arc<Self> {
        Arc::new(OpenFile {
            flags,
            uid,
            by: Mutex::new(by.map(Arc::new)),
            known: Arc::clone(known),
            is_dead: AtomicBool::new(false),
            is_asked_about: AtomicBool::new(false),
        })
    }

    fn own_words(&self) -> OwnWords {
        let mut own = [self.uid.into(), 0, 0, 0];
        self.known.facts().note(&mut own);
        own
    }

    /// What it is by this connection.
    fn by(&self, session: &Arc<Session>) -> Option<Arc<OpenFid>> {
        lock(&self.by).clone().filter(|open| Arc::ptr_eq(&open.fid.session, session))
    }
}

impl Use {
    fn add(&mut self, file: Arc<OpenFile>) -> Arc<OpenFile> {
        self.files.retain(|file| file.strong_count() > 0);
        self.files.push(Arc::downgrade(&file));
        file
    }

    /// What is known of each of its files: of the one that has the path now, and of those that had it before.
    fn all_known(&self) -> Vec<Arc<Known>> {
        let mut all = vec![Arc::clone(&self.known)];
        for file in self.files.iter().filter_map(Weak::upgrade) {
            if !all.iter().any(|known| Arc::ptr_eq(known, &file.known)) {
                all.push(Arc::clone(&file.known));
            }
        }
        all
    }
}

/// None but those that former processes left in `keep`.
pub(crate) fn files(keep: Option<&dyn Keep>) -> Result<Files> {
    OpenFiles::open(keep, |notes, was, usage: &mut Use| {
        let WasOpen { handle, flags, own, .. } = was;
        let facts = Facts::noted(&own);
        if usage.known.facts() != facts {
            usage.known = Known::new(facts);
        }
        usage.known.keep_with(notes, handle);
        usage.add(OpenFile::new((flags, own[0] as u32), None, &usage.known.clone()))
    })
}

impl Inner {
    /// A handle of an open file, for the one who asks. The server has told these attributes of it, asked for at the moment `asked`.
    pub(crate) fn opened(
        &self,
        cx: &Cx,
        (node, flags): (Node, OpenFlags),
        by: OpenFid,
        (told, asked): (&Attrs, u64),
    ) -> Result<Opened> {
        self.saw(&by.fid.session, node, &convert::attr(told), asked);
        let known = self.open.with_node(node, |usage| Arc::clone(&usage.known));
        let known = known.unwrap_or_else(|| Known::of(looks(told)));
        // Bytes in caches have places, and go to no other ones.
        let direct = by.only_appends && is_written(flags);
        let file = OpenFile::new((flags, self.uid(cx)), Some(by), &known);
        let own = (cx.slot == Cx::NO_SLOT, file.own_words());
        let handle = self.open.add(node, flags, own, |handle, usage| {
            self.open.notes().iter().for_each(|notes| known.keep_with(notes, handle));
            usage.known = Arc::clone(&known);
            usage.add(file)
        })?;
        // Closing a descriptor ends locks of the process that does it.
        let mut how = if self.locks_here() { OpenHow::NO_FLUSH } else { OpenHow::empty() };
        how.set(OpenHow::DIRECT_IO, direct);
        Ok(Opened { handle, how, ..Opened::default() })
    }

    /// Closes a file; the last one to do that removes a file that has lost its name.
    pub(crate) async fn close(&self, node: Node, handle: Handle) -> Result<()> {
        let closed = self.open.close(handle)?;
        closed.file.known.leave(handle);
        if closed.last.is_some() {
            self.locks.closed(node, || self.open.is_open(node)).await;
        }
        let stored = self.stored(&closed.file).await;
        if closed.last.is_none() || !closed.was_removed {
            return stored;
        }
        let removed = self.silly_rename(closed.file.uid).remove(node).await;
        self.lost_name(Some(node));
        removed
    }

    /// What the server says when a file that may have been written is closed there. A caller that leaves does not take the question back.
    async fn stored(&self, file: &OpenFile) -> Result<()> {
        let open = lock(&file.by).take().filter(|_| is_written(file.flags));
        let Some(open) = open else { return Ok(()) };
        let (sender, answer) = oneshot::channel();
        self.runtime.spawn(Box::pin(async move {
            // The receiver is dropped if the caller has given up.
            let _ = sender.send(open.fid.end().await);
        }));
        answer.await.unwrap_or(Ok(()))
    }

    /// The file of a handle, opened again where that was by another connection.
    pub(crate) async fn fid_of(
        &self,
        session: &Arc<Session>,
        node: Node,
        handle: Handle,
    ) -> Result<Arc<OpenFid>, Fault> {
        let file = self.open.get(handle)?;
        if file.is_dead.load(Ordering::Relaxed) {
            return Err(stale());
        }
        if let Some(open) = file.by(session) {
            return Ok(open);
        }
        if self.is_nameless(node) {
            let why = "the file has lost its name while it was open, and the connection by which it was open";
            return Err(Errno::EIO.because(why).into());
        }
        let fid = self.reach(session, file.uid, node).await?;
        let opened = session.open(fid.number, file.flags - OpenFlags::TRUNC).await?;
        // From here on no other file gets its number.
        self.is_node(node, &opened.0)?;
        let asked = moment();
        let told = self.told_of(session, node, fid.number).await?;
        if file.known.fits(looks(&told)) != Some(true) {
            file.is_dead.store(true, Ordering::Relaxed);
            return Err(stale());
        }
        file.known.is_synced(looks(&told), asked);
        self.lock_again(node).await?;
        // Another task may have found out that a lock is lost.
        if file.is_dead.load(Ordering::Relaxed) {
            return Err(stale());
        }
        let open = Arc::new(OpenFid::new(fid, opened, file.flags));
        // Another request may have opened it meanwhile: either will do.
        *lock(&file.by) = Some(Arc::clone(&open));
        Ok(open)
    }

    /// The attributes of an open file: servers that look for them under the name that it had may tell those of another one.
    pub(crate) async fn told_of(&self, session: &Session, node: Node, fid: u32) -> Result<Attrs, Fault> {
        let told = session.attrs(fid).await?;
        self.is_node(node, &told.qid)?;
        Ok(told)
    }

    /// Whether what the server tells is about this node.
    pub(crate) fn is_node(&self, node: Node, qid: &Qid) -> Result<(), Fault> {
        let is_it = |known: &[u8]| known.starts_with(&convert::handle(qid));
        match self.files.get(node).is_none_or(|known| is_it(known.handle())) {
            true => Ok(()),
            false => Err(Errno::ESTALE
                .because("the server takes the file that has its name now for the open one")
                .into()),
        }
    }

    /// All that is done by the open files of a node fails from here on.
    pub(crate) fn open_files_are_dead(&self, node: Node) {
        self.open.with_node(node, |usage| {
            let files = usage.files.iter().filter_map(Weak::upgrade);
            files.for_each(|file| file.is_dead.store(true, Ordering::Relaxed));
        });
    }

    /// The server has told these attributes of what has the path of a node, asked for at the moment `asked`.
    pub(crate) fn saw(&self, session: &Arc<Session>, node: Node, told: &Attr, asked: u64) {
        let (looks, now) = (convert::looks(told), self.runtime.coarse_wall());
        self.open.with_node(node, |usage| {
            let open = usage.files.iter().filter_map(Weak::upgrade).filter(|file| file.by(session).is_some());
            let open: Vec<_> = open.map(|file| Arc::clone(&file.known)).collect();
            if let Some(known) = open.first() {
                usage.known = Arc::clone(known);
                open.iter().for_each(|known| known.is_synced(looks, asked));
            } else if usage.known.saw(looks, asked, now) {
                usage.known = Known::of(looks);
            }
        });
    }

    /// A change of a node is about to be asked for, if that is open.
    pub(crate) fn begin(&self, node: Option<Node>, change: Change) -> Changing {
        let now = self.runtime.coarse_wall();
        let all = node.and_then(|node| self.open.with_node(node, |usage| usage.all_known()));
        let known = all.unwrap_or_default().iter().map(|known| known.begin(change, now)).collect();
        Changing { known, _doing: self.doings.begin() }
    }

    /// Asks how a file looks that was changed, so that it is known again by its time of change. Does not wait for the answer.
    pub(crate) fn look_after(&self, session: &Arc<Session>, node: Node, handle: Handle) {
        let (Ok(file), Some(is)) = (self.open.get(handle), self.files.get(node)) else { return };
        let Some(open) = file.by(session) else { return };
        if file.is_asked_about.swap(true, Ordering::Relaxed) {
            return;
        }
        self.runtime.spawn(Box::pin(async move {
            let asked = moment();
            let told = open.fid.session.attrs(open.fid.number).await;
            file.is_asked_about.store(false, Ordering::Relaxed);
            if let Ok(told) = told
                && is.handle() == convert::handle(&told.qid)
            {
                file.known.is_synced(looks(&told), asked);
            }
        }));
    }
}

/// A change of a node, under way.
pub(crate) struct Changing {
    /// Of what is known of it.
    known: Vec<UnderWay>,
    _doing: Doing,
}

impl Changing {
    /// It was made, to so many bytes if it writes.
    pub(crate) fn done(self, count: u64) {
        self.known.into_iter().for_each(|change| change.done(count));
    }

    /// The outcome of a change that leaves content alone. Where it is known, nothing is in doubt.
    pub(crate) fn settled<T>(self, outcome: Result<T>) -> Result<T> {
        let in_doubt = |error: &Error| matches!(error.errno, Errno::EIO | Errno::ETIMEDOUT);
        if !outcome.as_ref().is_err_and(in_doubt) {
            self.done(0);
        }
        outcome
    }
}

fn looks(told: &Attrs) -> Looks {
    convert::looks(&convert::attr(told))
}

pub(crate) fn stale() -> Fault {
    Errno::ESTALE
        .because("replaced, changed or locked by another client while the connection was lost")
        .into()
}
