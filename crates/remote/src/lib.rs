// SPDX-License-Identifier: MIT OR Apache-2.0
//! What drivers of servers share.
//!
//! | part | what it does |
//! |---|---|
//! | [`FileTree`] | the tree of a server that takes files as a whole: all but its protocol, which a [`FileServer`] is |
//! | [`InodeTable`] | nodes by path, with inode numbers that are the same in every mount |
//! | [`OpenFiles`], [`Slots`] | open files, noted for the process that takes over |
//! | [`in_order`] | listings that another process can go on with |
//! | [`HiddenNames`], [`unique_name`] | silly rename: removed files that are open |
//! | [`diagnose`], [`errno_of`] | which error a vague refusal means |
//! | [`relative_target`], [`contained`] | symbolic links that must not lead out of the tree |
//! | [`Login`], [`LoginNotes`], [`parse_netrc`] | who logs in: LOCATION, `~/.netrc`, terminal |
//! | [`connect_tcp`], [`Tls`], [`within`] | connections, each step with a deadline |
//! | [`Pool`] | a bounded number of connections |
//! | [`REPEATS`], [`Setback`] | when a request is made again, and when a server is tried again |
//! | [`Staging`] | writes in any order that become one object at the server |
//! | [`NodeLocks`] | one request at a time for a file |
#![forbid(unsafe_code)]

mod diagnosis;
mod inode_table;
mod listing;
mod login;
mod login_notes;
mod netrc;
mod node_locks;
mod open_files;
mod pool;
mod reconnect;
mod silly_rename;
mod slots;
mod staging;
mod symlink;
mod transport;
mod tree;

pub use diagnosis::{Attempt, Probe, diagnose, errno_of, is_below, parent};
pub use inode_table::{InodeTable, PINNED_MAX, PinNotes, hash, join};
pub use listing::in_order;
pub use login::{Login, Secret};
pub use login_notes::LoginNotes;
pub use netrc::{NetrcEntry, find_in_netrc, parse_netrc};
pub use node_locks::NodeLocks;
pub use open_files::{Closed, OpenFiles};
pub use pool::{Lease, Pool};
pub use reconnect::{AFTER_FAILURE, REPEATS, Setback};
pub use silly_rename::{HiddenNames, Hiding, SILLY_PREFIX, unique_name};
pub use slots::Slots;
pub use staging::{Staged, StagedState, Staging};
pub use symlink::{contained, relative_target};
pub use transport::{Stream, Tls, connect_tcp, within};
pub use tree::{FileServer, FileTree, Found, Readings, Version};
