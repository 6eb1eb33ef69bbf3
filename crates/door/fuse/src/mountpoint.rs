// SPDX-License-Identifier: MIT OR Apache-2.0
//! A path to mount on.

use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What is found at a path somebody wants to mount on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mountpoint {
    /// A directory or file to mount on.
    Usable {
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// A FUSE mount whose server has died: it must be unmounted first.
    Dead,
    /// It cannot be reached for this reason.
    Unreachable(i32),
}

/// Looks at a path somebody wants to mount on.
#[must_use]
pub fn inspect(path: &Path) -> Mountpoint {
    match rustix::fs::stat(path) {
        Ok(stat) => Mountpoint::Usable { is_dir: stat.st_mode & libc::S_IFMT == libc::S_IFDIR },
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Mountpoint::Dead,
        Err(errno) => Mountpoint::Unreachable(errno.raw_os_error()),
    }
}

/// An absolute path without symbolic links in all but its last component, which is never followed or asked about.
pub(crate) fn absolute(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_is_not_usable() {
        assert_eq!(inspect(Path::new("/no/such/path")), Mountpoint::Unreachable(libc::ENOENT));
    }
}
