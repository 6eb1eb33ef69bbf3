// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MOUNT program, version 3: the handle of a tree by its path (RFC 1813, 5).

use crate::types::FileHandle;
use crate::xdr::{Array, List, Text, xdr_program, xdr_status, xdr_struct};

/// The longest path of a tree, in bytes (`MNTPATHLEN`, RFC 1813, 5.1.2).
pub const PATH_MAX: usize = 1024;

/// The longest name of a host or group, in bytes (`MNTNAMLEN`, RFC 1813, 5.1.2).
pub const NAME_MAX: usize = 255;

/// The most kinds of credentials that a server can list; the protocol has no limit.
pub const FLAVORS_MAX: usize = 64;

/// The path of a tree (`dirpath`, RFC 1813, 5.1.5).
pub type DirPath = Text<PATH_MAX>;

/// The name of a host or group (`name`, RFC 1813, 5.1.5).
pub type HostName = Text<NAME_MAX>;

xdr_program! {
    /// MOUNT version 3 (RFC 1813, 5).
    program 100_005, version 3;
    /// Does nothing (RFC 1813, 5.2.0).
    Null = 0: () => ();
    /// The handle of a tree (RFC 1813, 5.2.1).
    Mnt = 1: DirPath => Result<Mounted, Status>;
    /// What clients have mounted (RFC 1813, 5.2.2).
    Dump = 2: () => List<MountEntry>;
    /// The caller has unmounted a tree (RFC 1813, 5.2.3).
    Umnt = 3: DirPath => ();
    /// The caller has unmounted everything (RFC 1813, 5.2.4).
    UmntAll = 4: () => ();
    /// The trees that there are (RFC 1813, 5.2.5).
    Export = 5: () => List<ExportEntry>;
}

xdr_struct! {
    /// A tree (`mountres3_ok`, RFC 1813, 5.2.1).
    pub struct Mounted {
        /// Its root.
        pub handle: FileHandle,
        /// The kinds of credentials that it accepts, the best one first.
        pub flavors: Array<u32, FLAVORS_MAX>,
    }

    /// A tree that a client has mounted (`mountbody`, RFC 1813, 5.2.2).
    pub struct MountEntry {
        /// The client.
        pub host: HostName,
        /// The path of the tree.
        pub path: DirPath,
    }

    /// A tree that clients can mount (`exportnode`, RFC 1813, 5.2.5).
    pub struct ExportEntry {
        /// Its path.
        pub path: DirPath,
        /// Who can; everybody when there is none.
        pub groups: List<HostName>,
    }
}

xdr_status! {
    /// Why a tree cannot be mounted (`mountstat3` without `MNT3_OK`, RFC 1813, 5.1.5).
    pub struct Status {
        /// Not owner.
        PERM = 1,
        /// No such file or directory.
        NOENT = 2,
        /// The disk or the like failed.
        IO = 5,
        /// Permission denied.
        ACCES = 13,
        /// Not a directory.
        NOTDIR = 20,
        /// Invalid argument.
        INVAL = 22,
        /// The path is too long.
        NAMETOOLONG = 63,
        /// Not supported.
        NOTSUPP = 10004,
        /// Another error.
        SERVERFAULT = 10006,
    }
}
