// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of files, as far as the protocol knows any.

use crate::cursor::{Cursor, DecodeError};
use bytes::{BufMut, BytesMut};

/// `SSH_FILEXFER_ATTR_*`: which fields follow.
const SIZE: u32 = 1;
const UIDGID: u32 = 2;
const PERMISSIONS: u32 = 4;
const ACMODTIME: u32 = 8;
const EXTENDED: u32 = 1 << 31;

/// Attributes, each of which may be absent: not given by a server, not to be changed by a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attrs {
    /// Size in bytes.
    pub size: Option<u64>,
    /// User and group.
    pub owner: Option<Owner>,
    /// Kind and permissions as `st_mode` has them.
    pub permissions: Option<u32>,
    /// Times of last access and modification.
    pub times: Option<Times>,
}

/// User and group of a file, as numbers of the server's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// Times in whole seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Last access.
    pub atime: u32,
    /// Last modification.
    pub mtime: u32,
}

impl Attrs {
    /// No attribute.
    pub const NONE: Attrs = Attrs { size: None, owner: None, permissions: None, times: None };

    pub(crate) fn put(&self, out: &mut BytesMut) {
        let flag = |present: bool, flag: u32| if present { flag } else { 0 };
        out.put_u32(
            flag(self.size.is_some(), SIZE)
                | flag(self.owner.is_some(), UIDGID)
                | flag(self.permissions.is_some(), PERMISSIONS)
                | flag(self.times.is_some(), ACMODTIME),
        );
        if let Some(size) = self.size {
            out.put_u64(size);
        }
        if let Some(Owner { uid, gid }) = self.owner {
            out.put_u32(uid);
            out.put_u32(gid);
        }
        if let Some(permissions) = self.permissions {
            out.put_u32(permissions);
        }
        if let Some(Times { atime, mtime }) = self.times {
            out.put_u32(atime);
            out.put_u32(mtime);
        }
    }

    /// Extended attributes, whose meaning the draft leaves open, are passed over.
    pub(crate) fn get(input: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let flags = input.u32()?;
        let has = |flag| flags & flag != 0;
        let mut attrs = Attrs::NONE;
        if has(SIZE) {
            attrs.size = Some(input.u64()?);
        }
        if has(UIDGID) {
            attrs.owner = Some(Owner { uid: input.u32()?, gid: input.u32()? });
        }
        if has(PERMISSIONS) {
            attrs.permissions = Some(input.u32()?);
        }
        if has(ACMODTIME) {
            attrs.times = Some(Times { atime: input.u32()?, mtime: input.u32()? });
        }
        if has(EXTENDED) {
            for _ in 0..input.u32()? {
                input.string()?;
                input.string()?;
            }
        }
        Ok(attrs)
    }
}
