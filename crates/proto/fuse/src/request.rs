// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole requests.
use crate::extension::Extensions;
use crate::flags::InitFlags;
use crate::header::InHeader;
use crate::init::{Dialect, InitIn};
use crate::input::*;
use crate::layout::DecodeError;
use crate::opcode::Opcode;

/// A request with its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// What is asked.
    pub operation: Operation<'a>,
    /// What follows the request proper.
    pub extensions: Extensions<'a>,
}

/// What a request asks, with its arguments. The node is in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are documented at `Opcode`, their structures at themselves")]
pub enum Operation<'a> {
    Lookup { name: &'a [u8] },
    Forget(ForgetIn),
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { args: MknodIn, name: &'a [u8] },
    Mkdir { args: MkdirIn, name: &'a [u8] },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { newdir: u64, flags: u32, name: &'a [u8], newname: &'a [u8] },
    Link { oldnodeid: u64, name: &'a [u8] },
    Open(OpenIn),
    Read(ReadIn),
    Write { args: WriteIn, data: &'a [u8] },
    Statfs,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Setxattr { args: SetxattrIn, name: &'a [u8], value: &'a [u8] },
    Getxattr { args: GetxattrIn, name: &'a [u8] },
    Listxattr(GetxattrIn),
    Removexattr { name: &'a [u8] },
    Flush(FlushIn),
    Init(InitIn),
    Opendir(OpenIn),
    Readdir(ReadIn),
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Access(AccessIn),
    Create { args: CreateIn, name: &'a [u8] },
    Interrupt(InterruptIn),
    Bmap(BmapIn),
    Destroy,
    Ioctl { args: IoctlIn, data: &'a [u8] },
    Poll(PollIn),
    NotifyReply { args: RetrieveIn, data: &'a [u8] },
    BatchForget(Forgets<'a>),
    Fallocate(FallocateIn),
    Readdirplus(ReadIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    Setupmapping(SetupmappingIn),
    Removemapping(RemovemappingIn),
    Syncfs,
    Tmpfile { args: CreateIn, name: &'a [u8] },
    Statx(StatxIn),
    CopyFileRange64(CopyFileRangeIn),
}

/// The elements of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = ForgetOne;
    fn next(&mut self) -> Option<ForgetOne> {
        let (one, rest) = ForgetOne::decode(self.0).ok()?;
        self.0 = rest;
        Some(one)
    }
}

impl<'a> Request<'a> {
    /// Reads one whole message as it came from the device.
    ///
    /// # Errors
    /// [`DecodeError`] when the message is not a request of the protocol. The header can still be read by
    /// [`InHeader::decode`], so that the request can be refused.
    pub fn decode(message: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let (header, _) = InHeader::decode(message)?;
        Self::after(header, message, dialect)
    }

    /// Reads what follows `header`, which was read from this whole message.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn after(header: InHeader, message: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let rest = message.get(InHeader::SIZE..).unwrap_or_default();
        if header.len as usize != message.len() {
            return Err(DecodeError::Length { header: header.len, actual: message.len() });
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let split = rest.len().checked_sub(extensions).ok_or(DecodeError::Extension)?;
        let (body, extensions) = rest.split_at(split);
        Ok(Self {
            header,
            operation: Operation::decode(header.opcode, body, dialect)?,
            extensions: Extensions::decode(extensions)?,
        })
    }
}

impl<'a> Operation<'a> {
    /// Reads the part of a request between header and extensions.
    ///
    /// # Errors
    /// [`DecodeError`] when the operation is unknown or its arguments are malformed.
    pub fn decode(opcode: u32, body: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let opcode = Opcode::from_u32(opcode).ok_or(DecodeError::Opcode(opcode))?;
        let what = opcode.name();
        Ok(match opcode {
            Opcode::Lookup => Self::Lookup { name: last_name(body, what)? },
            Opcode::Forget => Self::Forget(ForgetIn::decode(body)?.0),
            Opcode::Getattr => Self::Getattr(GetattrIn::decode(body)?.0),
            Opcode::Setattr => Self::Setattr(SetattrIn::decode(body)?.0),
            Opcode::Readlink => Self::Readlink,
            Opcode::Unlink => Self::Unlink { name: last_name(body, what)? },
            Opcode::Rmdir => Self::Rmdir { name: last_name(body, what)? },
            Opcode::Open => Self::Open(OpenIn::decode(body)?.0),
            Opcode::Read => Self::Read(ReadIn::decode(body)?.0),
            Opcode::Statfs => Self::Statfs,
            Opcode::Release => Self::Release(ReleaseIn::decode(body)?.0),
            Opcode::Fsync => Self::Fsync(FsyncIn::decode(body)?.0),
            Opcode::Listxattr => Self::Listxattr(GetxattrIn::decode(body)?.0),
            Opcode::Removexattr => Self::Removexattr { name: last_name(body, what)? },
            Opcode::Flush => Self::Flush(FlushIn::decode(body)?.0),
            Opcode::Init => Self::Init(InitIn::decode(body)?),
            Opcode::Opendir => Self::Opendir(OpenIn::decode(body)?.0),
            Opcode::Readdir => Self::Readdir(ReadIn::decode(body)?.0),
            Opcode::Releasedir => Self::Releasedir(ReleaseIn::decode(body)?.0),
            Opcode::Fsyncdir => Self::Fsyncdir(FsyncIn::decode(body)?.0),
            Opcode::Getlk => Self::Getlk(LkIn::decode(body)?.0),
            Opcode::Setlk => Self::Setlk(LkIn::decode(body)?.0),
            Opcode::Setlkw => Self::Setlkw(LkIn::decode(body)?.0),
            Opcode::Access => Self::Access(AccessIn::decode(body)?.0),
            Opcode::Interrupt => Self::Interrupt(InterruptIn::decode(body)?.0),
            Opcode::Bmap => Self::Bmap(BmapIn::decode(body)?.0),
            Opcode::Destroy => Self::Destroy,
            Opcode::Poll => Self::Poll(PollIn::decode(body)?.0),
            Opcode::Fallocate => Self::Fallocate(FallocateIn::decode(body)?.0),
            Opcode::Readdirplus => Self::Readdirplus(ReadIn::decode(body)?.0),
            Opcode::Lseek => Self::Lseek(LseekIn::decode(body)?.0),
            Opcode::CopyFileRange => Self::CopyFileRange(CopyFileRangeIn::decode(body)?.0),
            Opcode::Setupmapping => Self::Setupmapping(SetupmappingIn::decode(body)?.0),
            Opcode::Removemapping => Self::Removemapping(RemovemappingIn::decode(body)?.0),
            Opcode::Syncfs => Self::Syncfs,
            Opcode::Statx => Self::Statx(StatxIn::decode(body)?.0),
            Opcode::CopyFileRange64 => Self::CopyFileRange64(CopyFileRangeIn::decode(body)?.0),
            _ => return Self::decode_with_tail(opcode, body, dialect),
        })
    }

    /// The operations whose fixed part is followed by names or data.
    fn decode_with_tail(opcode: Opcode, body: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let what = opcode.name();
        Ok(match opcode {
            Opcode::Write => {
                let (args, rest) = WriteIn::decode(body)?;
                Self::Write { args, data: data(rest, args.size, what)? }
            }
            Opcode::Getxattr => {
                let (args, rest) = GetxattrIn::decode(body)?;
                Self::Getxattr { args, name: last_name(rest, what)? }
            }
            Opcode::Mkdir => {
                let (args, rest) = MkdirIn::decode(body)?;
                Self::Mkdir { args, name: last_name(rest, what)? }
            }
            Opcode::Mknod => {
                let (args, rest) = MknodIn::decode(body)?;
                Self::Mknod { args, name: last_name(rest, what)? }
            }
            Opcode::Create => {
                let (args, rest) = CreateIn::decode(body)?;
                Self::Create { args, name: last_name(rest, what)? }
            }
            Opcode::Tmpfile => {
                let (args, rest) = CreateIn::decode(body)?;
                Self::Tmpfile { args, name: last_name(rest, what)? }
            }
            Opcode::Symlink => {
                let (name, rest) = name(body, what)?;
                Self::Symlink { name, target: last_name(rest, what)? }
            }
            Opcode::Link => {
                let (args, rest) = LinkIn::decode(body)?;
                Self::Link { oldnodeid: args.oldnodeid, name: last_name(rest, what)? }
            }
            Opcode::Rename => {
                let (args, rest) = RenameIn::decode(body)?;
                Self::renamed(args.newdir, 0, rest, what)?
            }
            Opcode::Rename2 => {
                let (args, rest) = Rename2In::decode(body)?;
                Self::renamed(args.newdir, args.flags, rest, what)?
            }
            Opcode::Setxattr => Self::decode_setxattr(body, dialect)?,
            Opcode::Ioctl => {
                let (args, rest) = IoctlIn::decode(body)?;
                Self::Ioctl { args, data: data(rest, args.in_size, what)? }
            }
            Opcode::NotifyReply => {
                let (args, rest) = RetrieveIn::decode(body)?;
                Self::NotifyReply { args, data: data(rest, args.size, what)? }
            }
            Opcode::BatchForget => {
                let (args, rest) = BatchForgetIn::decode(body)?;
                let size = args.count.saturating_mul(ForgetOne::SIZE as u32);
                Self::BatchForget(Forgets(data(rest, size, what)?))
            }
            other => return Err(DecodeError::Opcode(other as u32)),
        })
    }

    fn renamed(newdir: u64, flags: u32, rest: &'a [u8], what: &'static str) -> Result<Self, DecodeError> {
        let (name, rest) = name(rest, what)?;
        Ok(Self::Rename { newdir, flags, name, newname: last_name(rest, what)? })
    }

    fn decode_setxattr(body: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let what = Opcode::Setxattr.name();
        let (args, rest) = if dialect.flags.contains(InitFlags::SETXATTR_EXT) {
            SetxattrIn::decode(body)?
        } else {
            let (args, rest) = SetxattrCompatIn::decode(body)?;
            (SetxattrIn { size: args.size, flags: args.flags, setxattr_flags: 0 }, rest)
        };
        let (name, rest) = name(rest, what)?;
        Ok(Self::Setxattr { args, name, value: data(rest, args.size, what)? })
    }
}

/// A NUL-terminated name and what follows it.
fn name<'a>(bytes: &'a [u8], what: &'static str) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
    match bytes.iter().position(|byte| *byte == 0) {
        None | Some(0) => Err(DecodeError::Name(what)),
        Some(end) => Ok((&bytes[..end], &bytes[end + 1..])),
    }
}

/// A NUL-terminated name at the end of a request.
fn last_name<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], DecodeError> {
    name(bytes, what).map(|(name, _)| name)
}

/// Exactly `size` bytes of data.
fn data<'a>(bytes: &'a [u8], size: u32, what: &'static str) -> Result<&'a [u8], DecodeError> {
    bytes.get(..size as usize).ok_or(DecodeError::Short { what, need: size as usize, have: bytes.len() })
}

/// Builds a request message, as the kernel does: `header` (its length and opcode are filled in) and the parts
/// of the body one after the other.
#[must_use]
pub fn encode_request(header: InHeader, opcode: Opcode, parts: &[&[u8]]) -> Vec<u8> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let header = InHeader { len: (InHeader::SIZE + body) as u32, opcode: opcode as u32, ..header };
    let mut message = Vec::with_capacity(InHeader::SIZE + body);
    message.extend_from_slice(&header.encode());
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}
