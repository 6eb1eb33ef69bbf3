// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that programs do on a tree.

use crate::mounted::{Mounted, Place};
use crate::snapshot::{self, Snapshot};
use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A load: done in an empty directory; what it leaves there is compared.
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// What it takes of what `make deps` and test-programs.sh provide.
    pub needs: Option<&'static str>,
    /// Whether it makes symbolic links, and gives files to other users.
    pub is_unix: bool,
    /// Does it once.
    pub work: fn(&Place, &Path) -> Result<()>,
}

/// The source of zlib, as Debian has it.
const SOURCE: &str = "zlib.orig.tar";

/// The loads of the paper's table: a sort, the build of a program, and the small files of a mail server.
pub const OF_TABLE: &[Load] = &[
    Load { name: "sort", needs: None, is_unix: false, work: sort },
    Load { name: "build", needs: Some(SOURCE), is_unix: true, work: build },
    Load { name: "postmark", needs: None, is_unix: false, work: postmark },
];

/// Loads for a long time: every operation on one file, a tree packed, unpacked and compared, and a sort.
pub const OF_SOAK: &[Load] = &[
    Load { name: "fsx", needs: Some("bin/fsx"), is_unix: false, work: fsx },
    Load { name: "tar and diff", needs: None, is_unix: false, work: tar_and_diff },
    Load { name: "sort", needs: None, is_unix: false, work: sort },
];

impl Load {
    /// Whether everything it takes is there; says so when not.
    pub fn is_here(&self, place: &Place) -> bool {
        let missing = self.needs.map(|name| place.tool(name)).filter(|path| !path.exists());
        if let Some(missing) = &missing {
            println!("SKIPPED: {}: there is no {}", self.name, missing.display());
        }
        missing.is_none()
    }

    /// What it leaves in a directory made for it below `parent`.
    pub fn leaves(&self, place: &Place, parent: &Path) -> Result<Snapshot> {
        let dir = parent.join("run");
        fs::create_dir(&dir)?;
        (self.work)(place, &dir)?;
        let left = snapshot::take(&dir)?;
        fs::remove_dir_all(&dir)?;
        Ok(left)
    }

    /// Does it on a mount that is hurt meanwhile, and removes what it left. How long it took; an error when it failed, or
    /// left anything but what was expected.
    pub fn endure(&self, place: &Place, mounted: &Mounted, expected: &Snapshot) -> Result<Duration> {
        let dir = mounted.dir.join("run");
        fs::create_dir(&dir)?;
        let began = Instant::now();
        (self.work)(place, &dir)?;
        let took = began.elapsed();
        let wrong = snapshot::differences(expected, &snapshot::take(&dir)?);
        let some: Vec<&str> = wrong.iter().take(5).map(String::as_str).collect();
        ensure!(wrong.is_empty(), "{} differences: {}", wrong.len(), some.join("; "));
        fs::remove_dir_all(&dir).context("removing what it left")?;
        Ok(took)
    }
}

fn shell(dir: &Path, script: &str) -> Result<()> {
    shell_with(dir, script, &[])
}

fn shell_with(dir: &Path, script: &str, environment: &[(&str, String)]) -> Result<()> {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn sort(_: &Place, dir: &Path) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    let lines: String = (0..200_000).map(|_| format!("{:016x}\n", random.u64(..))).collect();
    fs::write(dir.join("unsorted"), lines)?;
    shell(dir, "mkdir tmp && sort -S 1M -T tmp -o sorted unsorted && sort -c sorted && rmdir tmp")
}

/// A real C project. Its archives hold no times (`ar D`), and its log of the configuration does.
fn build(place: &Place, dir: &Path) -> Result<()> {
    let source = place.tool(SOURCE);
    let script = "exec >/dev/null; tar xf \"$SOURCE\" && cd zlib-* && ./configure && make -s -j2 && make -s check && rm configure.log";
    let environment = [("SOURCE", source.display().to_string()), ("ARFLAGS", "rcD".to_owned())];
    shell_with(dir, script, &environment)
}

/// Random operations whose results fsx itself knows.
fn fsx(place: &Place, dir: &Path) -> Result<()> {
    let configuration = place.scratch().join("fsx.toml");
    let operations = include_str!("../../tools/fsx.toml");
    let all = if has_holes(dir)? {
        operations.to_owned()
    } else {
        operations.replace("punch_hole = 5", "punch_hole = 0")
    };
    fs::write(&configuration, all)?;
    let script = "\"$FSX\" -N 10000 -S 5 -f \"$CONFIGURATION\" -P \"$SCRATCH\" file 2>&1 | tail -n 20 | tee /dev/stderr | grep A-OK";
    let paths = [
        ("FSX", place.tool("bin/fsx")),
        ("CONFIGURATION", configuration),
        ("SCRATCH", place.scratch().to_owned()),
    ];
    shell_with(dir, script, &paths.map(|(name, path)| (name, path.display().to_string())))
}

/// Whether holes can be made in files.
fn has_holes(dir: &Path) -> Result<bool> {
    let probe = dir.join("probe");
    let file = File::create(&probe)?;
    file.set_len(1 << 16)?;
    let made = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 12);
    fs::remove_file(&probe)?;
    match made {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        made => Ok(made.map(|()| true)?),
    }
}

/// A tree of many small files and a few large ones, into an archive and out of it.
fn tar_and_diff(_: &Place, dir: &Path) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(13);
    for number in 0..300_usize {
        let below = dir.join("tree").join(format!("d{}", number % 17));
        fs::create_dir_all(&below)?;
        let len = if number % 50 == 0 { 1 << 20 } else { random.usize(..9000) };
        fs::write(below.join(format!("f{number}")), vec![random.u8(..); len])?;
    }
    shell(
        dir,
        "mkdir copy && tar cf archive --mtime=@0 --sort=name -C tree . && tar xf archive -C copy && diff -r tree copy \
         && tar df archive -C copy && rm -r tree",
    )
}

/// Small files made, read, appended to and removed in random order, after PostMark (Katcher, 1997).
fn postmark(_: &Place, dir: &Path) -> Result<()> {
    use std::io::Write;
    let mut random = fastrand::Rng::with_seed(11);
    let mut files: Vec<u32> = Vec::new();
    let path = |number: u32| dir.join(format!("s{}", number % 10)).join(format!("f{number}"));
    (0..10).try_for_each(|number| fs::create_dir(dir.join(format!("s{number}"))))?;
    for next in 0..4000_u32 {
        match random.u8(..4) {
            0 if files.len() > 100 => {
                let gone = files.swap_remove(random.usize(..files.len()));
                fs::remove_file(path(gone)).with_context(|| format!("removing {gone}"))?;
            }
            1 if !files.is_empty() => {
                let one = files[random.usize(..files.len())];
                fs::OpenOptions::new().append(true).open(path(one))?.write_all(&[random.u8(..); 700])?;
            }
            2 if !files.is_empty() => {
                let one = files[random.usize(..files.len())];
                ensure!(!fs::read(path(one))?.is_empty(), "file {one} is empty");
            }
            _ => {
                fs::write(path(next), vec![random.u8(..); 500 + random.usize(..9000)])?;
                files.push(next);
            }
        }
    }
    Ok(())
}
