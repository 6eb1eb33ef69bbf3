// SPDX-License-Identifier: MIT OR Apache-2.0
//! An encrypted directory, beside gocryptfs(1).

use super::Bench;
use crate::files;
use crate::mounts::{self, Mount};
use crate::programs::run;
use crate::scratch::Ground;
use crate::table::{Table, Unit};
use crate::trees;
use anyhow::Result;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const OURS: &str = "outrigger";
const GOCRYPTFS: &str = "gocryptfs";
/// Bytes that are written and read.
const SIZE: usize = 256 << 20;
/// Files that are unpacked.
const FILES: usize = 5000;

/// Measures the group.
///
/// # Errors
/// When a tree cannot be made, or a server does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::ext4(&bench.scratch, "crypt", 4 << 30, 200_000)?;
    let pass = ground.dir().join("pass");
    fs::write(&pass, "a passphrase\n")?;
    fs::set_permissions(&pass, Permissions::from_mode(0o600))?;
    let archive = packed(bench, ground.dir())?;
    let mut mounts = vec![ours(bench, ground.dir(), &pass)?];
    if let Some(program) = &bench.peers.gocryptfs {
        mounts.push(theirs(bench, program, ground.dir(), &pass)?);
    }
    let size = if bench.quick { SIZE / 10 } else { SIZE };
    for mount in &mounts {
        trees::big_file(&mount.dir.join("big"), size)?;
    }
    let rate = Unit::MegabytesPerSecond;
    let rows = vec![
        bench.on_mounts("write a new file", rate, &mounts, |mount| files::write_rate(&mount.dir, size))?,
        bench.on_mounts("read a file", rate, &mounts, |mount| {
            files::read_rate(&mount.dir.join("big"), true)
        })?,
        bench.on_mounts("untar", Unit::Seconds, &mounts, |mount| unpack(&mount.dir, &archive))?,
    ];
    Ok(vec![Table { name: "crypt", title: "an encrypted directory on ext4".to_owned(), rows }])
}

/// An archive of small files.
fn packed(bench: &Bench, ground: &Path) -> Result<PathBuf> {
    let (tree, archive) = (ground.join("tree"), ground.join("tree.tar"));
    fs::create_dir(&tree)?;
    trees::source_tree(&tree, bench.scaled(FILES))?;
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
    Ok(archive)
}

fn unpack(dir: &Path, archive: &Path) -> Result<Option<f64>> {
    let into = dir.join("unpacked");
    fs::create_dir(&into)?;
    let start = Instant::now();
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&into))?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_dir_all(&into)?;
    Ok(Some(seconds))
}

fn ours(bench: &Bench, ground: &Path, pass: &Path) -> Result<Mount> {
    let below = ground.join(OURS);
    fs::create_dir(&below)?;
    run(Command::new(&bench.outrigger).args(["crypt", "init", "--passfile"]).arg(pass).arg(&below))?;
    let dir = bench.mountpoint(OURS);
    let mut server = mounts::outrigger(&bench.outrigger, &below.to_string_lossy(), &dir, "");
    server.arg("--layer").arg(format!("crypt=passfile={}", pass.display()));
    Mount::start(OURS, dir, server)
}

fn theirs(bench: &Bench, program: &Path, ground: &Path, pass: &Path) -> Result<Mount> {
    let below = ground.join(GOCRYPTFS);
    fs::create_dir(&below)?;
    run(Command::new(program).args(["-q", "-init", "-passfile"]).arg(pass).arg(&below))?;
    let dir = bench.mountpoint(GOCRYPTFS);
    let mut server = Command::new(program);
    server.args(["-q", "-fg", "-passfile"]).args([pass, &below, &dir]);
    Mount::start(GOCRYPTFS, dir, server)
}
