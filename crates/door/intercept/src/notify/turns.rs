// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which thread waits for the next call. It is one: the kernel would wake all that wait for each call, which costs more than most answers.
//!
//! The thread that leads answers what is answered at once, and goes on. Before it asks a tree, which may take long, it has another thread
//! lead, and waits to be needed again when it has answered.

use super::mirror::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// The most threads that answer calls: with more calls than that at the same time, these wait for each other.
const THREADS_MAX: usize = 256;

/// The threads.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    leader: Option<ThreadId>,
    /// Threads that have nothing to do, and how many of them were called.
    resting: usize,
    called: usize,
    threads: usize,
}

impl Turns {
    /// This thread leads.
    pub(crate) fn lead(&self) {
        lock(&self.state).leader = Some(thread::current().id());
    }

    /// Returns when this thread leads: at once, unless it had another one do so.
    pub(crate) fn wait(&self) {
        let (me, mut state) = (thread::current().id(), lock(&self.state));
        if state.leader == Some(me) {
            return;
        }
        state.resting += 1;
        while state.called == 0 {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.called -= 1;
        state.leader = Some(me);
    }

    /// Has another thread lead, if this one does; `start` starts one. Where none can be started, calls wait for each other.
    pub(crate) fn pass_on(&self, start: impl FnOnce() -> bool) {
        let mut state = lock(&self.state);
        if state.leader != Some(thread::current().id()) {
            return;
        }
        if state.resting > 0 {
            state.resting -= 1;
            state.called += 1;
            state.leader = None;
            self.called.notify_one();
        } else if state.threads < THREADS_MAX && start() {
            state.threads += 1;
            state.leader = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn one_thread_leads_at_a_time_and_those_that_rest_are_called_first() {
        let (turns, (sender, led)) = (Arc::new(Turns::default()), mpsc::channel());
        turns.lead();
        let other = Arc::clone(&turns);
        let mut thread = None;
        turns.pass_on(|| {
            thread = Some(thread::spawn(move || {
                other.lead();
                sender.send(()).unwrap();
                other.pass_on(|| false);
                // The first thread rests soon.
                while lock(&other.state).leader == Some(thread::current().id()) {
                    other.pass_on(|| false);
                    thread::yield_now();
                }
            }));
            true
        });
        turns.pass_on(|| panic!("it does not lead any more"));
        led.recv().unwrap();
        turns.wait();
        thread.unwrap().join().unwrap();
        turns.wait();
        let state = lock(&turns.state);
        assert_eq!((state.leader, state.resting, state.called), (Some(thread::current().id()), 0, 0));
    }
}
