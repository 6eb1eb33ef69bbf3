// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger df`: size and free space of trees, in the columns of GNU df 9.1.
//!
//! The first column names the tree (of a place on this machine what is mounted there), the type is the driver, and the last column is
//! the LOCATION.

use crate::context::{Context, Place};
use crate::format::human::Unit;
use crate::format::quote::before_colon;
use crate::format::record::space;
use crate::getopt::{Arguments, Table};
use crate::messages::{record, why};
use crate::output::Output;
use crate::run::Run;
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes};
use outrigger_client::Follow;
use outrigger_core::ops::StatFs;
use outrigger_core::reply::FsStat;
use outrigger_host::MountEntry;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `df`.
pub type Df = Arguments<DfTable>;

const SWITCHES: [Switch; 8] = [
    Switch::with("block-size", Some('B'), Some("block-size"), Takes::Value("SIZE"), "Count in units of SIZE"),
    Switch::flag("human", Some('h'), Some("human-readable"), "Print sizes like 1K 234M 2G"),
    Switch::flag("si", Some('H'), Some("si"), "As -h, with powers of 1000"),
    Switch::flag("inodes", Some('i'), Some("inodes"), "Count inodes instead of blocks"),
    Switch::flag("kib", Some('k'), None, "As --block-size=1K"),
    Switch::flag("posix", Some('P'), Some("portability"), "Print the columns POSIX wants"),
    Switch::flag("total", None, Some("total"), "Print a total"),
    Switch::flag("type", Some('T'), Some("print-type"), "Print the driver"),
];

/// The options of `df`.
#[derive(Debug, Clone)]
pub struct DfTable;

impl Table for DfTable {
    const SWITCHES: &'static [Switch] = &SWITCHES;
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "Places in the trees; the working directory when nothing is given";
}

#[derive(Debug)]
struct Options {
    unit: Unit,
    inodes: bool,
    posix: bool,
    kind: bool,
    total: bool,
}

/// One line before it is laid out.
#[derive(Debug)]
struct Row {
    tree: String,
    driver: String,
    info: FsStat,
    place: String,
}

impl Options {
    fn new(given: &[Given]) -> Result<Self, Failure> {
        let has = |id: &str| given.iter().any(|option| option.id == id);
        let mut unit = None;
        for option in given {
            match option.id {
                "human" => unit = Some(Unit::HUMAN),
                "si" => unit = Some(Unit::SI),
                "kib" => unit = Some(Unit::bytes(1024)),
                "block-size" => {
                    let text = option.text();
                    let wrong = || Failure::new(format!("invalid --block-size argument '{text}'"));
                    unit = Some(Unit::parse(&text).ok_or_else(wrong)?);
                }
                _ => {}
            }
        }
        let unit = unit.unwrap_or_else(|| match has("posix") {
            true if env::var_os("POSIXLY_CORRECT").is_none() => Unit::bytes(1024),
            _ => Unit::of_environment(&["DF_BLOCK_SIZE"]),
        });
        Ok(Options {
            unit,
            inodes: has("inodes"),
            posix: has("posix"),
            kind: has("type"),
            total: has("total"),
        })
    }

    fn headings(&self) -> Vec<String> {
        let mut headings = vec!["Filesystem".to_owned()];
        if self.kind {
            headings.push("Type".to_owned());
        }
        let counts: [String; 4] = match (self.inodes, self.unit) {
            (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"].map(str::to_owned),
            (false, Unit::Scaled { .. }) if !self.posix => {
                ["Size", "Used", "Avail", "Use%"].map(str::to_owned)
            }
            (false, unit) => {
                let percent = if self.posix { "Capacity" } else { "Use%" };
                [self.blocks(unit), "Used".to_owned(), "Available".to_owned(), percent.to_owned()]
            }
        };
        headings.extend(counts);
        headings.push("Mounted on".to_owned());
        headings
    }

    /// The heading above the number of blocks.
    fn blocks(&self, unit: Unit) -> String {
        match unit {
            Unit::Fixed { bytes, .. } if self.posix => format!("{bytes}-blocks"),
            Unit::Fixed { bytes, .. } => {
                let exactly = |unit: Unit| unit.show(bytes, 1).replace(".0", "");
                let binary = bytes.is_multiple_of(1024) || !bytes.is_multiple_of(1000);
                let size = exactly(if binary { Unit::HUMAN } else { Unit::SI });
                let suffix =
                    if binary && size.ends_with(|last: char| !last.is_ascii_digit()) { "" } else { "B" };
                format!("{size}{suffix}-blocks")
            }
            Unit::Scaled { .. } => "Size".to_owned(),
        }
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let info = &row.info;
        let mut cells = vec![row.tree.clone()];
        if self.kind {
            cells.push(row.driver.clone());
        }
        let (size, total, free, available) = if self.inodes {
            (1, info.files, info.ffree, info.ffree)
        } else {
            (u64::from(info.frsize.max(1)), info.blocks, info.bfree, info.bavail)
        };
        let used = total.saturating_sub(free);
        let unit = match self.unit {
            Unit::Fixed { .. } if self.inodes => Unit::bytes(1),
            unit => unit,
        };
        let show = |count| if total == 0 && self.inodes { "0".to_owned() } else { unit.show(count, size) };
        cells.extend([show(total), show(used), show(available), percent(used, available)]);
        cells.push(row.place.clone());
        cells
    }
}

/// The share of what is used, rounded up.
fn percent(used: u64, available: u64) -> String {
    match u128::from(used) + u128::from(available) {
        0 => "-".to_owned(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(all)),
    }
}

impl Run for Df {
    const NAME: &'static str = "df";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let options = Options::new(&self.given)?;
        let mut places = self.operands;
        if places.is_empty() {
            places.push(".".into());
        }
        let mut output = Output::new(context);
        let mut rows = Vec::new();
        for text in &places {
            output.proceed()?;
            match context.place(text).and_then(|place| row(&place)) {
                Ok(row) => rows.push(row),
                Err(failure) => output.complain(Status::Minor, failure),
            }
        }
        if options.total {
            rows.push(total(&rows));
        }
        if context.json {
            for row in &rows {
                output.write(record(&space(&row.place, &row.tree, &row.driver, &row.info)).as_bytes())?;
            }
        } else if !rows.is_empty() {
            output.lines(table(&options, &rows).as_bytes())?;
        }
        output.flush()
    }
}

fn row(place: &Place) -> Result<Row, Failure> {
    let info =
        place.find(Follow::Yes).and_then(|inode| place.client.call(StatFs { node: inode.node() })).map_err(
            |error| Failure::new(format!("{}: {}", before_colon(place.shown.as_bytes()), why(&error))),
        )?;
    let abilities = place.client.abilities();
    Ok(Row {
        tree: mounted(place).unwrap_or_else(|| abilities.tree.clone()),
        driver: abilities.driver.to_owned(),
        info,
        place: place.shown.to_string_lossy().into_owned(),
    })
}

/// What is mounted where a place of this machine is, as the mount table shows it.
fn mounted(place: &Place) -> Option<String> {
    if !place.is_here {
        return None;
    }
    let path = fs::canonicalize(OsStr::from_bytes(&place.path)).ok()?;
    let mounts = MountEntry::all().ok()?.into_iter().filter(|mount| path.starts_with(&mount.mountpoint));
    // Of several mounts at one place the last one is on top.
    let mount = mounts.max_by_key(|mount| mount.mountpoint.as_os_str().len())?;
    Some(mount.source.to_string_lossy().into_owned())
}

/// The sum of all rows, in bytes.
fn total(rows: &[Row]) -> Row {
    let sum =
        |field: fn(&FsStat) -> u64| rows.iter().map(|row| field(&row.info)).fold(0, u64::saturating_add);
    let bytes = |info: &FsStat, blocks: u64| blocks.saturating_mul(info.frsize.into());
    let sum_bytes = |field: fn(&FsStat) -> u64| {
        rows.iter().map(|row| bytes(&row.info, field(&row.info))).fold(0, u64::saturating_add)
    };
    let info = FsStat {
        blocks: sum_bytes(|info| info.blocks),
        bfree: sum_bytes(|info| info.bfree),
        bavail: sum_bytes(|info| info.bavail),
        files: sum(|info| info.files),
        ffree: sum(|info| info.ffree),
        bsize: 1,
        frsize: 1,
        namelen: 0,
    };
    Row { tree: "total".to_owned(), driver: "-".to_owned(), info, place: "-".to_owned() }
}

/// Names to the left, numbers to the right, at least as wide as GNU df has them.
fn table(options: &Options, rows: &[Row]) -> String {
    let mut lines = vec![options.headings()];
    lines.extend(rows.iter().map(|row| options.cells(row)));
    let columns = lines[0].len();
    let numbers = columns - 5..columns - 1;
    let least = |column: usize| match column {
        0 => 14,
        _ if column == columns - 1 => 0,
        _ if column == columns - 2 || column < numbers.start => 4,
        _ => 5,
    };
    let width = |column: usize| {
        lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0).max(least(column))
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for cells in &lines {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        out.push_str(padded.collect::<Vec<_>>().join(" ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::given;
    use clap::{Args, Command};

    fn shown(args: &[&str]) -> String {
        let command = Df::augment_args(Command::new("df").no_binary_name(true).disable_help_flag(true));
        let options = Options::new(&given(&command.get_matches_from(args), &SWITCHES)).unwrap();
        let info = FsStat {
            blocks: 1000,
            bfree: 400,
            bavail: 300,
            files: 50,
            ffree: 20,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
        };
        let row = |tree: &str| Row { tree: tree.into(), driver: "mem".into(), info, place: "mem:".into() };
        table(&options, &[row("memory")])
    }

    #[test]
    fn tables() {
        let cases: [(&[&str], &str); 5] = [
            (
                &["-k"],
                "Filesystem     1K-blocks  Used Available Use% Mounted on\nmemory              4000  2400      1200  67% mem:\n",
            ),
            (
                &["-h"],
                "Filesystem      Size  Used Avail Use% Mounted on\nmemory          4.0M  2.4M  1.2M  67% mem:\n",
            ),
            (
                &["-iT"],
                "Filesystem     Type Inodes IUsed IFree IUse% Mounted on\nmemory         mem      50    30    20   60% mem:\n",
            ),
            (
                &["-P"],
                "Filesystem     1024-blocks  Used Available Capacity Mounted on\nmemory                4000  2400      1200      67% mem:\n",
            ),
            (
                &["-BM"],
                "Filesystem     1M-blocks  Used Available Use% Mounted on\nmemory                4M    3M        2M  67% mem:\n",
            ),
        ];
        for (args, expected) in cases {
            assert_eq!(shown(args), expected, "{args:?}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(1, 999), "1%");
        assert_eq!(percent(u64::MAX, u64::MAX), "50%");
    }
}
