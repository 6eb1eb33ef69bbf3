// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `find` prints: `-printf` and `-ls`.

use super::clock::Clock;
use crate::context::Place;
use crate::format::directive::{Directive, Piece, pieces};
use crate::format::mode;
use crate::format::owner::Owners;
use crate::format::quote::{Quoting, Style};
use crate::format::time::Zone;
use crate::messages::shown_on_terminal;
use crate::status::Failure;
use outrigger_client::{Follow, Inode};
use outrigger_core::{FileKind, Time};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

/// The format of `-printf`.
#[derive(Debug)]
pub struct Format(Vec<Piece>);

/// A file to print.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Where it is.
    pub place: &'a Place,
    /// The length of the operand at the start of its path.
    pub operand: usize,
    /// How deep below the operand it is.
    pub depth: usize,
    /// The file.
    pub inode: &'a Inode,
}

/// Prints files.
pub struct Printer {
    /// Names of users and groups.
    pub owners: Owners,
    zone: Zone,
    now: Time,
    quoting: Quoting,
    /// The widths of the columns of `-ls`: inode, blocks, links, owner, group, size.
    widths: [usize; 6],
    /// Whether a terminal shows what is printed.
    terminal: bool,
}

/// `-ls` shows the year of what is older than six months of 30 days, or more than an hour ahead.
const RECENT: (i64, i64) = (6 * 30 * 86_400, 3600);

impl Format {
    /// Parses a format.
    ///
    /// # Errors
    /// A directive without its letter.
    pub fn parse(text: &[u8]) -> Result<Self, Failure> {
        let pieces = pieces(text, b"ABCT", true);
        let ends_early =
            |piece: &Piece| matches!(piece, Piece::Directive(directive) if directive.letter == 0);
        if pieces.iter().any(ends_early) {
            return Err(Failure::new("-printf: a directive at the end of the format is incomplete"));
        }
        Ok(Format(pieces))
    }
}

/// The path without the operand it starts with.
pub fn below_operand(path: &[u8], operand: usize) -> &[u8] {
    let rest = path.get(operand..).unwrap_or_default();
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// The last component of a path.
pub fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    if end == 0 {
        return &path[..path.len().min(1)];
    }
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &path[start..end]
}

fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => &path[..slash],
        None => b".",
    }
}

impl Printer {
    /// A printer for which it is `now`.
    pub fn new(now: Time) -> Self {
        Printer {
            owners: Owners::default(),
            zone: Zone::of_environment(),
            now,
            quoting: Quoting::new(Style::Escape).and(b" \""),
            widths: [9, 6, 3, 8, 8, 8],
            terminal: io::stdout().is_terminal(),
        }
    }

    /// What `-printf` prints for a file.
    pub fn formatted(&self, format: &Format, subject: Subject<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &format.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Directive(directive) if self.terminal => {
                    let mut text = Vec::new();
                    self.directive(&mut text, directive, subject);
                    out.extend_from_slice(&shown_on_terminal(&text, false));
                }
                Piece::Directive(directive) => self.directive(&mut out, directive, subject),
            }
        }
        out
    }

    fn directive(&self, out: &mut Vec<u8>, directive: &Directive, subject: Subject<'_>) {
        let attr = subject.inode.attr();
        let path = subject.place.shown.as_bytes();
        if let Some(clock) = directive.modifier.and_then(Clock::of_letter) {
            let text = clock.of(attr).map(|time| self.time(time, directive.letter)).unwrap_or_default();
            return directive.text(out, &text);
        }
        match directive.letter {
            b'a' => directive.text(out, &self.clock(Some(attr.atime))),
            b'b' => directive.number(out, attr.blocks),
            b'c' => directive.text(out, &self.clock(Some(attr.ctime))),
            b'd' => directive.number(out, subject.depth as u64),
            b'D' => directive.number(out, 0),
            b'f' => directive.text(out, base(path)),
            b'F' => directive.text(out, subject.place.client.abilities().driver.as_bytes()),
            b'g' => directive.text(out, &name_or(self.owners.group(attr.gid), attr.gid)),
            b'G' => directive.number(out, attr.gid.into()),
            b'h' => directive.text(out, directory(path)),
            b'H' => directive.text(out, &path[..subject.operand.min(path.len())]),
            b'i' => directive.number(out, attr.ino),
            b'k' => directive.number(out, attr.blocks.div_ceil(2)),
            b'l' => directive.text(out, &target(subject.inode)),
            b'm' => directive.octal(out, attr.permissions().into()),
            b'M' => directive.text(out, mode::text(attr.mode).as_bytes()),
            b'n' => directive.number(out, attr.nlink.into()),
            b'p' => directive.text(out, path),
            b'P' => directive.text(out, below_operand(path, subject.operand)),
            b's' => directive.number(out, attr.size),
            b'S' => directive.text(out, sparseness(attr.blocks, attr.size).as_bytes()),
            b't' => directive.text(out, &self.clock(Some(attr.mtime))),
            b'u' => directive.text(out, &name_or(self.owners.user(attr.uid), attr.uid)),
            b'U' => directive.number(out, attr.uid.into()),
            b'y' => directive.text(out, &[letter(attr.mode)]),
            b'Y' => directive.text(out, &[target_letter(subject)]),
            other => out.extend_from_slice(&[b'%', other]),
        }
    }

    /// As ctime(3), with a fraction of ten digits.
    fn clock(&self, time: Option<Time>) -> Vec<u8> {
        time.map(|time| self.zone.show(time, b"%a %b %e %H:%M:%S.%N0 %Y")).unwrap_or_default()
    }

    fn time(&self, time: Time, letter: u8) -> Vec<u8> {
        let format: &[u8] = match letter {
            b'@' => b"%s.%N0",
            b'+' => b"%Y-%m-%d+%H:%M:%S.%N0",
            b'S' => b"%S.%N0",
            b'T' | b'X' => b"%H:%M:%S.%N0",
            b'r' => b"%I:%M:%S.%N0 %p",
            letter => return self.zone.show(time, &[b'%', letter]),
        };
        self.zone.show(time, format)
    }

    /// What `-ls` prints for a file. The columns grow with what was printed before.
    pub fn list(&mut self, subject: Subject<'_>) -> Vec<u8> {
        let attr = subject.inode.attr();
        let user = name_or(self.owners.user(attr.uid), attr.uid);
        let group = name_or(self.owners.group(attr.gid), attr.gid);
        let cells = [
            attr.ino.to_string(),
            attr.blocks.div_ceil(2).to_string(),
            attr.nlink.to_string(),
            String::from_utf8_lossy(&user).into_owned(),
            String::from_utf8_lossy(&group).into_owned(),
            match attr.kind() {
                FileKind::CharDevice | FileKind::BlockDevice => {
                    let (major, minor) = mode::device(attr.rdev);
                    format!("{major:>3}, {minor:>3}")
                }
                _ => attr.size.to_string(),
            },
        ];
        let device = matches!(attr.kind(), FileKind::CharDevice | FileKind::BlockDevice);
        for (width, cell) in self.widths.iter_mut().zip(&cells).take(if device { 5 } else { 6 }) {
            *width = (*width).max(cell.len());
        }
        let [inode, blocks, links, owner, in_group, size] = self.widths;
        let size = if device { 0 } else { size };
        let recent =
            self.now.secs - RECENT.0 <= attr.mtime.secs && attr.mtime.secs <= self.now.secs + RECENT.1;
        let format: &[u8] = if recent { b"%b %e %H:%M" } else { b"%b %e  %Y" };
        let time = String::from_utf8_lossy(&self.zone.show(attr.mtime, format)).into_owned();
        let mode = mode::text(attr.mode);
        let mut out = Vec::new();
        // Writing to a vector cannot fail.
        let _ = write!(
            out,
            "{:>inode$} {:>blocks$} {mode} {:>links$} {:<owner$} {:<in_group$} {:>size$} {time} ",
            cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]
        );
        out.extend_from_slice(&self.quoting.quote(subject.place.shown.as_bytes()));
        if subject.inode.kind() == FileKind::Symlink {
            out.extend_from_slice(b" -> ");
            out.extend_from_slice(&self.quoting.quote(&target(subject.inode)));
        }
        out.push(b'\n');
        out
    }
}

fn name_or(name: Option<std::rc::Rc<str>>, id: u32) -> Vec<u8> {
    name.map_or_else(|| id.to_string().into_bytes(), |name| name.as_bytes().to_vec())
}

/// What a symbolic link points to; empty for all other files.
pub fn target(inode: &Inode) -> Vec<u8> {
    if inode.kind() != FileKind::Symlink {
        return Vec::new();
    }
    inode.readlink().map(|target| target.to_vec()).unwrap_or_default()
}

/// The letter `-type` has for a kind.
fn letter(mode: u32) -> u8 {
    match mode::letter(mode) {
        '-' => b'f',
        '?' => b'U',
        letter => letter as u8,
    }
}

fn target_letter(subject: Subject<'_>) -> u8 {
    if subject.inode.kind() != FileKind::Symlink {
        return letter(subject.inode.attr().mode);
    }
    match subject.place.find(Follow::Yes) {
        Ok(target) => letter(target.attr().mode),
        Err(error) if error.errno == outrigger_core::Errno::ENOENT => b'N',
        Err(error) if error.errno == outrigger_core::Errno::ELOOP => b'L',
        Err(_) => b'?',
    }
}

/// The share of a file that is allocated.
fn sparseness(blocks: u64, size: u64) -> String {
    match size {
        0 if blocks == 0 => "1".to_owned(),
        0 => "inf".to_owned(),
        size => six_digits(blocks as f64 * 512.0 / size as f64),
    }
}

/// As `%g` of printf(3): six significant digits without zeros at the end.
fn six_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&exponent) {
        let mantissa = format!("{:.5}", value / 10f64.powi(exponent));
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let digits = (5 - exponent).max(0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths() {
        let cases: [(&[u8], &[u8], &[u8]); 5] = [
            (b"a/b", b"b", b"a"),
            (b"a", b"a", b"."),
            (b"/", b"/", b""),
            (b"/a", b"a", b""),
            (b"a/b/", b"b", b"a/b"),
        ];
        for (path, last, above) in cases {
            assert_eq!((base(path), directory(path)), (last, above));
        }
        assert_eq!(below_operand(b"a/b/c", 1), b"b/c");
        assert_eq!(below_operand(b"a", 1), b"");
    }

    #[test]
    fn shares() {
        let cases = [
            (0, 0, "1"),
            (8, 4096, "1"),
            (8, 5, "819.2"),
            (2416, 1_234_567, "1.00196"),
            (1, 5_000_000_000, "1.024e-07"),
        ];
        for (blocks, size, expected) in cases {
            assert_eq!(sparseness(blocks, size), expected);
        }
    }
}
