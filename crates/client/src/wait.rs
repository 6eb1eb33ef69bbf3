// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a future on a plain thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for all waits of a thread, so that `Waker::will_wake` recognises it.
    static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Waits on this thread until `future` is ready. Must not be called from a thread that runs tasks.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            thread::park();
        }
    })
}
