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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
