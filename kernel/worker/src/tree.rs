// SPDX-License-Identifier: GPL-2.0-only
//! A mounted file system as the operations of the core. Each runs as a job inside the kernel, so a system call is a
//! function call, and others go on while one of them waits.
//!
//! Nothing of this process is borrowed across a system call: another job may run meanwhile.

use crate::attr::{attr, key};
use crate::disk;
use crate::listing::Listing;
use crate::nodes::Nodes;
use crate::removed::{Removed, visible_links};
use crate::source::Source;
use crate::task::{Fd, Task};
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::*;
use outrigger_core::reply::{Attrs, Count, Created, Entries, Entry, FsStat, Offset, OpenHow, Opened, Ttl};
use outrigger_core::{
    Credentials, Errno, FileKind, Generation, Handle, Name, Node, Payload, Reply, Request, Result, SetTime,
    Target,
};
use outrigger_succession::place::REMOVED;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// The most bytes of one read.
const READ_MAX: u32 = 1 << 20;

/// A mounted file system.
pub struct Tree {
    nodes: RefCell<Nodes>,
    pub(crate) open: RefCell<Handles>,
    /// How the mount is made writable, until that has happened.
    read_only: RefCell<Option<Rc<Remount>>>,
    source: Source,
    /// Where open files keep names that they have lost; nowhere where the end of this process is that of the tree.
    pub(crate) removed: Option<Removed>,
}

/// What makes a read-only mount a writable one; it says `EROFS` where that cannot be.
pub type Remount = dyn Fn(&Task) -> Result<()>;

/// What is open.
#[derive(Default)]
pub(crate) struct Handles {
    pub(crate) files: HashMap<Handle, Open>,
    next: u64,
}

pub(crate) enum Open {
    File(Fd),
    /// None while a job reads it.
    Dir(Option<Listing>),
}

impl Handles {
    pub(crate) fn insert(&mut self, open: Open) -> Handle {
        self.next += 1;
        self.files.insert(Handle(self.next), open);
        Handle(self.next)
    }

    fn file(&self, handle: Handle) -> Result<Fd> {
        match self.files.get(&handle) {
            Some(Open::File(fd)) => Ok(*fd),
            _ => Err(Errno::EBADF.into()),
        }
    }
}

pub(crate) fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::EINVAL.into())
}

pub(crate) fn checked(offset: u64) -> Result<u64> {
    if offset <= i64::MAX as u64 { Ok(offset) } else { Err(Errno::EINVAL.into()) }
}

impl Tree {
    /// The tree that is mounted at `path`; whether somebody goes on with it when this process dies.
    ///
    /// # Errors
    /// Those of looking at its root.
    pub fn at(
        task: &Task,
        path: &CStr,
        remount: Rc<Remount>,
        source: Source,
        is_guarded: bool,
    ) -> Result<Self> {
        let root = task.open(Fd::CWD, path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let stat = task.stat(root, c"")?;
        let nodes = RefCell::new(Nodes::new(root, key(&stat)));
        let removed = is_guarded.then(|| Removed::find(task, root));
        let (open, read_only) = (RefCell::default(), RefCell::new(Some(remount)));
        Ok(Tree { nodes, open, read_only, source, removed })
    }

    /// Closes whatever is open, so that the file system can be unmounted.
    pub fn close(&self, task: &Task) {
        let files: Vec<Open> = self.open.borrow_mut().files.drain().map(|(_, open)| open).collect();
        for open in files {
            match open {
                Open::File(fd) => task.close(fd),
                Open::Dir(listing) => listing.into_iter().for_each(|listing| task.close(listing.fd)),
            }
        }
        let removed = self.removed.as_ref().and_then(Removed::take);
        removed.into_iter().for_each(|fd| task.close(fd));
        let nodes = self.nodes.borrow_mut().drain();
        nodes.into_iter().for_each(|fd| task.close(fd));
    }

    /// Answers one request of `cred`.
    pub fn answer(&self, task: &Task, cred: &Credentials, request: Request) -> Reply {
        if let Some(error) = self.refuses(&request) {
            return Reply::Error(error);
        }
        if request.needs_changeable()
            && let Err(error) = self.make_writable(task)
        {
            return Reply::Error(error);
        }
        match request {
            Request::Lookup(op) => self.find(task, op.dir, &op.name).into(),
            Request::Walk(op) => self.walk(task, &op).into(),
            Request::Parent(op) => self.parent(task, op.dir).into(),
            Request::GetAttr(op) => self.getattr(task, &op).into(),
            Request::SetAttr(op) => self.setattr(task, cred, &op).into(),
            Request::ReadLink(op) => self.readlink(task, &op).into(),
            Request::MkNod(op) => self.mknod(task, cred, &op).into(),
            Request::MkDir(op) => self.mkdir(task, cred, &op).into(),
            Request::SymLink(op) => self.symlink(task, cred, &op).into(),
            Request::Link(op) => self.link(task, &op).into(),
            Request::Unlink(op) if op.dir == REMOVED => self.remove_kept(task, &op.name).into(),
            Request::Unlink(op) => self.remove(task, op.dir, &op.name, 0).into(),
            Request::RmDir(op) => self.remove(task, op.dir, &op.name, libc::AT_REMOVEDIR).into(),
            Request::Rename(op) => self.rename(task, &op).into(),
            Request::Open(op) => self.open(task, op.node, op.flags).into(),
            Request::Create(op) => self.create(task, cred, &op).into(),
            Request::TmpFile(op) => self.tmpfile(task, cred, &op, None).into(),
            Request::Read(op) => self.read(task, &op).into(),
            Request::Write(op) => self.write(task, cred, op).into(),
            Request::FSync(op) => {
                self.file(op.handle, |fd| self.settled(task.fsync(fd, op.data_only))).into()
            }
            Request::Fallocate(op) => self.fallocate(task, cred, &op).into(),
            Request::Seek(op) => self.seek(task, &op).into(),
            Request::CopyRange(op) => self.copy_range(task, cred, &op).into(),
            Request::Release(op) => self.release(task, op.handle).into(),
            Request::OpenDir(op) => self.opendir(task, op.node).into(),
            Request::ReadDir(op) => self.readdir(task, &op).into(),
            Request::ReadDirPlus(op) => self.readdirplus(task, &op).into(),
            Request::ReleaseDir(op) => self.release(task, op.handle).into(),
            Request::FSyncDir(op) => self.fsyncdir(task, &op).into(),
            Request::GetXattr(op) => self.getxattr(task, cred, &op).into(),
            Request::SetXattr(op) => self.setxattr(task, cred, &op).into(),
            Request::ListXattr(op) => self.listxattr(task, cred, &op).into(),
            Request::RemoveXattr(op) => self.removexattr(task, cred, &op).into(),
            Request::StatFs(op) => self.statfs(task, &op).into(),
            Request::Forget(op) => {
                self.forget(task, op.node, op.count);
                Reply::Done(())
            }
            Request::SyncFs(_) => self.sync_all(task).into(),
            _ => Reply::Error(Errno::ENOSYS.into()),
        }
    }

    /// Returns when everything is on the medium.
    ///
    /// # Errors
    /// Why not, with the host's own reason if an access to the image failed.
    pub fn sync_all(&self, task: &Task) -> Result<()> {
        let synced = self.settled(self.sync(task));
        disk::all_written_since_last().and(synced)
    }

    fn sync(&self, task: &Task) -> Result<()> {
        // A descriptor that only says where a file is does not do.
        let root = task.reopen(self.node(Node::ROOT)?, (libc::O_RDONLY | libc::O_DIRECTORY) as u32)?;
        let synced = task.syncfs(root);
        task.close(root);
        synced
    }

    /// Looking at an image does not write into it; the first change does.
    pub(crate) fn make_writable(&self, task: &Task) -> Result<()> {
        let Some(remount) = self.read_only.borrow().clone() else { return Ok(()) };
        // Another job may do the same meanwhile: the second time changes nothing.
        remount(task)?;
        self.read_only.replace(None);
        Ok(())
    }

    pub(crate) fn node(&self, node: Node) -> Result<Fd> {
        self.nodes.borrow().fd(node)
    }

    pub(crate) fn file<T>(&self, handle: Handle, work: impl FnOnce(Fd) -> Result<T>) -> Result<T> {
        let fd = self.open.borrow().file(handle)?;
        work(fd)
    }

    fn forget(&self, task: &Task, node: Node, count: u64) {
        let unused = self.nodes.borrow_mut().forget(node, count);
        unused.into_iter().for_each(|fd| task.close(fd));
    }

    /// The entry of the file that the `O_PATH` descriptor `fd` refers to.
    fn entry(&self, task: &Task, fd: Fd) -> Result<Entry> {
        let stat = match task.stat(fd, c"") {
            Ok(stat) => stat,
            Err(error) => {
                task.close(fd);
                return Err(error);
            }
        };
        let (node, unneeded) = self.nodes.borrow_mut().found(fd, key(&stat));
        unneeded.into_iter().for_each(|fd| task.close(fd));
        // Only this process changes the tree, and numbers of nodes are never used twice.
        let (entry_ttl, attr_ttl) = (Ttl::FOREVER, Ttl::FOREVER);
        Ok(Entry { node, generation: Generation(0), attr: attr(&stat), entry_ttl, attr_ttl })
    }

    pub(crate) fn find_at(&self, task: &Task, dir: Fd, name: &CStr) -> Result<Entry> {
        let fd = task.open(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        self.entry(task, fd)
    }

    fn find(&self, task: &Task, dir: Node, name: &Name) -> Result<Entry> {
        self.find_at(task, self.node(dir)?, &c_string(name)?)
    }

    fn walk(&self, task: &Task, op: &Walk) -> Result<Entries> {
        let mut entries = Entries::new();
        let mut dir = op.dir;
        for name in &op.names {
            match self.find(task, dir, name) {
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

    /// The directory that holds `dir`. What is above the root belongs to this program, not to the tree.
    fn parent(&self, task: &Task, dir: Node) -> Result<Entry> {
        let name = if dir == Node::ROOT { c"." } else { c".." };
        self.find_at(task, self.node(dir)?, name)
    }

    fn attrs(&self, task: &Task, fd: Fd) -> Result<Attrs> {
        Ok(Attrs { attr: attr(&task.stat(fd, c"")?), ttl: Ttl::FOREVER })
    }

    fn getattr(&self, task: &Task, op: &GetAttr) -> Result<Attrs> {
        self.attrs_of(task, op.node)
    }

    fn attrs_of(&self, task: &Task, node: Node) -> Result<Attrs> {
        let mut attrs = self.attrs(task, self.node(node)?)?;
        if node == Node::ROOT && self.removed.as_ref().is_some_and(Removed::is_there) {
            attrs.attr.nlink = visible_links(attrs.attr.nlink);
        }
        Ok(attrs)
    }

    fn setattr(&self, task: &Task, cred: &Credentials, op: &SetAttr) -> Result<Attrs> {
        let (fd, attrs) = (self.node(op.node)?, &op.attrs);
        if attrs.uid == Some(u32::MAX) || attrs.gid == Some(u32::MAX) {
            return Err(Errno::EINVAL.because("4294967295 is not a user or group"));
        }
        if let Some(size) = attrs.size {
            op.handle.map(|handle| self.open.borrow().file(handle)).transpose()?;
            let size = checked(size)?;
            task.change_as(cred, attrs.kill_setid, || task.truncate(fd, size))?;
        }
        if attrs.uid.is_some() || attrs.gid.is_some() {
            task.chown(fd, attrs.uid, attrs.gid)?;
        }
        if let Some(mode) = attrs.mode {
            task.chmod(fd, mode & MODE_PERMISSIONS)?;
        }
        if attrs.atime.is_some() || attrs.mtime.is_some() {
            task.set_times(fd, &[timespec(attrs.atime), timespec(attrs.mtime)])?;
        }
        self.attrs_of(task, op.node)
    }

    fn readlink(&self, task: &Task, op: &ReadLink) -> Result<Target> {
        let mut buffer = vec![0; 4096];
        let length = task.read_link(self.node(op.node)?, &mut buffer).map_err(|error| match error.errno {
            // readlinkat(2) says ENOENT for an empty path on anything but a symbolic link.
            Errno::ENOENT => Errno::EINVAL.into(),
            _ => error,
        })?;
        buffer.truncate(length);
        Target::new(buffer)
    }

    /// Does `make` in `dir` as `cred`, then finds what it made.
    fn make(
        &self,
        task: &Task,
        (cred, umask): (&Credentials, u32),
        (dir, name): (Node, &Name),
        make: impl FnOnce(Fd, &CStr) -> Result<()>,
    ) -> Result<Entry> {
        let (dir, name) = (self.node(dir)?, c_string(name)?);
        task.create_as(cred, umask, || make(dir, &name))?;
        self.find_at(task, dir, &name)
    }

    fn mknod(&self, task: &Task, cred: &Credentials, op: &MkNod) -> Result<Entry> {
        let kind = match FileKind::of_mode(op.mode) {
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::EINVAL.into()),
            kind => kind.unwrap_or(FileKind::Regular).bits(),
        };
        let mode = kind | op.mode & MODE_PERMISSIONS;
        self.make(task, (cred, op.umask), (op.dir, &op.name), |dir, name| {
            task.mknod(dir, name, mode, op.rdev)
        })
    }

    fn mkdir(&self, task: &Task, cred: &Credentials, op: &MkDir) -> Result<Entry> {
        let mode = op.mode & MODE_PERMISSIONS;
        self.make(task, (cred, op.umask), (op.dir, &op.name), |dir, name| task.mkdir(dir, name, mode))
    }

    fn symlink(&self, task: &Task, cred: &Credentials, op: &SymLink) -> Result<Entry> {
        let target = c_string(&op.target)?;
        self.make(task, (cred, 0), (op.dir, &op.name), |dir, name| task.symlink(&target, dir, name))
    }

    pub(crate) fn link(&self, task: &Task, op: &Link) -> Result<Entry> {
        let file = self.node(op.node)?;
        self.make(task, (&Credentials::ROOT, 0), (op.dir, &op.name), |dir, name| task.link(file, dir, name))
    }

    pub(crate) fn remove(&self, task: &Task, dir: Node, name: &Name, flags: i32) -> Result<()> {
        task.unlink(self.node(dir)?, &c_string(name)?, flags)
    }

    pub(crate) fn rename(&self, task: &Task, op: &Rename) -> Result<()> {
        let (dir, to_dir) = (self.node(op.dir)?, self.node(op.to_dir)?);
        let (name, to_name) = (c_string(&op.name)?, c_string(&op.to_name)?);
        task.rename((dir, &name), (to_dir, &to_name), op.flags.bits())
    }

    /// Opens a regular file. Nothing else is opened: a pipe would wait, and a device is not one of this machine.
    fn open(&self, task: &Task, node: Node, flags: OpenFlags) -> Result<Opened> {
        let fd = self.node(node)?;
        match attr(&task.stat(fd, c"")?).kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            FileKind::Symlink => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.because("only regular files are opened in an image")),
        }
        let opened = task.reopen(fd, open_flags(flags))?;
        if flags.contains(OpenFlags::TRUNC)
            && let Err(error) = task.truncate(fd, 0)
        {
            task.close(opened);
            return Err(error);
        }
        Ok(self.opened(opened))
    }

    fn opened(&self, fd: Fd) -> Opened {
        let handle = self.open.borrow_mut().insert(Open::File(fd));
        Opened { handle, how: OpenHow::NO_FLUSH | OpenHow::KEEP_CACHE, ..Opened::default() }
    }

    /// The entry and the handle of the file that was just made and opened as `fd`.
    fn created(&self, task: &Task, fd: Fd) -> Result<Created> {
        let entry = task.reopen(fd, libc::O_PATH as u32).and_then(|path| self.entry(task, path));
        match entry {
            Ok(entry) => Ok(Created { entry, opened: self.opened(fd) }),
            Err(error) => {
                task.close(fd);
                Err(error)
            }
        }
    }

    fn create(&self, task: &Task, cred: &Credentials, op: &Create) -> Result<Created> {
        let (dir, name) = (self.node(op.dir)?, c_string(&op.name)?);
        // Never O_CREAT without O_EXCL: it would open whatever has the name, also a pipe or a device.
        let flags = open_flags(op.flags) as i32 | libc::O_CREAT | libc::O_EXCL;
        let open = || task.open(dir, &name, flags, op.mode & MODE_PERMISSIONS);
        let made = task.create_as(cred, op.umask, open);
        match made {
            Ok(fd) => self.created(task, fd),
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {
                let mut entry = self.find_at(task, dir, &name)?;
                let opened = self.open(task, entry.node, op.flags);
                if opened.is_err() {
                    self.forget(task, entry.node, 1);
                }
                let opened = opened?;
                if op.flags.contains(OpenFlags::TRUNC) {
                    entry.attr = self.attrs(task, self.node(entry.node)?)?.attr;
                }
                Ok(Created { entry, opened })
            }
            Err(error) => Err(error),
        }
    }

    /// A file without a name, or one that keeps this one.
    pub(crate) fn tmpfile(
        &self,
        task: &Task,
        cred: &Credentials,
        op: &TmpFile,
        kept: Option<&CStr>,
    ) -> Result<Created> {
        let dir = self.node(op.dir)?;
        // What is never to have a name cannot keep one. The caller sees to it that it gets no other.
        let is_exclusive = op.flags.contains(OpenFlags::EXCL) && kept.is_none();
        let exclusive = if is_exclusive { libc::O_EXCL } else { 0 };
        let flags = open_flags(op.flags) as i32 | libc::O_TMPFILE | exclusive;
        let made =
            task.create_as(cred, op.umask, || task.open(dir, c".", flags, op.mode & MODE_PERMISSIONS))?;
        if let Some(kept) = kept {
            self.link_kept(task, made, kept);
        }
        self.created(task, made)
    }

    fn read(&self, task: &Task, op: &Read) -> Result<Payload> {
        let fd = self.open.borrow().file(op.handle)?;
        let mut data = vec![0; op.len.min(READ_MAX) as usize];
        let mut done = 0;
        while done < data.len() {
            match task.read(fd, &mut data[done..], checked(op.offset)? + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        data.truncate(done);
        Ok(data.into())
    }

    fn write(&self, task: &Task, cred: &Credentials, op: Write) -> Result<Count> {
        let fd = self.open.borrow().file(op.handle)?;
        let data = op.data.into_bytes()?;
        let offset = checked(op.offset)?;
        // A cache writes for whom it no longer knows.
        let cred = if op.cached { &Credentials::ROOT } else { cred };
        task.change_as(cred, op.kill_setid, || {
            let mut done = 0;
            while done < data.len() {
                match task.write(fd, &data[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(error) if done == 0 => return Err(error),
                    // What was written counts; the error comes back with the next write.
                    Err(_) => break,
                }
            }
            Ok(Count(done as u64))
        })
    }

    fn fallocate(&self, task: &Task, cred: &Credentials, op: &Fallocate) -> Result<()> {
        let allocate = |fd| task.fallocate(fd, op.mode.bits(), op.offset, op.len);
        self.file(op.handle, |fd| task.change_as(cred, false, || allocate(fd)))
    }

    fn seek(&self, task: &Task, op: &Seek) -> Result<Offset> {
        let whence = match op.whence {
            Whence::Data => libc::SEEK_DATA,
            Whence::Hole => libc::SEEK_HOLE,
        };
        if op.offset > i64::MAX as u64 {
            return Err(Errno::ENXIO.into());
        }
        self.file(op.handle, |fd| task.seek(fd, op.offset, whence)).map(Offset)
    }

    fn copy_range(&self, task: &Task, cred: &Credentials, op: &CopyRange) -> Result<Count> {
        let (from, to) = {
            let open = self.open.borrow();
            (open.file(op.handle)?, open.file(op.to_handle)?)
        };
        let len = op.len.min(i64::MAX as u64);
        let (from, to) = ((from, checked(op.offset)?), (to, checked(op.to_offset)?));
        task.change_as(cred, false, || task.copy_range(from, to, len)).map(Count)
    }

    fn release(&self, task: &Task, handle: Handle) -> Result<()> {
        let open = self.open.borrow_mut().files.remove(&handle);
        match open {
            Some(Open::File(fd)) => task.close(fd),
            Some(Open::Dir(listing)) => listing.into_iter().for_each(|listing| task.close(listing.fd)),
            None => return Err(Errno::EBADF.into()),
        }
        Ok(())
    }

    /// What the kernel says, unless the host could not finish it.
    pub(crate) fn settled(&self, synced: Result<()>) -> Result<()> {
        synced.and_then(|()| self.source.settle())
    }

    fn statfs(&self, task: &Task, op: &StatFs) -> Result<FsStat> {
        let stat = task.statfs(self.node(op.node)?)?;
        Ok(FsStat {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: stat.f_bsize as u32,
            frsize: stat.f_frsize as u32,
            namelen: stat.f_namelen as u32,
        })
    }
}

/// The flags of open(2) that mean something to a file system; the others the operation itself sees to.
fn open_flags(flags: OpenFlags) -> u32 {
    let kept = OpenFlags::WRITE_ONLY
        | OpenFlags::READ_WRITE
        | OpenFlags::APPEND
        | OpenFlags::DSYNC
        | OpenFlags::NOATIME;
    (flags & kept).bits()
}

fn timespec(time: Option<SetTime>) -> libc::timespec {
    match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(SetTime::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(SetTime::To(time)) => libc::timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}
