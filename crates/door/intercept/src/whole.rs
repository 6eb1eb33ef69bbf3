// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is the root directory: the program sees nothing of the former one but what the kernel and running programs make of
//! names there.

use crate::failed;
use crate::root::{PLACES, SOURCE};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use rustix::process::{chdir, geteuid, pivot_root};
use std::fs;
use std::path::Path;

/// What stays that of the system: devices, processes, and the sockets of running programs.
const REAL: [&str; 4] = ["proc", "sys", "dev", "run"];

/// The place of a tree that becomes the root directory.
pub(crate) struct Whole(&'static str);

impl Whole {
    /// Finds a place to mount the tree on.
    ///
    /// # Errors
    /// A sentence about what is missing.
    pub(crate) fn new() -> Result<Self, String> {
        let place = PLACES.into_iter().find(|place| Path::new(place).is_dir());
        place.map(Whole).ok_or_else(|| "there is no directory to mount on".to_owned())
    }

    /// Where the tree is to be mounted.
    pub(crate) fn place(&self) -> &'static str {
        self.0
    }

    /// How it is to be mounted. The superuser's programs find there what they find outside: programs that make them another user,
    /// and devices.
    pub(crate) fn flags(&self) -> MountFlags {
        if geteuid().is_root() { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV }
    }

    /// Makes the tree, which is mounted, the root directory. The directory `empty` shows nothing there.
    ///
    /// # Errors
    /// A sentence about what cannot be done.
    pub(crate) fn enter(self, empty: &Path) -> Result<(), String> {
        let tree = Path::new(self.0);
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
        // The former root comes to lie on the new one (pivot_root(2)), and is taken away from there.
        let change =
            chdir(tree).and_then(|()| pivot_root(".", ".")).and_then(|()| unmount(".", UnmountFlags::DETACH));
        change.and_then(|()| chdir("/")).map_err(failed("the root directory cannot be replaced"))
    }
}
