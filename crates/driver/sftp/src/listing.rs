// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing a directory: asked for ahead, kept as long as somebody reads it.
//!
//! A listing is received by a task of its own, several pieces at a time, and read by whoever opened the directory. The server
//! tells names with their attributes, so nothing is asked for single files, unless a server leaves attributes out.

use crate::attr::kind;
use crate::fault::Fault;
use crate::link::{Again, Link};
use crate::session::{Pending, Session};
use bytes::Bytes;
use outrigger_core::{Errno, Error, FileKind, Name, Result};
use outrigger_proto_sftp::{Attrs, Named, Request};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Pieces asked for at once: at first, so that a small directory ends with the second one, and at most.
const PIECES: usize = 2;
const PIECES_MAX: usize = 16;
/// How many names may be received before somebody wants them.
const AHEAD: usize = 20_000;
/// What a name takes in a listing beside itself and its line, in bytes.
const ATTRS: usize = 40;

/// One name, and what the server says about it.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) attrs: Attrs,
    /// The attributes are those of what a symbolic link leads to, which may be anywhere, also above.
    pub(crate) followed: bool,
}

/// A listing that is being received, or has been.
#[derive(Default)]
pub(crate) struct Listing {
    state: Mutex<State>,
    /// More was received: for those who read.
    changed: Notify,
    /// More is wanted: for who receives.
    wants: Notify,
    /// The last change of ours there was when it was asked for.
    asked: u64,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    /// How many bytes of memory they take.
    size: usize,
    opened: bool,
    /// How it ended, when it has.
    end: Option<Result<()>>,
    /// How many names somebody wants.
    wanted: usize,
    /// Nobody reads it: not yet, or no more.
    unread: bool,
}

/// Where a listing stands.
pub(crate) enum Progress {
    /// The names from the one asked for on, and whether these are all.
    Names(Vec<Item>, bool),
    /// It failed.
    Failed(Error),
}

impl Listing {
    /// Begins to list the directory at `path`, after the change of ours with the number `asked`. `ahead` tells that nobody
    /// has asked for it yet.
    pub(crate) fn begin(link: &Link, path: Vec<u8>, ahead: bool, asked: u64) -> Arc<Self> {
        let listing = Arc::new(Listing { asked, ..Listing::default() });
        listing.lock().unread = ahead;
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

    /// The last change of ours there was when it was asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
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

    /// The names from number `first` on, once there are `count`, or all.
    pub(crate) async fn from(&self, first: usize, count: usize) -> Progress {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                let wanted = first.saturating_add(count);
                if wanted > state.wanted {
                    state.wanted = wanted;
                    self.wants.notify_one();
                }
                let there = state.items.get(first..).unwrap_or_default();
                match &state.end {
                    Some(Err(error)) if there.is_empty() => return Progress::Failed(error.clone()),
                    // As many as fit, or a short directory would be told without its end when that comes a moment later.
                    None if there.len() < count => {}
                    end => {
                        let names = &there[..there.len().min(count)];
                        let is_all = matches!(end, Some(Ok(()))) && names.len() == there.len();
                        return Progress::Names(names.to_vec(), is_all);
                    }
                }
            }
            changed.await;
        }
    }

    /// Somebody asks for what was begun ahead; false when it has failed, or was given up because it is too long.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.lock();
        state.unread = false;
        !matches!(state.end, Some(Err(_)))
    }

    /// Nobody reads it any more. It is received to its end for the sake of the directories in it, unless it is long.
    pub(crate) fn leave(&self) {
        self.lock().unread = true;
        self.wants.notify_one();
    }

    /// These are all names.
    #[cfg(test)]
    pub(crate) fn end_with(&self, items: Vec<Item>) {
        self.update(|state| (state.items, state.end) = (items, Some(Ok(()))));
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
        let opened = link.run(Again::Always, async |session: Session| {
            let handle = session.begin(&open).await.handle().await?;
            Ok((session, handle))
        });
        let (session, handle) = opened.await?;
        self.update(|state| state.opened = true);
        let received = self.receive_pieces(link, &session, &handle, path, ahead).await;
        session.close(&handle);
        received
    }

    async fn receive_pieces(
        &self,
        link: &Link,
        session: &Session,
        handle: &[u8],
        path: &[u8],
        ahead: bool,
    ) -> Result<(), Fault> {
        let request = Request::ReadDir { handle };
        let mut pieces: VecDeque<Pending> = VecDeque::new();
        let (mut at_once, mut received) = (PIECES, 0);
        loop {
            while pieces.len() < at_once {
                let ask =
                    if ahead { session.begin_ahead(&request).await } else { session.begin(&request).await };
                pieces.push_back(ask);
            }
            let Some(piece) = pieces.pop_front() else { return Ok(()) };
            let names = piece.names().await?;
            session.note_piece(names.iter().map(|named| named.name.len() + named.line.len() + ATTRS).sum());
            if names.is_empty() {
                return Ok(());
            }
            let items = items(link, session, path, names).await?;
            self.update(|state| {
                state.size +=
                    items.iter().map(|item| size_of::<Item>() + item.name.as_bytes().len()).sum::<usize>();
                state.items.extend(items);
            });
            // The more there were, the more are to come.
            received += 1;
            at_once = received.min(PIECES_MAX);
            self.wait_for_readers(link.options().max_listing).await?;
        }
    }

    /// Waits while much more was received than anybody wants. What was received may take `max` bytes.
    async fn wait_for_readers(&self, max: usize) -> Result<(), Fault> {
        loop {
            {
                let state = self.lock();
                if state.size > max {
                    let names = state.items.len();
                    let why = format!(
                        "the server lists {names} names in one directory, and more: max_listing= permits no more than {max} bytes of memory"
                    );
                    // Not EOVERFLOW, after which ls(1) goes on reading.
                    return Err(Errno::EFBIG.because(why).into());
                }
                if state.items.len() < state.wanted.saturating_add(AHEAD) {
                    return Ok(());
                }
                if state.unread {
                    return Err(Errno::E2BIG.because("more names than are listed for nobody").into());
                }
            }
            self.wants.notified().await;
        }
    }
}

/// What the server listed, less what is no name; attributes that it left out, or tells of a link that is to be followed, are
/// asked for.
async fn items(link: &Link, session: &Session, path: &[u8], names: Vec<Named>) -> Result<Vec<Item>, Fault> {
    let mut items = Vec::with_capacity(names.len());
    for Named { name, attrs, .. } in names {
        if &name[..] == b"." || &name[..] == b".." {
            continue;
        }
        // A copy: the packet it is in is much longer.
        match Name::new(Bytes::copy_from_slice(&name)) {
            Ok(name) => items.push(Item { name, attrs, followed: false }),
            Err(error) => tracing::warn!(%error, "a server lists what is no file name"),
        }
    }
    let follows = |attrs: &Attrs| link.follows() && kind(attrs) == FileKind::Symlink;
    let mut asked = Vec::new();
    for (index, Item { name, attrs, .. }) in items.iter().enumerate() {
        if (attrs.permissions.is_none() || follows(attrs))
            && let Ok(path) = outrigger_toolkit_remote::join(path.to_vec(), name)
        {
            asked.push((index, link.look(session, &path).await));
        }
    }
    for (index, look) in asked {
        match look.attrs().await {
            Ok(attrs) => (items[index].attrs, items[index].followed) = (attrs, link.follows()),
            // Removed meanwhile, or not to be looked at: listed as the server listed it.
            Err(Fault::Refused(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_for_names_is_woken_by_names_only() {
        let (listing, wakes) = (Listing::default(), Arc::new(Wakes(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let (mut one, mut other) = (pin!(listing.from(0, 10)), pin!(listing.from(5, 100)));
        for _ in 0..3 {
            assert!(
                one.as_mut().poll(&mut context).is_pending()
                    && other.as_mut().poll(&mut context).is_pending()
            );
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "nothing has come, so nobody has to look");
        listing.update(|state| state.end = Some(Ok(())));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(one.as_mut().poll(&mut context).is_ready() && other.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_short_directory_is_told_with_its_end() {
        let listing = Listing::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut names = pin!(listing.from(0, 10));
        let item = Item { name: Name::try_from("a").expect("a name"), attrs: Attrs::NONE, followed: false };
        listing.update(|state| state.items.push(item));
        assert!(names.as_mut().poll(&mut context).is_pending(), "its end may come a moment later");
        listing.update(|state| state.end = Some(Ok(())));
        assert!(
            matches!(names.as_mut().poll(&mut context), Poll::Ready(Progress::Names(all, true)) if all.len() == 1)
        );
    }
}
