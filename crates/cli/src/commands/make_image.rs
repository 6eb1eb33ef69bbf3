// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger make-image`: a disk image of a tree, without root.

use crate::context::Context;
use crate::image::{CLOCK, Type, Wanted, make};
use crate::progress::When;
use crate::run::Run;
use crate::say::word;
use crate::status::Failure;
use clap::Args;
use outrigger_core::parse_size;
use std::ffi::OsString;

/// Arguments of `make-image`.
///
/// Owners, permissions, times of modification, extended attributes, hard links, devices and holes are kept. The image has the size that the
/// tree needs, and gets its name when it is complete. ext4 images and tar archives are reproducible: equal trees give equal bytes. The tools that
/// make other file systems put random numbers into some of them (xfs, btrfs, ntfs). SOURCE_DATE_EPOCH in the environment (seconds since 1970)
/// is the latest time in an image. What the type cannot hold (access lists in vfat), and files that change while they are read, are named: the
/// image is made without them, or with what was read, and the exit status is 1.
#[derive(Debug, Args)]
pub struct MakeImage {
    /// The type of the image.
    #[arg(short = 't', long = "type", value_enum, default_value = "ext4")]
    kind: Type,
    /// Its size in bytes, or with K, M, G or T behind it; what the tree takes if not given.
    #[arg(short, long)]
    size: Option<String>,
    /// The label of the file system.
    #[arg(short = 'L', long, value_name = "NAME")]
    label: Option<String>,
    /// Make identifiers of the file system from these words, not from the tree.
    #[arg(long, value_name = "WORDS")]
    seed: Option<String>,
    /// Replace an IMAGE that exists.
    #[arg(short, long)]
    force: bool,
    /// Show progress: auto is on a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    progress: When,
    /// The directory that the image is made of.
    #[arg(value_name = "LOCATION")]
    tree: OsString,
    /// The file to make.
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Run for MakeImage {
    const NAME: &'static str = "make-image";
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        let size = self.size.as_deref().map(|text| {
            let refused = || Failure::serious(format!("invalid size {}", word(text)));
            parse_size(text).filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok()).ok_or_else(refused)
        });
        let wanted = Wanted {
            kind: self.kind,
            image: self.image,
            replaces: self.force,
            size: size.transpose()?,
            label: self.label,
            seed: self.seed,
            clock: source_date()?,
            progress: self.progress,
        };
        let place = context.place(&self.tree)?;
        make(context, &place, &wanted)
    }
}

/// What [`CLOCK`] says.
///
/// # Errors
/// That it is no such number.
fn source_date() -> Result<Option<u64>, Failure> {
    let Some(text) = std::env::var_os(CLOCK) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    seconds.map(Some).ok_or_else(|| {
        Failure::serious(format!("{CLOCK} is no number of seconds: {}", word(text.as_encoded_bytes())))
    })
}
