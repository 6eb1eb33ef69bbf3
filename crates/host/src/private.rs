// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories that only their user can enter.

use rustix::fs::{FileType, Mode, OFlags, fstat, mkdirat, open, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Bits of a mode that let others in.
const OTHERS: u32 = 0o077;
/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;
/// The bit of a mode that lets everybody write.
const ALL_WRITE: u32 = 0o002;
/// The bit of a mode that protects everybody's names in a directory from the others (S_ISVTX).
const STICKY: u32 = 0o1000;
/// Whose files those of unknown users seem to be in a user namespace (/proc/sys/kernel/overflowuid).
const OVERFLOW: u32 = 65534;

/// The most symbolic links on one way, as path_resolution(7) has it.
const LINKS: usize = 40;

/// A directory of the effective user, mode 0700, open. Its files are reached by the descriptor ([`AsFd`]), so no other user can put
/// another directory in its place.
#[derive(Debug)]
pub struct PrivateDir {
    dir: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens the directory `own`, a path of names, below `base`. What is missing is made, for its user only.
    ///
    /// `base` belongs to the user or the superuser, and not everybody may write there unless it is sticky as `/tmp` is. Symbolic
    /// links of theirs on the way to it are followed; in place of a name of `own` all are refused. These directories must belong to the
    /// user: no other user may enter the last one, or write to those above it.
    ///
    /// # Errors
    /// `PermissionDenied` and a sentence when others could change what is in it, or a link or a file is in its place; those of
    /// making directories.
    pub fn open(base: &Path, own: &[&str]) -> io::Result<Self> {
        let mut path = base.to_owned();
        let mut dir = base_dir(base)?;
        for (left, name) in (0..own.len()).rev().zip(own) {
            path.push(name);
            dir = own_dir(&dir, name).map_err(|error| about(&path, error))?;
            must_be_private(&dir, if left == 0 { OTHERS } else { OTHERS_WRITE }, &path)?;
        }
        Ok(PrivateDir { dir, path })
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for PrivateDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl From<PrivateDir> for OwnedFd {
    fn from(private: PrivateDir) -> Self {
        private.dir
    }
}

/// Opens the directory `name` in `dir`, which is made if it is missing. A symbolic link is not followed.
///
/// # Errors
/// `ENOTDIR` or `ELOOP` when something else is there, and those of mkdir(2).
pub fn own_dir(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(&dir, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(dir, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the directory that everything is below; made where it is missing, unless that would be in another user's directory.
fn base_dir(path: &Path) -> io::Result<OwnedFd> {
    let dir = match followed(path)? {
        Err(Errno::NOENT) => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
            else {
                return Err(about(path, Errno::NOENT));
            };
            own_dir(base_dir(parent)?, name)
        }
        opened => opened,
    };
    let dir = dir.map_err(|error| about(path, error))?;
    let stat = fstat(&dir)?;
    let own = rustix::process::geteuid().as_raw();
    let sticky = stat.st_mode & STICKY != 0;
    if stat.st_uid != own && stat.st_uid != 0 && !(sticky && stat.st_uid == OVERFLOW) {
        return Err(belongs(path, stat.st_uid));
    }
    if stat.st_mode & ALL_WRITE != 0 && !sticky {
        return Err(open_to_others(path, stat.st_mode));
    }
    Ok(dir)
}

/// Opens a directory. Symbolic links that others have made could lead anywhere: they are not followed.
fn followed(path: &Path) -> io::Result<Result<OwnedFd, Errno>> {
    let mut links = 0;
    let mut left: Vec<OsString> = names(path);
    let mut dir = open(start(path), OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    while let Some(name) = left.pop() {
        let found =
            match openat(&dir, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
        let stat = fstat(&found)?;
        if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
            dir = found;
            continue;
        }
        links += 1;
        if links > LINKS {
            return Ok(Err(Errno::LOOP));
        }
        // In a user namespace the superuser's may seem to be an unknown user's.
        if ![rustix::process::geteuid().as_raw(), 0, OVERFLOW].contains(&stat.st_uid) {
            let user = stat.st_uid;
            return Err(denied(format!("'{}' leads through a symbolic link of user {user}", path.display())));
        }
        let target = OsString::from_vec(readlinkat(&found, "", Vec::new())?.into_bytes());
        if Path::new(&target).is_absolute() {
            dir = open("/", OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        }
        left.extend(names(Path::new(&target)));
    }
    Ok(openat(&dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()))
}

/// Where a path starts.
fn start(path: &Path) -> &'static str {
    if path.is_absolute() { "/" } else { "." }
}

/// The names in a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

fn must_be_private(dir: &OwnedFd, forbidden: u32, path: &Path) -> io::Result<()> {
    let stat = fstat(dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(belongs(path, stat.st_uid));
    }
    if stat.st_mode & forbidden != 0 {
        return Err(open_to_others(path, stat.st_mode));
    }
    Ok(())
}

fn belongs(path: &Path, user: u32) -> io::Error {
    denied(format!("'{}' belongs to user {user}", path.display()))
}

fn open_to_others(path: &Path, mode: u32) -> io::Error {
    denied(format!("'{}' is open to others: its mode is {:04o}", path.display(), mode & 0o7777))
}

fn denied(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn about(path: &Path, error: Errno) -> io::Error {
    match error {
        Errno::NOTDIR | Errno::LOOP => {
            denied(format!("'{}' is a symbolic link or not a directory", path.display()))
        }
        error => io::Error::new(error.kind(), format!("'{}': {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    fn refused(base: &Path, own: &[&str]) -> String {
        PrivateDir::open(base, own).map(|dir| dir.path).expect_err("refused").to_string()
    }

    #[test]
    fn what_is_missing_is_made_for_its_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("home/.cache");
        let private = PrivateDir::open(&base, &["outrigger", "index"]).unwrap();
        assert_eq!(private.path(), base.join("outrigger/index"));
        for made in [base.clone(), base.join("outrigger"), base.join("outrigger/index")] {
            assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o700);
        }
        PrivateDir::open(&base, &["outrigger", "index"]).unwrap();
    }

    #[test]
    fn links_and_directories_open_to_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        symlink(&foreign, dir.path().join("link")).unwrap();
        assert!(refused(dir.path(), &["link"]).contains("link' is a symbolic link or not a directory"));
        refused(dir.path(), &["link", "index"]);
        assert!(!foreign.join("index").exists(), "nothing was made through the link");
        for (mode, last, above) in [(0o777, false, false), (0o750, false, true), (0o700, true, true)] {
            fs::set_permissions(&foreign, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(PrivateDir::open(dir.path(), &["foreign"]).is_ok(), last, "{mode:o}");
            assert_eq!(PrivateDir::open(dir.path(), &["foreign", "index"]).is_ok(), above, "{mode:o} above");
        }
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&foreign, &["x"]).contains("0777"));
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o1777)).unwrap();
        PrivateDir::open(&foreign, &["x"]).unwrap();
    }

    #[test]
    fn the_superuser_does_not_touch_what_belongs_to_others() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: changing owners needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(12345), None).unwrap();
        assert!(refused(&home, &["outrigger"]).contains("user 12345"));
        refused(&home.join(".cache"), &["outrigger"]);
        assert!(fs::read_dir(&home).unwrap().next().is_none(), "nothing was made there");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir(&target).unwrap();
        symlink("target", &link).unwrap();
        PrivateDir::open(&link, &["own"]).unwrap();
        lchown(&link, Some(12345), None).unwrap();
        assert!(refused(&link, &["outrigger"]).contains("a symbolic link of user 12345"));
        refused(&link.join("more"), &["outrigger"]);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "nothing was made where the link leads");
        let squatted = dir.path().join("squatted");
        fs::create_dir(&squatted).unwrap();
        chown(&squatted, Some(12345), None).unwrap();
        assert!(refused(dir.path(), &["squatted"]).contains("user 12345"));
    }
}
