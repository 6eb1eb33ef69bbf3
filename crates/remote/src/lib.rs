// SPDX-License-Identifier: MIT OR Apache-2.0
//! What drivers of servers share.
//!
//! | part | what it does |
//! |---|---|
//! | [`FileTree`] | the tree of a server that takes files as a whole: all but its protocol, which a [`FileServer`] is |
//! | [`InodeTable`] | nodes by path, with inode numbers that are the same in every mount |
//! | [`HandleTable`] | nodes by the handles of a server that has lasting ones |
//! | [`Uncommitted`], [`StableStore`] | content that the server has not put on stable storage, to be written once more if need be |
//! | [`known`] | by what an open file is known again after its connection was lost |
//! | [`OpenFiles`], [`Notes`] | open files and other records, noted for the process that takes over |
//! | [`OpenDirs`], [`Ordered`], [`name_only`] | open directories, and listings that another process can go on with |
//! | [`SillyRename`], [`SillyNames`], [`HiddenNames`], [`unique_name`] | silly rename: removed files that are open |
//! | [`diagnose`], [`errno_of`], [`errno_at_end`] | which error a vague refusal means |
//! | [`Login`], [`Start`], [`parse_netrc`] | who logs in: LOCATION, `~/.netrc`, terminal |
//! | [`connect_tcp`], [`Tls`], [`within`], [`send_staged`], [`receive_lines`], [`send_message`], [`receive_message`] | connections, each step with a deadline |
//! | [`SshCommand`], [`SshProcess`], [`Carrier`], [`for_ssh`] | connections by ssh(1), and its options |
//! | [`Parts`] | a file that is received part by part |
//! | [`Pool`] | a bounded number of connections |
//! | [`repeated`], [`Outage`] | when a request is made again, and when a server is tried again |
//! | [`Ways`] | which of several ways to do a thing a server has |
//! | [`Fault`], [`Refusal`], [`quoted`] | why a request failed: refused, or the connection was lost |
//! | [`Authority`], [`FileOptions`] | how users name a server, and what they can choose |
//! | [`Staging`] | writes in any order that become one object at the server |
//! | [`NodeLocks`] | one request at a time for a file |
//! | [`pieces`] | a range in pieces, each of which fits in one request |
//! | [`RpcClient`], [`auth_sys`] | remote procedure calls to the programs of a server, and who makes them |
//! | [`connect_reserved`], [`groups_of`] | by what servers tell whom they trust |
#![forbid(unsafe_code)]

mod authority;
mod diagnosis;
mod fault;
mod handle_table;
mod inode_table;
pub mod known;
mod listing;
mod login;
mod login_notes;
mod netrc;
mod node_locks;
mod notes;
mod open_dirs;
mod open_files;
mod options;
mod parts;
mod pieces;
mod pool;
mod reconnect;
mod reserved;
mod rpc;
mod silly_rename;
mod ssh;
mod ssh_options;
mod staging;
mod transport;
mod tree;
mod uncommitted;
mod ways;

pub use authority::Authority;
pub use diagnosis::{Attempt, Probe, diagnose, errno_at_end, errno_of, is_below, parent};
pub use fault::{Fault, Refusal, quoted};
pub use handle_table::{HandleTable, KnownFile};
pub use inode_table::{InodeTable, hash, join};
pub use listing::{DIRENT, DIRENT_PLUS, Named, Ordered, name_only};
pub use login::{Login, Secret};
pub use login_notes::{LoginNotes, Start};
pub use netrc::{NetrcEntry, find_in_netrc, parse_netrc};
pub use node_locks::NodeLocks;
pub use notes::Notes;
pub use open_dirs::OpenDirs;
pub use open_files::{Closed, OpenFiles, OpenNotes, OwnWords, WasOpen};
pub use options::{FILE_OPTIONS, FileOptions, file_option, unknown_file_option};
pub use outrigger_toolkit_tls::keep_alive;
pub use parts::Parts;
pub use pieces::pieces;
pub use pool::{Lease, Pool};
pub use reconnect::{Outage, REPEATS, repeated};
pub use reserved::{connect_reserved, groups_of};
pub use rpc::{Called, OnConnect, RpcClient, RpcPolicy, RpcProgram, auth_sys, own_credentials};
pub use silly_rename::{
    HiddenNames, Hiding, SILLY_PREFIX, SillyNames, SillyRename, SillyServer, unique_name,
};
pub use ssh::{Carrier, SshCommand, SshProcess};
pub use ssh_options::{command_words, for_ssh, is_dangerous_to_ssh, is_of_ssh, lasting_file, options_of_ssh};
pub use staging::{Staged, StagedState, Staging};
pub use transport::{
    Stream, Tls, connect_tcp, is_quiet, receive_lines, receive_message, send_message, send_staged, within,
};
pub use tree::{
    Asked, Begun, FileServer, FileTree, Found, Listing, Put, Readings, Version, changed_by_others,
    find_by_listing, receive_listing,
};
pub use uncommitted::{Piece, StableStore, Uncommitted, UncommittedFile};
pub use ways::Ways;
