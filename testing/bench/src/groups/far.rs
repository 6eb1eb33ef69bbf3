// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured of servers alike: a tree to list, much content, many small files.

use super::Bench;
use crate::compare::{Sampler, in_turns_cold};
use crate::mounts::Mount;
use crate::programs::shell_seconds;
use crate::table::{Row, Unit};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A subject that needs longer than this for one sample is not waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How often each subject is measured at most.
pub const ROUNDS: usize = 5;
/// The column of what is measured.
pub const OURS: &str = "outrigger";
const LARGE: usize = 256 << 20;
/// For how long a slow line carries the large file.
const LARGE_SECONDS: f64 = 10.0;
const SMALL: usize = 4 << 10;

/// A server, and the programs that mount what it has.
pub trait Far {
    /// The directory that [`fill`] has filled.
    fn store(&self) -> &Path;

    /// Those that mount, as far as they are here.
    fn subjects(&self, bench: &Bench) -> Vec<&'static str>;

    /// The command that mounts the store on `dir`, and stays in the foreground.
    ///
    /// # Errors
    /// When the program is missing.
    fn command(&self, bench: &Bench, subject: &'static str, dir: &Path) -> Result<Command>;
}

/// How long the large file is, in bytes.
pub fn large_size(bench: &Bench) -> usize {
    let carried = bench.way.rate.map_or(LARGE, |rate| (rate * LARGE_SECONDS) as usize);
    bench.scaled(LARGE).min(carried)
}

/// Makes what is read: 4000 files in 211 directories below `tree`, small files in `small`, and `large`.
///
/// # Errors
/// When `store` cannot be written.
pub fn fill(bench: &Bench, store: &Path) -> Result<()> {
    fs::create_dir_all(store.join("small"))?;
    let mut dirs = vec![store.join("tree")];
    for upper in 0..10 {
        let upper = dirs[0].join(format!("d{upper}"));
        dirs.push(upper.clone());
        dirs.extend((0..20).map(|lower| upper.join(format!("e{lower}"))));
    }
    dirs.iter().try_for_each(fs::create_dir_all)?;
    for file in 0..4000 {
        fs::write(dirs[file % dirs.len()].join(format!("file{file}")), [b'x'; 100])?;
    }
    for file in 0..bench.scaled(1000) {
        fs::write(store.join(format!("small/{file}")), vec![b'x'; SMALL])?;
    }
    let mut random = fastrand::Rng::with_seed(7);
    let content: Vec<u8> = (0..large_size(bench) / 8).flat_map(|_| random.u64(..).to_ne_bytes()).collect();
    Ok(fs::write(store.join("large"), content)?)
}

/// A script that copies the file `large` of `store` into the mount `$1`, and waits until `store` has it all: some peers write later.
pub fn copy_script(store: &Path) -> String {
    let (large, copy) = (store.join("large"), store.join("copy"));
    let (large, copy) = (large.display(), copy.display());
    format!(
        "cat {large} > \"$1/copy\"; until cmp -s -n 1 {large} {copy} && [ \"$(stat -c %s {copy})\" = \"$(stat -c %s {large})\" ]; do sleep 0.01; done"
    )
}

/// A script that makes small files in the mount `$1`, and waits until `store` has them all.
pub fn create_script(bench: &Bench, store: &Path) -> String {
    let (small, new) = (bench.scaled(1000), store.join("new"));
    let make = format!(
        "i=0; while [ $i -lt {small} ]; do head -c {SMALL} /dev/zero > \"$1/new/$i\"; i=$((i+1)); done"
    );
    let there = format!("$(find {} -name '[0-9]*' -size {SMALL}c | wc -l)", new.display());
    format!("{make}; until [ \"{there}\" = {small} ]; do sleep 0.05; done")
}

/// One script in a fresh mount of each subject, in which `$1` is the mountpoint; and one that needs no mount.
///
/// # Errors
/// When a mount does not come up, or a script fails.
pub fn row(
    bench: &Bench,
    far: &dyn Far,
    what: &str,
    script: &str,
    unmounted: Option<(&'static str, &str)>,
) -> Result<Row> {
    let mut all: Vec<(&str, Sampler<'_>)> = Vec::new();
    for subject in far.subjects(bench) {
        all.push((
            subject,
            Box::new(move || sample(bench, far, subject, script).or_else(|error| failed(subject, error))),
        ));
    }
    if let Some((subject, script)) = unmounted {
        all.push((subject, Box::new(move || shell_seconds(script, &[], PATIENCE))));
    }
    in_turns_cold(what, Unit::Seconds, bench.effort.rounds.min(ROUNDS), all)
}

/// A peer that fails has no figure; we must not fail.
///
/// # Errors
/// Why ours does.
pub fn failed(subject: &str, error: anyhow::Error) -> Result<Option<f64>> {
    ensure!(!subject.starts_with(OURS), error);
    eprintln!("{subject} fails: {error:#}");
    Ok(None)
}

fn sample(bench: &Bench, far: &dyn Far, subject: &'static str, script: &str) -> Result<Option<f64>> {
    let mount = fresh(bench, far, subject)?;
    shell_seconds(script, &[&mount.dir], PATIENCE).with_context(|| mount.printed())
}

/// A fresh mount of the store, without what was written in the last round.
///
/// # Errors
/// As [`Mount::start`].
pub fn fresh(bench: &Bench, far: &dyn Far, subject: &'static str) -> Result<Mount> {
    let (store, new) = (far.store(), far.store().join("new"));
    let _ = fs::remove_file(store.join("copy"));
    let _ = fs::remove_dir_all(&new);
    fs::create_dir(&new)?;
    let owner = fs::metadata(store)?;
    std::os::unix::fs::chown(&new, Some(owner.uid()), Some(owner.gid()))?;
    mounted(bench, far, subject)
}

/// A mount of the store.
///
/// # Errors
/// As [`Mount::start`].
pub fn mounted(bench: &Bench, far: &dyn Far, subject: &'static str) -> Result<Mount> {
    let dir = bench.mountpoint("far");
    Mount::start(subject, dir.clone(), far.command(bench, subject, &dir)?)
}

/// The command of a peer.
///
/// # Errors
/// When it is missing.
pub fn peer(path: &Option<PathBuf>) -> Result<Command> {
    path.clone().context("the peer is missing").map(Command::new)
}

/// The command with which rclone(1) mounts `remote`, and stores files as soon as they are closed.
///
/// # Errors
/// When rclone is missing.
pub fn rclone(bench: &Bench, remote: &str, dir: &Path) -> Result<Command> {
    let mut command = peer(&bench.peers.rclone)?;
    command.args(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes", "--vfs-write-back", "0s"]);
    command.arg(remote).arg(dir);
    Ok(command)
}
