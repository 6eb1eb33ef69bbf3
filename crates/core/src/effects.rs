// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operation does, for those who must know without knowing the operation: layers, doors and what survives a crash.
//!
//! The operation table ([`crate::ops`]) states the effects of each operation beside its arguments, as NetBSD's
//! `vnode_if.src` does for vnode operations. An effect happens when the operation succeeds; when it fails, or its reply is
//! lost, it may have happened in part.

use crate::attr::SetAttrs;
use crate::name::Name;
use crate::node::{Handle, Node};
use crate::ops::{FallocateMode, OpenFlags, RenameFlags};

/// One thing that an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// `name` in `dir` leads to a file: to one that is made, or to `file`, which had a name before.
    Adds {
        /// The directory.
        dir: Node,
        /// The new name.
        name: &'a Name,
        /// The file, where it exists already.
        file: Option<Node>,
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
    /// Owner, permissions, times, links or extended attributes change.
    Attributes {
        /// The file.
        node: Node,
    },
    /// Whatever can be done to a file.
    Anything {
        /// The file.
        node: Node,
    },
    /// An advisory lock is taken or released: the tree stays as it is.
    Locks {
        /// The file.
        node: Node,
    },
    /// Nothing is changed, but the caller means to: refused where the tree cannot be changed.
    WantsToChange,
    /// The reply has a handle, to be ended by [`Release`](crate::ops::Release), or [`ReleaseDir`](crate::ops::ReleaseDir) for a directory.
    Opens {
        /// What is opened; that of the reply when it is not given.
        node: Option<Node>,
        /// How a file is opened; a directory has none.
        flags: Option<OpenFlags>,
    },
    /// A handle is valid no more.
    Ends {
        /// The handle.
        handle: Handle,
        /// Whether it is a directory's.
        directory: bool,
    },
    /// Each node of the reply counts one reference, to be returned by [`Forget`](crate::ops::Forget).
    References,
    /// References are returned.
    Returns {
        /// The file.
        node: Node,
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
        use Effect::{Adds, Anything, Attributes, Makes, Moves, Removes, Writes};
        matches!(
            self,
            Adds { .. }
                | Removes { .. }
                | Moves { .. }
                | Makes { .. }
                | Writes { .. }
                | Attributes { .. }
                | Anything { .. }
        )
    }

    /// Whether the reply has something that must be given back: see [`Asked`](crate::Asked).
    pub fn hands_out(self) -> bool {
        matches!(self, Effect::Opens { .. } | Effect::References)
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

    pub(crate) fn adds<'a>(dir: &Node, name: &'a Name) -> Option<Effect<'a>> {
        Some(Effect::Adds { dir: *dir, name, file: None })
    }

    pub(crate) fn links<'a>(node: &Node, dir: &Node, name: &'a Name) -> Option<Effect<'a>> {
        Some(Effect::Adds { dir: *dir, name, file: Some(*node) })
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

    pub(crate) fn makes(dir: &Node) -> Option<Effect<'static>> {
        Some(Effect::Makes { dir: *dir })
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

    pub(crate) fn attributes(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Attributes { node: *node })
    }

    pub(crate) fn anything(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Anything { node: *node })
    }

    pub(crate) fn locks(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Locks { node: *node })
    }

    /// A change that the flags announce.
    pub(crate) fn announces(flags: &OpenFlags) -> Option<Effect<'static>> {
        flags.writes().then_some(Effect::WantsToChange)
    }

    /// The bit of access(2) that asks for permission to write.
    const W_OK: u32 = 2;

    pub(crate) fn probes(mask: &u32) -> Option<Effect<'static>> {
        (mask & W_OK != 0).then_some(Effect::WantsToChange)
    }

    pub(crate) fn opens(node: &Node, flags: &OpenFlags) -> Option<Effect<'static>> {
        Some(Effect::Opens { node: Some(*node), flags: Some(*flags) })
    }

    pub(crate) fn opens_directory(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Opens { node: Some(*node), flags: None })
    }

    /// What is made is opened.
    pub(crate) fn opens_new(flags: &OpenFlags) -> Option<Effect<'static>> {
        Some(Effect::Opens { node: None, flags: Some(*flags) })
    }

    pub(crate) fn ends(handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Ends { handle: *handle, directory: false })
    }

    pub(crate) fn ends_directory(handle: &Handle) -> Option<Effect<'static>> {
        Some(Effect::Ends { handle: *handle, directory: true })
    }

    pub(crate) fn references() -> Option<Effect<'static>> {
        Some(Effect::References)
    }

    pub(crate) fn returns(node: &Node) -> Option<Effect<'static>> {
        Some(Effect::Returns { node: *node })
    }

    pub(crate) fn waits(wait: &bool) -> Option<Effect<'static>> {
        wait.then_some(Effect::Waits)
    }
}
