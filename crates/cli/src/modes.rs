// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modes as chmod(1) takes them: octal, or symbolic as in `u=rwX,go-w` (POSIX, with GNU's extensions).

use outrigger_core::attr::{SET_GID, SET_ID, SET_UID};

const STICKY: u32 = 0o1000;
const ALL: u32 = 0o7777;
const EXECUTE: u32 = 0o111;

/// A change of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    op: Op,
    value: Value,
    /// The bits the classes in front of the operator cover; `None` without any: then the umask decides.
    affected: Option<u32>,
    /// Bits named explicitly: a directory loses its set-id bits only to them.
    mentioned: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Set,
    Add,
    Remove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// These bits.
    Bits(u32),
    /// These bits, and execution if the file is a directory or has an execute bit.
    BitsAndSearch(u32),
    /// The permissions the class with these bits has.
    CopyOf(u32),
}

impl ModeChange {
    /// Parses a mode; `None` when it is none.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with(|first: char| first.is_digit(8)) {
            let (mode, explicit) = octal(text)?;
            let mentioned = if explicit { ALL } else { (mode & 0o7000) | 0o777 };
            let step = Step { op: Op::Set, value: Value::Bits(mode), affected: Some(ALL), mentioned };
            return Some(ModeChange(vec![step]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps)?;
        }
        Some(ModeChange(steps))
    }

    /// The mode a file has.
    pub fn of_file(mode: u32) -> Self {
        let value = Value::Bits(mode & ALL);
        ModeChange(vec![Step { op: Op::Set, value, affected: Some(ALL), mentioned: ALL }])
    }

    /// The mode that results from `mode`.
    pub fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        self.0.iter().fold(mode & ALL, |mode, step| step.apply(mode, is_dir, umask))
    }
}

/// An octal number up to 7777, and whether it has so many digits that it names the set-id bits too.
fn octal(text: &str) -> Option<(u32, bool)> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= ALL)?;
    text.bytes().all(|digit| digit.is_ascii_digit()).then_some((mode, text.len() >= 5))
}

fn class_bits(class: u8) -> Option<u32> {
    Some(match class {
        b'u' => SET_UID | 0o700,
        b'g' => SET_GID | 0o070,
        b'o' => STICKY | 0o007,
        b'a' => ALL,
        _ => return None,
    })
}

fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let mut rest = clause.as_bytes();
    let mut affected = None;
    while let Some(bits) = rest.first().and_then(|&class| class_bits(class)) {
        affected = Some(affected.unwrap_or(0) | bits);
        rest = &rest[1..];
    }
    if rest.is_empty() {
        return None;
    }
    while let Some((&sign, tail)) = rest.split_first() {
        let op = match sign {
            b'=' => Op::Set,
            b'+' => Op::Add,
            b'-' => Op::Remove,
            _ => return None,
        };
        let end = tail.iter().position(|byte| b"=+-".contains(byte)).unwrap_or(tail.len());
        steps.push(parse_action(op, &tail[..end], affected)?);
        rest = &tail[end..];
    }
    Some(())
}

fn parse_action(op: Op, action: &[u8], affected: Option<u32>) -> Option<Step> {
    if action.first().is_some_and(u8::is_ascii_digit) {
        if affected.is_some() {
            return None;
        }
        let (mode, _) = octal(std::str::from_utf8(action).ok()?)?;
        return Some(Step { op, value: Value::Bits(mode), affected: Some(ALL), mentioned: ALL });
    }
    let copied = match action {
        b"u" => 0o700,
        b"g" => 0o070,
        b"o" => 0o007,
        _ => 0,
    };
    let (value, bits) = if copied != 0 {
        (Value::CopyOf(copied), copied)
    } else {
        let (mut bits, mut search) = (0, false);
        for permission in action {
            match permission {
                b'r' => bits |= 0o444,
                b'w' => bits |= 0o222,
                b'x' => bits |= EXECUTE,
                b'X' => search = true,
                b's' => bits |= SET_ID,
                b't' => bits |= STICKY,
                _ => return None,
            }
        }
        (if search { Value::BitsAndSearch(bits) } else { Value::Bits(bits) }, bits)
    };
    Some(Step { op, value, affected, mentioned: affected.map_or(bits, |affected| affected & bits) })
}

impl Step {
    fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let kept = if is_dir { SET_ID & !self.mentioned } else { 0 };
        let value = match self.value {
            Value::Bits(bits) => bits,
            Value::BitsAndSearch(bits) if is_dir || mode & EXECUTE != 0 => bits | EXECUTE,
            Value::BitsAndSearch(bits) => bits,
            Value::CopyOf(class) => {
                [0o444, 0o222, EXECUTE].into_iter().filter(|permission| mode & class & permission != 0).sum()
            }
        };
        let value = value & self.affected.unwrap_or(!umask & ALL) & !kept;
        match self.op {
            Op::Set => (mode & (self.affected.map_or(0, |affected| !affected) | kept)) | value,
            Op::Add => mode | value,
            Op::Remove => mode & !value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_chmod() {
        let (file, dir) = (false, true);
        let cases = [
            ("755", 0o644, file, 0o755),
            ("0755", 0o6644, file, 0o755),
            ("755", 0o6700, dir, 0o6755),
            ("00755", 0o6700, dir, 0o755),
            ("7777", 0, dir, 0o7777),
            ("u=rwx", 0o6755, dir, 0o6755),
            ("u=rwx", 0o6755, file, 0o2755),
            ("u+s,g-x", 0o755, file, 0o4745),
            ("u=rwX,go=", 0o644, file, 0o600),
            ("u=rwX,go=", 0o6755, dir, 0o6700),
            ("a+X", 0o644, file, 0o644),
            ("a+X", 0o744, file, 0o755),
            ("u+rwXx,o=u", 0o600, file, 0o707),
            ("+w", 0o444, file, 0o644),
            ("=g", 0o707, file, 0o000),
            ("-x", 0o755, file, 0o644),
            ("g=u,o-r", 0o754, file, 0o770),
            ("ug+s,+t", 0o755, file, 0o7755),
            ("o=t", 0o777, file, 0o1770),
            ("u=g+x-r", 0o040, file, 0o140),
            ("=0640", 0o777, file, 0o640),
            ("u=", 0o777, file, 0o077),
        ];
        for (text, mode, is_dir, expected) in cases {
            let change = ModeChange::parse(text).unwrap_or_else(|| panic!("{text} is a mode"));
            let result = change.apply(mode, is_dir, 0o022);
            assert_eq!(result, expected, "{text} of {mode:o}: {result:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "foo", "8", "77777", "u", "u+q", "755x", "u+x,", ",u+x", "u=755", "+-8"] {
            assert_eq!(ModeChange::parse(text), None, "{text}");
        }
    }
}
