// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes (xattr(7)).

use crate::Mem;
use crate::acl;
use crate::inode::{Inode, is_privileged};
use crate::record::{INODE_WORDS, Record, words_of};
use bytes::Bytes;
use outrigger_core::ops::{GetXattr, ListXattr, RemoveXattr, SetXattr, XattrFlags};
use outrigger_core::survive::Room;
use outrigger_core::{Cx, Errno, FileKind, Result, XattrName};
use std::collections::BTreeMap;

/// The longest value in bytes (Linux `XATTR_SIZE_MAX`).
const VALUE_MAX: usize = 64 << 10;
/// The most bytes all names of a file may have, each with its NUL (Linux `XATTR_LIST_MAX`).
const LIST_MAX: usize = 64 << 10;

/// The extended attributes of one file.
#[derive(Default)]
pub(crate) struct Xattrs(pub BTreeMap<XattrName, Bytes>);

impl Xattrs {
    /// How many bytes of the tree's space they take.
    pub fn charge(&self) -> u64 {
        self.0.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
    }
}

/// What the caller may do with a name, decided by its namespace as xattr(7) has it.
fn check_namespace(cx: &Cx, inode: &Inode, name: &XattrName, denied: Errno) -> Result<()> {
    if name.starts_with(b"user.") {
        let holds_user_attributes = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
        if holds_user_attributes { Ok(()) } else { Err(denied.into()) }
    } else if name.starts_with(b"trusted.") {
        if is_privileged(cx) { Ok(()) } else { Err(denied.into()) }
    } else if name.starts_with(b"security.") {
        Ok(())
    } else if acl::is_acl(name) {
        acl::check_kind(inode)
    } else {
        Err(Errno::EOPNOTSUPP.into())
    }
}

pub(crate) fn get(mem: &Mem, cx: &Cx, op: &GetXattr) -> Result<Bytes> {
    let inode = mem.table.get(op.node)?;
    check_namespace(cx, &inode, &op.name, Errno::ENODATA)?;
    let state = inode.state.read();
    let value = state.xattrs.0.get(&op.name).ok_or(Errno::ENODATA)?;
    Ok(acl::shown(&state, &op.name, value))
}

pub(crate) fn list(mem: &Mem, cx: &Cx, op: &ListXattr) -> Result<Vec<XattrName>> {
    let inode = mem.table.get(op.node)?;
    let state = inode.state.read();
    // The kernel shows whatever it is answered to anyone, so an requester it keeps to itself counts as anyone.
    let visible = |name: &&XattrName| cx.cred.uid == 0 || !name.starts_with(b"trusted.");
    Ok(state.xattrs.0.keys().filter(visible).cloned().collect())
}

pub(crate) fn set(mem: &Mem, cx: &Cx, op: &SetXattr) -> Result<()> {
    let inode = mem.table.get(op.node)?;
    check_namespace(cx, &inode, &op.name, Errno::EPERM)?;
    if op.value.len() > VALUE_MAX {
        return Err(
            Errno::E2BIG.because(format!("a value of {} bytes; at most {VALUE_MAX} fit", op.value.len()))
        );
    }
    let (value, permissions) = match acl::is_acl(&op.name) {
        true => acl::set(&inode, &op.name, &op.value)?,
        false => (Some(Bytes::copy_from_slice(&op.value)), None),
    };
    let Some(value) = value else { return set_mode(mem, &inode, op, permissions) };
    let words = INODE_WORDS + 4 + words_of(op.name.len()) + words_of(op.value.len());
    let mut group = mem.change(Room::More(words))?;
    let mut state = inode.state.write();
    let old = state.xattrs.0.get(&op.name).map(Bytes::len);
    match old {
        Some(_) if op.flags.contains(XattrFlags::CREATE) => return Err(Errno::EEXIST.into()),
        None if op.flags.contains(XattrFlags::REPLACE) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let listed: usize = state.xattrs.0.keys().map(|name| name.len() + 1).sum();
    if old.is_none() && listed + op.name.len() + 1 > LIST_MAX {
        return Err(Errno::ENOSPC.because("the names of the extended attributes take too much room"));
    }
    mem.space.take_bytes((op.name.len() + value.len()) as u64)?;
    if let Some(old) = old {
        mem.space.give_back_bytes((op.name.len() + old) as u64);
    }
    // It may be a slice of a whole request: keep no more than itself alive.
    let name = XattrName::new(Bytes::copy_from_slice(&op.name))?;
    group.push(|| Record::Xattr { ino: inode.ino, name: name.clone(), value: value.clone() });
    state.xattrs.0.insert(name, value);
    if let Some(permissions) = permissions {
        let kill_sgid = op.flags.contains(XattrFlags::KILL_SGID);
        state.mode = acl::with_permissions(state.mode, permissions, kill_sgid);
    }
    state.ctime = mem.now();
    group.inode(&inode, &state);
    group.commit();
    Ok(())
}

/// Sets an access list of which nothing is to be kept but `permissions`, if these.
fn set_mode(mem: &Mem, inode: &Inode, op: &SetXattr, permissions: Option<u32>) -> Result<()> {
    let mut group = mem.change(Room::Less(INODE_WORDS + 3 + words_of(op.name.len())))?;
    let mut state = inode.state.write();
    if let Some(value) = state.xattrs.0.remove(&op.name) {
        mem.space.give_back_bytes((op.name.len() + value.len()) as u64);
        group.push(|| Record::XattrGone { ino: inode.ino, name: op.name.clone() });
    }
    if let Some(permissions) = permissions {
        let kill_sgid = op.flags.contains(XattrFlags::KILL_SGID);
        state.mode = acl::with_permissions(state.mode, permissions, kill_sgid);
    }
    state.ctime = mem.now();
    group.inode(inode, &state);
    group.commit();
    Ok(())
}

pub(crate) fn remove(mem: &Mem, cx: &Cx, op: &RemoveXattr) -> Result<()> {
    let inode = mem.table.get(op.node)?;
    check_namespace(cx, &inode, &op.name, Errno::EPERM)?;
    let mut group = mem.change(Room::Less(INODE_WORDS + 3 + words_of(op.name.len())))?;
    let mut state = inode.state.write();
    let value = match state.xattrs.0.remove(&op.name) {
        Some(value) => value,
        // As on tmpfs: every file has an access list, if only the one that its mode is.
        None if acl::is_acl(&op.name) => return Ok(()),
        None => return Err(Errno::ENODATA.into()),
    };
    mem.space.give_back_bytes((op.name.len() + value.len()) as u64);
    state.ctime = mem.now();
    group.push(|| Record::XattrGone { ino: inode.ino, name: op.name.clone() });
    group.inode(&inode, &state);
    group.commit();
    Ok(())
}
