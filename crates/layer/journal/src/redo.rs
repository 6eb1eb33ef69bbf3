// SPDX-License-Identifier: MIT OR Apache-2.0
//! A change whose reply is not known comes again: was it made?
//!
//! | change | it was made when | else |
//! |---|---|---|
//! | mkdir, mknod, symlink, create with `EXCL` | the name now leads to a file of the kind, and did not before or to one born after the intent | again |
//! | link | the name now leads to the node, and did not exist before | again |
//! | unlink, rmdir | the name existed before and now does not, or leads to another file; not known: the directory changed after the intent | again |
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

use crate::before::{Before, Below, Inode, find, give_back, inode, repetition_changes, size};
use crate::entry::{Intent, nanos};
use outrigger_core::ops::{GetAttr, GetXattr, Open, OpenFlags, Release, RenameFlags, Write};
use outrigger_core::reply::{Count, Created, Entry, Opened};
use outrigger_core::{
    Added, Attr, Cx, Effect, Errno, FileKind, Handle, LockOwner, Name, Node, Opening, Reply, Request,
    XattrName, ask,
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
    let ends = request.ends().is_some();
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
    let done = |made: bool| made.then_some(Reply::Done(()));
    let made = match repetition_changes(&request) {
        Some(Effect::Adds { dir, name, file: Added::New { kind, .. } }) => {
            redo.made_new(dir, name, kind, request.opens().and_then(|opens| opens.flags)).await
        }
        Some(Effect::Adds { dir, name, file: Added::Existing(node) }) => {
            redo.linked(dir, name, node).await.map(Reply::Entry)
        }
        Some(Effect::Removes { dir, name, .. }) => redo.removed(dir, name).await,
        Some(Effect::Moves { dir, name, to_dir, to_name, flags }) => {
            done(redo.moved((dir, name), (to_dir, to_name), flags).await)
        }
        Some(Effect::SetsXattr { node, name, .. }) => {
            done(intent.before == Before::Absent && redo.has_attribute(node, name).await == Some(true))
        }
        Some(Effect::RemovesXattr { node, name }) => {
            let existed = matches!(intent.before, Before::Present(_));
            done(existed && redo.has_attribute(node, name).await == Some(false))
        }
        Some(Effect::Shifts { node, handle, len, grows }) => {
            done(redo.shifted((node, handle), len, grows).await)
        }
        Some(Effect::Appends { .. }) => return redo.appended(request).await,
        _ => None,
    };
    made.map_or(Again(request), Made)
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

    /// The same with a handle, where the request opens what it makes.
    async fn made_new(
        &self,
        dir: Node,
        name: &Name,
        kind: FileKind,
        opens: Option<OpenFlags>,
    ) -> Option<Reply> {
        let entry = self.made(dir, name, kind).await?;
        let Some(flags) = opens else { return Some(Reply::Entry(entry)) };
        // The file was empty when it was made, and others may have found it since.
        let flags = flags - OpenFlags::EXCL - OpenFlags::TRUNC;
        match ask(&**self.below, self.cx, Open { node: entry.node, flags }).await {
            Ok(opened) => Some(Reply::Created(Created { entry, opened })),
            Err(error) => {
                give_back(self.below, self.cx, entry.node).await;
                Some(Reply::Error(error))
            }
        }
    }

    async fn linked(&self, dir: Node, name: &Name, node: Node) -> Option<Entry> {
        let entry = find(self.below, self.cx, dir, name).await.ok()??;
        if self.intent.before == Before::Absent && entry.node == node {
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

    async fn moved(&self, from: (Node, &Name), to: (Node, &Name), flags: RenameFlags) -> bool {
        let one = inode(self.below, self.cx, from.0, from.1).await;
        let two = inode(self.below, self.cx, to.0, to.1).await;
        let (Ok(one), Ok(two)) = (one, two) else { return false };
        match self.intent.before {
            Before::Present(inode) => one != Some(inode) && two == Some(inode),
            Before::Pair(a, b) if flags.contains(RenameFlags::EXCHANGE) && a != b => {
                one.is_some_and(|one| one.ino == b) && two.is_some_and(|two| two.ino == a)
            }
            _ => false,
        }
    }

    /// Whether the attribute exists; `None` when that is unknown.
    async fn has_attribute(&self, node: Node, name: &XattrName) -> Option<bool> {
        match ask(&**self.below, self.cx, GetXattr { node, name: name.clone() }).await {
            Ok(_) => Some(true),
            Err(error) => (error.errno == Errno::ENODATA).then_some(false),
        }
    }

    /// For a write that appends: its reply, or what is left to do.
    async fn appended(&self, request: Request) -> Verdict {
        let (Before::Size(old), Request::Write(op)) = (self.intent.before, &request) else {
            return Again(request);
        };
        let Ok(new) = size(self.below, self.cx, op.node, op.handle).await else { return Again(request) };
        let len = op.data.len() as u64;
        match new.saturating_sub(old) {
            // Nothing was written: an append as it was asked.
            grown if grown == 0 || len == 0 => Again(request),
            grown if grown >= len => Made(Reply::Count(Count(len))),
            // A part was: all of it once more, at the same place.
            _ => Again(Write { offset: old, cached: true, ..op.clone() }.into()),
        }
    }

    async fn shifted(&self, (node, handle): (Node, Handle), len: u64, grows: bool) -> bool {
        let Before::Size(old) = self.intent.before else { return false };
        let after = if grows { old.checked_add(len) } else { old.checked_sub(len) };
        len > 0 && size(self.below, self.cx, node, handle).await.ok() == after
    }
}

/// A recorded reply whose handle had a host file, which is not in the record: opens the file once more, so that the
/// kernel gets the same kind of handle as for its other opens.
pub(crate) async fn reopen(below: &Below, cx: &Cx, request: &Request, recorded: Reply) -> Reply {
    let Some(Opening { node, flags: Some(flags) }) = request.opens() else { return recorded };
    let (node, opened) = match (node, &recorded) {
        (Some(node), Reply::Opened(opened)) => (node, opened),
        (None, Reply::Created(created)) => (created.entry.node, &created.opened),
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
