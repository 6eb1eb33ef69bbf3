// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client of Debian's kernel, in a virtual machine that mounts both servers in turns. Its processor is emulated: the times are
//! long, and mostly those of the client, which are the same for both. The counts of calls are exact; there are none of 9P.

use super::super::Bench;
use super::super::far;
use super::OURS;
use super::servers::Server;
use crate::table::{Goal, Row, Samples, Table, Unit};
use crate::{programs, watch};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the client does.
const SCRIPT: &str = include_str!("../../../peers/client.sh");
/// How many seconds a round takes at most, with the boot of the machine.
const ROUND_SECONDS: u64 = 240;
/// How often each server has its turn at most, after one turn that does not count.
const ROUNDS: usize = 5;

/// One line of the script.
struct Sample<'a> {
    server: &'a str,
    task: &'a str,
    seconds: f64,
    calls: Option<f64>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.strip_prefix("sample ")?.split(' ');
        let (server, task) = (words.next()?, words.next()?);
        let centiseconds = words.next()?.parse::<f64>().ok()?;
        let calls = words.next()?.parse().ok().filter(|&calls| calls > 0.0);
        Some(Sample { server, task, seconds: centiseconds / 100.0, calls })
    }
}

/// What is measured: a protocol, its table, and the server that ours is compared with.
pub struct Contest {
    pub protocol: &'static str,
    pub table: &'static str,
    pub peer: &'static str,
}

/// What programs of a client take; nothing where there is no machine for it.
///
/// # Errors
/// When the machine does not run to its end.
pub fn measure(bench: &Bench, contest: &Contest, servers: &[Server], dir: &Path) -> Result<Option<Table>> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools");
    let there = bench.target.join("test-tools/linux-client/initrd/init").exists();
    if !there || programs::find("qemu-system-x86_64").is_none() {
        eprintln!(
            "SKIPPED: there is no machine for a client of the kernel; its rows are left out (make bench-deps)"
        );
        return Ok(None);
    }
    let rounds = bench.effort.rounds.min(ROUNDS) + 1;
    let megabytes = far::large_size(bench) >> 20;
    let limit = Duration::from_secs(ROUND_SECONDS * rounds as u64);
    let file = dir.join("client.sh");
    fs::write(&file, script(contest.protocol, servers, (rounds, megabytes)))?;
    watch::step("the client's machine", limit + Duration::from_secs(60));
    // It ends the machine when this program ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(tools.join("client-vm.sh")).arg(&file);
    command.env("VM_SECONDS", limit.as_secs().to_string()).env("CARGO_TARGET_DIR", &bench.target);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run client-vm.sh")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the client's machine: {}: {said}", output.status);
    let samples: Vec<Sample<'_>> = said.lines().filter_map(Sample::parse).collect();
    let small = [
        ("ls", "ls -lR of 4000 files in 211 directories".to_owned()),
        ("read", format!("read of {megabytes} MiB")),
        ("write", format!("write of {megabytes} MiB")),
        ("untar", "untar of 500 files".to_owned()),
    ];
    let mut rows = Vec::new();
    for (task, what) in &small {
        let of_task = samples.iter().filter(|sample| sample.task == *task);
        let of_task: Vec<&Sample<'_>> = of_task.collect();
        let goal = |factor| Goal::Below { subject: OURS, factor, than: contest.peer };
        let names = [OURS, contest.peer];
        let time = row(what.clone(), Unit::Seconds, &of_task, names, |sample| Some(sample.seconds));
        let calls = row(format!("calls of {what}"), Unit::Count, &of_task, names, |sample| sample.calls);
        ensure!(time.columns.len() == servers.len(), "the client's machine says nothing of {task}: {said}");
        rows.push(time.goal(goal(1.1)));
        rows.extend(Some(calls.goal(goal(1.0))).filter(|calls| !calls.columns.is_empty()));
    }
    Ok(Some(Table { name: contest.table, title: "a client in a virtual machine".to_owned(), rows }))
}

fn script(protocol: &str, servers: &[Server], (rounds, megabytes): (usize, usize)) -> String {
    let names: Vec<&str> = servers.iter().map(|server| server.name).collect();
    let names = names.join(" ");
    let mut script = format!(
        "protocol={protocol}\nrounds={rounds}\nmegabytes={megabytes}\nservers='{names}'\nfind_server() {{\ncase $1 in\n"
    );
    for Server { name, address, mount, path, .. } in servers {
        let (port, mount_port) = (address.port(), mount.port());
        // Writing to a string does not fail.
        let _ = writeln!(script, "{name}) port={port} mount_port={mount_port} path='{path}' ;;");
    }
    script + "esac\n}\n" + SCRIPT
}

fn row(
    what: String,
    unit: Unit,
    samples: &[&Sample<'_>],
    names: [&str; 2],
    value: fn(&Sample<'_>) -> Option<f64>,
) -> Row {
    let of = |server: &str| {
        let own = samples.iter().filter(|sample| sample.server == server);
        // Without the turn that does not count.
        own.skip(1).filter_map(|sample| value(sample)).collect::<Vec<f64>>()
    };
    let columns = names.map(|server| (server.to_owned(), Samples { values: of(server), gave_up: false }));
    let columns = columns.into_iter().filter(|(_, samples)| !samples.values.is_empty()).collect();
    Row { what, unit, columns, goals: Vec::new() }
}
