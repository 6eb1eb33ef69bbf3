// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map of an automount: which names there are, and what they lead to.
//!
//! ```text
//! # A comment.
//! NAME      LOCATION   [OPTION,...]
//! *         LOCATION   [OPTION,...]     every other name, which replaces & in LOCATION
//! +hosts               [OPTION,...]     a directory for each scheme of other hosts, as sftp and ftp
//! +SCHEME              [OPTION,...]     that of one scheme
//! ```
//!
//! Words are separated by blanks. A backslash takes the meaning from what follows it, double quotes that of the blanks, `#`, `&`
//! and `*` between them.

use crate::drivers::DRIVERS;
use crate::location::{Base, Location};
use outrigger_core::Name;
use outrigger_core::registry::Follows;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What a map says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Map {
    names: BTreeMap<Vec<u8>, Target>,
    others: Option<Target>,
    /// The schemes that have a directory, with options.
    hosts: BTreeMap<&'static str, String>,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    location: Vec<Part>,
    options: String,
    /// Where this was written, for messages; empty when who reads the map says that.
    origin: String,
}

/// A piece of a LOCATION in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    /// The name that was looked up.
    Name,
}

/// A tree that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leads {
    /// The LOCATION.
    pub location: OsString,
    /// As `-o` of `outrigger mount` takes them.
    pub options: String,
}

/// What is found under a name in the root.
#[derive(Debug, PartialEq, Eq)]
pub enum Top {
    /// A directory of hosts.
    Hosts,
    /// A tree.
    Tree(Leads),
}

/// What stands for any name when a line is looked at.
const EXAMPLE: &[u8] = b"x";

/// A word of a line; what was quoted has no special meaning.
#[derive(Debug, Default)]
struct Word {
    bytes: Vec<u8>,
    quoted: Vec<bool>,
}

impl Word {
    fn push(&mut self, byte: u8, quoted: bool) {
        self.bytes.push(byte);
        self.quoted.push(quoted);
    }

    /// Whether this byte stands there and means more than itself.
    fn means(&self, at: usize, byte: u8) -> bool {
        self.bytes.get(at) == Some(&byte) && self.quoted.get(at) == Some(&false)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// The words of a line.
fn words(line: &[u8]) -> Result<Vec<Word>, String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<Word>, false);
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                word.get_or_insert_default();
                quoted = !quoted;
            }
            b'\\' => match bytes.next() {
                Some(byte) => word.get_or_insert_default().push(byte, true),
                None => return Err("a backslash at the end of the line".to_owned()),
            },
            b' ' | b'\t' | b'\r' if !quoted => words.extend(word.take()),
            b'#' if !quoted && word.is_none() => break,
            byte => word.get_or_insert_default().push(byte, quoted),
        }
    }
    words.extend(word);
    if quoted { Err("a double quote is missing".to_owned()) } else { Ok(words) }
}

/// The schemes of trees at other hosts, in the order of the drivers.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().flat_map(|driver| {
        let by_host = driver.hosts.map(|_| driver.name);
        let by_scheme = driver
            .schemes
            .iter()
            .filter(|scheme| scheme.follows == Follows::Authority)
            .map(|scheme| scheme.name);
        by_host.into_iter().chain(by_scheme)
    })
}

impl Map {
    /// A map with a directory for each scheme and nothing else.
    pub fn of_hosts() -> Self {
        Map { hosts: schemes().map(|scheme| (scheme, String::new())).collect(), ..Map::default() }
    }

    /// Adds a name that leads to a LOCATION, in which no character stands for others. `origin` is what has the options, for messages.
    pub fn add(&mut self, name: &str, location: &OsStr, (options, origin): (&str, &str)) {
        let location = vec![Part::Text(location.as_bytes().to_vec())];
        let target = Target { location, options: options.to_owned(), origin: origin.to_owned() };
        self.names.insert(name.into(), target);
    }

    /// Refuses changes of all trees.
    pub fn make_read_only(&mut self) {
        let of_names = self.names.values_mut().map(|target| &mut target.options);
        for options in of_names.chain(self.hosts.values_mut()) {
            *options = if options.is_empty() { "ro".to_owned() } else { format!("{options},ro") };
        }
    }

    /// The trees that it names, and where that was written.
    pub(super) fn leads(&self) -> impl Iterator<Item = (&str, Leads)> {
        self.names.iter().map(|(name, target)| (&*target.origin, target.of(name)))
    }

    /// Reads a map. `permits` says why the options of a tree are refused, if they are.
    ///
    /// # Errors
    /// The number of a line, and what is wrong with it.
    pub fn parse(
        text: &[u8],
        permits: impl Fn(&Leads) -> Result<(), String>,
    ) -> Result<Self, (usize, String)> {
        let mut map = Map::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            map.line(line, &permits).map_err(|wrong| (number + 1, wrong))?;
        }
        Ok(map)
    }

    fn line(&mut self, line: &[u8], permits: &impl Fn(&Leads) -> Result<(), String>) -> Result<(), String> {
        let words = words(line)?;
        let Some((name, rest)) = words.split_first() else { return Ok(()) };
        let options = |word: Option<&Word>| word.map(Word::text).unwrap_or_default();
        if name.means(0, b'+') {
            return match rest {
                [] | [_] => self.include(&name.text()[1..], options(rest.first()), permits),
                _ => Err("+NAME takes one list of options".to_owned()),
            };
        }
        if rest.first().is_some_and(|word| word.means(0, b'-')) {
            return Err(format!(
                "'{}': options stand behind the LOCATION here, without '-', and the LOCATION says what kind it is: NAME \
                 nfs://HOST/EXPORT ro",
                rest[0].text()
            ));
        }
        let (location, options) = match rest {
            [location] => (location, options(None)),
            [location, list] => (location, options(Some(list))),
            [] => return Err(format!("'{}' has no LOCATION", name.text())),
            _ => {
                return Err(
                    "NAME LOCATION [OPTION,...] expected, and found more (blanks are quoted)".to_owned()
                );
            }
        };
        let is_wild = name.bytes == b"*" && name.means(0, b'*');
        let target = Target { location: parts(location), options, origin: String::new() };
        target.check()?;
        permits(&target.of(EXAMPLE))?;
        if is_wild {
            return match self.others.replace(target) {
                None => Ok(()),
                Some(_) => Err("a second '*'".to_owned()),
            };
        }
        if Name::new(name.bytes.clone()).is_err() {
            return Err(format!("'{}' cannot be the name of a directory", name.text()));
        }
        match self.names.insert(name.bytes.clone(), target) {
            None => Ok(()),
            Some(_) => Err(format!("a second '{}'", name.text())),
        }
    }

    /// Options are right if one of the schemes takes them.
    fn include(
        &mut self,
        name: &str,
        options: String,
        permits: &impl Fn(&Leads) -> Result<(), String>,
    ) -> Result<(), String> {
        let known: Vec<&str> = schemes().filter(|scheme| name == "hosts" || *scheme == name).collect();
        if known.is_empty() {
            let all = schemes().collect::<Vec<_>>().join(", +");
            return Err(format!("'+{name}' is unknown: there are +hosts, +{all}"));
        }
        let one = |scheme: &&str| Leads {
            location: format!("{scheme}://{}/", EXAMPLE.escape_ascii()).into(),
            options: options.clone(),
        };
        let mut permitted = known.iter().map(one).map(|leads| permits(&leads));
        let first = permitted.next().unwrap_or(Ok(()));
        if first.is_err() && !permitted.any(|permitted| permitted.is_ok()) {
            return first;
        }
        // One that is named by itself has options of its own, wherever it stands.
        for scheme in known {
            if name == scheme {
                self.hosts.insert(scheme, options.clone());
            } else {
                self.hosts.entry(scheme).or_insert_with(|| options.clone());
            }
        }
        Ok(())
    }

    /// What a name in the root is.
    pub fn top(&self, name: &[u8]) -> Option<Top> {
        if let Some(target) = self.names.get(name) {
            return Some(Top::Tree(target.of(name)));
        }
        if self.hosts.keys().any(|scheme| scheme.as_bytes() == name) {
            return Some(Top::Hosts);
        }
        // As for a pattern of the shell; programs look for names with a dot in many places.
        let target = self.others.as_ref().filter(|_| is_plain(name))?;
        Some(Top::Tree(target.of(name)))
    }

    /// The names in the root that are known: not those that `*` stands for.
    pub fn tops(&self) -> impl Iterator<Item = &[u8]> {
        let hosts = self.hosts.keys().map(|scheme| scheme.as_bytes());
        let shadowed = |scheme: &&[u8]| !self.names.contains_key(*scheme);
        self.names.keys().map(Vec::as_slice).chain(hosts.filter(shadowed))
    }

    /// The tree of a host, by the name of its scheme and what stands between `//` and `/`.
    pub fn host(&self, scheme: &[u8], authority: &[u8]) -> Option<Leads> {
        let (scheme, options) = self.hosts.iter().find(|(known, _)| known.as_bytes() == scheme)?;
        let user =
            authority.iter().rposition(|&byte| byte == b'@').map_or(&authority[..0], |at| &authority[..at]);
        // A password would show in the name of a directory.
        if !is_plain(&without_address(authority)) || user.contains(&b':') {
            return None;
        }
        let location = [scheme.as_bytes(), b"://", &encoded(authority), b"/"].concat();
        let location = OsString::from_vec(location);
        // A file `sftp:/HOST` where this process runs would be meant otherwise.
        let is_host = matches!(Location::of(&location).ok()?.base, Base::Url { .. } | Base::Remote { .. });
        is_host.then_some(())?;
        Some(Leads { location, options: options.clone() })
    }
}

/// Whether a name can be a part of a LOCATION and nothing else there, and is none that programs look for everywhere.
fn is_plain(name: &[u8]) -> bool {
    let is_odd = name.iter().any(u8::is_ascii_control) || name.windows(2).any(|pair| pair == b"::");
    !name.starts_with(b".") && !name.starts_with(b"-") && !is_odd && std::str::from_utf8(name).is_ok()
}

/// An authority without the address in brackets (RFC 3986, 3.2.2), in which colons separate nothing.
fn without_address(authority: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(authority);
    let address = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(address, _)| address);
    let address = address.filter(|address| address.parse::<Ipv6Addr>().is_ok());
    match address {
        Some(address) => text.replace(&format!("[{address}]"), "host").into(),
        None => authority.to_vec(),
    }
}

/// The path of a URL is decoded.
fn encoded(name: &[u8]) -> Vec<u8> {
    name.iter().flat_map(|byte| if *byte == b'%' { b"%25".to_vec() } else { vec![*byte] }).collect()
}

/// The parts of a LOCATION.
fn parts(word: &Word) -> Vec<Part> {
    let mut parts = vec![Part::Text(Vec::new())];
    for (at, &byte) in word.bytes.iter().enumerate() {
        match parts.last_mut() {
            _ if word.means(at, b'&') => parts.push(Part::Name),
            Some(Part::Text(text)) => text.push(byte),
            _ => parts.push(Part::Text(vec![byte])),
        }
    }
    parts
}

impl Target {
    /// The tree for this name.
    fn of(&self, name: &[u8]) -> Leads {
        let is_url = matches!(self.location.first(), Some(Part::Text(text)) if text.windows(3).any(|part| part == b"://"));
        let name = if is_url { encoded(name) } else { name.to_vec() };
        let bytes = self.location.iter().flat_map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Name => name.clone(),
        });
        Leads { location: OsString::from_vec(bytes.collect()), options: self.options.clone() }
    }

    /// Whether a LOCATION can be meant wherever this process is, and names no program that a name could choose.
    fn check(&self) -> Result<(), String> {
        let Leads { location, .. } = self.of(EXAMPLE);
        let shown = location.display();
        if location.is_empty() {
            return Err("an empty LOCATION names nothing".to_owned());
        }
        let has_name = self.location.contains(&Part::Name);
        match Location::parse(&location).base {
            Base::Host(path) if path.is_relative() => Err(format!(
                "'{shown}' is a relative path (or a kind of tree that is not known): paths begin with a slash here"
            )),
            Base::Program(_) if has_name => {
                Err("& in the command of a program: a name would become a part of it".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Leads {
    /// What tells it from another tree.
    pub fn identity(&self) -> String {
        format!("{} {}", self.location.as_bytes().escape_ascii(), self.options)
    }

    /// As messages show it.
    pub fn shown(&self) -> String {
        let location: &OsStr = &self.location;
        Location::parse(location)
            .without_password()
            .unwrap_or_else(|| location.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Map, (usize, String)> {
        Map::parse(text.as_bytes(), |leads| match leads.options.contains("command=") {
            true => Err("not permitted".to_owned()),
            false => Ok(()),
        })
    }

    fn leads(location: &str, options: &str) -> Leads {
        Leads { location: location.into(), options: options.to_owned() }
    }

    #[test]
    fn lines_name_trees_with_quotes_comments_and_options() {
        let map = parse(
            "# a comment\n\n  backup /srv/backup.tar.zst ro\t\n\"my music\"\thost:music # and another\n\
             a\\ b\\* /srv/\"odd & name\"  uid=1,gid=2\nplus 'x:/y\n",
        );
        // A single quote quotes nothing: that line leads to a host of an odd name, which is a relative path.
        assert_eq!(map.unwrap_err().0, 6);
        let map = parse(
            "backup /srv/b.tar ro\n\"my music\" host:music #x\na\\ b\\* /srv/\"odd & name\" uid=1,gid=2\n",
        );
        let map = map.unwrap();
        let top = |name: &str| match map.top(name.as_bytes()) {
            Some(Top::Tree(leads)) => Some(leads),
            _ => None,
        };
        assert_eq!(top("backup"), Some(leads("/srv/b.tar", "ro")));
        assert_eq!(top("my music"), Some(leads("host:music", "")));
        assert_eq!(top("a b*"), Some(leads("/srv/odd & name", "uid=1,gid=2")));
        assert_eq!(top("other"), None);
        assert_eq!(map.tops().count(), 3);
    }

    #[test]
    fn a_wildcard_takes_the_other_names_and_replaces_the_ampersand() {
        let map = parse("fixed /srv/fixed\n* /srv/&/\\&/&\n").unwrap();
        assert_eq!(map.top(b"fixed"), Some(Top::Tree(leads("/srv/fixed", ""))));
        assert_eq!(map.top(b"me"), Some(Top::Tree(leads("/srv/me/&/me", ""))));
        for odd in [&b".git"[..], b"-x", b"a::b", b"a\nb", b"\xff"] {
            assert_eq!(map.top(odd), None, "{odd:?}");
        }
        let url = parse("* sftp://me@&/srv/&\n").unwrap();
        assert_eq!(url.top(b"h%2F"), Some(Top::Tree(leads("sftp://me@h%252F/srv/h%252F", ""))));
        assert_eq!(url.tops().count(), 0, "a listing shows names that are known");
    }

    #[test]
    fn hosts_have_a_directory_for_each_scheme_of_the_registry() {
        let map = Map::of_hosts();
        assert!(schemes().any(|scheme| scheme == "sftp") && schemes().any(|scheme| scheme == "ftp"));
        assert!(!schemes().any(|scheme| scheme == "mem"), "that is on no other host");
        for scheme in schemes() {
            assert_eq!(map.top(scheme.as_bytes()), Some(Top::Hosts));
            let host = map.host(scheme.as_bytes(), b"me@h:22");
            assert_eq!(host, Some(leads(&format!("{scheme}://me@h:22/"), "")), "{scheme}");
            for host in ["[::1]", "me@[fe80::1:2]:22"] {
                let found = map.host(scheme.as_bytes(), host.as_bytes());
                assert_eq!(found, Some(leads(&format!("{scheme}://{host}/"), "")), "{scheme}");
            }
            for odd in [&b"[x::y]"[..], b".git", b"-oProxyCommand=x", b"u:secret@h", b"a::b", b""] {
                assert_eq!(map.host(scheme.as_bytes(), odd).filter(|_| !odd.is_empty()), None, "{odd:?}");
            }
        }
        assert_eq!(map.host(b"gopher", b"h"), None);
    }

    #[test]
    fn an_included_directory_has_options_of_its_own() {
        for text in ["+hosts port=1\n+sftp port=2\n", "+sftp port=2\n+hosts port=1\n"] {
            let map = parse(text).unwrap();
            assert_eq!(map.host(b"sftp", b"h").unwrap().options, "port=2", "{text}");
            assert_eq!(map.host(b"ftp", b"h").unwrap().options, "port=1", "{text}");
        }
        let one = parse("+ftp\n").unwrap();
        assert_eq!(one.tops().collect::<Vec<_>>(), [b"ftp"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, what) in [
            ("a /a\n\nb", 3, "'b' has no LOCATION"),
            ("a /a ro more", 1, "found more"),
            ("a relative", 1, "relative path"),
            ("a/b /a", 1, "'a/b' cannot be the name"),
            ("a /a\na /b", 2, "a second 'a'"),
            ("* /a\n* /b", 2, "a second '*'"),
            ("a \"/a", 1, "double quote"),
            ("a /a\\", 1, "backslash"),
            ("+gopher", 1, "+hosts, +"),
            ("+hosts a b", 1, "one list"),
            ("* 'fuse:x &'", 1, "relative path"),
            ("* fuse:x\\ &", 1, "a name would become"),
            ("a h:/x command=evil", 1, "not permitted"),
            ("a \"\"", 1, "empty LOCATION"),
            ("a -fstype=nfs,rw h:/x", 1, "behind the LOCATION"),
        ] {
            let (at, said) = parse(text).expect_err(text);
            assert!(at == line && said.contains(what), "{text}: {at}: {said}");
        }
    }
}
