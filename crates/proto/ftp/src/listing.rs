// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines of listings: MLSD and MLST (RFC 3659, 7), and LIST as servers on Unix and on Windows write it.

use crate::Bad;
use crate::time::{Civil, timestamp};
use bytes::Bytes;

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

/// A line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name; in an answer to MLST perhaps a path.
    pub name: Bytes,
    /// What it leads to.
    pub kind: Kind,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The last change, in seconds since 1970.
    pub modified: Option<i64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Where a symbolic link leads.
    pub target: Option<Bytes>,
}

impl Listed {
    fn new(name: &[u8], kind: Kind) -> Self {
        let name = Bytes::copy_from_slice(name);
        Listed { name, kind, size: None, modified: None, mode: None, target: None }
    }
}

/// Whether a listed name is the name of a file in the directory, and can be asked for.
fn is_name(name: &[u8]) -> bool {
    let odd = |byte: &u8| matches!(byte, b'/' | b'\r' | b'\n' | 0);
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(odd)
}

/// Whether a line of a listing stands for no file: it is empty, or leads to the directory itself or the one above.
fn is_of_no_file(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..")
}

/// Reads a line of MLSD, or with `is_path` the one of MLST, whose name may be a path. `None` for an empty line, the directory itself
/// and the one above.
///
/// # Errors
/// [`Bad::Listed`] for what is no line, and for names that could lead elsewhere.
pub fn mlsx(line: &[u8], is_path: bool) -> Result<Option<Listed>, Bad> {
    let text = line.to_ascii_lowercase();
    let is_type = |fact: &[u8]| matches!(fact, b"type=cdir" | b"type=pdir");
    let of_no_file = text.split(|&byte| byte == b' ').next().unwrap_or_default();
    if line.is_empty() || !is_path && of_no_file.split(|&byte| byte == b';').any(is_type) {
        return Ok(None);
    }
    match facts(line, is_path) {
        Some(listed) if is_path || is_name(&listed.name) => Ok(Some(listed)),
        Some(listed) if is_of_no_file(&listed.name) && !listed.name.is_empty() => Ok(None),
        _ => Err(Bad::Listed),
    }
}

fn facts(line: &[u8], is_path: bool) -> Option<Listed> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    let (facts, name) = (&line[..space], &line[space + 1..]);
    let mut listed = Listed::new(name, Kind::Other);
    let mut is_typed = false;
    for fact in facts.split(|&byte| byte == b';').filter(|fact| !fact.is_empty()) {
        let equals = fact.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (fact[..equals].to_ascii_lowercase(), &fact[equals + 1..]);
        match &key[..] {
            b"type" => {
                is_typed = true;
                listed.kind = kind_of(value, is_path, &mut listed.target);
            }
            b"size" | b"sizd" => listed.size = number(value),
            b"modify" => listed.modified = timestamp(value),
            b"unix.mode" => listed.mode = octal(value),
            _ => {}
        }
    }
    is_typed.then_some(listed)
}

fn kind_of(value: &[u8], is_path: bool, target: &mut Option<Bytes>) -> Kind {
    let lower = value.to_ascii_lowercase();
    match &lower[..] {
        b"file" => Kind::File,
        b"dir" => Kind::Directory,
        b"cdir" | b"pdir" if is_path => Kind::Directory,
        b"os.unix=symlink" => Kind::Symlink,
        _ if lower.starts_with(b"os.unix=slink") => {
            let at = value.iter().position(|&byte| byte == b':');
            let leads = at.map(|at| &value[at + 1..]).filter(|leads| !leads.is_empty());
            *target = leads.map(Bytes::copy_from_slice);
            Kind::Symlink
        }
        _ => Kind::Other,
    }
}

/// Reads a line of LIST. A date without a year is the latest one that is not later than a day after `now`.
///
/// `None` for an empty line, a total, the directory itself and the one above.
///
/// # Errors
/// [`Bad::Listed`] for what is no line of a known form, and for names that could lead elsewhere.
pub fn list(line: &[u8], now: i64) -> Result<Option<Listed>, Bad> {
    let listed = match line.first() {
        None => return Ok(None),
        Some(b'0'..=b'9') => windows(line),
        Some(_) if line.to_ascii_lowercase().starts_with(b"total ") => return Ok(None),
        Some(_) => unix(line, now),
    };
    match listed {
        Some(listed) if is_name(&listed.name) => Ok(Some(listed)),
        Some(listed) if is_of_no_file(&listed.name) && !listed.name.is_empty() => Ok(None),
        _ => Err(Bad::Listed),
    }
}

/// Words of a line, each with the place where the next thing after it begins.
fn words(line: &[u8]) -> Vec<(&[u8], usize)> {
    let mut words = Vec::new();
    let mut at = 0;
    // A name may have any number of words; those that matter are in front.
    while words.len() < WORDS_MAX {
        let Some(start) = line[at..].iter().position(|&byte| byte != b' ') else { break };
        let start = at + start;
        let end = line[start..].iter().position(|&byte| byte == b' ').map_or(line.len(), |end| start + end);
        words.push((&line[start..end], end));
        at = end;
    }
    words
}

/// So many words are looked at for the date.
const WORDS_MAX: usize = 16;

/// `drwxr-xr-x   2 user group   4096 Nov 25 08:30 name`, with or without links and group; also with dates of `ls
/// --time-style=long-iso`.
fn unix(line: &[u8], now: i64) -> Option<Listed> {
    let words = words(line);
    let bits = words.first()?.0;
    let kind = match bits.first()? {
        b'-' => Kind::File,
        b'd' => Kind::Directory,
        b'l' => Kind::Symlink,
        b'b' | b'c' | b'p' | b's' => Kind::Other,
        _ => return None,
    };
    let (before, modified, end) = (2..words.len()).find_map(|at| date(&words, at, now))?;
    // One space ends the date; others belong to the name.
    let name = line.get(end + 1..)?;
    let mut listed = Listed { mode: permissions(bits), modified, ..Listed::new(name, kind) };
    listed.size = number(before);
    if kind == Kind::Symlink
        && let Some(at) = name.windows(4).position(|part| part == b" -> ")
    {
        listed.target = Some(Bytes::copy_from_slice(&name[at + 4..]));
        listed.name = Bytes::copy_from_slice(&name[..at]);
    }
    Some(listed)
}

/// What stands before the date that begins with the word `at`, the date, and where it ends.
type Dated<'a> = (&'a [u8], Option<i64>, usize);

fn date<'a>(words: &[(&'a [u8], usize)], at: usize, now: i64) -> Option<Dated<'a>> {
    let size = words.get(at.checked_sub(1)?)?.0;
    if !size.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (first, second) = (words.get(at)?.0, words.get(at + 1)?);
    if let Some(day) = iso_day(first) {
        let seconds = clock(second.0)?;
        return Some((size, Civil { seconds, ..day }.unix(), second.1));
    }
    let month = MONTHS.iter().position(|name| first.eq_ignore_ascii_case(name.as_bytes()))? as i64 + 1;
    let day = i64::try_from(number(second.0)?).ok()?;
    let (third, end) = *words.get(at + 2)?;
    let civil = |year, seconds| Civil { year, month, day, seconds }.unix();
    let modified = match clock(third) {
        Some(seconds) => {
            let year = Civil::of_unix(now).year;
            let past = |unix: &i64| *unix <= now.saturating_add(86_400);
            civil(year, seconds).filter(past).or_else(|| civil(year - 1, seconds))
        }
        None => civil(i64::try_from(number(third)?).ok()?, 0),
    };
    Some((size, modified, end))
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// `YYYY-MM-DD`.
fn iso_day(word: &[u8]) -> Option<Civil> {
    let mut parts = word.split(|&byte| byte == b'-').map(|part| number(part).and_then(|n| n.try_into().ok()));
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    (year > 31 && parts.next().is_none()).then_some(Civil { year, month, day, seconds: 0 })
}

/// `HH:MM` or `HH:MM:SS`, with `AM` or `PM` after it on Windows; as seconds since midnight.
fn clock(word: &[u8]) -> Option<i64> {
    let upper = word.to_ascii_uppercase();
    let (digits, half) = match (upper.strip_suffix(b"AM"), upper.strip_suffix(b"PM")) {
        (Some(digits), _) => (digits, Some(0)),
        (_, Some(digits)) => (digits, Some(12)),
        _ => (&upper[..], None),
    };
    let mut parts = digits.split(|&byte| byte == b':').map(number);
    let (hours, minutes) = (parts.next()??, parts.next()??);
    let seconds = match parts.next() {
        Some(seconds) => seconds?,
        None => 0,
    };
    let hours = half.map_or(hours, |half| hours % 12 + half);
    let ok = hours < 24 && minutes < 60 && seconds < 60 && parts.next().is_none();
    ok.then_some((hours * 3600 + minutes * 60 + seconds) as i64)
}

/// `rwxr-xr-x` after the letter of the kind, with set-id and sticky bits.
fn permissions(bits: &[u8]) -> Option<u32> {
    let bits = bits.get(1..10)?;
    let mut mode = 0;
    for (at, &bit) in bits.iter().enumerate() {
        let plain = 0o400 >> at;
        let special = [0o4000, 0o2000, 0o1000][at / 3];
        mode |= match (at % 3, bit) {
            (_, b'-') => 0,
            (0, b'r') | (1, b'w') | (2, b'x') => plain,
            (2, b's' | b't') => plain | special,
            (2, b'S' | b'T') => special,
            _ => return None,
        };
    }
    Some(mode)
}

/// `11-25-26  08:30AM       <DIR>          name`, or the size in place of `<DIR>`.
fn windows(line: &[u8]) -> Option<Listed> {
    let words = words(line);
    let [(day, _), (time, _), (size, end), ..] = words[..] else { return None };
    let mut parts = day.split(|&byte| byte == b'-').map(|part| number(part).and_then(|n| n.try_into().ok()));
    let (first, second, third) = (parts.next()??, parts.next()??, parts.next()??);
    let (year, month, day): (i64, i64, i64) = match third {
        _ if first > 31 => (first, second, third),
        ..70 => (third + 2000, first, second),
        70..100 => (third + 1900, first, second),
        _ => (third, first, second),
    };
    let seconds = clock(time)?;
    let is_dir = size.eq_ignore_ascii_case(b"<dir>");
    let name = line.get(end..)?.trim_ascii_start();
    let kind = if is_dir { Kind::Directory } else { Kind::File };
    let size = if is_dir { None } else { Some(number(size)?) };
    Some(Listed { size, modified: Civil { year, month, day, seconds }.unix(), ..Listed::new(name, kind) })
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Permissions; some servers write them as Python does.
fn octal(digits: &[u8]) -> Option<u32> {
    let digits = digits.strip_prefix(b"0o").unwrap_or(digits);
    let mode = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?;
    Some(mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-11-25 08:30.
    const NOW: i64 = 1_795_595_400;

    fn shown(listed: Result<Option<Listed>, Bad>) -> Option<String> {
        let listed = match listed {
            Ok(listed) => listed?,
            Err(bad) => return Some(format!("{bad:?}")),
        };
        let Listed { name, kind, size, modified, mode, target } = listed;
        let target = target.map(|target| format!(" -> {}", target.escape_ascii())).unwrap_or_default();
        let (size, modified) = (size.map_or(-1, |size| size as i64), modified.unwrap_or(-1));
        Some(format!("{kind:?} {size} {modified} {:o} [{}]{target}", mode.unwrap_or(0), name.escape_ascii()))
    }

    #[test]
    fn lines_of_mlsd() {
        for (line, expected) in [
            (
                "type=file;size=12;modify=20261125083000;UNIX.mode=0o644; a b",
                Some("File 12 1795595400 644 [a b]"),
            ),
            ("Type=dir;Modify=19700101000000.5;  x", Some("Directory -1 0 0 [ x]")),
            ("type=OS.unix=slink:/etc;size=4; l", Some("Symlink 4 -1 0 [l] -> /etc")),
            ("type=OS.unix=slink:;size=1; l", Some("Symlink 1 -1 0 [l]")),
            ("type=OS.unix=symlink; l", Some("Symlink -1 -1 0 [l]")),
            ("type=OS.unix=chr-1/3; null", Some("Other -1 -1 0 [null]")),
            ("type=cdir; .", None),
            ("Type=PDIR; /above", None),
            ("type=dir; ..", None),
            ("", None),
            ("type=file; a/b", Some("Listed")),
            ("type=file;size; a", Some("Listed")),
            ("size=4; a", Some("Listed")),
            ("nothing", Some("Listed")),
            ("type=file; ", Some("Listed")),
        ] {
            assert_eq!(shown(mlsx(line.as_bytes(), false)).as_deref(), expected, "{line}");
        }
        assert_eq!(shown(mlsx(b"type=cdir; /a/b", true)).as_deref(), Some("Directory -1 -1 0 [/a/b]"));
    }

    #[test]
    fn lines_of_list() {
        for (line, expected) in [
            (
                "-rw-r--r--    1 1000     1000          12 Nov 25 08:30 a b",
                Some("File 12 1795595400 644 [a b]"),
            ),
            ("-rw-r--r-- 1 u g 12 Nov 26 08:31  a", Some("File 12 1764145860 644 [ a]")),
            ("drwxrwxrwt 9 root root 4096 Jan  1  1970 tmp", Some("Directory 4096 0 1777 [tmp]")),
            ("lrwxrwxrwx 1 u g 4 Jan 1 1970 l -> /a -> b", Some("Symlink 4 0 777 [l] -> /a -> b")),
            ("-rwsr-Sr-x 1 u 7 1970-01-01 00:01 x", Some("File 7 60 6745 [x]")),
            ("-rw-r--r-- 1 a user group 7 Jan 1 1970 Nov 25 08:30", Some("File 7 0 644 [Nov 25 08:30]")),
            ("crw-rw-rw- 1 root root 1, 3 Jan 1 1970 null", Some("Other 3 0 666 [null]")),
            ("11-25-26  08:30AM       <DIR>          a b", Some("Directory -1 1795595400 0 [a b]")),
            ("11-25-2026  08:30PM  12 a", Some("File 12 1795638600 0 [a]")),
            ("2026-11-25  08:30  12 a", Some("File 12 1795595400 0 [a]")),
            ("11-25-26  12:00AM  12 a", Some("File 12 1795564800 0 [a]")),
            ("total 12", None),
            ("drw-r--r-- 1 u g 12 Nov 25 08:30 ..", None),
            ("-rw-r--r-- 1 u g 12 Nov 25 08:30 a/b", Some("Listed")),
            ("-rw-r--r-- 1 u g 12 Nov 25 08:30", Some("Listed")),
            ("+i8388621.48594,m825718503,r,s280,\tdjb.html", Some("Listed")),
            ("", None),
        ] {
            assert_eq!(shown(list(line.as_bytes(), NOW)).as_deref(), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_none(bytes: Vec<u8>, now: i64) {
            for listed in [mlsx(&bytes, false), list(&bytes, now)].into_iter().flatten().flatten() {
                prop_assert!(is_name(&listed.name));
            }
            let _ = mlsx(&bytes, true);
        }

        #[test]
        fn every_name_of_a_file_comes_through(name in "[^/\r\n\0]{1,40}", size: u64) {
            prop_assume!(is_name(name.as_bytes()));
            let line = format!("-rw-r--r-- 1 u g {size} Nov 25 08:30 {name}");
            let listed = list(line.as_bytes(), NOW).expect("a line").expect("a file");
            prop_assert_eq!((&listed.name[..], listed.size), (name.as_bytes(), Some(size)));
            let listed = mlsx(format!("type=file;size={size}; {name}").as_bytes(), false).expect("a line").expect("a file");
            prop_assert_eq!((&listed.name[..], listed.size), (name.as_bytes(), Some(size)));
        }
    }
}
