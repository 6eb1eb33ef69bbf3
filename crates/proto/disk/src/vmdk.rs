// SPDX-License-Identifier: MIT OR Apache-2.0
//! VMDK, the images of VMware: a disk in one file or in several *extents*, which a descriptor in plain text names. Source: VMware,
//! "Virtual Disk Format 5.0" (2011).
//!
//! An extent is the bytes of its part of the disk as they are (`FLAT`), nothing (`ZERO`), or *sparse*: a first table (grain
//! directory) has the places of second ones (grain tables), which have the places of *grains*. In stream-optimised images grains are
//! compressed, and the header that counts is at the end. What is nowhere is in the image it is based on, or zero.

mod descriptor;
mod sparse;

use crate::container::{Container, Source, ends_within, from_below};
use crate::form::Others;
use crate::{Bytes, DiskError, Medium};
use descriptor::{Descriptor, Kind};
use sparse::{Place, Sparse};
use std::io;

/// The unit of sizes and places, in bytes.
const SECTOR: u64 = 512;

fn damaged<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Damaged(format!("the VMDK image is damaged: {what}")))
}

fn refused<T>(what: &str) -> Result<T, DiskError> {
    Err(DiskError::Unsupported(format!("a VMDK image with {what} is not served")))
}

/// What an image needs beside itself.
pub(crate) fn others(medium: &dyn Medium) -> Result<Others, DiskError> {
    let descriptor = Descriptor::of(medium)?;
    let mut others = Others { below: descriptor.below, identity: descriptor.below_id, ..Others::default() };
    if !sparse::is_sparse(medium)? {
        others.extents = descriptor.extents.into_iter().filter_map(|extent| extent.file).collect();
    }
    Ok(others)
}

/// What tells an image from others.
pub(crate) fn identity(medium: &dyn Medium) -> Result<Option<String>, DiskError> {
    Ok(Descriptor::of(medium)?.id)
}

/// Where the bytes of a part of the disk are.
enum Content {
    Zero,
    /// In a file, from this place on.
    Flat(Bytes, u64),
    Sparse(Sparse),
}

/// An image.
pub struct Vmdk {
    /// Where each part of the disk ends, and where its bytes are.
    parts: Vec<(u64, Content)>,
    below: Option<Bytes>,
}

impl Vmdk {
    /// The image in `file`, with the files it names and the image it is based on.
    ///
    /// # Errors
    /// Those of reading; when it is damaged, or needs what is not known here.
    pub fn open(file: Bytes, extents: Vec<Bytes>, below: Option<Bytes>) -> Result<Self, DiskError> {
        let descriptor = Descriptor::of(&*file)?;
        if descriptor.below.is_some() && below.is_none() {
            return damaged("the image it is based on is missing");
        }
        if sparse::is_sparse(&*file)? {
            let sparse = Sparse::open(file)?;
            return Ok(Vmdk { parts: vec![(sparse.size(), Content::Sparse(sparse))], below });
        }
        if descriptor.extents.is_empty() {
            return damaged("its descriptor names no part of it");
        }
        let (mut files, mut end, mut parts) = (extents.into_iter(), 0_u64, Vec::new());
        for extent in descriptor.extents {
            let file = extent.file.is_some().then(|| files.next()).flatten();
            let content = match (extent.kind, file) {
                (Kind::Zero, _) => Content::Zero,
                (Kind::Flat(place), Some(file)) if ends_within(place, extent.size, file.size()) => {
                    Content::Flat(file, place)
                }
                (Kind::Sparse, Some(file)) => Content::Sparse(Sparse::open(file)?),
                _ => return damaged("a file that a part of it is in is too short, or missing"),
            };
            if matches!(&content, Content::Sparse(sparse) if sparse.size() < extent.size) {
                return damaged("a part of it is smaller than the disk");
            }
            end = end.checked_add(extent.size).filter(|&end| end <= i64::MAX as u64).ok_or_else(too_large)?;
            parts.push((end, content));
        }
        Ok(Vmdk { parts, below })
    }
}

fn too_large() -> DiskError {
    DiskError::Damaged("the VMDK image is damaged: the size of its disk".into())
}

impl Container for Vmdk {
    fn size(&self) -> u64 {
        self.parts.last().map_or(0, |(end, _)| *end)
    }

    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)> {
        let number = self.parts.partition_point(|(end, _)| *end <= offset);
        let start = number.checked_sub(1).map_or(0, |before| self.parts[before].0);
        let Some((end, content)) = self.parts.get_mut(number) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let (within, most) = (offset - start, most.min(*end - offset));
        match content {
            Content::Zero => Ok((Source::Zero, most)),
            Content::Flat(file, place) => Ok((Source::At(&**file, *place + within), most)),
            Content::Sparse(sparse) => {
                let (place, most) = sparse.place(within, most)?;
                match place {
                    Place::Nowhere => Ok(from_below(self.below.as_deref(), offset, most)),
                    Place::Zero => Ok((Source::Zero, most)),
                    Place::At(place) => Ok((Source::At(sparse.file(), place), most)),
                    Place::Packed(place, skipped) => {
                        let whole = sparse.unpacked(place)?;
                        let bytes = whole.get(skipped as usize..).unwrap_or_default();
                        Ok((Source::Bytes(bytes), most))
                    }
                }
            }
        }
    }
}
