// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names in a directory, as the index page of a server has them.

use crate::html::Links;
use crate::path::{decode_path, encode_path};
use crate::range::http_date;
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
    /// What an HTML page lists that was sent for the directory at `base`: its links to what is directly in that directory. Sizes and
    /// times of such pages are rounded, and in the time zone of the server: they are not told.
    pub fn of_html(base: &Url, page: &[u8]) -> Self {
        let (mut index, mut seen) = (Index::default(), HashSet::new());
        for link in Links::of(page) {
            let Some((name, is_dir)) = target(base, &link) else { continue };
            if !seen.contains(&name) {
                index.add(Indexed { name: name.clone(), is_dir, size: None, modified: None });
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
                index.add(Indexed { name, is_dir: kind == "directory", size, modified });
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
