// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in an image, found out by reading a few of its bytes: nothing is mounted, locked or changed.

use crate::detect::detect_in;
use crate::disk::{Disk, Place};
use crate::image::table_of;
use crate::lock::Held;
use crate::served::Served;
use outrigger_core::Result;
use outrigger_core::registry::Content;
use outrigger_proto_disk::marks;
use outrigger_proto_disk::partition::{Partition, Table};
use outrigger_proto_disk::volume::{Volume, describe};
use outrigger_proto_disk::{Medium, Window};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// What is in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The size of the disk, in bytes.
    pub size: u64,
    /// How the disk is in the file: `raw`, `qcow2`, `vdi`, `vhd`, `vmdk` or `vhdx`.
    pub format: &'static str,
    /// The file system that all of it is, or what else is known by name only: then all but its type is missing.
    pub volume: Option<Volume>,
    /// Its partition table, without the partitions.
    pub table: Option<Table>,
    /// The partitions.
    pub pieces: Vec<Piece>,
}

/// A partition and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What the table says.
    pub partition: Partition,
    /// As in [`Inspection::volume`].
    pub volume: Option<Volume>,
}

/// File systems that leave the start of the medium to others.
const DISCS: [&str; 2] = ["iso9660", "udf"];

/// Looks at the image in the file `path`. As when it is opened, a file system that begins where the image does counts for
/// more than a partition table; but a disc leaves room for one, and has both when it also starts from a USB stick.
///
/// # Errors
/// Those of opening and reading it and the images it is based on, `EINVAL` when its partition table is damaged.
pub fn inspect(path: &Path) -> Result<Inspection> {
    look(&Disk::open(Place::Host(Held::shared(File::open(path)?)), false)?)
}

/// The same for an image in a file of another tree.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_served(content: Arc<dyn Content>) -> Result<Inspection> {
    look(&Disk::open(Place::Tree(Served::new(content)), false)?)
}

fn look(medium: &Disk) -> Result<Inspection> {
    let size = medium.size();
    let whole = volume(medium, 0, size)?;
    let mut table = match &whole {
        Some(volume) if DISCS.contains(&volume.kind) => table_of(medium).unwrap_or(None),
        Some(_) => None,
        None => table_of(medium)?,
    };
    let whole = if whole.is_none() && table.is_none() { named(medium, 0, size)? } else { whole };
    let partitions = table.as_mut().map(|table| std::mem::take(&mut table.partitions)).unwrap_or_default();
    let piece = |partition: Partition| {
        let volume = match partition.range() {
            Some((start, size)) => match volume(medium, start, size)? {
                None => named(medium, start, size)?,
                known => known,
            },
            None => None,
        };
        Ok(Piece { partition, volume })
    };
    let pieces = partitions.into_iter().map(piece).collect::<Result<_>>()?;
    Ok(Inspection { size, format: medium.form.name(), volume: whole, table, pieces })
}

fn volume(medium: &Disk, start: u64, size: u64) -> Result<Option<Volume>> {
    match detect_in(medium, start, Some(size))? {
        Some(kind) => Ok(describe(kind.name, &Window { medium, start, size })?),
        None => Ok(None),
    }
}

/// What is known by name only.
fn named(medium: &Disk, start: u64, size: u64) -> Result<Option<Volume>> {
    let content = marks::content(&Window { medium, start, size })?;
    Ok(content.map(|content| Volume { kind: content.name, ..Volume::default() }))
}
