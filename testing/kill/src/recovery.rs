// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a death is felt (Table 8 of the paper): from the kill to the next answer a program gets.

use crate::mounted::{Mounted, Place, Subject};
use anyhow::{Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long a program must have run, for its death not to look like a crash loop, which is slowed down.
const SETTLED: Duration = Duration::from_millis(1100);

/// The most kilobytes a keeper may take. Code that was not optimised is larger, and what of it is resident differs by machine.
const KEEPER: u64 = if cfg!(debug_assertions) { 8192 } else { 4096 };

/// Prints the table; false when a keeper is too large.
pub fn run(place: &Place, subjects: &[Subject], deaths: u32) -> Result<bool> {
    let mut good = true;
    println!("| tree | deaths | p50, ms | p99, ms | most, ms | keeper, KiB |");
    println!("|---|---|---|---|---|---|");
    for &subject in subjects {
        let plain = place.plain("plain")?;
        fs::write(plain.join("file"), "content")?;
        let mounted = place.mount(subject, &["-o", "attr_timeout=0,entry_timeout=0"])?;
        if !subject.is_read_only() {
            fs::write(mounted.dir.join("file"), "content")?;
        }
        let mut times = (0..deaths).map(|_| felt(&mounted)).collect::<Result<Vec<_>>>()?;
        times.sort_unstable();
        let part = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1].as_secs_f64() * 1e3;
        let size = mounted.keeper_size()?;
        let small = size.is_none_or(|kilobytes| kilobytes < KEEPER);
        let mark = if small { "" } else { "✗ " };
        let size = size.map_or_else(String::new, |kilobytes| kilobytes.to_string());
        println!(
            "| {subject} | {deaths} | {:.2} | {:.2} | {:.2} | {mark}{size} |",
            part(50),
            part(99),
            part(100)
        );
        good &= small;
        mounted.end()?;
    }
    Ok(good)
}

/// Kills the server and asks for attributes at once.
fn felt(mounted: &Mounted) -> Result<Duration> {
    if mounted.is_program() {
        thread::sleep(SETTLED);
    }
    let before = mounted.serving()?;
    let file = mounted.dir.join("file");
    let killed = Instant::now();
    ensure!(mounted.strike(Signal::KILL), "nobody to kill");
    fs::metadata(&file)?;
    // The kernel may hand a request to a process that is dying; the answer that counts is the next one's.
    while mounted.victim().is_none_or(|now| now == before) {
        thread::yield_now();
    }
    fs::metadata(&file)?;
    Ok(killed.elapsed())
}
