// SPDX-License-Identifier: MIT OR Apache-2.0
//! Permissions that a file has for a moment, while a program opens it.

use super::stopped::path_of;
use crate::notify::mirror::PERMITTING;
use outrigger_core::lock;
use rustix::fs::{Mode, OFlags, Stat, fchmod, fcntl_getfl, fstat};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A file that its owner may read and write, whatever its permissions said before: the tree has decided whether it may be opened.
///
/// Programs that open the same file at the same time share it. When it is dropped, the permissions are restored, unless others have
/// changed them.
pub(super) struct Lent {
    file: OwnedFd,
    identity: (u64, u64),
    before: Mode,
    meanwhile: Mode,
}

impl Lent {
    /// Lends what a program lacks to open a file as it is open here, if it is one of this server (`is_own`, by its path): never a real one.
    pub(super) fn to_open<'l>(
        file: &OwnedFd,
        is_own: impl Fn(&[u8]) -> bool,
        mut others: impl Iterator<Item = &'l Arc<Lent>>,
    ) -> Option<Arc<Self>> {
        if !path_of(file.as_fd()).is_ok_and(|path| is_own(path.as_bytes())) {
            return None;
        }
        let _alone = lock(&PERMITTING);
        let found = fstat(file).ok()?;
        let identity = identity(&found);
        if let Some(lent) = others.find(|lent| lent.identity == identity) {
            return Some(Arc::clone(lent));
        }
        let before = Mode::from_raw_mode(found.st_mode);
        if before.contains(needed(fcntl_getfl(file).ok()?)) {
            return None;
        }
        let copy = file.try_clone().ok()?;
        fchmod(file, before | Mode::RUSR | Mode::WUSR).ok()?;
        let meanwhile = fstat(file).map_or(before, |found| Mode::from_raw_mode(found.st_mode));
        Some(Arc::new(Lent { file: copy, identity, before, meanwhile }))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _alone = lock(&PERMITTING);
        let now = fstat(&self.file).map(|found| Mode::from_raw_mode(found.st_mode));
        if now == Ok(self.meanwhile) {
            // It may be no one's any more.
            let _ = fchmod(&self.file, self.before);
        }
    }
}

/// The permissions that opening a file so takes.
fn needed(flags: OFlags) -> Mode {
    match flags & OFlags::RWMODE {
        OFlags::WRONLY => Mode::WUSR,
        OFlags::RDWR => Mode::RUSR | Mode::WUSR,
        _ => Mode::RUSR,
    }
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn permissions_are_lent_to_own_files_and_given_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("file");
        let own = path.parent().unwrap().as_os_str().as_encoded_bytes().to_vec();
        let file: OwnedFd = File::create(&path).unwrap().into();
        let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        set(0o444);
        assert!(Lent::to_open(&file, |_| false, [].iter()).is_none());
        assert_eq!(mode(), 0o444, "one of others");
        let is_own = |path: &[u8]| path.starts_with(&own);
        let first = Lent::to_open(&file, is_own, [].iter()).unwrap();
        let second = Lent::to_open(&file, is_own, [Arc::clone(&first)].iter()).unwrap();
        drop(first);
        assert_eq!(mode(), 0o644, "the second one opens it");
        drop(second);
        assert_eq!(mode(), 0o444);
        let lent = Lent::to_open(&file, is_own, [].iter()).unwrap();
        set(0o400);
        drop(lent);
        assert_eq!(mode(), 0o400, "what others have changed stays");
        set(0o200);
        assert!(Lent::to_open(&file, is_own, [].iter()).is_none(), "it is open for writing only");
    }
}
