// SPDX-License-Identifier: MIT OR Apache-2.0
//! What answers where there was a tree: just enough for a client to unmount it.
//!
//! The root keeps the attributes it had. Everything else is `NFS3ERR_STALE`: programs get an error and end, instead of waiting for
//! a server and keeping the mount in use. Names are not listed, for an empty directory would be a lie that a program may act on.

use crate::answer::success;
use outrigger_core::{Errno, Result};
use outrigger_proto_nfs3::nfs::Call;
use outrigger_proto_nfs3::results::{AccessOk, AttrsFailed};
use outrigger_proto_nfs3::types::{Access, Attrs, FileHandle, Status};
use outrigger_proto_nfs3::xdr::{Decoder, Encoded, Encoder, Xdr};

/// What is remembered of a tree: its root, as clients know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    handle: FileHandle,
    attrs: Attrs,
}

/// What programs may do with the root: enter it. Those that list a directory and pass over errors (busybox' ls) must fail to open it.
const GRANTED: Access = Access::LOOKUP.union(Access::EXECUTE);

impl Root {
    pub(crate) fn new(handle: FileHandle, attrs: Attrs) -> Self {
        Root { handle, attrs }
    }

    /// For another process, which reads it with [`Root::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Encoder::new(self.handle.encoded_len() + self.attrs.encoded_len());
        self.handle.encode(&mut out);
        self.attrs.encode(&mut out);
        out.finish().into_bytes().to_vec()
    }

    /// What another process has written.
    ///
    /// # Errors
    /// `EPROTO` when that was something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut input = Decoder::new(bytes.to_vec().into());
        let root = FileHandle::decode(&mut input)
            .and_then(|handle| Ok(Root { handle, attrs: Attrs::decode(&mut input)? }));
        root.map_err(|error| Errno::EPROTO.because(format!("no root of an export: {error}")))
    }

    /// The reply to a call about the root; none to a call that only the tree could answer.
    pub(crate) fn answer(&self, xid: u32, call: &Call) -> Option<Encoded> {
        match call {
            Call::Null(()) => Some(success(xid, &())),
            Call::GetAttr(handle) if *handle == self.handle => {
                Some(success(xid, &Ok::<_, Status>(self.attrs)))
            }
            Call::Access(args) if args.object == self.handle => {
                let access = args.access & GRANTED;
                Some(success(xid, &Ok::<_, AttrsFailed>(AccessOk { attrs: Some(self.attrs), access })))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_proto_nfs3::nfs::AccessArgs;
    use outrigger_proto_nfs3::types::{Device, FileType, Mode, Time};

    fn root() -> Root {
        let time = Time { seconds: 7, nanos: 8 };
        let attrs = Attrs {
            kind: FileType::Directory,
            mode: Mode(0o755),
            nlink: 3,
            uid: 1,
            gid: 2,
            size: 4096,
            used: 4096,
            rdev: Device { major: 0, minor: 0 },
            fsid: 5,
            fileid: 1,
            atime: time,
            mtime: time,
            ctime: time,
        };
        Root { handle: FileHandle::new(&[9; 53]).unwrap(), attrs }
    }

    #[test]
    fn another_process_reads_the_same() {
        let bytes = root().to_bytes();
        assert_eq!(Root::from_bytes(&bytes).unwrap(), root());
        assert!(bytes.len() < 200, "{}", bytes.len());
        for len in 0..bytes.len() {
            assert_eq!(Root::from_bytes(&bytes[..len]).unwrap_err().errno, Errno::EPROTO);
        }
    }

    #[test]
    fn the_root_has_its_attributes_and_nothing_else_is_answered() {
        let root = root();
        let other = FileHandle::new(&[8; 53]).unwrap();
        let access = |object| Call::Access(AccessArgs { object, access: Access::all() });
        let reply = root.answer(1, &Call::GetAttr(root.handle)).expect("the root");
        let expected = success(1, &Ok::<_, Status>(root.attrs));
        assert_eq!(reply, expected);
        let granted = AccessOk { attrs: Some(root.attrs), access: GRANTED };
        assert_eq!(root.answer(2, &access(root.handle)), Some(success(2, &Ok::<_, AttrsFailed>(granted))));
        for call in
            [Call::GetAttr(other), access(other), Call::FsStat(root.handle), Call::ReadLink(root.handle)]
        {
            assert_eq!(root.answer(3, &call), None, "{call}");
        }
    }
}
