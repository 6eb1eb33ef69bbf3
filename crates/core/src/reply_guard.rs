// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exactly one reply per request, as a type.

use crate::error::Errno;
use crate::reply::Reply;

/// The duty to reply once. Dropping it unpaid replies `EIO` and logs an error, so that no program waits for ever.
#[must_use = "a request must be answered"]
pub struct ReplyGuard<F: FnOnce(Reply)> {
    id: u64,
    deliver: Option<F>,
}

impl<F: FnOnce(Reply)> ReplyGuard<F> {
    /// Takes on the duty to call `deliver` once for request `id`.
    pub fn new(id: u64, deliver: F) -> Self {
        ReplyGuard { id, deliver: Some(deliver) }
    }

    /// Replies.
    pub fn send(mut self, reply: Reply) {
        if let Some(deliver) = self.deliver.take() {
            deliver(reply);
        }
    }
}

impl<F: FnOnce(Reply)> Drop for ReplyGuard<F> {
    fn drop(&mut self) {
        if let Some(deliver) = self.deliver.take() {
            tracing::error!(request = self.id, "the request was dropped without a reply; answering EIO");
            deliver(Reply::Error(Errno::EIO.because("the request was dropped without a reply")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn one_reply_whether_paid_or_dropped() {
        let replies = RefCell::new(Vec::new());
        ReplyGuard::new(1, |reply| replies.borrow_mut().push(reply)).send(Reply::Done(()));
        drop(ReplyGuard::new(2, |reply| replies.borrow_mut().push(reply)));
        let replies = replies.into_inner();
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[0], Reply::Done(()));
        assert!(matches!(&replies[1], Reply::Error(error) if error.errno == Errno::EIO));
    }
}
