// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a name leads to, and what hides names of the lower tree.
//!
//! `.wh.NAME` in a directory of the upper tree hides NAME of the lower one, and `.wh..wh..opq` all names there: what aufs and
//! layers of OCI images have. What the kernel's overlayfs writes is read as well: a character device 0:0 for a name, and the
//! attribute `overlay.opaque` of a directory. A file beside its own whiteout is shown, and a directory beside its whiteout has nothing of
//! the lower one. So a whiteout is made before a name is taken away, and stays when the name comes back.

use crate::Both;
use crate::nodes::{Belongs, Bound, Side, Spare};
use bytes::Bytes;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{Forget, GetAttr, GetXattr, Lookup};
use outrigger_core::reply::{Entry, Ttl};
use outrigger_core::whiteout::{self, OPAQUE, is_reserved};
use outrigger_core::{Attr, Errno, FileKind, Name, Node, NodeTable, OpCode, Result, XattrName, ask};

/// Hides all names of the lower directory, as an attribute (overlayfs, with privileges and without).
const OPAQUE_ATTRIBUTES: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// The name that hides `name`.
///
/// # Errors
/// `ENAMETOOLONG` when it has more than 251 bytes.
pub(crate) fn whiteout(name: &[u8]) -> Result<Name> {
    Name::new(whiteout::whiteout(name))
}

/// Whether overlayfs has hidden a name by this file.
fn is_device(attr: &Attr) -> bool {
    attr.kind() == FileKind::CharDevice && attr.rdev == 0
}

/// What a name leads to in the trees. Each entry has a reference.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) upper: Option<Entry>,
    /// Unless something hides it.
    pub(crate) lower: Option<Entry>,
    /// Whether the upper tree has a character device there that stands for nothing.
    pub(crate) is_device: bool,
}

impl Seen {
    /// The entry whose attributes are shown.
    pub(crate) fn shown(&self) -> Option<&Entry> {
        self.upper.as_ref().or(self.lower.as_ref())
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.shown().is_some_and(|entry| entry.attr.is_dir())
    }

    /// Its references.
    pub(crate) fn spare(&self) -> Spare {
        let sides = [(Side::Upper, &self.upper), (Side::Lower, &self.lower)];
        sides.into_iter().filter_map(|(side, entry)| Some((side, entry.as_ref()?.node))).collect()
    }
}

impl Both<'_> {
    /// What `name` leads to in a directory of one tree, with a reference; nothing where there is no such directory.
    pub(crate) async fn find(&self, side: Side, dir: Option<Node>, name: &Name) -> Result<Option<Entry>> {
        let Some(dir) = dir else { return Ok(None) };
        match ask(self.tree(side), &self.own, Lookup { dir, name: name.clone() }).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENAMETOOLONG) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns references.
    pub(crate) async fn forget_all(&self, spare: Spare) {
        for (side, node) in spare {
            if node != Node::ROOT {
                self.tree(side).call(&self.own, Forget { node, count: 1 }.into()).await;
            }
        }
    }

    /// Whether the upper directory has this name.
    async fn has(&self, dir: Option<Node>, name: &Name) -> Result<bool> {
        let found = self.find(Side::Upper, dir, name).await?;
        let spare = found.iter().map(|entry| (Side::Upper, entry.node)).collect();
        self.forget_all(spare).await;
        Ok(found.is_some())
    }

    async fn has_whiteout(&self, dir: &Bound, name: &Name) -> Result<bool> {
        match whiteout(name) {
            Ok(whiteout) => self.has(dir.upper, &whiteout).await,
            Err(_) => Ok(false),
        }
    }

    async fn is_opaque(&self, dir: Node) -> Result<bool> {
        if self.has(Some(dir), &Name::try_from(OPAQUE)?).await? {
            return Ok(true);
        }
        if !self.upper_ops.has(OpCode::GetXattr) {
            return Ok(false);
        }
        for attribute in OPAQUE_ATTRIBUTES {
            let name = XattrName::new(Bytes::from_static(attribute.as_bytes()))?;
            let value = ask(self.tree(Side::Upper), &self.own, GetXattr { node: dir, name }).await;
            if value.is_ok_and(|value| &value[..] == b"y") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What `name` in a directory leads to.
    pub(crate) async fn see(&self, dir: &Bound, name: &Name) -> Result<Seen> {
        let upper = self.find(Side::Upper, dir.upper, name).await?;
        if let Some(entry) = &upper {
            if is_device(&entry.attr) {
                self.forget_all(vec![(Side::Upper, entry.node)]).await;
                return Ok(Seen { is_device: true, ..Seen::default() });
            }
            if !entry.attr.is_dir() {
                return Ok(Seen { upper, ..Seen::default() });
            }
        }
        let lower = self.find(Side::Lower, dir.lower, name).await?;
        let mut seen = Seen { upper, lower, is_device: false };
        if let Some(lower) = &seen.lower {
            let hidden = match &seen.upper {
                Some(_) if !lower.attr.is_dir() => true,
                Some(upper) => self.has_whiteout(dir, name).await? || self.is_opaque(upper.node).await?,
                None => self.has_whiteout(dir, name).await?,
            };
            if hidden {
                self.forget_all(vec![(Side::Lower, lower.node)]).await;
                seen.lower = None;
            }
        }
        Ok(seen)
    }

    /// What would be seen of the lower directory under a name if the upper one had none.
    pub(crate) async fn uncovers(&self, dir: &Bound, name: &Name) -> Result<Option<Attr>> {
        let Some(lower) = self.find(Side::Lower, dir.lower, name).await? else { return Ok(None) };
        self.forget_all(vec![(Side::Lower, lower.node)]).await;
        Ok((!self.has_whiteout(dir, name).await?).then_some(lower.attr))
    }

    /// Finds a name for a caller, who gets a reference.
    pub(crate) async fn lookup(&self, dir: Node, name: &Name) -> Result<Entry> {
        if is_reserved(name) {
            return Err(Errno::ENOENT.into());
        }
        let seen = self.see(&self.nodes().bound(dir)?, name).await?;
        self.entry(dir, name, seen).await
    }

    /// The entry of what was seen under a name; the table takes the references over.
    pub(crate) async fn entry(&self, dir: Node, name: &Name, seen: Seen) -> Result<Entry> {
        let Some(shown) = seen.shown().cloned() else { return Err(Errno::ENOENT.into()) };
        let (node, spare) = match self.nodes().found(dir, name, seen.upper.as_ref(), seen.lower.as_ref()) {
            Ok(found) => found,
            Err(error) => {
                self.forget_all(seen.spare()).await;
                return Err(error);
            }
        };
        self.forget_all(spare).await;
        let mut entry = self.renumbered(node, shown)?;
        let bound = self.nodes().bound(node)?;
        if let (Some(upper), None) = (bound.upper, &seen.upper) {
            // It was copied since it was looked for.
            let now = ask(self.tree(Side::Upper), &self.own, GetAttr { node: upper, handle: None }).await?;
            (entry.attr, entry.attr_ttl) = (self.attr(&bound, now.attr), now.ttl);
        }
        Ok(entry)
    }

    /// An entry of a tree as one of this node.
    pub(crate) fn renumbered(&self, node: Node, entry: Entry) -> Result<Entry> {
        let attr = self.attr(&self.nodes().bound(node)?, entry.attr);
        Ok(Entry { node, generation: NodeTable::generation(node), attr, ..entry })
    }

    /// Attributes of a file as they are shown. Nobody has counted the directories in a merged one, which 1 says (find(1) knows).
    pub(crate) fn attr(&self, bound: &Bound, attr: Attr) -> Attr {
        let is_merged = attr.is_dir() && bound.upper.is_some() && bound.lower.is_some();
        let shown = Attr { ino: bound.ino, dev: 0, nlink: if is_merged { 1 } else { attr.nlink }, ..attr };
        match bound.belongs.filter(|belongs| self.union.options.own_copies && belongs.uid != shown.uid) {
            Some(Belongs { uid, gid, permissions }) => {
                let mode = if is_merged { shown.mode & !MODE_PERMISSIONS | permissions } else { shown.mode };
                Attr { uid, gid, mode, ..shown }
            }
            None => shown,
        }
    }

    /// The directory that a directory is in, with a reference.
    pub(crate) async fn parent(&self, dir: Node) -> Result<Entry> {
        let parent = if dir == Node::ROOT { dir } else { self.nodes().place(dir)?.0 };
        if parent != Node::ROOT {
            let (above, name) = self.nodes().place(parent)?;
            self.nodes().table().found(above, &name, None)?;
        }
        let bound = self.nodes().bound(parent)?;
        let (side, node) = bound.shown()?;
        let found = ask(self.tree(side), &self.own, GetAttr { node, handle: None }).await?;
        let (entry_ttl, attr_ttl) = (Ttl::NEVER, found.ttl);
        let generation = NodeTable::generation(parent);
        Ok(Entry { node: parent, generation, attr: self.attr(&bound, found.attr), entry_ttl, attr_ttl })
    }
}
