// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resident memory of servers after much has been looked at.

use super::Bench;
use crate::files;
use crate::mounts::{self, Mount};
use crate::scratch::Ground;
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::trees;
use crate::watch;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OURS: &str = "outrigger";
const BINDFS: &str = "bindfs";
const FILES: usize = 1_000_000;
const DEADLINE: Duration = Duration::from_secs(580);

/// Resident bytes of one server.
struct Resident {
    name: &'static str,
    before: u64,
    after: u64,
    peak: u64,
}

/// Measures the group.
///
/// # Errors
/// When the files cannot be made, or a server does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let files = bench.scaled(FILES);
    let inodes = u64::try_from(files)? * 11 / 10 + 10_000;
    let ground = Ground::ext4(&bench.scratch, "memory", 4 << 30, inodes)?;
    eprintln!("making {files} files");
    watch::step("making files", DEADLINE);
    trees::empty_files(ground.dir(), files)?;
    let mut all = vec![walked(bench, ground.dir(), OURS, files)?];
    if bench.peers.bindfs.is_some() {
        all.push(walked(bench, ground.dir(), BINDFS, files)?);
    }
    let walk = format!("after a walk of {files} files");
    let rows = vec![
        row("mounted", &all, |resident| resident.before),
        row(&walk, &all, |resident| resident.after).goal(Goal::Limit { subject: OURS, limit: 30.0 }),
        row("most during the walk", &all, |resident| resident.peak),
    ];
    Ok(vec![Table { name: "memory", title: "resident memory of a server".to_owned(), rows }])
}

fn row(what: &str, all: &[Resident], value: fn(&Resident) -> u64) -> Row {
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 bytes")]
    let columns = all.iter().map(|resident| {
        (resident.name.to_owned(), Samples { values: vec![value(resident) as f64 / 1e6], gave_up: false })
    });
    Row { what: what.to_owned(), unit: Unit::Megabytes, columns: columns.collect(), goals: Vec::new() }
}

/// Mounts `source` with one server, asks for the attributes of every file, and looks at the server.
fn walked(bench: &Bench, source: &Path, name: &'static str, files: usize) -> Result<Resident> {
    let dir = bench.mountpoint(name);
    let server = if name == OURS {
        mounts::outrigger(&bench.outrigger, &source.to_string_lossy(), &dir, "")
    } else {
        let mut server = Command::new(bench.peers.bindfs.as_ref().context("bindfs is missing")?);
        server.arg("-f").args([source, &dir]);
        server
    };
    let mount = Mount::start(name, dir, server)?;
    let (before, _) = mount.resident()?;
    eprintln!("walking them with {name}");
    watch::step(&format!("a walk of {name}"), DEADLINE);
    let found = files::walk(&mount.dir)?;
    ensure!(found >= u64::try_from(files)?, "{name}: the walk found {found} files of {files}");
    let (after, peak) = mount.resident()?;
    Ok(Resident { name, before, after, peak })
}
