// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations.

use crate::NineP;
use crate::dialect;
use outrigger_core::ops::*;
use outrigger_core::reply::{
    Attrs, Count, Created, Dirents, DirentsPlus, Entries, Entry, FsStat, LockState, Names, Opened, Ttl, Value,
};
use outrigger_core::{
    Abilities, Cx, Driver, Errno, FileKind, Identity, OpCode, OpSet, Parallel, Payload, Result, Target,
    XattrName,
};
use outrigger_proto_ninep::{Dialect, Tstatfs};

const OPS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
    OpCode::Link,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
    OpCode::Open,
    OpCode::Create,
    OpCode::Read,
    OpCode::Write,
    OpCode::FSync,
    OpCode::FSyncDir,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
    OpCode::GetLock,
    OpCode::SetLock,
    OpCode::Flush,
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::Locate,
]);

/// What `noxattr` leaves out, and only 9P2000.L has.
pub(crate) const XATTRS: OpSet =
    OpSet::of(&[OpCode::GetXattr, OpCode::SetXattr, OpCode::ListXattr, OpCode::RemoveXattr]);

/// What `locks=local` leaves to the doors, and only 9P2000.L has.
pub(crate) const LOCKS: OpSet = OpSet::of(&[OpCode::GetLock, OpCode::SetLock, OpCode::Flush]);

impl Driver for NineP {
    fn abilities(&self) -> Abilities {
        let ops = if self.0.options.noxattr { OPS.without(XATTRS) } else { OPS };
        let ops = if self.0.locks_here() { ops.without(LOCKS) } else { ops };
        let ops = ops.without(dialect::lacks(self.0.dialect()));
        let is_linux = self.0.dialect() == Dialect::Linux;
        Abilities {
            identity: Identity::ByPath,
            cookies_by_name: true,
            close_to_open: true,
            refuses_at_close: true,
            // The listings of the other dialects have attributes.
            plus_asks_each: is_linux,
            decides_at_open: self.0.asks_as_each(),
            attrs_may_fail: !is_linux,
            time_unit: if is_linux { 1 } else { 1_000_000_000 },
            parallel: Parallel { reads: 16, listings: 8 },
            negative_ttl: Ttl::SECOND,
            ..Abilities::new("9p", self.0.place.shown(), ops)
        }
    }

    async fn lookup(&self, cx: &Cx, op: Lookup) -> Result<Entry> {
        self.0.lookup(cx, op.dir, &op.name).await
    }

    async fn walk(&self, cx: &Cx, op: Walk) -> Result<Entries> {
        let (mut dir, mut entries) = (op.dir, Vec::<Entry>::new());
        for name in &op.names {
            match self.0.lookup(cx, dir, name).await {
                Ok(entry) => entries.push(entry),
                Err(error) if entries.is_empty() => return Err(error),
                Err(_) => break,
            }
            dir = entries[entries.len() - 1].node;
        }
        Ok(entries)
    }

    async fn forget(&self, _: &Cx, op: Forget) -> Result<()> {
        self.0.files.table().forget(op.node, op.count);
        Ok(())
    }

    async fn getattr(&self, cx: &Cx, op: GetAttr) -> Result<Attrs> {
        self.0.attrs(cx, op.node, op.handle).await
    }

    async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        self.0.setattr(cx, op).await
    }

    async fn readlink(&self, cx: &Cx, op: ReadLink) -> Result<Target> {
        self.0.has(OpCode::ReadLink)?;
        if self.0.files.get(op.node).is_some_and(|known| known.kind != FileKind::Symlink) {
            return Err(Errno::EINVAL.because("only symbolic links have a target"));
        }
        let uid = self.0.uid(cx);
        let told = self.0.with(uid, |session| async move {
            let fid = self.0.reach(&session, uid, op.node).await?;
            session.read_link(fid.number).await
        });
        Target::new(told.await?)
    }

    async fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        self.0.has(OpCode::MkNod)?;
        self.0.mknod(cx, op).await
    }

    async fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        self.0.mkdir(cx, op).await
    }

    async fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        self.0.has(OpCode::SymLink)?;
        self.0.symlink(cx, op).await
    }

    async fn link(&self, cx: &Cx, op: Link) -> Result<Entry> {
        self.0.has(OpCode::Link)?;
        self.0.link(cx, op).await
    }

    async fn unlink(&self, cx: &Cx, op: Unlink) -> Result<()> {
        self.0.unlink(cx, op.dir, &op.name).await
    }

    async fn rmdir(&self, cx: &Cx, op: RmDir) -> Result<()> {
        self.0.rmdir(cx, op.dir, &op.name).await
    }

    async fn rename(&self, cx: &Cx, op: Rename) -> Result<()> {
        self.0.rename(cx, op).await
    }

    async fn open(&self, cx: &Cx, op: Open) -> Result<Opened> {
        self.0.open_file(cx, op).await
    }

    async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        self.0.create(cx, op).await
    }

    async fn read(&self, _: &Cx, op: Read) -> Result<Payload> {
        self.0.read(op).await
    }

    async fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        self.0.write(cx, op).await.map(Count)
    }

    async fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        self.0.fsync(op.node, op.handle, op.data_only).await
    }

    async fn fsyncdir(&self, cx: &Cx, op: FSyncDir) -> Result<()> {
        self.0.fsync_dir(cx, op.node).await
    }

    async fn flush(&self, _: &Cx, op: Flush) -> Result<()> {
        self.0.has(OpCode::Flush)?;
        self.0.flush(op.node, op.handle, op.owner).await;
        Ok(())
    }

    async fn getlk(&self, _: &Cx, op: GetLock) -> Result<LockState> {
        self.0.has(OpCode::GetLock)?;
        self.0.get_lock(op).await
    }

    async fn setlk(&self, cx: &Cx, op: SetLock) -> Result<()> {
        self.0.has(OpCode::SetLock)?;
        self.0.set_lock(cx, op).await
    }

    async fn release(&self, _: &Cx, op: Release) -> Result<()> {
        self.0.unlock_all(op.node, op.handle).await;
        self.0.close(op.node, op.handle).await
    }

    async fn opendir(&self, cx: &Cx, op: OpenDir) -> Result<Opened> {
        self.0.open_dir(cx, op.node).await
    }

    async fn readdir(&self, cx: &Cx, op: ReadDir) -> Result<Dirents> {
        self.0.read_dir(cx, (op.node, op.handle), op.cookie, op.size).await
    }

    async fn readdirplus(&self, cx: &Cx, op: ReadDirPlus) -> Result<DirentsPlus> {
        self.0.read_dir_plus(cx, (op.node, op.handle), op.cookie, op.size).await
    }

    async fn releasedir(&self, _: &Cx, op: ReleaseDir) -> Result<()> {
        self.0.dirs.close(op.handle);
        Ok(())
    }

    async fn getxattr(&self, cx: &Cx, op: GetXattr) -> Result<Value> {
        self.0.has(OpCode::GetXattr)?;
        self.0.xattr(cx, op.node, &op.name).await
    }

    async fn setxattr(&self, cx: &Cx, op: SetXattr) -> Result<()> {
        self.0.has(OpCode::SetXattr)?;
        self.0.set_xattr(cx, op).await
    }

    async fn listxattr(&self, cx: &Cx, op: ListXattr) -> Result<Names> {
        self.0.has(OpCode::ListXattr)?;
        let names = self.0.xattr(cx, op.node, b"").await?;
        names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| XattrName::new(name.to_vec()))
            .collect()
    }

    async fn removexattr(&self, cx: &Cx, op: RemoveXattr) -> Result<()> {
        self.0.has(OpCode::RemoveXattr)?;
        // As the client of Linux does: with the flag, no value cannot mean an empty one.
        let flags = XattrFlags::REPLACE.bits();
        self.0.put_xattr(cx, op.node, (&op.name, flags), Value::new()).await
    }

    async fn statfs(&self, cx: &Cx, op: StatFs) -> Result<FsStat> {
        self.0.has(OpCode::StatFs)?;
        let uid = self.0.uid(cx);
        let told = self.0.with(uid, |session| async move {
            let fid = self.0.reach(&session, uid, op.node).await?;
            Ok(session.ask(Tstatfs { fid: fid.number }).await?.space)
        });
        let space = told.await?;
        Ok(FsStat {
            blocks: space.blocks,
            bfree: space.bfree,
            bavail: space.bavail,
            files: space.files,
            ffree: space.ffree,
            bsize: space.bsize,
            frsize: space.bsize,
            namelen: space.namelen,
        })
    }

    async fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        self.0.files.table().locate(op.node)
    }
}
