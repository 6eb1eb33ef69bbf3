// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that only look: where the server has all they need, nothing that matters later follows from them.

use super::State;
use outrigger_core::{Reply, Request};

impl State {
    /// Whether requests may be looked at without being taken: the worker has all they need, they change nothing, and
    /// what is told matters to nobody later. The request gets its numbers then.
    pub fn may_look(&mut self, request: &mut Request) -> bool {
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
        let is_open = self.serves && self.failed.is_none() && !self.ending;
        only_looks && is_open && matches!(self.files.translate(request), Ok(None))
    }

    /// A request in our numbers is looked at until [`State::looked_at`] says that it was.
    pub fn look(&mut self, token: u64, request: Request) {
        self.looking.insert(token, request);
    }

    /// The reply gets our numbers.
    pub fn looked_at(&mut self, token: u64, reply: &mut Reply) {
        if let Some(mut request) = self.looking.remove(&token)
            && let Err(error) = self.files.learn(&mut request, reply)
        {
            *reply = Reply::Error(error);
        }
    }
}
