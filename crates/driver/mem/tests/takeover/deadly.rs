// SPDX-License-Identifier: MIT OR Apache-2.0
//! Death at any store: a keep whose regions stop the thread that uses them.

use outrigger_core::{HeapKeep, Keep, Region, Result, lock};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex};

/// What a thread that will be stopped and the one that waits for this know of each other.
#[derive(Default)]
pub struct Life {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many words may still be used; `None` for any number.
    left: Option<u64>,
    used: u64,
    /// The thread does nothing any more, or has nothing left to do.
    over: bool,
    /// Nobody needs to see the stopped thread's state as it is.
    buried: bool,
}

impl Life {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut lock(&self.state));
        self.changed.notify_all();
        result
    }

    fn wait_until(&self, condition: impl Fn(&State) -> bool) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |state| !condition(state)));
    }

    /// From now on so many words may be used.
    pub fn set_left(&self, words: u64) {
        self.with(|state| (state.left, state.used) = (Some(words), 0));
    }

    /// How many words were used since [`Life::set_left`].
    pub fn used(&self) -> u64 {
        self.with(|state| state.used)
    }

    /// The thread has done all it had to do.
    pub fn end(&self) {
        self.with(|state| state.over = true);
    }

    /// Waits until the thread is stopped or done.
    pub fn wait(&self) {
        self.wait_until(|state| state.over);
    }

    /// Waits until nobody looks any more.
    pub fn wait_for_burial(&self) {
        self.wait_until(|state| state.buried);
    }

    fn use_word(&self) {
        let lives = self.with(|state| {
            state.used += 1;
            state.over |= state.left.is_some_and(|left| state.used > left);
            !state.over
        });
        if !lives {
            self.wait_for_burial();
            resume_unwind(Box::new("killed"));
        }
    }
}

/// Lets a stopped thread end when it is dropped.
pub struct Burial<'a>(pub &'a Life);

impl Drop for Burial<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.buried = true);
    }
}

/// A keep for a thread that will be stopped; what it holds is in `keep`.
pub struct Deadly {
    pub keep: Arc<HeapKeep>,
    pub life: Arc<Life>,
    /// The last descriptor held.
    pub file: Mutex<Option<OwnedFd>>,
}

struct DeadlyRegion(Arc<dyn Region>, Arc<Life>);

impl Region for DeadlyRegion {
    fn words(&self) -> usize {
        self.0.words()
    }
    fn word(&self, index: usize) -> &AtomicU64 {
        self.1.use_word();
        self.0.word(index)
    }
}

impl Keep for Deadly {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        Ok(Arc::new(DeadlyRegion(self.keep.region(name, words)?, Arc::clone(&self.life))))
    }
    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        *lock(&self.file) = fd.try_clone_to_owned().ok();
        self.keep.hold(fd)
    }
    fn let_go(&self, fd: BorrowedFd<'_>) {
        self.keep.let_go(fd);
    }
    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        self.keep.adopt(number)
    }
}
