// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS door: exports trees by NFS version 3 (RFC 1813) to clients that need nothing else, all on one TCP port.
//!
//! | file | what it does |
//! |---|---|
//! | `server.rs` | the listening socket |
//! | `connection.rs` | records in, calls side by side, replies as they are ready |
//! | `answer.rs` | from a call to its reply: programs, procedures, repeated calls |
//! | `caller.rs` | who a call says that its caller is |
//! | `notice.rs` | what is said about clients that are refused |
//! | `duplicates.rs` | replies to calls that must not happen twice |
//! | `handle.rs` | file handles that clients cannot make up |
//! | `files.rs` | from a handle to a node of the tree |
//! | `names.rs`, `content.rs`, `listing.rs` | the procedures |
//! | `mount.rs`, `other.rs` | the programs beside NFS |
//! | `stand_in.rs` | what is left to clients when there is no tree any more |
//!
//! Which clients may ask, as which user, and how much, is what doors for networks share: `crates/serve`.
//!
//! The tree has to check permissions against the caller, and to read, write and list without open handles: the layers
//! `permissions` and `closesim` do that for trees that do not. Design: `docs/design/0021-nfs-door.md`.
#![forbid(unsafe_code)]

mod answer;
mod caller;
mod connection;
mod content;
mod convert;
mod duplicates;
mod export;
mod files;
mod handle;
mod listing;
mod mount;
mod names;
mod notice;
mod other;
mod server;
mod stand_in;

pub use export::number_of;
pub use handle::KEY_LEN;
pub use outrigger_toolkit_serve::{Callers, NOBODY, Network, NotANetwork, Squash};
pub use server::{Options, Paths, Server, Tree, needs_paths, new_key};
pub use stand_in::Root;

/// The most bytes one READ or WRITE may have.
pub const IO_MAX: u32 = 1 << 20;
/// The port that clients try by themselves.
pub const PORT: u16 = outrigger_proto_nfs3::nfs::PORT;
