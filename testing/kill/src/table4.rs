// SPDX-License-Identifier: MIT OR Apache-2.0
//! Controlled deaths (Table 4 of the paper): each operation, each point of death; the results programs get and the tree
//! they leave must be those of a plain directory.

use crate::mounted::{Mounted, Place, Subject};
use crate::operations::{ALL, Operation};
use crate::snapshot;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// Before the driver does anything.
    Before,
    /// When the driver is done and nobody was told.
    After,
    /// At any moment: also inside the effect, between noting a reply and giving it, and after that.
    Random,
}

impl Point {
    fn title(self) -> &'static str {
        match self {
            Point::Before => "before its effect",
            Point::After => "after its effect",
            Point::Random => "at a random moment",
        }
    }
}

/// Our own workers can be told where to die. Programs are killed from outside.
const OF_WORKERS: &[Point] = &[Point::Before, Point::After, Point::Random];
const OF_PROGRAMS: &[Point] = &[Point::Before, Point::Random];
/// The longest time from the start of an operation to a random death: a few times what an operation takes.
const LATEST: Duration = Duration::from_micros(300);
/// The same when every request goes through a program.
const LATEST_OF_PROGRAM: Duration = Duration::from_millis(2);
/// How long a request is held so that its program is dead when it is sent, and when in that time it dies.
const HELD: &str = "20ms";
const WHILE_HELD: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(16)];

/// What became of one cell.
#[derive(Debug, Default)]
struct Cell {
    done: u32,
    deaths: u64,
    wrong: Vec<String>,
}

/// Prints the table; false when anything was wrong.
pub fn run(place: &Place, subjects: &[Subject], only: &[String], rounds: u32) -> Result<bool> {
    let mut good = true;
    for &subject in subjects {
        let points = if subject.program().is_some() { OF_PROGRAMS } else { OF_WORKERS };
        let titles: String = points.iter().map(|point| format!(" {} |", point.title())).collect();
        println!("| {subject} |{titles}\n|---|{}", "---|".repeat(points.len()));
        let (mut fired, mut wrong) = (0, 0);
        for operation in ALL.iter().filter(|one| only.is_empty() || only.iter().any(|name| name == one.name))
        {
            let mut row = format!("| {} |", operation.name);
            for &point in points {
                if subject.is_read_only() && !operation.only_reads() {
                    row += " read-only |";
                    continue;
                }
                let cell = cell(place, subject, operation, point, rounds)
                    .with_context(|| format!("{subject}, {}, {point:?}", operation.name))?;
                row += &cell.show();
                fired += cell.deaths;
                wrong += cell.wrong.len();
                cell.wrong
                    .iter()
                    .take(5)
                    .for_each(|what| eprintln!("{subject}, {}, {point:?}: {what}", operation.name));
            }
            println!("{row}");
        }
        println!("\n{subject}: {fired} deaths, {wrong} wrong results\n");
        good &= wrong == 0;
    }
    Ok(good)
}

impl Cell {
    fn show(&self) -> String {
        match self.wrong.len() {
            0 if self.deaths == 0 => " no such request |".to_owned(),
            0 => format!(" ✓ {} of {}, {} deaths |", self.done, self.done, self.deaths),
            wrong => format!(" ✗ {wrong} wrong, {} deaths |", self.deaths),
        }
    }
}

fn cell(place: &Place, subject: Subject, operation: &Operation, point: Point, rounds: u32) -> Result<Cell> {
    let requests = operation.requests;
    let rule = match (point, subject.program()) {
        (Point::Before, Some(_)) => format!("fault=op={requests},delay={HELD}"),
        (Point::Before, None) => format!("fault=op={requests},die,every=2"),
        (Point::After, _) => format!("fault=op={requests},die,applied,every=2"),
        (Point::Random, _) => String::new(),
    };
    let mut arguments = vec!["-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"];
    if !rule.is_empty() {
        arguments.extend(["--layer", &rule]);
    }
    let undisturbed = place.undisturbed(subject)?;
    prepare(operation, &undisturbed.dir, rounds)?;
    let mounted = place.mount(subject, &arguments)?;
    if !subject.is_read_only() {
        prepare(operation, &mounted.dir, rounds)?;
    }
    let mut cell = Cell::default();
    act(operation, &mounted, &undisturbed.dir, moments(point, subject), rounds, &mut cell);
    cell.deaths = mounted.deaths()?.unwrap_or(cell.deaths);
    place.remount(&undisturbed)?;
    let expected = snapshot::take(&undisturbed.dir)?;
    match snapshot::take(&mounted.dir) {
        Ok(found) => cell.wrong.extend(snapshot::differences(&expected, &found)),
        Err(error) => cell.wrong.push(format!("{error:#}")),
    }
    if !cell.wrong.is_empty() {
        eprintln!("{subject}, {}, {point:?}: last error {}", operation.name, mounted.last_error());
    }
    mounted.end()?;
    Ok(cell)
}

fn prepare(operation: &Operation, dir: &Path, rounds: u32) -> Result<()> {
    for number in 0..rounds {
        (operation.prepare)(dir, number).with_context(|| format!("preparing {} {number}", operation.name))?;
    }
    Ok(())
}

/// From when to when after the start of an operation its server is killed from outside.
fn moments(point: Point, subject: Subject) -> Option<[Duration; 2]> {
    match (point, subject.program()) {
        (Point::Random, None) => Some([Duration::ZERO, LATEST]),
        (Point::Random, Some(_)) => Some([Duration::ZERO, LATEST_OF_PROGRAM]),
        (Point::Before, Some(_)) => Some(WHILE_HELD),
        _ => None,
    }
}

fn act(
    operation: &Operation,
    mounted: &Mounted,
    undisturbed: &Path,
    moments: Option<[Duration; 2]>,
    rounds: u32,
    cell: &mut Cell,
) {
    let mut random = fastrand::Rng::with_seed(u64::from(rounds));
    for number in 0..rounds {
        let expected = (operation.act)(undisturbed, number);
        let moment = moments.map(|[first, last]| first + (last - first).mul_f64(random.f64()));
        let signal = if random.bool() { Signal::KILL } else { Signal::SEGV };
        let (found, killed) = disturbed(mounted, moment, signal, || (operation.act)(&mounted.dir, number));
        cell.done += 1;
        cell.deaths += u64::from(killed);
        let [expected, found] = [expected, found].map(|result| result.map_err(|error| error.raw_os_error()));
        if expected != found {
            cell.wrong.push(format!("number {number}: expected {expected:?}, found {found:?}"));
        }
    }
}

/// Does something, with a death at that moment after its start. Whether there was one.
fn disturbed(
    mounted: &Mounted,
    moment: Option<Duration>,
    signal: Signal,
    work: impl FnOnce() -> io::Result<String>,
) -> (io::Result<String>, bool) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let killer = scope.spawn(|| moment.is_some_and(|moment| kill_at(mounted, moment, signal, &over)));
        let found = work();
        over.store(true, Ordering::Relaxed);
        (found, killer.join().unwrap_or(false))
    })
}

/// Kills the server when so much time has passed. Sleeping is coarser than an operation; a request that is held leaves
/// time to sleep, and if it never came there is nothing to kill for.
fn kill_at(mounted: &Mounted, moment: Duration, signal: Signal, over: &AtomicBool) -> bool {
    if moment >= WHILE_HELD[0] {
        thread::sleep(moment);
        return !over.load(Ordering::Relaxed) && mounted.kill(signal);
    }
    let began = Instant::now();
    while began.elapsed() < moment {
        std::hint::spin_loop();
    }
    mounted.kill(signal)
}
