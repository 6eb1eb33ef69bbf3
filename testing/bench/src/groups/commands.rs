// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands beside those of the system, on plain directories.

use super::Bench;
use crate::compare::{Sampler, in_turns, micros_each};
use crate::programs::{run, seconds};
use crate::scratch::Ground;
use crate::table::{Row, Table, Unit};
use crate::trees;
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::process::Command;

const OURS: &str = "outrigger";
const GNU: &str = "GNU";
const FILES: usize = 20_000;

/// Measures the group.
///
/// # Errors
/// When a command fails.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "commands", 2 << 30, 200_000)?;
    let (tree, copy, small) =
        (ground.dir().join("tree"), ground.dir().join("copy"), ground.dir().join("small"));
    let files = bench.scaled(FILES);
    trees::source_tree(&tree, files)?;
    trees::flat(&small, 10)?;
    let rounds = bench.effort.rounds.min(7);
    let copied = |command: Command| copied(command, &tree, &copy);
    let rows = vec![
        in_turns(
            &format!("cp -a of {files} files"),
            Unit::Seconds,
            rounds,
            vec![
                (GNU, Box::new(|| copied(gnu("cp"))) as Sampler<'_>),
                (OURS, Box::new(|| copied(ours(bench, "cp")))),
            ],
        )?,
        listed(bench, &format!("ls -lR of {files} files"), &["-lR"], &tree)?,
        listed(bench, "ls -l of 10 files: start-up", &["-l"], &small)?,
        started(bench)?,
    ];
    Ok(vec![Table { name: "commands", title: "command".to_owned(), rows }])
}

fn gnu(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("LC_ALL", "C");
    command
}

fn ours(bench: &Bench, name: &str) -> Command {
    let mut command = Command::new(&bench.outrigger);
    command.env("LC_ALL", "C").arg(name);
    command
}

fn copied(mut command: Command, tree: &Path, copy: &Path) -> Result<Option<f64>> {
    if copy.exists() {
        fs::remove_dir_all(copy)?;
    }
    seconds(command.arg("-a").args([tree, copy])).map(Some)
}

fn listed(bench: &Bench, what: &str, arguments: &[&str], dir: &Path) -> Result<Row> {
    let listed = |mut command: Command| -> Result<Option<f64>> {
        command.args(arguments).arg(dir);
        // Several runs: one of a small directory takes about a millisecond.
        let each = micros_each(bench.effort.sample, || run(&mut command).map_err(std::io::Error::other))?;
        Ok(each.map(|micros| micros / 1e3))
    };
    in_turns(
        what,
        Unit::Milliseconds,
        bench.effort.rounds,
        vec![
            (GNU, Box::new(|| listed(gnu("ls"))) as Sampler<'_>),
            (OURS, Box::new(|| listed(ours(bench, "ls")))),
        ],
    )
}

/// A program that does nothing but start.
fn started(bench: &Bench) -> Result<Row> {
    let version = |mut command: Command| -> Result<Option<f64>> {
        command.arg("--version");
        let each = micros_each(bench.effort.sample, || run(&mut command).map_err(std::io::Error::other))?;
        Ok(each.map(|micros| micros / 1e3))
    };
    in_turns(
        "--version",
        Unit::Milliseconds,
        bench.effort.rounds,
        vec![
            (GNU, Box::new(|| version(gnu("ls"))) as Sampler<'_>),
            (OURS, Box::new(|| version(Command::new(&bench.outrigger)))),
        ],
    )
}
