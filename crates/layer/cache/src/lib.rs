// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `cache`: keeps answers for a TTL, so that a tree that is far away is asked once.
//!
//! It is made for drivers whose tree others change too, at the other end of a slow line. It knows no protocol: what it does is
//! the same for all of them.
//!
//! # What it remembers
//! * **Attributes and names**: those of files that exist and that there is no file of a name. A listing that was received as a
//!   whole tells what every name leads to, what does not exist, and the attributes of every file, without a request for any of
//!   them (where the tree below has [`ReadDirPlus`](outrigger_core::ops::ReadDirPlus)). Where names of one directory are asked
//!   for one after the other, the whole of it is.
//! * **Names of extended attributes**, where a program asks for those of one file after the other (see `xattrs`).
//! * **Targets** of symbolic links, as long as their attributes are fresh.
//! * **Content** of files that are opened, in memory, as long as size and times of the file stay the same. A reader that goes
//!   from the front to the back is read ahead of, with a window that grows until it need not wait. Where small files of a
//!   directory are opened one after the other, the next ones are read ahead, and where a program walks through the tree, directories
//!   are listed ahead (see `walks`). A file of which all content is known is opened
//!   without asking below; that is done when something else is read of it.
//! * With [`Metadata`], **names, attributes and targets on disk** as well, which are there when the tree is mounted again (see `saved`).
//! * With a [`Disk`], **content on disk** as well, which is there when the tree is mounted again: blocks of 128 KiB that were
//!   read in whole, of files whose size and times are still the same. Reading never waits for them to be written.
//!
//! # How long
//! [`Ttls`] says. With `cache=SECONDS`, a tenth of the time since a file or directory was changed, between a fifth of
//! SECONDS and SECONDS; that is also the longest time for which a change by another client is not seen. Doors get what
//! is left of it as their TTL, so that their caches expire at the same moment. A directory that has the same times of change as
//! when it was listed is not listed anew.
//!
//! What is known is corrected at once by a change that passes through, to exactly what it changes; by a notice from below;
//! and all of it is dropped by [`Control::flush`].
//!
//! # Memory
//! Files and names, and content, are bounded by [`Options`]; those unused for longest go first. A door may refer to many more
//! files, which the tree below then has to know: it is asked to let go of those of which nothing is known here any more
//! ([`Notice::Prune`]).
//!
//! # Writes
//! With `write=close`, `write=behind` or `write=SECONDS` a write is answered at once and made in the background: several side by side, small
//! ones that follow each other as one, those that overlap in their order. What depends on a write waits for it, and an error is
//! returned to all who have the file open for writing, by every close(2) up to the next fsync(2). Emptying a file (`O_TRUNC`) need not be
//! stored before something is written or the last descriptor is closed: close(2) does not wait for that alone. With the last two, close(2) asks
//! nothing of the tree below, unless a lock was taken on the file, which has to end: a server of whole files gets the file, and a program
//! a flush, when the file is closed there. What fails then is in [`Control::lost`], and syncfs(2) fails once; [`Control::end`] waits for it.
//! With `write=SECONDS` closing the file there waits up to so long, so that a file is stored once that is written several times (see `closing`).
//!
//! The same goes for permissions and times of a file that is open for writing and belongs to the user as whom files are made
//! here: that will not be refused. Its attributes are predicted meanwhile, and until it is closed. Where the tree below keeps
//! the order of what is asked by one handle ([`Abilities::in_order`]), what is set sets out right behind what was written.
//!
//! With these two, new files are created asynchronously as well, where a negative entry is cached, and the tree below predicts what
//! a new file will be like ([`Abilities::async_create`]); see `make`.
//!
//! # What it cannot do
//! * All users share the cache: the door checks permissions, or the tree below has one user.
//! * The time of the last access lags behind when reading changes it.
//! * A tree whose clock is more than five seconds behind that of this machine may be changed by others, and look the same.
//! * What is not written yet is lost with the process, unless that has a [`Keep`]; losses are listed only while it lives ([`Control::lost`]).
//! * It takes handles whose 16 highest bits are all set for its own.
#![forbid(unsafe_code)]

mod async_create;
mod change;
mod clock;
mod closing;
mod contents;
mod delayed;
mod disk;
mod file;
mod files;
mod fill;
mod inner;
mod list;
mod log;
mod lookup;
mod losses;
mod lru;
mod moment;
mod names;
mod notices;
mod open;
mod options;
mod pool;
mod predicted;
mod prune;
mod read;
mod readahead;
mod record;
mod saved;
mod set;
mod siblings;
mod table;
mod walk_ahead;
mod writeback;
mod xattrs;

pub use disk::{Block, Disk, DiskUsage};
pub use losses::Lost;
pub use options::{Different, KEEPS_METADATA, OPTIONS, Options, Policy, Ttls, Writes};
pub use saved::{Known, Learnt, Metadata, MetadataUsage, SavedDir, SavedEntry, SavedTree};

use closing::kept_closes;
use inner::Inner;
use log::Log;
use notices::NoticeForwarder;
use open::kept_files;
use outrigger_core::registry::{LayerInfo, Made, Site};
use outrigger_core::reply::Ttl;
use outrigger_core::runtime::until;
use outrigger_core::{
    Abilities, Answer, Class, Cx, Errno, Keep, Layer, Node, Notice, Notify, OpCode, OpSet, Place, Reply,
    Request, Result, Runtime, Service, lock,
};
use std::sync::Arc;
use std::time::Duration;

/// `--layer cache=KEY=VALUE,...`, whose control is a [`Control`].
pub const LAYER: LayerInfo = LayerInfo {
    name: "cache",
    argument: "KEY=VALUE,...",
    does: "remembers names, attributes and content, and delays writes",
    options: &[&OPTIONS],
    make: |list, site| {
        let options = Options::parse(list)?;
        if options.disk > 0 || options.disk_metadata > 0 {
            return Err(Errno::EINVAL
                .because("disk_cache and disk_metadata are options of trees of hosts (-o disk_cache=SIZE)"));
        }
        Cache::at(&options, OnDisk::default(), site)
    },
};

/// Where a cache keeps things on disk.
#[derive(Clone, Default)]
pub struct OnDisk {
    /// Content, where that is wanted.
    pub content: Option<Disk>,
    /// Metadata, where that is wanted.
    pub metadata: Option<Metadata>,
}

/// The layer.
pub struct Cache(Arc<Inner>);

/// What can be done with a [`Cache`] while it stands in a stack. Clones belong to the same one.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

/// A moment among the writes that were answered: waiting for those before it does not wait for those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub u64);

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Files and directories.
    pub files: usize,
    /// Bytes that these, and the names in the directories, take.
    pub bytes: usize,
    /// Bytes of content.
    pub content: usize,
    /// Bytes of writes that were answered and have not been made yet.
    pub behind: usize,
    /// What is on disk, where content is kept there.
    pub disk: Option<DiskUsage>,
    /// What is on disk, where metadata are kept there.
    pub metadata: Option<MetadataUsage>,
}

impl Cache {
    /// A layer that knows nothing yet; ages and periods are measured by the clocks of `runtime`.
    pub fn new(options: &Options, runtime: Arc<dyn Runtime>) -> Self {
        Cache::with_disk(options, runtime, OnDisk::default())
    }

    /// The layer at a site, perhaps with something on disk.
    ///
    /// # Errors
    /// `EINVAL` for a second one that delays writes, where what was answered has to outlive the process, for one that is to have files
    /// stored later on a tree that does not store whole files, and for one that keeps metadata of a tree whose names cannot be recalled;
    /// and as [`Cache::with_keep`].
    pub fn at(options: &Options, disk: OnDisk, site: &Site<'_>) -> Result<Made> {
        if let Some(below) = site.below.map(|below| below.abilities())
            && options.closes_later()
            && !below.whole_files
        {
            let driver = below.driver;
            return Err(Errno::EINVAL.because(format!(
                "write=SECONDS is for trees that store whole files, when they are closed (ftp, dav); {driver} stores each write by \
                 itself: write=behind does that in the background"
            )));
        }
        if let Some(below) = site.below.map(|below| below.abilities()).filter(|below| !below.recalls)
            && disk.metadata.is_some()
        {
            let driver = below.driver;
            return Err(Errno::EINVAL.because(format!(
                "disk_metadata is for trees whose files are known by their paths (SSH servers, ftp, http, dav); those of {driver} are not: \
                 leave it out"
            )));
        }
        let runtime = Arc::clone(site.runtime);
        let cache = match site.keep {
            // What survives is that of one.
            Some(_) if site.same_below > 0 && options.delays() => {
                return Err(Errno::EINVAL.because(
                    "a second cache of a mount cannot delay writes: what is not written yet would die with the process that \
                     serves",
                ));
            }
            Some(keep) => Cache::with_keep(options, runtime, disk, &**keep)?,
            None => Cache::with_disk(options, runtime, disk),
        };
        let control = cache.control();
        Ok(Made::with_control(cache, control))
    }

    /// As [`Cache::new`], perhaps with something on disk as well.
    pub fn with_disk(options: &Options, runtime: Arc<dyn Runtime>, disk: OnDisk) -> Self {
        Cache(Arc::new(Inner::new(options, runtime, disk, (None, None, None))))
    }

    /// As [`Cache::with_disk`], and writes that were answered outlive this process: another one that does the same makes them.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EUCLEAN` when there is something else in it.
    pub fn with_keep(
        options: &Options,
        runtime: Arc<dyn Runtime>,
        disk: OnDisk,
        keep: &dyn Keep,
    ) -> Result<Self> {
        let log = options.delays().then(|| Log::open(keep, options.write_memory)).transpose()?;
        let closes = options.closes_later().then(|| kept_closes(keep)).transpose()?;
        Ok(Cache(Arc::new(Inner::new(options, runtime, disk, (log, Some(kept_files(keep)?), closes)))))
    }

    /// To be kept when the layer is put into its stack.
    pub fn control(&self) -> Control {
        Control(Arc::clone(&self.0))
    }
}

impl Control {
    /// Drops all that is cached, here and in the door.
    pub fn flush(&self) {
        lock(&self.0.table).clear();
        self.0.disk.iter().for_each(Disk::clear);
        self.0.metadata.iter().for_each(Metadata::clear);
        if let Some(above) = self.0.above.get() {
            above.notify(Notice::InvalidateAll);
        }
    }

    /// The writes that were answered so far.
    pub fn mark(&self) -> Mark {
        Mark(self.0.writeback.last())
    }

    /// Waits until all writes have been made that were answered so far, or have failed.
    pub async fn written(&self) {
        self.0.written_to(self.mark().0).await;
    }

    /// Does all that was answered and is still to be done, for a tree that is asked no more: writes, and closing files below, where a
    /// server gets whole files. What fails of it is in [`Control::lost`].
    pub async fn end(&self) {
        self.written().await;
        self.0.close_all().await;
    }

    /// Waits until all writes up to `mark` have been made and stored, or have failed, for a while; answers whether that is so.
    pub async fn written_within(&self, mark: Mark, patience: Duration) -> bool {
        let stored = async {
            self.0.written_to(mark.0).await;
            self.0.closed_to(mark.0).await;
        };
        self.within(stored, patience).await
    }

    /// Waits for something for a while; answers whether it has come.
    async fn within(&self, event: impl Future<Output = ()>, patience: Duration) -> bool {
        let runtime = &self.0.runtime;
        until(&**runtime, runtime.monotonic() + patience, event).await.is_some()
    }

    /// Of how many files writes up to `mark` have not been made and stored yet, and how many bytes have not been made.
    pub fn unwritten(&self, mark: Mark) -> (usize, u64) {
        self.0.left(mark.0)
    }

    /// The files of which something that was answered would be lost if the process ended now.
    pub fn unstored(&self) -> Vec<Node> {
        self.0.unstored()
    }

    /// The files of which writes failed that had been answered, and why, as far as no program got the error.
    pub fn lost(&self) -> Vec<Lost> {
        self.0.writeback.losses.all()
    }

    /// The same for those of which a program got the error from close(2) only, which it may not have looked at.
    pub fn lost_at_close(&self) -> Vec<Lost> {
        self.0.writeback.losses.told_at_close()
    }

    /// Those of [`Self::lost`] that this has not returned before: a file is returned again only when more of it is lost.
    pub fn lost_since(&self) -> Vec<Lost> {
        self.0.writeback.losses.since()
    }

    /// How much is remembered.
    pub fn usage(&self) -> Usage {
        let (files, bytes) = lock(&self.0.table).size();
        let (content, behind) = (lock(&self.0.pool).size(), self.0.writeback.bytes());
        let (disk, metadata) = (&self.0.disk, &self.0.metadata);
        let (disk, metadata) = (disk.as_ref().map(Disk::usage), metadata.as_ref().map(Metadata::usage));
        Usage { files, bytes, content, behind, disk, metadata }
    }

    /// Waits until what was read and what is known is on disk, where it is kept there, for a while.
    pub async fn kept_within(&self, patience: Duration) {
        let kept = async {
            self.0.save().await;
            if let Some(disk) = &self.0.disk {
                disk.settled().await;
            }
        };
        self.within(kept, patience).await;
    }
}

impl Layer for Cache {
    fn place(&self) -> Place {
        Place { name: "cache", above: &["simulate"], below: &[] }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let inner = &self.0;
        inner.stand_on(next);
        inner.recall();
        inner.take_over();
        inner.save_later();
        match request {
            Request::Lookup(op) => inner.lookup(cx, op),
            Request::Walk(op) if inner.has(OpCode::Walk) => inner.walk(cx, op),
            Request::GetAttr(op) => inner.getattr(cx, op),
            Request::ReadLink(op) => inner.readlink(cx, op),
            Request::OpenDir(op) => inner.opendir(cx, op),
            Request::ReadDir(op) => inner.readdir(cx, op),
            Request::ReadDirPlus(op) => inner.readdirplus(cx, op),
            Request::ReleaseDir(op) => inner.releasedir(cx, op),
            // Nothing tells how many references a file needs that is to be closed.
            Request::Forget(op) if op.count == u64::MAX && inner.is_being_closed(op.node) => {
                Answer::later(async move {
                    inner.closed(Some(op.node)).await;
                    lock(&inner.table).forget(op.node, op.count);
                    inner.pass(cx, op.into()).await
                })
            }
            Request::Forget(mut op) => {
                op.count = lock(&inner.table).forget(op.node, op.count);
                if op.count == 0 { Answer::Ready(Reply::Done(())) } else { inner.pass(cx, op.into()) }
            }
            Request::Open(op) => inner.open(cx, op),
            Request::Create(op) => inner.create(cx, op),
            Request::TmpFile(op) => inner.tmpfile(cx, op),
            Request::Release(op) => inner.release(cx, op),
            Request::Flush(op) => inner.flush(cx, op),
            Request::FSync(op) => inner.fsync(cx, op),
            other if other.syncs().is_some() => inner.sync(cx, other),
            Request::Write(op) => inner.write(cx, op),
            Request::SetAttr(op) => inner.setattr(cx, op),
            Request::GetXattr(op) => inner.getxattr(cx, op),
            Request::ListXattr(op) => inner.listxattr(cx, op),
            Request::Read(op) if inner.has(OpCode::Open) => inner.read(cx, op),
            other if other.class() == Class::Change => inner.change(cx, other),
            other => inner.pass(cx, other),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let lists = below.ops.has(OpCode::ReadDir) || below.ops.has(OpCode::ReadDirPlus);
        let opens = below.ops.has(OpCode::Open);
        let mut ops = below.ops;
        if lists {
            ops = ops.union(OpSet::of(&[OpCode::OpenDir, OpCode::ReleaseDir]));
        }
        if opens {
            ops = ops.union(OpSet::of(&[OpCode::Flush, OpCode::Release]));
        }
        if self.0.delays {
            ops = ops.union(OpSet::of(&[OpCode::SyncFs]));
        }
        // Negative entries are cached here, where their TTL is known.
        let negative_ttl = Ttl::NEVER;
        Abilities { ops, stateless_dirs: !lists, stateless_files: !opens, negative_ttl, ..below }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        // Attached once; a second one gets nothing from here.
        let _ = self.0.above.set(Arc::clone(&above));
        Arc::new(NoticeForwarder { inner: Arc::clone(&self.0), above })
    }
}

#[cfg(test)]
mod tests;
