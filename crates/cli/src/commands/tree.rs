// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger tree`: directories as a tree, as tree 2.1 draws them.
//!
//! Colours are those of `ls`. Symbolic links are never followed.

use crate::context::{Context, Place};
use crate::descent::LOOP;
use crate::format::colour::{Colours, Subject};
use crate::format::glob::Glob;
use crate::format::human::Unit;
use crate::format::locale::Charset;
use crate::format::mode;
use crate::format::owner::Owners;
use crate::format::quote::{Quoting, Style};
use crate::format::record::Record;
use crate::format::time::Zone;
use crate::messages::record;
use crate::output::Output;
use crate::run::Run;
use crate::status::{Exits, Failure, Status};
use clap::Args;
use outrigger_client::{Follow, Inode, Unreadable};
use outrigger_core::{Clock, Errno, Error, FileKind, Name, Time};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{IsTerminal, stdout};
use std::os::unix::ffi::OsStrExt;
use std::vec;

/// Arguments of `tree`.
#[derive(Debug, Args)]
pub struct Tree {
    /// Show names that start with a dot.
    #[arg(short)]
    all: bool,
    /// Show directories only.
    #[arg(short)]
    directories: bool,
    /// Show whole paths.
    #[arg(short)]
    full: bool,
    /// Go no deeper than LEVEL directories.
    #[arg(short = 'L', value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(1..))]
    level: Option<u32>,
    /// Show only files that match PATTERN.
    #[arg(short = 'P', value_name = "PATTERN")]
    pattern: Vec<OsString>,
    /// Leave out what matches PATTERN.
    #[arg(short = 'I', value_name = "PATTERN")]
    ignore: Vec<OsString>,
    /// Leave out the report at the end.
    #[arg(long)]
    noreport: bool,
    /// Show permissions.
    #[arg(short)]
    permissions: bool,
    /// Show owners.
    #[arg(short)]
    user: bool,
    /// Show groups.
    #[arg(short)]
    group: bool,
    /// Show sizes in bytes.
    #[arg(short)]
    size: bool,
    /// Show sizes like 4.0K.
    #[arg(short = 'h')]
    human: bool,
    /// Show sizes in powers of 1000.
    #[arg(long)]
    si: bool,
    /// Show times of modification.
    #[arg(short = 'D')]
    dates: bool,
    /// Show inode numbers.
    #[arg(long)]
    inodes: bool,
    /// Append one of */=|> to names.
    #[arg(short = 'F')]
    classify: bool,
    /// Write names in double quotes.
    #[arg(short = 'Q')]
    quote: bool,
    /// Write names as they are.
    #[arg(short = 'N')]
    literal: bool,
    /// Draw no lines.
    #[arg(short = 'i')]
    plain: bool,
    /// Colour names always.
    #[arg(short = 'C', overrides_with = "no_colour")]
    colour: bool,
    /// Colour names never.
    #[arg(short = 'n', overrides_with = "colour")]
    no_colour: bool,
    /// Print JSON.
    #[arg(short = 'J')]
    as_json: bool,
    /// Directories before other files.
    #[arg(long)]
    dirsfirst: bool,
    /// Reverse the order.
    #[arg(short)]
    reverse: bool,
    /// Sort by time of modification.
    #[arg(short)]
    time: bool,
    /// Do not sort.
    #[arg(short = 'U')]
    unsorted: bool,
    /// Sort by the numbers in names.
    #[arg(short = 'v')]
    version: bool,
    /// The directories; the working directory when nothing is given.
    #[arg(value_name = "LOCATION")]
    places: Vec<OsString>,
}

/// What is known about a file before it is drawn.
struct Leaf {
    name: Vec<u8>,
    inode: Inode,
    link: Option<Link>,
}

/// A symbolic link.
struct Link {
    target: Vec<u8>,
    /// The mode of what it leads to, when it leads anywhere.
    mode: Option<u32>,
}

impl Leaf {
    fn new(directory: &Place, name: &Name, inode: Inode) -> Self {
        let link = link_target(&inode).map(|target| {
            let mode = directory.child(name).find(Follow::Yes).ok().map(|target| target.attr().mode);
            Link { target, mode }
        });
        Leaf { name: name.to_vec(), inode, link }
    }

    /// Whether it is a directory or leads to one.
    fn is_directory(&self) -> bool {
        let mode = self.link.as_ref().and_then(|link| link.mode);
        self.inode.is_dir() || mode.and_then(FileKind::of_mode) == Some(FileKind::Directory)
    }
}

/// A directory that is being drawn.
struct Level {
    inode: Inode,
    rest: vec::IntoIter<Leaf>,
    lengths: (usize, usize),
    /// Whether an object of JSON stands before.
    started: bool,
}

#[derive(Default)]
struct Report {
    directories: u64,
    files: u64,
}

impl Run for Tree {
    const NAME: &'static str = "tree";
    const EXITS: Exits = Exits::Drawing;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut drawing = Drawing::new(context, &self);
        let mut places = self.places.clone();
        if places.is_empty() {
            places.push(".".into());
        }
        let json = drawing.json;
        if json {
            drawing.output.write(b"[\n")?;
        }
        for (index, text) in places.iter().enumerate() {
            if json && index > 0 {
                drawing.output.write(b",\n")?;
            }
            match context.place(text) {
                Ok(place) => drawing.root(place)?,
                Err(failure) => drawing.output.complain(Status::Serious, failure),
            }
        }
        drawing.report()?;
        drawing.output.flush()
    }
}

/// A tree in progress.
struct Drawing<'c> {
    options: &'c Tree,
    /// As tree's own `-J`.
    json: bool,
    /// A record a file, as `ls` and `find` have it.
    records: bool,
    output: Output<'c>,
    owners: Owners,
    zone: Zone,
    now: Time,
    charset: Charset,
    quoting: Quoting,
    colours: Option<Colours>,
    pattern: Vec<Glob>,
    ignore: Vec<Glob>,
    report: Report,
}

impl<'c> Drawing<'c> {
    fn new(context: &'c Context, options: &'c Tree) -> Self {
        let style = match (options.quote, options.literal) {
            (true, _) => Style::C,
            (_, true) => Style::Literal,
            _ => Style::Escape,
        };
        let quoting = Quoting::new(style);
        let coloured = options.colour || (stdout().is_terminal() && !options.no_colour);
        let globs = |patterns: &[OsString]| patterns.iter().map(|text| Glob::new(text.as_bytes())).collect();
        Drawing {
            options,
            json: options.as_json && !context.json,
            records: context.json,
            output: Output::new(context),
            owners: Owners::default(),
            zone: Zone::of_environment(),
            now: context.trees.runtime.wall(),
            charset: quoting.charset,
            quoting: if style == Style::Escape { quoting.and(b" ") } else { quoting },
            colours: if coloured { Colours::of_environment().ok().flatten() } else { None },
            pattern: globs(&options.pattern),
            ignore: globs(&options.ignore),
            report: Report::default(),
        }
    }

    /// Draws what is below an operand.
    fn root(&mut self, mut place: Place) -> Result<(), Failure> {
        let name = place.shown.as_bytes().to_vec();
        let inode = match place.find(Follow::Yes) {
            Ok(inode) => inode,
            Err(_) => return self.cannot_open(&name, None),
        };
        if !inode.is_dir() {
            return self.cannot_open(&name, Some(&inode));
        }
        if self.records {
            self.record(&place, &inode)?;
        } else if !self.json {
            let mut line = self.label(&inode);
            self.put_name(&mut line, &name, inode.attr().mode, None);
            line.push(b'\n');
            self.output.write(&line)?;
        }
        let mut levels = Vec::new();
        if self.json {
            self.output.write(&self.object(&name, &inode, 1)[..])?;
        }
        self.enter(&mut levels, &place, inode)?;
        let full = levels.iter().any(|level| !level.rest.as_slice().is_empty());
        self.report.directories += u64::from(full);
        while let Some(level) = levels.last_mut() {
            self.output.proceed()?;
            place.shorten(level.lengths);
            let Some(leaf) = level.rest.next() else {
                self.leave(&mut levels)?;
                continue;
            };
            let comma = std::mem::replace(&mut level.started, true);
            place.lengthen(&leaf.name);
            self.leaf(&mut levels, &place, leaf, comma)?;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        levels: &mut Vec<Level>,
        place: &Place,
        leaf: Leaf,
        comma: bool,
    ) -> Result<(), Failure> {
        if leaf.is_directory() {
            self.report.directories += 1;
        } else {
            self.report.files += 1;
        }
        let Leaf { name, inode, link } = leaf;
        let directory = inode.is_dir();
        let shown = if self.options.full { place.shown.as_bytes() } else { &name };
        let mut line = Vec::new();
        if self.records {
            self.record(place, &inode)?;
        } else if self.json {
            line.extend_from_slice(if comma { b",\n" } else { b"" });
            line.extend_from_slice(&self.object(shown, &inode, levels.len() + 1));
        } else {
            self.put_lines(&mut line, levels);
            line.extend_from_slice(&self.label(&inode));
            self.put_name(&mut line, shown, inode.attr().mode, link);
            line.push(b'\n');
        }
        self.output.write(&line)?;
        let deeper = self.options.level.is_none_or(|most| levels.len() < most as usize);
        if directory && deeper {
            return self.enter(levels, place, inode);
        }
        if self.json { self.output.write(b"}") } else { Ok(()) }
    }

    fn record(&mut self, place: &Place, inode: &Inode) -> Result<(), Failure> {
        let target = link_target(inode);
        let path = place.shown.as_bytes();
        self.output.write(&Record::new(path, Some(inode.attr()), target.as_deref(), &self.owners).line())
    }

    /// Reads a directory whole: what is last has to be known, and what comes first.
    fn enter(&mut self, levels: &mut Vec<Level>, place: &Place, inode: Inode) -> Result<(), Failure> {
        let mut found = Vec::new();
        let is_loop = levels.iter().any(|level| inode.repeats(&level.inode));
        match if is_loop { Err(Errno::ELOOP.because(LOOP)) } else { inode.entries() } {
            Ok(entries) => {
                for item in entries {
                    match item {
                        Ok((name, inode)) => {
                            let leaf = Leaf::new(place, &name, inode);
                            if self.shows(&leaf) {
                                found.push(leaf);
                            }
                        }
                        Err(Unreadable { name: Some(name), error }) => {
                            self.complain("cannot access", &place.child(&name), &error);
                        }
                        Err(Unreadable { name: None, error }) => {
                            self.complain("cannot read directory", place, &error);
                        }
                    }
                }
            }
            Err(error) => self.complain("cannot read directory", place, &error),
        }
        self.sort(&mut found);
        if self.json {
            self.output.write(if found.is_empty() { b"" } else { b",\"contents\":[\n" })?;
        }
        let lengths = (place.path.len(), place.shown.len());
        levels.push(Level { inode, rest: found.into_iter(), lengths, started: false });
        Ok(())
    }

    fn complain(&mut self, what: &str, place: &Place, error: &Error) {
        let name = crate::format::quote::for_message(place.shown.as_bytes());
        self.output.complain(Status::Serious, format_args!("{what} {name}: {error}"));
    }

    fn leave(&mut self, levels: &mut Vec<Level>) -> Result<(), Failure> {
        let Some(level) = levels.pop() else { return Ok(()) };
        if !self.json {
            return Ok(());
        }
        let mut line = Vec::new();
        if level.started {
            line.extend_from_slice(format!("\n{:1$}]", "", 2 * levels.len() + 2).as_bytes());
        }
        line.push(b'}');
        self.output.write(&line)
    }

    fn shows(&self, leaf: &Leaf) -> bool {
        let matches = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(&leaf.name));
        (self.options.all || !leaf.name.starts_with(b"."))
            && !matches(&self.ignore)
            && (leaf.inode.is_dir() || self.pattern.is_empty() || matches(&self.pattern))
            && (leaf.is_directory() || !self.options.directories)
    }

    fn sort(&self, found: &mut [Leaf]) {
        let options = self.options;
        if options.unsorted {
            return;
        }
        found.sort_by(|a, b| {
            let mut order = a.name.cmp(&b.name);
            if options.time {
                order = a.inode.attr().mtime.cmp(&b.inode.attr().mtime).then(order);
            } else if options.version {
                order = super::ls::by_version(&a.name, &b.name).then(order);
            }
            let order = if options.reverse { order.reverse() } else { order };
            if options.dirsfirst { b.is_directory().cmp(&a.is_directory()).then(order) } else { order }
        });
    }

    /// The lines in front of a name.
    fn put_lines(&self, out: &mut Vec<u8>, levels: &[Level]) {
        if self.options.plain {
            return;
        }
        let (trunk, last_branch, branch, gap) = match self.charset {
            Charset::Utf8 => {
                ("\u{2502}\u{a0}\u{a0} ", "\u{2514}\u{2500}\u{2500} ", "\u{251c}\u{2500}\u{2500} ", "    ")
            }
            Charset::Ascii => ("|   ", "`-- ", "|-- ", "    "),
        };
        for (index, level) in levels.iter().enumerate() {
            let more = !level.rest.as_slice().is_empty();
            let piece = match (index + 1 == levels.len(), more) {
                (true, true) => branch,
                (true, false) => last_branch,
                (false, true) => trunk,
                (false, false) => gap,
            };
            out.extend_from_slice(piece.as_bytes());
        }
    }

    /// What stands in brackets in front of a name.
    fn label(&self, inode: &Inode) -> Vec<u8> {
        let (options, attr) = (self.options, inode.attr());
        let mut parts = Vec::new();
        if options.inodes {
            parts.push(format!("{:>7}", attr.ino));
        }
        if options.permissions {
            parts.push(mode::text(attr.mode));
        }
        let name_or =
            |name: Option<std::rc::Rc<str>>, id: u32| name.map_or(id.to_string(), |name| name.to_string());
        if options.user {
            parts.push(format!("{:<8.32}", name_or(self.owners.user(attr.uid), attr.uid)));
        }
        if options.group {
            parts.push(format!("{:<8.32}", name_or(self.owners.group(attr.gid), attr.gid)));
        }
        if options.si {
            parts.push(format!("{:>4}", Unit::SI.show(attr.size, 1)));
        } else if options.human {
            parts.push(format!("{:>4}", Unit::HUMAN.show(attr.size, 1)));
        } else if options.size {
            parts.push(format!("{:>11}", attr.size));
        }
        if options.dates {
            parts.push(self.date(attr.mtime));
        }
        if parts.is_empty() { Vec::new() } else { format!("[{}]  ", parts.join(" ")).into_bytes() }
    }

    fn date(&self, time: Time) -> String {
        // Six months of 31 days, unlike ls.
        const SIX_MONTHS: i64 = 6 * 31 * 86_400;
        let recent = (self.now.secs - SIX_MONTHS..=self.now.secs).contains(&time.secs);
        let format: &[u8] = if recent { b"%b %e %H:%M" } else { b"%b %e  %Y" };
        String::from_utf8_lossy(&self.zone.show(time, format)).into_owned()
    }

    fn put_name(&self, out: &mut Vec<u8>, name: &[u8], mode: u32, link: Option<Link>) {
        let leads = link.as_ref().is_none_or(|link| link.mode.is_some());
        self.put_coloured(out, name, mode, leads);
        let Some(Link { target, mode }) = link else {
            out.extend(self.indicator(mode));
            return;
        };
        out.extend_from_slice(b" -> ");
        self.put_coloured(out, &target, mode.unwrap_or(0), leads);
        out.extend(mode.and_then(|mode| self.indicator(mode)));
    }

    fn put_coloured(&self, out: &mut Vec<u8>, name: &[u8], mode: u32, link_ok: bool) {
        let quoted = self.quoting.quote(name);
        let subject =
            Subject { name, mode: Ok(mode), nlink: 1, capability: false, link_ok, missing: mode == 0 };
        match self.colours.as_ref().and_then(|colours| Some((colours, colours.of(subject)?))) {
            Some((colours, colour)) => {
                colours.begin(out, colour);
                out.extend_from_slice(&quoted);
                colours.end(out);
            }
            None => out.extend_from_slice(&quoted),
        }
    }

    fn indicator(&self, mode: u32) -> Option<u8> {
        let kind = FileKind::of_mode(mode).filter(|_| self.options.classify)?;
        match kind {
            FileKind::Directory => Some(b'/'),
            FileKind::Fifo => Some(b'|'),
            FileKind::Socket => Some(b'='),
            FileKind::Regular if mode & 0o111 != 0 => Some(b'*'),
            _ => None,
        }
    }

    /// An object of JSON without its end.
    fn object(&self, name: &[u8], inode: &Inode, depth: usize) -> Vec<u8> {
        let (options, attr) = (self.options, inode.attr());
        let mut fields: Vec<(&str, Value)> =
            vec![("type", kind_word(inode.kind()).into()), ("name", String::from_utf8_lossy(name).into())];
        if let Some(target) = link_target(inode) {
            fields.push(("target", String::from_utf8_lossy(&target).into()));
        }
        if options.inodes {
            fields.push(("inode", attr.ino.into()));
        }
        if options.permissions {
            fields.push(("mode", format!("{:04o}", attr.permissions()).into()));
            fields.push(("prot", mode::text(attr.mode).into()));
        }
        if options.user {
            fields.push((
                "user",
                self.owners.user(attr.uid).map_or(attr.uid.into(), |name| Value::from(&*name)),
            ));
        }
        if options.group {
            fields.push((
                "group",
                self.owners.group(attr.gid).map_or(attr.gid.into(), |name| Value::from(&*name)),
            ));
        }
        if options.size || options.human || options.si {
            fields.push(("size", attr.size.into()));
        }
        if options.dates {
            fields.push(("time", self.date(attr.mtime).into()));
        }
        let fields: Vec<String> =
            fields.into_iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{:1$}{{{2}", "", 2 * depth, fields.join(",")).into_bytes()
    }

    fn cannot_open(&mut self, name: &[u8], inode: Option<&Inode>) -> Result<(), Failure> {
        if inode.is_none() {
            self.output.fail(Status::Serious);
        } else {
            self.report.files += 1;
        }
        if self.json {
            let mut object = Map::new();
            object.insert("error".into(), "error opening dir".into());
            object.insert("name".into(), String::from_utf8_lossy(name).into());
            return self.output.write(format!("  {}", Value::Object(object)).as_bytes());
        }
        if self.records {
            let object = json!({ "path": String::from_utf8_lossy(name), "error": "error opening dir" });
            return self.output.write(record(&object).as_bytes());
        }
        let mut line = inode.map(|inode| self.label(inode)).unwrap_or_default();
        line.extend_from_slice(&self.quoting.quote(name));
        line.extend_from_slice(b"  [error opening dir]\n");
        self.output.write(&line)
    }

    fn report(&mut self) -> Result<(), Failure> {
        let Report { directories, files } = self.report;
        let both = !self.options.directories;
        if self.json {
            let files = if both { format!(",\"files\":{files}") } else { String::new() };
            let report = format!("\n,\n  {{\"type\":\"report\",\"directories\":{directories}{files}}}");
            let report = if self.options.noreport { String::new() } else { report };
            return self.output.write(format!("{report}\n]\n").as_bytes());
        }
        if self.options.noreport || self.records {
            return Ok(());
        }
        let word = if directories == 1 { "directory" } else { "directories" };
        let mut line = format!("\n{directories} {word}");
        if both {
            line.push_str(&format!(", {files} file{}", if files == 1 { "" } else { "s" }));
        }
        line.push('\n');
        self.output.write(line.as_bytes())
    }
}

fn link_target(inode: &Inode) -> Option<Vec<u8>> {
    if inode.kind() != FileKind::Symlink {
        return None;
    }
    inode.readlink().ok().map(|target| target.to_vec())
}

fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char",
        FileKind::BlockDevice => "block",
    }
}
