// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each type that occurs in a message is encoded: the table from which docs/PROTOCOL.md and [`crate::sample`] are made.
//!
//! Types are written as in the operation table. A sample made from this table must decode and encode to the same
//! bytes again, which keeps the table true.

/// The encoding of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A little-endian integer of this many bytes.
    Integer(usize),
    /// One of these integers of this many bytes.
    Choice(usize, &'static [u64]),
    /// A length (`u32`) and that many bytes: at least and at most so many, none of them among the last field's.
    Bytes(usize, usize, &'static [u8]),
    /// Nothing at all.
    Nothing,
    /// The fields one after the other: names and types.
    Struct(&'static [(&'static str, &'static str)]),
    /// A variant's number (`u16`), then its content: number, name, type.
    Enum(&'static [(u64, &'static str, &'static str)]),
    /// The encoding of another type.
    Same(&'static str),
}

/// A named type: name, what it is, layout.
pub type Row = (&'static str, &'static str, Layout);

use Layout::{Bytes, Choice, Enum, Integer, Nothing, Same, Struct};

/// Types that are one number, one byte string or nothing.
pub const SIMPLE: &[Row] = &[
    ("bool", "no, yes", Choice(1, &[0, 1])),
    ("u8", "number", Integer(1)),
    ("u16", "number", Integer(2)),
    ("u32", "number", Integer(4)),
    ("u64", "number", Integer(8)),
    ("i32", "number", Integer(4)),
    ("i64", "number", Integer(8)),
    ("Node", "file or directory; 1 is the root", Integer(8)),
    ("Generation", "tells apart files that had the same node number", Integer(8)),
    ("Handle", "open file or directory", Integer(8)),
    ("LockOwner", "the holder of a lock", Integer(8)),
    ("Ttl", "milliseconds", Integer(4)),
    ("OpenFlags", "flags of open(2), generic Linux numbers", Integer(4)),
    ("RenameFlags", "1 NOREPLACE, 2 EXCHANGE, 4 WHITEOUT", Choice(4, &[0, 1, 2, 4])),
    (
        "FallocateMode",
        "1 KEEP_SIZE, 2 PUNCH_HOLE, 8 COLLAPSE, 16 ZERO, 32 INSERT, 64 UNSHARE",
        Choice(4, &[0, 1, 3, 8, 16, 17, 32, 64]),
    ),
    ("XattrFlags", "1 CREATE, 2 REPLACE, 2147483648 KILL_SGID", Choice(4, &[0, 1, 2, 1 << 31])),
    (
        "OpenHow",
        "1 DIRECT_IO, 2 KEEP_CACHE, 4 NONSEEKABLE, 8 CACHE_DIR, 16 STREAM, 32 NO_FLUSH, 64 PARALLEL_DIRECT_WRITES, 65536 PENDING_CREATE",
        Choice(4, &[0, 1, 2, 4, 8, 16, 32, 64, 1 << 16]),
    ),
    (
        "AttrFields",
        "not known: 1 OWNER, 2 PERMISSIONS, 4 NLINK, 8 ATIME, 16 CTIME, 32 BLOCKS",
        Choice(4, &[0, 1, 2, 4, 8, 16, 32]),
    ),
    ("FileKind", "the `d_type` of a dirent", Choice(1, &[1, 2, 4, 6, 8, 10, 12])),
    ("Whence", "3 data, 4 hole", Choice(2, &[3, 4])),
    ("LockKind", "0 read, 1 write, 2 unlock", Choice(2, &[0, 1, 2])),
    ("Name", "path component: no `/`, no NUL, not `.` or `..`", Bytes(1, 255, b"/\0.")),
    ("Target", "of a symbolic link, verbatim: no NUL", Bytes(1, 4095, b"\0")),
    ("XattrName", "with its namespace: no NUL", Bytes(1, 255, b"\0")),
    ("Bytes", "any bytes", Bytes(0, usize::MAX, b"")),
    ("Payload", "file content", Same("Bytes")),
    ("Backing", "stays on the host that offers it", Nothing),
];

/// Types made of others.
pub const COMPOSITE: &[Row] = &[
    ("Time", "since 1970-01-01 UTC", Struct(&[("secs", "i64"), ("nanos", "u32")])),
    ("SetTime", "a new timestamp", Enum(&[(1, "Now", "Done"), (2, "To", "Time")])),
    (
        "SetAttrs",
        "attributes to change",
        Struct(&[
            ("mode", "Option<u32>"),
            ("uid", "Option<u32>"),
            ("gid", "Option<u32>"),
            ("size", "Option<u64>"),
            ("atime", "Option<SetTime>"),
            ("mtime", "Option<SetTime>"),
            ("ctime", "Option<Time>"),
            ("kill_setid", "bool"),
            ("lock_owner", "Option<LockOwner>"),
        ]),
    ),
    (
        "Attr",
        "what stat(2) tells",
        Struct(&[
            ("ino", "u64"),
            ("size", "u64"),
            ("blocks", "u64"),
            ("atime", "Time"),
            ("mtime", "Time"),
            ("ctime", "Time"),
            ("btime", "Option<Time>"),
            ("mode", "u32"),
            ("nlink", "u32"),
            ("uid", "u32"),
            ("gid", "u32"),
            ("rdev", "u32"),
            ("blksize", "u32"),
            ("dev", "u64"),
            ("change", "u64"),
            ("unknown", "AttrFields"),
        ]),
    ),
    (
        "Lock",
        "an advisory lock",
        Struct(&[("start", "u64"), ("end", "u64"), ("kind", "LockKind"), ("pid", "u32")]),
    ),
    (
        "Dirent",
        "a name in a directory",
        Struct(&[("ino", "u64"), ("cookie", "u64"), ("kind", "Option<FileKind>"), ("name", "Name")]),
    ),
    (
        "DirentPlus",
        "a name with what it leads to",
        Struct(&[("cookie", "u64"), ("name", "Name"), ("entry", "Entry")]),
    ),
    ("Error", "errno and the UTF-8 reason", Struct(&[("errno", "i32"), ("reason", "Option<Bytes>")])),
];

/// Replies, with their numbers.
pub const REPLIES: &[(u16, Row)] = &[
    (0, ("Error", "the operation failed", Same("Error"))),
    (1, ("Done", "it happened", Nothing)),
    (
        2,
        (
            "Entry",
            "a node and its attributes",
            Struct(&[
                ("node", "Node"),
                ("generation", "Generation"),
                ("attr", "Attr"),
                ("entry_ttl", "Ttl"),
                ("attr_ttl", "Ttl"),
            ]),
        ),
    ),
    (3, ("Entries", "the entries along a path", Same("Vec<Entry>"))),
    (4, ("Attrs", "attributes", Struct(&[("attr", "Attr"), ("ttl", "Ttl")]))),
    (5, ("Target", "of a symbolic link", Same("Target"))),
    (
        6,
        (
            "Opened",
            "an open handle",
            Struct(&[("handle", "Handle"), ("how", "OpenHow"), ("backing", "Backing")]),
        ),
    ),
    (7, ("Created", "a new node, opened", Struct(&[("entry", "Entry"), ("opened", "Opened")]))),
    (8, ("Data", "file content", Same("Payload"))),
    (9, ("Count", "bytes written or copied", Integer(8))),
    (10, ("Offset", "a position in bytes", Integer(8))),
    (11, ("Dirents", "a piece of a directory", Struct(&[("entries", "Vec<Dirent>"), ("eof", "bool")]))),
    (
        12,
        (
            "DirentsPlus",
            "a piece of a directory with attributes",
            Struct(&[("entries", "Vec<DirentPlus>"), ("eof", "bool")]),
        ),
    ),
    (13, ("Value", "of an extended attribute", Same("Bytes"))),
    (14, ("Names", "of extended attributes", Same("Vec<XattrName>"))),
    (15, ("LockState", "the lock in the way", Same("Option<Lock>"))),
    (
        16,
        (
            "FsStat",
            "size and free space",
            Struct(&[
                ("blocks", "u64"),
                ("bfree", "u64"),
                ("bavail", "u64"),
                ("files", "u64"),
                ("ffree", "u64"),
                ("bsize", "u32"),
                ("frsize", "u32"),
                ("namelen", "u32"),
            ]),
        ),
    ),
    (17, ("IoctlDone", "outcome of an ioctl", Struct(&[("result", "i32"), ("output", "Bytes")]))),
    (18, ("Events", "`POLL*` bits", Integer(4))),
    (19, ("Granted", "`R_OK`, `W_OK` and `X_OK` bits", Integer(4))),
];

/// Notices, with their numbers.
pub const NOTICES: &[(u16, Row)] = &[
    (
        1,
        (
            "InvalidateNode",
            "attributes, and content from `offset` on, changed; a negative offset spares the content",
            Struct(&[("node", "Node"), ("offset", "i64"), ("len", "i64")]),
        ),
    ),
    (2, ("InvalidateEntry", "what a name leads to changed", Struct(&[("dir", "Node"), ("name", "Name")]))),
    (3, ("Deleted", "a name was removed", Struct(&[("dir", "Node"), ("node", "Node"), ("name", "Name")]))),
    (4, ("InvalidateAll", "anything may have changed", Nothing)),
    (
        5,
        (
            "Store",
            "content for the cache",
            Struct(&[("node", "Node"), ("offset", "u64"), ("data", "Payload")]),
        ),
    ),
    (6, ("Revalidate", "does the other side still refer to this node?", Struct(&[("node", "Node")]))),
    (7, ("Prune", "references that could be returned", Struct(&[("nodes", "Vec<Node>")]))),
    (8, ("Wake", "a poll with this key", Struct(&[("key", "u64")]))),
];

/// The layout of a type by its name; composite types come before replies of the same name.
pub fn of(name: &str) -> Option<Layout> {
    let rows = SIMPLE.iter().chain(COMPOSITE).chain(REPLIES.iter().map(|(_, row)| row));
    rows.into_iter().find(|row| row.0 == name).map(|row| row.2)
}
