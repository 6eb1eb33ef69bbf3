// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operation codes.

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $code:literal $text:literal,)*) => {
        /// What a request asks for (`enum fuse_opcode`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$meta])* $name = $code,)*
        }

        impl Opcode {
            /// Every operation code, in numeric order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The operation with this number, if the protocol up to 7.45 has it.
            #[must_use]
            pub const fn from_u32(code: u32) -> Option<Opcode> {
                match code {
                    $($code => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// Short lower-case name for statistics and messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => $text,)*
                }
            }
        }
    };
}

opcodes! {
    /// Find a name in a directory.
    Lookup = 1 "lookup",
    /// Drop references to a node; has no reply.
    Forget = 2 "forget",
    /// Attributes of a node.
    Getattr = 3 "getattr",
    /// Change attributes.
    Setattr = 4 "setattr",
    /// Target of a symbolic link.
    Readlink = 5 "readlink",
    /// Make a symbolic link.
    Symlink = 6 "symlink",
    /// Make a file, device, FIFO or socket.
    Mknod = 8 "mknod",
    /// Make a directory.
    Mkdir = 9 "mkdir",
    /// Remove a name that is not a directory.
    Unlink = 10 "unlink",
    /// Remove an empty directory.
    Rmdir = 11 "rmdir",
    /// Rename without flags.
    Rename = 12 "rename",
    /// Make a hard link.
    Link = 13 "link",
    /// Open a file.
    Open = 14 "open",
    /// Read from an open file.
    Read = 15 "read",
    /// Write to an open file.
    Write = 16 "write",
    /// Totals of the file system.
    Statfs = 17 "statfs",
    /// Last close of an open file.
    Release = 18 "release",
    /// Write an open file to stable storage.
    Fsync = 20 "fsync",
    /// Set an extended attribute.
    Setxattr = 21 "setxattr",
    /// Value or size of an extended attribute.
    Getxattr = 22 "getxattr",
    /// Names of the extended attributes.
    Listxattr = 23 "listxattr",
    /// Remove an extended attribute.
    Removexattr = 24 "removexattr",
    /// A descriptor of an open file was closed.
    Flush = 25 "flush",
    /// First message: version and abilities.
    Init = 26 "init",
    /// Open a directory.
    Opendir = 27 "opendir",
    /// Entries of an open directory.
    Readdir = 28 "readdir",
    /// Last close of an open directory.
    Releasedir = 29 "releasedir",
    /// Write an open directory to stable storage.
    Fsyncdir = 30 "fsyncdir",
    /// Test for a lock.
    Getlk = 31 "getlk",
    /// Take or release a lock without waiting.
    Setlk = 32 "setlk",
    /// Take a lock, waiting for it.
    Setlkw = 33 "setlkw",
    /// Check permission (only without `default_permissions`).
    Access = 34 "access",
    /// Create and open a file.
    Create = 35 "create",
    /// An earlier request is no longer wanted.
    Interrupt = 36 "interrupt",
    /// Map a block of a file to one of the device.
    Bmap = 37 "bmap",
    /// The file system is going away.
    Destroy = 38 "destroy",
    /// Device control on an open file.
    Ioctl = 39 "ioctl",
    /// Readiness of an open file.
    Poll = 40 "poll",
    /// Data asked for by a retrieve notification; has no reply.
    NotifyReply = 41 "notify_reply",
    /// Many forgets in one; has no reply.
    BatchForget = 42 "batch_forget",
    /// Reserve or punch space.
    Fallocate = 43 "fallocate",
    /// Directory entries together with their attributes.
    Readdirplus = 44 "readdirplus",
    /// Rename with flags.
    Rename2 = 45 "rename2",
    /// Find data or a hole.
    Lseek = 46 "lseek",
    /// Copy between open files; at most 4 GiB reported.
    CopyFileRange = 47 "copy_file_range",
    /// Map a range of a file into the DAX window.
    Setupmapping = 48 "setupmapping",
    /// Unmap ranges from the DAX window.
    Removemapping = 49 "removemapping",
    /// Write the whole file system to stable storage.
    Syncfs = 50 "syncfs",
    /// Create and open a file without a name.
    Tmpfile = 51 "tmpfile",
    /// Extended attributes of a node, with birth time.
    Statx = 52 "statx",
    /// Copy between open files, 64-bit count (7.45).
    CopyFileRange64 = 53 "copy_file_range_64",
}
