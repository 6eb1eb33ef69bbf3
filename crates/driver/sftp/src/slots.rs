// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of the server: opened when they are needed, again when the connection they belong to was lost, closed when the
//! last user is done.

use crate::fault::Fault;
use crate::link::{Again, Link};
use crate::session::{Pending, Session};
use bytes::Bytes;
use outrigger_core::lock;
use outrigger_proto_sftp::{Attrs, OpenFlags, Request};
use outrigger_toolkit_remote::known::Known;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as PlainMutex};
use tokio::sync::Mutex;

/// A handle of the server.
pub(crate) struct Held {
    pub(crate) session: Session,
    pub(crate) handle: Bytes,
    /// Whose it is, once that is noted.
    owner: AtomicU64,
}

impl Held {
    pub(crate) fn new(session: Session, handle: Bytes) -> Self {
        Held { session, handle, owner: AtomicU64::new(0) }
    }

    /// Notes whose it is, for a process that takes over.
    pub(crate) fn note_owner(&self, owner: u64) {
        if self.owner.swap(owner, Ordering::Relaxed) != owner {
            self.session.note_owner(&self.handle, owner);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.session.close(&self.handle);
    }
}

/// The place of a handle that is opened at some time.
pub(crate) struct Slot {
    flags: OpenFlags,
    state: Mutex<State>,
    /// What is known of the file it leads to.
    known: PlainMutex<Arc<Known>>,
}

enum State {
    Closed,
    /// Asked for on this connection; no request has waited for it yet.
    Opening(Session, Pending),
    Open(Arc<Held>),
}

impl Slot {
    /// A handle that will be opened with these flags.
    pub(crate) fn new(flags: OpenFlags) -> Self {
        Slot::of(flags, State::Closed)
    }

    /// One that is open.
    pub(crate) fn open(flags: OpenFlags, held: Held) -> Self {
        Slot::of(flags, State::Open(Arc::new(held)))
    }

    /// One that is being opened.
    pub(crate) fn opening(flags: OpenFlags, session: Session, pending: Pending) -> Self {
        Slot::of(flags, State::Opening(session, pending))
    }

    fn of(flags: OpenFlags, state: State) -> Self {
        Slot { flags, state: Mutex::new(state), known: PlainMutex::default() }
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&lock(&self.known))
    }

    /// It leads to the file of which this is known; what was known before.
    pub(crate) fn set_known(&self, known: &Arc<Known>) -> Arc<Known> {
        std::mem::replace(&mut *lock(&self.known), Arc::clone(known))
    }

    pub(crate) fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// The handle; if it is not open, what `open` opens.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) async fn get(
        &self,
        open: impl Future<Output = Result<Held, Fault>>,
    ) -> Result<Arc<Held>, Fault> {
        let mut state = self.state.lock().await;
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(held) if held.session.is_open() => {
                *state = State::Open(Arc::clone(&held));
                return Ok(held);
            }
            State::Opening(session, pending) => match pending.handle().await {
                Ok(handle) => {
                    let held = Arc::new(Held::new(session, handle));
                    *state = State::Open(Arc::clone(&held));
                    return Ok(held);
                }
                Err(fault) if fault.is_lost_connection() => {}
                Err(fault) => return Err(fault),
            },
            State::Open(_) | State::Closed => {}
        }
        let held = Arc::new(open.await?);
        *state = State::Open(Arc::clone(&held));
        Ok(held)
    }

    /// Opens what is at `path` now in place of what was open; that stays when this fails.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) async fn open_again(&self, link: &Link, path: &[u8]) -> Result<(), Fault> {
        let mut state = self.state.lock().await;
        let held = open(link, path, self.flags, Attrs::NONE).await?;
        *state = State::Open(Arc::new(held));
        Ok(())
    }

    /// Whether there is no handle, as after a lost connection, and none is being opened.
    pub(crate) async fn is_lost(&self) -> bool {
        match &*self.state.lock().await {
            State::Open(held) => !held.session.is_open(),
            State::Opening(session, _) => !session.is_open(),
            State::Closed => true,
        }
    }

    /// Takes over a handle, unless there is one.
    pub(crate) fn adopt(&self, held: Held) {
        if let Ok(mut state) = self.state.try_lock()
            && let State::Closed = &*state
        {
            *state = State::Open(Arc::new(held));
        }
    }

    /// The handle, if it is open at this moment.
    pub(crate) fn present(&self) -> Option<Arc<Held>> {
        match &*self.state.try_lock().ok()? {
            State::Open(held) if held.session.is_open() => Some(Arc::clone(held)),
            _ => None,
        }
    }
}

/// Opens a file.
pub(crate) async fn open(link: &Link, path: &[u8], flags: OpenFlags, attrs: Attrs) -> Result<Held, Fault> {
    let again = match flags {
        _ if flags.contains(OpenFlags::EXCL) => Again::Never,
        _ if flags.contains(OpenFlags::TRUNC) => Again::IfServerExited,
        _ => Again::Always,
    };
    link.run(again, |session| async move {
        let request = Request::Open { path, flags, attrs };
        let handle = session.begin(&request).await.handle().await?;
        Ok(Held::new(session, handle))
    })
    .await
}
