// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the control sockets of this user's mounts are.

use rustix::process::geteuid;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory, made with mode 0700 when missing: `/run/outrigger` for the superuser, `$XDG_RUNTIME_DIR/outrigger`,
/// or `/tmp/outrigger-UID`, whichever is the first that can be used. The superuser of a user namespace is nobody
/// special in `/run`.
///
/// # Errors
/// When none can be made, or the last one exists but belongs to somebody else or lets others in.
pub fn directory() -> io::Result<PathBuf> {
    first_usable(candidates())
}

fn first_usable(candidates: Vec<PathBuf>) -> io::Result<PathBuf> {
    let mut refused = io::ErrorKind::NotFound.into();
    for path in candidates {
        match usable(&path) {
            Ok(()) => return Ok(path),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn usable(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check(path),
    }
}

/// How the names of the sockets of mounts at `mountpoint` start: the path itself may be too long for a socket's name.
pub fn hash(mountpoint: &Path) -> String {
    let hash = mountpoint
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(FNV_OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    format!("{hash:016x}")
}

/// Parameters of the 64-bit FNV-1a hash, which is the same in every process and release.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

fn candidates() -> Vec<PathBuf> {
    let uid = geteuid();
    let system = uid.is_root().then(|| PathBuf::from("/run/outrigger"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = runtime.filter(|dir| dir.is_absolute() && dir.is_dir()).map(|dir| dir.join("outrigger"));
    let shared = PathBuf::from(format!("/tmp/outrigger-{}", uid.as_raw()));
    system.into_iter().chain(session).chain([shared]).collect()
}

/// Whoever can write here can control this user's mounts, and `/tmp` is everybody's.
fn check(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let reason =
        format!("'{}' must be a directory of yours that nobody else can enter (mode 0700)", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(check(dir.path()).is_ok());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check(dir.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let (open, own) = (dir.path().to_owned(), dir.path().join("own"));
        assert_eq!(first_usable(vec![open.clone(), own.clone()]).unwrap(), own, "the next one is taken");
        assert!(first_usable(vec![open]).is_err());
    }
}
