// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long it takes until a program that runs has a tree in its file system, and until it has none again.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::programs::{Process, run, seconds};
use crate::table::{Goal, Table, Unit};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const NAMESPACE: &str = "outrigger attach";
const SECCOMP: &str = "attach --via seccomp";
/// A debugger stops the program and lets it go.
const GDB: &str = "gdb";
/// Milliseconds of a second.
const MILLIS: f64 = 1e3;

/// Measures the group.
///
/// # Errors
/// When a program cannot be attached to.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let tree = bench.scratch.path().join("attached");
    fs::create_dir(&tree)?;
    let tree = &tree;
    let taken = |via, part: fn(&Taken) -> f64| -> Sampler<'_> {
        Box::new(move || Ok(Some(part(&attach_and_detach(bench, via, tree)?))))
    };
    let mut attaching = vec![
        (NAMESPACE, taken("namespace", |taken| taken.attach)),
        (SECCOMP, taken("seccomp", |taken| taken.attach)),
    ];
    if let Some(gdb) = &bench.peers.gdb {
        attaching.push((GDB, Box::new(|| debugged(gdb).map(Some))));
    }
    let detaching = vec![
        (NAMESPACE, taken("namespace", |taken| taken.detach)),
        (SECCOMP, taken("seccomp", |taken| taken.detach)),
    ];
    let goal = Goal::Limit { subject: NAMESPACE, limit: 10.0 };
    let rounds = bench.effort.rounds;
    let rows = vec![
        in_turns("from the command to the tree", Unit::Milliseconds, rounds, attaching)?.goal(goal),
        in_turns("from the command to none", Unit::Milliseconds, rounds, detaching)?,
    ];
    Ok(vec![Table { name: "attach", title: "a program that runs gets a tree".to_owned(), rows }])
}

/// Milliseconds.
struct Taken {
    attach: f64,
    detach: f64,
}

/// Gives a tree to a program that sleeps, and takes it away.
fn attach_and_detach(bench: &Bench, via: &str, tree: &Path) -> Result<Taken> {
    let sleeper = sleeper()?;
    let process = sleeper.id().to_string();
    let map = format!("/outrigger-bench={}", tree.display());
    let start = Instant::now();
    let mut attach = Command::new(&bench.outrigger);
    attach.args(["attach", "--via", via, "--no-hosts", "--mounts", "/dev/null", "--map", &map, &process]);
    let mut server = Process::start(attach.stdout(Stdio::null()).stderr(Stdio::piped()))?;
    let mut line = String::new();
    BufReader::new(server.stderr().context("standard error is a pipe")?).read_line(&mut line)?;
    let attach = start.elapsed().as_secs_f64() * MILLIS;
    ensure!(line.starts_with("attached to "), "{line}");
    let start = Instant::now();
    run(Command::new(&bench.outrigger).args(["detach", &process]))?;
    server.wait()?;
    Ok(Taken { attach, detach: start.elapsed().as_secs_f64() * MILLIS })
}

fn debugged(gdb: &Path) -> Result<f64> {
    let sleeper = sleeper()?;
    let process = sleeper.id().to_string();
    let taken = seconds(Command::new(gdb).args(["-nx", "-batch", "-p", &process]))?;
    Ok(taken * MILLIS)
}

fn sleeper() -> Result<Process> {
    Process::start(Command::new("sleep").arg("infinity"))
}
