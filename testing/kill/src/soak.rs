// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thousands of deaths of the server of one mount, under loads in turn: nothing may fail, and nothing may grow.

use crate::loads::{Load, OF_SOAK};
use crate::mounted::{Mounted, Place, Subject};
use crate::sizes::Sizes;
use crate::snapshot::Snapshot;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// The longest pause between deaths.
const PAUSE: Duration = Duration::from_millis(60);
/// What part of the deaths is for warming up: sizes are compared with those after it.
const WARMING: u32 = 10;

/// Prints what each mount endured, and what it takes before and after; false when anything failed or grew.
pub fn run(place: &Place, subjects: &[Subject], restarts: u32) -> Result<bool> {
    let mut good = true;
    for &subject in subjects.iter().filter(|subject| !subject.is_read_only()) {
        good &= soak(place, subject, restarts).with_context(|| format!("{subject}"))?;
    }
    Ok(good)
}

fn soak(place: &Place, subject: Subject, restarts: u32) -> Result<bool> {
    let mut loads = Vec::new();
    for load in OF_SOAK.iter().filter(|load| load.is_here(place)) {
        let calm = place.undisturbed(subject)?;
        let left = load.leaves(place, &calm.dir);
        loads.push((load, left.with_context(|| format!("{} on undisturbed {subject}", load.name))?));
    }
    let mounted = place.mount(subject, &[])?;
    let (mut ordeal, began) =
        (Ordeal { place, mounted: &mounted, loads, runs: 0, killed: 0 }, Instant::now());
    let result = ordeal.endure(restarts.div_ceil(WARMING)).and_then(|()| {
        let warm = mounted.sizes()?;
        ordeal.endure(restarts)?;
        Ok((warm, mounted.sizes()?))
    });
    let (runs, killed) = (ordeal.runs, ordeal.killed);
    let deaths = mounted.deaths()?.unwrap_or(u64::from(killed));
    let seconds = began.elapsed().as_secs();
    let fine = match result {
        Ok((warm, end)) => {
            println!("{subject}: {deaths} deaths of one mount, {runs} loads, none failed, {seconds} s\n");
            compare(&warm, &end)
        }
        Err(error) => {
            println!("{subject}: ✗ load {} failed after {deaths} deaths: {error:#}", runs + 1);
            eprintln!("{subject}: last error {}", mounted.last_error());
            false
        }
    };
    mounted.end()?;
    Ok(fine && deaths >= u64::from(killed))
}

/// A mount under loads.
struct Ordeal<'a> {
    place: &'a Place,
    mounted: &'a Mounted,
    /// What is done, and what it leaves.
    loads: Vec<(&'static Load, Snapshot)>,
    runs: u32,
    killed: u32,
}

impl Ordeal<'_> {
    /// All loads in turn until the server has died so often.
    fn endure(&mut self, restarts: u32) -> Result<()> {
        loop {
            for (load, expected) in &self.loads {
                let left = restarts.saturating_sub(self.killed);
                let killer = self.mounted.killer(PAUSE, left, u64::from(self.runs));
                let endured = load.endure(self.place, self.mounted, expected);
                self.killed += killer.stop();
                endured.with_context(|| load.name)?;
                self.runs += 1;
            }
            if self.killed >= restarts {
                return Ok(());
            }
        }
    }
}

/// Prints both; false when anything is larger than it may be.
fn compare(warm: &Sizes, end: &Sizes) -> bool {
    println!("| what | warmed up | at the end | bound |\n|---|---|---|---|");
    let mut good = true;
    for (kind, &now) in end {
        let before = warm.get(kind).copied().unwrap_or(0);
        let bound = kind.bound(before);
        let mark = if now <= bound { "✓" } else { "✗" };
        println!("| {} | {before} | {mark} {now} | {bound} |", kind.title());
        good &= now <= bound;
    }
    println!();
    good
}
