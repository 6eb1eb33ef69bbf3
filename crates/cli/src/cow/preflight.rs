// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a commit would fail at in the middle, found out before anything is done.

use super::changes::{Became, Change};
use crate::place::{leads_nowhere, open_dir};
use outrigger_core::Errno;
use rustix::fs::{Access, AtFlags, OFlags, StatVfsMountFlags, accessat, fstat, fstatvfs};
use rustix::process::geteuid;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Fails for a change that this user can never make. `is_copy`: the file in the overlay began as a copy of the real one.
///
/// # Errors
/// Why it cannot be made.
pub fn check(change: &Change, is_copy: bool) -> io::Result<()> {
    let Some(parent) = change.path.parent() else { return Ok(()) };
    let dir = match open_dir(parent, OFlags::PATH) {
        // The commit makes it, or something else has the name: then there is a conflict.
        Err(error) if leads_nowhere(&error) => return Ok(()),
        dir => dir?,
    };
    if fstatvfs(&dir)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(Errno::EROFS.because("it is on a file system that is mounted read-only").into());
    }
    let user = geteuid();
    if user.is_root() {
        return Ok(());
    }
    if let Some(real) = &change.real
        && is_copy
        && change.became == Became::Modified
        && real.uid() != user.as_raw()
    {
        let why = format!(
            "it belongs to user {}, and this user can neither change nor give it to them",
            real.uid()
        );
        return Err(Errno::EPERM.because(why).into());
    }
    // The owner of a directory is given the right to change names in it.
    let in_place = change.became == Became::Modified && !change.what.contains(&"content");
    if in_place || fstat(&dir)?.st_uid == user.as_raw() {
        return Ok(());
    }
    accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| Errno::EACCES.because("this user may not change names in its directory").into())
}
