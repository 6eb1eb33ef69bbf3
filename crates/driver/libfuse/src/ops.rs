// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of the core as requests of the protocol, and replies back.

use crate::decode;
use crate::handles::Open;
use crate::identity::Occasion;
use crate::message::{Fault, Message};
use crate::turn::Turn;
use outrigger_core::attr::{R_OK, W_OK, X_OK};
use outrigger_core::ops::{
    GetAttr, GetXattr, Ioctl, ListXattr, Locate, Poll, ReadLink, SetAttr, SetXattr, StatFs, Walk, XattrFlags,
};
use outrigger_core::reply::{Attrs, Entry, Events, FsStat, Granted, IoctlDone};
use outrigger_core::{Attr, Errno, Node, Reply, Request, SetTime, Target, Time, XattrName, lock};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{InitFlags, Opcode, SetattrValid};

/// What the names of attributes begin with that only the superuser sees.
const TRUSTED: &[u8] = b"trusted.";
/// Room for the value of an extended attribute, and for the names of all (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_ROOM: u32 = 64 << 10;

impl Turn<'_> {
    /// Does the request once.
    pub(crate) async fn attempt(&mut self, request: &Request) -> Result<Reply, Fault> {
        if !matches!(request, Request::Forget(_)) {
            self.know_root().await?;
        }
        Ok(match request {
            Request::GetAttr(op) => Reply::Attrs(self.getattr(op).await?),
            Request::Lookup(op) => Reply::Entry(self.find(op.dir, &op.name).await?),
            Request::Read(op) => Reply::Data(self.read(op).await?),
            Request::Write(op) => Reply::Count(self.write(op).await?),
            Request::Open(op) => Reply::Opened(self.open_file(op).await?),
            Request::Release(op) => Reply::Done(self.release_file(op).await?),
            Request::Flush(op) => Reply::Done(self.flush(op).await?),
            Request::OpenDir(op) => Reply::Opened(self.open_dir(op).await?),
            Request::ReadDir(op) => Reply::Dirents(self.read_dir(op).await?),
            Request::ReadDirPlus(op) => Reply::DirentsPlus(self.read_dir_plus(op).await?),
            Request::ReleaseDir(op) => Reply::Done(self.release_dir(op.handle).await?),
            Request::Forget(op) => {
                self.shared.forget(op.node, op.count);
                Reply::Done(())
            }
            _ => return Box::pin(self.attempt_rarer(request)).await,
        })
    }

    async fn attempt_rarer(&mut self, request: &Request) -> Result<Reply, Fault> {
        Ok(match request {
            Request::Walk(op) => Reply::Entries(self.walk(op).await?),
            Request::SetAttr(op) => Reply::Attrs(self.setattr(op).await?),
            Request::ReadLink(op) => Reply::Target(self.readlink(op).await?),
            Request::MkNod(op) => Reply::Entry(self.mknod(op).await?),
            Request::MkDir(op) => Reply::Entry(self.mkdir(op).await?),
            Request::SymLink(op) => Reply::Entry(self.symlink(op).await?),
            Request::Link(op) => Reply::Entry(self.link(op).await?),
            Request::Unlink(op) => Reply::Done(self.unlink(op).await?),
            Request::RmDir(op) => Reply::Done(self.rmdir(op).await?),
            Request::Rename(op) => Reply::Done(self.rename(op).await?),
            Request::Create(op) => Reply::Created(self.create(op).await?),
            Request::TmpFile(op) => Reply::Created(self.tmpfile(op).await?),
            Request::FSync(op) => Reply::Done(self.fsync(op).await?),
            Request::FSyncDir(op) => Reply::Done(self.fsyncdir(op).await?),
            Request::Fallocate(op) => Reply::Done(self.fallocate(op).await?),
            Request::Seek(op) => Reply::Offset(self.seek(op).await?),
            Request::CopyRange(op) => Reply::Count(self.copy_range(op).await?),
            Request::GetXattr(op) => Reply::Value(self.getxattr(op).await?),
            Request::SetXattr(op) => Reply::Done(self.setxattr(op).await?),
            Request::ListXattr(op) => Reply::Names(self.listxattr(op).await?),
            Request::RemoveXattr(op) => Reply::Done(self.removexattr(op.node, &op.name).await?),
            Request::GetLock(op) => Reply::LockState(self.getlk(op).await?),
            Request::SetLock(op) => Reply::Done(self.setlk(op).await?),
            Request::StatFs(op) => Reply::FsStat(self.statfs(op).await?),
            Request::Ioctl(op) => Reply::IoctlDone(self.ioctl(op).await?),
            Request::Poll(op) => Reply::Events(self.poll(op).await?),
            Request::Access(op) => Reply::Granted(self.access(op.node, op.mask).await?),
            Request::SyncFs(op) => Reply::Done(self.syncfs(op.node).await?),
            Request::Locate(op) => Reply::Target(self.locate(op)?),
            _ => return Err(Errno::ENOSYS.into()),
        })
    }

    async fn walk(&mut self, op: &Walk) -> Result<Vec<Entry>, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut dir = op.dir;
        for name in &op.names {
            match self.find(dir, name).await {
                Ok(entry) => {
                    dir = entry.node;
                    entries.push(entry);
                }
                Err(Fault::Failed(error)) if entries.is_empty() => return Err(error.into()),
                Err(Fault::Failed(_)) => break,
                Err(lost) => {
                    // The whole walk is tried again, and counts its references again.
                    entries.iter().for_each(|entry| self.shared.forget(entry.node, 1));
                    return Err(lost);
                }
            }
        }
        Ok(entries)
    }

    async fn getattr(&mut self, op: &GetAttr) -> Result<Attrs, Fault> {
        match op.handle {
            Some(handle) if handle.0 != 0 => {
                let open = self.open(handle)?;
                let (node, fh) = self.their_handle(&open).await?;
                self.attrs(op.node, node, Some((&open, fh))).await
            }
            _ => self.attrs(op.node, self.theirs(op.node).await?, None).await,
        }
    }

    /// The attributes of `node`, of the path or of an open file with the program's handle of it.
    pub(crate) async fn attrs(
        &self,
        node: Node,
        theirs: u64,
        of: Option<(&Open, u64)>,
    ) -> Result<Attrs, Fault> {
        let by_handle = |(_, fh)| fuse::GetattrIn { getattr_flags: fuse::GETATTR_FH, fh };
        let args = of.map_or_else(fuse::GetattrIn::default, by_handle);
        let body = self.ask(Message::new(Opcode::Getattr, theirs).with(&args.encode())).await?;
        let (attr, kind, ttl) = decode::attr_out(&body)?;
        if self.shared.nodes.kind(node).is_some_and(|known| known != kind) {
            return Err(decode::wrong("another kind of file than before").into());
        }
        self.observe(node, &attr, of.map(|(open, _)| open), Occasion::SameLife);
        Ok(Attrs { attr: self.shared.nodes.show(node, attr), ttl })
    }

    /// Notes attributes of `node`, unless they are those of an open file that has lost its path to another.
    pub(crate) fn observe(&self, node: Node, attr: &Attr, open: Option<&Open>, occasion: Occasion) {
        let nodes = &self.shared.nodes;
        if open.is_none_or(|open| open.version == nodes.version(node)) {
            nodes.observe(node, attr, occasion, self.life.epoch);
        }
    }

    async fn setattr(&mut self, op: &SetAttr) -> Result<Attrs, Fault> {
        let mut args = encode_setattr(op, self.shared.runtime.wall());
        if args.valid != SetattrValid::SIZE.bits() {
            // Writes that were repeated later would change times and set-id bits again.
            self.commit(op.node).await?;
        }
        if let (Some(mode), Some(kind)) = (op.attrs.mode, self.shared.nodes.kind(op.node)) {
            args.mode = mode | kind.bits();
        }
        let mut open = None;
        let node = match op.handle {
            Some(handle) if handle.0 != 0 => {
                let open = open.insert(self.open(handle)?);
                let (node, fh) = self.their_handle(open).await?;
                args.valid |= SetattrValid::FH.bits();
                args.fh = fh;
                node
            }
            _ => self.theirs(op.node).await?,
        };
        if op.attrs.kill_setid || op.attrs.size.is_some() {
            self.clear_set_id(op.node, node, op.attrs.kill_setid).await?;
        }
        let body = self.change(Message::new(Opcode::Setattr, node).with(&args.encode())).await?;
        if let Some(size) = op.attrs.size {
            self.was_cut(op.node, size);
        }
        let (attr, _, ttl) = decode::attr_out(&body)?;
        self.observe(op.node, &attr, open.as_deref(), Occasion::OwnChange);
        Ok(Attrs { attr: self.shared.nodes.show(op.node, attr), ttl })
    }

    async fn readlink(&mut self, op: &ReadLink) -> Result<Target, Fault> {
        let node = self.theirs(op.node).await?;
        let body = self.ask(Message::new(Opcode::Readlink, node)).await?;
        // Programs may count the terminator in.
        let end = body.iter().position(|&byte| byte == 0).unwrap_or(body.len());
        Target::new(body.slice(..end)).map_err(|_| decode::wrong("an impossible link target").into())
    }

    /// Attributes of the superuser, as the kernel keeps them from others (xattr(7)).
    fn may_touch(&self, name: &XattrName, otherwise: Errno) -> Result<(), Fault> {
        if self.caller.uid != 0 && name.starts_with(TRUSTED) { Err(otherwise.into()) } else { Ok(()) }
    }

    async fn getxattr(&mut self, op: &GetXattr) -> Result<bytes::Bytes, Fault> {
        self.may_touch(&op.name, Errno::ENODATA)?;
        let node = self.theirs(op.node).await?;
        let args = fuse::GetxattrIn { size: XATTR_ROOM.min(self.life.max_io) };
        let message = Message::new(Opcode::Getxattr, node).with(&args.encode()).name(&op.name);
        self.ask(message).await.map_err(unsupported)
    }

    async fn listxattr(&mut self, op: &ListXattr) -> Result<Vec<XattrName>, Fault> {
        let node = self.theirs(op.node).await?;
        let args = fuse::GetxattrIn { size: XATTR_ROOM.min(self.life.max_io) };
        let body = self.ask(Message::new(Opcode::Listxattr, node).with(&args.encode())).await;
        let mut names = decode::xattr_names(&body.map_err(unsupported)?)?;
        names.retain(|name| self.may_touch(name, Errno::EPERM).is_ok());
        Ok(names)
    }

    async fn setxattr(&mut self, op: &SetXattr) -> Result<(), Fault> {
        self.may_touch(&op.name, Errno::EPERM)?;
        let node = self.theirs(op.node).await?;
        let size = u32::try_from(op.value.len()).map_err(|_| Errno::E2BIG)?;
        let flags = (op.flags - XattrFlags::KILL_SGID).bits();
        let kill_sgid = op.flags.contains(XattrFlags::KILL_SGID);
        let setxattr_flags = if kill_sgid { fuse::SETXATTR_ACL_KILL_SGID } else { 0 };
        let message = Message::new(Opcode::Setxattr, node);
        let message = match self.life.has(InitFlags::SETXATTR_EXT) {
            true => message.with(&fuse::SetxattrIn { size, flags, setxattr_flags }.encode()),
            false => message.with(&fuse::SetxattrCompatIn { size, flags }.encode()),
        };
        let message = message.name(&op.name);
        let again = self.again();
        let failed = match self.change(message.data(op.value.clone())).await.map_err(unsupported) {
            Ok(_) => return Ok(()),
            Err(fault) => fault,
        };
        if again && matches!(failed, Fault::Failed(_)) {
            // The first attempt has set it if it has this value now.
            let get = GetXattr { node: op.node, name: op.name.clone() };
            if self.getxattr(&get).await.is_ok_and(|value| value == op.value) {
                return Ok(());
            }
        }
        Err(failed)
    }

    async fn removexattr(&mut self, node: Node, name: &XattrName) -> Result<(), Fault> {
        self.may_touch(name, Errno::EPERM)?;
        let theirs = self.theirs(node).await?;
        let again = self.again();
        match self.change(Message::new(Opcode::Removexattr, theirs).name(name)).await.map_err(unsupported) {
            Ok(_) => Ok(()),
            Err(fault) if again && fault.errno() == Some(Errno::ENODATA) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn statfs(&mut self, op: &StatFs) -> Result<FsStat, Fault> {
        let node = self.theirs(op.node).await?;
        decode::statfs(&self.ask(Message::new(Opcode::Statfs, node)).await?)
    }

    /// The program says yes or no: to all at once, and else to each.
    async fn access(&mut self, node: Node, mask: u32) -> Result<Granted, Fault> {
        let node = self.theirs(node).await?;
        if self.may(node, mask).await? {
            return Ok(Granted(mask));
        }
        let mut granted = 0;
        for bit in [R_OK, W_OK, X_OK].into_iter().filter(|bit| mask & bit != 0 && mask != *bit) {
            granted |= if self.may(node, bit).await? { bit } else { 0 };
        }
        Ok(Granted(granted))
    }

    async fn may(&mut self, node: u64, mask: u32) -> Result<bool, Fault> {
        let args = fuse::AccessIn { mask };
        match tolerate(self.ask(Message::new(Opcode::Access, node).with(&args.encode())).await) {
            Err(fault) if mask != 0 && fault.errno() == Some(Errno::EACCES) => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    async fn syncfs(&mut self, node: Node) -> Result<(), Fault> {
        let node = self.theirs(node).await?;
        tolerate(self.ask(Message::new(Opcode::Syncfs, node).with(&[0; 8])).await)
    }

    async fn ioctl(&mut self, op: &Ioctl) -> Result<IoctlDone, Fault> {
        if self.again() && !only_reads(op.command) {
            let why = "the program died during an ioctl, which it may have done";
            return Err(Errno::EIO.because(why).into());
        }
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let directory = self.shared.nodes.kind(op.node) == Some(outrigger_core::FileKind::Directory);
        let flags = if directory { fuse::IoctlFlags::DIR } else { fuse::IoctlFlags::empty() };
        let in_size = u32::try_from(op.input.len()).map_err(|_| Errno::EINVAL)?;
        let args = fuse::IoctlIn {
            fh,
            flags: flags.bits(),
            cmd: op.command,
            arg: op.argument,
            in_size,
            out_size: op.output_size,
        };
        let message = Message::new(Opcode::Ioctl, node).with(&args.encode()).data(op.input.clone());
        let body = match self.change(message).await {
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => return Err(Errno::ENOTTY.into()),
            body => body?,
        };
        let (out, _) = fuse::IoctlOut::decode(&body)?;
        let output = body.slice(fuse::IoctlOut::SIZE..);
        if out.flags & fuse::IoctlFlags::RETRY.bits() != 0 || output.len() > op.output_size as usize {
            return Err(decode::wrong("an ioctl that wants other memory").into());
        }
        if out.result < 0 {
            let errno = Errno(out.result.saturating_neg());
            return Err(if errno == Errno::ENOSYS { Errno::ENOTTY } else { errno }.into());
        }
        Ok(IoctlDone { result: out.result, output })
    }

    async fn poll(&mut self, op: &Poll) -> Result<Events, Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let flags = if op.key.is_some() { fuse::POLL_SCHEDULE_NOTIFY } else { 0 };
        let args = fuse::PollIn { fh, kh: op.key.unwrap_or(0), flags, events: op.events };
        // A program without poll: kernels that know that do not ask again.
        let body = self.ask(Message::new(Opcode::Poll, node).with(&args.encode())).await?;
        Ok(Events(fuse::PollOut::decode(&body)?.0.revents))
    }

    fn locate(&self, op: &Locate) -> Result<Target, Fault> {
        let mut path = Vec::new();
        for name in self.shared.nodes.path(op.node)? {
            path.push(b'/');
            path.extend_from_slice(&name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Target::new(path)?)
    }

    /// Why acknowledged writes of an open file are lost, once.
    pub(crate) fn failure(&self, open: &Open) -> Result<(), Fault> {
        lock(&open.failed).take().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Whether the number of an ioctl says that it gives something and takes nothing (`_IOR` of asm-generic/ioctl.h).
fn only_reads(command: u32) -> bool {
    const DIRECTION_SHIFT: u32 = 30;
    const READ: u32 = 2;
    command >> DIRECTION_SHIFT == READ
}

/// What the kernel makes of a program without extended attributes.
fn unsupported(fault: Fault) -> Fault {
    match fault.errno() {
        Some(Errno::ENOSYS) => Errno::EOPNOTSUPP.into(),
        _ => fault,
    }
}

/// Success also for a program that does not know the operation.
pub(crate) fn tolerate(result: Result<bytes::Bytes, Fault>) -> Result<(), Fault> {
    match result {
        Err(fault) if fault.errno() == Some(Errno::ENOSYS) => Ok(()),
        result => result.map(drop),
    }
}

/// `now` goes along for programs that know no "now", as the kernel has it.
fn encode_setattr(op: &SetAttr, now: Time) -> fuse::SetattrIn {
    let mut valid = SetattrValid::empty();
    let attrs = &op.attrs;
    let mut time = |new: Option<SetTime>, set, set_now| match new {
        None => Time::default(),
        Some(SetTime::Now) => {
            valid |= set | set_now;
            now
        }
        Some(SetTime::To(time)) => {
            valid |= set;
            time
        }
    };
    let atime = time(attrs.atime, SetattrValid::ATIME, SetattrValid::ATIME_NOW);
    let mtime = time(attrs.mtime, SetattrValid::MTIME, SetattrValid::MTIME_NOW);
    valid.set(SetattrValid::MODE, attrs.mode.is_some());
    valid.set(SetattrValid::UID, attrs.uid.is_some());
    valid.set(SetattrValid::GID, attrs.gid.is_some());
    valid.set(SetattrValid::SIZE, attrs.size.is_some());
    valid.set(SetattrValid::LOCKOWNER, attrs.lock_owner.is_some());
    valid.set(SetattrValid::KILL_SUIDGID, attrs.kill_setid);
    fuse::SetattrIn {
        valid: valid.bits(),
        fh: 0,
        size: attrs.size.unwrap_or(0),
        lock_owner: attrs.lock_owner.map_or(0, |owner| owner.0),
        atime: atime.secs.cast_unsigned(),
        mtime: mtime.secs.cast_unsigned(),
        ctime: 0,
        atimensec: atime.nanos,
        mtimensec: mtime.nanos,
        ctimensec: 0,
        mode: attrs.mode.unwrap_or(0),
        uid: attrs.uid.unwrap_or(0),
        gid: attrs.gid.unwrap_or(0),
    }
}
