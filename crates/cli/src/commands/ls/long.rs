// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines of `ls -l`.

use super::entry::Entry;
use super::print::{Printer, Widths, digits, indicator, mode_text};
use crate::format::human::Unit;
use crate::format::mode;
use outrigger_core::{Attr, Time};
use std::io::Write;
use std::rc::Rc;

/// Half of a Gregorian year of 365.2425 days, in seconds: what is older shows its year instead of its hour.
const HALF_A_YEAR: i64 = 31_556_952 / 2;

impl Printer {
    /// Takes the columns of `ls -l` into account.
    pub fn measure_long(&mut self, widths: &mut Widths, attr: &Attr, device: bool) {
        let options = Rc::clone(&self.options);
        widths.nlink = widths.nlink.max(digits(attr.nlink.into()));
        if options.owner {
            widths.owner = widths.owner.max(self.owner_width(self.user(attr.uid), attr.uid));
        }
        if options.group {
            widths.group = widths.group.max(self.owner_width(self.group(attr.gid), attr.gid));
        }
        if options.author {
            widths.author = widths.author.max(self.owner_width(self.user(attr.uid), attr.uid));
        }
        if device {
            let (major, minor) = mode::device(attr.rdev);
            widths.major = widths.major.max(digits(major.into()));
            widths.minor = widths.minor.max(digits(minor.into()));
            widths.size = widths.size.max(widths.major + 2 + widths.minor);
        } else {
            widths.size = widths.size.max(self.size(attr).len());
        }
    }

    /// One line without its end.
    pub fn long(&mut self, out: &mut Vec<u8>, entry: &Entry, widths: &Widths) {
        let options = Rc::clone(&self.options);
        self.normal(out);
        let mut start = out.len();
        if options.inode {
            put(out, &self.inode(entry), widths.inode);
        }
        if options.blocks {
            put(out, &self.blocks(entry), widths.blocks);
        }
        put(out, &mode_text(entry, widths), 0);
        let nlink = entry.attr.as_ref().map_or("?".to_owned(), |attr| attr.nlink.to_string());
        put(out, &nlink, widths.nlink);
        if options.owner || options.group || options.author || options.context {
            self.put_owners(out, entry, widths);
            // GNU ls counts the columns of a coloured name from here.
            start = out.len();
        }
        self.put_size(out, entry, widths);
        self.put_time(out, entry);
        let column = out.len() - start;
        let before = out.len();
        self.name(out, entry, widths, column);
        match &entry.target {
            Some(target) => {
                out.extend_from_slice(b" -> ");
                let column = column + (out.len() - before);
                self.target(out, entry, target, widths, column);
            }
            None if entry.kind == Some(outrigger_core::FileKind::Symlink) => {}
            None => out.extend(indicator(options.indicator, entry.attr.as_ref(), entry.kind)),
        }
    }

    fn put_owners(&self, out: &mut Vec<u8>, entry: &Entry, widths: &Widths) {
        let attr = entry.attr.as_ref();
        let user = attr.map(|attr| (self.user(attr.uid), attr.uid));
        let group = attr.map(|attr| (self.group(attr.gid), attr.gid));
        if self.options.owner {
            put_owner(out, user.clone(), widths.owner);
        }
        if self.options.group {
            put_owner(out, group, widths.group);
        }
        if self.options.author {
            put_owner(out, user, widths.author);
        }
        if self.options.context {
            out.extend_from_slice(b"? ");
        }
    }

    fn put_size(&self, out: &mut Vec<u8>, entry: &Entry, widths: &Widths) {
        match &entry.attr {
            None => put(out, "?", widths.size),
            Some(attr) if entry.is_device() => {
                let (major, minor) = mode::device(attr.rdev);
                let blanks = widths.size.saturating_sub(widths.major + 2 + widths.minor);
                put(out, &format!("{major},"), widths.major + 1 + blanks);
                put(out, &minor.to_string(), widths.minor);
            }
            Some(attr) => put(out, &self.size(attr), widths.size),
        }
    }

    fn put_time(&mut self, out: &mut Vec<u8>, entry: &Entry) {
        let time = entry.time(self.options.which);
        match time.map(|time| (time, self.zone.moment(time))) {
            Some((time, Some(moment))) => {
                let recent = self.is_recent(time);
                out.extend_from_slice(&moment.format(&self.options.time_formats[usize::from(recent)]));
                out.push(b' ');
            }
            Some((time, None)) => put(out, &time.secs.to_string(), self.time_width()),
            None => put(out, "?", self.time_width()),
        }
    }

    fn is_recent(&mut self, time: Time) -> bool {
        if time > self.now {
            self.now = self.clock.wall();
        }
        let half_a_year_ago = Time::new(self.now.secs - HALF_A_YEAR, self.now.nanos);
        half_a_year_ago < time && time < self.now
    }

    /// How wide times usually are, for those that cannot be shown.
    fn time_width(&self) -> usize {
        self.zone.show(Time::default(), &self.options.time_formats[0]).len()
    }

    fn size(&self, attr: &Attr) -> String {
        let unit: Unit = self.options.size_unit;
        unit.show(attr.size, 1)
    }

    fn user(&self, uid: u32) -> Option<Rc<str>> {
        if self.options.numeric { None } else { self.owners.user(uid) }
    }

    fn group(&self, gid: u32) -> Option<Rc<str>> {
        if self.options.numeric { None } else { self.owners.group(gid) }
    }

    fn owner_width(&self, name: Option<Rc<str>>, id: u32) -> usize {
        name.map_or(digits(id.into()), |name| self.options.quoting.charset.width(name.as_bytes()))
    }
}

/// Names to the left, numbers to the right.
fn put_owner(out: &mut Vec<u8>, owner: Option<(Option<Rc<str>>, u32)>, width: usize) {
    // Writing to a vector cannot fail.
    let _ = match owner {
        None => write!(out, "{:<width$} ", "?"),
        Some((Some(name), _)) => write!(out, "{name:<width$} "),
        Some((None, id)) => write!(out, "{id:>width$} "),
    };
}

fn put(out: &mut Vec<u8>, text: &str, width: usize) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{text:>width$} ");
}
