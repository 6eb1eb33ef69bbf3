// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which part of a file an answer has, and when the file was changed.

/// What `Content-Range` says, in bytes (RFC 9110, 14.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRange {
    /// The first and the last byte that the answer has; `None` where the range asked for is not in the file.
    pub range: Option<(u64, u64)>,
    /// The size of the file, where the server says.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Reads the value of the field; `None` for what is no such thing, as a range that ends before it begins, or after the file.
    pub fn parse(value: &str) -> Option<Self> {
        let (range, total) = value.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
        let total = if total == "*" { None } else { Some(number(total)?) };
        if range == "*" {
            return Some(ContentRange { range: None, total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        let fits = first <= last && last < u64::MAX && total.is_none_or(|total| last < total);
        fits.then_some(ContentRange { range: Some((first, last)), total })
    }
}

/// Digits only: the sign that Rust's own parser takes is none here.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Seconds since 1970 of a date as HTTP writes it, `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text.trim()).ok().map(|date| date.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_those_that_make_no_sense_are_none() {
        let range = |range, total| Some(ContentRange { range, total });
        for (text, expected) in [
            ("bytes 0-99/1000", range(Some((0, 99)), Some(1000))),
            (" bytes 5-5/* ", range(Some((5, 5)), None)),
            ("bytes */7", range(None, Some(7))),
            ("bytes 5-4/9", None),
            ("bytes 0-9/9", None),
            ("bytes 0-+9/20", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes 0-9/99999999999999999999999", None),
            ("items 0-9/20", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn dates_are_read() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("yesterday"), None);
    }
}
