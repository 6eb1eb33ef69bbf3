// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a file for writing and making it if it does not exist, as open(2) does with `O_CREAT`.

use crate::context::Place;
use outrigger_client::{File, Follow, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, FileKind, Result};

/// The most symbolic links followed to a file that does not exist, as in Linux.
const LINKS_MAX: usize = 40;

/// Opens the file at `place`, following symbolic links; makes it with `mode` when `create` is set and it does not
/// exist, where a dangling symbolic link leads.
///
/// # Errors
/// `EISDIR`, `ENOENT`, `ELOOP`, or whatever the tree answers.
pub fn open(place: &Place, flags: OpenFlags, create: bool, mode: u32) -> Result<(Inode, File)> {
    let mut place = place.clone();
    for _ in 0..LINKS_MAX {
        match place.find(Follow::Yes) {
            Ok(inode) if inode.is_dir() => return Err(Errno::EISDIR.into()),
            Ok(inode) => match inode.open(flags) {
                // Its name was cached: it is asked about anew, as the kernel does.
                Err(error) if error.errno == Errno::ESTALE => continue,
                file => return Ok((inode, file?)),
            },
            Err(error) if error.errno == Errno::ENOENT && create => {}
            Err(error) => return Err(error),
        }
        if place.path.ends_with(b"/") {
            return Err(Errno::EISDIR.into());
        }
        let (dir, name) = place.parent()?;
        match dir.create(&name, mode, flags | OpenFlags::EXCL) {
            // A dangling link, or another process has created it meanwhile.
            Err(error) if error.errno == Errno::EEXIST => {}
            created => return created,
        }
        let existing = dir.lookup(&name)?;
        if existing.kind() == FileKind::Symlink {
            place.path = target_path(&place.path, &existing.readlink()?);
        }
    }
    Err(Errno::ELOOP.into())
}

/// The path a symbolic link at `path` with this target leads to.
fn target_path(path: &[u8], target: &[u8]) -> Vec<u8> {
    if target.starts_with(b"/") {
        return target.to_vec();
    }
    let dir = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    [&path[..dir], target].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_their_directory() {
        assert_eq!(target_path(b"/a/link", b"b"), b"/a/b");
        assert_eq!(target_path(b"/a/link", b"../b"), b"/a/../b");
        assert_eq!(target_path(b"/a/link", b"/b"), b"/b");
        assert_eq!(target_path(b"link", b"b"), b"b");
    }
}
