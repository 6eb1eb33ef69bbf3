// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the reply to each operation is written as a FUSE reply. What is written is what the operation table says that the operation
//! answers, so a request cannot be paired with the writing of another one's reply.
use crate::answer::{View, checked, lock_out, sized, statfs};
use crate::backing::Backings;
use crate::translate::Listing;
use outrigger_core::ops::{self, Op, OpenFlags};
use outrigger_core::reply::{Attrs, Created};
use outrigger_core::{Errno, Error, Node, Payload, Reply, Result};
use outrigger_proto_fuse as fuse;

/// A reply being written.
pub(crate) struct Body<'a> {
    pub(crate) view: &'a View,
    pub(crate) backings: &'a Backings,
    /// What is built so far.
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) tail: Tail,
}

/// What belongs to a reply besides the bytes built for it.
#[derive(Default)]
pub(crate) struct Tail {
    /// Content to send after the built bytes.
    pub(crate) data: Option<Payload>,
    /// Nodes the driver counted a reference for that the kernel does not learn of.
    pub(crate) forgotten: Vec<Node>,
    /// A node whose attributes the operation changed and the kernel would believe in as before.
    pub(crate) changed: Option<Node>,
    /// A file that was opened, which is to be seen as it is now.
    pub(crate) opened: Option<Node>,
}

/// What the kernel wants to know of the attributes of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// What stat(2) has.
    Stat,
    /// What statx(2) has.
    Statx,
    /// Success, unless they are those of a file without any execute permission.
    Executable,
}

/// An operation that the kernel asks for.
pub(crate) trait Shown: Op {
    /// What writing its reply takes besides the reply.
    type How;

    /// How its reply is written.
    fn shape(how: Self::How) -> Shape;
}

/// The result in a reply.
///
/// # Errors
/// The error the reply carries, or `EIO` when it belongs to another operation.
fn result<O: Op>(reply: Reply) -> Result<O::Out> {
    match reply {
        Reply::Error(error) => Err(error),
        reply => O::result(reply).map_err(|error| Error { errno: Errno::EIO, ..error }),
    }
}

macro_rules! shapes {
    ($($($op:ident)+: |$how:pat_param in $type:ty, $result:ident, $body:ident| $write:expr;)*) => {
        /// How the reply to a request is written, by its operation.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Shape { $($($op($type)),+),* }

        $($(impl Shown for ops::$op {
            type How = $type;
            fn shape(how: $type) -> Shape {
                Shape::$op(how)
            }
        })+)*

        impl Shape {
            /// Writes `reply` to `body`.
            ///
            /// # Errors
            /// Those of [`result`], but for errors that the kernel gets as another answer.
            pub(crate) fn write(self, reply: Reply, body: &mut Body<'_>) -> Result<()> {
                match self {
                    $($(Shape::$op($how) => {
                        let ($result, $body) = (result::<ops::$op>(reply), body);
                        $write
                    })+)*
                }
            }
        }
    };
}

shapes! {
    GetAttr: |(node, wanted) in (Node, Wanted), attrs, body| body.attrs(node, wanted, &attrs?);
    SetAttr: |node in Node, attrs, body| body.attrs(node, Wanted::Stat, &attrs?);
    Lookup: |() in (), entry, body| match entry {
        // The lasting knowledge that there is none.
        Err(error) if error.errno == Errno::ENOENT => body.put(&body.view.no_entry().ok_or(error)?.encode()),
        entry => body.put(&body.view.entry(&entry?, body.backings).encode()),
    };
    MkNod MkDir SymLink Link Parent Resolve: |() in (), entry, body| {
        body.put(&body.view.entry(&entry?, body.backings).encode())
    };
    Unlink RmDir Rename
    Flush FSync FSyncDir SyncFs Release ReleaseDir Fallocate SetLock RemoveXattr: |() in (), done, _body| done;
    SetXattr: |changed in Option<Node>, done, body| {
        done?;
        body.tail.changed = changed;
        Ok(())
    };
    ReadLink: |() in (), target, body| body.put(target?.as_bytes());
    Open: |(node, flags) in (Node, OpenFlags), opened, body| {
        body.tail.opened = Some(node);
        body.put(&body.view.opened_file(node, &opened?, flags, body.backings).encode())
    };
    OpenDir: |() in (), opened, body| {
        let opened = opened?;
        let (fh, open_flags) = (opened.handle.0, opened.how.bits());
        body.put(&fuse::OpenOut { fh, open_flags, backing_id: 0 }.encode())
    };
    Create TmpFile: |flags in OpenFlags, created, body| body.created(&created?, flags);
    // At most so many bytes of content.
    Read: |room in u32, data, body| body.data(data?, room);
    // Whether it goes to the end of the file.
    Write: |_appends in bool, count, body| body.count32(count?.0);
    // Whether the count has 64 bits.
    CopyRange: |wide in bool, count, body| match (wide, count?.0) {
        (true, bytes_copied) => body.put(&fuse::CopyFileRangeOut { bytes_copied }.encode()),
        (false, count) => body.count32(count),
    };
    // The room there is, zero for the size only; and whether the value is an access list that the kernel obeys.
    GetXattr: |(room, acl) in (u32, bool), value, body| match value {
        // A file that cannot have an access list has none: else the kernel would refuse all access to it.
        Err(error) if acl && error.errno == Errno::EOPNOTSUPP => Err(Errno::ENODATA.into()),
        value => {
            let value = value?;
            sized(body.out, room, value.len(), |out| out.extend_from_slice(&value))
        }
    };
    ListXattr: |room in u32, names, body| {
        let names = names?;
        let len = names.iter().map(|name| name.len() + 1).sum();
        let put = |out: &mut Vec<u8>| {
            names.iter().for_each(|name| out.extend(name.as_bytes().iter().chain(&[0])));
        };
        sized(body.out, room, len, put)
    };
    GetLock: |() in (), lock, body| body.put(&fuse::LkOut { lk: lock_out(lock?) }.encode());
    StatFs: |() in (), stat, body| body.put(&statfs(&stat?).encode());
    Ioctl: |room in u32, done, body| {
        let done = done?;
        body.put(&fuse::IoctlOut { result: done.result, ..Default::default() }.encode())?;
        body.data(Payload::Bytes(done.output), room)
    };
    Poll: |() in (), events, body| body.put(&fuse::PollOut { revents: events?.0 }.encode());
    Seek: |() in (), offset, body| body.put(&fuse::LseekOut { offset: offset?.0 }.encode());
    // The permissions that were asked for.
    Access: |mask in u32, granted, _body| granted?.all(mask);
    ReadDir: |listing in Listing, dirents, body| {
        body.view.dirents(listing, &dirents?.entries, body.out);
        Ok(())
    };
    ReadDirPlus: |listing in Listing, dirents, body| {
        body.tail.forgotten = body.view.dirents_plus(listing, &dirents?.entries, body.backings, body.out);
        Ok(())
    };
}

impl Body<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn attrs(&mut self, node: Node, wanted: Wanted, attrs: &Attrs) -> Result<()> {
        let view = self.view;
        let (attr_valid, attr_valid_nsec) = view.attr_lifetime(node, &attrs.attr, attrs.ttl, self.backings);
        match wanted {
            Wanted::Stat => {
                let attr = view.attr(&attrs.attr);
                self.put(&fuse::AttrOut { attr_valid, attr_valid_nsec, attr }.encode())
            }
            Wanted::Statx => {
                let stat = view.statx(&attrs.attr);
                self.put(&fuse::StatxOut { attr_valid, attr_valid_nsec, flags: 0, stat }.encode())
            }
            Wanted::Executable => view.executable(&attrs.attr),
        }
    }

    fn created(&mut self, Created { entry, opened }: &Created, flags: OpenFlags) -> Result<()> {
        let opened = self.view.opened_file(entry.node, opened, flags, self.backings);
        self.put(&self.view.entry(entry, self.backings).encode())?;
        self.put(&opened.encode())
    }

    fn count32(&mut self, count: u64) -> Result<()> {
        let size = u32::try_from(count).unwrap_or(u32::MAX);
        self.put(&fuse::WriteOut { size }.encode())
    }

    fn data(&mut self, data: Payload, room: u32) -> Result<()> {
        self.tail.data = Some(checked(data, room)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::options::Options;
    use outrigger_core::{Abilities, OpSet};
    use std::fs::File;
    use std::sync::Arc;

    #[test]
    fn a_reply_to_another_operation_is_an_error() {
        let view = View::new(&Options::default(), &Abilities::new("test", "", OpSet::all()));
        let device = Device::from_fd(File::open("/dev/null").unwrap().into());
        let backings = Backings::new(Arc::new(device), None);
        let mut out = Vec::new();
        let write = |reply, out: &mut Vec<u8>| view.write(Shape::Rename(()), reply, &backings, out).map(drop);
        let wrong = write(Reply::Events(outrigger_core::reply::Events(0)), &mut out);
        assert_eq!(wrong.map_err(|error| error.errno), Err(Errno::EIO));
        let own = write(Reply::Error(Errno::EPROTO.into()), &mut out);
        assert_eq!(own.map_err(|error| error.errno), Err(Errno::EPROTO), "the error of the driver itself");
        assert_eq!(write(Reply::Done(()), &mut out), Ok(()));
    }
}
