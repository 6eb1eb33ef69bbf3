// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 9P door: exports trees by 9P2000.L, the dialect of Linux, and by 9P2000 and 9P2000.u, over TCP or a socket of this machine.
//!
//! | file | what it does |
//! |---|---|
//! | `server.rs` | the listening socket, and what all connections share |
//! | `connection.rs` | messages in, worked on side by side, replies as they are ready; versions, flushes |
//! | `answer.rs` | from a request to its reply |
//! | `fids.rs`, `open.rs` | what numbers of clients stand for, in which order requests about them happen |
//! | `users.rs` | who a client attaches as |
//! | `export.rs` | a tree, and references to its nodes |
//! | `walk.rs`, `names.rs`, `content.rs`, `xattrs.rs`, `locks.rs` | the requests |
//! | `plain.rs` | those of 9P2000 and 9P2000.u |
//!
//! Which clients may ask, as which user, and how much, is what doors for networks share: `crates/serve`.
//!
//! The tree has to check permissions against the caller: the layer `permissions` does that for trees that do not, above `simulate`,
//! which supplies what a driver lacks. Design: `docs/design/0035-9p-door.md`.
//!
//! # What the protocol cannot do
//!
//! * A connection that is lost takes its fids, open files and locks with it. After a restart clients attach again.
//! * In 9P2000 there is no form for symbolic links: one is shown as a file that cannot be opened; and there are no locks, extended attributes
//!   and hard links.
//! * In 9P2000 a client has one user, by name, for all that it does. One whom this machine does not know is the anonymous user, which is logged.
//! * Nothing is encrypted, and there is no login.
#![forbid(unsafe_code)]

mod answer;
mod connection;
mod content;
mod convert;
mod export;
mod fids;
mod locks;
mod names;
mod open;
mod plain;
mod server;
mod users;
mod walk;
mod xattrs;

pub use outrigger_toolkit_serve::{Callers, NOBODY, Network, Squash};
pub use server::{Listener, Server, Tree};
pub use users::{Account, NoUsers, Users};

/// The most content that one message has.
pub const IO_MAX: u32 = 1 << 20;
/// The port that clients try by themselves.
pub const PORT: u16 = 564;
