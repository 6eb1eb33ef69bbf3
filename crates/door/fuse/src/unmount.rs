// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing a mount within a given time, whatever its server does.
use crate::mount::{HELPER, helper};
use crate::mountpoint::absolute;
use crate::utab;
use outrigger_host::MountEntry;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Fail when the mount is in use; a server that hangs is cut off after the deadline.
    No,
    /// Detach at once from the tree; programs go on with files they have open.
    Lazy,
    /// Cut the server off and detach: every request in flight and to come fails.
    Abort,
}

/// Why a mount was not removed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Nothing is mounted there.
    #[error("{path}: not mounted")]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
    /// Something else than FUSE is mounted there.
    #[error("{path}: a mount of type {fstype}, not FUSE")]
    NotFuse {
        /// The path.
        path: PathBuf,
        /// Its type.
        fstype: String,
    },
    /// Programs use the mount.
    #[error(
        "{path}: in use (see fuser -vm {path}); `outrigger umount --lazy {path}`, or --force, unmounts it all the same"
    )]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: unmount: {error}")]
    Refused {
        /// The path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Removes the FUSE mount at `path`; returns soon after `deadline` at the latest.
///
/// # Errors
/// [`UnmountError`] when it is still mounted.
pub fn unmount(path: &Path, force: Force, deadline: Duration) -> Result<(), UnmountError> {
    let refused = |error| UnmountError::Refused { path: path.to_owned(), error };
    let path = absolute(path).map_err(refused)?;
    let entry = MountEntry::at(&path)
        .map_err(|error| UnmountError::Refused { path: path.clone(), error })?
        .ok_or_else(|| UnmountError::NotMounted { path: path.clone() })?;
    if !entry.is_fuse() {
        return Err(UnmountError::NotFuse { path, fstype: entry.fstype });
    }
    unmount_entry(&entry, force, deadline)
}

/// The same for a mount of any type that has a server, such as one of the kernel's NFS client.
///
/// # Errors
/// [`UnmountError`] when it is still mounted.
pub fn unmount_entry(entry: &MountEntry, force: Force, deadline: Duration) -> Result<(), UnmountError> {
    let path = &entry.mountpoint;
    if force == Force::Abort {
        abort(entry);
    }
    let removed = remove(path, entry, force != Force::No, deadline);
    if removed.is_ok() {
        utab::forget(path);
    }
    removed
}

/// Removes the mount `entry`, without its server when that takes too long.
fn remove(path: &Path, entry: &MountEntry, lazy: bool, deadline: Duration) -> Result<(), UnmountError> {
    let refused = |error| UnmountError::Refused { path: path.to_owned(), error };
    match detach_within(path, lazy, deadline) {
        // Somebody else, or cutting it off, has removed it meanwhile.
        Some(Err(_)) if !still_there(path, entry) => Ok(()),
        Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(UnmountError::Busy { path: path.to_owned() })
        }
        Some(result) => result.map_err(refused),
        // It waits for the server, which does not answer: without the server it comes to an end.
        None => {
            abort(entry);
            match detach_within(path, true, deadline) {
                Some(Err(error)) if still_there(path, entry) => Err(refused(error)),
                None if still_there(path, entry) => Err(refused(io::ErrorKind::TimedOut.into())),
                _ => Ok(()),
            }
        }
    }
}

fn still_there(path: &Path, entry: &MountEntry) -> bool {
    MountEntry::at(path).is_ok_and(|now| now.is_some_and(|now| now.minor == entry.minor))
}

/// Cuts the connection of a FUSE mount: every request in flight and to come fails with ENOTCONN, and the server's
/// reads end. Without the control file system this needs the right to unmount. Of other mounts the requests in flight fail.
pub fn abort(entry: &MountEntry) {
    let control = format!("/sys/fs/fuse/connections/{}/abort", entry.minor);
    if !entry.is_fuse() || fs::write(&control, "1").is_err() {
        // Forced unmounting cuts the connection first. That the mount may be busy then is of no interest.
        let _ = rustix::mount::unmount(&entry.mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

/// Unmounts on a thread of its own, for the call waits for the server; `None` when it has not returned in time.
fn detach_within(path: &Path, lazy: bool, deadline: Duration) -> Option<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let owned = path.to_owned();
    let spawned = thread::Builder::new().name("unmount".into()).spawn(move || {
        // After the deadline the receiver is gone.
        let _ = sender.send(detach(&owned, lazy));
    });
    match spawned {
        Ok(_) => receiver.recv_timeout(deadline).ok(),
        Err(error) => Some(Err(error)),
    }
}

fn detach(path: &Path, lazy: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => by_helper(path, lazy),
        result => Ok(result?),
    }
}

/// Users who may not unmount ask the helper, which lets them unmount what it mounted for them.
fn by_helper(path: &Path, lazy: bool) -> io::Result<()> {
    let mut command = helper(&[]);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(format!("{HELPER}: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_fuse_mount_is_left_alone() {
        let second = Duration::from_secs(1);
        let error = unmount(Path::new("/proc"), Force::No, second).unwrap_err();
        assert!(matches!(&error, UnmountError::NotFuse { fstype, .. } if fstype == "proc"), "{error}");
        let error = unmount(Path::new("/usr/no-such-thing"), Force::Abort, second).unwrap_err();
        assert!(matches!(error, UnmountError::NotMounted { .. }), "{error}");
    }
}
