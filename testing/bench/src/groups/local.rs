// SPDX-License-Identifier: MIT OR Apache-2.0
//! A host directory through FUSE: the `local` driver beside libfuse's example, bindfs and the directory itself.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::files;
use crate::mounts::{self, Mount};
use crate::scratch::Ground;
use crate::table::{Goal, Row, Table, Unit};
use crate::trees;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const NATIVE: &str = "native";
const OURS: &str = "outrigger";
const USER_SPACE: &str = "outrigger, no_passthrough";
const LIBFUSE: &str = "passthrough_ll";
const BINDFS: &str = "bindfs";

const NAMES: usize = 10_000;
const MIB: usize = 1 << 20;

/// A directory to measure in.
struct Subject {
    name: &'static str,
    dir: PathBuf,
}

/// Measures the group on ext4 and on tmpfs.
///
/// # Errors
/// When a server does not come up or fails.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ext4 = Ground::ext4(&bench.scratch, "ext4", 4 << 30, 100_000)?;
    let first = on(bench, &ext4, "local-ext4", "directory on ext4")?;
    drop(ext4);
    let tmpfs = Ground::tmpfs(&bench.scratch, "tmpfs", 3 << 30, 100_000)?;
    let second = on(bench, &tmpfs, "local-tmpfs", "directory on tmpfs")?;
    Ok(vec![first, second])
}

fn on(bench: &Bench, ground: &Ground, name: &'static str, title: &str) -> Result<Table> {
    let dir = ground.dir();
    std::fs::write(dir.join("file"), "some content")?;
    trees::flat(&dir.join("many"), NAMES)?;
    trees::big_file(&dir.join("big"), bench.scaled(1024) * MIB)?;
    let mut rows = uncached(bench, dir)?;
    rows.extend(cached(bench, dir)?);
    rows.extend(content(bench, dir)?);
    Ok(Table { name, title: title.to_owned(), rows })
}

/// Mounts `dir` with every server; `seconds` is how long names and attributes are cached.
fn servers(bench: &Bench, dir: &Path, seconds: u32) -> Result<Vec<Mount>> {
    let source = dir.to_string_lossy();
    let mut mounts = Vec::new();
    let timeouts = format!("attr_timeout={seconds},entry_timeout={seconds}");
    for (name, options) in [(OURS, timeouts.clone()), (USER_SPACE, format!("{timeouts},no_passthrough"))] {
        let mountpoint = bench.mountpoint(&name.replace([',', ' '], "-"));
        let server = mounts::outrigger(&bench.outrigger, &source, &mountpoint, &options);
        mounts.push(Mount::start(name, mountpoint, server)?);
    }
    if let Some(program) = &bench.peers.passthrough_ll {
        let mountpoint = bench.mountpoint(LIBFUSE);
        let mut server = Command::new(program);
        let options = format!("source={source},timeout={seconds},cache=auto,default_permissions");
        server.args(["-f", "-o", &options]).arg(&mountpoint);
        mounts.push(Mount::start(LIBFUSE, mountpoint, server)?);
    }
    if let Some(program) = &bench.peers.bindfs {
        let mountpoint = bench.mountpoint(BINDFS);
        let mut server = Command::new(program);
        server.args(["-f", "--multithreaded", "-o", &timeouts]).args([dir, &mountpoint]);
        mounts.push(Mount::start(BINDFS, mountpoint, server)?);
    }
    Ok(mounts)
}

fn subjects(dir: &Path, mounts: &[Mount]) -> Vec<Subject> {
    let native = Subject { name: NATIVE, dir: dir.to_owned() };
    let mounted = mounts.iter().map(|mount| Subject { name: mount.name, dir: mount.dir.clone() });
    std::iter::once(native).chain(mounted).collect()
}

/// One row: `sample` for each subject in turns.
fn row<'a>(
    bench: &Bench,
    what: &str,
    unit: Unit,
    subjects: &'a [Subject],
    sample: impl Fn(&Subject) -> Result<Option<f64>> + Copy + 'a,
) -> Result<Row> {
    let samplers =
        subjects.iter().map(|subject| (subject.name, Box::new(move || sample(subject)) as Sampler<'_>));
    in_turns(what, unit, bench.effort.rounds, samplers.collect())
}

/// Operations on names, with nothing cached.
fn uncached(bench: &Bench, dir: &Path) -> Result<Vec<Row>> {
    let mounts = servers(bench, dir, 0)?;
    let subjects = subjects(dir, &mounts);
    let time = bench.effort.sample;
    let goal = Goal::Below { subject: OURS, factor: 0.6, than: LIBFUSE };
    let one = Unit::Microseconds;
    Ok(vec![
        row(bench, "stat, not cached", one, &subjects, |s| files::stat_each(&s.dir.join("file"), time))?
            .goal(goal),
        row(bench, "open and close", one, &subjects, |s| files::open_close_each(&s.dir.join("file"), time))?
            .goal(goal),
        row(bench, "create, close, unlink", one, &subjects, |s| files::create_unlink_each(&s.dir, time))?
            .goal(goal),
        row(bench, "names of a directory of 10,000, each", one, &subjects, |s| {
            files::names_each(&s.dir.join("many"), NAMES, time)
        })?,
    ])
}

/// Attributes the kernel has cached.
fn cached(bench: &Bench, dir: &Path) -> Result<Vec<Row>> {
    let mounts = servers(bench, dir, 3600)?;
    let subjects = subjects(dir, &mounts);
    let time = bench.effort.sample;
    let stat = row(bench, "stat, cached", Unit::Microseconds, &subjects, |s| {
        files::stat_each(&s.dir.join("file"), time)
    })?;
    Ok(vec![stat.goal(Goal::Below { subject: OURS, factor: 1.3, than: NATIVE })])
}

/// Reading and writing a big file that the host has in its page cache.
fn content(bench: &Bench, dir: &Path) -> Result<Vec<Row>> {
    let mounts = servers(bench, dir, 1)?;
    let subjects = subjects(dir, &mounts);
    let rate = Unit::MegabytesPerSecond;
    let size = bench.scaled(1024) * MIB;
    let read = row(bench, "sequential read, 128 KiB at once", rate, &subjects, |s| {
        files::read_rate(&s.dir.join("big"), s.name != NATIVE)
    })?;
    let write = row(bench, "sequential write of a new file", rate, &subjects, |s| {
        files::write_rate(&s.dir, size / 2)
    })?;
    let random = |what: &str, jobs: u64| {
        let time = bench.effort.sample.min(Duration::from_millis(200));
        row(bench, what, Unit::Microseconds, &subjects, move |s| {
            files::random_read_each(&s.dir.join("big"), jobs, time)
        })
    };
    Ok(vec![
        read.goal(Goal::Above { subject: OURS, factor: 0.95, than: NATIVE }).goal(Goal::Above {
            subject: USER_SPACE,
            factor: 0.65,
            than: NATIVE,
        }),
        write,
        random("random read of 4 KiB, 1 job", 1)?,
        random("random read of 4 KiB, 2 jobs", 2)?,
    ])
}
