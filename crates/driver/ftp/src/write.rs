// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing: content is staged on this machine, and sent as a whole when the file is closed or synchronised.

use crate::inner::{Inner, UPLOAD_PREFIX, lock};
use crate::session::{Fault, line};
use outrigger_core::attr::without_set_id;
use outrigger_core::{Errno, Error, FileKind, Node, Result, SetAttrs, SetTime, Time};
use outrigger_proto_ftp::stamp;
use outrigger_toolkit_remote::{Attempt, Closed, REPEATS, Staged, StagedState, parent, unique_name, within};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How much is read from a spool file at once, in bytes.
const PIECE: usize = 1 << 18;

impl Inner {
    /// The staged file of a node, in which places from `from` on can be written; the caller holds the lock of the node.
    pub(crate) async fn stage(&self, node: Node, from: u64) -> Result<Arc<Staged>> {
        if let Some(staged) = self.staging.get(node) {
            if staged.state().base <= from {
                return Ok(staged);
            }
            self.upload(node).await?;
            self.staging.end(node);
        }
        let path = self.inodes.path(node)?;
        let listed = self.look(&path).await?;
        let size =
            listed.size.ok_or_else(|| Errno::EIO.because("the server does not tell the size of the file"))?;
        // Only what is appended has to be here.
        let base = if from >= size { size } else { 0 };
        let staged = self.staging.begin(
            node,
            StagedState {
                base,
                size: base,
                dirty: false,
                is_new: false,
                nameless: false,
                mode: listed.mode.unwrap_or(0o644),
                mtime: self.runtime.wall(),
            },
        )?;
        let mut at = base;
        while at < size {
            let filled = async {
                let data = self.read_at(node, at, PIECE).await?;
                staged.write(at, &data)?;
                Ok(data.len() as u64)
            };
            match filled.await {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(error) => {
                    self.staging.end(node);
                    return Err(error);
                }
            }
        }
        Ok(staged)
    }

    /// Stages an empty file; `is_new` when the server has none of its name.
    pub(crate) fn stage_empty(&self, node: Node, mode: u32, is_new: bool) -> Result<()> {
        self.staging.end(node);
        let state = StagedState {
            base: 0,
            size: 0,
            dirty: true,
            is_new,
            nameless: false,
            mode,
            mtime: self.runtime.wall(),
        };
        self.staging.begin(node, state).map(drop)
    }

    /// The content of a staged file was changed.
    pub(crate) fn touch(&self, node: Node) {
        let now = self.runtime.wall();
        self.staging.update(node, |state| {
            (state.dirty, state.mtime, state.mode) = (true, now, without_set_id(state.mode));
        });
        lock(&self.reading).remove(&node);
    }

    /// Makes a file `size` bytes long; the caller holds the lock of the node.
    pub(crate) async fn resize(&self, node: Node, size: u64) -> Result<()> {
        match self.inodes.kind(node)? {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.because("only files have a size that can be set")),
        }
        let known = self.staging.get(node).map(|staged| staged.state());
        match (size, known) {
            // Nothing of what was there is needed.
            (0, Some(StagedState { mode, is_new, nameless: false, .. })) => {
                self.stage_empty(node, mode, is_new)?
            }
            (0, None) => {
                let listed = self.look(&self.inodes.path(node)?).await?;
                self.stage_empty(node, listed.mode.unwrap_or(0o644), false)?;
            }
            _ => self.stage(node, size).await?.resize(size)?,
        }
        self.touch(node);
        Ok(())
    }

    /// Sends what the server lacks of a file; the caller holds the lock of the node.
    pub(crate) async fn upload(&self, node: Node) -> Result<()> {
        let Some(staged) = self.staging.get(node) else { return Ok(()) };
        let state = staged.state();
        if !state.dirty || state.nameless {
            return Ok(());
        }
        let path = self.inodes.path(node)?;
        if state.base > 0 {
            self.append(&path, &staged).await?;
        } else {
            self.store(&path, &staged).await?;
        }
        lock(&self.reading).remove(&node);
        self.staging.update(node, |state| (state.dirty, state.is_new) = (false, false));
        Ok(())
    }

    /// Appends what was staged. After a lost connection, what had arrived of it is not sent again.
    async fn append(&self, path: &[u8], staged: &Staged) -> Result<()> {
        let state = staged.state();
        let mut from = state.base;
        for attempt in 0..=REPEATS {
            let there = self.look(path).await?.size.unwrap_or(0);
            if there < state.base || attempt > 0 && there > state.size {
                return Err(Errno::ESTALE.because("the file was changed by others while it was appended to"));
            }
            if attempt > 0 {
                from = there;
            }
            match self.send(&[line("APPE", path)?], staged, from).await {
                Err(Fault::Lost(_)) if attempt < REPEATS => {}
                Err(fault) => return Err(self.why(fault, Attempt::Open { path, writes: true }).await),
                Ok(()) => return Ok(()),
            }
        }
        Err(Errno::EIO.into())
    }

    /// Sends a whole file: under another name first, where the directory permits that.
    async fn store(&self, path: &[u8], staged: &Staged) -> Result<()> {
        let chmod = self.has("SITE CHMOD").await?;
        let mode = format!("CHMOD {:o} ", staged.state().mode & 0o7777).into_bytes();
        let permit = |path: &[u8]| line("SITE", &[&mode[..], path].concat());
        let mut last = Fault::Lost(Errno::EIO.into());
        for _ in 0..=REPEATS {
            if !self.dialer.options.temporary {
                break;
            }
            let name = unique_name(UPLOAD_PREFIX)?;
            let aside = outrigger_toolkit_remote::join(parent(path).to_vec(), &name)?;
            match self.send(&[line("STOR", &aside)?], staged, 0).await {
                Ok(()) => {
                    if chmod {
                        // Some servers refuse that for some files; the content matters more.
                        self.ask(true, &[permit(&aside)?]).await.map_err(Error::from)?;
                    }
                    if let Err(fault) = self.replace(&aside, path).await {
                        let error = self.why(fault, Attempt::Make { path }).await;
                        let _ = self.change(&[line("DELE", &aside)?]).await;
                        return Err(error);
                    }
                    return Ok(());
                }
                Err(Fault::Lost(error)) => last = Fault::Lost(error),
                Err(Fault::Refused(reply)) if matches!(reply.code, 550 | 553) => {
                    last = Fault::Refused(reply);
                    break;
                }
                Err(fault) => {
                    // A part of it may be there.
                    let _ = self.change(&[line("DELE", &aside)?]).await;
                    return Err(self.why(fault, Attempt::Write { path }).await);
                }
            }
        }
        if self.dialer.options.temporary && matches!(last, Fault::Lost(_)) {
            return Err(last.into());
        }
        match self.send(&[line("STOR", path)?], staged, 0).await {
            Err(fault) => Err(self.why(fault, Attempt::Open { path, writes: true }).await),
            Ok(()) if chmod => self.ask(true, &[permit(path)?]).await.map(drop).map_err(Into::into),
            Ok(()) => Ok(()),
        }
    }

    /// Sends a staged file from `from` on as the content of a transfer.
    async fn send(&self, lines: &[Vec<u8>], staged: &Staged, from: u64) -> Result<(), Fault> {
        let limit = self.dialer.options.timeout;
        let (mut session, mut data, _) = self.transfer(lines).await?;
        let mut at = from;
        let sent = loop {
            let piece = staged.read(at, PIECE)?;
            if piece.is_empty() {
                let ended = async {
                    data.shutdown().await?;
                    // Closed with something unread, as a ticket of TLS, the connection would be reset, and what was sent lost.
                    while data.read(&mut [0; 256]).await? > 0 {}
                    Ok::<_, std::io::Error>(())
                };
                break within(limit, "sending", ended).await;
            }
            if let Err(error) = within(limit, "sending", data.write_all(&piece)).await {
                break Err(error);
            }
            at += piece.len() as u64;
        };
        // A server that has no room says so, and ends the transfer.
        let finished = session.finish(&self.dialer, data).await;
        match (sent, finished) {
            (_, Err(fault @ Fault::Refused(_))) => {
                session.give_back();
                Err(fault)
            }
            (Err(error), _) => Err(Fault::Lost(error)),
            (Ok(()), Err(fault)) => Err(fault),
            (Ok(()), Ok(())) => {
                session.give_back();
                Ok(())
            }
        }
    }

    /// Closes a file; what it could not upload then is lost, after close(2) has said so.
    pub(crate) async fn close(&self, node: Node, handle: outrigger_core::Handle) -> Result<()> {
        let _lock = self.locks.lock(node).await;
        let closed = self.open.close(handle);
        if closed == Closed::InUse {
            return Ok(());
        }
        lock(&self.reading).remove(&node);
        let outcome = if closed == Closed::LastRemoved {
            self.remove_silly(node).await
        } else {
            self.upload(node).await
        };
        self.staging.end(node);
        outcome.inspect_err(|error| tracing::error!(%error, "a file could not be uploaded or removed"))
    }

    /// Changes attributes; the caller holds the lock of the node.
    pub(crate) async fn set_attrs(&self, node: Node, attrs: &SetAttrs, is_open: bool) -> Result<()> {
        let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if attrs.uid.is_some_and(|uid| uid != us.0) || attrs.gid.is_some_and(|gid| gid != us.1) {
            return Err(Errno::EPERM.because("FTP cannot change owners"));
        }
        if let Some(size) = attrs.size {
            self.resize(node, size).await?;
        }
        if attrs.mode.is_none() && attrs.mtime.is_none() && is_open
            || self.staged(node).is_some_and(|state| state.nameless)
        {
            return Ok(());
        }
        self.upload(node).await?;
        if attrs.size.is_some() && !is_open {
            self.staging.end(node);
        }
        let path = self.inodes.path(node)?;
        if let Some(mode) = attrs.mode {
            let mode = mode & 0o7777;
            let argument = [format!("CHMOD {mode:o} ").as_bytes(), &path].concat();
            let changed = self.ask(true, &[line("SITE", &argument)?]).await.map_err(Error::from)?;
            if !changed[0].is_good() {
                return Err(self.why_not_set(Fault::Refused(changed[0].clone()), &path).await);
            }
            self.staging.update(node, |state| state.mode = mode);
        }
        let time = match attrs.mtime {
            Some(SetTime::To(time)) => time,
            Some(SetTime::Now) => self.runtime.wall(),
            None => return Ok(()),
        };
        self.set_time(&path, time).await
    }

    /// Sets the time of change by whatever the server has for that.
    async fn set_time(&self, path: &[u8], time: Time) -> Result<()> {
        let stamp = stamp(time.secs);
        let with = |verb, before: &str, after: &str| {
            line(verb, &[before.as_bytes(), path, after.as_bytes()].concat())
        };
        let mut ways = Vec::new();
        if self.has("MFMT").await? {
            ways.push(with("MFMT", &format!("{stamp} "), "")?);
        } else {
            // vsftpd's way, and that of older servers.
            ways.push(with("MDTM", &format!("{stamp} "), "")?);
            ways.push(with("SITE", &format!("UTIME {stamp} "), "")?);
            ways.push(with("SITE", "UTIME ", &format!(" {stamp} {stamp} {stamp} UTC"))?);
        }
        let mut refused = None;
        for way in ways {
            let reply = self.ask(true, &[way]).await.map_err(Error::from)?.remove(0);
            if reply.is_good() {
                return Ok(());
            }
            refused = Some(reply);
        }
        match refused {
            Some(reply) => Err(self.why_not_set(Fault::Refused(reply), path).await),
            None => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    async fn why_not_set(&self, fault: Fault, path: &[u8]) -> Error {
        let error = Error::from(fault);
        match (error.errno, self.look(path).await) {
            (Errno::EIO, Ok(_)) => Errno::EPERM.because(error.reason.unwrap_or_default()),
            (Errno::EIO, Err(missing)) => missing,
            _ => error,
        }
    }
}
