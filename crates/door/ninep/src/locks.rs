// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks. The tree keeps them where it can; else this door does, for all its clients.
//!
//! A lock that is not free is answered as such, and the client asks again: no request waits.

use crate::answer::Asking;
use crate::fids::{File, Found};
use outrigger_core::ops::{GetLock, Lock, LockKind, SetLock};
use outrigger_core::{Cx, Errno, Handle, LockOwner, OpCode, Result, hash, lock};
use outrigger_proto_ninep::{self as ninep, LockStatus, LockType, Rgetlock, Rlock, Tgetlock, Tlock};

/// Owners of locks by one open file: processes of the client.
const LOCKERS: usize = 1024;
/// Locks of one file.
const LOCKS: usize = 8192;

/// A range and a kind of lock.
///
/// # Errors
/// `EINVAL` for a kind that there is not, and a range that ends beyond all files.
fn range(kind: u8, start: u64, length: u64, pid: u32) -> Result<Lock> {
    let kind = match LockType::of(kind) {
        Some(LockType::Read) => LockKind::Read,
        Some(LockType::Write) => LockKind::Write,
        Some(LockType::Unlock) => LockKind::Unlock,
        None => return Err(Errno::EINVAL.because("an unknown kind of lock")),
    };
    let end = match length {
        0 => Some(u64::MAX),
        length => start.checked_add(length - 1),
    };
    let end = end.ok_or_else(|| Errno::EINVAL.because("a range that ends beyond all files"))?;
    Ok(Lock { start, end, kind, pid })
}

impl Found {
    fn keeps_locks(&self) -> bool {
        self.export.abilities.ops.has(OpCode::SetLock)
    }

    /// Changes what `owner` has locked.
    async fn set_lock(&self, cx: &Cx, handle: Handle, owner: LockOwner, wanted: Lock) -> Result<()> {
        if self.keeps_locks() {
            let node = self.node.node;
            let set = SetLock { node, handle, owner, lock: wanted, wait: false, flock: false };
            return self.export.ask(cx, set).await.map(drop);
        }
        let mut files = lock(&self.export.locks);
        let key = (self.node.node, self.node.generation);
        let of_file = files.entry(key).or_default();
        let done = match wanted.kind {
            LockKind::Unlock => Ok(()),
            _ if of_file.conflict(owner, &wanted).is_some() => Err(Errno::EAGAIN.into()),
            _ if of_file.len() >= LOCKS => Err(Errno::ENOLCK.because("too many locks of one file")),
            _ => Ok(()),
        };
        if done.is_ok() {
            of_file.apply(owner, wanted);
        }
        if of_file.is_empty() {
            files.remove(&key);
        }
        done
    }

    const EVERYTHING: Lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Unlock, pid: 0 };

    /// Gives back all that `owner` has locked.
    pub(crate) async fn unlock(&self, cx: &Cx, handle: Handle, owner: LockOwner) {
        if let Err(error) = self.set_lock(cx, handle, owner, Found::EVERYTHING).await {
            tracing::warn!(%error, "a lock was not given back");
        }
    }

    /// The same without waiting for it.
    pub(crate) fn unlock_aside(&self, handle: Handle, owner: LockOwner) {
        let (node, lock) = (self.node.node, Found::EVERYTHING);
        if self.keeps_locks() {
            self.export.aside(SetLock { node, handle, owner, lock, wait: false, flock: false }.into());
            return;
        }
        let mut files = outrigger_core::lock(&self.export.locks);
        let key = (node, self.node.generation);
        if let Some(of_file) = files.get_mut(&key) {
            of_file.release(owner);
            if of_file.is_empty() {
                files.remove(&key);
            }
        }
    }
}

impl Asking {
    /// A process of this client.
    fn owner(&self, client_id: &[u8], proc_id: u32) -> LockOwner {
        let session = self.session.number.to_le_bytes();
        LockOwner(hash::siphash13(&[&session[..], &proc_id.to_le_bytes(), client_id].concat()))
    }

    pub(crate) async fn lock(&self, call: &Tlock, file: &File) -> Result<Rlock> {
        let wanted = range(call.kind, call.start, call.length, call.proc_id)?;
        let (open, owner) = (file.opened()?, self.owner(&call.client_id, call.proc_id));
        if wanted.kind != LockKind::Unlock {
            let mut lockers = lock(&open.lockers);
            if lockers.len() >= LOCKERS && !lockers.contains(&owner) {
                return Ok(Rlock { status: LockStatus::Error.number() });
            }
            lockers.insert(owner);
        }
        let cx = self.cx(&file.at.who.cred);
        let status = match file.at.set_lock(&cx, open.handle, owner, wanted).await {
            Ok(()) => LockStatus::Success,
            Err(error) if error.errno == Errno::EAGAIN => LockStatus::Blocked,
            Err(error) if error.errno == Errno::ENOLCK => LockStatus::Error,
            Err(error) => return Err(error),
        };
        Ok(Rlock { status: status.number() })
    }

    pub(crate) async fn getlock(&self, call: &Tgetlock, file: &File) -> Result<Rgetlock> {
        let asked = &call.lock;
        let mut wanted = range(asked.kind, asked.start, asked.length, asked.proc_id)?;
        if wanted.kind == LockKind::Unlock {
            // Linux' client always says so, and wants to know what is locked at all.
            wanted.kind = LockKind::Write;
        }
        let (handle, owner) = (file.opened()?.handle, self.owner(&asked.client_id, asked.proc_id));
        let found = match file.at.export.abilities.ops.has(OpCode::GetLock) {
            true => {
                let get = GetLock { node: file.held().node, handle, owner, lock: wanted };
                file.at.export.ask(&self.cx(&file.at.who.cred), get).await?
            }
            false => {
                let files = lock(&file.at.export.locks);
                let of_file = files.get(&(file.held().node, file.held().generation));
                of_file.and_then(|locks| locks.conflict(owner, &wanted)).map(|held| held.lock)
            }
        };
        let lock = match found {
            None => ninep::Lock { kind: LockType::Unlock.number(), ..asked.clone() },
            Some(Lock { start, end, kind, pid }) => {
                let kind = if kind == LockKind::Read { LockType::Read } else { LockType::Write };
                let length = if end == u64::MAX { 0 } else { end - start + 1 };
                ninep::Lock { kind: kind.number(), start, length, proc_id: pid, ..asked.clone() }
            }
        };
        Ok(Rgetlock { lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_long_as_they_say_and_none_ends_beyond_all_files() {
        let bounds = |start, length| range(1, start, length, 7).map(|lock| (lock.start, lock.end));
        assert_eq!(bounds(5, 1), Ok((5, 5)));
        assert_eq!(bounds(5, 0), Ok((5, u64::MAX)));
        assert!(bounds(u64::MAX, 1).is_ok() && bounds(u64::MAX, 2).is_err());
        assert!(range(3, 0, 0, 7).is_err());
    }
}
