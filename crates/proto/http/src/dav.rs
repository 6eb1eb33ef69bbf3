// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multi-Status answers of WebDAV servers (RFC 4918, 13): what they say of a resource and of those in it.

use crate::index::is_name;
use crate::path::decode_path;
use crate::range::{http_date, number};
use quick_xml::NsReader;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::{Namespace, ResolveResult};
use std::fmt;
use url::Url;

/// How deep elements may be in each other: those with a meaning are five deep.
const DEEPEST: usize = 32;
/// How many attributes an element may have. Each may declare a namespace, of which all are looked through for each name.
const ATTRIBUTES: usize = 32;

/// What a server says of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// The name: one component of a path. Empty for the resource that was asked about.
    pub name: Vec<u8>,
    /// Whether it is a collection.
    pub is_dir: bool,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The time of change in seconds since 1970.
    pub modified: Option<i64>,
    /// The entity tag, weak or not.
    pub tag: Option<String>,
    /// How many bytes there is room for.
    pub free: Option<u64>,
}

/// A Multi-Status answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Multistatus {
    /// The resource that was asked about.
    pub own: Option<Member>,
    /// Those directly in it, in the order of the answer.
    pub members: Vec<Member>,
    /// The first that is neither, or has a name that no file can have.
    pub odd: Option<String>,
    /// The first status of a whole resource that is a failure.
    pub failed: Option<u16>,
}

/// Why an answer is no Multi-Status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoMultistatus(String);

impl fmt::Display for NoMultistatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server sends what is no answer of WebDAV: {}", self.0)
    }
}

impl std::error::Error for NoMultistatus {}

impl From<quick_xml::Error> for NoMultistatus {
    fn from(error: quick_xml::Error) -> Self {
        NoMultistatus(error.to_string().escape_debug().to_string())
    }
}

fn broken(why: &str) -> NoMultistatus {
    NoMultistatus(why.to_owned())
}

/// The elements that have a meaning here.
const ELEMENTS: &[&str] = &[
    "multistatus",
    "response",
    "href",
    "status",
    "propstat",
    "prop",
    "resourcetype",
    "collection",
    "getcontentlength",
    "getlastmodified",
    "getetag",
    "quota-available-bytes",
];

impl Multistatus {
    /// Reads an answer to a request about the resource at `asked`.
    ///
    /// # Errors
    /// For what is no well-formed Multi-Status in UTF-8, has a document type, which may define entities, or is nested without reason.
    pub fn of(asked: &Url, body: &[u8]) -> Result<Self, NoMultistatus> {
        let mut xml = NsReader::from_reader(body);
        xml.config_mut().expand_empty_elements = true;
        let (mut answer, mut path, mut text) = (Answer::default(), Vec::new(), String::new());
        loop {
            match xml.read_event()? {
                Event::Start(start) => {
                    must_be_simple(&start, path.len())?;
                    path.push(meaning(&xml, &start));
                    text.clear();
                }
                Event::End(_) => {
                    answer.end(asked, &path, text.trim());
                    path.pop();
                    text.clear();
                }
                Event::Text(piece) => text.push_str(&piece.decode().map_err(quick_xml::Error::from)?),
                Event::CData(piece) => text.push_str(&piece.decode().map_err(quick_xml::Error::from)?),
                Event::GeneralRef(reference) => text.push(character(&reference)?),
                Event::DocType(_) => return Err(broken("it has a document type")),
                Event::Eof if path.is_empty() && answer.is_complete => return Ok(answer.all),
                Event::Eof => return Err(broken("it ends too early")),
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            }
        }
    }
}

fn must_be_simple(start: &BytesStart<'_>, depth: usize) -> Result<(), NoMultistatus> {
    match () {
        () if depth == DEEPEST => Err(broken("its elements are nested too deep")),
        () if start.attributes().with_checks(false).nth(ATTRIBUTES).is_some() => {
            Err(broken("an element has too many attributes"))
        }
        () => Ok(()),
    }
}

/// The name of an element in the namespace of WebDAV; nothing for others.
fn meaning(xml: &NsReader<&[u8]>, start: &BytesStart<'_>) -> &'static str {
    match xml.resolve_element(start.name()) {
        (ResolveResult::Bound(Namespace(b"DAV:")), name) => {
            ELEMENTS.iter().copied().find(|known| known.as_bytes() == name.as_ref()).unwrap_or_default()
        }
        _ => "",
    }
}

/// The character that a reference means: by number, or one of the five that XML has without a document type.
fn character(reference: &BytesRef<'_>) -> Result<char, NoMultistatus> {
    let by_number = reference.resolve_char_ref()?;
    let name = reference.decode().map_err(quick_xml::Error::from)?;
    let by_name = || quick_xml::escape::resolve_xml_entity(&name)?.chars().next();
    by_number.or_else(by_name).ok_or_else(|| broken("it has an entity that XML does not define"))
}

/// What was read of an answer.
#[derive(Default)]
struct Answer {
    all: Multistatus,
    /// Of the response that is being read.
    href: Option<String>,
    status: Option<u16>,
    known: Option<Member>,
    /// Of its properties that are being read, whose status follows.
    told: Member,
    told_status: Option<u16>,
    is_complete: bool,
}

impl Answer {
    /// The element at the end of `path` has ended, which had this text.
    fn end(&mut self, asked: &Url, path: &[&str], text: &str) {
        match path {
            ["multistatus"] => self.is_complete = true,
            ["multistatus", "response", rest @ ..] => match rest {
                [] => self.end_response(asked),
                ["href"] => _ = self.href.get_or_insert_with(|| text.to_owned()),
                ["status"] => self.status = status(text),
                ["propstat"] => self.end_properties(),
                ["propstat", "status"] => self.told_status = status(text),
                ["propstat", "prop", property @ ..] => self.tell(property, text),
                _ => {}
            },
            _ => {}
        }
    }

    fn tell(&mut self, property: &[&str], text: &str) {
        match property {
            ["resourcetype", "collection"] => self.told.is_dir = true,
            ["getcontentlength"] => self.told.size = number(text),
            ["getlastmodified"] => self.told.modified = http_date(text),
            // It becomes a field of a request.
            ["getetag"]
                if !text.is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) =>
            {
                self.told.tag = Some(text.to_owned());
            }
            ["quota-available-bytes"] => self.told.free = number(text),
            _ => {}
        }
    }

    /// Properties that the server does not have, or not for us, come with a status of their own.
    fn end_properties(&mut self) {
        let (told, status) = (std::mem::take(&mut self.told), self.told_status.take());
        if status.is_some_and(|status| status / 100 == 2) {
            self.known.get_or_insert(told);
        }
    }

    fn end_response(&mut self, asked: &Url) {
        let (known, status) = (self.known.take(), self.status.take());
        let href = self.href.take().unwrap_or_default();
        if let Some(status) = status.filter(|status| *status >= 400) {
            self.all.failed.get_or_insert(status);
        }
        let Some((name, has_slash)) = place(asked, &href) else {
            self.all.odd.get_or_insert_with(|| href.chars().take(200).flat_map(char::escape_debug).collect());
            return;
        };
        let mut member = known.unwrap_or(Member { is_dir: has_slash, ..Member::default() });
        member.size = member.size.filter(|_| !member.is_dir);
        match name.is_empty() {
            true => _ = self.all.own.get_or_insert(member),
            false => self.all.members.push(Member { name, ..member }),
        }
    }
}

/// The code in a line as `HTTP/1.1 404 Not Found`; what makes no sense is no success.
fn status(line: &str) -> Option<u16> {
    line.split_ascii_whitespace().nth(1)?.parse().ok().or(Some(500))
}

/// The name of the resource at `href` in the one at `asked`, empty for that one itself, and whether it ends with a slash. `None` for what is
/// elsewhere or has no name. A proxy may have another scheme and port than the server knows of: those are not looked at.
fn place(asked: &Url, href: &str) -> Option<(Vec<u8>, bool)> {
    // Some are dropped from URLs, and a backslash would be taken for a slash.
    if href.is_empty() || href.contains(|char: char| char.is_control() || char == '\\') {
        return None;
    }
    let url = asked.join(href).ok()?;
    if url.host() != asked.host() || url.query().is_some() || url.fragment().is_some() {
        return None;
    }
    let bytes = |path: &str| decode_path(path.as_bytes());
    let own = bytes(asked.path().trim_end_matches('/'));
    let (path, has_slash) = url.path().strip_suffix('/').map_or((url.path(), false), |path| (path, true));
    if bytes(path) == own {
        return Some((Vec::new(), has_slash));
    }
    let (dir, name) = path.rsplit_once('/')?;
    Some((bytes(name), has_slash)).filter(|(name, _)| bytes(dir) == own && is_name(name))
}
