// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that only look: where the server has all they need, nothing that matters later follows from them.

use super::State;
use futures_channel::oneshot::Sender;
use outrigger_core::rebind::bind;
use outrigger_core::{Reply, Request};

/// What is being looked at, in our numbers, and who waits.
pub(super) struct Look {
    pub(super) request: Request,
    sender: Sender<Reply>,
}

impl State {
    /// The request in the worker's numbers, if it may be looked at without being taken: the worker has all it needs, it changes
    /// nothing, and what is told matters to nobody later.
    pub fn may_look(&mut self, request: &Request) -> Option<Request> {
        let only_looks = matches!(
            request,
            Request::GetAttr(_)
                | Request::Read(_)
                | Request::ReadDir(_)
                | Request::ReadLink(_)
                | Request::GetXattr(_)
                | Request::ListXattr(_)
                | Request::StatFs(_)
                | Request::Seek(_)
        );
        if !only_looks || !self.serves || self.failed.is_some() || self.ending {
            return None;
        }
        let mut theirs = request.clone();
        matches!(bind(&mut theirs, &mut self.files), Ok(None)).then_some(theirs)
    }

    /// A request in our numbers is looked at until [`State::looked_at`] says that it was. Gives it a number for that.
    pub fn look(&mut self, request: Request, sender: Sender<Reply>) -> u64 {
        self.looks += 1;
        self.looking.insert(self.looks, Look { request, sender });
        self.looks
    }

    /// The reply gets our numbers; gives who is to be told.
    pub fn looked_at(&mut self, id: u64, reply: &mut Reply) -> Option<Sender<Reply>> {
        let Look { mut request, sender } = self.looking.remove(&id)?;
        if let Err(error) = self.files.learn(&mut request, reply) {
            *reply = Reply::Error(error);
        }
        Some(sender)
    }
}
