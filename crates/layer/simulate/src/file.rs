// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, positions and permissions of files.

use crate::Below;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{Access, Create, GetAttr, MkNod, Open, OpenFlags, Seek, SetAttr, Whence};
use outrigger_core::reply::{Created, Entry, Granted, Offset, Opened, Ttl};
use outrigger_core::{Answer, Errno, FileKind, Node, OpCode, Reply, Result, SetAttrs, ask};

/// How often `create` starts again because somebody removes the file it found.
const TRIES: u32 = 5;

impl<'a> Below<'a> {
    /// Opens a file of a driver that has no handles.
    pub(crate) fn open(self, op: Open) -> Answer<'a> {
        if !op.flags.contains(OpenFlags::TRUNC) {
            return Answer::Ready(Reply::Opened(Opened::default()));
        }
        let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
        let empty = SetAttr { node: op.node, handle: None, attrs };
        self.next.call(self.cx, empty.into()).map(|reply| match reply {
            Reply::Error(error) => Reply::Error(error),
            _ => Reply::Opened(Opened::default()),
        })
    }
}

impl Below<'_> {
    pub(crate) async fn create(&self, op: Create) -> Result<Created> {
        let mut entry = self.make_or_find(&op).await?;
        match self.open_for_create(entry.node, op.flags.difference(OpenFlags::EXCL)).await {
            Ok(opened) => {
                if op.flags.contains(OpenFlags::TRUNC) && entry.attr.size > 0 {
                    self.refresh(&mut entry).await;
                }
                Ok(Created { entry, opened })
            }
            Err(error) => {
                self.forget(entry.node).await;
                Err(error)
            }
        }
    }

    async fn make_or_find(&self, op: &Create) -> Result<Entry> {
        let mode = FileKind::Regular.bits() | (op.mode & MODE_PERMISSIONS);
        let mut tries = 0;
        loop {
            let make =
                MkNod { dir: op.dir, name: op.name.clone(), mode, umask: op.umask, rdev: 0, initial: None };
            match ask(self.next, self.cx, make).await {
                Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {}
                made => return made,
            }
            match self.existing(op).await {
                // Removed between the two steps: make it after all.
                Err(error) if error.errno == Errno::ENOENT && tries < TRIES => tries += 1,
                found => return found,
            }
        }
    }

    /// Attributes after the file was emptied. What is unknown must not be cached.
    async fn refresh(&self, entry: &mut Entry) {
        let get = GetAttr { node: entry.node, handle: None };
        match ask(self.next, self.cx, get).await {
            Ok(now) => (entry.attr, entry.attr_ttl) = (now.attr, now.ttl),
            Err(_) => (entry.attr.size, entry.attr_ttl) = (0, Ttl::NEVER),
        }
    }

    /// The file that `create` finds in place, which must be one that can be opened.
    async fn existing(&self, op: &Create) -> Result<Entry> {
        let entry = self.find(op.dir, op.name.clone()).await?;
        let errno = match entry.attr.kind() {
            FileKind::Directory => Errno::EISDIR,
            FileKind::Symlink => Errno::ELOOP,
            _ => return Ok(entry),
        };
        self.forget(entry.node).await;
        Err(errno.into())
    }

    async fn open_for_create(&self, node: Node, flags: OpenFlags) -> Result<Opened> {
        let open = Open { node, flags };
        let reply = match self.supplied(OpCode::Open) {
            true => self.open(open).await,
            false => self.next.call(self.cx, open.into()).await,
        };
        <Open as outrigger_core::Op>::result(reply)
    }

    pub(crate) async fn lseek(&self, op: Seek) -> Result<Offset> {
        let get = GetAttr { node: op.node, handle: Some(op.handle) };
        let size = ask(self.next, self.cx, get).await?.attr.size;
        match op.whence {
            _ if op.offset >= size => Err(Errno::ENXIO.into()),
            Whence::Data => Ok(Offset(op.offset)),
            Whence::Hole => Ok(Offset(size)),
        }
    }

    pub(crate) async fn access(&self, op: Access) -> Result<Granted> {
        let get = GetAttr { node: op.node, handle: None };
        let attr = ask(self.next, self.cx, get).await?.attr;
        Ok(Granted::of(op.mask, attr.granted(&self.cx.cred)))
    }
}
