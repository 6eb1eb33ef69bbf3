// SPDX-License-Identifier: MIT OR Apache-2.0
//! Benchmarks of Outrigger beside other programs that do the same.
//!
//! Each row of a table is one measurement of several subjects. They are measured in turns (A B C A B C ...), at least
//! five times, because a machine is slower at one minute than at another: what counts is the ratio of two subjects in
//! the same round, and the median of these ratios. Nothing here is a test and nothing fails because it is slow.
//!
//! Everything that is mounted, started or written is below one scratch directory (`target/bench-scratch.*`), has a
//! deadline, and is taken away however the run ends. A peer that is not installed is left out, with a line that says so.
//!
//! Limits: needs root (mounts, loop devices, pinning the threads of others) and Linux.

#![forbid(unsafe_code)]

mod compare;
mod document;
mod files;
mod groups;
mod machine;
mod mounts;
mod null_fuser;
mod peers;
mod priority;
mod programs;
mod scratch;
mod table;
mod trees;
mod watch;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use groups::{Bench, Way};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// What a request costs when answering it costs nothing.
    Null,
    /// The same between read(2) and write(2), without the kernel's FUSE.
    Path,
    /// A host directory through FUSE.
    Local,
    /// What being guarded costs.
    Guard,
    /// A compressed archive of 100,000 files.
    Archive,
    /// A directory of an SSH server that is far away.
    Sftp,
    /// A tree that another outrigger serves by way of ssh, far away.
    Wire,
    /// A directory of an FTP server that is far away.
    Ftp,
    /// An NFS server on this machine, asked by clients of its own and by Debian's kernel.
    Nfs,
    /// A 9P server on this machine, asked by our commands and by Debian's kernel, and one that is far away.
    Ninep,
    /// An NFS server through the relay of the guide.
    Relay,
    /// A program that is run with a tree in its file system.
    Run,
    /// A program that runs gets a tree.
    Attach,
    /// A disk image.
    Image,
    /// An encrypted directory.
    Crypt,
    /// Resident memory.
    Memory,
    /// The commands beside those of the system.
    Commands,
}

/// Measures Outrigger beside other programs and prints tables.
#[derive(Debug, Parser)]
#[command(name = "outrigger-bench")]
struct Arguments {
    /// Measure only this; may be given several times.
    #[arg(long, value_name = "NAME")]
    group: Vec<Group>,
    /// Fewer rounds and smaller trees, to see that everything works; the figures mean little.
    #[arg(long)]
    quick: bool,
    /// How often each subject has its turn, at most; 11 times unless given.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// How far away the SSH server is, there and back, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5)]
    delay: u64,
    /// What the line to the SSH server carries, in Mbit/s; everything unless given. Less content is moved then.
    #[arg(long, value_name = "MBIT")]
    rate: Option<f64>,
    /// Print one JSON object a row instead of tables.
    #[arg(long)]
    json: bool,
    /// Put the tables into docs/PERFORMANCE.md.
    #[arg(long, conflicts_with_all = ["quick", "rounds", "delay", "rate"])]
    write: bool,
    /// Where the scratch directory is made; needs 6 GiB.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The program to measure instead of the one built beside this one.
    #[arg(long, value_name = "FILE")]
    outrigger: Option<PathBuf>,
    /// Serve the null tree with the `fuser` crate instead of measuring: this program is its own peer.
    #[arg(long, value_name = "DIR", hide = true)]
    serve_null_with_fuser: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outrigger-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    if let Some(mountpoint) = arguments.serve_null_with_fuser {
        return null_fuser::serve(&mountpoint);
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "benchmarks mount file systems and pin threads: run as root"
    );
    let target = target_dir()?;
    let outrigger = arguments.outrigger.unwrap_or_else(|| target.join("release/outrigger"));
    ensure!(outrigger.is_file(), "{} is missing: make release", outrigger.display());
    let scratch = scratch::Scratch::new(arguments.scratch.as_deref().unwrap_or(&target))?;
    watch::start(scratch.path())?;
    priority::raise();
    let rate = arguments.rate.map(|mbit| mbit * 1e6 / 8.0);
    let way = Way { delay: Duration::from_millis(arguments.delay), rate };
    let mut bench = Bench::new(outrigger, &target, scratch, (arguments.quick, way))?;
    if let Some(rounds) = arguments.rounds {
        bench.effort.rounds = rounds as usize;
    }
    let machine = machine::describe(&bench);
    if !arguments.json {
        println!("{machine}");
    }
    let mut failures = Vec::new();
    for group in Group::value_variants().iter().copied() {
        if !arguments.group.is_empty() && !arguments.group.contains(&group) {
            continue;
        }
        match measure(&bench, group, arguments.json) {
            Ok(tables) if arguments.write => document::write(&tables, &machine)?,
            Ok(_) => {}
            // The other groups are still worth measuring.
            Err(error) => {
                watch::wait_for_the_end();
                failures.push(format!("{group:?}: {error:#}"));
            }
        }
    }
    priority::restore();
    if !failures.is_empty() {
        bail!("not everything could be measured:\n  {}", failures.join("\n  "));
    }
    Ok(())
}

/// Measures one group and prints its tables.
fn measure(bench: &Bench, group: Group, json: bool) -> Result<Vec<table::Table>> {
    let tables = match group {
        Group::Null => groups::null::measure(bench),
        Group::Path => groups::path::measure(bench),
        Group::Local => groups::local::measure(bench),
        Group::Guard => groups::guard::measure(bench),
        Group::Archive => groups::archive::measure(bench),
        Group::Sftp => groups::sftp::measure(bench),
        Group::Wire => groups::wire::measure(bench),
        Group::Ftp => groups::ftp::measure(bench),
        Group::Nfs => groups::nfs::measure(bench),
        Group::Ninep => groups::ninep::measure(bench),
        Group::Relay => groups::relay::measure(bench),
        Group::Run => groups::run::measure(bench),
        Group::Attach => groups::attach::measure(bench),
        Group::Image => groups::image::measure(bench),
        Group::Crypt => groups::crypt::measure(bench),
        Group::Memory => groups::memory::measure(bench),
        Group::Commands => groups::commands::measure(bench),
    }?;
    for table in &tables {
        if json {
            table.print_json()?;
        } else {
            println!("\n{}", table.text());
        }
    }
    Ok(tables)
}

/// The build directory this program runs from.
fn target_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let dir = program.ancestors().nth(2).context("this program is not in a build directory")?;
    Ok(dir.to_owned())
}
