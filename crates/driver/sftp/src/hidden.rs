// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were removed while they were open.
//!
//! A file can be opened again on the next connection only while it has a name. So an open file that loses its last name is
//! renamed aside, and removed when it is closed. The name is not shown to this client. After a
//! crash of this client it stays, unless the tree outlives its process: the name is noted before it is given.

use crate::fault::Fault;
use crate::files::OpenFile;
use crate::inner::Inner;
use crate::link::Again;
use crate::opened::Use;
use crate::session::Pending;
use outrigger_core::{Name, Node, Result};
use outrigger_proto_sftp::{Extensions, Request, StatusCode};
use outrigger_toolkit_remote::{SillyRename, SillyServer};
use std::sync::Arc;

impl SillyServer for &Inner {
    type Fault = Fault;

    async fn rename(
        &self,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
    ) -> Result<(), Fault> {
        let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(to_dir, to_name)?);
        self.change(&self.renaming(&from, &to)).await
    }

    /// Nobody waits for it; the name stays hidden until then.
    async fn remove(&self, dir: Node, aside: &Name) -> Result<bool> {
        let path = self.inodes.child(dir, aside)?;
        let hiding = self.removing.hide(dir, aside);
        let (link, silly, aside) = (self.link.clone(), Arc::clone(&self.silly), aside.clone());
        self.link.runtime().spawn(Box::pin(async move {
            let request = Request::Remove { path: &path };
            let failed = link.ask(Again::Always, &request, Pending::done).await.err();
            // Where there was no answer the next process tries once more.
            if let None | Some(Fault::Refused(_)) = &failed {
                silly.end(&aside);
            }
            if let Some(fault) = failed {
                let error = outrigger_core::Error::from(fault);
                tracing::warn!(%error, path = %path.escape_ascii(), "a removed file is left behind");
            }
            drop(hiding);
        }));
        Ok(false)
    }

    async fn is_there(&self, dir: Node, name: &Name) -> Result<bool> {
        let Ok(path) = self.inodes.child(dir, name) else { return Ok(false) };
        match self.look(&path).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.code() == Some(StatusCode::NoSuchFile) => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }
}

impl Inner {
    /// What becomes of open files that lose their names.
    pub(crate) fn silly_rename(&self) -> SillyRename<'_, Arc<OpenFile>, Use, &Self> {
        let (names, table, open) = (&*self.silly, self.inodes.table(), &*self.files);
        SillyRename { names, table, open, server: self }
    }

    /// The file called `name`, if it has to be hidden when it loses that name.
    pub(crate) fn must_hide(&self, dir: Node, name: &Name) -> Option<Node> {
        let has_one_name = |node| self.inodes.table().names(node).is_ok_and(|names| names.len() == 1);
        self.silly_rename().loses(dir, name).filter(|&node| has_one_name(node))
    }

    /// Whether `name` is the one of a hidden file.
    pub(crate) fn is_hidden_name(&self, dir: Node, name: &Name) -> bool {
        self.silly_rename().has(dir, name) || self.removing.has(dir, name)
    }

    /// Gives an open file a second name aside, because its first one is going to be another file's; the new name.
    pub(crate) async fn keep_aside(&self, dir: Node, name: &Name, node: Option<Node>) -> Result<Name, Fault> {
        let keep = async |aside: &Name| {
            let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(dir, aside)?);
            // A second name leaves no moment without the first one; not every file system has such a thing.
            let linked = match self.extensions.contains(Extensions::HARDLINK) {
                true => self.change(&Request::HardLink { from: &from, to: &to }).await,
                false => Err(Fault::Known(outrigger_core::Errno::EPERM.into())),
            };
            match linked {
                Err(Fault::Refused(_) | Fault::Known(_)) => self.change(&self.renaming(&from, &to)).await,
                linked => linked,
            }
        };
        self.silly.give(dir, node, keep).await
    }

    /// Gives a file that was kept aside its name back.
    pub(crate) async fn put_back(&self, dir: Node, name: &Name, aside: &Name) {
        let (Ok(from), Ok(to)) = (self.inodes.child(dir, aside), self.inodes.child(dir, name)) else {
            return;
        };
        // rename(2) leaves two names of one file alone, so what is left of them is removed.
        let back = async { self.change(&self.renaming(&from, &to)).await };
        if let Err(fault) = back.await {
            let error = outrigger_core::Error::from(fault);
            tracing::warn!(%error, path = %from.escape_ascii(), "a file could not be given its name back");
            return;
        }
        let _ = self.change(&Request::Remove { path: &from }).await;
        self.silly.end(aside);
    }

    /// The request that renames, replacing where the server can.
    pub(crate) fn renaming<'a>(&self, from: &'a [u8], to: &'a [u8]) -> Request<'a> {
        match self.extensions.contains(Extensions::POSIX_RENAME) {
            true => Request::PosixRename { from, to },
            false => Request::Rename { from, to },
        }
    }
}
