// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a driver tells its door unasked: that something the door may have cached has changed.

use crate::Wire;
use crate::name::Name;
use crate::node::Node;
use crate::payload::Payload;

/// A change that no client of the door has made.
#[derive(Debug, Clone, PartialEq, Wire)]
pub enum Notice {
    /// Attributes of `node`, and its content from `offset` on for `len` bytes (0: to the end), changed.
    /// A negative `offset` spares the content.
    #[wire(1)]
    InvalidateNode {
        /// The changed file.
        node: Node,
        /// Start of the changed content in bytes; negative when only attributes changed.
        offset: i64,
        /// Length of the changed content in bytes; 0 means to the end.
        len: i64,
    },
    /// What `name` in `dir` refers to may have changed.
    #[wire(2)]
    InvalidateEntry {
        /// The directory.
        dir: Node,
        /// The name in it.
        name: Name,
    },
    /// `name` was removed from `dir`.
    #[wire(3)]
    Deleted {
        /// The directory.
        dir: Node,
        /// The file that had the name.
        node: Node,
        /// The name that is gone.
        name: Name,
    },
    /// Anything may have changed: names and attributes are asked for again before they are used.
    #[wire(4)]
    InvalidateAll,
    /// Content the door may put into its cache.
    #[wire(5)]
    Store {
        /// The file.
        node: Node,
        /// Where the content belongs, in bytes.
        offset: u64,
        /// The content.
        data: Payload,
    },
    /// After its process died, the driver cannot tell whether the door still refers to this node. A door that can tell, and
    /// does not, returns all references by a [`Forget`](crate::ops::Forget) of `u64::MAX`.
    #[wire(6)]
    Revalidate {
        /// The file.
        node: Node,
    },
    /// The driver knows nothing of these any more but that the door refers to them. A door that can gives back what no program
    /// uses, by a [`Forget`](crate::ops::Forget) each; one that cannot does nothing.
    #[wire(7)]
    Prune {
        /// The files.
        nodes: Vec<Node>,
    },
    /// The state an earlier poll with this key waits for may have changed.
    #[wire(8)]
    Wake {
        /// The key of [`crate::ops::Poll`].
        key: u64,
    },
}

/// Where notices go. Sending never blocks and never fails: a door that has ended ignores them.
pub trait Notify: Send + Sync {
    /// Passes one notice on.
    fn notify(&self, notice: Notice);
}
