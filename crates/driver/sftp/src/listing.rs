// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing a directory: asked for ahead, kept as long as somebody reads it.
//!
//! A listing is received by a task of its own, several pieces at a time, and read by whoever opened the directory. The server
//! tells names with their attributes, so nothing is asked for single files, unless a server leaves attributes out.

use crate::fault::Fault;
use crate::link::Link;
use crate::session::{Pending, Session};
use bytes::Bytes;
use outrigger_core::{Errno, Error, Name, Result};
use outrigger_proto_sftp::{Attrs, Named, Request};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Pieces asked for at once: at first, and when a directory turns out to be large.
const PIECES: usize = 2;
const PIECES_MAX: usize = 16;
/// How many names may be received before somebody wants them.
const AHEAD: usize = 20_000;
/// The most names of a directory.
const NAMES_MAX: usize = 1 << 24;

/// One name, and what the server says about it.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) attrs: Attrs,
}

/// A listing that is being received, or has been.
pub(crate) struct Listing {
    state: Mutex<State>,
    /// More was received, or is wanted.
    changed: Notify,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    opened: bool,
    /// How it ended, when it has.
    end: Option<Result<()>>,
    /// How many names somebody wants.
    wanted: usize,
}

/// Where a listing stands.
pub(crate) enum Progress {
    /// The names from the one asked for on, as many as were received, and whether these are all.
    Names(Vec<Item>, bool),
    /// It failed.
    Failed(Error),
}

impl Listing {
    /// Begins to list the directory at `path`. `ahead` tells that nobody has asked for it yet.
    pub(crate) fn begin(link: &Link, path: Vec<u8>, ahead: bool) -> Arc<Self> {
        let listing = Arc::new(Listing { state: Mutex::default(), changed: Notify::new() });
        let (filled, link) = (Arc::clone(&listing), link.clone());
        let runtime = Arc::clone(link.runtime());
        runtime.spawn(Box::pin(async move {
            let end = filled.receive(&link, &path, ahead).await;
            filled.update(|state| {
                state.opened = true;
                state.end = Some(end.map_err(Error::from));
            });
        }));
        listing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }

    /// Waits until the server has opened the directory.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) async fn opened(&self) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                match &state.end {
                    Some(Err(error)) if state.items.is_empty() => return Err(error.clone()),
                    _ if state.opened => return Ok(()),
                    _ => {}
                }
            }
            changed.await;
        }
    }

    /// The names from number `first` on, `count` at most, once at least one or the end is there.
    pub(crate) async fn from(&self, first: usize, count: usize) -> Progress {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                state.wanted = state.wanted.max(first.saturating_add(count));
                let is_all = matches!(state.end, Some(Ok(())));
                if state.items.len() > first || is_all {
                    let there = state.items.get(first..).unwrap_or_default();
                    let names = &there[..there.len().min(count)];
                    return Progress::Names(names.to_vec(), is_all && names.len() == there.len());
                }
                if let Some(Err(error)) = &state.end {
                    return Progress::Failed(error.clone());
                }
            }
            // The receiver may have paused.
            self.changed.notify_waiters();
            changed.await;
        }
    }

    /// All names, when all were received.
    pub(crate) fn all<T>(&self, look: impl FnOnce(&[Item]) -> T) -> Option<T> {
        let state = self.lock();
        matches!(state.end, Some(Ok(()))).then(|| look(&state.items))
    }

    /// Waits until everything was received, or nothing more will be.
    pub(crate) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().end.is_some() {
                return;
            }
            changed.await;
        }
    }

    async fn receive(&self, link: &Link, path: &[u8], ahead: bool) -> Result<(), Fault> {
        let open = Request::OpenDir { path };
        let opened = link.run(true, async |session: Session| {
            let handle = session.begin(&open).await.handle().await?;
            Ok((session, handle))
        });
        let (session, handle) = opened.await?;
        self.update(|state| state.opened = true);
        let received = self.receive_pieces(&session, &handle, path, ahead).await;
        session.close(&handle);
        if let Err(fault) = &received {
            link.look_after(&session, fault);
        }
        received
    }

    async fn receive_pieces(
        &self,
        session: &Session,
        handle: &[u8],
        path: &[u8],
        ahead: bool,
    ) -> Result<(), Fault> {
        let request = Request::ReadDir { handle };
        let mut pieces: VecDeque<Pending> = VecDeque::new();
        let mut at_once = PIECES;
        loop {
            while pieces.len() < at_once {
                let ask =
                    if ahead { session.begin_ahead(&request).await } else { session.begin(&request).await };
                pieces.push_back(ask);
            }
            let Some(piece) = pieces.pop_front() else { return Ok(()) };
            let names = piece.names().await?;
            if names.is_empty() {
                return Ok(());
            }
            let items = self.items(session, path, names).await?;
            self.update(|state| state.items.extend(items));
            at_once = (at_once + 1).min(PIECES_MAX);
            self.wait_for_readers().await?;
        }
    }

    /// Waits while much more was received than anybody wants.
    async fn wait_for_readers(&self) -> Result<(), Fault> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                if state.items.len() > NAMES_MAX {
                    let why = format!("the server lists more than {NAMES_MAX} names in one directory");
                    return Err(Errno::EOVERFLOW.because(why).into());
                }
                if state.items.len() < state.wanted.saturating_add(AHEAD) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// What the server listed, less what is no name; attributes that it left out are asked for.
    async fn items(&self, session: &Session, path: &[u8], names: Vec<Named>) -> Result<Vec<Item>, Fault> {
        let mut items = Vec::with_capacity(names.len());
        for Named { name, attrs, .. } in names {
            if &name[..] == b"." || &name[..] == b".." {
                continue;
            }
            // A copy: the packet it is in is much longer.
            match Name::new(Bytes::copy_from_slice(&name)) {
                Ok(name) => items.push(Item { name, attrs }),
                Err(error) => tracing::warn!(%error, "a server lists what is no file name"),
            }
        }
        let mut asked = Vec::new();
        for (index, item) in items.iter().enumerate().filter(|(_, item)| item.attrs.permissions.is_none()) {
            if let Ok(path) = crate::places::join(path.to_vec(), &item.name) {
                asked.push((index, session.begin(&Request::LStat { path: &path }).await));
            }
        }
        for (index, pending) in asked {
            match pending.attrs().await {
                Ok(attrs) => items[index].attrs = attrs,
                // Removed meanwhile, or not to be looked at: listed as the server listed it.
                Err(Fault::Refused(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(items)
    }
}
