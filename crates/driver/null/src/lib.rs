// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that costs nothing to serve, for measuring everything around it.
//!
//! One directory holds one file, `file`, that reads as zeroes. Every answer is a constant, is never cached, and comes
//! on the thread that asks; nothing needs to be opened. Writes and truncation are accepted and forgotten. Names cannot
//! be made, removed or changed.
#![forbid(unsafe_code)]

mod options;

pub use options::{DRIVER, OPTIONS, Options};

use bytes::Bytes;
use outrigger_core::ops::{
    Forget, GetAttr, Locate, Lookup, Open, OpenDir, Read, ReadDir, Release, ReleaseDir, SetAttr, StatFs,
    Write,
};
use outrigger_core::reply::{Attrs, Count, Dirent, Dirents, Entry, FsStat, OpenHow, Opened, Ttl};
use outrigger_core::{
    Abilities, Attr, BlockingDriver, Cx, DriverClass, Errno, FileKind, Generation, Identity, Name, Node,
    OpCode, OpSet, Payload, Prompt, Result, Target,
};

/// The most one read answers, in bytes.
const MAX_IO: u32 = 1 << 20;
static ZEROES: [u8; MAX_IO as usize] = [0; MAX_IO as usize];

const FILE: Node = Node(2);
const FILE_NAME: &str = "file";
const OPS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::Open,
    OpCode::Read,
    OpCode::Write,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReleaseDir,
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::Locate,
]);

/// The driver.
#[derive(Debug)]
pub struct Null {
    size: u64,
}

impl Null {
    /// A tree whose file has `size` bytes.
    pub fn new(size: u64) -> Self {
        Null { size }
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        let (kind, permissions, size, nlink) = match node {
            Node::ROOT => (FileKind::Directory, 0o777, 0, 2),
            FILE => (FileKind::Regular, 0o666, self.size, 1),
            _ => return Err(Errno::ESTALE.into()),
        };
        let mode = kind.bits() | permissions;
        Ok(Attr { ino: node.0, size, mode, nlink, blksize: MAX_IO, ..Attr::default() })
    }
}

impl BlockingDriver for Null {
    fn abilities(&self) -> Abilities {
        Abilities {
            identity: Identity::Persistent,
            class: DriverClass::Memory,
            stateless_files: true,
            stateless_dirs: true,
            max_io: MAX_IO,
            ..Abilities::new("null", "null", OPS)
        }
    }

    fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        match op.dir {
            Node::ROOT if op.name.as_bytes() == FILE_NAME.as_bytes() => Ok(Entry {
                node: FILE,
                generation: Generation(0),
                attr: self.attr(FILE)?,
                entry_ttl: Ttl::NEVER,
                attr_ttl: Ttl::NEVER,
            }),
            Node::ROOT => Err(Errno::ENOENT.into()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        Ok(Attrs { attr: self.attr(op.node)?, ttl: Ttl::NEVER })
    }

    fn setattr(&self, _: &Cx, op: SetAttr) -> Result<Attrs> {
        Ok(Attrs { attr: self.attr(op.node)?, ttl: Ttl::NEVER })
    }

    fn open(&self, _: &Cx, op: Open) -> Result<Opened> {
        if op.node != FILE {
            return Err(Errno::EISDIR.into());
        }
        Ok(Opened { how: OpenHow::NO_FLUSH, ..Opened::default() })
    }

    fn read(&self, _: &Cx, op: Read) -> Result<Payload> {
        let len = self.size.saturating_sub(op.offset).min(op.len.min(MAX_IO).into());
        Ok(Payload::Bytes(Bytes::from_static(&ZEROES[..len as usize])))
    }

    fn write(&self, _: &Cx, op: Write) -> Result<Count> {
        Ok(Count(op.data.len() as u64))
    }

    fn release(&self, _: &Cx, _: Release) -> Result<()> {
        Ok(())
    }

    fn opendir(&self, _: &Cx, _: OpenDir) -> Result<Opened> {
        Ok(Opened::default())
    }

    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        let mut entries = Vec::new();
        if op.cookie == 0 {
            let name = Name::try_from(FILE_NAME)?;
            entries.push(Dirent { ino: FILE.0, cookie: 1, kind: Some(FileKind::Regular), name });
        }
        Ok(Dirents { entries, eof: true })
    }

    fn releasedir(&self, _: &Cx, _: ReleaseDir) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Cx, _: StatFs) -> Result<FsStat> {
        Ok(FsStat { bsize: MAX_IO, frsize: MAX_IO, namelen: 255, files: 2, ..FsStat::default() })
    }

    fn forget(&self, _: &Cx, _: Forget) -> Result<()> {
        Ok(())
    }

    fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        self.attr(op.node)?;
        Target::new(if op.node == FILE { "/file" } else { "/" })
    }
}

impl Prompt for Null {}
