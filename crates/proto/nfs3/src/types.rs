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

    fn encoded_len(&self) -> usize {
        4
    }

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

            fn encoded_len(&self) -> usize {
                4
            }

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

impl SetAttrs {
    /// Leaves everything alone.
    pub const NONE: SetAttrs =
        SetAttrs { mode: None, uid: None, gid: None, size: None, atime: SetTime::Keep, mtime: SetTime::Keep };
}

impl Wcc {
    /// Neither is known.
    pub const UNKNOWN: Wcc = Wcc { before: None, after: None };
}
