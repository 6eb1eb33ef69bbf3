// SPDX-License-Identifier: MIT OR Apache-2.0
//! Controlled deaths (Table 4 of the paper): each operation, each point of death; the results programs get and the tree
//! they leave must be those of a plain directory.

use crate::mounted::{Mounted, Place, Subject};
use crate::operations::{ALL, Operation};
use crate::snapshot;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::path::Path;
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

const POINTS: [Point; 3] = [Point::Before, Point::After, Point::Random];
/// The longest time from the start of an operation to a random death: a few times what an operation takes.
const LATEST: Duration = Duration::from_micros(300);

/// What became of one cell.
#[derive(Debug, Default)]
struct Cell {
    done: u32,
    deaths: u64,
    wrong: Vec<String>,
}

/// Prints the table; false when anything was wrong.
pub fn run(place: &Place, subjects: &[Subject], rounds: u32) -> Result<bool> {
    let mut good = true;
    for &subject in subjects {
        println!("| {subject} | before its effect | after its effect | at a random moment |");
        println!("|---|---|---|---|");
        let (mut fired, mut wrong) = (0, 0);
        for operation in ALL {
            let mut row = format!("| {} |", operation.name);
            for point in POINTS {
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
    let rule = match point {
        Point::Before => format!("fault=op={},die,every=2", operation.requests),
        Point::After => format!("fault=op={},die,applied,every=2", operation.requests),
        Point::Random => String::new(),
    };
    let plain = place.plain("plain")?;
    let uncached = ["-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"];
    let mut arguments = uncached.to_vec();
    if !rule.is_empty() {
        arguments.extend(["--layer", &rule]);
    }
    let mounted = place.mount(subject, &arguments)?;
    let mut cell = Cell::default();
    prepare(operation, &plain, rounds)?;
    prepare(operation, &mounted.dir, rounds)?;
    act(operation, &mounted, &plain, point, rounds, &mut cell)?;
    cell.deaths = mounted.deaths()?;
    let (expected, found) = (snapshot::take(&plain)?, snapshot::take(&mounted.dir)?);
    cell.wrong.extend(snapshot::differences(&expected, &found));
    mounted.end()?;
    Ok(cell)
}

fn prepare(operation: &Operation, dir: &Path, rounds: u32) -> Result<()> {
    for number in 0..rounds {
        (operation.prepare)(dir, number).with_context(|| format!("preparing {} {number}", operation.name))?;
    }
    Ok(())
}

fn act(
    operation: &Operation,
    mounted: &Mounted,
    plain: &Path,
    point: Point,
    rounds: u32,
    cell: &mut Cell,
) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(u64::from(rounds));
    for number in 0..rounds {
        let expected = (operation.act)(plain, number);
        let moment = (point == Point::Random).then(|| LATEST.mul_f64(random.f64()));
        let found = thread::scope(|scope| {
            scope.spawn(|| moment.map(|moment| kill_at(mounted, moment)));
            (operation.act)(&mounted.dir, number)
        });
        cell.done += 1;
        let [expected, found] = [expected, found].map(|result| result.map_err(|error| error.raw_os_error()));
        if expected != found {
            cell.wrong.push(format!("number {number}: expected {expected:?}, found {found:?}"));
        }
    }
    Ok(())
}

/// Kills the server when so much time has passed: waiting actively, since sleeping is coarser than an operation.
fn kill_at(mounted: &Mounted, moment: Duration) {
    let began = Instant::now();
    while began.elapsed() < moment {
        std::hint::spin_loop();
    }
    mounted.kill(Signal::KILL);
}
