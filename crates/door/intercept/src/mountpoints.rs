// SPDX-License-Identifier: MIT OR Apache-2.0
//! A layer: empty directories that a tree does not have, for other trees to be mounted on.
//!
//! They are new names in the root, or below such names, and nothing of them reaches the tree. What is mounted on one stays as long as its
//! name leads to the same node, so they are never asked for again. Only the way to them is seen: in it nothing can be made.

use outrigger_core::attr::{R_OK, X_OK};
use outrigger_core::ops::{Forget, ReadDir, ReadDirPlus};
use outrigger_core::reply::{
    Attrs, COOKIE_MAX, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, FsStat, Granted, Opened, Ttl,
};
use outrigger_core::{
    Abilities, Answer, Attr, Cx, Errno, FileKind, Generation, Layer, Name, Node, OpCode, OpSet, Place, Reply,
    Request, Result, Service, Target, Time, Traverse, Visit, ask,
};
use rustix::process::{getegid, geteuid};
use std::path::{Component, Path};
use std::sync::Arc;

/// The cookie from which the directories are listed: those of names in a tree are smaller (`cookies_by_name`).
const FIRST: u64 = COOKIE_MAX / 2;
/// Bytes that an entry of a listing counts as besides its name, without and with attributes.
const DIRENT: usize = 24;
const DIRENT_PLUS: usize = 152;

/// The layer.
#[derive(Debug)]
pub struct Mountpoints {
    dirs: Vec<Dir>,
    born: Time,
}

/// A directory: where it is, and what it is called there.
#[derive(Debug)]
struct Dir {
    above: Node,
    name: Name,
}

/// The node of the directory with this index: trees count theirs from below.
fn node(index: usize) -> Node {
    Node(u64::MAX - index as u64)
}

/// Whether one of the directories is what a request is about.
struct Touched<'a> {
    layer: &'a Mountpoints,
    last: Node,
    /// The first one that is named by its node.
    node: Option<Node>,
    /// One is named by its name in the root.
    by_name: bool,
}

impl Visit for Touched<'_> {
    fn node(&mut self, node: &mut Node) {
        self.last = *node;
        if self.layer.index(*node).is_some() {
            self.node.get_or_insert(*node);
        }
    }

    fn name(&mut self, name: &mut Name) {
        self.by_name |= self.layer.find(self.last, name).is_some();
    }
}

impl Mountpoints {
    /// Directories with these absolute paths, and those above them, made at the time `born`.
    ///
    /// # Errors
    /// A name that is too long.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a Path>, born: Time) -> Result<Self> {
        let mut layer = Mountpoints { dirs: Vec::new(), born };
        for path in paths {
            let mut above = Node::ROOT;
            for part in path.components() {
                if let Component::Normal(name) = part {
                    above = layer.add(above, Name::try_from(name)?);
                }
            }
        }
        Ok(layer)
    }

    fn add(&mut self, above: Node, name: Name) -> Node {
        self.find(above, &name).unwrap_or_else(|| {
            self.dirs.push(Dir { above, name });
            node(self.dirs.len() - 1)
        })
    }

    fn find(&self, above: Node, name: &Name) -> Option<Node> {
        self.dirs.iter().position(|dir| dir.above == above && dir.name == *name).map(node)
    }

    fn index(&self, node: Node) -> Option<usize> {
        let index = usize::try_from(u64::MAX - node.0).ok()?;
        (index < self.dirs.len()).then_some(index)
    }

    fn attr(&self, node: Node) -> Attr {
        let (atime, mtime, ctime) = (self.born, self.born, self.born);
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let mode = FileKind::Directory.bits() | 0o555;
        Attr { ino: node.0, mode, nlink: 2, uid, gid, atime, mtime, ctime, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, node: Node) -> Entry {
        let (entry_ttl, attr_ttl) = (Ttl::FOREVER, Ttl::FOREVER);
        Entry { node, generation: Generation(0), attr: self.attr(node), entry_ttl, attr_ttl }
    }

    fn path(&self, mut node: Node) -> Vec<u8> {
        let mut path = Vec::new();
        while let Some(Dir { above, name }) = self.index(node).and_then(|index| self.dirs.get(index)) {
            path = [b"/", &name[..], &path].concat();
            node = *above;
        }
        path
    }

    /// Answers what is asked of one of the directories.
    fn answer(&self, node: Node, request: &Request) -> Reply {
        match request {
            Request::Lookup(op) => {
                self.find(node, &op.name).map(|found| self.entry(found)).ok_or(Errno::ENOENT.into()).into()
            }
            Request::GetAttr(_) => Reply::Attrs(Attrs { attr: self.attr(node), ttl: Ttl::FOREVER }),
            Request::OpenDir(_) => Reply::Opened(Opened::default()),
            Request::ReadDir(op) => Reply::Dirents(self.list(node, op.cookie, op.size)),
            Request::ReadDirPlus(op) => Reply::DirentsPlus(self.list_plus(node, op.cookie, op.size)),
            request if request.gives_back() || request.syncs().is_some() => Reply::Done(()),
            Request::StatFs(_) => {
                Reply::FsStat(FsStat { bsize: 4096, frsize: 4096, namelen: 255, ..FsStat::default() })
            }
            Request::Access(op) => Reply::Granted(Granted::of(op.mask, R_OK | X_OK)),
            Request::GetXattr(_) => Reply::Error(Errno::ENODATA.into()),
            Request::ListXattr(_) => Reply::Names(Vec::new()),
            Request::Locate(_) => Target::new(self.path(node)).into(),
            request if request.changes_tree() => refused(),
            _ => Reply::Error(Errno::EOPNOTSUPP.into()),
        }
    }

    /// The names in a directory after a cookie, as many as fit, and whether these are all.
    fn piece<T>(
        &self,
        above: Node,
        (cookie, size, bytes): (u64, u32, usize),
        entry: impl Fn(u64, Name, Node) -> T,
    ) -> (Vec<T>, bool) {
        let (mut entries, mut used) = (Vec::new(), 0);
        for (index, dir) in self.dirs.iter().enumerate().filter(|(_, dir)| dir.above == above) {
            let own = FIRST + 1 + index as u64;
            if own <= cookie {
                continue;
            }
            used += bytes + dir.name.len();
            if used > size as usize && !entries.is_empty() {
                return (entries, false);
            }
            entries.push(entry(own, dir.name.clone(), node(index)));
        }
        (entries, true)
    }

    fn list(&self, above: Node, cookie: u64, size: u32) -> Dirents {
        let kind = Some(FileKind::Directory);
        let entry = |cookie, name, node: Node| Dirent { ino: node.0, cookie, kind, name };
        let (entries, eof) = self.piece(above, (cookie, size, DIRENT), entry);
        Dirents { entries, eof }
    }

    /// With attributes, but without references.
    fn list_plus(&self, above: Node, cookie: u64, size: u32) -> DirentsPlus {
        let entry = |cookie, name, node| {
            let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
            let entry = Entry { node: Node::default(), entry_ttl, attr_ttl, ..self.entry(node) };
            DirentPlus { cookie, name, entry }
        };
        let (entries, eof) = self.piece(above, (cookie, size, DIRENT_PLUS), entry);
        DirentsPlus { entries, eof }
    }

    /// The names in the root: first those of the tree, of which others may have made one that is here meanwhile.
    async fn list_root(&self, next: &dyn Service, cx: &Cx, mut op: ReadDir) -> Result<Dirents> {
        while op.cookie < FIRST {
            let Dirents { mut entries, eof } = ask(next, cx, op.clone()).await?;
            op.cookie = entries.last().filter(|_| !eof).map_or(FIRST, |last| last.cookie);
            entries.retain(|dirent| self.find(Node::ROOT, &dirent.name).is_none());
            if !entries.is_empty() {
                return Ok(Dirents { entries, eof: false });
            }
        }
        Ok(self.list(Node::ROOT, op.cookie, op.size))
    }

    /// The same with attributes.
    async fn list_root_plus(&self, next: &dyn Service, cx: &Cx, mut op: ReadDirPlus) -> Result<DirentsPlus> {
        while op.cookie < FIRST {
            let DirentsPlus { entries, eof } = ask(next, cx, op.clone()).await?;
            op.cookie = entries.last().filter(|_| !eof).map_or(FIRST, |last| last.cookie);
            let is_here = |dirent: &DirentPlus| self.find(Node::ROOT, &dirent.name).is_some();
            let (covered, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_here);
            for node in covered.into_iter().map(|dirent| dirent.entry.node).filter(|node| node.0 != 0) {
                next.call(cx, Forget { node, count: 1 }.into()).await;
            }
            if !entries.is_empty() {
                return Ok(DirentsPlus { entries, eof: false });
            }
        }
        Ok(self.list_plus(Node::ROOT, op.cookie, op.size))
    }
}

fn refused() -> Reply {
    Reply::Error(Errno::EROFS.because("it is the place of a tree, or on the way to one"))
}

impl Layer for Mountpoints {
    fn place(&self) -> Place {
        Place::anywhere("mountpoints")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let mut touched = Touched { layer: self, last: Node::ROOT, node: None, by_name: false };
        request.traverse(&mut touched);
        let (node, by_name) = (touched.node, touched.by_name);
        if let Some(node) = node {
            return Answer::Ready(self.answer(node, &request));
        }
        match request {
            request @ Request::Lookup(_) if by_name => Answer::Ready(self.answer(Node::ROOT, &request)),
            request if by_name && request.changes_tree() => Answer::Ready(refused()),
            Request::ReadDir(op) if op.node == Node::ROOT => {
                Answer::later(async move { self.list_root(next, cx, op).await.into() })
            }
            Request::ReadDirPlus(op) if op.node == Node::ROOT => {
                Answer::later(async move { self.list_root_plus(next, cx, op).await.into() })
            }
            request => next.call(cx, request),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let ops = below.ops.without(OpSet::of(&[OpCode::Walk]));
        Abilities { ops, ..below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::{GetAttr, Lookup, MkDir, Rename, RenameFlags};
    use outrigger_core::{Credentials, Stack};
    use outrigger_sim::{Scripted, Sim, Step};

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    /// A tree with two names in its root, one of which is that of a directory of the layer; with how it is asked.
    fn asked() -> (Arc<Scripted>, impl Fn(Request) -> Reply) {
        let sim = Sim::new(1);
        let driver = Scripted::new(&sim, |_, request| {
            let Request::ReadDir(op) = request else { return Step::Now(Reply::Error(Errno::EIO.into())) };
            let names = [(5, "tmp"), (9, "data")].into_iter().filter(|(cookie, _)| *cookie > op.cookie);
            let entry = |(cookie, text)| Dirent { ino: cookie, cookie, kind: None, name: name(text) };
            Step::Now(Reply::Dirents(Dirents {
                entries: names.map(entry).take(1).collect(),
                eof: op.cookie >= 5,
            }))
        });
        let paths = ["/data", "/more/below", "/more/too"].map(Path::new);
        let layer = Mountpoints::new(paths, Time::default()).unwrap();
        let top = Stack::new(Arc::clone(&driver) as Arc<dyn Service>).push(layer).unwrap().service();
        let ask = move |request: Request| {
            let top = Arc::clone(&top);
            let cx = Cx::new(1, Credentials::new(0, 0), "test");
            sim.block_on(async move { top.call(&cx, request).await })
        };
        (driver, ask)
    }

    #[test]
    fn directories_are_found_and_listed_and_the_tree_hears_nothing_of_them() {
        let (driver, ask) = asked();
        let find = |dir, text: &str| match ask(Lookup { dir, name: name(text) }.into()) {
            Reply::Entry(entry) => Ok(entry.node),
            Reply::Error(error) => Err(error.errno),
            other => panic!("{other:?}"),
        };
        let more = find(Node::ROOT, "more").unwrap();
        let below = find(more, "below").unwrap();
        assert!(below != more && find(Node::ROOT, "data").unwrap() != below);
        assert_eq!(find(more, "none"), Err(Errno::ENOENT));
        let Reply::Attrs(attrs) = ask(GetAttr { node: below, handle: None }.into()) else { panic!() };
        assert_eq!((attrs.attr.mode, attrs.ttl), (0o40_555, Ttl::FOREVER));
        let made = ask(MkDir { dir: more, name: name("x"), mode: 0, umask: 0, initial: None }.into());
        assert!(matches!(made, Reply::Error(error) if error.errno == Errno::EROFS));
        let (from, flags) = (Node::ROOT, RenameFlags::empty());
        let rename = Rename { dir: from, name: name("tmp"), to_dir: from, to_name: name("data"), flags };
        assert!(matches!(ask(rename.into()), Reply::Error(error) if error.errno == Errno::EROFS));
        assert!(driver.started().is_empty());
        assert_eq!(find(Node::ROOT, "tmp"), Err(Errno::EIO));
    }

    #[test]
    fn the_root_is_listed_piece_by_piece_with_each_name_once() {
        let (_, ask) = asked();
        for size in [1, 4096] {
            let (mut cookie, mut names) = (0, Vec::new());
            loop {
                let op = ReadDir { node: Node::ROOT, handle: Default::default(), cookie, size };
                let Reply::Dirents(listed) = ask(op.into()) else { panic!() };
                names.extend(
                    listed.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()),
                );
                cookie = listed.entries.last().map_or(cookie, |last| last.cookie);
                if listed.eof {
                    break;
                }
            }
            assert_eq!(names, ["tmp", "data", "more"], "{size}");
        }
    }
}
