// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results: samples, rows with their goals, and tables as text, Markdown and JSON.

use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time of one operation.
    Microseconds,
    /// Time of a whole program.
    Milliseconds,
    /// Time of a whole program.
    Seconds,
    /// 10^6 bytes a second.
    MegabytesPerSecond,
    /// 10^6 bytes.
    Megabytes,
    /// Bytes for each entry.
    Bytes,
    /// How many.
    Count,
}

impl Unit {
    fn symbol(self) -> &'static str {
        match self {
            Unit::Microseconds => "µs",
            Unit::Milliseconds => "ms",
            Unit::Seconds => "s",
            Unit::MegabytesPerSecond => "MB/s",
            Unit::Megabytes => "MB",
            Unit::Bytes => "bytes",
            Unit::Count => "",
        }
    }
}

/// The samples of one subject.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Samples {
    /// One value a round, in the row's unit.
    pub values: Vec<f64>,
    /// It took too long and was not waited for.
    pub gave_up: bool,
}

/// The middle, least and greatest of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Summary {
    /// Of `values`; nothing when there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[half] } else { f64::midpoint(sorted[half - 1], sorted[half]) };
        Some(Summary { median, min, max })
    }
}

/// What a subject should reach.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// At most this many times the value of `than`.
    Below { subject: &'static str, factor: f64, than: &'static str },
    /// At least this many times the value of `than`.
    Above { subject: &'static str, factor: f64, than: &'static str },
    /// At most this value.
    Limit { subject: &'static str, limit: f64 },
}

/// A goal and what was reached.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The goal in words.
    pub goal: String,
    /// Ratio of the two subjects in the same round, or the value itself.
    pub reached: Summary,
    /// Whether the median reaches the goal.
    pub met: bool,
}

/// One measurement of all subjects.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// The unit of all values.
    pub unit: Unit,
    /// Subject and samples.
    pub columns: Vec<(String, Samples)>,
    /// What is hoped for.
    pub goals: Vec<Goal>,
}

impl Row {
    /// With `goal`, unless one of its subjects was not measured.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    fn samples(&self, name: &str) -> Option<&Samples> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, samples)| samples)
    }

    /// The ratio of two subjects, round by round.
    fn ratio(&self, subject: &str, than: &str) -> Option<Summary> {
        let (ours, theirs) = (self.samples(subject)?, self.samples(than)?);
        let ratios: Vec<f64> = ours.values.iter().zip(&theirs.values).map(|(a, b)| a / b).collect();
        Summary::of(&ratios)
    }

    /// The result of each goal whose subjects were measured.
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.goals.iter().filter_map(|goal| self.verdict(*goal)).collect()
    }

    fn verdict(&self, goal: Goal) -> Option<Verdict> {
        let (goal, reached, met) = match goal {
            Goal::Below { subject, factor, than } => {
                let reached = self.ratio(subject, than)?;
                (format!("{subject} ≤ {} × {than}", short(factor)), reached, reached.median <= factor)
            }
            Goal::Above { subject, factor, than } => {
                let reached = self.ratio(subject, than)?;
                (format!("{subject} ≥ {} × {than}", short(factor)), reached, reached.median >= factor)
            }
            Goal::Limit { subject, limit } => {
                let reached = Summary::of(&self.samples(subject)?.values)?;
                (format!("{subject} ≤ {limit} {}", self.unit.symbol()), reached, reached.median <= limit)
            }
        };
        Some(Verdict { goal: goal.trim_end().to_owned(), reached, met })
    }

    /// The cells of this row below `columns`.
    fn cells(&self, columns: &[String]) -> Vec<String> {
        let symbol = self.unit.symbol();
        let what = if symbol.is_empty() { self.what.clone() } else { format!("{}, {symbol}", self.what) };
        let mut cells = vec![what];
        cells.extend(columns.iter().map(|column| self.samples(column).map(cell).unwrap_or_default()));
        let verdicts = self.verdicts();
        let goals: Vec<String> = verdicts.iter().map(|verdict| verdict.goal.clone()).collect();
        let reached: Vec<String> = verdicts
            .iter()
            .map(|verdict| format!("{} {}", spread(verdict.reached), if verdict.met { "✓" } else { "✗" }))
            .collect();
        cells.push(goals.join("; "));
        cells.push(reached.join("; "));
        cells
    }
}

fn cell(samples: &Samples) -> String {
    if samples.gave_up {
        return "gave up".to_owned();
    }
    Summary::of(&samples.values).map(spread).unwrap_or_default()
}

/// Median, and least and greatest where they differ from it.
fn spread(summary: Summary) -> String {
    let Summary { median, min, max } = summary;
    let (median, min, max) = (number(median), number(min), number(max));
    if min == max { median } else { format!("{median} ({min}–{max})") }
}

/// A factor with three decimals at most.
fn short(factor: f64) -> f64 {
    (factor * 1000.0).round() / 1000.0
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The results of a group, or of a part of it.
#[derive(Debug)]
pub struct Table {
    /// Name of the marker in the document.
    pub name: &'static str,
    /// Heading.
    pub title: String,
    /// Measurements.
    pub rows: Vec<Row>,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    table: &'a str,
    what: &'a str,
    unit: Unit,
    subjects: BTreeMap<&'a str, &'a Samples>,
    goals: Vec<Verdict>,
}

impl Table {
    /// Header and rows as cells.
    fn cells(&self) -> Vec<Vec<String>> {
        let mut columns: Vec<String> = Vec::new();
        for (column, _) in self.rows.iter().flat_map(|row| &row.columns) {
            if !columns.contains(column) {
                columns.push(column.clone());
            }
        }
        let mut header = vec![self.title.clone()];
        header.extend(columns.iter().cloned());
        header.extend(["goal".to_owned(), "reached".to_owned()]);
        let rows = self.rows.iter().map(|row| row.cells(&columns));
        std::iter::once(header).chain(rows).collect()
    }

    /// As a Markdown table.
    pub fn markdown(&self) -> String {
        let cells = self.cells();
        let mut text = String::new();
        for (number, row) in cells.iter().enumerate() {
            text.push_str(&format!("| {} |\n", row.join(" | ")));
            if number == 0 {
                text.push_str(&format!("|{}\n", "---|".repeat(row.len())));
            }
        }
        text
    }

    /// As aligned columns.
    pub fn text(&self) -> String {
        let cells = self.cells();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..cells.first().map_or(0, Vec::len)).map(width).collect();
        let mut text = String::new();
        for row in &cells {
            for (cell, width) in row.iter().zip(&widths) {
                text.push_str(&format!("{cell:width$}  "));
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// Prints one JSON object for each row.
    ///
    /// # Errors
    /// When a value cannot be written as JSON.
    pub fn print_json(&self) -> Result<()> {
        for row in &self.rows {
            let subjects = row.columns.iter().map(|(name, samples)| (name.as_str(), samples)).collect();
            let line =
                Line { table: self.name, what: &row.what, unit: row.unit, subjects, goals: row.verdicts() };
            println!("{}", serde_json::to_string(&line)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: &[(&str, &[f64])]) -> Row {
        let columns = columns.iter().map(|(name, values)| {
            ((*name).to_owned(), Samples { values: values.to_vec(), gave_up: values.is_empty() })
        });
        Row { what: "stat".into(), unit: Unit::Microseconds, columns: columns.collect(), goals: Vec::new() }
    }

    #[test]
    fn the_median_is_the_middle() {
        for (values, expected) in [
            (&[][..], None),
            (&[2.0], Some((2.0, 2.0, 2.0))),
            (&[3.0, 1.0, 2.0], Some((2.0, 1.0, 3.0))),
            (&[4.0, 1.0, 2.0, 9.0], Some((3.0, 1.0, 9.0))),
        ] {
            let summary = Summary::of(values).map(|s| (s.median, s.min, s.max));
            assert_eq!(summary, expected, "{values:?}");
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The second round was twice as slow for both: the ratio does not move.
        let row = row(&[("ours", &[1.0, 2.0]), ("theirs", &[2.0, 4.0])])
            .goal(Goal::Below { subject: "ours", factor: 0.5, than: "theirs" })
            .goal(Goal::Above { subject: "ours", factor: 0.6, than: "theirs" })
            .goal(Goal::Limit { subject: "theirs", limit: 2.5 })
            .goal(Goal::Limit { subject: "absent", limit: 1.0 });
        let verdicts: Vec<(f64, bool)> = row.verdicts().iter().map(|v| (v.reached.median, v.met)).collect();
        assert_eq!(verdicts, [(0.5, true), (0.5, false), (3.0, false)]);
    }

    #[test]
    fn a_table_has_a_column_for_every_subject() {
        let table = Table {
            name: "t",
            title: "operation".into(),
            rows: vec![row(&[("a", &[1.0])]), row(&[("b", &[250.0, 260.0]), ("slow", &[])])],
        };
        let expected = "| operation | a | b | slow | goal | reached |\n|---|---|---|---|---|---|\n\
            | stat, µs | 1.00 |  |  |  |  |\n| stat, µs |  | 255 (250–260) | gave up |  |  |\n";
        assert_eq!(table.markdown(), expected);
        assert_eq!(table.text().lines().count(), 3);
    }
}
