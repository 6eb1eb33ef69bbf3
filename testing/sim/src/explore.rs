// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many seeds, one scenario.

use crate::Sim;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Runs `scenario` once with each seed, or only with that in the environment variable `SIM_SEED`.
///
/// # Panics
/// When the scenario does, after printing the seed and the latest events; when `SIM_SEED` is no number.
pub fn explore(seeds: Range<u64>, scenario: impl Fn(&Arc<Sim>)) {
    let only: Option<u64> = std::env::var("SIM_SEED").ok().map(|seed| match seed.parse() {
        Ok(seed) => seed,
        Err(error) => panic!("SIM_SEED={seed}: {error}"),
    });
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        let sim = Sim::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(&sim))) {
            eprintln!("{}", report(&sim));
            resume_unwind(panic);
        }
    }
}

fn report(sim: &Sim) -> String {
    let events = sim.events().join("\n  ");
    format!(
        "the scenario failed with seed {0}; repeat it with SIM_SEED={0}\nlatest events:\n  {events}",
        sim.seed()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_failing_seed_is_named_and_stops_the_exploration() {
        let seen = RefCell::new(Vec::new());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            explore(0..9, |sim| {
                seen.borrow_mut().push(sim.seed());
                assert_ne!(sim.seed(), 4);
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(seen.into_inner(), [0, 1, 2, 3, 4]);
        let sim = Sim::new(4711);
        sim.log("read #7");
        let text = report(&sim);
        assert!(text.contains("SIM_SEED=4711") && text.contains("read #7"), "{text}");
    }
}
