// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that outlive the server which answers for them.
//!
//! Nodes and handles that were given out stay what they are when the server dies, while the next one has numbers of its own. What
//! stands between knows what the present server calls each ([`Bindings`]). A request is [bound](bind) before it is sent. What is
//! [missing](Missing) is looked up by path, or opened again ([`reopen`]), and then the request is bound once more: so a new
//! life costs nothing for what is not used.

use crate::error::Result;
use crate::node::{Handle, Node};
use crate::ops::{Open, OpenDir, OpenFlags, Request};
use crate::traverse::{Traverse, Visit};

/// What a server has to be asked for before it can be asked something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Where a node is.
    Node(Node),
    /// To open a file again.
    Handle(Handle),
}

/// Knows the numbers of a server in its present life.
pub trait Bindings {
    /// Of a node, if there is one.
    ///
    /// # Errors
    /// `ESTALE` for one that was never given out.
    fn node(&mut self, node: Node) -> Result<Option<Node>>;

    /// Of an open file, if there is one.
    ///
    /// # Errors
    /// `EBADF` for one that was never given out.
    fn handle(&mut self, handle: Handle) -> Result<Option<Handle>>;
}

/// Puts the numbers of a server into a request, or says what is missing first: a file is found before it is opened. The request is
/// of no use then.
///
/// # Errors
/// Those of [`Bindings`].
pub fn bind(request: &mut Request, bindings: &mut dyn Bindings) -> Result<Option<Missing>> {
    let mut binding = Binding { bindings, outcome: Ok(None) };
    request.traverse(&mut binding);
    binding.outcome
}

struct Binding<'a> {
    bindings: &'a mut dyn Bindings,
    outcome: Result<Option<Missing>>,
}

impl Binding<'_> {
    fn put<T>(&mut self, ours: &mut T, theirs: Result<Option<T>>, missing: Missing) {
        match theirs {
            Ok(Some(theirs)) => *ours = theirs,
            Ok(None) => {
                if let Ok(first @ None) = &mut self.outcome {
                    *first = Some(missing);
                }
            }
            Err(error) => self.outcome = Err(error),
        }
    }
}

impl Visit for Binding<'_> {
    fn node(&mut self, node: &mut Node) {
        let theirs = self.bindings.node(*node);
        self.put(node, theirs, Missing::Node(*node));
    }

    fn handle(&mut self, handle: &mut Handle) {
        let theirs = self.bindings.handle(*handle);
        self.put(handle, theirs, Missing::Handle(*handle));
    }
}

/// The numbers in a message, in the order of its parts.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Of nodes.
    pub nodes: Vec<Node>,
    /// Of open files and directories.
    pub handles: Vec<Handle>,
}

impl Numbers {
    /// Those in `message`, which stays as it is.
    pub fn of(message: &mut dyn Traverse) -> Self {
        let mut numbers = Numbers::default();
        message.traverse(&mut numbers);
        numbers
    }
}

impl Visit for Numbers {
    fn node(&mut self, node: &mut Node) {
        self.nodes.push(*node);
    }

    fn handle(&mut self, handle: &mut Handle) {
        self.handles.push(*handle);
    }
}

/// The request that opens again what was opened with these flags, or a directory, which has none.
pub fn reopen(node: Node, flags: Option<OpenFlags>) -> Request {
    match flags {
        Some(flags) => Open { node, flags: flags.difference(OpenFlags::TRUNC | OpenFlags::EXCL) }.into(),
        None => OpenDir { node }.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::ops::ReleaseDir;

    /// Only the node and the handle of one number are known, and handles from 10 on were never given out.
    struct Sample(u64);

    impl Bindings for Sample {
        fn node(&mut self, node: Node) -> Result<Option<Node>> {
            Ok((node.0 == self.0).then_some(Node(node.0 + 100)))
        }

        fn handle(&mut self, handle: Handle) -> Result<Option<Handle>> {
            match handle.0 {
                10.. => Err(Errno::EBADF.into()),
                number => Ok((number == self.0).then_some(Handle(number + 100))),
            }
        }
    }

    fn closing(node: u64, handle: u64) -> Request {
        ReleaseDir { node: Node(node), handle: Handle(handle) }.into()
    }

    #[test]
    fn a_request_is_bound_when_nothing_is_missing() {
        let mut bound = closing(2, 2);
        assert_eq!(bind(&mut bound, &mut Sample(2)), Ok(None));
        let numbers = Numbers::of(&mut bound);
        assert_eq!((numbers.nodes, numbers.handles), (vec![Node(102)], vec![Handle(102)]));
        let judge =
            |node, handle| bind(&mut closing(node, handle), &mut Sample(2)).map_err(|error| error.errno);
        assert_eq!(judge(1, 3), Ok(Some(Missing::Node(Node(1)))), "the file is found first");
        assert_eq!(judge(2, 3), Ok(Some(Missing::Handle(Handle(3)))));
        assert_eq!(judge(1, 10), Err(Errno::EBADF));
    }
}
