// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that an image is made in: under another name until it is complete.

use crate::context::{Context, absolute};
use crate::location::{Base, Location};
use crate::say::operand;
use crate::status::Failure;
use crate::temporary::name_beside;
use outrigger_core::{Error, Name};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// An image in the making. Dropped without [`Target::publish`], it leaves nothing.
pub struct Target {
    path: PathBuf,
    temporary: PathBuf,
    /// Open for reading and writing.
    pub file: File,
    /// How the user calls it.
    shown: OsString,
    replaces: bool,
    mode: u32,
    published: bool,
}

impl Target {
    /// Makes the file beside `image`, which must not exist unless it `replaces` a regular file.
    ///
    /// # Errors
    /// A sentence that says why there can be no such image.
    pub fn new(context: &Context, image: &OsStr, replaces: bool) -> Result<Self, Failure> {
        let cannot = |why: String| Failure::serious(format!("cannot make {}: {why}", operand(image)));
        let location = Location::parse(image);
        let Base::Host(path) = &location.base else {
            return Err(cannot(
                "an image is made as a file of this machine; `outrigger cp` takes it elsewhere".into(),
            ));
        };
        if !location.nested.is_empty() {
            return Err(cannot("an image is made as a file of this machine, not inside of one".into()));
        }
        let path = PathBuf::from(OsString::from_vec(absolute(path.as_os_str().as_bytes().to_vec())?));
        match path.symlink_metadata() {
            Ok(there) if !there.is_file() => {
                return Err(cannot("what has this name is no regular file, and is not replaced".into()));
            }
            Ok(_) if !replaces => return Err(cannot("it exists: --force replaces it".into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(Error::from(error).to_string())),
        }
        let name = path.file_name().and_then(|name| Name::try_from(name).ok());
        let name = name.ok_or_else(|| cannot("this is no name of a file".into()))?;
        let temporary = path.with_file_name(name_beside(&name)?.as_os_str());
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| cannot(Error::from(error).to_string()))?;
        let (shown, mode) = (image.to_owned(), 0o666 & !context.umask);
        Ok(Target { path, temporary, file, shown, replaces, mode, published: false })
    }

    /// Where it is until it is complete.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// The directory it is in.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The error message when the image cannot be made.
    pub fn failure(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format!("cannot make {}: {why}", operand(&self.shown)))
    }

    /// Gives the complete image its name, when it is on the medium.
    ///
    /// # Errors
    /// When that fails, or another file got this name meanwhile; then there is no image.
    pub fn publish(mut self) -> Result<(), Failure> {
        // A tool may have put another file in its place.
        let stored = File::open(&self.temporary).and_then(|file| {
            file.set_permissions(Permissions::from_mode(self.mode))?;
            file.sync_all()
        });
        stored.map_err(|error| self.failure(Error::from(error)))?;
        let flags = if self.replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let renamed = renameat_with(CWD, &self.temporary, CWD, &self.path, flags);
        renamed.map_err(|errno| self.failure(Error::from(io::Error::from(errno))))?;
        self.published = true;
        // The image is whole in any case; only whether its name outlasts a power failure depends on this.
        let kept = File::open(self.directory()).and_then(|directory| directory.sync_all());
        kept.map_err(|error| {
            self.failure(format_args!("its directory cannot be stored: {}", Error::from(error)))
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.published {
            // If it cannot be removed, there is nothing more to be done; what failed before is what is told.
            drop(std::fs::remove_file(&self.temporary));
        }
    }
}
