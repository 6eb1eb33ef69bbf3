// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger truncate`: sizes of files.

use crate::context::{Context, Place};
use crate::copy::target::shown;
use crate::creating;
use crate::run::Run;
use crate::say::{operand, place, quoted, usage, word};
use crate::status::{Exits, Failure, Status};
use clap::Args;
use outrigger_client::Follow;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, SetAttrs};
use std::ffi::OsString;

/// Arguments of `truncate`.
#[derive(Debug, Args)]
pub struct Truncate {
    /// Do not make files.
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The size is in units of I/O blocks.
    #[arg(short = 'o', long)]
    io_blocks: bool,
    /// Use the size of this file.
    #[arg(short, long, value_name = "LOCATION")]
    reference: Option<OsString>,
    /// The size in bytes, with K, M, G... for powers of 1024 and KB, MB, GB... for powers of 1000. `+` extends by,
    /// `-` reduces by, `<` at most, `>` at least, `/` rounds down to a multiple of, `%` up.
    #[arg(short, long, allow_hyphen_values = true)]
    size: Option<String>,
    /// The files.
    #[arg(value_name = "LOCATION")]
    files: Vec<OsString>,
}

/// A size, absolute or relative to the one a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    To(u64),
    Extend(u64),
    Reduce(u64),
    AtMost(u64),
    AtLeast(u64),
    RoundDown(u64),
    RoundUp(u64),
}

/// Suffixes of sizes: powers of 1024, and with `B` of 1000.
const SUFFIXES: &str = "KMGTPE";

/// The largest size of a file (`off_t`).
const SIZE_MAX: u64 = i64::MAX as u64;

impl Change {
    fn parse(text: &str) -> Result<Self, Failure> {
        let trimmed = text.trim_start();
        let (make, number): (fn(u64) -> Change, &str) = match trimmed.as_bytes().first() {
            Some(b'+') => (Change::Extend, &trimmed[1..]),
            Some(b'-') => (Change::Reduce, &trimmed[1..]),
            Some(b'<') => (Change::AtMost, &trimmed[1..]),
            Some(b'>') => (Change::AtLeast, &trimmed[1..]),
            Some(b'/') => (Change::RoundDown, &trimmed[1..]),
            Some(b'%') => (Change::RoundUp, &trimmed[1..]),
            _ => (Change::To, trimmed),
        };
        let change = make(parse_size(number.trim_start(), text)?);
        match change {
            Change::RoundDown(0) | Change::RoundUp(0) => Err(Failure::new("division by zero")),
            change => Ok(change),
        }
    }

    fn times(self, unit: u64) -> Option<Self> {
        Some(match self {
            Change::To(size) => Change::To(size.checked_mul(unit)?),
            Change::Extend(size) => Change::Extend(size.checked_mul(unit)?),
            Change::Reduce(size) => Change::Reduce(size.checked_mul(unit)?),
            Change::AtMost(size) => Change::AtMost(size.checked_mul(unit)?),
            Change::AtLeast(size) => Change::AtLeast(size.checked_mul(unit)?),
            Change::RoundDown(size) => Change::RoundDown(size.checked_mul(unit)?),
            Change::RoundUp(size) => Change::RoundUp(size.checked_mul(unit)?),
        })
    }

    /// The new size of a file of `size` bytes; `None` when no file can have it.
    fn apply(self, size: u64) -> Option<u64> {
        let size = match self {
            Change::To(new) => Some(new),
            Change::Extend(by) => size.checked_add(by),
            Change::Reduce(by) => Some(size.saturating_sub(by)),
            Change::AtMost(limit) => Some(size.min(limit)),
            Change::AtLeast(limit) => Some(size.max(limit)),
            Change::RoundDown(unit) => Some(size - size % unit),
            Change::RoundUp(unit) => size.checked_next_multiple_of(unit),
        };
        size.filter(|&size| size <= SIZE_MAX)
    }
}

fn parse_size(number: &str, whole: &str) -> Result<u64, Failure> {
    let invalid = || Failure::new(format!("Invalid number: {}", word(whole)));
    let large = || Failure::new(format!("Invalid number: {}: {}", word(whole), Errno::EOVERFLOW));
    let end = number.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(number.len());
    let (digits, suffix) = number.split_at(end);
    // Without digits, a suffix alone means one of it.
    let count = match (digits, suffix) {
        ("", "") => return Err(invalid()),
        ("", _) => 1,
        _ => digits.parse::<u64>().map_err(|_| large())?,
    };
    let Some(letter) = suffix.chars().next() else {
        return Some(count).filter(|&n| n <= SIZE_MAX).ok_or_else(large);
    };
    let power = SUFFIXES.find(letter.to_ascii_uppercase()).ok_or_else(invalid)? as u32 + 1;
    let base: u64 = match &suffix[letter.len_utf8()..] {
        "" | "iB" => 1024,
        "B" => 1000,
        _ => return Err(invalid()),
    };
    base.checked_pow(power)
        .and_then(|unit| unit.checked_mul(count))
        .filter(|&size| size <= SIZE_MAX)
        .ok_or_else(large)
}

impl Run for Truncate {
    const NAME: &'static str = "truncate";
    const EXITS: Exits = Exits::Plain;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let change = self.size.as_deref().map(Change::parse).transpose()?;
        let relative = change.is_some_and(|change| !matches!(change, Change::To(_)));
        if change.is_none() && self.reference.is_none() {
            let (size, reference) = (word("--size"), word("--reference"));
            return Err(usage(Self::NAME, format!("you must specify either {size} or {reference}")));
        }
        if self.reference.is_some() && change.is_some() && !relative {
            let (size, reference) = (word("--size"), word("--reference"));
            return Err(usage(Self::NAME, format!("you must specify a relative {size} with {reference}")));
        }
        if self.files.is_empty() {
            return Err(usage(Self::NAME, "missing file operand"));
        }
        let base = match &self.reference {
            None => None,
            Some(reference) => {
                context.trees.only_writes(&self.files);
                let failed = |error| Failure::new(format!("cannot stat {}: {error}", operand(reference)));
                Some(context.place(reference)?.find(Follow::Yes).map_err(failed)?.attr().size)
            }
        };
        for place in self.files.iter().filter_map(|file| place(context, file)) {
            if let Err(message) = self.truncate(context, &place, change, base) {
                context.complain(Status::Minor, message);
            }
        }
        Ok(())
    }
}

impl Truncate {
    fn truncate(
        &self,
        context: &Context,
        place: &Place,
        change: Option<Change>,
        base: Option<u64>,
    ) -> Result<(), String> {
        let name = quoted(shown(place));
        let opened = creating::open(place, OpenFlags::WRITE_ONLY, !self.no_create, 0o666 & !context.umask);
        let (_, file) = match opened {
            Ok(opened) => opened,
            Err(error) if self.no_create && error.errno == Errno::ENOENT => return Ok(()),
            Err(error) => return Err(format!("cannot open {name} for writing: {error}")),
        };
        let attr = file.attr().map_err(|error| format!("cannot stat {name}: {error}"))?;
        let unit = if self.io_blocks { u64::from(attr.blksize.max(1)) } else { 1 };
        let old = base.unwrap_or(attr.size);
        let new = match change {
            None => Some(old),
            Some(change) => change.times(unit).and_then(|change| change.apply(old)),
        };
        let size = new.ok_or_else(|| format!("overflow extending size of file {name}"))?;
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        file.set(attrs).map_err(|error| format!("failed to truncate {name} at {size} bytes: {error}"))?;
        file.close().map_err(|error| format!("failed to close {name}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [
            ("10", 7, Some(10)),
            ("+5", 10, Some(15)),
            ("-5", 3, Some(0)),
            ("<5", 15, Some(5)),
            (">8", 5, Some(8)),
            ("%5", 8, Some(10)),
            ("/3", 10, Some(9)),
            ("1K", 0, Some(1024)),
            ("1kB", 0, Some(1000)),
            ("2MiB", 0, Some(2 << 20)),
            ("K", 0, Some(1024)),
            ("+9223372036854775807", 1, None),
        ];
        for (text, size, expected) in cases {
            let change = Change::parse(text).unwrap_or_else(|failure| panic!("{text}: {failure}"));
            assert_eq!(change.apply(size), expected, "{text} of {size}");
        }
        for text in ["", "foo", "1x", "1KX", "%0", "99999999999999999999", "9E", "++1"] {
            assert!(Change::parse(text).is_err(), "{text}");
        }
    }
}
