// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk images a command has open, and what is in one.

use crate::location::{Base, Location};
use crate::status::Failure;
use outrigger_core::Error;
use outrigger_driver_kernel::{Inspection, Opened};
use std::cell::RefCell;
use std::fmt::Display;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The images that a command has opened for writing.
#[derive(Default)]
pub struct Images(RefCell<Vec<Opened>>);

impl Images {
    /// Takes note of one. An image that was only read loses nothing when it is closed.
    pub(super) fn add(&self, image: &Opened, may_write: bool) {
        if may_write {
            self.0.borrow_mut().push(image.clone());
        }
    }

    /// Unmounts the images: returns when everything is written and other processes can open them. Their kernel code would do that
    /// by itself after this process has ended, too late for a caller that waits for this process only.
    ///
    /// # Errors
    /// Why that is not so.
    pub fn unmount(&self) -> Result<(), Failure> {
        let unmounted = self.0.take().iter().map(Opened::unmount).collect::<Vec<_>>();
        unmounted
            .into_iter()
            .collect::<Result<(), Error>>()
            .map_err(|error| Failure::serious(format!("the image was not unmounted cleanly: {error}")))
    }
}

/// Looks at the disk image in a file of the host.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn inspect(path: &Path) -> Result<Inspection, Failure> {
    let refuse = |why: &dyn Display| Failure::new(format!("cannot inspect '{}': {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| match Location::parse(path.as_os_str()) {
        Location { base: Base::Host(_), nested } if nested.is_empty() => refuse(&Error::from(error)),
        _ => refuse(&format!(
            "only images that are files of this machine are inspected; `outrigger cp '{}' .` copies a file out of another tree",
            path.display()
        )),
    })?;
    // Opening a pipe would wait.
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return Err(refuse(&"neither a regular file nor a block device"));
    }
    outrigger_driver_kernel::inspect(path).map_err(|error| refuse(&error))
}
