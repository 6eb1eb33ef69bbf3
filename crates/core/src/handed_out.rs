// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a reply hands out that the caller has to give back: for layers that do not pass such a reply on.

use crate::cx::Cx;
use crate::effects::Opening;
use crate::node::{LockOwner, Node};
use crate::ops::{Forget, OpCode, Release, ReleaseDir, Request};
use crate::reply::{Entry, Opened, Reply};
use crate::service::Service;

/// What of a request is needed to give back what its reply hands out.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    op: OpCode,
    opens: Option<Opening>,
}

impl Asked {
    /// To be noted before the request is passed on.
    pub fn of(request: &Request) -> Self {
        Asked { op: request.op(), opens: request.opens() }
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
            Reply::Opened(opened) => {
                vec![self.release(self.opens.and_then(|opens| opens.node).unwrap_or_default(), opened)]
            }
            Reply::Created(created) => {
                let release = self.release(created.entry.node, &created.opened);
                [release].into_iter().chain(forget(&created.entry)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Gives back what `reply`, which is not delivered, hands out; `cx` is that of the request.
    pub async fn give_back(&self, service: &dyn Service, cx: &Cx, reply: &Reply) {
        let cx = cx.aside();
        for request in self.returns(reply) {
            service.call(&cx, request).await;
        }
    }

    fn release(&self, node: Node, opened: &Opened) -> Request {
        let (handle, owner) = (opened.handle, LockOwner::default());
        match self.opens.and_then(|opens| opens.flags) {
            Some(flags) => Release { node, handle, flags, owner, flock_release: false }.into(),
            None => ReleaseDir { node, handle }.into(),
        }
    }
}

/// Node 0 names nothing and has no references.
fn forget(entry: &Entry) -> Option<Request> {
    (entry.node != Node::default()).then(|| Forget { node: entry.node, count: 1 }.into())
}
