// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an SSH server, over a line on which an answer takes 5 ms: listing, much content, many small files.

mod slow;

use super::Bench;
use super::far::{self, Far, OURS, PATIENCE, ROUNDS, large_size, mounted, row};
use crate::mounts;
use crate::scratch::Ground;
use crate::table::{Goal, Table};
use anyhow::Result;
use outrigger_remote::{HOST, Line, Sshd};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SSHFS: &str = "sshfs";
const RCLONE: &str = "rclone";
/// `ssh HOST cat`, which is as fast as ssh is.
const CAT: &str = "ssh cat";
/// The same as ours, with nothing that outlives the process that serves.
const UNGUARDED: &str = "outrigger --no-guard";
/// The server, the way to it, and what it has.
struct Ssh {
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
    let (local, create) = (far::copy_script(&far.store), far::create_script(bench, &far.store));
    let small = bench.scaled(1000);
    let mb = large_size(bench) >> 20;
    let mut rows = vec![
        row(bench, &far, "ls -lR of 4000 files in 211 directories", r#"ls -lR "$1/tree""#, None)?
            .goal(Goal::Below { subject: OURS, factor: 1.0 / 6.0, than: SSHFS }),
        row(bench, &far, &format!("read of {mb} MiB"), r#"cat "$1/large" > /dev/null"#, Some((CAT, &cat)))?
            .goal(Goal::Below { subject: OURS, factor: 1.15, than: CAT }),
        row(bench, &far, &format!("write of {mb} MiB"), &local, Some((CAT, &put)))?.goal(Goal::Below {
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

/// Starts the server and makes what is read.
fn prepare(bench: &Bench, dir: &Path) -> Result<Ssh> {
    let (keys, store) = (dir.join("sshd"), dir.join("store"));
    fs::create_dir(&keys)?;
    far::fill(bench, &store)?;
    let sshd = Sshd::start(keys)?;
    let line = Line::slow(sshd.port(), bench.way.delay, bench.way.rate)?;
    let configuration = sshd.configuration_by(line.port())?;
    Ok(Ssh { sshd, line, configuration, store })
}

impl Far for Ssh {
    fn store(&self) -> &Path {
        &self.store
    }

    fn subjects(&self, bench: &Bench) -> Vec<&'static str> {
        let missing = |subject: &str| match subject {
            SSHFS => bench.peers.sshfs.is_none(),
            RCLONE => bench.peers.rclone.is_none(),
            _ => false,
        };
        [OURS, UNGUARDED, SSHFS, RCLONE].into_iter().filter(|subject| !missing(subject)).collect()
    }

    fn command(&self, bench: &Bench, subject: &str, dir: &Path) -> Result<Command> {
        let (store, configuration) = (self.store.display(), self.configuration.display());
        let (source, option) = (format!("{HOST}:{store}"), format!("F={configuration}"));
        if subject == SSHFS {
            let mut command = far::peer(&bench.peers.sshfs)?;
            command.arg("-f").args(["-F", &configuration.to_string(), &source]).arg(dir);
            return Ok(command);
        }
        if subject != RCLONE {
            let mut command = mounts::outrigger(&bench.outrigger, &source, dir, &option);
            command.args((subject == UNGUARDED).then_some("--no-guard"));
            return Ok(command);
        }
        let (port, key) = (self.line.port(), self.sshd.key());
        let remote = format!(":sftp,host=127.0.0.1,port={port},user=root,key_file={}:{store}", key.display());
        far::rclone(bench, &remote, dir)
    }
}
