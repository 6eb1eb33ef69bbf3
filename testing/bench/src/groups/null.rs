// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request costs when answering it costs nothing: the transport alone.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::files;
use crate::mounts::{self, Mount};
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::watch;
use anyhow::Result;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const OURS: &str = "outrigger";
const LIBFUSE: &str = "libfuse mt";
const FUSER: &str = "fuser";
/// How many requests system calls are counted for.
const COUNTED: u32 = 20_000;

/// Measures the group.
///
/// # Errors
/// When a server does not come up or fails.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let mounts = servers(bench)?;
    let mut rows = vec![
        fstat_row(bench, &mounts, "fstat, unpinned")?,
        mounts::pinned(&mounts, || fstat_row(bench, &mounts, "fstat, server on the client's CPU"))?
            .goal(Goal::Below { subject: OURS, factor: 1.0, than: FUSER }),
        open_row(bench, &mounts)?,
    ];
    if let Some(strace) = &bench.peers.strace {
        rows.extend(count_calls(&mounts, strace)?);
    }
    Ok(vec![Table { name: "null", title: "null tree".to_owned(), rows }])
}

fn servers(bench: &Bench) -> Result<Vec<Mount>> {
    let dir = bench.mountpoint("null-outrigger");
    let server = mounts::outrigger(&bench.outrigger, "null:", &dir, "attr_timeout=0,entry_timeout=0");
    let mut mounts = vec![Mount::start(OURS, dir, server)?];
    if let Some(program) = &bench.peers.null_libfuse {
        let dir = bench.mountpoint("null-libfuse");
        let mut server = Command::new(program);
        server.args(["-f", "-o", "default_permissions"]).arg(&dir);
        mounts.push(Mount::start(LIBFUSE, dir, server)?);
    }
    let dir = bench.mountpoint("null-fuser");
    let mut server = Command::new(std::env::current_exe()?);
    server.arg("--serve-null-with-fuser").arg(&dir);
    mounts.push(Mount::start(FUSER, dir, server)?);
    Ok(mounts)
}

fn fstat_row(bench: &Bench, mounts: &[Mount], what: &str) -> Result<Row> {
    let time = bench.effort.sample;
    let subjects = mounts.iter().map(|mount| {
        let file = mount.dir.join("file");
        (mount.name, Box::new(move || files::fstat_each(&file, time)) as Sampler<'_>)
    });
    let row = in_turns(what, Unit::Microseconds, bench.effort.rounds, subjects.collect())?;
    Ok(row.goal(Goal::Below { subject: OURS, factor: 0.75, than: LIBFUSE }))
}

fn open_row(bench: &Bench, mounts: &[Mount]) -> Result<Row> {
    let time = bench.effort.sample;
    let subjects = mounts.iter().map(|mount| {
        let file = mount.dir.join("file");
        (mount.name, Box::new(move || files::open_close_each(&file, time)) as Sampler<'_>)
    });
    in_turns("open and close, unpinned", Unit::Microseconds, bench.effort.rounds, subjects.collect())
}

/// System calls each server makes for one request, by name.
fn count_calls(mounts: &[Mount], strace: &Path) -> Result<Vec<Row>> {
    let mut counted: Vec<(&'static str, Vec<(String, f64)>)> = Vec::new();
    for mount in mounts {
        watch::step(&format!("counting system calls of {}", mount.name), Duration::from_secs(60));
        counted.push((mount.name, calls_per_request(mount, strace)?));
    }
    let mut names: Vec<&String> =
        counted.iter().flat_map(|(_, calls)| calls.iter().map(|(name, _)| name)).collect();
    names.sort();
    names.dedup();
    let rows = names.iter().map(|name| {
        let columns = counted.iter().map(|(server, calls)| {
            let count = calls.iter().find(|(call, _)| call == *name).map_or(0.0, |(_, count)| *count);
            ((*server).to_owned(), Samples { values: vec![count], gave_up: false })
        });
        let what = format!("{name}(2) calls for one fstat");
        Row { what, unit: Unit::Count, columns: columns.collect(), goals: Vec::new() }
    });
    Ok(rows.collect())
}

/// Attaches strace(1) to the server, makes requests, and reads its table of counts.
fn calls_per_request(mount: &Mount, strace: &Path) -> Result<Vec<(String, f64)>> {
    let table = mount.dir.with_extension("strace");
    let mut tracer = Command::new(strace)
        .args(["-f", "-c", "-U", "name,calls", "-o"])
        .arg(&table)
        .args(["-p", &mount.pid().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    watch::adopt(tracer.id());
    while !all_traced(mount.pid())? {
        std::thread::sleep(Duration::from_millis(5));
    }
    let made = files::fstat_times(&mount.dir.join("file"), COUNTED);
    watch::kill(tracer.id(), Signal::INT);
    tracer.wait()?;
    watch::forget(tracer.id());
    made?;
    let text = fs::read_to_string(&table)?;
    let counts = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, calls) = (words.next()?, words.next()?.parse::<f64>().ok()?);
        let each = calls / f64::from(COUNTED);
        // Opening the file, and threads that come and go, are not what is counted.
        (name != "total" && each >= 0.01).then(|| (name.to_owned(), each))
    });
    Ok(counts.collect())
}

/// Whether every thread of the process has a tracer.
fn all_traced(pid: u32) -> Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        if status.lines().any(|line| line == "TracerPid:\t0") {
            return Ok(false);
        }
    }
    Ok(true)
}
