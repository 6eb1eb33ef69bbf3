// SPDX-License-Identifier: MIT OR Apache-2.0
//! One visitor walks every field of every message (generic traversal, as in the SFS toolkit's rpcc).
//!
//! A layer that renumbers nodes, encrypts names or scrubs attributes overrides one method of [`Visit`] and is done:
//! it needs no knowledge of the operations, also of those added later.

use crate::attr::{Attr, FileKind};
use crate::name::{Name, Target, XattrName};
use crate::node::{Generation, Handle, LockOwner, Node};
use crate::payload::{Backing, Payload};
use bytes::Bytes;

/// What to do with each part of a message; the default leaves everything as it is.
pub trait Visit {
    /// A node number.
    fn node(&mut self, _: &mut Node) {}
    /// An open handle.
    fn handle(&mut self, _: &mut Handle) {}
    /// A file name.
    fn name(&mut self, _: &mut Name) {}
    /// The target of a symbolic link.
    fn target(&mut self, _: &mut Target) {}
    /// The name of an extended attribute.
    fn xattr_name(&mut self, _: &mut XattrName) {}
    /// The attributes of a file.
    fn attr(&mut self, _: &mut Attr) {}
    /// File content.
    fn payload(&mut self, _: &mut Payload) {}
    /// The value of an extended attribute, or the data of an ioctl.
    fn bytes(&mut self, _: &mut Bytes) {}
}

/// Shows every part of a value to a visitor.
pub trait Traverse {
    /// Calls the visitor's method for each part, in declaration order.
    fn traverse(&mut self, visitor: &mut dyn Visit);
}

macro_rules! visited {
    ($($type:ty => $method:ident;)*) => {
        $(impl Traverse for $type {
            fn traverse(&mut self, visitor: &mut dyn Visit) { visitor.$method(self) }
        })*
    };
}
visited! {
    Node => node;
    Handle => handle;
    Name => name;
    Target => target;
    XattrName => xattr_name;
    Attr => attr;
    Payload => payload;
    Bytes => bytes;
}

macro_rules! unvisited {
    ($($type:ty),*) => {
        $(impl Traverse for $type { fn traverse(&mut self, _: &mut dyn Visit) {} })*
    };
}
unvisited!(bool, u8, u16, u32, u64, i32, i64, (), Generation, LockOwner, Backing, FileKind);

impl<T: Traverse> Traverse for Option<T> {
    fn traverse(&mut self, visitor: &mut dyn Visit) {
        if let Some(value) = self {
            value.traverse(visitor);
        }
    }
}

impl<T: Traverse> Traverse for Box<T> {
    fn traverse(&mut self, visitor: &mut dyn Visit) {
        (**self).traverse(visitor);
    }
}

impl<T: Traverse> Traverse for Vec<T> {
    fn traverse(&mut self, visitor: &mut dyn Visit) {
        self.iter_mut().for_each(|value| value.traverse(visitor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Rename, Request};

    struct Shift;
    impl Visit for Shift {
        fn node(&mut self, node: &mut Node) {
            node.0 += 100;
        }
    }

    #[test]
    fn a_visitor_reaches_every_node_of_a_request() {
        let name = Name::try_from("a").unwrap();
        let mut request = Request::from(Rename {
            dir: Node(1),
            name: name.clone(),
            to_dir: Node(2),
            to_name: name,
            flags: Default::default(),
        });
        request.traverse(&mut Shift);
        let Request::Rename(rename) = request else { unreachable!() };
        assert_eq!((rename.dir, rename.to_dir), (Node(101), Node(102)));
    }
}
