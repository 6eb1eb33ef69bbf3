// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories.

use crate::attr::kind;
use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::Again;
use crate::listing::{Item, Listing};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Opened, Ttl};
use outrigger_core::{Attr, Cx, Errno, FileKind, Generation, Handle, Name, Node, Result, lock};
use outrigger_proto_sftp::{Attrs, OpenFlags, Request};
use outrigger_toolkit_remote::{DIRENT, DIRENT_PLUS, Named, Ordered};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// All open directories.
#[derive(Default)]
pub(crate) struct Dirs {
    next: AtomicU64,
    open: Mutex<HashMap<Handle, Arc<OpenDir>>>,
}

/// An open directory. A cookie is the number of names before it in the listing. Of a tree that outlives this process it follows
/// from the name, and the names come in the order of their cookies: so another process, with another listing, goes on with
/// those that were not returned yet.
pub(crate) struct OpenDir {
    node: Node,
    listing: Mutex<Arc<Listing>>,
    /// All names with their cookies, in that order, once they are wanted.
    ordered: Mutex<Option<Arc<Ordered<Item>>>>,
    was_read: AtomicBool,
}

impl Named for Item {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Dirs {
    fn add(&self, dir: OpenDir) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.open).insert(handle, Arc::new(dir));
        handle
    }

    fn get(&self, handle: Handle) -> Result<Arc<OpenDir>> {
        let dir = lock(&self.open).get(&handle).cloned();
        dir.ok_or_else(|| Errno::EBADF.because("the directory is not open"))
    }

    /// # Errors
    /// `EBADF` when it is not open.
    pub(crate) fn remove(&self, handle: Handle) -> Result<()> {
        let dir = lock(&self.open).remove(&handle);
        dir.map(drop).ok_or_else(|| Errno::EBADF.because("the directory is not open"))
    }
}

impl Inner {
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<Opened> {
        if self.inodes.kind(node)? != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let dir = OpenDir {
            node,
            listing: Mutex::new(self.list(node, cx.ahead).await?),
            ordered: Mutex::default(),
            was_read: AtomicBool::new(false),
        };
        Ok(Opened { handle: self.dirs.add(dir), ..Opened::default() })
    }

    async fn list(&self, node: Node, ahead: bool) -> Result<Arc<Listing>> {
        // A file that is being removed has no name, and would be listed under the one that it is removed by.
        self.removing.none_in(node).await;
        Listing::begin(&self.link, &self.inodes.path(node)?, ahead).await
    }

    /// Names from `cookie` on, each with the cookie after it, as many as fit into `size` when each counts `each` and its
    /// name; and whether the directory ends with them.
    async fn names(
        &self,
        dir: &OpenDir,
        cookie: u64,
        size: u32,
        each: usize,
    ) -> Result<(Vec<(u64, Item)>, bool)> {
        if cookie == 0 && dir.was_read.swap(true, Ordering::Relaxed) {
            // rewinddir(3): the directory as it is now.
            let again = self.list(dir.node, false).await?;
            *lock(&dir.listing) = again;
            *lock(&dir.ordered) = None;
        }
        if self.kept.is_some() {
            let is_shown = |name: &Name| !self.is_hidden_name(dir.node, name);
            return self.ordered(dir).await?.after(cookie, (size as usize, each), is_shown);
        }
        let listing = Arc::clone(&lock(&dir.listing));
        let (mut at, mut left) = (cookie, size as usize);
        let mut names = Vec::new();
        loop {
            let first = usize::try_from(at).map_err(|_| Errno::EINVAL)?;
            let (items, is_all) = listing.from(first, left / (each + 1) + 1).await?;
            for item in items {
                let takes = each + item.name.len();
                // At least one, or a listing would never get further.
                if takes > left && !names.is_empty() {
                    return Ok((names, false));
                }
                at += 1;
                if !self.is_hidden_name(dir.node, &item.name) {
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
        let listing = Arc::clone(&lock(&dir.listing));
        let mut items = Vec::new();
        let failed = loop {
            match listing.from(items.len(), usize::MAX).await {
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

    pub(crate) async fn read_dir(&self, handle: Handle, cookie: u64, size: u32) -> Result<Dirents> {
        let dir = self.dirs.get(handle)?;
        let (names, eof) = self.names(&dir, cookie, size, DIRENT).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, Item { name, attrs }) in names {
            let (ino, kind) = self.listed(dir.node, &name, &attrs)?;
            entries.push(Dirent { ino, cookie, kind, name });
        }
        Ok(Dirents { entries, eof })
    }

    pub(crate) async fn read_dir_plus(&self, handle: Handle, cookie: u64, size: u32) -> Result<DirentsPlus> {
        let dir = self.dirs.get(handle)?;
        let (names, eof) = self.names(&dir, cookie, size, DIRENT_PLUS).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, Item { name, attrs }) in names {
            let entry = match attrs.permissions {
                Some(_) if self.people.shown(attrs.owner.unwrap_or_default()).is_ok() => {
                    self.entry(dir.node, &name, &attrs)?
                }
                // What has no owner here is no reason to hide the others.
                _ => self.name_only(dir.node, &name, &attrs)?,
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

    /// A name about which the server says nothing that can be shown. It has a number: those without one are passed over by
    /// readdir(3).
    fn name_only(&self, dir: Node, name: &Name, attrs: &Attrs) -> Result<Entry> {
        let (ino, kind) = self.listed(dir, name, attrs)?;
        Ok(Entry {
            node: Node(0),
            generation: Generation(0),
            attr: Attr { ino, mode: kind.map_or(0, FileKind::bits), ..Attr::default() },
            entry_ttl: Ttl::NEVER,
            attr_ttl: Ttl::NEVER,
        })
    }

    /// Puts the names in a directory on stable storage. The protocol has nothing for that, but servers on Unix open directories
    /// as files, and then fsync(2) does it.
    pub(crate) async fn sync_dir(&self, handle: Handle) -> Result<()> {
        let dir = self.dirs.get(handle)?;
        if !self.can_fsync()? {
            return Ok(());
        }
        let path = self.inodes.path(dir.node)?;
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
