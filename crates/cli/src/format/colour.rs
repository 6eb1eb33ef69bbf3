// SPDX-License-Identifier: MIT OR Apache-2.0
//! The colours of `LS_COLORS` (see dir_colors(5)), or those GNU ls has built in when it is not set.

use super::glob::Glob;
use outrigger_core::FileKind;
use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What has a colour. The two letters are its name in `LS_COLORS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Left,
    Right,
    End,
    Reset,
    Normal,
    File,
    Directory,
    Link,
    Fifo,
    Socket,
    Block,
    Character,
    Missing,
    Orphan,
    Executable,
    Door,
    SetUid,
    SetGid,
    Sticky,
    OtherWritable,
    StickyOtherWritable,
    Capability,
    MultiHardLink,
    ClearToEndOfLine,
}

/// Each part, its name, and its colour when the user has no say.
const PARTS: [(Part, &str, Option<&str>); 24] = [
    (Part::Left, "lc", Some("\x1b[")),
    (Part::Right, "rc", Some("m")),
    (Part::End, "ec", None),
    (Part::Reset, "rs", Some("0")),
    (Part::Normal, "no", None),
    (Part::File, "fi", None),
    (Part::Directory, "di", Some("01;34")),
    (Part::Link, "ln", Some("01;36")),
    (Part::Fifo, "pi", Some("33")),
    (Part::Socket, "so", Some("01;35")),
    (Part::Block, "bd", Some("01;33")),
    (Part::Character, "cd", Some("01;33")),
    (Part::Missing, "mi", None),
    (Part::Orphan, "or", None),
    (Part::Executable, "ex", Some("01;32")),
    (Part::Door, "do", Some("01;35")),
    (Part::SetUid, "su", Some("37;41")),
    (Part::SetGid, "sg", Some("30;43")),
    (Part::Sticky, "st", Some("37;44")),
    (Part::OtherWritable, "ow", Some("34;42")),
    (Part::StickyOtherWritable, "tw", Some("30;42")),
    (Part::Capability, "ca", None),
    (Part::MultiHardLink, "mh", None),
    (Part::ClearToEndOfLine, "cl", Some("\x1b[K")),
];

/// Terminals that are known to have colours.
const TERMINALS: [&str; 25] = [
    "Eterm",
    "ansi",
    "*color*",
    "con[0-9]*x[0-9]*",
    "cons25",
    "console",
    "cygwin",
    "*direct*",
    "dtterm",
    "gnome",
    "hurd",
    "jfbterm",
    "konsole",
    "kterm",
    "linux",
    "linux-c",
    "mlterm",
    "putty",
    "rxvt*",
    "screen*",
    "st",
    "terminator",
    "tmux*",
    "vt100",
    "xterm*",
];

/// A set of colours.
#[derive(Debug, Clone)]
pub struct Colours {
    parts: Vec<Option<Vec<u8>>>,
    /// Endings of names and their colours, the latest definition first.
    endings: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether symbolic links look like what they point to.
    pub link_as_target: bool,
}

/// What a colour depends on.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Kind and permissions, or just the kind when nothing else is known.
    pub mode: Result<u32, Option<FileKind>>,
    /// The number of hard links.
    pub nlink: u32,
    /// Whether the file has capabilities.
    pub capability: bool,
    /// Whether the name is a symbolic link that leads somewhere.
    pub link_ok: bool,
    /// Whether the name is the target of a link, and missing.
    pub missing: bool,
}

impl Default for Colours {
    fn default() -> Self {
        let parts = PARTS.iter().map(|(_, _, colour)| colour.map(|text| text.as_bytes().to_vec())).collect();
        Colours { parts, endings: Vec::new(), link_as_target: false }
    }
}

impl Colours {
    /// The colours of the environment; `None` when the terminal has none.
    ///
    /// # Errors
    /// What is wrong with `LS_COLORS`.
    pub fn of_environment() -> Result<Option<Self>, String> {
        match env::var_os("LS_COLORS").filter(|text| !text.is_empty()) {
            Some(text) => Colours::parse(&text).map(Some),
            None => Ok(terminal_has_colours().then(Colours::default)),
        }
    }

    fn parse(text: &OsStr) -> Result<Self, String> {
        let mut colours = Colours::default();
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            if first == b':' {
                rest = tail;
                continue;
            }
            let unparsable = || "unparsable value for LS_COLORS environment variable".to_owned();
            if first == b'*' {
                let (ending, after) = unescape(tail, b'=').ok_or_else(unparsable)?;
                let after = after.strip_prefix(b"=").ok_or_else(unparsable)?;
                let (colour, after) = unescape(after, b':').ok_or_else(unparsable)?;
                colours.endings.insert(0, (ending.to_ascii_lowercase(), colour));
                rest = after;
                continue;
            }
            let [label @ .., b'='] = rest.get(..3).ok_or_else(unparsable)? else { return Err(unparsable()) };
            let known = PARTS.iter().position(|(_, name, _)| name.as_bytes() == label).ok_or_else(|| {
                format!("unrecognized prefix: '{}'\n{}", label.escape_ascii(), unparsable())
            })?;
            let (colour, after) = unescape(&rest[3..], b':').ok_or_else(unparsable)?;
            colours.parts[known] = Some(colour);
            rest = after;
        }
        colours.link_as_target = colours.get(Part::Link) == Some(b"target");
        Ok(colours)
    }

    /// The code of `part`.
    pub fn get(&self, part: Part) -> Option<&[u8]> {
        self.parts[part as usize].as_deref()
    }

    /// Whether `part` has a colour that differs from none.
    pub fn has(&self, part: Part) -> bool {
        !matches!(self.get(part), None | Some(b"" | b"0" | b"00"))
    }

    /// What is written around `colour` to begin it.
    pub fn begin(&self, out: &mut Vec<u8>, colour: &[u8]) {
        out.extend_from_slice(self.get(Part::Left).unwrap_or_default());
        out.extend_from_slice(colour);
        out.extend_from_slice(self.get(Part::Right).unwrap_or_default());
    }

    /// What ends a colour.
    pub fn end(&self, out: &mut Vec<u8>) {
        match self.get(Part::End) {
            Some(end) => out.extend_from_slice(end),
            None => self.begin(out, self.get(Part::Reset).unwrap_or_default()),
        }
    }

    /// Whether the codes are those of ANSI terminals, which need no reset at the end.
    pub fn is_ansi(&self) -> bool {
        self.get(Part::Left) == Some(b"\x1b[") && self.get(Part::Right) == Some(b"m")
    }

    /// The colour of a file.
    pub fn of(&self, subject: Subject<'_>) -> Option<&[u8]> {
        let part = self.part(subject);
        if part == Part::File {
            let name = subject.name;
            let ends = |ending: &[u8]| {
                name.len() >= ending.len() && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending)
            };
            if let Some((_, colour)) = self.endings.iter().find(|(ending, _)| ends(ending)) {
                return Some(colour);
            }
        }
        let orphan = part == Part::Link && !subject.link_ok;
        let part =
            if orphan && (self.link_as_target || self.has(Part::Orphan)) { Part::Orphan } else { part };
        self.get(part)
    }

    fn part(&self, subject: Subject<'_>) -> Part {
        if subject.missing && self.has(Part::Missing) {
            return Part::Missing;
        }
        let mode = match subject.mode {
            Ok(mode) => mode,
            Err(kind) => return kind.map_or(Part::Orphan, plain),
        };
        let Some(kind) = FileKind::of_mode(mode) else { return Part::Orphan };
        let special: &[(bool, Part)] = match kind {
            FileKind::Regular => &[
                (mode & 0o4000 != 0, Part::SetUid),
                (mode & 0o2000 != 0, Part::SetGid),
                (subject.capability, Part::Capability),
                (mode & 0o111 != 0, Part::Executable),
                (subject.nlink > 1, Part::MultiHardLink),
            ],
            FileKind::Directory => &[
                (mode & 0o1002 == 0o1002, Part::StickyOtherWritable),
                (mode & 0o2 != 0, Part::OtherWritable),
                (mode & 0o1000 != 0, Part::Sticky),
            ],
            _ => &[],
        };
        let found = special.iter().find(|(applies, part)| *applies && self.has(*part));
        found.map_or(plain(kind), |(_, part)| *part)
    }
}

fn plain(kind: FileKind) -> Part {
    match kind {
        FileKind::Regular => Part::File,
        FileKind::Directory => Part::Directory,
        FileKind::Symlink => Part::Link,
        FileKind::Fifo => Part::Fifo,
        FileKind::Socket => Part::Socket,
        FileKind::CharDevice => Part::Character,
        FileKind::BlockDevice => Part::Block,
    }
}

fn terminal_has_colours() -> bool {
    if env::var_os("COLORTERM").is_some_and(|value| !value.is_empty()) {
        return true;
    }
    let terminal = env::var_os("TERM").unwrap_or_default();
    TERMINALS.iter().any(|pattern| Glob::new(pattern.as_bytes()).matches(terminal.as_bytes()))
}

/// Takes the escapes of dir_colors(5) out of `text` up to `end`; `None` when one is incomplete.
fn unescape(text: &[u8], end: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == end || byte == b':' {
            break;
        }
        let (byte, tail) = match byte {
            b'\\' => backslash(tail)?,
            b'^' => {
                let (&key, tail) = tail.split_first()?;
                (if key == b'?' { 127 } else { key & 0o37 }, tail)
            }
            _ => (byte, tail),
        };
        out.push(byte);
        rest = tail;
    }
    Some((out, rest))
}

fn backslash(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&letter, tail) = text.split_first()?;
    Some(match letter {
        b'0'..=b'7' => number(text, 8, 3)?,
        b'x' | b'X' => number(tail, 16, 2)?,
        b'a' => (7, tail),
        b'b' => (8, tail),
        b'e' => (27, tail),
        b'f' => (12, tail),
        b'n' => (10, tail),
        b'r' => (13, tail),
        b't' => (9, tail),
        b'v' => (11, tail),
        b'?' => (127, tail),
        b'_' => (b' ', tail),
        other => (other, tail),
    })
}

/// The number at the start of `text`, of at most `most` digits, and what follows it.
fn number(text: &[u8], radix: u32, most: usize) -> Option<(u8, &[u8])> {
    let length = text.iter().take(most).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let digits = std::str::from_utf8(&text[..length]).ok()?;
    Some((u32::from_str_radix(digits, radix).unwrap_or(0) as u8, &text[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(colours: &Colours, name: &str, mode: u32) -> String {
        let subject = Subject {
            name: name.as_bytes(),
            mode: Ok(mode),
            nlink: 1,
            capability: false,
            link_ok: false,
            missing: false,
        };
        String::from_utf8(colours.of(subject).unwrap_or_default().to_vec()).unwrap()
    }

    #[test]
    fn built_in() {
        let colours = Colours::default();
        assert_eq!(of(&colours, "d", 0o040_755), "01;34");
        assert_eq!(of(&colours, "t", 0o041_777), "30;42");
        assert_eq!(of(&colours, "x", 0o100_755), "01;32");
        assert_eq!(of(&colours, "x.tar", 0o100_644), "");
    }

    #[test]
    fn from_the_environment() {
        let colours = Colours::parse(OsStr::new("di=1:*.tar=31:*.TAR=32:ex=0:fi=7:lc=\\e[:or=5")).unwrap();
        assert_eq!(of(&colours, "d", 0o040_755), "1");
        assert_eq!(of(&colours, "x.Tar", 0o100_644), "32");
        assert_eq!(of(&colours, "x", 0o100_755), "7");
        assert_eq!(of(&colours, "l", 0o120_777), "5");
        assert_eq!(colours.get(Part::Left), Some(&b"\x1b["[..]));
        for wrong in ["xx=1", "d", "di", "*.x", "di=\\"] {
            assert!(Colours::parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
