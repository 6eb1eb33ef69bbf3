// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes and the files they stand for.
//!
//! Nothing here follows a symbolic link or leaves the tree: a name is one component, looked up relative to the
//! descriptor of its directory, and a node is opened from its handle or from a descriptor.

use crate::attr::{attr, failed, kind, stat};
use crate::fd_cache::FdCache;
use crate::handle::{FileHandle, MountId};
use crate::packing::Packing;
use crate::regular::RegularNodes;
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Errno, Error, FileKind, Generation, Name, Node};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Statx, openat};
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
    descriptors: FdCache,
    regular: RegularNodes,
    ttl: Ttl,
}

/// What file handles need: their form, and which mount they belong to.
#[derive(Debug)]
struct Handles {
    packing: Packing,
    mount: MountId,
}

/// A name as system calls take it.
pub(crate) struct CName([u8; outrigger_core::name::NAME_MAX + 1]);

impl CName {
    /// `name` with a NUL behind it.
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

impl Tree {
    /// Opens `path`, keeping at most `descriptors` descriptors of nodes and letting caches believe it for `ttl`.
    pub(crate) fn open(path: &Path, descriptors: usize, ttl: Ttl) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).map_err(|errno| {
            let error = failed(errno);
            let reason = format!("cannot open {} as a directory: {}", path.display(), error.errno);
            error.errno.because(reason)
        })?;
        let handles = Handles::probe(root.as_fd());
        let descriptors = FdCache::new(descriptors);
        Ok(Tree { root: Arc::new(root), handles, descriptors, regular: RegularNodes::new(), ttl })
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
        let fd = Arc::new(self.reopen(node, OFlags::PATH)?);
        self.descriptors.put(node, Arc::clone(&fd));
        Ok(fd)
    }

    fn reopen(&self, node: Node, flags: OFlags) -> Result<OwnedFd, Error> {
        let handles = self.handles.as_ref().ok_or(Errno::ESTALE)?;
        let handle = handles.packing.unpack(node);
        Ok(handle.open(self.root.as_fd(), flags | OFlags::NOFOLLOW)?)
    }

    /// What `name` in `dir` leads to.
    pub(crate) fn find(&self, dir: Node, name: &Name) -> Result<Entry, Error> {
        self.find_at(dir, self.at(dir)?.as_fd(), name)
    }

    /// What `name` in `dir`, which `at` describes, leads to.
    pub(crate) fn find_at(&self, dir: Node, at: BorrowedFd<'_>, name: &Name) -> Result<Entry, Error> {
        let c_name = CName::new(name);
        if let Some(handles) = &self.handles {
            let (handle, mount) = FileHandle::of(at, c_name.as_c_str())?;
            if let Some(node) = handles.node(&handle, mount) {
                let st = stat(at, c_name.as_c_str()).map_err(failed)?;
                // Another file may have got the name between the two calls; then the slower way tells.
                if st.stx_ino as u32 == node.0 as u32 {
                    return Ok(self.entry(node, &st));
                }
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(at, c_name.as_c_str(), flags, Mode::empty()).map_err(failed)?;
        self.identify(dir, Some(name), fd.as_fd())
    }

    /// The entry of an open file that has the name `name`, if any, in `dir`.
    pub(crate) fn identify(
        &self,
        _dir: Node,
        _name: Option<&Name>,
        fd: BorrowedFd<'_>,
    ) -> Result<Entry, Error> {
        let st = stat(fd, c"").map_err(failed)?;
        let handles = self.handles.as_ref().ok_or(Errno::ESTALE)?;
        let (handle, mount) = FileHandle::of(fd, c"")?;
        let node = handles.node(&handle, mount).ok_or(Errno::EXDEV)?;
        Ok(self.entry(node, &st))
    }

    fn entry(&self, node: Node, st: &Statx) -> Entry {
        if kind(st) == Some(FileKind::Regular) {
            self.regular.add(node);
        }
        Entry {
            node,
            generation: Generation(node.0 >> 32),
            attr: attr(st),
            entry_ttl: self.ttl,
            attr_ttl: self.ttl,
        }
    }

    /// The reply that carries the attributes of `fd`.
    pub(crate) fn attrs(&self, fd: impl AsFd) -> Result<Attrs, Error> {
        let attr = crate::attr::stat_fd(fd)?;
        Ok(Attrs { attr, ttl: self.ttl })
    }

    /// Opens a regular file. Nothing else is ever opened: opening a pipe may wait, opening a device may act.
    ///
    /// # Errors
    /// `EISDIR`, `ELOOP` and `ENXIO` for directories, symbolic links and special files.
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
        self.reopen(node, flags | OFlags::NOCTTY)
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
        self.reopen(node, flags)
    }

    /// Removes a name; `REMOVEDIR` among `flags` says that it is a directory's.
    pub(crate) fn remove(&self, dir: Node, name: &Name, flags: AtFlags) -> Result<(), Error> {
        let (at, name) = (self.at(dir)?, CName::new(name));
        rustix::fs::unlinkat(&*at, name.as_c_str(), flags).map_err(failed)
    }

    /// Moves a name.
    pub(crate) fn rename(
        &self,
        (dir, name): (Node, &Name),
        (to_dir, to_name): (Node, &Name),
        flags: RenameFlags,
    ) -> Result<(), Error> {
        let (at, to) = (self.at(dir)?, self.at(to_dir)?);
        let (name, to_name) = (CName::new(name), CName::new(to_name));
        rustix::fs::renameat_with(&*at, name.as_c_str(), &*to, to_name.as_c_str(), flags).map_err(failed)
    }

    /// Takes back `count` references to `node`.
    pub(crate) fn forget(&self, node: Node, _count: u64) {
        self.descriptors.remove(node);
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

    fn node(&self, handle: &FileHandle, mount: MountId) -> Option<Node> {
        if mount == self.mount { self.packing.pack(handle) } else { None }
    }
}
