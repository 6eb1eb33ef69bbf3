// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names with their quotes, colours and indicators, and what stands in front of them in the short layouts.

use super::entry::Entry;
use super::options::{Indicator, Layout, Options};
use crate::format::colour::{Colours, Part, Subject};
use crate::format::mode;
use crate::format::owner::Owners;
use crate::format::quote::{Quoting, Style, question_marks};
use crate::format::time::Zone;
use outrigger_core::{Attr, Clock, FileKind, Time};
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// Writes entries the way the options say.
pub struct Printer {
    /// The options.
    pub options: Rc<Options>,
    /// Names of users and groups.
    pub owners: Owners,
    /// The user's time zone.
    pub zone: Zone,
    /// What counts as now.
    pub now: Time,
    /// Reads the clock again when a file is newer than `now`.
    pub clock: Arc<dyn Clock>,
    /// Whether a colour was written.
    coloured: bool,
}

/// The widest of each column.
#[derive(Debug, Clone, Default)]
pub struct Widths {
    pub inode: usize,
    pub blocks: usize,
    pub nlink: usize,
    pub owner: usize,
    pub group: usize,
    pub author: usize,
    pub context: usize,
    pub major: usize,
    pub minor: usize,
    pub size: usize,
    /// Whether any file has an access control list.
    pub acl: bool,
    /// Whether any name has quotes.
    pub quotes: bool,
}

/// A name as it is written, how many columns it takes, and whether a space makes up for a missing quote.
struct Shown<'a> {
    bytes: Cow<'a, [u8]>,
    width: usize,
    pad: bool,
}

impl Printer {
    /// A printer.
    pub fn new(options: Rc<Options>, clock: Arc<dyn Clock>) -> Self {
        let (owners, zone) = (Owners::default(), Zone::of_environment());
        Printer { options, owners, zone, now: clock.wall(), clock, coloured: false }
    }

    /// Takes `entry` into account.
    pub fn measure(&mut self, widths: &mut Widths, entry: &Entry) {
        let options = Rc::clone(&self.options);
        if options.align_quotes && !widths.quotes {
            widths.quotes = options.quoting.changes(&entry.name);
        }
        widths.acl |= entry.acl;
        widths.context = 1;
        let Some(attr) = &entry.attr else { return };
        widths.inode = widths.inode.max(digits(attr.ino));
        if options.layout == Layout::Long || options.blocks {
            widths.blocks = widths.blocks.max(self.blocks(entry).len());
        }
        if options.layout == Layout::Long {
            self.measure_long(widths, attr, entry.is_device());
        }
    }

    /// The number of blocks of `entry` in the chosen unit.
    pub fn blocks(&self, entry: &Entry) -> String {
        entry.attr.as_ref().map_or("?".to_owned(), |attr| self.options.block_unit.show(attr.blocks, 512))
    }

    /// The inode number of `entry`.
    pub fn inode(&self, entry: &Entry) -> String {
        entry.attr.as_ref().map_or("?".to_owned(), |attr| attr.ino.to_string())
    }

    fn shown<'a>(&self, name: &'a [u8], quoting: &Quoting, widths: &Widths) -> Shown<'a> {
        let mut bytes = quoting.quote(name);
        let marks = matches!(quoting.style, Style::Literal | Style::Shell | Style::ShellAlways);
        let pad = self.options.align_quotes && widths.quotes && !quoting.changes(name);
        if self.options.question_marks && marks {
            bytes = Cow::Owned(question_marks(quoting.charset, &bytes));
        }
        let width = quoting.charset.width(&bytes) + usize::from(pad);
        Shown { bytes, width, pad }
    }

    /// How many columns `entry` takes in the short layouts.
    pub fn width(&self, entry: &Entry, widths: &Widths) -> usize {
        let options = &self.options;
        let commas = options.layout == Layout::Commas;
        let mut width = self.shown(&entry.name, &options.quoting, widths).width;
        if options.inode {
            width += 1 + if commas { self.inode(entry).len() } else { widths.inode };
        }
        if options.blocks {
            width += 1 + if commas { self.blocks(entry).len() } else { widths.blocks };
        }
        if options.context {
            width += 2;
        }
        width + usize::from(indicator(options.indicator, entry.attr.as_ref(), entry.kind).is_some())
    }

    /// `entry` in the short layouts, the first column of which is `column`.
    pub fn short(&mut self, out: &mut Vec<u8>, entry: &Entry, widths: &Widths, column: usize) {
        self.normal(out);
        let options = Rc::clone(&self.options);
        let fixed = |width: usize| if options.layout == Layout::Commas { 0 } else { width };
        if options.inode {
            out.extend_from_slice(format!("{:>1$} ", self.inode(entry), fixed(widths.inode)).as_bytes());
        }
        if options.blocks {
            out.extend_from_slice(format!("{:>1$} ", self.blocks(entry), fixed(widths.blocks)).as_bytes());
        }
        if options.context {
            out.extend_from_slice(b"? ");
        }
        self.name(out, entry, widths, column);
        out.extend(indicator(options.indicator, entry.attr.as_ref(), entry.kind));
    }

    /// The name of `entry` in its colour, `column` columns from the left; answers how many bytes it took.
    pub fn name(&mut self, out: &mut Vec<u8>, entry: &Entry, widths: &Widths, column: usize) {
        let options = Rc::clone(&self.options);
        let shown = self.shown(&entry.name, &options.quoting, widths);
        let colour = options.colours.as_ref().and_then(|colours| colours.of(subject(entry, colours)));
        self.coloured_name(out, &shown, colour, column);
    }

    /// What a symbolic link points to, in the colour of that.
    pub fn target(
        &mut self,
        out: &mut Vec<u8>,
        entry: &Entry,
        target: &[u8],
        widths: &Widths,
        column: usize,
    ) {
        let options = Rc::clone(&self.options);
        let shown = Shown { pad: false, ..self.shown(target, &options.quoting, widths) };
        let subject = Subject {
            name: target,
            mode: Ok(entry.target_mode.unwrap_or(0)),
            nlink: entry.attr.as_ref().map_or(0, |attr| attr.nlink),
            capability: false,
            link_ok: entry.target_mode.is_some(),
            missing: entry.target_mode.is_none(),
        };
        let colour = options.colours.as_ref().and_then(|colours| colours.of(subject));
        self.coloured_name(out, &shown, colour, column);
        if let Some(mode) = entry.target_mode {
            out.extend(indicator_of_mode(options.indicator, mode));
        }
    }

    fn coloured_name(&mut self, out: &mut Vec<u8>, shown: &Shown<'_>, colour: Option<&[u8]>, column: usize) {
        let options = Rc::clone(&self.options);
        if shown.pad {
            out.push(b' ');
        }
        let Some(colours) = &options.colours else { return out.extend_from_slice(&shown.bytes) };
        if let Some(colour) = colour {
            self.first_colour(out, colours);
            if colours.has(Part::Normal) {
                colours.begin(out, b"");
            }
            colours.begin(out, colour);
        }
        out.extend_from_slice(&shown.bytes);
        if colour.is_none() && !colours.has(Part::Normal) {
            return;
        }
        self.first_colour(out, colours);
        colours.end(out);
        let len = shown.bytes.len() + usize::from(shown.pad);
        let last = (column + len).saturating_sub(1);
        if options.line > 0 && column / options.line != last / options.line {
            out.extend_from_slice(colours.get(Part::ClearToEndOfLine).unwrap_or_default());
        }
    }

    /// Terminals may be left in any colour: the first thing written is the reset.
    fn first_colour(&mut self, out: &mut Vec<u8>, colours: &Colours) {
        if !std::mem::replace(&mut self.coloured, true) {
            colours.end(out);
        }
    }

    /// Begins the colour of normal text.
    pub fn normal(&mut self, out: &mut Vec<u8>) {
        let options = Rc::clone(&self.options);
        let Some(colours) = &options.colours else { return };
        if colours.has(Part::Normal) {
            self.first_colour(out, colours);
            colours.begin(out, colours.get(Part::Normal).unwrap_or_default());
        }
    }

    /// What is written in the end to leave the terminal as it was.
    pub fn finish(&self, out: &mut Vec<u8>) {
        if let Some(colours) = self.options.colours.as_ref().filter(|colours| !colours.is_ansi())
            && self.coloured
        {
            colours.begin(out, b"");
        }
    }

    /// The name of a directory above its entries.
    pub fn heading(&self, out: &mut Vec<u8>, name: &[u8]) {
        let shown = self.shown(name, &self.options.directory_quoting, &Widths::default());
        out.extend_from_slice(&shown.bytes);
        out.extend_from_slice(b":\n");
    }
}

fn subject<'a>(entry: &'a Entry, colours: &Colours) -> Subject<'a> {
    let mode = entry.attr.as_ref().map(|attr| attr.mode).ok_or(entry.kind);
    let through_link = entry.target_mode.filter(|_| colours.link_as_target);
    Subject {
        name: &entry.name,
        mode: mode.map(|mode| through_link.unwrap_or(mode)),
        nlink: entry.attr.as_ref().map_or(0, |attr| attr.nlink),
        capability: entry.capability,
        link_ok: entry.target_mode.is_some(),
        missing: false,
    }
}

/// How many decimal digits `number` has.
pub fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// What is appended to a name.
pub fn indicator(style: Indicator, attr: Option<&Attr>, kind: Option<FileKind>) -> Option<u8> {
    match attr {
        Some(attr) => indicator_of_mode(style, attr.mode),
        None => indicator_of_mode(style, kind.map_or(0, FileKind::bits)),
    }
}

fn indicator_of_mode(style: Indicator, mode: u32) -> Option<u8> {
    let kind = FileKind::of_mode(mode)?;
    match (style, kind) {
        (Indicator::None, _) => None,
        (_, FileKind::Directory) => Some(b'/'),
        (Indicator::Slash, _) => None,
        (Indicator::Classify, FileKind::Regular) if mode & 0o111 != 0 => Some(b'*'),
        (_, FileKind::Symlink) => Some(b'@'),
        (_, FileKind::Fifo) => Some(b'|'),
        (_, FileKind::Socket) => Some(b'='),
        _ => None,
    }
}

/// The letter and permissions of `entry`, followed by a `+` for an access control list.
pub fn mode_text(entry: &Entry, widths: &Widths) -> String {
    let mut text = match &entry.attr {
        Some(attr) => mode::text(attr.mode),
        None => format!("{}?????????", entry.kind.map_or('?', |kind| mode::letter(kind.bits()))),
    };
    if widths.acl {
        text.push(match (&entry.attr, entry.acl) {
            (None, _) => '?',
            (_, true) => '+',
            (_, false) => ' ',
        });
    }
    text
}
