// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire door: serves a tree to other processes of Outrigger, by the messages of the core (`docs/PROTOCOL.md`).
//!
//! | file | what it does |
//! |---|---|
//! | `server.rs` | what is served, and to how many |
//! | `network.rs` | clients by TCP, which show a certificate (TLS) |
//! | `connection.rs` | greeting, requests side by side within bounds, cancellation |
//! | `descriptors.rs` | pipes and sockets that were opened elsewhere |
//! | `known.rs` | which nodes and handles a connection was given: it can name no others |
//! | `leases.rs` | directories whose names one connection has for itself for a while |
//! | `outgoing.rs` | replies and notices in their order |
//! | `hub.rs` | what connections tell each other about changes |
//! | `watch.rs` | what other programs change in a directory of this machine (inotify(7)) |
//!
//! A peer is not trusted: what it sends is bounded and checked, and it can do no more than the user whom requests are made as. Numbers of
//! nodes and handles are those of the tree, and mean something only on the connection that they were given on. What a connection was
//! given comes back when it ends: references, open files, and with these their locks.
//!
//! Design: `docs/design/0034-wire.md`.
#![forbid(unsafe_code)]

mod connection;
mod descriptors;
mod hub;
mod known;
mod leases;
mod network;
mod outgoing;
mod server;
mod watch;

pub use outrigger_core::wire::peer::{ALPN, PORT};
pub use outrigger_toolkit_tls::{Acceptor, Terms};
pub use server::{Options, Server};
