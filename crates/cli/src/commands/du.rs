// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger du`: how much space files take, as GNU du 9.1 counts it.
//!
//! A file with several names counts once. A tree has no file systems mounted inside it, so there is no `-x`.

use crate::context::{Context, Place};
use crate::descent::{Descent, Step};
use crate::format::glob::Glob;
use crate::format::human::Unit;
use crate::format::quote::for_message;
use crate::format::time::{Zone, rfc3339};
use crate::getopt::{Arguments, Table};
use crate::messages::{record, why};
use crate::output::Output;
use crate::run::Run;
use crate::say::usage;
use crate::status::{Exits, Failure, Status};
use crate::switches::{Given, Switch, Takes, keyword};
use outrigger_client::{Follow, Inode};
use outrigger_core::{Attr, Time};
use serde_json::json;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `du`.
pub type Du = Arguments<DuTable>;

const fn flag(id: &'static str, short: char, long: &'static str, help: &'static str) -> Switch {
    Switch::flag(id, Some(short), Some(long), help)
}

const SWITCHES: [Switch; 22] = [
    flag("zero", '0', "null", "End each line with NUL"),
    flag("all", 'a', "all", "Count files too, not just directories"),
    Switch::flag("apparent", None, Some("apparent-size"), "Count bytes instead of allocated space"),
    Switch::with("block-size", Some('B'), Some("block-size"), Takes::Value("SIZE"), "Count in units of SIZE"),
    flag("bytes", 'b', "bytes", "As --apparent-size --block-size=1"),
    flag("total", 'c', "total", "Print a total"),
    Switch::with("depth", Some('d'), Some("max-depth"), Takes::Value("N"), "Print no deeper than N levels"),
    Switch::flag(
        "follow-given",
        Some('D'),
        Some("dereference-args"),
        "Follow symbolic links among the operands",
    ),
    Switch::flag("follow-given-too", Some('H'), None, "As -D"),
    flag("human", 'h', "human-readable", "Print sizes like 1K 234M 2G"),
    Switch::flag("si", None, Some("si"), "As -h, with powers of 1000"),
    Switch::flag("inodes", None, Some("inodes"), "Count files instead of space"),
    Switch::flag("kib", Some('k'), None, "As --block-size=1K"),
    Switch::flag("mib", Some('m'), None, "As --block-size=1M"),
    flag("follow", 'L', "dereference", "Follow all symbolic links"),
    flag("count-links", 'l', "count-links", "Count a file once for each of its names"),
    flag("follow-none", 'P', "no-dereference", "Follow no symbolic links; this is the default"),
    flag("separate", 'S', "separate-dirs", "Do not count directories in directories"),
    flag("summarize", 's', "summarize", "Print only a total for each operand"),
    Switch::with(
        "exclude",
        None,
        Some("exclude"),
        Takes::Value("PATTERN"),
        "Leave out files that match PATTERN",
    ),
    Switch::with(
        "threshold",
        Some('t'),
        Some("threshold"),
        Takes::Value("SIZE"),
        "Leave out less than SIZE, or more than -SIZE",
    ),
    Switch::with(
        "time",
        None,
        Some("time"),
        Takes::Optional("WHICH", ""),
        "Show when the content of anything in it was changed last, or its latest atime or ctime",
    ),
];

/// A time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhichTime {
    Content,
    Access,
    Change,
}

impl WhichTime {
    fn of(self, attr: &Attr) -> Time {
        match self {
            WhichTime::Content => attr.mtime,
            WhichTime::Access => attr.atime,
            WhichTime::Change => attr.ctime,
        }
    }
}

/// Values of `--time`; those of one meaning stand together.
const TIMES: [(&str, WhichTime); 5] = [
    ("atime", WhichTime::Access),
    ("access", WhichTime::Access),
    ("use", WhichTime::Access),
    ("ctime", WhichTime::Change),
    ("status", WhichTime::Change),
];

/// The options of `du`.
#[derive(Debug, Clone)]
pub struct DuTable;

impl Table for DuTable {
    const SWITCHES: &'static [Switch] = &SWITCHES;
    const OPERAND: &'static str = "LOCATION";
    const OPERAND_HELP: &'static str = "What to count; the working directory when nothing is given";
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Allocated,
    Bytes,
    Files,
}

#[derive(Debug)]
struct Options {
    all: bool,
    total: bool,
    separate: bool,
    count_links: bool,
    summarize: bool,
    depth: Option<usize>,
    depth_given: bool,
    count: Count,
    unit: Unit,
    follow: bool,
    follow_given: bool,
    end: u8,
    exclude: Vec<Glob>,
    /// Less than this is not printed; when negative, more than its absolute value.
    threshold: i128,
    /// The time that is shown of what is counted.
    time: Option<WhichTime>,
}

impl Options {
    fn new(given: &[Given]) -> Result<Self, Failure> {
        let mut options = Options {
            all: false,
            total: false,
            separate: false,
            count_links: false,
            summarize: false,
            depth: None,
            depth_given: false,
            count: Count::Allocated,
            unit: Unit::of_environment(&["DU_BLOCK_SIZE"]),
            follow: false,
            follow_given: false,
            end: b'\n',
            exclude: Vec::new(),
            threshold: 0,
            time: None,
        };
        for option in given {
            options.take(option)?;
        }
        options.check()
    }

    fn take(&mut self, option: &Given) -> Result<(), Failure> {
        let text = option.text();
        match option.id {
            "zero" => self.end = 0,
            "all" => self.all = true,
            "apparent" => self.count = Count::Bytes,
            "bytes" => (self.count, self.unit) = (Count::Bytes, Unit::bytes(1)),
            "total" => self.total = true,
            "follow-given" | "follow-given-too" => (self.follow, self.follow_given) = (false, true),
            "follow" => (self.follow, self.follow_given) = (true, true),
            "follow-none" => (self.follow, self.follow_given) = (false, false),
            "human" => self.unit = Unit::HUMAN,
            "si" => self.unit = Unit::SI,
            "kib" => self.unit = Unit::bytes(1 << 10),
            "mib" => self.unit = Unit::bytes(1 << 20),
            "inodes" => self.count = Count::Files,
            "count-links" => self.count_links = true,
            "separate" => self.separate = true,
            "summarize" => self.summarize = true,
            "exclude" => self.exclude.push(Glob::new(option.value.as_bytes())),
            "block-size" => {
                let wrong = || Failure::new(format!("invalid --block-size argument '{text}'"));
                self.unit = Unit::parse(&text).ok_or_else(wrong)?;
            }
            "time" => {
                self.time = Some(match &*text {
                    "" => WhichTime::Content,
                    _ => keyword(&TIMES, &option.value, "--time").map_err(|problem| usage("du", problem))?,
                });
            }
            "depth" => {
                let wrong = |_| usage("du", format!("invalid maximum depth '{text}'"));
                self.depth = Some(text.parse().map_err(wrong)?);
                self.depth_given = true;
            }
            "threshold" => {
                let wrong = || Failure::new(format!("invalid --threshold argument '{text}'"));
                let (sign, size) = text.strip_prefix('-').map_or((1, &*text), |size| (-1, size));
                let Some(Unit::Fixed { bytes, .. }) = Unit::parse(size) else { return Err(wrong()) };
                self.threshold = sign * i128::from(bytes);
            }
            _ => {}
        }
        Ok(())
    }

    fn check(mut self) -> Result<Self, Failure> {
        if self.summarize && self.all {
            return Err(usage("du", "cannot both summarize and show all entries"));
        }
        if let (true, Some(depth @ 1..)) = (self.summarize, self.depth) {
            let conflict = format!("warning: summarizing conflicts with --max-depth={depth}");
            return Err(usage("du", conflict));
        }
        if self.summarize {
            self.depth = Some(0);
        }
        Ok(self)
    }

    fn excludes(&self, path: &[u8]) -> bool {
        let tails = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[at + 1..]);
        let mut candidates = std::iter::once(path).chain(tails);
        !self.exclude.is_empty()
            && candidates.any(|tail| self.exclude.iter().any(|pattern| pattern.matches(tail)))
    }

    fn counted(&self, attr: &Attr) -> u64 {
        match self.count {
            Count::Allocated => attr.blocks.saturating_mul(512),
            Count::Bytes => attr.size,
            Count::Files => 1,
        }
    }
}

impl Run for Du {
    const NAME: &'static str = "du";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let options = Options::new(&self.given)?;
        if self.given.iter().any(|option| option.id == "summarize") && options.depth_given {
            context.complain(Status::Success, "warning: summarizing is the same as using --max-depth=0");
        }
        let mut places = self.operands;
        if places.is_empty() {
            places.push(".".into());
        }
        let identify_all = places.len() > 1 || options.follow;
        let output = Output::new(context);
        let mut counter = Counter {
            context,
            options,
            output,
            seen: HashSet::new(),
            identify_all,
            total: Sums::default(),
            zone: Zone::of_environment(),
        };
        for text in &places {
            match context.place(text) {
                Ok(place) => counter.operand(place)?,
                Err(failure) => counter.output.complain(Status::Minor, failure),
            }
        }
        if counter.options.total {
            let total = counter.total;
            counter.line(total.own, total.latest, b"total")?;
        }
        counter.output.flush()
    }
}

/// What identifies a file. A tree has no device numbers; the rest makes up for trees on several file
/// systems of the host.
type Identity = (String, u64, Time, u64);

/// What a directory comes to.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Itself and the files in it.
    own: u64,
    /// The directories in it.
    below: u64,
    /// The latest time of anything in it.
    latest: Time,
}

struct Counter<'c> {
    context: &'c Context,
    options: Options,
    output: Output<'c>,
    seen: HashSet<Identity>,
    identify_all: bool,
    total: Sums,
    zone: Zone,
}

impl Counter<'_> {
    fn operand(&mut self, place: Place) -> Result<(), Failure> {
        if self.options.excludes(place.shown.as_bytes()) {
            return Ok(());
        }
        let follow = if self.options.follow_given { Follow::Yes } else { Follow::No };
        match place.find(follow) {
            Ok(inode) => self.tree(place, inode),
            Err(error) => {
                self.complain("cannot access", &place, &error);
                Ok(())
            }
        }
    }

    fn tree(&mut self, place: Place, inode: Inode) -> Result<(), Failure> {
        let mut descent = Descent::new(place, self.options.follow);
        let mut sums: Vec<Sums> = Vec::new();
        self.found(&mut descent, inode, &mut sums)?;
        while let Some(step) = descent.step() {
            self.output.proceed()?;
            match step {
                Step::Found(inode) => self.found(&mut descent, inode, &mut sums)?,
                Step::Unreadable(error) => self.complain("cannot access", descent.place(), &error),
                Step::Failed(error) => self.complain("cannot read directory", descent.place(), &error),
                Step::Left(_) => self.left(&descent, &mut sums)?,
            }
        }
        Ok(())
    }

    fn found(&mut self, descent: &mut Descent, inode: Inode, sums: &mut Vec<Sums>) -> Result<(), Failure> {
        let place = descent.place();
        let operand = descent.depth() == 0;
        if !operand && self.options.excludes(place.shown.as_bytes()) {
            return Ok(());
        }
        if self.is_known(place, &inode) {
            return Ok(());
        }
        let size = self.options.counted(inode.attr());
        let latest = self.options.time.map_or(Time::default(), |time| time.of(inode.attr()));
        if inode.is_dir() {
            sums.push(Sums { own: size, below: 0, latest });
            if let Err(failed) = descent.enter(inode) {
                self.complain("cannot read directory", descent.place(), &failed.1);
                self.left(descent, sums)?;
            }
            return Ok(());
        }
        let sum = sums.last_mut().unwrap_or(&mut self.total);
        sum.own = sum.own.saturating_add(size);
        sum.latest = sum.latest.max(latest);
        if operand || (self.options.all && self.shows(descent.depth())) {
            self.line(size, latest, place.shown.as_bytes())?;
        }
        Ok(())
    }

    /// Adds a directory that has been counted to the one it is in. Its depth is that of the walk now.
    fn left(&mut self, descent: &Descent, sums: &mut Vec<Sums>) -> Result<(), Failure> {
        let Sums { own, below, latest } = sums.pop().unwrap_or_default();
        let all = own.saturating_add(below);
        let sum = match sums.last_mut() {
            Some(parent) => {
                parent.below = parent.below.saturating_add(all);
                parent
            }
            None => {
                self.total.own = self.total.own.saturating_add(all);
                &mut self.total
            }
        };
        sum.latest = sum.latest.max(latest);
        if self.shows(descent.depth()) {
            self.line(
                if self.options.separate { own } else { all },
                latest,
                descent.place().shown.as_bytes(),
            )?;
        }
        Ok(())
    }

    fn shows(&self, depth: usize) -> bool {
        self.options.depth.is_none_or(|most| depth <= most)
    }

    /// Whether the file was counted before. Remembers it otherwise.
    fn is_known(&mut self, place: &Place, inode: &Inode) -> bool {
        let attr = inode.attr();
        let several = attr.nlink > 1 && !inode.is_dir();
        if self.options.count_links || !(self.identify_all || several) {
            return false;
        }
        let tree = place.client.abilities().tree.clone();
        !self.seen.insert((tree, attr.ino, attr.ctime, attr.size))
    }

    fn line(&mut self, count: u64, latest: Time, path: &[u8]) -> Result<(), Failure> {
        let (threshold, counted) = (self.options.threshold, i128::from(count));
        if (threshold > 0 && counted < threshold) || (threshold < 0 && counted > -threshold) {
            return Ok(());
        }
        if self.context.json {
            let unit = if self.options.count == Count::Files { "files" } else { "bytes" };
            let mut line = json!({ "path": String::from_utf8_lossy(path), unit: count });
            if self.options.time.is_some() {
                line["time"] = rfc3339(latest).into();
            }
            return self.output.write(record(&line).as_bytes());
        }
        let mut line = match (self.options.count, self.options.unit) {
            (Count::Files, unit @ Unit::Scaled { .. }) => unit.show(count, 1),
            (Count::Files, _) => count.to_string(),
            (_, unit) => unit.show(count, 1),
        };
        line.push('\t');
        if self.options.time.is_some() {
            line += &String::from_utf8_lossy(&self.zone.show(latest, b"%Y-%m-%d %H:%M"));
            line.push('\t');
        }
        self.output.write(line.as_bytes())?;
        self.output.name(path)?;
        self.output.write(&[self.options.end])
    }

    fn complain(&mut self, what: &str, place: &Place, error: &outrigger_core::Error) {
        let name = for_message(place.shown.as_bytes());
        self.output.complain(Status::Minor, format_args!("{what} {name}: {}", why(error)));
    }
}
