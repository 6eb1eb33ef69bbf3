// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps of sparse files: which parts of a file have data in the archive, one run after the other.

use crate::{Kind, Result, cursor::Cursor, entry::Run, pax::decimal, tar::BLOCK};

/// Most runs a file may have.
pub(crate) const MAX_RUNS: usize = 1 << 20;

/// A pax 0.1 map: `offset,length,offset,length...`.
pub(crate) fn parse_map(text: &[u8]) -> Option<Vec<Run>> {
    let mut runs = Vec::new();
    let mut numbers = text.split(|b| *b == b',');
    while let Some(offset) = numbers.next() {
        if offset.is_empty() && runs.is_empty() {
            break;
        }
        let len = decimal(numbers.next()?)?;
        if len > 0 {
            runs.push((decimal(offset)?, len));
        }
        if runs.len() > MAX_RUNS {
            return None;
        }
    }
    Some(runs)
}

/// A pax 1.0 map, at the start of the `stored` bytes of data: decimal lines (a count, then offset and length of each
/// run), padded to a block.
pub(crate) fn read_map(c: &mut Cursor<'_>, stored: u64) -> Result<Vec<Run>> {
    let start = c.pos();
    let mut block = Vec::new();
    let mut line = |c: &mut Cursor<'_>| -> Result<u64> {
        let mut text = Vec::new();
        loop {
            if block.is_empty() {
                if c.pos() - start + BLOCK as u64 > stored {
                    return Err(c.corrupt("a sparse map larger than its file"));
                }
                block = c.take(BLOCK, "a sparse map")?;
                block.reverse();
            }
            match block.pop() {
                Some(b'\n') => {
                    return decimal(&text).ok_or_else(|| c.corrupt("invalid number in a sparse map"));
                }
                Some(b) if text.len() < 20 => text.push(b),
                _ => return Err(c.corrupt("invalid number in a sparse map")),
            }
        }
    };
    let count = line(c)?;
    if count > MAX_RUNS as u64 {
        return Err(c.error(Kind::Limit, "a sparse map with too many runs"));
    }
    let mut runs = Vec::new();
    for _ in 0..count {
        let run = (line(c)?, line(c)?);
        if run.1 > 0 {
            runs.push(run);
        }
    }
    Ok(runs)
}

/// Whether the runs ascend, do not overlap, lie within `size` and have no more data than is `stored`.
pub(crate) fn is_valid(runs: &[Run], size: u64, stored: u64) -> bool {
    let (mut end, mut data) = (0u64, 0u64);
    for (offset, len) in runs {
        let next = offset.checked_add(*len);
        match next {
            Some(n) if *offset >= end && n <= size => end = n,
            _ => return false,
        }
        data += len;
    }
    data <= stored
}

/// What is at byte `offset` of a sparse file of `size` bytes: how many bytes of the same sort follow, and where they
/// lie in the stored data (`None` in a hole).
pub(crate) fn at(runs: &[Run], size: u64, offset: u64) -> (u64, Option<u64>) {
    let i = runs.partition_point(|(o, l)| o + l <= offset);
    match runs.get(i) {
        Some((o, l)) if *o <= offset => {
            let before: u64 = runs[..i].iter().map(|r| r.1).sum();
            (o + l - offset, Some(before + offset - o))
        }
        Some((o, _)) => (o - offset, None),
        None => (size.saturating_sub(offset), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps() {
        assert_eq!(parse_map(b"0,512,4096,1,9000,0"), Some(vec![(0, 512), (4096, 1)]));
        assert_eq!(parse_map(b""), Some(vec![]));
        assert_eq!(parse_map(b"1"), None);
        assert_eq!(parse_map(b"1,x"), None);
        let runs = [(0, 512), (4096, 1)];
        assert!(is_valid(&runs, 4097, 513));
        assert!(!is_valid(&runs, 4096, 513));
        assert!(!is_valid(&runs, 4097, 512));
        assert!(!is_valid(&[(4, 4), (6, 2)], 100, 100));
        assert!(!is_valid(&[(u64::MAX, 2)], u64::MAX, 100));
        assert_eq!(at(&runs, 8192, 500), (12, Some(500)));
        assert_eq!(at(&runs, 8192, 512), (3584, None));
        assert_eq!(at(&runs, 8192, 4096), (1, Some(512)));
        assert_eq!(at(&runs, 8192, 4097), (4095, None));
    }
}
