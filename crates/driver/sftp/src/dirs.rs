// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories.

use crate::attr::kind;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use crate::listing::{Item, Listing};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Opened};
use outrigger_core::{Cx, Errno, FileKind, Handle, Name, Node, Result, lock};
use outrigger_proto_sftp::{Attrs, OpenFlags, Request};
use outrigger_toolkit_remote::{DIRENT, DIRENT_PLUS, Named, Ordered, name_only};
use std::sync::{Arc, Mutex};

/// An open directory. A cookie is the number of names before it in the listing. Of a tree that outlives this process it follows
/// from the name, and the names come in the order of their cookies: so another process, with another listing, goes on with
/// those that were not returned yet.
pub(crate) struct OpenDir {
    listing: Arc<Listing>,
    /// All names with their cookies, in that order, once they are wanted.
    ordered: Mutex<Option<Arc<Ordered<Item>>>>,
}

impl Named for Item {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Inner {
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<Opened> {
        Ok(self.dirs.add(self.list(node, cx.ahead).await?))
    }

    async fn list(&self, node: Node, ahead: bool) -> Result<Arc<OpenDir>> {
        if self.inodes.kind(node)? != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        // A file that is being removed has no name, and would be listed under the one that it is removed by.
        self.removing.none_in(node).await;
        let listing = Listing::begin(&self.link, &self.inodes.path(node)?, ahead).await?;
        Ok(Arc::new(OpenDir { listing, ordered: Mutex::default() }))
    }

    /// Names from `cookie` on, each with the cookie after it, as many as fit into `size` when each counts `each` and its
    /// name; and whether the directory ends with them.
    async fn names(
        &self,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: u32,
        each: usize,
    ) -> Result<(Vec<(u64, Item)>, bool)> {
        let dir = self.dirs.listing(handle, cookie, async || self.list(node, false).await).await?;
        if self.kept.is_some() {
            let is_shown = |name: &Name| !self.is_hidden_name(node, name);
            return self.ordered(&dir).await?.after(cookie, (size as usize, each), is_shown);
        }
        let (mut at, mut left) = (cookie, size as usize);
        let mut names = Vec::new();
        loop {
            let first = usize::try_from(at).map_err(|_| Errno::EINVAL)?;
            let (items, is_all) = dir.listing.from(first, left / (each + 1) + 1).await?;
            for item in items {
                let takes = each + item.name.len();
                // At least one, or a listing would never get further.
                if takes > left && !names.is_empty() {
                    return Ok((names, false));
                }
                at += 1;
                if !self.is_hidden_name(node, &item.name) {
                    left = left.saturating_sub(takes);
                    names.push((at, item));
                }
            }
            if is_all || !names.is_empty() {
                return Ok((names, is_all));
            }
        }
    }

    async fn ordered(&self, dir: &OpenDir) -> Result<Arc<Ordered<Item>>> {
        if let Some(ordered) = &*lock(&dir.ordered) {
            return Ok(Arc::clone(ordered));
        }
        let mut items = Vec::new();
        let failed = loop {
            match dir.listing.from(items.len(), usize::MAX).await {
                Ok((more, is_all)) => {
                    items.extend(more);
                    if is_all {
                        break None;
                    }
                }
                Err(error) => break Some(error),
            }
        };
        let ordered = Arc::new(Ordered::new(items, failed));
        *lock(&dir.ordered) = Some(Arc::clone(&ordered));
        Ok(ordered)
    }

    pub(crate) async fn read_dir(&self, dir: (Node, Handle), cookie: u64, size: u32) -> Result<Dirents> {
        let (names, eof) = self.names(dir, cookie, size, DIRENT).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, Item { name, attrs }) in names {
            let (ino, kind) = self.listed(dir.0, &name, &attrs)?;
            entries.push(Dirent { ino, cookie, kind, name });
        }
        Ok(Dirents { entries, eof })
    }

    pub(crate) async fn read_dir_plus(
        &self,
        dir: (Node, Handle),
        cookie: u64,
        size: u32,
    ) -> Result<DirentsPlus> {
        let (names, eof) = self.names(dir, cookie, size, DIRENT_PLUS).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, Item { name, attrs }) in names {
            let entry = match attrs.permissions {
                Some(_) if self.people.shown(attrs.owner.unwrap_or_default()).is_ok() => {
                    self.entry(dir.0, &name, &attrs)?
                }
                // What has no owner here is no reason to hide the others.
                _ => {
                    let (ino, kind) = self.listed(dir.0, &name, &attrs)?;
                    name_only(ino, kind)
                }
            };
            entries.push(DirentPlus { cookie, name, entry });
        }
        Ok(DirentsPlus { entries, eof })
    }

    /// The number of a listed file, and its kind, if the server says that.
    fn listed(&self, dir: Node, name: &Name, attrs: &Attrs) -> Result<(u64, Option<FileKind>)> {
        let kind = attrs.permissions.map(|_| kind(attrs));
        Ok((self.inodes.listed(dir, name, kind.unwrap_or(FileKind::Regular))?, kind))
    }

    /// Puts the names in a directory on stable storage. The protocol has nothing for that, but servers on Unix open directories
    /// as files, and then fsync(2) does it.
    pub(crate) async fn sync_dir(&self, node: Node) -> Result<()> {
        if !self.can_fsync()? {
            return Ok(());
        }
        let path = self.inodes.path(node)?;
        let synced = self.link.run(Again::Always, |session| {
            let path = &path;
            async move {
                let request = Request::Open { path, flags: OpenFlags::READ, attrs: Attrs::NONE };
                let handle = session.begin(&request).await.handle().await?;
                let synced = session.begin(&Request::FSync { handle: &handle }).await.done().await;
                session.close(&handle);
                synced
            }
        });
        match synced.await {
            Err(Fault::Refused(_)) => Err(Errno::EINVAL.because("the server cannot synchronise directories")),
            other => Ok(other?),
        }
    }
}
