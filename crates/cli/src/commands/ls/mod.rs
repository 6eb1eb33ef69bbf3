// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger ls`: names and attributes, as GNU ls 9.1 prints them in the C locale.
//!
//! | module | what it holds |
//! |---|---|
//! | [`table`] | the options |
//! | [`options`] | what they come to |
//! | [`entry`] | what is found out about each name |
//! | [`order`] | sorting |
//! | [`mod@print`] | names with quotes, colours and indicators |
//! | [`long`] | the lines of `-l` |
//! | [`layout`] | lines and columns |
//!
//! Names are sorted by their bytes whatever the locale. `-Z` prints `?`, as GNU ls does without SELinux.

mod entry;
mod layout;
mod long;
mod options;
mod order;
mod print;
mod table;

pub use order::by_version;

use crate::context::{Context, Place};
use crate::format::quote::for_message;
use crate::format::record::Record;
use crate::getopt::{Arguments, Table};
use crate::messages::why;
use crate::output::Output;
use crate::run::Run;
use crate::status::{Exits, Failure, Status};
use crate::switches::Switch;
use entry::Entry;
use options::{Hidden, Layout, Options, Order};
use outrigger_client::{Follow, Inode, Unreadable};
use outrigger_core::{FileKind, Node};
use print::{Printer, Widths};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::rc::Rc;
use std::vec;

/// Arguments of `ls`.
pub type Ls = Arguments<LsTable>;

/// The options of `ls`.
#[derive(Debug, Clone)]
pub struct LsTable;

impl Table for LsTable {
    const SWITCHES: &'static [Switch] = &table::SWITCHES;
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "What to list; the working directory when nothing is given";
}

impl Run for Ls {
    const NAME: &'static str = "ls";
    const EXITS: Exits = Exits::Listing;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let (options, warnings) = Options::new(&self.given)?;
        for warning in warnings {
            context.complain(Status::Success, warning);
        }
        let options = Rc::new(options);
        let printer = Printer::new(Rc::clone(&options), context.trees.runtime.clone());
        let output = Output::new(context);
        let mut lister = Lister { context, options, printer, output, headings: true, started: false };
        let result = lister.run(self.operands);
        let mut rest = Vec::new();
        lister.printer.finish(&mut rest);
        result.and_then(|()| lister.output.write(&rest)).and_then(|()| lister.output.flush())
    }
}

/// How many files of a directory are looked up at once.
const TOGETHER: usize = 128;

/// A listing in progress.
struct Lister<'c> {
    context: &'c Context,
    options: Rc<Options>,
    printer: Printer,
    output: Output<'c>,
    /// Whether directories get a heading.
    headings: bool,
    /// Whether something stands above, from which a blank line separates.
    started: bool,
}

/// A directory whose directories are being listed.
struct Level {
    inode: Inode,
    /// The length of its path in the tree, and as it is shown.
    lengths: (usize, usize),
    below: vec::IntoIter<Vec<u8>>,
}

/// Entries to print together.
#[derive(Default)]
struct Batch {
    entries: Vec<Entry>,
    widths: Widths,
}

impl Lister<'_> {
    fn run(&mut self, mut places: Vec<OsString>) -> Result<(), Failure> {
        if places.is_empty() {
            places.push(".".into());
        }
        let given = places.len();
        let (batch, directories) = self.operands(places)?;
        if !batch.entries.is_empty() {
            self.print(&batch, None)?;
            if !directories.is_empty() && !self.context.json {
                self.output.write(b"\n")?;
            }
        } else if given <= 1 && directories.len() == 1 {
            self.headings = false;
        }
        for place in directories {
            self.tree(place)?;
            self.headings = true;
        }
        Ok(())
    }

    /// Finds the operands and takes the directories out that are to be listed.
    fn operands(&mut self, places: Vec<OsString>) -> Result<(Batch, Vec<Place>), Failure> {
        let mut batch = Batch::default();
        let mut found = Vec::new();
        for text in places {
            self.output.proceed()?;
            let place = match self.context.place(&text) {
                Ok(place) => place,
                Err(failure) => {
                    self.complain(Status::Serious, failure);
                    continue;
                }
            };
            if let Some(entry) = self.operand(&place) {
                self.printer.measure(&mut batch.widths, &entry);
                batch.entries.push(entry);
                found.push(place);
            }
        }
        order::sort(&mut batch.entries, &self.options);
        let mut directories = Vec::new();
        if !self.options.directory {
            for entry in batch.entries.extract_if(.., |entry| entry.kind == Some(FileKind::Directory)) {
                let place = found.iter().find(|place| place.shown.as_bytes() == entry.name);
                directories.extend(place.cloned());
            }
        }
        Ok((batch, directories))
    }

    /// Lists a directory, and with `-R` all below it.
    fn tree(&mut self, place: Place) -> Result<(), Failure> {
        let inode = match place.find(Follow::Yes) {
            Ok(inode) => inode,
            Err(error) => {
                self.complain_about("cannot open directory", &place, true, &error);
                return Ok(());
            }
        };
        let mut place = place;
        let mut levels: Vec<Level> = Vec::new();
        let mut next = Some((inode, true));
        loop {
            if let Some((inode, operand)) = next.take() {
                if levels.iter().any(|level| inode.repeats(&level.inode)) {
                    let shown = for_message(place.shown.as_bytes());
                    self.complain(
                        Status::Serious,
                        format_args!("{shown}: not listing already-listed directory"),
                    );
                } else {
                    let below = self.directory(&place, &inode, operand)?;
                    let lengths = (place.path.len(), place.shown.len());
                    levels.push(Level { inode, lengths, below: below.into_iter() });
                }
            }
            let Some(level) = levels.last_mut() else { return Ok(()) };
            place.shorten(level.lengths);
            let Some(name) = level.below.next() else {
                levels.pop();
                continue;
            };
            next = self.descend(level_inode(&levels), &mut place, &name).map(|inode| (inode, false));
        }
    }

    /// Opens the directory `name` of `parent`, and makes `place` lead there.
    fn descend(&mut self, parent: Option<&Inode>, place: &mut Place, name: &[u8]) -> Option<Inode> {
        let above = place.clone();
        *place = place.child(name);
        let direct = match (parent, outrigger_core::Name::new(name.to_vec())) {
            (Some(parent), Ok(name)) => parent.lookup(&name),
            _ => place.find(Follow::Yes),
        };
        // With -L the name may be a symbolic link.
        let found = direct.and_then(|inode| match inode.kind() {
            FileKind::Symlink => place.find(Follow::Yes),
            _ => Ok(inode),
        });
        found
            .inspect_err(|error| {
                self.complain_about("cannot open directory", place, false, error);
                *place = above;
            })
            .ok()
    }

    /// Lists one directory; answers the names of the directories in it when they are to be listed too.
    fn directory(&mut self, place: &Place, inode: &Inode, operand: bool) -> Result<Vec<Vec<u8>>, Failure> {
        let names_only = self.options.needs_names_only() && !self.context.json;
        let entries = match if names_only { inode.names() } else { inode.entries() } {
            Ok(entries) => entries,
            Err(error) => {
                self.complain_about("cannot open directory", place, operand, &error);
                return Ok(Vec::new());
            }
        };
        self.heading(place)?;
        let options = Rc::clone(&self.options);
        let single = options.layout == Layout::Single && options.order == Order::None;
        let streams = single && !options.blocks && !options.recursive;
        let mut batch = Batch::default();
        self.add_self(&mut batch, place, inode);
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            let mut found = Vec::new();
            for item in entries.by_ref().take(if streams { 1 } else { TOGETHER }) {
                self.output.proceed()?;
                match item {
                    Ok((name, _)) if options.leaves_out(&name) => {}
                    Ok(item) => found.push(item),
                    Err(Unreadable { name: Some(name), error }) => {
                        self.complain_about("cannot access", &place.child(&name), false, &error);
                        if !options.leaves_out(&name) {
                            let entry = Entry::unknown(name.to_vec());
                            self.printer.measure(&mut batch.widths, &entry);
                            batch.entries.push(entry);
                        }
                    }
                    Err(Unreadable { name: None, error }) => {
                        self.complain_about("reading directory", place, operand, &error);
                    }
                }
            }
            for entry in self.children(place, found) {
                self.printer.measure(&mut batch.widths, &entry);
                batch.entries.push(entry);
            }
            if streams {
                self.print(&batch, Some(place))?;
                batch = Batch::default();
            }
        }
        order::sort(&mut batch.entries, &options);
        self.total(&batch)?;
        self.print(&batch, Some(place))?;
        let is_below = |entry: &Entry| {
            entry.kind == Some(FileKind::Directory) && entry.name != b"." && entry.name != b".."
        };
        let below = batch.entries.into_iter().filter(|entry| options.recursive && is_below(entry));
        Ok(below.map(|entry| entry.name).collect())
    }

    /// Adds `.` and `..`, which a tree does not list.
    fn add_self(&mut self, batch: &mut Batch, place: &Place, inode: &Inode) {
        if self.options.hidden != Hidden::Nothing || self.context.json {
            return;
        }
        if !self.options.leaves_out(b".") {
            let entry = self.examine(b".".to_vec(), place, inode);
            self.printer.measure(&mut batch.widths, &entry);
            batch.entries.push(entry);
        }
        if self.options.leaves_out(b"..") {
            return;
        }
        let above = place.child(b"..");
        match if inode.node() == Node::ROOT { place } else { &above }.find(Follow::Yes) {
            Ok(parent) => {
                let entry = self.examine(b"..".to_vec(), &above, &parent);
                self.printer.measure(&mut batch.widths, &entry);
                batch.entries.push(entry);
            }
            Err(error) => self.complain_about("cannot access", &above, false, &error),
        }
    }

    fn heading(&mut self, place: &Place) -> Result<(), Failure> {
        if self.context.json || !(self.options.recursive || self.headings) {
            return Ok(());
        }
        let mut line = if self.started { b"\n".to_vec() } else { Vec::new() };
        self.started = true;
        self.printer.heading(&mut line, place.shown.as_bytes());
        self.output.write(&line)
    }

    fn total(&mut self, batch: &Batch) -> Result<(), Failure> {
        let options = &self.options;
        if self.context.json || !(options.layout == Layout::Long || options.blocks) {
            return Ok(());
        }
        let blocks = batch.entries.iter().filter_map(|entry| entry.attr.as_ref()).map(|attr| attr.blocks);
        let total = blocks.fold(0, u64::saturating_add);
        let mut line = format!("total {}", options.block_unit.show(total, 512)).into_bytes();
        line.push(options.end);
        self.output.write(&line)
    }

    fn print(&mut self, batch: &Batch, directory: Option<&Place>) -> Result<(), Failure> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        if !self.context.json {
            // The layouts of one line a file need not be in memory as a whole.
            let lines = matches!(self.options.layout, Layout::Long | Layout::Single);
            let piece = if lines { 256 } else { batch.entries.len() };
            for entries in batch.entries.chunks(piece) {
                out.clear();
                self.printer.batch(&mut out, entries, &batch.widths);
                self.output.write(&out)?;
            }
            return Ok(());
        }
        for entry in &batch.entries {
            let path = match directory {
                Some(place) => place.child(&entry.name).shown.into_vec(),
                None => entry.name.clone(),
            };
            let (attr, target) = (entry.attr.as_ref(), entry.target.as_deref());
            self.output.write(&Record::new(&path, attr, target, &self.printer.owners).line())?;
        }
        Ok(())
    }

    fn complain(&mut self, status: Status, message: impl fmt::Display) {
        self.output.complain(status, message);
    }

    fn complain_about(&mut self, what: &str, place: &Place, operand: bool, error: &outrigger_core::Error) {
        let status = if operand { Status::Serious } else { Status::Minor };
        let shown = for_message(place.shown.as_bytes());
        self.complain(status, format_args!("{what} {shown}: {}", why(error)));
    }
}

fn level_inode(levels: &[Level]) -> Option<&Inode> {
    levels.last().map(|level| &level.inode)
}
