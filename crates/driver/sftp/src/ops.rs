// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations.

use crate::Sftp;
use bytes::Bytes;
use outrigger_core::ops::{
    CopyRange, Create, FSync, FSyncDir, Forget, GetAttr, Link, Locate, Lookup, MkDir, MkNod, Open, OpenDir,
    Read, ReadDir, ReadDirPlus, ReadLink, Release, ReleaseDir, Rename, RmDir, SetAttr, StatFs, SymLink,
    Unlink, Walk, Write,
};
use outrigger_core::reply::{
    Attrs, Count, Created, Dirents, DirentsPlus, Entries, Entry, FsStat, Opened, Ttl,
};
use outrigger_core::{
    Abilities, Cx, Driver, DriverClass, FileKind, Identity, Name, Node, OpCode, OpSet, Parallel, Payload,
    Recalled, Result, Target, lock,
};
use outrigger_proto_sftp::{Extensions, Request};
use outrigger_toolkit_remote::known::moment;

/// What servers of every kind can do.
const ALWAYS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
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
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::Locate,
]);

/// The longest name where a server does not say, in bytes.
const NAME_MAX: u32 = 255;

impl Driver for Sftp {
    fn abilities(&self) -> Abilities {
        let mut ops = ALWAYS;
        if self.0.extensions.contains(Extensions::HARDLINK) && self.0.options().hard_links {
            ops = ops.union(OpSet::of(&[OpCode::Link]));
        }
        if self.0.extensions.contains(Extensions::COPY_DATA) {
            ops = ops.union(OpSet::of(&[OpCode::CopyRange]));
        }
        Abilities {
            identity: Identity::ByPath,
            class: DriverClass::Network,
            cookies_by_name: self.0.kept.is_some(),
            in_order: true,
            root_at: Some(Bytes::copy_from_slice(self.0.inodes.base())),
            async_create: true,
            // A directory that is the target of a link may be above it, and listing ahead would find no end.
            parallel: Parallel { reads: 64, listings: if self.0.link.follows() { 1 } else { 64 } },
            time_unit: 1_000_000_000,
            negative_ttl: Ttl::SECOND,
            recalls: true,
            ..Abilities::new("sftp", self.0.tree.clone(), ops)
        }
    }

    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        self.0.inodes.recall(dir, name, kind)
    }

    async fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        self.0.find(op).await
    }

    async fn walk(&self, _: &Cx, op: Walk) -> Result<Entries> {
        self.0.walk_down(op).await
    }

    async fn forget(&self, _: &Cx, op: Forget) -> Result<()> {
        self.0.forget(op.node, op.count);
        Ok(())
    }

    async fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        let file = op.handle.and_then(|handle| self.0.files.get(handle).ok());
        if let Some(file) = &file
            && let Some(attrs) = self.0.until_made(file).await?
        {
            return self.0.attrs_of(op.node, &attrs);
        }
        if let Some(attr) = lock(&self.0.removed).get(&op.node).cloned() {
            return Ok(Attrs { attr, ttl: Ttl::SECOND });
        }
        // By its path: a handle leads to the file that it was opened for, also when others have put another one in its place.
        let asked = moment();
        let look = match self.0.inodes.path(op.node) {
            Ok(path) => self.0.look(&path).await.inspect(|attrs| self.0.saw_by_path(op.node, attrs, asked)),
            Err(error) => Err(error.into()),
        };
        let gone = look.as_ref().is_err_and(|fault| !fault.is_lost_connection());
        if gone && let Some(held) = file.and_then(|file| file.present()) {
            let attrs = held.session.begin(&Request::FStat { handle: &held.handle }).await.attrs().await;
            return self.0.attrs_of(op.node, &attrs?);
        }
        self.0.attrs_of(op.node, &look?)
    }

    async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        self.0.set_attr(cx, op).await
    }

    async fn readlink(&self, _: &Cx, op: ReadLink) -> Result<Target> {
        self.0.read_link(op.node).await
    }

    async fn mknod(&self, _: &Cx, op: MkNod) -> Result<Entry> {
        self.0.make_node(op).await
    }

    async fn mkdir(&self, _: &Cx, op: MkDir) -> Result<Entry> {
        self.0.make_dir(op).await
    }

    async fn symlink(&self, _: &Cx, op: SymLink) -> Result<Entry> {
        self.0.make_link(op).await
    }

    async fn link(&self, _: &Cx, op: Link) -> Result<Entry> {
        self.0.link_file(op).await
    }

    async fn unlink(&self, _: &Cx, op: Unlink) -> Result<()> {
        self.0.remove_name(op).await
    }

    async fn rmdir(&self, _: &Cx, op: RmDir) -> Result<()> {
        self.0.remove_dir(op).await
    }

    async fn rename(&self, _: &Cx, op: Rename) -> Result<()> {
        self.0.rename_to(op).await
    }

    async fn open(&self, cx: &Cx, op: Open) -> Result<Opened> {
        let Open { node, flags } = op;
        self.0.open_file(cx, node, flags).await
    }

    async fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        self.0.create_file(cx, op).await
    }

    async fn read(&self, _: &Cx, op: Read) -> Result<Payload> {
        self.0.read_file(op).await
    }

    async fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        self.0.write_file(cx, op).await
    }

    async fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        self.0.sync_file(op.handle).await
    }

    async fn copy_range(&self, _: &Cx, op: CopyRange) -> Result<Count> {
        self.0.copy(op).await
    }

    async fn release(&self, _: &Cx, op: Release) -> Result<()> {
        self.0.close_file(op.handle).await
    }

    async fn opendir(&self, cx: &Cx, op: OpenDir) -> Result<Opened> {
        self.0.open_dir(cx, op.node).await
    }

    async fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        self.0.read_dir((op.node, op.handle), op.cookie, op.size).await
    }

    async fn readdirplus(&self, _: &Cx, op: ReadDirPlus) -> Result<DirentsPlus> {
        self.0.read_dir_plus((op.node, op.handle), op.cookie, op.size).await
    }

    async fn releasedir(&self, _: &Cx, op: ReleaseDir) -> Result<()> {
        self.0.dirs.close(op.handle);
        Ok(())
    }

    async fn fsyncdir(&self, _: &Cx, op: FSyncDir) -> Result<()> {
        self.0.sync_dir(op.node).await
    }

    async fn statfs(&self, _: &Cx, op: StatFs) -> Result<FsStat> {
        if !self.0.extensions.contains(Extensions::STATVFS) {
            // Programs want to know the longest name; all else is given as unknown.
            return Ok(FsStat { namelen: NAME_MAX, bsize: 4096, frsize: 4096, ..FsStat::default() });
        }
        let path = self.0.inodes.path(op.node)?;
        let space = self.0.space(&path).await?;
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(FsStat {
            blocks: space.blocks,
            bfree: space.bfree,
            bavail: space.bavail,
            files: space.files,
            ffree: space.ffree,
            bsize: small(space.bsize),
            frsize: small(space.frsize),
            namelen: if space.namemax == 0 { NAME_MAX } else { small(space.namemax).min(NAME_MAX) },
        })
    }

    async fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        self.0.inodes.locate(op.node)
    }
}
