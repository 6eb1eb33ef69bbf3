// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the suite on every driver, as a service and through a FUSE mount, and writes docs/MATRIX.md.
//!
//! `cargo run -p outrigger-conformance --example matrix [FILE]`; exits with 1 when a case failed. Servers are started for it, on ports of
//! the loopback device. What is not possible here is left out, and said to be.

mod document;
mod local;
mod servers;
mod trees;

use outrigger_conformance::Outcome as CaseOutcome;
use outrigger_conformance::mount::{self, Mounted, obstacle};
use outrigger_conformance::{Direct, HostDir, Kind, Report, Target, run_until};
use outrigger_core::{Abilities, OpSet};
use outrigger_runtime::Threads;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trees::{Outcome, Subject};

/// How long all cases of one column may take. A request of a driver has a deadline of its own.
const LIMIT: Duration = Duration::from_secs(300);

/// How a tree is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Service,
    Fuse,
    Native,
}

/// How every case ended on one tree.
struct Column {
    name: &'static str,
    door: Door,
    report: Report,
}

fn on_service(subject: &Subject, dir: &Path) -> Outcome<Report> {
    let tree = (subject.start)(dir)?;
    let threads = Arc::new(Threads::new());
    let direct = Direct::new((tree.open)(&threads)?);
    let exceptions = subject.direct.concat();
    let target =
        Target { abilities: direct.abilities(), has_sample: subject.has_sample, exceptions: &exceptions };
    Ok(run_until(Instant::now() + LIMIT, &direct, &target))
}

fn on_directory(dir: &Path, kind: Kind, ops: OpSet, subject: &Subject) -> Outcome<Report> {
    let opened = HostDir::new(dir, kind).map_err(|errno| format!("{}: {errno}", dir.display()))?;
    let has_sample = subject.has_sample;
    let abilities = Abilities { read_only: has_sample, ..Abilities::new("host", "", ops) };
    let exceptions = subject.mounted.concat();
    let target = Target { abilities: &abilities, has_sample, exceptions: &exceptions };
    Ok(run_until(Instant::now() + LIMIT, &opened, &target))
}

fn on_mount(subject: &Subject, dir: &Path) -> Outcome<Report> {
    let mountpoint = trees::directory()?;
    let tree = (subject.start)(dir)?;
    let threads = Arc::new(Threads::new());
    // Closed before the mount is made: an image has one user at a time.
    let ops = (tree.open)(&threads)?.abilities().ops;
    let mounted = Mounted::new(&tree.location, mountpoint.path(), &tree.options, LIMIT)?;
    on_directory(mounted.dir(), Kind::Fuse, mount::ops(ops), subject)
}

/// Runs the suite on a tree in a thread of its own: `local` acts as its callers, for which it changes the rights of the thread it runs on.
fn column(
    name: &'static str,
    door: Door,
    run: impl FnOnce(&Path) -> Outcome<Report> + Send,
) -> Outcome<Column> {
    let begun = Instant::now();
    let dir = trees::directory()?;
    let run = || run(dir.path()).map_err(|error| error.to_string());
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    let report = ended.unwrap_or_else(|_| Err("the thread has panicked".into()));
    let report = report.map_err(|error| format!("{name}, {door:?}: {error}"))?;
    let (passed, skipped, failed) = report.counts();
    let (door_name, seconds) = (format!("{door:?}"), begun.elapsed().as_secs());
    println!(
        "{name:<14} {door_name:<8} {passed:>4} passed {skipped:>4} skipped {failed:>4} failed {seconds:>4} s"
    );
    for (case, outcome) in &report.results {
        if let CaseOutcome::Failed(why) = outcome {
            println!("  FAIL {case}: {why}");
        }
    }
    Ok(Column { name, door, report })
}

fn all_columns() -> Outcome<Vec<Column>> {
    let mut columns = Vec::new();
    let mounts = obstacle();
    if let Some(reason) = &mounts {
        println!("SKIPPED: mounts: {reason}");
    }
    for subject in local::SUBJECTS.iter().chain(servers::SUBJECTS) {
        if let Some(missing) = (subject.missing)() {
            println!("SKIPPED: {}: there is no {missing}", subject.name);
            continue;
        }
        if subject.is_service {
            columns.push(column(subject.name, Door::Service, |dir| on_service(subject, dir))?);
        }
        if mounts.is_none() {
            columns.push(column(subject.name, Door::Fuse, |dir| on_mount(subject, dir))?);
        }
    }
    columns.push(column("native", Door::Native, |dir| {
        on_directory(dir, Kind::Native, OpSet::all(), &local::NATIVE)
    })?);
    Ok(columns)
}

fn main() -> ExitCode {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/MATRIX.md");
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(default), PathBuf::from);
    let written = all_columns().and_then(|columns| {
        std::fs::write(&file, document::text(&columns))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(columns)
    });
    match written {
        Ok(columns) => ExitCode::from(u8::from(columns.iter().any(|column| column.report.counts().2 > 0))),
        Err(error) => {
            eprintln!("matrix: {error}");
            ExitCode::from(2)
        }
    }
}
