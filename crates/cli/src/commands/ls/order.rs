// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of names.

use super::entry::Entry;
use super::options::{Options, Order};
use std::cmp::Ordering;

/// Sorts `entries` as `options` say.
pub fn sort(entries: &mut [Entry], options: &Options) {
    if options.order == Order::None {
        return;
    }
    if options.order == Order::Width {
        let width = |entry: &Entry| options.quoting.charset.width(&options.quoting.quote(&entry.name));
        return entries.sort_by(|a, b| arrange(options, a, b, width(a).cmp(&width(b))));
    }
    entries.sort_by(|a, b| {
        let first = match options.order {
            Order::Size => size(b).cmp(&size(a)),
            Order::Time => time(b, options).cmp(&time(a, options)),
            Order::Extension => extension(&a.name).cmp(extension(&b.name)),
            Order::Version => by_version(&a.name, &b.name),
            Order::Name | Order::Width | Order::None => Ordering::Equal,
        };
        arrange(options, a, b, first)
    });
}

fn arrange(options: &Options, a: &Entry, b: &Entry, first: Ordering) -> Ordering {
    let order = first.then_with(|| a.name.cmp(&b.name));
    let order = if options.reverse { order.reverse() } else { order };
    if options.directories_first {
        b.leads_to_directory().cmp(&a.leads_to_directory()).then(order)
    } else {
        order
    }
}

fn size(entry: &Entry) -> u64 {
    entry.attr.as_ref().map_or(0, |attr| attr.size)
}

fn time(entry: &Entry, options: &Options) -> (i64, u32) {
    match entry.time(options.which) {
        Some(time) => (time.secs, time.nanos),
        // An unknown time of birth sorts as stat(1) shows it: before all others.
        None if entry.attr.is_some() => (-1, 0),
        None => (0, 0),
    }
}

fn extension(name: &[u8]) -> &[u8] {
    name.iter().rposition(|&byte| byte == b'.').map_or(b"", |dot| &name[dot..])
}

/// Compares names with numbers in them, as GNU `sort -V` does: numbers by value, letters before other characters,
/// `~` before everything, hidden names first, and endings like `.tar.gz` only when the rest is alike.
pub fn by_version(a: &[u8], b: &[u8]) -> Ordering {
    let rank = |name: &[u8]| match name {
        b"" => 0,
        b"." => 1,
        b".." => 2,
        [b'.', ..] => 3,
        _ => 4,
    };
    let ranks = rank(a).cmp(&rank(b));
    if ranks != Ordering::Equal || rank(a) < 3 {
        return ranks;
    }
    let (stem_a, stem_b) = (stem(a), stem(b));
    by_parts(stem_a, stem_b).then_with(|| by_parts(a, b))
}

/// `name` without its endings: `(\.[A-Za-z~][A-Za-z0-9~]*)*` at its end.
fn stem(name: &[u8]) -> &[u8] {
    let (mut at, mut end) = (0, 0);
    while at < name.len() {
        at += 1;
        end = at;
        while name.get(at) == Some(&b'.')
            && name.get(at + 1).is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'~')
        {
            let tail = &name[at + 2..];
            at += 2 + tail.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'~').count();
        }
    }
    &name[..end]
}

fn by_parts(mut a: &[u8], mut b: &[u8]) -> Ordering {
    let weight = |bytes: &[u8]| match bytes.first() {
        None => -1,
        Some(b'0'..=b'9') => 0,
        Some(b'~') => -2,
        Some(&byte) if byte.is_ascii_alphabetic() => i32::from(byte),
        Some(&byte) => i32::from(byte) + 256,
    };
    let digit = |bytes: &[u8]| bytes.first().is_some_and(u8::is_ascii_digit);
    while !a.is_empty() || !b.is_empty() {
        while (!a.is_empty() && !digit(a)) || (!b.is_empty() && !digit(b)) {
            let order = weight(a).cmp(&weight(b));
            if order != Ordering::Equal {
                return order;
            }
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        }
        let (number_a, rest_a) = take_number(a);
        let (number_b, rest_b) = take_number(b);
        let order = number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b));
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    Ordering::Equal
}

/// The digits at the start without leading zeros, and what follows them.
fn take_number(bytes: &[u8]) -> (&[u8], &[u8]) {
    let zeros = bytes.iter().take_while(|byte| **byte == b'0').count();
    let digits = bytes[zeros..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes[zeros..].split_at(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let sorted: [&[u8]; 18] = [
            b"",
            b".",
            b"..",
            b".a",
            b".b1",
            b"0",
            b"1.2",
            b"1.10",
            b"a~",
            b"a",
            b"a.b",
            b"a1.c",
            b"a1.tar.gz",
            b"a2",
            b"a10",
            b"b",
            b"b-1",
            b"b_1",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(by_version(pair[0], pair[1]), Ordering::Less, "{:?}", pair.escape());
            assert_eq!(by_version(pair[1], pair[0]), Ordering::Greater);
        }
        assert_eq!(by_version(b"a01", b"a1"), Ordering::Equal);
    }

    trait Escape {
        fn escape(&self) -> Vec<String>;
    }

    impl Escape for [&[u8]] {
        fn escape(&self) -> Vec<String> {
            self.iter().map(|name| name.escape_ascii().to_string()).collect()
        }
    }
}
