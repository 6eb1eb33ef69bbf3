// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tree a request is for, and the request with the tree's numbers.

use crate::inner::{Inner, Use};
use crate::numbers::{Life, Place};
use crate::state::Tree;
use crate::up::Asked;
use crate::{GRACE, Silence};
use outrigger_core::reply::{Attrs, Ttl};
use outrigger_core::runtime::until;
use outrigger_core::{Answer, Cx, Errno, Error, Node, Reply, Request, Result, Traverse, Visit};
use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

/// The nodes that a request names: no operation has more than two.
#[derive(Default)]
struct Nodes {
    first: Option<Node>,
    second: Option<Node>,
}

impl Visit for Nodes {
    fn node(&mut self, node: &mut Node) {
        match self.first {
            None => self.first = Some(*node),
            Some(_) => self.second = Some(*node),
        }
    }
}

/// Which tree a node is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// None: it is an upper directory.
    Upper(Node),
    /// The tree with this root.
    Tree(u64),
}

/// Where a request goes.
enum Way {
    Upper(Node),
    /// To a tree, of which it names the root at least once unless a `life` is known.
    Tree {
        root: u64,
        life: Option<Life>,
        /// Whether the first node is the root.
        at_root: bool,
    },
}

/// Puts the numbers of one opening of a tree into a request.
struct Down<'a> {
    inner: &'a Inner,
    life: Life,
    /// A node is not this tree's.
    foreign: bool,
}

impl Visit for Down<'_> {
    fn node(&mut self, node: &mut Node) {
        match self.inner.lock().numbers.place(*node) {
            Some(Place::Root) if node.0 == self.life.tree => *node = Node::ROOT,
            Some(Place::Inside(life, own)) if life == self.life => *node = own,
            _ => self.foreign = true,
        }
    }
}

impl Inner {
    /// Answers a request, or passes it to its tree.
    pub(crate) fn route<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if let Some((node, count)) = request.returns() {
            return self.forget(cx, request, node, count);
        }
        let mut nodes = Nodes::default();
        request.traverse(&mut nodes);
        let way = match self.way(&nodes) {
            Ok(way) => way,
            // What was open in a tree that has been closed is closed.
            Err(_) if request.ends().is_some() => return Answer::Ready(Reply::Done(())),
            Err(error) => return Answer::error(error),
        };
        match way {
            Way::Upper(dir) => Answer::Ready(self.in_upper(dir, request)),
            Way::Tree { root, at_root: true, .. } if self.answers_for_root(&request) => {
                self.of_root(cx, root, request)
            }
            Way::Tree { root, life, .. } => {
                Answer::later(self.telling(cx, root, self.in_tree(cx, root, life, request)))
            }
        }
    }

    fn way(&self, nodes: &Nodes) -> Result<Way> {
        let state = self.lock();
        let owner = |node: Node| match state.numbers.place(node) {
            None => Err(Error::from(Errno::ESTALE)),
            Some(Place::Upper) => Ok((Owner::Upper(node), None)),
            Some(Place::Root) => Ok((Owner::Tree(node.0), None)),
            Some(Place::Inside(life, _)) => Ok((Owner::Tree(life.tree), Some(life))),
        };
        let first = nodes.first.unwrap_or(Node::ROOT);
        let (of, life) = owner(first)?;
        let other = nodes.second.map(owner).transpose()?;
        match (of, other) {
            (Owner::Tree(root), None) => Ok(Way::Tree { root, life, at_root: life.is_none() }),
            (Owner::Tree(root), Some((Owner::Tree(other), its))) if root == other => {
                Ok(Way::Tree { root, life: life.or(its), at_root: false })
            }
            (Owner::Upper(dir), None | Some((Owner::Upper(_), _))) => Ok(Way::Upper(dir)),
            _ => Err(Errno::EXDEV.into()),
        }
    }

    /// The door returns references: a tree that is open gets back its own.
    fn forget<'a>(
        self: &'a Arc<Self>,
        cx: &'a Cx,
        mut request: Request,
        node: Node,
        count: u64,
    ) -> Answer<'a> {
        let place = self.lock().numbers.forget(node, count);
        let Some(Place::Inside(life, own)) = place else { return Answer::Ready(Reply::Done(())) };
        let open = self.with_tree(life.tree, |tree| tree.open_in(life)).flatten();
        let Some(open) = open else { return Answer::Ready(Reply::Done(())) };
        request.traverse(&mut Renumber(own));
        Answer::later(async move { open.hosted.service.call(cx, request).await })
    }

    /// The outcome of `work` in a tree. That it does not come for long is told.
    async fn telling<T>(&self, cx: &Cx, root: u64, work: impl Future<Output = T>) -> T {
        let Some(Silence { after, tell }) = &self.options.silence else { return work.await };
        let (mut work, limit) = (pin!(work), self.runtime.monotonic() + *after);
        if let Some(outcome) = until(&*self.runtime, limit, &mut work).await {
            return outcome;
        }
        let first = |tree: &mut Tree| {
            let is_first = !cx.cancel.heeds_signals() && !std::mem::replace(&mut tree.is_told_silent, true);
            is_first.then(|| tree.opener.location().to_owned())
        };
        if let Some(location) = self.with_tree(root, first).flatten() {
            tell(&location);
        }
        work.await
    }

    /// Passes a request to its tree, which is opened first if need be.
    async fn in_tree(self: &Arc<Self>, cx: &Cx, root: u64, life: Option<Life>, request: Request) -> Reply {
        let ends = request.ends().is_some();
        match self.enter(cx, root, life).await {
            Ok(entered) => self.pass(cx, &entered, request).await,
            Err(_) if ends => Reply::Done(()),
            Err(error) => Reply::Error(error),
        }
    }

    async fn pass(&self, cx: &Cx, entered: &Use, mut request: Request) -> Reply {
        let asked = Asked::of(&mut request);
        let mut down = Down { inner: self, life: entered.life, foreign: false };
        request.traverse(&mut down);
        if down.foreign {
            return Reply::Error(Errno::ESTALE.into());
        }
        if request.ends().is_some() {
            self.with_tree(entered.life.tree, |tree| tree.opens = tree.opens.saturating_sub(1));
        }
        // What a driver would note there has its own numbers.
        let cx = match cx.wcc {
            Some(_) => Cow::Owned(Cx { wcc: None, ..cx.clone() }),
            None => Cow::Borrowed(cx),
        };
        let reply = entered.open.hosted.service.call(&cx, request).await;
        self.up(entered, asked, reply)
    }

    /// The attributes of the root of a tree that is open, as they are if that is known soon, else as they were. Looking at them is no use
    /// of the tree.
    pub(crate) async fn attributes_of_root(self: &Arc<Self>, cx: &Cx, root: u64, request: Request) -> Reply {
        let known = || Reply::Attrs(Attrs { attr: self.root_attr(root), ttl: Ttl::from(Inner::TTL) });
        let life = self.with_tree(root, |tree| tree.life_of(root)).flatten();
        if life.is_none() && self.options.looking_opens {
            return self.in_tree(cx, root, None, request).await;
        }
        let Some(life) = life else { return known() };
        let limit = self.runtime.monotonic() + GRACE;
        // One that is not closed yet is entered at once.
        let Ok(mut entered) = self.enter(cx, root, Some(life)).await else { return known() };
        entered.counts = false;
        let reply = until(&*self.runtime, limit, self.pass(cx, &entered, request)).await;
        reply.unwrap_or_else(known)
    }
}

/// Puts one number in the place of another.
struct Renumber(Node);

impl Visit for Renumber {
    fn node(&mut self, node: &mut Node) {
        *node = self.0;
    }
}
