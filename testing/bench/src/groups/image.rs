// SPDX-License-Identifier: MIT OR Apache-2.0
//! A disk image with ext4: commands on it beside a mount by the kernel of this machine, and our mount beside fuse2fs.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::files;
use crate::mounts::{self, Mount};
use crate::programs::{run, seconds};
use crate::scratch::{self, Ground};
use crate::table::{Goal, Row, Table, Unit};
use crate::trees;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const OURS: &str = "outrigger";
const UNGUARDED: &str = "outrigger --no-guard";
const HOST: &str = "loop mount";
const FUSE2FS: &str = "fuse2fs";
const FILES: usize = 20_000;
const BULK: usize = 512 << 20;
const SIZE: u64 = 2 << 30;
const ROUNDS: usize = 5;

/// What is done: `$1` is the image, `$2` a directory to mount it on, `$3` our program, `$4` where the tree is that is
/// copied, `$5` the command to measure.
const HOST_SCRIPT: &str =
    r#"mount -o loop "$1" "$2" && { eval "$5"; s=$?; umount "$2" && sync "$1" && exit $s; }"#;
const OUR_SCRIPT: &str = r#"eval "$5" && sync "$1""#;

/// Images and what is copied.
struct Sample {
    empty: PathBuf,
    full: PathBuf,
    /// The image that is written to.
    image: PathBuf,
    tree: PathBuf,
    bulk: PathBuf,
    out: PathBuf,
    dir: PathBuf,
}

/// Measures the group. Rows of whole commands have mounting, unmounting and sync in them.
///
/// # Errors
/// When an image cannot be made, or a command fails.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "image", 8 << 30, 300_000)?;
    let sample = prepare(bench, ground.dir())?;
    let (files, mib) = (bench.scaled(FILES), bench.scaled(BULK) >> 20);
    let (list, copy) = (format!("ls -lR of {files} files"), format!("cp -R of {files} files into it"));
    let mut rows = vec![
        beside_host(bench, &sample, &list, r#"ls -lR "$2""#, r#""$3" ls -lR "$1::/""#)?,
        beside_host(bench, &sample, &copy, r#"cp -R "$4/tree" "$2""#, r#""$3" cp -R "$4/tree" "$1::/""#)?,
        beside_host(
            bench,
            &sample,
            &format!("cp of {mib} MiB into it"),
            r#"cp "$4/bulk" "$2""#,
            r#""$3" cp "$4/bulk" "$1::/""#,
        )?,
        beside_host(
            bench,
            &sample,
            &format!("cp of {mib} MiB out of it"),
            r#"cp "$2/bulk" "$4/out""#,
            r#""$3" cp "$1::/bulk" "$4/out""#,
        )?,
    ];
    rows.push(first_answer(bench, &sample)?);
    let mut tables = vec![Table { name: "image", title: "ext4 in a file".to_owned(), rows }];
    if bench.peers.fuse2fs.is_some() {
        tables.push(Table {
            name: "image-mount",
            title: "mounted".to_owned(),
            rows: mounted(bench, &sample)?,
        });
    }
    Ok(tables)
}

fn prepare(bench: &Bench, dir: &Path) -> Result<Sample> {
    let path = |name: &str| dir.join(name);
    let sample = Sample {
        empty: path("empty"),
        full: path("full"),
        image: path("image"),
        tree: path("tree"),
        bulk: path("bulk"),
        out: path("out"),
        dir: path("mounted"),
    };
    trees::source_tree(&sample.tree, bench.scaled(FILES))?;
    trees::big_file(&sample.bulk, bench.scaled(BULK))?;
    fs::create_dir(&sample.dir)?;
    fs::File::create(&sample.empty)?.set_len(SIZE)?;
    let initialise = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", initialise]).arg(&sample.empty))?;
    duplicate(&sample.empty, &sample.full)?;
    let fill = r#"cp -R "$4/tree" "$4/bulk" "$2""#;
    run(&mut script(HOST_SCRIPT, bench, &sample, &sample.full, fill))?;
    Ok(sample)
}

/// Copies an image; holes stay holes.
fn duplicate(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").args([from, to]))
}

fn script(script: &str, bench: &Bench, sample: &Sample, image: &Path, what: &str) -> Command {
    let mut command = Command::new("sh");
    let place = sample.tree.parent().unwrap_or(&sample.tree);
    command.env("LC_ALL", "C").args(["-c", script, "sh"]).arg(image).arg(&sample.dir).arg(&bench.outrigger);
    command.arg(place).arg(what);
    command
}

/// One command of the host's on a mount of the image, and ours on the image: each with mounting, unmounting, sync.
fn beside_host(bench: &Bench, sample: &Sample, what: &str, theirs: &str, ours: &str) -> Result<Row> {
    let writes = what.ends_with("into it");
    let timed = |whole: &str, part: &str| -> Result<Option<f64>> {
        if sample.out.exists() {
            fs::remove_file(&sample.out)?;
        }
        let image = if writes { &sample.image } else { &sample.full };
        if writes {
            duplicate(&sample.empty, &sample.image)?;
        }
        seconds(&mut script(whole, bench, sample, image, part)).map(Some)
    };
    let row = in_turns(
        what,
        Unit::Seconds,
        bench.effort.rounds.min(ROUNDS),
        vec![
            (HOST, Box::new(|| timed(HOST_SCRIPT, theirs)) as Sampler<'_>),
            (OURS, Box::new(|| timed(OUR_SCRIPT, ours))),
        ],
    )?;
    scratch::release(&sample.dir);
    Ok(row.goal(Goal::Below { subject: OURS, factor: 1.05, than: HOST }))
}

/// From the start of a command to its end, when it has little to do.
fn first_answer(bench: &Bench, sample: &Sample) -> Result<Row> {
    let listed = || -> Result<Option<f64>> {
        let mut image = sample.full.clone().into_os_string();
        image.push("::/");
        Ok(Some(seconds(Command::new(&bench.outrigger).arg("ls").arg(image))? * 1e3))
    };
    let subjects = vec![(OURS, Box::new(listed) as Sampler<'_>)];
    let row = in_turns("ls of the root", Unit::Milliseconds, bench.effort.rounds, subjects)?;
    Ok(row.goal(Goal::Limit { subject: OURS, limit: 50.0 }))
}

/// The servers on images of their own, at work in turns.
fn mounted(bench: &Bench, sample: &Sample) -> Result<Vec<Row>> {
    let fuse2fs = bench.peers.fuse2fs.as_ref().context("fuse2fs is missing")?;
    let start = |name: &'static str| -> Result<Mount> {
        let place = name.replace(' ', "");
        let (image, dir) = (sample.dir.with_file_name(format!("{place}.img")), bench.mountpoint(&place));
        duplicate(&sample.full, &image)?;
        let server = match name {
            OURS => mounts::outrigger(&bench.outrigger, &image.to_string_lossy(), &dir, ""),
            UNGUARDED => mounts::outrigger(&bench.outrigger, &image.to_string_lossy(), &dir, "guard=none"),
            _ => {
                let mut server = Command::new(fuse2fs);
                server.args([&image, &dir]).args(["-f", "-o", "fakeroot"]);
                server
            }
        };
        Mount::start(name, dir, server)
    };
    let all = [start(FUSE2FS)?, start(OURS)?, start(UNGUARDED)?];
    let each = |what: &str, unit, sampler: &dyn Fn(&Mount) -> Result<Option<f64>>| -> Result<Row> {
        let mut subjects: Vec<(&str, Sampler<'_>)> = Vec::new();
        for mount in &all {
            subjects.push((mount.name, Box::new(move || sampler(mount))));
        }
        in_turns(what, unit, bench.effort.rounds.min(ROUNDS), subjects)
    };
    let time = bench.effort.sample;
    let rate = |factor| Goal::Above { subject: OURS, factor, than: FUSE2FS };
    let quick = Goal::Below { subject: OURS, factor: 0.2, than: FUSE2FS };
    let bulk = bench.scaled(BULK);
    let (mib, files) = (bulk >> 20, bench.scaled(FILES));
    let rows = vec![
        each("create, close and unlink", Unit::Microseconds, &|mount| {
            files::create_unlink_each(&mount.dir, time)
        })?
        .goal(quick),
        each("cp -R of the tree and rm -r", Unit::Seconds, &|mount| copied(sample, mount))?.goal(quick),
        each(&format!("{files} files in one directory, made and removed"), Unit::Seconds, &|mount| {
            files::crowd(&mount.dir, files)
        })?
        .goal(quick),
        each(&format!("write {mib} MiB"), Unit::MegabytesPerSecond, &|mount| {
            files::write_rate(&mount.dir, bulk)
        })?
        .goal(rate(1.5)),
        each(&format!("read {mib} MiB"), Unit::MegabytesPerSecond, &|mount| {
            files::read_rate(&mount.dir.join("bulk"), true)
        })?
        .goal(rate(1.5)),
    ];
    Ok(rows)
}

fn copied(sample: &Sample, mount: &Mount) -> Result<Option<f64>> {
    let mut command = Command::new("sh");
    command.args(["-c", r#"cp -R "$1" "$2/copy" && rm -r "$2/copy""#, "sh"]).args([&sample.tree, &mount.dir]);
    seconds(&mut command).map(Some)
}
