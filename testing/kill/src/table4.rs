// SPDX-License-Identifier: MIT OR Apache-2.0
//! Controlled deaths (Table 4 of the paper): each operation, each point of death; the results programs get and the tree
//! they leave must be those of a plain directory.

use crate::inject::{self, Aim, Caught, Language, Moment, Unit};
use crate::mounted::{Mounted, Place, Subject};
use crate::operations::{ALL, Operation};
use crate::snapshot;
use anyhow::{Context, Result};
use rustix::fs::statvfs;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// The point at which a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// Before anything was done.
    Before,
    /// After any instruction, of a program and in front of an SSH server at any system call, between the request and the reply.
    Inside,
    /// After the change, before the reply.
    After,
    /// When the reply was given.
    Replied,
}

const POINTS: [Point; 4] = [Point::Before, Point::Inside, Point::After, Point::Replied];

impl Point {
    fn title(self) -> &'static str {
        match self {
            Point::Before => "before its effect",
            Point::Inside => "inside it",
            Point::After => "after it, before the reply",
            Point::Replied => "after the reply",
        }
    }

    /// Our own workers die by a rule, which stands as near to the driver as can be: the journal is above it.
    fn rule(self, subject: Subject, requests: &str) -> Option<String> {
        match self {
            _ if subject.program().is_some() || subject.is_image() => None,
            Point::Before => Some(format!("fault=op={requests},die,every=2")),
            Point::After => Some(format!("fault=op={requests},die,applied,every=2")),
            Point::Inside | Point::Replied => None,
        }
    }
}

/// The result of one cell.
#[derive(Debug, Default)]
struct Cell {
    done: u32,
    deaths: u64,
    wrong: Vec<String>,
}

/// Prints the table; false when anything was wrong, or a death did not happen for an unknown reason.
pub fn run(place: &Place, subjects: &[Subject], only: &[String], rounds: u32) -> Result<bool> {
    let mut good = true;
    for &subject in subjects {
        let titles = POINTS.map(|point| format!(" {} |", point.title())).concat();
        println!("| {subject} |{titles}\n|---|{}", "---|".repeat(POINTS.len()));
        let (mut fired, mut wrong, mut reasons) = (0, 0, BTreeSet::new());
        for operation in ALL.iter().filter(|one| only.is_empty() || only.iter().any(|name| name == one.name))
        {
            let mut row = format!("| {} |", operation.name);
            for point in POINTS {
                let cell = match impossible(subject, operation, point) {
                    Some(_) => Cell::default(),
                    None => cell(place, subject, operation, point, rounds)
                        .with_context(|| format!("{subject}, {}, {point:?}", operation.name))?,
                };
                let reason = impossible(subject, operation, point).or_else(|| unasked(subject, operation));
                reasons.extend(reason.filter(|_| cell.deaths == 0));
                row += &cell.show(reason);
                fired += cell.deaths;
                wrong += cell.wrong.len() + usize::from(cell.deaths == 0 && reason.is_none());
                cell.wrong
                    .iter()
                    .take(5)
                    .for_each(|what| eprintln!("{subject}, {}, {point:?}: {what}", operation.name));
            }
            println!("{row}");
        }
        println!();
        reasons.iter().for_each(|(mark, why)| println!("{mark}: {why}"));
        println!("{subject}: {fired} deaths, {wrong} wrong results\n");
        good &= wrong == 0;
    }
    Ok(good)
}

/// The text of a cell without deaths, and the reason.
type Reason = (&'static str, &'static str);

/// Why no process can die there.
fn impossible(subject: Subject, operation: &Operation, point: Point) -> Option<Reason> {
    if subject == Subject::Vfat && operation.requests == "readlink" {
        return Some(("no links", "vfat has no symbolic links"));
    }
    let program = subject.program()?;
    if operation.removes_open() {
        return Some((
            "not compared",
            "without us programs differ in what becomes of removed files that are open",
        ));
    }
    match &program.torn {
        _ if program.is_read_only && operation.is_change() => {
            Some(("read-only", "nothing in it can be changed"))
        }
        Some(torn) if point == Point::Inside && torn.concerns(operation) => Some(("torn", torn.how)),
        _ => None,
    }
}

/// Requests that `mem` never gets, and why.
const OF_MEM: &[(&str, &str)] =
    &[("open", "mem has nothing to note for an open file, and the kernel asks once")];

/// Requests that an SSH server never gets, and why.
const OF_SFTP: &[(&str, &str)] =
    &[("setxattr", "the protocol has no extended attributes, and the kernel asks once")];

/// Requests that a vfat image never gets, and why.
const OF_VFAT: &[(&str, &str)] = &[("setxattr", "vfat has no extended attributes, and the kernel asks once")];

/// Why there may be no such request.
fn unasked(subject: Subject, operation: &Operation) -> Option<Reason> {
    let known = match subject.program() {
        Some(program) => program.unasked,
        None if matches!(subject, Subject::Mem | Subject::MemProxy) => OF_MEM,
        None if subject == Subject::Sftp => OF_SFTP,
        None if subject == Subject::Vfat => OF_VFAT,
        None => &[],
    };
    known.iter().find(|(requests, _)| *requests == operation.requests).map(|(_, why)| ("not asked", *why))
}

impl Cell {
    fn show(&self, reason: Option<Reason>) -> String {
        match (self.wrong.len(), reason) {
            (0, Some((mark, _))) if self.deaths == 0 => format!(" {mark} |"),
            (0, None) if self.deaths == 0 => " ✗ nobody died |".to_owned(),
            (0, _) => format!(" ✓ {} of {}, {} deaths |", self.done, self.done, self.deaths),
            (wrong, _) => format!(" ✗ {wrong} wrong, {} deaths |", self.deaths),
        }
    }
}

fn cell(
    place: &Place,
    subject: Subject,
    operation: &'static Operation,
    point: Point,
    rounds: u32,
) -> Result<Cell> {
    let rule = point.rule(subject, operation.requests);
    // No caches: each operation must become a request.
    let mut options = "attr_timeout=0,entry_timeout=0,negative_timeout=0".to_owned();
    if matches!(subject, Subject::Local | Subject::LocalProxy) {
        options += ",no_passthrough";
    }
    let mut arguments = vec!["-o", &options];
    arguments.extend(rule.iter().flat_map(|rule| ["--layer", rule]));
    let undisturbed = place.undisturbed(subject)?;
    prepare(operation, &undisturbed.dir, rounds)?;
    let mut mounted = place.mount(subject, &arguments)?;
    if !subject.is_read_only() {
        prepare(operation, &mounted.dir, rounds)?;
    }
    let before = mounted.deaths()?;
    let mut cell = Cell::default();
    // An image is served by its kernel code, and in the second half of the rounds by way of another process.
    let half = if subject.is_image() && rule.is_none() { rounds.div_ceil(2) } else { rounds };
    for first in (0..rounds).step_by(half as usize) {
        let is_relayed = first > 0;
        if is_relayed {
            let image = mounted.into_image()?.context("only images are mounted again")?;
            options += ",";
            options += RELAYED;
            mounted = place.mount_image(subject, &["-o", &options], image)?;
        }
        let mut trial = Trial { subject, operation, mounted: &mounted, point, is_relayed, steps: None, cell };
        trial.act(&undisturbed.dir, first..rounds.min(first + half), rule.is_none())?;
        cell = trial.cell;
    }
    if rule.is_some()
        && let (Some(before), Some(after)) = (before, mounted.deaths()?)
    {
        cell.deaths = after - before;
    }
    if subject != Subject::Sftp {
        place.remount(&undisturbed)?;
    }
    let expected = snapshot::take(&undisturbed.dir)?;
    match snapshot::take(&mounted.dir) {
        Ok(found) => cell.wrong.extend(snapshot::differences(&expected, &found)),
        Err(error) => cell.wrong.push(format!("{error:#}")),
    }
    if !cell.wrong.is_empty() {
        eprintln!("{subject}, {}, {point:?}: last error {}", operation.name, mounted.last_error());
    }
    if let (Subject::Sftp, Some(store)) = (subject, undisturbed.store()) {
        // Of links a mount shows those that were made through it; and what is hidden in it, its host shows.
        mounted.umount(&[])?;
        cell.wrong.extend(snapshot::differences(&snapshot::take(store)?, &snapshot::take(&mounted.store)?));
    } else if let Some(image) = mounted.into_image()? {
        image.must_be_clean();
        let again = place.mount_image(subject, &[], image)?;
        cell.wrong.extend(snapshot::differences(&expected, &snapshot::take(&again.dir)?));
        again.end()?;
    }
    Ok(cell)
}

/// With this option the process that has made a mount asks the one with the kernel code, which serves no mount by itself then.
const RELAYED: &str = "timeout=3600";

fn prepare(operation: &Operation, dir: &Path, rounds: u32) -> Result<()> {
    for number in 0..rounds {
        (operation.prepare)(dir, number).with_context(|| format!("preparing {} {number}", operation.name))?;
    }
    Ok(())
}

/// One operation, again and again, with a death at one point of each.
struct Trial<'a> {
    subject: Subject,
    operation: &'static Operation,
    mounted: &'a Mounted,
    point: Point,
    /// Whether the victim gets its requests from another process of ours, not from the host's kernel.
    is_relayed: bool,
    /// The number of steps from the request to the reply.
    steps: Option<u64>,
    cell: Cell,
}

impl Trial<'_> {
    fn act(&mut self, undisturbed: &Path, numbers: Range<u32>, hunted: bool) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(u64::from(numbers.end));
        for number in numbers {
            let expected = (self.operation.act)(undisturbed, number);
            let found = if hunted {
                // Programs take their time to start, and are not to be asked for this meanwhile.
                statvfs(&self.mounted.dir)?;
                self.hunted(number, &mut random)?
            } else {
                (self.operation.act)(&self.mounted.dir, number)
            };
            self.cell.done += 1;
            let [expected, found] =
                [expected, found].map(|result| result.map_err(|error| error.raw_os_error()));
            if expected != found {
                self.cell.wrong.push(format!("number {number}: expected {expected:?}, found {found:?}"));
            }
        }
        Ok(())
    }

    /// When the server dies. In the first round it survives, to count the steps.
    fn moment(&self, random: &mut fastrand::Rng) -> Moment {
        let unit = match self.subject {
            subject if subject.is_image() => Unit::Nanosecond,
            // Several threads work on a request.
            subject if subject.program().is_some() || subject == Subject::Sftp => Unit::SystemCall,
            _ => Unit::Instruction,
        };
        match self.point {
            Point::Before => Moment::Read,
            Point::Inside => Moment::Step(unit, self.steps.map(|steps| random.u64(1..=steps.max(1)))),
            Point::After => Moment::Reply,
            Point::Replied => Moment::Replied,
        }
    }

    /// Does the operation while a tracer waits for the moment to kill.
    fn hunted(&mut self, number: u32, random: &mut fastrand::Rng) -> Result<io::Result<String>> {
        let process = self.mounted.serving()?;
        let (moment, gently) = (self.moment(random), random.bool());
        let language = if self.is_relayed { Language::Frames } else { Language::Fuse };
        let aim = Aim { process, language, requests: self.operation.requests, moment, gently };
        let (over, (ready, waiting)) = (AtomicBool::new(false), mpsc::channel());
        let (found, caught) = thread::scope(|scope| {
            let hunter = scope.spawn(|| inject::hunt(aim, &over, move || ready.send(()).unwrap_or(())));
            // A process that cannot be traced is not waited for.
            let _ = waiting.recv();
            let found = (self.operation.act)(&self.mounted.dir, number);
            over.store(true, Ordering::Relaxed);
            (found, hunter.join())
        });
        let Ok(caught) = caught else { anyhow::bail!("the tracing thread has panicked") };
        let Caught { fired, steps } = caught.context("tracing")?;
        self.cell.deaths += u64::from(fired);
        self.steps = self.steps.or(steps);
        Ok(found)
    }
}
