// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the connections of a server tell each other: that something which they may have cached has changed.

use crate::known::Known;
use crate::outgoing::Outgoing;
use outrigger_core::wire::peer::Recall;
use outrigger_core::{Effect, Errno, Node, Notice, Notify, Reply, Request, lock};
use std::sync::{Arc, Mutex};

/// Who is told, and what it may have cached.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) session: u64,
    pub(crate) known: Known,
    pub(crate) out: Outgoing,
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Vec<Arc<Member>>>);

impl Hub {
    pub(crate) fn join(&self, member: Arc<Member>) {
        lock(&self.0).push(member);
    }

    pub(crate) fn leave(&self, session: u64) {
        lock(&self.0).retain(|member| member.session != session);
    }

    /// Tells those who refer to a node that `notice` is about, but not `except`.
    pub(crate) fn tell(&self, except: Option<u64>, notice: &Notice) {
        let about: Vec<Node> = match notice {
            Notice::InvalidateNode { node, .. } => vec![*node],
            Notice::InvalidateEntry { dir, .. } => vec![*dir],
            Notice::Deleted { dir, node, .. } => vec![*dir, *node],
            _ => Vec::new(),
        };
        let all = *notice == Notice::InvalidateAll;
        for member in &*lock(&self.0) {
            let concerns = all || about.iter().any(|&node| member.known.has(node));
            if Some(member.session) != except && concerns {
                member.out.notice(notice);
            }
        }
    }

    /// Has `session` give back its lease of a directory.
    pub(crate) fn recall(&self, session: u64, dir: Node) {
        let members = lock(&self.0);
        if let Some(member) = members.iter().find(|member| member.session == session) {
            member.out.recall(Recall { dir });
        }
    }

    /// `session` has made a change, or may have: tells the others.
    pub(crate) fn changed(&self, session: u64, request: &Request, reply: &Reply) {
        // Of these errors it is not known whether the change was made.
        let is_done = reply.error().is_none_or(|error| matches!(error.errno, Errno::EIO | Errno::ETIMEDOUT));
        if !is_done || !request.changes_tree() || lock(&self.0).len() < 2 {
            return;
        }
        for effect in request.effects() {
            for notice in notices(effect) {
                self.tell(Some(session), &notice);
            }
        }
    }
}

/// What an effect is to those who have cached something.
fn notices(effect: Effect<'_>) -> Vec<Notice> {
    let mut all: Vec<Notice> =
        effect.names().map(|(dir, name)| Notice::InvalidateEntry { dir, name: name.clone() }).collect();
    let attributes = |node| Notice::InvalidateNode { node, offset: -1, len: 0 };
    match (effect, effect.content()) {
        (_, Some(node)) => all.push(Notice::InvalidateNode { node, offset: 0, len: 0 }),
        (
            Effect::Attributes { node, .. }
            | Effect::SetsXattr { node, .. }
            | Effect::RemovesXattr { node, .. },
            _,
        ) => all.push(attributes(node)),
        _ => {}
    }
    all
}

/// Notices of the tree.
pub(crate) struct FromTree(pub(crate) Arc<Hub>);

impl Notify for FromTree {
    fn notify(&self, notice: Notice) {
        match notice {
            // Content crosses when it is asked for.
            Notice::Store { node, .. } => {
                self.0.tell(None, &Notice::InvalidateNode { node, offset: 0, len: 0 })
            }
            // These are between a tree and a kernel on the same machine.
            Notice::Revalidate { .. } | Notice::Prune { .. } | Notice::Wake { .. } => {}
            notice => self.0.tell(None, &notice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::{Rename, SetAttr, Unlink};
    use outrigger_core::{Name, SetAttrs};

    #[test]
    fn each_change_says_what_is_not_as_it_was() {
        let name = |text: &str| Name::try_from(text).unwrap();
        let told =
            |request: Request| -> Vec<Notice> { request.effects().into_iter().flat_map(notices).collect() };
        let entry = |dir, text: &str| Notice::InvalidateEntry { dir: Node(dir), name: name(text) };
        assert_eq!(told(Unlink { dir: Node(5), name: name("a") }.into()), [entry(5, "a")]);
        let moved = Rename {
            dir: Node(5),
            name: name("a"),
            to_dir: Node(6),
            to_name: name("b"),
            flags: Default::default(),
        };
        assert_eq!(told(moved.into()), [entry(5, "a"), entry(6, "b")]);
        let cut = SetAttrs { size: Some(3), ..SetAttrs::default() };
        let told = told(SetAttr { node: Node(7), handle: None, attrs: cut }.into());
        assert_eq!(told, [-1, 0].map(|offset| Notice::InvalidateNode { node: Node(7), offset, len: 0 }));
    }
}
