// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of the host as a tree, never left.
#![deny(unsafe_code)]

mod attr;
mod caller;
mod dir;
mod fd_cache;
mod file;
mod handle;
mod handles;
mod ops;
mod options;
mod packing;
mod paths;
mod regular;
mod setattr;
mod tree;
mod xattr;

pub use options::LocalOptions;

use crate::caller::Callers;
use crate::dir::OpenDir;
use crate::file::OpenFile;
use crate::handles::Handles;
use crate::tree::Tree;
use outrigger_core::Result;
use outrigger_core::node_table::Region;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of the host, served as a tree.
#[derive(Debug)]
pub struct Local {
    path: PathBuf,
    options: LocalOptions,
    tree: Tree,
    callers: Callers,
    files: Handles<OpenFile>,
    dirs: Handles<OpenDir>,
}

impl Local {
    /// Serves the directory at `path`.
    ///
    /// Sets the process's umask to 0, because requests carry the final mode of what they create.
    ///
    /// # Errors
    /// Why `path` cannot be opened as a directory.
    pub fn open(path: impl AsRef<Path>, options: LocalOptions) -> Result<Self> {
        Local::open_with(path.as_ref(), options, None)
    }

    /// As [`Local::open`], with `state` to remember the nodes that are known by path: a new region, or the one that
    /// the process that served the same directory before left behind.
    ///
    /// # Errors
    /// As [`Local::open`]; those of [`NodeTable::attach`](outrigger_core::NodeTable::attach).
    pub fn open_with_state(
        path: impl AsRef<Path>,
        options: LocalOptions,
        state: Arc<dyn Region>,
    ) -> Result<Self> {
        Local::open_with(path.as_ref(), options, Some(state))
    }

    fn open_with(path: &Path, options: LocalOptions, state: Option<Arc<dyn Region>>) -> Result<Self> {
        let tree = Tree::open(path, &options, state)?;
        rustix::process::umask(rustix::fs::Mode::empty());
        Ok(Local {
            path: path.to_path_buf(),
            options,
            tree,
            callers: Callers::new(),
            files: Handles::new(),
            dirs: Handles::new(),
        })
    }
}
