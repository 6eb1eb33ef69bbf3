// SPDX-License-Identifier: MIT OR Apache-2.0
//! Codec of NFS version 3 (RFC 1813) and of the programs beside it, in both roles. It does no I/O.
//!
//! | module | program | what is there |
//! |---|---|---|
//! | [`nfs`] | NFS 3, RFC 1813, 3 | all 22 procedures |
//! | [`mount`] | MOUNT 3, RFC 1813, 5 | all 6 procedures |
//! | [`nlm`] | NLM 4, RFC 1813, 6 | all 20 procedures; a server may refuse them, but can read them |
//!
//! Each module has `Call` and `Reply` with a variant for each procedure, for those who take what comes: a server decodes a `Call`
//! by the number in the header of the remote procedure call ([`Messages`](xdr::Messages)). A client uses the types in its module `procedure` with
//! [`rpc::call`](xdr::rpc::call), and decodes the results of that procedure. Everything prints on one line, and whatever a peer may
//! have put into names is escaped.
//!
//! What is refused and what is accepted is stated in [`xdr`]. Names are bytes here, as long as the limits in [`types`] say, and may be
//! empty, `..` or have a slash in them: to judge that is for those who use them. Content of files is not copied. A decoded message
//! takes at most 16 times the memory of its bytes, which a listing of the shortest names comes close to.
#![forbid(unsafe_code)]

pub mod mount;
pub mod nfs;
pub mod nlm;
pub mod results;
pub mod types;

pub use outrigger_proto_xdr as xdr;
