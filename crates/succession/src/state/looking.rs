// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that only look: where the server has all they need, nothing that matters later follows from them.

use super::{State, Task};
use futures_channel::oneshot::Sender;
use outrigger_core::rebind::bind;
use outrigger_core::{Credentials, Reply, Request};

/// What is being looked at, in our numbers, and the sender of its reply.
pub(super) struct Look {
    pub(super) request: Request,
    sender: Sender<Reply>,
}

impl State {
    /// The request in the worker's numbers, if it may be looked at without being taken: the worker has all it needs, it changes
    /// nothing, and the reply matters to no later request.
    pub fn may_look(&mut self, request: &Request) -> Option<Request> {
        let only_looks = request.effects().into_iter().next().is_none();
        if !only_looks || !self.serves || self.failed.is_some() || self.ending {
            return None;
        }
        let mut theirs = request.clone();
        matches!(bind(&mut theirs, &mut self.files), Ok(None)).then_some(theirs)
    }

    /// Asks a request in our numbers, which is `theirs` in the worker's, until [`State::looked_at`] says that it was looked at.
    pub fn look(&mut self, cred: Credentials, request: Request, theirs: Request, sender: Sender<Reply>) {
        self.looks += 1;
        self.outgoing.push(Task { id: self.looks, cred, request: theirs, only_looks: true });
        self.looking.insert(self.looks, Look { request, sender });
    }

    /// The reply gets our numbers; gives its sender.
    pub fn looked_at(&mut self, id: u64, reply: &mut Reply) -> Option<Sender<Reply>> {
        let Look { mut request, sender } = self.looking.remove(&id)?;
        if let Err(error) = self.files.learn(&mut request, reply) {
            *reply = Reply::Error(error);
        }
        Some(sender)
    }
}
