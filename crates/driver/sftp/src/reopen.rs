// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening files again whose connection was lost, and knowing that they are the same.
//!
//! A handle of the server leads to its file whatever becomes of the name; when the connection is lost there is only the name.
//! What it leads to by then may be another client's file. So before it is used it is looked at, and compared with what is known
//! (see `known`); where it is not what it should be, the open file is dead.

use crate::attr::looks;
use crate::fault::Fault;
use crate::files::{For, OpenFile};
use crate::inner::Inner;
use crate::slots::{Held, Slot, open};
use outrigger_core::{Errno, Node, Result};
use outrigger_proto_sftp::{Attrs, Request};
use outrigger_toolkit_remote::REPEATS;
use outrigger_toolkit_remote::known::{Change, Known, UnderWay, moment};
use std::sync::Arc;

impl Inner {
    /// A handle of the server that is fit for `purpose`, of the file that was opened.
    ///
    /// # Errors
    /// `ESTALE` when the connection was lost and there is another file now; why it cannot be opened.
    pub(crate) async fn handle_for(&self, file: &OpenFile, purpose: For) -> Result<Arc<Held>, Fault> {
        if file.is_dead() {
            return Err(stale());
        }
        let slot = file.slot(purpose);
        let held = slot.get(self.reopen(file, slot, purpose)).await?;
        file.owns(slot, &held);
        Ok(held)
    }

    async fn reopen(&self, file: &OpenFile, slot: &Slot, purpose: For) -> Result<Held, Fault> {
        let changes = file.writes() && purpose != For::Reading;
        // What has the name now is read, where no connection was lost.
        let is_first = !changes && !file.is_main(slot) && !file.main().is_lost().await;
        let mut repeats = 0;
        loop {
            let path = self.inodes.path(file.node)?;
            let held = open(&self.link, &path, slot.flags(), Attrs::NONE).await?;
            if is_first {
                return Ok(held);
            }
            let asked = moment();
            let looked = fstat(&held).await;
            repeats += 1;
            match looked {
                Err(fault) if fault.is_lost_connection() && repeats <= REPEATS => {}
                Err(Fault::Refused(_)) if !changes => return Ok(held),
                Err(Fault::Refused(_)) => {
                    return self.recognised(file, slot, (held, Attrs::NONE, asked), changes);
                }
                looked => return self.recognised(file, slot, (held, looked?, asked), changes),
            }
        }
    }

    /// The handle, if what it leads to looks like the file that was open.
    fn recognised(
        &self,
        file: &OpenFile,
        slot: &Slot,
        (held, attrs, asked): (Held, Attrs, u64),
        changes: bool,
    ) -> Result<Held, Fault> {
        let known = slot.known();
        match known.fits(looks(&attrs)) {
            Some(true) => Ok(held),
            None if !changes => {
                if !file.writes() {
                    known.is(looks(&attrs), asked);
                }
                Ok(held)
            }
            _ => {
                file.die();
                self.files.is_another(file.node, &known, &attrs);
                Err(stale())
            }
        }
    }

    /// Finds out what a handle leads to by which is going to be written, where that is not known: nothing was seen of the file
    /// before it was opened, or its name was seen to lead to something that looks otherwise. That may be another file, or the
    /// same, changed by another client.
    async fn settle(&self, file: &OpenFile, slot: &Slot, held: &Held) -> Result<(), Fault> {
        let (known, current) = (slot.known(), self.files.known(file.node).unwrap_or_default());
        let compared = known.is_anything() && (Arc::ptr_eq(&known, &current) || file.has_compared(&current));
        if compared {
            return Ok(());
        }
        let asked = moment();
        let attrs = fstat(held).await?;
        if current.fits(looks(&attrs)) == Some(true) {
            self.files.is_known_by(file, slot, &current);
        } else {
            known.is(looks(&attrs), asked);
        }
        file.compared(&current);
        Ok(())
    }

    /// A change of an open file is about to be asked for by a handle that is fit for `purpose`. It counts only from when that
    /// handle is there: it does not make another file a likely one.
    ///
    /// # Errors
    /// Why there is no such handle.
    pub(crate) async fn begin_by(
        &self,
        file: &OpenFile,
        purpose: For,
        change: Change,
    ) -> Result<UnderWay, Fault> {
        self.until_made(file).await?;
        let held = self.handle_for(file, purpose).await?;
        let slot = file.slot(purpose);
        if purpose != For::Anything {
            // Where that fails, the change itself says why.
            let _ = self.settle(file, slot, &held).await;
        }
        Ok(slot.known().begin(change, self.link.runtime().coarse_wall()))
    }

    /// A file was seen by its path by a request of the moment `asked`.
    pub(crate) fn saw_by_path(&self, node: Node, attrs: &Attrs, asked: u64) {
        self.files.saw(node, attrs, asked, self.link.runtime().coarse_wall());
    }

    /// What is known of a file that is being opened.
    pub(crate) fn known_before(&self, node: Node) -> Arc<Known> {
        self.files.known(node).unwrap_or_else(|| self.seen.known(node))
    }
}

async fn fstat(held: &Held) -> Result<Attrs, Fault> {
    held.session.begin(&Request::FStat { handle: &held.handle }).await.attrs().await
}

fn stale() -> Fault {
    Errno::ESTALE.because("replaced or changed by another client while the connection was lost").into()
}
