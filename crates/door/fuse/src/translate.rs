// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a FUSE request to a request of the core.
use crate::negotiate::Negotiated;
use crate::shape::{Shape, Shown, Wanted};
use bytes::Bytes;
use outrigger_core::attr::X_OK;
use outrigger_core::ops::{self, FallocateMode, Lock, LockKind, OpenFlags, RenameFlags, Whence, XattrFlags};
use outrigger_core::reply::{COOKIE_MAX, FsStat, Granted};
use outrigger_core::{
    Abilities, Errno, Error, Handle, LockOwner, Name, Node, OpCode, OpSet, Payload, Reply, Request, SetAttrs,
    SetTime, Target, Time, XattrName,
};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{InitFlags, Operation, SetattrValid, WriteFlags};

/// Cookies of the entries the door adds; the driver's follow after the second.
pub(crate) const DOT: u64 = COOKIE_MAX + 1;
/// See [`DOT`].
pub(crate) const DOT_DOT: u64 = COOKIE_MAX + 2;

/// What the translation depends on besides the request.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// What the service answers at all.
    ops: OpSet,
    stateless_files: bool,
    stateless_dirs: bool,
    /// The kernel collects writes, and then reads files opened for writing only and places appends itself.
    writeback: bool,
    /// The kernel leaves the umask to the service.
    umask: bool,
    /// The kernel obeys access lists.
    acl: bool,
}

/// What becomes of a request.
pub(crate) enum Step {
    /// Ask the service, and write the reply in this way.
    Ask(Request, Shape),
    /// Fail without asking.
    Fail(Errno),
    /// Answer this without asking.
    Known(Reply, Shape),
}

/// Where a listing starts and how much room it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) node: u64,
    pub(crate) from: u64,
    pub(crate) size: u32,
}

/// Bytes that the request carries, as memory of its own.
pub(crate) trait Own: Fn(&[u8]) -> Bytes {}
impl<F: Fn(&[u8]) -> Bytes> Own for F {}

impl Rules {
    /// For a service with these abilities.
    pub(crate) fn new(abilities: &Abilities, negotiated: &Negotiated) -> Self {
        Self {
            ops: abilities.ops,
            stateless_files: abilities.stateless_files || !abilities.ops.has(OpCode::Open),
            stateless_dirs: abilities.stateless_dirs || !abilities.ops.has(OpCode::OpenDir),
            writeback: negotiated.has(InitFlags::WRITEBACK_CACHE),
            umask: negotiated.has(InitFlags::DONT_MASK),
            acl: negotiated.has(InitFlags::POSIX_ACL),
        }
    }

    /// Translates a request that goes to the service. `own` makes bytes of the message outlive it.
    pub(crate) fn translate(&self, node: Node, operation: &Operation<'_>, own: impl Own) -> Step {
        match self.step(node, operation, &own) {
            Ok(Step::Ask(request, _)) if !self.ops.has(request.op()) => Step::Fail(lacking(request.op())),
            Ok(step) => step,
            Err(error) => Step::Fail(error.errno),
        }
    }

    /// Tries the groups of operations, the most frequent first.
    fn step(&self, node: Node, operation: &Operation<'_>, own: &impl Own) -> Result<Step, Error> {
        if let Some(step) = self.open_files(node, operation, own)? {
            return Ok(step);
        }
        if let Some(step) = self.names(node, operation, own)? {
            return Ok(step);
        }
        if let Some(step) = self.attributes(node, operation, own)? {
            return Ok(step);
        }
        if let Some(step) = ranges_and_locks(node, operation)? {
            return Ok(step);
        }
        Ok(match operation {
            Operation::Statfs if self.ops.has(OpCode::StatFs) => ask(ops::StatFs { node }, ()),
            // Programs take an error here for a broken mount.
            Operation::Statfs => known::<ops::StatFs>(UNKNOWN_TOTALS, ()),
            Operation::Syncfs => ask(ops::SyncFs { node }, ()),
            // Nothing is kept for the kernel that would have to be written now.
            Operation::Destroy => known::<ops::SyncFs>((), ()),
            _ => Step::Fail(Errno::ENOSYS),
        })
    }

    /// Opening, reading, writing, listing, closing.
    fn open_files(
        &self,
        node: Node,
        operation: &Operation<'_>,
        own: &impl Own,
    ) -> Result<Option<Step>, Error> {
        let listing = |args: &fuse::ReadIn| Listing { node: node.0, from: args.offset, size: args.size };
        Ok(Some(match operation {
            Operation::Open(_) if self.stateless_files => Step::Fail(Errno::ENOSYS),
            Operation::Opendir(_) if self.stateless_dirs => Step::Fail(Errno::ENOSYS),
            // Nothing is kept for an open file that closing could write or release; the kernel asks no more.
            Operation::Flush(_) if self.stateless_files => Step::Fail(Errno::ENOSYS),
            // The kernel asks before it has written its dirty pages, where the tree sees holes.
            Operation::Lseek(_) if self.writeback => Step::Fail(Errno::ENOSYS),
            Operation::Open(args) => {
                let flags = self.open_flags(args.flags);
                ask(ops::Open { node, flags }, (node, flags))
            }
            Operation::Opendir(_) => ask(ops::OpenDir { node }, ()),
            Operation::Read(args) => ask(
                ops::Read { node, handle: Handle(args.fh), offset: args.offset, len: args.size },
                args.size,
            ),
            Operation::Write { args, data } => write(node, args, own(data)),
            Operation::Readdir(args) => {
                let (handle, cookie) = (Handle(args.fh), driver_cookie(args.offset));
                ask(ops::ReadDir { node, handle, cookie, size: args.size }, listing(args))
            }
            Operation::Readdirplus(args) => {
                let (handle, cookie) = (Handle(args.fh), driver_cookie(args.offset));
                ask(ops::ReadDirPlus { node, handle, cookie, size: args.size }, listing(args))
            }
            Operation::Release(args) => release(node, args),
            Operation::Releasedir(args) => ask(ops::ReleaseDir { node, handle: Handle(args.fh) }, ()),
            Operation::Flush(args) => {
                let (handle, owner) = (Handle(args.fh), LockOwner(args.lock_owner));
                ask(ops::Flush { node, handle, owner }, ())
            }
            Operation::Fsync(args) => {
                let (handle, data_only) = (Handle(args.fh), data_only(args));
                ask(ops::FSync { node, handle, data_only }, ())
            }
            Operation::Fsyncdir(args) => {
                let (handle, data_only) = (Handle(args.fh), data_only(args));
                ask(ops::FSyncDir { node, handle, data_only }, ())
            }
            _ => return Ok(None),
        }))
    }

    /// Names in a directory.
    fn names(&self, dir: Node, operation: &Operation<'_>, own: &impl Own) -> Result<Option<Step>, Error> {
        let owned = |bytes: &[u8]| Name::new(own(bytes));
        Ok(Some(match *operation {
            // What open_by_handle_at(2) asks of a file system that can be exported.
            Operation::Lookup { name: b"." } => ask(ops::Resolve { node: dir, generation: None }, ()),
            Operation::Lookup { name: b".." } => ask(ops::Parent { dir }, ()),
            Operation::Lookup { name } => ask(ops::Lookup { dir, name: owned(name)? }, ()),
            Operation::Symlink { name, target } => ask(
                ops::SymLink { dir, name: owned(name)?, target: Target::new(own(target))?, initial: None },
                (),
            ),
            Operation::Mknod { args, name } => ask(
                ops::MkNod {
                    dir,
                    name: owned(name)?,
                    mode: args.mode,
                    umask: self.umask(args.umask),
                    rdev: args.rdev,
                    initial: None,
                },
                (),
            ),
            Operation::Mkdir { args, name } => ask(
                ops::MkDir {
                    dir,
                    name: owned(name)?,
                    mode: args.mode & PERMISSIONS,
                    umask: self.umask(args.umask),
                    initial: None,
                },
                (),
            ),
            Operation::Unlink { name } => ask(ops::Unlink { dir, name: owned(name)? }, ()),
            Operation::Rmdir { name } => ask(ops::RmDir { dir, name: owned(name)? }, ()),
            Operation::Rename { newdir, flags, name, newname } => {
                let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
                let (name, to_name) = (owned(name)?, owned(newname)?);
                ask(ops::Rename { dir, name, to_dir: Node(newdir), to_name, flags }, ())
            }
            Operation::Link { oldnodeid, name } => {
                ask(ops::Link { node: Node(oldnodeid), dir, name: owned(name)? }, ())
            }
            Operation::Create { args, name } => {
                let (mode, flags) = (args.mode & PERMISSIONS, self.open_flags(args.flags));
                ask(
                    ops::Create {
                        dir,
                        name: owned(name)?,
                        mode,
                        umask: self.umask(args.umask),
                        flags,
                        initial: None,
                    },
                    flags,
                )
            }
            Operation::Tmpfile { args, .. } => {
                let (mode, flags) = (args.mode & PERMISSIONS, self.open_flags(args.flags));
                ask(ops::TmpFile { dir, mode, umask: self.umask(args.umask), flags }, flags)
            }
            _ => return Ok(None),
        }))
    }

    /// The mask for the driver; none where the kernel has applied it.
    fn umask(&self, umask: u32) -> u32 {
        if self.umask { umask & 0o777 } else { 0 }
    }

    /// The flags for the driver.
    fn open_flags(&self, flags: u32) -> OpenFlags {
        let mut flags =
            OpenFlags::from_bits_retain(flags) - OpenFlags::from_bits_retain(libc::O_CREAT as u32);
        if self.writeback {
            if flags.contains(OpenFlags::WRITE_ONLY) {
                flags -= OpenFlags::WRITE_ONLY;
                flags |= OpenFlags::READ_WRITE;
            }
            flags -= OpenFlags::APPEND;
        }
        flags
    }
}

/// The answer of a tree that does not know how large it is.
const UNKNOWN_TOTALS: FsStat =
    FsStat { blocks: 0, bfree: 0, bavail: 0, files: 0, ffree: 0, bsize: 4096, frsize: 4096, namelen: 255 };

/// The error of an operation that the tree lacks: what Linux says of a file system whose names do not change.
fn lacking(op: OpCode) -> Errno {
    match op {
        OpCode::Unlink | OpCode::RmDir | OpCode::Rename => Errno::EPERM,
        _ => Errno::ENOSYS,
    }
}

/// Permission, set-id and sticky bits.
const PERMISSIONS: u32 = 0o7777;

fn ask<O: Shown>(op: O, how: O::How) -> Step {
    Step::Ask(op.into(), O::shape(how))
}

fn known<O: Shown>(out: O::Out, how: O::How) -> Step
where
    Reply: From<Result<O::Out, Error>>,
{
    Step::Known(Ok(out).into(), O::shape(how))
}

fn is_acl(name: &XattrName) -> bool {
    matches!(name.as_bytes(), b"system.posix_acl_access" | b"system.posix_acl_default")
}

fn data_only(args: &fuse::FsyncIn) -> bool {
    args.fsync_flags & fuse::FSYNC_FDATASYNC != 0
}

/// The driver's cookie for an offset: the door's own entries come before the first of the driver.
fn driver_cookie(offset: u64) -> u64 {
    if offset > COOKIE_MAX { 0 } else { offset }
}

fn write(node: Node, args: &fuse::WriteIn, data: Bytes) -> Step {
    let flags = WriteFlags::from_bits_retain(args.write_flags);
    let write = ops::Write {
        node,
        handle: Handle(args.fh),
        offset: args.offset,
        data: Payload::Bytes(data),
        cached: flags.contains(WriteFlags::CACHE),
        kill_setid: flags.contains(WriteFlags::KILL_SUIDGID),
    };
    ask(write, OpenFlags::from_bits_retain(args.flags).contains(OpenFlags::APPEND))
}

fn release(node: Node, args: &fuse::ReleaseIn) -> Step {
    let release = ops::Release {
        node,
        handle: Handle(args.fh),
        flags: OpenFlags::from_bits_retain(args.flags),
        owner: LockOwner(args.lock_owner),
        flock_release: args.release_flags & fuse::RELEASE_FLOCK_UNLOCK != 0,
    };
    ask(release, ())
}

/// What access(2) says where the service does not: what may be read and written turns out when it is, but nobody tries to
/// execute a file to find out whether it is a program.
fn access(op: &ops::Access) -> Step {
    match op.mask & X_OK {
        0 => known::<ops::Access>(Granted(op.mask), op.mask),
        _ => ask(ops::GetAttr { node: op.node, handle: None }, (op.node, Wanted::Executable)),
    }
}

impl Rules {
    /// Attributes, plain and extended.
    fn attributes(
        &self,
        node: Node,
        operation: &Operation<'_>,
        own: &impl Own,
    ) -> Result<Option<Step>, Error> {
        let handle = |flags: u32, fh| (flags & fuse::GETATTR_FH != 0).then_some(Handle(fh));
        let owned = |name: &[u8]| XattrName::new(own(name));
        Ok(Some(match operation {
            Operation::Getattr(args) => {
                ask(ops::GetAttr { node, handle: handle(args.getattr_flags, args.fh) }, (node, Wanted::Stat))
            }
            Operation::Statx(args) => {
                ask(ops::GetAttr { node, handle: handle(args.getattr_flags, args.fh) }, (node, Wanted::Statx))
            }
            Operation::Setattr(args) => setattr(node, args),
            Operation::Readlink => ask(ops::ReadLink { node }, ()),
            Operation::Access(args) if !self.ops.has(OpCode::Access) => {
                access(&ops::Access { node, mask: args.mask })
            }
            Operation::Access(args) => ask(ops::Access { node, mask: args.mask }, args.mask),
            Operation::Getxattr { args, name } => {
                let name = owned(name)?;
                let acl = self.acl && is_acl(&name);
                ask(ops::GetXattr { node, name }, (args.size, acl))
            }
            Operation::Setxattr { args, name, value } => {
                let mut flags = XattrFlags::from_bits(args.flags)
                    .filter(|flags| !flags.contains(XattrFlags::KILL_SGID))
                    .ok_or(Errno::EINVAL)?;
                flags.set(XattrFlags::KILL_SGID, args.setxattr_flags & fuse::SETXATTR_ACL_KILL_SGID != 0);
                let name = owned(name)?;
                // An access control list sets the permissions of the group, too.
                let changed = is_acl(&name).then_some(node);
                ask(ops::SetXattr { node, name, value: own(value), flags }, changed)
            }
            Operation::Listxattr(args) => ask(ops::ListXattr { node }, args.size),
            Operation::Removexattr { name } => ask(ops::RemoveXattr { node, name: owned(name)? }, ()),
            Operation::Ioctl { args, data } => {
                let flags = fuse::IoctlFlags::from_bits_retain(args.flags);
                if flags.intersects(fuse::IoctlFlags::UNRESTRICTED | fuse::IoctlFlags::COMPAT) {
                    return Ok(Some(Step::Fail(Errno::ENOTTY)));
                }
                let ioctl = ops::Ioctl {
                    node,
                    handle: Handle(args.fh),
                    command: args.cmd,
                    argument: args.arg,
                    input: own(data),
                    output_size: args.out_size,
                };
                ask(ioctl, args.out_size)
            }
            _ => return Ok(None),
        }))
    }
}

fn setattr(node: Node, args: &fuse::SetattrIn) -> Step {
    let valid = SetattrValid::from_bits_retain(args.valid);
    let time = |set, now, secs: u64, nanos| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            valid.contains(set).then(|| SetTime::To(Time::new(secs.cast_signed(), nanos)))
        }
    };
    let attrs = SetAttrs {
        mode: valid.contains(SetattrValid::MODE).then_some(args.mode & PERMISSIONS),
        uid: valid.contains(SetattrValid::UID).then_some(args.uid),
        gid: valid.contains(SetattrValid::GID).then_some(args.gid),
        size: valid.contains(SetattrValid::SIZE).then_some(args.size),
        atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, args.atime, args.atimensec),
        mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: valid
            .contains(SetattrValid::CTIME)
            .then(|| Time::new(args.ctime.cast_signed(), args.ctimensec)),
        kill_setid: valid.contains(SetattrValid::KILL_SUIDGID),
        lock_owner: valid.contains(SetattrValid::LOCKOWNER).then_some(LockOwner(args.lock_owner)),
    };
    let handle = valid.contains(SetattrValid::FH).then_some(Handle(args.fh));
    ask(ops::SetAttr { node, handle, attrs }, node)
}

/// Ranges of open files: space, holes, copies, locks, readiness.
fn ranges_and_locks(node: Node, operation: &Operation<'_>) -> Result<Option<Step>, Error> {
    Ok(Some(match operation {
        Operation::Fallocate(args) => {
            let mode = FallocateMode::from_bits(args.mode).ok_or(Errno::EOPNOTSUPP)?;
            let (handle, offset, len) = (Handle(args.fh), args.offset, args.length);
            ask(ops::Fallocate { node, handle, offset, len, mode }, ())
        }
        Operation::Lseek(args) => {
            let whence = match args.whence.cast_signed() {
                libc::SEEK_DATA => Whence::Data,
                libc::SEEK_HOLE => Whence::Hole,
                _ => return Err(Errno::EINVAL.into()),
            };
            ask(ops::Seek { node, handle: Handle(args.fh), offset: args.offset, whence }, ())
        }
        Operation::CopyFileRange(args) => copy(node, args, u32::MAX.into(), false),
        Operation::CopyFileRange64(args) => copy(node, args, u64::MAX, true),
        Operation::Getlk(args) => {
            let (handle, owner) = (Handle(args.fh), LockOwner(args.owner));
            ask(ops::GetLock { node, handle, owner, lock: lock(args)? }, ())
        }
        Operation::Setlk(args) => setlk(node, args, false)?,
        Operation::Setlkw(args) => setlk(node, args, true)?,
        Operation::Poll(args) => {
            let key = (args.flags & fuse::POLL_SCHEDULE_NOTIFY != 0).then_some(args.kh);
            ask(ops::Poll { node, handle: Handle(args.fh), events: args.events, key }, ())
        }
        _ => return Ok(None),
    }))
}

fn copy(node: Node, args: &fuse::CopyFileRangeIn, limit: u64, wide: bool) -> Step {
    let copy = ops::CopyRange {
        node,
        handle: Handle(args.fh_in),
        offset: args.off_in,
        to_node: Node(args.nodeid_out),
        to_handle: Handle(args.fh_out),
        to_offset: args.off_out,
        len: args.len.min(limit),
    };
    ask(copy, wide)
}

fn setlk(node: Node, args: &fuse::LkIn, wait: bool) -> Result<Step, Error> {
    let flock = args.lk_flags & fuse::LK_FLOCK != 0;
    let (handle, owner) = (Handle(args.fh), LockOwner(args.owner));
    Ok(ask(ops::SetLock { node, handle, owner, lock: lock(args)?, wait, flock }, ()))
}

/// The kernel's end of every file, where the core has `u64::MAX`.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

fn lock(args: &fuse::LkIn) -> Result<Lock, Error> {
    let kind = match args.lk.kind.cast_signed() {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::EINVAL.into()),
    };
    let end = if args.lk.end >= OFFSET_MAX { u64::MAX } else { args.lk.end };
    Ok(Lock { start: args.lk.start, end, kind, pid: args.lk.pid })
}
