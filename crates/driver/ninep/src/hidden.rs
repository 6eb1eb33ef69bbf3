// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that lose their names while they are open: they are renamed aside, and removed when they are closed, since servers look for
//! an open file under the name that it had, and it can be opened again on the next connection only by a name.

use crate::inner::Inner;
use outrigger_core::{Errno, Error, FileKind, Name, Node, Result};
use outrigger_toolkit_remote::SillyServer;
use outrigger_toolkit_remote::known::Change;

/// The server, as a user who removes and renames.
pub(crate) struct As<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) uid: u32,
}

impl SillyServer for As<'_> {
    type Fault = Error;

    async fn rename(&self, from: (Node, &Name), to: (Node, &Name)) -> Result<()> {
        match self.inner.move_at_server(self.uid, from, to).await {
            // The name is unique: where it exists, the rename was carried out and its reply was lost.
            Err(error) if error.errno == Errno::EIO && self.is_there(to.0, to.1).await == Ok(true) => Ok(()),
            moved => moved,
        }
    }

    /// The user who has opened a file may not have the right to remove it, as the one had who did so.
    async fn remove(&self, dir: Node, name: &Name) -> Result<bool> {
        let removed = match self.inner.remove_at_server(self.uid, (dir, name), 0).await {
            Err(error) if matches!(error.errno, Errno::EACCES | Errno::EPERM) => {
                self.inner.remove_at_server(self.inner.own_user(), (dir, name), 0).await
            }
            removed => removed,
        };
        removed.map(|()| true)
    }

    async fn is_there(&self, dir: Node, name: &Name) -> Result<bool> {
        match self.inner.look_up(self.uid, dir, name).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ESTALE) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    /// The file called `name`, if it is open and that is its only name at the server.
    pub(crate) async fn has_only(&self, uid: u32, (dir, name): (Node, &Name)) -> Result<Option<Node>> {
        let Some(node) = self.silly_rename(uid).loses(dir, name) else { return Ok(None) };
        let (found, attr) = self.look_up(uid, dir, name).await?;
        let is_it = self.files.get(node).is_some_and(|known| known.handle() == found.handle());
        Ok((is_it && found.kind == FileKind::Regular && attr.nlink <= 1).then_some(node))
    }

    /// Gives an open file whose only name is about to become another file's a second one, if it needs that. Where the server has no
    /// links it is hidden at once: then there is no second name.
    pub(crate) async fn keep(
        &self,
        uid: u32,
        (dir, name): (Node, &Name),
    ) -> Result<Option<(Node, Option<Name>)>> {
        let node = match self.has_only(uid, (dir, name)).await {
            Err(error) if error.errno == Errno::ENOENT => return Ok(None),
            found => found?,
        };
        let Some(node) = node else { return Ok(None) };
        let link = async |aside: &Name| {
            let changing = self.begin(Some(node), Change::Attrs);
            let linked = self.with(uid, |session| async move {
                let file = self.reach(&session, uid, node).await?;
                let (dir, name) = self.place(&session, uid, dir, aside).await?;
                session.link(dir.number, name, &file).await
            });
            changing.settled(linked.await)
        };
        match self.silly.give(dir, Some(node), link).await {
            Ok(aside) => Ok(Some((node, Some(aside)))),
            Err(_) => self.silly_rename(uid).hide((dir, name), node).await.map(|()| Some((node, None))),
        }
    }
}
