// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve 9p` beside diod, on one directory: what our own commands take at each of them, and what of that is work of the server;
//! what programs take at a client, which is Debian's kernel in a virtual machine; and a mount of diod that is far away.

use super::Bench;
use super::far::{self, Far, OURS, PATIENCE, large_size};
use super::nfs::machine::{self, Contest};
use super::nfs::programs_files;
use super::nfs::servers::{self, Server};
use crate::compare::{Sampler, in_turns};
use crate::mounts;
use crate::programs::shell_seconds;
use crate::scratch::Ground;
use crate::table::{Goal, Row, Samples, Table, Unit};
use anyhow::Result;
use outrigger_remote::Line;
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;

const DIOD: &str = "diod";
/// The goal for a listing by way of a line, in seconds.
const LISTED: f64 = 1.0;

/// Measures the group.
///
/// # Errors
/// When a server cannot be started, or refuses something.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::tmpfs(&bench.scratch, "ninep", 3 << 30, 100_000)?;
    let store = ground.dir().join("store");
    programs_files(bench, &store)?;
    let mut servers = vec![servers::outrigger(bench, "9p", &[&store])?];
    if let Some(program) = &bench.peers.diod {
        servers.push(servers::diod(program, &store)?);
    }
    servers.iter().try_for_each(|server| fs::create_dir(store.join(format!("of-{}", server.name))))?;
    let mb = large_size(bench) >> 20;
    let mut rows = Vec::new();
    for (what, script) in [
        ("ls -lR of 4000 files in 211 directories".to_owned(), r#""$1" ls -lR "$2/tree" >/dev/null"#),
        (format!("read of {mb} MiB"), r#""$1" cat "$2/large" >/dev/null"#),
        (format!("write of {mb} MiB"), r#""$1" cp -f "$3/large" "$2/$4/large""#),
        ("untar of 500 files".to_owned(), r#""$1" cp -r "$3/sources.tar::/sources" "$2/$4/new""#),
    ] {
        rows.extend(commands(bench, &what, script, (&servers, &store))?);
    }
    let title = "our commands on this machine".to_owned();
    let mut tables = vec![Table { name: "ninep", title, rows }];
    let contest = Contest { protocol: "9p", table: "ninep-client", peer: DIOD };
    tables.extend(machine::measure(bench, &contest, &servers, ground.dir())?);
    if let Some(diod) = servers.into_iter().find(|server| server.name == DIOD) {
        tables.push(through_a_line(bench, &store, diod)?);
    }
    Ok(tables)
}

/// What a command takes at each server, and the processor time of the server. In the script `$1` is our program, `$2` the tree, `$3` the
/// directory of it, and `$4` a directory in both that only this server has.
fn commands(
    bench: &Bench,
    what: &str,
    script: &str,
    (servers, store): (&[Server], &Path),
) -> Result<[Row; 2]> {
    let used: Vec<RefCell<Vec<f64>>> = servers.iter().map(|_| RefCell::default()).collect();
    let mut subjects: Vec<(&str, Sampler<'_>)> = Vec::new();
    for (server, used) in servers.iter().zip(&used) {
        let (tree, own) = (location(server, server.address.port()), format!("of-{}", server.name));
        let sampler = move || {
            // What was written in the last round.
            let _ = fs::remove_dir_all(store.join(&own).join("new"));
            let _ = fs::remove_file(store.join(&own).join("large"));
            let before = server.processor_time()?;
            let arguments = [&bench.outrigger, Path::new(&tree), store, Path::new(&own)];
            let seconds = shell_seconds(script, &arguments, PATIENCE)?;
            used.borrow_mut().push(server.processor_time()? - before);
            Ok(seconds)
        };
        subjects.push((server.name, Box::new(sampler)));
    }
    let goal = || Goal::Below { subject: OURS, factor: 1.0, than: DIOD };
    let time = in_turns(what, Unit::Seconds, bench.effort.rounds, subjects)?.goal(goal());
    // Without the turn that does not count.
    let values = |used: &RefCell<Vec<f64>>| used.borrow().iter().skip(1).copied().collect();
    let columns = servers.iter().zip(&used);
    let columns = columns
        .map(|(server, used)| (server.name.to_owned(), Samples { values: values(used), gave_up: false }))
        .collect();
    let what = format!("{what}, processor time of the server");
    Ok([time, Row { what, unit: Unit::Seconds, columns, goals: vec![goal()] }])
}

/// The tree of a server that is reached by `port`.
fn location(server: &Server, port: u16) -> String {
    format!("9p://127.0.0.1:{port}{}", server.path.trim_end_matches('/'))
}

/// A server that is far away.
struct FarDiod<'a> {
    server: Server,
    line: Line,
    store: &'a Path,
}

impl Far for FarDiod<'_> {
    fn store(&self) -> &Path {
        self.store
    }

    fn subjects(&self, _: &Bench) -> Vec<&'static str> {
        vec![OURS]
    }

    fn command(&self, bench: &Bench, _: &'static str, dir: &Path) -> Result<Command> {
        let tree = location(&self.server, self.line.port());
        Ok(mounts::outrigger(&bench.outrigger, &tree, dir, ""))
    }
}

fn through_a_line(bench: &Bench, store: &Path, server: Server) -> Result<Table> {
    let line = Line::slow(server.address.port(), bench.way.delay, bench.way.rate)?;
    let far = FarDiod { server, line, store };
    let what = "ls -lR of 4000 files in 211 directories";
    let row = far::row(bench, &far, what, r#"ls -lR "$1/tree""#, None)?;
    let row = row.goal(Goal::Limit { subject: OURS, limit: LISTED });
    let title = format!("a mount of diod, made for each sample, {} ms away", bench.way.delay.as_millis());
    Ok(Table { name: "ninep-far", title, rows: vec![row] })
}
