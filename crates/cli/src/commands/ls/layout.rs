// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries in lines and columns.

use super::entry::Entry;
use super::options::{Layout, Options};
use super::print::{Printer, Widths};

/// The narrowest column: one character and two spaces.
const NARROWEST: usize = 3;

impl Printer {
    /// Writes a batch of entries in the chosen layout.
    pub fn batch(&mut self, out: &mut Vec<u8>, entries: &[Entry], widths: &Widths) {
        let end = self.options.end;
        match self.options.layout {
            Layout::Long => {
                for entry in entries {
                    self.long(out, entry, widths);
                    out.push(end);
                }
            }
            Layout::Single => {
                for entry in entries {
                    self.short(out, entry, widths, 0);
                    out.push(end);
                }
            }
            Layout::Commas => self.separated(out, entries, widths, b','),
            Layout::Columns | Layout::Across if self.options.line == 0 => {
                self.separated(out, entries, widths, b' ');
            }
            Layout::Columns | Layout::Across => self.table(out, entries, widths),
        }
    }

    fn separated(&mut self, out: &mut Vec<u8>, entries: &[Entry], widths: &Widths, separator: u8) {
        let (line, end) = (self.options.line, self.options.end);
        let mut column = 0;
        for (index, entry) in entries.iter().enumerate() {
            let width = if line > 0 { self.width(entry, widths) } else { 0 };
            if index > 0 {
                let fits = line == 0 || column + width + 2 < line;
                column = if fits { column + 2 } else { 0 };
                out.extend_from_slice(&[separator, if fits { b' ' } else { end }]);
            }
            self.short(out, entry, widths, column);
            column += width;
        }
        out.push(end);
    }

    fn table(&mut self, out: &mut Vec<u8>, entries: &[Entry], widths: &Widths) {
        let lengths: Vec<usize> = entries.iter().map(|entry| self.width(entry, widths)).collect();
        let down = self.options.layout == Layout::Columns;
        let columns = columns(&lengths, &self.options, down);
        let count = columns.len();
        let rows = entries.len().div_ceil(count);
        for row in 0..rows {
            let mut at = 0;
            for (column, reserved) in columns.iter().enumerate() {
                let (index, next) = if down {
                    (row + column * rows, row + (column + 1) * rows)
                } else {
                    (row * count + column, row * count + column + 1)
                };
                self.short(out, &entries[index], widths, at);
                if next >= entries.len() || column + 1 == count {
                    break;
                }
                self.indent(out, at + lengths[index], at + reserved);
                at += reserved;
            }
            out.push(self.options.end);
        }
    }

    /// Moves from one column to another, with tabs where they help.
    fn indent(&self, out: &mut Vec<u8>, mut from: usize, to: usize) {
        let tab = self.options.tab;
        while from < to {
            if tab != 0 && to / tab > (from + 1) / tab {
                out.push(b'\t');
                from += tab - from % tab;
            } else {
                out.push(b' ');
                from += 1;
            }
        }
    }
}

/// The widths of the columns: as many of them as fit the line.
fn columns(lengths: &[usize], options: &Options, down: bool) -> Vec<usize> {
    let most = options.line.div_ceil(NARROWEST).clamp(1, lengths.len().max(1));
    let mut candidates: Vec<Vec<usize>> = (1..=most).map(|count| vec![NARROWEST; count]).collect();
    let mut totals: Vec<usize> = (1..=most).map(|count| count * NARROWEST).collect();
    for (index, length) in lengths.iter().enumerate() {
        for (count, (candidate, total)) in (1..).zip(candidates.iter_mut().zip(&mut totals)) {
            if *total >= options.line && count > 1 {
                continue;
            }
            let column = if down { index / lengths.len().div_ceil(count) } else { index % count };
            let needed = length + if column + 1 == count { 0 } else { 2 };
            if needed > candidate[column] {
                *total += needed - candidate[column];
                candidate[column] = needed;
            }
        }
    }
    let fits = totals.iter().rposition(|total| *total < options.line).unwrap_or(0);
    candidates.swap_remove(fits)
}
