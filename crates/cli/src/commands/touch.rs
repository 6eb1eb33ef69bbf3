// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger touch`: times of last access and modification.

use crate::context::{Context, Place};
use crate::copy::target::{shown, wants_directory};
use crate::creating;
use crate::getopt::{Arguments, Table};
use crate::run::Run;
use crate::say::{operand, place, quoted, usage, word};
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes};
use clap::Args;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use outrigger_client::{Follow, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, SetAttrs, SetTime, Time};
use parse_datetime::{ParsedDateTime, parse_datetime_at_date};
use std::ffi::OsString;

/// Arguments of `touch`.
#[derive(Debug, Args)]
pub struct Touch {
    #[command(flatten)]
    arguments: Arguments<TouchTable>,
}

/// The options of `touch`.
#[derive(Debug, Clone)]
pub struct TouchTable;

impl Table for TouchTable {
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "The files";
    const SWITCHES: &'static [Switch] = &[
        Switch::flag("access", Some('a'), None, "Change only the time of last access"),
        Switch::flag("no-create", Some('c'), Some("no-create"), "Do not make files"),
        Switch::with("date", Some('d'), Some("date"), Takes::Value("DATE"), "This time instead of now"),
        Switch::flag("f", Some('f'), None, "No effect"),
        Switch::flag("no-dereference", Some('h'), Some("no-dereference"), "Change symbolic links themselves"),
        Switch::flag("modification", Some('m'), None, "Change only the time of last modification"),
        Switch::with(
            "reference",
            Some('r'),
            Some("reference"),
            Takes::Value("LOCATION"),
            "This file's times",
        ),
        Switch::with("t", Some('t'), None, Takes::Value("[[CC]YY]MMDDhhmm[.ss]"), "This time instead of now"),
        Switch::with(
            "time",
            None,
            Some("time"),
            Takes::Value("WHICH"),
            "Only this time: access, atime, use (-a); modify, mtime (-m)",
        ),
    ];
}

#[derive(Debug, Default)]
struct Settings {
    access: bool,
    modification: bool,
    no_create: bool,
    no_dereference: bool,
    date: Option<String>,
    stamp: Option<String>,
    reference: Option<OsString>,
}

impl Settings {
    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "access" => self.access = true,
            "modification" => self.modification = true,
            "no-create" => self.no_create = true,
            "no-dereference" => self.no_dereference = true,
            "date" => self.date = Some(given.text()),
            "t" => self.stamp = Some(given.text()),
            "reference" => self.reference = Some(given.value.clone()),
            "time" => match given.text().as_str() {
                "access" | "atime" | "use" => self.access = true,
                "modify" | "mtime" => self.modification = true,
                other => {
                    let problem = format!("invalid argument {} for {}", word(other), word("--time"));
                    return Err(usage(Touch::NAME, problem));
                }
            },
            _ => {}
        }
        Ok(())
    }

    /// New times of access and modification.
    fn times(&self, context: &Context) -> Result<(SetTime, SetTime), Failure> {
        let sources = [self.stamp.is_some(), self.date.is_some() || self.reference.is_some()];
        if sources.iter().filter(|&&source| source).count() > 1 {
            return Err(usage(Touch::NAME, "cannot specify times from more than one source"));
        }
        if let Some(stamp) = &self.stamp {
            let time = SetTime::To(parse_stamp(stamp, &Zoned::now()).ok_or_else(|| invalid_date(stamp))?);
            return Ok((time, time));
        }
        let Some(reference) = &self.reference else {
            let Some(date) = &self.date else { return Ok((SetTime::Now, SetTime::Now)) };
            let time = SetTime::To(parse_date(date, Zoned::now())?);
            return Ok((time, time));
        };
        let follow = if self.no_dereference { Follow::No } else { Follow::Yes };
        let failed =
            |error| Failure::new(format!("failed to get attributes of {}: {error}", operand(reference)));
        let inode = context.place(reference)?.find(follow).map_err(failed)?;
        let (atime, mtime) = (inode.attr().atime, inode.attr().mtime);
        match &self.date {
            None => Ok((SetTime::To(atime), SetTime::To(mtime))),
            // Relative to the reference's times.
            Some(date) => {
                let atime = parse_date(date, zoned(atime).ok_or_else(|| invalid_date(date))?)?;
                let mtime = parse_date(date, zoned(mtime).ok_or_else(|| invalid_date(date))?)?;
                Ok((SetTime::To(atime), SetTime::To(mtime)))
            }
        }
    }
}

fn invalid_date(text: &str) -> Failure {
    Failure::new(format!("invalid date format {}", word(text)))
}

fn zoned(time: Time) -> Option<Zoned> {
    let nanos = i32::try_from(time.nanos).ok()?;
    Some(Timestamp::new(time.secs, nanos).ok()?.to_zoned(TimeZone::system()))
}

/// A date as date(1) takes it, relative to `base`.
///
/// # Errors
/// That it cannot be understood.
pub fn parse_date(text: &str, base: Zoned) -> Result<Time, Failure> {
    let parsed: ParsedDateTime = parse_datetime_at_date(base, text).map_err(|_| invalid_date(text))?;
    let nanos = u32::try_from(parsed.subsec_nanosecond()).map_err(|_| invalid_date(text))?;
    Ok(Time::new(parsed.unix_epoch_second(), nanos))
}

/// A time as POSIX has it: `[[CC]YY]MMDDhhmm[.ss]`, in the local time zone.
fn parse_stamp(text: &str, now: &Zoned) -> Option<Time> {
    let (digits, seconds) = match text.split_once('.') {
        Some((digits, seconds)) if seconds.len() == 2 => (digits, seconds),
        Some(_) => return None,
        None => (text, "00"),
    };
    if !digits.bytes().chain(seconds.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let year: i16 = match digits.len() {
        8 => now.year(),
        10 => match digits[..2].parse().ok()? {
            year @ 69.. => 1900 + year,
            year => 2000 + year,
        },
        12 => digits[..4].parse().ok()?,
        _ => return None,
    };
    let mut fields = digits.as_bytes()[digits.len() - 8..].chunks(2);
    let mut field = || std::str::from_utf8(fields.next()?).ok()?.parse::<i8>().ok();
    let (month, day, hour, minute) = (field()?, field()?, field()?, field()?);
    // A leap second becomes the last second of its minute.
    let second = seconds.parse::<i8>().ok().filter(|&second| second <= 60)?.min(59);
    let local = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    let zoned = local.to_zoned(now.time_zone().clone()).ok()?;
    Some(Time::new(zoned.timestamp().as_second(), 0))
}

impl Run for Touch {
    const NAME: &'static str = "touch";
    const EXITS: Exits = Exits::Plain;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut settings = Settings::default();
        for given in &self.arguments.given {
            settings.take(given)?;
        }
        if self.arguments.operands.is_empty() {
            return Err(usage(Self::NAME, "missing file operand"));
        }
        context.trees.only_writes(&self.arguments.operands);
        let (atime, mtime) = settings.times(context)?;
        let both = settings.access == settings.modification;
        let attrs = SetAttrs {
            atime: Some(atime).filter(|_| both || settings.access),
            mtime: Some(mtime).filter(|_| both || settings.modification),
            ..SetAttrs::default()
        };
        for place in self.arguments.operands.iter().filter_map(|file| place(context, file)) {
            if let Err((what, error)) = settings.touch(context, &place, &attrs) {
                let name = quoted(shown(&place));
                context.complain(Status::Minor, format_args!("{what} {name}: {error}"));
            }
        }
        Ok(())
    }
}

impl Settings {
    fn touch(&self, context: &Context, place: &Place, attrs: &SetAttrs) -> Result<(), (&'static str, Error)> {
        let setting = |error| ("setting times of", error);
        let follow = if self.no_dereference { Follow::No } else { Follow::Yes };
        let mut inode: Inode = match place.find(follow) {
            Ok(inode) => inode,
            Err(error) if error.errno == Errno::ENOENT && self.no_create => return Ok(()),
            Err(error) if self.no_create || self.no_dereference || wants_directory(place) => {
                return Err(setting(error));
            }
            Err(error) if error.errno == Errno::ENOENT => {
                let mode = 0o666 & !context.umask;
                let made = creating::open(place, OpenFlags::WRITE_ONLY, true, mode);
                made.map_err(|error| ("cannot touch", error))?.0
            }
            Err(error) => return Err(("cannot touch", error)),
        };
        inode.set(attrs.clone()).map(drop).map_err(setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps() {
        let now = "2026-11-21T00:00:00[UTC]".parse::<Zoned>().expect("a date");
        let cases = [
            ("202001021112.13", Some(1_577_963_533)),
            ("2001021112", Some(1_577_963_520)),
            ("7001010000", Some(0)),
            ("6901010000", Some(-31_536_000)),
            ("01010000", Some(1_767_225_600)),
            ("202001021112.60", Some(1_577_963_579)),
            ("99", None),
            ("202013021112", None),
            ("202001021112.1", None),
            ("2020010211é", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_stamp(text, &now).map(|time| time.secs), expected, "{text}");
        }
    }
}
