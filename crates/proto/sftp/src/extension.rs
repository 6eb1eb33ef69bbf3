// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extensions of OpenSSH: which ones a server has, and the answers that only they give.

use crate::cursor::{Cursor, DecodeError, put_string};
use bitflags::bitflags;
use bytes::{BufMut, Bytes, BytesMut};

bitflags! {
    /// Extended requests that a server understands.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Extensions: u32 {
        /// `posix-rename@openssh.com`: rename(2), which replaces.
        const POSIX_RENAME = 1;
        /// `statvfs@openssh.com`: size and free space by path.
        const STATVFS = 1 << 1;
        /// `fstatvfs@openssh.com`: the same by handle.
        const FSTATVFS = 1 << 2;
        /// `hardlink@openssh.com`: link(2).
        const HARDLINK = 1 << 3;
        /// `fsync@openssh.com`: fsync(2).
        const FSYNC = 1 << 4;
        /// `lsetstat@openssh.com`: attributes of a symbolic link itself.
        const LSETSTAT = 1 << 5;
        /// `limits@openssh.com`: the sizes a server accepts.
        const LIMITS = 1 << 6;
        /// `expand-path@openssh.com`: realpath(3) that knows `~` and `~user`.
        const EXPAND_PATH = 1 << 7;
        /// `copy-data`: copies between two handles at the server.
        const COPY_DATA = 1 << 8;
        /// `home-directory`: where a user's home is.
        const HOME_DIRECTORY = 1 << 9;
        /// `users-groups-by-id@openssh.com`: names of users and groups.
        const USERS_GROUPS_BY_ID = 1 << 10;
    }
}

/// Name and revision of each extension. A server that has another revision has something this crate does not speak.
const KNOWN: &[(Extensions, &str, &str)] = &[
    (Extensions::POSIX_RENAME, "posix-rename@openssh.com", "1"),
    (Extensions::STATVFS, "statvfs@openssh.com", "2"),
    (Extensions::FSTATVFS, "fstatvfs@openssh.com", "2"),
    (Extensions::HARDLINK, "hardlink@openssh.com", "1"),
    (Extensions::FSYNC, "fsync@openssh.com", "1"),
    (Extensions::LSETSTAT, "lsetstat@openssh.com", "1"),
    (Extensions::LIMITS, "limits@openssh.com", "1"),
    (Extensions::EXPAND_PATH, "expand-path@openssh.com", "1"),
    (Extensions::COPY_DATA, "copy-data", "1"),
    (Extensions::HOME_DIRECTORY, "home-directory", "1"),
    (Extensions::USERS_GROUPS_BY_ID, "users-groups-by-id@openssh.com", "1"),
];

impl Extensions {
    /// What the pairs of name and revision in a server's first packet promise.
    pub fn promised<'a>(pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut found = Extensions::empty();
        for (name, revision) in pairs {
            let known =
                |(_, n, r): &&(Extensions, &str, &str)| n.as_bytes() == name && r.as_bytes() == revision;
            found |= KNOWN.iter().find(known).map_or(Extensions::empty(), |(extension, ..)| *extension);
        }
        found
    }

    /// The names of those in the set with their revisions, as a server announces them.
    pub fn names(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        KNOWN.iter().filter(move |(one, ..)| self.contains(*one)).map(|&(_, name, revision)| (name, revision))
    }

    /// The name of one extension; the first one's of several.
    pub(crate) fn request_name(self) -> &'static str {
        self.names().next().map_or("", |(name, _)| name)
    }
}

/// The answer to [`crate::Request::StatVfs`]: what statvfs(3) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatVfs {
    /// Unit of efficient I/O in bytes.
    pub bsize: u64,
    /// Unit of the counts in bytes.
    pub frsize: u64,
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
    /// Free inodes for unprivileged users.
    pub favail: u64,
    /// Number of the file system.
    pub fsid: u64,
    /// 1: read-only; 2: set-id bits are ignored.
    pub flag: u64,
    /// The longest file name in bytes.
    pub namemax: u64,
}

impl StatVfs {
    /// Reads the body of [`crate::Reply::Extended`].
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Cursor::new(body);
        let mut next = || input.u64();
        Ok(StatVfs {
            bsize: next()?,
            frsize: next()?,
            blocks: next()?,
            bfree: next()?,
            bavail: next()?,
            files: next()?,
            ffree: next()?,
            favail: next()?,
            fsid: next()?,
            flag: next()?,
            namemax: next()?,
        })
    }

    /// The body of the reply.
    pub fn encode(&self) -> Bytes {
        let StatVfs { bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax } =
            *self;
        let fields = [bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax];
        fields.iter().flat_map(|field| field.to_be_bytes()).collect::<Vec<u8>>().into()
    }
}

/// The answer to [`crate::Request::Limits`], in bytes; 0 where the server states no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// The longest packet.
    pub packet: u64,
    /// The most one read may ask for.
    pub read: u64,
    /// The most one write may have.
    pub write: u64,
    /// How many handles may be open.
    pub handles: u64,
}

impl Limits {
    /// Reads the body of [`crate::Reply::Extended`].
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Cursor::new(body);
        Ok(Limits { packet: input.u64()?, read: input.u64()?, write: input.u64()?, handles: input.u64()? })
    }

    /// The body of the reply.
    pub fn encode(&self) -> Bytes {
        let fields = [self.packet, self.read, self.write, self.handles];
        fields.iter().flat_map(|field| field.to_be_bytes()).collect::<Vec<u8>>().into()
    }
}

/// The answer to [`crate::Request::PersonNames`]: a name for each number asked for, empty where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PersonNames {
    /// Names of users.
    pub users: Vec<Bytes>,
    /// Names of groups.
    pub groups: Vec<Bytes>,
}

impl PersonNames {
    /// Reads the body of [`crate::Reply::Extended`].
    ///
    /// # Errors
    /// [`DecodeError::Short`].
    pub fn decode(body: &Bytes) -> Result<Self, DecodeError> {
        let mut input = Cursor::new(body);
        let (users, groups) = (input.string()?, input.string()?);
        Ok(PersonNames { users: names(body, users)?, groups: names(body, groups)? })
    }

    /// The body of the reply.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        for list in [&self.users, &self.groups] {
            out.put_u32(list.iter().map(|name| 4 + name.len() as u32).sum());
            list.iter().for_each(|name| put_string(&mut out, name));
        }
        out.freeze()
    }
}

fn names(body: &Bytes, list: &[u8]) -> Result<Vec<Bytes>, DecodeError> {
    let mut input = Cursor::new(list);
    let mut names = Vec::new();
    while !input.rest().is_empty() {
        names.push(body.slice_ref(input.string()?));
    }
    Ok(names)
}
