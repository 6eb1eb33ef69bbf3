// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: nodes, and how files look.

use super::read::Versions;
use super::{Asked, FileServer, Found, Version};
use crate::diagnosis::{Attempt, Probe, diagnose};
use crate::fault::{Fault, Refusal};
use crate::inode_table::InodeTable;
use crate::listing::Ordered;
use crate::node_locks::NodeLocks;
use crate::open_dirs::OpenDirs;
use crate::open_files::OpenFiles;
use crate::options::FileOptions;
use crate::silly_rename::{SillyNames, SillyRename};
use crate::staging::{StagedState, Staging};
use outrigger_core::ops::OpenFlags;
use outrigger_core::reply::{Attrs, Entry, OpenHow, Opened, Ttl};
use outrigger_core::{
    Attr, AttrFields, Cx, Errno, Error, FileKind, Name, Node, NodeTable, Notify, Result, Runtime, Time, lock,
};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

/// The largest size that files have on Linux: more is nothing that a program could count with.
const SIZE_MAX: u64 = i64::MAX as u64;

/// A tree of a server.
pub(super) struct Inner<S> {
    pub(super) server: S,
    pub(super) options: FileOptions,
    pub(super) inodes: InodeTable,
    pub(super) open: OpenFiles<OpenFlags>,
    pub(super) versions: Mutex<Versions>,
    /// Who keeps what was told of files.
    pub(super) notify: OnceLock<Arc<dyn Notify>>,
    /// Names of removed files that are open.
    pub(super) silly: SillyNames,
    pub(super) staging: Staging,
    pub(super) locks: NodeLocks,
    pub(super) dirs: OpenDirs<Dir>,
    /// The server has refused to append, and taken the whole file in place of that.
    pub(super) no_appends: AtomicBool,
    /// Whether the server begins transfers where it is told to, once that is known.
    pub(super) begins_anywhere: Mutex<Option<bool>>,
    pub(super) runtime: Arc<dyn Runtime>,
}

/// The names of an open directory.
pub(super) type Dir = Arc<Ordered<(Name, Found)>>;

/// The permissions that are shown where the server tells none.
pub(super) fn usual_mode(kind: FileKind) -> u32 {
    if kind == FileKind::Directory { 0o755 } else { 0o644 }
}

impl<S: FileServer> Inner<S> {
    /// The staged state of a node, as far as the server does not have it.
    pub(super) fn staged(&self, node: Node) -> Option<StagedState> {
        let state = self.staging.get(node)?.state();
        (state.dirty || state.nameless).then_some(state)
    }

    /// The attributes of a node.
    pub(super) fn attr(&self, node: Node, listed: Option<&Found>) -> Result<Attr> {
        let staged = self.staged(node);
        let kind = listed.map_or(FileKind::Regular, |listed| listed.kind);
        let mode = listed.and_then(|listed| listed.mode).or(staged.map(|state| state.mode));
        let mut unknown = AttrFields::all() - AttrFields::PERMISSIONS;
        unknown.set(AttrFields::PERMISSIONS, mode.is_none());
        let mode = mode.unwrap_or(usual_mode(kind));
        let modified = listed.and_then(|listed| listed.modified).unwrap_or_default();
        let time = staged.map_or(Time::new(modified, 0), |state| state.mtime);
        let target = listed.and_then(|listed| listed.target.as_ref()).map(|target| target.len() as u64);
        let size = target.or(listed.and_then(|listed| listed.size)).unwrap_or_default().min(SIZE_MAX);
        let size = staged.map_or(size, |state| state.size);
        if let Some(found) = listed.filter(|_| S::TELLS_VERSIONS && kind == FileKind::Regular) {
            lock(&self.versions).tell(node, found);
        }
        let is_removed = self.open.is_removed(node) || staged.is_some_and(|state| state.nameless);
        Ok(Attr {
            ino: self.inodes.ino(node)?,
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            mode: kind.bits() | mode,
            nlink: u32::from(!is_removed),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            blksize: 1 << 17,
            unknown,
            change: listed.filter(|_| staged.is_none()).and_then(|listed| listed.tag).unwrap_or_default(),
            ..Attr::default()
        })
    }

    /// The entry of a name that leads to what is listed, or to a file that the server does not have yet. Counts a reference.
    pub(super) fn entry(&self, dir: Node, name: &Name, listed: Option<&Found>) -> Result<Entry> {
        let kind = listed.map_or(FileKind::Regular, |listed| listed.kind);
        let (node, _) = self.inodes.found(dir, name, kind)?;
        let attr = self.attr(node, listed)?;
        let generation = NodeTable::generation(node);
        Ok(Entry { node, generation, attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND })
    }

    /// Opens a file for the one who asks by `cx`: closing one that was not written has nothing to tell.
    pub(super) fn opened(&self, cx: &Cx, node: Node, flags: OpenFlags) -> Result<Opened> {
        let is_by_layer = cx.slot == Cx::NO_SLOT;
        let handle = self.open.add(node, flags, (is_by_layer, Default::default()), |_, _| flags)?;
        let how = if flags.writes() { OpenHow::empty() } else { OpenHow::NO_FLUSH };
        Ok(Opened { handle, how, ..Opened::default() })
    }

    /// What `name` in `dir` leads to: nothing is listed of a file that the server does not have yet.
    pub(super) async fn find(&self, dir: Node, name: &Name) -> Result<Option<Found>> {
        let path = self.inodes.child(dir, name)?;
        self.server.check(&path)?;
        let known = self.inodes.table().get(dir, name);
        if known.and_then(|node| self.staged(node)).is_some_and(|state| state.is_new) {
            return Ok(None);
        }
        if self.silly_rename().has(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        self.look(&path).await.map(Some)
    }

    /// What becomes of open files that lose their names.
    pub(super) fn silly_rename(&self) -> SillyRename<'_, OpenFlags, (), &Self> {
        let (names, table, open) = (&self.silly, self.inodes.table(), &self.open);
        SillyRename { names, table, open, server: self }
    }

    /// The attributes of a node as they are now.
    pub(super) async fn attrs(&self, node: Node) -> Result<Attrs> {
        let staged = self.staged(node).is_some_and(|state| state.is_new || state.nameless);
        let listed = if staged { None } else { Some(self.look(&self.inodes.path(node)?).await?) };
        Ok(Attrs { attr: self.attr(node, listed.as_ref())?, ttl: Ttl::SECOND })
    }

    /// What is at a path, or why nothing is.
    pub(super) async fn look(&self, path: &[u8]) -> Result<Found> {
        let refusal = match self.server.stat(path).await {
            Err(Fault::Refused(refusal)) => refusal,
            outcome => return Ok(outcome?),
        };
        let error = refusal.error();
        if error.errno != Errno::ENOENT && refusal.usual().is_none_or(|errno| errno == Errno::EIO) {
            return Err(error);
        }
        Err(Errno::ENOENT.into())
    }

    /// Size and time of change of a file as exactly as the server tells them. `listed` is what it has told of it just before.
    pub(super) async fn version(&self, path: &[u8], listed: Option<&Found>) -> Result<Version> {
        match self.server.exact_version(path).await {
            Ok(Some(version)) => return Ok(version),
            Ok(None) | Err(Fault::Refused(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
        match listed {
            Some(listed) => Ok(Version::of(listed)),
            None => self.look(path).await.map(|found| Version::of(&found)),
        }
    }

    /// What came of an attempt, with the error to report.
    pub(super) async fn explained<T>(&self, outcome: Asked<T, S>, attempt: Attempt<'_>) -> Result<T> {
        match outcome {
            Ok(done) => Ok(done),
            Err(fault) => Err(self.why(fault, attempt).await),
        }
    }

    /// The error to report for a failed attempt.
    pub(super) async fn why(&self, fault: Fault<S::Refusal>, attempt: Attempt<'_>) -> Error {
        let usual = match &fault {
            Fault::Refused(refusal) => refusal.usual(),
            _ => None,
        };
        let error = Error::from(fault);
        let Some(usual) = usual else { return error };
        diagnose(self, attempt, true).await.unwrap_or(usual).because(error.reason.unwrap_or_default())
    }
}

impl<S: FileServer> Probe for Inner<S> {
    async fn kind_at(&self, path: &[u8]) -> Option<FileKind> {
        self.server.stat(path).await.ok().map(|found| found.kind)
    }

    async fn is_empty(&self, path: &[u8]) -> Option<bool> {
        self.server.list(path).await.ok().map(|listing| listing.names.is_empty() && listing.odd.is_none())
    }

    async fn lack(&self, _: &[u8]) -> Option<Errno> {
        None
    }

    async fn separate(&self, _: &[u8], _: &[u8]) -> Option<Errno> {
        None
    }
}
