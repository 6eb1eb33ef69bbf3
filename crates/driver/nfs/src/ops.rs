// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations.

use crate::Nfs;
use crate::exports::is_above;
use crate::inner::sent;
use bytes::Bytes;
use outrigger_core::ops::*;
use outrigger_core::reply::{
    Attrs, Count, Created, Dirents, DirentsPlus, Entries, Entry, FsStat, Granted, Opened, Ttl,
};
use outrigger_core::{
    Abilities, Cx, Driver, Errno, FileKind, Identity, OpCode, OpSet, Parallel, Payload, Result, Target,
};
use outrigger_proto_nfs3::nfs::procedure as nfs;

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
    OpCode::Flush,
    OpCode::FSync,
    OpCode::FSyncDir,
    OpCode::SyncFs,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::Access,
    OpCode::Locate,
]);

/// The unit in which space is told.
const BLOCK: u32 = 4096;

impl Driver for Nfs {
    fn abilities(&self) -> Abilities {
        Abilities {
            identity: Identity::ByPath,
            cookies_by_name: true,
            anonymous_io: true,
            initial_attrs: true,
            close_to_open: true,
            root_at: Some(Bytes::copy_from_slice(&self.0.base)),
            parallel: Parallel { reads: 16, listings: 8 },
            negative_ttl: Ttl::SECOND,
            ..Abilities::new("nfs", self.shown(), OPS)
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
        let auth = match op.handle {
            Some(handle) => {
                self.0.user(cx, handle).map_or_else(|_| self.0.auth(cx), |user| user.writer.auth.clone())
            }
            None => self.0.auth(cx),
        };
        self.0.attrs(&auth, op.node).await
    }

    async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        self.0.setattr(cx, op).await
    }

    async fn readlink(&self, cx: &Cx, op: ReadLink) -> Result<Target> {
        let auth = self.0.auth(cx);
        let known = self.0.known(&auth, op.node).await?;
        if known.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.because("only symbolic links have a target"));
        }
        Target::new(self.0.ask::<nfs::ReadLink>(&auth, &sent(&known)?).await?.target.into_bytes())
    }

    async fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        self.0.mknod(cx, op).await
    }

    async fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        self.0.mkdir(cx, op).await
    }

    async fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        self.0.symlink(cx, op).await
    }

    async fn link(&self, cx: &Cx, op: Link) -> Result<Entry> {
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

    async fn read(&self, cx: &Cx, op: Read) -> Result<Payload> {
        self.0.read(cx, op).await
    }

    async fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        self.0.write(cx, op).await.map(Count)
    }

    async fn flush(&self, _: &Cx, op: Flush) -> Result<()> {
        self.0.unstable.commit(&*self.0, op.node).await
    }

    async fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        self.0.unstable.commit(&*self.0, op.node).await
    }

    /// Changes of names are on stable storage when the server answers them.
    async fn fsyncdir(&self, _: &Cx, _: FSyncDir) -> Result<()> {
        Ok(())
    }

    async fn syncfs(&self, _: &Cx, _: SyncFs) -> Result<()> {
        self.0.unstable.commit_all(&*self.0).await
    }

    async fn release(&self, _: &Cx, op: Release) -> Result<()> {
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
        self.0.dirs.open.close(op.handle);
        Ok(())
    }

    async fn statfs(&self, cx: &Cx, op: StatFs) -> Result<FsStat> {
        let auth = self.0.auth(cx);
        let known = self.0.known(&auth, op.node).await?;
        let none = FsStat { bsize: BLOCK, frsize: BLOCK, namelen: 255, ..FsStat::default() };
        if is_above(&known) {
            return Ok(none);
        }
        let space = self.0.ask::<nfs::FsStat>(&auth, &sent(&known)?).await?;
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        Ok(FsStat {
            blocks: blocks(space.total_bytes),
            bfree: blocks(space.free_bytes),
            bavail: blocks(space.available_bytes),
            files: space.total_files,
            ffree: space.free_files,
            ..none
        })
    }

    async fn access(&self, cx: &Cx, op: Access) -> Result<Granted> {
        Ok(Granted::of(op.mask, self.0.granted(&self.0.auth(cx), op.node, op.mask).await?))
    }

    async fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        self.0.files.table().locate(op.node)
    }
}
