// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories. All names are received when a directory is opened, with attributes and handles where the server gives them:
//! the cookies of a server are valid for as long as it likes, those of [`Ordered`] for ever.

use crate::convert;
use crate::exports::is_above;
use crate::inner::{Inner, known, sent};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Opened, Ttl};
use outrigger_core::{Attr, Cx, Errno, Error, FileKind, Generation, Handle, Name, Node, Result, lock};
use outrigger_proto_nfs3::nfs::{ReadDirPlusArgs, procedure as nfs};
use outrigger_proto_nfs3::results::{EntriesPlus, EntryPlus};
use outrigger_proto_nfs3::types::{Attrs, FileHandle, Verifier};
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{DIRENT, DIRENT_PLUS, Named, Ordered};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// How often a listing is begun again when the directory changes under it.
const BEGINNINGS: u32 = 5;
/// What a name takes in memory beside its bytes: it and what it leads to, twice while names are put in order.
const ITEM: usize = 768;

/// A name that is listed.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    name: Name,
    ino: u64,
    found: Option<(FileHandle, Attrs)>,
}

impl Named for Item {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// What is listed in a directory, with the memory that it takes.
struct Listed {
    names: Ordered<Item>,
    _room: Room,
}

type Listing = Arc<Listed>;

/// Memory that a listing takes, of that for all open directories.
#[derive(Default)]
struct Room {
    all: Arc<AtomicUsize>,
    size: usize,
}

impl Room {
    /// Takes more.
    ///
    /// # Errors
    /// When there is not so much.
    fn take(&mut self, more: usize, max: usize) -> Result<()> {
        self.size += more;
        let all = self.all.fetch_add(more, Ordering::Relaxed) + more;
        if self.size > max {
            return Err(Errno::EFBIG.because("the directory has more names than max_listing= has room for"));
        }
        if all > max {
            return Err(Errno::ENOMEM.because(
                "directories are open that have more names together than max_listing= has room for",
            ));
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// All open directories, with what is listed in them and whether it was read.
#[derive(Default)]
pub(crate) struct Dirs {
    last: AtomicU64,
    /// How much memory listings take.
    size: Arc<AtomicUsize>,
    open: Mutex<HashMap<Handle, (Listing, bool)>>,
}

impl Dirs {
    pub(crate) fn close(&self, handle: Handle) {
        lock(&self.open).remove(&handle);
    }
}

impl Inner {
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<Opened> {
        let listing = self.list(&self.auth(cx), node).await?;
        let handle = Handle(self.dirs.last.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.dirs.open).insert(handle, (listing, false));
        Ok(Opened { handle, ..Opened::default() })
    }

    async fn list(&self, auth: &Auth, node: Node) -> Result<Listing> {
        let dir = self.known(auth, node).await?;
        if dir.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if is_above(&dir) {
            let item = |name| Item { name, ino: dir.ino, found: None };
            let items = self.names_above(node).await?.into_iter().map(item).collect();
            return Ok(Arc::new(Listed { names: Ordered::new(items, None), _room: Room::default() }));
        }
        for _ in 1..BEGINNINGS {
            match self.receive(auth, node, sent(&dir)?).await {
                // The server takes no cookies from before a change of the directory.
                Err(error) if error.errno == Errno::EAGAIN => {}
                listing => return listing,
            }
        }
        let listing = self.receive(auth, node, sent(&dir)?).await;
        listing.map_err(|error| match error.errno {
            Errno::EAGAIN => Errno::EIO.because("the directory changes faster than the server lists it"),
            _ => error,
        })
    }

    /// The whole listing of a directory.
    async fn receive(&self, auth: &Auth, node: Node, dir: FileHandle) -> Result<Listing> {
        let (mut items, mut odd) = (Vec::new(), None);
        let mut room = Room { all: Arc::clone(&self.dirs.size), size: 0 };
        let (mut cookie, mut verifier) = (0, Verifier::default());
        loop {
            let page = self.page(auth, dir, (cookie, verifier)).await?;
            let Some(last) = page.entries.0.last() else {
                if page.eof {
                    break;
                }
                return Err(Errno::EIO.because("the server lists nothing, and not the end of the directory"));
            };
            if last.cookie == cookie && !page.eof {
                return Err(Errno::EIO.because("the server lists the same names again and again"));
            }
            (cookie, verifier) = (last.cookie, page.verifier);
            let size = page.entries.0.iter().map(|entry| ITEM + entry.name.len()).sum();
            room.take(size, self.options.max_listing)?;
            for entry in page.entries.0 {
                if matches!(&**entry.name, b"." | b"..") {
                    continue;
                }
                match Name::new(bytes::Bytes::copy_from_slice(&entry.name)) {
                    Ok(name) => items.push(item(name, entry)),
                    Err(_) => _ = odd.get_or_insert_with(|| no_name(&entry.name)),
                }
            }
            if page.eof {
                break;
            }
        }
        for name in self.nested_in(node).await? {
            // A directory of this name in the outer export is hidden by the inner one.
            items.retain(|item| item.name != name);
            items.push(Item { name, ino: self.files.get(node).map_or(1, |dir| dir.ino), found: None });
        }
        Ok(Arc::new(Listed { names: Ordered::new(items, odd), _room: room }))
    }

    /// A part of a listing.
    async fn page(
        &self,
        auth: &Auth,
        dir: FileHandle,
        (cookie, verifier): (u64, Verifier),
    ) -> Result<EntriesPlus> {
        let count = self.limits(auth, dir).await?.listing;
        let args = ReadDirPlusArgs { dir, cookie, verifier, dir_count: count, max_count: count };
        self.ask::<nfs::ReadDirPlus>(auth, &args).await
    }

    /// Names of an open directory from `cookie` on, as [`Ordered::after`] has them.
    async fn names(
        &self,
        cx: &Cx,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: (usize, usize),
    ) -> Result<(Vec<(u64, Item)>, bool)> {
        let open = lock(&self.dirs.open).get(&handle).cloned();
        let listing = match open {
            Some((listing, was_read)) if cookie != 0 || !was_read => listing,
            // rewinddir(3), or what a former process has listed.
            former => {
                // There need not be room for both.
                drop(former);
                self.dirs.close(handle);
                self.list(&self.auth(cx), node).await?
            }
        };
        if handle != Handle::NONE {
            lock(&self.dirs.open).insert(handle, (Arc::clone(&listing), true));
        }
        listing.names.after(cookie, size, |name| !self.is_ours(node, name))
    }

    pub(crate) async fn read_dir(
        &self,
        cx: &Cx,
        place: (Node, Handle),
        cookie: u64,
        size: u32,
    ) -> Result<Dirents> {
        let (names, eof) = self.names(cx, place, cookie, (size as usize, DIRENT)).await?;
        let dirent = |(cookie, Item { name, ino, found })| {
            let kind = found.map(|(_, attrs)| convert::kind(attrs.kind));
            Dirent { ino, cookie, kind, name }
        };
        Ok(Dirents { entries: names.into_iter().map(dirent).collect(), eof })
    }

    pub(crate) async fn read_dir_plus(
        &self,
        cx: &Cx,
        place: (Node, Handle),
        cookie: u64,
        size: u32,
    ) -> Result<DirentsPlus> {
        let (names, eof) = self.names(cx, place, cookie, (size as usize, DIRENT_PLUS)).await?;
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, Item { name, ino, found }) in names {
            let entry = match found {
                Some((handle, attrs)) => {
                    self.entry(place.0, &name, (known(&handle, &attrs)?, self.attr(&attrs)))?
                }
                None => name_only(ino),
            };
            entries.push(DirentPlus { cookie, name, entry });
        }
        Ok(DirentsPlus { entries, eof })
    }
}

fn item(name: Name, entry: EntryPlus) -> Item {
    let handle = entry.object.filter(|handle| !handle.is_empty());
    Item { name, ino: entry.fileid, found: handle.zip(entry.attrs) }
}

fn no_name(name: &[u8]) -> Error {
    let shown = name[..name.len().min(100)].escape_ascii();
    Errno::EIO
        .because(format!("the server lists '{shown}', which is no name of a file: not all may be shown"))
}

/// A name about which the server says nothing more.
fn name_only(ino: u64) -> Entry {
    Entry {
        node: Node(0),
        generation: Generation(0),
        attr: Attr { ino, ..Attr::default() },
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    }
}
