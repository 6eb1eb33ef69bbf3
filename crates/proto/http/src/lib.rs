// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of what HTTP servers say of files: index pages, answers of WebDAV, paths in URLs, ranges and times. No I/O.
//!
//! | source | what is here |
//! |---|---|
//! | RFC 3986 | [`encode_path`], [`decode_path`] |
//! | RFC 9110 | [`Told`]: the fields of an answer about a file; [`ContentRange`], [`http_date`] |
//! | RFC 4918, 4331 | [`Multistatus`]: what a WebDAV server says of a collection and what is in it |
//! | common practice | [`Index::of_html`]: index pages of Apache, nginx, Python and the like; [`Index::of_json`]: `autoindex_format json` of nginx |
//!
//! A name in an [`Index`] is one component of a path: a link that leads to another host, to another directory or to the same one in
//! another order is left out, and what is no name at all (`..`, with a slash or a NUL byte) is told apart. So it is in a [`Multistatus`], where
//! a resource that is elsewhere is told apart, too.
#![forbid(unsafe_code)]

mod answer;
mod dav;
mod html;
mod index;
mod path;
mod range;

pub use answer::{Part, Told, Unfit};
pub use dav::{Member, Multistatus, NoMultistatus};
pub use index::{Index, Indexed};
pub use path::{decode_path, encode_path};
pub use range::{ContentRange, http_date};
pub use url::Url;
