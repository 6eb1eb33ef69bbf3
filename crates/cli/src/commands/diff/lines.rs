// SPDX-License-Identifier: MIT OR Apache-2.0
//! Differences between two texts, in the normal and the unified format of POSIX diff.

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};
use std::ops::Range;
use std::time::{Duration, Instant};

/// After this long, longer differences than necessary are accepted.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lines of a text with their line feeds; the last one may lack it.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

fn operations(old: &[&[u8]], new: &[&[u8]]) -> Vec<DiffOp> {
    capture_diff_slices_deadline(Algorithm::Myers, old, new, Some(Instant::now() + PATIENCE))
}

/// Ranges of lines that replace each other, in order.
fn changes(operations: &[DiffOp]) -> Vec<(Range<usize>, Range<usize>)> {
    let mut changes: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    for operation in operations.iter().filter(|operation| !matches!(operation, DiffOp::Equal { .. })) {
        let (old, new) = (operation.old_range(), operation.new_range());
        match changes.last_mut() {
            Some((last_old, last_new)) if last_old.end == old.start && last_new.end == new.start => {
                last_old.end = old.end;
                last_new.end = new.end;
            }
            _ => changes.push((old, new)),
        }
    }
    changes
}

fn put_lines(out: &mut Vec<u8>, mark: &str, lines: &[&[u8]]) {
    for line in lines {
        out.extend_from_slice(mark.as_bytes());
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

/// The differences as commands: `2,3c2`, `5a6`, `7d6`.
pub fn normal(old: &[u8], new: &[u8]) -> Vec<u8> {
    let (old, new) = (lines(old), lines(new));
    let mut out = Vec::new();
    for (from, to) in changes(&operations(&old, &new)) {
        let command = match (from.is_empty(), to.is_empty()) {
            (true, _) => 'a',
            (false, true) => 'd',
            (false, false) => 'c',
        };
        out.extend_from_slice(format!("{}{command}{}\n", normal_range(&from), normal_range(&to)).as_bytes());
        put_lines(&mut out, "< ", &old[from]);
        if command == 'c' {
            out.extend_from_slice(b"---\n");
        }
        put_lines(&mut out, "> ", &new[to]);
    }
    out
}

/// An empty range is named by the line before it.
fn normal_range(range: &Range<usize>) -> String {
    match range.len() {
        0 => range.start.to_string(),
        1 => (range.start + 1).to_string(),
        _ => format!("{},{}", range.start + 1, range.end),
    }
}

/// The differences with `context` lines around them, without the two lines that name the files.
pub fn unified(old: &[u8], new: &[u8], context: usize) -> Vec<u8> {
    let (old, new) = (lines(old), lines(new));
    let mut out = Vec::new();
    for group in group_diff_ops(operations(&old, &new), context) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let from = first.old_range().start..last.old_range().end;
        let to = first.new_range().start..last.new_range().end;
        let heading = format!("@@ -{} +{} @@\n", unified_range(&from), unified_range(&to));
        out.extend_from_slice(heading.as_bytes());
        let (mut at_old, end) = (from.start, from.end);
        for (removed, added) in changes(&group) {
            put_lines(&mut out, " ", &old[at_old..removed.start]);
            at_old = removed.end;
            put_lines(&mut out, "-", &old[removed]);
            put_lines(&mut out, "+", &new[added]);
        }
        put_lines(&mut out, " ", &old[at_old..end]);
    }
    out
}

fn unified_range(range: &Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        count => format!("{},{count}", range.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("ASCII")
    }

    #[test]
    fn formats() {
        let (old, new) = (b"1\n2\n3\n".as_slice(), b"1\n2x\n3".as_slice());
        let no_newline = "\\ No newline at end of file\n";
        assert_eq!(text(normal(old, new)), format!("2,3c2,3\n< 2\n< 3\n---\n> 2x\n> 3\n{no_newline}"));
        let hunk = format!("@@ -1,3 +1,3 @@\n 1\n-2\n-3\n+2x\n+3\n{no_newline}");
        assert_eq!(text(unified(old, new, 3)), hunk);
        assert_eq!(text(normal(b"", b"1\n")), "0a1\n> 1\n");
        assert_eq!(text(unified(b"1\n2\n", b"", 3)), "@@ -1,2 +0,0 @@\n-1\n-2\n");
        assert_eq!(text(normal(b"a\nb\n", b"a\n")), "2d1\n< b\n");
        assert!(normal(old, old).is_empty() && unified(old, old, 3).is_empty());
    }

    #[test]
    fn distant_changes_are_hunks_of_their_own() {
        let old: String = (0..40).map(|line| format!("{line}\n")).collect();
        let new = old.replace("5\n", "five\n").replace("30\n", "");
        let diff = text(unified(old.as_bytes(), new.as_bytes(), 1));
        let hunks: Vec<&str> = diff.lines().filter(|line| line.starts_with("@@")).collect();
        assert_eq!(hunks.len(), 5, "{diff}");
        assert_eq!(hunks[0], "@@ -5,3 +5,3 @@");
    }
}
