// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of what is done to an open file: writes, and attributes that are set between them.
//!
//! Where a server keeps the order of what it is sent about one file on one connection, nothing waits for answers, but what was lost
//! with its connection and is sent once more on the next one: what is asked for after it must not be sent there before.

use crate::gate::Gate;
use crate::mutex::lock;
use std::sync::{Arc, Mutex};

/// What is done by a handle and has not been answered, in the order in which it came.
#[derive(Debug, Default)]
pub struct Order {
    turns: Mutex<Turns>,
    moved: Gate,
}

#[derive(Debug, Default)]
struct Turns {
    last: u64,
    /// Each with the connection on which it is on its way, 0 before it is.
    taken: Vec<(u64, Kind, u64)>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It may be done before or after other writes.
    Write,
    /// It is done after all before it, and before all after it.
    Set,
}

/// The place of something in the order, until it has been answered.
#[derive(Debug)]
pub struct Turn {
    order: Arc<Order>,
    number: u64,
    kind: Kind,
}

impl Order {
    /// The next place.
    pub fn turn(self: &Arc<Self>, kind: Kind) -> Turn {
        let mut turns = lock(&self.turns);
        turns.last += 1;
        let number = turns.last;
        turns.taken.push((number, kind, 0));
        Turn { order: Arc::clone(self), number, kind }
    }
}

impl Turn {
    /// Waits until everything that has to be done before is on its way on the connection with the number `epoch`, or has been
    /// answered.
    pub async fn comes(&self, epoch: u64) {
        self.wait(Some(epoch)).await;
    }

    /// Waits until everything that has to be done before has been answered.
    pub async fn is_first(&self) {
        self.wait(None).await;
    }

    async fn wait(&self, epoch: Option<u64>) {
        self.order.moved.wait(|| self.all_before(epoch).then_some(())).await;
    }

    /// Whether nothing has to be done before.
    pub fn is_calm(&self) -> bool {
        self.all_before(None)
    }

    /// Whether all that has to be done before has been answered, or is on its way on this connection.
    fn all_before(&self, epoch: Option<u64>) -> bool {
        lock(&self.order.turns).taken.iter().all(|&(number, kind, on)| {
            number >= self.number || (kind, self.kind) == (Kind::Write, Kind::Write) || Some(on) == epoch
        })
    }

    /// It is on its way.
    pub fn sent(&self, epoch: u64) {
        let mut turns = lock(&self.order.turns);
        turns.taken.iter_mut().filter(|(number, ..)| *number == self.number).for_each(|(.., on)| *on = epoch);
        drop(turns);
        self.order.moved.open();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.order.turns).taken.retain(|(number, ..)| *number != self.number);
        self.order.moved.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_pass_each_other_and_nothing_passes_a_setting() {
        let order = Arc::<Order>::default();
        let [one, two] = [Kind::Write; 2].map(|kind| order.turn(kind));
        let (set, after) = (order.turn(Kind::Set), order.turn(Kind::Write));
        assert!(one.is_calm() && two.is_calm() && !set.is_calm() && !after.is_calm());
        drop(one);
        assert!(!set.is_calm());
        two.sent(7);
        assert!(set.all_before(Some(7)) && !set.all_before(Some(8)));
        drop(two);
        assert!(set.is_calm() && !after.is_calm());
        drop(set);
        assert!(after.is_calm());
    }
}
