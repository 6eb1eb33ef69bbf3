// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requesters, and replies that did not reach them because the process died that was to deliver them. The host's kernel sends such
//! requests again, to the process that serves then.

use futures_channel::oneshot::Sender;
use outrigger_core::wire::{Input, Malformed};
use outrigger_core::{Cx, Reply, Wire};
use std::collections::{BTreeMap, HashMap};

/// The door whose requests are sent again.
const DOOR: &str = "fuse";

/// The origin of a request.
#[derive(Debug)]
pub struct Requester {
    /// The number of the request, the same when it is sent again; zero for what is not.
    pub id: u64,
    /// What no other request in flight has: see [`Cx::slot`].
    pub slot: u32,
    /// Where the reply is waited for; nowhere when another process does.
    pub sender: Option<Sender<Reply>>,
}

impl Requester {
    /// The receiver of `sender`.
    pub fn new(cx: &Cx, sender: Sender<Reply>) -> Self {
        let id = if cx.origin.door == DOOR && cx.slot != Cx::NO_SLOT { cx.id } else { 0 };
        Requester { id, slot: cx.slot, sender: Some(sender) }
    }

    /// None: the request has to be done all the same, without a reply.
    pub(crate) fn none() -> Self {
        Requester { id: 0, slot: Cx::NO_SLOT, sender: None }
    }

    /// Whether this one asked the same in another process.
    pub fn is_the_same(&self, again: &Requester) -> bool {
        self.sender.is_none() && self.id == again.id
    }
}

/// Where the reply is waited for does not matter to another process.
impl Wire for Requester {
    fn put(&self, out: &mut Vec<u8>) {
        (self.id, self.slot).put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let (id, slot) = Wire::get(input)?;
        Ok(Requester { id, slot, sender: None })
    }
}

/// Delivers replies.
pub fn deliver(answers: Vec<(Sender<Reply>, Reply)>) {
    for (sender, reply) in answers {
        // The request may have been given up; then its reply is dropped.
        drop(sender.send(reply));
    }
}

/// The replies.
#[derive(Default, Wire)]
#[wire(internal)]
pub struct Undelivered {
    /// Whether there were askers of another process.
    expected: bool,
    replies: BTreeMap<u64, Reply>,
    /// Which request had each slot last: those before have their replies.
    slots: HashMap<u32, u64>,
}

impl Undelivered {
    /// Keeps a reply for the request that is sent again.
    pub fn keep(&mut self, requester: Requester, reply: Reply) {
        if requester.id == 0 {
            return;
        }
        if let Some(former) = self.slots.insert(requester.slot, requester.id) {
            self.replies.remove(&former);
        }
        self.replies.insert(requester.id, reply);
    }

    /// From here on askers of another process ask here.
    pub fn expect(&mut self) {
        self.expected = true;
    }

    /// Whether this one may ask again.
    pub fn may_have(&self, requester: &Requester) -> bool {
        self.expected && requester.id != 0
    }

    /// The reply to a request that was sent again.
    pub fn take(&mut self, requester: &Requester) -> Option<Reply> {
        self.replies.remove(&requester.id)
    }
}
