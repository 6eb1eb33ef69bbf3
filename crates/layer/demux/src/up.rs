// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies of a tree on their way up, with the numbers above.

use crate::inner::{Inner, Use};
use crate::numbers::{Life, Slot, upper_ino};
use crate::state::{State, shown};
use outrigger_core::reply::{Entry, Events, OpenHow, Opened};
use outrigger_core::{Attr, Errno, Handle, Name, Node, OpCode, Reply, Request, Target, Traverse, Visit};

/// What of a request its reply depends on.
pub(crate) struct Asked {
    op: OpCode,
    /// Whether it opens a directory, where it opens something.
    opens_directory: bool,
    /// What it waits for, where it waits.
    events: u32,
    /// The first node.
    node: Node,
    /// A name that is no file any more, or never was, depending on the reply.
    name: Option<(Node, Name)>,
}

struct First(Node);

impl Visit for First {
    fn node(&mut self, node: &mut Node) {
        if self.0 == Node::default() {
            self.0 = *node;
        }
    }
}

impl Asked {
    /// The name, if a kernel remembers now that it leads to nothing.
    fn missing(self, reply: &Reply) -> Option<(Node, Name)> {
        let is_missing = match (self.op, reply) {
            (OpCode::Lookup, Reply::Error(error)) => error.errno == Errno::ENOENT,
            (OpCode::Lookup, _) => false,
            (_, reply) => reply.error().is_none(),
        };
        self.name.filter(|_| is_missing)
    }

    /// Of a request with the numbers above.
    pub(crate) fn of(request: &mut Request) -> Self {
        let mut first = First(Node::default());
        request.traverse(&mut first);
        let opens_directory = request.opens().is_some_and(|opening| opening.flags.is_none());
        let name = match &*request {
            Request::Lookup(op) => Some((op.dir, op.name.clone())),
            Request::Unlink(op) => Some((op.dir, op.name.clone())),
            Request::RmDir(op) => Some((op.dir, op.name.clone())),
            _ => None,
        };
        let events = if let Request::Poll(op) = &*request { op.events } else { 0 };
        Asked { op: request.op(), opens_directory, events, node: first.0, name }
    }
}

/// The most names of a tree that are noted because a kernel may remember that they lead to nothing.
const MISSING: usize = 1 << 14;

/// What poll(2) finds on a file without a method for it (`DEFAULT_POLLMASK` of Linux): reading and writing are possible.
const ALWAYS: u32 = 0x145;

/// The answer for an operation that a tree lacks: with `ENOSYS` a kernel would ask no other tree either.
fn lacking(op: OpCode, events: u32) -> Reply {
    match op {
        // A kernel takes `ENOSYS` for success here.
        OpCode::Flush
        | OpCode::FSync
        | OpCode::FSyncDir
        | OpCode::Release
        | OpCode::ReleaseDir
        | OpCode::Forget => Reply::Done(()),
        OpCode::Open | OpCode::OpenDir => Reply::Opened(Opened::default()),
        OpCode::Poll => Reply::Events(Events(ALWAYS & events)),
        OpCode::Ioctl => Reply::Error(Errno::ENOTTY.into()),
        _ => Reply::Error(Errno::EOPNOTSUPP.into()),
    }
}

/// Moves inode numbers apart.
struct Inos {
    slot: Slot,
}

impl Visit for Inos {
    fn attr(&mut self, attr: &mut Attr) {
        attr.ino = self.slot.ino(attr.ino);
    }
}

impl Inner {
    /// A reply as the door gets it.
    pub(crate) fn up(&self, entered: &Use, asked: Asked, reply: Reply) -> Reply {
        let mut reply = match reply {
            Reply::Error(error) if error.errno == Errno::ENOSYS => lacking(asked.op, asked.events),
            reply => reply,
        };
        let mut state = self.lock();
        let Some(tree) = state.trees.get_mut(&entered.life.tree) else { return reply };
        let (slot, root) = (tree.slot, Node(entered.life.tree));
        reply.traverse(&mut Inos { slot });
        if let Reply::Dirents(list) = &mut reply {
            list.entries.iter_mut().for_each(|dirent| dirent.ino = slot.ino(dirent.ino));
        }
        match &mut reply {
            Reply::Opened(opened) => {
                tree.opens += 1;
                let is_stateless = match asked.opens_directory {
                    true => entered.open.stateless_dirs,
                    false => entered.open.stateless_files,
                };
                if is_stateless {
                    opened.how |= how_stateless(opened.handle, asked.opens_directory);
                }
            }
            Reply::Created(_) => tree.opens += 1,
            Reply::Attrs(attrs) if asked.node == root => {
                attrs.attr.ino = upper_ino(root);
                tree.attr = Some(attrs.attr.clone());
            }
            Reply::Target(target) if asked.op == OpCode::Locate => {
                let path = [shown(&tree.path).as_bytes(), trimmed(target)].concat();
                // One that is too long stays as the tree knows it.
                *target = Target::new(path).unwrap_or_else(|_| target.clone());
            }
            _ => {}
        }
        if let Some(missing) = asked.missing(&reply)
            && tree.missing.len() < MISSING
        {
            tree.missing.insert(missing);
        }
        refer(&mut state, entered.life, &mut reply);
        reply
    }
}

/// A path in a tree below its root; nothing for the root.
fn trimmed(path: &[u8]) -> &[u8] {
    if path == b"/" { b"" } else { path }
}

/// How a kernel caches what it opens without asking.
fn how_stateless(handle: Handle, is_directory: bool) -> OpenHow {
    match (handle, is_directory) {
        (Handle::NONE, true) => OpenHow::KEEP_CACHE | OpenHow::CACHE_DIR,
        (Handle::NONE, false) => OpenHow::KEEP_CACHE,
        _ => OpenHow::empty(),
    }
}

/// Gives the nodes that a reply hands out their numbers above, and counts the references.
fn refer(state: &mut State, life: Life, reply: &mut Reply) {
    let mut put = |entry: &mut Entry| {
        if entry.node == Node::default() {
            return;
        }
        entry.node = state.numbers.refer_inside(life, entry.node);
        if entry.node.0 == life.tree {
            entry.attr.ino = upper_ino(entry.node);
        }
    };
    match reply {
        Reply::Entry(entry) => put(entry),
        Reply::Entries(entries) => entries.iter_mut().for_each(put),
        Reply::DirentsPlus(list) => list.entries.iter_mut().for_each(|dirent| put(&mut dirent.entry)),
        Reply::Created(created) => put(&mut created.entry),
        _ => {}
    }
}
