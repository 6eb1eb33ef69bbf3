// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories. All names are received when a directory is opened, with attributes and handles where the server gives them:
//! the cookies of a server are valid for as long as it likes, those of [`Ordered`] for ever.

use crate::convert;
use crate::exports::is_above;
use crate::inner::{Inner, known, sent};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Opened};
use outrigger_core::{Cx, Errno, Error, FileKind, Handle, Name, Node, Result};
use outrigger_proto_nfs3::nfs::{ReadDirArgs, ReadDirPlusArgs, procedure as nfs};
use outrigger_proto_nfs3::results::{self, EntriesPlus, EntryPlus};
use outrigger_proto_nfs3::types::{Attrs, FileHandle, Verifier};
use outrigger_proto_nfs3::xdr::List;
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{DIRENT, DIRENT_PLUS, Named, OpenDirs, Ordered, name_only};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
type Listing = Arc<(Ordered<Item>, Option<OwnedSemaphorePermit>)>;

/// All open directories.
pub(crate) struct Dirs {
    pub(crate) open: OpenDirs<Listing>,
    /// How much memory listings may take, in bytes.
    room: Arc<Semaphore>,
    /// Whether the server has no READDIRPLUS.
    names_only: AtomicBool,
}

impl Dirs {
    pub(crate) fn new(max_listing: usize) -> Self {
        let room = Arc::new(Semaphore::new(max_listing.min(Semaphore::MAX_PERMITS)));
        Dirs { open: OpenDirs::default(), room, names_only: AtomicBool::new(false) }
    }
}

impl Inner {
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<Opened> {
        Ok(self.dirs.open.add(self.list(&self.auth(cx), node).await?))
    }

    async fn list(&self, auth: &Auth, node: Node) -> Result<Listing> {
        let dir = self.known(auth, node).await?;
        if dir.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if is_above(&dir) {
            let item = |name| Item { name, ino: dir.ino, found: None };
            let items = self.names_above(node).await?.into_iter().map(item).collect();
            return Ok(Arc::new((Ordered::new(items, None), None)));
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
        let (mut room, names_only) = (None, self.dirs.names_only.load(Ordering::Relaxed));
        let (mut cookie, mut verifier) = (0, Verifier::default());
        loop {
            let page = self.page(auth, dir, (cookie, verifier), names_only).await?;
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
            self.take_room(&mut room, page.entries.0.iter().map(|entry| ITEM + entry.name.len()).sum())?;
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
        let nested: HashSet<Name> = self.nested_in(node).await?.into_iter().collect();
        if !nested.is_empty() {
            // A directory of this name in the outer export is hidden by the inner one.
            items.retain(|item| !nested.contains(&item.name));
            let ino = self.files.get(node).map_or(1, |dir| dir.ino);
            items.extend(nested.into_iter().map(|name| Item { name, ino, found: None }));
        }
        Ok(Arc::new((Ordered::new(items, odd), room)))
    }

    /// Takes more memory for a listing, of that for all open directories.
    fn take_room(&self, room: &mut Option<OwnedSemaphorePermit>, more: usize) -> Result<()> {
        let size = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) + more;
        let taken = Arc::clone(&self.dirs.room).try_acquire_many_owned(more as u32).map_err(|_| {
            match size > self.options.max_listing {
                true => Errno::EFBIG.because("the directory has more names than max_listing= has room for"),
                false => Errno::ENOMEM.because(
                    "directories are open that have more names together than max_listing= has room for",
                ),
            }
        })?;
        match room {
            Some(room) => room.merge(taken),
            None => *room = Some(taken),
        }
        Ok(())
    }

    /// A part of a listing, from a server without READDIRPLUS the names alone: what they lead to is looked up when it is asked for.
    async fn page(
        &self,
        auth: &Auth,
        dir: FileHandle,
        (cookie, verifier): (u64, Verifier),
        names_only: bool,
    ) -> Result<EntriesPlus> {
        let count = self.limits(auth, dir).await?.listing;
        if !names_only {
            let args = ReadDirPlusArgs { dir, cookie, verifier, dir_count: count, max_count: count };
            return match self.ask::<nfs::ReadDirPlus>(auth, &args).await {
                Err(error) if error.errno == Errno::EOPNOTSUPP => {
                    self.dirs.names_only.store(true, Ordering::Relaxed);
                    // From the beginning: cookies of one procedure are none of the other.
                    Err(Errno::EAGAIN.into())
                }
                page => page,
            };
        }
        let args = ReadDirArgs { dir, cookie, verifier, count };
        let page = self.ask::<nfs::ReadDir>(auth, &args).await?;
        let plus = |entry: results::Entry| EntryPlus {
            fileid: entry.fileid,
            name: entry.name,
            cookie: entry.cookie,
            attrs: None,
            object: None,
        };
        let entries = List(page.entries.0.into_iter().map(plus).collect());
        Ok(EntriesPlus { dir_attrs: page.dir_attrs, verifier: page.verifier, entries, eof: page.eof })
    }

    /// Names of a directory from `cookie` on, as [`Ordered::after`] has them.
    async fn names(
        &self,
        cx: &Cx,
        (node, handle): (Node, Handle),
        cookie: u64,
        size: (usize, usize),
    ) -> Result<(Vec<(u64, Item)>, bool)> {
        let auth = self.auth(cx);
        let listing = self.dirs.open.listing(handle, cookie, async || self.list(&auth, node).await).await?;
        let silly = self.silly_rename(&auth);
        listing.0.after(cookie, size, |name| !silly.has(node, name))
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
                None => name_only(ino, None),
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
