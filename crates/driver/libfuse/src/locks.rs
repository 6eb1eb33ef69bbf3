// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advisory locks, which are taken again after a restart.

use crate::decode::{self, OFFSET_MAX};
use crate::handles::{Held, note};
use crate::message::{Fault, Message};
use crate::turn::Turn;
use outrigger_core::ops::{GetLock, Lock, LockKind, SetLock};
use outrigger_core::{LockOwner, lock};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::Opcode;

impl Turn<'_> {
    pub(crate) async fn getlk(&mut self, op: &GetLock) -> Result<Option<Lock>, Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let args = encode(fh, op.owner, &op.lock, false);
        decode::lock(&self.ask(Message::new(Opcode::Getlk, node).with(&args.encode())).await?)
    }

    pub(crate) async fn setlk(&mut self, op: &SetLock) -> Result<(), Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        self.failure(&open)?;
        let args = encode(fh, op.owner, &op.lock, op.flock);
        let opcode = if op.wait { Opcode::Setlkw } else { Opcode::Setlk };
        self.change(Message::new(opcode, node).with(&args.encode())).await?;
        note(&mut lock(&open.locks), Held { owner: op.owner, lock: op.lock, flock: op.flock });
        Ok(())
    }

    /// POSIX locks of `owner` end when it closes a descriptor of the file.
    pub(crate) fn unlock_all(&self, open: &crate::handles::Open, owner: LockOwner) {
        lock(&open.locks).retain(|held| held.flock || held.owner != owner);
    }
}

/// A lock as the program gets it.
pub(crate) fn encode(fh: u64, owner: LockOwner, lock: &Lock, flock: bool) -> fuse::LkIn {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let lk = fuse::FileLock {
        start: lock.start,
        end: lock.end.min(OFFSET_MAX),
        kind: kind.cast_unsigned(),
        pid: lock.pid,
    };
    fuse::LkIn { fh, owner: owner.0, lk, lk_flags: if flock { fuse::LK_FLOCK } else { 0 } }
}
