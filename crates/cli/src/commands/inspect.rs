// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger inspect`: what is in disk images, without mounting or changing anything.

use crate::context::Context;
use crate::format::human::Unit;
use crate::format::quote::{before_colon, for_message};
use crate::location::{Base, Location};
use crate::messages::record;
use crate::output::Output;
use crate::run::Run;
use crate::status::{Failure, Status};
use crate::trees;
use clap::Args;
use outrigger_core::Error;
use outrigger_driver_archive::{Format, Source, detect, unserved};
use outrigger_driver_kernel::{Inspection, Piece, Table, Volume, inspect_served};
use outrigger_host::HostFile;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Disk images and block devices; images also in other trees.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<OsString>,
}

impl Run for Inspect {
    const NAME: &'static str = "inspect";
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut output = Output::new(context);
        for image in &self.images {
            match inspected(context, image.as_ref()) {
                Ok(found) if context.json => {
                    output.write(record(&object(image, &found)).as_bytes())?;
                }
                Ok(found) => output.lines(text(image, &found).as_bytes())?,
                Err(failure) => output.complain(Status::Minor, failure),
            }
        }
        output.flush()
    }
}

/// Looks at the disk image in a file of the host, or of another tree.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
fn inspected(context: &Context, path: &Path) -> Result<Inspection, Failure> {
    let refuse = |why: &dyn Display| Failure::new(format!("cannot inspect '{}': {why}", path.display()));
    let metadata = match (std::fs::metadata(path), Location::of(path.as_os_str())?) {
        (Ok(metadata), _) => metadata,
        (Err(error), Location { base: Base::Host(_), nested }) if nested.is_empty() => {
            return Err(refuse(&Error::from(error)));
        }
        (Err(_), location) => {
            let content = trees::content(&context.trees, &location)?;
            return inspect_served(content).map_err(|error| refuse(&error));
        }
    };
    // Opening a pipe would wait.
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(refuse(&"neither a regular file nor a block device"));
    }
    outrigger_driver_kernel::inspect(path).map_err(|error| refuse(&error))
}

/// What kind of archive a file of the host is, if it is one.
fn archive_kind(path: &Path) -> Option<String> {
    let source: Arc<dyn Source> = Arc::new(HostFile::open(path).ok()?);
    detect(&source).ok().flatten().map(Format::name)
}

/// A number of bytes, also for people.
fn size(bytes: u64) -> String {
    format!("{bytes} bytes ({})", Unit::HUMAN.show(bytes, 1))
}

/// Text out of the image, which may hold anything.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

fn text(image: &OsStr, found: &Inspection) -> String {
    let format = if found.format == "raw" { String::new() } else { format!("{}, ", found.format) };
    let mut out = format!("{}: {format}{}\n", before_colon(image.as_bytes()), size(found.size));
    if let Some(table) = &found.table {
        out += &table_text(table);
    }
    for Piece { partition, volume } in &found.pieces {
        let purpose = partition.purpose().unwrap_or(&partition.kind);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "p{}: {} from {}, {purpose}",
            partition.number,
            size(partition.size),
            partition.start
        );
        if !partition.name.is_empty() {
            let _ = write!(out, ", {}", quoted(&partition.name));
        }
        let _ = writeln!(out, ", id {}", partition.id);
        if let Some(fault) = &partition.fault {
            let _ = writeln!(out, "  {fault}");
        }
        out += &volume.as_ref().map(volume_text).unwrap_or_default();
    }
    match (&found.volume, &found.table) {
        (Some(volume), _) => out += &volume_text(volume),
        (None, None) => out += &no_disk(image),
        _ => {}
    }
    out
}

/// Of a file that is no disk image.
fn no_disk(image: &OsStr) -> String {
    let Some(kind) = archive_kind(image.as_ref()) else {
        return match HostFile::open(Path::new(image)).ok().and_then(|file| unserved(&file)) {
            Some((kind, instead)) => format!("  not a disk but {kind}, which is not served: {instead}\n"),
            None => "  no file system and no partition table that is known\n".to_owned(),
        };
    };
    let name = for_message(&[image.as_bytes(), b"::/"].concat());
    format!("  not a disk but an archive ({kind}): `outrigger ls {name}` lists it\n")
}

fn table_text(table: &Table) -> String {
    let Table { scheme, sector, id, remarks, .. } = table;
    let mut out = format!("  partition table {}, id {id}, sectors of {sector} bytes\n", scheme.name());
    remarks.iter().for_each(|remark| out += &format!("  {remark}\n"));
    out
}

fn volume_text(volume: &Volume) -> String {
    let words = [
        Some(volume.kind.to_owned()),
        volume.label.as_deref().map(|label| format!("label {}", quoted(label))),
        volume.uuid.as_deref().map(|uuid| format!("UUID {uuid}")),
        volume.size.map(size),
        volume.free.map(|free| format!("{} free", size(free))),
        volume.block_size.map(|bytes| format!("blocks of {bytes} bytes")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    let mut out = format!("  {}\n", words.join(", "));
    if !volume.features.is_empty() {
        out += &format!("  features: {}\n", volume.features.join(" "));
    }
    out
}

fn object(image: &OsStr, found: &Inspection) -> Value {
    let partition = |Piece { partition, volume }: &Piece| {
        json!({
            "number": partition.number,
            "start": partition.start,
            "size": partition.size,
            "type": partition.kind,
            "purpose": partition.purpose(),
            "id": partition.id,
            "name": partition.name,
            "fault": partition.fault.as_ref().map(ToString::to_string),
            "volume": volume.as_ref().map(volume_object),
        })
    };
    let table = found.table.as_ref().map(|table| {
        json!({
            "scheme": table.scheme.name(),
            "id": table.id,
            "sector": table.sector,
            "remarks": table.remarks,
            "partitions": found.pieces.iter().map(partition).collect::<Vec<_>>(),
        })
    });
    let nothing = found.table.is_none() && found.volume.is_none();
    json!({
        "path": image.to_string_lossy(),
        "size": found.size,
        "format": found.format,
        "archive": nothing.then(|| archive_kind(image.as_ref())).flatten(),
        "volume": found.volume.as_ref().map(volume_object),
        "table": table,
    })
}

fn volume_object(volume: &Volume) -> Value {
    json!({
        "type": volume.kind,
        "label": volume.label,
        "uuid": volume.uuid,
        "block_size": volume.block_size,
        "size": volume.size,
        "free": volume.free,
        "features": volume.features,
    })
}
