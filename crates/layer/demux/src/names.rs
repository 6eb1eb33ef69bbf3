// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the names of the upper directories come from, and the trees they lead to.

use outrigger_core::{BoxFuture, Name, Result, Service};
use std::sync::Arc;

/// What is in the upper directories. Both methods are called on threads that must not wait for a network.
pub trait Names: Send + Sync {
    /// What `name` is in the directory at this path, which is empty for the root.
    fn find(&self, dir: &[Name], name: &Name) -> Option<Found>;

    /// The names that a listing of the directory shows, besides trees that are in use.
    fn list(&self, dir: &[Name]) -> Vec<Name>;
}

/// What a name leads to.
#[derive(Clone)]
pub enum Found {
    /// Another upper directory.
    Directory,
    /// A tree.
    Tree(Arc<dyn OpenTree>),
}

/// A tree that can be opened.
pub trait OpenTree: Send + Sync {
    /// How people name it.
    fn location(&self) -> &str;

    /// What tells it from another one: where a name leads to another tree later, the one it led to is exchanged once it is closed.
    fn identity(&self) -> &str {
        self.location()
    }

    /// Opens it.
    fn open(&self) -> BoxFuture<'static, Result<Hosted>>;
}

/// A tree that is open.
pub struct Hosted {
    /// The tree.
    pub service: Arc<dyn Service>,
    /// Whether what is in it is there when it is opened again: one that is not is never closed for idleness.
    pub is_lasting: bool,
    /// How it is closed.
    pub ending: Arc<dyn Ending>,
}

/// What can be done with an open tree besides asking it.
pub trait Ending: Send + Sync {
    /// What programs have written and the tree has not got, in words; nothing when there is nothing.
    fn unwritten(&self) -> Option<String>;

    /// The files of which something is not written, by their paths in the tree or in other words; not necessarily all.
    fn unwritten_files(&self) -> BoxFuture<'static, Vec<String>>;

    /// Drops what is cached.
    fn flush(&self);

    /// Writes what is unwritten, and closes the tree. It is asked nothing any more.
    ///
    /// # Errors
    /// What was lost, as a sentence.
    fn close(&self) -> BoxFuture<'static, Result<()>>;
}
