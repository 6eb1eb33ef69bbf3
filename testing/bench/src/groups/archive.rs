// SPDX-License-Identifier: MIT OR Apache-2.0
//! An archive of 100,000 files as a tree: opening it, listing it, reading all of it.

use super::Bench;
use crate::compare::{Sampler, in_turns_cold};
use crate::mounts::{self, Mount};
use crate::programs::{run, shell_seconds};
use crate::scratch::Ground;
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::trees;
use anyhow::{Context, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const OURS: &str = "outrigger";
const RATARMOUNT: &str = "ratarmount";
const ARCHIVEMOUNT: &str = "archivemount";
const FILES: usize = 100_000;
/// A peer that needs longer than this for one step is not waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 5;

const LIST: &str = r#"ls -lR "$1""#;
const READ: &str = r#"find "$1" -type f -print0 | xargs -0 cat"#;

/// The archive and where its indexes are kept.
struct Sample {
    archive: PathBuf,
    caches: PathBuf,
    bytes: u64,
    entries: u64,
}

impl Sample {
    /// `FILE::/` of the command line.
    fn location(&self) -> String {
        format!("{}::/", self.archive.display())
    }

    /// As if the archive had never been opened. Its own content stays in the page cache.
    fn forget_indexes(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.caches)?;
        fs::create_dir(&self.caches)
    }

    fn outrigger(&self, bench: &Bench) -> Command {
        let mut command = Command::new(&bench.outrigger);
        command.env("XDG_CACHE_HOME", &self.caches);
        command
    }
}

/// What one server needed for each step; nothing for a step not waited for.
#[derive(Clone, Copy)]
struct Steps {
    open: f64,
    list: Option<f64>,
    read: Option<f64>,
}

/// Measures the group.
///
/// # Errors
/// When the archive cannot be made, or a server does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "archive", 4 << 30, 300_000)?;
    let sample = prepare(bench, ground.dir())?;
    let mut rows = commands(bench, &sample)?;
    rows.extend(openings(bench, &sample)?);
    rows.extend(mounted(bench, &sample)?);
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let packed = megabytes(fs::metadata(&sample.archive)?.len());
    let title = format!(".tar.zst, {} entries, {} in {packed}", sample.entries, megabytes(sample.bytes));
    Ok(vec![Table { name: "archive", title, rows }])
}

/// Makes the archive; the tree it is made of is removed again.
fn prepare(bench: &Bench, dir: &Path) -> Result<Sample> {
    eprintln!("making an archive");
    let tree = dir.join("tree");
    trees::source_tree(&tree, bench.scaled(FILES))?;
    let archive = dir.join("tree.tar.zst");
    // The same bytes each time: sorted names, one owner, one time.
    let normal = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@1700000000"];
    run(Command::new("tar")
        .args(normal)
        .args(["-I", "zstd -3", "-cf"])
        .arg(&archive)
        .arg("-C")
        .args([dir, Path::new("tree")]))?;
    let (entries, bytes) = totals(&tree)?;
    fs::remove_dir_all(&tree)?;
    let caches = dir.join("caches");
    fs::create_dir(&caches)?;
    Ok(Sample { archive, caches, bytes, entries })
}

/// How many entries a tree has, with its root, and how many bytes all files together.
fn totals(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return Ok((1, metadata.len()));
    }
    fs::read_dir(path)?.try_fold((1, 0), |(entries, bytes), entry| {
        let (more, larger) = totals(&entry?.path())?;
        Ok((entries + more, bytes + larger))
    })
}

/// Commands that look into the archive without a mount, without and with an index from before.
fn commands(bench: &Bench, sample: &Sample) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (command, arguments) in [("ls", &["-lR"][..]), ("find", &[])] {
        let timed = || -> Result<Option<f64>> {
            let mut program = sample.outrigger(bench);
            program.arg(command).args(arguments).arg(sample.location());
            crate::programs::seconds(&mut program).map(Some)
        };
        let first: Sampler<'_> =
            Box::new(|| sample.forget_indexes().map_err(Into::into).and_then(|()| timed()));
        let what = [&["outrigger", command], arguments].concat().join(" ");
        rows.push(in_turns_cold(
            &format!("{what}, first time"),
            Unit::Seconds,
            rounds(bench),
            vec![(OURS, first)],
        )?);
        let again: Sampler<'_> = Box::new(timed);
        rows.push(in_turns_cold(
            &format!("{what}, index there"),
            Unit::Seconds,
            rounds(bench),
            vec![(OURS, again)],
        )?);
    }
    Ok(rows)
}

fn rounds(bench: &Bench) -> usize {
    bench.effort.rounds.min(ROUNDS)
}

/// Opening the archive by a command that asks for one entry, and what its index takes.
fn openings(bench: &Bench, sample: &Sample) -> Result<Vec<Row>> {
    let opened = |cold: bool| -> Result<Option<f64>> {
        if cold {
            sample.forget_indexes()?;
        }
        let start = Instant::now();
        run(sample.outrigger(bench).args(["stat", &sample.location()]))?;
        Ok(Some(start.elapsed().as_secs_f64() * 1e3))
    };
    let first: Sampler<'_> = Box::new(|| opened(true));
    let first =
        in_turns_cold("outrigger stat, first time", Unit::Milliseconds, rounds(bench), vec![(OURS, first)])?;
    let again: Sampler<'_> = Box::new(|| opened(false));
    let again =
        in_turns_cold("outrigger stat, index there", Unit::Milliseconds, rounds(bench), vec![(OURS, again)])?;
    let (_, index) = totals(&sample.caches)?;
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 bytes")]
    let each = Samples { values: vec![index as f64 / sample.entries as f64], gave_up: false };
    let size = Row {
        what: "kept index, each entry".to_owned(),
        unit: Unit::Bytes,
        columns: vec![(OURS.to_owned(), each)],
        goals: Vec::new(),
    };
    Ok(vec![
        first,
        again.goal(Goal::Limit { subject: OURS, limit: 50.0 }),
        size.goal(Goal::Limit { subject: OURS, limit: 200.0 }),
    ])
}

/// Mounts: until the root answers, `ls -lR`, reading all files; without and with an index from before.
fn mounted(bench: &Bench, sample: &Sample) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (when, cold) in [("first time", true), ("index there", false)] {
        let mut servers: Vec<(&'static str, Vec<Steps>)> = vec![(OURS, Vec::new())];
        servers.extend(bench.peers.ratarmount.as_ref().map(|_| (RATARMOUNT, Vec::new())));
        // It keeps no index, so that there is no second time.
        servers
            .extend(bench.peers.archivemount.as_ref().filter(|_| cold).map(|_| (ARCHIVEMOUNT, Vec::new())));
        for _ in 0..rounds(bench) {
            for (server, steps) in &mut servers {
                // What was not waited for is not tried again.
                let patient =
                    steps.last().is_none_or(|last: &Steps| last.list.is_some() && last.read.is_some());
                if patient {
                    steps.push(one_mount(bench, sample, server, cold)?);
                }
            }
        }
        let row = |what: &str, value: fn(&Steps) -> Option<f64>| {
            step_row(&format!("{what}, {when}"), &servers, value)
        };
        rows.push(row("mount", |steps| Some(steps.open)));
        let faster = Goal::Below { subject: OURS, factor: 1.0, than: RATARMOUNT };
        rows.push(row("ls -lR of the mount", |steps| steps.list).goal(faster));
        rows.push(row("cat of all files", |steps| steps.read).goal(faster));
    }
    Ok(rows)
}

fn step_row(what: &str, servers: &[(&'static str, Vec<Steps>)], value: fn(&Steps) -> Option<f64>) -> Row {
    let columns = servers.iter().map(|(name, steps)| {
        let values: Vec<f64> = steps.iter().filter_map(value).collect();
        let gave_up = values.is_empty();
        ((*name).to_owned(), Samples { values, gave_up })
    });
    Row { what: what.to_owned(), unit: Unit::Seconds, columns: columns.collect(), goals: Vec::new() }
}

/// Mounts the archive with `server`, lists it, reads it, unmounts it.
fn one_mount(bench: &Bench, sample: &Sample, server: &'static str, cold: bool) -> Result<Steps> {
    eprintln!("measuring: mount, list and read with {server}");
    if cold {
        sample.forget_indexes()?;
    }
    let dir = bench.mountpoint(server);
    let command = match server {
        OURS => {
            let mut command = mounts::outrigger(&bench.outrigger, &sample.location(), &dir, "");
            command.env("XDG_CACHE_HOME", &sample.caches);
            command
        }
        RATARMOUNT => {
            let mut command = Command::new(bench.peers.ratarmount.as_ref().context("ratarmount is missing")?);
            command.arg("--foreground").arg("--index-folders").args([&sample.caches, &sample.archive, &dir]);
            command
        }
        _ => {
            let mut command =
                Command::new(bench.peers.archivemount.as_ref().context("archivemount is missing")?);
            command.args(["-f", "-o", "readonly"]).args([&sample.archive, &dir]);
            command
        }
    };
    let mount = Mount::start(server, dir, command)?;
    crate::watch::step(&format!("reading the mount of {server}"), PATIENCE * 3);
    let list = shell_seconds(LIST, &[&mount.dir], PATIENCE)?;
    let read = shell_seconds(READ, &[&mount.dir], PATIENCE)?;
    Ok(Steps { open: mount.opened_in, list, read })
}
