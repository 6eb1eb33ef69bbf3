// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and sockets of this machine, in the directories that the configuration names and nowhere else.

use crate::places::OnMachine;
use outrigger_core::{Errno, Error, FileKind, Result, Runtime};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::sync::oneshot;

/// Runs what asks file systems of this machine on a thread that may wait.
///
/// # Errors
/// Those of `job`; `EIO` when the program ends.
pub(crate) async fn aside<T: Send + 'static>(
    runtime: &dyn Runtime,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    runtime.spawn_blocking(Box::new(move || drop(sender.send(job()))));
    receiver.await.unwrap_or_else(|_| Err(Errno::EIO.because("the program is ending")))
}

impl OnMachine {
    /// The kind of what is there: a directory, or a file that can be opened.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn kind(&self) -> Result<FileKind> {
        let stat = fstat(self.reach(OFlags::PATH)?).map_err(|errno| self.error(errno))?;
        let kind = FileKind::of_mode(stat.st_mode).unwrap_or(FileKind::Socket);
        Ok(if kind == FileKind::Directory { kind } else { FileKind::Regular })
    }

    /// The socket that is there, to connect to.
    ///
    /// # Errors
    /// Those of opening it; `EACCES` for what is no socket.
    pub(crate) fn socket(&self) -> Result<OwnedFd> {
        self.of_kind(OFlags::PATH, FileKind::Socket, "it is no socket")
    }

    /// The regular file that is there, opened with these flags. It is never made.
    ///
    /// # Errors
    /// Those of opening it; `EACCES` for what is no regular file.
    pub(crate) fn file(&self, flags: OFlags) -> Result<File> {
        // A named pipe would have the opening wait, and a device may do anything when it is opened.
        self.of_kind(OFlags::PATH, FileKind::Regular, "it is no regular file")?;
        let wanted = flags & (OFlags::ACCMODE | OFlags::TRUNC | OFlags::APPEND) | OFlags::NOCTTY;
        let file = self.of_kind(wanted | OFlags::NONBLOCK, FileKind::Regular, "it is no regular file")?;
        Ok(File::from(file))
    }

    fn of_kind(&self, flags: OFlags, kind: FileKind, otherwise: &str) -> Result<OwnedFd> {
        let file = self.reach(flags)?;
        let stat = fstat(&file).map_err(|errno| self.error(errno))?;
        match FileKind::of_mode(stat.st_mode) == Some(kind) {
            true => Ok(file),
            false => Err(Errno::EACCES.because(format!("{}: {otherwise}", self.shown()))),
        }
    }

    /// Opens what is there. No name and no symbolic link leads out of the directory.
    fn reach(&self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        if self.path == Path::new("") {
            return openat(CWD, &self.base, flags, Mode::empty()).map_err(|errno| self.error(errno));
        }
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, &self.base, directory, Mode::empty()).map_err(|errno| self.error(errno))?;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(base, &self.path, flags, Mode::empty(), within).map_err(|errno| match errno {
            rustix::io::Errno::XDEV => {
                let (place, base) = (self.shown(), self.base.display());
                Errno::EACCES.because(format!("{place}: a symbolic link in it leads out of {base}"))
            }
            errno => self.error(errno),
        })
    }

    fn error(&self, errno: rustix::io::Errno) -> Error {
        let errno = Errno(errno.raw_os_error());
        errno.because(format!("{}: {}", self.shown(), errno.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_of_the_directory_is_reached() {
        let temp = tempfile::tempdir().expect("a directory");
        let base = temp.path().join("base");
        fs::create_dir_all(base.join("sub")).expect("made");
        fs::write(base.join("sub/file"), "inside").expect("written");
        fs::write(temp.path().join("secret"), "outside").expect("written");
        symlink("../secret", base.join("relative")).expect("linked");
        symlink(temp.path().join("secret"), base.join("absolute")).expect("linked");
        symlink("sub/file", base.join("inside")).expect("linked");
        let at = |path: &str| OnMachine { base: base.clone(), path: path.into(), sockets: false };
        for path in ["relative", "absolute"] {
            let error = at(path).file(OFlags::RDONLY).expect_err(path);
            assert!(error.errno == Errno::EACCES && error.to_string().contains("leads out of"), "{error}");
            assert_eq!(at(path).kind().map_err(|error| error.errno), Err(Errno::EACCES));
        }
        assert_eq!(at("inside").kind(), Ok(FileKind::Regular));
        assert_eq!(at("sub").kind(), Ok(FileKind::Directory));
        assert!(at("inside").file(OFlags::RDONLY).is_ok());
        assert_eq!(at("none").kind().map_err(|error| error.errno), Err(Errno::ENOENT));
        assert_eq!(at("sub").file(OFlags::RDONLY).err().map(|error| error.errno), Some(Errno::EACCES));
        assert_eq!(at("inside").socket().err().map(|error| error.errno), Some(Errno::EACCES));
    }
}
