// SPDX-License-Identifier: MIT OR Apache-2.0
//! Uploading: how a staged file gets to the server, whatever its protocol.
//!
//! A whole file goes to a temporary name in the same directory and is renamed over the target, so that a broken upload destroys
//! nothing. What was only appended is appended there too, where the server can; else the whole file is fetched and sent. The temporary
//! name is noted before it is used: a process that takes over uses it again, or removes what is there.

use super::inner::Inner;
use super::{Asked, FileServer, Put, Version};
use crate::diagnosis::{Attempt, parent};
use crate::fault::{Fault, Refusal, quoted};
use crate::inode_table::join;
use crate::reconnect::{Repeats, repeated};
use crate::silly_rename::{SILLY_PREFIX, unique_name};
use crate::staging::{Staged, StagedState};
use outrigger_core::{Errno, Error, FileKind, Node, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;

/// What names begin with under which files are uploaded.
const UPLOAD_PREFIX: &str = ".outrigger-upload-";

fn temporary_name(path: &[u8], number: u64) -> Result<Vec<u8>> {
    join(parent(path).to_vec(), format!("{UPLOAD_PREFIX}{number:016x}").as_bytes())
}

impl<S: FileServer> Inner<S> {
    /// Sends what the server lacks of a file; the caller holds the lock of the node.
    pub(super) async fn upload(&self, node: Node) -> Result<()> {
        loop {
            let path = self.inodes.path(node).ok();
            let outcome = self.upload_once(node).await;
            // A directory that it is in may have got another name meanwhile.
            if outcome.is_ok() || self.inodes.path(node).ok() == path {
                return outcome;
            }
        }
    }

    async fn upload_once(&self, node: Node) -> Result<()> {
        let Some(mut staged) = self.staging.get(node) else { return Ok(()) };
        let state = staged.state();
        if !state.dirty || state.nameless {
            return Ok(());
        }
        let path = self.inodes.path(node)?;
        self.server.keeps_name(&path)?;
        let mut refusal = None;
        if state.base > 0 {
            refusal = self.append(node, &path, &staged).await?;
            if refusal.is_none() {
                // Sent once more it would be there twice; what comes next is appended to what the server has then.
                self.staging.end(node);
                self.server.readings().take(node);
                return Ok(());
            }
            staged = self.complete(node, &path, &staged).await?;
        }
        if !S::STORES_IF_UNCHANGED {
            self.is_unchanged(&path, staged.state().seen).await?;
        }
        let version = self.store(node, &path, &staged).await?;
        if refusal.is_some_and(|refusal| refusal.is_for_good()) {
            self.no_appends.store(true, Ordering::Relaxed);
        }
        self.staging.update(node, |state| {
            (state.dirty, state.is_new, state.exclusive, state.under_way) = (false, false, false, 0);
            state.seen = version.filter(|version| version.size.is_some());
        });
        self.server.readings().take(node);
        self.now_ours(node);
        Ok(())
    }

    /// Uploads all that the server lacks, several files at once.
    pub(super) async fn upload_all(self: Arc<Self>) -> Result<()> {
        let lacking = self.staging.all().into_iter().filter(|(_, state)| state.dirty && !state.nameless);
        let mut uploads = JoinSet::new();
        for (node, _) in lacking {
            let inner = Arc::clone(&self);
            uploads.spawn(async move {
                let _lock = inner.locks.lock(node).await;
                inner.upload(node).await.map_err(|error| inner.of_file(node, &error))
            });
        }
        let mut failures = Vec::new();
        while let Some(uploaded) = uploads.join_next().await {
            let uploaded = uploaded.unwrap_or_else(|_| Err(Errno::EIO.because("an upload was given up")));
            failures.extend(uploaded.err());
        }
        let Some(first) = failures.first() else { return Ok(()) };
        let all: Vec<&str> = failures.iter().filter_map(|error| error.reason.as_deref()).collect();
        Err(first.errno.because(all.join("; ")))
    }

    /// An error with the path of its file.
    pub(super) fn of_file(&self, node: Node, error: &Error) -> Error {
        let path = quoted(&self.inodes.path(node).unwrap_or_default());
        let why = error.reason.as_deref().unwrap_or(error.errno.message());
        error.errno.because(format!("{path}: {why}"))
    }

    /// Whether the server's file still is the one that was fetched: changes of others are not undone.
    async fn is_unchanged(&self, path: &[u8], seen: Option<Version>) -> Result<()> {
        match seen {
            Some(seen) if self.version(path, None).await? != seen => Err(changed_by_others()),
            _ => Ok(()),
        }
    }

    /// The number in the temporary name, noted; the one of a former process, so that what it has left is replaced.
    fn begin(&self, node: Node, state: &StagedState) -> u64 {
        let number = if state.under_way == 0 { fastrand::u64(1..) } else { state.under_way };
        self.staging.update(node, |state| state.under_way = number);
        number
    }

    /// Appends what was staged. After a lost connection, what had arrived of it is not sent again. The refusal of a server that takes
    /// nothing of it, but may take the whole file: so is one that does not append at all, or not to a file that is closed to who
    /// has it open.
    async fn append(&self, node: Node, path: &[u8], staged: &Arc<Staged>) -> Result<Option<S::Refusal>> {
        let state = staged.state();
        let (mut begun, mut repeats) = (state.under_way != 0, Repeats::default());
        loop {
            let there = self.look(path).await?.size.unwrap_or(0);
            // What others have appended would be in the way of what was written at this place.
            let most = if begun { state.size } else { state.base };
            if there < state.base || there > most {
                return Err(Errno::ESTALE.because("the file was changed by others while it was appended to"));
            }
            self.begin(node, &state);
            match self.server.send(path, Put::Append, staged, there).await {
                Ok(()) => return Ok(None),
                Err(Fault::Lost(lost)) if repeats.another(&lost) => begun = true,
                // It may have taken a part before.
                Err(Fault::Refused(refusal))
                    if !lacks_room(&refusal) && self.look(path).await?.size == Some(state.base) =>
                {
                    return Ok(Some(refusal));
                }
                Err(fault) => return Err(self.why(fault, Attempt::Open { path, writes: true }).await),
            }
        }
    }

    /// Sends a whole file: under another name first, where the directory permits that. What the server has then, if it tells.
    async fn store(&self, node: Node, path: &[u8], staged: &Arc<Staged>) -> Result<Option<Version>> {
        let state = staged.state();
        if S::STORES_IF_UNCHANGED || !self.options.temporary {
            return self.store_directly(path, staged).await;
        }
        // One name for all attempts: each replaces what the one before has left.
        let aside = &temporary_name(path, self.begin(node, &state))?;
        let outcome = match repeated(|_| self.server.send(aside, Put::Whole, staged, 0)).await {
            Ok(()) => self.put_in_place(aside, path, &state).await,
            // Where no file can be made the old one may still be written to. A full disk would only cost its content.
            Err(Fault::Refused(refusal)) if forbids_names(&refusal) => {
                return self.store_directly(path, staged).await;
            }
            Err(fault) => Err(self.why(fault, Attempt::Write { path }).await),
        };
        if outcome.is_err() {
            // A part of it may be there, and the server may be full of it.
            let _ = self.server.remove(aside).await;
        }
        outcome
    }

    async fn put_in_place(&self, aside: &[u8], path: &[u8], state: &StagedState) -> Result<Option<Version>> {
        if state.exclusive {
            self.is_free(path).await?;
        }
        let mode = Some(state.mode & 0o7777);
        let fault = match self.replace(aside, path, mode).await {
            Ok(version) => return has_all(version, state),
            // No other file has this name: where it is gone, it was renamed, and what it has replaced is there.
            Err(Fault::Lost(_)) => match self.look(aside).await {
                Err(error) if error.errno == Errno::ENOENT => {
                    return self.version(path, None).await.map(Some);
                }
                Err(error) => return Err(error),
                Ok(_) => match self.replace(aside, path, mode).await {
                    Ok(version) => return Ok(version),
                    Err(fault) => fault,
                },
            },
            Err(fault) => fault,
        };
        Err(self.why(fault, Attempt::Make { path }).await)
    }

    async fn store_directly(&self, path: &[u8], staged: &Arc<Staged>) -> Result<Option<Version>> {
        let StagedState { exclusive, is_new, mode, .. } = staged.state();
        if exclusive && !S::STORES_IF_UNCHANGED {
            self.is_free(path).await?;
        }
        let mode = mode & 0o7777;
        // A file that is open for writing stays so when its permissions are taken away.
        let is_closed = mode & 0o200 == 0 && !is_new;
        if is_closed {
            let _ = self.server.set_mode(path, mode | 0o200).await;
        }
        let sent = repeated(|_| self.server.send(path, Put::Whole, staged, 0)).await;
        if sent.is_ok() || is_closed {
            // Some servers refuse permissions for some files; the content matters more.
            let _ = self.server.set_mode(path, mode).await;
        }
        self.explained(sent, Attempt::Open { path, writes: true }).await?;
        match self.version(path, None).await {
            Err(error) if error.errno == Errno::ENOENT => {
                Err(Errno::EIO
                    .because("the server says that it has stored the file, and has none of this name"))
            }
            // What the server does not tell is looked at before the file is changed again.
            version => has_all(version.ok(), &staged.state()),
        }
    }

    /// No file has this name: servers of whole files have no way to make one only if there is none, so this is asked last.
    async fn is_free(&self, path: &[u8]) -> Result<()> {
        match self.look(path).await {
            Ok(_) => Err(Errno::EEXIST.because("another client has made a file of this name meanwhile")),
            Err(error) if error.errno == Errno::ENOENT => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Renames, replacing a file: servers that do not replace have it moved aside first, so that it is there again when the rename
    /// fails.
    pub(super) async fn replace(
        &self,
        from: &[u8],
        to: &[u8],
        mode: Option<u32>,
    ) -> Asked<Option<Version>, S> {
        let server = &self.server;
        let refusal = match server.rename(from, to, mode).await {
            Err(Fault::Refused(refusal)) => refusal,
            outcome => return outcome,
        };
        let refused = || Fault::Refused(refusal.clone());
        let kinds = [server.stat(from).await?.kind, server.stat(to).await.map_err(|_| refused())?.kind];
        if kinds.contains(&FileKind::Directory) {
            return Err(refused());
        }
        let aside = join(parent(to).to_vec(), &unique_name(SILLY_PREFIX)?)?;
        server.rename(to, &aside, None).await.map_err(|_| refused())?;
        match server.rename(from, to, mode).await {
            Ok(version) => server.remove(&aside).await.map(|()| version),
            Err(fault) => {
                server.rename(&aside, to, None).await?;
                Err(fault)
            }
        }
    }

    /// Ends what a former process has begun and no open file is going to: uploads what was closed, and takes broken uploads and
    /// removed files away.
    pub(super) async fn settle(self: Arc<Self>) {
        self.silly_rename().settle().await;
        for (node, StagedState { base, dirty, nameless, under_way, .. }) in self.staging.all() {
            let _lock = self.locks.lock(node).await;
            let path = self.inodes.path(node);
            if let (Ok(path), 0, 1..) = (&path, base, under_way)
                && let Ok(aside) = temporary_name(path, under_way)
            {
                // It may not be there.
                let _ = self.server.remove(&aside).await;
            }
            if self.open.is_open(node) {
                continue;
            }
            match self.upload(node).await {
                Err(error) if dirty && !nameless => {
                    tracing::error!(error = %self.of_file(node, &error), "a file could not be uploaded");
                }
                _ => self.staging.end(node),
            }
        }
    }
}

/// What the server has of a file that was sent, if that is as much.
fn has_all(version: Option<Version>, state: &StagedState) -> Result<Option<Version>> {
    match version.and_then(|version| version.size).filter(|&size| size != state.size) {
        Some(size) => {
            let why = format!("the server has {size} bytes of it, {} were sent", state.size);
            Err(Errno::EIO.because(why))
        }
        None => Ok(version),
    }
}

/// The error for a file that is not what was opened any more.
pub fn changed_by_others() -> Error {
    Errno::ESTALE
        .because("the file was changed by others since it was opened; what was written is not stored")
}

/// Whether a server refuses because it has no room, for more or at all.
fn lacks_room(refusal: &impl Refusal) -> bool {
    matches!(refusal.error().errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EROFS)
}

/// Whether a refusal is about making a name, as far as it shows.
fn forbids_names(refusal: &impl Refusal) -> bool {
    let is_about_names = |errno| matches!(errno, Errno::EACCES | Errno::EPERM);
    is_about_names(refusal.error().errno) || refusal.usual().is_some_and(is_about_names)
}
