// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log that nobody wrote is refused, or makes a tree that can be used: it never ends the process.

use crate::support::{Known, Numbers, Ticks, call, options, picture, serve};
use outrigger_core::{Errno, HeapKeep, Keep, Region, Result};
use outrigger_driver_mem::Mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const WORDS: usize = 20_000;
/// Where things are in the region: in its header the version, then the number of the file, the length of the log, and the log.
const VERSION: usize = 2;
const FILE: usize = 4;
const STATE: usize = 6;
const FIRST: usize = 7;

fn take_over(keep: &Arc<HeapKeep>) -> Result<Mem> {
    Mem::with_keep(options(), Arc::new(Ticks::default()), keep.clone())
}

/// A tree on which something was done; its log and how long that is.
fn left_behind(seed: u64) -> (Arc<HeapKeep>, Arc<dyn Region>, usize) {
    let keep = Arc::new(HeapKeep::default());
    let log = keep.region("mem-log", WORDS).expect("memory");
    let tree = serve(take_over(&keep).expect("a tree"));
    let (mut numbers, mut known) = (Numbers(seed), Known::default());
    for _ in 0..60 {
        let request = known.request(&mut numbers, false);
        known.count(&call(&*tree, request));
    }
    drop(tree);
    let len = log.word(STATE).load(Relaxed) & (u64::MAX >> 1);
    (keep, log, len as usize)
}

fn use_it(taken: Result<Mem>) -> bool {
    let taken = taken.map(serve);
    if let Ok(tree) = &taken {
        picture(&**tree, &Known::default());
    }
    taken.is_ok()
}

#[test]
fn words_that_changed_are_refused_or_understood() {
    let (mut numbers, mut refused, mut understood) = (Numbers(7), 0, 0);
    for seed in 0..400 {
        let (keep, log, len) = left_behind(seed % 10);
        for _ in 0..=numbers.below(3) {
            let word = log.word(FIRST + numbers.below(len as u64) as usize);
            let old = word.load(Relaxed);
            let new = [old ^ 1 << numbers.below(64), numbers.below(100), u64::MAX, old.wrapping_add(1)];
            word.store(numbers.of(&new), Relaxed);
        }
        match use_it(take_over(&keep)) {
            true => understood += 1,
            false => refused += 1,
        }
    }
    assert!(refused > 50 && understood > 50, "{refused} refused, {understood} understood");
}

#[test]
fn random_words_are_refused() {
    let mut numbers = Numbers(8);
    for _ in 0..200 {
        let (keep, log, len) = left_behind(1);
        (FIRST..FIRST + len).for_each(|index| {
            let word = numbers.below(1 << 31) << 33 | numbers.below(1 << 31);
            log.word(index).store(word >> numbers.below(64), Relaxed);
        });
        assert_eq!(take_over(&keep).err().map(|error| error.errno), Some(Errno::EUCLEAN));
    }
}

#[test]
fn a_log_that_was_cut_is_refused_or_understood() {
    let len = left_behind(3).2;
    for len in 0..=len {
        let (keep, log, _) = left_behind(3);
        log.word(STATE).store(len as u64, Relaxed);
        use_it(take_over(&keep));
    }
}

#[test]
fn a_header_that_makes_no_sense_is_refused() {
    for (word, value, errno) in [
        (0, 12345, Errno::EUCLEAN),
        (FILE, 0, Errno::EUCLEAN),
        (FILE, 1 << 40, Errno::EUCLEAN),
        (FILE, 1000, Errno::EBADF),
        (STATE, 15_000, Errno::EUCLEAN),
        (STATE, 0, Errno::EUCLEAN),
    ] {
        let (keep, log, _) = left_behind(1);
        log.word(word).store(value, Relaxed);
        let error = take_over(&keep).err().expect("an error");
        assert_eq!(error.errno, errno, "word {word} is {value}");
    }
    let (keep, log, _) = left_behind(1);
    log.word(VERSION).fetch_add(1, Relaxed);
    let error = take_over(&keep).err().expect("an error");
    assert!(error.reason.expect("a reason").contains("version"));
    let keep = Arc::new(HeapKeep::default());
    keep.region("mem-log", 1000).expect("memory");
    assert_eq!(take_over(&keep).err().map(|error| error.errno), Some(Errno::ENOSPC), "too small for any log");
}
