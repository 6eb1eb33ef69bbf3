// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is taken over now and then, beside one that is not.

use crate::support::{Known, Numbers, Ticks, call, options, picture, serve};
use outrigger_core::{HeapKeep, Keep, Service};
use outrigger_driver_mem::Mem;
use std::sync::Arc;

/// Words of a log that is compacted again and again by what the tests do.
const SMALL: usize = 60_000;

fn keep(words: usize) -> Arc<HeapKeep> {
    let keep = Arc::new(HeapKeep::default());
    keep.region("mem-log", words).expect("memory");
    keep
}

fn kept(keep: &Arc<HeapKeep>, clock: &Arc<Ticks>) -> Arc<dyn Service> {
    serve(Mem::with_keep(options(), clock.clone(), keep.clone()).expect("a tree"))
}

#[test]
fn nobody_notices_a_takeover() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let (keep, mut known) = (keep(SMALL), Known::default());
        let clocks = [Arc::new(Ticks::default()), Arc::new(Ticks::default())];
        let twin = serve(Mem::new(options(), clocks[0].clone()));
        let mut tree = kept(&keep, &clocks[1]);
        for step in 0..400 {
            let request = known.request(&mut numbers, false);
            let replies = [call(&*twin, request.clone()), call(&*tree, request.clone())];
            assert_eq!(replies[0], replies[1], "seed {seed}, step {step}: {request:?}");
            known.count(&replies[0]);
            match numbers.below(30) {
                // A process that was killed, and one that came to its end.
                0 => {
                    std::mem::forget(tree);
                    tree = kept(&keep, &clocks[1]);
                }
                1 => {
                    drop(tree);
                    tree = kept(&keep, &clocks[1]);
                }
                2 => assert_eq!(picture(&*tree, &known), picture(&*twin, &known), "seed {seed}, step {step}"),
                _ => {}
            }
        }
        std::mem::forget(tree);
        let tree = kept(&keep, &clocks[1]);
        assert_eq!(picture(&*tree, &known), picture(&*twin, &known), "seed {seed}");
        assert_eq!(keep.held(), 1, "one memory file");
    }
}
