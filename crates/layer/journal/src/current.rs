// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which request the calling thread works on, for the handler of a crash.

use outrigger_core::{BoxFuture, Reply};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};

/// No request: the kernel numbers requests from 1.
const NONE: u64 = 0;

thread_local! {
    // Constant and without a destructor, so that reading it is an access to memory and nothing else. Atomic, so that
    // a signal handler on this thread sees one value or the other.
    static CURRENT: AtomicU64 = const { AtomicU64::new(NONE) };
}

/// The id of the request the calling thread is working on below the journal; `None` when it works on none, or on behalf
/// of a driver that does its work on threads of its own.
///
/// May be called from a signal handler (signal-safety(7)): it neither locks nor allocates.
pub fn current() -> Option<u64> {
    let id = CURRENT.with(|current| current.load(Ordering::Relaxed));
    (id != NONE).then_some(id)
}

/// Marks the calling thread as working on a request until dropped.
struct Working {
    before: u64,
}

impl Working {
    fn on(id: u64) -> Self {
        Working { before: replace(id) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        replace(self.before);
    }
}

fn replace(id: u64) -> u64 {
    // Only this thread stores here, so two accesses are as good as one exchange, and cheaper.
    CURRENT.with(|current| {
        let before = current.load(Ordering::Relaxed);
        current.store(id, Ordering::Relaxed);
        before
    })
}

/// Runs `body` as work on the request `id`.
#[inline]
pub(crate) fn within<T>(id: u64, body: impl FnOnce() -> T) -> T {
    let _working = Working::on(id);
    body()
}

/// Awaits `future`; whichever thread polls it works on the request `id` meanwhile.
pub(crate) async fn during(id: u64, mut future: BoxFuture<'_, Reply>) -> Reply {
    poll_fn(|context| within(id, || future.as_mut().poll(context))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn is_what_the_innermost_call_works_on_also_after_a_panic() {
        assert_eq!(current(), None);
        within(1, || {
            assert_eq!(current(), Some(1));
            let panic = catch_unwind(|| within(2, || panic!("while working on {:?}", current())));
            assert_eq!(panic.unwrap_err().downcast_ref::<String>().unwrap(), "while working on Some(2)");
            assert_eq!(current(), Some(1));
        });
        assert_eq!(current(), None);
    }
}
