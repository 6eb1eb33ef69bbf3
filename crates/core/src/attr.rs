// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of files and how they change.

use crate::cx::Credentials;
use crate::node::LockOwner;
use crate::{Traverse, Wire};
use bitflags::bitflags;

/// A point in time: seconds and nanoseconds since 1970-01-01 UTC, before it when `secs` is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Traverse, Wire)]
pub struct Time {
    /// Whole seconds, rounded towards the past.
    pub secs: i64,
    /// Nanoseconds after `secs`, below 1,000,000,000.
    pub nanos: u32,
}

impl Time {
    /// `secs` seconds and `nanos` nanoseconds since the epoch.
    pub const fn new(secs: i64, nanos: u32) -> Self {
        Time { secs, nanos }
    }
}

/// Permission to read, as access(2) and each class of a mode have it.
pub const R_OK: u32 = 4;
/// Permission to write.
pub const W_OK: u32 = 2;
/// Permission to execute, or to search a directory.
pub const X_OK: u32 = 1;

/// Set-user-ID in a mode (chmod(2)).
pub const SET_UID: u32 = 0o4000;
/// Set-group-ID in a mode.
pub const SET_GID: u32 = 0o2000;
/// Both.
pub const SET_ID: u32 = SET_UID | SET_GID;
/// Execute permission of the group in a mode.
const GROUP_EXECUTE: u32 = 0o010;

/// The mode after someone other than the superuser has written to the file (write(2)): set-group-ID without execute permission of
/// the group is another thing, and stays.
pub const fn without_set_id(mode: u32) -> u32 {
    mode & !if mode & GROUP_EXECUTE != 0 { SET_ID } else { SET_UID }
}

/// The type of a file, from the `S_IFMT` bits of its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Every kind.
    pub const ALL: [FileKind; 7] = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];

    /// The `S_IFMT` bits of this kind.
    pub const fn bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Regular => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// The kind a mode names, if it names one.
    pub const fn of_mode(mode: u32) -> Option<Self> {
        Some(match mode & MODE_KIND {
            0o010_000 => FileKind::Fifo,
            0o020_000 => FileKind::CharDevice,
            0o040_000 => FileKind::Directory,
            0o060_000 => FileKind::BlockDevice,
            0o100_000 => FileKind::Regular,
            0o120_000 => FileKind::Symlink,
            0o140_000 => FileKind::Socket,
            _ => return None,
        })
    }

    /// The `d_type` of a dirent of this kind (`DT_*`, see readdir(3)).
    pub const fn dirent_type(self) -> u8 {
        (self.bits() >> 12) as u8
    }
}

/// The bits of a mode that hold the [`FileKind`] (`S_IFMT`).
pub const MODE_KIND: u32 = 0o170_000;
/// The bits of a mode that hold permissions, set-id bits and the sticky bit.
pub const MODE_PERMISSIONS: u32 = 0o7777;

/// What stat(2) and statx(2) tell about a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Wire)]
pub struct Attr {
    /// The inode number shown to programs.
    pub ino: u64,
    /// Size in bytes; for a symbolic link the length of its target.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the content or of the attributes.
    pub ctime: Time,
    /// Creation, where the tree knows it.
    pub btime: Option<Time>,
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `dev_t` packs it for 32 bits (see makedev(3)).
    pub rdev: u32,
    /// The unit of efficient I/O, in bytes.
    pub blksize: u32,
    /// Tells apart file systems within one tree (a mount point below a directory, a subvolume), as `st_dev` and NFS' `fsid`;
    /// 0 everywhere in a tree that is one file system.
    pub dev: u64,
    /// A number that is another one after each change of content or attributes (`change` of NFSv4, an entity tag as a hash),
    /// where the tree has one: 0 where only the times say so. [`Attr::version`] is right in both cases.
    pub change: u64,
    /// Fields that the tree does not know, and that have a value for show.
    pub unknown: AttrFields,
}

bitflags! {
    /// Fields of [`Attr`] that not every tree knows (the mask of statx(2), reversed).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AttrFields: u32 {
        /// Owner and group.
        const OWNER = 1;
        /// Permissions.
        const PERMISSIONS = 2;
        /// The number of links.
        const NLINK = 4;
        /// The time of last access.
        const ATIME = 8;
        /// The time of last change of attributes.
        const CTIME = 16;
        /// The allocated units.
        const BLOCKS = 32;
    }
}

impl Attr {
    /// The kind of file; regular when the mode names none.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Permissions, set-id bits and sticky bit.
    pub fn permissions(&self) -> u32 {
        self.mode & MODE_PERMISSIONS
    }

    /// A number that is another one after each change of content or attributes: [`Attr::change`], or where there is none a
    /// mixture of the size and the times of change. Two changes within the resolution of the tree's clock
    /// ([`Abilities::time_unit`](crate::Abilities::time_unit)) may have the same one then.
    pub fn version(&self) -> u64 {
        let nanos =
            |time: Time| (time.secs as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nanos.into());
        match self.change {
            0 => nanos(self.ctime) ^ nanos(self.mtime).rotate_left(21) ^ self.size.rotate_left(42),
            change => change,
        }
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// The permissions ([`R_OK`], [`W_OK`], [`X_OK`]) that owner, group and mode grant (see path_resolution(7)); access lists
    /// and supplementary groups are not known here.
    pub fn granted(&self, cred: &Credentials) -> u32 {
        let mode = self.permissions();
        match cred.uid {
            0 => granted_to_superuser(mode, self.is_dir()),
            uid if uid == self.uid => (mode >> 6) & 7,
            _ if cred.in_group(self.gid) => (mode >> 3) & 7,
            _ => mode & 7,
        }
    }
}

/// The permissions the superuser has: all, but what has no execute permission at all is no program.
pub const fn granted_to_superuser(mode: u32, is_dir: bool) -> u32 {
    if is_dir || mode & 0o111 != 0 { R_OK | W_OK | X_OK } else { R_OK | W_OK }
}

/// A new value for a timestamp (see utimensat(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub enum SetTime {
    /// The time at which the driver executes the request (`UTIME_NOW`).
    #[wire(1)]
    Now,
    /// This time.
    #[wire(2)]
    To(Time),
}

/// Attributes to change, all at once; `None` leaves one alone (`UTIME_OMIT`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Traverse, Wire)]
pub struct SetAttrs {
    /// New permission bits; kind bits are ignored.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncate, or extend with a hole.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last modification.
    pub mtime: Option<SetTime>,
    /// New time of last change; only a kernel that caches writes sends it.
    pub ctime: Option<Time>,
    /// Clear the set-id bits as a write by an unprivileged user would (FUSE `HANDLE_KILLPRIV_V2`).
    pub kill_setid: bool,
    /// The owner whose mandatory locks to respect when `size` is set.
    pub lock_owner: Option<LockOwner>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_the_mode() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::of_mode(kind.bits() | 0o7777), Some(kind));
        }
        assert_eq!(FileKind::of_mode(0o644), None);
        assert_eq!(FileKind::Directory.dirent_type(), 4);
    }
}
