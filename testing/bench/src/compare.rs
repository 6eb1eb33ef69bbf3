// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measuring several subjects in turns.

use crate::table::{Row, Samples, Unit};
use crate::watch;
use anyhow::{Context, Result};
use std::io;
use std::time::{Duration, Instant};

/// How long one sample of one subject may take.
const DEADLINE: Duration = Duration::from_secs(400);
/// Operations between two looks at the clock.
const BATCH: u32 = 16;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How often each subject has its turn.
    pub rounds: usize,
    /// How long a sample of a short operation lasts.
    pub sample: Duration,
}

/// What one subject does; gives one sample, or nothing when it took too long to be worth waiting for.
pub type Sampler<'a> = Box<dyn FnMut() -> Result<Option<f64>> + 'a>;

/// Gives each subject its turn, `rounds` times after one turn that does not count. One that gave nothing in a turn has
/// no more of them.
///
/// # Errors
/// The first error of a subject.
pub fn in_turns(what: &str, unit: Unit, rounds: usize, subjects: Vec<(&str, Sampler<'_>)>) -> Result<Row> {
    compare(what, unit, rounds, true, subjects)
}

/// As [`in_turns`], for what is too long, or too well controlled, to need a turn that does not count.
///
/// # Errors
/// The first error of a subject.
pub fn in_turns_cold(
    what: &str,
    unit: Unit,
    rounds: usize,
    subjects: Vec<(&str, Sampler<'_>)>,
) -> Result<Row> {
    compare(what, unit, rounds, false, subjects)
}

fn compare(
    what: &str,
    unit: Unit,
    rounds: usize,
    warm_up: bool,
    mut subjects: Vec<(&str, Sampler<'_>)>,
) -> Result<Row> {
    eprintln!("measuring: {what}");
    let mut columns: Vec<(String, Samples)> =
        subjects.iter().map(|(name, _)| ((*name).to_owned(), Samples::default())).collect();
    for round in 0..rounds + usize::from(warm_up) {
        for ((name, sampler), (_, samples)) in subjects.iter_mut().zip(&mut columns) {
            if samples.gave_up {
                continue;
            }
            watch::step(&format!("{what}, {name}"), DEADLINE);
            match sampler().with_context(|| format!("{what}, {name}"))? {
                Some(_) if warm_up && round == 0 => {}
                Some(value) => samples.values.push(value),
                None => samples.gave_up = true,
            }
        }
    }
    Ok(Row { what: what.to_owned(), unit, columns, goals: Vec::new() })
}

/// Does `operation` again and again for about `time`; microseconds each.
///
/// # Errors
/// The first error of the operation.
pub fn micros_each(time: Duration, mut operation: impl FnMut() -> io::Result<()>) -> Result<Option<f64>> {
    let start = Instant::now();
    let mut done = 0_u32;
    loop {
        for _ in 0..BATCH {
            operation()?;
        }
        done += BATCH;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(Some(elapsed.as_secs_f64() * 1e6 / f64::from(done)));
        }
    }
}
