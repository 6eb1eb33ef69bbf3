// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing: content is staged on this machine, and sent as a whole when the file is closed or synchronised.

use super::inner::{Inner, usual_mode};
use super::read::OUR_VERSION;
use super::{FileServer, Version};
use crate::fault::Fault;
use crate::open_files::Closed;
use crate::staging::{Staged, StagedState};
use outrigger_core::attr::without_set_id;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, FileKind, Handle, Node, Result, SetAttrs, SetTime, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much of a file is fetched at once, in bytes.
const PIECE: usize = 1 << 18;

/// A file that is staged empty, as [`StagedState`] has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Emptied {
    pub(super) is_new: bool,
    pub(super) exclusive: bool,
    pub(super) seen: Option<Version>,
}

impl<S: FileServer> Inner<S> {
    /// The staged file of a node, in which places from `from` on can be written; the caller holds the lock of the node.
    pub(super) async fn stage(&self, node: Node, from: u64) -> Result<Arc<Staged>> {
        self.stage_for((node, None), from).await
    }

    /// The same, for who reads or writes by `handle`.
    pub(super) async fn stage_for(
        &self,
        (node, handle): (Node, Option<Handle>),
        from: u64,
    ) -> Result<Arc<Staged>> {
        let path = self.inodes.path(node);
        if let Some(staged) = self.staging.get(node) {
            if staged.state().base <= from {
                self.was_left_alone(node, &path, staged.state()).await?;
                return Ok(staged);
            }
            self.upload(node).await?;
            self.staging.end(node);
        }
        let path = path?;
        let listed = self.look(&path).await?;
        let size =
            listed.size.ok_or_else(|| Errno::EIO.because("the server does not tell the size of the file"))?;
        // Only what is appended has to be here.
        let base = if from >= size && !self.no_appends.load(Ordering::Relaxed) { size } else { 0 };
        let seen = if base > 0 { None } else { Some(self.version(&path, Some(&listed)).await?) };
        let staged = self.staging.spool(StagedState {
            base,
            size: base,
            dirty: false,
            is_new: false,
            exclusive: false,
            nameless: false,
            under_way: 0,
            mode: listed.mode.unwrap_or(0o644),
            mtime: self.runtime.wall(),
            seen: seen.map(|version| Version { size: Some(size), ..version }),
        })?;
        if base == 0 {
            self.fetch((node, handle), &staged, size).await?;
        }
        self.staging.put(node, staged)
    }

    /// Fetches the first `size` bytes of a file. A staged file that the next process finds has all of them: it is put then only.
    async fn fetch(&self, (node, handle): (Node, Option<Handle>), staged: &Staged, size: u64) -> Result<()> {
        // What does not fit need not be fetched.
        staged.resize(size)?;
        // What a reader has fetched ahead may be older than what the server has now.
        self.server.readings().take(node);
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at).map_or(PIECE, |rest| rest.min(PIECE));
            let data = self.read_at((node, handle), at, len).await?;
            if data.is_empty() {
                return Err(Errno::EIO.because("the server sends less of the file than it says there is"));
            }
            staged.write(at, &data)?;
            at += data.len() as u64;
        }
        let version = handle.and_then(|handle| self.read_version(handle));
        let staged = &mut lock(&self.versions).of_staged;
        _ = match version {
            Some(version) => staged.insert(node, version),
            None => staged.remove(&node),
        };
        Ok(())
    }

    /// Stages the whole of a file of which only what is appended is staged, for a server that does not append.
    pub(super) async fn complete(&self, node: Node, path: &[u8], tail: &Staged) -> Result<Arc<Staged>> {
        let state = tail.state();
        let version = self.version(path, None).await?;
        if version.size.is_some_and(|size| size != state.base) {
            return Err(Errno::ESTALE.because("the file was changed by others while it was appended to"));
        }
        let seen = Some(Version { size: Some(state.base), ..version });
        let whole = self.staging.spool(StagedState { base: 0, size: 0, seen, ..state })?;
        self.fetch((node, None), &whole, state.base).await?;
        let mut at = state.base;
        while at < state.size {
            let data = tail.read(at, PIECE)?;
            whole.write(at, &data)?;
            at += data.len() as u64;
        }
        self.staging.put(node, whole)
    }

    /// A file that is staged and was uploaded is going to be changed again: it is still what the server has. That is looked at where
    /// the server has not told what it has along with the upload.
    async fn was_left_alone(&self, node: Node, path: &Result<Vec<u8>>, state: StagedState) -> Result<()> {
        if state.dirty || state.nameless || state.seen.is_some() {
            return Ok(());
        }
        let version = self.version(&path.clone()?, None).await?;
        if version.size != Some(state.size) {
            return Err(Errno::ESTALE.because("the file was changed by others since it was stored"));
        }
        self.staging.update(node, |now| now.seen = Some(version));
        Ok(())
    }

    /// Stages an empty file that is new or `seen`; `exclusive` when the server must not have one of its name until then.
    pub(super) fn stage_empty(&self, node: Node, mode: u32, how: Emptied) -> Result<()> {
        self.staging.end(node);
        let Emptied { is_new, exclusive, seen } = how;
        let state = StagedState {
            base: 0,
            size: 0,
            dirty: true,
            is_new,
            exclusive,
            nameless: false,
            under_way: 0,
            mode,
            mtime: self.runtime.wall(),
            seen: seen.filter(|seen| seen.size.is_some()),
        };
        self.staging.begin(node, state).map(drop)
    }

    /// The server has what was staged of a file: who has read what that was made of goes on with it, and who has read another version does
    /// not.
    pub(super) fn now_ours(&self, node: Node) {
        if !S::TELLS_VERSIONS {
            return;
        }
        let mut versions = lock(&self.versions);
        versions.forget(node);
        let base = versions.of_staged.insert(node, OUR_VERSION);
        for handle in self.open.handles(node) {
            let read = versions.of_handles.get(&handle).copied();
            if base.is_none() || read == base {
                versions.of_handles.remove(&handle);
                if let Some(notes) = self.open.notes() {
                    notes.change(handle, |own| own[0] = 0);
                }
            }
        }
    }

    /// The content of a staged file was changed.
    pub(super) fn touch(&self, node: Node) {
        let now = self.runtime.wall();
        self.staging.update(node, |state| {
            (state.dirty, state.mtime, state.mode) = (true, now, without_set_id(state.mode));
        });
        self.server.readings().take(node);
    }

    /// Makes a file `size` bytes long; the caller holds the lock of the node.
    pub(super) async fn resize(&self, node: Node, size: u64) -> Result<()> {
        match self.inodes.kind(node)? {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.because("only files have a size that can be set")),
        }
        let known = self.staging.get(node).map(|staged| staged.state());
        match (size, known) {
            // Nothing of what was there is needed.
            (0, Some(StagedState { mode, is_new, exclusive, seen, nameless: false, .. })) => {
                self.stage_empty(node, mode, Emptied { is_new, exclusive, seen })?
            }
            (0, None) => {
                let path = self.inodes.path(node)?;
                let listed = self.look(&path).await?;
                // What others store until the new content is there must not be replaced.
                let seen = Some(self.version(&path, Some(&listed)).await?);
                self.stage_empty(node, listed.mode.unwrap_or(0o644), Emptied { seen, ..Emptied::default() })?;
            }
            _ => self.stage(node, size).await?.resize(size)?,
        }
        self.touch(node);
        Ok(())
    }

    /// Closes a file; what it could not upload then is lost, after close(2) has said so. What was written by the handle is stored now, since
    /// the error of one that only reads would go nowhere.
    pub(super) async fn close(self: &Arc<Self>, node: Node, handle: Handle) -> Result<()> {
        lock(&self.versions).of_handles.remove(&handle);
        if self.open.get(handle).is_ok_and(OpenFlags::writes) {
            let _lock = self.locks.lock(node).await;
            let Ok(Closed { last, was_removed, .. }) = self.open.close(handle) else { return Ok(()) };
            return match last {
                None if self.open.is_removed(node) => Ok(()),
                None => self.upload(node).await,
                Some(()) => self.closed(node, was_removed).await,
            };
        }
        let Ok(Closed { last: Some(()), was_removed, .. }) = self.open.close(handle) else { return Ok(()) };
        let inner = Arc::clone(self);
        let rest = async move {
            let _lock = inner.locks.lock(node).await;
            match inner.open.is_open(node) {
                // It was opened again meanwhile, and loses its silly name when that ends.
                true => {
                    if was_removed {
                        inner.open.mark_removed(node);
                    }
                    Ok(())
                }
                false => inner.closed(node, was_removed).await,
            }
        };
        // A file can be made without being opened for writing.
        if was_removed || self.staged(node).is_some() {
            return rest.await;
        }
        // A read that is not waited for any more may still wait for a server that hangs. What fails is in the log.
        self.runtime.spawn(Box::pin(async move { _ = rest.await }));
        Ok(())
    }

    /// Ends what is here of a file that is not open any more; the caller holds the lock of the node.
    async fn closed(&self, node: Node, was_removed: bool) -> Result<()> {
        self.server.readings().take(node);
        lock(&self.versions).of_staged.remove(&node);
        let outcome =
            if was_removed { self.silly_rename().remove(node).await } else { self.upload(node).await };
        self.staging.end(node);
        outcome.inspect_err(|error| {
            tracing::error!(error = %self.of_file(node, error), "a file could not be uploaded or removed");
        })
    }

    /// Changes attributes; the caller holds the lock of the node.
    pub(super) async fn set_attrs(&self, node: Node, attrs: &SetAttrs, is_open: bool) -> Result<()> {
        let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if attrs.uid.is_some_and(|uid| uid != us.0) || attrs.gid.is_some_and(|gid| gid != us.1) {
            return Err(Errno::EPERM.because("the server cannot change owners"));
        }
        if let Some(size) = attrs.size {
            self.resize(node, size).await?;
        }
        // The kernel empties a file that was opened so (O_TRUNC) by its node: that is stored with what is written next, or when it is
        // closed, so that the server does not lose the old content before it has the new one.
        let is_open = is_open || attrs.size == Some(0) && self.open.is_open_as(node, |flags| flags.writes());
        if attrs.mode.is_none() && attrs.mtime.is_none() && is_open
            || self.staged(node).is_some_and(|state| state.nameless)
        {
            return Ok(());
        }
        if let (Some(time), None, None, false) =
            (attrs.mtime, attrs.mode, attrs.size, self.server.sets_times())
        {
            // Nothing of the file has to be at the server for that.
            let why = "the server has no command that sets the time of a file";
            return self.without_time(node, time, Errno::EOPNOTSUPP.because(why));
        }
        self.upload(node).await?;
        if attrs.size.is_some() && !is_open {
            self.staging.end(node);
        }
        let path = self.inodes.path(node)?;
        if let Some(mode) = attrs.mode {
            let mode = mode & 0o7777;
            if let Err(fault) = self.server.set_mode(&path, mode).await {
                let error = self.why_not_set(fault, &path).await;
                // A server without permissions: those that are shown are as good as set.
                let passes = self.options.ignores_attrs || mode == usual_mode(self.inodes.kind(node)?);
                if error.errno != Errno::EOPNOTSUPP || !passes {
                    return Err(error);
                }
            }
            self.staging.update(node, |state| state.mode = mode);
        }
        let Some(time) = attrs.mtime else { return Ok(()) };
        let at = if let SetTime::To(time) = time { time } else { self.runtime.wall() };
        // What the server tells of it then may be rounded.
        self.staging.update(node, |state| state.seen = None);
        let Err(fault) = self.server.set_time(&path, at).await else { return Ok(()) };
        let error = self.why_not_set(fault, &path).await;
        self.without_time(node, time, error)
    }

    /// The outcome where a time was not set for this reason.
    fn without_time(&self, node: Node, time: SetTime, error: Error) -> Result<()> {
        let passes = match error.errno {
            // Copying a tree would fail at each of its directories, whose times say nothing of their content.
            Errno::EPERM | Errno::EOPNOTSUPP if self.inodes.kind(node)? == FileKind::Directory => true,
            // The present time is that of the next upload, and touch(1) has made a file.
            Errno::EOPNOTSUPP => time == SetTime::Now || self.options.ignores_attrs,
            _ => false,
        };
        if !passes {
            return Err(error);
        }
        tracing::debug!(%error, "a time was not set");
        Ok(())
    }

    async fn why_not_set(&self, fault: Fault<S::Refusal>, path: &[u8]) -> Error {
        let refused = matches!(fault, Fault::Refused(_));
        let error = Error::from(fault);
        match error.errno {
            Errno::EIO if refused => match self.look(path).await {
                Ok(_) => Errno::EPERM.because(error.reason.unwrap_or_default()),
                Err(missing) => missing,
            },
            _ => error,
        }
    }
}
