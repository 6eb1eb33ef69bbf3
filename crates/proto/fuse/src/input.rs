// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixed parts of requests (`fuse_*_in`).
use crate::layout::layout;

layout! {
    /// FORGET.
    pub struct ForgetIn: 8 {
        /// References to drop.
        nlookup: u64 = 0,
    }

    /// One element of BATCH_FORGET.
    pub struct ForgetOne: 16 {
        /// Node to forget.
        nodeid: u64 = 0,
        /// References to drop.
        nlookup: u64 = 8,
    }

    /// Head of BATCH_FORGET.
    pub struct BatchForgetIn: 8 {
        /// Number of [`ForgetOne`] that follow.
        count: u32 = 0,
    }

    /// GETATTR.
    pub struct GetattrIn: 16 {
        /// [`GETATTR_FH`](crate::GETATTR_FH) or zero.
        getattr_flags: u32 = 0,
        /// File handle when the flag is set.
        fh: u64 = 8,
    }

    /// STATX (7.39).
    pub struct StatxIn: 24 {
        /// [`GETATTR_FH`](crate::GETATTR_FH) or zero.
        getattr_flags: u32 = 0,
        /// File handle when the flag is set.
        fh: u64 = 8,
        /// `AT_STATX_*` flags of statx(2).
        sx_flags: u32 = 16,
        /// Wanted fields, `STATX_*` of statx(2).
        sx_mask: u32 = 20,
    }

    /// SETATTR.
    pub struct SetattrIn: 88 {
        /// Which fields count; see [`SetattrValid`](crate::SetattrValid).
        valid: u32 = 0,
        /// File handle.
        fh: u64 = 8,
        /// New size in bytes.
        size: u64 = 16,
        /// Lock owner.
        lock_owner: u64 = 24,
        /// Access time, seconds.
        atime: u64 = 32,
        /// Modification time, seconds.
        mtime: u64 = 40,
        /// Change time, seconds.
        ctime: u64 = 48,
        /// Access time, nanoseconds.
        atimensec: u32 = 56,
        /// Modification time, nanoseconds.
        mtimensec: u32 = 60,
        /// Change time, nanoseconds.
        ctimensec: u32 = 64,
        /// File type and permission bits.
        mode: u32 = 68,
        /// Owner.
        uid: u32 = 76,
        /// Group.
        gid: u32 = 80,
    }

    /// MKNOD, before the name.
    pub struct MknodIn: 16 {
        /// File type and permission bits.
        mode: u32 = 0,
        /// Device number.
        rdev: u32 = 4,
        /// Mask of the caller.
        umask: u32 = 8,
    }

    /// MKDIR, before the name.
    pub struct MkdirIn: 8 {
        /// Permission bits.
        mode: u32 = 0,
        /// Mask of the caller.
        umask: u32 = 4,
    }

    /// RENAME, before the two names.
    pub struct RenameIn: 8 {
        /// Directory of the new name.
        newdir: u64 = 0,
    }

    /// RENAME2, before the two names.
    pub struct Rename2In: 16 {
        /// Directory of the new name.
        newdir: u64 = 0,
        /// `RENAME_*` of renameat2(2).
        flags: u32 = 8,
    }

    /// LINK, before the new name.
    pub struct LinkIn: 8 {
        /// Node that gets another name.
        oldnodeid: u64 = 0,
    }

    /// OPEN and OPENDIR.
    pub struct OpenIn: 8 {
        /// Flags of open(2) without `O_CREAT` and `O_EXCL`.
        flags: u32 = 0,
        /// [`OPEN_KILL_SUIDGID`](crate::OPEN_KILL_SUIDGID) or zero.
        open_flags: u32 = 4,
    }

    /// CREATE and TMPFILE, before the name.
    pub struct CreateIn: 16 {
        /// Flags of open(2).
        flags: u32 = 0,
        /// File type and permission bits.
        mode: u32 = 4,
        /// Mask of the caller.
        umask: u32 = 8,
        /// [`OPEN_KILL_SUIDGID`](crate::OPEN_KILL_SUIDGID) or zero.
        open_flags: u32 = 12,
    }

    /// RELEASE and RELEASEDIR.
    pub struct ReleaseIn: 24 {
        /// File handle.
        fh: u64 = 0,
        /// Flags of open(2).
        flags: u32 = 8,
        /// `RELEASE_*`.
        release_flags: u32 = 12,
        /// Lock owner.
        lock_owner: u64 = 16,
    }

    /// FLUSH.
    pub struct FlushIn: 24 {
        /// File handle.
        fh: u64 = 0,
        /// Lock owner whose POSIX locks go away.
        lock_owner: u64 = 16,
    }

    /// READ, READDIR and READDIRPLUS.
    pub struct ReadIn: 40 {
        /// File handle.
        fh: u64 = 0,
        /// Offset in bytes, or the cookie of a directory entry.
        offset: u64 = 8,
        /// Largest reply body in bytes.
        size: u32 = 16,
        /// [`READ_LOCKOWNER`](crate::READ_LOCKOWNER) or zero.
        read_flags: u32 = 20,
        /// Lock owner when the flag is set.
        lock_owner: u64 = 24,
        /// Flags of open(2).
        flags: u32 = 32,
    }

    /// WRITE, before the data.
    pub struct WriteIn: 40 {
        /// File handle.
        fh: u64 = 0,
        /// Offset in bytes.
        offset: u64 = 8,
        /// Bytes of data that follow.
        size: u32 = 16,
        /// See [`WriteFlags`](crate::WriteFlags).
        write_flags: u32 = 20,
        /// Lock owner when the flag is set.
        lock_owner: u64 = 24,
        /// Flags of open(2).
        flags: u32 = 32,
    }

    /// FSYNC and FSYNCDIR.
    pub struct FsyncIn: 16 {
        /// File handle.
        fh: u64 = 0,
        /// [`FSYNC_FDATASYNC`](crate::FSYNC_FDATASYNC) or zero.
        fsync_flags: u32 = 8,
    }

    /// SETXATTR as sent without `SETXATTR_EXT`, before name and value.
    pub struct SetxattrCompatIn: 8 {
        /// Bytes of the value.
        size: u32 = 0,
        /// `XATTR_CREATE`, `XATTR_REPLACE` or zero.
        flags: u32 = 4,
    }

    /// SETXATTR as sent with `SETXATTR_EXT`, before name and value.
    pub struct SetxattrIn: 16 {
        /// Bytes of the value.
        size: u32 = 0,
        /// `XATTR_CREATE`, `XATTR_REPLACE` or zero.
        flags: u32 = 4,
        /// [`SETXATTR_ACL_KILL_SGID`](crate::SETXATTR_ACL_KILL_SGID) or zero.
        setxattr_flags: u32 = 8,
    }

    /// GETXATTR (before the name) and LISTXATTR.
    pub struct GetxattrIn: 8 {
        /// Room of the caller in bytes; zero asks for the size.
        size: u32 = 0,
    }

    /// A lock (`fuse_file_lock`).
    pub struct FileLock: 24 {
        /// First byte.
        start: u64 = 0,
        /// Last byte, inclusive; `i64::MAX` is the end of the file.
        end: u64 = 8,
        /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
        kind: u32 = 16,
        /// Process that holds it.
        pid: u32 = 20,
    }

    /// GETLK, SETLK and SETLKW.
    pub struct LkIn: 48 {
        /// File handle.
        fh: u64 = 0,
        /// Lock owner.
        owner: u64 = 8,
        /// The lock.
        lk: FileLock = 16,
        /// [`LK_FLOCK`](crate::LK_FLOCK) or zero.
        lk_flags: u32 = 40,
    }

    /// ACCESS.
    pub struct AccessIn: 8 {
        /// `R_OK`, `W_OK`, `X_OK` or `F_OK`.
        mask: u32 = 0,
    }

    /// INTERRUPT.
    pub struct InterruptIn: 8 {
        /// The request that is no longer wanted.
        unique: u64 = 0,
    }

    /// BMAP.
    pub struct BmapIn: 16 {
        /// Block of the file.
        block: u64 = 0,
        /// Block size in bytes.
        blocksize: u32 = 8,
    }

    /// IOCTL, before the data.
    pub struct IoctlIn: 32 {
        /// File handle.
        fh: u64 = 0,
        /// See [`IoctlFlags`](crate::IoctlFlags).
        flags: u32 = 8,
        /// Command.
        cmd: u32 = 12,
        /// Argument as given by the caller.
        arg: u64 = 16,
        /// Bytes of data that follow.
        in_size: u32 = 24,
        /// Room for data in the reply.
        out_size: u32 = 28,
    }

    /// POLL.
    pub struct PollIn: 24 {
        /// File handle.
        fh: u64 = 0,
        /// Kernel handle to name in a poll notification.
        kh: u64 = 8,
        /// [`POLL_SCHEDULE_NOTIFY`](crate::POLL_SCHEDULE_NOTIFY) or zero.
        flags: u32 = 16,
        /// Events the caller waits for, `POLL*` of poll(2).
        events: u32 = 20,
    }

    /// NOTIFY_REPLY, before the data: the answer to a retrieve notification.
    pub struct RetrieveIn: 40 {
        /// Offset of the data in the file.
        offset: u64 = 8,
        /// Bytes of data that follow.
        size: u32 = 16,
    }

    /// FALLOCATE.
    pub struct FallocateIn: 32 {
        /// File handle.
        fh: u64 = 0,
        /// First byte.
        offset: u64 = 8,
        /// Length in bytes.
        length: u64 = 16,
        /// `FALLOC_FL_*` of fallocate(2).
        mode: u32 = 24,
    }

    /// LSEEK.
    pub struct LseekIn: 24 {
        /// File handle.
        fh: u64 = 0,
        /// Offset in bytes.
        offset: u64 = 8,
        /// `SEEK_*` of lseek(2).
        whence: u32 = 16,
    }

    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    pub struct CopyFileRangeIn: 56 {
        /// Handle of the source.
        fh_in: u64 = 0,
        /// Offset in the source.
        off_in: u64 = 8,
        /// Node of the destination.
        nodeid_out: u64 = 16,
        /// Handle of the destination.
        fh_out: u64 = 24,
        /// Offset in the destination.
        off_out: u64 = 32,
        /// Bytes to copy.
        len: u64 = 40,
        /// Flags of copy_file_range(2), zero so far.
        flags: u64 = 48,
    }

    /// SETUPMAPPING.
    pub struct SetupmappingIn: 40 {
        /// File handle.
        fh: u64 = 0,
        /// Offset in the file.
        foffset: u64 = 8,
        /// Length in bytes.
        len: u64 = 16,
        /// Bit 0 write, bit 1 read.
        flags: u64 = 24,
        /// Offset in the window.
        moffset: u64 = 32,
    }

    /// Head of REMOVEMAPPING.
    pub struct RemovemappingIn: 4 {
        /// Ranges that follow, 16 bytes each.
        count: u32 = 0,
    }
}
