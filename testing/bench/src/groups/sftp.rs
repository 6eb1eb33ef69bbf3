// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an SSH server, over a line on which an answer takes 5 ms: listing, much content, many small files.

mod slow;

use super::Bench;
use crate::compare::{Sampler, in_turns_cold};
use crate::mounts::{self, Mount};
use crate::programs::shell_seconds;
use crate::scratch::Ground;
use crate::table::{Goal, Row, Table, Unit};
use anyhow::{Context, Result};
use outrigger_remote::{HOST, Line, Sshd};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const OURS: &str = "outrigger";
const SSHFS: &str = "sshfs";
const RCLONE: &str = "rclone";
/// `ssh HOST cat`, which is as fast as ssh is.
const CAT: &str = "ssh cat";
/// The same as ours, with nothing that outlives the process that serves.
const UNGUARDED: &str = "outrigger --no-guard";
/// A subject that needs longer than this for one sample is not waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 5;
const LARGE: usize = 256 << 20;
/// For how long a slow line carries the large file.
const LARGE_SECONDS: f64 = 10.0;
const SMALL: usize = 4 << 10;

/// The server, the way to it, and what it has.
struct Far {
    sshd: Sshd,
    line: Line,
    configuration: PathBuf,
    store: PathBuf,
}

/// Measures the group.
///
/// # Errors
/// When the server cannot be started, or a mount does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "sftp", 2 << 30, 100_000)?;
    let far = prepare(bench, ground.dir())?;
    let over_ssh = |script: &str| format!("ssh -F {} {HOST} {script}", far.configuration.display());
    let (large, copy) = (far.store.join("large"), far.store.join("copy"));
    let cat = over_ssh(&format!("cat {} > /dev/null", large.display()));
    let put = format!("{} < {}", over_ssh(&format!("'cat > {}'", copy.display())), large.display());
    let local = format!("cat {} > \"$1/copy\"", large.display());
    let small = bench.scaled(1000);
    let create = format!(
        "i=0; while [ $i -lt {small} ]; do head -c {SMALL} /dev/zero > \"$1/new/$i\"; i=$((i+1)); done"
    );
    let mb = large_size(bench) >> 20;
    let mut rows = vec![
        row(bench, &far, "ls -lR of 4000 files in 211 directories", r#"ls -lR "$1/tree""#, None)?
            .goal(Goal::Below { subject: OURS, factor: 1.0 / 6.0, than: SSHFS }),
        row(bench, &far, &format!("read of {mb} MiB"), r#"cat "$1/large" > /dev/null"#, Some(&cat))?
            .goal(Goal::Below { subject: OURS, factor: 1.15, than: CAT }),
        row(bench, &far, &format!("write of {mb} MiB"), &local, Some(&put))?.goal(Goal::Below {
            subject: OURS,
            factor: 1.15,
            than: CAT,
        }),
        row(bench, &far, &format!("read of {small} files of 4 KiB"), r#"cat "$1"/small/*"#, None)?
            .goal(Goal::Below { subject: OURS, factor: 1.0 / 8.0, than: SSHFS }),
        row(bench, &far, &format!("write of {small} files of 4 KiB"), &create, None)?,
    ];
    if let Some(rate) = bench.way.rate {
        rows.extend(slow::rows(bench, &far, rate, &cat)?);
    }
    let carries = bench.way.rate.map_or_else(String::new, |rate| format!(" at {} Mbit/s", rate * 8.0 / 1e6));
    let title = format!("a mount made for each sample, {} ms away{carries}", bench.way.delay.as_millis());
    Ok(vec![Table { name: "sftp", title, rows }])
}

/// How long the large file is, in bytes.
fn large_size(bench: &Bench) -> usize {
    let carried = bench.way.rate.map_or(LARGE, |rate| (rate * LARGE_SECONDS) as usize);
    bench.scaled(LARGE).min(carried)
}

/// Starts the server and makes what is read.
fn prepare(bench: &Bench, dir: &Path) -> Result<Far> {
    let (keys, store) = (dir.join("sshd"), dir.join("store"));
    fs::create_dir(&keys)?;
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
    fs::write(store.join("large"), content)?;
    let sshd = Sshd::start(keys)?;
    let line = Line::slow(sshd.port(), bench.way.delay, bench.way.rate)?;
    let configuration = sshd.configuration_by(line.port())?;
    Ok(Far { sshd, line, configuration, store })
}

/// Those that mount, as far as they are here.
fn subjects(bench: &Bench) -> Vec<&'static str> {
    let missing = |subject: &str| match subject {
        SSHFS => bench.peers.sshfs.is_none(),
        RCLONE => bench.peers.rclone.is_none(),
        _ => false,
    };
    [OURS, UNGUARDED, SSHFS, RCLONE].into_iter().filter(|subject| !missing(subject)).collect()
}

/// One script in a fresh mount of each subject, in which `$1` is the mountpoint, and without any mount.
fn row(bench: &Bench, far: &Far, what: &str, script: &str, unmounted: Option<&str>) -> Result<Row> {
    let mut all: Vec<(&str, Sampler<'_>)> = Vec::new();
    for subject in subjects(bench) {
        all.push((subject, Box::new(move || sample(bench, far, subject, script))));
    }
    if let Some(script) = unmounted {
        all.push((CAT, Box::new(move || shell_seconds(script, &[], PATIENCE))));
    }
    in_turns_cold(what, Unit::Seconds, bench.effort.rounds.min(ROUNDS), all)
}

fn sample(bench: &Bench, far: &Far, subject: &'static str, script: &str) -> Result<Option<f64>> {
    // What was written in the last round.
    let _ = fs::remove_file(far.store.join("copy"));
    let _ = fs::remove_dir_all(far.store.join("new"));
    fs::create_dir(far.store.join("new"))?;
    let mount = mounted(bench, far, subject)?;
    shell_seconds(script, &[&mount.dir], PATIENCE)
}

fn mounted(bench: &Bench, far: &Far, subject: &'static str) -> Result<Mount> {
    let dir = bench.mountpoint("far");
    Mount::start(subject, dir.clone(), far.command(bench, subject, &dir)?)
}

impl Far {
    /// The command that mounts the store on `dir`.
    fn command(&self, bench: &Bench, subject: &str, dir: &Path) -> Result<Command> {
        let (store, configuration) = (self.store.display(), self.configuration.display());
        let (source, option) = (format!("{HOST}:{store}"), format!("F={configuration}"));
        let peer = |path: &Option<PathBuf>| path.clone().context("the peer is missing").map(Command::new);
        let mut command = match subject {
            SSHFS => peer(&bench.peers.sshfs)?,
            RCLONE => peer(&bench.peers.rclone)?,
            _ => {
                let mut command = mounts::outrigger(&bench.outrigger, &source, dir, &option);
                command.args((subject == UNGUARDED).then_some("--no-guard"));
                return Ok(command);
            }
        };
        if subject == SSHFS {
            command.arg("-f").args(["-F", &configuration.to_string(), &source]).arg(dir);
            return Ok(command);
        }
        let (port, key) = (self.line.port(), self.sshd.key());
        let remote = format!(":sftp,host=127.0.0.1,port={port},user=root,key_file={}:{store}", key.display());
        command.args(["mount", "--config", "/dev/null", "--vfs-cache-mode", "writes", &remote]).arg(dir);
        Ok(command)
    }
}
