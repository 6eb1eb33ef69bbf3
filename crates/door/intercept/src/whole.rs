// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is the root directory: the program sees nothing of the former one but what the kernel and running programs make of
//! names there.

use crate::failed;
use crate::launch::{Prefix, no_directory};
use crate::root::{PLACES, SOURCE};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, unmount};
use rustix::process::{chdir, geteuid, pivot_root};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// What stays that of the system: devices, processes, and the sockets of running programs.
const REAL: [&str; 4] = ["proc", "sys", "dev", "run"];

/// A directory in memory that covers another one, until the root directory changes.
pub(crate) struct Whole(&'static str);

impl Whole {
    /// How the trees that stand in the root directory are to be mounted: nothing outside changes.
    pub(crate) const FLAGS_OF_TREES: MountFlags =
        MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV);

    /// Makes it.
    ///
    /// # Errors
    /// A sentence about what is missing.
    pub(crate) fn new() -> Result<Self, String> {
        let place = PLACES.into_iter().find(|place| Path::new(place).is_dir());
        let whole = Whole(place.ok_or("there is no directory to mount on")?);
        mount(SOURCE, whole.0, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")
            .map_err(failed(whole.0))?;
        for dir in [whole.tree(), whole.trees()] {
            fs::create_dir(&dir).map_err(failed(dir.display()))?;
        }
        Ok(whole)
    }

    /// Where the tree is to be mounted that becomes the root directory.
    pub(crate) fn tree(&self) -> PathBuf {
        Path::new(self.0).join("tree")
    }

    /// Where the trees are to be mounted that stand in it.
    pub(crate) fn trees(&self) -> PathBuf {
        Path::new(self.0).join("trees")
    }

    /// How the tree is to be mounted. The superuser's programs find there what they find outside: programs that make them another user,
    /// and devices.
    pub(crate) fn flags(&self) -> MountFlags {
        if geteuid().is_root() { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV }
    }

    /// Makes the tree, which is mounted, the root directory, with the trees under their prefixes. The directory `empty` shows nothing
    /// there.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn enter(self, empty: &Path, prefixes: &[Prefix]) -> Result<(), String> {
        let tree = self.tree();
        for name in REAL {
            let (from, to) = (Path::new("/").join(name), tree.join(name));
            // A symbolic link leads to a directory that the tree has, too.
            if fs::symlink_metadata(&from).is_ok_and(|found| found.is_dir()) {
                mount_bind_recursive(&from, &to).map_err(failed(from.display()))?;
            }
        }
        let within = tree.join(empty.strip_prefix("/").unwrap_or(empty));
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(SOURCE, &within, "tmpfs", flags, c"mode=555").map_err(failed(empty.display()))?;
        prefixes.iter().try_for_each(|prefix| self.show(prefix))?;
        // The former root comes to lie on the new one (pivot_root(2)), and is taken away from there.
        let change = chdir(&tree)
            .and_then(|()| pivot_root(".", "."))
            .and_then(|()| unmount(".", UnmountFlags::DETACH));
        change.and_then(|()| chdir("/")).map_err(failed("the root directory cannot be replaced"))
    }

    /// Shows a tree under its prefix, which is found as it will be: with the tree as the root directory.
    fn show(&self, Prefix { path, name }: &Prefix) -> Result<(), String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(self.tree(), flags, Mode::empty()).map_err(failed("the root directory"))?;
        let place = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
        let place = place.map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => no_directory(path),
            _ => failed(format_args!("'{}'", path.display()))(error),
        })?;
        mount_bind(self.trees().join(name), format!("/proc/self/fd/{}", place.as_raw_fd()))
            .map_err(failed(format_args!("'{}'", path.display())))
    }
}
