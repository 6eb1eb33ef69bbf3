// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that stand for things: nodes, generations, open handles, lock owners.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

number! {
    /// A file or directory, as long as the driver's identity class promises (see [`crate::Identity`]).
    ///
    /// Number 0 never names a node; [`Node::ROOT`] is the root of every tree.
    Node
}
number! {
    /// Tells apart two files that had the same [`Node`] number at different times.
    Generation
}
number! {
    /// What [`crate::ops::Open`] and its relatives returned; 0 for stateless drivers. Below 2^62, so that a layer over two trees can add
    /// which one it is of.
    Handle
}
number! {
    /// The holder of a POSIX lock: all descriptors of one process share an owner.
    LockOwner
}

impl Handle {
    /// No handle: the operation is done by node alone, as NFS asks. A tree answers it where
    /// [`Abilities::anonymous_io`](crate::Abilities::anonymous_io) says so.
    pub const NONE: Handle = Handle(0);
}

impl Node {
    /// The root directory of every tree.
    pub const ROOT: Node = Node(1);
}
