// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a reply hands out that the caller has to give back: for layers that do not pass such a reply on.

use crate::effects::Effect;
use crate::node::{LockOwner, Node};
use crate::ops::{Forget, OpCode, OpenFlags, Release, ReleaseDir, Request};
use crate::reply::{Entry, Opened, Reply};

/// What of a request is needed to give back what its reply hands out.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    op: OpCode,
    /// What it opens, when that is something that exists.
    node: Option<Node>,
    /// How it opens a file.
    flags: Option<OpenFlags>,
}

impl Asked {
    /// To be noted before the request is passed on.
    pub fn of(request: &Request) -> Self {
        let opens = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Opens { node, flags } => Some((node, flags)),
            _ => None,
        });
        let (node, flags) = opens.unwrap_or_default();
        Asked { op: request.op(), node, flags }
    }

    /// The operation.
    pub fn op(&self) -> OpCode {
        self.op
    }

    /// The requests that give back what `reply` hands out, in their order. A driver that keeps no handles or references
    /// answers them with `ENOSYS`, which is as good. Neither deadline nor cancellation of the request applies to them.
    pub fn returns(&self, reply: &Reply) -> Vec<Request> {
        match reply {
            Reply::Entry(entry) => forget(entry).into_iter().collect(),
            Reply::Entries(entries) => entries.iter().filter_map(forget).collect(),
            Reply::DirentsPlus(list) => {
                list.entries.iter().filter_map(|dirent| forget(&dirent.entry)).collect()
            }
            Reply::Opened(opened) => vec![self.release(self.node.unwrap_or_default(), opened)],
            Reply::Created(created) => {
                let release = self.release(created.entry.node, &created.opened);
                [release].into_iter().chain(forget(&created.entry)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn release(&self, node: Node, opened: &Opened) -> Request {
        let (handle, owner) = (opened.handle, LockOwner::default());
        match self.flags {
            Some(flags) => Release { node, handle, flags, owner, flock_release: false }.into(),
            None => ReleaseDir { node, handle }.into(),
        }
    }
}

/// Node 0 names nothing and has no references.
fn forget(entry: &Entry) -> Option<Request> {
    (entry.node != Node::default()).then(|| Forget { node: entry.node, count: 1 }.into())
}
