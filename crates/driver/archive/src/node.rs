// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of the driver.
//!
//! A node is the number of its inode in the index plus one, so it can be recovered from the archive alone. Opening
//! needs no state. The cookie of an entry is its position in the directory plus one.

use crate::{
    Archive, Kind, Result as ArchiveResult, Watch,
    entry::{Extra, S_IFLNK, S_IFMT, S_IFREG},
    index::Inode,
    tree::NAME_MAX,
};
use bytes::Bytes;
use outrigger_core::{
    Abilities, Attr, BlockingDriver, Cx, DriverClass, Errno, Error, FileKind, Generation, Handle, Identity,
    Name, Node, OpCode, OpSet, Prompt, Request, Result, Target, XattrName, ops,
    reply::{
        Attrs, Count, Created, Data, Dirent, DirentPlus, Dirents, DirentsPlus, Done, Entries, Entry, FsStat,
        Names, Offset, OpenHow, Opened, Ttl, Value,
    },
};

/// Inodes are numbered from 0 in the index; node 0 is not used.
const FIRST_NODE: u64 = 1;
const MAX_IO: u32 = 1 << 20;

impl From<crate::Error> for Error {
    fn from(e: crate::Error) -> Error {
        let errno = match e.kind() {
            Kind::Io | Kind::Truncated | Kind::Corrupt => Errno::EIO,
            Kind::Unsupported => Errno::EOPNOTSUPP,
            Kind::Limit => Errno::EFBIG,
            Kind::Cancelled => Errno::EINTR,
            Kind::NotAnArchive => Errno::EINVAL,
        };
        errno.because(e.to_string())
    }
}

/// Lets a decoder stop when the program no longer wants the answer.
struct Requester<'a>(&'a Cx);

impl Watch for Requester<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancel.is_raised()
    }
}

/// An open archive as a driver.
#[derive(Debug)]
pub struct ArchiveDriver {
    archive: Archive,
    generation: Generation,
}

impl ArchiveDriver {
    /// Serves `archive`.
    pub fn new(archive: Archive) -> Self {
        let generation = Generation(archive.generation());
        ArchiveDriver { archive, generation }
    }

    /// The archive it is of, for its warnings and figures.
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    fn inode(&self, node: Node) -> Result<(u32, Inode)> {
        let number = node.0.checked_sub(FIRST_NODE).and_then(|n| u32::try_from(n).ok());
        let found = number.and_then(|n| Some((n, self.archive.index().inode(n)?)));
        found.ok_or_else(|| Errno::ESTALE.because("no such node in this archive"))
    }

    fn directory(&self, node: Node) -> Result<(u32, Inode)> {
        self.inode(node).and_then(|(n, i)| if i.is_dir() { Ok((n, i)) } else { Err(Errno::ENOTDIR.into()) })
    }

    fn child(&self, number: u32) -> Result<Inode> {
        self.archive.index().inode(number).ok_or_else(|| self.archive.damaged(number).into())
    }

    fn attr(&self, number: u32, inode: &Inode) -> Result<Attr> {
        let extra = self.archive.extra(number, inode)?;
        let mtime = time(inode.mtime);
        let stored = match &extra.sparse {
            Some(runs) => runs.iter().map(|r| r.1).fold(0, u64::saturating_add),
            None => inode.size,
        };
        Ok(Attr {
            ino: node(number).0,
            size: inode.size,
            blocks: if inode.mode & S_IFMT == S_IFREG { stored.div_ceil(512) } else { 0 },
            atime: extra.atime.map_or(mtime, time),
            mtime,
            ctime: extra.ctime.map_or(mtime, time),
            btime: extra.btime.map(time),
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: rdev(&extra),
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn entry(&self, number: u32, inode: &Inode) -> Result<Entry> {
        Ok(Entry {
            node: node(number),
            generation: self.generation,
            attr: self.attr(number, inode)?,
            entry_ttl: Ttl::FOREVER,
            attr_ttl: Ttl::FOREVER,
        })
    }

    /// Looks `name` up; the caller has made sure that `dir` is a directory.
    fn find(&self, dir: &Inode, name: &Name) -> Result<(u32, Inode)> {
        let number = self.archive.index().lookup(dir, name).ok_or(Errno::ENOENT)?;
        Ok((number, self.child(number)?))
    }

    /// The entries from `cookie` on that fit `size` bytes at `unit` bytes and the name each, made by `make`.
    fn list<T>(
        &self,
        dir: Node,
        (cookie, size, unit): (u64, u32, usize),
        mut make: impl FnMut(u64, Name, u32, &Inode) -> Result<T>,
    ) -> Result<(Vec<T>, bool)> {
        let (_, inode) = self.directory(dir)?;
        let (mut entries, mut used) = (Vec::new(), 0);
        for position in cookie.. {
            let Some((name, number)) = self.archive.index().dirent(&inode, position) else {
                return Ok((entries, true));
            };
            used += unit + name.len();
            if used > size as usize && !entries.is_empty() {
                break;
            }
            let child = self.child(number)?;
            entries.push(make(position + 1, Name::new(name)?, number, &child)?);
        }
        Ok((entries, false))
    }

    fn regular(&self, node: Node) -> Result<(u32, Inode)> {
        let (number, inode) = self.inode(node)?;
        match inode.mode & S_IFMT {
            S_IFREG => Ok((number, inode)),
            _ if inode.is_dir() => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// The path of an inode, going up through its first name in each directory.
    fn path(&self, mut number: u32) -> ArchiveResult<Vec<u8>> {
        let index = self.archive.index();
        let mut names = Vec::new();
        let damaged = |n| self.archive.damaged(n);
        // A cached index could hold a loop; no real path has more components than there are inodes.
        for _ in 0..index.len() {
            if number == 0 {
                break;
            }
            let parent = index.inode(number).ok_or_else(|| damaged(number))?.parent();
            let dir = index.inode(parent).ok_or_else(|| damaged(parent))?;
            let mut entries = (0..).map_while(|i| index.dirent(&dir, i));
            let name = entries.find(|(_, n)| *n == number).ok_or_else(|| damaged(number))?.0;
            names.push(name);
            number = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}

fn node(number: u32) -> Node {
    Node(u64::from(number) + FIRST_NODE)
}

fn time(t: crate::Time) -> outrigger_core::Time {
    outrigger_core::Time::new(t.sec, t.nsec)
}

/// `dev_t` in 32 bits, as makedev(3) packs it; larger numbers do not exist on Linux.
fn rdev(extra: &Extra) -> u32 {
    let (major, minor) = extra.rdev.unwrap_or_default();
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Methods that answer `EROFS`.
macro_rules! refuse {
    ($($method:ident: $op:ident -> $reply:ty,)*) => {
        $(fn $method(&self, _: &Cx, _: ops::$op) -> Result<$reply> {
            Err(Errno::EROFS.because("archives are read-only"))
        })*
    };
}

impl BlockingDriver for ArchiveDriver {
    fn abilities(&self) -> Abilities {
        Abilities {
            identity: Identity::Persistent,
            class: DriverClass::PassThrough,
            read_only: true,
            stateless_files: true,
            stateless_dirs: true,
            negative_ttl: Ttl::FOREVER,
            max_io: MAX_IO,
            ..Abilities::new("archive", self.archive.name(), OPS)
        }
    }

    fn lookup(&self, _: &Cx, op: ops::Lookup) -> Result<Entry> {
        let (_, dir) = self.directory(op.dir)?;
        let (number, inode) = self.find(&dir, &op.name)?;
        self.entry(number, &inode)
    }

    fn walk(&self, _: &Cx, op: ops::Walk) -> Result<Entries> {
        let (_, mut at) = self.directory(op.dir)?;
        let mut entries = Vec::with_capacity(op.names.len());
        for name in &op.names {
            let step = if at.is_dir() { self.find(&at, name) } else { Err(Errno::ENOTDIR.into()) };
            match step {
                Ok((number, inode)) => {
                    entries.push(self.entry(number, &inode)?);
                    at = inode;
                }
                Err(e) if entries.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        Ok(entries)
    }

    fn getattr(&self, _: &Cx, op: ops::GetAttr) -> Result<Attrs> {
        let (number, inode) = self.inode(op.node)?;
        Ok(Attrs { attr: self.attr(number, &inode)?, ttl: Ttl::FOREVER })
    }

    fn readlink(&self, _: &Cx, op: ops::ReadLink) -> Result<Target> {
        let (number, inode) = self.inode(op.node)?;
        if inode.mode & S_IFMT != S_IFLNK {
            return Err(Errno::EINVAL.into());
        }
        Target::new(self.archive.extra(number, &inode)?.target.unwrap_or_default())
    }

    fn open(&self, _: &Cx, op: ops::Open) -> Result<Opened> {
        let (_, inode) = self.inode(op.node)?;
        if op.flags.writes() {
            return Err(if inode.is_dir() { Errno::EISDIR } else { Errno::EROFS }.into());
        }
        let how = OpenHow::KEEP_CACHE | OpenHow::NO_FLUSH;
        Ok(Opened { handle: Handle(0), how, ..Opened::default() })
    }

    fn read(&self, cx: &Cx, op: ops::Read) -> Result<Data> {
        let (number, inode) = self.regular(op.node)?;
        let len = op.len.min(MAX_IO) as usize;
        Ok(self.archive.read(number, &inode, op.offset, len, &Requester(cx))?.into())
    }

    fn lseek(&self, _: &Cx, op: ops::Seek) -> Result<Offset> {
        let (number, inode) = self.regular(op.node)?;
        if op.offset >= inode.size {
            return Err(Errno::ENXIO.into());
        }
        let runs = self.archive.runs(number, &inode)?;
        let end = (0, inode.size);
        let runs = runs.as_ref().map_or(std::slice::from_ref(&end), |r| r.as_slice());
        let next = runs.partition_point(|(o, l)| o + l <= op.offset);
        let run = runs.get(next).copied();
        Ok(Offset(match op.whence {
            ops::Whence::Data => run.ok_or(Errno::ENXIO)?.0.max(op.offset),
            ops::Whence::Hole => {
                let mut at = op.offset;
                // Adjacent runs are one run of data.
                for (o, l) in &runs[next..] {
                    if *o > at {
                        break;
                    }
                    at = o + l;
                }
                at.min(inode.size)
            }
        }))
    }

    fn release(&self, _: &Cx, _: ops::Release) -> Result<Done> {
        Ok(())
    }

    fn flush(&self, _: &Cx, _: ops::Flush) -> Result<Done> {
        Ok(())
    }

    fn opendir(&self, _: &Cx, op: ops::OpenDir) -> Result<Opened> {
        self.directory(op.node)?;
        Ok(Opened { handle: Handle(0), how: OpenHow::KEEP_CACHE | OpenHow::CACHE_DIR, ..Opened::default() })
    }

    fn readdir(&self, _: &Cx, op: ops::ReadDir) -> Result<Dirents> {
        let (entries, eof) =
            self.list(op.node, (op.cookie, op.size, 24), |cookie, name, number, inode| {
                Ok(Dirent { ino: node(number).0, cookie, kind: FileKind::of_mode(inode.mode), name })
            })?;
        Ok(Dirents { entries, eof })
    }

    fn readdirplus(&self, _: &Cx, op: ops::ReadDirPlus) -> Result<DirentsPlus> {
        let (entries, eof) =
            self.list(op.node, (op.cookie, op.size, 152), |cookie, name, number, inode| {
                Ok(DirentPlus { cookie, name, entry: self.entry(number, inode)? })
            })?;
        Ok(DirentsPlus { entries, eof })
    }

    fn releasedir(&self, _: &Cx, _: ops::ReleaseDir) -> Result<Done> {
        Ok(())
    }

    fn getxattr(&self, _: &Cx, op: ops::GetXattr) -> Result<Value> {
        let (number, inode) = self.inode(op.node)?;
        let xattrs = self.archive.extra(number, &inode)?.xattrs;
        let found = xattrs.into_iter().find(|(name, _)| *name == *op.name);
        Ok(Bytes::from(found.ok_or(Errno::ENODATA)?.1))
    }

    fn listxattr(&self, _: &Cx, op: ops::ListXattr) -> Result<Names> {
        let (number, inode) = self.inode(op.node)?;
        self.archive.extra(number, &inode)?.xattrs.into_iter().map(|(name, _)| XattrName::new(name)).collect()
    }

    fn statfs(&self, _: &Cx, op: ops::StatFs) -> Result<FsStat> {
        self.inode(op.node)?;
        let unit = 512;
        Ok(FsStat {
            blocks: self.archive.packed_size().div_ceil(unit),
            files: self.archive.inodes().into(),
            bsize: 4096,
            frsize: unit as u32,
            namelen: NAME_MAX as u32,
            ..FsStat::default()
        })
    }

    fn fsync(&self, _: &Cx, _: ops::FSync) -> Result<Done> {
        Ok(())
    }

    fn fsyncdir(&self, _: &Cx, _: ops::FSyncDir) -> Result<Done> {
        Ok(())
    }

    fn syncfs(&self, _: &Cx, _: ops::SyncFs) -> Result<Done> {
        Ok(())
    }

    fn forget(&self, _: &Cx, _: ops::Forget) -> Result<Done> {
        Ok(())
    }

    fn locate(&self, _: &Cx, op: ops::Locate) -> Result<Target> {
        let (number, _) = self.inode(op.node)?;
        Target::new(self.path(number)?)
    }

    refuse! {
        setattr: SetAttr -> Attrs,
        mknod: MkNod -> Entry,
        mkdir: MkDir -> Entry,
        symlink: SymLink -> Entry,
        link: Link -> Entry,
        unlink: Unlink -> Done,
        rmdir: RmDir -> Done,
        rename: Rename -> Done,
        create: Create -> Created,
        tmpfile: TmpFile -> Created,
        write: Write -> Count,
        fallocate: Fallocate -> Done,
        copy_range: CopyRange -> Count,
        setxattr: SetXattr -> Done,
        removexattr: RemoveXattr -> Done,
    }
}

/// What it answers, the changes it refuses with `EROFS` included.
const OPS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::ReadLink,
    OpCode::Open,
    OpCode::Read,
    OpCode::Seek,
    OpCode::Release,
    OpCode::Flush,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::GetXattr,
    OpCode::ListXattr,
    OpCode::StatFs,
    OpCode::FSync,
    OpCode::FSyncDir,
    OpCode::SyncFs,
    OpCode::Forget,
    OpCode::Locate,
    OpCode::SetAttr,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
    OpCode::Link,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
    OpCode::Create,
    OpCode::TmpFile,
    OpCode::Write,
    OpCode::Fallocate,
    OpCode::CopyRange,
    OpCode::SetXattr,
    OpCode::RemoveXattr,
]);

impl Prompt for ArchiveDriver {
    /// Everything but reads of bytes that are not at hand; locating a node may have to search a large directory.
    ///
    /// Asking marks the blocks as just used, so they are still there for the read that follows unless the whole cache
    /// is replaced in between; then that one read decodes on the asking thread.
    fn is_prompt(&self, request: &Request) -> bool {
        match request {
            Request::Read(op) => self.regular(op.node).map_or(true, |(number, inode)| {
                self.archive.is_at_hand(number, &inode, op.offset, op.len.min(MAX_IO) as usize)
            }),
            Request::Locate(_) => false,
            _ => true,
        }
    }
}
