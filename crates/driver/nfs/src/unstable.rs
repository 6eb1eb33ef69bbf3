// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing, and COMMIT, for [`Uncommitted`](outrigger_toolkit_remote::Uncommitted).

use crate::inner::Inner;
use bytes::Bytes;
use outrigger_core::{Credentials, Errno, Error, Node, Result};
use outrigger_mux::Mux;
use outrigger_proto_nfs3::nfs::{CommitArgs, WriteArgs, procedure as nfs};
use outrigger_proto_nfs3::results::WriteOk;
use outrigger_proto_nfs3::types::{Content, FileHandle, Stable};
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{Piece, StableStore, UncommittedFile, auth_sys};

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
}

impl StableStore<Auth> for Inner {
    type Via = Mux;

    async fn connection(&self) -> Result<Mux> {
        self.rpc.mux().await
    }

    fn ended(&self, mux: &Mux) -> Option<Error> {
        mux.ended().map(|why| Errno::EIO.because(why))
    }

    fn gives_up(&self, losses: u32) -> bool {
        self.rpc.gives_up(losses)
    }

    async fn commit(&self, mux: &Mux, node: Node, by: &Auth) -> Result<u64> {
        let args = CommitArgs { file: self.sent_handle(node)?, offset: 0, count: 0 };
        let committed = self.ask_via::<nfs::Commit>(Some(mux), by, &args, 0).await.0?;
        Ok(u64::from_be_bytes(committed.verifier))
    }

    async fn write(&self, mux: &Mux, node: Node, piece: Piece<Auth>) -> Result<()> {
        let file = self.sent_handle(node)?;
        self.write_stably(Some(mux), &piece.by, file, (piece.offset, piece.data)).await
    }

    fn by(&self, user: u64) -> Auth {
        auth_sys(&Credentials::new((user >> 32) as u32, user as u32), 0)
    }
}
