// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks, of fcntl(2) and flock(2), that other clients of the server see.
//!
//! Among the programs of this machine they are decided here, as Linux does it for files of its own. The server gets what all of them have
//! locked together, by one fid of each file: servers tell owners by connection and fid, and one that locks whole files, as diod does, would
//! give back all with a part. A lock that is in the way at the server is asked for again until it is free.

use crate::inner::Inner;
use crate::lock_state::{FileLocks, Held, LockFid, Step, steps};
use crate::opened::OpenFile;
use crate::options::Where;
use crate::wire::{Fault, Session};
use outrigger_core::ops::{GetLock, Lock, LockKind, OpenFlags, SetLock};
use outrigger_core::range_locks::RangeLocks;
use outrigger_core::{Cx, Errno, FileKind, Handle, LockOwner, Node, Result, lock};
use outrigger_proto_ninep::{self as ninep, Dialect, LockStatus, LockType, Rgetlock, Tgetlock, Tlock};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How soon a server is asked again for a lock that was not free, at first and at last.
const SOON: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(1);
/// How long the kernel may take to tell that an open file was closed.
const CLOSING: Duration = Duration::from_millis(500);
/// The most locks of one file.
const LOCKS_MAX: usize = 1024;

/// What a server says to a lock.
enum Told {
    Granted,
    Blocked,
    /// It keeps no locks.
    Unknown,
}

impl Inner {
    /// Whether locks hold in this mount only, since the user wants that or the server has no requests for them: then the doors keep them.
    pub(crate) fn locks_here(&self) -> bool {
        self.options.locks == Some(Where::Local) || self.dialect() != Dialect::Linux
    }

    /// Takes or gives back a lock.
    pub(crate) async fn set_lock(&self, cx: &Cx, mut op: SetLock) -> Result<()> {
        if self.files.get(op.node).is_some_and(|known| known.kind != FileKind::Regular) {
            return Err(Errno::EINVAL.because("only regular files are open at the server"));
        }
        let (file, locks) = (self.open.get(op.handle)?, self.locks.of(op.node));
        if op.flock {
            (op.lock.start, op.lock.end) = (0, u64::MAX);
        }
        if op.lock.start > op.lock.end {
            return Err(Errno::EINVAL.because("a lock that ends before it starts"));
        }
        let (mut pause, limit) = (SOON, self.runtime.monotonic() + CLOSING);
        loop {
            let mut freed = pin!(locks.freed.notified());
            freed.as_mut().enable();
            match self.try_lock(&locks, &op, &file).await {
                Err(error)
                    if error.errno == Errno::EAGAIN
                        && (op.wait
                            || self.runtime.monotonic() < limit && locks.held.lock().await.may_end(&op)) => {}
                done => return done,
            }
            let again = self.runtime.sleep_until(self.runtime.monotonic() + pause);
            let is_cancelled = tokio::select! {
                () = cx.cancel.raised() => true,
                () = freed => false,
                () = again => {
                    pause = (pause * 2).min(LATE);
                    false
                }
            };
            self.locks.waits.end(op.node, op.owner);
            if is_cancelled {
                return Err(Errno::EINTR.into());
            }
        }
    }

    async fn try_lock(&self, locks: &FileLocks, op: &SetLock, file: &OpenFile) -> Result<()> {
        let held = &mut *locks.held.lock().await;
        held.by.get_or_insert((file.uid, file.flags));
        if held.converts(op) {
            // flock(2): so two that convert do not wait for each other.
            let lock = Lock { kind: LockKind::Unlock, ..op.lock };
            self.change_locks(locks, held, &SetLock { lock, ..op.clone() }).await?;
        }
        if let Some(holder) = held.conflict(op) {
            if op.wait && !op.flock {
                self.locks.waits.begin(op.node, op.owner, holder)?;
            }
            return Err(Errno::EAGAIN.into());
        }
        if op.lock.kind != LockKind::Unlock && held.len() >= LOCKS_MAX {
            return Err(Errno::ENOLCK.because(format!("{LOCKS_MAX} locks of one file are the most")));
        }
        self.change_locks(locks, held, op).await
    }

    /// Changes what is held, at the server first.
    async fn change_locks(&self, locks: &FileLocks, held: &mut Held, op: &SetLock) -> Result<()> {
        let now = held.with(op);
        let outcome = self.tell_locks(locks, (op.node, held), &now).await;
        if locks.is_lost.swap(false, Relaxed) {
            self.lost_locks(op.node, locks, held);
            return Err(Errno::ENOLCK.because("another client has a lock that was held: open the file anew"));
        }
        let frees = op.lock.kind != LockKind::Write;
        match outcome {
            Err(error) if op.lock.kind != LockKind::Unlock => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a lock was given back by closing the file at the server");
                let fid = lock(&locks.fid).take();
                // That ends all locks of the file: those of a connection that is lost are taken again on the next one.
                if !now.is_empty() && fid.is_some_and(|open| open.fid.session.mux.is_open()) {
                    self.lost_locks(op.node, locks, held);
                    return Ok(());
                }
            }
            Ok(()) => {}
        }
        self.locks.becomes(op.node, held, now);
        if frees {
            self.locks.freed(op.node, locks);
        }
        Ok(())
    }

    /// Tells the server what changes.
    async fn tell_locks(&self, locks: &FileLocks, (node, held): (Node, &Held), now: &Held) -> Result<()> {
        if self.locks.are_here.load(Relaxed) {
            return Ok(());
        }
        let is_whole = *lock(&self.locks.is_whole) == Some(true);
        let (before, by) = (&held.union(is_whole), held.by.unwrap_or((self.own_user(), OpenFlags::empty())));
        let steps = &steps(before, &now.union(is_whole))[..];
        if steps.is_empty() {
            return Ok(());
        }
        self.with(by.0, |session| async move {
            let open = self.lock_fid(&session, locks, (node, by), before).await?;
            for (at, step) in steps.iter().enumerate() {
                match self.ask_lock(&open, &step.to).await? {
                    Told::Granted => {}
                    Told::Unknown => return self.keeps_none(),
                    Told::Blocked => {
                        self.take_back(locks, &open, &steps[..=at]).await?;
                        return Err(Errno::EAGAIN.into());
                    }
                }
            }
            self.learn_ranges(&session, (node, by), steps[0].to).await
        })
        .await
    }

    /// Gives ranges the locks back that they had. A server may have taken one away in trying to make it exclusive.
    async fn take_back(&self, locks: &FileLocks, fid: &LockFid, steps: &[Step]) -> Result<(), Fault> {
        for step in steps.iter().rev() {
            if !matches!(self.ask_lock(fid, &step.from).await?, Told::Granted) {
                locks.is_lost.store(true, Relaxed);
            }
        }
        Ok(())
    }

    /// The fid by which the server knows the locks of a file. On a new connection it is told these again.
    async fn lock_fid(
        &self,
        session: &Arc<Session>,
        locks: &FileLocks,
        (node, (uid, flags)): (Node, (u32, OpenFlags)),
        held: &RangeLocks,
    ) -> Result<Arc<LockFid>, Fault> {
        let present = lock(&locks.fid).clone();
        if let Some(fid) = present.filter(|open| Arc::ptr_eq(&open.fid.session, session)) {
            return Ok(fid);
        }
        let fid = Arc::new(self.open_for_locks(session, node, (uid, flags)).await?);
        for range in held.iter() {
            match self.ask_lock(&fid, &range.lock).await? {
                Told::Granted => {}
                Told::Unknown => self.keeps_none()?,
                Told::Blocked => {
                    locks.is_lost.store(true, Relaxed);
                    return Err(Errno::ENOLCK.into());
                }
            }
        }
        *lock(&locks.fid) = Some(Arc::clone(&fid));
        Ok(fid)
    }

    /// Opens a file for all locks that there can be, if the user may.
    async fn open_for_locks(
        &self,
        session: &Arc<Session>,
        node: Node,
        (uid, flags): (u32, OpenFlags),
    ) -> Result<LockFid, Fault> {
        let fid = self.reach(session, uid, node).await?;
        let open = |flags| session.open(fid.number, flags);
        let access = flags & (OpenFlags::READ_WRITE | OpenFlags::WRITE_ONLY);
        let opened = match open(OpenFlags::READ_WRITE).await {
            Err(Fault::Known(_)) => open(access).await?,
            opened => opened?,
        };
        self.is_node(node, &opened.0)?;
        Ok(LockFid { fid, client_id: self.locks.new_owner() })
    }

    async fn ask_lock(&self, open: &LockFid, wanted: &Lock) -> Result<Told, Fault> {
        let LockFid { fid, client_id } = open;
        let call = Tlock {
            fid: fid.number,
            kind: kind(wanted.kind).number(),
            flags: 0,
            start: wanted.start,
            length: length(wanted),
            proc_id: std::process::id(),
            client_id: client_id.clone(),
        };
        let status = match fid.session.ask(call).await {
            Err(Fault::Known(error)) if matches!(error.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                return Ok(Told::Unknown);
            }
            Err(Fault::Known(error)) if error.errno == Errno::EAGAIN => return Ok(Told::Blocked),
            told => told?.status,
        };
        match LockStatus::of(status) {
            Some(LockStatus::Success) => Ok(Told::Granted),
            Some(LockStatus::Blocked | LockStatus::Grace) => Ok(Told::Blocked),
            Some(LockStatus::Error) | None => {
                Err(Errno::ENOLCK.because("the server says that this lock cannot be had").into())
            }
        }
    }

    /// The server keeps no locks: then they hold here, unless the user wants them there.
    fn keeps_none(&self) -> Result<(), Fault> {
        if self.options.locks == Some(Where::Server) {
            let why = "the server keeps no locks: with locks=local they hold among the programs of one mount";
            return Err(Errno::ENOLCK.because(why).into());
        }
        self.locks.are_here.store(true, Relaxed);
        Ok(())
    }

    /// Finds out whether the server locks what it is asked for or whole files, when a range was locked for the first time: it is asked, by another
    /// fid, what is in the way of another client elsewhere in the file. One that knows of ranges tells that of a lock there is, if of any; one
    /// that does not can only tell the range that it was asked about.
    async fn learn_ranges(
        &self,
        session: &Arc<Session>,
        (node, by): (Node, (u32, OpenFlags)),
        taken: Lock,
    ) -> Result<(), Fault> {
        let is_part = taken.kind != LockKind::Unlock && (taken.start, taken.end) != (0, u64::MAX);
        if !is_part || lock(&self.locks.is_whole).is_some() {
            return Ok(());
        }
        let LockFid { fid, client_id } = self.open_for_locks(session, node, by).await?;
        let (kind, start, length) = (LockType::Write.number(), fastrand::u64(1 << 60..1 << 62), 1);
        let asked = ninep::Lock { kind, start, length, proc_id: 0, client_id };
        let is_whole = match session.ask(Tgetlock { fid: fid.number, lock: asked }).await {
            Ok(Rgetlock { lock: told }) => {
                told.kind != LockType::Unlock.number() && (told.start, told.length) == (start, length)
            }
            Err(Fault::Known(_)) => false,
            Err(lost) => return Err(lost),
        };
        *lock(&self.locks.is_whole) = Some(is_whole);
        Ok(())
    }

    /// Which lock is in the way of another one.
    pub(crate) async fn get_lock(&self, op: GetLock) -> Result<Option<Lock>> {
        let (file, locks) = (self.open.get(op.handle)?, self.locks.known(op.node));
        if op.lock.kind == LockKind::Unlock || op.lock.start > op.lock.end {
            return Err(Errno::EINVAL.because("no lock that there could be"));
        }
        if let Some(locks) = &locks {
            let here = locks.held.lock().await.list(false).conflict(op.owner, &op.lock);
            if here.is_some() || self.locks.are_here.load(Relaxed) {
                return Ok(here.map(|held| held.lock));
            }
        }
        let asked = |client_id| ninep::Lock {
            kind: kind(op.lock.kind).number(),
            start: op.lock.start,
            length: length(&op.lock),
            proc_id: std::process::id(),
            client_id,
        };
        let asked = &asked;
        let told = self.with(file.uid, |session| async move {
            let open = self.fid_of(&session, op.node, op.handle).await?;
            // By another one, the locks of this client would be in the way.
            let own = self.locks.known(op.node).and_then(|locks| lock(&locks.fid).clone());
            let own = own.filter(|own| Arc::ptr_eq(&own.fid.session, &session));
            let (fid, owner) = match &own {
                Some(own) => (own.fid.number, own.client_id.clone()),
                None => (open.fid.number, self.locks.new_owner()),
            };
            Ok(session.ask(Tgetlock { fid, lock: asked(owner) }).await?.lock)
        });
        match told.await {
            Err(error) if matches!(error.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(None),
            told => understood(&told?),
        }
    }

    /// Gives back what a process has locked by fcntl(2), which closes a descriptor.
    pub(crate) async fn flush(&self, node: Node, handle: Handle, owner: LockOwner) {
        self.unlock((node, handle), owner, false).await;
        if let Some(locks) = self.locks.known(node) {
            locks.held.lock().await.closes(handle);
        }
    }

    /// Gives back what was taken by an open file that is closed.
    pub(crate) async fn unlock_all(&self, node: Node, handle: Handle) {
        let Some(locks) = self.locks.known(node) else { return };
        let owners = locks.held.lock().await.owners(handle);
        for owner in owners {
            for flock in [false, true] {
                self.unlock((node, handle), owner, flock).await;
            }
        }
    }

    /// Gives back what an owner has locked of a file, by fcntl(2) or flock(2).
    async fn unlock(&self, (node, handle): (Node, Handle), owner: LockOwner, flock: bool) {
        let (Some(locks), Ok(file)) = (self.locks.known(node), self.open.get(handle)) else { return };
        let has = locks.held.lock().await.list(flock).iter().any(|held| held.owner == owner);
        let lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Unlock, pid: 0 };
        let op = SetLock { node, handle, owner, lock, wait: false, flock };
        if has && let Err(error) = self.try_lock(&locks, &op, &file).await {
            tracing::warn!(%error, "a lock was not given back");
        }
    }

    /// Takes the locks of all files again, after a connection was lost.
    pub(crate) async fn lock_all_again(&self) {
        if self.locks.are_taken_again.swap(true, Relaxed) {
            return;
        }
        for node in self.locks.nodes() {
            match self.lock_again(node).await {
                Err(Fault::Known(error)) if error.errno != Errno::ESTALE => {
                    tracing::warn!(%error, "locks are not taken again before the server is asked for something");
                    break;
                }
                _ => {}
            }
        }
        self.locks.are_taken_again.store(false, Relaxed);
    }

    /// Takes the locks of a file again by the connection there is now.
    ///
    /// # Errors
    /// `ESTALE` where another client has one of them: what is done by the open file would be done without the lock.
    pub(crate) async fn lock_again(&self, node: Node) -> Result<(), Fault> {
        let Some(locks) = self.locks.known(node) else { return Ok(()) };
        let held = &mut *locks.held.lock().await;
        if held.is_empty() || self.locks.are_here.load(Relaxed) {
            return Ok(());
        }
        let open = self.open.handles(node).first().and_then(|handle| self.open.get(*handle).ok());
        let Some(by) = held.by.or_else(|| open.map(|file| (file.uid, file.flags))) else { return Ok(()) };
        held.by = Some(by);
        let (locks, before) = (&locks, &held.union(*lock(&self.locks.is_whole) == Some(true)));
        let again = self.with(by.0, |session| async move {
            self.lock_fid(&session, locks, (node, by), before).await.map(drop)
        });
        let again = again.await;
        if locks.is_lost.swap(false, Relaxed) {
            self.lost_locks(node, locks, held);
            return Err(crate::opened::stale());
        }
        Ok(again?)
    }

    /// Another client may have changed what was locked: who has it open has to open it anew.
    fn lost_locks(&self, node: Node, locks: &FileLocks, held: &mut Held) {
        tracing::warn!(
            "another client has got a lock that was held here: the open file is of no use any more"
        );
        self.open_files_are_dead(node);
        *lock(&locks.fid) = None;
        self.locks.becomes(node, held, Held::default());
        self.locks.freed(node, locks);
    }
}

fn kind(kind: LockKind) -> LockType {
    match kind {
        LockKind::Read => LockType::Read,
        LockKind::Write => LockType::Write,
        LockKind::Unlock => LockType::Unlock,
    }
}

/// How many bytes are locked, as the protocol has it: 0 for all up to the end.
fn length(lock: &Lock) -> u64 {
    if lock.end == u64::MAX { 0 } else { lock.end - lock.start + 1 }
}

fn understood(told: &ninep::Lock) -> Result<Option<Lock>> {
    let kind = match LockType::of(told.kind) {
        Some(LockType::Unlock) => return Ok(None),
        Some(LockType::Read) => LockKind::Read,
        Some(LockType::Write) => LockKind::Write,
        None => return Err(Errno::EIO.because("the server tells of an unknown kind of lock")),
    };
    let end = match told.length {
        0 => u64::MAX,
        length => told.start.saturating_add(length - 1),
    };
    Ok(Some(Lock { start: told.start, end, kind, pid: told.proc_id }))
}
