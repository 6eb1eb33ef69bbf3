// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that were removed while they were open.
//!
//! A file can be opened again on the next connection only while it has a name. So an open file that loses its last name is
//! renamed aside, and removed when it is closed. The name is not shown to this client. After a
//! crash of this client it stays, unless the tree outlives its process: the name is noted before it is given.

use crate::fault::Fault;
use crate::inner::Inner;
use crate::kept::AsideNote;
use crate::link::Again;
use crate::session::Pending;
use outrigger_core::{Name, Node, Result};
use outrigger_proto_sftp::{Extensions, Request, StatusCode};
use outrigger_toolkit_remote::{SILLY_PREFIX, silly_name};

impl Inner {
    /// The file called `name`, if it has to be hidden when it loses that name.
    pub(crate) fn must_hide(&self, dir: Node, name: &Name) -> Option<Node> {
        let table = self.inodes.table();
        let node = table.get(dir, name)?;
        let hides = self.files.is_open(node)
            && !self.files.is_hidden(node)
            && table.names(node).is_ok_and(|names| names.len() == 1);
        hides.then_some(node)
    }

    /// Whether `name` is the one of a hidden file.
    pub(crate) fn is_hidden_name(&self, dir: Node, name: &Name) -> bool {
        let ours = || self.inodes.table().get(dir, name).is_some_and(|node| self.files.is_hidden(node));
        name.starts_with(SILLY_PREFIX.as_bytes()) && (ours() || self.removing.has(dir, name))
    }

    /// Renames an open file aside.
    pub(crate) async fn hide(&self, dir: Node, name: &Name, node: Node) -> Result<(), Fault> {
        let number = fastrand::u64(..);
        let aside = silly_name(number)?;
        let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(dir, &aside)?);
        let note = self.note_aside(node, dir, number);
        if let Err(fault) = self.change(&self.renaming(&from, &to)).await {
            self.erase_aside(note);
            return Err(fault);
        }
        self.is_aside(dir, name, &aside, (node, note))?;
        Ok(())
    }

    /// Notes that a file is about to get a name aside.
    fn note_aside(&self, node: Node, dir: Node, number: u64) -> Option<usize> {
        self.kept.as_ref()?.asides.add(&AsideNote { node, dir, number }).ok()
    }

    /// It has not got it, or lost it.
    pub(crate) fn erase_aside(&self, note: Option<usize>) {
        if let (Some(kept), Some(note)) = (&self.kept, note) {
            kept.asides.remove(note);
        }
    }

    /// Finds out what became of the files that former processes renamed aside, or were about to.
    pub(crate) async fn settle_asides(&self) {
        let asides = self.kept.as_ref().map_or_else(Vec::new, |kept| kept.asides.all());
        let table = self.inodes.table();
        for (note, AsideNote { node, dir, number }) in asides {
            let Ok(aside) = silly_name(number) else { continue };
            let is_there = match table.get(dir, &aside) {
                Some(known) => Ok(known == node),
                None => match self.inodes.child(dir, &aside) {
                    Ok(path) => self.is_there(&path).await,
                    Err(_) => Ok(false),
                },
            };
            // It had one name, and has that still as far as is known here, or the one aside.
            let names = table.names(node).unwrap_or_default();
            match (is_there, &names[..]) {
                (Ok(true), [(place, name)]) if *place == dir => {
                    if let Err(error) = self.is_aside(dir, name, &aside, (node, Some(note))) {
                        tracing::warn!(%error, "a removed file is left behind");
                    }
                }
                (Ok(true), _) => self.remove_aside(dir, &aside, Some(note)),
                (Ok(false), _) => self.erase_aside(Some(note)),
                (Err(error), _) => tracing::warn!(%error, "a removed file may be left behind"),
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
    pub(crate) async fn keep_aside(
        &self,
        dir: Node,
        name: &Name,
        node: Option<Node>,
    ) -> Result<(Name, Option<usize>), Fault> {
        let number = fastrand::u64(..);
        let aside = silly_name(number)?;
        let (from, to) = (self.inodes.child(dir, name)?, self.inodes.child(dir, &aside)?);
        let note = node.and_then(|node| self.note_aside(node, dir, number));
        // A second name leaves no moment without the first one; not every file system has such a thing.
        let linked = match self.extensions.contains(Extensions::HARDLINK) {
            true => self.change(&Request::HardLink { from: &from, to: &to }).await,
            false => Err(Fault::Known(outrigger_core::Errno::EPERM.into())),
        };
        let kept = match linked {
            Err(Fault::Refused(_) | Fault::Known(_)) => self.change(&self.renaming(&from, &to)).await,
            linked => linked,
        };
        if kept.is_err() {
            self.erase_aside(note);
        }
        kept.map(|()| (aside, note))
    }

    /// Gives a file that was kept aside its name back.
    pub(crate) async fn put_back(&self, dir: Node, name: &Name, (aside, note): (&Name, Option<usize>)) {
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
        self.erase_aside(note);
    }

    /// Notes that a file is at its hidden name now.
    pub(crate) fn is_aside(
        &self,
        dir: Node,
        name: &Name,
        aside: &Name,
        (node, note): (Node, Option<usize>),
    ) -> Result<()> {
        let table = self.inodes.table();
        if table.get(dir, aside) != Some(node) {
            table.renamed((dir, name), (dir, aside))?;
        }
        if !self.files.hide(node, note) {
            // It was closed meanwhile.
            self.remove_hidden(node, note);
        }
        Ok(())
    }

    /// Removes a hidden file that is not open any more, without waiting.
    pub(crate) fn remove_hidden(&self, node: Node, note: Option<usize>) {
        let table = self.inodes.table();
        for (dir, name) in table.names(node).unwrap_or_default() {
            self.remove_aside(dir, &name, note);
            table.removed(dir, &name);
        }
    }

    /// Removes what is at a name aside, without waiting.
    fn remove_aside(&self, dir: Node, aside: &Name, note: Option<usize>) {
        let Ok(path) = self.inodes.child(dir, aside) else { return };
        let hiding = self.removing.hide(dir, aside);
        let (link, kept) = (self.link.clone(), self.kept.clone());
        self.link.runtime().spawn(Box::pin(async move {
            let request = Request::Remove { path: &path };
            let failed = link.ask(Again::Always, &request, Pending::done).await.err();
            // Where there was no answer the next process tries once more.
            if let (Some(kept), Some(note), None | Some(Fault::Refused(_))) = (kept, note, &failed) {
                kept.asides.remove(note);
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
        for node in self.files.hidden() {
            let names = table.names(node).unwrap_or_default();
            let Some((_, name)) = names.into_iter().find(|(place, _)| *place == dir) else { continue };
            let (Ok(from), Ok(to)) = (self.inodes.child(dir, &name), self.inodes.child(above, &name)) else {
                continue;
            };
            let moved = self.change(&self.renaming(&from, &to)).await.is_ok();
            if moved
                && let (Some(kept), Some(note)) = (&self.kept, self.files.note_of(node))
                && let Some(aside) = kept.asides.get(note)
            {
                kept.asides.set(note, &AsideNote { dir: above, ..aside });
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
