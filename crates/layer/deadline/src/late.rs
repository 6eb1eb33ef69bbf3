// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do with a reply that nobody waits for any more.

use outrigger_core::ops::{Forget, OpenFlags, Release, ReleaseDir};
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{Cx, LockOwner, Node, OpCode, Reply, Request, Service};
use std::sync::Arc;

/// Whether a reply to `op` hands out a handle or references, which the caller has to give back.
pub(crate) fn hands_out(op: OpCode) -> bool {
    use OpCode::{Lookup, OpenDir, ReadDirPlus, Walk};
    matches!(op, Lookup | Walk | ReadDirPlus | OpenDir)
}

/// What of a request its late reply needs.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) op: OpCode,
    /// What it opens, when it opens something that exists.
    node: Node,
    flags: OpenFlags,
}

impl Asked {
    pub(crate) fn of(request: &Request) -> Self {
        let (node, flags) = match request {
            Request::Open(open) => (open.node, open.flags),
            Request::Create(create) => (create.dir, create.flags),
            Request::TmpFile(tmpfile) => (tmpfile.dir, tmpfile.flags),
            Request::OpenDir(open) => (open.node, OpenFlags::empty()),
            _ => (Node::default(), OpenFlags::empty()),
        };
        Asked { op: request.op(), node, flags }
    }
}

/// A request whose caller has gone.
pub(crate) struct Late {
    pub(crate) next: Arc<dyn Service>,
    pub(crate) cx: Cx,
    pub(crate) asked: Asked,
}

impl Late {
    /// Logs the reply and gives back what it hands out.
    pub(crate) async fn drop_reply(self, reply: Reply) {
        let op = self.asked.op.name();
        tracing::warn!(request = self.cx.id, op, ?reply, "the caller has gone: a late reply is dropped");
        // Neither the deadline nor the cancellation of the request applies to giving back.
        let cx = Cx::new(self.cx.id, self.cx.cred, self.cx.origin.door);
        for request in self.returns(reply) {
            // A driver that keeps no handles or references answers ENOSYS, which is as good.
            self.next.call(&cx, request).await;
        }
    }

    fn returns(&self, reply: Reply) -> Vec<Request> {
        let mut requests: Vec<Request> = Vec::new();
        match reply {
            Reply::Entry(entry) => requests.extend(forget(&entry)),
            Reply::Entries(entries) => requests.extend(entries.iter().filter_map(forget)),
            Reply::DirentsPlus(list) => {
                requests.extend(list.entries.iter().filter_map(|dirent| forget(&dirent.entry)));
            }
            Reply::Opened(opened) => requests.push(self.release(self.asked.node, &opened)),
            Reply::Created(created) => {
                requests.push(self.release(created.entry.node, &created.opened));
                requests.extend(forget(&created.entry));
            }
            _ => {}
        }
        requests
    }

    fn release(&self, node: Node, opened: &Opened) -> Request {
        let handle = opened.handle;
        if self.asked.op == OpCode::OpenDir {
            return ReleaseDir { node, handle }.into();
        }
        let (flags, owner) = (self.asked.flags, LockOwner::default());
        Release { node, handle, flags, owner, flock_release: false }.into()
    }
}

/// Node 0 names nothing and has no references.
fn forget(entry: &Entry) -> Option<Request> {
    (entry.node != Node::default()).then(|| Forget { node: entry.node, count: 1 }.into())
}
