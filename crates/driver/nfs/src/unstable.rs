// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing, and COMMIT: content that the server has not put on stable storage is kept, and written again where it may be lost.
//!
//! That is also done on each new connection before anything else is asked, so that no read finds a file without what was written to it.
//! Where a former process has written and the server has restarted since, the next fsync(2) or close(2) fails.

use crate::inner::Inner;
use bytes::Bytes;
use outrigger_core::{BoxFuture, Credentials, Errno, Node, Result};
use outrigger_mux::Mux;
use outrigger_proto_nfs3::nfs::{CommitArgs, WriteArgs, procedure as nfs};
use outrigger_proto_nfs3::results::WriteOk;
use outrigger_proto_nfs3::types::{Content, FileHandle, Stable};
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{Piece, UncommittedFile, auth_sys};

/// What is kept of one file.
pub(crate) type Kept = UncommittedFile<Auth>;

/// Who writes: the credentials as they are, and as the server gets them.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) cred: Credentials,
    pub(crate) auth: Auth,
    /// What is written is to be on stable storage before it is acknowledged (`O_SYNC`).
    pub(crate) stable: bool,
}

impl Inner {
    /// Writes one piece to its end.
    pub(crate) async fn write_piece(
        &self,
        (node, file): (Node, FileHandle),
        kept: &Kept,
        writer: &Writer,
        (mut offset, mut data): (u64, Bytes),
    ) -> Result<()> {
        while !data.is_empty() {
            let stable =
                if writer.stable || self.unstable.is_full() { Stable::FileSync } else { Stable::Unstable };
            let written = self.write_once(None, &writer.auth, file, (offset, &data), stable).await?;
            let done = data.split_to(written.count as usize);
            if written.committed == Stable::Unstable {
                let (verifier, by) = (u64::from_be_bytes(written.verifier), writer.auth.clone());
                let piece = Piece { number: 0, offset, data: done.clone(), verifier, by };
                let user = u64::from(writer.cred.uid) << 32 | u64::from(writer.cred.gid);
                if !self.unstable.add(node, kept, user, piece) {
                    self.write_stably(None, &writer.auth, file, (offset, done)).await?;
                }
            }
            offset += u64::from(written.count);
        }
        Ok(())
    }

    async fn write_once(
        &self,
        via: Option<&Mux>,
        auth: &Auth,
        file: FileHandle,
        (offset, data): (u64, &Bytes),
        stable: Stable,
    ) -> Result<WriteOk> {
        let count = data.len() as u32;
        let content = Content::new(data.clone()).map_err(|error| Errno::EINVAL.because(error.to_string()))?;
        let args = WriteArgs { file, offset, count, stable, data: content };
        let written = self.ask_via::<nfs::Write>(via, auth, &args, count).await.0?;
        match written.count {
            0 => Err(Errno::EIO.because("the server has written nothing, and says no reason")),
            more if more > count => {
                Err(Errno::EIO.because("the server says to have written more than it got"))
            }
            _ if stable == Stable::FileSync && written.committed != Stable::FileSync => {
                Err(Errno::EIO.because("the server does not write stably when it is asked to"))
            }
            _ => Ok(written),
        }
    }

    async fn write_stably(
        &self,
        via: Option<&Mux>,
        auth: &Auth,
        file: FileHandle,
        (mut offset, mut data): (u64, Bytes),
    ) -> Result<()> {
        while !data.is_empty() {
            let written = self.write_once(via, auth, file, (offset, &data), Stable::FileSync).await?;
            offset += u64::from(written.count);
            data = data.split_off(written.count as usize);
        }
        Ok(())
    }

    /// Puts what was written to a file on stable storage.
    ///
    /// # Errors
    /// What the server says, in which case the content is kept; and that content is lost, once.
    pub(crate) async fn commit(&self, node: Node) -> Result<()> {
        let Some(kept) = self.unstable.get(node) else { return Ok(()) };
        let stored = self.store(node, &kept, false).await;
        let lost = kept.take_lost();
        drop(kept);
        self.unstable.tidy(node);
        stored.and(lost.map_or(Ok(()), Err))
    }

    /// Puts what is kept of a file on stable storage, after losses of the connection, too. `is_alone` says that no request writes to it
    /// meanwhile.
    ///
    /// # Errors
    /// What the server says, in which case the content is kept.
    pub(crate) async fn store(&self, node: Node, kept: &Kept, is_alone: bool) -> Result<()> {
        let mut losses = 0;
        while kept.first().is_some() {
            let mux = self.rpc.mux().await?;
            let stored = self.store_by(&mux, node, kept, is_alone).await;
            losses += 1;
            if stored.is_ok() || mux.ended().is_none() || self.rpc.gives_up(losses) {
                return stored;
            }
        }
        Ok(())
    }

    /// COMMIT, and once more what the server has lost. By one connection only: on the next one, what is kept is written again before
    /// anything else, and a call of here that was made again after that would bring older content.
    async fn store_by(&self, mux: &Mux, node: Node, kept: &Kept, is_alone: bool) -> Result<()> {
        let (Some(first), end) = (kept.first(), kept.end()) else { return Ok(()) };
        let life = match self.verifier(mux, node, &first.by).await {
            Err(error) if error.errno == Errno::ESTALE => {
                // There is no file any more that it could be written to. Nobody may wait for this answer.
                self.unstable.drop_before(node, kept, u64::MAX, None);
                kept.lose(error.clone());
                return Err(error);
            }
            life => life?,
        };
        if !self.unstable.drop_before(node, kept, end, Some(life)) {
            return Ok(());
        }
        tracing::warn!(?node, "the server has restarted: what it may have lost is written again");
        let _order = if is_alone { None } else { Some(kept.order.write().await) };
        // All that is kept, in its order: what came later lies over it.
        while let Some(piece) = kept.first() {
            let file = self.sent_handle(node)?;
            self.write_stably(Some(mux), &piece.by, file, (piece.offset, piece.data)).await?;
            self.unstable.drop_before(node, kept, piece.number + 1, None);
        }
        Ok(())
    }

    /// COMMIT of a file; the server's life.
    async fn verifier(&self, mux: &Mux, node: Node, auth: &Auth) -> Result<u64> {
        let args = CommitArgs { file: self.sent_handle(node)?, offset: 0, count: 0 };
        let committed = self.ask_via::<nfs::Commit>(Some(mux), auth, &args, 0).await.0?;
        Ok(u64::from_be_bytes(committed.verifier))
    }

    /// Does what has to be done on a new connection: the server may have lost what it has acknowledged.
    ///
    /// # Errors
    /// That the connection is lost.
    pub(crate) fn recover<'a>(&'a self, mux: &'a Mux) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for (node, kept) in self.unstable.all() {
                // What the server refuses now is told by the next fsync(2), which tries once more.
                if let Err(error) = self.store_by(mux, node, &kept, true).await {
                    tracing::warn!(?node, %error, "what was written could not be stored again yet");
                }
                ended(mux)?;
            }
            while let Some(left) = self.unstable.next_left() {
                let cred = Credentials::new((left.user >> 32) as u32, left.user as u32);
                let life = self.verifier(mux, left.node, &auth_sys(&cred, 0)).await;
                ended(mux)?;
                let outcome = if life == Ok(left.verifier) { Ok(()) } else { Err(Errno::EIO.because(LOST)) };
                self.unstable.found_out(&left, outcome);
            }
            Ok(())
        })
    }
}

const LOST: &str = "what a former process has written may be lost: the server has restarted, or does not say";

/// That a connection was lost, if it was.
fn ended(mux: &Mux) -> Result<()> {
    mux.ended().map_or(Ok(()), |why| Err(Errno::EIO.because(why)))
}
