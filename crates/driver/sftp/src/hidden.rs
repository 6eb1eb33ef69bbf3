// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were removed while they were open.
//!
//! A file can be opened again on the next connection only while it has a name. So an open file that loses its last name is
//! renamed aside, and removed when it is closed. The name is not shown to this client. After a
//! crash of this client it stays, unless the tree outlives its process: the name is noted before it is given.

use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use crate::session::Pending;
use outrigger_core::{Name, Node, Result};
use outrigger_proto_sftp::{Extensions, Request, StatusCode};
use outrigger_toolkit_remote::{LeftName, SILLY_PREFIX};
use std::sync::Arc;

impl Inner {
    /// The file called `name`, if it has to be hidden when it loses that name.
    pub(crate) fn must_hide(&self, dir: Node, name: &Name) -> Option<Node> {
        let table = self.inodes.table();
        let node = table.get(dir, name)?;
        let hides = self.files.is_open(node)
            && !self.files.is_removed(node)
            && table.names(node).is_ok_and(|names| names.len() == 1);
        hides.then_some(node)
    }

    /// Whether `name` is the one of a hidden file.
    pub(crate) fn is_hidden_name(&self, dir: Node, name: &Name) -> bool {
        let ours = || self.inodes.table().get(dir, name).is_some_and(|node| self.files.is_removed(node));
        name.starts_with(SILLY_PREFIX.as_bytes()) && (ours() || self.removing.has(dir, name))
    }

    /// Renames an open file aside.
    pub(crate) async fn hide(&self, dir: Node, name: &Name, node: Node) -> Result<(), Fault> {
        let aside = self.silly.begin(dir, Some(node))?;
        let renamed: Result<(), Fault> = async {
            let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(dir, &aside)?);
            self.change(&self.renaming(&from, &to)).await
        }
        .await;
        renamed.inspect_err(|_| self.silly.end(&aside))?;
        self.is_aside(dir, name, &aside, node)?;
        Ok(())
    }

    /// Goes on with the files that former processes renamed aside, or were about to.
    pub(crate) async fn settle_silly_names(&self) {
        let is_there = async |dir, name: Name| match self.inodes.child(dir, &name) {
            Ok(path) => self.is_there(&path).await,
            Err(_) => Ok(false),
        };
        for LeftName { dir, name, node } in self.silly.settle(self.inodes.table(), is_there).await {
            match node {
                Some(node) => self.is_removed(node),
                None => self.remove_aside(dir, &name),
            }
        }
    }

    /// Whether there is anything at a path.
    async fn is_there(&self, path: &[u8]) -> Result<bool> {
        match self.look(path).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.code() == Some(StatusCode::NoSuchFile) => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Gives an open file a second name aside, because its first one is going to be another file's; the new name.
    pub(crate) async fn keep_aside(&self, dir: Node, name: &Name, node: Option<Node>) -> Result<Name, Fault> {
        let aside = self.silly.begin(dir, node)?;
        let kept: Result<(), Fault> = async {
            let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(dir, &aside)?);
            // A second name leaves no moment without the first one; not every file system has such a thing.
            let linked = match self.extensions.contains(Extensions::HARDLINK) {
                true => self.change(&Request::HardLink { from: &from, to: &to }).await,
                false => Err(Fault::Known(outrigger_core::Errno::EPERM.into())),
            };
            match linked {
                Err(Fault::Refused(_) | Fault::Known(_)) => self.change(&self.renaming(&from, &to)).await,
                linked => linked,
            }
        }
        .await;
        kept.inspect_err(|_| self.silly.end(&aside))?;
        Ok(aside)
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

    /// Notes that a file is at its hidden name now.
    pub(crate) fn is_aside(&self, dir: Node, name: &Name, aside: &Name, node: Node) -> Result<()> {
        self.inodes.table().renamed((dir, name), (dir, aside))?;
        self.is_removed(node);
        Ok(())
    }

    /// A file has only its hidden name.
    fn is_removed(&self, node: Node) {
        if !self.files.mark_removed(node) {
            // It was closed meanwhile.
            self.remove_hidden(node);
        }
    }

    /// Removes a hidden file that is not open any more, without waiting.
    pub(crate) fn remove_hidden(&self, node: Node) {
        let table = self.inodes.table();
        for (dir, name) in table.names(node).unwrap_or_default() {
            self.remove_aside(dir, &name);
            table.removed(dir, &name);
        }
    }

    /// Removes what is at a name aside, without waiting.
    fn remove_aside(&self, dir: Node, aside: &Name) {
        let Ok(path) = self.inodes.child(dir, aside) else { return };
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
    }

    /// Moves hidden files out of a directory that is to be removed; whether there were any.
    pub(crate) async fn clear_hidden(&self, dir: Node, above: Node) -> bool {
        let table = self.inodes.table();
        let mut any = false;
        for node in self.files.removed() {
            let names = table.names(node).unwrap_or_default();
            let Some((_, name)) = names.into_iter().find(|(place, _)| *place == dir) else { continue };
            let (Ok(from), Ok(to)) = (self.inodes.child(dir, &name), self.inodes.child(above, &name)) else {
                continue;
            };
            let moved = self.change(&self.renaming(&from, &to)).await.is_ok();
            if moved {
                self.silly.moved(&name, above);
            }
            any |= moved && table.renamed((dir, &name), (above, &name)).is_ok();
        }
        any
    }

    /// The request that renames, replacing where the server can.
    pub(crate) fn renaming<'a>(&self, from: &'a [u8], to: &'a [u8]) -> Request<'a> {
        match self.extensions.contains(Extensions::POSIX_RENAME) {
            true => Request::PosixRename { from, to },
            false => Request::Rename { from, to },
        }
    }
}
