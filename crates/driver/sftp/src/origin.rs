// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which process serves a connection, and whether it is gone when the connection is.
//!
//! A server goes on with what it has received when the connection is lost: a write that was on its way may be done later,
//! over what was written on the next connection meanwhile. So nothing that changes a file is made again before the process
//! that may still do it is known to be gone. The protocol has nothing for that. But a server on Linux shows under `/proc`
//! which process it is, and whether another one is still there; the number of the boot shows whether that is the same
//! machine at all, and not another one of the same name. Where a server shows nothing of this, nothing is known.

use crate::fault::Fault;
use crate::link::{Again, Link};
use crate::session::Session;
use bytes::Bytes;
use outrigger_core::{BoxFuture, lock};
use outrigger_proto_sftp::{Attrs, OpenFlags, Request, StatusCode};
use outrigger_toolkit_remote::hash;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

/// For how long a process is waited for that is still there, and how often it is looked for at first.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// The longest number of a boot, in bytes: a UUID and a line feed.
const BOOT_MAX: u32 = 64;

/// A process of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The machine, since when it runs.
    boot: Bytes,
    /// The namespace in which processes have their numbers.
    space: Bytes,
    process: Bytes,
}

impl Origin {
    /// The one at the other end of a connection; `None` when the server does not show it.
    pub(crate) async fn of(session: &Session) -> Option<Self> {
        let process = session.begin(&Request::ReadLink { path: b"/proc/self" }).await;
        let space = session.begin(&Request::ReadLink { path: b"/proc/self/ns/pid" }).await;
        // A `/proc` that hides the processes of others may hide servers of ours, too.
        let first = session.begin(&Request::LStat { path: b"/proc/1" }).await;
        let path = b"/proc/sys/kernel/random/boot_id";
        let open = Request::Open { path, flags: OpenFlags::READ, attrs: Attrs::NONE };
        let handle = session.begin(&open).await.handle().await;
        let (process, space, first) = (process.name().await, space.name().await, first.attrs().await);
        let handle = handle.ok()?;
        let read = Request::Read { handle: &handle, offset: 0, len: BOOT_MAX };
        let boot = session.begin(&read).await.data().await;
        session.close(&handle);
        let origin = Origin { boot: boot.ok()?, space: space.ok()?, process: process.ok()? };
        let is_number = !origin.process.is_empty() && origin.process.iter().all(u8::is_ascii_digit);
        (first.is_ok() && is_number && !origin.boot.is_empty()).then_some(origin)
    }

    /// A number for the machine, since when it runs.
    fn boot_number(&self) -> u64 {
        hash(&[&self.boot]) | 1
    }

    /// Whether both are processes of one machine that was not started anew in between.
    pub(crate) fn shares_boot(&self, other: &Origin) -> bool {
        self.boot == other.boot
    }

    /// Whether the server of `session` sees that this process is gone; waits a while for that.
    async fn is_gone(&self, session: &Session, link: &Link) -> Result<bool, Fault> {
        let Some(now) = session.origin().await else {
            // One that was lost as well says nothing; the next one may.
            let lost = |why| Fault::Lost(outrigger_mux::Error::Lost { why, sent: true });
            return session.ended().map_or(Ok(false), |why| Err(lost(why)));
        };
        // One process may serve many connections.
        if !self.shares_boot(now) || self.space != now.space || self.process == now.process {
            return Ok(false);
        }
        let path = [b"/proc/", &self.process[..]].concat();
        let until = link.runtime().monotonic() + PATIENCE.min(link.options().timeout);
        let mut pause = FIRST_LOOK;
        loop {
            match session.begin(&Request::LStat { path: &path }).await.attrs().await {
                Ok(_) => {}
                Err(fault) if fault.code() == Some(StatusCode::NoSuchFile) => return Ok(true),
                Err(fault) => return Err(fault),
            }
            let now = link.runtime().monotonic();
            if now >= until {
                return Ok(false);
            }
            link.runtime().sleep_until((now + pause).min(until)).await;
            pause *= 2;
        }
    }
}

impl Link {
    /// Whether the process that served a lost connection is known to be gone, so that it does nothing any more of what it
    /// was asked. Waits a while for that.
    pub(crate) fn is_gone<'a>(&'a self, lost: &'a Session) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let Some(then) = lost.known_origin() else { return false };
            let look = self.run(Again::Always, async |session: Session| then.is_gone(&session, self).await);
            look.await.unwrap_or(false)
        })
    }
}

impl Session {
    /// Whether what the server took on an earlier connection is this server's to put on stable storage: on a machine that
    /// was started anew in between it may be lost.
    pub(crate) async fn has_what_came_by(&self, earlier: &Earlier) -> bool {
        let earlier = match earlier {
            Earlier::By(session) => session,
            Earlier::Former(kept) if kept.epoch == self.epoch => return true,
            Earlier::Former(kept) => {
                let now = self.origin().await.map(Origin::boot_number);
                return now.is_some_and(|now| now == kept.boot);
            }
        };
        let (then, now) = (earlier.known_origin(), self.origin().await);
        self.epoch == earlier.epoch || then.zip(now).is_some_and(|(then, now)| then.shares_boot(now))
    }
}

/// Of so many files it is known by which connection they were changed; of all others it is taken that they were by the first.
const UNSYNCED_MAX: usize = 1 << 14;

/// The connection by which a file was changed.
#[derive(Clone)]
pub(crate) enum Earlier {
    /// One of this process.
    By(Session),
    /// One of a former process.
    Former(Kept),
}

/// What is kept of a connection for the next process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Its number; 0 is none that there ever was.
    pub(crate) epoch: u64,
    /// A number for the machine, since when it runs; 0 where that is not known.
    pub(crate) boot: u64,
}

impl Kept {
    pub(crate) fn of(session: &Session) -> Self {
        Kept { epoch: session.epoch, boot: session.known_origin().map_or(0, Origin::boot_number) }
    }
}

/// Which files were changed and not put on stable storage since. fsync(2) speaks for what was done through any descriptor,
/// so this is known beyond the last close.
#[derive(Default)]
pub(crate) struct Unsynced(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    /// By inode number: the connection by which the first change was made.
    files: HashMap<u64, Session>,
    /// By which connection any other file may have been changed.
    any: Option<Earlier>,
    /// Files that were put on stable storage since, as far as they are remembered.
    settled: HashSet<u64>,
}

impl Unsynced {
    /// The file with this inode number was changed by way of a connection; answers whether no other change is known that is
    /// not on stable storage.
    pub(crate) fn note(&self, ino: u64, session: &Session) -> bool {
        let mut notes = lock(&self.0);
        let Notes { files, any, settled } = &mut *notes;
        let is_first = files.is_empty() && any.is_none();
        if files.len() >= UNSYNCED_MAX && !files.contains_key(&ino) {
            let first = files.values().min_by_key(|session| session.epoch).cloned();
            *any = any.take().or(first.map(Earlier::By));
            settled.retain(|ino| !files.contains_key(ino));
            files.clear();
        }
        files.entry(ino).or_insert_with(|| session.clone());
        is_first
    }

    /// What was [taken](Unsynced::take) was not put on stable storage.
    pub(crate) fn put_back(&self, ino: u64, earlier: &Earlier) {
        match earlier {
            Earlier::By(session) => drop(self.note(ino, session)),
            Earlier::Former(_) => drop(lock(&self.0).settled.remove(&ino)),
        }
    }

    /// What was done to a file until now is going to be put on stable storage; the connection by which the first of it was
    /// done, if anything was.
    pub(crate) fn take(&self, ino: u64) -> Option<Earlier> {
        let mut notes = lock(&self.0);
        let own = notes.files.remove(&ino).map(Earlier::By);
        let Some(any) = notes.any.clone() else { return own };
        if notes.settled.len() >= UNSYNCED_MAX {
            notes.settled.clear();
        }
        // It is the earlier one.
        if notes.settled.insert(ino) { Some(any) } else { own }
    }

    /// A former process may have changed any file by way of a connection.
    pub(crate) fn note_all(&self, earlier: Earlier) {
        lock(&self.0).any = Some(earlier);
    }
}
