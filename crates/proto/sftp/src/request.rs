// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client asks.

use crate::attrs::Attrs;
use crate::cursor::{Cursor, DecodeError, packet, put_string};
use crate::extension::Extensions;
use bitflags::bitflags;
use bytes::{BufMut, BytesMut};

bitflags! {
    /// How to open a file (`SSH_FXF_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// Each write goes to the end.
        const APPEND = 4;
        /// Make it when it does not exist.
        const CREAT = 8;
        /// Empty it. The draft wants `CREAT` beside it; servers do without.
        const TRUNC = 16;
        /// It must not exist yet.
        const EXCL = 32;
        // Unknown bits are kept, so that decoding never fails for them.
        const _ = !0;
    }
}

/// `SSH_FXP_*` of packets from a client.
mod kind {
    pub(super) const INIT: u8 = 1;
    pub(super) const OPEN: u8 = 3;
    pub(super) const CLOSE: u8 = 4;
    pub(super) const READ: u8 = 5;
    pub(super) const WRITE: u8 = 6;
    pub(super) const LSTAT: u8 = 7;
    pub(super) const FSTAT: u8 = 8;
    pub(super) const SETSTAT: u8 = 9;
    pub(super) const FSETSTAT: u8 = 10;
    pub(super) const OPENDIR: u8 = 11;
    pub(super) const READDIR: u8 = 12;
    pub(super) const REMOVE: u8 = 13;
    pub(super) const MKDIR: u8 = 14;
    pub(super) const RMDIR: u8 = 15;
    pub(super) const REALPATH: u8 = 16;
    pub(super) const STAT: u8 = 17;
    pub(super) const RENAME: u8 = 18;
    pub(super) const READLINK: u8 = 19;
    pub(super) const SYMLINK: u8 = 20;
    pub(super) const EXTENDED: u8 = 200;
}

/// A request. Paths are absolute, or relative to where the server starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields called path, handle, offset, from, to and attrs say what they are")]
pub enum Request<'a> {
    /// The first packet of a connection, which names the client's version in place of a number.
    Init,
    /// Opens a file; the attributes are those of a new one. Answer: handle.
    Open { path: &'a [u8], flags: OpenFlags, attrs: Attrs },
    /// Closes a file or directory.
    Close { handle: &'a [u8] },
    /// Reads up to `len` bytes. Answer: data, or the status [`crate::StatusCode::Eof`].
    Read { handle: &'a [u8], offset: u64, len: u32 },
    /// Writes all of `data`. Where the content is elsewhere, [`write_head`] gives what goes before it.
    Write { handle: &'a [u8], offset: u64, data: &'a [u8] },
    /// Attributes, of a symbolic link itself.
    LStat { path: &'a [u8] },
    /// Attributes of an open file.
    FStat { handle: &'a [u8] },
    /// Changes attributes, of what a symbolic link leads to.
    SetStat { path: &'a [u8], attrs: Attrs },
    /// Changes attributes of an open file.
    FSetStat { handle: &'a [u8], attrs: Attrs },
    /// Opens a directory for listing. Answer: handle.
    OpenDir { path: &'a [u8] },
    /// The next names of a directory, `.` and `..` among them. Answer: names, or the status
    /// [`crate::StatusCode::Eof`].
    ReadDir { handle: &'a [u8] },
    /// Removes a name that is not a directory.
    Remove { path: &'a [u8] },
    /// Makes a directory.
    MkDir { path: &'a [u8], attrs: Attrs },
    /// Removes an empty directory.
    RmDir { path: &'a [u8] },
    /// The absolute path of what a path names. Answer: one name.
    RealPath { path: &'a [u8] },
    /// Attributes, of what a symbolic link leads to.
    Stat { path: &'a [u8] },
    /// Renames; fails when the new name exists.
    Rename { from: &'a [u8], to: &'a [u8] },
    /// The target of a symbolic link. Answer: one name.
    ReadLink { path: &'a [u8] },
    /// Makes a symbolic link. On the wire the target comes first, as OpenSSH has it and others after it; the draft has it
    /// the other way round.
    SymLink { target: &'a [u8], path: &'a [u8] },
    /// Renames, replacing what has the new name ([`Extensions::POSIX_RENAME`]).
    PosixRename { from: &'a [u8], to: &'a [u8] },
    /// Gives a file a second name ([`Extensions::HARDLINK`]).
    HardLink { from: &'a [u8], to: &'a [u8] },
    /// Puts an open file on stable storage ([`Extensions::FSYNC`]).
    FSync { handle: &'a [u8] },
    /// Size and free space ([`Extensions::STATVFS`]). Answer: [`crate::StatVfs`].
    StatVfs { path: &'a [u8] },
    /// The same by handle ([`Extensions::FSTATVFS`]).
    FStatVfs { handle: &'a [u8] },
    /// Changes attributes, of a symbolic link itself ([`Extensions::LSETSTAT`]).
    LSetStat { path: &'a [u8], attrs: Attrs },
    /// What sizes the server accepts ([`Extensions::LIMITS`]). Answer: [`crate::Limits`].
    Limits,
    /// As `RealPath`, with `~` and `~user` expanded ([`Extensions::EXPAND_PATH`]). Answer: one name.
    ExpandPath { path: &'a [u8] },
    /// Copies `len` bytes between two open files, 0 for all there are ([`Extensions::COPY_DATA`]).
    CopyData { from: &'a [u8], offset: u64, len: u64, to: &'a [u8], to_offset: u64 },
    /// The home of `user` ([`Extensions::HOME_DIRECTORY`]). Answer: one name.
    HomeDirectory { user: &'a [u8] },
    /// Names of users and groups ([`Extensions::USERS_GROUPS_BY_ID`]). Answer: [`crate::PersonNames`].
    PersonNames { uids: Vec<u32>, gids: Vec<u32> },
    /// An extended request that this crate does not know.
    Extended { name: &'a [u8], body: &'a [u8] },
}

/// What goes before `len` bytes of content in a write: together they are the whole packet.
pub fn write_head(number: u32, handle: &[u8], offset: u64, len: u32) -> BytesMut {
    let mut out = packet(kind::WRITE, number, |out| {
        put_string(out, handle);
        out.put_u64(offset);
        out.put_u32(len);
    });
    let whole = (out.len() - 4) as u32 + len;
    out[..4].copy_from_slice(&whole.to_be_bytes());
    out
}

impl<'a> Request<'a> {
    /// The whole packet of the request with this number; [`Request::Init`] has none and says the version instead.
    pub fn encode(&self, number: u32) -> BytesMut {
        if let Request::Init = self {
            return packet(kind::INIT, crate::VERSION, |_| ());
        }
        if let Request::Write { handle, offset, data } = self {
            let mut out = write_head(number, handle, *offset, data.len() as u32);
            out.put_slice(data);
            return out;
        }
        packet(self.kind(), number, |out| {
            if let Some(extension) = self.extension() {
                put_string(out, extension.request_name().as_bytes());
            }
            self.put_fields(out);
        })
    }

    fn kind(&self) -> u8 {
        match self {
            Request::Init => kind::INIT,
            Request::Open { .. } => kind::OPEN,
            Request::Close { .. } => kind::CLOSE,
            Request::Read { .. } => kind::READ,
            Request::Write { .. } => kind::WRITE,
            Request::LStat { .. } => kind::LSTAT,
            Request::FStat { .. } => kind::FSTAT,
            Request::SetStat { .. } => kind::SETSTAT,
            Request::FSetStat { .. } => kind::FSETSTAT,
            Request::OpenDir { .. } => kind::OPENDIR,
            Request::ReadDir { .. } => kind::READDIR,
            Request::Remove { .. } => kind::REMOVE,
            Request::MkDir { .. } => kind::MKDIR,
            Request::RmDir { .. } => kind::RMDIR,
            Request::RealPath { .. } => kind::REALPATH,
            Request::Stat { .. } => kind::STAT,
            Request::Rename { .. } => kind::RENAME,
            Request::ReadLink { .. } => kind::READLINK,
            Request::SymLink { .. } => kind::SYMLINK,
            _ => kind::EXTENDED,
        }
    }

    /// The extension that a server must have to understand this request; `None` for those of the draft.
    pub fn extension(&self) -> Option<Extensions> {
        Some(match self {
            Request::PosixRename { .. } => Extensions::POSIX_RENAME,
            Request::HardLink { .. } => Extensions::HARDLINK,
            Request::FSync { .. } => Extensions::FSYNC,
            Request::StatVfs { .. } => Extensions::STATVFS,
            Request::FStatVfs { .. } => Extensions::FSTATVFS,
            Request::LSetStat { .. } => Extensions::LSETSTAT,
            Request::Limits => Extensions::LIMITS,
            Request::ExpandPath { .. } => Extensions::EXPAND_PATH,
            Request::CopyData { .. } => Extensions::COPY_DATA,
            Request::HomeDirectory { .. } => Extensions::HOME_DIRECTORY,
            Request::PersonNames { .. } => Extensions::USERS_GROUPS_BY_ID,
            _ => return None,
        })
    }

    fn put_fields(&self, out: &mut BytesMut) {
        match self {
            Request::Init | Request::Write { .. } | Request::Limits => {}
            Request::Open { path, flags, attrs } => {
                put_string(out, path);
                out.put_u32(flags.bits());
                attrs.put(out);
            }
            Request::Read { handle, offset, len } => {
                put_string(out, handle);
                out.put_u64(*offset);
                out.put_u32(*len);
            }
            Request::SetStat { path: what, attrs }
            | Request::LSetStat { path: what, attrs }
            | Request::FSetStat { handle: what, attrs }
            | Request::MkDir { path: what, attrs } => {
                put_string(out, what);
                attrs.put(out);
            }
            Request::Close { handle: one }
            | Request::FStat { handle: one }
            | Request::ReadDir { handle: one }
            | Request::FSync { handle: one }
            | Request::FStatVfs { handle: one }
            | Request::LStat { path: one }
            | Request::OpenDir { path: one }
            | Request::Remove { path: one }
            | Request::RmDir { path: one }
            | Request::RealPath { path: one }
            | Request::Stat { path: one }
            | Request::ReadLink { path: one }
            | Request::StatVfs { path: one }
            | Request::ExpandPath { path: one }
            | Request::HomeDirectory { user: one } => put_string(out, one),
            Request::Rename { from: one, to: other }
            | Request::SymLink { target: one, path: other }
            | Request::PosixRename { from: one, to: other }
            | Request::HardLink { from: one, to: other } => {
                put_string(out, one);
                put_string(out, other);
            }
            Request::CopyData { from, offset, len, to, to_offset } => {
                put_string(out, from);
                out.put_u64(*offset);
                out.put_u64(*len);
                put_string(out, to);
                out.put_u64(*to_offset);
            }
            Request::PersonNames { uids, gids } => {
                for ids in [uids, gids] {
                    out.put_u32(4 * ids.len() as u32);
                    ids.iter().for_each(|&id| out.put_u32(id));
                }
            }
            Request::Extended { name, body } => {
                put_string(out, name);
                out.put_slice(body);
            }
        }
    }

    /// Reads a packet without its length field: the number of the request, and the request.
    ///
    /// # Errors
    /// Why it is no request.
    pub fn decode(packet: &'a [u8]) -> Result<(u32, Self), DecodeError> {
        let mut input = Cursor::new(packet);
        let (kind, number) = (input.byte()?, input.u32()?);
        let request = match kind {
            kind::INIT => Request::Init,
            kind::OPEN => {
                let (path, flags) = (input.string()?, OpenFlags::from_bits_retain(input.u32()?));
                Request::Open { path, flags, attrs: Attrs::get(&mut input)? }
            }
            kind::CLOSE => Request::Close { handle: input.string()? },
            kind::READ => Request::Read { handle: input.string()?, offset: input.u64()?, len: input.u32()? },
            kind::WRITE => {
                Request::Write { handle: input.string()?, offset: input.u64()?, data: input.string()? }
            }
            kind::LSTAT => Request::LStat { path: input.string()? },
            kind::FSTAT => Request::FStat { handle: input.string()? },
            kind::SETSTAT => Request::SetStat { path: input.string()?, attrs: Attrs::get(&mut input)? },
            kind::FSETSTAT => Request::FSetStat { handle: input.string()?, attrs: Attrs::get(&mut input)? },
            kind::OPENDIR => Request::OpenDir { path: input.string()? },
            kind::READDIR => Request::ReadDir { handle: input.string()? },
            kind::REMOVE => Request::Remove { path: input.string()? },
            kind::MKDIR => Request::MkDir { path: input.string()?, attrs: Attrs::get(&mut input)? },
            kind::RMDIR => Request::RmDir { path: input.string()? },
            kind::REALPATH => Request::RealPath { path: input.string()? },
            kind::STAT => Request::Stat { path: input.string()? },
            kind::RENAME => Request::Rename { from: input.string()?, to: input.string()? },
            kind::READLINK => Request::ReadLink { path: input.string()? },
            kind::SYMLINK => Request::SymLink { target: input.string()?, path: input.string()? },
            kind::EXTENDED => Request::decode_extended(input)?,
            kind => return Err(DecodeError::Kind(kind)),
        };
        Ok((number, request))
    }

    fn decode_extended(mut input: Cursor<'a>) -> Result<Self, DecodeError> {
        let name = input.string()?;
        Ok(match name {
            b"posix-rename@openssh.com" => {
                Request::PosixRename { from: input.string()?, to: input.string()? }
            }
            b"hardlink@openssh.com" => Request::HardLink { from: input.string()?, to: input.string()? },
            b"fsync@openssh.com" => Request::FSync { handle: input.string()? },
            b"statvfs@openssh.com" => Request::StatVfs { path: input.string()? },
            b"fstatvfs@openssh.com" => Request::FStatVfs { handle: input.string()? },
            b"lsetstat@openssh.com" => {
                Request::LSetStat { path: input.string()?, attrs: Attrs::get(&mut input)? }
            }
            b"limits@openssh.com" => Request::Limits,
            b"expand-path@openssh.com" => Request::ExpandPath { path: input.string()? },
            b"copy-data" => Request::CopyData {
                from: input.string()?,
                offset: input.u64()?,
                len: input.u64()?,
                to: input.string()?,
                to_offset: input.u64()?,
            },
            b"home-directory" => Request::HomeDirectory { user: input.string()? },
            b"users-groups-by-id@openssh.com" => {
                Request::PersonNames { uids: ids(input.string()?)?, gids: ids(input.string()?)? }
            }
            name => Request::Extended { name, body: input.rest() },
        })
    }
}

fn ids(list: &[u8]) -> Result<Vec<u32>, DecodeError> {
    let (ids, rest) = list.as_chunks();
    if rest.is_empty() {
        Ok(ids.iter().map(|&id| u32::from_be_bytes(id)).collect())
    } else {
        Err(DecodeError::Short)
    }
}
