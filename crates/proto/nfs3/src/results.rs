// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the NFS program, version 3 (RFC 1813, 3.3).
//!
//! Each procedure but NULL answers `Ok` or a failure, which begins with its [`Status`]. Failures of the same form share a type.
//!
//! A server that fills a listing adds up [`encoded_len`](crate::xdr::Xdr::encoded_len): an entry takes four bytes more than its own, and
//! the result without entries is there from the beginning.

use crate::types::{
    Access, Attrs, Content, FileHandle, Name, Path, Properties, Stable, Status, Time, Verifier, Wcc,
};
use crate::xdr::{List, Xdr, xdr_struct};

/// Why a procedure failed, with what else the server says.
pub trait Failure {
    /// Why.
    fn status(&self) -> Status;
}

/// Results of a procedure that can fail.
pub trait Outcome: Xdr {
    /// What it has done.
    type Done;

    /// What it has done, or why not.
    ///
    /// # Errors
    /// Why it failed.
    fn outcome(self) -> Result<Self::Done, Status>;

    /// Why it failed, if it has.
    fn failure(&self) -> Option<Status>;
}

impl<T, F: Failure> Outcome for Result<T, F>
where
    Self: Xdr,
{
    type Done = T;

    fn outcome(self) -> Result<T, Status> {
        self.map_err(|failed| failed.status())
    }

    fn failure(&self) -> Option<Status> {
        self.as_ref().err().map(F::status)
    }
}

impl Failure for Status {
    fn status(&self) -> Status {
        *self
    }
}

macro_rules! failures {
    ($($type:ty)*) => {$(
        impl Failure for $type {
            fn status(&self) -> Status {
                self.status
            }
        }
    )*};
}
failures!(AttrsFailed WccFailed RenameFailed LinkFailed);

xdr_struct! {
    /// A failure, with attributes of the file or directory if they are known (`LOOKUP3resfail`, `READ3resfail` and others).
    #[derive(Copy)]
    pub struct AttrsFailed {
        /// Why.
        pub status: Status,
        /// The attributes.
        pub attrs: Option<Attrs>,
    }

    /// A failed change of a file or directory (`SETATTR3resfail`, `CREATE3resfail` and others).
    #[derive(Copy)]
    pub struct WccFailed {
        /// Why.
        pub status: Status,
        /// The file or directory.
        pub wcc: Wcc,
    }

    /// A failed rename (`RENAME3resfail`, RFC 1813, 3.3.14).
    #[derive(Copy)]
    pub struct RenameFailed {
        /// Why.
        pub status: Status,
        /// The directory of the old name.
        pub from_dir: Wcc,
        /// The directory of the new name.
        pub to_dir: Wcc,
    }

    /// A failed hard link (`LINK3resfail`, RFC 1813, 3.3.15).
    #[derive(Copy)]
    pub struct LinkFailed {
        /// Why.
        pub status: Status,
        /// The attributes of the file.
        pub attrs: Option<Attrs>,
        /// The directory of the new name.
        pub dir: Wcc,
    }

    /// A changed file or directory (`SETATTR3resok`, `REMOVE3resok` and `RMDIR3resok`).
    #[derive(Copy)]
    pub struct WccOk {
        /// The file, or the directory of the name.
        pub wcc: Wcc,
    }

    /// What a name leads to (`LOOKUP3resok`, RFC 1813, 3.3.3).
    #[derive(Copy)]
    pub struct LookedUp {
        /// The file.
        pub object: FileHandle,
        /// Its attributes.
        pub attrs: Option<Attrs>,
        /// The attributes of the directory.
        pub dir_attrs: Option<Attrs>,
    }

    /// Permissions (`ACCESS3resok`, RFC 1813, 3.3.4).
    #[derive(Copy)]
    pub struct AccessOk {
        /// The attributes of the file.
        pub attrs: Option<Attrs>,
        /// Those of the permissions asked for that the caller has.
        pub access: Access,
    }

    /// The target of a symbolic link (`READLINK3resok`, RFC 1813, 3.3.5).
    pub struct ReadLinkOk {
        /// The attributes of the link.
        pub attrs: Option<Attrs>,
        /// Its target.
        pub target: Path,
    }

    /// Content (`READ3resok`, RFC 1813, 3.3.6).
    pub struct ReadOk {
        /// The attributes of the file.
        pub attrs: Option<Attrs>,
        /// How many bytes; as many as `data` has.
        pub count: u32,
        /// Whether the last one is the last of the file, or the end is before it.
        pub eof: bool,
        /// The bytes.
        pub data: Content,
    }

    /// What was written (`WRITE3resok`, RFC 1813, 3.3.7).
    #[derive(Copy)]
    pub struct WriteOk {
        /// The file.
        pub wcc: Wcc,
        /// How many bytes.
        pub count: u32,
        /// How stable they are: as asked for or more.
        pub committed: Stable,
        /// Another one than that of an earlier write: the server may have lost that one if it was not stable.
        pub verifier: Verifier,
    }

    /// A new file (`CREATE3resok`, `MKDIR3resok`, `SYMLINK3resok` and `MKNOD3resok`).
    #[derive(Copy)]
    pub struct Created {
        /// The file; a client looks the name up where it is not given.
        pub object: Option<FileHandle>,
        /// Its attributes.
        pub attrs: Option<Attrs>,
        /// The directory of the name.
        pub dir: Wcc,
    }

    /// A rename (`RENAME3resok`, RFC 1813, 3.3.14).
    #[derive(Copy)]
    pub struct Renamed {
        /// The directory of the old name.
        pub from_dir: Wcc,
        /// The directory of the new name.
        pub to_dir: Wcc,
    }

    /// A new hard link (`LINK3resok`, RFC 1813, 3.3.15).
    #[derive(Copy)]
    pub struct Linked {
        /// The attributes of the file.
        pub attrs: Option<Attrs>,
        /// The directory of the new name.
        pub dir: Wcc,
    }

    /// Names in a directory (`READDIR3resok`, RFC 1813, 3.3.16).
    pub struct Entries {
        /// The attributes of the directory.
        pub dir_attrs: Option<Attrs>,
        /// To be sent with a cookie.
        pub verifier: Verifier,
        /// The names.
        pub entries: List<Entry>,
        /// Whether the last one is the last of the directory.
        pub eof: bool,
    }

    /// A name in a directory (`entry3`, RFC 1813, 3.3.16).
    pub struct Entry {
        /// The number of the file.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// To be sent for the names after this one.
        pub cookie: u64,
    }

    /// Names in a directory, with attributes and handles (`READDIRPLUS3resok`, RFC 1813, 3.3.17).
    pub struct EntriesPlus {
        /// The attributes of the directory.
        pub dir_attrs: Option<Attrs>,
        /// To be sent with a cookie.
        pub verifier: Verifier,
        /// The names.
        pub entries: List<EntryPlus>,
        /// Whether the last one is the last of the directory.
        pub eof: bool,
    }

    /// A name in a directory, with what it leads to (`entryplus3`, RFC 1813, 3.3.17).
    pub struct EntryPlus {
        /// The number of the file.
        pub fileid: u64,
        /// The name.
        pub name: Name,
        /// To be sent for the names after this one.
        pub cookie: u64,
        /// The attributes of the file.
        pub attrs: Option<Attrs>,
        /// Its handle.
        pub object: Option<FileHandle>,
    }

    /// Space (`FSSTAT3resok`, RFC 1813, 3.3.18).
    #[derive(Copy)]
    pub struct FsStat {
        /// The attributes of the file that was given.
        pub attrs: Option<Attrs>,
        /// Bytes of the file system.
        pub total_bytes: u64,
        /// Those that are free.
        pub free_bytes: u64,
        /// Those that are free for the caller.
        pub available_bytes: u64,
        /// Files that there can be.
        pub total_files: u64,
        /// Those that are free.
        pub free_files: u64,
        /// Those that are free for the caller.
        pub available_files: u64,
        /// For how many seconds this will not change; 0 where anything can happen.
        pub invariant_seconds: u32,
    }

    /// What a server and its file system can do (`FSINFO3resok`, RFC 1813, 3.3.19). Sizes are in bytes.
    #[derive(Copy)]
    pub struct FsInfo {
        /// The attributes of the file that was given.
        pub attrs: Option<Attrs>,
        /// The most in one READ.
        pub read_max: u32,
        /// The best size of a READ.
        pub read_preferred: u32,
        /// What sizes of READs should be multiples of.
        pub read_multiple: u32,
        /// The most in one WRITE.
        pub write_max: u32,
        /// The best size of a WRITE.
        pub write_preferred: u32,
        /// What sizes of WRITEs should be multiples of.
        pub write_multiple: u32,
        /// The best size of a READDIR.
        pub read_dir_preferred: u32,
        /// The largest file.
        pub file_size_max: u64,
        /// The precision of times.
        pub time_delta: Time,
        /// What it can do.
        pub properties: Properties,
    }

    /// Limits of names and links (`PATHCONF3resok`, RFC 1813, 3.3.20; see pathconf(3)).
    #[derive(Copy)]
    pub struct Pathconf {
        /// The attributes of the file that was given.
        pub attrs: Option<Attrs>,
        /// The most hard links.
        pub link_max: u32,
        /// The longest name, in bytes.
        pub name_max: u32,
        /// Whether longer names are refused instead of cut.
        pub no_trunc: bool,
        /// Whether only the superuser gives files away.
        pub chown_restricted: bool,
        /// Whether names are the same in upper and lower case.
        pub case_insensitive: bool,
        /// Whether they stay as they were written.
        pub case_preserving: bool,
    }

    /// What is on stable storage now (`COMMIT3resok`, RFC 1813, 3.3.21).
    #[derive(Copy)]
    pub struct Committed {
        /// The file.
        pub wcc: Wcc,
        /// As in [`WriteOk::verifier`]: another one than there means that the client must write again.
        pub verifier: Verifier,
    }
}
