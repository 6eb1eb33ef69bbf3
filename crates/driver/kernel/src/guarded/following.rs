// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker that serves a mount by itself: it is given orders, and what it records is followed, so that this process can go on
//! when it dies.

use super::{Guarded, Shared, locked};
use crate::worker::{CONTROL, send_with};
use bytes::Bytes;
use futures_channel::oneshot::{self, Receiver, Sender};
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Errno, Reply, Result};
use outrigger_succession::record::Records;
use outrigger_succession::{Role, State};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

/// Orders have numbers from here on, far from those of requests.
const FIRST_ORDER: u64 = 1 << 61;
/// And up to here.
const LAST_ORDER: u64 = (1 << 62) - 1;

/// Whether this is the number of an order.
pub(super) fn is_order(id: u64) -> bool {
    (FIRST_ORDER..=LAST_ORDER).contains(&id)
}

/// What there is to follow.
#[derive(Default)]
pub(super) struct Following {
    records: Option<Records>,
    /// The order to serve.
    serving: u64,
    given: u64,
    waiting: HashMap<u64, Sender<Reply>>,
}

impl Following {
    /// A number for an order whose reply arrives at the receiver.
    fn expect(&mut self) -> (u64, Receiver<Reply>) {
        let (sender, receiver) = oneshot::channel();
        self.given += 1;
        let id = FIRST_ORDER + self.given;
        self.waiting.insert(id, sender);
        (id, receiver)
    }
}

impl Guarded {
    /// The worker serves a mount by itself from here on, until the order is replied to, or it dies.
    ///
    /// # Errors
    /// `EBUSY` when somebody has used the tree before, and when the worker has ended.
    pub(crate) fn hand_over(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<Receiver<Reply>> {
        let shared = &*self.shared;
        let socket = locked(&shared.writing);
        let (mut following, mut state) = (locked(&shared.following), locked(&shared.state));
        if !state.is_fresh() || !state.serves || state.is_copied() {
            return Err(Errno::EBUSY.because("the tree is in use already"));
        }
        let mut copy = State::new(Role::Copied, shared.most)?;
        copy.log.checkpoints = state.log.checkpoints;
        following.records = Some(Records::new(shared.messages.try_clone()?, CONTROL)?);
        let (id, receiver) = following.expect();
        following.serving = id;
        *state = copy;
        drop((state, following));
        send(&socket, id, order, file)?;
        shared.ring();
        Ok(receiver)
    }

    /// Asks something of a worker that serves by itself.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when it does not, and when it has ended.
    pub(crate) fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<Receiver<Reply>> {
        let shared = &*self.shared;
        let socket = locked(&shared.writing);
        if !locked(&shared.state).is_copied() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (id, receiver) = locked(&shared.following).expect();
        send(&socket, id, order, file)?;
        Ok(receiver)
    }
}

fn send(socket: &UnixStream, id: u64, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<()> {
    let frame = Frame { id, body: Body::Order(order) }.encode()?;
    Ok(send_with(socket, &frame, file.as_slice())?)
}

impl Shared {
    /// An order was replied to.
    pub(super) fn obeyed(&self, id: u64, reply: Reply) {
        let mut following = locked(&self.following);
        let (sender, has_served) = (following.waiting.remove(&id), following.serving == id);
        drop(following);
        if has_served {
            self.take_over();
        }
        if let Some(sender) = sender {
            // Nobody may be waiting any more.
            drop(sender.send(reply));
        }
    }

    /// Follows what was recorded so far.
    pub(super) fn follow(&self) {
        let mut following = locked(&self.following);
        let Some(records) = &mut following.records else { return };
        let outcome = loop {
            match records.take() {
                Ok(Some(event)) => locked(&self.state).follow(event),
                Ok(None) => break records.consumed().map_err(Into::into),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = outcome {
            following.records = None;
            drop(following);
            let why =
                Errno::EIO.because(format!("what the kernel code has recorded cannot be read: {error}"));
            tracing::error!("{why}");
            self.with(|state| state.fail(&why));
            locked(&self.worker).kill();
        }
    }

    /// Goes on with what another process has served so far, if one has; it serves no more.
    pub(super) fn take_over(&self) {
        self.follow();
        let mut following = locked(&self.following);
        if following.records.take().is_some() {
            locked(&self.state).take_over();
        }
    }

    /// Who waits for the reply to an order learns that there will be none.
    pub(super) fn dismiss(&self) {
        locked(&self.following).waiting.clear();
    }
}
