// SPDX-License-Identifier: MIT OR Apache-2.0
//! A change whose reply is not known comes again: was it made?
//!
//! | change | it was made when | else |
//! |---|---|---|
//! | mkdir, mknod, symlink, create with `EXCL` | the name now leads to a file of the kind, and did not before or to one born after the intent | again |
//! | link | the name now leads to the node, and did not exist before | again |
//! | unlink, rmdir | the name existed before and now does not, or leads to another file; nobody looked: the directory changed after the intent | again |
//! | rename | the old name no longer leads to the file it led to, and the new one does | again |
//! | rename with `EXCHANGE` | each name leads to the file the other one led to | again |
//! | setxattr with `CREATE` | the attribute exists and did not before | again |
//! | removexattr | the attribute does not exist and did before | again |
//! | write that appends | the file has grown by the length; by less: again at the old end, not at the new one | again |
//! | fallocate that collapses or inserts | the size has changed by the length | again |
//! | release | always when the handle is unknown | again |
//! | everything else | does not matter: a repetition ends in the same state | again |
//!
//! What was not made is done as it was asked, so that errors are the driver's own.

use crate::before::{Before, Below, Inode, find, give_back, inode, shifts, size};
use crate::entry::{Intent, nanos};
use outrigger_core::ops::{
    Create, Fallocate, FallocateMode, GetAttr, GetXattr, Link, MkNod, Open, OpenFlags, Release, Rename,
    RenameFlags, Write, XattrFlags,
};
use outrigger_core::reply::{Count, Created, Entry, Opened};
use outrigger_core::{
    Attr, Cx, Effect, Errno, FileKind, Handle, LockOwner, Name, Node, Reply, Request, XattrName, ask,
};

/// What to do about a change that came again.
enum Verdict {
    /// Answer this.
    Made(Reply),
    /// Ask this below.
    Again(Request),
}
use Verdict::{Again, Made};

/// Makes the change unless it was made, and answers as if it was made once.
pub(crate) async fn redo(below: &Below, cx: &Cx, request: Request, intent: Intent) -> Reply {
    let ends = request.effects().into_iter().any(|effect| matches!(effect, Effect::Ends { .. }));
    let reply = match verdict(below, cx, request, intent).await {
        Made(reply) => return reply,
        Again(request) => below.call(cx, request).await,
    };
    match reply.error() {
        Some(error) if ends && error.errno == Errno::EBADF => Reply::Done(()),
        _ => reply,
    }
}

async fn verdict(below: &Below, cx: &Cx, request: Request, intent: Intent) -> Verdict {
    let redo = Redo { below, cx, intent };
    let made = match &request {
        Request::MkDir(op) => redo.made(op.dir, &op.name, FileKind::Directory).await.map(Reply::Entry),
        Request::SymLink(op) => redo.made(op.dir, &op.name, FileKind::Symlink).await.map(Reply::Entry),
        Request::MkNod(op) => redo.made(op.dir, &op.name, kind_of_node(op)).await.map(Reply::Entry),
        Request::Create(op) if op.flags.contains(OpenFlags::EXCL) => redo.created(op).await,
        Request::Link(op) => redo.linked(op).await.map(Reply::Entry),
        Request::Unlink(op) => redo.removed(op.dir, &op.name).await,
        Request::RmDir(op) => redo.removed(op.dir, &op.name).await,
        Request::Rename(op) => redo.moved(op).await.then_some(Reply::Done(())),
        Request::SetXattr(op) if op.flags.contains(XattrFlags::CREATE) => {
            let made =
                intent.before == Before::Absent && redo.has_attribute(op.node, &op.name).await == Some(true);
            made.then_some(Reply::Done(()))
        }
        Request::RemoveXattr(op) => {
            let existed = matches!(intent.before, Before::Present(_));
            let made = existed && redo.has_attribute(op.node, &op.name).await == Some(false);
            made.then_some(Reply::Done(()))
        }
        Request::Write(op) => return redo.appended(op).await.unwrap_or(Again(request)),
        Request::Fallocate(op) => redo.shifted(op).await.then_some(Reply::Done(())),
        _ => None,
    };
    made.map_or(Again(request), Made)
}

/// The kind of file mknod(2) makes; a mode without one means a regular file.
fn kind_of_node(op: &MkNod) -> FileKind {
    FileKind::of_mode(op.mode).unwrap_or(FileKind::Regular)
}

/// When a file was made; where the tree does not know that, when it was changed last.
fn birth(attr: &Attr) -> i64 {
    nanos(attr.btime.unwrap_or(attr.ctime))
}

struct Redo<'a> {
    below: &'a Below,
    cx: &'a Cx,
    intent: Intent,
}

impl Redo<'_> {
    /// The file of this kind that the first attempt made. Its reference is the one the caller asked for.
    async fn made(&self, dir: Node, name: &Name, kind: FileKind) -> Option<Entry> {
        let entry = find(self.below, self.cx, dir, name).await.ok()??;
        let by_us = match self.intent.before {
            Before::Absent => true,
            Before::Unknown => birth(&entry.attr) >= self.intent.time,
            _ => false,
        };
        if by_us && entry.attr.kind() == kind {
            return Some(entry);
        }
        give_back(self.below, self.cx, entry.node).await;
        None
    }

    async fn created(&self, op: &Create) -> Option<Reply> {
        let entry = self.made(op.dir, &op.name, FileKind::Regular).await?;
        // The file was empty when it was made, and others may have found it since.
        let flags = op.flags - OpenFlags::EXCL - OpenFlags::TRUNC;
        match ask(&**self.below, self.cx, Open { node: entry.node, flags }).await {
            Ok(opened) => Some(Reply::Created(Created { entry, opened })),
            Err(error) => {
                give_back(self.below, self.cx, entry.node).await;
                Some(Reply::Error(error))
            }
        }
    }

    async fn linked(&self, op: &Link) -> Option<Entry> {
        let entry = find(self.below, self.cx, op.dir, &op.name).await.ok()??;
        if self.intent.before == Before::Absent && entry.node == op.node {
            return Some(entry);
        }
        give_back(self.below, self.cx, entry.node).await;
        None
    }

    async fn removed(&self, dir: Node, name: &Name) -> Option<Reply> {
        let now = find(self.below, self.cx, dir, name).await.ok()?;
        if let Some(entry) = &now {
            give_back(self.below, self.cx, entry.node).await;
        }
        let made = match (self.intent.before, &now) {
            // There was nothing to remove. What is there now somebody made since.
            (Before::Absent, _) => return Some(Reply::Error(Errno::ENOENT.into())),
            (Before::Present(inode), Some(entry)) => inode != Inode::of(entry),
            (Before::Present(_), None) => true,
            (_, Some(entry)) => entry.attr.btime.is_some_and(|born| nanos(born) >= self.intent.time),
            (_, None) => self.directory_changed(dir).await,
        };
        made.then_some(Reply::Done(()))
    }

    async fn directory_changed(&self, dir: Node) -> bool {
        let attrs = ask(&**self.below, self.cx, GetAttr { node: dir, handle: None }).await;
        attrs.is_ok_and(|attrs| nanos(attrs.attr.mtime) >= self.intent.time)
    }

    async fn moved(&self, op: &Rename) -> bool {
        let one = inode(self.below, self.cx, op.dir, &op.name).await;
        let two = inode(self.below, self.cx, op.to_dir, &op.to_name).await;
        let (Ok(one), Ok(two)) = (one, two) else { return false };
        match self.intent.before {
            Before::Present(inode) => one != Some(inode) && two == Some(inode),
            Before::Pair(a, b) if op.flags.contains(RenameFlags::EXCHANGE) && a != b => {
                one.is_some_and(|one| one.ino == b) && two.is_some_and(|two| two.ino == a)
            }
            _ => false,
        }
    }

    /// Whether the attribute exists; `None` when that cannot be told.
    async fn has_attribute(&self, node: Node, name: &XattrName) -> Option<bool> {
        match ask(&**self.below, self.cx, GetXattr { node, name: name.clone() }).await {
            Ok(_) => Some(true),
            Err(error) => (error.errno == Errno::ENODATA).then_some(false),
        }
    }

    /// For a write that appends: its reply, or the same write at the place where the first attempt began.
    async fn appended(&self, op: &Write) -> Option<Verdict> {
        let Before::Size(old) = self.intent.before else { return None };
        let new = size(self.below, self.cx, op.node, op.handle).await.ok()?;
        let len = op.data.len() as u64;
        if len > 0 && new.saturating_sub(old) >= len {
            return Some(Made(Reply::Count(Count(len))));
        }
        // Nothing was written: an append as it was asked. A part was: all of it once more, at the same place.
        let partly = new > old;
        (partly && len > 0).then(|| Again(Write { offset: old, cached: true, ..op.clone() }.into()))
    }

    async fn shifted(&self, op: &Fallocate) -> bool {
        let (true, Before::Size(old)) = (shifts(op.mode), self.intent.before) else { return false };
        let after = if op.mode.contains(FallocateMode::COLLAPSE_RANGE) {
            old.checked_sub(op.len)
        } else {
            old.checked_add(op.len)
        };
        size(self.below, self.cx, op.node, op.handle).await.ok() == after && op.len > 0
    }
}

/// A recorded reply whose handle had a host file, which is not in the record: opens the file once more, so that the
/// kernel gets the same kind of handle as for its other opens.
pub(crate) async fn reopen(below: &Below, cx: &Cx, request: &Request, recorded: Reply) -> Reply {
    let (node, flags, opened) = match (request, &recorded) {
        (Request::Open(op), Reply::Opened(opened)) => (op.node, op.flags, opened),
        (Request::Create(op), Reply::Created(created)) => (created.entry.node, op.flags, &created.opened),
        (Request::TmpFile(op), Reply::Created(created)) => (created.entry.node, op.flags, &created.opened),
        _ => return recorded,
    };
    let again = Open { node, flags: flags - OpenFlags::EXCL - OpenFlags::TRUNC };
    let Ok(anew) = ask(&**below, cx, again).await else { return recorded };
    let former = opened.handle;
    if former != anew.handle {
        let owner = LockOwner::default();
        below.call(cx, Release { node, handle: former, flags, owner, flock_release: false }.into()).await;
    }
    with_handle(recorded, anew)
}

fn with_handle(reply: Reply, opened: Opened) -> Reply {
    match reply {
        Reply::Created(created) => Reply::Created(Created { opened, ..created }),
        _ => Reply::Opened(opened),
    }
}

/// The handle that a reply gives out.
pub(crate) fn handle_of(reply: &Reply) -> Option<Handle> {
    match reply {
        Reply::Opened(opened) => Some(opened.handle),
        Reply::Created(created) => Some(created.opened.handle),
        _ => None,
    }
}
