// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dates of listings, in seconds since 1970 (UTC; a server that lists local times means its own).

const DAY: i64 = 86_400;

/// A day and a time of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Civil {
    /// The year, 1 to 9999.
    pub year: i64,
    /// The month, 1 to 12.
    pub month: i64,
    /// The day, 1 to 31.
    pub day: i64,
    /// Seconds since midnight.
    pub seconds: i64,
}

impl Civil {
    /// Seconds since 1970; `None` for a day that no month has.
    pub fn unix(self) -> Option<i64> {
        let Civil { year, month, day, seconds } = self;
        let ok = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        // Days from the civil calendar, as in Howard Hinnant's `days_from_civil`.
        let shifted = if month <= 2 { year - 1 } else { year };
        let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
        let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
        (ok && (0..=DAY).contains(&seconds)).then_some(days * DAY + seconds)
    }

    /// The day and time of a number of seconds since 1970.
    pub fn of_unix(unix: i64) -> Self {
        let (days, seconds) = (unix.div_euclid(DAY) + 719_468, unix.rem_euclid(DAY));
        let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let shifted = (5 * of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year + era * 400 + i64::from(month <= 2);
        Civil { year, month, day: of_year - (153 * shifted + 2) / 5 + 1, seconds }
    }
}

/// Reads `YYYYMMDDHHMMSS`, with a fraction of a second that is dropped (RFC 3659, 2.3).
pub fn timestamp(text: &[u8]) -> Option<i64> {
    let digits = text.get(..14)?;
    let ends = matches!(text.get(14), None | Some(b'.'));
    if !ends || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, to: usize| {
        digits[from..to].iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
    };
    let (hours, minutes, seconds) = (number(8, 10), number(10, 12), number(12, 14));
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let seconds = hours * 3600 + minutes * 60 + seconds;
    Civil { year: number(0, 4), month: number(4, 6), day: number(6, 8), seconds }.unix()
}

/// Writes a time as [`timestamp`] reads it; one that four digits of a year cannot hold becomes the nearest that they can.
pub fn stamp(unix: i64) -> String {
    let Civil { year, month, day, seconds } = Civil::of_unix(unix.clamp(-62_135_596_800, 253_402_300_799));
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}{month:02}{day:02}{hours:02}{minutes:02}{:02}", seconds % 60)
}

/// A command that sets the time of change of a file. Servers that do not know one may take it for something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeCommand {
    /// MFMT, which FEAT tells of.
    Mfmt,
    /// MDTM with a time before the name (vsftpd). Others take both for the name of a file.
    Mdtm,
    /// SITE UTIME with the time before the name.
    UtimeBefore,
    /// SITE UTIME with times after the name.
    UtimeAfter,
}

impl TimeCommand {
    /// What a server without MFMT may have.
    pub const WITHOUT_MFMT: &[TimeCommand] =
        &[TimeCommand::Mdtm, TimeCommand::UtimeBefore, TimeCommand::UtimeAfter];

    /// The verb and its argument for a file, whose time of change is to be `unix`.
    pub fn of(self, path: &[u8], unix: i64) -> (&'static str, Vec<u8>) {
        let stamp = stamp(unix);
        let with = |before: &str, after: &str| [before.as_bytes(), path, after.as_bytes()].concat();
        match self {
            TimeCommand::Mfmt => ("MFMT", with(&format!("{stamp} "), "")),
            TimeCommand::Mdtm => ("MDTM", with(&format!("{stamp} "), "")),
            TimeCommand::UtimeBefore => ("SITE", with(&format!("UTIME {stamp} "), "")),
            TimeCommand::UtimeAfter => ("SITE", with("UTIME ", &format!(" {stamp} {stamp} {stamp} UTC"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_set_in_four_ways() {
        for (command, verb, argument) in [
            (TimeCommand::Mfmt, "MFMT", "19700101000000 /a b"),
            (TimeCommand::Mdtm, "MDTM", "19700101000000 /a b"),
            (TimeCommand::UtimeBefore, "SITE", "UTIME 19700101000000 /a b"),
            (TimeCommand::UtimeAfter, "SITE", "UTIME /a b 19700101000000 19700101000000 19700101000000 UTC"),
        ] {
            assert_eq!(command.of(b"/a b", 0), (verb, argument.as_bytes().to_vec()));
        }
    }

    #[test]
    fn known_days() {
        assert_eq!(timestamp(b"19700101000000"), Some(0));
        assert_eq!(timestamp(b"20261125083000.123"), Some(1_795_595_400));
        for text in ["2026112508300", "20261325083000", "20261125253000", "2026112508300x", "20261125083000x"]
        {
            assert_eq!(timestamp(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(unix in -62_135_596_800_i64..253_402_300_799) {
            prop_assert_eq!(timestamp(stamp(unix).as_bytes()), Some(unix));
        }

        #[test]
        fn any_bytes_are_a_time_or_none(bytes: Vec<u8>, unix: i64) {
            let _ = (timestamp(&bytes), stamp(unix));
        }
    }
}
