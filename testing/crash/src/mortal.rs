// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer below the journal at which processes die.

use outrigger_core::{Answer, Cx, Layer, Place, Request, Service, lock};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// When a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// About to hand the driver its n-th request from now, counted from 0.
    Before(usize),
    /// When the driver has done it.
    After(usize),
    /// When its reply to the next request was noted, before it is delivered.
    Undelivered,
}

impl Death {
    /// Every death within the first `steps` requests to the driver.
    pub fn all(steps: usize) -> Vec<Death> {
        let within = (0..steps).flat_map(|step| [Death::Before(step), Death::After(step)]);
        within.chain([Death::Undelivered]).collect()
    }
}

/// The layer. Clones share everything.
#[derive(Clone, Default)]
pub(crate) struct Mortal(Arc<Inner>);

#[derive(Default)]
struct Inner {
    plan: Mutex<Option<Death>>,
    seen: AtomicUsize,
    dead: AtomicBool,
}

impl Mortal {
    /// Dies as `death` says, counted from now.
    pub(crate) fn plan(&self, death: Option<Death>) {
        *lock(&self.0.plan) = death;
        self.0.seen.store(0, Ordering::SeqCst);
    }

    /// Whether it has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }

    /// Marks the process as dead, and never returns.
    async fn die<T>(&self) -> T {
        self.0.dead.store(true, Ordering::SeqCst);
        pending().await
    }
}

impl Layer for Mortal {
    fn place(&self) -> Place {
        Place::anywhere("mortal")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let plan = *lock(&self.0.plan);
        let number = self.0.seen.fetch_add(1, Ordering::SeqCst);
        match plan {
            Some(Death::Before(step)) if step == number => Answer::later(self.die()),
            Some(Death::After(step)) if step == number => Answer::later(async move {
                next.call(cx, request).await;
                self.die().await
            }),
            _ => next.call(cx, request),
        }
    }
}
