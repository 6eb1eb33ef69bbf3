// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bits and small numbers.

use bitflags::bitflags;

/// [`crate::Tunlinkat`] removes a directory (`AT_REMOVEDIR`).
pub const UNLINK_DIRECTORY: u32 = 0x200;

bitflags! {
    /// What kind of file a [`crate::Qid`] is of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct QidKind: u8 {
        /// A directory.
        const DIRECTORY = 0x80;
        /// A file that is only appended to.
        const APPEND = 0x40;
        /// A file that one at a time can open.
        const EXCLUSIVE = 0x20;
        /// For authentication.
        const AUTH = 0x08;
        /// A symbolic link.
        const SYMLINK = 0x02;
        // Unknown bits are kept, so that decoding never fails for them.
        const _ = !0;
    }

    /// Which attributes are asked for, or told (`P9_GETATTR_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AttrMask: u64 {
        /// Kind and permissions.
        const MODE = 0x1;
        /// How many names the file has.
        const NLINK = 0x2;
        /// All that stat(2) tells.
        const BASIC = 0x7ff;
        /// When the file was made.
        const BTIME = 0x800;
        /// The generation of the inode.
        const GEN = 0x1000;
        /// A number that changes with the content.
        const DATA_VERSION = 0x2000;
        // Unknown bits are kept.
        const _ = !0;
    }

    /// Which attributes are to be set (`P9_SETATTR_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SetMask: u32 {
        /// Permissions.
        const MODE = 0x1;
        /// The owner.
        const UID = 0x2;
        /// The group.
        const GID = 0x4;
        /// The size.
        const SIZE = 0x8;
        /// The time of the last access: now, or what is given.
        const ATIME = 0x10;
        /// The time of the last modification: now, or what is given.
        const MTIME = 0x20;
        /// The time of the last change: now.
        const CTIME = 0x40;
        /// The time of the last access is given.
        const ATIME_SET = 0x80;
        /// The time of the last modification is given.
        const MTIME_SET = 0x100;
        // Unknown bits are kept.
        const _ = !0;
    }
}

macro_rules! numbers {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $each:literal])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $each])* $variant,)* }

        impl $name {
            /// Its number.
            pub const fn number(self) -> u8 {
                match self { $($name::$variant => $number),* }
            }

            /// That of a number; `None` where it has no meaning.
            pub const fn of(number: u8) -> Option<Self> {
                match number { $($number => Some($name::$variant),)* _ => None }
            }
        }
    };
}

numbers! {
    /// What kind of lock.
    LockType {
        /// Shared.
        Read = 0,
        /// Exclusive.
        Write = 1,
        /// None.
        Unlock = 2,
    }
}

numbers! {
    /// What came of a [`crate::Tlock`].
    LockStatus {
        /// It is held, or given back.
        Success = 0,
        /// Another one is in the way.
        Blocked = 1,
        /// It cannot be had.
        Error = 2,
        /// The server waits for clients to take their locks back.
        Grace = 3,
    }
}
