// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shows one directory of a tree as a tree of its own.
//!
//! The directory takes the number of the root; everything else keeps its number, and paths begin at the directory. Names cannot lead
//! out, because no [`Name`] is `..`. The owner of the layer holds the reference to the directory meanwhile.
#![forbid(unsafe_code)]

use bytes::Bytes;
use outrigger_core::ops::Locate;
use outrigger_core::{
    Abilities, Answer, Cx, Errno, FileKind, Layer, Name, Node, Notice, Notify, Place, Recalled, Reply,
    Request, Result, Service, Target, Traverse, Visit, ask,
};
use std::sync::Arc;

/// The layer; see the crate's documentation.
#[derive(Debug, Clone)]
pub struct Subtree {
    root: Node,
    path: Option<Target>,
}

/// Replaces one node number by another in a message.
struct Renumber {
    from: Node,
    to: Node,
    forbidden: bool,
}

impl Visit for Renumber {
    fn node(&mut self, node: &mut Node) {
        if *node == self.from {
            *node = self.to;
        } else if *node == self.to {
            self.forbidden = true;
        }
    }
}

impl Subtree {
    /// Makes `root`, a directory of the tree below, the root.
    pub fn new(root: Node) -> Self {
        Subtree { root, path: None }
    }

    /// The same; the directory is at `path` of the tree below.
    pub fn at(self, path: Target) -> Self {
        Subtree { path: Some(path), ..self }
    }

    fn down(&self) -> Renumber {
        Renumber { from: Node::ROOT, to: self.root, forbidden: false }
    }

    fn up(&self) -> Renumber {
        Renumber { from: self.root, to: Node::ROOT, forbidden: false }
    }

    /// A path from the directory on.
    async fn located(&self, next: &Arc<dyn Service>, cx: &Cx, locate: Locate) -> Result<Target> {
        let path = ask(&**next, cx, locate).await?;
        let root = ask(&**next, cx, Locate { node: self.root }).await?;
        match path.strip_prefix(root.strip_suffix(b"/").unwrap_or(&root)) {
            Some(b"") => Target::new(b"/".to_vec()),
            Some(below) if below.starts_with(b"/") => Target::new(below.to_vec()),
            _ => Err(Errno::ENOENT.because("its path is outside of the directory that is shown")),
        }
    }
}

impl Layer for Subtree {
    fn place(&self) -> Place {
        Place::anywhere("subtree")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        // The owner of the layer holds the reference to the directory.
        if request.returns().is_some_and(|(node, _)| node == Node::ROOT) {
            return Answer::Ready(Reply::Done(()));
        }
        if self.root == Node::ROOT {
            return next.call(cx, request);
        }
        let mut down = self.down();
        request.traverse(&mut down);
        // The number of the directory itself is not handed out above: a client that uses it guesses.
        if down.forbidden {
            return Answer::error(Errno::ESTALE);
        }
        if let Request::Locate(locate) = request {
            return Answer::later(async move { self.located(next, cx, locate).await.into() });
        }
        let up = self.up();
        next.call(cx, request).map(move |mut reply| {
            let mut up = up;
            reply.traverse(&mut up);
            if up.forbidden { Reply::Error(Errno::ESTALE.into()) } else { reply }
        })
    }

    fn recall(&self, next: &Arc<dyn Service>, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        let (mut dir, mut down, mut up) = (dir, self.down(), self.up());
        down.node(&mut dir);
        if down.forbidden {
            return Err(Errno::ESTALE.into());
        }
        let mut recalled = next.recall(dir, name, kind)?;
        up.node(&mut recalled.node);
        if up.forbidden { Err(Errno::ESTALE.into()) } else { Ok(recalled) }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let root_at = below.root_at.as_ref().zip(self.path.as_ref());
        let root_at = root_at.map(|(root, path)| Bytes::from([&root[..], path].concat()));
        Abilities { root_at, ..below }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        Arc::new(Renumbered { layer: self.clone(), above })
    }
}

struct Renumbered {
    layer: Subtree,
    above: Arc<dyn Notify>,
}

impl Notify for Renumbered {
    fn notify(&self, mut notice: Notice) {
        let mut up = self.layer.up();
        match &mut notice {
            Notice::InvalidateNode { node, .. }
            | Notice::Store { node, .. }
            | Notice::Revalidate { node } => up.node(node),
            Notice::InvalidateEntry { dir, .. } => up.node(dir),
            Notice::Deleted { dir, node, .. } => {
                up.node(dir);
                up.node(node);
            }
            // The directory itself is not given back.
            Notice::Prune { nodes } => nodes.retain(|&node| node != self.layer.root && node != Node::ROOT),
            Notice::InvalidateAll | Notice::Wake { .. } => {}
        }
        if !up.forbidden {
            self.above.notify(notice);
        }
    }
}

#[cfg(test)]
mod tests;
