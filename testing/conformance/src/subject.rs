// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the cases are run against: the calls of POSIX and Linux on paths and open files.

use crate::direct::Direct;
use bitflags::bitflags;
use outrigger_core::ops::{FallocateMode, Lock, LockKind, RenameFlags, Whence};
use outrigger_core::reply::FsStat;
use outrigger_core::{Attr, Credentials, Errno, FileKind, SetTime};
use std::path::Path;

/// The result of a call, with the errno a program would see.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// How the subject is reached. Some cases need one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Requests to a service, without a kernel in between.
    Direct,
    /// System calls on a file system of the kernel: the truth the suite itself is held to.
    Native,
    /// System calls on a FUSE mount.
    Fuse,
    /// System calls on a mount by a kernel's NFS client.
    Nfs,
}

/// An open file or directory of a [`Subject`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fd(pub u64);

bitflags! {
    /// How to open a file. The numbers are this suite's own; `HostDir` translates them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// `O_CREAT`.
        const CREATE = 4;
        /// `O_EXCL`.
        const EXCL = 8;
        /// `O_TRUNC`.
        const TRUNC = 16;
        /// `O_APPEND`.
        const APPEND = 32;
        /// `O_TMPFILE`.
        const TMPFILE = 64;
        /// `O_DIRECTORY`.
        const DIRECTORY = 128;
        /// `O_NOFOLLOW`.
        const NOFOLLOW = 256;
        /// `O_NOATIME`.
        const NOATIME = 512;
    }
}

impl Flags {
    /// Reading and writing.
    pub const BOTH: Flags = Flags::READ.union(Flags::WRITE);
    /// Reading and writing a new file.
    pub const NEW: Flags = Flags::BOTH.union(Flags::CREATE).union(Flags::EXCL);
}

/// One name of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The inode number.
    pub ino: u64,
    /// The kind, if the listing has it.
    pub kind: Option<FileKind>,
    /// Where to continue after it.
    pub cookie: u64,
}

/// A piece of a listing without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The names.
    pub entries: Vec<Listed>,
    /// Whether the directory ends here.
    pub eof: bool,
}

/// An advisory lock on bytes `start..=end`, held by an open file.
pub fn range_lock(kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { start, end, kind, pid: 0 }
}

/// A tree as a program sees it. Paths are relative to its root; the last symbolic link of a path is followed only by
/// [`Subject::open`] and [`Subject::truncate`].
pub trait Subject: Send + Sync {
    /// How it is reached.
    fn kind(&self) -> Kind;
    /// The service, for cases that send requests to it.
    fn direct(&self) -> Option<&Direct>;
    /// Runs `body` on this thread as another user, without privileges or supplementary groups.
    fn as_user(&self, user: Credentials, body: &mut dyn FnMut());

    /// Closes whatever a case left open.
    fn close_all(&self);

    /// open(2)
    fn open(&self, path: &Path, flags: Flags, mode: u32) -> Result<Fd>;
    /// close(2)
    fn close(&self, fd: Fd) -> Result<()>;
    /// pread(2)
    fn read_at(&self, fd: Fd, offset: u64, len: usize) -> Result<Vec<u8>>;
    /// pwrite(2)
    fn write_at(&self, fd: Fd, offset: u64, data: &[u8]) -> Result<usize>;
    /// write(2) to a file opened with `APPEND`
    fn append(&self, fd: Fd, data: &[u8]) -> Result<usize>;
    /// fstat(2)
    fn fstat(&self, fd: Fd) -> Result<Attr>;
    /// ftruncate(2)
    fn ftruncate(&self, fd: Fd, size: u64) -> Result<()>;
    /// fsync(2) or, with `data_only`, fdatasync(2)
    fn fsync(&self, fd: Fd, data_only: bool) -> Result<()>;
    /// fallocate(2)
    fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`
    fn seek(&self, fd: Fd, whence: Whence, offset: u64) -> Result<u64>;
    /// copy_file_range(2)
    fn copy_range(&self, fd: Fd, offset: u64, to: Fd, to_offset: u64, len: u64) -> Result<u64>;
    /// linkat(2) with `AT_EMPTY_PATH`
    fn link_open(&self, fd: Fd, path: &Path) -> Result<()>;
    /// fcntl(2) `F_OFD_SETLK` or, with `wait`, `F_OFD_SETLKW`
    fn lock(&self, fd: Fd, lock: Lock, wait: bool) -> Result<()>;
    /// fcntl(2) `F_OFD_GETLK`
    fn test_lock(&self, fd: Fd, lock: Lock) -> Result<Option<Lock>>;
    /// flock(2)
    fn flock(&self, fd: Fd, kind: LockKind, wait: bool) -> Result<()>;
    /// getdents64(2) from `cookie` on, about `size` bytes
    fn read_dir(&self, fd: Fd, cookie: u64, size: usize) -> Result<Listing>;

    /// lstat(2)
    fn stat(&self, path: &Path) -> Result<Attr>;
    /// truncate(2)
    fn truncate(&self, path: &Path, size: u64) -> Result<()>;
    /// chmod(2) of the named file
    fn chmod(&self, path: &Path, mode: u32) -> Result<()>;
    /// lchown(2)
    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
    /// utimensat(2) of the named file; `None` is `UTIME_OMIT`
    fn utimens(&self, path: &Path, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
    /// mkdir(2)
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()>;
    /// mknod(2)
    fn mknod(&self, path: &Path, kind: FileKind, mode: u32, rdev: u32) -> Result<()>;
    /// symlink(2)
    fn symlink(&self, target: &[u8], path: &Path) -> Result<()>;
    /// readlink(2)
    fn readlink(&self, path: &Path) -> Result<Vec<u8>>;
    /// link(2)
    fn link(&self, old: &Path, new: &Path) -> Result<()>;
    /// unlink(2)
    fn unlink(&self, path: &Path) -> Result<()>;
    /// rmdir(2)
    fn rmdir(&self, path: &Path) -> Result<()>;
    /// renameat2(2)
    fn rename(&self, old: &Path, new: &Path, flags: RenameFlags) -> Result<()>;
    /// lgetxattr(2)
    fn get_xattr(&self, path: &Path, name: &str) -> Result<Vec<u8>>;
    /// lsetxattr(2)
    fn set_xattr(
        &self,
        path: &Path,
        name: &str,
        value: &[u8],
        flags: outrigger_core::ops::XattrFlags,
    ) -> Result<()>;
    /// llistxattr(2)
    fn list_xattrs(&self, path: &Path) -> Result<Vec<Vec<u8>>>;
    /// lremovexattr(2)
    fn remove_xattr(&self, path: &Path, name: &str) -> Result<()>;
    /// statvfs(3)
    fn statfs(&self, path: &Path) -> Result<FsStat>;
}
