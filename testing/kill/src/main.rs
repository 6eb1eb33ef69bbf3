// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills the processes that serve mounts, and compares what programs see with the same work undisturbed.
//!
//! The tables are those of the Re-FUSE paper (EuroSys 2011): [`table4`] one operation and one point of death at a time,
//! [`table5`] random deaths under loads, [`recovery`] how long a death is felt. Each prints a table and fails when any
//! result or any tree differs from the undisturbed one. [`crash`] kills what serves disk images, and looks into these.
//! [`frozen`] prints what users see of a server that stops answering.
//!
//! Our own workers are compared with a plain directory. Other FUSE programs differ from one by nature, so
//! each is compared with itself, mounted without `outrigger guard`. What is not installed is `SKIPPED`.
//!
//! Limits: needs root and Linux 6.9.
#![forbid(unsafe_code)]

mod cleanup;
mod crash;
mod frozen;
mod inject;
mod loads;
mod mounted;
mod operations;
mod processes;
mod programs;
mod recovery;
mod sizes;
mod snapshot;
mod soak;
mod synced;
mod table4;
mod table5;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand, ValueEnum};
use mounted::{Place, Subject};
use std::path::PathBuf;
use std::process::ExitCode;

/// Kills the processes that serve mounts, and compares with the same work undisturbed.
#[derive(Debug, Parser)]
#[command(name = "outrigger-kill")]
struct Arguments {
    /// The program; the one built beside this one unless given.
    #[arg(long, value_name = "FILE", global = true)]
    outrigger: Option<PathBuf>,
    /// Only these trees; all unless given.
    #[arg(long, value_name = "TREE", global = true)]
    subject: Vec<Subject>,
    #[command(subcommand)]
    table: Table,
}

#[derive(Debug, Subcommand)]
enum Table {
    /// Every operation, with a death before its effect, inside it, after it before the reply, and after the reply.
    Table4 {
        /// How often each operation is done at each point.
        #[arg(long, default_value_t = 64)]
        rounds: u32,
        /// Only these operations, as the table calls them.
        #[arg(long, value_parser = PossibleValuesParser::new(operations::ALL.iter().map(|one| one.name)))]
        operation: Vec<String>,
    },
    /// Random deaths during loads.
    Table5 {
        /// Deaths in each load.
        #[arg(long, default_value_t = 100)]
        deaths: u32,
        /// Only these loads.
        #[arg(long, value_parser = PossibleValuesParser::new(loads::OF_TABLE.iter().map(|one| one.name)))]
        load: Vec<String>,
    },
    /// From a death to the next answer.
    Recovery {
        /// Deaths.
        #[arg(long, default_value_t = 200)]
        deaths: u32,
    },
    /// Thousands of deaths of one mount: nothing fails, nothing grows. Our own drivers unless trees are named.
    Soak {
        /// Deaths of each mount.
        #[arg(long, default_value_t = 5000)]
        restarts: u32,
    },
    /// Mounted images: random deaths under a load that syncs, and whether what was synced is in the image.
    Crash {
        /// Deaths for each type and each victim.
        #[arg(long, default_value_t = 200)]
        kills: u32,
        /// Only these types.
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
        /// Only these victims.
        #[arg(long, value_name = "VICTIM")]
        victim: Vec<crash::Victim>,
    },
    /// A server that does not answer, with `outrigger guard` and without.
    Frozen,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("outrigger-kill: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    let place = Place::new(arguments.outrigger.clone())?;
    let mut subjects = arguments.subject.clone();
    if subjects.is_empty() {
        let all = match arguments.table {
            Table::Soak { .. } => &[Subject::Local, Subject::Mem],
            _ => Subject::value_variants(),
        };
        subjects.extend(all);
    }
    subjects.retain(|subject| subject.is_here());
    let subjects = &subjects;
    match &arguments.table {
        Table::Table4 { rounds, operation } => table4::run(&place, subjects, operation, *rounds),
        Table::Table5 { deaths, load } => table5::run(&place, subjects, load, *deaths),
        Table::Recovery { deaths } => recovery::run(&place, subjects, *deaths),
        Table::Soak { restarts } => soak::run(&place, subjects, *restarts),
        Table::Crash { kills, types, victim } => crash::run(&place, types, victim, *kills),
        Table::Frozen => frozen::run(&place),
    }
}
