// SPDX-License-Identifier: GPL-2.0-only
//! Extended attributes.

use crate::task::Task;
use crate::tree::{Tree, c_string};
use bytes::Bytes;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{GetXattr, ListXattr, RemoveXattr, SetXattr, XattrFlags};
use outrigger_core::reply::Names;
use outrigger_core::{Credentials, Errno, Result, XattrName};

/// The most a value of an extended attribute, or all names together, may have (`XATTR_SIZE_MAX`).
const XATTR_MAX: usize = 64 << 10;
/// What most of them fit into.
const USUAL: usize = 1 << 10;

impl Tree {
    pub(crate) fn getxattr(&self, task: &Task, cred: &Credentials, op: &GetXattr) -> Result<Bytes> {
        require_visible(cred, &op.name, Errno::ENODATA)?;
        let (fd, name) = (self.node(op.node)?, c_string(&op.name)?);
        with_buffer(|buffer| task.get_xattr(fd, &name, buffer)).map(Bytes::from)
    }

    pub(crate) fn setxattr(&self, task: &Task, cred: &Credentials, op: &SetXattr) -> Result<()> {
        require_visible(cred, &op.name, Errno::EPERM)?;
        let (fd, flags) = (self.node(op.node)?, op.flags - XattrFlags::KILL_SGID);
        task.set_xattr(fd, &c_string(&op.name)?, &op.value, flags.bits())?;
        if op.flags.contains(XattrFlags::KILL_SGID) {
            let mode = u32::from(task.stat(fd, c"")?.stx_mode) & MODE_PERMISSIONS;
            if mode & libc::S_ISGID != 0 {
                task.chmod(fd, mode & !libc::S_ISGID)?;
            }
        }
        Ok(())
    }

    pub(crate) fn listxattr(&self, task: &Task, cred: &Credentials, op: &ListXattr) -> Result<Names> {
        let fd = self.node(op.node)?;
        let list = with_buffer(|buffer| task.list_xattr(fd, buffer))?;
        let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty() && is_visible(cred, name));
        names.map(|name| XattrName::new(Bytes::copy_from_slice(name))).collect()
    }

    pub(crate) fn removexattr(&self, task: &Task, cred: &Credentials, op: &RemoveXattr) -> Result<()> {
        require_visible(cred, &op.name, Errno::EPERM)?;
        task.remove_xattr(self.node(op.node)?, &c_string(&op.name)?)
    }
}

/// What `fill` puts into a buffer: into a small one first, for nearly everything fits there.
fn with_buffer(fill: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; USUAL];
    let filled = match fill(&mut buffer) {
        Err(error) if error.errno == Errno::ERANGE => {
            buffer.resize(XATTR_MAX, 0);
            fill(&mut buffer)
        }
        filled => filled,
    };
    buffer.truncate(filled?);
    Ok(buffer)
}

/// Whether `cred` may know of an attribute: those of `trusted` are for root, see xattr(7).
fn is_visible(cred: &Credentials, name: &[u8]) -> bool {
    cred.uid == 0 || !name.starts_with(b"trusted.")
}

fn require_visible(cred: &Credentials, name: &[u8], otherwise: Errno) -> Result<()> {
    if is_visible(cred, name) { Ok(()) } else { Err(otherwise.into()) }
}
