// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree of a server that has files by path and takes them as a whole: all of a driver but the server's own protocol.
//!
//! A [`FileTree`] has nodes, open files, listings with the cookies that another process goes on with, reads that follow one
//! transfer, and staged writes; a [`FileServer`] answers what it asks by path.

mod inner;
mod names;
mod ops;
mod read;
mod write;

pub use read::{Readings, Version};

use crate::inode_table::{InodeTable, PINNED_MAX, PinNotes, join};
use crate::open_files::OpenFiles;
use crate::silly_rename::SILLY_PREFIX;
use crate::slots::Slots;
use crate::staging::{Staged, Staging};
use bytes::{Bytes, BytesMut};
use inner::Inner;
use outrigger_core::{FileKind, Keep, Node, NodeTable, Result, Runtime, Time};
use std::collections::VecDeque;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a server says about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name; of no use where a path was asked for.
    pub name: Bytes,
    /// What it leads to.
    pub kind: FileKind,
    /// The size in bytes, where the server says.
    pub size: Option<u64>,
    /// The time of change in seconds since 1970, where the server says.
    pub modified: Option<i64>,
    /// Permissions, where the server says.
    pub mode: Option<u32>,
    /// Where a symbolic link leads, if the server says so along with the rest.
    pub target: Option<Bytes>,
}

/// A server with files by path. Errors are those that programs are to get.
pub trait FileServer: Send + Sync + 'static {
    /// A file that is being received.
    type Transfer: Send + 'static;

    /// The name of the driver.
    fn driver(&self) -> &'static str;

    /// What is served, without a password.
    fn shown(&self) -> String;

    /// Whether symbolic links that lead out of the tree are refused.
    fn contains_symlinks(&self) -> bool;

    /// The transfers that go on when the next piece is asked for: a server that needs their connections ends some.
    fn readings(&self) -> &Readings<Self::Transfer>;

    /// Whether the server can be asked about such a path.
    ///
    /// # Errors
    /// `EINVAL` when it cannot.
    fn check(&self, path: &[u8]) -> Result<()>;

    /// What is at a path; `ENOENT` and `ENOTDIR` where nothing is.
    fn stat(&self, path: &[u8]) -> impl Future<Output = Result<Found>> + Send;

    /// The names in a directory, without the one itself and the one above.
    fn list(&self, path: &[u8]) -> impl Future<Output = Result<Vec<Found>>> + Send;

    /// Where a symbolic link leads.
    fn target(&self, path: &[u8]) -> impl Future<Output = Result<Bytes>> + Send;

    /// Begins to receive a file from `offset` on; with `before`, `ESTALE` unless it is that version. No transfer where it ends there.
    fn begin(
        &self,
        path: &[u8],
        offset: u64,
        before: Option<Version>,
    ) -> impl Future<Output = Result<(Option<Self::Transfer>, Version)>> + Send;

    /// Receives more, and takes the transfer when the file has ended; false when the connection was lost.
    fn receive(
        &self,
        transfer: &mut Option<Self::Transfer>,
        buffer: &mut BytesMut,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes a staged file that of a path, with its permissions.
    fn store(&self, path: &[u8], staged: &Staged) -> impl Future<Output = Result<()>> + Send;

    /// Appends a staged file from its base on.
    fn append(&self, path: &[u8], staged: &Staged) -> impl Future<Output = Result<()>> + Send;

    /// Renames, and replaces a file.
    fn rename(&self, from: &[u8], to: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Makes a directory.
    fn make_dir(&self, path: &[u8], mode: u32) -> impl Future<Output = Result<()>> + Send;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Removes a file.
    fn remove(&self, path: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Changes permissions.
    fn set_mode(&self, path: &[u8], mode: u32) -> impl Future<Output = Result<()>> + Send;

    /// Changes the time of change.
    fn set_time(&self, path: &[u8], time: Time) -> impl Future<Output = Result<()>> + Send;
}

/// Pinned nodes, noted: those of former processes in no order.
struct Pins {
    slots: Slots<1>,
    order: Mutex<VecDeque<usize>>,
}

impl Pins {
    fn order(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinNotes for Pins {
    fn pinned(&self) -> Vec<Node> {
        let all = self.slots.all();
        self.order().extend(all.iter().map(|(slot, _)| slot));
        all.into_iter().map(|(_, [node])| Node(node)).collect()
    }

    fn pin(&self, node: Node) {
        self.order().extend(self.slots.add([node.0]).ok());
    }

    fn unpin_oldest(&self) {
        self.order().pop_front().into_iter().for_each(|slot| self.slots.remove(slot));
    }
}

/// Room for the nodes known, in bytes; taken as it fills.
const TABLE: usize = 1 << 29;

/// A tree of a server.
pub struct FileTree<S>(Arc<Inner<S>>);

impl<S> Clone for FileTree<S> {
    fn clone(&self) -> Self {
        FileTree(Arc::clone(&self.0))
    }
}

impl<S: FileServer> FileTree<S> {
    /// The tree below `base`. What is written is staged in the directory `spool`, as many bytes at most. Tasks run on `runtime`. With
    /// `keep`, nodes, open files and what is staged outlive this process.
    ///
    /// # Errors
    /// `EUCLEAN` when `keep` has something else.
    pub fn open(
        server: S,
        base: Vec<u8>,
        (spool, limit): (PathBuf, u64),
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let table = match &keep {
            Some(keep) => NodeTable::attach(keep.region("remote-nodes", TABLE / 8)?)?,
            None => NodeTable::in_memory(TABLE)?,
        };
        let is_silly = |node| {
            let names = table.names(node).unwrap_or_default();
            names.iter().any(|(_, name)| name.starts_with(SILLY_PREFIX.as_bytes()))
        };
        let pins: Option<Arc<dyn PinNotes>> = match &keep {
            Some(keep) => {
                let slots = Slots::open(&**keep, "remote-pins", PINNED_MAX + 1)?;
                Some(Arc::new(Pins { slots, order: Mutex::default() }))
            }
            None => None,
        };
        let open = OpenFiles::open(keep.as_deref(), is_silly)?;
        Ok(FileTree(Arc::new(Inner {
            server,
            inodes: InodeTable::new(table, join(base, b"")?.into(), pins),
            open,
            staging: Staging::open(spool, limit, keep)?,
            locks: Default::default(),
            dirs: Default::default(),
            last_dir: Default::default(),
            runtime,
        })))
    }
}
