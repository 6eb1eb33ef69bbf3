// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were removed while they were open.
//!
//! A program that is started again can open only what has a name. So an open file that loses its last name is renamed
//! aside instead, to a name that is not listed and cannot be looked up, and removed when it is closed (as NFS clients
//! and the high-level interface of libfuse do).

use crate::message::{Fault, Message};
use crate::nodes::Place;
use crate::turn::Turn;
use outrigger_core::{Errno, Name, Node};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::Opcode;

/// What hidden names begin with.
const PREFIX: &[u8] = b".fuse_hidden_outrigger_";

/// An open file under its hidden name.
#[derive(Debug, Clone)]
pub(crate) struct Hidden {
    pub(crate) node: Node,
    /// Where it was hidden; it may have been moved since.
    dir: Node,
    name: Name,
}

/// Whether a name looks like one of ours.
pub(crate) fn is_hidden_name(name: &Name) -> bool {
    name.starts_with(PREFIX)
}

/// A hidden name that nothing has yet.
pub(crate) fn new_name() -> Result<Name, Fault> {
    Ok(Name::new([PREFIX, format!("{:016x}", fastrand::u64(..)).as_bytes()].concat())?)
}

impl Turn<'_> {
    /// The last name of a file that is open, which has to be hidden when it is removed.
    pub(crate) fn must_hide(&self, dir: Node, name: &Name) -> Option<Node> {
        let nodes = &self.shared.nodes;
        let node = nodes.get(dir, name)?;
        let (open, hidden) = nodes.use_of(node);
        (open && !hidden && nodes.names(node).is_ok_and(|names| names.len() == 1)).then_some(node)
    }

    /// Renames `name` aside; false when the program cannot.
    pub(crate) async fn hide(&mut self, dir: Node, name: &Name, node: Node) -> Result<bool, Fault> {
        let aside = match &self.trial.hidden {
            Some(hidden) => hidden.name.clone(),
            None => new_name()?,
        };
        self.trial.hidden = Some(Hidden { node, dir, name: aside.clone() });
        if !self.move_hidden((dir, name.clone()), (dir, aside)).await? {
            self.trial.hidden = None;
            return Ok(false);
        }
        self.shared.nodes.hide(node, false);
        // What follows is another request, which no program has received.
        self.trial.sent = false;
        Ok(true)
    }

    /// Renames a file to where it is hidden, unless an earlier attempt has; false when the program cannot.
    async fn move_hidden(&mut self, from: Place, to: Place) -> Result<bool, Fault> {
        // Judged before it is repeated: libfuse would first move away what has the new name.
        if !(self.again() && self.look(to.0, &to.1).await?.is_some()) {
            let (dir, newdir) = (self.theirs(from.0).await?, self.theirs(to.0).await?);
            let _held = self.hold(from.0, &from.1).await?;
            let message = Message::new(Opcode::Rename, dir).with(&fuse::RenameIn { newdir }.encode());
            self.shared.nodes.may_move(from.clone(), to.clone());
            match self.change(message.name(&from.1).name(&to.1)).await {
                Err(Fault::Lost(lost)) => return Err(lost.into()),
                Err(Fault::Failed(_)) => {
                    self.shared.nodes.has_moved(&from, &to);
                    return Ok(false);
                }
                Ok(_) => {}
            }
        }
        self.shared.nodes.has_moved(&from, &to);
        self.shared.nodes.renamed((from.0, &from.1), (to.0, &to.1));
        Ok(true)
    }

    /// Gives a hidden file its name back.
    pub(crate) async fn show_again(&mut self, dir: Node, name: &Name) -> Result<(), Fault> {
        let Some(Hidden { node, name: aside, .. }) = self.trial.hidden.clone() else { return Ok(()) };
        let theirs = self.theirs(dir).await?;
        let args = fuse::RenameIn { newdir: theirs };
        let message = Message::new(Opcode::Rename, theirs).with(&args.encode()).name(&aside).name(name);
        if let Err(Fault::Lost(lost)) = self.change(message).await {
            return Err(lost.into());
        }
        self.shared.nodes.renamed((dir, &aside), (dir, name));
        self.shared.nodes.unhide(node);
        Ok(())
    }

    /// The hidden name of `node`.
    pub(crate) fn hidden_name(&self, node: Node) -> Option<Hidden> {
        let names = self.shared.nodes.names(node).ok()?;
        let found = names.into_iter().find(|(_, name)| is_hidden_name(name));
        found.map(|(dir, name)| Hidden { node, dir, name })
    }

    /// Removes the hidden file of this request, which is not open any more.
    pub(crate) async fn remove_hidden(&mut self) -> Result<(), Fault> {
        let Some(Hidden { node, dir, name: aside }) = self.trial.hidden.clone() else { return Ok(()) };
        // A file that is closed and forgotten has no names any more.
        let names = self.shared.nodes.names(node).unwrap_or_default();
        let dir = names.into_iter().find(|(_, name)| *name == aside).map_or(dir, |(dir, _)| dir);
        let removed = self.unlink_hidden(dir, &aside).await;
        match removed {
            Err(Fault::Lost(lost)) => return Err(lost.into()),
            Err(Fault::Failed(error)) if error.errno != Errno::ENOENT => {
                tracing::warn!(%error, name = %aside, "a file that was removed while open is left behind");
            }
            _ => {}
        }
        self.shared.nodes.removed(dir, &aside);
        self.trial.hidden = None;
        Ok(())
    }

    async fn unlink_hidden(&self, dir: Node, aside: &Name) -> Result<(), Fault> {
        let theirs = self.theirs(dir).await?;
        let _held = self.hold(dir, aside).await?;
        self.ask(Message::new(Opcode::Unlink, theirs).name(aside)).await.map(drop)
    }

    /// Moves hidden files out of a directory that is to be removed; whether there were any.
    pub(crate) async fn clear_hidden(&mut self, dir: Node, above: Node) -> Result<bool, Fault> {
        let mut any = false;
        for name in self.shared.nodes.hidden_in(dir) {
            any |= self.move_hidden((dir, name.clone()), (above, name)).await?;
        }
        Ok(any)
    }
}
