// SPDX-License-Identifier: MIT OR Apache-2.0
//! The upper directories, and what is answered for the root of a tree without asking it.

use crate::inner::Inner;
use crate::names::Found;
use crate::numbers::upper_ino;
use crate::state::{Phase, shown};
use bytes::Bytes;
use outrigger_core::attr::{R_OK, X_OK};
use outrigger_core::listing::cookie_of;
use outrigger_core::reply::{
    Attrs, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, FsStat, Granted, Opened, Ttl,
};
use outrigger_core::{
    Answer, Attr, Class, Cx, Errno, FileKind, Generation, Name, Node, Reply, Request, Result, Target,
    XattrName, lock,
};
use std::sync::Arc;
use std::time::Duration;

/// Extended attributes of the root of a tree.
const LOCATION: &str = "user.outrigger.location";
const STATE: &str = "user.outrigger.state";
const ERROR: &str = "user.outrigger.error";

/// Bytes that an entry of a listing counts as besides its name.
const DIRENT: usize = 24;
const DIRENT_PLUS: usize = 152;

/// For how long a listing that goes on takes what its first piece knew.
const LISTED: Duration = Duration::from_secs(60);

/// What statvfs(3) says of the upper directories.
const NO_SIZE: FsStat =
    FsStat { blocks: 0, bfree: 0, bavail: 0, files: 0, ffree: 0, bsize: 4096, frsize: 4096, namelen: 255 };

impl Inner {
    /// Answers a request about an upper directory.
    pub(crate) fn in_upper(self: &Arc<Self>, dir: Node, request: Request) -> Reply {
        match request {
            Request::Lookup(op) => self.find(dir, &op.name).into(),
            Request::GetAttr(_) => {
                Reply::Attrs(Attrs { attr: self.upper_attr(dir), ttl: Ttl::from(Inner::TTL) })
            }
            Request::OpenDir(_) => Reply::Opened(Opened::default()),
            Request::ReadDir(op) => Reply::Dirents(self.list(dir, op.cookie, op.size)),
            Request::ReadDirPlus(op) => Reply::DirentsPlus(self.list_plus(dir, op.cookie, op.size)),
            Request::ReleaseDir(_) | Request::FSyncDir(_) | Request::Flush(_) | Request::Release(_) => {
                Reply::Done(())
            }
            Request::StatFs(_) => Reply::FsStat(NO_SIZE),
            Request::Access(op) => Reply::Granted(Granted::of(op.mask, R_OK | X_OK)),
            Request::GetXattr(_) => Reply::Error(Errno::ENODATA.into()),
            Request::ListXattr(_) => Reply::Names(Vec::new()),
            Request::Locate(_) => self.located(&self.lock().upper(dir)),
            Request::Read(_) | Request::Open(_) => Reply::Error(Errno::EISDIR.into()),
            other if other.class() == Class::Change => Reply::Error(
                Errno::EACCES.because("the directories above the trees have no other names than these"),
            ),
            _ => Reply::Error(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Whether a request about the root of a tree is answered without the tree.
    pub(crate) fn answers_for_root(&self, request: &Request) -> bool {
        matches!(
            request,
            Request::GetAttr(_)
                | Request::Locate(_)
                | Request::GetXattr(_)
                | Request::ListXattr(_)
                | Request::SetXattr(_)
                | Request::RemoveXattr(_)
        )
    }

    /// Answers such a request.
    pub(crate) fn of_root<'a>(self: &'a Arc<Self>, cx: &'a Cx, root: u64, request: Request) -> Answer<'a> {
        Answer::Ready(match request {
            Request::GetAttr(_) => return Answer::later(self.attributes_of_root(cx, root, request)),
            Request::Locate(_) => {
                let path = self.with_tree(root, |tree| tree.path.clone()).unwrap_or_default();
                self.located(&path)
            }
            Request::GetXattr(op) => {
                let told = self.told_of_root(root);
                let value = told.into_iter().find(|(name, _)| name.as_bytes() == op.name.as_bytes());
                value.map(|(_, value)| Bytes::from(value)).ok_or(Errno::ENODATA.into()).into()
            }
            Request::ListXattr(_) => {
                let told = self.told_of_root(root);
                Reply::Names(told.iter().filter_map(|(name, _)| XattrName::new(*name).ok()).collect())
            }
            _ => {
                Reply::Error(Errno::EOPNOTSUPP.because("the attributes of the root of a tree are fixed here"))
            }
        })
    }

    /// What the extended attributes of the root of a tree tell.
    fn told_of_root(&self, root: u64) -> Vec<(&'static str, String)> {
        let told = self.with_tree(root, |tree| {
            let state = (STATE, tree.phase.name().to_owned());
            let mut told = vec![(LOCATION, tree.opener.location().to_owned()), state];
            if let Phase::Broken { error, .. } = &tree.phase {
                told.push((ERROR, error.to_string()));
            }
            told
        });
        told.unwrap_or_default()
    }

    fn located(&self, path: &[Name]) -> Reply {
        let text = if path.is_empty() { "/".to_owned() } else { shown(path) };
        Target::new(text).into()
    }

    /// What a name in an upper directory leads to.
    fn find(&self, dir: Node, name: &Name) -> Result<Entry> {
        let path = self.lock().upper(dir);
        let node = self.number_of(&path, name, true).ok_or(Errno::ENOENT)?;
        let (attr, attr_ttl) = self.shown_attr(node);
        Ok(Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::from(Inner::TTL), attr_ttl })
    }

    /// The number of what a name in the upper directory at `path` leads to, with one more reference if it `refers`.
    fn number_of(&self, path: &[Name], name: &Name, refers: bool) -> Option<Node> {
        let found = self.names.find(path, name);
        let path = [path, std::slice::from_ref(name)].concat();
        let now = self.runtime.monotonic();
        let mut state = self.lock();
        let node = match found {
            Some(Found::Directory) => state.add_upper(path),
            Some(Found::Tree(opener)) => state.add_tree(path, opener, now),
            // A name that is gone leads to its tree as long as that is in use.
            None => state.at(&path).filter(|node| {
                state.trees.get(&node.0).is_some_and(|tree| !matches!(tree.phase, Phase::Closed))
            })?,
        };
        Some(if refers { state.numbers.refer(node) } else { node })
    }

    /// The attributes of an upper directory or of the root of a tree, as far as they are known, and for how long. Those of a tree that is
    /// open are asked for when a program wants them.
    fn shown_attr(&self, node: Node) -> (Attr, Ttl) {
        match self.with_tree(node.0, |tree| tree.life_of(node.0).is_some()) {
            Some(is_open) => {
                let is_asked_for = is_open || self.options.looking_opens;
                let ttl = if is_asked_for { Ttl::NEVER } else { Ttl::from(Inner::TTL) };
                (self.root_attr(node.0), ttl)
            }
            None => (self.upper_attr(node), Ttl::from(Inner::TTL)),
        }
    }

    /// The root of a tree when it answered last; as an upper directory where it never did.
    pub(crate) fn root_attr(&self, root: u64) -> Attr {
        let known = self.with_tree(root, |tree| tree.attr.clone()).flatten();
        let ino = upper_ino(Node(root));
        known.map_or_else(|| self.upper_attr(Node(root)), |attr| Attr { ino, ..attr })
    }

    fn upper_attr(&self, node: Node) -> Attr {
        let (uid, gid) = self.options.owner;
        let (atime, mtime, ctime) = (self.born, self.born, self.born);
        let mode = FileKind::Directory.bits() | 0o555;
        let ino = upper_ino(node);
        Attr { ino, mode, nlink: 2, uid, gid, atime, mtime, ctime, blksize: 4096, ..Attr::default() }
    }

    /// The names in an upper directory by cookie: positions follow from names, so they stay whatever is added or removed. A listing
    /// that goes on takes what its first piece knew, so that all pieces together ask once.
    fn names_in(&self, dir: Node, cookie: u64) -> Arc<Vec<(u64, Name)>> {
        let now = self.runtime.monotonic();
        let known = lock(&self.listing).clone();
        if let Some(known) = known.filter(|known| cookie != 0 && known.is_of(dir, now)) {
            return known.names;
        }
        let path = self.lock().upper(dir);
        let mut names = self.names.list(&path);
        names.extend(self.lock().in_use(&path).cloned());
        let mut names: Vec<(u64, Name)> = names.into_iter().map(|name| (cookie_of(&name), name)).collect();
        names.sort_unstable();
        names.dedup();
        let names = Arc::new(names);
        *lock(&self.listing) = Some(Listing { dir, since: now, names: Arc::clone(&names) });
        names
    }

    /// A piece of a listing, and whether it is the last one. Entries take `bytes` besides their names.
    fn piece<T>(
        &self,
        dir: Node,
        (cookie, size, bytes): (u64, u32, usize),
        entry: impl Fn(u64, Name, Node) -> T,
    ) -> (Vec<T>, bool) {
        let (names, path) = (self.names_in(dir, cookie), self.lock().upper(dir));
        let (mut room, mut entries) = (Room(size as usize), Vec::new());
        for (cookie, name) in &names[names.partition_point(|(at, _)| *at <= cookie)..] {
            let Some(node) = self.number_of(&path, name, false) else { continue };
            if !room.takes(bytes + name.len(), entries.is_empty()) {
                return (entries, false);
            }
            entries.push(entry(*cookie, name.clone(), node));
        }
        *lock(&self.listing) = None;
        (entries, true)
    }

    fn list(&self, dir: Node, cookie: u64, size: u32) -> Dirents {
        let kind = Some(FileKind::Directory);
        let entry = |cookie, name, node| Dirent { ino: upper_ino(node), cookie, kind, name };
        let (entries, eof) = self.piece(dir, (cookie, size, DIRENT), entry);
        Dirents { entries, eof }
    }

    /// With attributes, but without references: a name is looked up when a program uses it.
    fn list_plus(&self, dir: Node, cookie: u64, size: u32) -> DirentsPlus {
        let entry = |cookie, name, node| {
            let (attr, ttl) = (self.shown_attr(node).0, Ttl::NEVER);
            let (node, generation) = (Node::default(), Generation(0));
            let entry = Entry { node, generation, attr, entry_ttl: ttl, attr_ttl: ttl };
            DirentPlus { cookie, name, entry }
        };
        let (entries, eof) = self.piece(dir, (cookie, size, DIRENT_PLUS), entry);
        DirentsPlus { entries, eof }
    }
}

/// The names of an upper directory while they are listed piece by piece.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    dir: Node,
    since: Duration,
    names: Arc<Vec<(u64, Name)>>,
}

impl Listing {
    fn is_of(&self, dir: Node, now: Duration) -> bool {
        self.dir == dir && now < self.since + LISTED
    }
}

/// The room that is left in a reply, in bytes.
struct Room(usize);

impl Room {
    /// Whether an entry fits; the first one does.
    fn takes(&mut self, bytes: usize, is_first: bool) -> bool {
        let fits = self.0 >= bytes;
        self.0 = self.0.saturating_sub(bytes);
        fits || is_first
    }
}
