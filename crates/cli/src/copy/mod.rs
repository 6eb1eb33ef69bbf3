// SPDX-License-Identifier: MIT OR Apache-2.0
//! The copy engine: files and directories from any tree to any tree, for `cp` and for `mv` between trees.
//!
//! | module | what it does |
//! |---|---|
//! | [`options`] | what is copied, followed, kept and replaced |
//! | [`target`] | what the operands of cp, mv and ln mean: into a directory, or as a name |
//! | [`copier`] | walks the source, decides about each file, and makes everything but regular files |
//! | [`conflict`] | what to do about a file that has the name already |
//! | [`directory`] | a directory copies go into, finished when the last of them is done
//! | [`mod@file`] | one regular file: opening, content, attributes, removal when it stays incomplete |
//! | [`contents`] | the bytes of files that others make |
//! | [`content`] | the bytes: inside one tree, or read ahead on one thread and written on another; holes |
//! | [`attrs`] | owner, extended attributes, mode and times, in the order in which they survive |
//! | [`pool`] | files copied side by side |
//! | [`shared`] | what all threads of one command share |
//!
//! Inside a directory everything is addressed by the node of the directory and one name, never by a path:
//! exchanging a directory for a symbolic link while the copy runs has no effect. A symbolic link that already stands where
//! a file should be written is followed only where the user named it.

mod attrs;
mod conflict;
mod content;
mod contents;
mod copier;
mod directory;
mod file;
mod options;
mod pool;
mod shared;
pub mod target;

pub use attrs::is_acl;
pub use contents::{Contents, Side};
pub use copier::Copier;
pub use options::{Deref, Existing, Options, Preserve, Sparse};
pub use shared::STREAM;
