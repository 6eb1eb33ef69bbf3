// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `cache` over a tree in memory: while it is the only client, nobody can tell that it is there.

use outrigger_conformance::{Direct, Target, run};
use outrigger_core::{Inline, Service, Stack};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_cache::Cache;
use outrigger_model::{check, explore};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// A tree in memory that is cached as these options say.
fn cached(options: &[(&str, &str)]) -> Arc<dyn Service> {
    let threads = Arc::new(Threads::new());
    let mem = Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads.clone()));
    let mut chosen = outrigger_layer_cache::Options::default();
    options.iter().for_each(|(key, value)| chosen.set(key, value).expect("a good option"));
    Stack::new(mem).push(Cache::new(&chosen, threads)).expect("any order is good").service()
}

/// Ways to cache a tree.
const WAYS: &[&[(&str, &str)]] = &[
    &[],
    &[("cache", "always")],
    &[("cache", "never")],
    &[("cache_entries", "40")],
    &[("cache:/a", "never"), ("cache:/b/c", "always")],
];

/// What does not hold, and why.
const EXCEPTIONS: &[(&str, &str)] =
    &[("times/reading_marks_atime_only", "the time of the last access lags behind")];

#[test]
fn every_case_of_the_suite_holds() {
    for way in WAYS {
        let direct = Direct::new(cached(way));
        let exceptions = if way.contains(&("cache", "never")) { &[] } else { EXCEPTIONS };
        let target = Target { abilities: direct.abilities(), has_sample: false, exceptions };
        let report = run(&direct, &target);
        println!("{way:?}\n{report}");
        report.must_hold(185);
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for way in WAYS {
        explore(100, 80, |list| check(&Direct::new(cached(way)), list));
    }
}
