// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mirror: a private directory with what was looked at in trees, of which programs get real descriptors.
//!
//! The path of a copy is that of the mirror and then that of the file. Directories have what was looked at, symbolic links lead nowhere,
//! and files are holes of the right size until their content is needed ([`super::content`]).

use super::content::{Content, Key};
use super::contents::Contents;
use super::names::{Names, above, as_path};
use outrigger_client::Inode;
use outrigger_core::attr::MODE_KIND;
use outrigger_core::{Attr, FileKind, Result, Time, lock};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, chmodat, chownat, ftruncate, mkdirat,
    mkfifoat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno as Os;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the server needs to be able to do in its own directories.
const OWN: u32 = 0o700;
/// The longest target of a symbolic link.
const TARGET_MAX: u64 = 4095;
/// Held while the permissions of a copy are looked at, and changed for a moment: else another opening would take those for its own.
pub(super) static PERMITTING: Mutex<()> = Mutex::new(());

/// The mirror.
pub(crate) struct Mirror {
    dir: PathBuf,
    /// Held while names in it change; no tree is asked meanwhile.
    changing: Mutex<()>,
    /// Counts changes of names by programs, which a listing that began before does not know.
    changes: AtomicU64,
    pub(crate) contents: Contents,
    is_root: bool,
    /// Whether permissions do not keep this process from anything.
    overrides: bool,
}

/// An error of the system.
pub(crate) fn os<T>(result: Result<T, Os>) -> Result<T> {
    result.map_err(|error| io::Error::from(error).into())
}

impl Mirror {
    /// One in this directory, which is empty.
    pub(crate) fn new(dir: PathBuf, contents: Contents) -> Self {
        let is_root = geteuid().is_root();
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let overrides = effective.contains(CapabilitySet::DAC_OVERRIDE);
        Mirror { dir, changing: Mutex::default(), changes: AtomicU64::new(0), contents, is_root, overrides }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the copy of a file is.
    pub(crate) fn real(&self, path: &[u8]) -> PathBuf {
        let relative = path.strip_prefix(b"/").unwrap_or(path);
        if relative.is_empty() { self.dir.clone() } else { self.dir.join(as_path(relative)) }
    }

    /// Says that a program has changed names; call it before and after that.
    pub(crate) fn changes(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the copy be as the file in the tree is, without its content.
    ///
    /// # Errors
    /// Errors of this machine.
    pub(crate) fn copy(&self, path: &[u8], inode: &Inode) -> Result<PathBuf> {
        let real = self.real(path);
        let _changing = lock(&self.changing);
        self.stand_in(path, &real, inode, true)?;
        Ok(real)
    }

    /// A directory above trees.
    pub(crate) fn between(&self, path: &[u8], names: &Names) -> Result<PathBuf> {
        let real = self.real(path);
        fs::create_dir_all(&real)?;
        for name in names.below(path) {
            fs::create_dir_all(real.join(as_path(name)))?;
        }
        os(chmodat(CWD, &real, Mode::from_raw_mode(0o755), AtFlags::empty()))?;
        Ok(real)
    }

    /// Makes the copy of a directory have all names that the tree has, and no others.
    ///
    /// # Errors
    /// Those of listing it.
    pub(crate) fn list(&self, path: &[u8], inode: &Inode, names: &Names) -> Result<PathBuf> {
        let before = self.changes.load(Ordering::Acquire);
        let mut found = HashSet::new();
        let real = self.copy(path, inode)?;
        for entry in inode.entries()? {
            match entry {
                Ok((name, inode)) => {
                    let path = [path, b"/", &name[..]].concat();
                    let _changing = lock(&self.changing);
                    self.stand_in(&path, &self.real(&path), &inode, false)?;
                    found.insert(name.as_os_str().to_owned());
                }
                // The name is there; who looks at it gets the error.
                Err(unreadable) => match unreadable.name {
                    Some(name) => {
                        let made = fs::File::create_new(real.join(name.as_os_str()));
                        drop(made);
                        found.insert(name.as_os_str().to_owned());
                    }
                    None => return Err(unreadable.error),
                },
            }
        }
        for name in names.below(path) {
            fs::create_dir_all(real.join(as_path(name)))?;
            found.insert(as_path(name).as_os_str().to_owned());
        }
        let _changing = lock(&self.changing);
        if before == self.changes.load(Ordering::Acquire) {
            for entry in fs::read_dir(&real)?.flatten().filter(|entry| !found.contains(&entry.file_name())) {
                self.forget(&entry.path())?;
            }
        }
        self.set(&real, inode.attr())?;
        Ok(real)
    }

    /// Has something of the right kind stand in for a file. With `fully`, its attributes are those of the file, too.
    fn stand_in(&self, path: &[u8], real: &Path, inode: &Inode, fully: bool) -> Result<()> {
        let attr = inode.attr();
        let found = match statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Os::NOENT | Os::NOTDIR) => {
                self.make_way(path)?;
                return self.make(path, real, attr);
            }
            Err(error) => return os(Err(error)),
        };
        if self.contents.is_of_another(&found, inode.node()) {
            // Programs go on writing to that, which has no name here any more.
            os(unlinkat(CWD, real, AtFlags::empty()))?;
            return self.make(path, real, attr);
        }
        let is_of_kind = kind_of(&found) == stand_in_for(attr.kind());
        if self.contents.is_written(&found) || is_of_kind && !fully {
            return Ok(());
        }
        if is_of_kind && self.is_same(&found, attr) {
            return self.set(real, attr);
        }
        // Its content may have begun to be stored since it was looked at.
        let is_gone = self.forget(real)?;
        if is_gone || !is_of_kind { self.make(path, real, attr) } else { Ok(()) }
    }

    /// Makes the directories above a copy. What is there in place of one was one that is no more.
    fn make_way(&self, path: &[u8]) -> Result<()> {
        let way = self.real(above(path));
        if fs::create_dir_all(&way).is_ok() {
            return Ok(());
        }
        let mut ancestors: Vec<_> = way.ancestors().take_while(|dir| *dir != self.dir).collect();
        ancestors.reverse();
        for dir in ancestors {
            if fs::symlink_metadata(dir).is_ok_and(|found| !found.is_dir()) {
                os(unlinkat(CWD, dir, AtFlags::empty()))?;
            }
        }
        Ok(fs::create_dir_all(&way)?)
    }

    /// Whether a copy of the right kind is that of a file with these attributes.
    fn is_same(&self, found: &Stat, attr: &Attr) -> bool {
        match attr.kind() {
            FileKind::Symlink => found.st_size as usize == target(attr).len(),
            FileKind::Regular => self.contents.of(found).is_some_and(|content| {
                // What is stored or fetched just now is as new as can be.
                content.try_lock().map_or(true, |content| content.is_of(attr))
            }),
            _ => true,
        }
    }

    /// Makes what stands in for a file.
    fn make(&self, path: &[u8], real: &Path, attr: &Attr) -> Result<()> {
        match stand_in_for(attr.kind()) {
            FileType::Directory => os(mkdirat(CWD, real, Mode::RWXU))?,
            FileType::Symlink => os(symlinkat(target(attr), CWD, real))?,
            FileType::Fifo => os(mkfifoat(CWD, real, Mode::RUSR | Mode::WUSR))?,
            _ => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let file = os(openat(CWD, real, flags, Mode::RUSR | Mode::WUSR))?;
                if attr.kind() == FileKind::Regular {
                    os(ftruncate(&file, attr.size))?;
                }
                self.contents.add(&os(rustix::fs::fstat(&file))?, Content::unknown(path, attr));
            }
        }
        self.set(real, attr)
    }

    /// Removes a copy, with all that is in it; what programs are writing to stays until it is stored. Answers whether it is gone.
    pub(crate) fn forget(&self, real: &Path) -> Result<bool> {
        let found = os(statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW))?;
        if kind_of(&found) != FileType::Directory {
            if self.contents.is_written(&found) {
                return Ok(false);
            }
            os(unlinkat(CWD, real, AtFlags::empty()))?;
            self.contents.forget(&found);
            return Ok(true);
        }
        for entry in fs::read_dir(real)? {
            self.forget(&entry?.path())?;
        }
        match unlinkat(CWD, real, AtFlags::REMOVEDIR) {
            Err(Os::NOTEMPTY | Os::EXIST) => Ok(false),
            removed => os(removed).map(|()| true),
        }
    }

    /// Does something with names, while nothing else changes any.
    pub(crate) fn change<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let _changing = lock(&self.changing);
        let changed = change();
        self.changes();
        changed
    }

    /// Gives a copy the permissions, the owner and the times that the file has, as far as this user can.
    pub(crate) fn set(&self, real: &Path, attr: &Attr) -> Result<()> {
        let found = os(statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW))?;
        let kind = kind_of(&found);
        let is_given = self.is_root && (found.st_uid, found.st_gid) != (attr.uid, attr.gid);
        if is_given {
            self.give(real, Some(attr.uid), Some(attr.gid));
        }
        let own = if kind == FileType::Directory && !self.overrides { OWN } else { 0 };
        let mode = attr.permissions() | own;
        // An owner that changes takes bits away.
        if kind != FileType::Symlink && (is_given || found.st_mode & !MODE_KIND != mode) {
            os(chmodat(CWD, real, Mode::from_raw_mode(mode), AtFlags::empty()))?;
        }
        let mtime = (found.st_mtime, found.st_mtime_nsec as u32);
        if mtime != (attr.mtime.secs, attr.mtime.nanos) {
            let times =
                Timestamps { last_access: timespec(attr.atime), last_modification: timespec(attr.mtime) };
            os(utimensat(CWD, real, &times, AtFlags::SYMLINK_NOFOLLOW))?;
        }
        Ok(())
    }

    /// Gives a copy another owner and group, as far as this user can.
    pub(crate) fn give(&self, real: &Path, uid: Option<u32>, gid: Option<u32>) {
        if self.is_root && (uid.is_some() || gid.is_some()) {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            // A superuser without that privilege has only files of their own.
            let _ = chownat(CWD, real, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        }
    }

    /// What is known of a copy's content.
    pub(crate) fn content(&self, real: &Path) -> Result<Arc<Mutex<Content>>> {
        let found = os(statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(self.contents.of(&found).ok_or(outrigger_core::Errno::ESTALE)?)
    }

    /// Fetches the content of a file, unless it is there.
    ///
    /// # Errors
    /// Those of reading it in the tree, and of writing it here.
    pub(crate) fn fill(&self, real: &Path, inode: &Inode, content: &mut Content) -> Result<()> {
        if content.is_here() {
            return Ok(());
        }
        let to = open(real, OFlags::WRONLY)?;
        content.fetch(&to, inode)?;
        self.set(real, inode.attr())
    }

    /// Says that a copy is the same as the file, whose attributes a program has just changed.
    pub(crate) fn agree(&self, real: &Path, attr: &Attr) -> Result<()> {
        if let Ok(content) = self.content(real) {
            lock(&content).key = Key::of(attr);
        }
        self.set(real, attr)
    }
}

/// Opens a copy, whatever its permissions say: the tree has decided.
pub(crate) fn open(real: &Path, flags: OFlags) -> Result<OwnedFd> {
    let open = || open_as_it_is(real, flags);
    match open() {
        Err(Os::ACCESS) => {
            let _alone = lock(&PERMITTING);
            let found = os(statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW))?;
            let mode = found.st_mode & !MODE_KIND;
            let change = |mode| os(chmodat(CWD, real, Mode::from_raw_mode(mode), AtFlags::empty()));
            change(mode | OWN)?;
            let opened = open();
            change(mode)?;
            os(opened)
        }
        opened => os(opened),
    }
}

/// Opens a file as its permissions say.
///
/// # Errors
/// Those of the system.
pub(crate) fn open_as_it_is(real: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(CWD, real, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// What stands in for the target of a symbolic link. Nobody follows it: targets are read in the tree.
fn target(attr: &Attr) -> String {
    "?".repeat(attr.size.clamp(1, TARGET_MAX) as usize)
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }
}

fn kind_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// The kind of file in the mirror: no user can make a device, and a socket of a tree leads nowhere.
fn stand_in_for(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Regular | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            FileType::RegularFile
        }
    }
}
