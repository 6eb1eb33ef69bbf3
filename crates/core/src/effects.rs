// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operation does, for those who must know without knowing the operation: layers, doors and what survives a crash.
//!
//! The operation table ([`crate::ops`]) states the effects of each operation beside its arguments, as NetBSD's
//! `vnode_if.src` does for vnode operations. An effect happens when the operation succeeds; when it fails, or its reply is
//! lost, it may have happened in part.

use crate::attr::{FileKind, R_OK, SetAttrs, W_OK, X_OK};
use crate::name::{Name, XattrName};
use crate::node::{Handle, Node};
use crate::ops::{FallocateMode, Lock, LockKind, OpenFlags, RenameFlags, XattrFlags};

/// The file that gets a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// A new file.
    New {
        /// What kind of file.
        kind: FileKind,
        /// The operation fails where the name exists; otherwise it takes the regular file that has the name.
        exclusive: bool,
    },
    /// A file that had a name before.
    Existing(Node),
}

/// How something is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// What is opened; that of the reply when it is not given.
    pub node: Option<Node>,
    /// How a file is opened; a directory has none.
    pub flags: Option<OpenFlags>,
}

impl Opening {
    /// The file that is opened, if that exists already.
    pub fn file(self) -> Option<Node> {
        self.flags.and(self.node)
    }
}

/// What is put on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// Content and attributes of a file.
    File(Node),
    /// The names in a directory.
    Directory(Node),
    /// Everything in the tree.
    Tree,
}

impl Synced {
    /// Whether the content of `node` is among it.
    pub fn has_content_of(self, node: Node) -> bool {
        match self {
            Synced::File(file) => file == node,
            Synced::Directory(_) => false,
            Synced::Tree => true,
        }
    }
}

/// One thing that an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// `name` in `dir` leads to a file.
    Adds {
        /// The directory.
        dir: Node,
        /// The new name.
        name: &'a Name,
        /// The file.
        file: Added,
    },
    /// A file or an empty directory loses a name.
    Removes {
        /// The directory.
        dir: Node,
        /// The name.
        name: &'a Name,
        /// Whether it is a directory's.
        directory: bool,
    },
    /// What `name` in `dir` leads to is found under `to_name` in `to_dir`; what had that name loses it, or gets the old one
    /// ([`RenameFlags::EXCHANGE`]).
    Moves {
        /// The old directory.
        dir: Node,
        /// The old name.
        name: &'a Name,
        /// The new directory.
        to_dir: Node,
        /// The new name.
        to_name: &'a Name,
        /// Of the call.
        flags: RenameFlags,
    },
    /// A file without a name is made in the tree of `dir`.
    Makes {
        /// A directory.
        dir: Node,
        /// Whether it may get a name later.
        linkable: bool,
    },
    /// Content is replaced from `offset` on.
    Writes {
        /// The file.
        node: Node,
        /// In bytes.
        offset: u64,
        /// How many bytes, none where the range is new; all that follow when this is not given.
        len: Option<u64>,
    },
    /// The bytes of a write go to the end of the file instead, where [`Cx::writes_at_end`](crate::Cx::writes_at_end) says so.
    Appends {
        /// The file.
        node: Node,
        /// The open handle.
        handle: Handle,
        /// How many bytes.
        len: u64,
    },
    /// Content moves: a range is taken out of the file, or put into it.
    Shifts {
        /// The file.
        node: Node,
        /// The open handle.
        handle: Handle,
        /// How long the range is, in bytes.
        len: u64,
        /// Whether it is put in, so that the file becomes longer.
        grows: bool,
    },
    /// Owner, permissions, times or links change.
    Attributes {
        /// The file.
        node: Node,
        /// What is set, where a caller sets it.
        attrs: Option<&'a SetAttrs>,
    },
    /// An extended attribute is set.
    SetsXattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: &'a XattrName,
        /// Whether it must or must not exist.
        flags: XattrFlags,
    },
    /// An extended attribute is removed.
    RemovesXattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: &'a XattrName,
    },
    /// Whatever can be done to a file.
    Anything {
        /// The file.
        node: Node,
    },
    /// The caller needs these permissions on a file or directory, unless it has a handle: what was opened may be used.
    Needs {
        /// The file.
        node: Node,
        /// An open handle of it, or [`Handle::NONE`].
        handle: Handle,
        /// [`R_OK`], [`W_OK`], [`X_OK`] to search a directory.
        mask: u32,
    },
    /// An extended attribute is read.
    ReadsXattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: &'a XattrName,
    },
    /// An advisory lock is taken or released: the tree stays as it is.
    Locks {
        /// The file.
        node: Node,
        /// Whether it is taken.
        takes: bool,
    },
    /// What was changed before is on stable storage.
    Syncs(Synced),
    /// What was written by a handle is passed on, as far as that was delayed, and what failed of it is reported.
    Flushes {
        /// The file.
        node: Node,
        /// The open handle.
        handle: Handle,
    },
    /// The reply tells where a file is, and nothing of what is in it.
    Locates {
        /// The file.
        node: Node,
    },
    /// Nothing is changed, but the caller means to: refused where the tree cannot be changed.
    WantsToChange,
    /// The reply has a handle, to be ended by [`Release`](crate::ops::Release), or [`ReleaseDir`](crate::ops::ReleaseDir) for a directory.
    Opens(Opening),
    /// A handle is valid no more.
    Ends {
        /// What it was a handle of.
        node: Node,
        /// The handle.
        handle: Handle,
    },
    /// Each node of the reply counts one reference, to be returned by [`Forget`](crate::ops::Forget).
    References,
    /// References are returned.
    Returns {
        /// The file.
        node: Node,
        /// How many.
        count: u64,
    },
    /// The reply may take as long as others please, and giving up the request changes nothing.
    Waits,
}

impl<'a> Effect<'a> {
    /// Whether it changes the tree, or what others can do with it.
    pub fn changes(self) -> bool {
        self.changes_tree() || matches!(self, Effect::Locks { .. })
    }

    /// Whether it changes what the tree stores.
    pub fn changes_tree(self) -> bool {
        !matches!(
            self,
            Effect::Needs { .. }
                | Effect::ReadsXattr { .. }
                | Effect::Locks { .. }
                | Effect::Syncs(_)
                | Effect::Flushes { .. }
                | Effect::Locates { .. }
                | Effect::WantsToChange
                | Effect::Opens(_)
                | Effect::Ends { .. }
                | Effect::References
                | Effect::Returns { .. }
                | Effect::Waits
        )
    }

    /// The file whose content may be another one afterwards.
    pub fn content(self) -> Option<Node> {
        match self {
            Effect::Writes { node, .. }
            | Effect::Appends { node, .. }
            | Effect::Shifts { node, .. }
            | Effect::Anything { node } => Some(node),
            _ => None,
        }
    }

    /// Whether a repetition, after it happened, leaves the tree and what was handed out as they are, and has the same reply.
    ///
    /// What is false here is what a client that lost a reply must look at before it asks again.
    pub fn is_idempotent(self) -> bool {
        match self {
            Effect::Adds { file: Added::New { exclusive, .. }, .. } => !exclusive,
            Effect::SetsXattr { flags, .. } => !flags.contains(XattrFlags::CREATE),
            Effect::Appends { .. }
            | Effect::Adds { .. }
            | Effect::Removes { .. }
            | Effect::Moves { .. }
            | Effect::Makes { .. }
            | Effect::Shifts { .. }
            | Effect::RemovesXattr { .. }
            | Effect::Anything { .. }
            | Effect::Opens(_)
            | Effect::Ends { .. }
            | Effect::References
            | Effect::Returns { .. } => false,
            Effect::Writes { .. }
            | Effect::Attributes { .. }
            | Effect::Needs { .. }
            | Effect::ReadsXattr { .. }
            | Effect::Locks { .. }
            | Effect::Syncs(_)
            | Effect::Flushes { .. }
            | Effect::Locates { .. }
            | Effect::WantsToChange
            | Effect::Waits => true,
        }
    }

    /// Whether the reply has something that must be given back: see [`Asked`](crate::Asked).
    pub fn hands_out(self) -> bool {
        matches!(self, Effect::Opens(_) | Effect::References)
    }

    /// Whether it gives something back that a reply handed out.
    pub fn gives_back(self) -> bool {
        matches!(self, Effect::Ends { .. } | Effect::Returns { .. })
    }

    /// The names that lead elsewhere afterwards, with their directories.
    pub fn names(self) -> impl Iterator<Item = (Node, &'a Name)> {
        let (one, two) = match self {
            Effect::Adds { dir, name, .. } | Effect::Removes { dir, name, .. } => (Some((dir, name)), None),
            Effect::Moves { dir, name, to_dir, to_name, .. } => (Some((dir, name)), Some((to_dir, to_name))),
            _ => (None, None),
        };
        one.into_iter().chain(two)
    }

    /// The name that a file, not a directory, loses for good, with its directory: what is removed or replaced.
    pub fn lost_name(self) -> Option<(Node, &'a Name)> {
        match self {
            Effect::Removes { dir, name, directory: false } => Some((dir, name)),
            Effect::Moves { to_dir, to_name, flags, .. } if !flags.contains(RenameFlags::EXCHANGE) => {
                Some((to_dir, to_name))
            }
            _ => None,
        }
    }
}

/// The most effects of one operation.
const MOST: usize = 4;

/// The effects of a request, in the order of the table.
#[derive(Debug, Clone, Copy)]
pub struct Effects<'a>([Option<Effect<'a>>; MOST]);

impl<'a> Effects<'a> {
    /// Those that are there.
    pub(crate) fn of<const N: usize>(effects: [Option<Effect<'a>>; N]) -> Self {
        const { assert!(N <= MOST) };
        let mut all = [None; MOST];
        all[..N].copy_from_slice(&effects);
        Effects(all)
    }
}

impl<'a> IntoIterator for Effects<'a> {
    type Item = Effect<'a>;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Effect<'a>>, MOST>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

/// The words in which the operation table states effects; arguments are those of the operation.
pub(crate) mod words {
    use super::*;

    pub(crate) fn adds<'a>(dir: &Node, name: &'a Name, kind: FileKind) -> Option<Effect<'a>> {
        Some(Effect::Adds { dir: *dir, name, file: Added::New { kind, exclusive: true } })
    }

    /// A node of the kind in `mode`; without one, a regular file.
    pub(crate) fn adds_node<'a>(dir: &Node, name: &'a Name, mode: &u32) -> Option<Effect<'a>> {
        adds(dir, name, FileKind::of_mode(*mode).unwrap_or(FileKind::Regular))
    }

    /// A regular file, or the one that has the name unless the flags forbid it.
    pub(crate) fn adds_file<'a>(dir: &Node, name: &'a Name, flags: &OpenFlags) -> Option<Effect<'a>> {
        let file = Added::New { kind: FileKind::Regular, exclusive: flags.contains(OpenFlags::EXCL) };
        Some(Effect::Adds { dir: *dir, name, file })
    }

    pub(crate) fn links<'a>(node: &Node, dir: &Node, name: &'a Name) -> Option<Effect<'a>> {
        Some(Effect::Adds { dir: *dir, name, file: Added::Existing(*node) })
    }

    pub(crate) fn removes<'a>(dir: &Node, name: &'a Name) -> Option<Effect<'a>> {
        Some(Effect::Removes { dir: *dir, name, directory: false })
    }

    pub(crate) fn removes_directory<'a>(dir: &Node, name: &'a Name) -> Option<Effect<'a>> {
        Some(Effect::Removes { dir: *dir, name, directory: true })
    }

    pub(crate) fn moves<'a>(
        (dir, name): (&Node, &'a Name),
        (to_dir, to_name): (&Node, &'a Name),
        flags: &RenameFlags,
    ) -> Option<Effect<'a>> {
        Some(Effect::Moves { dir: *dir, name, to_dir: *to_dir, to_name, flags: *flags })
    }

    /// `O_EXCL` of `O_TMPFILE` forbids names (open(2)).
    pub(crate) fn makes(dir: &Node, flags: &OpenFlags) -> Option<Effect<'static>> {
        Some(Effect::Makes { dir: *dir, linkable: !flags.contains(OpenFlags::EXCL) })
    }

    pub(crate) fn writes(node: &Node, offset: &u64, len: u64) -> Option<Effect<'static>> {
        Some(Effect::Writes { node: *node, offset: *offset, len: Some(len) })
    }

    /// Cut to a size, or made longer.
    pub(crate) fn sizes(node: &Node, attrs: &SetAttrs) -> Option<Effect<'static>> {
        attrs.size.map(|offset| Effect::Writes { node: *node, offset, len: None })
    }

    /// Emptied, when the flags say so.
    pub(crate) fn empties(node: &Node, flags: &OpenFlags) -> Option<Effect<'static>> {
        flags.contains(OpenFlags::TRUNC).then_some(Effect::Writes { node: *node, offset: 0, len: None })
    }

    /// Room that is reserved replaces nothing.
    pub(crate) fn allocates(node: &Node, offset: &u64, mode: &FallocateMode) -> Option<Effect<'static>> {
        let len = mode.is_empty().then_some(0);
        Some(Effect::Writes { node: *node, offset: *offset, len })
    }

    /// Not what a cache writes back: that goes where it says.
    pub(crate) fn appends(
        node: &Node,
        handle: &Handle,
        len: usize,
        cached: &bool,
    ) -> Option<Effect<'static>> {
        (!cached).then_some(Effect::Appends { node: *node, handle: *handle, len: len as u64 })
    }

    pub(crate) fn shifts(
        node: &Node,
        handle: &Handle,
        len: &u64,
        mode: &FallocateMode,
    ) -> Option<Effect<'static>> {
        let grows = mode.contains(FallocateMode::INSERT_RANGE);
        let shifts = grows || mode.contains(FallocateMode::COLLAPSE_RANGE);
        shifts.then_some(Effect::Shifts { node: *node, handle: *handle, len: *len, grows })
    }

    pub(crate) fn sets_xattr<'a>(node: &Node, name: &'a XattrName, flags: &XattrFlags) -> Option<Effect<'a>> {
        Some(Effect::SetsXattr { node: *node, name, flags: *flags })
    }

    pub(crate) fn removes_xattr<'a>(node: &Node, name: &'a XattrName) -> Option<Effect<'a>> {
        Some(Effect::RemovesXattr { node: *node, name })
    }

    pub(crate) fn attributes(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Attributes { node: *node, attrs: None })
    }

    pub(crate) fn sets<'a>(node: &Node, attrs: &'a SetAttrs) -> Option<Effect<'a>> {
        Some(Effect::Attributes { node: *node, attrs: Some(attrs) })
    }

    /// Names in a directory are followed.
    pub(crate) fn searches(dir: &Node) -> Option<Effect<'static>> {
        Some(Effect::Needs { node: *dir, handle: Handle::NONE, mask: X_OK })
    }

    /// Content, or the names in a directory.
    pub(crate) fn reads(node: &Node, handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Needs { node: *node, handle: *handle, mask: R_OK })
    }

    pub(crate) fn needs_write(node: &Node, handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Needs { node: *node, handle: *handle, mask: W_OK })
    }

    /// What truncate(2) needs, and ftruncate(2) does not.
    pub(crate) fn sizes_need(
        node: &Node,
        handle: &Option<Handle>,
        attrs: &SetAttrs,
    ) -> Option<Effect<'static>> {
        attrs.size.and_then(|_| needs_write(node, &handle.unwrap_or(Handle::NONE)))
    }

    /// fcntl(2): a shared lock is for readers, an exclusive one for writers.
    pub(crate) fn lock_needs(node: &Node, handle: &Handle, lock: &Lock) -> Option<Effect<'static>> {
        match lock.kind {
            LockKind::Read => reads(node, handle),
            LockKind::Write => needs_write(node, handle),
            LockKind::Unlock => None,
        }
    }

    pub(crate) fn reads_xattr<'a>(node: &Node, name: &'a XattrName) -> Option<Effect<'a>> {
        Some(Effect::ReadsXattr { node: *node, name })
    }

    pub(crate) fn anything(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Anything { node: *node })
    }

    pub(crate) fn locks(node: &Node, lock: &Lock) -> Option<Effect<'static>> {
        Some(Effect::Locks { node: *node, takes: lock.kind != LockKind::Unlock })
    }

    pub(crate) fn syncs(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Syncs(Synced::File(*node)))
    }

    pub(crate) fn syncs_directory(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Syncs(Synced::Directory(*node)))
    }

    pub(crate) fn syncs_tree() -> Option<Effect<'static>> {
        Some(Effect::Syncs(Synced::Tree))
    }

    pub(crate) fn flushes(node: &Node, handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Flushes { node: *node, handle: *handle })
    }

    pub(crate) fn locates(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Locates { node: *node })
    }

    /// A change that the flags announce.
    pub(crate) fn announces(flags: &OpenFlags) -> Option<Effect<'static>> {
        flags.writes().then_some(Effect::WantsToChange)
    }

    pub(crate) fn probes(mask: &u32) -> Option<Effect<'static>> {
        (mask & W_OK != 0).then_some(Effect::WantsToChange)
    }

    pub(crate) fn opens(node: &Node, flags: &OpenFlags) -> Option<Effect<'static>> {
        Some(Effect::Opens(Opening { node: Some(*node), flags: Some(*flags) }))
    }

    pub(crate) fn opens_directory(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Opens(Opening { node: Some(*node), flags: None }))
    }

    /// What is made is opened.
    pub(crate) fn opens_new(flags: &OpenFlags) -> Option<Effect<'static>> {
        Some(Effect::Opens(Opening { node: None, flags: Some(*flags) }))
    }

    pub(crate) fn ends(node: &Node, handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Ends { node: *node, handle: *handle })
    }

    pub(crate) fn references() -> Option<Effect<'static>> {
        Some(Effect::References)
    }

    pub(crate) fn returns(node: &Node, count: &u64) -> Option<Effect<'static>> {
        Some(Effect::Returns { node: *node, count: *count })
    }

    pub(crate) fn waits(wait: &bool) -> Option<Effect<'static>> {
        wait.then_some(Effect::Waits)
    }
}
