// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fields of an answer tell of a file and of the content that follows.

use crate::range::{ContentRange, http_date};
use std::fmt;

/// The fields of an answer about a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// How much content follows or, to HEAD, would follow, in bytes.
    pub length: Option<u64>,
    /// The time of change in seconds since 1970.
    pub modified: Option<i64>,
    /// The entity tag, weak or not.
    pub tag: Option<String>,
    /// The type of the content, in lower case.
    pub media_type: String,
    /// Which part of the file follows.
    pub range: Option<ContentRange>,
    /// Whether the content follows as the file has it.
    pub is_plain: bool,
    /// By what the server says that the file itself is compressed.
    pub coding: Option<String>,
}

/// A part of a file that follows an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub first: u64,
    /// The byte after its last one.
    pub end: u64,
    /// The size of the file.
    pub size: u64,
}

/// Why what follows an answer is not the part of a file that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It does not say which part follows, or what makes no sense.
    Unknown,
    /// It is another one: the first and the last byte.
    Other(u64, u64),
    /// Its length is another one than that of the part.
    Length(u64),
    /// It is compressed.
    Compressed,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Unknown => {
                f.write_str("the server sends a part of the file and does not say which, or of what size")
            }
            Unfit::Other(first, last) => {
                write!(
                    f,
                    "the server sends the bytes {first} to {last} of the file, which were not asked for"
                )
            }
            Unfit::Length(length) => {
                write!(
                    f,
                    "the server sends {length} bytes, and says that they are another number of bytes of the file"
                )
            }
            Unfit::Compressed => {
                f.write_str("the server sends the file compressed, which it was asked not to")
            }
        }
    }
}

impl std::error::Error for Unfit {}

impl Told {
    /// By the fields of an answer about what is at `path`, whose names are asked for in lower case.
    ///
    /// Some servers say `Content-Encoding: x-gzip` of a file that is stored so, as Apache with `AddEncoding`. This is told from a file that is
    /// compressed on the way by its name or type, and since the server sends parts of it and tells its length.
    pub fn by<'a>(path: &[u8], field: impl Fn(&str) -> Option<&'a str>) -> Self {
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let coding = field("content-encoding").map(str::trim).map(str::to_ascii_lowercase);
        let coding = coding.filter(|coding| !matches!(&coding[..], "" | "identity"));
        let length = field("content-length").and_then(number);
        let media_type = field("content-type").unwrap_or_default().to_ascii_lowercase();
        let range = field("content-range").and_then(ContentRange::parse);
        let has_parts = range.is_some() || field("accept-ranges").is_some_and(|unit| unit.trim() == "bytes");
        let is_stored = |coding: &String| has_parts && length.is_some() && fits(coding, path, &media_type);
        Told {
            is_plain: coding.as_ref().is_none_or(is_stored),
            coding,
            length,
            modified: field("last-modified").and_then(http_date),
            tag: field("etag").map(str::to_owned),
            media_type,
            range,
        }
    }

    /// The size of the file, of an answer that all of it follows, or that to HEAD.
    pub fn size(&self) -> Option<u64> {
        self.length.filter(|_| self.is_plain)
    }

    /// Which part of the file follows an answer of status 206 to a request for these, the first and the last byte.
    ///
    /// # Errors
    /// Why it is not what was asked for; less of it is.
    pub fn part(&self, (first, last): (u64, u64)) -> Result<Part, Unfit> {
        let Some(ContentRange { range: Some((begin, end)), total: Some(size) }) = self.range else {
            return Err(Unfit::Unknown);
        };
        match self.length {
            _ if begin != first || end > last => Err(Unfit::Other(begin, end)),
            _ if !self.is_plain => Err(Unfit::Compressed),
            Some(length) if length != end - begin + 1 => Err(Unfit::Length(length)),
            _ => Ok(Part { first, end: end + 1, size }),
        }
    }
}

/// Whether a file of this name or type is compressed in this way.
fn fits(coding: &str, path: &[u8], media_type: &str) -> bool {
    let (endings, types): (&[&str], &[&str]) = match coding.strip_prefix("x-").unwrap_or(coding) {
        "gzip" => (&["gz", "tgz", "taz", "svgz", "z"], &["gzip", "gtar", "tgz"]),
        "compress" => (&["z", "taz"], &["compress"]),
        "bzip2" => (&["bz2", "tbz", "tbz2"], &["bzip2", "bzip"]),
        "xz" => (&["xz", "txz"], &["xz"]),
        "zstd" => (&["zst", "tzst"], &["zstd"]),
        "br" => (&["br"], &[]),
        _ => return false,
    };
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let ending = name.iter().rposition(|&byte| byte == b'.').map_or(&b""[..], |dot| &name[dot + 1..]);
    let kind = media_type.split(';').next().unwrap_or_default().trim().strip_prefix("application/");
    let kind = kind.map(|kind| kind.strip_prefix("x-").unwrap_or(kind));
    endings.iter().any(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
        || kind.is_some_and(|kind| types.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_one_that_was_asked_for_or_an_error() {
        let told = |range: &'static str, length: &'static str, coding: Option<&'static str>| {
            Told::by(b"/f", |name| match name {
                "content-range" => Some(range),
                "content-length" => Some(length),
                "content-encoding" => coding,
                _ => None,
            })
        };
        let all = Ok(Part { first: 5, end: 10, size: 20 });
        assert_eq!(told("bytes 5-9/20", "5", None).part((5, 9)), all);
        assert_eq!(told("bytes 5-9/20", "5", Some("identity")).part((5, 100)), all);
        assert_eq!(told("bytes 5-9/20", "5", None).part((5, 8)), Err(Unfit::Other(5, 9)));
        assert_eq!(told("bytes 5-9/20", "5", None).part((4, 9)), Err(Unfit::Other(5, 9)));
        assert_eq!(told("bytes 5-9/20", "6", None).part((5, 9)), Err(Unfit::Length(6)));
        assert_eq!(told("bytes 5-9/20", "5", Some("gzip")).part((5, 9)), Err(Unfit::Compressed));
        for odd in ["bytes 5-9/*", "bytes */20", "bytes 9-5/20", ""] {
            assert_eq!(told(odd, "5", None).part((5, 9)), Err(Unfit::Unknown), "{odd}");
        }
        assert_eq!((told("", "7", None).size(), told("", "7", Some("gzip")).size()), (Some(7), None));
    }

    #[test]
    fn a_file_that_is_stored_compressed_is_told_from_one_that_is_compressed_on_the_way() {
        let size = |path: &str, coding: &'static str, kind: &'static str, ranges: Option<&'static str>| {
            let field = |name: &str| match name {
                "content-encoding" => Some(coding),
                "content-type" => Some(kind),
                "content-length" => Some("7"),
                "accept-ranges" => ranges,
                _ => None,
            };
            Told::by(path.as_bytes(), field).size()
        };
        let (html, bytes) = ("text/html", Some("bytes"));
        for (path, coding) in [
            ("/a.tar.gz", "x-gzip"),
            ("/a.tgz", "gzip"),
            ("/a.Z", "x-compress"),
            ("/a.bz2", "x-bzip2"),
            ("/a.zst", "zstd"),
            ("/a.br", "br"),
        ] {
            assert_eq!(size(path, coding, html, bytes), Some(7), "{path}");
            assert_eq!(size(path, coding, html, None), None, "{path}");
            assert_eq!(size("/a.gz/a.txt", coding, html, bytes), None, "{path}");
        }
        assert_eq!(size("/download", "gzip", "application/x-gzip", bytes), Some(7));
        assert_eq!(size("/a.gz", "br", html, bytes), None);
        assert_eq!(size("/a.gz", "gzip, br", html, bytes), None);
    }
}
