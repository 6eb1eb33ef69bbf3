// SPDX-License-Identifier: MIT OR Apache-2.0
//! One at a time, for futures.

use outrigger_core::lock;
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

/// Lets one in at a time.
#[derive(Default)]
pub(crate) struct AsyncMutex(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    taken: bool,
    waiting: Vec<Waker>,
}

/// Holds the mutex until it is dropped.
pub(crate) struct Pass<'a>(&'a AsyncMutex);

impl AsyncMutex {
    /// Waits until no other holds it.
    pub(crate) async fn enter(&self) -> Pass<'_> {
        poll_fn(|context| {
            let mut inner = lock(&self.0);
            if inner.taken {
                inner.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            inner.taken = true;
            Poll::Ready(Pass(self))
        })
        .await
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.0.0);
        inner.taken = false;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_iter().for_each(Waker::wake);
    }
}
