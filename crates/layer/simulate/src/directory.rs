// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding and listing names.

use crate::Below;
use outrigger_core::ops::{Forget, GetAttr, Locate, Lookup, Parent, ReadDir, ReadDirPlus, Walk};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Ttl};
use outrigger_core::{Attr, Errno, Generation, Name, Node, OpCode, Result, ask};

/// What an entry counts towards the size of a listing, apart from its name, without and with attributes
/// (see [`ReadDir`] and [`ReadDirPlus`]).
const PLAIN: u32 = 24;
const PLUS: u32 = 152;

impl Below<'_> {
    pub(crate) async fn lookup(&self, op: Lookup) -> Result<Entry> {
        let walk = Walk { dir: op.dir, names: vec![op.name] };
        let found = ask(self.next, self.cx, walk).await?.pop();
        found.ok_or_else(|| Errno::ENOENT.into())
    }

    pub(crate) async fn walk(&self, op: Walk) -> Result<Vec<Entry>> {
        let mut found: Vec<Entry> = Vec::with_capacity(op.names.len());
        for name in op.names {
            let dir = found.last().map_or(op.dir, |entry| entry.node);
            match ask(self.next, self.cx, Lookup { dir, name }).await {
                Ok(entry) => found.push(entry),
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(found)
    }

    pub(crate) async fn parent(&self, op: Parent) -> Result<Entry> {
        let path = ask(self.next, self.cx, Locate { node: op.dir }).await?;
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let mut names = names.map(|name| Name::new(name.to_vec())).collect::<Result<Vec<Name>>>()?;
        names.pop();
        let mut parent = self.root().await?;
        for name in names {
            let found = self.find(parent.node, name).await;
            if parent.node != Node::ROOT {
                self.forget(parent.node).await;
            }
            parent = found?;
        }
        Ok(parent)
    }

    /// The root as an entry, for which no reference is counted.
    async fn root(&self) -> Result<Entry> {
        let found = ask(self.next, self.cx, GetAttr { node: Node::ROOT, handle: None }).await?;
        let (node, generation) = (Node::ROOT, Generation::default());
        Ok(Entry { node, generation, attr: found.attr, entry_ttl: found.ttl, attr_ttl: found.ttl })
    }

    pub(crate) async fn readdir(&self, op: ReadDir) -> Result<Dirents> {
        let ReadDir { node, handle, cookie, size } = op;
        let size = size.saturating_mul(PLUS / PLAIN);
        let listed = ask(self.next, self.cx, ReadDirPlus { node, handle, cookie, size }).await?;
        let mut entries = Vec::with_capacity(listed.entries.len());
        for DirentPlus { cookie, name, entry } in listed.entries {
            if entry.node != Node::default() {
                self.forget(entry.node).await;
            }
            entries.push(Dirent { ino: entry.attr.ino, cookie, kind: Some(entry.attr.kind()), name });
        }
        Ok(Dirents { entries, eof: listed.eof })
    }

    pub(crate) async fn readdirplus(&self, mut op: ReadDirPlus) -> Result<DirentsPlus> {
        loop {
            let (listed, last) = self.piece(&op).await?;
            // A piece without entries means the end to many a caller, so go on when all of its names are gone.
            match last {
                Some(cookie) if listed.entries.is_empty() && !listed.eof => op.cookie = cookie,
                _ => return Ok(listed),
            }
        }
    }

    /// One piece of a listing and the cookie of the last name the driver listed in it.
    async fn piece(&self, op: &ReadDirPlus) -> Result<(DirentsPlus, Option<u64>)> {
        let (node, handle) = (op.node, op.handle);
        // So many plain entries that few of them do not fit when they have attributes.
        let size = (op.size / 4).max(PLAIN + 255);
        let listed = ask(self.next, self.cx, ReadDir { node, handle, cookie: op.cookie, size }).await?;
        let last = listed.entries.last().map(|dirent| dirent.cookie);
        let mut answer = DirentsPlus { entries: Vec::with_capacity(listed.entries.len()), eof: listed.eof };
        let mut used = 0;
        for dirent in listed.entries {
            used += PLUS + dirent.name.len() as u32;
            if used > op.size && !answer.entries.is_empty() {
                answer.eof = false;
                break;
            }
            if let Some(entry) = self.entry_of(node, &dirent).await {
                answer.entries.push(DirentPlus { cookie: dirent.cookie, name: dirent.name, entry });
            }
        }
        Ok((answer, last))
    }

    /// What a name leads to; `None` when it is gone meanwhile.
    async fn entry_of(&self, dir: Node, dirent: &Dirent) -> Option<Entry> {
        match self.find(dir, dirent.name.clone()).await {
            Ok(entry) => Some(entry),
            Err(error) if error.errno == Errno::ENOENT => None,
            Err(_) => Some(unknown(dirent)),
        }
    }

    /// One name, however the driver finds names.
    pub(crate) async fn find(&self, dir: Node, name: Name) -> Result<Entry> {
        let lookup = Lookup { dir, name };
        if self.supplied(OpCode::Lookup) {
            self.lookup(lookup).await
        } else {
            ask(self.next, self.cx, lookup).await
        }
    }

    /// Returns a reference. The driver has nothing to say about that.
    pub(crate) async fn forget(&self, node: Node) {
        let forget = Forget { node, count: 1 };
        self.next.call(self.cx, forget.into()).await;
    }
}

/// A name that exists although a lookup of it fails: node 0, so that one bad file does not hide a directory.
fn unknown(dirent: &Dirent) -> Entry {
    let mode = dirent.kind.map_or(0, |kind| kind.bits());
    Entry {
        node: Node::default(),
        generation: Generation::default(),
        attr: Attr { ino: dirent.ino, mode, ..Attr::default() },
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    }
}
