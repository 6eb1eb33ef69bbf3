// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names in a directory, as the index page of a server has them.

use crate::html::Links;
use crate::path::{decode_path, encode_path};
use crate::range::http_date;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::collections::HashSet;
use std::fmt;
use url::Url;

/// The longest name, in bytes, that file systems of Linux have.
const NAME_MAX: usize = 255;

/// A name in an index page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexed {
    /// The name: one component of a path.
    pub name: Vec<u8>,
    /// Whether it is that of a directory.
    pub is_dir: bool,
    /// The size in bytes, where the page tells it exactly.
    pub size: Option<u64>,
    /// The time of change in seconds since 1970, where the page tells it exactly.
    pub modified: Option<i64>,
    /// The time of change rounded down to a minute, in seconds since 1970, where the page tells only that. It is taken as UTC, which nginx
    /// writes unless it has `autoindex_localtime on`.
    pub minute: Option<i64>,
}

/// What an index page lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Each name once, in the order of the page.
    pub names: Vec<Indexed>,
    /// The first of those that cannot be names of files.
    pub odd: Option<String>,
}

impl Index {
    /// What an HTML page lists that was sent for the directory at `base`: its links to what is directly in that directory. Only pages
    /// of nginx tell sizes as they are, and times in UTC; what others say of that is not told, nor a size that nginx has rounded (`12K`).
    pub fn of_html(base: &Url, page: &[u8]) -> Self {
        let (mut index, mut seen) = (Index::default(), HashSet::new());
        let (is_of_nginx, mut links) = (is_of_nginx(page), Links::of(page));
        while let Some(link) = links.next() {
            let Some((name, is_dir)) = target(base, &link) else { continue };
            if !seen.contains(&name) {
                let (size, minute) = columns(links.rest()).filter(|_| is_of_nginx).unzip();
                index.add(Indexed {
                    name: name.clone(),
                    is_dir,
                    size: size.flatten(),
                    modified: None,
                    minute,
                });
                seen.insert(name);
            }
        }
        index
    }

    /// What a page in JSON lists, as nginx writes it; `None` for a page that is no such thing.
    pub fn of_json(page: &[u8]) -> Option<Self> {
        let files: Vec<JsonFile> = serde_json::from_slice(page).ok()?;
        let (mut index, mut seen) = (Index::default(), HashSet::new());
        for JsonFile { name: Bytes(name), kind, mtime, size } in files {
            let modified = mtime.as_deref().and_then(http_date);
            if seen.insert(name.clone()) {
                index.add(Indexed { name, is_dir: kind == "directory", size, modified, minute: None });
            }
        }
        Some(index)
    }

    fn add(&mut self, file: Indexed) {
        match is_name(&file.name) {
            true => self.names.push(file),
            false => _ = self.odd.get_or_insert_with(|| file.name.escape_ascii().to_string()),
        }
    }
}

/// Whether a file can have such a name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && !name.iter().any(|byte| b"/\0".contains(byte))
        && name.len() <= NAME_MAX
}

/// Whether a page looks like those that nginx makes.
fn is_of_nginx(page: &[u8]) -> bool {
    const UP: &[u8] = b"</h1><hr><pre><a href=\"../\">../</a>";
    page.starts_with(b"<html>") && page.windows(UP.len()).any(|part| part == UP)
}

/// Size and minute of change of a file of an index page of nginx, from what follows the tag of its link: the end of that element, then
/// columns up to the end of the line. The size is none where it is rounded.
fn columns(after_link: &[u8]) -> Option<(Option<u64>, i64)> {
    const LONGEST: usize = 2048;
    let line = after_link[..after_link.len().min(LONGEST)].split(|&byte| byte == b'\n').next()?;
    let end = line.windows(4).position(|part| part == b"</a>")?;
    let mut columns = str::from_utf8(&line[end + 4..]).ok()?.split_ascii_whitespace();
    let (date, time, size) = (columns.next()?, columns.next()?, columns.next()?);
    let changed = DateTime::strptime("%d-%b-%Y %H:%M", format!("{date} {time}")).ok()?;
    let is_number = columns.next().is_none() && size.bytes().all(|byte| byte.is_ascii_digit());
    let size = is_number.then(|| size.parse().ok()).flatten();
    Some((size, changed.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second()))
}

/// What `link` leads to, if that is in the directory at `base`, and whether it is a directory.
fn target(base: &Url, link: &[u8]) -> Option<(Vec<u8>, bool)> {
    // Bytes that are no text are kept.
    let link: String = link
        .iter()
        .map(|&byte| if byte.is_ascii() { char::from(byte).into() } else { encode_path(&[byte]) })
        .collect();
    let url = base.join(&link).ok()?;
    let is_here = (url.scheme(), url.host(), url.port()) == (base.scheme(), base.host(), base.port());
    if !is_here || url.query().is_some() || url.fragment().is_some() {
        return None;
    }
    let (path, is_dir) = url.path().strip_suffix('/').map_or((url.path(), false), |path| (path, true));
    let (dir, name) = path.rsplit_once('/')?;
    let (base_dir, _) = base.path().rsplit_once('/')?;
    (decode_path(dir.as_bytes()) == decode_path(base_dir.as_bytes()) && !name.is_empty())
        .then(|| (decode_path(name.as_bytes()), is_dir))
}

/// A file as nginx describes it.
#[derive(Deserialize)]
struct JsonFile {
    name: Bytes,
    #[serde(rename = "type")]
    kind: String,
    mtime: Option<String>,
    size: Option<u64>,
}

/// A text that need not be UTF-8.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Any)
    }
}
