// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX access lists (acl(5)), as the attributes that Linux keeps them in (`include/uapi/linux/posix_acl_xattr.h`).
//!
//! The entries that the mode of a file stands for (owner, mask or else group, others) are in its mode alone: what is
//! stored has them too, but a reader of an access list gets those of the mode. So chmod(2) has nothing to change here.

use crate::inode::{Inode, State};
use crate::record::words_of;
use crate::xattr::Xattrs;
use bytes::Bytes;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::attr::SET_GID;
use outrigger_core::{Credentials, Errno, Error, FileKind, Result, XattrName};

/// The list that decides about a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that files made in a directory begin with.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the encoding.
const VERSION: u32 = 2;
/// Bytes of the version, and of an entry: tag, permissions, user or group.
const HEADER: usize = 4;
const ENTRY: usize = 8;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The permission bits that a list or a mode has.
const ALL: u32 = 0o777;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list that makes sense: entries in their order, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// Whether an attribute is an access list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Acl {
    /// Reads an attribute; `None` for a list without entries, which stands for no list.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another version; `EINVAL` for what is no list.
    pub fn decode(value: &[u8]) -> Result<Option<Self>> {
        let (version, rest) = value.split_first_chunk::<HEADER>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (entries, []) = rest.as_chunks::<ENTRY>() else { return Err(Errno::EINVAL.into()) };
        let read = |&[t0, t1, p0, p1, ref id @ ..]: &[u8; ENTRY]| Entry {
            tag: u16::from_le_bytes([t0, t1]),
            permissions: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes(*id),
        };
        let acl = Acl(entries.iter().map(read).collect());
        match acl.0.is_empty() {
            true => Ok(None),
            false => acl.checked().map(Some),
        }
    }

    /// As Linux' posix_acl_valid: the three classes, named users and groups between them, and a mask if there are any.
    fn checked(self) -> Result<Self> {
        let in_order = self.0.is_sorted_by(|a, b| match (a.tag, b.tag) {
            (USER, USER) | (GROUP, GROUP) => true,
            (a, b) => a < b,
        });
        let known = |entry: &Entry| {
            let named = matches!(entry.tag, USER | GROUP);
            let tag = matches!(entry.tag, OWNER | USER | GROUP_OWNER | GROUP | MASK | OTHERS);
            tag && entry.permissions <= 7 && (!named || entry.id != u32::MAX)
        };
        let has = |tag| self.0.iter().any(|entry| entry.tag == tag);
        let classes = has(OWNER) && has(GROUP_OWNER) && has(OTHERS);
        let masked = has(MASK) || !(has(USER) || has(GROUP));
        if in_order && self.0.iter().all(known) && classes && masked {
            Ok(self)
        } else {
            Err(Errno::EINVAL.because("not a valid access list"))
        }
    }

    fn encode(&self) -> Bytes {
        let mut value = Vec::with_capacity(HEADER + self.0.len() * ENTRY);
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(if matches!(entry.tag, USER | GROUP) { entry.id } else { u32::MAX }.to_le_bytes());
        }
        value.into()
    }

    /// The entries that a mode stands for, with how far their permissions are shifted there.
    fn classes(&mut self) -> impl Iterator<Item = (&mut u16, u32)> {
        let group = if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OWNER };
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            OWNER => Some((&mut entry.permissions, 6)),
            OTHERS => Some((&mut entry.permissions, 0)),
            tag if tag == group => Some((&mut entry.permissions, 3)),
            _ => None,
        })
    }

    /// The permission bits that the list stands for.
    fn mode(&mut self) -> u32 {
        self.classes().fold(0, |mode, (permissions, shift)| mode | u32::from(*permissions) << shift)
    }

    /// Whether the mode says all that the list does.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The list with the permissions that `mode` has.
    fn with_mode(mut self, mode: u32) -> Self {
        self.classes().for_each(|(permissions, shift)| *permissions = (mode >> shift & 7) as u16);
        self
    }

    /// The permissions of a caller who is not the owner of the file, by acl(5).
    fn granted(&self, cred: &Credentials, gid: u32) -> u16 {
        let find = |tag, id: Option<u32>| {
            self.0.iter().find(move |entry| entry.tag == tag && id.is_none_or(|id| id == entry.id))
        };
        let permissions = |entry: Option<&Entry>| entry.map_or(0, |entry| entry.permissions);
        let mask = find(MASK, None).map_or(7, |entry| entry.permissions);
        if let Some(user) = find(USER, Some(cred.uid)) {
            return user.permissions & mask;
        }
        let of_group = |entry: &&Entry| match entry.tag {
            GROUP_OWNER => cred.in_group(gid),
            GROUP => cred.in_group(entry.id),
            _ => false,
        };
        let groups = self.0.iter().filter(of_group).map(|entry| entry.permissions);
        match groups.reduce(|all, permissions| all | permissions) {
            None => permissions(find(OTHERS, None)),
            Some(granted) => granted & mask,
        }
    }
}

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

/// The permissions that `cred`, who is not privileged, has for a file, as the lowest three bits.
pub(crate) fn granted(state: &State, cred: &Credentials) -> u32 {
    if cred.uid == state.uid {
        return state.mode >> 6;
    }
    match of(state) {
        Some(acl) => acl.granted(cred, state.gid).into(),
        None if cred.in_group(state.gid) => state.mode >> 3,
        None => state.mode,
    }
}

/// The bits a mode keeps when an access list with these permissions is set.
pub(crate) fn with_permissions(mode: u32, permissions: u32, kill_sgid: bool) -> u32 {
    let kept = if kill_sgid { MODE_PERMISSIONS & !SET_GID } else { MODE_PERMISSIONS };
    mode & kept & !ALL | permissions
}
