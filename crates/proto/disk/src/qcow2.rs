// SPDX-License-Identifier: MIT OR Apache-2.0
//! qcow2 images (versions 2 and 3): disks of which only what was written takes place in the file. Source: the description
//! of the format, `docs/interop/qcow2.rst` of QEMU.
//!
//! The disk is made of *clusters*. A first table (L1) has the places of second tables (L2), which have the places of clusters;
//! what has no place is read from the backing image, or is zero. Refcounts say which clusters of the file are in use.
//!
//! # What writing leaves behind when it is cut off
//!
//! Changed tables wait in memory until [`Qcow2::flush`], which writes them in an order that leaves no moment at which something
//! refers to what is not there: contents and refcounts, then second tables, then the first one, and only then are clusters
//! given back that nothing refers to any more; a flush of the medium stands between each two of these. Cut off anywhere,
//! clusters may be lost (`qemu-img check` calls them leaked), but none is in use twice and none is in use that is not counted.
//!
//! # What is not served
//!
//! Encryption, external data files, subclusters and features that are not known are refused by [`Header::read`]. An image
//! that is marked corrupt or dirty is read only. Internal snapshots stay what they are, and cannot be looked into. Persistent bitmaps
//! become invalid when the image is written, as the format demands of programs that do not know them.

mod cache;
mod counts;
mod header;
mod packed;
mod write;

pub use header::{Backing, Compression, Header};

use crate::bytes::be64;
use crate::container::{Container, Source, padded};
use crate::{Bytes, DiskError, Medium};
use cache::Cache;
use counts::{Counts, encoded};
use std::io;
use std::ops::Range;

/// Where an image is kept: a medium that can be written and grows. [`Medium::size`] is what it is now.
pub trait Storage: Medium {
    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// Those of writing.
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the medium at least `size` bytes long; what is new reads as zeroes.
    ///
    /// # Errors
    /// When there is no room.
    fn grow(&self, size: u64) -> io::Result<()>;

    /// Returns when all that was written is on the medium.
    ///
    /// # Errors
    /// Those of writing.
    fn flush(&self) -> io::Result<()>;

    /// The content of a range is not needed any more.
    ///
    /// # Errors
    /// None that matters: the range may stay as it is.
    fn punch(&self, offset: u64, length: u64) -> io::Result<()>;
}

/// The bits of an entry that are a place, and those that say something about it.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;
/// The only reference to that place is this one.
const OWN: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeroes, whether it has a place or not (version 3).
const ZERO: u64 = 1;
/// The unit of the length of compressed clusters, in bytes.
const SECTOR: u64 = 512;
/// Beyond so many clusters waiting to be given back they are.
const WAITING: usize = 1 << 16;

/// An image.
pub struct Qcow2<S> {
    storage: S,
    header: Header,
    backing: Option<Bytes>,
    l1: Vec<u64>,
    /// Which entries of the first table are not in the file yet.
    dirty: Range<usize>,
    l2: Cache,
    /// None as long as nothing was written.
    counts: Option<Counts>,
    /// Clusters of the file that nothing refers to once the tables are written: place and number.
    released: Vec<(u64, u64)>,
    /// The compressed cluster that was read last, by its entry.
    unpacked: Option<(u64, Vec<u8>)>,
}

/// Where the content of a cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// In the backing image, or nowhere.
    FromBacking,
    Zero,
    /// In the file; `own` when it may be overwritten there.
    At {
        place: u64,
        own: bool,
    },
    Packed {
        place: u64,
        length: u64,
    },
}

fn damaged(what: &str) -> io::Error {
    io::Error::other(format!("the qcow2 image is damaged: {what}"))
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl<S: Medium> Qcow2<S> {
    /// The image on `storage`, with the image it is based on.
    ///
    /// # Errors
    /// Those of [`Header::read`]; when the image is none of qcow2.
    pub fn open(storage: S, backing: Option<Bytes>) -> Result<Self, DiskError> {
        let header = Header::read(&storage)?;
        let header = header.ok_or_else(|| DiskError::Damaged("this is no qcow2 image".into()))?;
        if backing.is_none() && header.backing.is_some() {
            return Err(DiskError::Damaged("the image this one is based on is missing".into()));
        }
        let (place, entries) = header.l1;
        let mut bytes = vec![0; entries * 8];
        storage.read(&mut bytes, place)?;
        let l1 = bytes.chunks_exact(8).map(|entry| be64(entry, 0)).collect();
        let l2 = Cache::new(header.cluster());
        let (counts, released, unpacked) = (None, Vec::new(), None);
        Ok(Qcow2 { storage, header, backing, l1, dirty: 0..0, l2, counts, released, unpacked })
    }

    /// What its header said when it was opened.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What it is kept in.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// How many entries a second table has.
    fn per_table(&self) -> u64 {
        self.header.cluster() / 8
    }

    /// The place of the second table for a cluster of the disk, and the byte in it where its entry is.
    fn table_of(&self, cluster: u64) -> io::Result<Option<(u64, usize)>> {
        let entry = self.l1.get((cluster / self.per_table()) as usize).copied().unwrap_or(0);
        let place = entry & PLACE;
        if !place.is_multiple_of(self.header.cluster()) {
            return Err(damaged("a table begins within a cluster"));
        }
        Ok((place != 0).then_some((place, (cluster % self.per_table()) as usize * 8)))
    }

    fn entry(&mut self, cluster: u64) -> io::Result<u64> {
        let Some((place, byte)) = self.table_of(cluster)? else { return Ok(0) };
        if self.l2.lacks(place) && place >= self.storage.size() {
            return Err(damaged("a table lies outside the file"));
        }
        Ok(be64(self.l2.table(&self.storage, place)?, byte))
    }

    fn content(&self, entry: u64) -> io::Result<Content> {
        if entry & COMPRESSED != 0 {
            let shift = 70 - self.header.cluster_bits;
            let place = entry & ((1 << shift) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> shift;
            return Ok(Content::Packed { place, length: (sectors + 1) * SECTOR - place % SECTOR });
        }
        let (place, own) = (entry & PLACE, entry & OWN != 0);
        if !place.is_multiple_of(self.header.cluster()) {
            return Err(damaged("a cluster is not where clusters are"));
        }
        Ok(match place {
            _ if entry & ZERO != 0 && self.header.version > 2 => Content::Zero,
            0 => Content::FromBacking,
            _ => Content::At { place, own },
        })
    }

    /// Where the content of the clusters from `cluster` on is, and of how many of them in the same way, side by side.
    fn run(&mut self, cluster: u64, most: u64) -> io::Result<(u64, Content, u64)> {
        let entry = self.entry(cluster)?;
        let first = self.content(entry)?;
        let mut count = 1;
        while count < most {
            let entry = self.entry(cluster + count)?;
            let expected = match first {
                Content::At { place, own } => {
                    Content::At { place: place + count * self.header.cluster(), own }
                }
                Content::Packed { .. } => break,
                other => other,
            };
            if self.content(entry)? != expected {
                break;
            }
            count += 1;
        }
        Ok((entry, first, count))
    }

    /// How much of a request of `length` bytes at `offset` is in the cluster it begins in, and in `count` clusters.
    fn reach(&self, offset: u64, length: usize, count: u64) -> usize {
        let end = (offset / self.header.cluster() + count) * self.header.cluster();
        (end - offset).min(length as u64) as usize
    }

    /// Over how many clusters a request goes.
    fn clusters(&self, offset: u64, length: usize) -> u64 {
        (offset % self.header.cluster() + length as u64).div_ceil(self.header.cluster())
    }

    fn unpacked(&mut self, entry: u64, place: u64, length: u64) -> io::Result<&[u8]> {
        if self.unpacked.as_ref().is_none_or(|(known, _)| *known != entry) {
            let there = self.storage.size().saturating_sub(place).min(length);
            let mut data = vec![0; there as usize];
            self.storage.read(&mut data, place)?;
            let whole = packed::unpack(self.header.compression, &data, self.header.cluster() as usize)?;
            self.unpacked = Some((entry, whole));
        }
        Ok(self.unpacked.as_ref().map_or(&[], |(_, whole)| whole))
    }
}

impl<S: Medium> Container for Qcow2<S> {
    fn size(&self) -> u64 {
        self.header.size
    }

    fn find(&mut self, offset: u64, most: u64) -> io::Result<(Source<'_>, u64)> {
        let clusters = self.clusters(offset, most as usize);
        let (entry, content, count) = self.run(offset / self.header.cluster(), clusters)?;
        let reach = self.reach(offset, most as usize, count);
        let skipped = offset % self.header.cluster();
        if let Content::Packed { place, length } = content {
            let whole = self.unpacked(entry, place, length)?;
            return Ok((Source::Bytes(&whole[skipped as usize..][..reach]), reach as u64));
        }
        Ok(match (content, &self.backing) {
            (Content::At { place, .. }, _) => padded(&self.storage, place + skipped, reach as u64),
            (Content::FromBacking, Some(backing)) => padded(&**backing, offset, reach as u64),
            _ => (Source::Zero, reach as u64),
        })
    }
}
