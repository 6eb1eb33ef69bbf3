// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the control sockets of this user's mounts are.

use outrigger_core::hash::fnv1a;
use outrigger_host::PrivateDir;
use outrigger_host::users_state;
use rustix::process::geteuid;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory, made with mode 0700 when missing: `/run/outrigger` for the superuser, `$XDG_RUNTIME_DIR/outrigger`,
/// `/tmp/outrigger-UID`, or `outrigger/control` beside the crash reports, whichever is the first that can be used. Another
/// user may have taken the name in `/tmp`, and the superuser of a user namespace may not write to `/run`.
///
/// # Errors
/// When none can be made, or the last one exists but belongs to another user or is open to others.
pub fn directory() -> io::Result<PathBuf> {
    first_usable(candidates())
}

fn first_usable(candidates: Vec<(PathBuf, Vec<String>)>) -> io::Result<PathBuf> {
    let mut refused = io::ErrorKind::NotFound.into();
    for (base, own) in candidates {
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        match PrivateDir::open(&base, &own) {
            Ok(directory) => return Ok(directory.path().to_owned()),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// How the names of the sockets of mounts at `mountpoint` start: the path itself may be too long for a socket's name.
pub fn hash(mountpoint: &Path) -> String {
    format!("{:016x}", hash_number(mountpoint))
}

/// What [`hash`] shows.
pub fn hash_number(mountpoint: &Path) -> u64 {
    fnv1a(mountpoint.as_os_str().as_bytes().iter().copied())
}

/// Existing directories, and the path below each that is ours.
fn candidates() -> Vec<(PathBuf, Vec<String>)> {
    let uid = geteuid();
    let system = uid.is_root().then(|| PathBuf::from("/run"));
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|dir| dir.is_absolute() && dir.is_dir());
    let in_place = |base: PathBuf| (base, vec!["outrigger".to_owned()]);
    let shared = (PathBuf::from("/tmp"), vec![format!("outrigger-{}", uid.as_raw())]);
    let own = users_state().map(|state| (state, vec!["outrigger".to_owned(), "control".to_owned()]));
    system.into_iter().chain(session).map(in_place).chain([shared]).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_others_can_enter_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("squatted")).unwrap();
        fs::set_permissions(dir.path().join("squatted"), Permissions::from_mode(0o755)).unwrap();
        let place = |name: &str| (dir.path().to_owned(), vec![name.to_owned()]);
        let next = first_usable(vec![place("squatted"), place("own")]).unwrap();
        assert_eq!(next, dir.path().join("own"), "the next one is taken");
        let error = first_usable(vec![place("squatted")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
