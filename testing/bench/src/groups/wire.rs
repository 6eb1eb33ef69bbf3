// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory that another outrigger serves by way of ssh, over a line on which an answer takes 5 ms: the time of what programs do,
//! and how many round trips passed meanwhile.

use super::Bench;
use super::far::{self, Far, OURS, PATIENCE, ROUNDS, failed, fresh, large_size};
use crate::compare::{Sampler, in_turns_cold};
use crate::mounts;
use crate::programs::{run, shell_seconds};
use crate::scratch::Ground;
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::trees;
use anyhow::{Context, Result};
use outrigger_remote::{HOST, Line, Sshd};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The same with writes and new files that are not waited for.
const BEHIND: &str = "outrigger, write=behind";
/// The same directory by sftp.
const SFTP: &str = "outrigger, sftp";
const SSHFS: &str = "sshfs";
/// `ssh HOST cat`, which is as fast as ssh is.
const CAT: &str = "ssh cat";
/// Files of the archive that is unpacked.
const UNPACKED: usize = 500;

/// The server, the way to it, and what it has.
struct Site {
    line: Line,
    configuration: PathBuf,
    store: PathBuf,
    program: PathBuf,
    _sshd: Sshd,
}

/// Measures the group.
///
/// # Errors
/// When the server cannot be started, or a mount does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "wire", 2 << 30, 100_000)?;
    let site = prepare(bench, ground.dir())?;
    let over_ssh = |script: &str| format!("ssh -F {} {HOST} {script}", site.configuration.display());
    let (large, copy) = (site.store.join("large"), site.store.join("copy"));
    let cat = over_ssh(&format!("cat {} > /dev/null", large.display()));
    let put = format!("{} < {}", over_ssh(&format!("'cat > {}'", copy.display())), large.display());
    let mb = large_size(bench) >> 20;
    let like_ssh = || Goal::Below { subject: OURS, factor: 1.1, than: CAT };
    let job = |what: &str, script: &str, by_ssh| rows(bench, &site, what, script, by_ssh);
    let [listing, listing_trips] =
        job("ls -lR of 4000 files in 211 directories", r#"ls -lR "$1/tree""#, None)?;
    let [read, _] = job(&format!("read of {mb} MiB"), r#"cat "$1/large" > /dev/null"#, Some(&cat))?;
    let [write, _] = job(&format!("write of {mb} MiB"), &far::copy_script(&site.store), Some(&put))?;
    let [untar, untar_trips] = job(&format!("untar of {UNPACKED} files"), &untar_script(&site.store), None)?;
    let most = |subject, limit| Goal::Limit { subject, limit };
    let rows = vec![
        listing,
        listing_trips.goal(most(OURS, 3.0)),
        read.goal(like_ssh()),
        write.goal(like_ssh()),
        untar,
        untar_trips.goal(most(BEHIND, 0.2 * UNPACKED as f64)),
    ];
    let title = format!("a mount made for each sample, {} ms away", bench.way.delay.as_millis());
    Ok(vec![Table { name: "wire", title, rows }])
}

/// Starts the server and makes what is read.
fn prepare(bench: &Bench, dir: &Path) -> Result<Site> {
    let (keys, store) = (dir.join("sshd"), dir.join("store"));
    fs::create_dir(&keys)?;
    far::fill(bench, &store)?;
    trees::source_tree(&store.join("sources"), UNPACKED)?;
    run(Command::new("tar").args(["-cf", "sources.tar", "sources"]).current_dir(&store))?;
    let sshd = Sshd::start(keys)?;
    let line = Line::slow(sshd.port(), bench.way.delay, bench.way.rate)?;
    let configuration = sshd.configuration_by(line.port())?;
    let program = fs::canonicalize(&bench.outrigger)?;
    Ok(Site { line, configuration, store, program, _sshd: sshd })
}

/// A script that unpacks `sources.tar` of `store` in the mount `$1`, and waits until `store` has all of it.
fn untar_script(store: &Path) -> String {
    let sizes =
        |dir: &str| format!("$(find {}/{dir}/ -type f -printf '%P %s\\n' | sort | cksum)", store.display());
    format!(
        r#"tar -xf {}/sources.tar -C "$1/new"; until [ "{}" = "{}" ]; do sleep 0.01; done"#,
        store.display(),
        sizes("new/sources"),
        sizes("sources")
    )
}

/// How long a script takes in a fresh mount of each subject, in which `$1` is the mountpoint, and how many round trips; and how long one
/// takes that needs no mount.
fn rows(bench: &Bench, site: &Site, what: &str, script: &str, by_ssh: Option<&str>) -> Result<[Row; 2]> {
    let subjects = site.subjects(bench);
    let trips: Vec<RefCell<Vec<f64>>> = subjects.iter().map(|_| RefCell::default()).collect();
    let mut all: Vec<(&str, Sampler<'_>)> = Vec::new();
    for (&subject, trips) in subjects.iter().zip(&trips) {
        let sampler = move || {
            let sample = || {
                let mount = fresh(bench, site, subject)?;
                let before = site.line.trips();
                let seconds =
                    shell_seconds(script, &[&mount.dir], PATIENCE).with_context(|| mount.printed())?;
                trips.borrow_mut().push((site.line.trips() - before) as f64);
                Ok(seconds)
            };
            sample().or_else(|error| failed(subject, error))
        };
        all.push((subject, Box::new(sampler)));
    }
    if let Some(script) = by_ssh {
        all.push((CAT, Box::new(move || shell_seconds(script, &[], PATIENCE))));
    }
    let time = in_turns_cold(what, Unit::Seconds, bench.effort.rounds.min(ROUNDS), all)?;
    let columns = subjects.iter().zip(trips).map(|(subject, trips)| {
        ((*subject).to_owned(), Samples { values: trips.into_inner(), gave_up: false })
    });
    let what = format!("round trips of that {}", what.split(' ').next().unwrap_or_default());
    Ok([time, Row { what, unit: Unit::Count, columns: columns.collect(), goals: Vec::new() }])
}

impl Far for Site {
    fn store(&self) -> &Path {
        &self.store
    }

    fn subjects(&self, bench: &Bench) -> Vec<&'static str> {
        let sshfs = bench.peers.sshfs.as_ref().map(|_| SSHFS);
        [OURS, BEHIND, SFTP].into_iter().chain(sshfs).collect()
    }

    fn command(&self, bench: &Bench, subject: &'static str, dir: &Path) -> Result<Command> {
        let (store, configuration) = (self.store.display(), self.configuration.display());
        let by_path = format!("{HOST}:{store}");
        if subject == SSHFS {
            let mut command = far::peer(&bench.peers.sshfs)?;
            command.arg("-f").args(["-F", &configuration.to_string(), &by_path]).arg(dir);
            return Ok(command);
        }
        if subject == SFTP {
            return Ok(mounts::outrigger(&bench.outrigger, &by_path, dir, &format!("F={configuration}")));
        }
        let behind = if subject == BEHIND { ",write=behind" } else { "" };
        let options = format!("F={configuration},command={}{behind}", self.program.display());
        Ok(mounts::outrigger(&bench.outrigger, &format!("ssh://{HOST}{store}"), dir, &options))
    }
}
