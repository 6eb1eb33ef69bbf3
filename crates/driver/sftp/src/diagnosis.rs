// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a request failed, when the server says no more than that it did: how it is looked at.

use crate::attr::kind;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use crate::session::Pending;
use outrigger_core::{Errno, Error, FileKind, Node, Result};
use outrigger_proto_sftp::{Extensions, Request, StatVfs, StatusCode};
use outrigger_toolkit_remote::{Attempt, Probe, diagnose, parent};

/// Set in [`StatVfs::flag`] when nothing can be changed.
const READ_ONLY: u64 = 1;

impl Inner {
    /// The error to report for a failed attempt.
    pub(crate) async fn why(&self, fault: Fault, attempt: Attempt<'_>) -> Error {
        if let (Attempt::SetAttr | Attempt::Resize { .. }, Some(StatusCode::PermissionDenied)) =
            (attempt, fault.code())
        {
            // Permission bits do not matter for these: it is not the owner who asks.
            return Errno::EPERM.into();
        }
        if !fault.is_vague() {
            return fault.into();
        }
        match diagnose(self, attempt, fault.code() == Some(StatusCode::Failure)).await {
            Some(errno) => errno.into(),
            None => fault.into(),
        }
    }

    /// What came of an attempt, with the error to report.
    pub(crate) async fn explained<T>(&self, outcome: Result<T, Fault>, attempt: Attempt<'_>) -> Result<T> {
        match outcome {
            Ok(done) => Ok(done),
            Err(fault) => Err(self.why(fault, attempt).await),
        }
    }

    /// The same of an attempt by an open file, which may have no path any more.
    pub(crate) async fn explained_by<T>(
        &self,
        outcome: Result<T, Fault>,
        node: Node,
        attempt: impl for<'a> FnOnce(&'a [u8]) -> Attempt<'a>,
    ) -> Result<T> {
        let path = outcome.as_ref().err().and_then(|_| self.inodes.path(node).ok());
        match path {
            Some(path) => self.explained(outcome, attempt(&path)).await,
            None => Ok(outcome?),
        }
    }

    /// What statvfs(3) says there.
    pub(crate) async fn space(&self, path: &[u8]) -> Result<StatVfs, Fault> {
        let request = Request::StatVfs { path };
        let body = self.link.ask(Again::Always, &request, Pending::extended).await?;
        Ok(StatVfs::decode(&body)?)
    }
}

impl Probe for Inner {
    async fn kind_at(&self, path: &[u8]) -> Option<FileKind> {
        let look = self.link.ask(Again::Always, &Request::LStat { path }, Pending::attrs).await;
        look.ok().map(|attrs| kind(&attrs))
    }

    async fn is_empty(&self, path: &[u8]) -> Option<bool> {
        let names = self.link.run(Again::Always, |session| async move {
            let handle = session.begin(&Request::OpenDir { path }).await.handle().await?;
            let names = session.begin(&Request::ReadDir { handle: &handle }).await.names().await;
            session.close(&handle);
            names
        });
        let names = names.await.ok()?;
        Some(names.iter().all(|named| matches!(&named.name[..], b"." | b"..")))
    }

    async fn lack(&self, path: &[u8]) -> Option<Errno> {
        if !self.extensions.contains(Extensions::STATVFS) {
            return None;
        }
        let space = self.space(path).await.ok()?;
        match space {
            _ if space.flag & READ_ONLY != 0 => Some(Errno::EROFS),
            _ if space.bavail == 0 || (space.files > 0 && space.favail == 0) => Some(Errno::ENOSPC),
            _ => None,
        }
    }

    async fn separate(&self, one: &[u8], other: &[u8]) -> Option<Errno> {
        let one = self.space(parent(one)).await.ok()?;
        let other = self.space(parent(other)).await.ok()?;
        (one.fsid != other.fsid).then_some(Errno::EXDEV)
    }
}
