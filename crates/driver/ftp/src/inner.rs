// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: connections, nodes, and how files at the server are looked at.

use crate::read::Reading;
use crate::session::{Data, Dialer, Fault, Session, line};
use bytes::BytesMut;
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Attr, Errno, Error, FileKind, Handle, Name, Node, NodeTable, Result, Runtime, Time};
use outrigger_proto_ftp::{Features, Kind, LINE_MAX, Listed, Reply, list, mlsx};
use outrigger_toolkit_remote::{
    Attempt, InodeTable, Lease, NodeLocks, OpenFiles, Pool, Probe, REPEATS, SILLY_PREFIX, Setback,
    StagedState, Staging, diagnose, parent,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A tree of a server.
pub(crate) struct Inner {
    pub(crate) dialer: Dialer,
    pub(crate) pool: Arc<Pool<Session>>,
    pub(crate) setback: Setback,
    pub(crate) features: OnceLock<Features>,
    pub(crate) inodes: InodeTable,
    pub(crate) open: OpenFiles,
    pub(crate) staging: Staging,
    pub(crate) locks: NodeLocks,
    /// Transfers that go on when the next piece is asked for.
    pub(crate) reading: Mutex<HashMap<Node, Reading>>,
    /// Open directories, and whether they were read.
    pub(crate) dirs: Mutex<HashMap<Handle, (Dir, bool)>>,
    pub(crate) last_dir: AtomicU64,
    pub(crate) runtime: Arc<dyn Runtime>,
}

/// The names of an open directory by their cookies.
pub(crate) type Dir = Arc<Vec<(u64, (Name, Listed))>>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What names begin with under which files are uploaded.
pub(crate) const UPLOAD_PREFIX: &str = ".outrigger-upload-";

impl Inner {
    /// A connection for one request.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn lease(&self) -> Result<Lease<Session>> {
        let reclaim = || {
            let mut reading = lock(&self.reading);
            let found = reading.iter().find(|(_, reading)| reading.holds_connection()).map(|(&node, _)| node);
            found.is_some_and(|node| reading.remove(&node).is_some())
        };
        let dial = || async {
            if let Some(error) = self.setback.recent(self.runtime.monotonic()) {
                return Err(error);
            }
            let session = self.dialer.dial().await;
            session.inspect_err(|error| self.setback.note(error, self.runtime.monotonic()))
        };
        let session = self.pool.lease(self.dialer.options.timeout, Session::is_quiet, reclaim, dial).await?;
        let [feat, _, site] = &session.greeting;
        self.features.get_or_init(|| Features::of(feat).with_site(site));
        Ok(session)
    }

    /// What the server can do.
    pub(crate) async fn has(&self, feature: &str) -> Result<bool> {
        if self.features.get().is_none() {
            self.lease().await?.give_back();
        }
        Ok(self.features.get().is_some_and(|features| features.has(feature)))
    }

    /// Sends commands at once; the answers. They are sent again on another connection when one is lost, if that does no harm.
    pub(crate) async fn ask(&self, again: bool, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        let mut repeats = 0;
        loop {
            let mut session = self.lease().await?;
            match session.ask(&self.dialer, lines).await {
                Ok(replies) => {
                    session.give_back();
                    return Ok(replies);
                }
                Err(Fault::Lost(_)) if again && repeats < REPEATS => repeats += 1,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// As [`Inner::ask`] for changes: the last answer, if all are good.
    pub(crate) async fn change(&self, lines: &[Vec<u8>]) -> Result<(), Fault> {
        let replies = self.ask(false, lines).await?;
        replies.into_iter().find(|reply| !reply.is_good()).map_or(Ok(()), |reply| Err(Fault::Refused(reply)))
    }

    /// Opens a data connection with the last of `lines`, on another control connection when one is lost.
    pub(crate) async fn transfer(
        &self,
        lines: &[Vec<u8>],
    ) -> Result<(Lease<Session>, Data, Vec<Reply>), Fault> {
        let mut repeats = 0;
        loop {
            let mut session = self.lease().await?;
            match session.transfer(&self.dialer, lines).await {
                Ok((data, replies)) => return Ok((session, data, replies)),
                Err(Fault::Lost(_)) if repeats < REPEATS => repeats += 1,
                Err(fault) => {
                    if matches!(fault, Fault::Refused(_)) {
                        session.give_back();
                    }
                    return Err(fault);
                }
            }
        }
    }

    async fn has_mlst(&self) -> Result<bool> {
        Ok(self.dialer.options.mlsd && (self.has("MLST").await? || self.has("MLSD").await?))
    }

    /// The names in the directory at `path`.
    pub(crate) async fn list(&self, path: &[u8]) -> Result<Vec<Listed>, Fault> {
        if self.has_mlst().await? {
            return self.listing(&[line("MLSD", path)?], |line| mlsx(line, false)).await;
        }
        self.list_plainly(path).await
    }

    /// The same by LIST.
    pub(crate) async fn list_plainly(&self, path: &[u8]) -> Result<Vec<Listed>, Fault> {
        let now = self.runtime.wall().secs;
        // LIST takes its argument for options or patterns, so the directory is gone to. Names that begin with a dot are shown on
        // demand, where the server knows how.
        let list_in = async |how: &[u8]| {
            let lines = [line("CWD", path)?, line("LIST", how)?];
            self.listing(&lines, |line| list(line, now)).await
        };
        let lists_all = &self.dialer.lists_all;
        match list_in(b"-a").await {
            Ok(names) if !names.is_empty() || lists_all.load(Ordering::Relaxed) => {
                lists_all.store(true, Ordering::Relaxed);
                Ok(names)
            }
            Ok(_) | Err(Fault::Refused(_)) => list_in(b"").await,
            fault => fault,
        }
    }

    async fn listing(
        &self,
        lines: &[Vec<u8>],
        read: impl Fn(&[u8]) -> Option<Listed>,
    ) -> Result<Vec<Listed>, Fault> {
        let mut repeats = 0;
        loop {
            match self.listing_once(lines, &read).await {
                Err(Fault::Lost(_)) if repeats < REPEATS => repeats += 1,
                outcome => return outcome,
            }
        }
    }

    async fn listing_once(
        &self,
        lines: &[Vec<u8>],
        read: &impl Fn(&[u8]) -> Option<Listed>,
    ) -> Result<Vec<Listed>, Fault> {
        let (mut session, mut data, before) = self.transfer(lines).await?;
        if let Some(refused) = before.into_iter().find(|reply| !reply.is_good()) {
            return Err(Fault::Refused(refused));
        }
        let (mut names, mut buffer, mut size) = (Vec::new(), BytesMut::with_capacity(1 << 16), 0_usize);
        loop {
            let count = Session::receive(&self.dialer, &mut data, &mut buffer).await?;
            size += count;
            if size > self.dialer.options.max_listing {
                let why = format!("the listing is longer than {size} bytes; max_listing=BYTES permits more");
                return Err(Errno::EFBIG.because(why).into());
            }
            while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
                let line = buffer.split_to(end + 1);
                names.extend(read(line.trim_ascii_end()));
            }
            if buffer.len() > LINE_MAX {
                return Err(Errno::EPROTO.because("the server lists a line without an end").into());
            }
            if count == 0 {
                names.extend(read(&buffer));
                break;
            }
            buffer.reserve(1 << 14);
        }
        session.finish(&self.dialer, data).await?;
        session.give_back();
        Ok(names)
    }

    /// What is at a path.
    pub(crate) async fn stat(&self, path: &[u8]) -> Result<Listed, Fault> {
        let directory = Listed {
            name: bytes::Bytes::new(),
            kind: Kind::Directory,
            size: None,
            modified: None,
            mode: None,
            target: None,
        };
        if path == b"/" {
            return Ok(directory);
        }
        if self.has_mlst().await? {
            let reply = self.ask(true, &[line("MLST", path)?]).await?.remove(0);
            if !reply.is_good() {
                return Err(Fault::Refused(reply));
            }
            let found = reply.lines.iter().find_map(|line| mlsx(line.trim_ascii_start(), true));
            return found.ok_or_else(|| Errno::EPROTO.because("the answer to MLST makes no sense").into());
        }
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        match self.list(parent(path)).await {
            Ok(names) => {
                names.into_iter().find(|listed| &listed.name[..] == name).ok_or_else(|| Errno::ENOENT.into())
            }
            // The directory above the tree may be closed to us.
            Err(_) if path == self.inodes.base() => Ok(directory),
            Err(fault) => Err(fault),
        }
    }

    /// The error to report for a failed attempt.
    pub(crate) async fn why(&self, fault: Fault, attempt: Attempt<'_>) -> Error {
        let error = Error::from(fault.clone());
        match &fault {
            Fault::Refused(reply)
                if matches!(reply.code, 450 | 451 | 550 | 553) && error.errno == Errno::EIO =>
            {
                let errno = diagnose(self, attempt, true).await;
                let errno = errno.unwrap_or(if reply.code < 500 { Errno::EIO } else { Errno::EACCES });
                errno.because(error.reason.unwrap_or_default())
            }
            _ => error,
        }
    }

    /// What is at a path, or why nothing is.
    pub(crate) async fn look(&self, path: &[u8]) -> Result<Listed> {
        match self.stat(path).await {
            Err(Fault::Refused(reply)) if reply.code >= 500 => {
                let is_below_directory = match path == self.inodes.base() {
                    true => None,
                    false => self.kind_at(parent(path)).await,
                };
                match is_below_directory {
                    Some(FileKind::Directory | FileKind::Symlink) | None => Err(Errno::ENOENT.into()),
                    Some(_) => Err(Errno::ENOTDIR.into()),
                }
            }
            outcome => Ok(outcome?),
        }
    }

    /// The staged state of a node, as far as the server does not have it.
    pub(crate) fn staged(&self, node: Node) -> Option<StagedState> {
        let state = self.staging.get(node)?.state();
        (state.dirty || state.nameless).then_some(state)
    }

    /// The attributes of a node.
    pub(crate) fn attr(&self, node: Node, listed: Option<&Listed>) -> Result<Attr> {
        let staged = self.staged(node);
        let kind = listed.map_or(FileKind::Regular, |listed| kind(listed.kind));
        let usual = if kind == FileKind::Directory { 0o755 } else { 0o644 };
        let mode = listed.and_then(|listed| listed.mode).or(staged.map(|state| state.mode)).unwrap_or(usual);
        let modified = listed.and_then(|listed| listed.modified).unwrap_or_default();
        let time = staged.map_or(Time::new(modified, 0), |state| state.mtime);
        let target = listed.and_then(|listed| listed.target.as_ref()).map(|target| target.len() as u64);
        let size = target.or(listed.and_then(|listed| listed.size)).unwrap_or_default();
        let size = staged.map_or(size, |state| state.size);
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
            ..Attr::default()
        })
    }

    /// The entry of a name that leads to what is listed, or to a file that the server does not have yet. Counts a reference.
    pub(crate) fn entry(&self, dir: Node, name: &Name, listed: Option<&Listed>) -> Result<Entry> {
        let kind = listed.map_or(FileKind::Regular, |listed| kind(listed.kind));
        let (node, _) = self.inodes.found(dir, name, kind)?;
        let attr = self.attr(node, listed)?;
        let generation = NodeTable::generation(node);
        Ok(Entry { node, generation, attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND })
    }

    /// What `name` in `dir` leads to: nothing is listed of a file that the server does not have yet.
    pub(crate) async fn find(&self, dir: Node, name: &Name) -> Result<Option<Listed>> {
        let path = self.inodes.child(dir, name)?;
        line("MLST", &path)?;
        let known = self.inodes.table().get(dir, name);
        if known.and_then(|node| self.staged(node)).is_some_and(|state| state.is_new) {
            return Ok(None);
        }
        if self.is_ours(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        self.look(&path).await.map(Some)
    }

    /// Whether a name is one that only this client knows.
    pub(crate) fn is_ours(&self, dir: Node, name: &Name) -> bool {
        let removed = || self.inodes.table().get(dir, name).is_some_and(|node| self.open.is_removed(node));
        name.starts_with(SILLY_PREFIX.as_bytes()) && removed()
    }

    /// The attributes of a node as they are now.
    pub(crate) async fn attrs(&self, node: Node) -> Result<Attrs> {
        let staged = self.staged(node).is_some_and(|state| state.is_new || state.nameless);
        let listed = if staged { None } else { Some(self.look(&self.inodes.path(node)?).await?) };
        Ok(Attrs { attr: self.attr(node, listed.as_ref())?, ttl: Ttl::SECOND })
    }
}

pub(crate) fn kind(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Other => FileKind::Fifo,
    }
}

impl Probe for Inner {
    async fn kind_at(&self, path: &[u8]) -> Option<FileKind> {
        self.stat(path).await.ok().map(|listed| kind(listed.kind))
    }

    async fn is_empty(&self, path: &[u8]) -> Option<bool> {
        self.list(path).await.ok().map(|names| names.is_empty())
    }

    async fn lack(&self, _: &[u8]) -> Option<Errno> {
        None
    }

    async fn separate(&self, _: &[u8], _: &[u8]) -> Option<Errno> {
        None
    }
}
