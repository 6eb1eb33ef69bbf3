// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root directory with additional names: a directory in memory, in which everything stands that the root had, and the prefixes.

use crate::failed;
use crate::launch::{Prefix, no_directory};
use crate::namespace::isolate;
use outrigger_host::MountEntry;
use rustix::mount::{
    MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_remount, unmount,
};
use rustix::process::pivot_root;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// What the mounts of this program are called.
pub(crate) const SOURCE: &str = "outrigger-run";
/// Where the former root is meanwhile.
const FORMER: &str = "/.outrigger-former";
/// Directories that every system has, of which one is covered for the moment in which the root changes.
pub(crate) const PLACES: [&str; 4] = ["/tmp", "/var", "/usr", "/etc"];

/// A root with directories for the trees.
pub(crate) struct Root {
    /// Where the trees are mounted until they stand under their prefixes.
    trees: PathBuf,
    /// It was made now, and is not protected yet.
    is_new: bool,
}

impl Root {
    /// Makes it, with a directory for each prefix that the former root does not have, and changes to it.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn make(prefixes: &[Prefix]) -> Result<Self, String> {
        change().map_err(failed("the root directory cannot be replaced"))?;
        let entries = fs::read_dir(FORMER).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(failed("the root directory"))? {
            let to = Path::new("/").join(entry.file_name());
            copy(&entry, &to).map_err(failed(format_args!("'{}'", to.display())))?;
        }
        let root = Root { trees: trees(), is_new: true };
        root.prepare(prefixes)?;
        Ok(root)
    }

    /// The root that was made like that before, with more directories.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn again(prefixes: &[Prefix]) -> Result<Self, String> {
        let root = Root { trees: trees(), is_new: false };
        unprotected(|| root.prepare(prefixes))?;
        Ok(root)
    }

    /// Where the trees are to be mounted.
    pub(crate) fn trees(&self) -> &Path {
        &self.trees
    }

    /// Makes the directories.
    fn prepare(&self, prefixes: &[Prefix]) -> Result<(), String> {
        prefixes.iter().try_for_each(|Prefix { path, .. }| prepare(path))?;
        fs::create_dir(&self.trees).map_err(failed(self.trees.display()))
    }

    /// Shows the trees under their prefixes, and removes what was needed for that.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn show(self, prefixes: &[Prefix]) -> Result<(), String> {
        for Prefix { path, name } in prefixes {
            mount_bind(self.trees.join(name), path).map_err(failed(format_args!("'{}'", path.display())))?;
        }
        self.finish().map_err(failed("the root directory"))
    }

    /// Takes away what the program is not to see. What it makes in the root would be lost, so nothing can be made there.
    fn finish(&self) -> io::Result<()> {
        unmount(&self.trees, UnmountFlags::DETACH)?;
        if !self.is_new {
            // What is left of it does no harm.
            let _ = unprotected(|| fs::remove_dir(&self.trees).map_err(failed(self.trees.display())));
            return Ok(());
        }
        fs::remove_dir(&self.trees)?;
        unmount(FORMER, UnmountFlags::DETACH)?;
        fs::remove_dir(FORMER)?;
        protect(MountFlags::RDONLY)
    }
}

/// A name in the root that no other process of this program uses.
fn trees() -> PathBuf {
    PathBuf::from(format!("/.outrigger-trees-{}", std::process::id()))
}

/// Makes a directory in memory the root; the former one is in it.
fn change() -> io::Result<()> {
    let place = PLACES.into_iter().find(|place| Path::new(place).is_dir()).ok_or(io::ErrorKind::NotFound)?;
    mount(SOURCE, place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")?;
    let former = Path::new(place).join(&FORMER[1..]);
    fs::create_dir(&former)?;
    Ok(pivot_root(place, &former)?)
}

/// Has an entry of the former root in the new one. What is mounted on it is not looked at: it may be a tree whose host does not answer.
fn copy(entry: &DirEntry, to: &Path) -> io::Result<()> {
    let (kind, from) = (entry.file_type()?, entry.path());
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
        return Err(no_directory(path));
    }
    fs::create_dir_all(path).map_err(failed(format_args!("'{}'", path.display())))
}

/// Whether a name in the root was there before: only what [`prepare`] has made is on the file system of the root itself.
fn is_of_former_root(top: &Path) -> bool {
    let Ok(entry) = fs::symlink_metadata(top) else { return false };
    let root = fs::symlink_metadata("/").map(|root| root.dev());
    entry.is_symlink() || root.is_ok_and(|root| root != entry.dev())
}

/// Has nothing made in the root, or anything.
fn protect(access: MountFlags) -> io::Result<()> {
    Ok(mount_remount("/", MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | access, c"")?)
}

/// Changes the directory of the root, which is protected: in a copy of the namespace, whose mounts are others for the same files.
fn unprotected(change: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let here = File::open("/proc/self/ns/mnt").map_err(failed("/proc/self/ns"))?;
    isolate()?;
    let changed = protect(MountFlags::empty()).map_err(failed("the root directory")).and_then(|()| change());
    move_into_link_name_space(here.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(failed("/proc/self/ns"))?;
    changed
}

/// Whether the root of a process was made by [`Root::make`].
pub(crate) fn is_ours(pid: u32) -> bool {
    let mounts = MountEntry::seen_by(pid).unwrap_or_default();
    mounts
        .iter()
        .any(|mount| mount.mountpoint == Path::new("/") && mount.fstype == "tmpfs" && mount.source == SOURCE)
}

/// Takes trees out of the root, and the directories that were made for them: those of a connection, or all.
///
/// # Errors
/// A sentence about what cannot be done.
pub(crate) fn clear(connection: Option<u32>) -> Result<(), String> {
    let mut mounts = MountEntry::all().map_err(failed("/proc/self/mountinfo"))?;
    mounts.retain(|mount| {
        mount.is_fuse() && mount.source == SOURCE && connection.is_none_or(|number| mount.minor == number)
    });
    for MountEntry { mountpoint, .. } in mounts.iter().rev() {
        unmount(mountpoint, UnmountFlags::DETACH)
            .map_err(failed(format_args!("'{}'", mountpoint.display())))?;
    }
    unprotected(|| {
        mounts.iter().rev().for_each(|mount| remove(&mount.mountpoint));
        Ok(())
    })
}

/// Removes a directory that was made for a tree, and those above it; others stay, and those in which something stands.
fn remove(path: &Path) {
    let above = path.ancestors().take_while(|path| path.parent().is_some() && is_in_root(path));
    for path in above {
        if fs::remove_dir(path).is_err() {
            return;
        }
    }
}

/// Whether a directory is of the file system of the root itself.
fn is_in_root(path: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|file| file.dev()).ok();
    device(path).is_some() && device(path) == device(Path::new("/"))
}
