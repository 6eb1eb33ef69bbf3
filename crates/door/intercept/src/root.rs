// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root directory with additional names: a directory in memory, in which everything stands that the root had, and the prefixes.

use crate::failed;
use crate::launch::Prefix;
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};
use rustix::process::pivot_root;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Where the trees are mounted until they stand under their prefixes.
pub(crate) const TREES: &str = "/.outrigger-trees";
/// Where the former root is meanwhile.
const FORMER: &str = "/.outrigger-former";
/// Directories that every system has, of which one is covered for the moment in which the root changes.
pub(crate) const PLACES: [&str; 4] = ["/tmp", "/var", "/usr", "/etc"];

/// The new root.
pub(crate) struct Root(());

impl Root {
    /// Makes it, with a directory for each prefix that the former root does not have, and changes to it.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn make(prefixes: &[Prefix]) -> Result<Self, String> {
        change().map_err(failed("the root directory cannot be replaced"))?;
        let entries = fs::read_dir(FORMER).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(failed("the root directory"))? {
            let (from, to) = (entry.path(), Path::new("/").join(entry.file_name()));
            copy(&from, &to).map_err(failed(format_args!("'{}'", to.display())))?;
        }
        for Prefix { path, .. } in prefixes {
            prepare(path)?;
        }
        fs::create_dir(TREES).map_err(failed(TREES))?;
        Ok(Root(()))
    }

    /// Shows the trees under their prefixes, and removes what was needed for that.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn show(self, prefixes: &[Prefix]) -> Result<(), String> {
        for Prefix { path, name } in prefixes {
            mount_bind(Path::new(TREES).join(name), path)
                .map_err(failed(format_args!("'{}'", path.display())))?;
        }
        finish().map_err(failed("the root directory"))
    }
}

/// Makes a directory in memory the root; the former one is in it.
fn change() -> io::Result<()> {
    let place = PLACES.into_iter().find(|place| Path::new(place).is_dir()).ok_or(io::ErrorKind::NotFound)?;
    mount("outrigger-run", place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")?;
    let former = Path::new(place).join(&FORMER[1..]);
    fs::create_dir(&former)?;
    Ok(pivot_root(place, &former)?)
}

/// Has an entry of the former root in the new one.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?
    } else {
        File::create_new(to).map(drop)?
    }
    Ok(mount_bind_recursive(from, to)?)
}

/// Makes the directory where a tree will stand. That is done in the root only, which is in memory: nothing is left of it anywhere.
fn prepare(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Ok(());
    }
    let top: PathBuf = path.components().take(2).collect();
    if is_of_former_root(&top) {
        return Err(format!(
            "'{}' is no directory: make one there, or choose a name in the root, as /NAME",
            path.display()
        ));
    }
    fs::create_dir_all(path).map_err(failed(format_args!("'{}'", path.display())))
}

/// Whether a name in the root was there before: only what [`prepare`] has made is on the file system of the root itself.
fn is_of_former_root(top: &Path) -> bool {
    let Ok(entry) = fs::symlink_metadata(top) else { return false };
    let root = fs::symlink_metadata("/").map(|root| root.dev());
    entry.is_symlink() || root.is_ok_and(|root| root != entry.dev())
}

/// Takes away what the program is not to see. What it makes in the root would be lost, so nothing can be made there.
fn finish() -> io::Result<()> {
    for place in [TREES, FORMER] {
        unmount(place, UnmountFlags::DETACH)?;
        fs::remove_dir(place)?;
    }
    Ok(mount_remount(
        "/",
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        c"",
    )?)
}
