// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of real files whose directories are reached without symbolic links: what others make of a directory meanwhile leads nowhere
//! else.

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, linkat, openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A name in a directory that is open.
pub struct Place {
    dir: OwnedFd,
    name: OsString,
}

/// Opens a directory, none of whose names is a symbolic link.
///
/// # Errors
/// Those of openat2(2).
pub fn open_dir(path: &Path, how: OFlags) -> io::Result<OwnedFd> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// Sets the permissions of a file that is open, also of one that is open as a name only.
///
/// # Errors
/// Those of chmod(2).
pub fn set_mode(file: &OwnedFd, mode: u32) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Whether an error says that a path leads to no file now.
pub fn leads_nowhere(error: &io::Error) -> bool {
    let number = Errno::from_io_error(error);
    number.is_some_and(|number| [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].contains(&number))
}

impl Place {
    /// The place of a path.
    ///
    /// # Errors
    /// Those of [`open_dir`] for the directory.
    pub fn of(path: &Path) -> io::Result<Self> {
        // The root is a name in itself.
        let dir = path.parent().unwrap_or(path);
        let name = path.file_name().unwrap_or(OsStr::new(".")).to_owned();
        Ok(Place { dir: open_dir(dir, OFlags::PATH)?, name })
    }

    /// Another name in the same directory.
    ///
    /// # Errors
    /// That there are too many descriptors.
    pub fn sibling(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Place { dir: self.dir.try_clone()?, name: name.to_owned() })
    }

    /// The name in its directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The directory, for calls that take a path.
    pub fn dir(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// The file, for calls that take a path.
    pub fn path(&self) -> PathBuf {
        self.dir().join(&self.name)
    }

    /// What has the name.
    ///
    /// # Errors
    /// Those of lstat(2), but for `ENOENT`.
    pub fn found(&self) -> io::Result<Option<Metadata>> {
        match fs::symlink_metadata(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Gives the file another name.
    ///
    /// # Errors
    /// Those of renameat2(2).
    pub fn rename(&self, to: &Place, how: RenameFlags) -> rustix::io::Result<()> {
        renameat_with(&self.dir, &*self.name, &to.dir, &*to.name, how)
    }

    /// Gives the file a name that nothing has.
    ///
    /// # Errors
    /// Those of renameat2(2); `EEXIST` when something has the name.
    pub fn rename_to_new(&self, to: &Place) -> io::Result<()> {
        match self.rename(to, RenameFlags::NOREPLACE) {
            // Not every file system can do that in one step (NFS).
            Err(Errno::INVAL | Errno::NOSYS) => self.link_to_new(to),
            renamed => Ok(renamed?),
        }
    }

    /// The same in two steps, between which the file has both names.
    fn link_to_new(&self, to: &Place) -> io::Result<()> {
        match linkat(&self.dir, &*self.name, &to.dir, &*to.name, AtFlags::empty()) {
            Ok(()) => match self.remove(false) {
                // A server may have done it at a former request, whose answer was lost.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed.inspect_err(|_| drop(to.remove(false))),
            },
            // A directory has one name, and so has any file where there are no links.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => match to.found()? {
                Some(_) => Err(Errno::EXIST.into()),
                None => Ok(self.rename(to, RenameFlags::empty())?),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the name of a file, or of an empty directory.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub fn remove(&self, is_dir: bool) -> io::Result<()> {
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(unlinkat(&self.dir, &*self.name, flags)?)
    }
}
