// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS program, version 3: its procedures and their arguments (RFC 1813, 3.3). Results are in [`crate::results`].

use crate::results::{
    AccessOk, AttrsFailed, Committed, Created, Entries, EntriesPlus, FsInfo, FsStat, LinkFailed, Linked,
    LookedUp, Pathconf, ReadLinkOk, ReadOk, RenameFailed, Renamed, WccFailed, WccOk, WriteOk,
};
use crate::types::{
    Access, Attrs, Content, Device, DirName, FileHandle, Path, SetAttrs, Stable, Status, Time, Verifier,
};
use crate::xdr::{xdr_enum, xdr_program, xdr_struct};

/// The port that servers have by custom (RFC 1813, 2.3).
pub const PORT: u16 = 2049;

xdr_program! {
    /// NFS version 3 (RFC 1813, 3).
    program 100_003, version 3;
    /// Does nothing (RFC 1813, 3.3.0).
    Null = 0: () => ();
    /// The attributes of a file (RFC 1813, 3.3.1).
    GetAttr = 1: FileHandle => Result<Attrs, Status>;
    /// Sets attributes (RFC 1813, 3.3.2).
    SetAttr = 2: SetAttrArgs => Result<WccOk, WccFailed>;
    /// What a name leads to (RFC 1813, 3.3.3). `dir_attrs` of the result are those of the directory.
    Lookup = 3: DirName => Result<LookedUp, AttrsFailed>;
    /// Which permissions there are (RFC 1813, 3.3.4).
    Access = 4: AccessArgs => Result<AccessOk, AttrsFailed>;
    /// The target of a symbolic link (RFC 1813, 3.3.5).
    ReadLink = 5: FileHandle => Result<ReadLinkOk, AttrsFailed>;
    /// Content of a file (RFC 1813, 3.3.6).
    Read = 6: ReadArgs => Result<ReadOk, AttrsFailed>;
    /// Writes content (RFC 1813, 3.3.7).
    Write = 7: WriteArgs => Result<WriteOk, WccFailed>;
    /// Makes a regular file (RFC 1813, 3.3.8).
    Create = 8: CreateArgs => Result<Created, WccFailed>;
    /// Makes a directory (RFC 1813, 3.3.9).
    MkDir = 9: MkDirArgs => Result<Created, WccFailed>;
    /// Makes a symbolic link (RFC 1813, 3.3.10).
    SymLink = 10: SymLinkArgs => Result<Created, WccFailed>;
    /// Makes a device node, a socket or a named pipe (RFC 1813, 3.3.11).
    MkNod = 11: MkNodArgs => Result<Created, WccFailed>;
    /// Removes a name that is not a directory (RFC 1813, 3.3.12).
    Remove = 12: DirName => Result<WccOk, WccFailed>;
    /// Removes a directory (RFC 1813, 3.3.13).
    RmDir = 13: DirName => Result<WccOk, WccFailed>;
    /// Renames (RFC 1813, 3.3.14).
    Rename = 14: RenameArgs => Result<Renamed, RenameFailed>;
    /// Gives a file another name (RFC 1813, 3.3.15).
    Link = 15: LinkArgs => Result<Linked, LinkFailed>;
    /// Names in a directory (RFC 1813, 3.3.16).
    ReadDir = 16: ReadDirArgs => Result<Entries, AttrsFailed>;
    /// Names in a directory, with attributes and handles (RFC 1813, 3.3.17).
    ReadDirPlus = 17: ReadDirPlusArgs => Result<EntriesPlus, AttrsFailed>;
    /// How much space there is (RFC 1813, 3.3.18).
    FsStat = 18: FileHandle => Result<FsStat, AttrsFailed>;
    /// What the server and its file system can do (RFC 1813, 3.3.19).
    FsInfo = 19: FileHandle => Result<FsInfo, AttrsFailed>;
    /// Limits of names and links (RFC 1813, 3.3.20).
    PathConf = 20: FileHandle => Result<Pathconf, AttrsFailed>;
    /// Puts what was written unstably on stable storage (RFC 1813, 3.3.21).
    Commit = 21: CommitArgs => Result<Committed, WccFailed>;
}

xdr_struct! {
    /// `SETATTR3args` (RFC 1813, 3.3.2).
    pub struct SetAttrArgs {
        /// The file.
        pub object: FileHandle,
        /// What to set.
        pub attrs: SetAttrs,
        /// Only if this is still the file's ctime; otherwise [`Status::NOT_SYNC`].
        pub guard: Option<Time>,
    }

    /// `ACCESS3args` (RFC 1813, 3.3.4).
    pub struct AccessArgs {
        /// The file.
        pub object: FileHandle,
        /// The permissions to find out about.
        pub access: Access,
    }

    /// `READ3args` (RFC 1813, 3.3.6).
    pub struct ReadArgs {
        /// The file.
        pub file: FileHandle,
        /// The first byte.
        pub offset: u64,
        /// How many bytes.
        pub count: u32,
    }

    /// `WRITE3args` (RFC 1813, 3.3.7).
    pub struct WriteArgs {
        /// The file.
        pub file: FileHandle,
        /// Where the first byte goes.
        pub offset: u64,
        /// How many bytes; a server writes no more than `data` has.
        pub count: u32,
        /// How stable they are to be before the answer.
        pub stable: Stable,
        /// The bytes.
        pub data: Content,
    }

    /// `CREATE3args` (RFC 1813, 3.3.8).
    pub struct CreateArgs {
        /// The new name.
        pub at: DirName,
        /// What if it exists.
        pub how: CreateHow,
    }

    /// `MKDIR3args` (RFC 1813, 3.3.9).
    pub struct MkDirArgs {
        /// The new name.
        pub at: DirName,
        /// The attributes to begin with.
        pub attrs: SetAttrs,
    }

    /// `SYMLINK3args` (RFC 1813, 3.3.10).
    pub struct SymLinkArgs {
        /// The new name.
        pub at: DirName,
        /// The attributes to begin with.
        pub attrs: SetAttrs,
        /// The target.
        pub target: Path,
    }

    /// `MKNOD3args` (RFC 1813, 3.3.11).
    pub struct MkNodArgs {
        /// The new name.
        pub at: DirName,
        /// What to make.
        pub what: MkNodWhat,
    }

    /// A device node to make (`devicedata3`, RFC 1813, 3.3.11).
    #[derive(Copy)]
    pub struct NewDevice {
        /// The attributes to begin with.
        pub attrs: SetAttrs,
        /// The number of the device.
        pub device: Device,
    }

    /// `RENAME3args` (RFC 1813, 3.3.14).
    pub struct RenameArgs {
        /// The old name.
        pub from: DirName,
        /// The new one.
        pub to: DirName,
    }

    /// `LINK3args` (RFC 1813, 3.3.15).
    pub struct LinkArgs {
        /// The file.
        pub file: FileHandle,
        /// Its new name.
        pub link: DirName,
    }

    /// `READDIR3args` (RFC 1813, 3.3.16).
    pub struct ReadDirArgs {
        /// The directory.
        pub dir: FileHandle,
        /// The cookie of the last entry that is known; 0 to begin.
        pub cookie: u64,
        /// The verifier that came with it; zeros to begin.
        pub verifier: Verifier,
        /// The most bytes of the result, from its attributes to its end.
        pub count: u32,
    }

    /// `READDIRPLUS3args` (RFC 1813, 3.3.17).
    pub struct ReadDirPlusArgs {
        /// The directory.
        pub dir: FileHandle,
        /// The cookie of the last entry that is known; 0 to begin.
        pub cookie: u64,
        /// The verifier that came with it; zeros to begin.
        pub verifier: Verifier,
        /// The most bytes of names, numbers and cookies.
        pub dir_count: u32,
        /// The most bytes of the result, from its attributes to its end.
        pub max_count: u32,
    }

    /// `COMMIT3args` (RFC 1813, 3.3.21).
    pub struct CommitArgs {
        /// The file.
        pub file: FileHandle,
        /// The first byte.
        pub offset: u64,
        /// How many bytes; 0 for all to the end.
        pub count: u32,
    }
}

xdr_enum! {
    /// What CREATE does when the name exists (`createhow3`, RFC 1813, 3.3.8).
    #[derive(Copy)]
    pub enum CreateHow: "way to create" {
        /// The file that is there is the answer; these attributes are set, size above all.
        Unchecked(SetAttrs) = 0,
        /// [`Status::EXIST`].
        Guarded(SetAttrs) = 1,
        /// [`Status::EXIST`], unless it was made with this verifier: the call may have been repeated.
        Exclusive(Verifier) = 2,
    }

    /// What MKNOD makes (`mknoddata3`, RFC 1813, 3.3.11). A server answers [`Status::BADTYPE`] to the kinds that other procedures make.
    #[derive(Copy)]
    pub enum MkNodWhat: "kind of file for MKNOD" {
        /// A regular file: not by MKNOD.
        Regular = 1,
        /// A directory: not by MKNOD.
        Directory = 2,
        /// A block device.
        Block(NewDevice) = 3,
        /// A character device.
        Char(NewDevice) = 4,
        /// A symbolic link: not by MKNOD.
        Symlink = 5,
        /// A socket.
        Socket(SetAttrs) = 6,
        /// A named pipe.
        Fifo(SetAttrs) = 7,
    }
}
