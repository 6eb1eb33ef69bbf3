// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparing two files, and two directories name by name.

use super::{Settings, lines};
use crate::context::{Context, Place};
use crate::copy::target::base_name;
use crate::format::mode::kind_name;
use crate::format::quote::{Quoting, Style, before_colon};
use crate::format::time::Zone;
use crate::messages::record;
use crate::output::Output;
use crate::status::{Failure, Status};
use bytes::Bytes;
use outrigger_client::{File, Follow, Inode, Unreadable};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, FileKind, Name, Time};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;

/// Bytes read at once.
const BLOCK: u64 = 1 << 20;
/// The least that is asked for.
const LEAST: u64 = 4096;
/// A NUL among this many first bytes makes a file binary.
const PROBE: usize = 32 << 10;

/// Compares and reports.
pub(super) struct Differ<'c> {
    pub(super) context: &'c Context,
    pub(super) settings: Settings,
    /// For the line above differences found in directories.
    pub(super) options: String,
    pub(super) zone: Zone,
    pub(super) output: Output<'c>,
}

/// A file on one side; `None` in place of the inode when it does not exist and counts as empty.
struct Side {
    place: Place,
    inode: Option<Inode>,
}

impl Side {
    fn name(&self) -> String {
        self.place.shown.to_string_lossy().into_owned()
    }

    fn child(&self, name: &Name) -> Place {
        self.place.child(name)
    }

    fn is_dir(&self) -> bool {
        self.inode.as_ref().is_some_and(Inode::is_dir)
    }

    fn kind(&self) -> FileKind {
        self.inode.as_ref().map_or(FileKind::Regular, Inode::kind)
    }

    fn size(&self) -> u64 {
        self.inode.as_ref().map_or(0, |inode| inode.attr().size)
    }

    /// Whether opening it connects or starts a program, and it has no size.
    fn may_be_stream(&self) -> bool {
        self.inode.as_ref().is_some_and(|inode| inode.client().abilities().opens_streams)
    }

    /// The files of the directory, and what of it cannot be read.
    fn entries(&self) -> Result<(BTreeMap<Name, Inode>, Vec<Unreadable>), Error> {
        let (mut entries, mut unreadable) = (BTreeMap::new(), Vec::new());
        if let Some(inode) = self.inode.as_ref().filter(|inode| inode.is_dir()) {
            for entry in inode.entries()? {
                match entry {
                    Ok((name, inode)) => drop(entries.insert(name, inode)),
                    Err(Unreadable { name: None, error }) => return Err(error),
                    Err(named) => unreadable.push(named),
                }
            }
        }
        Ok((entries, unreadable))
    }
}

/// Two directories in progress.
struct Frame {
    left: Side,
    right: Side,
    left_entries: BTreeMap<Name, Inode>,
    right_entries: BTreeMap<Name, Inode>,
    /// Remaining names, last first.
    names: Vec<Name>,
}

impl Differ<'_> {
    /// Compares what the user named. A file and a directory: the file and the one of its name in the directory.
    pub(super) fn operands(&mut self, left: Place, right: Place) -> Result<(), Failure> {
        let (left_found, right_found) = (self.find(&left), self.find(&right));
        let (mut left, mut right) = match (self.side(left, left_found)?, self.side(right, right_found)?) {
            (Some(left), Some(right)) => (left, right),
            _ => return Ok(()),
        };
        match (left.is_dir(), right.is_dir()) {
            (true, false) if right.inode.is_some() => match self.inside(left, &right.place)? {
                Some(found) => left = found,
                None => return Ok(()),
            },
            (false, true) if left.inode.is_some() => match self.inside(right, &left.place)? {
                Some(found) => right = found,
                None => return Ok(()),
            },
            _ => {}
        }
        if left.inode.is_none() && right.inode.is_none() {
            self.trouble(&left.place, &Errno::ENOENT.into());
            self.trouble(&right.place, &Errno::ENOENT.into());
            return Ok(());
        }
        match self.pair(left, right, false)? {
            Some(frame) => self.walk(frame),
            None => Ok(()),
        }
    }

    fn inside(&mut self, dir: Side, file: &Place) -> Result<Option<Side>, Failure> {
        let place = dir.place.child(base_name(&file.path));
        let found = self.find(&place);
        self.side(place, found)
    }

    fn follow(&self) -> Follow {
        if self.settings.no_dereference { Follow::No } else { Follow::Yes }
    }

    fn find(&self, place: &Place) -> Result<Inode, Error> {
        place.find(self.follow())
    }

    /// What an entry of a directory counts as: where it leads, if it is a symbolic link to be followed.
    fn follow_entry(&self, place: &Place, entry: Option<Inode>) -> Result<Inode, Error> {
        match entry {
            None => Err(Errno::ENOENT.into()),
            Some(inode) if inode.kind() == FileKind::Symlink => self.find(place),
            Some(inode) => Ok(inode),
        }
    }

    /// A side of a comparison; `None` after trouble.
    fn side(&mut self, place: Place, found: Result<Inode, Error>) -> Result<Option<Side>, Failure> {
        match found {
            Ok(inode) => Ok(Some(Side { place, inode: Some(inode) })),
            Err(error) if error.errno == Errno::ENOENT && self.settings.new_file => {
                Ok(Some(Side { place, inode: None }))
            }
            Err(error) => {
                self.trouble(&place, &error);
                Ok(None)
            }
        }
    }

    fn trouble(&mut self, place: &Place, error: &Error) {
        self.output
            .complain(Status::Serious, format_args!("{}: {error}", before_colon(place.shown.as_bytes())));
    }

    /// Reports a difference: where it is, of what kind, and in the words of GNU diff.
    fn differ(
        &mut self,
        (left, right): (Option<&Place>, Option<&Place>),
        what: &str,
        line: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.context.fail(Status::Minor);
        self.tell((left, right), what, line)
    }

    fn tell(
        &mut self,
        (left, right): (Option<&Place>, Option<&Place>),
        what: &str,
        line: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if !self.context.json {
            return self.output.line(line());
        }
        let path = |place: Option<&Place>| place.map(|place| place.shown.to_string_lossy().into_owned());
        let object = json!({ "left": path(left), "right": path(right), "difference": what });
        self.output.write(record(&object).as_bytes())
    }

    fn files_differ(&mut self, left: &Side, right: &Side, kind: &str) -> Result<(), Failure> {
        self.differ((Some(&left.place), Some(&right.place)), "content", || {
            format!("{kind} {} and {} differ", left.name(), right.name())
        })
    }

    fn walk(&mut self, first: Frame) -> Result<(), Failure> {
        let mut frames = vec![first];
        while let Some(frame) = frames.last_mut() {
            self.output.proceed()?;
            let Some(name) = frame.names.pop() else {
                frames.pop();
                continue;
            };
            let (in_left, in_right) = (frame.left_entries.remove(&name), frame.right_entries.remove(&name));
            if in_left.is_some() != in_right.is_some() && !self.settings.new_file {
                let side = if in_left.is_some() { &frame.left } else { &frame.right };
                let (place, line) = (side.child(&name), format!("Only in {}: {name}", side.name()));
                match in_left.is_some() {
                    true => self.differ((Some(&place), None), "only-left", || line)?,
                    false => self.differ((None, Some(&place)), "only-right", || line)?,
                }
                continue;
            }
            let (left, right) = (frame.left.child(&name), frame.right.child(&name));
            if let Some(below) = self.names_in_both(left, in_left, right, in_right)? {
                if loops(&frames, &below) {
                    let error = Errno::ELOOP.because("recursive directory loop");
                    self.trouble(&below.left.place, &error);
                } else {
                    frames.push(below);
                }
            }
        }
        Ok(())
    }

    fn names_in_both(
        &mut self,
        left: Place,
        in_left: Option<Inode>,
        right: Place,
        in_right: Option<Inode>,
    ) -> Result<Option<Frame>, Failure> {
        let (left_found, right_found) =
            (self.follow_entry(&left, in_left), self.follow_entry(&right, in_right));
        let (left, right) = (self.side(left, left_found)?, self.side(right, right_found)?);
        match (left, right) {
            (Some(left), Some(right)) => self.pair(left, right, true),
            _ => Ok(None),
        }
    }

    /// Compares two files; two directories are given back to be walked.
    fn pair(&mut self, left: Side, right: Side, below: bool) -> Result<Option<Frame>, Failure> {
        let absent = left.inode.is_none() || right.inode.is_none();
        if (left.is_dir() || right.is_dir()) && (absent || left.is_dir() == right.is_dir()) {
            if below && !self.settings.recursive {
                if !self.context.json {
                    let line = format!("Common subdirectories: {} and {}", left.name(), right.name());
                    self.output.line(line)?;
                }
                return Ok(None);
            }
            let same = matches!((&left.inode, &right.inode), (Some(a), Some(b)) if a.is_same(b));
            if same && !self.settings.report_identical {
                return Ok(None);
            }
            return Ok(self.open(left, right));
        }
        match (left.kind(), right.kind()) {
            (FileKind::Regular, FileKind::Regular) => self.files(&left, &right, below)?,
            (FileKind::Symlink, FileKind::Symlink) => self.links(&left, &right)?,
            _ => {
                let (left_kind, right_kind) = (kind_of(&left), kind_of(&right));
                self.differ((Some(&left.place), Some(&right.place)), "kind", || {
                    let (left, right) = (left.name(), right.name());
                    format!("File {left} is a {left_kind} while file {right} is a {right_kind}")
                })?;
            }
        }
        Ok(None)
    }

    fn open(&mut self, left: Side, right: Side) -> Option<Frame> {
        // A name that one side cannot read must not be reported as missing there.
        let mut unknown = BTreeSet::new();
        let mut entries_of = |side: &Side| match side.entries() {
            Ok((entries, unreadable)) => {
                for Unreadable { name, error } in unreadable {
                    let Some(name) = name else { continue };
                    self.trouble(&side.place.child(&name), &error);
                    unknown.insert(name);
                }
                Some(entries)
            }
            Err(error) => {
                self.trouble(&side.place, &error);
                None
            }
        };
        let (left_entries, right_entries) = (entries_of(&left)?, entries_of(&right)?);
        let names: BTreeSet<Name> = left_entries.keys().chain(right_entries.keys()).cloned().collect();
        let names = names.difference(&unknown).cloned().collect::<BTreeSet<_>>();
        let names = names.into_iter().rev().collect();
        Some(Frame { left, right, left_entries, right_entries, names })
    }

    fn links(&mut self, left: &Side, right: &Side) -> Result<(), Failure> {
        let target = |side: &Side| match &side.inode {
            Some(inode) => inode.readlink(),
            None => Err(Errno::ENOENT.into()),
        };
        match (target(left), target(right)) {
            (Ok(a), Ok(b)) if a == b => self.identical(left, right),
            (Ok(_), Ok(_)) => self.differ((Some(&left.place), Some(&right.place)), "target", || {
                format!("Symbolic links {} and {} differ", left.name(), right.name())
            }),
            (Err(error), _) => {
                self.trouble(&left.place, &error);
                Ok(())
            }
            (_, Err(error)) => {
                self.trouble(&right.place, &error);
                Ok(())
            }
        }
    }

    fn identical(&mut self, left: &Side, right: &Side) -> Result<(), Failure> {
        if self.settings.report_identical {
            self.tell((Some(&left.place), Some(&right.place)), "none", || {
                format!("Files {} and {} are identical", left.name(), right.name())
            })?;
        }
        Ok(())
    }

    fn files(&mut self, left: &Side, right: &Side, below: bool) -> Result<(), Failure> {
        if let (Some(a), Some(b)) = (&left.inode, &right.inode)
            && a.is_same(b)
        {
            return self.identical(left, right);
        }
        let has_streams = left.may_be_stream() || right.may_be_stream();
        if below && has_streams {
            let stream = if left.may_be_stream() { left } else { right };
            let why = "opening it connects or starts a program, which is done for files that are named only";
            self.trouble(&stream.place, &Errno::EOPNOTSUPP.because(why));
            return Ok(());
        }
        let are_both = left.inode.is_some() && right.inode.is_some();
        if self.settings.brief && are_both && !has_streams && left.size() != right.size() {
            return self.files_differ(left, right, "Files");
        }
        let (Some(a), Some(b)) = (self.content(left), self.content(right)) else { return Ok(()) };
        match a.compare(&b) {
            Ok(Comparison::Same) => self.identical(left, right),
            Ok(Comparison::Differ | Comparison::Binary) if self.settings.brief || self.context.json => {
                self.files_differ(left, right, "Files")
            }
            Ok(Comparison::Binary) if !self.settings.text => self.files_differ(left, right, "Binary files"),
            Ok(_) => match (a.all(), b.all()) {
                (Ok(old), Ok(new)) => self.show(left, &old, right, &new, below),
                (Err(error), _) => {
                    self.trouble(&left.place, &error);
                    Ok(())
                }
                (_, Err(error)) => {
                    self.trouble(&right.place, &error);
                    Ok(())
                }
            },
            Err((side, error)) => {
                self.trouble(if side == 0 { &left.place } else { &right.place }, &error);
                Ok(())
            }
        }
    }

    fn content(&mut self, side: &Side) -> Option<Content> {
        match side.inode.as_ref().map(|inode| inode.open(OpenFlags::empty())).transpose().and_then(Source::of)
        {
            Ok(source) => Some(Content { size: source.size().unwrap_or(side.size()), source }),
            Err(error) => {
                self.trouble(&side.place, &error);
                None
            }
        }
    }

    fn show(
        &mut self,
        left: &Side,
        old: &[u8],
        right: &Side,
        new: &[u8],
        below: bool,
    ) -> Result<(), Failure> {
        self.context.fail(Status::Minor);
        let quoting = Quoting::new(Style::Shell);
        if below {
            let (a, b) = (left.place.shown.as_bytes(), right.place.shown.as_bytes());
            let heading =
                [b"diff", self.options.as_bytes(), b" ", &quoting.quote(a), b" ", &quoting.quote(b)];
            self.output.line(heading.concat())?;
        }
        let Some(context) = self.settings.context else {
            return self.output.write(&lines::normal(old, new));
        };
        for (mark, side) in [("---", left), ("+++", right)] {
            // A file that does not exist was last changed at the beginning of time.
            let time = side.inode.as_ref().map_or(Time::default(), |inode| inode.attr().mtime);
            let time = self.zone.show(time, b"%Y-%m-%d %H:%M:%S.%N %z");
            let name = side.place.shown.as_bytes();
            self.output.name(&[mark.as_bytes(), b" ", name].concat())?;
            self.output.write(&[b"\t", &time[..], b"\n"].concat())?;
        }
        self.output.write(&lines::unified(old, new, context))
    }
}

/// Whether the new pair repeats one it is in, as symbolic links can make it.
fn loops(frames: &[Frame], below: &Frame) -> bool {
    let repeats = |above: &Side, below: &Side| match (&above.inode, &below.inode) {
        (Some(above), Some(below)) => below.repeats(above),
        (above, below) => above.is_none() && below.is_none(),
    };
    frames.iter().any(|frame| repeats(&frame.left, &below.left) && repeats(&frame.right, &below.right))
}

fn kind_of(side: &Side) -> &'static str {
    side.inode.as_ref().map_or("regular empty file", |inode| kind_name(inode.attr().mode, inode.attr().size))
}

/// Where content comes from.
enum Source {
    File(File),
    /// All of a stream, of which nothing can be read twice; nothing of what does not exist.
    Whole(Bytes),
}

impl Source {
    fn of(file: Option<File>) -> Result<Self, Error> {
        match file {
            Some(file) if file.is_stream() => file.read_to_end().map(Source::Whole),
            Some(file) => Ok(Source::File(file)),
            None => Ok(Source::Whole(Bytes::new())),
        }
    }

    /// In bytes, where the attributes may not say it.
    fn size(&self) -> Option<u64> {
        match self {
            Source::File(_) => None,
            Source::Whole(all) => Some(all.len() as u64),
        }
    }
}

/// The content of a file.
struct Content {
    source: Source,
    /// What it may have, in bytes.
    size: u64,
}

enum Comparison {
    Same,
    /// They differ, and look like text.
    Differ,
    /// They differ, and at least one does not look like text.
    Binary,
}

impl Content {
    /// A block of a file of about `size` bytes.
    fn read(&self, at: u64, size: u64) -> Result<Bytes, Error> {
        // Room for no more than a small file has: making it costs more than reading.
        let left = size.saturating_sub(at).clamp(LEAST, BLOCK) as usize;
        match &self.source {
            Source::File(file) => file.read_at(at, left),
            Source::Whole(all) => {
                let at = (at as usize).min(all.len());
                Ok(all.slice(at..(at + left).min(all.len())))
            }
        }
    }

    /// Compares without holding more than a block of each; on failure says which side.
    fn compare(&self, other: &Content) -> Result<Comparison, (u8, Error)> {
        let (mut at, mut binary) = (0, false);
        let size = self.size.max(other.size);
        loop {
            let a = self.read(at, size).map_err(|error| (0, error))?;
            let b = other.read(at, size).map_err(|error| (1, error))?;
            if at == 0 {
                binary = [&a, &b].iter().any(|block| block[..block.len().min(PROBE)].contains(&0));
            }
            if a != b {
                return Ok(if binary { Comparison::Binary } else { Comparison::Differ });
            }
            if a.is_empty() {
                return Ok(Comparison::Same);
            }
            at += a.len() as u64;
        }
    }

    fn all(&self) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            let block = self.read(all.len() as u64, self.size)?;
            if block.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(&block);
        }
    }
}
