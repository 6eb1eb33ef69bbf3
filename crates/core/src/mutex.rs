// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutexes whose content makes sense whenever they are not held.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a thread has panicked that held it.
///
/// A panic ends the request during which it happens, with `EIO`, and nothing else: the mutexes of this project protect data that is
/// complete between any two of its changes, so poison would only spread one failure to all later requests.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_spoil_what_a_mutex_has() {
        let mutex = Mutex::new(1);
        let panicked = std::panic::catch_unwind(|| {
            *lock(&mutex) = 2;
            let _held = lock(&mutex);
            panic!("on purpose");
        });
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
