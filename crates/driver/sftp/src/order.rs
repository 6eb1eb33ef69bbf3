// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of what is done to an open file: writes, and attributes that are set between them.
//!
//! A server keeps the order of what it is sent about one file on one connection. So nothing waits for answers, but what was lost
//! with its connection and is sent once more on the next one: what is asked for after it must not be sent there before.

use outrigger_core::lock;
use std::sync::Mutex;
use tokio::sync::Notify;

/// What is done by a handle and has not been answered, in the order in which it came.
#[derive(Default)]
pub(crate) struct Order {
    turns: Mutex<Turns>,
    moved: Notify,
}

#[derive(Default)]
struct Turns {
    last: u64,
    /// Each with the connection on which it is on its way, 0 before it is.
    taken: Vec<(u64, Kind, u64)>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may be done before or after other writes.
    Write,
    Set,
}

/// The place of something in the order, until it has been answered.
pub(crate) struct Turn<'a> {
    order: &'a Order,
    number: u64,
    kind: Kind,
}

impl Order {
    /// The next place.
    pub(crate) fn turn(&self, kind: Kind) -> Turn<'_> {
        let mut turns = lock(&self.turns);
        turns.last += 1;
        let number = turns.last;
        turns.taken.push((number, kind, 0));
        Turn { order: self, number, kind }
    }
}

impl Turn<'_> {
    /// Waits until everything that has to be done before is on its way on the connection with the number `epoch`, or has been
    /// answered.
    pub(crate) async fn comes(&self, epoch: u64) {
        self.wait(|on| on == epoch).await;
    }

    /// Waits until everything that has to be done before has been answered.
    pub(crate) async fn is_first(&self) {
        self.wait(|_| false).await;
    }

    async fn wait(&self, is_fine: impl Fn(u64) -> bool) {
        loop {
            let moved = self.order.moved.notified();
            if self.all_before(&is_fine) {
                return;
            }
            moved.await;
        }
    }

    /// Whether nothing has to be done before.
    pub(crate) fn is_calm(&self) -> bool {
        self.all_before(|_| false)
    }

    /// Whether all that has to be done before is on connections of which `is_fine` says so.
    fn all_before(&self, is_fine: impl Fn(u64) -> bool) -> bool {
        lock(&self.order.turns).taken.iter().all(|&(number, kind, on)| {
            number >= self.number || (kind, self.kind) == (Kind::Write, Kind::Write) || is_fine(on)
        })
    }

    /// It is on its way.
    pub(crate) fn sent(&self, epoch: u64) {
        let mut turns = lock(&self.order.turns);
        turns.taken.iter_mut().filter(|(number, ..)| *number == self.number).for_each(|(.., on)| *on = epoch);
        drop(turns);
        self.order.moved.notify_waiters();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.order.turns).taken.retain(|(number, ..)| *number != self.number);
        self.order.moved.notify_waiters();
    }
}
