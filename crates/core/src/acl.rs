// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX access lists (acl(5)), as the attributes that Linux keeps them in (`include/uapi/linux/posix_acl_xattr.h`).

use crate::cx::Credentials;
use crate::error::{Errno, Result};
use bytes::Bytes;

/// The list that decides about a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that files made in a directory begin with.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A list that makes sense: entries in their order, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

/// Whether an attribute is an access list.
pub fn is_acl(name: &[u8]) -> bool {
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

    /// The value of the attribute.
    pub fn encode(&self) -> Bytes {
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
    pub fn mode(&mut self) -> u32 {
        self.classes().fold(0, |mode, (permissions, shift)| mode | u32::from(*permissions) << shift)
    }

    /// Whether the mode says all that the list does.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The list with the permissions that `mode` has.
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.classes().for_each(|(permissions, shift)| *permissions = (mode >> shift & 7) as u16);
        self
    }

    /// Which of the permissions `wanted` a caller has who is not the owner of the file, by acl(5); `gid` is the group of the file.
    ///
    /// One entry of the groups of a caller has to grant all that is wanted. Where none does, the answer is what the one that comes
    /// nearest grants.
    pub fn granted(&self, cred: &Credentials, gid: u32, wanted: u32) -> u32 {
        let find = |tag, id: Option<u32>| {
            self.0.iter().find(move |entry| entry.tag == tag && id.is_none_or(|id| id == entry.id))
        };
        let permissions = |entry: Option<&Entry>| entry.map_or(0, |entry| entry.permissions);
        let mask = find(MASK, None).map_or(7, |entry| entry.permissions);
        let of_group = |entry: &&Entry| match entry.tag {
            GROUP_OWNER => cred.in_group(gid),
            GROUP => cred.in_group(entry.id),
            _ => false,
        };
        let groups = self.0.iter().filter(of_group).map(|entry| entry.permissions & mask);
        let granted = if let Some(user) = find(USER, Some(cred.uid)) {
            user.permissions & mask
        } else {
            let best = groups.max_by_key(|granted| (u32::from(*granted) & wanted).count_ones());
            best.unwrap_or_else(|| permissions(find(OTHERS, None)))
        };
        u32::from(granted) & wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cx::Groups;

    fn acl(entries: &[(u16, u16, u32)]) -> Result<Option<Acl>> {
        let entries = entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id });
        Acl::decode(&Acl(entries.collect()).encode())
    }

    #[test]
    fn what_is_wanted_is_granted_by_one_entry() {
        let of = |id, permissions| (GROUP, permissions, id);
        let entries = [
            (OWNER, 7, 0),
            (USER, 5, 10),
            (GROUP_OWNER, 0, 0),
            of(20, 4),
            of(30, 2),
            (MASK, 6, 0),
            (OTHERS, 1, 0),
        ];
        let acl = acl(&entries).expect("it makes sense").expect("it has entries");
        let caller =
            |uid, groups: &[u32]| Credentials { groups: Groups::of(groups), ..Credentials::new(uid, uid) };
        for (caller, wanted, granted) in [
            (caller(10, &[20]), 7, 4),
            (caller(11, &[20]), 6, 4),
            (caller(11, &[20, 30]), 4, 4),
            (caller(11, &[20, 30]), 2, 2),
            (caller(11, &[20, 30]), 6, 2),
            (caller(11, &[40]), 7, 0),
            (caller(11, &[]), 7, 1),
        ] {
            assert_eq!(acl.granted(&caller, 40, wanted), granted, "{caller:?} {wanted}");
        }
    }

    #[test]
    fn a_list_without_sense_is_refused() {
        assert_eq!(acl(&[]), Ok(None));
        for entries in [&[(OWNER, 7, 0)][..], &[(OWNER, 8, 0), (GROUP_OWNER, 0, 0), (OTHERS, 0, 0)]] {
            assert_eq!(acl(entries).map_err(|error| error.errno), Err(Errno::EINVAL));
        }
    }
}
