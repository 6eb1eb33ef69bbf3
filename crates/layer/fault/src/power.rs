// SPDX-License-Identifier: MIT OR Apache-2.0
//! The power of the disk that is played, and the requests that a power cut has to wait for.

use outrigger_core::gate::Gate;
use outrigger_core::lock;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};

/// Whether there is power.
#[derive(Default)]
pub(crate) struct Power {
    supply: Mutex<Supply>,
    gate: Gate,
}

#[derive(Default)]
struct Supply {
    off: bool,
    /// A cut still undoes. New rules may have put the power on again meanwhile, but no request may come between.
    cutting: bool,
    /// How many requests are below that the next cut waits for.
    below: usize,
}

impl Supply {
    fn is_off(&self) -> bool {
        self.off || self.cutting
    }
}

impl Power {
    fn lock(&self) -> MutexGuard<'_, Supply> {
        lock(&self.supply)
    }

    /// Changes the state and wakes the requests that wait for another one.
    fn change(&self, change: impl FnOnce(&mut Supply)) {
        change(&mut self.lock());
        self.gate.open();
    }

    fn until(&self, state: fn(&Supply) -> bool) -> impl Future<Output = ()> + Send + '_ {
        self.gate.wait(move || state(&self.lock()).then_some(()))
    }

    pub(crate) fn is_off(&self) -> bool {
        self.lock().is_off()
    }

    pub(crate) fn switch(&self, on: bool) {
        // No task waits for that, so none is woken.
        self.lock().off = !on;
    }

    /// Lets a request through, unless there is no power. A cut waits for it, if it is `awaited`, until the result is dropped.
    pub(crate) fn enter(&self, awaited: bool) -> Option<Below<'_>> {
        let mut supply = self.lock();
        if supply.is_off() {
            return None;
        }
        supply.below += usize::from(awaited);
        Some(Below { power: self, awaited })
    }

    /// The power fails; none when there was none.
    pub(crate) fn fail(self: &Arc<Self>) -> Option<Cut> {
        let mut supply = self.lock();
        if supply.is_off() {
            return None;
        }
        (supply.off, supply.cutting) = (true, true);
        Some(Cut(Arc::clone(self)))
    }

    /// Waits for the end of a cut.
    pub(crate) async fn settled(&self) {
        self.until(|supply| !supply.cutting).await;
    }
}

/// A request that was let through.
pub(crate) struct Below<'a> {
    power: &'a Power,
    awaited: bool,
}

impl Drop for Below<'_> {
    fn drop(&mut self) {
        if self.awaited {
            self.power.change(|supply| supply.below -= 1);
        }
    }
}

/// A cut that still undoes; it ends when this is dropped.
pub(crate) struct Cut(Arc<Power>);

impl Cut {
    /// Waits for the requests that were let through before it.
    pub(crate) async fn alone(&self) {
        self.0.until(|supply| supply.below == 0).await;
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.change(|supply| supply.cutting = false);
    }
}
