// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor: lines of `name=value`, and one for each extent: access, sectors, type, name and place.

use super::{SECTOR, damaged, refused, sparse};
use crate::container::piece;
use crate::form::{Other, portable};
use crate::{DiskError, Medium};

/// The largest descriptor that is taken, in bytes.
const MOST: u64 = 1 << 20;
/// The most files that are taken.
const EXTENTS: usize = 1 << 10;
/// What images begin with that the descriptors of ESX name.
const ESX: [u8; 4] = *b"COWD";
/// The identifier of the image below where there is none.
const NONE: &str = "ffffffff";

/// What an extent is.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Zero,
    /// From this place in its file on, in bytes.
    Flat(u64),
    Sparse,
}

/// A part of the disk.
pub(super) struct Extent {
    /// In bytes.
    pub size: u64,
    pub kind: Kind,
    pub file: Option<Other>,
}

/// What a descriptor says.
#[derive(Default)]
pub(super) struct Descriptor {
    pub id: Option<String>,
    pub below_id: Option<String>,
    pub below: Option<Other>,
    pub extents: Vec<Extent>,
}

impl Descriptor {
    /// That of an image: all of the file, or in a sparse extent what its header says; nothing where it says nothing.
    pub fn of(medium: &dyn Medium) -> Result<Self, DiskError> {
        let (place, size) = match sparse::is_sparse(medium)? {
            false => (0, medium.size()),
            true => match sparse::descriptor(medium)? {
                None => return Ok(Descriptor::default()),
                Some(place) => place,
            },
        };
        let mut start = [0; 4];
        if place == 0 && size >= 4 {
            medium.read(&mut start, 0)?;
        }
        if start == ESX {
            return refused("extents of ESX (COWD)");
        }
        if size > MOST {
            return damaged("its descriptor is too long");
        }
        let bytes = piece(medium, place, size, "the descriptor")?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Descriptor::parse(&String::from_utf8_lossy(text))
    }

    fn parse(text: &str) -> Result<Self, DiskError> {
        let (mut found, mut hint) = (Descriptor::default(), None);
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            if let ["RW" | "RDONLY" | "NOACCESS", sectors, kind, ..] = words[..] {
                found.extents.push(extent(sectors, kind, words.get(3).copied().unwrap_or_default())?);
            } else if let Some((name, value)) = line.split_once('=') {
                let value = value.trim().trim_matches('"').to_owned();
                match name.trim().to_ascii_lowercase().as_str() {
                    "cid" => found.id = Some(value.to_ascii_lowercase()),
                    "parentcid" => found.below_id = Some(value.to_ascii_lowercase()),
                    "parentfilenamehint" => hint = Some(value),
                    _ => {}
                }
            }
        }
        let names_file = found.extents.iter().filter(|extent| extent.file.is_some()).count();
        if names_file > EXTENTS {
            return refused(&format!("{names_file} files"));
        }
        found.below_id.take_if(|id| id == NONE);
        match (&found.below_id, hint) {
            (None, _) => {}
            (Some(_), Some(hint)) if !hint.is_empty() => {
                found.below = Some(Other { name: portable(&hint).into(), form: Some("vmdk".into()) });
            }
            _ => return damaged("it does not name the image it is based on"),
        }
        Ok(found)
    }
}

/// An extent of so many sectors; `rest` is its name in quotes, and its place in sectors.
fn extent(sectors: &str, kind: &str, rest: &str) -> Result<Extent, DiskError> {
    let in_bytes = |number: &str| number.parse::<u64>().ok()?.checked_mul(SECTOR);
    let Some(size) = in_bytes(sectors) else { return damaged("the size of a part of it") };
    let quoted = rest.trim().strip_prefix('"').and_then(|rest| rest.rsplit_once('"'));
    let (name, place) = quoted.unwrap_or_default();
    let kind = match kind {
        "ZERO" => return Ok(Extent { size, kind: Kind::Zero, file: None }),
        "SPARSE" => Kind::Sparse,
        "FLAT" | "VMFS" => match in_bytes(if place.trim().is_empty() { "0" } else { place.trim() }) {
            Some(place) => Kind::Flat(place),
            None => return damaged("the place of a part of it"),
        },
        other => return refused(&format!("extents of type {}", other.escape_debug())),
    };
    if name.is_empty() || name.contains('\0') {
        return damaged("the name of a part of it");
    }
    Ok(Extent { size, kind, file: Some(Other { name: portable(name).into(), form: None }) })
}
