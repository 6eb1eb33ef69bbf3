// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs ask about files of trees.

use super::decode::Asked;
use super::mirror::os;
use super::names::{DELETED, Found};
use super::process::Process;
use super::say;
use super::server::{Reply, Server};
use super::source::Call;
use libc::{AT_SYMLINK_NOFOLLOW, X_OK};
use outrigger_client::Inode;
use outrigger_core::attr::MODE_KIND;
use outrigger_core::ops::{Access, OpCode, StatFs, XattrFlags};
use outrigger_core::reply::FsStat;
use outrigger_core::{Errno, Error, FileKind, Result, SetAttrs, XattrName};
use rustix::fs::inotify::{WatchFlags, add_watch};
use rustix::fs::{CWD, readlinkat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All that access(2) asks for: reading, writing, executing.
const ALL: u32 = 7;

/// A structure of the system, as bytes for a program.
fn bytes_of<T>(call: impl FnOnce(*mut T) -> libc::c_int, patch: impl FnOnce(&mut T)) -> Result<Vec<u8>> {
    let mut value = MaybeUninit::<T>::zeroed();
    if call(value.as_mut_ptr()) != 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: these structures consist of numbers, for which all bits may be 0, and the call has filled them in.
    let mut value = unsafe { value.assume_init() };
    patch(&mut value);
    // SAFETY: all bytes of the value are initialised: they were 0 before.
    Ok(unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) }.to_vec())
}

/// What stat(2) says of a file, but for what `patch` changes.
pub(crate) fn stat_of(path: &Path, patch: impl FnOnce(&mut libc::stat)) -> Result<Vec<u8>> {
    stat_at(path, AT_SYMLINK_NOFOLLOW, patch)
}

/// The same with flags.
pub(crate) fn stat_at(path: &Path, flags: i32, patch: impl FnOnce(&mut libc::stat)) -> Result<Vec<u8>> {
    let path = c_path(path)?;
    bytes_of(
        // SAFETY: the path ends with NUL, and the kernel fills in the structure.
        |to| unsafe { libc::fstatat(libc::AT_FDCWD, path.as_ptr(), to, flags) },
        patch,
    )
}

/// What statx(2) says of a file, but for what `patch` changes.
pub(crate) fn statx_of(
    path: &Path,
    flags: i32,
    mask: u32,
    patch: impl FnOnce(&mut libc::statx),
) -> Result<Vec<u8>> {
    statx_at(path, flags | AT_SYMLINK_NOFOLLOW, mask, patch)
}

/// The same as the flags say.
pub(crate) fn statx_at(
    path: &Path,
    flags: i32,
    mask: u32,
    patch: impl FnOnce(&mut libc::statx),
) -> Result<Vec<u8>> {
    let (path, flags) = (c_path(path)?, flags & !libc::AT_EMPTY_PATH);
    bytes_of(
        // SAFETY: the path ends with NUL, and the kernel fills in the structure.
        |to| unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, to) },
        patch,
    )
}

/// What statfs(2) says of a file, but for what `patch` changes.
pub(crate) fn statfs_of(path: &Path, patch: impl FnOnce(&mut libc::statfs)) -> Result<Vec<u8>> {
    let path = c_path(path)?;
    bytes_of(
        // SAFETY: the path ends with NUL, and the kernel fills in the structure.
        |to| unsafe { libc::statfs(path.as_ptr(), to) },
        patch,
    )
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?)
}

/// The error that the kernel gives for extended attributes that a tree does not have.
pub(crate) fn without(error: Error) -> Error {
    if error.errno == Errno::ENOSYS { Errno::EOPNOTSUPP.into() } else { error }
}

impl Server {
    /// Answers what is asked about no path, and what is a path in the mirror already.
    pub(crate) fn without_path(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: &Asked,
    ) -> Option<Result<Reply>> {
        match request {
            Asked::CurrentDir { to, size } => {
                let here = process.file(libc::AT_FDCWD).ok()?;
                let here = match self.names.shown(&here) {
                    Some(shown) => shown,
                    None if self.may_move(process) && !here.ends_with(DELETED) => &here,
                    None => return None,
                };
                let path = [if here.is_empty() { b"/" } else { here }, b"\0"].concat();
                let fits = if *size < path.len() as u64 { Err(Errno::ERANGE.into()) } else { Ok(()) };
                let written = fits.and_then(|()| process.memory().write(*to, &path));
                Some(written.map(|()| Reply::Value(path.len() as i64)))
            }
            Asked::Sync { file, data_only } => {
                let path = process.file(*file).ok()?;
                let path = self.names.in_mirror(&path)?;
                self.asks();
                Some(self.sync(path, *data_only))
            }
            Asked::Lock { file } => {
                let path = process.file(*file).ok()?;
                self.names.in_mirror(&path).map(|path| self.locks(path))
            }
            Asked::ReadLink { at, to, size } => {
                let path = if at.path.starts_with(b"/") {
                    at.path.clone()
                } else if at.path.is_empty() {
                    return None;
                } else {
                    [&process.file(at.dir).ok()?[..], b"/", &at.path].concat()
                };
                let target = self.magic(process, &path)?;
                Some(process.memory().cut(*to, *size, &target).map(Reply::Value))
            }
            Asked::List { file, to, size } => Some(self.list(call, process, *file, (*to, *size))),
            Asked::StatOpen { file, .. } | Asked::StatxOpen { file, .. } => {
                Some(self.stat_open(process, *file, request))
            }
            Asked::Control { file, request } => Some(self.control(process, *file, *request)),
            Asked::ChangeDir { at }
            | Asked::Execute { at }
            | Asked::Open { at, .. }
            | Asked::Bind { at }
            | Asked::Connect { at } => {
                let mut redirected = outrigger_core::lock(&self.redirected);
                (redirected.get(&process.thread) == Some(&at.path)).then(|| {
                    redirected.remove(&process.thread);
                    Ok(Reply::Pass)
                })
            }
            _ => None,
        }
    }

    /// The target of a link in /proc to a file in a tree.
    fn magic(&self, process: Process, path: &[u8]) -> Option<Vec<u8>> {
        let rest = path.strip_prefix(b"/proc/")?;
        let own = format!("{}/", process.thread).into_bytes();
        let is_own = rest.strip_prefix(b"self/").or_else(|| rest.strip_prefix(b"thread-self/"));
        let rest = is_own.map_or_else(|| rest.to_vec(), |rest| [&own[..], rest].concat());
        let target = readlinkat(CWD, [b"/proc/", &rest[..]].concat(), Vec::new()).ok()?.into_bytes();
        let shown = self.names.shown(&target)?;
        Some(if shown.is_empty() { b"/".to_vec() } else { shown.to_vec() })
    }

    /// A program locks a copy, which no other client of the tree learns.
    fn locks(&self, path: &[u8]) -> Result<Reply> {
        self.told_of_locks.call_once(|| {
            say(format_args!(
                "a lock of '{}' holds among the programs of this run only, as all of files in trees: other clients neither see it nor keep it from being taken",
                super::shown(path)
            ));
        });
        Ok(Reply::Pass)
    }

    fn sync(&self, path: &[u8], data_only: bool) -> Result<Reply> {
        // The content of a directory is stored when it is changed, and a file without a name is not in the tree.
        let Ok(content) = self.mirror.content(&self.mirror.real(path)) else { return Ok(Reply::Value(0)) };
        outrigger_core::lock(&content).sync(data_only).map(|()| Reply::Value(0))
    }

    /// The copy of what was found, as it is in the tree.
    fn copy(&self, found: &Found) -> Result<PathBuf> {
        if found.tree.is_none() {
            return self.mirror.between(&found.path, &self.names);
        }
        self.mirror.copy(&found.path, &*self.settled(found)?)
    }

    /// What stat(2) says.
    pub(crate) fn stat(&self, found: &Found) -> Result<Vec<u8>> {
        stat_of(&self.copy(found)?, |stat| {
            if let Some(attr) = special(found) {
                stat.st_mode = attr.mode;
                stat.st_rdev = attr.rdev.into();
            }
        })
    }

    /// What statx(2) says.
    pub(crate) fn statx(&self, found: &Found, flags: i32, mask: u32) -> Result<Vec<u8>> {
        statx_of(&self.copy(found)?, flags, mask, |stat| {
            if let Some(attr) = special(found) {
                stat.stx_mode = attr.mode as u16;
                stat.stx_rdev_major = libc::major(attr.rdev.into());
                stat.stx_rdev_minor = libc::minor(attr.rdev.into());
            }
        })
    }

    /// Whether a file is there, and may be used like that. Where the tree does not know, it may be executed if somebody may, and
    /// everything else is decided when it is done.
    pub(crate) fn access(&self, found: &Found, mode: u32) -> Result<()> {
        if found.tree.is_none() {
            return Ok(());
        }
        let (inode, mask) = (found.there()?, mode & ALL);
        if mask != 0 && inode.client().has(OpCode::Access) {
            match inode.client().call(Access { node: inode.node(), mask }) {
                Err(error) if error.errno == Errno::ENOSYS => {}
                granted => return granted?.all(mask),
            }
        }
        let wants = mask & X_OK.unsigned_abs() != 0 && !inode.is_dir();
        if wants && inode.attr().mode & 0o111 == 0 { Err(Errno::EACCES.into()) } else { Ok(()) }
    }

    /// What statfs(2) says: of the tree, as far as that has it.
    pub(crate) fn statfs(&self, found: &Found) -> Result<Vec<u8>> {
        let path = self.copy(found)?;
        let about = match &found.inode {
            Some(inode) => inode.client().call(StatFs { node: inode.node() })?,
            None => FsStat::default(),
        };
        statfs_of(&path, |stat| {
            stat.f_blocks = about.blocks;
            stat.f_bfree = about.bfree;
            stat.f_bavail = about.bavail;
            stat.f_files = about.files;
            stat.f_ffree = about.ffree;
            stat.f_bsize = about.bsize.into();
            stat.f_frsize = about.frsize.into();
            stat.f_namelen = about.namelen.into();
        })
    }

    pub(crate) fn xattr(&self, found: &Found, name: &[u8]) -> Result<Vec<u8>> {
        let name = XattrName::new(name.to_vec())?;
        Ok(self.attributed(found)?.xattr(&name).map_err(without)?.to_vec())
    }

    pub(crate) fn xattrs(&self, found: &Found) -> Result<Vec<u8>> {
        let names = self.attributed(found)?.xattrs().map_err(without)?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(crate) fn set_xattr(&self, found: &Found, name: &[u8], value: Vec<u8>, flags: u32) -> Result<()> {
        let (name, flags) = (XattrName::new(name.to_vec())?, XattrFlags::from_bits_retain(flags));
        self.attributed(found)?.set_xattr(&name, value.into(), flags).map_err(without)
    }

    pub(crate) fn remove_xattr(&self, found: &Found, name: &[u8]) -> Result<()> {
        self.attributed(found)?.remove_xattr(&XattrName::new(name.to_vec())?).map_err(without)
    }

    /// A file whose extended attributes are asked for.
    fn attributed<'f>(&self, found: &'f Found) -> Result<&'f Inode> {
        if found.tree.is_none() { Err(Errno::EOPNOTSUPP.into()) } else { found.there() }
    }

    /// Has an inotify descriptor of the program watch the copy: it sees what programs change that see the tree like this one.
    pub(crate) fn watch(&self, process: Process, found: &Found, watcher: i32, mask: u32) -> Result<i64> {
        let real = match &found.inode {
            Some(inode) if inode.is_dir() => self.mirror.list(&found.path, inode, &self.names)?,
            _ => self.copy(found)?,
        };
        self.watch_at(process, &real, watcher, mask)
    }

    /// The same for the file at a path of this process.
    pub(crate) fn watch_at(&self, process: Process, real: &Path, watcher: i32, mask: u32) -> Result<i64> {
        let pid = Pid::from_raw(process.number()?).ok_or(Errno(libc::ESRCH))?;
        let pid = os(pidfd_open(pid, PidfdFlags::empty()))?;
        let watcher = os(pidfd_getfd(pid, watcher, PidfdGetfdFlags::empty()))?;
        Ok(os(add_watch(watcher, real, WatchFlags::from_bits_retain(mask)))?.into())
    }

    /// Changes the size of a file.
    pub(crate) fn set_size(&self, found: &Found, size: u64) -> Result<()> {
        match found.there()?.kind() {
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ if i64::try_from(size).is_err() => Err(Errno::EINVAL.into()),
            _ => self.set(found, SetAttrs { size: Some(size), ..SetAttrs::default() }),
        }
    }
}

/// The attributes of a file whose kind the copy does not have, or of a directory, in whose copy this process may have more permissions.
fn special(found: &Found) -> Option<&outrigger_core::Attr> {
    let attr = found.inode.as_ref()?.attr();
    let is_copied = matches!(attr.kind(), FileKind::Regular | FileKind::Symlink | FileKind::Fifo);
    (!is_copied && attr.mode & MODE_KIND != 0).then_some(attr)
}
