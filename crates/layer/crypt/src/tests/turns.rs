// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has a turn, and when.

use crate::state::Turns;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

macro_rules! assert_waits {
    ($future:expr) => {
        assert!($future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
    };
}

macro_rules! take {
    ($future:expr) => {
        match $future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => turn,
            Poll::Pending => panic!("it has to wait"),
        }
    };
}

#[test]
fn who_waits_to_change_has_a_turn_before_those_who_come_later() {
    let turns = Turns::default();
    let (mut first, mut second) = (pin!(turns.look()), pin!(turns.look()));
    let (first, second) = (take!(first), take!(second));
    let mut writer = pin!(turns.change());
    assert_waits!(writer);
    let (mut third, mut fourth) = (pin!(turns.look()), pin!(turns.look()));
    assert_waits!(third);
    assert_waits!(fourth);
    drop(first);
    assert_waits!(writer);
    drop(second);
    let mut last = pin!(turns.change());
    assert_waits!(last);
    assert_waits!(third);
    let changes = take!(writer);
    assert_waits!(third);
    drop(changes);
    // They came before the other one that changes.
    let both = (take!(third), take!(fourth));
    assert_waits!(last);
    drop(both);
    drop(take!(last));
}

#[test]
fn who_does_not_wait_any_more_keeps_nobody_waiting() {
    let turns = Turns::default();
    let mut first = pin!(turns.look());
    let first = take!(first);
    {
        let mut writer = pin!(turns.change());
        assert_waits!(writer);
    }
    let mut second = pin!(turns.look());
    drop((first, take!(second)));
}
