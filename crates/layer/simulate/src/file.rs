// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, positions and permissions of files.

use crate::Below;
use outrigger_core::ops::{Access, Create, GetAttr, MkNod, Open, OpenFlags, Seek, SetAttr, Whence};
use outrigger_core::reply::{Created, Entry, Offset, Opened};
use outrigger_core::{
    Answer, Attr, Credentials, Errno, FileKind, Node, OpCode, Reply, Result, SetAttrs, ask,
};

/// The bits of access(2).
const R_OK: u32 = 4;
const X_OK: u32 = 1;

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
        let mode = FileKind::Regular.bits() | (op.mode & 0o7777);
        let make = MkNod { dir: op.dir, name: op.name.clone(), mode, rdev: 0 };
        let entry = match ask(self.next, self.cx, make).await {
            Err(error) if error.errno == Errno::EEXIST && !op.flags.contains(OpenFlags::EXCL) => {
                self.existing(&op).await?
            }
            made => made?,
        };
        let flags = op.flags.difference(OpenFlags::EXCL);
        match self.open_for_create(entry.node, flags).await {
            Ok(opened) => Ok(Created { entry, opened }),
            Err(error) => {
                self.forget(entry.node).await;
                Err(error)
            }
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

    pub(crate) async fn access(&self, op: Access) -> Result<()> {
        let get = GetAttr { node: op.node, handle: None };
        let attr = ask(self.next, self.cx, get).await?.attr;
        if permitted(&attr, self.cx.cred) & op.mask == op.mask { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}

/// The `R_OK`, `W_OK` and `X_OK` bits the permission bits grant (see path_resolution(7)).
fn permitted(attr: &Attr, cred: Credentials) -> u32 {
    let mode = attr.permissions();
    if cred.uid == 0 {
        let may_execute = attr.is_dir() || mode & 0o111 != 0;
        return R_OK | 2 | if may_execute { X_OK } else { 0 };
    }
    let shift = match attr {
        _ if attr.uid == cred.uid => 6,
        _ if attr.gid == cred.gid => 3,
        _ => 0,
    };
    (mode >> shift) & 7
}
