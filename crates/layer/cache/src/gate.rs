// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for something that several wait for.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Wakes whoever waits for a state that it guards to change.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Vec<Waker>>);

impl Gate {
    /// Called after each change of the state.
    pub(crate) fn open(&self) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `state` has something to tell. It is asked again whenever the gate opens.
    pub(crate) fn wait<'a, T>(
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
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Runtime;
    use outrigger_sim::Sim;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_who_wait_are_woken_and_ask_again() {
        let sim = Sim::new(1);
        let shared = Arc::new((Gate::default(), AtomicU32::new(0)));
        let done = Arc::new(AtomicU32::new(0));
        for wanted in 1..=3 {
            let (shared, done) = (Arc::clone(&shared), Arc::clone(&done));
            sim.spawn(Box::pin(async move {
                let (gate, state) = &*shared;
                gate.wait(|| (state.load(Ordering::SeqCst) >= wanted).then_some(())).await;
                done.fetch_add(1, Ordering::SeqCst);
            }));
        }
        for (value, finished) in [(0, 0), (2, 2), (3, 3)] {
            shared.1.store(value, Ordering::SeqCst);
            shared.0.open();
            assert_eq!(sim.run() as u32, 3 - finished);
            assert_eq!(done.load(Ordering::SeqCst), finished);
        }
    }
}
