// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flag words of the protocol.
use bitflags::bitflags;

bitflags! {
    /// Abilities negotiated by INIT; bits 32 and up travel in `flags2`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at a time.
        const ASYNC_READ = 1 << 0;
        /// POSIX locks are sent to the server.
        const POSIX_LOCKS = 1 << 1;
        /// The file handle is sent with attribute requests (never used by Linux).
        const FILE_OPS = 1 << 2;
        /// The server handles `O_TRUNC` in open.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// The server answers lookups of `.` and `..` (needed by NFS export).
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask itself.
        const DONT_MASK = 1 << 6;
        /// The device can be written with splice.
        const SPLICE_WRITE = 1 << 7;
        /// Spliced pages may be moved instead of copied.
        const SPLICE_MOVE = 1 << 8;
        /// The device can be read with splice.
        const SPLICE_READ = 1 << 9;
        /// BSD locks (flock) are sent to the server.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// A changed size or mtime drops cached pages.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS is supported.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O is submitted asynchronously.
        const ASYNC_DIO = 1 << 15;
        /// Buffered writes are collected in the page cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS for OPEN means that open and release are never needed.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and readdirs in one directory run in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server clears setuid and setgid bits on write, chown and truncate.
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX access control lists.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` of the reply is valid.
        const MAX_PAGES = 1 << 22;
        /// Symbolic link targets are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS for OPENDIR means that opendir and releasedir are never needed.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are dropped on request only.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// `map_alignment` of the reply is valid.
        const MAP_ALIGNMENT = 1 << 26;
        /// Directories marked as submounts are mounted automatically.
        const SUBMOUNTS = 1 << 27;
        /// Like `HANDLE_KILLPRIV`, but only when the request says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR carries the extended structure.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid in both directions.
        const INIT_EXT = 1 << 30;
        /// Security context is sent with create, mkdir, mknod and symlink.
        const SECURITY_CTX = 1 << 32;
        /// DAX chosen per inode.
        const HAS_INODE_DAX = 1 << 33;
        /// One matching supplementary group is sent with create, mkdir, mknod and symlink.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Entry invalidation can be expiry only.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files opened for direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes go to a backing file inside the kernel.
        const PASSTHROUGH = 1 << 37;
        /// File handles for NFS export are refused.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests already read can be sent again after a resend notification.
        const HAS_RESEND = 1 << 39;
        /// Mounts of this file system may map user and group ids.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests may travel over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// `request_timeout` of the reply is valid.
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// Flags of an OPEN, OPENDIR or CREATE reply (`FOPEN_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep pages cached from earlier opens.
        const KEEP_CACHE = 1 << 1;
        /// The file cannot be seeked.
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache the entries of this directory.
        const CACHE_DIR = 1 << 3;
        /// The file has no position at all.
        const STREAM = 1 << 4;
        /// Do not send FLUSH on close.
        const NOFLUSH = 1 << 5;
        /// Direct writes to one file may run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Read and write the backing file directly.
        const PASSTHROUGH = 1 << 7;
    }

    /// Which fields of a SETATTR request count (`FATTR_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SetattrValid: u32 {
        /// Permission bits.
        const MODE = 1 << 0;
        /// Owner.
        const UID = 1 << 1;
        /// Group.
        const GID = 1 << 2;
        /// Size.
        const SIZE = 1 << 3;
        /// Access time.
        const ATIME = 1 << 4;
        /// Modification time.
        const MTIME = 1 << 5;
        /// The file handle is valid.
        const FH = 1 << 6;
        /// Access time is the present.
        const ATIME_NOW = 1 << 7;
        /// Modification time is the present.
        const MTIME_NOW = 1 << 8;
        /// The lock owner is valid.
        const LOCKOWNER = 1 << 9;
        /// Change time (write-back cache only).
        const CTIME = 1 << 10;
        /// Clear setuid and setgid bits.
        const KILL_SUIDGID = 1 << 11;
    }

    /// Flags of a WRITE request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct WriteFlags: u32 {
        /// Delayed write from the page cache; the handle is a guess.
        const CACHE = 1 << 0;
        /// The lock owner is valid.
        const LOCKOWNER = 1 << 1;
        /// Clear setuid and setgid bits.
        const KILL_SUIDGID = 1 << 2;
    }

    /// Flags of an IOCTL request or reply.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct IoctlFlags: u32 {
        /// 32-bit caller on a 64-bit machine.
        const COMPAT = 1 << 0;
        /// The data is not described by the command: retry is possible.
        const UNRESTRICTED = 1 << 1;
        /// Reply: send again with these memory areas.
        const RETRY = 1 << 2;
        /// 32-bit ioctl.
        const IS_32BIT = 1 << 3;
        /// The target is a directory.
        const DIR = 1 << 4;
        /// x32 caller on a 64-bit machine.
        const COMPAT_X32 = 1 << 5;
    }
}

/// GETATTR and STATX: the file handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// Lock requests: this is a BSD lock (flock), not a POSIX lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// RELEASE: flush too (sent for the last close of a file whose FLUSH was not sent).
pub const RELEASE_FLUSH: u32 = 1 << 0;
/// RELEASE: drop the BSD locks of this open file.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// READ: the lock owner is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// POLL: the caller wants a notification when the file becomes ready.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// FSYNC and FSYNCDIR: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// OPEN and CREATE: clear setuid and setgid bits of an executable.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// SETXATTR: clear the setgid bit when an access list is set.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Attribute flag: the node is the root of a submount.
pub const ATTR_SUBMOUNT: u32 = 1 << 0;
