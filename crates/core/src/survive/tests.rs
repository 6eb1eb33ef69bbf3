// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each block, killed at each access in the middle of random operations: what is left is what was before or after one of them.

use super::testing::{Life, each_death};
use super::*;
use crate::error::Errno;
use crate::keep::{HeapKeep, HeapRegion, Keep, Region};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Something in an area, and how to use it.
trait Block {
    type Step: Clone + Debug;
    type Content: PartialEq + Debug;
    const WORDS: usize;
    fn open(area: Area) -> Self;
    fn step(&mut self, step: &Self::Step);
    fn content(&self) -> Self::Content;
    /// What there is after these steps.
    fn expected(steps: &[Self::Step]) -> Self::Content;
}

fn heap(words: usize) -> Arc<dyn Region> {
    Arc::new(HeapRegion::new(words))
}

fn open<B: Block>(region: Arc<dyn Region>) -> B {
    B::open(Area::whole(region))
}

/// Kills at each access of `steps`, and sometimes the next process at an early one.
fn survives<B: Block>(steps: &[B::Step]) {
    let after: Vec<B::Content> = (0..=steps.len()).map(|done| B::expected(&steps[..done])).collect();
    let mut number = 0;
    let deaths = each_death(|life| {
        let real = heap(B::WORDS);
        let mut block = open::<B>(life.in_region(Arc::clone(&real)));
        let mut begun = 0_usize;
        for step in steps {
            if life.is_over() {
                break;
            }
            begun += 1;
            block.step(step);
        }
        number += 1;
        drop(open::<B>(Life::new(number % 5).in_region(Arc::clone(&real))));
        let left = open::<B>(real).content();
        let fits = |done: usize| left == after[done];
        let done = if life.is_over() { begun.saturating_sub(1) } else { begun };
        assert!(fits(done) || life.is_over() && fits(begun), "{left:?} after {begun} of {steps:?}");
    });
    assert!(deaths > 0, "no place to die");
}

crate::record! {
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Pair { key: u64, value: u64 }
}

impl Block for Slots<Pair> {
    type Step = (u8, u64, u64);
    type Content = BTreeMap<u64, u64>;
    const WORDS: usize = Slots::<Pair>::words(4);

    fn open(area: Area) -> Self {
        Slots::open(area)
    }

    fn step(&mut self, &(what, key, value): &Self::Step) {
        let found = self.iter().find(|(_, pair)| pair.key == key).map(|(slot, _)| slot.index);
        match (what, found) {
            (0, None) => drop(self.insert(&Pair { key, value })),
            (1, Some(index)) => self.update(index, &Pair { key, value }),
            (2, Some(index)) => self.remove(index),
            (3, _) => self.clear(),
            _ => {}
        }
    }

    fn content(&self) -> Self::Content {
        self.iter().map(|(_, Pair { key, value })| (key, value)).collect()
    }

    fn expected(steps: &[Self::Step]) -> Self::Content {
        let mut pairs = BTreeMap::new();
        for &(what, key, value) in steps {
            match (what, pairs.contains_key(&key)) {
                (0, false) if pairs.len() < 4 => drop(pairs.insert(key, value)),
                (1, true) => drop(pairs.insert(key, value)),
                (2, _) => drop(pairs.remove(&key)),
                (3, _) => pairs.clear(),
                _ => {}
            }
        }
        pairs
    }
}

impl Block for Twin<[u64; 3]> {
    type Step = [u64; 3];
    type Content = [u64; 3];
    const WORDS: usize = <Twin<[u64; 3]>>::WORDS;

    fn open(mut area: Area) -> Self {
        Twin::take(&mut area).expect("room")
    }

    fn step(&mut self, step: &[u64; 3]) {
        self.replace(|row| row.iter().zip(step).for_each(|(word, &value)| word.set(value)));
    }

    fn content(&self) -> [u64; 3] {
        let row = self.at(self.number());
        [0, 1, 2].map(|index| row.at(index).get())
    }

    fn expected(steps: &[[u64; 3]]) -> [u64; 3] {
        steps.last().copied().unwrap_or_default()
    }
}

struct Many {
    redo: Redo,
    area: Area,
}

const MANY: usize = 12;

impl Block for Many {
    type Step = Vec<(usize, u64)>;
    type Content = Vec<u64>;
    const WORDS: usize = MANY + <Redo>::words(MANY);

    fn open(mut area: Area) -> Self {
        let list = area.take(<Redo>::words(MANY)).expect("room");
        Many { redo: Redo::recover(list, area.clone()).expect("a sound list"), area }
    }

    fn step(&mut self, step: &Self::Step) {
        let mut writes = self.redo.begin();
        for &(index, more) in step {
            let word = self.area.word(index);
            writes.set(word, writes.get(word) + more);
        }
        self.redo.commit(writes);
    }

    fn content(&self) -> Vec<u64> {
        (0..MANY).map(|index| self.area.word(index).get()).collect()
    }

    fn expected(steps: &[Self::Step]) -> Vec<u64> {
        let mut words = vec![0; MANY];
        steps.iter().flatten().for_each(|&(index, more)| words[index] += more);
        words
    }
}

/// What a log says is the sum of its words.
impl Block for Log {
    type Step = Vec<u64>;
    type Content = u64;
    const WORDS: usize = 1 + (8 << 10);

    fn open(area: Area) -> Self {
        Log::open(area).expect("a sound log")
    }

    fn step(&mut self, step: &Self::Step) {
        let Some((&last, words)) = step.split_last() else { return };
        self.note(words);
        let sum = self.content();
        self.begin_copy(|| vec![sum]);
        self.note(&[last]);
        self.copy(&[0, 0]);
        self.end_copy();
    }

    fn content(&self) -> u64 {
        self.read().iter().sum()
    }

    fn expected(steps: &[Self::Step]) -> u64 {
        steps.iter().flatten().sum()
    }
}

const RING: usize = 23;

impl Block for Queue {
    type Step = (bool, u64);
    type Content = Vec<Vec<u64>>;
    const WORDS: usize = Queue::words(RING);

    fn open(area: Area) -> Self {
        Queue::open(area).expect("a sound queue")
    }

    fn step(&mut self, &(adds, number): &Self::Step) {
        let left = self.left(|ticket, _| ticket);
        if adds {
            self.append(&vec![number; number as usize / 2], &vec![1; number as usize]);
        } else if !left.is_empty() {
            self.done(left[number as usize % left.len()]);
        }
    }

    fn content(&self) -> Self::Content {
        self.left(|_, words| words)
    }

    fn expected(steps: &[Self::Step]) -> Self::Content {
        let mut queue = open::<Queue>(heap(Self::WORDS));
        let mut left: Vec<Vec<u64>> = Vec::new();
        for step in steps {
            // Whether there is room is its matter; that there is none when it was emptied would show.
            let (before, number) = (queue.content().len(), step.1 as usize);
            queue.step(step);
            match step.0 {
                true if queue.content().len() > before || before == 0 => {
                    let bytes = u64::from_le_bytes([1; 8]);
                    let last = bytes >> (8 * (8 - step.1 % 8) % 64);
                    let words = (0..step.1 / 2).map(|_| step.1);
                    let words = words.chain((0..step.1 / 8).map(|_| bytes));
                    left.push(words.chain((!step.1.is_multiple_of(8)).then_some(last)).collect());
                }
                false if !left.is_empty() => drop(left.remove(number % left.len())),
                _ => {}
            }
        }
        left
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn slots(steps in prop::collection::vec((0..4_u8, 0..6_u64, 0..9_u64), 1..20)) {
        survives::<Slots<Pair>>(&steps);
    }

    #[test]
    fn twins(steps in prop::collection::vec(any::<[u64; 3]>(), 1..8)) {
        survives::<Twin<[u64; 3]>>(&steps);
    }

    #[test]
    fn changes_of_many_words(
        steps in prop::collection::vec(prop::collection::vec((0..MANY, 1..9_u64), 1..9), 1..8),
    ) {
        survives::<Many>(&steps);
    }

    #[test]
    fn queues(steps in prop::collection::vec((any::<bool>(), 0..9_u64), 1..40)) {
        survives::<Queue>(&steps);
    }

    #[test]
    fn rubbish_in_any_block_neither_panics_nor_hangs(words in prop::collection::vec(any::<u64>(), 64)) {
        let region = heap(8 << 10 | 64);
        words.iter().enumerate().for_each(|(index, &word)| Area::whole(Arc::clone(&region)).word(index).set(word));
        let area = || Area::whole(Arc::clone(&region));
        let slots = Slots::<Pair>::open(area());
        prop_assert!(slots.iter().count() <= slots.capacity() as usize);
        let mut list = area();
        let list = list.take(33).expect("room");
        drop(Redo::recover(list, area()));
        drop(Log::open(area()).map(|log| log.read()));
        drop(Queue::open(area()).map(|queue| (queue.content(), queue.done(words[0]))));
        drop(area().view::<Text<'_, 4>>().get());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn logs_that_are_made_shorter_meanwhile(
        groups in prop::collection::vec(prop::collection::vec(1..1000_u64, 1..2), 1..6),
    ) {
        survives::<Log>(&groups);
    }
}

#[test]
fn a_slot_with_its_generation_names_one_record() {
    let mut seen = HashSet::new();
    let region = heap(Slots::<Pair>::words(3));
    for round in 0..50 {
        let mut slots = open::<Slots<Pair>>(Arc::clone(&region));
        let slot = slots.insert(&Pair { key: round, value: 1 }).expect("room");
        assert!(seen.insert(slot), "{slot:?} in round {round}");
        match round % 5 {
            0..3 => slots.remove(slot.index),
            3 => {}
            _ => slots.clear(),
        }
    }
    let mut slots = open::<Slots<Pair>>(region);
    slots.clear();
    let pair = Pair { key: 1, value: 1 };
    assert!(
        (0..3).all(|_| slots.insert(&pair).is_some()) && !slots.has_room() && slots.insert(&pair).is_none()
    );
}

#[test]
fn text_is_old_or_new_or_none() {
    each_death(|life| {
        let region = heap(5);
        let text = |region: &Arc<dyn Region>| Area::whole(Arc::clone(region));
        text(&region).view::<Text<'_, 4>>().set(b"what was before").unwrap();
        let mortal = life.in_region(Arc::clone(&region));
        text(&mortal).view::<Text<'_, 4>>().set(b"and what comes afterwards").unwrap();
        let left = text(&region).view::<Text<'_, 4>>().get();
        let expected = [None, Some("what was before"), Some("and what comes afterwards")];
        assert!(expected.contains(&left.as_deref().map(|text| str::from_utf8(text).unwrap())), "{left:?}");
    });
    let area = Area::whole(heap(5));
    let text = area.view::<Text<'_, 4>>();
    assert_eq!((text.get(), text.set(&[1; 33]).unwrap_err().errno), (None, Errno::ENAMETOOLONG));
    text.set(b"").unwrap();
    assert_eq!(text.get(), Some(vec![]));
}

const FIRST: Layout = Layout::new("test", 1);
const SECOND: Layout = Layout::new("test", 2);

#[test]
fn another_layout_is_refused_with_both_versions() {
    let keep = HeapKeep::default();
    assert!(FIRST.look(heap(9)).is_err(), "looking makes nothing");
    assert!(FIRST.attach(&keep, 4).unwrap().is_new);
    assert!(!FIRST.attach(&keep, 4).unwrap().is_new);
    let refused = SECOND.attach(&keep, 4).map(drop).unwrap_err();
    let reason = refused.reason.as_deref().unwrap_or_default();
    assert_eq!(refused.errno, Errno::EPROTO);
    assert!(reason.contains("layout version 1") && reason.contains("reads version 2"), "{reason}");
    let newer = Layout::new("test", 9).reading(3);
    let reason = newer.attach(&keep, 4).map(drop).unwrap_err().reason.unwrap();
    assert!(reason.contains("versions 3 to 9"), "{reason}");

    let region = keep.region("test", 4).unwrap();
    let other = Layout::new("else", 1).open(Arc::clone(&region)).map(drop).unwrap_err();
    assert_eq!(other.errno, Errno::EUCLEAN, "another kind");
    let longer = heap(20);
    (0..4).for_each(|word| longer.word(word).store(region.word(word).load(Relaxed), Relaxed));
    assert_eq!(FIRST.open(longer).map(drop).unwrap_err().errno, Errno::EUCLEAN, "another size");
    assert_eq!(FIRST.open(heap(3)).map(drop).unwrap_err().errno, Errno::EUCLEAN, "no header");
}

/// The first layout counts seconds, the second milliseconds beside them.
#[test]
fn an_older_layout_that_is_declared_readable_is_converted_once() {
    let both = SECOND.reading(1);
    each_death(|life| {
        let keep = Arc::new(HeapKeep::default());
        FIRST.attach(&*keep, 2).unwrap().area.word(0).set(5);
        let upgrade = |keep: &dyn Keep| {
            let mut opened = both.attach(keep, 2).unwrap();
            let convert = |area: &Area, version| {
                assert_eq!(version, 1);
                area.word(1).set(area.word(0).get() * 1000);
                Ok(())
            };
            opened.convert(both, convert).unwrap();
            opened.area.word(1).get()
        };
        upgrade(&life.of(&keep));
        let version = both.attach(&*keep, 2).unwrap().version;
        assert!(version == 1 || FIRST.attach(&*keep, 2).is_err(), "the former build is refused from then on");
        assert_eq!(upgrade(&*keep), 5000);
        assert_eq!(both.attach(&*keep, 2).unwrap().version, 2);
    });
}

#[test]
fn a_death_while_a_region_is_made_leaves_none_or_all_of_its_header() {
    each_death(|life| {
        let keep = Arc::new(HeapKeep::default());
        drop(FIRST.attach(&life.of(&keep), 2));
        assert_eq!(FIRST.attach(&*keep, 2).unwrap().version, 1);
    });
}
