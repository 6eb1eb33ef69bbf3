// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of two directories as one.
//!
//! Names come in the order of their hashes, which are their cookies: whoever has one goes on, also in another process, or after the
//! directory got its copy. A piece of a listing needs the names with the smallest hashes after a cookie, so both directories are
//! read from the start to the end, and [`WINDOW`] names are kept for the pieces to come. A directory with more is read once for
//! each [`WINDOW`] of its names; memory has bounds whatever its size.

use crate::Both;
use crate::nodes::{Bound, Side, ino};
use outrigger_core::listing::cookie_of;
use outrigger_core::ops::{OpenDir, ReadDir, ReleaseDir};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Ttl};
use outrigger_core::whiteout::{hidden_by, is_reserved};
use outrigger_core::{Attr, Errno, FileKind, Generation, Handle, Name, Node, OpCode, Result, ask, lock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many names of a directory are kept.
const WINDOW: usize = 1 << 15;
/// How many windows are kept.
const WINDOWS: usize = 8;
/// For how long a window is used.
const AGE: Duration = Duration::from_secs(5);
/// How much of a directory is asked for at once, in bytes.
const PIECE: u32 = 1 << 17;
/// What an entry counts towards the size of a listing, apart from its name, without and with attributes.
const PLAIN: u32 = 24;
const PLUS: u32 = 152;

/// A name that is shown: its inode number and kind.
#[derive(Clone, Copy)]
struct Shown {
    ino: u64,
    kind: Option<FileKind>,
}

/// The names of a directory with hashes above `after`, and up to `last` where there are more.
pub(crate) struct Window {
    after: u64,
    last: Option<u64>,
    names: Vec<(u64, Name, Shown)>,
}

impl Window {
    /// Whether nothing is shown in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether it tells what comes after a cookie.
    fn covers(&self, cookie: u64) -> bool {
        self.after <= cookie && self.last.is_none_or(|last| cookie < last)
    }
}

/// A window that is kept.
pub(crate) struct Kept {
    dir: Node,
    made: Duration,
    window: Arc<Window>,
}

/// The names with the smallest hashes; `None` for those that are hidden.
struct Smallest {
    after: u64,
    bound: Option<u64>,
    names: BTreeMap<(u64, Name), Option<Shown>>,
}

impl Smallest {
    fn add(&mut self, name: Name, shown: Option<Shown>, replace: bool) {
        let hash = cookie_of(&name);
        if hash <= self.after || self.bound.is_some_and(|bound| hash > bound) {
            return;
        }
        if replace {
            self.names.insert((hash, name), shown);
        } else {
            self.names.entry((hash, name)).or_insert(shown);
        }
        if self.names.len() > WINDOW
            && let Some(((largest, _), _)) = self.names.pop_last()
        {
            // Names with the same hash stay together.
            while self.names.last_key_value().is_some_and(|((hash, _), _)| *hash == largest) {
                self.names.pop_last();
            }
            self.bound = Some(largest - 1);
        }
    }
}

impl Both<'_> {
    /// Opens a directory of one of the trees, where that is needed.
    pub(crate) async fn open_dir(&self, side: Side, node: Node) -> Result<Handle> {
        match self.ops(side).has(OpCode::OpenDir) {
            true => Ok(ask(self.tree(side), &self.own, OpenDir { node }).await?.handle),
            false => Ok(Handle::NONE),
        }
    }

    pub(crate) async fn close_dir(&self, side: Side, node: Node, handle: Handle) {
        if self.ops(side).has(OpCode::ReleaseDir) {
            self.tree(side).call(&self.own, ReleaseDir { node, handle }.into()).await;
        }
    }

    /// Reads all of a directory of one tree, and gives each entry to `add`; `false` from it ends the listing.
    async fn each(&self, side: Side, node: Node, mut add: impl FnMut(Dirent) + Send) -> Result<()> {
        let handle = self.open_dir(side, node).await?;
        let read = async {
            let mut cookie = 0;
            loop {
                let listed =
                    ask(self.tree(side), &self.own, ReadDir { node, handle, cookie, size: PIECE }).await?;
                match listed.entries.last() {
                    Some(last) if last.cookie != cookie => cookie = last.cookie,
                    _ => return Ok(()),
                }
                listed.entries.into_iter().for_each(&mut add);
                if listed.eof {
                    return Ok(());
                }
                if self.cx.cancel.is_raised() {
                    return Err(Errno::EINTR.into());
                }
            }
        };
        let read = read.await;
        self.close_dir(side, node, handle).await;
        read
    }

    /// The names after a cookie.
    pub(crate) async fn scan(&self, dir: &Bound, after: u64) -> Result<Window> {
        let mut smallest = Smallest { after, bound: None, names: BTreeMap::new() };
        let shown = |side, dirent: &Dirent| Shown { ino: ino(side, dirent.ino, 0), kind: dirent.kind };
        if let Some(upper) = dir.upper {
            self.each(Side::Upper, upper, |dirent| match hidden_by(&dirent.name) {
                Some(hidden) => {
                    if let Ok(hidden) = Name::new(hidden.to_vec()) {
                        smallest.add(hidden, None, false);
                    }
                }
                None => {
                    let shown = shown(Side::Upper, &dirent);
                    smallest.add(dirent.name, Some(shown), true);
                }
            })
            .await?;
        }
        for ((_, name), shown) in &mut smallest.names {
            if !matches!(shown, Some(Shown { kind: None | Some(FileKind::CharDevice), .. })) {
                continue;
            }
            let seen = self.see(&Bound { lower: None, ..*dir }, name).await?;
            self.forget_all(seen.spare()).await;
            if seen.is_device {
                *shown = None;
            }
        }
        if let Some(lower) = dir.lower {
            self.each(Side::Lower, lower, |dirent| {
                if !is_reserved(&dirent.name) {
                    let shown = shown(Side::Lower, &dirent);
                    smallest.add(dirent.name, Some(shown), false);
                }
            })
            .await?;
        }
        let Smallest { after, bound, names } = smallest;
        let names = names.into_iter().filter_map(|((hash, name), shown)| Some((hash, name, shown?)));
        Ok(Window { after, last: bound, names: names.collect() })
    }

    /// The window with what comes after a cookie.
    async fn window(&self, dir: Node, cookie: u64) -> Result<Arc<Window>> {
        let now = self.union.runtime.monotonic();
        let is_young = |kept: &Kept| now.saturating_sub(kept.made) < AGE;
        if cookie != 0 {
            let kept = lock(&self.union.windows);
            let fits = |kept: &&Kept| kept.dir == dir && kept.window.covers(cookie) && is_young(kept);
            if let Some(kept) = kept.iter().rev().find(fits) {
                return Ok(Arc::clone(&kept.window));
            }
        }
        let window = Arc::new(self.scan(&self.nodes().bound(dir)?, cookie).await?);
        let mut kept = lock(&self.union.windows);
        kept.retain(|kept| kept.dir != dir && is_young(kept));
        if kept.len() == WINDOWS {
            kept.remove(0);
        }
        kept.push(Kept { dir, made: now, window: Arc::clone(&window) });
        Ok(window)
    }

    /// A piece of a listing.
    pub(crate) async fn readdir(&self, op: ReadDir) -> Result<Dirents> {
        let (mut at, mut used, mut entries) = (op.cookie, 0, Vec::new());
        loop {
            let window = self.window(op.node, at).await?;
            let start = window.names.partition_point(|(hash, ..)| *hash <= at);
            for (cookie, name, shown) in &window.names[start..] {
                used += PLAIN + name.len() as u32;
                if used > op.size && !entries.is_empty() {
                    return Ok(Dirents { entries, eof: false });
                }
                let ino = self.nodes().at(op.node, name).map_or(shown.ino, |bound| bound.ino);
                entries.push(Dirent { ino, cookie: *cookie, kind: shown.kind, name: name.clone() });
            }
            match window.last {
                None => return Ok(Dirents { entries, eof: true }),
                Some(_) if !entries.is_empty() => return Ok(Dirents { entries, eof: false }),
                // All names of the window are hidden.
                Some(last) => at = last,
            }
        }
    }

    /// A piece of a listing with what the names lead to.
    pub(crate) async fn readdirplus(&self, node: Node, mut cookie: u64, size: u32) -> Result<DirentsPlus> {
        loop {
            let plain = ReadDir { node, handle: Handle::NONE, cookie, size: (size / 4).max(PLAIN + 255) };
            let listed = self.readdir(plain).await?;
            let (mut entries, mut used, mut eof) = (Vec::new(), 0, listed.eof);
            for dirent in listed.entries {
                used += PLUS + dirent.name.len() as u32;
                if used > size && !entries.is_empty() {
                    eof = false;
                    break;
                }
                cookie = dirent.cookie;
                let entry = match self.lookup(node, &dirent.name).await {
                    Ok(entry) => entry,
                    Err(error) if error.errno == Errno::ENOENT => continue,
                    Err(_) => unknown(&dirent),
                };
                entries.push(DirentPlus { cookie, name: dirent.name, entry });
            }
            if eof || !entries.is_empty() {
                return Ok(DirentsPlus { entries, eof });
            }
        }
    }
}

/// A name that exists although a lookup of it fails.
fn unknown(dirent: &Dirent) -> Entry {
    let mode = dirent.kind.map_or(0, FileKind::bits);
    let attr = Attr { ino: dirent.ino, mode, ..Attr::default() };
    let (generation, entry_ttl, attr_ttl) = (Generation::default(), Ttl::NEVER, Ttl::NEVER);
    Entry { node: Node::default(), generation, attr, entry_ttl, attr_ttl }
}
