// SPDX-License-Identifier: MIT OR Apache-2.0
//! Basic types of NFS version 3 (RFC 1813, 2.5 and 2.6).

use crate::xdr::{
    Data, DecodeError, Decoder, Encoder, Inline, Text, Xdr, xdr_display, xdr_enum, xdr_status, xdr_struct,
};
use bitflags::bitflags;
use std::fmt;

/// The longest handle, in bytes (`NFS3_FHSIZE`, RFC 1813, 2.4).
pub const HANDLE_MAX: usize = 64;

/// The longest name that is decoded, in bytes. The protocol has no limit; a server answers [`Status::NAMETOOLONG`] to what its tree
/// does not take.
pub const NAME_MAX: usize = 4096;

/// The longest target of a symbolic link that is decoded, in bytes; as for [`NAME_MAX`].
pub const PATH_MAX: usize = 65536;

/// The most content in one READ or WRITE that is decoded, in bytes. What a server accepts is in [`FsInfo`](crate::results::FsInfo).
pub const DATA_MAX: usize = 16 << 20;

/// What a server calls a file (`nfs_fh3`, RFC 1813, 2.6).
pub type FileHandle = Inline<HANDLE_MAX>;

/// A name in a directory (`filename3`, RFC 1813, 2.5).
pub type Name = Text<NAME_MAX>;

/// The target of a symbolic link (`nfspath3`, RFC 1813, 2.5).
pub type Path = Text<PATH_MAX>;

/// Content of a file.
pub type Content = Data<DATA_MAX>;

/// Eight bytes that are compared with others: of a listing (`cookieverf3`), of an exclusive create (`createverf3`), of the life of a
/// server (`writeverf3`; RFC 1813, 2.5).
pub type Verifier = [u8; 8];

/// Permissions, set-id bits and sticky bit (`mode3`, RFC 1813, 2.5 and 2.6). Printed in octal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mode(pub u32);

impl Xdr for Mode {
    const MIN_LEN: usize = 4;

    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        u32::decode(input).map(Mode)
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

xdr_display!(Mode);

bitflags! {
    /// Permissions that a client asks for (`ACCESS3_*`, RFC 1813, 3.3.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Read a file or list a directory.
        const READ = 0x01;
        /// Look up a name in a directory.
        const LOOKUP = 0x02;
        /// Change what a file has, or names in a directory.
        const MODIFY = 0x04;
        /// Write beyond the end of a file, or add names to a directory.
        const EXTEND = 0x08;
        /// Remove a name from a directory.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
        // Unknown bits are kept, so that decoding never fails for them.
        const _ = !0;
    }

    /// What a file system can do (`FSF3_*`, RFC 1813, 3.3.19).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Properties: u32 {
        /// Hard links.
        const LINK = 0x01;
        /// Symbolic links.
        const SYMLINK = 0x02;
        /// PATHCONF answers the same for every file.
        const HOMOGENEOUS = 0x08;
        /// Times can be set, to the precision of [`FsInfo::time_delta`](crate::results::FsInfo::time_delta).
        const CANSETTIME = 0x10;
        // Unknown bits are kept, so that decoding never fails for them.
        const _ = !0;
    }
}

macro_rules! flags {
    ($($name:ident)*) => {$(
        impl Xdr for $name {
            const MIN_LEN: usize = 4;

            fn encode(&self, out: &mut Encoder) {
                self.bits().encode(out);
            }

            fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
                u32::decode(input).map(Self::from_bits_retain)
            }

            fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut before = "";
                for (name, _) in self.iter_names() {
                    write!(f, "{}{name}", std::mem::replace(&mut before, "|"))?;
                }
                match self.bits() & !self.iter_names().fold(0, |bits, (_, flag)| bits | flag.bits()) {
                    0 if before.is_empty() => f.write_str("-"),
                    0 => Ok(()),
                    unknown => write!(f, "{before}{unknown:#x}"),
                }
            }
        }

        xdr_display!($name);
    )*};
}
flags!(Access Properties);

xdr_status! {
    /// Why a procedure failed (`nfsstat3` without `NFS3_OK`, RFC 1813, 2.6).
    pub struct Status {
        /// Not owner.
        PERM = 1,
        /// No such file or directory.
        NOENT = 2,
        /// The disk or the like failed.
        IO = 5,
        /// No such device or address.
        NXIO = 6,
        /// Permission denied.
        ACCES = 13,
        /// The name exists.
        EXIST = 17,
        /// A hard link or rename across file systems.
        XDEV = 18,
        /// No such device.
        NODEV = 19,
        /// Not a directory.
        NOTDIR = 20,
        /// Is a directory.
        ISDIR = 21,
        /// Invalid argument, or not for this kind of file.
        INVAL = 22,
        /// Too large for a file.
        FBIG = 27,
        /// No space left.
        NOSPC = 28,
        /// Read-only.
        ROFS = 30,
        /// Too many hard links.
        MLINK = 31,
        /// The name is too long.
        NAMETOOLONG = 63,
        /// The directory is not empty.
        NOTEMPTY = 66,
        /// The quota is used up.
        DQUOT = 69,
        /// The handle is of a file that is no more, or no longer accessible.
        STALE = 70,
        /// Too many levels of remote in path.
        REMOTE = 71,
        /// The handle is none of this server.
        BADHANDLE = 10001,
        /// The guard of SETATTR is another time than that of the file.
        NOT_SYNC = 10002,
        /// The cookie of READDIR or READDIRPLUS is stale.
        BAD_COOKIE = 10003,
        /// Not supported.
        NOTSUPP = 10004,
        /// The buffer or request is too small.
        TOOSMALL = 10005,
        /// Another error, which has no code.
        SERVERFAULT = 10006,
        /// The server cannot make files of this kind.
        BADTYPE = 10007,
        /// It takes long: the client is to ask again later.
        JUKEBOX = 10008,
    }
}

xdr_enum! {
    /// The kind of a file (`ftype3`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub enum FileType: "kind of file" {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Char = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
    }

    /// What becomes of a time (`set_atime` and `set_mtime`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub enum SetTime: "way to set a time" {
        /// It stays.
        Keep = 0,
        /// The time at the server.
        Now = 1,
        /// This time.
        To(Time) = 2,
    }

    /// How stable content is (`stable_how`, RFC 1813, 3.3.7).
    #[derive(Copy)]
    pub enum Stable: "stability of a write" {
        /// Until the server restarts.
        Unstable = 0,
        /// The content, and what is needed to read it, is on stable storage.
        DataSync = 1,
        /// The content and all attributes are.
        FileSync = 2,
    }
}

xdr_struct! {
    /// A time since 1970-01-01 UTC (`nfstime3`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds after them.
        pub nanos: u32,
    }

    /// The number of a device (`specdata3`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct Device {
        /// The major number.
        pub major: u32,
        /// The minor number.
        pub minor: u32,
    }

    /// The attributes of a file (`fattr3`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct Attrs {
        /// Its kind.
        pub kind: FileType,
        /// Permissions.
        pub mode: Mode,
        /// The number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Size in bytes.
        pub size: u64,
        /// Allocated bytes.
        pub used: u64,
        /// The number of the device that it is.
        pub rdev: Device,
        /// The number of its file system.
        pub fsid: u64,
        /// Its number in the file system.
        pub fileid: u64,
        /// Last access.
        pub atime: Time,
        /// Last change of the content.
        pub mtime: Time,
        /// Last change of the content or of the attributes.
        pub ctime: Time,
    }

    /// Attributes to set; `None` leaves one alone (`sattr3`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct SetAttrs {
        /// Permissions.
        pub mode: Option<Mode>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Last access.
        pub atime: SetTime,
        /// Last change of the content.
        pub mtime: SetTime,
    }

    /// What of a file tells apart two states of it (`wcc_attr`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct WccAttrs {
        /// Size in bytes.
        pub size: u64,
        /// Last change of the content.
        pub mtime: Time,
        /// Last change of the content or of the attributes.
        pub ctime: Time,
    }

    /// A file before and after a change, each if known: weak cache consistency (`wcc_data`, RFC 1813, 2.6).
    #[derive(Copy)]
    pub struct Wcc {
        /// Before it.
        pub before: Option<WccAttrs>,
        /// After it.
        pub after: Option<Attrs>,
    }

    /// A name in a directory (`diropargs3`, RFC 1813, 2.6).
    pub struct DirName {
        /// The directory.
        pub dir: FileHandle,
        /// The name.
        pub name: Name,
    }
}

/// Codes, and the error numbers of Linux (errno(3)) that mean the same.
const ERRNOS: [(Status, i32); 22] = [
    (Status::PERM, 1),
    (Status::NOENT, 2),
    (Status::IO, 5),
    (Status::NXIO, 6),
    (Status::ACCES, 13),
    (Status::EXIST, 17),
    (Status::XDEV, 18),
    (Status::NODEV, 19),
    (Status::NOTDIR, 20),
    (Status::ISDIR, 21),
    (Status::INVAL, 22),
    (Status::FBIG, 27),
    (Status::NOSPC, 28),
    (Status::ROFS, 30),
    (Status::MLINK, 31),
    (Status::NAMETOOLONG, 36),
    (Status::NOTEMPTY, 39),
    (Status::REMOTE, 66),
    (Status::NOTSUPP, 95),
    (Status::STALE, 116),
    (Status::BADHANDLE, 116),
    (Status::DQUOT, 122),
];

impl Status {
    /// The error number of Linux that means the same; `None` where there is none.
    pub fn errno(self) -> Option<i32> {
        ERRNOS.iter().find(|(status, _)| *status == self).map(|(_, errno)| *errno)
    }

    /// The code for an error number of Linux; `None` where there is none.
    pub fn of_errno(errno: i32) -> Option<Self> {
        ERRNOS.iter().find(|(_, number)| *number == errno).map(|(status, _)| *status)
    }
}

/// Kinds, and the bits of a mode that say the same (`S_IFMT`, inode(7)).
const MODES: [(FileType, u32); 7] = [
    (FileType::Fifo, 0o010_000),
    (FileType::Char, 0o020_000),
    (FileType::Directory, 0o040_000),
    (FileType::Block, 0o060_000),
    (FileType::Regular, 0o100_000),
    (FileType::Symlink, 0o120_000),
    (FileType::Socket, 0o140_000),
];

impl FileType {
    /// The bits of a mode that say so (inode(7)).
    pub fn mode(self) -> u32 {
        MODES.iter().find(|(kind, _)| *kind == self).map_or(0, |(_, mode)| *mode)
    }

    /// The kind that a mode says; `None` where it says none.
    pub fn of_mode(mode: u32) -> Option<Self> {
        MODES.iter().find(|(_, bits)| *bits == mode & 0o170_000).map(|(kind, _)| *kind)
    }
}

/// Permissions, each with the bit of access(2) that means it: of files and of directories.
const PERMISSIONS: [(Access, u32); 6] = [
    (Access::READ, 4),
    (Access::LOOKUP, 1),
    (Access::MODIFY, 2),
    (Access::EXTEND, 2),
    (Access::DELETE, 2),
    (Access::EXECUTE, 1),
];

impl Access {
    /// Those that make sense for a directory, or for another file.
    pub fn sensible(is_dir: bool) -> Self {
        let apart = if is_dir { Access::EXECUTE } else { Access::LOOKUP | Access::DELETE };
        PERMISSIONS.iter().map(|(access, _)| *access).filter(|access| !apart.contains(*access)).collect()
    }

    /// Those that bits of access(2) mean for a directory, or for another file.
    pub fn of_mask(mask: u32, is_dir: bool) -> Self {
        let meant = PERMISSIONS.iter().filter(|(_, bit)| mask & bit != 0).map(|(access, _)| *access);
        meant.collect::<Access>() & Access::sensible(is_dir)
    }

    /// The bits of access(2) that mean one of these at least.
    pub fn needs(self) -> u32 {
        PERMISSIONS.iter().filter(|(access, _)| self.contains(*access)).fold(0, |mask, (_, bit)| mask | bit)
    }
}

impl Time {
    /// A time of the 136 years that NFS has; the nearest one for others.
    pub fn nearest(secs: i64, nanos: u32) -> Self {
        match u32::try_from(secs) {
            Ok(seconds) => Time { seconds, nanos },
            Err(_) if secs < 0 => Time { seconds: 0, nanos: 0 },
            Err(_) => Time { seconds: u32::MAX, nanos: 0 },
        }
    }
}

impl Device {
    /// The parts of a device number of 32 bits (makedev(3)).
    pub fn of_rdev(rdev: u32) -> Self {
        Device { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
    }

    /// A device number of 32 bits; `None` where the parts do not fit.
    pub fn rdev(self) -> Option<u32> {
        let Device { major, minor } = self;
        let fits = major <= 0xfff && minor <= 0xf_ffff;
        fits.then_some(minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12)
    }
}

impl SetAttrs {
    /// Leaves everything alone.
    pub const NONE: SetAttrs =
        SetAttrs { mode: None, uid: None, gid: None, size: None, atime: SetTime::Keep, mtime: SetTime::Keep };
}

impl Wcc {
    /// Neither is known.
    pub const UNKNOWN: Wcc = Wcc { before: None, after: None };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for number in [0, 0x103, 0x0801, u32::MAX, 0xfff0_0000, 0x000f_ff00] {
            assert_eq!(Device::of_rdev(number).rdev(), Some(number), "{number:#x}");
        }
        assert_eq!(Device::of_rdev(0x0801), Device { major: 8, minor: 1 });
        assert_eq!(Device { major: 0x1000, minor: 0 }.rdev(), None);
        assert_eq!(Device { major: 0, minor: 0x10_0000 }.rdev(), None);
    }

    #[test]
    fn permissions_of_files_and_directories() {
        assert_eq!((Access::all() & Access::sensible(true)).needs(), 7);
        assert_eq!((Access::LOOKUP | Access::DELETE) & Access::sensible(false), Access::empty());
        assert_eq!(Access::of_mask(4 | 1, true), Access::READ | Access::LOOKUP);
        assert_eq!(Access::of_mask(1, false), Access::EXECUTE);
        assert_eq!(Access::of_mask(2, false), Access::MODIFY | Access::EXTEND);
        assert_eq!(Access::of_mask(2, true), Access::MODIFY | Access::EXTEND | Access::DELETE);
    }

    #[test]
    fn times_beyond_those_of_nfs_are_its_first_and_last() {
        assert_eq!(Time::nearest(-1, 5), Time { seconds: 0, nanos: 0 });
        assert_eq!(Time::nearest(1 << 40, 5), Time { seconds: u32::MAX, nanos: 0 });
        assert_eq!(Time::nearest(7, 5), Time { seconds: 7, nanos: 5 });
    }

    #[test]
    fn kinds_and_errors_are_those_of_linux_both_ways() {
        for (kind, mode) in MODES {
            assert_eq!((kind.mode(), FileType::of_mode(mode | 0o7777)), (mode, Some(kind)));
        }
        assert_eq!(FileType::of_mode(0o644), None);
        for (status, errno) in ERRNOS {
            let same = if status == Status::BADHANDLE { Status::STALE } else { status };
            assert_eq!((status.errno(), Status::of_errno(errno)), (Some(errno), Some(same)));
        }
        assert_eq!((Status::JUKEBOX.errno(), Status::of_errno(4)), (None, None));
    }
}
