// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve nfs` beside nfs-ganesha, on one directory: what a request costs each server, and what programs take at a client,
//! which is Debian's kernel in a virtual machine.

mod client;
mod files;
pub mod machine;
pub mod servers;

use super::Bench;
use super::far;
use crate::compare::{Sampler, in_turns};
use crate::programs::run;
use crate::scratch::Ground;
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::trees;
use anyhow::Result;
use client::Client;
use files::{Files, Work};
use machine::Contest;
use servers::Server;
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;

const OURS: &str = "outrigger";
const GANESHA: &str = "nfs-ganesha";
/// Calls of a client that are on their way at once.
const WINDOW: u32 = 16;

/// Measures the group.
///
/// # Errors
/// When a server cannot be started, or refuses something.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "nfs", 3 << 30, 100_000)?;
    let store = ground.dir().join("store");
    prepare(bench, &store)?;
    let mut servers = vec![servers::outrigger(bench, "nfs", &[Path::new("--state"), ground.dir(), &store])?];
    if let Some(program) = &bench.peers.ganesha {
        servers.push(servers::ganesha(program, &store, ground.dir())?);
    }
    let files = servers.iter().map(|server| Files::find(server, &store)).collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for work in Work::ALL {
        rows.extend(requests(bench, *work, &servers, &files)?);
    }
    let title = format!("a client on this machine, {WINDOW} calls at once");
    let mut tables = vec![Table { name: "nfs", title, rows }];
    let contest = Contest { protocol: "nfs", table: "nfs-client", peer: GANESHA };
    tables.extend(machine::measure(bench, &contest, &servers, ground.dir())?);
    Ok(tables)
}

/// Makes what is listed and read.
fn prepare(bench: &Bench, store: &Path) -> Result<()> {
    programs_files(bench, store)?;
    trees::flat(&store.join("flat"), files::NAMES)?;
    Ok(fs::File::create(store.join("block"))?.set_len(files::SPAN)?)
}

/// Makes what programs of a client list, read and unpack.
///
/// # Errors
/// When `store` cannot be written.
pub fn programs_files(bench: &Bench, store: &Path) -> Result<()> {
    far::fill(bench, store)?;
    trees::source_tree(&store.join("sources"), 500)?;
    run(Command::new("tar").args(["-cf", "sources.tar", "sources"]).current_dir(store))
}

/// What one kind of request takes from its call to its reply, and what of that is work of the server.
fn requests(bench: &Bench, work: Work, servers: &[Server], files: &[Files]) -> Result<[Row; 2]> {
    let used: Vec<RefCell<Vec<f64>>> = servers.iter().map(|_| RefCell::default()).collect();
    let mut subjects: Vec<(&str, Sampler<'_>)> = Vec::new();
    for ((server, files), used) in servers.iter().zip(files).zip(&used) {
        let sampler = move || {
            files.begin();
            let mut client = Client::connect(server.address)?;
            let calls = u32::try_from(bench.scaled(work.calls() as usize))?;
            let before = server.processor_time()?;
            let seconds = client.drive(WINDOW, calls, |xid| files.call(work, xid))?;
            let spent = server.processor_time()? - before;
            used.borrow_mut().push(spent * 1e6 / f64::from(calls));
            Ok(Some(seconds * 1e6 / f64::from(calls)))
        };
        subjects.push((server.name, Box::new(sampler)));
    }
    let goal = || Goal::Below { subject: OURS, factor: 1.1, than: GANESHA };
    let time = in_turns(work.name(), Unit::Microseconds, bench.effort.rounds, subjects)?.goal(goal());
    // Without the turn that does not count.
    let values = |used: &RefCell<Vec<f64>>| used.borrow().iter().skip(1).copied().collect();
    let columns = servers
        .iter()
        .zip(&used)
        .map(|(server, used)| (server.name.to_owned(), Samples { values: values(used), gave_up: false }));
    let what = format!("{}, processor time of the server", work.name());
    let spent = Row { what, unit: Unit::Microseconds, columns: columns.collect(), goals: vec![goal()] };
    Ok([time, spent])
}
