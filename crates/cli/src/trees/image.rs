// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images as trees.

use super::Trees;
use crate::control;
use crate::drivers::DriverOptions;
use crate::status::{Failure, Status};
use outrigger_core::{Errno, Error};
use outrigger_driver_kernel::{Inspection, Opened, Options, is_image};
use std::cell::RefCell;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

/// How long the process of a mount that was unmounted may take to finish with its image, if nothing else is said.
const PREDECESSOR: Duration = Duration::from_secs(10);

/// The images that a command has opened for writing.
#[derive(Default)]
pub struct Images(RefCell<Vec<Opened>>);

impl Images {
    /// Returns when everything is in the images, and others may have them. Their kernel code would do that by itself when this
    /// process has ended, but then whoever waits for this process would wait for too little.
    ///
    /// # Errors
    /// Why that is not so.
    pub fn unmount(&self) -> Result<(), Failure> {
        let unmounted = self.0.take().iter().map(Opened::unmount).collect::<Vec<_>>();
        unmounted
            .into_iter()
            .collect::<Result<(), Error>>()
            .map_err(|error| Failure::serious(format!("the image was not unmounted in good order: {error}")))
    }
}

/// Opens the disk image in a file of the host; none when the file is no such thing.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn on_host(trees: &Trees, path: &Path, options: &DriverOptions) -> Result<Option<Opened>, Failure> {
    let at = trees.reach(path);
    if !is_there(&at, options) {
        return Ok(None);
    }
    let mut settings = Options::default();
    options.apply(|key, value| match options.is_elsewhere(key) {
        true => Err(outrigger_driver_kernel::OPTIONS.unknown(key)),
        false => settings.set(key, value),
    })?;
    settings.read_only |= !trees.may_write(path);
    if settings.read_only
        && let Some(who) = outrigger_driver_kernel::in_use_by_host(path)
        && !who.contains("mounted read-only")
    {
        let shown = path.display();
        let warning = format!("warning: '{shown}' may change while it is read, because {who}");
        trees.report.complain(Status::Success, warning);
    }
    let open = || outrigger_driver_kernel::open(path, &settings);
    let patience = trees.options().timeout.unwrap_or(PREDECESSOR);
    let busy = |error: &Error| error.errno == Errno::EBUSY;
    let opened = match open() {
        Err(error) if busy(&error) && control::wait_for_predecessors(path, patience) => open(),
        opened => opened,
    };
    let opened =
        opened.map_err(|error| Failure::serious(format!("cannot open '{}': {error}", path.display())))?;
    // Of one that was only read nothing can be lost when it is closed.
    if !settings.read_only {
        trees.images.0.borrow_mut().push(opened.clone());
    }
    Ok(Some(opened))
}

/// Looks at the disk image in a file of the host.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn inspect(path: &Path) -> Result<Inspection, Failure> {
    let refuse = |why: &dyn Display| Failure::new(format!("cannot inspect '{}': {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| refuse(&Error::from(error)))?;
    // Opening a pipe would wait.
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(refuse(&"neither a regular file nor a block device"));
    }
    outrigger_driver_kernel::inspect(path).map_err(|error| refuse(&error))
}

/// Whether a path is that of a regular file or block device: opening a pipe would wait.
fn is_readable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device())
}

/// Whether a file of the host is a disk image: by its first bytes, or because an option says what is in it, or where.
pub fn is_there(path: &Path, options: &DriverOptions) -> bool {
    is_one(path) || options.has(&["type", "offset"]) && is_readable(path)
}

/// Whether a file of the host holds a file system or partitions. What cannot be read is left to whoever can say why.
fn is_one(path: &Path) -> bool {
    is_readable(path) && File::open(path).is_ok_and(|file| matches!(is_image(&file), Ok(true)))
}
