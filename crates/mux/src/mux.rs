// SPDX-License-Identifier: MIT OR Apache-2.0
//! What callers see of a connection.

use crate::state::{Shared, Then};
use crate::{Error, Frame};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A connection that many can use at once. Clones share it.
#[derive(Clone)]
pub struct Mux(pub(crate) Arc<Shared>);

impl Mux {
    /// Sends a request and waits for the reply, a whole frame.
    ///
    /// Dropping the future takes the request back if it has not been sent; otherwise its reply is dropped when it comes.
    ///
    /// # Errors
    /// Why no reply came.
    pub async fn call(&self, frame: Frame) -> Result<Bytes, Error> {
        let room = self.0.room(&frame).await?;
        let (sender, receiver) = oneshot::channel();
        // The waiting caller may be gone.
        let then = Box::new(move |reply| drop(sender.send(reply)));
        let call = self.0.enqueue(frame, Some(then), room)?;
        let pending = Pending { shared: &self.0, call };
        let reply = receiver.await;
        std::mem::forget(pending);
        reply.unwrap_or_else(|_| Err(self.0.lost(true)))
    }

    /// Sends a request and gives the reply, or why there is none, to `then`: exactly once, whatever happens, perhaps on
    /// another thread and perhaps before this returns. Waits for room only.
    pub async fn call_then(&self, frame: Frame, then: impl FnOnce(Result<Bytes, Error>) + Send + 'static) {
        let then: Then = Box::new(then);
        match self.0.room(&frame).await {
            Ok(room) => self.0.enqueue_or_tell(frame, then, room),
            Err(error) => then(Err(error)),
        }
    }

    /// Sends a request whose reply is dropped. It does not wait for room, so it is for requests whose number is
    /// bounded by other means, such as closing what was opened.
    pub fn send(&self, frame: Frame) {
        // Without a connection there is nothing to close.
        let _ = self.0.enqueue(frame, None, None);
    }

    /// How many bytes one bulk request should move: little enough not to delay small requests after it for long, where
    /// the connection is slow.
    pub fn chunk(&self) -> usize {
        self.0.lock().window.chunk()
    }

    /// Ends the connection at once. Every caller that waits gets [`Error::Lost`] with this reason.
    pub fn close(&self, why: &str) {
        self.0.close(why.into());
    }

    /// Takes no more requests, sends what is queued, tells the other side that nothing follows, and leaves the connection to
    /// end when the other side has answered everything and hung up.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Why the connection ended, if it has.
    pub fn ended(&self) -> Option<Arc<str>> {
        self.0.lock().ended.clone()
    }

    /// Whether requests are taken.
    pub fn is_open(&self) -> bool {
        let state = self.0.lock();
        state.ended.is_none() && !state.finishing
    }

    /// Whether [`Mux::finish`] was called.
    pub fn is_finishing(&self) -> bool {
        self.0.lock().finishing
    }

    /// For how long nothing has come from the other side although something is due.
    pub fn silence(&self) -> Duration {
        self.0.silence()
    }
}

/// A call whose future may be dropped.
struct Pending<'a> {
    shared: &'a Shared,
    call: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.cancel(self.call);
    }
}
