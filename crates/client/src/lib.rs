// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any tree by paths, files and directories, with plain blocking calls.
//!
//! This is what ukfs was for rump file systems: the way into a tree for programs that no kernel asks on behalf of
//! others — the command line, language bindings, tests.
//!
//! * [`Client`] asks a service; [`Client::walk`] resolves a path, following symbolic links inside the tree.
//! * [`Inode`] is a file the client holds a reference to; dropping it returns the reference.
//! * [`File`] is an open file; [`File::close`] reports what delayed writes have to say.
//!
//! Every call ends when the client's [`Cancel`](outrigger_core::Cancel) is raised (`EINTR`) or its timeout passes
//! (`ETIMEDOUT`). A change that has started is waited for, but not for ever: `ETIMEDOUT` after [`Settings::grace`].
#![forbid(unsafe_code)]

mod asking;
mod client;
mod dir;
mod file;
mod inode;
mod wait;
mod walk;

pub use asking::Asking;
pub use client::{Client, Settings, TreeId};
pub use dir::{Entries, Unreadable};
pub use file::{File, Reader, Writer};
pub use inode::Inode;
pub use wait::block_on;
pub use walk::Follow;
