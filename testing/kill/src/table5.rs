// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random deaths under loads (Table 5 of the paper): the loads must succeed and leave what they leave undisturbed.
//! A program whose store does not survive a death inside a request, with us or without, dies between two requests.

use crate::loads::{ALL, Load};
use crate::mounted::{Killer, Place, Subject};
use crate::snapshot;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::time::{Duration, Instant};

/// The longest pause between deaths.
const PAUSE: Duration = Duration::from_millis(60);

/// Prints the table; false when anything was wrong.
pub fn run(place: &Place, subjects: &[Subject], only: &[String], deaths: u32) -> Result<bool> {
    println!(
        "| load | tree | deaths survived | runs | undisturbed, s | each run, s | descriptors, KiB: before, after |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut good = true;
    for load in ALL.iter().filter(|one| only.is_empty() || only.iter().any(|name| name == one.name)) {
        for &subject in subjects.iter().filter(|subject| !subject.is_read_only()) {
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

/// What the load leaves where nothing dies.
fn undisturbed(place: &Place, subject: Subject, load: &Load) -> Result<snapshot::Snapshot> {
    let calm = place.undisturbed(subject)?;
    let dir = calm.dir.join("run");
    fs::create_dir(&dir)?;
    (load.work)(&dir)?;
    snapshot::take(&dir)
}

fn disturbed(
    place: &Place,
    subject: Subject,
    load: &Load,
    deaths: u32,
    expected: &snapshot::Snapshot,
) -> Result<(String, bool)> {
    let mounted = place.mount(subject, &[])?;
    let between = subject.program().is_some_and(|program| program.is_torn_by_death);
    let once = |number: u32| -> Result<(Duration, bool)> {
        let dir = mounted.dir.join(format!("run{number}"));
        fs::create_dir(&dir)?;
        let began = Instant::now();
        let worked = (load.work)(&dir);
        let took = began.elapsed();
        let wrong = match worked.and_then(|()| snapshot::take(&dir)) {
            Ok(found) => snapshot::differences(expected, &found),
            Err(error) => vec![format!("{error:#}")],
        };
        if !wrong.is_empty() {
            eprintln!("{} on {subject}: last error {}", load.name, mounted.last_error());
        }
        wrong.iter().take(5).for_each(|what| eprintln!("{} on {subject}, run {number}: {what}", load.name));
        // What is wrong may not even let itself be removed; it ends with the mount.
        if wrong.is_empty() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing run {number}"))?;
        }
        Ok((took, wrong.is_empty()))
    };
    let (calm, mut fine) = once(0)?;
    ensure!(fine, "it is wrong even undisturbed");
    let before = mounted.size()?;
    let killer = mounted.killer(PAUSE, deaths, u64::from(deaths));
    let (mut runs, mut total) = (0, Duration::ZERO);
    while !killer.is_done() || runs == 0 {
        let (took, right) = once(runs + 1)?;
        runs += 1;
        total += took;
        fine &= right;
        if !right {
            break;
        }
    }
    let killed = Killer::stop(killer);
    let (after, survived) = (mounted.size()?, mounted.deaths()?.unwrap_or(u64::from(killed)));
    mounted.end()?;
    let mark = if fine { "✓" } else { "✗" };
    let only = if between { " between requests" } else { "" };
    let row = format!(
        "| {} | {subject} | {mark} {survived} of {killed}{only} | {runs} | {:.2} | {:.2} | {}, {}: {}, {} |",
        load.name,
        calm.as_secs_f64(),
        total.as_secs_f64() / f64::from(runs),
        before.0,
        before.1,
        after.0,
        after.1
    );
    Ok((row, fine && survived >= u64::from(killed.min(deaths))))
}
