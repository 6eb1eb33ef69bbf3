// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the figures were measured on.

use crate::groups::Bench;
use crate::programs::first_line;
use std::fs;
use std::thread::available_parallelism;

/// One paragraph: date, version, machine, kernel, how busy it was, peers, rounds.
pub fn describe(bench: &Bench) -> String {
    let day = first_line("date", &["-u", "+%Y-%m-%d"]).unwrap_or_default();
    let commit = first_line("git", &["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short", "HEAD"]);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = available_parallelism().map_or(0, |count| count.get());
    format!(
        "{day}, commit {}; {}, {cpus} CPUs, {} GiB memory, Linux {}; load before the run {}; {}; at most {} rounds.",
        commit.unwrap_or_default(),
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned()),
        memory_gib().unwrap_or_default(),
        kernel.trim(),
        load.split(' ').next().unwrap_or_default(),
        bench.peers.versions().join(", "),
        bench.effort.rounds,
    )
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_gib() -> Option<u64> {
    let kib: u64 = field("/proc/meminfo", "MemTotal")?.strip_suffix(" kB")?.parse().ok()?;
    Some(kib.div_ceil(1 << 20))
}
