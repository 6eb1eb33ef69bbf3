// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moments in the user's time zone (`TZ`), written with the formats of strftime(3) in the C locale and the
//! extensions of GNU date: `%N`, `%:z`, and the flags `_`, `-`, `0`, `^`, `#` with a width.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use outrigger_core::Time;
use std::borrow::Cow;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The user's time zone.
#[derive(Debug, Clone)]
pub struct Zone(TimeZone);

/// A moment taken apart.
#[derive(Debug, Clone)]
pub struct Moment {
    civil: DateTime,
    time: Time,
    offset: i32,
    abbreviation: String,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Zone {
    /// The zone of the environment: `TZ`, else that of the host.
    pub fn of_environment() -> Self {
        let file = zone_file(env::var_os("TZ"), env::var_os("TZDIR"));
        let zone = file.and_then(|file| TimeZone::tzif("", &fs::read(file).ok()?).ok());
        // Knows every form of TZ, but reads the list of all zones to find one by name.
        Zone(zone.unwrap_or_else(TimeZone::system))
    }

    /// UTC.
    pub fn utc() -> Self {
        Zone(TimeZone::UTC)
    }

    /// Takes `time` apart; `None` outside the years -9999 to 9999.
    pub fn moment(&self, time: Time) -> Option<Moment> {
        let timestamp = Timestamp::from_second(time.secs).ok()?;
        let info = self.0.to_offset_info(timestamp);
        Some(Moment {
            civil: info.offset().to_datetime(timestamp),
            time,
            offset: info.offset().seconds(),
            abbreviation: info.abbreviation().to_owned(),
        })
    }

    /// `time` in `format`, or the seconds since the epoch when the calendar does not reach that far.
    pub fn show(&self, time: Time, format: &[u8]) -> Vec<u8> {
        match self.moment(time) {
            Some(moment) => moment.format(format),
            None => time.secs.to_string().into_bytes(),
        }
    }
}

/// The file of the zone that `tz` names, as tzset(3) finds it; `None` when that takes more than a path.
fn zone_file(tz: Option<OsString>, directory: Option<OsString>) -> Option<PathBuf> {
    let Some(tz) = tz else { return Some("/etc/localtime".into()) };
    let name = tz.as_bytes().strip_prefix(b":").unwrap_or(tz.as_bytes());
    let directory = directory.unwrap_or_else(|| "/usr/share/zoneinfo".into());
    (!name.is_empty()).then(|| Path::new(&directory).join(OsStr::from_bytes(name)))
}

/// What the user asked for between `%` and the letter.
#[derive(Debug, Clone, Copy, Default)]
struct Request {
    pad: Option<u8>,
    upper: bool,
    swap: bool,
    width: Option<usize>,
    colons: usize,
}

impl Moment {
    /// The moment in `format`.
    pub fn format(&self, format: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(format.len() * 2);
        let mut rest = format;
        while let Some(percent) = rest.iter().position(|&byte| byte == b'%') {
            out.extend_from_slice(&rest[..percent]);
            let (request, len) = Request::parse(&rest[percent + 1..]);
            let letter = percent + 1 + len;
            let Some(directive) = rest.get(percent..=letter) else {
                rest = &rest[percent..];
                break;
            };
            self.convert(&mut out, rest[letter], request, directive);
            rest = &rest[letter + 1..];
        }
        out.extend_from_slice(rest);
        out
    }

    fn convert(&self, out: &mut Vec<u8>, letter: u8, request: Request, directive: &[u8]) {
        if let Some((value, pad, width)) = self.number(letter) {
            return request.number(out, value, pad, width);
        }
        if let Some(format) = composite(letter) {
            return request.text(out, &self.format(format));
        }
        match letter {
            b'N' => request.nanoseconds(out, self.time.nanos),
            b'z' => request.offset(out, self.offset),
            b'%' => out.push(b'%'),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            _ => match self.name(letter, request.swap) {
                Some(word) => request.text(out, word.as_bytes()),
                None => out.extend_from_slice(directive),
            },
        }
    }

    fn name(&self, letter: u8, swap: bool) -> Option<Cow<'_, str>> {
        let day = DAYS[self.weekday() as usize % 7];
        let month = MONTHS[self.civil.month() as usize - 1];
        let half = if self.civil.hour() < 12 { "AM" } else { "PM" };
        Some(match letter {
            b'a' => day[..3].into(),
            b'A' => day.into(),
            b'b' | b'h' => month[..3].into(),
            b'B' => month.into(),
            b'p' if swap => half.to_lowercase().into(),
            b'p' => half.into(),
            b'P' => half.to_lowercase().into(),
            b'Z' if swap => self.abbreviation.to_lowercase().into(),
            b'Z' => self.abbreviation.as_str().into(),
            _ => return None,
        })
    }

    /// The value of a numeric conversion, what it is padded with, and its width.
    fn number(&self, letter: u8) -> Option<(i64, u8, usize)> {
        let civil = &self.civil;
        let (hour, year, day) = (i64::from(civil.hour()), i64::from(civil.year()), i64::from(civil.day()));
        let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
        let (weekday, yday) = (self.weekday(), || i64::from(civil.day_of_year()) - 1);
        let week = || civil.date().iso_week_date();
        Some(match letter {
            b'C' => (year.div_euclid(100), b'0', 2),
            b'd' => (day, b'0', 2),
            b'e' => (day, b' ', 2),
            b'g' => (i64::from(week().year()).rem_euclid(100), b'0', 2),
            b'G' => (i64::from(week().year()), b'0', 1),
            b'H' => (hour, b'0', 2),
            b'I' => (twelve, b'0', 2),
            b'j' => (yday() + 1, b'0', 3),
            b'k' => (hour, b' ', 2),
            b'l' => (twelve, b' ', 2),
            b'm' => (i64::from(civil.month()), b'0', 2),
            b'M' => (i64::from(civil.minute()), b'0', 2),
            b'q' => ((i64::from(civil.month()) - 1) / 3 + 1, b'0', 1),
            b's' => (self.time.secs, b'0', 1),
            b'S' => (i64::from(civil.second()), b'0', 2),
            b'u' => ((weekday + 6) % 7 + 1, b'0', 1),
            b'U' => ((yday() - weekday + 7) / 7, b'0', 2),
            b'V' => (i64::from(week().week()), b'0', 2),
            b'w' => (weekday, b'0', 1),
            b'W' => ((yday() - (weekday + 6) % 7 + 7) / 7, b'0', 2),
            b'y' => (year.rem_euclid(100), b'0', 2),
            b'Y' => (year, b'0', 1),
            _ => return None,
        })
    }

    fn weekday(&self) -> i64 {
        i64::from(self.civil.weekday().to_sunday_zero_offset())
    }
}

/// The conversions that stand for others.
fn composite(letter: u8) -> Option<&'static [u8]> {
    Some(match letter {
        b'c' => b"%a %b %e %H:%M:%S %Y",
        b'D' | b'x' => b"%m/%d/%y",
        b'F' => b"%Y-%m-%d",
        b'r' => b"%I:%M:%S %p",
        b'R' => b"%H:%M",
        b'T' | b'X' => b"%H:%M:%S",
        b'+' => b"%Y-%m-%d+%H:%M:%S",
        _ => return None,
    })
}

impl Request {
    /// What stands before the letter, and how many bytes that is.
    fn parse(input: &[u8]) -> (Self, usize) {
        let mut request = Request::default();
        let letter = input.iter().position(|&byte| !request.take(byte));
        (request, letter.unwrap_or(input.len()))
    }

    /// Whether `byte` belongs to the request.
    fn take(&mut self, byte: u8) -> bool {
        match byte {
            b'_' | b'-' | b'0' if self.width.is_none() => self.pad = Some(byte),
            b'^' => self.upper = true,
            b'#' => self.swap = true,
            b':' => self.colons += 1,
            b'E' | b'O' => {}
            b'0'..=b'9' => {
                let digit = usize::from(byte - b'0');
                // Wider than any terminal is nothing but a way to run out of memory.
                self.width = Some((self.width.unwrap_or(0) * 10 + digit).min(1024));
            }
            _ => return false,
        }
        true
    }

    fn number(self, out: &mut Vec<u8>, value: i64, pad: u8, width: usize) {
        let pad = match self.pad {
            Some(b'-') => None,
            Some(b'_') => Some(b' '),
            Some(_) => Some(b'0'),
            None => Some(pad),
        };
        let width = self.width.unwrap_or(width);
        // Writing to a vector cannot fail.
        let _ = match pad {
            None => write!(out, "{value}"),
            Some(b'0') => write!(out, "{value:0width$}"),
            Some(_) => write!(out, "{value:width$}"),
        };
    }

    fn text(self, out: &mut Vec<u8>, text: &[u8]) {
        let missing = self.width.unwrap_or(0).saturating_sub(text.len());
        if self.pad != Some(b'-') {
            out.resize(out.len() + missing, if self.pad == Some(b'0') { b'0' } else { b' ' });
        }
        if self.upper || (self.swap && !text.iter().any(u8::is_ascii_digit) && !is_lower(text)) {
            out.extend(text.iter().map(u8::to_ascii_uppercase));
        } else {
            out.extend_from_slice(text);
        }
    }

    /// The first digits of the fraction, nine unless a width says otherwise.
    fn nanoseconds(self, out: &mut Vec<u8>, nanos: u32) {
        let digits = format!("{nanos:09}");
        let width = self.width.unwrap_or(9);
        let shown = &digits[..width.min(9)];
        match self.pad {
            Some(b'-') => out.extend_from_slice(shown.trim_end_matches('0').as_bytes()),
            _ => {
                out.extend_from_slice(shown.as_bytes());
                out.resize(out.len() + width.saturating_sub(9), b'0');
            }
        }
    }

    fn offset(self, out: &mut Vec<u8>, offset: i32) {
        let sign = if offset < 0 { '-' } else { '+' };
        let (hours, minutes, seconds) = split(offset.unsigned_abs());
        let text = match self.colons {
            0 => format!("{sign}{hours:02}{minutes:02}"),
            1 => format!("{sign}{hours:02}:{minutes:02}"),
            2 => format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"),
            _ if seconds != 0 => format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"),
            _ if minutes != 0 => format!("{sign}{hours:02}:{minutes:02}"),
            _ => format!("{sign}{hours:02}"),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

/// `%#p` makes lower case; everything else `#` touches becomes upper case.
fn is_lower(text: &[u8]) -> bool {
    text.iter().all(|byte| !byte.is_ascii_uppercase())
}

fn split(seconds: u32) -> (u32, u32, u32) {
    (seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `time` in UTC as RFC 3339 has it, with nanoseconds.
pub fn rfc3339(time: Time) -> String {
    let text = Zone::utc().show(time, b"%Y-%m-%dT%H:%M:%S.%NZ");
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(secs: i64, format: &str) -> String {
        let zone = Zone(TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        String::from_utf8(zone.show(Time::new(secs, 123_456_789), format.as_bytes())).unwrap()
    }

    #[test]
    fn formats() {
        // 2021-02-03 04:05:06 UTC, a Wednesday.
        let winter = 1_612_325_106;
        let cases = [
            ("%Y-%m-%d %H:%M:%S.%N %z", "2021-02-03 05:05:06.123456789 +0100"),
            ("%b %e  %Y", "Feb  3  2021"),
            ("%a %A %B %h %j %U %W %V %G %g %u %w", "Wed Wednesday February Feb 034 05 05 05 2021 21 3 3"),
            ("%c|%D|%F|%R|%T|%r", "Wed Feb  3 05:05:06 2021|02/03/21|2021-02-03|05:05|05:05:06|05:05:06 AM"),
            ("%-d %_m %05e %^a %#Z %#p %P %I %l %k", "3  2 00003 WED cet am am 05  5  5"),
            ("%:z %::z %:::z %Z %s %3N %% %C %y %q", "+01:00 +01:00:00 +01 CET 1612325106 123 % 20 21 1"),
            ("%Q %", "%Q %"),
        ];
        for (format, expected) in cases {
            assert_eq!(show(winter, format), expected, "{format}");
        }
        assert_eq!(show(winter + 180 * 86400, "%Z %z"), "CEST +0200");
    }

    #[test]
    fn zones_are_files() {
        let cases: [(Option<&str>, Option<&str>, Option<&str>); 6] = [
            (None, None, Some("/etc/localtime")),
            (Some("Europe/Berlin"), None, Some("/usr/share/zoneinfo/Europe/Berlin")),
            (Some(":Europe/Berlin"), Some("/zones"), Some("/zones/Europe/Berlin")),
            (Some("/zones/mine"), None, Some("/zones/mine")),
            (Some(""), None, None),
            (Some(":"), None, None),
        ];
        for (tz, directory, file) in cases {
            let found = zone_file(tz.map(OsString::from), directory.map(OsString::from));
            assert_eq!(found.as_deref(), file.map(Path::new), "{tz:?}");
        }
    }

    #[test]
    fn far_away() {
        assert_eq!(show(i64::MAX, "%Y"), i64::MAX.to_string());
        assert_eq!(show(-1, "%F %T.%N"), "1970-01-01 00:59:59.123456789");
        assert_eq!(rfc3339(Time::new(0, 5)), "1970-01-01T00:00:00.000000005Z");
    }
}
