// SPDX-License-Identifier: MIT OR Apache-2.0
//! A service as a [`Subject`]: what a kernel does above a file system, done here in the plainest way.
//!
//! Every path is looked up from the root. A reference counted by an answer is returned with `Forget` as soon as nothing
//! needs the node; an open file keeps its own.

use crate::subject::{Fd, Flags, Kind, Listed, Listing, Result, Subject};
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::{Entry, FsStat};
use outrigger_core::{
    Abilities, Attr, Credentials, Cx, Errno, FileKind, Handle, LockOwner, Name, Node, Op, OpCode, Payload,
    Service, SetAttrs, SetTime, Target, XattrName, ask, lock,
};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// How many symbolic links one path may lead through (path_resolution(7)).
const LINKS_MAX: usize = 40;

thread_local! {
    static USER: RefCell<Credentials> = const { RefCell::new(Credentials::ROOT) };
}

/// A service that is asked directly.
pub struct Direct(Arc<Inner>);

struct Inner {
    service: Arc<dyn Service>,
    abilities: Abilities,
    next: AtomicU64,
    files: Mutex<HashMap<Fd, Arc<OpenFile>>>,
}

/// A counted reference to a node; returned when dropped.
struct Ref {
    inner: Arc<Inner>,
    node: Node,
    attr: Attr,
}

struct OpenFile {
    file: Ref,
    handle: Handle,
    flags: Flags,
    owner: LockOwner,
}

impl Drop for Ref {
    fn drop(&mut self) {
        if self.node != Node::ROOT && self.inner.abilities.ops.has(OpCode::Forget) {
            let _ = self.inner.ask(Forget { node: self.node, count: 1 });
        }
    }
}

/// Runs a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

impl Inner {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn cx(&self) -> Cx {
        Cx::new(self.number(), USER.with_borrow(Credentials::clone), "conformance")
    }

    fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        block_on(ask(&*self.service, &self.cx(), op)).map_err(|error| error.errno)
    }

    fn has(&self, op: OpCode) -> bool {
        self.abilities.ops.has(op)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Fd, Arc<OpenFile>>> {
        lock(&self.files)
    }
}

fn name(bytes: &[u8]) -> Result<Name> {
    Name::new(Bytes::copy_from_slice(bytes)).map_err(|error| error.errno)
}

fn xattr_name(name: &str) -> Result<XattrName> {
    XattrName::new(Bytes::copy_from_slice(name.as_bytes())).map_err(|error| error.errno)
}

impl Direct {
    /// Asks `service`.
    pub fn new(service: Arc<dyn Service>) -> Self {
        let abilities = service.abilities();
        Direct(Arc::new(Inner { service, abilities, next: AtomicU64::new(1), files: Mutex::default() }))
    }

    /// What the service says it can do.
    pub fn abilities(&self) -> &Abilities {
        &self.0.abilities
    }

    /// The service.
    pub fn service(&self) -> &Arc<dyn Service> {
        &self.0.service
    }

    /// Asks for one operation as the current user of the thread.
    ///
    /// # Errors
    /// The errno the service answers.
    pub fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        self.0.ask(op)
    }

    /// A context as the current user of the thread.
    pub fn cx(&self) -> Cx {
        self.0.cx()
    }

    /// The node of a path and its entry, with one reference for the caller to forget.
    ///
    /// # Errors
    /// As path lookup has them.
    pub fn node_of(&self, path: &Path) -> Result<Node> {
        let mut found = self.resolve(path, false)?;
        // The reference passes to the caller: none of the root is returned.
        Ok(std::mem::replace(&mut found.node, Node::ROOT))
    }

    /// Node, handle and lock owner of an open file.
    ///
    /// # Errors
    /// `EBADF` when it is not open.
    pub fn opened(&self, fd: Fd) -> Result<(Node, Handle, LockOwner)> {
        self.file(fd).map(|file| (file.file.node, file.handle, file.owner))
    }

    fn hold(&self, entry: Entry) -> Ref {
        Ref { inner: Arc::clone(&self.0), node: entry.node, attr: entry.attr }
    }

    fn root(&self) -> Result<Ref> {
        let attrs = self.ask(GetAttr { node: Node::ROOT, handle: None })?;
        Ok(Ref { inner: Arc::clone(&self.0), node: Node::ROOT, attr: attrs.attr })
    }

    fn resolve(&self, path: &Path, follow: bool) -> Result<Ref> {
        let components = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|&byte| byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .map(<[u8]>::to_vec)
                .collect()
        };
        let mut todo = VecDeque::from(components(path.as_os_str().as_bytes()));
        let mut above: Vec<Ref> = Vec::new();
        let mut at = self.root()?;
        let mut links = 0;
        while let Some(component) = todo.pop_front() {
            if component == b".." {
                at = above.pop().map_or_else(|| self.root(), Ok)?;
                continue;
            }
            if !at.attr.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            let next = self.hold(self.ask(Lookup { dir: at.node, name: name(&component)? })?);
            if next.attr.kind() == FileKind::Symlink && (follow || !todo.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = self.ask(ReadLink { node: next.node })?;
                if target.starts_with(b"/") {
                    above.clear();
                    at = self.root()?;
                }
                components(&target).into_iter().rev().for_each(|part| todo.push_front(part));
                continue;
            }
            above.push(std::mem::replace(&mut at, next));
        }
        Ok(at)
    }

    fn parent(&self, path: &Path) -> Result<(Ref, Name)> {
        let last = path.file_name().ok_or(Errno::EBUSY)?;
        let dir = self.resolve(path.parent().unwrap_or(Path::new("")), true)?;
        if !dir.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok((dir, name(last.as_bytes())?))
    }

    fn file(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        self.0.files().get(&fd).cloned().ok_or(Errno::EBADF)
    }

    fn file_for(&self, fd: Fd, access: Flags) -> Result<Arc<OpenFile>> {
        let file = self.file(fd)?;
        if file.flags.contains(access) { Ok(file) } else { Err(Errno::EBADF) }
    }

    fn insert(&self, file: Ref, handle: Handle, flags: Flags) -> Fd {
        let fd = Fd(self.0.number());
        let open = OpenFile { file, handle, flags, owner: LockOwner(fd.0) };
        self.0.files().insert(fd, Arc::new(open));
        fd
    }

    fn open_found(&self, found: Ref, flags: Flags) -> Result<Fd> {
        match found.attr.kind() {
            FileKind::Symlink => return Err(Errno::ELOOP),
            FileKind::Directory if flags.contains(Flags::WRITE) => return Err(Errno::EISDIR),
            FileKind::Directory => {
                let opened = match self.0.has(OpCode::OpenDir) {
                    true => self.ask(OpenDir { node: found.node })?.handle,
                    false => Handle(0),
                };
                return Ok(self.insert(found, opened, flags));
            }
            _ if flags.contains(Flags::DIRECTORY) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        let handle = match self.0.has(OpCode::Open) {
            true => self.ask(Open { node: found.node, flags: open_flags(flags) })?.handle,
            false => Handle(0),
        };
        Ok(self.insert(found, handle, flags))
    }

    fn create(&self, path: &Path, flags: Flags, mode: u32) -> Result<Fd> {
        match self.resolve(path, !flags.contains(Flags::EXCL)) {
            Ok(_) if flags.contains(Flags::EXCL) => return Err(Errno::EEXIST),
            Ok(found) => return self.open_found(found, flags),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let (dir, name) = self.parent(path)?;
        if self.0.has(OpCode::Create) {
            let made = self.ask(Create {
                dir: dir.node,
                name,
                mode,
                umask: 0,
                flags: open_flags(flags),
                initial: None,
            })?;
            return Ok(self.insert(self.hold(made.entry), made.opened.handle, flags));
        }
        let mode = FileKind::Regular.bits() | mode;
        let made =
            self.hold(self.ask(MkNod { dir: dir.node, name, mode, umask: 0, rdev: 0, initial: None })?);
        self.open_found(made, flags)
    }

    fn change(&self, path: &Path, attrs: SetAttrs) -> Result<()> {
        let found = self.resolve(path, false)?;
        self.ask(SetAttr { node: found.node, handle: None, attrs }).map(drop)
    }

    fn write_all(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        for part in data.chunks(self.0.abilities.max_io as usize) {
            let count = self.ask(Write {
                node: file.file.node,
                handle: file.handle,
                offset: offset + done as u64,
                data: Payload::Bytes(Bytes::copy_from_slice(part)),
                cached: false,
                kill_setid: false,
            });
            match count {
                Ok(count) => done += count.0 as usize,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
            if done % self.0.abilities.max_io as usize != 0 {
                break;
            }
        }
        Ok(done)
    }
}

fn open_flags(flags: Flags) -> OpenFlags {
    let mut out = OpenFlags::empty();
    out.set(OpenFlags::WRITE_ONLY, !flags.contains(Flags::READ));
    out.set(OpenFlags::READ_WRITE, flags.contains(Flags::BOTH));
    out.set(OpenFlags::EXCL, flags.contains(Flags::EXCL));
    out.set(OpenFlags::TRUNC, flags.contains(Flags::TRUNC));
    out.set(OpenFlags::APPEND, flags.contains(Flags::APPEND));
    out.set(OpenFlags::NOATIME, flags.contains(Flags::NOATIME));
    out
}

impl Subject for Direct {
    fn kind(&self) -> Kind {
        Kind::Direct
    }
    fn direct(&self) -> Option<&Direct> {
        Some(self)
    }
    fn as_user(&self, user: Credentials, body: &mut dyn FnMut()) {
        struct Restored(Credentials);
        impl Drop for Restored {
            fn drop(&mut self) {
                USER.set(self.0.clone());
            }
        }
        let _before = Restored(USER.replace(user));
        body();
    }

    fn close_all(&self) {
        let open: Vec<Fd> = self.0.files().keys().copied().collect();
        for fd in open {
            let _ = self.close(fd);
        }
    }

    fn open(&self, path: &Path, flags: Flags, mode: u32) -> Result<Fd> {
        if flags.contains(Flags::TMPFILE) {
            let dir = self.resolve(path, true)?;
            let made = self.ask(TmpFile { dir: dir.node, mode, umask: 0, flags: open_flags(flags) })?;
            return Ok(self.insert(self.hold(made.entry), made.opened.handle, flags));
        }
        if flags.contains(Flags::CREATE) {
            return self.create(path, flags, mode);
        }
        let found = self.resolve(path, !flags.contains(Flags::NOFOLLOW))?;
        self.open_found(found, flags)
    }
    fn close(&self, fd: Fd) -> Result<()> {
        let file = self.0.files().remove(&fd).ok_or(Errno::EBADF)?;
        let (node, handle, owner) = (file.file.node, file.handle, file.owner);
        if file.file.attr.is_dir() {
            if self.0.has(OpCode::ReleaseDir) {
                self.ask(ReleaseDir { node, handle })?;
            }
            return Ok(());
        }
        let flushed = match self.0.has(OpCode::Flush) {
            true => self.ask(Flush { node, handle, owner }),
            false => Ok(()),
        };
        if self.0.has(OpCode::Release) {
            let flags = open_flags(file.flags);
            self.ask(Release { node, handle, flags, owner, flock_release: true })?;
        }
        flushed
    }
    fn read_at(&self, fd: Fd, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file_for(fd, Flags::READ)?;
        if file.file.attr.is_dir() {
            return Err(Errno::EISDIR);
        }
        let mut all = Vec::new();
        while all.len() < len {
            let wanted = (len - all.len()).min(self.0.abilities.max_io as usize) as u32;
            let at = offset + all.len() as u64;
            let data =
                self.ask(Read { node: file.file.node, handle: file.handle, offset: at, len: wanted })?;
            let bytes = data.into_bytes().map_err(|error| error.errno)?;
            all.extend_from_slice(&bytes);
            if bytes.len() < wanted as usize {
                break;
            }
        }
        Ok(all)
    }
    fn write_at(&self, fd: Fd, offset: u64, data: &[u8]) -> Result<usize> {
        let file = self.file_for(fd, Flags::WRITE)?;
        self.write_all(&file, offset, data)
    }
    fn append(&self, fd: Fd, data: &[u8]) -> Result<usize> {
        let size = self.fstat(fd)?.size;
        self.write_at(fd, size, data)
    }
    fn fstat(&self, fd: Fd) -> Result<Attr> {
        let file = self.file(fd)?;
        let handle = Some(file.handle).filter(|_| !file.file.attr.is_dir());
        self.ask(GetAttr { node: file.file.node, handle }).map(|attrs| attrs.attr)
    }
    fn ftruncate(&self, fd: Fd, size: u64) -> Result<()> {
        let file = self.file(fd)?;
        if !file.flags.contains(Flags::WRITE) || file.file.attr.is_dir() {
            return Err(Errno::EINVAL);
        }
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.ask(SetAttr { node: file.file.node, handle: Some(file.handle), attrs }).map(drop)
    }
    fn fsync(&self, fd: Fd, data_only: bool) -> Result<()> {
        let file = self.file(fd)?;
        let (node, handle) = (file.file.node, file.handle);
        match file.file.attr.is_dir() {
            true => self.ask(FSyncDir { node, handle, data_only }),
            false => self.ask(FSync { node, handle, data_only }),
        }
    }
    fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let file = self.file_for(fd, Flags::WRITE)?;
        self.ask(Fallocate { node: file.file.node, handle: file.handle, offset, len, mode })
    }
    fn seek(&self, fd: Fd, whence: Whence, offset: u64) -> Result<u64> {
        let file = self.file(fd)?;
        self.ask(Seek { node: file.file.node, handle: file.handle, offset, whence }).map(|found| found.0)
    }
    fn copy_range(&self, fd: Fd, offset: u64, to: Fd, to_offset: u64, len: u64) -> Result<u64> {
        let (from, to) = (self.file_for(fd, Flags::READ)?, self.file_for(to, Flags::WRITE)?);
        let copy = CopyRange {
            node: from.file.node,
            handle: from.handle,
            offset,
            to_node: to.file.node,
            to_handle: to.handle,
            to_offset,
            len,
        };
        self.ask(copy).map(|count| count.0)
    }
    fn link_open(&self, fd: Fd, path: &Path) -> Result<()> {
        let file = self.file(fd)?;
        let (dir, name) = self.parent(path)?;
        self.ask(Link { node: file.file.node, dir: dir.node, name }).map(|entry| drop(self.hold(entry)))
    }
    fn lock(&self, fd: Fd, lock: Lock, wait: bool) -> Result<()> {
        let file = self.file(fd)?;
        let (node, handle, owner) = (file.file.node, file.handle, file.owner);
        self.ask(SetLock { node, handle, owner, lock, wait, flock: false })
    }
    fn test_lock(&self, fd: Fd, lock: Lock) -> Result<Option<Lock>> {
        let file = self.file(fd)?;
        self.ask(GetLock { node: file.file.node, handle: file.handle, owner: file.owner, lock })
    }
    fn flock(&self, fd: Fd, kind: LockKind, wait: bool) -> Result<()> {
        let file = self.file(fd)?;
        let (node, handle, owner) = (file.file.node, file.handle, file.owner);
        let lock = Lock { start: 0, end: u64::MAX, kind, pid: 0 };
        self.ask(SetLock { node, handle, owner, lock, wait, flock: true })
    }
    fn read_dir(&self, fd: Fd, cookie: u64, size: usize) -> Result<Listing> {
        let file = self.file(fd)?;
        if !file.file.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let (node, handle) = (file.file.node, file.handle);
        let found = self.ask(ReadDir { node, handle, cookie, size: size as u32 })?;
        let listed = |entry: outrigger_core::reply::Dirent| Listed {
            name: entry.name.to_vec(),
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
        };
        Ok(Listing { entries: found.entries.into_iter().map(listed).collect(), eof: found.eof })
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        let found = self.resolve(path, false)?;
        self.ask(GetAttr { node: found.node, handle: None }).map(|attrs| attrs.attr)
    }
    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let found = self.resolve(path, true)?;
        match found.attr.kind() {
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Regular => {}
            _ => return Err(Errno::EINVAL),
        }
        let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
        self.ask(SetAttr { node: found.node, handle: None, attrs }).map(drop)
    }
    fn chmod(&self, path: &Path, mode: u32) -> Result<()> {
        self.change(path, SetAttrs { mode: Some(mode), ..SetAttrs::default() })
    }
    fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(path, SetAttrs { uid, gid, ..SetAttrs::default() })
    }
    fn utimens(&self, path: &Path, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        self.change(path, SetAttrs { atime, mtime, ..SetAttrs::default() })
    }
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.ask(MkDir { dir: dir.node, name, mode, umask: 0, initial: None })
            .map(|entry| drop(self.hold(entry)))
    }
    fn mknod(&self, path: &Path, kind: FileKind, mode: u32, rdev: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let mode = kind.bits() | mode;
        self.ask(MkNod { dir: dir.node, name, mode, umask: 0, rdev, initial: None })
            .map(|entry| drop(self.hold(entry)))
    }
    fn symlink(&self, target: &[u8], path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let target = Target::new(Bytes::copy_from_slice(target)).map_err(|error| error.errno)?;
        self.ask(SymLink { dir: dir.node, name, target, initial: None }).map(|entry| drop(self.hold(entry)))
    }
    fn readlink(&self, path: &Path) -> Result<Vec<u8>> {
        let found = self.resolve(path, false)?;
        if found.attr.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.ask(ReadLink { node: found.node }).map(|target| target.to_vec())
    }
    fn link(&self, old: &Path, new: &Path) -> Result<()> {
        let found = self.resolve(old, false)?;
        let (dir, name) = self.parent(new)?;
        self.ask(Link { node: found.node, dir: dir.node, name }).map(|entry| drop(self.hold(entry)))
    }
    fn unlink(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.ask(Unlink { dir: dir.node, name })
    }
    fn rmdir(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.ask(RmDir { dir: dir.node, name })
    }
    fn rename(&self, old: &Path, new: &Path, flags: RenameFlags) -> Result<()> {
        let ((dir, name), (to_dir, to_name)) = (self.parent(old)?, self.parent(new)?);
        self.ask(Rename { dir: dir.node, name, to_dir: to_dir.node, to_name, flags })
    }
    fn get_xattr(&self, path: &Path, name: &str) -> Result<Vec<u8>> {
        let found = self.resolve(path, false)?;
        self.ask(GetXattr { node: found.node, name: xattr_name(name)? }).map(|value| value.to_vec())
    }
    fn set_xattr(&self, path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<()> {
        let found = self.resolve(path, false)?;
        let value = Bytes::copy_from_slice(value);
        self.ask(SetXattr { node: found.node, name: xattr_name(name)?, value, flags })
    }
    fn list_xattrs(&self, path: &Path) -> Result<Vec<Vec<u8>>> {
        let found = self.resolve(path, false)?;
        let names = self.ask(ListXattr { node: found.node })?;
        Ok(names.iter().map(|name| name.to_vec()).collect())
    }
    fn remove_xattr(&self, path: &Path, name: &str) -> Result<()> {
        let found = self.resolve(path, false)?;
        self.ask(RemoveXattr { node: found.node, name: xattr_name(name)? })
    }
    fn statfs(&self, path: &Path) -> Result<FsStat> {
        let found = self.resolve(path, false)?;
        self.ask(StatFs { node: found.node })
    }
}
