// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of XDR (RFC 4506) and of ONC remote procedure calls (RFC 5531), with record marking. It does no I/O.
//!
//! * [`Xdr`] is a type that has a place in a message. Integers, options, lists, results and opaque data have it; the macros
//!   [`xdr_struct!`], [`xdr_enum!`], [`xdr_status!`] and [`xdr_program!`] derive it from one statement of a protocol's types and
//!   procedures, together with the printed form.
//! * [`Encoder`] and [`Decoder`] are the two directions.
//! * [`rpc`] has the headers of calls and replies and the credentials `AUTH_NONE` and `AUTH_SYS`.
//! * [`record`] cuts a byte stream into messages.
//! * [`portmap`] (RFC 1833, 3: all but the forwarding of calls) and [`rpcbind`] (RFC 1833, 2: registering, asking for addresses and
//!   listing) are the programs that say where others are.
//!
//! # What is refused and what is accepted
//!
//! Each length is compared with its declared maximum and with what is left of the message before anything is allocated, and each
//! type knows the least number of bytes that one of it takes ([`Xdr::MIN_LEN`]): a list never reserves room for elements that
//! cannot be there. Decoding never panics, and no type contains itself, so that nothing a peer sends can exhaust the stack.
//!
//! | in a message | decoding | encoding |
//! |---|---|---|
//! | padding after opaque data (RFC 4506, 3) | must be there, any value: Linux and libtirpc do not look at it either | zero |
//! | a boolean, and whether something optional follows (4.4, 4.19) | 0 or 1 | the same |
//! | an unknown value of an enumeration or union (4.3, 4.15) | refused; codes of errors are kept as they are | cannot be expressed |
//! | bytes after the last field | ignored, as Linux' server and client do | none |
//! | bytes of a string that are no text | kept; printed escaped | the same |
//!
//! # Content is not copied
//!
//! Decoded strings and opaque data share the buffer of their message: what is kept for long should be copied, or it holds the
//! whole buffer. Short ones that are kept, handles above all, are [`Inline`]. An [`Encoder`] leaves large [`Data`] where it is
//! and gives out the bytes before and after it ([`Encoded`]).
#![forbid(unsafe_code)]

mod decoder;
mod encoder;
mod list;
mod macros;
mod opaque;
pub mod portmap;
mod print;
pub mod record;
pub mod rpc;
pub mod rpcbind;
mod value;

pub use decoder::{DecodeError, Decoder};
pub use encoder::{COPIED_MAX, Encoded, Encoder};
pub use list::{Array, List};
pub use opaque::{Data, Inline, Opaque, Text, TooLong};
pub use rpc::{Messages, Procedure};
pub use value::Xdr;
