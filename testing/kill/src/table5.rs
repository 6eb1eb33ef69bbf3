// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random deaths under loads (Table 5 of the paper): the loads must succeed and leave what they leave undisturbed.
//! A program whose store does not survive a death inside a request, with us or without, dies between two requests.

use crate::loads::{Load, OF_TABLE};
use crate::mounted::{Place, Subject};
use crate::snapshot::Snapshot;
use anyhow::{Context, Result};
use std::time::Duration;

/// The longest pause between deaths.
const PAUSE: Duration = Duration::from_millis(60);

/// Prints the table; false when anything was wrong.
pub fn run(place: &Place, subjects: &[Subject], only: &[String], deaths: u32) -> Result<bool> {
    println!(
        "| load | tree | deaths survived | runs | undisturbed, s | each run, s | descriptors, KiB: before, after |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut good = true;
    let wanted = |one: &&Load| only.is_empty() || only.iter().any(|name| name == one.name);
    for load in OF_TABLE.iter().filter(wanted).filter(|load| load.is_here(place)) {
        for &subject in subjects.iter().filter(|subject| !subject.is_read_only()) {
            if load.is_unix && subject == Subject::Vfat {
                println!(
                    "| {} | {subject} | not tried: vfat has neither links nor owners | | | | |",
                    load.name
                );
                continue;
            }
            let expected = undisturbed(place, subject, load)
                .with_context(|| format!("{} on undisturbed {subject}", load.name))?;
            let result = disturbed(place, subject, load, deaths, &expected);
            let (row, fine) = result.unwrap_or_else(|error| {
                eprintln!("{} on {subject}: {error:#}", load.name);
                (format!("| {} | {subject} | ✗ {error:#} | | | | |", load.name), false)
            });
            println!("{row}");
            good &= fine;
        }
    }
    Ok(good)
}

/// What the load leaves without deaths.
fn undisturbed(place: &Place, subject: Subject, load: &Load) -> Result<Snapshot> {
    load.leaves(place, &place.undisturbed(subject)?.dir)
}

fn disturbed(
    place: &Place,
    subject: Subject,
    load: &Load,
    deaths: u32,
    expected: &Snapshot,
) -> Result<(String, bool)> {
    let mounted = place.mount(subject, &[])?;
    let calm = load.endure(place, &mounted, expected).context("it is wrong even undisturbed")?;
    let before = mounted.size()?;
    let killer = mounted.killer(PAUSE, deaths, u64::from(deaths));
    let (mut times, mut failed) = (Vec::new(), None);
    while failed.is_none() && (times.is_empty() || !killer.is_done()) {
        match load.endure(place, &mounted, expected) {
            Ok(took) => times.push(took),
            Err(error) => failed = Some(error),
        }
    }
    let killed = killer.stop();
    if let Some(error) = &failed {
        eprintln!("{} on {subject}, run {}: {error:#}", load.name, times.len() + 1);
        eprintln!("{} on {subject}: last error {}", load.name, mounted.last_error());
    }
    let (after, survived) = (mounted.size()?, mounted.deaths()?.unwrap_or(u64::from(killed)));
    mounted.end()?;
    let mark = if failed.is_none() { "✓" } else { "✗" };
    let between = subject.program().is_some_and(|program| program.torn.is_some());
    let only = if between { " between requests" } else { "" };
    let row = format!(
        "| {} | {subject} | {mark} {survived} of {killed}{only} | {} | {:.2} | {:.2} | {}, {}: {}, {} |",
        load.name,
        times.len(),
        calm.as_secs_f64(),
        times.iter().sum::<Duration>().as_secs_f64() / times.len().max(1) as f64,
        before.0,
        before.1,
        after.0,
        after.1
    );
    Ok((row, failed.is_none() && survived >= u64::from(killed.min(deaths))))
}
