// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which thread waits for the next call. It is one: the kernel would wake all that wait for each call, which costs more than most answers.
//!
//! The thread that leads answers calls one after the other. Where a tree that it asks takes long, a thread that watches over it has
//! another one lead, and the first one waits to be needed again when it has answered.

use outrigger_core::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The most threads that answer calls: with more calls than that at the same time, these wait for each other.
pub(crate) const THREADS_MAX: usize = 256;
/// How long a tree may take until another thread leads.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long it is watched whether trees are asked, after one was.
const WATCH: Duration = Duration::from_millis(100);

/// The threads.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    called: Condvar,
    asked: Condvar,
}

#[derive(Default)]
struct State {
    leader: Option<ThreadId>,
    /// Since when the leader asks a tree.
    asking: Option<Instant>,
    /// Nobody watches until a tree is asked.
    is_unwatched: bool,
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

    /// Returns when this thread leads: at once, unless another one was made to. It asks no tree.
    pub(crate) fn wait(&self) {
        let (me, mut state) = (thread::current().id(), lock(&self.state));
        if state.leader == Some(me) {
            state.asking = None;
            return;
        }
        state.resting += 1;
        while state.called == 0 {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.called -= 1;
        state.leader = Some(me);
    }

    /// This thread is about to ask a tree.
    pub(crate) fn asks(&self) {
        let mut state = lock(&self.state);
        if state.leader == Some(thread::current().id()) && state.asking.is_none() {
            state.asking = Some(Instant::now());
            if state.is_unwatched {
                self.asked.notify_one();
            }
        }
    }

    /// Watches over the leader for as long as this process lives; `start` starts a thread that leads. Where none can be started, calls wait
    /// for each other.
    pub(crate) fn watch(&self, start: impl Fn() -> bool) {
        let (mut state, mut last) = (lock(&self.state), Instant::now());
        loop {
            match state.asking {
                Some(since) if since.elapsed() >= PATIENCE => {
                    self.relieve(&mut state, &start);
                    last = Instant::now();
                }
                Some(since) => last = since,
                None if last.elapsed() >= WATCH => {
                    state.is_unwatched = true;
                    state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.is_unwatched = false;
                    last = Instant::now();
                }
                None => {}
            }
            let waited = self.asked.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has another thread lead.
    fn relieve(&self, state: &mut State, start: impl Fn() -> bool) {
        if state.resting > 0 {
            state.resting -= 1;
            state.called += 1;
            self.called.notify_one();
        } else if state.threads < THREADS_MAX && start() {
            state.threads += 1;
        } else {
            return;
        }
        (state.leader, state.asking) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn a_leader_that_asks_long_is_relieved_and_called_again() {
        let (turns, (sender, led)) = (Arc::new(Turns::default()), mpsc::channel());
        turns.lead();
        let watched = Arc::clone(&turns);
        thread::spawn(move || {
            let turns = Arc::clone(&watched);
            watched.watch(move || {
                let (turns, sender) = (Arc::clone(&turns), sender.clone());
                thread::spawn(move || {
                    turns.lead();
                    sender.send(()).unwrap();
                    // This one asks for ever.
                    turns.asks();
                });
                true
            });
        });
        turns.wait();
        turns.asks();
        led.recv().unwrap();
        turns.wait();
        assert_eq!(lock(&turns.state).leader, Some(thread::current().id()));
    }
}
