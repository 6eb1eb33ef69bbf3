// SPDX-License-Identifier: MIT OR Apache-2.0
//! A host directory as a [`Subject`]: real system calls, on a FUSE mount or on a file system of the kernel.

use crate::direct::Direct;
use crate::subject::{Fd, Flags, Kind, Listed, Listing, Result, Subject};
use nix::fcntl::{FcntlArg, fcntl};
use outrigger_core::ops::{FallocateMode, Lock, LockKind, RenameFlags, Whence, XattrFlags};
use outrigger_core::reply::FsStat;
use outrigger_core::{Attr, Credentials, Errno, FileKind, SetTime, Time, lock};
use rustix::fs::{self as rfs, AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, StatxFlags, Timestamps};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// `UTIME_NOW` and `UTIME_OMIT` of utimensat(2).
const UTIME_NOW: i64 = 0x3fff_ffff;
const UTIME_OMIT: i64 = 0x3fff_fffe;

/// The longest a `struct linux_dirent64` gets, in bytes.
const DIRENT_MAX: usize = 280;

/// A directory of the host. Sets the process's umask to 0, so that modes are what the cases ask for.
pub struct HostDir {
    root: PathBuf,
    dir: OwnedFd,
    kind: Kind,
    files: Mutex<HashMap<Fd, Arc<OwnedFd>>>,
    next: AtomicU64,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

fn time(time: rfs::StatxTimestamp) -> Time {
    Time::new(time.tv_sec, time.tv_nsec)
}

/// `dev_t` packed for 32 bits, as `Attr::rdev` has it.
fn pack_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn unpack_dev(rdev: u32) -> rfs::Dev {
    rfs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff))
}

fn attr(stat: rfs::Statx) -> Attr {
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Attr {
        ino: stat.stx_ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: has_btime.then(|| time(stat.stx_btime)),
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: pack_dev(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
        ..Attr::default()
    }
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

fn type_of(kind: FileKind) -> FileType {
    FileType::from_raw_mode(kind.bits())
}

fn open_flags(flags: Flags) -> OFlags {
    let mut out = match (flags.contains(Flags::READ), flags.contains(Flags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    } | OFlags::CLOEXEC;
    let pairs = [
        (Flags::CREATE, OFlags::CREATE),
        (Flags::EXCL, OFlags::EXCL),
        (Flags::TRUNC, OFlags::TRUNC),
        (Flags::APPEND, OFlags::APPEND),
        (Flags::TMPFILE, OFlags::TMPFILE),
        (Flags::DIRECTORY, OFlags::DIRECTORY),
        (Flags::NOFOLLOW, OFlags::NOFOLLOW),
        (Flags::NOATIME, OFlags::NOATIME),
    ];
    for (ours, theirs) in pairs {
        out.set(theirs, flags.contains(ours) || out.contains(theirs));
    }
    out
}

fn timespec(set: Option<SetTime>) -> rfs::Timespec {
    match set {
        None => rfs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => rfs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => rfs::Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}

fn flock_of(lock: Lock) -> nix::libc::flock {
    let kind = match lock.kind {
        LockKind::Read => nix::libc::F_RDLCK,
        LockKind::Write => nix::libc::F_WRLCK,
        LockKind::Unlock => nix::libc::F_UNLCK,
    };
    nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: lock.start as i64,
        // A length of 0 means to the end, wherever it is.
        l_len: if lock.end >= i64::MAX as u64 { 0 } else { (lock.end - lock.start + 1) as i64 },
        l_pid: 0,
    }
}

fn lock_of(lock: nix::libc::flock) -> Option<Lock> {
    let kind = match i32::from(lock.l_type) {
        nix::libc::F_RDLCK => LockKind::Read,
        nix::libc::F_WRLCK => LockKind::Write,
        _ => return None,
    };
    let start = lock.l_start as u64;
    let end = if lock.l_len == 0 { u64::MAX } else { start + lock.l_len as u64 - 1 };
    Some(Lock { start, end, kind, pid: 0 })
}

impl HostDir {
    /// The tree at `root`; `kind` says what file system it is on.
    ///
    /// # Errors
    /// Whatever opening it fails with.
    pub fn new(root: &Path, kind: Kind) -> Result<Self> {
        rustix::process::umask(Mode::empty());
        let dir = rfs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(errno)?;
        Ok(HostDir { root: root.to_owned(), dir, kind, files: Mutex::default(), next: AtomicU64::new(1) })
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Fd, Arc<OwnedFd>>> {
        lock(&self.files)
    }

    fn file(&self, fd: Fd) -> Result<Arc<OwnedFd>> {
        self.files().get(&fd).cloned().ok_or(Errno::EBADF)
    }

    /// The path below the opened root: "" is the root itself.
    fn at<'a>(&self, path: &'a Path) -> &'a Path {
        if path.as_os_str().is_empty() { Path::new(".") } else { path }
    }
}

/// Switches the effective user and group of this thread back when dropped.
struct Switched;

impl Switched {
    fn to(user: Credentials) -> rustix::io::Result<Self> {
        use rustix::process::{Gid, Uid};
        use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        set_thread_groups(&[])?;
        set_thread_res_gid(None, Gid::from_raw(user.gid), None)?;
        let switched = Switched;
        set_thread_res_uid(None, Uid::from_raw(user.uid), None)?;
        Ok(switched)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        use rustix::process::{Gid, Uid};
        let _ = rustix::thread::set_thread_res_uid(None, Uid::ROOT, None);
        let _ = rustix::thread::set_thread_res_gid(None, Gid::ROOT, None);
    }
}

impl Subject for HostDir {
    fn kind(&self) -> Kind {
        self.kind
    }
    fn direct(&self) -> Option<&Direct> {
        None
    }
    fn as_user(&self, user: Credentials, body: &mut dyn FnMut()) {
        match Switched::to(user.clone()) {
            Ok(_switched) => body(),
            Err(error) => panic!("cannot act as user {}: {error}", user.uid),
        }
    }

    fn close_all(&self) {
        self.files().clear();
    }

    fn open(&self, path: &Path, flags: Flags, mode: u32) -> Result<Fd> {
        let file = rfs::openat(&self.dir, self.at(path), open_flags(flags), Mode::from_raw_mode(mode))
            .map_err(errno)?;
        let fd = Fd(self.next.fetch_add(1, Ordering::Relaxed));
        self.files().insert(fd, Arc::new(file));
        Ok(fd)
    }
    fn close(&self, fd: Fd) -> Result<()> {
        self.files().remove(&fd).map(drop).ok_or(Errno::EBADF)
    }
    fn read_at(&self, fd: Fd, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file(fd)?;
        let mut buf = vec![0; len];
        let mut done = 0;
        while done < len {
            match rustix::io::pread(&*file, &mut buf[done..], offset + done as u64).map_err(errno)? {
                0 => break,
                count => done += count,
            }
        }
        buf.truncate(done);
        Ok(buf)
    }
    fn write_at(&self, fd: Fd, offset: u64, data: &[u8]) -> Result<usize> {
        rustix::io::pwrite(&*self.file(fd)?, data, offset).map_err(errno)
    }
    fn append(&self, fd: Fd, data: &[u8]) -> Result<usize> {
        rustix::io::write(&*self.file(fd)?, data).map_err(errno)
    }
    fn fstat(&self, fd: Fd) -> Result<Attr> {
        let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rfs::statx(&*self.file(fd)?, "", AtFlags::EMPTY_PATH, all).map(attr).map_err(errno)
    }
    fn ftruncate(&self, fd: Fd, size: u64) -> Result<()> {
        rfs::ftruncate(&*self.file(fd)?, size).map_err(errno)
    }
    fn fsync(&self, fd: Fd, data_only: bool) -> Result<()> {
        let file = self.file(fd)?;
        if data_only { rfs::fdatasync(&*file) } else { rfs::fsync(&*file) }.map_err(errno)
    }
    fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let mode = rfs::FallocateFlags::from_bits_retain(mode.bits());
        rfs::fallocate(&*self.file(fd)?, mode, offset, len).map_err(errno)
    }
    fn seek(&self, fd: Fd, whence: Whence, offset: u64) -> Result<u64> {
        let position = match whence {
            Whence::Data => SeekFrom::Data(offset),
            Whence::Hole => SeekFrom::Hole(offset),
        };
        rfs::seek(&*self.file(fd)?, position).map_err(errno)
    }
    fn copy_range(&self, fd: Fd, mut offset: u64, to: Fd, mut to_offset: u64, len: u64) -> Result<u64> {
        let (from, to) = (self.file(fd)?, self.file(to)?);
        let count = rfs::copy_file_range(&*from, Some(&mut offset), &*to, Some(&mut to_offset), len as usize);
        count.map(|count| count as u64).map_err(errno)
    }
    fn link_open(&self, fd: Fd, path: &Path) -> Result<()> {
        rfs::linkat(&*self.file(fd)?, "", &self.dir, path, AtFlags::EMPTY_PATH).map_err(errno)
    }
    fn lock(&self, fd: Fd, lock: Lock, wait: bool) -> Result<()> {
        let (file, lock) = (self.file(fd)?, flock_of(lock));
        let command = if wait { FcntlArg::F_OFD_SETLKW(&lock) } else { FcntlArg::F_OFD_SETLK(&lock) };
        fcntl(file.as_fd(), command).map(drop).map_err(|error| Errno(error as i32))
    }
    fn test_lock(&self, fd: Fd, lock: Lock) -> Result<Option<Lock>> {
        let (file, mut lock) = (self.file(fd)?, flock_of(lock));
        fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| Errno(error as i32))?;
        Ok(lock_of(lock))
    }
    fn flock(&self, fd: Fd, kind: LockKind, wait: bool) -> Result<()> {
        use rfs::FlockOperation::*;
        let operation = match (kind, wait) {
            (LockKind::Read, true) => LockShared,
            (LockKind::Read, false) => NonBlockingLockShared,
            (LockKind::Write, true) => LockExclusive,
            (LockKind::Write, false) => NonBlockingLockExclusive,
            (LockKind::Unlock, _) => Unlock,
        };
        rfs::flock(&*self.file(fd)?, operation).map_err(errno)
    }
    fn read_dir(&self, fd: Fd, cookie: u64, size: usize) -> Result<Listing> {
        let file = self.file(fd)?;
        let mut cookie = cookie;
        loop {
            rfs::seek(&*file, SeekFrom::Start(cookie)).map_err(errno)?;
            let mut buf = vec![MaybeUninit::uninit(); size.max(DIRENT_MAX)];
            let mut dir = RawDir::new(&*file, &mut buf);
            let mut listing = Listing::default();
            let mut seen = false;
            while let Some(entry) = dir.next() {
                let entry = entry.map_err(errno)?;
                seen = true;
                cookie = entry.next_entry_cookie();
                let name = entry.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    let kind = kind_of(entry.file_type());
                    listing.entries.push(Listed { name, ino: entry.ino(), kind, cookie });
                }
                if dir.is_buffer_empty() {
                    break;
                }
            }
            listing.eof = !seen;
            if listing.eof || !listing.entries.is_empty() {
                return Ok(listing);
            }
        }
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rfs::statx(&self.dir, self.at(path), AtFlags::SYMLINK_NOFOLLOW, all).map(attr).map_err(errno)
    }
    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        nix::unistd::truncate(&self.root.join(path), size as i64).map_err(|error| Errno(error as i32))
    }
    fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        rfs::chmodat(&self.dir, self.at(path), Mode::from_raw_mode(mode), AtFlags::empty()).map_err(errno)
    }
    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let uid = uid.map(rfs::Uid::from_raw);
        let gid = gid.map(rfs::Gid::from_raw);
        rfs::chownat(&self.dir, self.at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)
    }
    fn utimens(&self, path: &Path, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        rfs::utimensat(&self.dir, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)
    }
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()> {
        rfs::mkdirat(&self.dir, path, Mode::from_raw_mode(mode)).map_err(errno)
    }
    fn mknod(&self, path: &Path, kind: FileKind, mode: u32, rdev: u32) -> Result<()> {
        rfs::mknodat(&self.dir, path, type_of(kind), Mode::from_raw_mode(mode), unpack_dev(rdev))
            .map_err(errno)
    }
    fn symlink(&self, target: &[u8], path: &Path) -> Result<()> {
        rfs::symlinkat(target, &self.dir, path).map_err(errno)
    }
    fn readlink(&self, path: &Path) -> Result<Vec<u8>> {
        rfs::readlinkat(&self.dir, path, Vec::new()).map(|target| target.into_bytes()).map_err(errno)
    }
    fn link(&self, old: &Path, new: &Path) -> Result<()> {
        rfs::linkat(&self.dir, old, &self.dir, new, AtFlags::empty()).map_err(errno)
    }
    fn unlink(&self, path: &Path) -> Result<()> {
        rfs::unlinkat(&self.dir, path, AtFlags::empty()).map_err(errno)
    }
    fn rmdir(&self, path: &Path) -> Result<()> {
        rfs::unlinkat(&self.dir, path, AtFlags::REMOVEDIR).map_err(errno)
    }
    fn rename(&self, old: &Path, new: &Path, flags: RenameFlags) -> Result<()> {
        let flags = rfs::RenameFlags::from_bits_retain(flags.bits());
        rfs::renameat_with(&self.dir, old, &self.dir, new, flags).map_err(errno)
    }
    fn get_xattr(&self, path: &Path, name: &str) -> Result<Vec<u8>> {
        let mut value = vec![0; 64 << 10];
        let len = rfs::lgetxattr(self.root.join(path), name, &mut value[..]).map_err(errno)?;
        value.truncate(len);
        Ok(value)
    }
    fn set_xattr(&self, path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<()> {
        let flags = rfs::XattrFlags::from_bits_retain(flags.bits());
        rfs::lsetxattr(self.root.join(path), name, value, flags).map_err(errno)
    }
    fn list_xattrs(&self, path: &Path) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![0_u8; 64 << 10];
        let len = rfs::llistxattr(self.root.join(path), &mut names[..]).map_err(errno)?;
        Ok(names[..len]
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect())
    }
    fn remove_xattr(&self, path: &Path, name: &str) -> Result<()> {
        rfs::lremovexattr(self.root.join(path), name).map_err(errno)
    }
    fn statfs(&self, path: &Path) -> Result<FsStat> {
        let stat = rfs::statvfs(self.root.join(path)).map_err(errno)?;
        Ok(FsStat {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: stat.f_bsize as u32,
            frsize: stat.f_frsize as u32,
            namelen: stat.f_namemax as u32,
        })
    }
}
