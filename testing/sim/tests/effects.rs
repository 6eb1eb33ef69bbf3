// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operation table states about effects agrees with the rest of each row.

use outrigger_core::{Class, Effect, OpCode, Request};
use outrigger_sim::sample;

/// Requests of each operation.
const ROUNDS: usize = 300;

fn samples(op: OpCode) -> Vec<Request> {
    let mut random = sample::Random::with_seed(u64::from(op as u16));
    (0..ROUNDS).map(|_| sample::request(op, &mut random)).collect()
}

#[test]
fn only_a_change_has_the_effect_of_one() {
    for &op in OpCode::ALL {
        let changes = samples(op).iter().filter(|request| request.class() == Class::Change).count();
        assert_eq!(changes > 0, op.class() == Class::Change, "{op:?}");
        let expected = if op == OpCode::Open { 1..ROUNDS } else { ROUNDS..ROUNDS + 1 };
        assert!(op.class() == Class::Query || expected.contains(&changes), "{op:?}: {changes} of {ROUNDS}");
    }
}

#[test]
fn what_a_reply_hands_out_is_an_effect() {
    for &op in OpCode::ALL {
        let references = matches!(op.reply(), "Entry" | "Entries" | "DirentsPlus" | "Created");
        let opens = matches!(op.reply(), "Opened" | "Created");
        for request in samples(op) {
            let has = |wanted: fn(Effect<'_>) -> bool| request.effects().into_iter().any(wanted);
            assert_eq!(has(|effect| effect == Effect::References), references, "{op:?}");
            assert_eq!(has(|effect| matches!(effect, Effect::Opens { .. })), opens, "{op:?}");
            assert_eq!(request.hands_out(), references || opens, "{op:?}");
        }
    }
}

#[test]
fn every_name_of_a_change_is_part_of_an_effect() {
    for &op in OpCode::ALL.iter().filter(|op| op.class() == Class::Change) {
        let names = op.fields().iter().filter(|(_, of_type)| *of_type == "Name").count();
        for request in samples(op) {
            assert_eq!(request.effects().into_iter().flat_map(Effect::names).count(), names, "{op:?}");
        }
    }
}
