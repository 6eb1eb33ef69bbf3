// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories. All names are received when a directory is opened: the offsets of a server are valid as long as it likes,
//! the cookies of [`Ordered`] for ever. What they lead to is asked for, many names at a time, where attributes are wanted and the listing has
//! none.

use crate::convert;
use crate::dialect::Listed;
use crate::inner::{Inner, is_above};
use crate::near::{Goal, LASTS, Trail};
use crate::wire::Fault;
use futures_util::future::join_all;
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Opened};
use outrigger_core::{Attr, BoxFuture, Cx, Errno, Error, FileKind, Handle, Name, Node, Result};
use outrigger_toolkit_remote::{DIRENT, DIRENT_PLUS, KnownFile, Named, OpenDirs, Ordered, name_only};
use std::sync::Arc;
use tokio::time::Instant;

/// What a name takes in memory beside its bytes, twice while names are put in order.
const ITEM: usize = 256;
/// How many names are looked up at once.
const AT_ONCE: usize = 256;

/// A name that is listed.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    name: Name,
    ino: u64,
    kind: Option<FileKind>,
    /// What the listing tells of the file, if anything.
    found: Option<Box<(KnownFile, Attr)>>,
    /// When the listing was asked for, and what had been done here by then.
    at: (Instant, u64),
}

impl Named for Item {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// All open directories.
pub(crate) type Dirs = OpenDirs<Arc<Ordered<Item>>>;

impl Inner {
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<Opened> {
        Ok(self.dirs.add(self.list(cx, node).await?))
    }

    /// The whole listing of a directory.
    async fn list(&self, cx: &Cx, node: Node) -> Result<Arc<Ordered<Item>>> {
        match self.files.get(node) {
            Some(known) if known.kind != FileKind::Directory => return Err(Errno::ENOTDIR.into()),
            Some(known) if is_above(&known) => {
                if node == Node::ROOT
                    && let Some(refused) =
                        self.refusal(self.own_user(), b"").filter(|error| error.errno == Errno::EACCES)
                {
                    return Err(refused);
                }
                let why = "the server does not tell what trees it has: name one, or a directory in one, after the host";
                return Err(Errno::EACCES.because(why));
            }
            _ => {}
        }
        let uid = self.uid(cx);
        self.with(uid, |session| async move {
            let dir = self.reach(&session, uid, node).await?;
            let at = (Instant::now(), self.doings.now());
            let mut pages = session.list(&dir).await?;
            let (mut items, mut odd, mut size) = (Vec::new(), None, 0);
            loop {
                let page = session.page(&mut pages).await?;
                if page.is_empty() {
                    break;
                }
                size += page.iter().map(room).sum::<usize>();
                if size > self.options.max_listing {
                    let why = "the directory has more names than max_listing= has room for";
                    return Err(Errno::EFBIG.because(why).into());
                }
                take(page, at, &mut items, &mut odd);
            }
            Ok::<_, Fault>(Arc::new(Ordered::new(items, odd)))
        })
        .await
    }

    /// Puts the names in a directory on stable storage.
    pub(crate) async fn fsync_dir(&self, cx: &Cx, node: Node) -> Result<()> {
        let uid = self.uid(cx);
        self.with(uid, |session| async move {
            let dir = self.reach(&session, uid, node).await?;
            session.sync_dir(dir.number).await
        })
        .await
    }

    /// Names of a directory from `cookie` on, as [`Ordered::after`] has them.
    async fn names(
        &self,
        cx: &Cx,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: (usize, usize),
    ) -> Result<(Vec<(u64, Item)>, bool)> {
        let listing = self.dirs.listing(handle, cookie, async || self.list(cx, node).await).await?;
        let silly = self.silly_rename(self.uid(cx));
        listing.after(cookie, size, |name| !silly.has(node, name))
    }

    pub(crate) async fn read_dir(
        &self,
        cx: &Cx,
        place: (Node, Handle),
        cookie: u64,
        size: u32,
    ) -> Result<Dirents> {
        let (names, eof) = self.names(cx, place, cookie, (size as usize, DIRENT)).await?;
        let dirent = |(cookie, Item { name, ino, kind, .. })| Dirent { ino, cookie, kind, name };
        Ok(Dirents { entries: names.into_iter().map(dirent).collect(), eof })
    }

    pub(crate) async fn read_dir_plus(
        &self,
        cx: &Cx,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: u32,
    ) -> Result<DirentsPlus> {
        let (names, eof) = self.names(cx, (node, handle), cookie, (size as usize, DIRENT_PLUS)).await?;
        let uid = self.uid(cx);
        let mut entries = Vec::with_capacity(names.len());
        for part in names.chunks(AT_ONCE) {
            let question = self.changes.ask();
            let find = |(_, item): &(u64, Item)| -> BoxFuture<'_, _> {
                Box::pin(self.found(uid, node, item.clone()))
            };
            for ((cookie, item), found) in part.iter().zip(join_all(part.iter().map(find)).await) {
                let entry = match found {
                    // The name was changed here meanwhile: the entry has no attributes, and the next lookup requests them.
                    Ok(found) => question
                        .unless_changed(node, &item.name, || self.reached(node, &item.name, found))
                        .unwrap_or_else(|| Ok(name_only(item.ino, item.kind)))?,
                    // It was removed meanwhile.
                    Err(error) if error.errno == Errno::ENOENT => continue,
                    Err(_) => name_only(item.ino, item.kind),
                };
                entries.push(DirentPlus { cookie: *cookie, name: item.name.clone(), entry });
            }
        }
        Ok(DirentsPlus { entries, eof })
    }

    /// What a name leads to: as the listing has it, if that is recent and nothing was changed here since it was asked for.
    async fn found(&self, uid: u32, dir: Node, item: Item) -> Result<((KnownFile, Attr), Option<Trail>)> {
        let (listed, doings) = item.at;
        if let Some(found) = item.found
            && listed.elapsed() < LASTS
            && self.doings.now() == doings
        {
            return Ok((*found, None));
        }
        let goal = Goal::Name(dir, &item.name);
        self.with(uid, |session| async move { self.find(&session, uid, goal).await }).await
    }
}

/// Takes the entries of a page, and notes the first name that is none.
fn take(page: Vec<Listed>, at: (Instant, u64), items: &mut Vec<Item>, odd: &mut Option<Error>) {
    for entry in page.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
        let shown = entry.name.escape_ascii().take(100).map(char::from).collect::<String>();
        match Name::new(bytes::Bytes::copy_from_slice(&entry.name)) {
            Ok(name) => {
                let found =
                    entry.attrs.and_then(|told| Some((convert::known(&told).ok()?, convert::attr(&told))));
                items.push(Item { name, ino: entry.ino, kind: entry.kind, found: found.map(Box::new), at });
            }
            Err(_) => {
                let why =
                    format!("the server lists '{shown}', which is no name of a file: not all may be shown");
                _ = odd.get_or_insert_with(|| Errno::EIO.because(why));
            }
        }
    }
}

/// The memory that a name takes, in bytes.
fn room(entry: &Listed) -> usize {
    ITEM + entry.name.len() + entry.attrs.as_ref().map_or(0, |_| 2 * size_of::<(KnownFile, Attr)>())
}
