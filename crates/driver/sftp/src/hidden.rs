// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were removed while they were open.
//!
//! A file can be opened again on the next connection only while it has a name. So an open file that loses its last name is
//! renamed aside, and removed when it is closed. The name is not shown to this client; after a crash of this client it stays.

use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use outrigger_core::{Name, Node, Result};
use outrigger_proto_sftp::{Extensions, Request};

/// What hidden names begin with.
const PREFIX: &str = ".outrigger-removed-";

fn new_name() -> Result<Name> {
    Name::try_from(&*format!("{PREFIX}{:016x}", fastrand::u64(..)))
}

impl Inner {
    /// The file called `name`, if it has to be hidden when it loses that name.
    pub(crate) fn must_hide(&self, dir: Node, name: &Name) -> Option<Node> {
        let table = self.places.table();
        let node = table.get(dir, name)?;
        let hides = self.files.is_open(node)
            && !self.files.is_hidden(node)
            && table.names(node).is_ok_and(|names| names.len() == 1);
        hides.then_some(node)
    }

    /// Whether `name` is the one of a hidden file.
    pub(crate) fn is_hidden_name(&self, dir: Node, name: &Name) -> bool {
        let ours = || self.places.table().get(dir, name).is_some_and(|node| self.files.is_hidden(node));
        name.starts_with(PREFIX.as_bytes()) && ours()
    }

    /// Renames an open file aside.
    pub(crate) async fn hide(&self, dir: Node, name: &Name, node: Node) -> Result<(), Fault> {
        let aside = new_name()?;
        let (from, to) = (self.places.child(dir, name)?, self.places.child(dir, &aside)?);
        self.change(&self.renaming(&from, &to)).await?;
        self.is_aside(dir, name, &aside, node)?;
        Ok(())
    }

    /// Gives an open file a second name aside, because its first one is going to be another file's; the new name.
    pub(crate) async fn keep_aside(&self, dir: Node, name: &Name) -> Result<Name, Fault> {
        let aside = new_name()?;
        let (from, to) = (self.places.child(dir, name)?, self.places.child(dir, &aside)?);
        // A second name leaves no moment without the first one; not every file system has such a thing.
        let linked = match self.extensions.contains(Extensions::HARDLINK) {
            true => self.change(&Request::HardLink { from: &from, to: &to }).await,
            false => Err(Fault::Known(outrigger_core::Errno::EPERM.into())),
        };
        match linked {
            Err(Fault::Refused(_) | Fault::Known(_)) => self.change(&self.renaming(&from, &to)).await?,
            linked => linked?,
        }
        Ok(aside)
    }

    /// Gives a file that was kept aside its name back.
    pub(crate) async fn put_back(&self, dir: Node, name: &Name, aside: &Name) {
        let (Ok(from), Ok(to)) = (self.places.child(dir, aside), self.places.child(dir, name)) else {
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
    }

    /// Notes that a file is at its hidden name now.
    pub(crate) fn is_aside(&self, dir: Node, name: &Name, aside: &Name, node: Node) -> Result<()> {
        self.places.table().renamed((dir, name), (dir, aside))?;
        self.dir_changes(dir);
        if !self.files.hide(node) {
            // It was closed meanwhile.
            self.remove_hidden(node);
        }
        Ok(())
    }

    /// Removes a hidden file that nobody has open any more, without waiting.
    pub(crate) fn remove_hidden(&self, node: Node) {
        let table = self.places.table();
        for (dir, name) in table.names(node).unwrap_or_default() {
            let Ok(path) = self.places.child(dir, &name) else { continue };
            table.removed(dir, &name);
            self.dir_changes(dir);
            let link = self.link.clone();
            self.link.runtime().spawn(Box::pin(async move {
                let request = Request::Remove { path: &path };
                let removed = link.run(Again::Always, |session| {
                    let request = &request;
                    async move { session.begin(request).await.done().await }
                });
                if let Err(fault) = removed.await {
                    let error = outrigger_core::Error::from(fault);
                    tracing::warn!(%error, path = %path.escape_ascii(), "a removed file is left behind");
                }
            }));
        }
    }

    /// Moves hidden files out of a directory that is to be removed; whether there were any.
    pub(crate) async fn clear_hidden(&self, dir: Node, above: Node) -> bool {
        let table = self.places.table();
        let mut any = false;
        for node in self.files.hidden() {
            let names = table.names(node).unwrap_or_default();
            let Some((_, name)) = names.into_iter().find(|(place, _)| *place == dir) else { continue };
            let (Ok(from), Ok(to)) = (self.places.child(dir, &name), self.places.child(above, &name)) else {
                continue;
            };
            let moved = self.change(&self.renaming(&from, &to)).await.is_ok();
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
