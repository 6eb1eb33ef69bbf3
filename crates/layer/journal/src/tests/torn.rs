// SPDX-License-Identifier: MIT OR Apache-2.0
//! Death between any two stores, and regions full of rubbish.

use super::*;
use outrigger_core::survive::Stored;
use outrigger_core::survive::testing::{Life, each_death};
use std::sync::atomic::AtomicU64;

/// A counter as a tree: each setattr adds 1 and answers the sum, while the process is alive.
fn counter(sum: &Arc<AtomicU64>, life: &Arc<Life>) -> Arc<Driver> {
    let (sum, life) = (Arc::clone(sum), Arc::clone(life));
    Driver::new(move |_, request| {
        if life.is_over() {
            return None;
        }
        let add = u64::from(request.op() == OpCode::SetAttr);
        Some(Reply::Count(Count(sum.fetch_add(add, Ordering::Relaxed) + add)))
    })
}

/// Asks a change, a query and another change in one slot, by a process with this life. Returns what it answered.
fn live(life: &Arc<Life>, keep: &Arc<HeapKeep>, sum: &Arc<AtomicU64>, ids: [u64; 3]) -> Vec<Reply> {
    let Ok(journal) = Journal::attach(&life.of(keep), Sim::new(0), None) else { return vec![] };
    let top = Stack::new(counter(sum, life)).push(journal).unwrap().service();
    let mut replies = Vec::new();
    for (id, request) in ids.into_iter().zip([setattr(), getattr(), setattr()]) {
        let cx = Cx { slot: 3, ..Cx::new(id, Credentials::ROOT, "test") };
        let reply = poll_once(top.call(&cx, request).into_future());
        if life.is_over() {
            break;
        }
        replies.extend(reply);
    }
    replies
}

#[test]
fn death_between_any_two_stores_leaves_the_old_or_the_new() {
    let ids = [100, 101, 102];
    let deaths = each_death(|life| {
        let (keep, sum) = (Arc::new(HeapKeep::default()), Arc::new(AtomicU64::new(0)));
        let replies = live(life, &keep, &sum, ids);
        let made = sum.load(Ordering::Relaxed);
        // The kernel asks again what was not answered, one after the other as the slot allows.
        let asked = Driver::new(|_, _| done());
        let successor = Process::start(&*keep, &asked, None);
        for (index, request) in [setattr(), getattr(), setattr()].into_iter().enumerate().skip(replies.len())
        {
            let known = successor.ask(ids[index], 3, request).unwrap();
            let count = (index as u64 + 2) / 2;
            // The answer of the first process, or what the second one found when it asked.
            assert!([Reply::Done(()), Reply::Count(Count(count))].contains(&known), "{life:?}: {known:?}");
            assert!(known == Reply::Done(()) || count <= made, "{life:?}: an answer that was never given");
        }
    });
    assert!(deaths > 40, "only {deaths} places to die");
}

#[test]
fn death_while_taking_over_loses_nothing() {
    let deaths = each_death(|life| {
        let keep = Arc::new(HeapKeep::default());
        let driver = Driver::new(|cx, request| match request {
            Request::SetAttr(_) => Some(Reply::Count(Count(cx.id))),
            _ => None,
        });
        let first = Process::start(&*keep, &driver, None);
        (1..=5).for_each(|id| assert!(first.ask(id, id as u32, setattr()).is_some()));
        assert_eq!(first.ask(6, 6, RmDir { dir: Node(1), name: "a".try_into().unwrap() }), None);
        // The second process dies in the middle of taking over, then of its first answers.
        let (asked, sum) = (driver.asked().len(), Arc::new(AtomicU64::new(0)));
        let replies = live(life, &keep, &sum, [1, 50, 3]);
        assert_eq!(sum.load(Ordering::Relaxed), 0, "{life:?}: what is known is not done again");
        let third = Process::start(&*keep, &driver, None);
        // What was delivered is not asked for again.
        let delivered: &[u64] = &[1, 50, 3][..replies.len()];
        for id in (1..=5).rev().filter(|id| !delivered.contains(id)) {
            assert_eq!(third.ask(id, id as u32 % 3, setattr()), Some(Reply::Count(Count(id))), "{life:?}");
        }
        assert_eq!(driver.asked().len(), asked, "{life:?}: what is known is not asked again");
    });
    assert!(deaths > 500, "only {deaths} places to die");
}

/// Where in the region the entry of slot 0 is: the only one that names the operation.
fn first_slot() -> usize {
    let keep = HeapKeep::default();
    Process::start(&keep, &Driver::new(|_, _| done()), None).ask(u64::MAX, 0, setattr());
    let region = keep.region(REGION, 0).unwrap();
    (0..region.words()).find(|&word| region.word(word).load(Ordering::Relaxed) == u64::MAX).unwrap()
}

#[test]
fn rubbish_is_never_answered_and_never_panics() {
    let mut random = fastrand::Rng::with_seed(5);
    let driver = Driver::new(|_, _| done());
    for round in 0..200 {
        let keep = HeapKeep::default();
        let first = Process::start(&keep, &driver, None);
        for slot in 0..20 {
            first.ask(u64::from(slot) + 1, slot, if slot % 2 == 0 { setattr() } else { getattr() });
        }
        let region = keep.region(REGION, 0).unwrap();
        let mut spoil = |word: usize| {
            let bits = if round % 2 == 0 { random.u64(..) } else { 1 << random.u32(..64) };
            region.word(word).fetch_xor(bits, Ordering::Relaxed);
        };
        // The counters, the handles, and half of the words of the slots.
        (4..200).for_each(&mut spoil);
        let slots = first_slot()..first_slot() + 20 * entry::Words::WORDS;
        slots.step_by(2 - round % 2).for_each(&mut spoil);
        let successor = Process::start(&keep, &driver, None);
        Watch::open(region).unwrap().oldest(Time::default());
        for slot in 0..20 {
            let asked = driver.asked().len();
            let reply = successor.ask(u64::from(slot) + 1, slot, setattr());
            let refused = reply.as_ref().is_some_and(|reply| reply.error().is_some());
            assert!(reply == done() || refused, "{reply:?}");
            assert!(driver.asked().len() >= asked);
        }
    }
}

#[test]
fn one_flipped_bit_is_noticed() {
    let driver = Driver::new(|_, _| Some(Reply::Count(Count(77))));
    let bits = (0..entry::Words::WORDS * 64).filter(|bit| bit / 64 != 1);
    for bit in bits {
        let keep = HeapKeep::default();
        Process::start(&keep, &driver, None).ask(1, 0, setattr());
        let region = keep.region(REGION, 0).unwrap();
        region.word(first_slot() + bit / 64).fetch_xor(1 << (bit % 64), Ordering::Relaxed);
        let reply = Process::start(&keep, &driver, None).ask(1, 0, setattr());
        assert_eq!(reply, Some(Reply::Count(Count(77))), "bit {bit}");
    }
}
