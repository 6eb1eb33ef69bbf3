// SPDX-License-Identifier: GPL-2.0-only
//! A machine on which the same requests always lead to the same image (`fixed=SECONDS,SEED`).
//!
//! Its time of day is the same for every request, its random numbers follow from a seed, and time passes by a microsecond whenever the
//! kernel code looks at the clock, and where everything waits: then the next timer is due at once. Requests are done one after the other, however many have arrived. What the kernel code does is
//! a function of the requests and of the image then. It holds for disks that answer at once (`io=` other than `uring`).

use crate::host;
use crate::kernel::Kernel;
use crate::ring;
use crate::task::Task;
use outrigger_core::Result;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// What the monotonic clock says at the start, in nanoseconds: not 0, which means "never" here and there.
const START: u64 = SECOND;

/// How much time passes between two looks at the clock, in nanoseconds: code that turns until the clock has moved comes to an end.
const LOOK: u64 = 1000;

static FIXED: OnceLock<Fixed> = OnceLock::new();

/// What the machine has instead of the host's clocks and random numbers.
pub struct Fixed {
    /// The time of day, in seconds since 1970.
    seconds: u64,
    /// What the monotonic clock says, in nanoseconds.
    monotonic: AtomicU64,
    /// The state of the random numbers.
    state: AtomicU64,
}

/// Makes the machine one of this kind; before the kernel starts.
pub fn fix(seconds: u64, seed: u64) {
    let (monotonic, state) = (AtomicU64::new(START), AtomicU64::new(seed));
    // A second call cannot happen: the command line is read once.
    drop(FIXED.set(Fixed { seconds, monotonic, state }));
}

/// What the machine has, if it is one of this kind.
pub fn get() -> Option<&'static Fixed> {
    FIXED.get()
}

/// Lets the time pass for which `kernel` has nothing to do; `wait` is what [`Kernel::run`] said.
pub fn pass(wait: Option<Duration>) {
    match (get(), wait) {
        (None, wait) => ring::wait(wait.unwrap_or(Duration::from_millis(1))),
        (Some(fixed), Some(wait)) => fixed.advance(wait.as_nanos() as u64),
        (Some(_), None) => host::stop("a task waits for what never comes"),
    }
}

/// To be called inside of `task` before it changes anything: sets the clock of such a machine.
///
/// # Errors
/// When the kernel refuses.
pub fn set_clock(task: &Task) -> Result<()> {
    match get() {
        Some(fixed) => task.set_clock(&libc::timespec { tv_sec: fixed.seconds as i64, tv_nsec: 0 }),
        None => Ok(()),
    }
}

/// Runs `kernel` until `is_done`.
pub fn run_until(kernel: &Kernel, is_done: impl Fn() -> bool) {
    loop {
        let wait = kernel.run();
        if is_done() {
            return;
        }
        pass(wait);
    }
}

impl Fixed {
    /// What the monotonic clock says, in nanoseconds.
    pub fn monotonic(&self) -> u64 {
        self.monotonic.fetch_add(LOOK, Ordering::Relaxed)
    }

    /// The time of day, in nanoseconds since 1970.
    pub fn wall(&self) -> u64 {
        self.seconds.saturating_mul(SECOND)
    }

    /// So many nanoseconds pass.
    pub fn advance(&self, nanoseconds: u64) {
        self.monotonic.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Fills `to` with the next random numbers (SplitMix64): no secret depends on them.
    pub fn random(&self, to: &mut [u8]) {
        for piece in to.chunks_mut(8) {
            let state = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            piece.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..piece.len()]);
        }
    }
}
