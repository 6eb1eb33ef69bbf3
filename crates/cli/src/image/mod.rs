// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of trees, for `make-image`: in four steps, as NetBSD's makefs(8) has them.
//!
//! | module | what it does |
//! |---|---|
//! | [`source`] | walks the tree in an order of its own, and gives every name to a sink |
//! | [`plan`] | the first sink: counts what there is |
//! | [`keeps`] | what a type can hold of a tree |
//! | [`disk`], [`others`] | make an empty file system of the size that takes, with a tool of the system ([`tool`]) |
//! | [`populate`] | the second sink: fills it through its kernel code |
//! | [`archive`] | second sinks that need no file system: [`tar`], [`cpio`], each into a [`stream`] |
//! | [`seed`] | numbers in place of random ones |
//! | [`target`] | the file, which gets its name when it is complete |
//!
//! For ext4 and tar, the same tree leads to the same bytes: names come sorted, identifiers and other numbers come from the tree, and the machine of the kernel
//! code has a clock that does not move. `docs/design/0037-make-image.md` says what that takes.

mod archive;
mod cpio;
mod disk;
mod keeps;
mod others;
mod plan;
mod populate;
mod seed;
mod source;
mod stream;
mod tar;
mod target;
mod tool;

use crate::context::{Context, Place};
use crate::copy::Contents;
use crate::copy::target::shown_below;
use crate::progress::{Progress, When};
use crate::say::quoted;
use crate::status::Failure;
use archive::Archived;
use disk::{Disk, Wish};
use outrigger_client::{Client, Follow, Settings};
use outrigger_core::{Error, Time};
use outrigger_driver_kernel::{Fixed, Kernel, Options};
use plan::Plan;
use populate::Populate;
use seed::Seed;
use source::Source;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use target::{Target, descriptor};

/// The variable that has the latest time in an image (reproducible-builds.org), in seconds since 1970.
pub const CLOCK: &str = "SOURCE_DATE_EPOCH";

/// The types of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Type {
    /// The file system of Linux.
    Ext4,
    /// XFS, of 300 MiB at least.
    Xfs,
    /// btrfs.
    Btrfs,
    /// f2fs, for flash memory.
    F2fs,
    /// FAT32: regular files and directories only, without owners and permissions.
    Vfat,
    /// exFAT, as vfat.
    Exfat,
    /// NTFS, as vfat.
    Ntfs,
    /// A tar archive (POSIX.1-2001).
    Tar,
    /// A cpio archive (newc), as Linux takes one as its first file system.
    Cpio,
}

/// How images of a type are made.
enum Maker {
    /// As a file system that is filled.
    Disk(&'static Disk),
    /// As an archive, from its beginning to its end.
    Archive,
}

/// What image is wanted.
#[derive(Debug)]
pub struct Wanted {
    /// Its type.
    pub kind: Type,
    /// Where it is made.
    pub image: OsString,
    /// Whether it may replace a file.
    pub replaces: bool,
    /// Its size in bytes, if not that which the tree takes.
    pub size: Option<u64>,
    /// Its label.
    pub label: Option<String>,
    /// Where its identifiers come from, if not from the tree.
    pub seed: Option<String>,
    /// No file in it is newer than this, in seconds since 1970, and it was made then; without, when its newest file was.
    pub clock: Option<u64>,
    /// Whether progress is shown.
    pub progress: When,
}

impl Type {
    fn maker(self) -> Maker {
        Maker::Disk(match self {
            Type::Ext4 => &disk::EXT4,
            Type::Xfs => &others::XFS,
            Type::Btrfs => &others::BTRFS,
            Type::F2fs => &others::F2FS,
            Type::Vfat => &others::VFAT,
            Type::Exfat => &others::EXFAT,
            Type::Ntfs => &others::NTFS,
            Type::Tar | Type::Cpio => return Maker::Archive,
        })
    }
}

impl Wanted {
    /// Looks whether the type has what is asked for.
    ///
    /// # Errors
    /// A sentence about an option that means nothing for it.
    fn check(&self) -> Result<(), Failure> {
        let is_archive = matches!(self.kind.maker(), Maker::Archive);
        let useless = [
            ("--size", is_archive && self.size.is_some()),
            ("--label", is_archive && self.label.is_some()),
            ("--seed", is_archive && self.seed.is_some()),
        ];
        if let Some((option, _)) = useless.iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::serious(format!("option {option} means nothing for this type of image")));
        }
        if let (Maker::Disk(disk), Some(label)) = (self.kind.maker(), &self.label) {
            disk.check_label(label)?;
        }
        let times = match (self.kind.maker(), self.kind) {
            (Maker::Disk(disk), _) => disk.times.clone(),
            (Maker::Archive, Type::Cpio) => disk::TIMES,
            (Maker::Archive, _) => 0..=i64::MAX as u64,
        };
        match self.clock {
            Some(clock) if !times.contains(&clock) => Err(Failure::serious(format!(
                "{CLOCK} is {clock}, and times in this type of image are from {} to {}",
                times.start(),
                times.end()
            ))),
            _ => Ok(()),
        }
    }

    /// When the image is made, in seconds since 1970. File systems take 0 as the time of one that was never mounted.
    fn clock(&self, plan: &Plan) -> u64 {
        self.clock.unwrap_or(plan.newest.secs.clamp(0, u32::MAX.into()) as u64).max(1)
    }
}

/// Makes an image of the directory at `place`.
///
/// # Errors
/// A sentence about the first thing that went wrong. There is no image then.
pub fn make(context: &Context, place: &Place, wanted: &Wanted) -> Result<(), Failure> {
    wanted.check()?;
    let shown = place.display().to_string();
    let cannot = |error: Error| {
        Failure::serious(format!("cannot make an image of '{shown}': {error}")).with(error.errno)
    };
    let root = place.find(Follow::Yes).map_err(cannot)?;
    let latest = wanted.clock.map(|seconds| Time::new(i64::try_from(seconds).unwrap_or(i64::MAX), 0));
    let mut source = Source::new(context.cancel.clone(), root, shown.clone(), latest)?;
    let target = Target::new(context, &wanted.image, wanted.replaces)?;
    outside(place, &target)?;
    let mut plan = Plan::new(shown.clone());
    source.walk(&mut plan)?;
    let contents = Contents::new(context, Progress::new(wanted.progress));
    contents.progress().expect(plan.bytes);
    let made = match wanted.kind.maker() {
        Maker::Disk(disk) => {
            filled(context, disk, (&mut source, &shown), wanted, (&plan, &contents), &target)
        }
        Maker::Archive => {
            let progress = contents.progress();
            let archived =
                Archived { source: &mut source, shown: &shown, plan: &plan, progress, target: &target };
            match wanted.kind {
                Type::Cpio => archived.cpio(context),
                _ => archived.tar(),
            }
        }
    };
    contents.progress().finish();
    made?;
    if context.cancel.is_raised() {
        return Err(Failure::new("interrupted"));
    }
    source.tell_changes(context);
    target.publish()
}

/// Makes an empty file system and fills it.
fn filled(
    context: &Context,
    disk: &Disk,
    (source, shown): (&mut Source, &str),
    wanted: &Wanted,
    (plan, contents): (&Plan, &Contents),
    target: &Target,
) -> Result<(), Failure> {
    disk.keeps.check(disk.kernel, plan)?;
    disk.keeps.tell(context, disk.kernel, plan);
    let size = wanted.size.unwrap_or_else(|| disk.size(plan));
    target.file.set_len(size).map_err(|error| target.failure(Error::from(error)))?;
    let seed = wanted.seed.as_deref().map_or(plan.seed, Seed::of_words);
    let clock = wanted.clock(plan);
    let wish = Wish { size, label: wanted.label.as_deref(), seed, clock, plan };
    disk.format(&wish, &target.file)?;
    let options = Options {
        kind: Some(disk.kernel.to_owned()),
        fixed: Some(Fixed { seconds: clock, seed: seed.number("kernel") }),
        ..Options::default()
    };
    let started = Kernel::start(Path::new(&descriptor(&target.file)), &options);
    let kernel = Arc::new(started.map_err(|error| target.failure(error))?);
    let settings = Settings { cancel: context.cancel.clone(), ..Settings::default() };
    let client = Client::new(Arc::clone(&kernel) as _, context.trees.runtime.clone(), settings);
    let mut populate = Populate::new(client, disk.keeps, contents, shown.to_owned());
    let walked = source.walk(&mut populate);
    drop(populate);
    let unmounted = kernel.unmount().map_err(|error| target.failure(error));
    walked.and(unmounted)
}

/// Refuses an image inside of the directory that it is made of.
fn outside(place: &Place, target: &Target) -> Result<(), Failure> {
    let path = Path::new(OsStr::from_bytes(&place.path));
    let places = (path.canonicalize(), target.directory().canonicalize());
    let inside = place.is_here && matches!(&places, (Ok(tree), Ok(image)) if image.starts_with(tree));
    if inside { Err(target.failure("it would be in the tree that it is made of")) } else { Ok(()) }
}

/// The error message for a file of the tree: what failed, the path, and why.
fn failed(what: &str, shown: &str, path: &[u8], error: &Error) -> Failure {
    Failure::new(format!("{what} {}: {error}", quoted(whole(shown, path)))).with(error.errno)
}

/// How messages call `path` in the tree `shown`.
fn whole(shown: &str, path: &[u8]) -> Vec<u8> {
    if path.is_empty() { shown.as_bytes().to_vec() } else { shown_below(shown.as_bytes(), path) }
}
