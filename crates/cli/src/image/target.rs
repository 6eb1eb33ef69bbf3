// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that an image is made in: under another name until it is complete.

use crate::context::{Context, absolute};
use crate::location::{Base, Location};
use crate::place::Place;
use crate::say::operand;
use crate::status::Failure;
use crate::temporary::name_beside;
use outrigger_core::{Error, Name};
use rustix::fs::RenameFlags;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// An image in the making. Dropped without [`Target::publish`], it leaves nothing.
///
/// Others may write to its directory, and put another file, or a link to one, in the place of this one: who writes to it does that by
/// its descriptor.
pub struct Target {
    /// The directory it is in, without symbolic links.
    directory: PathBuf,
    place: Place,
    temporary: Place,
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
        let failed = |error: io::Error| cannot(Error::from(error).to_string());
        let path = PathBuf::from(OsString::from_vec(absolute(path.as_os_str().as_bytes().to_vec())?));
        let name = path.file_name().and_then(|name| Name::try_from(name).ok());
        let name = name.ok_or_else(|| cannot("this is no name of a file".into()))?;
        let directory = path.parent().unwrap_or(Path::new("/")).canonicalize().map_err(failed)?;
        let place = Place::of(&directory.join(name.as_os_str())).map_err(failed)?;
        match place.found().map_err(failed)? {
            Some(there) if !there.is_file() => {
                return Err(cannot("what has this name is no regular file, and is not replaced".into()));
            }
            Some(_) if !replaces => return Err(cannot("it exists: --force replaces it".into())),
            Some(_) | None => {}
        }
        let temporary = place.sibling(name_beside(&name)?.as_os_str()).map_err(failed)?;
        let new =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(temporary.path());
        let file = new.map_err(failed)?;
        let (shown, mode) = (image.to_owned(), 0o666 & !context.umask);
        Ok(Target { directory, place, temporary, file, shown, replaces, mode, published: false })
    }

    /// The directory it is in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The error message when the image cannot be made.
    pub fn failure(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format!("cannot make {}: {why}", operand(&self.shown)))
    }

    /// Gives the complete image its name, when it is on the medium.
    ///
    /// # Errors
    /// When that fails, another file got this name meanwhile, or the file has lost the one it had; then there is no image.
    pub fn publish(mut self) -> Result<(), Failure> {
        let stored = self.file.set_permissions(Permissions::from_mode(self.mode));
        stored.and_then(|()| self.file.sync_all()).map_err(|error| self.failure(Error::from(error)))?;
        if !self.is_there().map_err(|error| self.failure(Error::from(error)))? {
            let name = operand(self.temporary.name());
            return Err(
                self.failure(format_args!("another process has removed or replaced {name} beside it"))
            );
        }
        let renamed = match self.replaces {
            true => self.temporary.rename(&self.place, RenameFlags::empty()).map_err(io::Error::from),
            false => self.temporary.rename_to_new(&self.place),
        };
        renamed.map_err(|error| self.failure(Error::from(error)))?;
        self.published = true;
        // The image is whole in any case; only whether its name outlasts a power failure depends on this.
        let kept = File::open(self.place.dir()).and_then(|directory| directory.sync_all());
        kept.map_err(|error| {
            self.failure(format_args!("its directory cannot be stored: {}", Error::from(error)))
        })
    }

    /// Whether the name that it has until it is complete leads to it.
    fn is_there(&self) -> io::Result<bool> {
        let (own, found) = (self.file.metadata()?, self.temporary.found()?);
        Ok(found.is_some_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // An error of this would hide the one that ended the work.
        if !self.published && matches!(self.is_there(), Ok(true)) {
            drop(self.temporary.remove(false));
        }
    }
}

/// What stands for an open file in a path, for this process and for one that inherits it.
pub fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
