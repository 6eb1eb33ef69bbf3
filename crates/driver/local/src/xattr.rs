// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes, reached through `/proc/self/fd`, because an `O_PATH` descriptor refuses fgetxattr(2).
//!
//! The path leads to the very inode the descriptor holds, a symbolic link included, so nothing is looked up or followed.

use crate::attr::{failed, stat_fd};
use crate::handle::list_xattr_at;
use crate::tree::proc_path;
use bytes::Bytes;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::attr::SET_GID;
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Credentials, Result, XattrName};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The largest value and the longest list Linux allows, in bytes (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const LARGEST: usize = 64 << 10;
/// Room that is enough for most values and lists.
const USUAL: usize = 512;

/// Whether `caller` may know of an attribute: those in `trusted` exist for root only (see xattr(7)), and the host, which
/// sees us, cannot tell.
pub(crate) fn is_visible(caller: &Credentials, name: &XattrName) -> bool {
    caller.uid == 0 || !name.starts_with(b"trusted.")
}

/// Refuses with `errno` what [`is_visible`] hides.
pub(crate) fn require_visible(
    caller: &Credentials,
    name: &XattrName,
    errno: outrigger_core::Errno,
) -> Result<()> {
    if is_visible(caller, name) { Ok(()) } else { Err(errno.into()) }
}

/// The value of an attribute.
pub(crate) fn get(fd: BorrowedFd<'_>, name: &XattrName) -> Result<Bytes> {
    let path = proc_path(fd);
    with_room(|buffer| rustix::fs::getxattr(&*path, name.as_bytes(), buffer))
}

/// The names of all attributes.
pub(crate) fn list(fd: BorrowedFd<'_>) -> Result<Vec<XattrName>> {
    let path = proc_path(fd);
    split(with_room(|buffer| rustix::fs::listxattr(&*path, buffer))?)
}

/// The names of all attributes of what is called `name` in `dir`, a symbolic link included.
pub(crate) fn list_at(dir: BorrowedFd<'_>, name: &CStr) -> Result<Vec<XattrName>> {
    split(with_room(|buffer| match list_xattr_at(dir, name, buffer) {
        // Filters of system calls refuse with EPERM what they do not know.
        Err(Errno::NOSYS | Errno::PERM) => {
            let path = Path::new(&proc_path(dir)).join(OsStr::from_bytes(name.to_bytes()));
            rustix::fs::llistxattr(path, buffer)
        }
        result => result,
    })?)
}

fn split(names: Bytes) -> Result<Vec<XattrName>> {
    let parts = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    parts.map(|name| XattrName::new(names.slice_ref(name))).collect()
}

fn with_room(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Bytes> {
    let mut small = [0; USUAL];
    match call(&mut small) {
        Ok(len) => Ok(Bytes::copy_from_slice(&small[..len])),
        Err(Errno::RANGE) => {
            let mut large = vec![0; LARGEST];
            let len = call(&mut large).map_err(failed)?;
            large.truncate(len);
            Ok(large.into())
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Whether the file system of a file keeps access lists.
pub(crate) fn keeps_acl(fd: BorrowedFd<'_>) -> bool {
    let asked = rustix::fs::getxattr(proc_path(fd), "system.posix_acl_access", &mut [0_u8; 0]);
    !matches!(asked, Err(Errno::OPNOTSUPP))
}

/// Sets an attribute.
pub(crate) fn set(fd: BorrowedFd<'_>, name: &XattrName, value: &[u8], flags: XattrFlags) -> Result<()> {
    // The type of rustix keeps bits it does not know; setxattr(2) refuses them.
    let how = rustix::fs::XattrFlags::from_bits_retain((flags - XattrFlags::KILL_SGID).bits());
    rustix::fs::setxattr(proc_path(fd), name.as_bytes(), value, how).map_err(failed)?;
    if flags.contains(XattrFlags::KILL_SGID) {
        let mode = stat_fd(fd)?.mode & MODE_PERMISSIONS;
        if mode & SET_GID != 0 {
            rustix::fs::chmod(proc_path(fd), Mode::from_raw_mode(mode & !SET_GID)).map_err(failed)?;
        }
    }
    Ok(())
}

/// Removes an attribute.
pub(crate) fn remove(fd: BorrowedFd<'_>, name: &XattrName) -> Result<()> {
    rustix::fs::removexattr(proc_path(fd), name.as_bytes()).map_err(failed)
}
