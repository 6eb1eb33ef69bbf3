// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server answers.

use crate::attrs::Attrs;
use crate::cursor::{Cursor, DecodeError, packet, put_string};
use crate::extension::Extensions;
use crate::status::StatusCode;
use bytes::{BufMut, Bytes, BytesMut};

/// `SSH_FXP_*` of packets from a server.
const VERSION: u8 = 2;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// How it went, for requests that have nothing else to tell, and for those that failed.
    Status(Status),
    /// An open file or directory: up to 256 bytes that mean something to the server only.
    Handle(Bytes),
    /// Content.
    Data(Bytes),
    /// Names: a piece of a directory, or one path.
    Names(Vec<Named>),
    /// Attributes.
    Attrs(Attrs),
    /// The body of the answer to an extended request.
    Extended(Bytes),
}

/// How a request went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// In a number.
    pub code: StatusCode,
    /// In words; empty when the server has none.
    pub message: Bytes,
}

/// A name with what the server says about the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name, one component in a listing, a path in other answers.
    pub name: Bytes,
    /// A line as `ls -l` prints it, for people.
    pub line: Bytes,
    /// Its attributes.
    pub attrs: Attrs,
}

/// A server's first packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The version it speaks.
    pub version: u32,
    /// What it promises beyond, each with a revision.
    pub extensions: Vec<(Bytes, Bytes)>,
}

impl Version {
    /// Reads a packet without its length field.
    ///
    /// # Errors
    /// Why it is no such packet.
    pub fn decode(packet: &Bytes) -> Result<Self, DecodeError> {
        let mut input = Cursor::new(packet);
        match input.byte()? {
            VERSION => {}
            kind => return Err(DecodeError::Kind(kind)),
        }
        let version = input.u32()?;
        let mut extensions = Vec::new();
        while !input.rest().is_empty() {
            let (name, revision) = (input.string()?, input.string()?);
            extensions.push((packet.slice_ref(name), packet.slice_ref(revision)));
        }
        Ok(Version { version, extensions })
    }

    /// The whole packet.
    pub fn encode(&self) -> BytesMut {
        packet(VERSION, self.version, |out| {
            for (name, revision) in &self.extensions {
                put_string(out, name);
                put_string(out, revision);
            }
        })
    }

    /// The extensions this crate speaks.
    pub fn promised(&self) -> Extensions {
        Extensions::promised(self.extensions.iter().map(|(name, revision)| (&name[..], &revision[..])))
    }
}

impl Reply {
    /// Reads a packet without its length field: the number of the request, and the answer to it.
    ///
    /// # Errors
    /// Why it is no reply.
    pub fn decode(packet: &Bytes) -> Result<(u32, Self), DecodeError> {
        let mut input = Cursor::new(packet);
        let (kind, number) = (input.byte()?, input.u32()?);
        let reply = match kind {
            STATUS => Reply::Status(Status {
                code: StatusCode::of(input.u32()?),
                // Servers of the first drafts end here.
                message: input.string().map_or(Bytes::new(), |message| packet.slice_ref(message)),
            }),
            HANDLE => Reply::Handle(packet.slice_ref(input.string()?)),
            DATA => Reply::Data(packet.slice_ref(input.string()?)),
            NAME => Reply::Names(names(packet, &mut input)?),
            ATTRS => Reply::Attrs(Attrs::get(&mut input)?),
            EXTENDED_REPLY => Reply::Extended(packet.slice_ref(input.rest())),
            kind => return Err(DecodeError::Kind(kind)),
        };
        Ok((number, reply))
    }

    /// The whole packet that answers the request with this number.
    pub fn encode(&self, number: u32) -> BytesMut {
        match self {
            Reply::Status(Status { code, message }) => packet(STATUS, number, |out| {
                out.put_u32(code.number());
                put_string(out, message);
                put_string(out, b"");
            }),
            Reply::Handle(handle) => packet(HANDLE, number, |out| put_string(out, handle)),
            Reply::Data(data) => packet(DATA, number, |out| put_string(out, data)),
            Reply::Names(names) => packet(NAME, number, |out| {
                out.put_u32(names.len() as u32);
                for named in names {
                    put_string(out, &named.name);
                    put_string(out, &named.line);
                    named.attrs.put(out);
                }
            }),
            Reply::Attrs(attrs) => packet(ATTRS, number, |out| attrs.put(out)),
            Reply::Extended(body) => packet(EXTENDED_REPLY, number, |out| out.put_slice(body)),
        }
    }

    /// A status without words.
    pub fn status(code: StatusCode) -> Self {
        Reply::Status(Status { code, message: Bytes::new() })
    }
}

fn names(packet: &Bytes, input: &mut Cursor<'_>) -> Result<Vec<Named>, DecodeError> {
    let count = input.u32()?;
    // The count is the server's word; the shortest name there is takes twelve bytes.
    let mut names = Vec::with_capacity((count as usize).min(input.rest().len() / 12));
    for _ in 0..count {
        let (name, line) = (input.string()?, input.string()?);
        let attrs = Attrs::get(input)?;
        names.push(Named { name: packet.slice_ref(name), line: packet.slice_ref(line), attrs });
    }
    Ok(names)
}
