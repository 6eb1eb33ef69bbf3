// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a state that several tasks wait for.

use crate::mutex::lock;
use std::future::{Future, poll_fn};
use std::sync::Mutex;
use std::task::{Poll, Waker};

/// Wakes the tasks that wait for a change of some state, which its owner keeps.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Vec<Waker>>);

impl Gate {
    /// Called after each change of the state.
    pub fn open(&self) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `state` has something to tell. It is asked again whenever the gate opens.
    pub fn wait<'a, T>(
        &'a self,
        mut state: impl FnMut() -> Option<T> + Send + 'a,
    ) -> impl Future<Output = T> + Send + 'a {
        poll_fn(move |context| {
            if let Some(value) = state() {
                return Poll::Ready(value);
            }
            self.enrol(context.waker());
            // It may have changed before the waker was there to be woken.
            match state() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending,
            }
        })
    }

    fn enrol(&self, waker: &Waker) {
        let mut wakers = lock(&self.0);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}
