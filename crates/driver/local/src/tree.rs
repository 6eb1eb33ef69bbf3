// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes and the files they stand for.
//!
//! Nothing here follows a symbolic link or leaves the tree: a name is one component, looked up relative to the
//! descriptor of its directory, and a node is opened from its handle or from a descriptor.

use crate::attr::{attr, failed, kind, stat};
use crate::fd_cache::FdCache;
use crate::handle::{FileHandle, MountId};
use crate::held::HeldNodes;
use crate::node_set::NodeSet;
use crate::options::LocalOptions;
use crate::packing::Packing;
use crate::paths::{Paths, Start, open_beneath};
use crate::xattr;
use outrigger_core::NodeTable;
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Errno, Error, FileKind, Generation, Name, Node, XattrName};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Statx, fstat, openat};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// A served directory.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Opened for listing, so that it also serves as the mount of open_by_handle_at(2).
    root: Arc<OwnedFd>,
    handles: Option<Handles>,
    paths: Paths,
    descriptors: FdCache,
    /// Those known to be regular files, so that opening one needs no stat before.
    regular: NodeSet,
    /// Those without a name that never had one, or may have lost the last one through this driver.
    nameless: NodeSet,
    ttl: Ttl,
}

/// How many directories a way may have that is gone each time anew.
const LONG_WAY: usize = 64;

/// What file handles need: their form, and which mount they belong to.
#[derive(Debug)]
struct Handles {
    packing: Packing,
    mount: MountId,
}

/// A name as system calls take it.
pub(crate) struct CName([u8; outrigger_core::name::NAME_MAX + 1]);

impl CName {
    /// `name` with a NUL after it.
    pub(crate) fn new(name: &Name) -> Self {
        let mut bytes = [0; outrigger_core::name::NAME_MAX + 1];
        bytes[..name.len()].copy_from_slice(name);
        CName(bytes)
    }

    /// The name.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // A `Name` has at most NAME_MAX bytes, so the last byte is NUL.
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Where the kernel shows descriptor `fd` of this process as a path that needs no lookup.
pub(crate) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Where the kernel shows that an open file is.
fn path_of(fd: impl AsFd) -> Result<Vec<u8>, Error> {
    let path = rustix::fs::readlinkat(CWD, proc_path(fd), Vec::new()).map_err(failed)?;
    Ok(path.into_bytes())
}

impl Tree {
    /// Opens `path`, with the nodes that `table` knows by path and the descriptors in `held`.
    pub(crate) fn open(
        path: &Path,
        options: &LocalOptions,
        table: NodeTable,
        held: HeldNodes,
    ) -> Result<Self, Error> {
        let root = match held.get(Node::ROOT) {
            Some(root) => root,
            None => {
                let root = Arc::new(open_root(path, options.xdev).map_err(|error| {
                    let reason = format!("cannot open {} as a directory: {}", path.display(), error.errno);
                    error.errno.because(error.reason.unwrap_or_else(|| reason.into()))
                })?);
                held.put(Node::ROOT, Arc::clone(&root));
                root
            }
        };
        let handles = if options.handles { Handles::probe(root.as_fd()) } else { None };
        Ok(Tree {
            root,
            paths: Paths::new(table, handles.is_some(), held),
            handles,
            descriptors: FdCache::new(options.descriptors),
            regular: NodeSet::new(),
            nameless: NodeSet::new(),
            ttl: options.cache,
        })
    }

    /// Whether nodes mean the same file for ever.
    pub(crate) fn is_persistent(&self) -> bool {
        self.handles.is_some()
    }

    /// The root directory, opened for reading.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A descriptor of `node`: `O_PATH` except for the root.
    ///
    /// # Errors
    /// `ESTALE` when the file is gone.
    pub(crate) fn at(&self, node: Node) -> Result<Arc<OwnedFd>, Error> {
        if node == Node::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(fd) = self.descriptors.get(node) {
            return Ok(fd);
        }
        let fd = match &self.handles {
            Some(handles) if !self.paths.has(node) => handles.open(self.root(), node, OFlags::PATH)?,
            _ => match self.paths.held(node) {
                Some(fd) => return Ok(fd),
                None => self.open_known_path(node)?,
            },
        };
        let fd = Arc::new(fd);
        self.descriptors.put(node, Arc::clone(&fd));
        Ok(fd)
    }

    /// Opens a node that is known by path where it is, if it still is there.
    fn open_known_path(&self, node: Node) -> Result<OwnedFd, Error> {
        for (start, way) in self.paths.whereabouts(node, |dir| self.descriptors.get(dir))? {
            let start = match start {
                Start::Open(fd) => fd,
                Start::Node(node) => self.at(node)?,
            };
            match self.open_way(start.as_fd(), &way) {
                Ok(fd) if self.paths.is_same(node, &stat(&fd, c"").map_err(failed)?) => return Ok(fd),
                Err(error) if error.errno == Errno::EACCES || error.errno == Errno::EMFILE => {
                    return Err(error);
                }
                // Another file has the name now, or there is none.
                _ => {}
            }
        }
        Err(Errno::ESTALE.because("the file was moved or removed by others"))
    }

    /// Opens what is at the end of `way`. Of a long one the last directories are opened one by one and stay among the
    /// descriptors: who comes out of a deep tree asks for each of them next, and each would be as long a way.
    fn open_way(&self, start: BorrowedFd<'_>, way: &[(Node, Name)]) -> Result<OwnedFd, Error> {
        if way.len() <= LONG_WAY {
            return open_beneath(start, way);
        }
        let near = (self.descriptors.capacity() / 2).min(way.len() - 1);
        let (far, near) = way.split_at(way.len() - near);
        let mut at = Arc::new(open_beneath(start, far)?);
        let Some((last, near)) = near.split_last() else { return open_beneath(start, way) };
        for step in near {
            at = Arc::new(open_beneath(at.as_fd(), std::slice::from_ref(step))?);
            if self.paths.is_same(step.0, &stat(&*at, c"").map_err(failed)?) {
                self.descriptors.put(step.0, Arc::clone(&at));
            }
        }
        open_beneath(at.as_fd(), std::slice::from_ref(last))
    }

    /// Opens a node once more, with other flags.
    fn reopen(&self, node: Node, flags: OFlags) -> Result<OwnedFd, Error> {
        match &self.handles {
            Some(handles) if !self.paths.has(node) => handles.open(self.root(), node, flags),
            // The path leads to the very inode; it is itself a symbolic link that has to be followed.
            _ => {
                // Stays open until then: the number means another file as soon as it is closed.
                let at = self.at(node)?;
                let flags = (flags - OFlags::NOFOLLOW) | OFlags::CLOEXEC;
                openat(CWD, proc_path(&*at), flags, Mode::empty()).map_err(failed)
            }
        }
    }

    /// What `name` in `dir` leads to.
    pub(crate) fn find(&self, dir: Node, name: &Name) -> Result<Entry, Error> {
        self.find_at(dir, self.at(dir)?.as_fd(), name)
    }

    /// What `name` in `dir`, which `at` describes, leads to.
    pub(crate) fn find_at(&self, dir: Node, at: BorrowedFd<'_>, name: &Name) -> Result<Entry, Error> {
        let c_name = CName::new(name);
        let Some(handles) = &self.handles else {
            let st = stat(at, c_name.as_c_str()).map_err(failed)?;
            return Ok(self.entry(self.paths.found(dir, name, &st)?, &st));
        };
        if let Some(node) = handles.node_of(at, c_name.as_c_str())? {
            let st = stat(at, c_name.as_c_str()).map_err(failed)?;
            // Another file may have got the name between the two calls; then the slower way tells.
            if st.stx_ino as u32 == node.0 as u32 {
                return Ok(self.entry(node, &st));
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(at, c_name.as_c_str(), flags, Mode::empty()).map_err(failed)?;
        self.identify(dir, name, fd.as_fd())
    }

    /// The entry of an open file that has the name `name` in `dir`.
    pub(crate) fn identify(&self, dir: Node, name: &Name, fd: BorrowedFd<'_>) -> Result<Entry, Error> {
        let st = stat(fd, c"").map_err(failed)?;
        let node = match &self.handles {
            Some(handles) => handles.node_of(fd, c"")?,
            None => None,
        };
        let node = node.map_or_else(|| self.paths.found(dir, name, &st), Ok)?;
        Ok(self.entry(node, &st))
    }

    /// The directory that holds the directory `dir`; the root is its own.
    ///
    /// # Errors
    /// `ENOENT` when others moved it out of the tree; `ENOTDIR` for a file.
    pub(crate) fn parent(&self, dir: Node) -> Result<Entry, Error> {
        if dir == Node::ROOT {
            return Ok(self.entry(dir, &stat(&*self.root, c"").map_err(failed)?));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(self.at(dir)?, c"..", flags, Mode::empty()).map_err(failed)?;
        if self.path_inside(&fd)?.is_empty() {
            return self.parent(Node::ROOT);
        }
        let st = stat(&fd, c"").map_err(failed)?;
        let node = match &self.handles {
            Some(handles) => handles.node_of(fd.as_fd(), c"")?,
            None => None,
        };
        match node {
            Some(node) => Ok(self.entry(node, &st)),
            None => {
                let (parent, _) = self.paths.place(dir).ok_or(Errno::ESTALE)?;
                let (above, name) = self.paths.place(parent).ok_or(Errno::ESTALE)?;
                self.find(above, &name)
            }
        }
    }

    /// The file that has this number, where that is found from the number alone.
    ///
    /// # Errors
    /// `ESTALE` for any other number, for another generation and for a removed file.
    pub(crate) fn resolve(&self, node: Node, generation: Option<Generation>) -> Result<Entry, Error> {
        if self.handles.is_none() || self.paths.has(node) {
            return Err(Errno::ESTALE.because("the number is that of a file known by its path"));
        }
        let entry = self.entry(node, &stat(&*self.at(node)?, c"").map_err(failed)?);
        match generation {
            Some(generation) if generation != entry.generation => Err(Errno::ESTALE.into()),
            // A descriptor that happens to be open still leads to it.
            _ if entry.attr.nlink == 0 => Err(Errno::ESTALE.because("the file was removed")),
            _ => Ok(entry),
        }
    }

    /// The path of an open file below the root: empty for the root itself, else with a slash in front.
    ///
    /// # Errors
    /// `ENOENT` when it is outside, or removed.
    pub(crate) fn path_inside(&self, fd: impl AsFd) -> Result<Vec<u8>, Error> {
        let root = path_of(self.root())?;
        let path = path_of(fd)?;
        // A root that is the host's root has nothing in front of the path.
        match path.strip_prefix(if root == b"/" { &b""[..] } else { &root }) {
            Some(b"") => Ok(Vec::new()),
            Some(b"/") if root == b"/" => Ok(Vec::new()),
            Some(inside) if inside.starts_with(b"/") => Ok(inside.to_vec()),
            _ => Err(Errno::ENOENT.because("the file is outside of what is served, or removed")),
        }
    }

    /// The entry of an open file without a name.
    pub(crate) fn identify_nameless(&self, fd: BorrowedFd<'_>) -> Result<Entry, Error> {
        let st = stat(fd, c"").map_err(failed)?;
        let node = match &self.handles {
            Some(handles) => handles.node_of(fd, c"")?,
            None => None,
        };
        let found = || self.paths.found_nameless(&st, Arc::new(fd.try_clone_to_owned()?));
        let node = node.map_or_else(found, Ok)?;
        self.nameless.add(node);
        Ok(self.entry(node, &st))
    }

    fn entry(&self, node: Node, st: &Statx) -> Entry {
        if kind(st) == Some(FileKind::Regular) {
            self.regular.add(node);
        }
        let by_path = self.paths.has(node);
        let generation = if by_path { self.paths.generation(node) } else { Generation(node.0 >> 32) };
        Entry { node, generation, attr: attr(st), entry_ttl: self.ttl, attr_ttl: self.ttl }
    }

    /// The reply that carries the attributes of `fd`.
    pub(crate) fn attrs(&self, fd: impl AsFd) -> Result<Attrs, Error> {
        let attr = crate::attr::stat_fd(fd)?;
        Ok(Attrs { attr, ttl: self.ttl })
    }

    /// The reply that carries the attributes of `node`.
    ///
    /// # Errors
    /// `ESTALE` when the file is gone.
    pub(crate) fn attrs_of(&self, node: Node) -> Result<Attrs, Error> {
        if let Some((dir, name)) = self.closed(node)
            && let Ok(st) = stat(&dir, CName::new(&name).as_c_str())
            && self.paths.is_same(node, &st)
        {
            return Ok(Attrs { attr: attr(&st), ttl: self.ttl });
        }
        self.attrs(self.at(node)?)
    }

    /// The names of the extended attributes of `node`.
    ///
    /// # Errors
    /// `ESTALE` when the file is gone.
    pub(crate) fn list_xattr(&self, node: Node) -> Result<Vec<XattrName>, Error> {
        if let Some((dir, name)) = self.closed(node) {
            let name = CName::new(&name);
            let names = xattr::list_at(dir.as_fd(), name.as_c_str());
            // Names of attributes are for everybody to list, so having asked another file gives nothing away.
            let st = stat(&dir, name.as_c_str());
            if st.is_ok_and(|st| self.paths.is_same(node, &st)) {
                return names;
            }
        }
        xattr::list(self.at(node)?.as_fd())
    }

    /// The directory of a node known by path and its name there, for asking by name: fewer calls than opening the
    /// node first. None for a node that is open.
    fn closed(&self, node: Node) -> Option<(Arc<OwnedFd>, Name)> {
        let open = node == Node::ROOT || !self.paths.has(node) || self.descriptors.get(node).is_some();
        let (dir, name) = if open { None } else { self.paths.place(node) }?;
        Some((self.at(dir).ok()?, name))
    }

    /// Opens a regular file. Nothing else is ever opened: opening a pipe may wait, opening a device may act.
    ///
    /// # Errors
    /// `EISDIR`, `ELOOP` and `ENXIO` for directories, symbolic links and special files; `ESTALE` for one that others have removed: its
    /// name, if a client still knows it, leads to another file or to none.
    pub(crate) fn open_regular(&self, node: Node, flags: OFlags) -> Result<OwnedFd, Error> {
        if !self.regular.has(node) {
            let st = stat(&*self.at(node)?, c"").map_err(failed)?;
            match kind(&st) {
                Some(FileKind::Regular) => self.regular.add(node),
                Some(FileKind::Directory) => return Err(Errno::EISDIR.into()),
                Some(FileKind::Symlink) => return Err(Errno::ELOOP.into()),
                _ => return Err(Errno::ENXIO.because("only regular files are opened on the host")),
            }
        }
        let file = self.reopen(node, flags | OFlags::NOCTTY)?;
        let is_ours = || self.nameless.has(node) || self.paths.held(node).is_some();
        match fstat(&file).map_err(failed)?.st_nlink {
            0 if !is_ours() => Err(Errno::ESTALE.because("the file was removed by others")),
            _ => Ok(file),
        }
    }

    /// Opens a directory for listing.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else.
    pub(crate) fn open_directory(&self, node: Node) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if node == Node::ROOT {
            return openat(&*self.root, c".", flags, Mode::empty()).map_err(failed);
        }
        self.reopen(node, flags).map_err(|error| match error.errno {
            Errno::ELOOP => Errno::ENOTDIR.into(),
            _ => error,
        })
    }

    /// Removes a name; `REMOVEDIR` among `flags` says that it is a directory's.
    pub(crate) fn remove(&self, dir: Node, name: &Name, flags: AtFlags) -> Result<(), Error> {
        let (at, c_name) = (self.at(dir)?, CName::new(name));
        let orphan = self.orphan(dir, at.as_fd(), name);
        rustix::fs::unlinkat(&*at, c_name.as_c_str(), flags)
            .map_err(|errno| self.still_there(orphan, errno))?;
        self.paths.removed(dir, name);
        Ok(())
    }

    /// The node that may be without any name after `name` in `dir`, opened and held while it still has that: a client
    /// that refers to it expects to find it until it forgets it.
    fn orphan(&self, dir: Node, at: BorrowedFd<'_>, name: &Name) -> Option<Node> {
        if let Some(handles) = &self.handles
            && let Ok(Some(node)) = handles.node_of(at, CName::new(name).as_c_str())
        {
            // Its place is the cache of descriptors, which is bounded: not every client forgets.
            drop(self.at(node));
            self.nameless.add(node);
            return None;
        }
        let node = self.paths.loses_last_name(dir, name)?;
        self.paths.hold(node, self.at(node).ok()?).then_some(node)
    }

    /// The error of a call that was to remove the last name of `orphan`.
    fn still_there(&self, orphan: Option<Node>, errno: rustix::io::Errno) -> Error {
        if let Some(node) = orphan {
            self.paths.let_go(node);
        }
        failed(errno)
    }

    /// Moves a name.
    pub(crate) fn rename(
        &self,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
        flags: RenameFlags,
    ) -> Result<(), Error> {
        let (at, to) = (self.at(dir)?, self.at(to_dir)?);
        let (c_name, c_to_name) = (CName::new(name), CName::new(to_name));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let orphan = if exchange { None } else { self.orphan(to_dir, to.as_fd(), to_name) };
        rustix::fs::renameat_with(&*at, c_name.as_c_str(), &*to, c_to_name.as_c_str(), flags)
            .map_err(|errno| self.still_there(orphan, errno))?;
        self.paths.renamed((dir, name), (to_dir, to_name), exchange);
        Ok(())
    }

    /// Takes back `count` references to `node`.
    pub(crate) fn forget(&self, node: Node, count: u64) {
        self.descriptors.remove(node);
        if self.paths.has(node) {
            self.paths.forget(node, count);
        }
    }
}

impl Handles {
    /// The handles of the file system `root` is on, if they pack and this process may open them.
    fn probe(root: BorrowedFd<'_>) -> Option<Self> {
        let (handle, mount) = FileHandle::of(root, c"").ok()?;
        let packing = Packing::of(&handle)?;
        handle.open(root, OFlags::PATH).ok()?;
        Some(Handles { packing, mount })
    }

    /// The node of `name` in `dir` (or of `dir`, when `name` is empty) if its handle says it all.
    fn node_of(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<Node>, Error> {
        match FileHandle::of(dir, name) {
            Ok((handle, mount)) if mount == self.mount => Ok(self.packing.pack(&handle)),
            Ok(_) => Ok(None),
            // Another mount, of a file system without handles or with enormous ones.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EOVERFLOW)) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, root: BorrowedFd<'_>, node: Node, flags: OFlags) -> Result<OwnedFd, Error> {
        Ok(self.packing.unpack(node).open(root, flags | OFlags::NOFOLLOW)?)
    }
}

/// Opens the directory to serve. Without `xdev`, through a copy of its mount on which nothing else is mounted.
fn open_root(path: &Path, xdev: bool) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if xdev {
        return openat(CWD, path, flags, Mode::empty()).map_err(failed);
    }
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, path, clone).map_err(|errno| match errno {
        rustix::io::Errno::PERM => Errno::EPERM.because("xdev=off needs CAP_SYS_ADMIN: the mount is copied"),
        errno => failed(errno),
    })?;
    openat(&mount, c".", flags, Mode::empty()).map_err(failed)
}
