// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers of remote procedure calls (RFC 5531), and who makes a call.
//!
//! A message is a header, [`Message`], and what the program defines: after a call its arguments, after a successful reply its
//! results. The functions here make whole records, for [`Encoder::finish`]; a receiver decodes the header and then the rest with
//! the same [`Decoder`].
//!
//! A server answers each message from which [`xid`] gives a number and that [`is_call`]: what does not decode as a header with
//! [`AuthStatus::BAD_CREDENTIAL`], another [`Call::rpc_version`] than [`RPC_VERSION`] with [`Denied::RpcMismatch`], arguments that
//! do not decode with [`AcceptStatus::GarbageArguments`]. Other messages are dropped.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::Encoder;
use crate::list::Array;
use crate::opaque::{Opaque, Text};
use crate::value::Xdr;
use crate::{xdr_display, xdr_enum, xdr_status, xdr_struct};
use bytes::Bytes;
use std::fmt;

/// The version of the call protocol (RFC 5531, 9).
pub const RPC_VERSION: u32 = 2;

/// Nobody in particular (`AUTH_NONE`, RFC 5531, 10.1).
pub const AUTH_NONE: u32 = 0;

/// A user and groups by their numbers (`AUTH_SYS`, RFC 5531, appendix A).
pub const AUTH_SYS: u32 = 1;

/// The longest body of credentials or of a verifier, in bytes (RFC 5531, 8.2).
pub const AUTH_BODY_MAX: usize = 400;

/// The most supplementary groups in `AUTH_SYS` (RFC 5531, appendix A).
pub const GROUPS_MAX: usize = 16;

/// A procedure of a program, with the types of what goes back and forth. [`xdr_program!`](crate::xdr_program) makes them.
pub trait Procedure {
    /// The number of the program.
    const PROGRAM: u32;
    /// Its version.
    const VERSION: u32;
    /// The number of the procedure.
    const NUMBER: u32;
    /// Its arguments.
    type Args: Xdr;
    /// Its results.
    type Results: Xdr;
}

/// What follows the headers of a program's calls, or of its replies: one type for all procedures, each of which has its form.
/// [`xdr_program!`](crate::xdr_program) makes both.
pub trait Messages: Sized + fmt::Display {
    /// The number of the program.
    const PROGRAM: u32;
    /// Its version.
    const VERSION: u32;
    /// The numbers of its procedures.
    const PROCEDURES: &'static [u32];

    /// The number of the procedure that this one belongs to.
    fn procedure(&self) -> u32;

    /// The number of bytes that it takes, without the header.
    fn encoded_len(&self) -> usize;

    /// Appends it to the header.
    fn encode(&self, out: &mut Encoder);

    /// Takes what follows the header of a message of this procedure.
    ///
    /// # Errors
    /// [`DecodeError::Procedure`] when there is no such procedure; otherwise why the bytes do not belong to it.
    fn decode(procedure: u32, input: &mut Decoder) -> Result<Self, DecodeError>;
}

xdr_struct! {
    /// The header of every message (`rpc_msg`, RFC 5531, 9).
    pub struct Message {
        /// Which call this is, and which one a reply belongs to.
        pub xid: u32,
        /// The rest of the header.
        pub body: Body,
    }

    /// The header of a call (`call_body`, RFC 5531, 9).
    pub struct Call {
        /// [`RPC_VERSION`].
        pub rpc_version: u32,
        /// The number of the program.
        pub program: u32,
        /// Its version.
        pub version: u32,
        /// The number of the procedure.
        pub procedure: u32,
        /// Who makes the call.
        pub credential: Auth,
        /// What proves it.
        pub verifier: Auth,
    }

    /// The header of a reply to a call whose caller is accepted (`accepted_reply`, RFC 5531, 9).
    pub struct Accepted {
        /// What proves the server.
        pub verifier: Auth,
        /// What became of the call.
        pub status: AcceptStatus,
    }

    /// The versions that are supported (`mismatch_info`, RFC 5531, 9).
    pub struct Versions {
        /// The lowest.
        pub low: u32,
        /// The highest.
        pub high: u32,
    }

    /// Who makes a call, as `AUTH_SYS` says it (`authsys_parms`, RFC 5531, appendix A).
    pub struct AuthSys {
        /// Any number.
        pub stamp: u32,
        /// The name of the caller's machine.
        pub machine: Text<255>,
        /// The user.
        pub uid: u32,
        /// The user's group.
        pub gid: u32,
        /// Further groups.
        pub gids: Array<u32, GROUPS_MAX>,
    }
}

xdr_enum! {
    /// Call or reply (RFC 5531, 9).
    pub enum Body: "direction of a message" {
        /// A call; its arguments follow.
        Call(Call) = 0,
        /// A reply.
        Reply(Reply) = 1,
    }

    /// The header of a reply (`reply_body`, RFC 5531, 9).
    pub enum Reply: "status of a reply" {
        /// The caller is accepted.
        Accepted(Accepted) = 0,
        /// The caller is not.
        Denied(Denied) = 1,
    }

    /// What became of a call (`accept_stat`, RFC 5531, 9).
    pub enum AcceptStatus: "status of an accepted call" {
        /// It was executed; the results follow.
        Success = 0,
        /// The server does not have the program.
        ProgramUnavailable = 1,
        /// It does not have this version.
        ProgramMismatch(Versions) = 2,
        /// The program does not have the procedure.
        ProcedureUnavailable = 3,
        /// The arguments cannot be decoded.
        GarbageArguments = 4,
        /// The server cannot execute it, for want of memory for example.
        SystemError = 5,
    }

    /// Why a call is denied (`rejected_reply`, RFC 5531, 9).
    pub enum Denied: "reason for a denied call" {
        /// Not for version [`RPC_VERSION`].
        RpcMismatch(Versions) = 0,
        /// The caller is not accepted.
        AuthError(AuthStatus) = 1,
    }
}

xdr_status! {
    /// Why a caller is not accepted (`auth_stat`, RFC 5531, 9).
    pub struct AuthStatus {
        /// The credentials are malformed.
        BAD_CREDENTIAL = 1,
        /// The client must begin a new session.
        REJECTED_CREDENTIAL = 2,
        /// The verifier is malformed.
        BAD_VERIFIER = 3,
        /// The verifier expired or was used before.
        REJECTED_VERIFIER = 4,
        /// Other credentials are wanted.
        TOO_WEAK = 5,
        /// The server's verifier is wrong.
        INVALID_RESPONSE = 6,
        /// Unknown reason.
        FAILED = 7,
    }
}

/// Credentials or a verifier, of whatever flavor (`opaque_auth`, RFC 5531, 8.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// What the body is ([`AUTH_NONE`], [`AUTH_SYS`], others).
    pub flavor: u32,
    /// The body.
    pub body: Opaque<AUTH_BODY_MAX>,
}

impl Auth {
    /// Nobody in particular.
    pub fn none() -> Self {
        Auth { flavor: AUTH_NONE, body: Opaque::default() }
    }

    /// The user and groups in credentials of the flavor [`AUTH_SYS`].
    ///
    /// # Errors
    /// [`AuthStatus::TOO_WEAK`] for another flavor, [`AuthStatus::BAD_CREDENTIAL`] when the body is malformed.
    pub fn sys(&self) -> Result<AuthSys, AuthStatus> {
        if self.flavor != AUTH_SYS {
            return Err(AuthStatus::TOO_WEAK);
        }
        AuthSys::decode(&mut Decoder::new(Bytes::clone(&self.body))).map_err(|_| AuthStatus::BAD_CREDENTIAL)
    }
}

impl From<&AuthSys> for Auth {
    fn from(caller: &AuthSys) -> Self {
        let mut out = Encoder::new(caller.encoded_len());
        caller.encode(&mut out);
        let body = Opaque::new(out.finish().into_bytes()).expect("at most 20 + 256 + 64 bytes");
        Auth { flavor: AUTH_SYS, body }
    }
}

impl Xdr for Auth {
    const MIN_LEN: usize = 8;

    fn encoded_len(&self) -> usize {
        4 + self.body.encoded_len()
    }

    fn encode(&self, out: &mut Encoder) {
        self.flavor.encode(out);
        self.body.encode(out);
    }

    fn decode(input: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Auth { flavor: u32::decode(input)?, body: Opaque::decode(input)? })
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.flavor, self.sys()) {
            (AUTH_NONE, _) => f.write_str("NONE"),
            (_, Ok(caller)) => write!(f, "SYS {caller}"),
            (flavor, Err(_)) => {
                write!(f, "{flavor}:")?;
                self.body.print(f)
            }
        }
    }
}

xdr_display!(Auth);

/// The number of the call that a message is or belongs to; `None` when it is too short to have one.
pub fn xid(message: &[u8]) -> Option<u32> {
    message.first_chunk().map(|xid| u32::from_be_bytes(*xid))
}

/// Whether a message says that it is a call, whatever else it is.
pub fn is_call(message: &[u8]) -> bool {
    message.get(4..8) == Some(&[0; 4])
}

/// The record of a call of a procedure with these arguments.
pub fn call<P: Procedure>(xid: u32, credential: &Auth, args: &P::Args) -> Encoder {
    let header = call_header(xid, (P::PROGRAM, P::VERSION, P::NUMBER), credential);
    record(&header, args.encoded_len(), |out| args.encode(out))
}

/// The record of any call of a program.
pub fn call_message<C: Messages>(xid: u32, credential: &Auth, call: &C) -> Encoder {
    let header = call_header(xid, (C::PROGRAM, C::VERSION, call.procedure()), credential);
    record(&header, call.encoded_len(), |out| call.encode(out))
}

/// The record of a reply with the results of a procedure.
pub fn success(xid: u32, results: &impl Xdr) -> Encoder {
    record(&success_header(xid), results.encoded_len(), |out| results.encode(out))
}

/// The record of any reply of a program.
pub fn success_message(xid: u32, reply: &impl Messages) -> Encoder {
    record(&success_header(xid), reply.encoded_len(), |out| reply.encode(out))
}

/// The record of a reply without results.
pub fn reply(xid: u32, reply: Reply) -> Encoder {
    record(&Message { xid, body: Body::Reply(reply) }, 0, |_| ())
}

/// The header of a reply to a caller that is accepted, without a proof of the server.
pub fn accepted(status: AcceptStatus) -> Reply {
    Reply::Accepted(Accepted { verifier: Auth::none(), status })
}

fn call_header(xid: u32, (program, version, procedure): (u32, u32, u32), credential: &Auth) -> Message {
    let (credential, verifier) = (credential.clone(), Auth::none());
    let call = Call { rpc_version: RPC_VERSION, program, version, procedure, credential, verifier };
    Message { xid, body: Body::Call(call) }
}

fn success_header(xid: u32) -> Message {
    Message { xid, body: Body::Reply(accepted(AcceptStatus::Success)) }
}

fn record(header: &Message, len: usize, encode: impl FnOnce(&mut Encoder)) -> Encoder {
    let mut out = Encoder::record((header.encoded_len() + len).min(ROOM_MAX));
    header.encode(&mut out);
    encode(&mut out);
    out
}

/// The most room that is made for a message beforehand: most of a longer one is content that is not copied.
const ROOM_MAX: usize = 4 << 10;
