// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX access lists (acl(5)) of files.
//!
//! The entries that the mode of a file stands for (owner, mask or else group, others) are in its mode alone: what is
//! stored has them too, but a reader of an access list gets those of the mode. So chmod(2) has nothing to change here.

use crate::inode::{Inode, State};
use crate::record::words_of;
use crate::xattr::Xattrs;
use bytes::Bytes;
pub(crate) use outrigger_core::acl::is_acl;
use outrigger_core::acl::{ACCESS, Acl, DEFAULT};
use outrigger_core::attr::{MODE_PERMISSIONS, SET_GID};
use outrigger_core::{Credentials, Errno, Error, FileKind, Result, XattrName};

/// The permission bits that a list or a mode has.
const ALL: u32 = 0o777;

/// The access list of a file; `None` when its mode says everything.
fn of(state: &State) -> Option<Acl> {
    let value = state.xattrs.0.iter().find(|(name, _)| name.as_bytes() == ACCESS)?.1;
    Acl::decode(value).ok().flatten().map(|acl| acl.with_mode(state.mode))
}

/// The value of an access list that is stored as `value` under `name`.
pub(crate) fn shown(state: &State, name: &[u8], value: &Bytes) -> Bytes {
    match of(state) {
        Some(acl) if name == ACCESS => acl.encode(),
        _ => value.clone(),
    }
}

/// What is to become of the attribute `name` when it is set to `value`, and of the permission bits. Nothing is kept of an
/// access list that the mode can express.
///
/// # Errors
/// `EINVAL` for what is no list, `EACCES` for a default list of what is no directory, `EOPNOTSUPP` for a symbolic link.
pub(crate) fn set(inode: &Inode, name: &[u8], value: &[u8]) -> Result<(Option<Bytes>, Option<u32>), Error> {
    check_kind(inode)?;
    let Some(mut acl) = Acl::decode(value)? else { return Ok((None, None)) };
    if name == DEFAULT {
        return if inode.is_dir() { Ok((Some(acl.encode()), None)) } else { Err(Errno::EACCES.into()) };
    }
    let mode = acl.mode();
    Ok(((!acl.is_minimal()).then(|| acl.encode()), Some(mode)))
}

/// Symbolic links have no lists.
pub(crate) fn check_kind(inode: &Inode) -> Result<()> {
    if inode.kind == FileKind::Symlink { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
}

/// The most words that the lists of a new file in this directory add to a group.
pub(crate) fn inherited_words(parent: &State) -> usize {
    default_of(parent).map_or(0, |value| 2 * (4 + words_of(DEFAULT.len()) + words_of(value.len())))
}

fn default_of(parent: &State) -> Option<&Bytes> {
    parent.xattrs.0.iter().find(|(name, _)| name.as_bytes() == DEFAULT).map(|(_, value)| value)
}

/// The permission bits and lists of a file that is made in a directory (acl(5), umask(2)).
pub(crate) fn inherit(parent: &State, kind: FileKind, mode: u32, umask: u32) -> (u32, Xattrs) {
    let mut lists = Xattrs::default();
    let default = default_of(parent).filter(|_| kind != FileKind::Symlink);
    let Some((mut acl, value)) =
        default.and_then(|value| Some((Acl::decode(value).ok().flatten()?, value.clone())))
    else {
        return (if kind == FileKind::Symlink { mode } else { mode & !umask }, lists);
    };
    let permissions = acl.mode() & mode & ALL;
    let mut keep = |name: &'static [u8], value| {
        if let Ok(name) = XattrName::new(Bytes::from_static(name)) {
            lists.0.insert(name, value);
        }
    };
    if kind == FileKind::Directory {
        keep(DEFAULT, value);
    }
    if !acl.is_minimal() {
        keep(ACCESS, acl.with_mode(permissions).encode());
    }
    (mode & MODE_PERMISSIONS & !ALL | permissions, lists)
}

/// Which of the permissions `wanted` for a file `cred` has, who is not privileged.
pub(crate) fn granted(state: &State, cred: &Credentials, wanted: u32) -> u32 {
    if cred.uid == state.uid {
        return state.mode >> 6 & wanted;
    }
    match of(state) {
        Some(acl) => acl.granted(cred, state.gid, wanted),
        None if cred.in_group(state.gid) => state.mode >> 3 & wanted,
        None => state.mode & wanted,
    }
}

/// The bits a mode keeps when an access list with these permissions is set.
pub(crate) fn with_permissions(mode: u32, permissions: u32, kill_sgid: bool) -> u32 {
    let kept = if kill_sgid { MODE_PERMISSIONS & !SET_GID } else { MODE_PERMISSIONS };
    mode & kept & !ALL | permissions
}
