// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixed parts of replies (`fuse_*_out`).
use crate::input::FileLock;
use crate::layout::layout;

layout! {
    /// Attributes of a node (`fuse_attr`).
    pub struct Attr: 88 {
        /// Inode number shown to programs.
        ino: u64 = 0,
        /// Size in bytes.
        size: u64 = 8,
        /// Space in units of 512 bytes.
        blocks: u64 = 16,
        /// Access time, seconds (two's complement before 1970).
        atime: u64 = 24,
        /// Modification time, seconds.
        mtime: u64 = 32,
        /// Change time, seconds.
        ctime: u64 = 40,
        /// Access time, nanoseconds.
        atimensec: u32 = 48,
        /// Modification time, nanoseconds.
        mtimensec: u32 = 52,
        /// Change time, nanoseconds.
        ctimensec: u32 = 56,
        /// File type and permission bits.
        mode: u32 = 60,
        /// Number of names.
        nlink: u32 = 64,
        /// Owner.
        uid: u32 = 68,
        /// Group.
        gid: u32 = 72,
        /// Device number of a device node.
        rdev: u32 = 76,
        /// Preferred size of I/O in bytes; zero leaves it to the kernel.
        blksize: u32 = 80,
        /// `ATTR_*`.
        flags: u32 = 84,
    }

    /// Reply to LOOKUP, MKNOD, MKDIR, SYMLINK and LINK; first half of the CREATE and TMPFILE replies.
    pub struct EntryOut: 128 {
        /// Node number; zero is a negative entry that may be cached.
        nodeid: u64 = 0,
        /// Tells reuses of a node number apart.
        generation: u64 = 8,
        /// Lifetime of the name, seconds.
        entry_valid: u64 = 16,
        /// Lifetime of the attributes, seconds.
        attr_valid: u64 = 24,
        /// Lifetime of the name, nanoseconds.
        entry_valid_nsec: u32 = 32,
        /// Lifetime of the attributes, nanoseconds.
        attr_valid_nsec: u32 = 36,
        /// The attributes.
        attr: Attr = 40,
    }

    /// Reply to GETATTR and SETATTR.
    pub struct AttrOut: 104 {
        /// Lifetime of the attributes, seconds.
        attr_valid: u64 = 0,
        /// Lifetime of the attributes, nanoseconds.
        attr_valid_nsec: u32 = 8,
        /// The attributes.
        attr: Attr = 16,
    }

    /// A time of [`Statx`] (`fuse_sx_time`).
    pub struct StatxTime: 16 {
        /// Seconds.
        sec: i64 = 0,
        /// Nanoseconds.
        nsec: u32 = 8,
    }

    /// Extended attributes of a node (`fuse_statx`).
    pub struct Statx: 256 {
        /// Fields that are filled in, `STATX_*`.
        mask: u32 = 0,
        /// Preferred size of I/O in bytes.
        blksize: u32 = 4,
        /// `STATX_ATTR_*`.
        attributes: u64 = 8,
        /// Number of names.
        nlink: u32 = 16,
        /// Owner.
        uid: u32 = 20,
        /// Group.
        gid: u32 = 24,
        /// File type and permission bits.
        mode: u16 = 28,
        /// Inode number.
        ino: u64 = 32,
        /// Size in bytes.
        size: u64 = 40,
        /// Space in units of 512 bytes.
        blocks: u64 = 48,
        /// Bits of `attributes` that are supported.
        attributes_mask: u64 = 56,
        /// Access time.
        atime: StatxTime = 64,
        /// Birth time.
        btime: StatxTime = 80,
        /// Change time.
        ctime: StatxTime = 96,
        /// Modification time.
        mtime: StatxTime = 112,
        /// Major number of a device node.
        rdev_major: u32 = 128,
        /// Minor number of a device node.
        rdev_minor: u32 = 132,
        /// Major number of the file system's device.
        dev_major: u32 = 136,
        /// Minor number of the file system's device.
        dev_minor: u32 = 140,
    }

    /// Reply to STATX.
    pub struct StatxOut: 288 {
        /// Lifetime of the attributes, seconds.
        attr_valid: u64 = 0,
        /// Lifetime of the attributes, nanoseconds.
        attr_valid_nsec: u32 = 8,
        /// `ATTR_*`.
        flags: u32 = 12,
        /// The attributes.
        stat: Statx = 32,
    }

    /// Reply to OPEN and OPENDIR; second half of the CREATE and TMPFILE replies.
    pub struct OpenOut: 16 {
        /// File handle.
        fh: u64 = 0,
        /// See [`OpenFlags`](crate::OpenFlags).
        open_flags: u32 = 8,
        /// Backing file for passthrough, from the device ioctl.
        backing_id: i32 = 12,
    }

    /// Reply to WRITE and COPY_FILE_RANGE.
    pub struct WriteOut: 8 {
        /// Bytes written.
        size: u32 = 0,
    }

    /// Reply to COPY_FILE_RANGE_64 (7.45).
    pub struct CopyFileRangeOut: 8 {
        /// Bytes copied.
        bytes_copied: u64 = 0,
    }

    /// Reply to STATFS.
    pub struct StatfsOut: 80 {
        /// Size in units of `frsize`.
        blocks: u64 = 0,
        /// Free blocks.
        bfree: u64 = 8,
        /// Blocks free to everybody.
        bavail: u64 = 16,
        /// Number of nodes.
        files: u64 = 24,
        /// Free nodes.
        ffree: u64 = 32,
        /// Preferred size of I/O in bytes.
        bsize: u32 = 40,
        /// Longest name in bytes.
        namelen: u32 = 44,
        /// Unit of the block counts in bytes.
        frsize: u32 = 48,
    }

    /// Reply to GETXATTR and LISTXATTR when the request's size was zero.
    pub struct GetxattrOut: 8 {
        /// Size of the value or list in bytes.
        size: u32 = 0,
    }

    /// Reply to GETLK.
    pub struct LkOut: 24 {
        /// A lock that is in the way, or one of kind `F_UNLCK`.
        lk: FileLock = 0,
    }

    /// Reply to BMAP.
    pub struct BmapOut: 8 {
        /// Block of the device.
        block: u64 = 0,
    }

    /// Head of the reply to IOCTL; data or memory areas follow.
    pub struct IoctlOut: 16 {
        /// Return value for the caller.
        result: i32 = 0,
        /// See [`IoctlFlags`](crate::IoctlFlags).
        flags: u32 = 4,
        /// Input areas wanted on a retry.
        in_iovs: u32 = 8,
        /// Output areas wanted on a retry.
        out_iovs: u32 = 12,
    }

    /// Reply to POLL.
    pub struct PollOut: 8 {
        /// Events that are ready.
        revents: u32 = 0,
    }

    /// Reply to LSEEK.
    pub struct LseekOut: 8 {
        /// New offset.
        offset: u64 = 0,
    }
}
