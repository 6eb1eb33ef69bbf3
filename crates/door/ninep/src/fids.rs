// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fids of a connection: numbers by which a client names files.
//!
//! Requests run side by side, and yet in the order in which they came where they are about the same fid: a request gets hold of its
//! fids when it is read from the connection. So a client may ask about a file in the same breath as it walks to it. Whoever changes
//! what a fid stands for has it alone, others share it.

use crate::export::{Export, Held};
use crate::open::Open;
use crate::users::Who;
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::XattrFlags;
use outrigger_core::{BoxFuture, Errno, Error, FileKind, Name, Result, XattrName, lock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock};

/// Fids of all connections.
const ALL: usize = 1 << 20;
/// Those of one.
const EACH: usize = 1 << 19;

/// What a fid stands for.
#[derive(Default)]
pub(crate) enum State {
    /// Nothing: what would have made it stand for something has failed, or it was given back.
    #[default]
    Gone,
    /// A file.
    File(File),
    /// The value of an extended attribute, or the names of all.
    Value { value: Bytes, _place: OwnedSemaphorePermit },
    /// An extended attribute that is set when the fid is given back.
    Setting(Setting),
}

/// A file, as a client has found it.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) export: Arc<Export>,
    pub(crate) who: Arc<Who>,
    pub(crate) node: Arc<Held>,
    pub(crate) kind: FileKind,
    /// Which file system of the tree it is in, as [`Attr::dev`](outrigger_core::Attr::dev).
    pub(crate) dev: u64,
    /// The name that has led to it, if one has.
    pub(crate) place: Option<(Arc<Held>, Name)>,
}

pub(crate) struct File {
    pub(crate) at: Found,
    pub(crate) open: Option<Open>,
}

/// An extended attribute to be set.
pub(crate) struct Setting {
    pub(crate) at: Found,
    pub(crate) name: XattrName,
    pub(crate) flags: XattrFlags,
    /// How long the value will be.
    pub(crate) size: usize,
    pub(crate) value: Mutex<BytesMut>,
    pub(crate) _place: OwnedSemaphorePermit,
}

/// How many fids all connections have.
#[derive(Debug, Default)]
pub(crate) struct Total(AtomicUsize);

/// The fids of one connection.
pub(crate) struct Fids {
    known: Mutex<HashMap<u32, Arc<RwLock<State>>>>,
    total: Arc<Total>,
}

/// Hold of a fid.
#[derive(Default)]
pub(crate) enum Grip {
    /// The request names none.
    #[default]
    None,
    /// There is no such fid, or one too many.
    Refused(Error),
    /// Others may use it, too.
    Shared(OwnedRwLockReadGuard<State>),
    /// No other request uses it.
    Alone(OwnedRwLockWriteGuard<State>),
}

/// Hold of a fid, with a place in the queue for it.
pub(crate) enum Coming {
    /// At once.
    Now(Grip),
    /// When those who came before have done with it.
    Later(BoxFuture<'static, Grip>),
}

impl Default for Coming {
    fn default() -> Self {
        Coming::Now(Grip::None)
    }
}

impl Coming {
    /// Waits for it.
    pub(crate) async fn ready(self) -> Grip {
        match self {
            Coming::Now(grip) => grip,
            Coming::Later(coming) => coming.await,
        }
    }
}

impl Grip {
    fn state(&self) -> Result<&State> {
        match self {
            Grip::Shared(state) => Ok(state),
            Grip::Alone(state) => Ok(state),
            Grip::Refused(error) => Err(error.clone()),
            Grip::None => Err(unknown()),
        }
    }

    /// What it stands for, to be changed.
    pub(crate) fn state_mut(&mut self) -> Result<&mut State> {
        match self {
            Grip::Alone(state) => Ok(state),
            Grip::Refused(error) => Err(error.clone()),
            _ => Err(unknown()),
        }
    }

    /// What it stands for, which is nothing then.
    pub(crate) fn take(&mut self) -> Result<State> {
        self.state_mut().map(take)
    }

    /// The file.
    pub(crate) fn file(&self) -> Result<&File> {
        match self.state()? {
            State::File(file) => Ok(file),
            _ => Err(unknown()),
        }
    }

    /// The file, to be changed.
    pub(crate) fn file_mut(&mut self) -> Result<&mut File> {
        match self.state_mut()? {
            State::File(file) => Ok(file),
            _ => Err(unknown()),
        }
    }

    /// The value that it stands for.
    pub(crate) fn value(&self) -> Option<&Bytes> {
        if let Ok(State::Value { value, .. }) = self.state() { Some(value) } else { None }
    }

    /// The attribute that will be set.
    pub(crate) fn setting(&self) -> Option<&Setting> {
        if let Ok(State::Setting(setting)) = self.state() { Some(setting) } else { None }
    }
}

fn refused(error: Error) -> Coming {
    Coming::Now(Grip::Refused(error))
}

fn unknown() -> Error {
    Errno::EBADF.because("the fid stands for no such file")
}

/// The outcome of the future if there is one already; otherwise it has its place in the queue from now on.
fn queued(future: impl Future<Output = Grip> + Send + 'static) -> Coming {
    let mut coming: BoxFuture<'static, Grip> = Box::pin(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match coming.as_mut().poll(&mut context) {
        std::task::Poll::Ready(grip) => Coming::Now(grip),
        std::task::Poll::Pending => Coming::Later(coming),
    }
}

fn alone(state: Arc<RwLock<State>>) -> Coming {
    match Arc::clone(&state).try_write_owned() {
        Ok(state) => Coming::Now(Grip::Alone(state)),
        Err(_) => queued(async move { Grip::Alone(state.write_owned().await) }),
    }
}

impl Fids {
    pub(crate) fn new(total: &Arc<Total>) -> Self {
        Fids { known: Mutex::default(), total: Arc::clone(total) }
    }

    fn find(&self, fid: u32) -> Result<Arc<RwLock<State>>, Coming> {
        lock(&self.known).get(&fid).cloned().ok_or_else(|| refused(unknown()))
    }

    /// A fid that others may use at the same time.
    pub(crate) fn share(&self, fid: u32) -> Coming {
        let state = match self.find(fid) {
            Ok(state) => state,
            Err(refused) => return refused,
        };
        match Arc::clone(&state).try_read_owned() {
            Ok(state) => Coming::Now(Grip::Shared(state)),
            Err(_) => queued(async move { Grip::Shared(state.read_owned().await) }),
        }
    }

    /// A fid that stands for something else afterwards.
    pub(crate) fn change(&self, fid: u32) -> Coming {
        self.find(fid).map_or_else(|refused| refused, alone)
    }

    /// A fid that is given back: the client may use its number for another file from now on.
    pub(crate) fn end(&self, fid: u32) -> Coming {
        let Some(state) = lock(&self.known).remove(&fid) else { return refused(unknown()) };
        self.total.0.fetch_sub(1, Relaxed);
        alone(state)
    }

    /// A new fid, which stands for nothing yet.
    pub(crate) fn begin(&self, fid: u32) -> Coming {
        if fid == outrigger_proto_ninep::NO_FID {
            return refused(Errno::EBADF.because("a fid that stands for none"));
        }
        let mut known = lock(&self.known);
        let len = known.len();
        let Entry::Vacant(place) = known.entry(fid) else {
            return refused(Errno::EBADF.because("the fid is in use"));
        };
        if len >= EACH || self.total.0.fetch_add(1, Relaxed) >= ALL {
            if len < EACH {
                self.total.0.fetch_sub(1, Relaxed);
            }
            return refused(Errno::ENFILE.because("too many fids"));
        }
        alone(Arc::clone(place.insert(Arc::default())))
    }

    /// A new fid stands for nothing after all.
    pub(crate) fn abandon(&self, fid: u32, grip: Grip) {
        if let Grip::Alone(state) = grip {
            let mut known = lock(&self.known);
            if let Entry::Occupied(place) = known.entry(fid)
                && Arc::ptr_eq(place.get(), OwnedRwLockWriteGuard::rwlock(&state))
            {
                place.remove();
                self.total.0.fetch_sub(1, Relaxed);
            }
        }
    }

    /// All of them, which are given back.
    pub(crate) fn drain(&self) -> Vec<Coming> {
        let all = take(&mut *lock(&self.known));
        self.total.0.fetch_sub(all.len(), Relaxed);
        all.into_values().map(alone).collect()
    }
}

impl Drop for Fids {
    fn drop(&mut self) {
        self.total.0.fetch_sub(lock(&self.known).len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_get_a_fid_in_the_order_in_which_they_came() {
        let fids = Fids::new(&Arc::default());
        let walks = fids.begin(1);
        assert!(matches!(walks, Coming::Now(Grip::Alone(_))));
        let (asks, opens, reads) = (fids.share(1), fids.change(1), fids.share(1));
        assert!([&asks, &opens, &reads].iter().all(|grip| matches!(grip, Coming::Later(_))));
        drop(walks);
        let asks = asks.ready().await;
        assert!(matches!(asks, Grip::Shared(_)));
        drop(asks);
        let opens = opens.ready().await;
        assert!(matches!(opens, Grip::Alone(_)));
        drop(opens);
        assert!(matches!(reads.ready().await, Grip::Shared(_)));
    }

    #[tokio::test]
    async fn a_number_is_free_as_soon_as_its_fid_is_given_back() {
        let fids = Fids::new(&Arc::default());
        drop(fids.begin(1));
        let reads = fids.share(1);
        let ends = fids.end(1);
        assert!(matches!(ends, Coming::Later(_)), "it is still read");
        assert!(matches!(fids.begin(1), Coming::Now(Grip::Alone(_))));
        assert!(matches!(fids.begin(1), Coming::Now(Grip::Refused(_))), "it is in use");
        drop(reads);
        assert!(matches!(ends.ready().await, Grip::Alone(_)));
        assert!(
            matches!(fids.share(2), Coming::Now(Grip::Refused(_)))
                && matches!(fids.end(2), Coming::Now(Grip::Refused(_)))
        );
        assert!(matches!(fids.begin(u32::MAX), Coming::Now(Grip::Refused(_))));
    }

    #[tokio::test]
    async fn there_are_so_many_fids_and_no_more() {
        let total = Arc::new(Total::default());
        let (one, two) = (Fids::new(&total), Fids::new(&total));
        for fid in 0..EACH as u32 {
            assert!(matches!(one.begin(fid), Coming::Now(Grip::Alone(_))));
        }
        assert!(matches!(one.begin(u32::MAX - 1), Coming::Now(Grip::Refused(_))));
        assert!(matches!(two.begin(1), Coming::Now(Grip::Alone(_))));
        let abandoned = two.begin(2).ready().await;
        two.abandon(2, abandoned);
        assert_eq!(total.0.load(Relaxed), EACH + 1);
        drop(one);
        assert_eq!((total.0.load(Relaxed), two.drain().len(), total.0.load(Relaxed)), (1, 1, 0));
    }
}
