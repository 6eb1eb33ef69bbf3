// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operation table states about effects agrees with the rest of each row.

use outrigger_core::ops::{FSync, FSyncDir, SyncFs};
use outrigger_core::{Class, Effect, Handle, Node, OpCode, Request, Synced};
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
            assert_eq!(has(|effect| matches!(effect, Effect::Opens(_))), opens, "{op:?}");
            assert_eq!(request.hands_out(), references || opens, "{op:?}");
        }
    }
}

#[test]
fn an_operation_gives_back_whatever_its_arguments_are() {
    for &op in OpCode::ALL {
        for request in samples(op) {
            assert_eq!(request.ends().is_some(), op.ends(), "{op:?}");
            assert_eq!(request.returns().is_some(), op.returns(), "{op:?}");
            assert_eq!(request.gives_back(), op.ends() || op.returns(), "{op:?}");
        }
    }
    let those = |is: fn(OpCode) -> bool| OpCode::ALL.iter().copied().filter(|&op| is(op)).collect::<Vec<_>>();
    assert_eq!(those(OpCode::ends), [OpCode::Release, OpCode::ReleaseDir]);
    assert_eq!(those(OpCode::returns), [OpCode::Forget]);
}

#[test]
fn what_puts_something_on_stable_storage_says_what() {
    let file = FSync { node: Node(2), handle: Handle(3), data_only: true };
    let directory = FSyncDir { node: Node(4), handle: Handle(3), data_only: false };
    let tree = SyncFs { node: Node(2) };
    let synced = [Request::from(file), directory.into(), tree.into()].map(|request| request.syncs());
    assert_eq!(synced, [Synced::File(Node(2)), Synced::Directory(Node(4)), Synced::Tree].map(Some));
    for (synced, two, four) in [
        (Synced::File(Node(2)), true, false),
        (Synced::Directory(Node(4)), false, false),
        (Synced::Tree, true, true),
    ] {
        assert_eq!(
            (synced.has_content_of(Node(2)), synced.has_content_of(Node(4))),
            (two, four),
            "{synced:?}"
        );
    }
    let others =
        OpCode::ALL.iter().filter(|op| !matches!(op, OpCode::FSync | OpCode::FSyncDir | OpCode::SyncFs));
    for request in others.flat_map(|&op| samples(op)) {
        assert_eq!(request.syncs(), None, "{request:?}");
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

#[test]
fn what_has_content_and_what_only_stores() {
    let those = |is: fn(OpCode) -> bool| OpCode::ALL.iter().copied().filter(|&op| is(op)).collect::<Vec<_>>();
    assert_eq!(those(OpCode::has_content), [OpCode::Read, OpCode::Write]);
    assert_eq!(those(OpCode::brings_content), [OpCode::Write]);
    let stores =
        [OpCode::Write, OpCode::Flush, OpCode::FSync, OpCode::Fallocate, OpCode::FSyncDir, OpCode::SyncFs];
    assert_eq!(those(OpCode::only_stores), stores);
}

#[test]
fn what_changes_content_or_depends_on_it() {
    let some = |op, is: fn(&Request) -> bool| samples(op).iter().filter(|request| is(request)).count();
    let those = |is: fn(&Request) -> bool, count: usize| {
        OpCode::ALL.iter().copied().filter(|&op| some(op, is) == count).collect::<Vec<_>>()
    };
    assert_eq!(
        those(Request::depends_on_content, 0),
        [OpCode::OpenDir, OpCode::Forget, OpCode::Locate],
        "all others may be about content"
    );
    let emptying = some(OpCode::Open, Request::depends_on_content);
    assert!((1..ROUNDS).contains(&emptying), "an open that empties nothing changes nothing");
    let change = [OpCode::Write, OpCode::Fallocate, OpCode::CopyRange, OpCode::Ioctl];
    assert_eq!(those(Request::changes_content, ROUNDS), change);
    for op in [OpCode::SetAttr, OpCode::Open] {
        assert!((1..ROUNDS).contains(&some(op, Request::changes_content)), "{op:?}");
    }
}

#[test]
fn content_is_read_and_written_by_permission() {
    let uses = |request: &Request| {
        let needs =
            |effect| matches!(effect, Effect::Needs { .. } | Effect::Opens(_) | Effect::Anything { .. });
        request.effects().into_iter().any(needs)
    };
    for &op in OpCode::ALL {
        for request in samples(op) {
            let writes = request.effects().into_iter().any(|effect| matches!(effect, Effect::Writes { .. }));
            let has_content = matches!(op.reply(), "Data" | "Dirents" | "DirentsPlus" | "Offset" | "Entries");
            assert!(uses(&request) || !(writes || has_content), "{request:?}");
        }
    }
}
