// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers that serve a mount by themselves: each is given orders, and what it records is followed, so that the next one can go
//! on when it dies.

use super::{Guarded, Shared};
use crate::worker::{CONTROL, send_with};
use bytes::Bytes;
use futures_channel::oneshot::{self, Receiver, Sender};
use outrigger_core::supervise::{Policy, Supervisor};
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Errno, Error, Reply, Result, lock};
use outrigger_succession::record::Records;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Orders have numbers from here on, far from those of requests.
const FIRST_ORDER: u64 = 1 << 61;
/// And up to here.
const LAST_ORDER: u64 = (1 << 62) - 1;

/// Whether this is the number of an order.
pub(super) fn is_order(id: u64) -> bool {
    (FIRST_ORDER..=LAST_ORDER).contains(&id)
}

/// The longest state that is handed over, in bytes: some hundred thousand files. Who takes it may not have memory for more,
/// and programs wait meanwhile.
const LONGEST: usize = 32 << 20;

/// A mount that workers serve by themselves, one after the other.
struct Mount {
    id: u64,
    /// To serve it, which is answered when the mount has ended.
    order: Bytes,
    /// The connection to the host's kernel.
    device: OwnedFd,
    /// What becomes of it.
    records: Records,
    /// Waits for the answer.
    sender: Sender<Reply>,
    /// Since when there is such a mount.
    since: Instant,
    /// Of the workers that it was given.
    supervisor: Supervisor,
}

/// An order with its number, and the descriptor that goes with it.
struct First {
    id: u64,
    order: Bytes,
    file: OwnedFd,
}

/// A worker that ends by itself soon after it was given a mount may have ended because of that, or of a request that will be
/// asked again. After two of these no further one is given it: from then on it is this process that asks, and finds out which
/// request it is.
const POLICY: Policy =
    Policy { at_once: 2, attempts: 2, hold: Duration::ZERO, settled: Duration::from_secs(10) };

/// What is exchanged with workers that serve by themselves.
#[derive(Default)]
pub(super) struct Following {
    mount: Option<Mount>,
    /// What each worker is sent before it is given the mount.
    first: Option<First>,
    given: u64,
    waiting: HashMap<u64, Sender<Reply>>,
}

impl Following {
    /// A number for an order.
    fn number(&mut self) -> u64 {
        self.given += 1;
        FIRST_ORDER + self.given
    }

    /// No worker is given the mount any more.
    fn give_up(&mut self, why: Error) {
        if let Some(mount) = self.mount.take() {
            // The caller may have gone.
            drop(mount.sender.send(Reply::Error(why)));
        }
    }
}

impl Guarded {
    /// Workers serve a mount by themselves from here on, until the order is replied to: each as soon as nothing else is being
    /// done.
    ///
    /// # Errors
    /// `EBUSY` when there is such a mount, `EBADF` without a descriptor, and when there are no more of these.
    pub(crate) fn hand_over(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<Receiver<Reply>> {
        let shared = &*self.shared;
        let device = file.ok_or(Errno::EBADF)?.try_clone_to_owned()?;
        let records = Records::new(shared.messages.try_clone()?, CONTROL);
        let (sender, receiver) = oneshot::channel();
        let mut following = lock(&shared.following);
        if following.mount.is_some() {
            return Err(Errno::EBUSY.because("a mount is served already"));
        }
        let id = following.number();
        let (since, supervisor) = (Instant::now(), Supervisor::new(POLICY));
        following.mount = Some(Mount { id, order, device, records, sender, since, supervisor });
        drop(following);
        shared.ring();
        Ok(receiver)
    }

    /// Workers that are given the mount from here on are given this order before it, instead of the one so far.
    pub(crate) fn before_hand_over(&self, first: Option<(Bytes, OwnedFd)>) {
        let mut following = lock(&self.shared.following);
        following.first = first.map(|(order, file)| First { id: following.number(), order, file });
    }

    /// Asks something of a worker that serves by itself.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when it does not, and when it has ended.
    pub(crate) fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<Receiver<Reply>> {
        let shared = &*self.shared;
        let socket = lock(&shared.writing);
        if !lock(&shared.state).is_copied() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let mut following = lock(&shared.following);
        let (id, (sender, receiver)) = (following.number(), oneshot::channel());
        following.waiting.insert(id, sender);
        drop(following);
        send(&socket, id, order, file.as_slice())?;
        Ok(receiver)
    }
}

impl Mount {
    /// Has the worker at the other end serve it, which goes on with the state that was left.
    fn give(&mut self, socket: &UnixStream, first: Option<&First>, left: &[u8]) -> Result<()> {
        if left.len() > LONGEST {
            return Err(Errno::ENOMEM.because("too many files are known"));
        }
        self.records.begin()?;
        self.supervisor.started(self.since.elapsed());
        let state = memfd_create("outrigger state", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let state = File::from(state);
        state.write_all_at(left, 0)?;
        if let Some(First { id, order, file }) = first {
            send(socket, *id, order.clone(), &[file.as_fd()])?;
        }
        send(socket, self.id, self.order.clone(), &[self.device.as_fd(), state.as_fd()])
    }
}

fn send(socket: &UnixStream, id: u64, order: Bytes, files: &[BorrowedFd<'_>]) -> Result<()> {
    let frame = Frame { id, body: Body::Control(order) }.encode()?;
    Ok(send_with(socket, &frame, files)?)
}

impl Shared {
    /// Hands the mount over that workers serve by themselves, if there is one, and nothing is being done.
    pub(super) fn hand_over(&self) {
        if lock(&self.following).mount.is_none() || !lock(&self.state).is_idle() {
            return;
        }
        // A worker that is not asked anything reads.
        self.flush();
        let socket = lock(&self.writing);
        let (mut following, mut state) = (lock(&self.following), lock(&self.state));
        let Following { mount, first, .. } = &mut *following;
        let Some((mount, left)) = mount.as_mut().zip(state.leave()) else { return };
        if let Err(error) = mount.give(&socket, first.as_ref(), &left) {
            state.take_over();
            // The next worker may be given it; this one cannot be, without memory.
            if error.errno != Errno::EPIPE {
                following.give_up(error);
            }
        }
    }

    /// An order was replied to.
    pub(super) fn obeyed(&self, id: u64, reply: Reply) {
        let is_over = lock(&self.following).mount.as_ref().is_some_and(|mount| mount.id == id);
        if is_over {
            self.take_over();
        }
        let mut following = lock(&self.following);
        let sender = match is_over {
            true => following.mount.take().map(|mount| mount.sender),
            false => following.waiting.remove(&id),
        };
        if let Some(sender) = sender {
            // The caller may have gone.
            drop(sender.send(reply));
        }
    }

    /// Follows what was recorded so far.
    pub(super) fn follow(&self) {
        let mut following = lock(&self.following);
        let Some(Mount { records, .. }) = &mut following.mount else { return };
        if !lock(&self.state).is_copied() {
            return;
        }
        let outcome = loop {
            match records.take() {
                Ok(Some(event)) => lock(&self.state).follow(event),
                Ok(None) => break records.consumed().map_err(Into::into),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = outcome {
            drop(following);
            let why =
                Errno::EIO.because(format!("what the kernel code has recorded cannot be read: {error}"));
            tracing::error!("{why}");
            self.with(|state| state.fail(&why));
            lock(&self.worker).kill();
        }
    }

    /// Goes on with what another process has served so far, if one has; it serves no more.
    pub(super) fn take_over(&self) {
        self.follow();
        let mut state = lock(&self.state);
        if state.is_copied() {
            state.take_over();
        }
    }

    /// Who waits for the reply to an order of a worker that has ended learns that there will be none. Whoever waits for the end
    /// of the mount does so when no worker should be given it any more.
    pub(super) fn bereaved(&self, by_itself: bool, why: &Error) {
        let mut following = lock(&self.following);
        following.waiting.clear();
        let Some(mount) = &mut following.mount else { return };
        if by_itself {
            mount.supervisor.failed(mount.since.elapsed(), false);
        }
        if mount.supervisor.is_given_up(mount.since.elapsed()) {
            following.give_up(why.clone());
        }
    }

    /// No worker will serve a mount any more.
    pub(super) fn dismiss(&self, why: &Error) {
        let mut following = lock(&self.following);
        following.waiting.clear();
        following.give_up(why.clone());
    }
}
