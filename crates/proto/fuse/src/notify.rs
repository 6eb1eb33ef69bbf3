// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications: what a server sends without being asked.
use crate::header::OutHeader;
use crate::layout::{DecodeError, layout};

/// Code of a notification (`enum fuse_notify_code`); travels in `error` of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum NotifyCode {
    /// A polled file became ready.
    Poll = 1,
    /// Drop cached attributes and data of a node.
    InvalInode = 2,
    /// Drop a cached name.
    InvalEntry = 3,
    /// Put data into the page cache.
    Store = 4,
    /// Ask for data from the page cache.
    Retrieve = 5,
    /// A name was removed.
    Delete = 6,
    /// Send all requests in flight again (7.40).
    Resend = 7,
    /// Drop all cached names (7.44).
    IncEpoch = 8,
    /// Drop unused nodes (7.45).
    Prune = 9,
}

layout! {
    /// INVAL_INODE.
    pub struct InvalInodeOut: 24 {
        /// Node.
        ino: u64 = 0,
        /// First byte; negative leaves the data alone.
        off: i64 = 8,
        /// Bytes; zero or less is to the end.
        len: i64 = 16,
    }

    /// INVAL_ENTRY, before the name.
    pub struct InvalEntryOut: 16 {
        /// Directory.
        parent: u64 = 0,
        /// Bytes of the name.
        namelen: u32 = 8,
        /// Bit 0: only expire the name.
        flags: u32 = 12,
    }

    /// DELETE, before the name.
    pub struct DeleteOut: 24 {
        /// Directory.
        parent: u64 = 0,
        /// Node the name was for.
        child: u64 = 8,
        /// Bytes of the name.
        namelen: u32 = 16,
    }

    /// STORE, before the data.
    pub struct StoreOut: 24 {
        /// Node.
        nodeid: u64 = 0,
        /// Offset in bytes.
        offset: u64 = 8,
        /// Bytes of data.
        size: u32 = 16,
    }

    /// RETRIEVE.
    pub struct RetrieveOut: 32 {
        /// Repeated in the answer.
        notify_unique: u64 = 0,
        /// Node.
        nodeid: u64 = 8,
        /// Offset in bytes.
        offset: u64 = 16,
        /// Most bytes wanted.
        size: u32 = 24,
    }

    /// POLL wake-up.
    pub struct PollWakeupOut: 8 {
        /// Kernel handle from the POLL request.
        kh: u64 = 0,
    }

    /// PRUNE, before the node numbers.
    pub struct PruneOut: 16 {
        /// Number of nodes.
        count: u32 = 0,
    }
}

/// Expire a name instead of dropping it (`FUSE_EXPIRE_ONLY`).
const EXPIRE_ONLY: u32 = 1;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification<'a> {
    /// A polled file became ready; `kh` came with the POLL request.
    Poll {
        /// Kernel handle.
        kh: u64,
    },
    /// Drop attributes, and data from `off` on (`len` zero is to the end; `off` negative: attributes only).
    InvalInode {
        /// Node.
        nodeid: u64,
        /// First byte.
        off: i64,
        /// Bytes.
        len: i64,
    },
    /// Drop the name from the cache.
    InvalEntry {
        /// Directory.
        parent: u64,
        /// Name without NUL.
        name: &'a [u8],
        /// Ask the server again at next use instead of dropping the name at once.
        expire_only: bool,
    },
    /// Put data into the page cache.
    Store {
        /// Node.
        nodeid: u64,
        /// Offset in bytes.
        offset: u64,
        /// Data.
        data: &'a [u8],
    },
    /// Ask for data from the page cache; it comes as a NOTIFY_REPLY request.
    Retrieve {
        /// Repeated in the answer.
        notify_unique: u64,
        /// Node.
        nodeid: u64,
        /// Offset in bytes.
        offset: u64,
        /// Most bytes wanted.
        size: u32,
    },
    /// The name was removed: tell watchers and drop it even when in use.
    Delete {
        /// Directory.
        parent: u64,
        /// Node the name was for.
        child: u64,
        /// Name without NUL.
        name: &'a [u8],
    },
    /// Send again every request that was read but not answered.
    Resend,
    /// Drop all cached names at their next use.
    IncEpoch,
    /// Drop these nodes when they are unused.
    Prune {
        /// Nodes.
        nodes: Vec<u64>,
    },
}

impl<'a> Notification<'a> {
    /// The code of this notification.
    #[must_use]
    pub const fn code(&self) -> NotifyCode {
        match self {
            Self::Poll { .. } => NotifyCode::Poll,
            Self::InvalInode { .. } => NotifyCode::InvalInode,
            Self::InvalEntry { .. } => NotifyCode::InvalEntry,
            Self::Store { .. } => NotifyCode::Store,
            Self::Retrieve { .. } => NotifyCode::Retrieve,
            Self::Delete { .. } => NotifyCode::Delete,
            Self::Resend => NotifyCode::Resend,
            Self::IncEpoch => NotifyCode::IncEpoch,
            Self::Prune { .. } => NotifyCode::Prune,
        }
    }

    /// Oldest minor version whose kernels know this notification.
    #[must_use]
    pub const fn since(&self) -> u32 {
        match self.code() {
            NotifyCode::Resend => 40,
            NotifyCode::IncEpoch => 44,
            NotifyCode::Prune => 45,
            _ => crate::MIN_MINOR,
        }
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![0; OutHeader::SIZE];
        self.encode_body(&mut message);
        let head = OutHeader { len: message.len() as u32, error: self.code() as i32, unique: 0 };
        message[..OutHeader::SIZE].copy_from_slice(&head.encode());
        message
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Poll { kh } => out.extend_from_slice(&PollWakeupOut { kh }.encode()),
            Self::InvalInode { nodeid, off, len } => {
                out.extend_from_slice(&InvalInodeOut { ino: nodeid, off, len }.encode());
            }
            Self::InvalEntry { parent, name, expire_only } => {
                let flags = if expire_only { EXPIRE_ONLY } else { 0 };
                out.extend_from_slice(&InvalEntryOut { parent, namelen: name.len() as u32, flags }.encode());
                put_name(out, name);
            }
            Self::Store { nodeid, offset, data } => {
                out.extend_from_slice(&StoreOut { nodeid, offset, size: data.len() as u32 }.encode());
                out.extend_from_slice(data);
            }
            Self::Retrieve { notify_unique, nodeid, offset, size } => {
                out.extend_from_slice(&RetrieveOut { notify_unique, nodeid, offset, size }.encode());
            }
            Self::Delete { parent, child, name } => {
                out.extend_from_slice(&DeleteOut { parent, child, namelen: name.len() as u32 }.encode());
                put_name(out, name);
            }
            Self::Resend | Self::IncEpoch => {}
            Self::Prune { ref nodes } => {
                out.extend_from_slice(&PruneOut { count: nodes.len() as u32 }.encode());
                for node in nodes {
                    out.extend_from_slice(&node.to_ne_bytes());
                }
            }
        }
    }

    /// Reads a notification: `code` is `error` of the header, `body` what follows the header.
    ///
    /// # Errors
    /// [`DecodeError`] when the code is unknown or the body incomplete.
    pub fn decode(code: i32, body: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::Poll { kh: PollWakeupOut::decode(body)?.0.kh },
            2 => {
                let out = InvalInodeOut::decode(body)?.0;
                Self::InvalInode { nodeid: out.ino, off: out.off, len: out.len }
            }
            3 => {
                let (out, rest) = InvalEntryOut::decode(body)?;
                let name = take_name(rest, out.namelen)?;
                Self::InvalEntry { parent: out.parent, name, expire_only: out.flags & EXPIRE_ONLY != 0 }
            }
            4 => {
                let (out, rest) = StoreOut::decode(body)?;
                let data = take(rest, out.size as usize, "Store")?;
                Self::Store { nodeid: out.nodeid, offset: out.offset, data }
            }
            5 => {
                let RetrieveOut { notify_unique, nodeid, offset, size } = RetrieveOut::decode(body)?.0;
                Self::Retrieve { notify_unique, nodeid, offset, size }
            }
            6 => {
                let (out, rest) = DeleteOut::decode(body)?;
                Self::Delete { parent: out.parent, child: out.child, name: take_name(rest, out.namelen)? }
            }
            7 => Self::Resend,
            8 => Self::IncEpoch,
            9 => {
                let (out, rest) = PruneOut::decode(body)?;
                let bytes = take(rest, (out.count as usize).saturating_mul(8), "Prune")?;
                let nodes = bytes.as_chunks::<8>().0.iter().map(|raw| u64::from_ne_bytes(*raw)).collect();
                Self::Prune { nodes }
            }
            code => return Err(DecodeError::NotifyCode(code)),
        })
    }
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

fn take<'a>(bytes: &'a [u8], need: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
    bytes.get(..need).ok_or(DecodeError::Short { what, need, have: bytes.len() })
}

fn take_name(bytes: &[u8], len: u32) -> Result<&[u8], DecodeError> {
    let len = len as usize;
    match (bytes.get(..len), bytes.get(len)) {
        (Some(name), Some(0)) if !name.is_empty() => Ok(name),
        _ => Err(DecodeError::Name("notification")),
    }
}
