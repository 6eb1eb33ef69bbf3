// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a slow line leaves: how much more than its bytes a listing takes, and whether one is quick while much is moved.

use super::{Bench, CAT, Far, OURS, PATIENCE, ROUNDS, Ssh, UNGUARDED, large_size, mounted};
use crate::compare::{Sampler, in_turns_cold};
use crate::programs::shell_seconds;
use crate::table::{Goal, Row, Unit};
use anyhow::{Context, Result};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The bytes of a listing, at the rate of the line.
const BYTES: &str = "its bytes alone";
/// How many directories are listed while a file is read.
const LISTED: usize = 8;

/// The rows that only a slow line has; `rate` is what it carries, in bytes a second.
///
/// # Errors
/// When a mount does not come up, or something in it fails.
pub fn rows(bench: &Bench, far: &Ssh, rate: f64, cat: &str) -> Result<Vec<Row>> {
    let rounds = bench.effort.rounds.min(ROUNDS);
    let mb = large_size(bench) >> 20;
    let meanwhile = |part: fn((f64, f64)) -> f64| {
        far.subjects(bench).into_iter().map(move |subject| {
            let sampler: Sampler<'_> = Box::new(move || {
                let mount = mounted(bench, far, subject)?;
                Ok(listed_while_read(&mount.dir)?.map(part))
            });
            (subject, sampler)
        })
    };
    let listings: Vec<(&str, Sampler<'_>)> = meanwhile(|(listing, _)| listing).collect();
    let mut reads: Vec<(&str, Sampler<'_>)> = meanwhile(|(_, read)| read).collect();
    reads.push((CAT, Box::new(|| shell_seconds(cat, &[], PATIENCE))));
    let patience = 3.0 * bench.way.delay.as_secs_f64() + 0.1;
    Ok(vec![
        bytes_of_a_listing(bench, far, rate)?,
        in_turns_cold("ls -l of a directory while a file is read", Unit::Seconds, rounds, listings)?
            .goal(Goal::Limit { subject: OURS, limit: patience }),
        in_turns_cold(
            &format!("that read of {mb} MiB, with {LISTED} listings"),
            Unit::Seconds,
            rounds,
            reads,
        )?
        .goal(Goal::Below { subject: OURS, factor: 1.0 / 0.9, than: CAT }),
    ])
}

fn bytes_of_a_listing(bench: &Bench, far: &Ssh, rate: f64) -> Result<Row> {
    let bytes = Cell::new(0);
    let listing = |subject| {
        let mount = mounted(bench, far, subject)?;
        let [_, before] = far.line.carried();
        let seconds = shell_seconds(r#"ls -lR "$1/tree""#, &[&mount.dir], PATIENCE);
        let [_, after] = far.line.carried();
        bytes.set(after - before);
        seconds
    };
    // The bytes are those of the listing before.
    let all: Vec<(&str, Sampler<'_>)> = vec![
        (UNGUARDED, Box::new(|| listing(UNGUARDED))),
        (OURS, Box::new(|| listing(OURS))),
        (BYTES, Box::new(|| Ok(Some(bytes.get() as f64 / rate)))),
    ];
    let row = in_turns_cold("ls -lR once more", Unit::Seconds, bench.effort.rounds.min(ROUNDS), all)?;
    Ok(row.goal(Goal::Below { subject: OURS, factor: 1.3, than: BYTES }))
}

/// Reads the large file and lists directories meanwhile; the median of the listings and the time of the read, in seconds.
/// Nothing when it had been read before the directories were listed.
fn listed_while_read(dir: &Path) -> Result<Option<(f64, f64)>> {
    let (read, start) = (AtomicU64::new(0), Instant::now());
    let size = fs::metadata(dir.join("large"))?.len();
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<f64> {
            let (mut file, mut piece) = (File::open(dir.join("large"))?, vec![0; 64 << 10]);
            while let count @ 1.. = file.read(&mut piece)? {
                read.fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(start.elapsed().as_secs_f64())
        });
        let mut listings = Vec::new();
        for number in 0..LISTED {
            let wanted = size * (number as u64 + 1) / (LISTED as u64 + 2);
            while read.load(Ordering::Relaxed) < wanted && !reader.is_finished() {
                thread::park_timeout(Duration::from_millis(1));
            }
            if reader.is_finished() {
                return Ok(None);
            }
            let target = dir.join(format!("tree/d{number}/e{number}"));
            listings
                .push(shell_seconds(r#"ls -l "$1""#, &[&target], PATIENCE)?.context("ls takes too long")?);
        }
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        listings.sort_by(f64::total_cmp);
        Ok(Some((listings[LISTED / 2], read)))
    })
}
