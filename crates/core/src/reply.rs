// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operations answer.

use crate::attr::{Attr, FileKind};
use crate::error::{Errno, Error, Result};
use crate::name::{Name, Target, XattrName};
use crate::node::{Generation, Handle, Node};
use crate::ops::Lock;
use crate::payload::{Backing, Payload};
use crate::wire::{Input, Layout, Malformed, layout_of};
use crate::{Traverse, Wire};
use bitflags::bitflags;
use bytes::Bytes;
use std::time::Duration;

macro_rules! replies {
    ($($(#[doc = $doc:literal])* $number:literal $variant:ident;)*) => {
        /// The answer to any request.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Reply {
            /// The operation failed.
            Error(Error),
            $($(#[doc = $doc])* $variant($variant)),*
        }

        $(impl From<Result<$variant>> for Reply {
            fn from(result: Result<$variant>) -> Reply {
                match result {
                    Ok(value) => Reply::$variant(value),
                    Err(error) => Reply::Error(error),
                }
            }
        })*

        impl Traverse for Reply {
            fn traverse(&mut self, visitor: &mut dyn crate::Visit) {
                match self {
                    Reply::Error(_) => {}
                    $(Reply::$variant(value) => value.traverse(visitor)),*
                }
            }
        }

        impl Wire for Reply {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    Reply::Error(error) => { 0_u16.put(out); error.put(out) }
                    $(Reply::$variant(value) => { ($number as u16).put(out); value.put(out) })*
                }
            }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                match u16::get(input)? {
                    0 => Error::get(input).map(Reply::Error),
                    $($number => $variant::get(input).map(Reply::$variant),)*
                    _ => Err(Malformed::new("Reply")),
                }
            }
        }
    };
}

replies! {
    /// It happened; there is nothing to tell.
    1 Done;
    /// A node and its attributes.
    2 Entry;
    /// Several of them.
    3 Entries;
    /// Attributes.
    4 Attrs;
    /// The target of a symbolic link.
    5 Target;
    /// An open handle.
    6 Opened;
    /// A new node and an open handle of it.
    7 Created;
    /// File content.
    8 Data;
    /// How many bytes were written or copied.
    9 Count;
    /// A position in a file.
    10 Offset;
    /// A piece of a directory.
    11 Dirents;
    /// A piece of a directory with attributes.
    12 DirentsPlus;
    /// The value of an extended attribute.
    13 Value;
    /// Names of extended attributes.
    14 Names;
    /// A lock that stands in the way, if any.
    15 LockState;
    /// Size and free space.
    16 FsStat;
    /// The outcome of an ioctl.
    17 IoctlDone;
    /// What poll found.
    18 Events;
    /// What the caller may do.
    19 Granted;
}

impl Reply {
    /// The error, when the operation failed.
    pub fn error(&self) -> Option<&Error> {
        match self {
            Reply::Error(error) => Some(error),
            _ => None,
        }
    }
}

/// Nothing to tell.
pub type Done = ();
/// File content.
pub type Data = Payload;
/// The entries along a path.
pub type Entries = Vec<Entry>;
/// The value of an extended attribute.
pub type Value = Bytes;
/// Names of extended attributes.
pub type Names = Vec<XattrName>;
/// The lock that stands in the way, or `None` when the range is free.
pub type LockState = Option<Lock>;

/// For how long an answer may be used without asking again, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Traverse, Wire)]
pub struct Ttl(pub u32);

impl Ttl {
    /// Ask every time.
    pub const NEVER: Ttl = Ttl(0);
    /// One second: what local trees that others may change use.
    pub const SECOND: Ttl = Ttl(1000);
    /// Until the driver says otherwise with a notice (about 49 days).
    pub const FOREVER: Ttl = Ttl(u32::MAX);
}

impl From<Duration> for Ttl {
    /// The longest that there is ([`Ttl::FOREVER`]) for any longer time.
    fn from(time: Duration) -> Ttl {
        Ttl(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Duration {
        Duration::from_millis(ttl.0.into())
    }
}

/// A node that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Traverse, Wire)]
pub struct Entry {
    /// The node.
    pub node: Node,
    /// Its generation.
    pub generation: Generation,
    /// Its attributes.
    pub attr: Attr,
    /// How long the name leads to this node.
    pub entry_ttl: Ttl,
    /// How long the attributes hold.
    pub attr_ttl: Ttl,
}

/// Attributes of a node.
#[derive(Debug, Clone, PartialEq, Eq, Traverse, Wire)]
pub struct Attrs {
    /// The attributes.
    pub attr: Attr,
    /// How long they hold.
    pub ttl: Ttl,
}

bitflags! {
    /// How an open file may be cached.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenHow: u32 {
        /// Every read and write goes to the driver.
        const DIRECT_IO = 1;
        /// What earlier opens left in the cache is still valid.
        const KEEP_CACHE = 2;
        /// The file has no position: a pipe or a device.
        const NONSEEKABLE = 4;
        /// The listing of this directory may be cached.
        const CACHE_DIR = 8;
        /// The file has no position at all: reads and writes by one handle do not wait for each other. With
        /// [`OpenHow::NONSEEKABLE`].
        const STREAM = 16;
        /// Closing needs no [`crate::ops::Flush`].
        const NO_FLUSH = 32;
        /// Writes beside the cache may run side by side.
        const PARALLEL_DIRECT_WRITES = 64;
        /// The file is being made, and its attributes are predicted. Whether it was made, and its real attributes, tells
        /// [`crate::ops::GetAttr`] by this handle; where it was not, every operation by this handle fails with the reason. For callers that asked
        /// with [`crate::ops::OpenFlags::ASYNC_CREATE`].
        const PENDING_CREATE = 1 << 16;
    }
}

impl Traverse for OpenHow {
    fn traverse(&mut self, _: &mut dyn crate::Visit) {}
}

impl Wire for OpenHow {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        OpenHow::from_bits(u32::get(input)?).ok_or(Malformed::new("OpenHow"))
    }
}

impl Layout for OpenHow {
    // A peer refuses flags that it does not know.
    const LAYOUT: u32 = layout_of(&[u32::LAYOUT, OpenHow::all().bits()]);
}

/// An open file or directory.
#[derive(Debug, Clone, PartialEq, Default, Traverse, Wire)]
pub struct Opened {
    /// Names it in later requests.
    pub handle: Handle,
    /// How it may be cached.
    pub how: OpenHow,
    /// A host file that has this content.
    pub backing: Backing,
}

/// A new file, opened.
#[derive(Debug, Clone, PartialEq, Traverse, Wire)]
pub struct Created {
    /// The file.
    pub entry: Entry,
    /// Its handle.
    pub opened: Opened,
}

/// How many bytes were written or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub struct Count(pub u64);

/// A position in a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub struct Offset(pub u64);

/// `POLL*` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub struct Events(pub u32);

/// `R_OK`, `W_OK` and `X_OK` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub struct Granted(pub u32);

impl Granted {
    /// Of those that were asked for.
    pub fn of(asked: u32, granted: u32) -> Self {
        Granted(asked & granted)
    }

    /// Success if all that was asked for is granted.
    ///
    /// # Errors
    /// `EACCES` otherwise.
    pub fn all(self, asked: u32) -> Result<()> {
        if asked & !self.0 == 0 { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}

/// The largest cookie a driver may use; larger ones belong to doors, which add `.` and `..`.
pub const COOKIE_MAX: u64 = i64::MAX as u64 - 2;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Traverse, Wire)]
pub struct Dirent {
    /// The inode number.
    pub ino: u64,
    /// Where to continue after this entry: 1 to [`COOKIE_MAX`].
    pub cookie: u64,
    /// The kind of file, when it is known without asking.
    pub kind: Option<FileKind>,
    /// The name.
    pub name: Name,
}

/// One name in a directory with what it leads to.
///
/// An entry with node number 0 says that the name exists and nothing more: no reference is counted for it.
#[derive(Debug, Clone, PartialEq, Eq, Traverse, Wire)]
pub struct DirentPlus {
    /// Where to continue after this entry: 1 to [`COOKIE_MAX`].
    pub cookie: u64,
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub entry: Entry,
}

/// A piece of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Traverse, Wire)]
pub struct Dirents {
    /// The entries.
    pub entries: Vec<Dirent>,
    /// Whether the directory ends here.
    pub eof: bool,
}

/// A piece of a directory with attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Traverse, Wire)]
pub struct DirentsPlus {
    /// The entries.
    pub entries: Vec<DirentPlus>,
    /// Whether the directory ends here.
    pub eof: bool,
}

/// Size and free space of a tree, as statvfs(3) has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Traverse, Wire)]
pub struct FsStat {
    /// Size in units of `frsize`.
    pub blocks: u64,
    /// Free units.
    pub bfree: u64,
    /// Free units for unprivileged users.
    pub bavail: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Unit of efficient I/O in bytes.
    pub bsize: u32,
    /// Unit of the counts in bytes.
    pub frsize: u32,
    /// The longest file name in bytes.
    pub namelen: u32,
}

/// The outcome of an ioctl.
#[derive(Debug, Clone, PartialEq, Eq, Default, Traverse, Wire)]
pub struct IoctlDone {
    /// What the system call returns.
    pub result: i32,
    /// Data for the caller.
    pub output: Bytes,
}
