// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognises archives by their content.

use crate::{
    Codec, Limits, Result, ar, cpio,
    decode::Setup,
    source::{Origin, Source, read_full},
    tar, zip,
};
use std::sync::Arc;

/// How entries are laid out in the (decompressed) archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// tar, any variant.
    Tar,
    /// zip.
    Zip,
    /// cpio, any variant.
    Cpio,
    /// ar, also as a Debian package.
    Ar,
    /// No archive, only one compressed file.
    Single,
}

/// What an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The layout of the entries.
    pub layout: Layout,
    /// The compression around all of it.
    pub codec: Option<Codec>,
}

const LAYOUTS: [Layout; 5] = [Layout::Tar, Layout::Zip, Layout::Cpio, Layout::Ar, Layout::Single];
const CODECS: [Option<Codec>; 5] =
    [None, Some(Codec::Gzip), Some(Codec::Bzip2), Some(Codec::Xz), Some(Codec::Zstd)];

impl Format {
    /// A short name: `tar`, `tar.zst`, `zip`, `gz`.
    pub fn name(self) -> String {
        let layout = match self.layout {
            Layout::Tar => "tar",
            Layout::Zip => "zip",
            Layout::Cpio => "cpio",
            Layout::Ar => "ar",
            Layout::Single => "",
        };
        let codec = match self.codec {
            None | Some(Codec::Deflate) => "",
            Some(Codec::Gzip) => "gz",
            Some(Codec::Bzip2) => "bz2",
            Some(Codec::Xz) => "xz",
            Some(Codec::Zstd) => "zst",
        };
        let dot = if layout.is_empty() || codec.is_empty() { "" } else { "." };
        format!("{layout}{dot}{codec}")
    }

    pub(crate) fn to_number(self) -> u32 {
        let layout = LAYOUTS.iter().position(|l| *l == self.layout).unwrap_or(0);
        let codec = CODECS.iter().position(|c| *c == self.codec).unwrap_or(0);
        (layout * CODECS.len() + codec) as u32
    }

    pub(crate) fn from_number(n: u32) -> Option<Format> {
        let n = n as usize;
        Some(Format { layout: *LAYOUTS.get(n / CODECS.len())?, codec: CODECS[n % CODECS.len()] })
    }
}

/// The bytes that decide: a tar header, and the start of the next block.
const HEAD: usize = 1024;
/// A file of nothing but zeros is an empty tar up to this size, the 20 blocks that tar(1) writes. A longer one is more likely
/// something that was erased.
const EMPTY_TAR: u64 = 20 * 512;

/// What `source` is, or `None` when it is nothing this driver opens. Reads a few kilobytes.
///
/// # Errors
/// When the source cannot be read. Damage is no error here, but may make an archive unrecognisable.
pub fn detect(source: &Arc<dyn Source>) -> Result<Option<Format>> {
    detect_at(&Origin::new(source.clone()), &Limits::default())
}

pub(crate) fn detect_at(origin: &Origin, limits: &Limits) -> Result<Option<Format>> {
    let mut head = vec![0; HEAD];
    let n = read_full(&*origin.source, &mut head, 0).map_err(|e| crate::Error::io(&origin.name, 0, &e))?;
    head.truncate(n);
    if let Some(codec) = Codec::detect(&head) {
        let inside = decoded_head(origin, codec, limits);
        let layout = inside.and_then(|h| layout(&h)).unwrap_or(Layout::Single);
        return Ok(Some(Format { layout, codec: Some(codec) }));
    }
    if let Some(layout) = layout(&head) {
        return Ok(Some(Format { layout, codec: None }));
    }
    if zip::is_head(&head) || zip::has_end(origin) {
        return Ok(Some(Format { layout: Layout::Zip, codec: None }));
    }
    let size = origin.source.size();
    if head.len() == HEAD && size <= EMPTY_TAR && size.is_multiple_of(512) && only_zeros(origin)? {
        return Ok(Some(Format { layout: Layout::Tar, codec: None }));
    }
    Ok(None)
}

/// The layouts recognised by their first bytes, compressed or not.
fn layout(head: &[u8]) -> Option<Layout> {
    if ar::is_head(head) {
        Some(Layout::Ar)
    } else if tar::is_head(head) {
        Some(Layout::Tar)
    } else if cpio::is_head(head) {
        Some(Layout::Cpio)
    } else {
        None
    }
}

/// The first decompressed bytes, as far as they can be had.
fn decoded_head(origin: &Origin, codec: Codec, limits: &Limits) -> Option<Vec<u8>> {
    let setup = Setup::new(origin.clone(), codec, (0, origin.source.size()), limits);
    let mut decoder = setup.decoder(None).ok()?;
    let mut head = vec![0; HEAD];
    let mut done = 0;
    while done < HEAD {
        match decoder.read(&mut head[done..]) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n,
        }
    }
    head.truncate(done);
    Some(head)
}

fn only_zeros(origin: &Origin) -> Result<bool> {
    let mut all = vec![0; origin.source.size() as usize];
    origin.exact(&mut all, 0, "the archive")?;
    Ok(all.iter().all(|b| *b == 0))
}
