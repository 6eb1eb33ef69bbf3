// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger stat`: attributes of files, as GNU stat 9.1 prints them.
//!
//! A tree has no device number and no file system type of the kernel: the former is 0, the latter the driver's name.

use crate::context::{Context, Place};
use crate::format::directive::{Directive, Piece, pieces};
use crate::format::mode;
use crate::format::owner::Owners;
use crate::format::quote::{Quoting, Style, for_message};
use crate::format::record::{Record, space};
use crate::format::time::Zone;
use crate::messages::{record, why};
use crate::output::Output;
use crate::run::Run;
use crate::say::usage;
use crate::status::{Exits, Failure, Status};
use crate::switches::keyword;
use clap::Args;
use outrigger_client::{Follow, Inode};
use outrigger_core::ops::StatFs;
use outrigger_core::reply::FsStat;
use outrigger_core::{Attr, FileKind, Time};
use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show the tree instead of the file.
    #[arg(short, long)]
    file_system: bool,
    /// Print FORMAT, with a newline after each file.
    #[arg(short = 'c', long, value_name = "FORMAT", overrides_with = "printf", allow_hyphen_values = true)]
    format: Option<OsString>,
    /// Print FORMAT, with escapes and without a newline.
    #[arg(long, value_name = "FORMAT", overrides_with = "format", allow_hyphen_values = true)]
    printf: Option<OsString>,
    /// Print everything in one line.
    #[arg(short, long)]
    terse: bool,
    /// What to show.
    #[arg(value_name = "LOCATION")]
    places: Vec<OsString>,
}

const FILE: &[u8] = b"  File: %N\n  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\n\
    Device: %Hd,%Ld\tInode: %-10i  Links: %h\n\
    Access: (%04a/%10.10A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\n\
    Access: %x\nModify: %y\nChange: %z\n Birth: %w\n";
const DEVICE: &[u8] = b"  File: %N\n  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\n\
    Device: %Hd,%Ld\tInode: %-10i  Links: %-5h Device type: %Hr,%Lr\n\
    Access: (%04a/%10.10A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\n\
    Access: %x\nModify: %y\nChange: %z\n Birth: %w\n";
const TERSE: &[u8] = b"%n %s %b %f %u %g %D %i %h %t %T %X %Y %Z %W %o\n";
const TREE: &[u8] = b"  File: \"%n\"\n    ID: %-8i Namelen: %-7l Type: %T\n\
    Block size: %-10s Fundamental block size: %S\nBlocks: Total: %-10b Free: %-10f Available: %a\n\
    Inodes: Total: %-10c Free: %d\n";
const TERSE_TREE: &[u8] = b"%n %i %l %t %s %S %b %f %a %c %d\n";

impl Run for Stat {
    const NAME: &'static str = "stat";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        if self.places.is_empty() {
            return Err(usage(Self::NAME, "missing operand"));
        }
        let mut output = Output::new(context);
        let mut printer = Printer::new(self.format.is_some() || self.printf.is_some());
        for text in &self.places {
            output.proceed()?;
            let shown = match context.place(text) {
                Ok(place) => self.show(context, &mut printer, &place),
                Err(failure) => Err(failure),
            };
            match shown {
                Ok(text) => output.lines(&text)?,
                Err(failure) => output.complain(Status::Minor, failure),
            }
        }
        output.flush()
    }
}

impl Stat {
    fn show(&self, context: &Context, printer: &mut Printer, place: &Place) -> Result<Vec<u8>, Failure> {
        let name = for_message(place.shown.as_bytes());
        let follow = if self.dereference || self.file_system { Follow::Yes } else { Follow::No };
        let found = place.find(follow);
        if self.file_system {
            let info = found.and_then(|inode| place.client.call(StatFs { node: inode.node() }));
            let info = info.map_err(|error| {
                Failure::new(format!("cannot read file system information for {name}: {}", why(&error)))
            })?;
            return Ok(self.show_tree(context, place, &info));
        }
        let inode = found.map_err(|error| Failure::new(format!("cannot statx {name}: {}", why(&error))))?;
        if context.json {
            let target = target(&inode);
            let record =
                Record::new(place.shown.as_bytes(), Some(inode.attr()), target.as_deref(), &printer.owners);
            return Ok(record.line());
        }
        let device = matches!(inode.kind(), FileKind::CharDevice | FileKind::BlockDevice);
        let default = if device { DEVICE } else { FILE };
        let mut out = Vec::new();
        for piece in self.pieces(if self.terse { TERSE } else { default }) {
            match piece {
                Piece::Text(text) => out.extend_from_slice(&text),
                Piece::Directive(directive) => printer.file(&mut out, &directive, place, &inode),
            }
        }
        Ok(out)
    }

    fn show_tree(&self, context: &Context, place: &Place, info: &FsStat) -> Vec<u8> {
        if context.json {
            let abilities = place.client.abilities();
            let object = space(&place.shown.to_string_lossy(), &abilities.tree, abilities.driver, info);
            return record(&object).into_bytes();
        }
        let mut out = Vec::new();
        for piece in self.pieces(if self.terse { TERSE_TREE } else { TREE }) {
            match piece {
                Piece::Text(text) => out.extend_from_slice(&text),
                Piece::Directive(directive) => tree_directive(&mut out, &directive, place, info),
            }
        }
        out
    }

    fn pieces(&self, default: &[u8]) -> Vec<Piece> {
        match (&self.format, &self.printf) {
            (_, Some(format)) => pieces(format.as_bytes(), b"HL", true),
            (Some(format), None) => {
                let mut pieces = pieces(format.as_bytes(), b"HL", false);
                pieces.push(Piece::Text(b"\n".to_vec()));
                pieces
            }
            (None, None) => pieces(default, b"HL", false),
        }
    }
}

fn target(inode: &Inode) -> Option<Vec<u8>> {
    if inode.kind() != FileKind::Symlink {
        return None;
    }
    inode.readlink().ok().map(|target| target.to_vec())
}

fn tree_directive(out: &mut Vec<u8>, directive: &Directive, place: &Place, info: &FsStat) {
    match directive.letter {
        b'n' => directive.text(out, place.shown.as_bytes()),
        b'i' | b't' => directive.hexadecimal(out, 0),
        b'l' => directive.number(out, info.namelen.into()),
        b'T' => directive.text(out, place.client.abilities().driver.as_bytes()),
        b's' => directive.number(out, info.bsize.into()),
        b'S' => directive.number(out, info.frsize.into()),
        b'b' => directive.number(out, info.blocks),
        b'f' => directive.number(out, info.bfree),
        b'a' => directive.number(out, info.bavail),
        b'c' => directive.number(out, info.files),
        b'd' => directive.number(out, info.ffree),
        _ => out.push(b'?'),
    }
}

/// Writes directives about files.
struct Printer {
    owners: Owners,
    zone: Zone,
    quoting: Quoting,
}

impl Printer {
    /// A printer of names in the style of the environment; otherwise a format of the user has them quoted always.
    fn new(user_format: bool) -> Self {
        let default = if user_format { Style::ShellEscapeAlways } else { Style::ShellEscape };
        let chosen = env::var_os("QUOTING_STYLE");
        let style = chosen.and_then(|value| keyword(&Style::NAMES, &value, "QUOTING_STYLE").ok());
        let quoting = Quoting::new(style.unwrap_or(default));
        Printer { owners: Owners::default(), zone: Zone::of_environment(), quoting }
    }

    fn file(&mut self, out: &mut Vec<u8>, directive: &Directive, place: &Place, inode: &Inode) {
        let attr = inode.attr();
        let (major, minor) = mode::device(attr.rdev);
        match (directive.modifier, directive.letter) {
            (None, b'n') => directive.text(out, place.shown.as_bytes()),
            (None, b'N') => directive.text(out, &self.quoted(place, inode)),
            (None, b'm') => directive.text(out, b"/"),
            (None, b'C') => directive.text(out, b"?"),
            (Some(b'H' | b'L') | None, b'd') => directive.number(out, 0),
            (None, b'D') => directive.hexadecimal(out, 0),
            (Some(b'H'), b'r') => directive.number(out, major.into()),
            (Some(b'L'), b'r') => directive.number(out, minor.into()),
            (None, b'r') => directive.number(out, attr.rdev.into()),
            (None, b'R') => directive.hexadecimal(out, attr.rdev.into()),
            (None, b't') => directive.hexadecimal(out, major.into()),
            (None, b'T') => directive.hexadecimal(out, minor.into()),
            (None, letter) => self.attribute(out, directive, letter, attr),
            _ => out.push(b'?'),
        }
    }

    fn attribute(&self, out: &mut Vec<u8>, directive: &Directive, letter: u8, attr: &Attr) {
        let unknown = || "UNKNOWN".into();
        match letter {
            b'a' => directive.octal(out, attr.permissions().into()),
            b'A' => directive.text(out, mode::text(attr.mode).as_bytes()),
            b'b' => directive.number(out, attr.blocks),
            b'B' => directive.number(out, 512),
            b'f' => directive.hexadecimal(out, attr.mode.into()),
            b'F' => directive.text(out, mode::kind_name(attr.mode, attr.size).as_bytes()),
            b'g' => directive.number(out, attr.gid.into()),
            b'G' => directive.text(out, self.owners.group(attr.gid).unwrap_or_else(unknown).as_bytes()),
            b'h' => directive.number(out, attr.nlink.into()),
            b'i' => directive.number(out, attr.ino),
            b'o' => directive.number(out, attr.blksize.into()),
            b's' => directive.number(out, attr.size),
            b'u' => directive.number(out, attr.uid.into()),
            b'U' => directive.text(out, self.owners.user(attr.uid).unwrap_or_else(unknown).as_bytes()),
            b'w' | b'W' => self.time(out, directive, letter, attr.btime),
            b'x' | b'X' => self.time(out, directive, letter, Some(attr.atime)),
            b'y' | b'Y' => self.time(out, directive, letter, Some(attr.mtime)),
            b'z' | b'Z' => self.time(out, directive, letter, Some(attr.ctime)),
            _ => out.push(b'?'),
        }
    }

    fn time(&self, out: &mut Vec<u8>, directive: &Directive, letter: u8, time: Option<Time>) {
        match time {
            _ if letter.is_ascii_uppercase() => directive.seconds(out, time.unwrap_or_default()),
            Some(time) => directive.text(out, &self.zone.show(time, b"%Y-%m-%d %H:%M:%S.%N %z")),
            None => directive.text(out, b"-"),
        }
    }

    fn quoted(&self, place: &Place, inode: &Inode) -> Vec<u8> {
        let mut out = self.quoting.quote(place.shown.as_bytes()).into_owned();
        if let Some(target) = target(inode) {
            out.extend_from_slice(b" -> ");
            out.extend_from_slice(&self.quoting.quote(&target));
        }
        out
    }
}
