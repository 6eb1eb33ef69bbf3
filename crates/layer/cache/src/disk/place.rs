// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory the blocks are in: one that nobody else can look into or change.

use outrigger_core::{Errno, Error, Result};
use outrigger_host::PrivateDir;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Opens the directory `outrigger/content` below `caches`; it is made where it is missing, for its owner only.
///
/// # Errors
/// `EPERM` when somebody else could change what is in it, or for a symbolic link in its place.
pub(super) fn content(caches: &Path) -> Result<OwnedFd> {
    let private =
        PrivateDir::open(caches, &["outrigger", "content"]).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Errno::EPERM.because(error.to_string()),
            kind => Error::from(io::Error::from(kind)).errno.because(error.to_string()),
        })?;
    Ok(private.into())
}
