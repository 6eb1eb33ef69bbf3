// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the options of `ls` come to.

use crate::format::colour::{Colours, Part};
use crate::format::glob::Glob;
use crate::format::human::Unit;
use crate::format::quote::{Quoting, Style};
use crate::say::usage;
use crate::status::{Failure, Status};
use crate::switches::{Given, keyword};
use std::env;
use std::io::{IsTerminal, stdout};
use std::os::unix::ffi::OsStrExt;

/// The layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One line a file with everything.
    Long,
    /// One name a line.
    Single,
    /// Columns, sorted downwards.
    Columns,
    /// Columns, sorted across.
    Across,
    /// Names with commas.
    Commas,
}

/// The order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    None,
    Name,
    Extension,
    Width,
    Size,
    Version,
    Time,
}

/// Which of the times of a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Modified,
    Changed,
    Accessed,
    Born,
}

/// Which names are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// Those that start with a dot, and those that match `--hide`.
    Dots,
    /// `.` and `..`.
    Self_,
    /// None.
    Nothing,
}

/// When symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Never.
    Keep,
    /// On the command line, when they lead to directories.
    FollowGivenDirectories,
    /// On the command line.
    FollowGiven,
    /// Always.
    Follow,
}

/// What is appended to names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Indicator {
    /// Nothing.
    None,
    /// `/` to directories.
    Slash,
    /// A character for each kind.
    FileType,
    /// The same, and `*` to what can be executed.
    Classify,
}

/// Everything `ls` was asked for.
#[derive(Debug)]
pub struct Options {
    pub layout: Layout,
    pub order: Order,
    pub reverse: bool,
    pub directories_first: bool,
    pub which: Which,
    pub hidden: Hidden,
    pub ignore: Vec<Glob>,
    pub hide: Vec<Glob>,
    pub links: Links,
    pub recursive: bool,
    pub directory: bool,
    pub inode: bool,
    pub blocks: bool,
    pub owner: bool,
    pub group: bool,
    pub author: bool,
    pub numeric: bool,
    pub context: bool,
    pub indicator: Indicator,
    pub size_unit: Unit,
    pub block_unit: Unit,
    pub quoting: Quoting,
    pub directory_quoting: Quoting,
    pub question_marks: bool,
    pub align_quotes: bool,
    pub end: u8,
    pub line: usize,
    pub tab: usize,
    pub colours: Option<Colours>,
    /// Formats for times long ago and for recent ones.
    pub time_formats: [Vec<u8>; 2],
}

/// The options as far as the user chose.
#[derive(Debug, Default)]
struct Chosen {
    layout: Option<Layout>,
    order: Option<Order>,
    which: Option<Which>,
    hidden: Option<Hidden>,
    links: Option<Links>,
    indicator: Option<Indicator>,
    style: Option<Style>,
    question_marks: Option<bool>,
    size_unit: Option<Unit>,
    block_unit: Option<Unit>,
    kibibytes: bool,
    width: Option<usize>,
    tab: Option<usize>,
    colour: bool,
    time_style: Option<String>,
    flags: Vec<&'static str>,
    ignore: Vec<Glob>,
    hide: Vec<Glob>,
    blocks: bool,
    zero: bool,
}

/// When something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    Never,
    OnTerminal,
}

const WHEN: [(&str, When); 9] = [
    ("always", When::Always),
    ("yes", When::Always),
    ("force", When::Always),
    ("never", When::Never),
    ("no", When::Never),
    ("none", When::Never),
    ("auto", When::OnTerminal),
    ("tty", When::OnTerminal),
    ("if-tty", When::OnTerminal),
];

const LAYOUTS: [(&str, Layout); 7] = [
    ("verbose", Layout::Long),
    ("long", Layout::Long),
    ("commas", Layout::Commas),
    ("horizontal", Layout::Across),
    ("across", Layout::Across),
    ("vertical", Layout::Columns),
    ("single-column", Layout::Single),
];

const ORDERS: [(&str, Order); 6] = [
    ("none", Order::None),
    ("time", Order::Time),
    ("size", Order::Size),
    ("extension", Order::Extension),
    ("version", Order::Version),
    ("width", Order::Width),
];

const WHICH: [(&str, Which); 7] = [
    ("atime", Which::Accessed),
    ("access", Which::Accessed),
    ("use", Which::Accessed),
    ("ctime", Which::Changed),
    ("status", Which::Changed),
    ("birth", Which::Born),
    ("creation", Which::Born),
];

/// Their names, and the formats of times long ago and of recent ones.
const TIME_STYLES: [(&str, &str, &str); 4] = [
    ("full-iso", "%Y-%m-%d %H:%M:%S.%N %z", "%Y-%m-%d %H:%M:%S.%N %z"),
    ("long-iso", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M"),
    ("iso", "%Y-%m-%d ", "%m-%d %H:%M"),
    ("locale", "%b %e  %Y", "%b %e %H:%M"),
];

const TIME_STYLE_HELP: &str = "Valid arguments are:
  - [posix-]full-iso
  - [posix-]long-iso
  - [posix-]iso
  - [posix-]locale
  - +FORMAT (e.g., +%H:%M) for a 'date'-style format";

const INDICATORS: [(&str, Indicator); 4] = [
    ("none", Indicator::None),
    ("slash", Indicator::Slash),
    ("file-type", Indicator::FileType),
    ("classify", Indicator::Classify),
];

impl Options {
    /// Makes sense of what was given, on the command line and in the environment.
    ///
    /// # Errors
    /// An option with a value that makes no sense.
    pub fn new(given: &[Given]) -> Result<(Self, Vec<String>), Failure> {
        let mut chosen = Chosen::default();
        for option in given {
            chosen.take(option)?;
        }
        chosen.finish()
    }
}

fn word<T: Copy + PartialEq>(table: &[(&str, T)], option: &Given, name: &str) -> Result<T, Failure> {
    keyword(table, &option.value, name).map_err(|wrong| usage("ls", wrong))
}

fn terminal() -> bool {
    stdout().is_terminal()
}

fn when(option: &Given, name: &str) -> Result<bool, Failure> {
    Ok(match word(&WHEN, option, name)? {
        When::Always => true,
        When::Never => false,
        When::OnTerminal => terminal(),
    })
}

fn columns(option: &Given, what: &str) -> Result<usize, String> {
    let text = option.text();
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (&text[..], 10),
    };
    let digit = digits.chars().all(|character| character.is_digit(radix));
    match usize::from_str_radix(digits, radix) {
        Ok(width) => Ok(width),
        Err(_) if digit && !digits.is_empty() => Ok(0),
        Err(_) => Err(format!("invalid {what}: '{text}'")),
    }
}

impl Chosen {
    fn take(&mut self, option: &Given) -> Result<(), Failure> {
        match option.id {
            "format" => self.layout = Some(word(&LAYOUTS, option, "--format")?),
            "sort" => self.order = Some(word(&ORDERS, option, "--sort")?),
            "time" => self.which = Some(word(&WHICH, option, "--time")?),
            "time-style" => self.time_style = Some(option.text()),
            "indicator-style" => {
                self.indicator = Some(word(&INDICATORS, option, "--indicator-style")?);
            }
            "quoting-style" => self.style = Some(word(&Style::NAMES, option, "--quoting-style")?),
            "colour" => self.colour = when(option, "--color")?,
            "classify" if when(option, "--classify")? => self.indicator = Some(Indicator::Classify),
            "classify" => {}
            "width" => self.width = Some(columns(option, "line width").map_err(Failure::serious)?),
            "tabsize" => self.tab = Some(columns(option, "tab size").map_err(Failure::serious)?),
            "ignore" => self.ignore.push(Glob::new(option.value.as_bytes()).guard_period()),
            "hide" => self.hide.push(Glob::new(option.value.as_bytes()).guard_period()),
            "block-size" => {
                let text = option.text();
                let wrong = || Failure::serious(format!("invalid --block-size argument '{text}'"));
                let unit = Unit::parse(&text).ok_or_else(wrong)?;
                (self.size_unit, self.block_unit) = (Some(unit), Some(unit));
            }
            id => self.take_flag(id),
        }
        Ok(())
    }

    fn take_flag(&mut self, id: &'static str) {
        match id {
            "all" => self.hidden = Some(Hidden::Nothing),
            "almost-all" => self.hidden = Some(Hidden::Self_),
            "escape" => self.style = Some(Style::Escape),
            "ignore-backups" => {
                self.ignore.extend([&b"*~"[..], b".*~"].map(|pattern| Glob::new(pattern).guard_period()));
            }
            "ctime" => self.which = Some(Which::Changed),
            "atime" => self.which = Some(Which::Accessed),
            "columns" => self.layout = Some(Layout::Columns),
            "across" => self.layout = Some(Layout::Across),
            "commas" => self.layout = Some(Layout::Commas),
            "long" => self.layout = Some(Layout::Long),
            "one" if self.layout != Some(Layout::Long) => self.layout = Some(Layout::Single),
            "raw" => self.take_raw(),
            "classify-always" => self.indicator = Some(Indicator::Classify),
            "file-type" => self.indicator = Some(Indicator::FileType),
            "slash" => self.indicator = Some(Indicator::Slash),
            "full-time" => {
                self.layout = Some(Layout::Long);
                self.time_style = Some("full-iso".to_owned());
            }
            "human" => (self.size_unit, self.block_unit) = (Some(Unit::HUMAN), Some(Unit::HUMAN)),
            "si" => (self.size_unit, self.block_unit) = (Some(Unit::SI), Some(Unit::SI)),
            "kibibytes" => self.kibibytes = true,
            "follow-given" => self.links = Some(Links::FollowGiven),
            "follow-given-directories" => self.links = Some(Links::FollowGivenDirectories),
            "follow" => self.links = Some(Links::Follow),
            "literal" => self.style = Some(Style::Literal),
            "quote-name" => self.style = Some(Style::C),
            "question-marks" => self.question_marks = Some(true),
            "show-control" => self.question_marks = Some(false),
            "by-size" => self.order = Some(Order::Size),
            "by-time" => self.order = Some(Order::Time),
            "by-version" => self.order = Some(Order::Version),
            "by-extension" => self.order = Some(Order::Extension),
            "unsorted" => self.order = Some(Order::None),
            "size" => self.blocks = true,
            "zero" => self.take_zero(),
            other => {
                if matches!(other, "no-owner" | "long-no-group" | "numeric") {
                    self.layout = Some(Layout::Long);
                }
                self.flags.push(other);
            }
        }
    }

    fn take_raw(&mut self) {
        self.hidden = Some(Hidden::Nothing);
        self.order = Some(Order::None);
        if self.layout == Some(Layout::Long) {
            self.layout = None;
        }
        self.colour = false;
        self.blocks = false;
    }

    fn take_zero(&mut self) {
        self.zero = true;
        self.question_marks = Some(false);
        if self.layout != Some(Layout::Long) {
            self.layout = Some(Layout::Single);
        }
        self.colour = false;
        self.style = Some(Style::Literal);
    }

    fn has(&self, id: &str) -> bool {
        self.flags.contains(&id)
    }

    fn finish(self) -> Result<(Options, Vec<String>), Failure> {
        let mut warnings = Vec::new();
        let layout = self.layout.unwrap_or(if terminal() { Layout::Columns } else { Layout::Single });
        let indicator = self.indicator.unwrap_or(Indicator::None);
        let colours = self.colours(&mut warnings);
        let columns = matches!(layout, Layout::Columns | Layout::Across | Layout::Commas);
        let line = if columns || colours.is_some() { self.line(&mut warnings) } else { 0 };
        let quoting = self.quoting(indicator, &mut warnings);
        let aligned =
            layout == Layout::Long || (matches!(layout, Layout::Columns | Layout::Across) && line > 0);
        let (size_unit, block_unit) = self.units();
        let order = match self.order {
            Some(order) => order,
            None if layout != Layout::Long && self.which.is_some() => Order::Time,
            None => Order::Name,
        };
        let plain = self.has("directory") || indicator == Indicator::Classify || layout == Layout::Long;
        let default_links = if plain { Links::Keep } else { Links::FollowGivenDirectories };
        let time_formats = if layout == Layout::Long { self.time_formats()? } else { Default::default() };
        let options = Options {
            layout,
            order,
            reverse: self.has("reverse"),
            directories_first: self.has("directories-first"),
            which: self.which.unwrap_or(Which::Modified),
            hidden: self.hidden.unwrap_or(Hidden::Dots),
            links: self.links.unwrap_or(default_links),
            recursive: self.has("recursive"),
            directory: self.has("directory"),
            inode: self.has("inode"),
            blocks: self.blocks,
            owner: !self.has("no-owner"),
            group: !self.has("no-group") && !self.has("long-no-group"),
            author: self.has("author"),
            numeric: self.has("numeric"),
            context: self.has("context"),
            indicator,
            size_unit,
            block_unit,
            directory_quoting: quoting.and(b":"),
            align_quotes: aligned && quoting.style.varies(),
            quoting,
            question_marks: self.question_marks.unwrap_or_else(terminal),
            end: if self.zero { 0 } else { b'\n' },
            line,
            tab: if columns && colours.is_none() { self.tab(&mut warnings) } else { 0 },
            colours,
            time_formats,
            ignore: self.ignore,
            hide: self.hide,
        };
        Ok((options, warnings))
    }

    fn colours(&self, warnings: &mut Vec<String>) -> Option<Colours> {
        if !self.colour {
            return None;
        }
        Colours::of_environment().unwrap_or_else(|wrong| {
            warnings.extend(wrong.lines().map(str::to_owned));
            None
        })
    }

    fn line(&self, warnings: &mut Vec<String>) -> usize {
        if let Some(width) = self.width {
            return width;
        }
        let window = if terminal() { rustix::termios::tcgetwinsize(stdout()).ok() } else { None };
        if let Some(size) = window.filter(|size| size.ws_col > 0) {
            return size.ws_col.into();
        }
        let Some(value) = env::var_os("COLUMNS").filter(|value| !value.is_empty()) else { return 80 };
        let given = Given { id: "width", value };
        columns(&given, "").unwrap_or_else(|_| {
            warnings
                .push(format!("ignoring invalid width in environment variable COLUMNS: '{}'", given.text()));
            80
        })
    }

    fn tab(&self, warnings: &mut Vec<String>) -> usize {
        if let Some(tab) = self.tab {
            return tab;
        }
        let variable = env::var_os("TABSIZE").filter(|_| env::var_os("POSIXLY_CORRECT").is_none());
        let Some(value) = variable else { return 8 };
        let given = Given { id: "tabsize", value };
        columns(&given, "").unwrap_or_else(|_| {
            warnings.push(format!(
                "ignoring invalid tab size in environment variable TABSIZE: '{}'",
                given.text()
            ));
            8
        })
    }

    fn quoting(&self, indicator: Indicator, warnings: &mut Vec<String>) -> Quoting {
        let of_environment = env::var_os("QUOTING_STYLE").and_then(|value| {
            let style = keyword(&Style::NAMES, &value, "QUOTING_STYLE").ok();
            if style.is_none() {
                warnings.push(format!(
                    "ignoring invalid value of environment variable QUOTING_STYLE: '{}'",
                    value.display()
                ));
            }
            style
        });
        let default = if terminal() { Style::ShellEscape } else { Style::Literal };
        let style = self.style.or(of_environment).unwrap_or(default);
        let spaces: &[u8] = if style == Style::Escape { b" " } else { b"" };
        let indicators: &[u8] = match indicator {
            Indicator::Classify => b"*=>@|",
            Indicator::FileType => b"=>@|",
            _ => b"",
        };
        Quoting::new(style).and(spaces).and(indicators)
    }

    /// The units of sizes and of blocks.
    fn units(&self) -> (Unit, Unit) {
        if let (Some(size), Some(block)) = (self.size_unit, self.block_unit) {
            return (size, block);
        }
        let block = Unit::of_environment(&["LS_BLOCK_SIZE"]);
        let asked = ["LS_BLOCK_SIZE", "BLOCK_SIZE"].iter().any(|name| env::var_os(name).is_some());
        let size = if asked { block } else { Unit::bytes(1) };
        (size, if self.kibibytes { Unit::bytes(1024) } else { block })
    }

    fn time_formats(&self) -> Result<[Vec<u8>; 2], Failure> {
        let style = self.time_style.clone().or_else(|| env::var("TIME_STYLE").ok());
        let style = style.unwrap_or_else(|| "locale".to_owned());
        let pair = |old: &str, recent: &str| Ok([old.as_bytes().to_vec(), recent.as_bytes().to_vec()]);
        if let Some(format) = style.strip_prefix('+') {
            return match format.split_once('\n') {
                None => pair(format, format),
                Some((_, recent)) if recent.contains('\n') => {
                    Err(Failure::serious(format!("invalid time style format '{format}'")))
                }
                Some((old, recent)) => pair(old, recent),
            };
        }
        // In the C locale, whose times these are, a style that starts with "posix-" leaves things as they are.
        let name = if style.starts_with("posix-") { "locale" } else { &style };
        let names: Vec<_> = TIME_STYLES.iter().map(|(name, ..)| (*name, *name)).collect();
        let found = keyword(&names, name.as_ref(), "time style").ok();
        match TIME_STYLES.iter().find(|(known, ..)| Some(*known) == found) {
            Some((_, old, recent)) => pair(old, recent),
            None => {
                let wrong = format!("invalid argument '{style}' for 'time style'\n{TIME_STYLE_HELP}");
                Err(Failure { status: Status::Serious, ..usage("ls", wrong) })
            }
        }
    }
}

impl Options {
    /// Whether what symbolic links lead to has to be found out, for their colour or for their place in the order.
    pub fn needs_targets(&self) -> bool {
        let for_colours = |colours: &Colours| {
            colours.has(Part::Orphan)
                || (colours.has(Part::Executable) && colours.link_as_target)
                || (colours.has(Part::Missing) && self.layout == Layout::Long)
        };
        self.directories_first || self.colours.as_ref().is_some_and(for_colours)
    }

    /// Whether anything but names is shown or sorted by.
    pub fn needs_more_than_names(&self) -> bool {
        self.layout == Layout::Long
            || self.blocks
            || self.inode
            || self.context
            || self.recursive
            || self.directories_first
            || self.indicator != Indicator::None
            || self.colours.is_some()
            || matches!(self.order, Order::Time | Order::Size)
    }

    /// Whether nothing but names and kinds of what is in a directory is shown or sorted by.
    pub fn needs_names_only(&self) -> bool {
        let shows_more = self.layout == Layout::Long || self.blocks || self.inode || self.context;
        let by_more = self.directories_first || matches!(self.order, Order::Time | Order::Size);
        let follows = self.links == Links::Follow;
        !(shows_more || by_more || follows || self.colours.is_some() || self.indicator == Indicator::Classify)
    }

    /// Whether a name in a directory is left out.
    pub fn leaves_out(&self, name: &[u8]) -> bool {
        let dotted = name.starts_with(b".");
        let left_out = match self.hidden {
            Hidden::Dots => dotted || self.hide.iter().any(|pattern| pattern.matches(name)),
            Hidden::Self_ => name == b"." || name == b"..",
            Hidden::Nothing => false,
        };
        left_out || self.ignore.iter().any(|pattern| pattern.matches(name))
    }
}
