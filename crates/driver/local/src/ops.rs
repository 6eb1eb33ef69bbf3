// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations: what the host is asked for each request.

use crate::Local;
use crate::attr::{decode_device, failed, stat_fd};
use crate::dir::OpenDir;
use crate::file::{OpenFile, checked_offset, host_flags};
use crate::fileattr;
use crate::open::Open;
use crate::setattr::{ForWriting, Subject};
use crate::tree::{CName, proc_path};
use crate::xattr;
use bytes::Bytes;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::attr::SET_ID;
use outrigger_core::ops::{
    CopyRange, Create, FSync, FSyncDir, Fallocate, Flush, Forget, GetAttr, GetXattr, Ioctl, Link, ListXattr,
    Locate, Lookup, MkDir, MkNod, Open as OpenOp, OpenDir as OpenDirOp, OpenFlags, Parent, Read, ReadDir,
    ReadDirPlus, ReadLink, Release, ReleaseDir, RemoveXattr, Rename, Resolve, RmDir, Seek, SetAttr, SetXattr,
    StatFs, SymLink, SyncFs, TmpFile, Unlink, Walk, Whence, Write,
};
use outrigger_core::reply::{
    Attrs, Count, Created, Dirents, DirentsPlus, Entries, Entry, FsStat, IoctlDone, Names, Offset, OpenHow,
    Opened,
};
use outrigger_core::{
    Abilities, Backing, BlockingDriver, Cx, DriverClass, Errno, FileKind, FileSlice, Handle, Identity, Node,
    OpCode, OpSet, Payload, Prompt, Request, Result, Target,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, makedev, openat,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Ranges longer than this, in bytes, are copied and zeroed on a thread that may wait.
const PROMPT_RANGE: u64 = 1 << 20;

/// What this driver never answers: doors decide about access, and regular files are always ready.
const NOT_SERVED: OpSet = OpSet::of(&[OpCode::Access, OpCode::Poll, OpCode::GetLock, OpCode::SetLock]);
const XATTR: OpSet = OpSet::of(&[OpCode::GetXattr, OpCode::SetXattr, OpCode::ListXattr, OpCode::RemoveXattr]);

/// Whether writing to the file has to clear set-id bits: the kernel leaves that to the driver, so such writes must
/// come here.
fn may_lose_setid(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).map_or(true, |stat| stat.st_mode & SET_ID != 0)
}

impl Local {
    /// Opens a regular file on behalf of a caller.
    fn open_for(&self, cx: &Cx, node: Node, flags: OpenFlags) -> Result<OwnedFd> {
        let open = || self.tree.open_regular(node, host_flags(flags));
        if flags.contains(OpenFlags::TRUNC) && clears_setid(cx, false) {
            self.callers.run_clearing_setid(&cx.cred, self.tree.at(node)?.as_fd(), open)
        } else {
            open()
        }
    }

    /// Gives a descriptor of a regular file a handle.
    fn opened(&self, fd: OwnedFd, flags: OpenFlags) -> Result<Opened> {
        let file = Arc::new(OpenFile::new(fd, flags));
        let offered = self.options.passthrough && !may_lose_setid(&file.fd);
        let backing = if offered { Backing::new(Arc::clone(&file.fd)) } else { Backing::NONE };
        let handle = self.open.insert(Open::File(file))?;
        Ok(Opened { handle, how: OpenHow::NO_FLUSH, backing })
    }

    /// The open file, or one opened for this request alone where the caller has no handle.
    fn file(&self, node: Node, handle: Handle, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        if handle != Handle::NONE {
            return self.open.file(handle);
        }
        let fd = self.tree.open_regular(node, host_flags(flags))?;
        Ok(Arc::new(OpenFile::new(fd, flags)))
    }

    /// The open directory, or one opened for this request alone.
    fn dir(&self, node: Node, handle: Handle) -> Result<Arc<OpenDir>> {
        match handle {
            Handle::NONE => self.tree.open_directory(node).map(|fd| Arc::new(OpenDir::once(fd))),
            handle => self.open.dir(handle),
        }
    }

    /// As [`Local::file`], if writing to it is allowed.
    fn writable(&self, node: Node, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = self.file(node, handle, OpenFlags::READ_WRITE)?;
        if file.writes() { Ok(file) } else { Err(Errno::EBADF.because("the file is not open for writing")) }
    }

    /// Changes the content of a file for a caller, or as a door for it demands, with what that does to set-id bits.
    fn change<T>(
        &self,
        cx: &Cx,
        file: &OpenFile,
        demand: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match clears_setid(cx, demand) {
            true => self.callers.run_clearing_setid(&cx.cred, file.fd.as_fd(), change),
            false => change(),
        }
    }

    /// The descriptor of an open handle where there is one, else one of the node.
    fn descriptor(&self, node: Node, handle: Option<Handle>) -> Result<Arc<OwnedFd>> {
        match handle.map(|handle| self.open.file(handle)) {
            Some(Ok(file)) => Ok(Arc::clone(&file.fd)),
            // The handle may be one of a directory.
            _ => self.tree.at(node),
        }
    }

    fn require_xattr(&self) -> Result<()> {
        if self.options.xattr { Ok(()) } else { Err(Errno::EOPNOTSUPP.into()) }
    }
}

/// Whether what the caller writes clears set-id bits (see write(2)), as the caller or a door for it may `demand`.
fn clears_setid(cx: &Cx, demand: bool) -> bool {
    demand || cx.cred.uid != 0
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & MODE_PERMISSIONS)
}

impl BlockingDriver for Local {
    fn abilities(&self) -> Abilities {
        let mut ops = OpSet::all().without(NOT_SERVED);
        if !self.options.xattr {
            ops = ops.without(XATTR);
        }
        if !self.tree.is_persistent() {
            ops = ops.without(OpSet::of(&[OpCode::Resolve]));
        }
        if self.tree.is_persistent() {
            // These file systems have nothing to tell when a file is closed, and a door can spare the question.
            ops = ops.without(OpSet::of(&[OpCode::Flush]));
        }
        let identity = if self.tree.is_persistent() { Identity::Persistent } else { Identity::ByPath };
        Abilities {
            identity,
            class: DriverClass::PassThrough,
            lasting_cookies: true,
            anonymous_io: true,
            acl: self.acl,
            ..Abilities::new("local", self.path.display().to_string(), ops)
        }
    }

    fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        self.tree.find(op.dir, &op.name)
    }

    fn walk(&self, _: &Cx, op: Walk) -> Result<Entries> {
        let mut entries = Entries::with_capacity(op.names.len());
        let mut dir = op.dir;
        for name in &op.names {
            match self.tree.find(dir, name) {
                Ok(entry) => {
                    dir = entry.node;
                    entries.push(entry);
                }
                Err(error) if entries.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(entries)
    }

    fn forget(&self, _: &Cx, op: Forget) -> Result<()> {
        self.tree.forget(op.node, op.count);
        Ok(())
    }

    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        match op.handle.map(|handle| self.open.file(handle)) {
            Some(Ok(file)) => self.tree.attrs(&*file.fd),
            // The handle may be one of a directory.
            _ => self.tree.attrs_of(op.node),
        }
    }

    fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        let held = op.handle.and_then(|handle| self.writable(op.node, handle).ok());
        let fd = self.descriptor(op.node, op.handle)?;
        let open = || match &held {
            Some(file) => Ok(ForWriting::Open(file.fd.as_fd())),
            None => self.tree.open_regular(op.node, host_flags(OpenFlags::WRITE_ONLY)).map(ForWriting::New),
        };
        let unprivileged = clears_setid(cx, op.attrs.kill_setid).then_some(&cx.cred);
        Subject { fd: fd.as_fd(), open, unprivileged }.apply(&self.callers, &op.attrs)?;
        self.tree.attrs(fd)
    }

    fn readlink(&self, _: &Cx, op: ReadLink) -> Result<Target> {
        let fd = self.tree.at(op.node)?;
        let target = rustix::fs::readlinkat(&*fd, c"", Vec::new()).map_err(|errno| match errno {
            // readlinkat(2) says ENOENT for an empty path on anything but a symbolic link.
            rustix::io::Errno::NOENT => Errno::EINVAL.into(),
            errno => failed(errno),
        })?;
        Target::new(target.into_bytes())
    }

    fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        let kind = match FileKind::of_mode(op.mode) {
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::EINVAL.into()),
            kind => FileType::from_raw_mode(kind.unwrap_or(FileKind::Regular).bits()),
        };
        let (major, minor) = decode_device(op.rdev);
        let (dir, name) = (self.tree.at(op.dir)?, CName::new(&op.name));
        let make = || rustix::fs::mknodat(&*dir, name.as_c_str(), kind, mode(op.mode), makedev(major, minor));
        self.callers.create_as(&cx.cred, op.umask, || make().map_err(failed))?;
        self.tree.find_at(op.dir, dir.as_fd(), &op.name)
    }

    fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        let (dir, name) = (self.tree.at(op.dir)?, CName::new(&op.name));
        let make = || rustix::fs::mkdirat(&*dir, name.as_c_str(), mode(op.mode)).map_err(failed);
        self.callers.create_as(&cx.cred, op.umask, make)?;
        self.tree.find_at(op.dir, dir.as_fd(), &op.name)
    }

    fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        let (dir, name) = (self.tree.at(op.dir)?, CName::new(&op.name));
        let make = || rustix::fs::symlinkat(op.target.as_bytes(), &*dir, name.as_c_str()).map_err(failed);
        self.callers.run_as(&cx.cred, make)?;
        self.tree.find_at(op.dir, dir.as_fd(), &op.name)
    }

    fn link(&self, _: &Cx, op: Link) -> Result<Entry> {
        let (file, dir, name) = (self.tree.at(op.node)?, self.tree.at(op.dir)?, CName::new(&op.name));
        // A path through /proc needs no capability; it leads to the inode itself, also when that is a symbolic link.
        rustix::fs::linkat(CWD, proc_path(&*file), &*dir, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)
            .map_err(failed)?;
        self.tree.find_at(op.dir, dir.as_fd(), &op.name)
    }

    fn unlink(&self, _: &Cx, op: Unlink) -> Result<()> {
        self.tree.remove(op.dir, &op.name, AtFlags::empty())
    }

    fn rmdir(&self, _: &Cx, op: RmDir) -> Result<()> {
        self.tree.remove(op.dir, &op.name, AtFlags::REMOVEDIR)
    }

    fn rename(&self, _: &Cx, op: Rename) -> Result<()> {
        let flags = RenameFlags::from_bits_retain(op.flags.bits());
        self.tree.rename((op.dir, &op.name), (op.to_dir, &op.to_name), flags)
    }

    fn open(&self, cx: &Cx, op: OpenOp) -> Result<Opened> {
        self.open.has_room()?;
        let fd = self.open_for(cx, op.node, op.flags)?;
        self.opened(fd, op.flags)
    }

    fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        self.open.has_room()?;
        let (dir, name) = (self.tree.at(op.dir)?, CName::new(&op.name));
        let flags = host_flags(op.flags) | OFlags::CREATE | OFlags::EXCL;
        let make = || openat(&*dir, name.as_c_str(), flags, mode(op.mode)).map_err(failed);
        match self.callers.create_as(&cx.cred, op.umask, make) {
            Ok(fd) => {
                let entry = self.tree.identify(op.dir, &op.name, fd.as_fd())?;
                let opened = self.opened(fd, op.flags)?;
                Ok(Created { entry, opened })
            }
            // Never O_CREAT without O_EXCL: it would open whatever has the name, also a pipe or a device.
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {
                let mut entry = self.tree.find_at(op.dir, dir.as_fd(), &op.name)?;
                let fd = self.open_for(cx, entry.node, op.flags)?;
                if op.flags.contains(OpenFlags::TRUNC) {
                    entry.attr = stat_fd(&fd)?;
                }
                let opened = self.opened(fd, op.flags)?;
                Ok(Created { entry, opened })
            }
            Err(error) => Err(error),
        }
    }

    fn tmpfile(&self, cx: &Cx, op: TmpFile) -> Result<Created> {
        self.open.has_room()?;
        let dir = self.tree.at(op.dir)?;
        let exclusive = if op.flags.contains(OpenFlags::EXCL) { OFlags::EXCL } else { OFlags::empty() };
        let flags = host_flags(op.flags) | OFlags::TMPFILE | exclusive;
        let make = || openat(&*dir, c".", flags, mode(op.mode)).map_err(failed);
        let fd = self.callers.create_as(&cx.cred, op.umask, make)?;
        let entry = self.tree.identify_nameless(fd.as_fd())?;
        let opened = self.opened(fd, op.flags)?;
        Ok(Created { entry, opened })
    }

    fn read(&self, _: &Cx, op: Read) -> Result<Payload> {
        let file = self.file(op.node, op.handle, OpenFlags::empty())?;
        if !file.reads() {
            return Err(Errno::EBADF.because("the file is not open for reading"));
        }
        Ok(Payload::File(FileSlice { file, offset: checked_offset(op.offset)?, len: op.len }))
    }

    fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        let file = self.writable(op.node, op.handle)?;
        let offset = checked_offset(op.offset)?;
        let at_end = cx.writes_at_end(file.flags(), op.cached);
        let write = || file.write(offset, op.data, at_end);
        // A cache writes for whom it no longer knows.
        if op.kill_setid || !op.cached { self.change(cx, &file, op.kill_setid, write) } else { write() }
            .map(Count)
    }

    fn flush(&self, _: &Cx, op: Flush) -> Result<()> {
        self.open.file(op.handle).map(drop)
    }

    fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        let file = self.file(op.node, op.handle, OpenFlags::empty())?;
        let sync = if op.data_only { rustix::fs::fdatasync } else { rustix::fs::fsync };
        sync(&file.fd).map_err(failed)
    }

    fn fallocate(&self, cx: &Cx, op: Fallocate) -> Result<()> {
        let (file, mode) =
            (self.writable(op.node, op.handle)?, FallocateFlags::from_bits_retain(op.mode.bits()));
        let allocate = || rustix::fs::fallocate(&file.fd, mode, op.offset, op.len).map_err(failed);
        self.change(cx, &file, false, allocate)
    }

    fn lseek(&self, _: &Cx, op: Seek) -> Result<Offset> {
        let to = match op.whence {
            Whence::Data => SeekFrom::Data(op.offset),
            Whence::Hole => SeekFrom::Hole(op.offset),
        };
        rustix::fs::seek(&self.file(op.node, op.handle, OpenFlags::empty())?.fd, to)
            .map(Offset)
            .map_err(failed)
    }

    fn copy_range(&self, cx: &Cx, op: CopyRange) -> Result<Count> {
        let (from, to) =
            (self.file(op.node, op.handle, OpenFlags::empty())?, self.writable(op.to_node, op.to_handle)?);
        if to.appends() {
            return Err(Errno::EBADF.because("the destination is open for appending"));
        }
        let (mut offset, mut to_offset) = (op.offset, op.to_offset);
        let len = usize::try_from(op.len).unwrap_or(usize::MAX);
        let copy = || {
            rustix::fs::copy_file_range(&from.fd, Some(&mut offset), &to.fd, Some(&mut to_offset), len)
                .map_err(failed)
        };
        self.change(cx, &to, false, copy).map(|count| Count(count as u64))
    }

    fn release(&self, _: &Cx, op: Release) -> Result<()> {
        self.open.remove(op.handle).map(drop)
    }

    fn opendir(&self, _: &Cx, op: OpenDirOp) -> Result<Opened> {
        let dir = OpenDir::new(self.tree.open_directory(op.node)?);
        let handle = self.open.insert(Open::Dir(Arc::new(dir)))?;
        Ok(Opened { handle, ..Opened::default() })
    }

    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        self.dir(op.node, op.handle)?.list(op.cookie, op.size)
    }

    fn readdirplus(&self, _: &Cx, op: ReadDirPlus) -> Result<DirentsPlus> {
        self.dir(op.node, op.handle)?.list_plus(&self.tree, op.node, op.cookie, op.size)
    }

    fn releasedir(&self, _: &Cx, op: ReleaseDir) -> Result<()> {
        self.open.remove(op.handle).map(drop)
    }

    fn fsyncdir(&self, _: &Cx, op: FSyncDir) -> Result<()> {
        let dir = self.dir(op.node, op.handle)?;
        let sync = if op.data_only { rustix::fs::fdatasync } else { rustix::fs::fsync };
        sync(dir.fd()).map_err(failed)
    }

    fn getxattr(&self, cx: &Cx, op: GetXattr) -> Result<Bytes> {
        self.require_xattr()?;
        xattr::require_visible(&cx.cred, &op.name, Errno::ENODATA)?;
        xattr::get(self.tree.at(op.node)?.as_fd(), &op.name)
    }

    fn setxattr(&self, cx: &Cx, op: SetXattr) -> Result<()> {
        self.require_xattr()?;
        xattr::require_visible(&cx.cred, &op.name, Errno::EPERM)?;
        xattr::set(self.tree.at(op.node)?.as_fd(), &op.name, &op.value, op.flags)
    }

    fn listxattr(&self, cx: &Cx, op: ListXattr) -> Result<Names> {
        self.require_xattr()?;
        let mut names = self.tree.list_xattr(op.node)?;
        names.retain(|name| xattr::is_visible(&cx.cred, name));
        Ok(names)
    }

    fn removexattr(&self, cx: &Cx, op: RemoveXattr) -> Result<()> {
        self.require_xattr()?;
        xattr::require_visible(&cx.cred, &op.name, Errno::EPERM)?;
        xattr::remove(self.tree.at(op.node)?.as_fd(), &op.name)
    }

    fn statfs(&self, _: &Cx, op: StatFs) -> Result<FsStat> {
        let stat = rustix::fs::fstatvfs(&*self.tree.at(op.node)?).map_err(failed)?;
        Ok(FsStat {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: stat.f_bsize as u32,
            frsize: stat.f_frsize as u32,
            namelen: stat.f_namemax as u32,
        })
    }

    fn syncfs(&self, _: &Cx, _: SyncFs) -> Result<()> {
        rustix::fs::syncfs(self.tree.root()).map_err(failed)
    }

    fn ioctl(&self, _: &Cx, op: Ioctl) -> Result<IoctlDone> {
        let file = self.open.file(op.handle).map(|file| Arc::clone(&file.fd));
        let dir;
        let fd = match &file {
            Ok(fd) => fd.as_fd(),
            Err(_) => {
                dir = self.open.dir(op.handle)?;
                dir.fd()
            }
        };
        fileattr::ioctl(fd, &op)
    }

    fn parent(&self, _: &Cx, op: Parent) -> Result<Entry> {
        self.tree.parent(op.dir)
    }

    fn resolve(&self, _: &Cx, op: Resolve) -> Result<Entry> {
        self.tree.resolve(op.node, op.generation)
    }

    fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        match self.tree.path_inside(self.tree.at(op.node)?)? {
            path if path.is_empty() => Target::new("/"),
            path => Target::new(path),
        }
    }
}

impl Prompt for Local {
    /// All but what waits for a disk's cache or moves many bytes.
    fn is_prompt(&self, request: &Request) -> bool {
        match request {
            Request::FSync(_) | Request::FSyncDir(_) | Request::SyncFs(_) => false,
            Request::CopyRange(op) => op.len <= PROMPT_RANGE,
            Request::Fallocate(op) => op.len <= PROMPT_RANGE,
            _ => true,
        }
    }
}
