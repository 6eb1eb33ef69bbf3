// SPDX-License-Identifier: MIT OR Apache-2.0
//! What being guarded costs while nothing dies: our own mounts beside the same with `--no-guard`, and a FUSE program
//! under `outrigger guard` beside itself.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::files;
use crate::mounts::{self, Mount};
use crate::table::{Goal, Row, Table, Unit};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

const GUARDED: &str = "outrigger";
const ALONE: &str = "outrigger --no-guard";
const GUARDED_PROGRAM: &str = "guard -- bindfs";
const BINDFS: &str = "bindfs";

const MIB: usize = 1 << 20;
/// No TTLs for attributes and names, so that each call is a request.
const UNCACHED: &str = "attr_timeout=0,entry_timeout=0";

/// Measures the group.
///
/// # Errors
/// When a server does not come up or fails.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let mut tables = vec![own(bench)?];
    if let Some(program) = &bench.peers.bindfs {
        tables.push(foreign(bench, program)?);
    }
    Ok(tables)
}

/// Trees of ours: requests without work, changes in memory, content in memory.
fn own(bench: &Bench) -> Result<Table> {
    let (null, mem) = (pair(bench, "null:")?, pair(bench, "mem:")?);
    let (time, size) = (bench.effort.sample, bench.scaled(512) * MIB);
    let metadata = Goal::Below { subject: GUARDED, factor: 1.03, than: ALONE };
    let data = Goal::Above { subject: GUARDED, factor: 0.99, than: ALONE };
    for mount in &mem {
        std::fs::write(mount.dir.join("big"), vec![7; size])?;
    }
    let fstat =
        |what| row(bench, what, Unit::Microseconds, &null, |dir| files::fstat_each(&dir.join("file"), time));
    let create =
        |what| row(bench, what, Unit::Microseconds, &mem, |dir| files::create_unlink_each(dir, time));
    let rate = Unit::MegabytesPerSecond;
    let read = |what| row(bench, what, rate, &mem, |dir| files::read_rate(&dir.join("big"), true));
    let write = |what| row(bench, what, rate, &mem, |dir| files::write_rate(dir, size / 2));
    let rows = vec![
        mounts::pinned(&null, || fstat("fstat, null tree, one CPU"))?.goal(metadata),
        mounts::pinned(&mem, || create("create, close, unlink, mem, one CPU"))?.goal(metadata),
        mounts::pinned(&mem, || read("sequential read, mem, one CPU"))?.goal(data),
        mounts::pinned(&mem, || write("sequential write of a new file, mem, one CPU"))?.goal(data),
        fstat("fstat, null tree")?.goal(metadata),
        create("create, close, unlink, mem")?.goal(metadata),
        read("sequential read, mem")?.goal(data),
        write("sequential write of a new file, mem")?.goal(data),
    ];
    Ok(Table { name: "guard", title: "guarded or not".to_owned(), rows })
}

/// The same tree with and without a keeper.
fn pair(bench: &Bench, source: &str) -> Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    for (name, arguments) in [(GUARDED, &[][..]), (ALONE, &["--no-guard"])] {
        let dir = bench.mountpoint(&format!("{}-{}", source.trim_end_matches(':'), arguments.len()));
        let mut server = mounts::outrigger(&bench.outrigger, source, &dir, UNCACHED);
        server.args(arguments);
        mounts.push(Mount::start(name, dir, server)?);
    }
    Ok(mounts)
}

/// bindfs under `outrigger guard`, and bindfs.
fn foreign(bench: &Bench, program: &Path) -> Result<Table> {
    let source = bench.mountpoint("bindfs-source");
    std::fs::create_dir_all(&source)?;
    std::fs::write(source.join("file"), "some content")?;
    let size = bench.scaled(256) * MIB;
    std::fs::write(source.join("big"), vec![7; size])?;
    let command = |dir: &Path| {
        let mut server = Command::new(program);
        server.args(["-f", "--multithreaded", "-o", UNCACHED]).args([&source, dir]);
        server
    };
    let (guarded, direct) = (bench.mountpoint("bindfs-guarded"), bench.mountpoint("bindfs-direct"));
    let bindfs = command(&guarded);
    let mut guard = Command::new(&bench.outrigger);
    guard.args(["guard", "--foreground", "--"]).arg(bindfs.get_program()).args(bindfs.get_args());
    let mounts = [
        Mount::start(GUARDED_PROGRAM, guarded.clone(), guard)?,
        Mount::start(BINDFS, direct.clone(), command(&direct))?,
    ];
    let time = bench.effort.sample;
    let goal = Goal::Below { subject: GUARDED_PROGRAM, factor: 1.5, than: BINDFS };
    let fstat = |what| {
        row(bench, what, Unit::Microseconds, &mounts, |dir| files::fstat_each(&dir.join("file"), time))
    };
    let rows = vec![
        mounts::pinned(&mounts, || fstat("fstat, one CPU"))?.goal(goal),
        fstat("fstat")?.goal(goal),
        row(bench, "create, close, unlink", Unit::Microseconds, &mounts, |dir| {
            files::create_unlink_each(dir, time)
        })?,
        row(bench, "sequential read", Unit::MegabytesPerSecond, &mounts, |dir| {
            files::read_rate(&dir.join("big"), true)
        })?,
        row(bench, "sequential write of a new file", Unit::MegabytesPerSecond, &mounts, |dir| {
            files::write_rate(dir, size / 2)
        })?,
    ];
    Ok(Table { name: "guard-bindfs", title: "a FUSE program under outrigger guard".to_owned(), rows })
}

fn row<'a>(
    bench: &Bench,
    what: &str,
    unit: Unit,
    mounts: &'a [Mount],
    sample: impl Fn(&Path) -> Result<Option<f64>> + Copy + 'a,
) -> Result<Row> {
    let samplers =
        mounts.iter().map(|mount| (mount.name, Box::new(move || sample(&mount.dir)) as Sampler<'_>));
    in_turns(what, unit, bench.effort.rounds, samplers.collect())
}
