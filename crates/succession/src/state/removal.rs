// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that lose their last name while they are open: see [`silly_rename`](crate::silly_rename).

use super::State;
use crate::flight::{Ask, Flight};
use crate::place::REMOVED;
use crate::undelivered::Requester;
use outrigger_core::ops::Unlink;
use outrigger_core::{Added, Credentials, Effect, Handle, Name, Node, Opening, Reply, Request};

impl State {
    /// Whether a file that loses a name by the change, or is made without one, is to keep a name that programs do not see; or has
    /// kept one, and is to get no other. See [`KEEPS`](crate::place::KEEPS).
    pub(super) fn keeps_name(&self, request: &Request) -> bool {
        let is_used = |node| self.files.silly_rename.is_open(node) || self.is_being_opened(node);
        let keeps = |effect: Effect<'_>| match effect {
            Effect::Makes { .. } => true,
            Effect::Adds { file: Added::Existing(node), .. } => !self.files.silly_rename.may_be_linked(node),
            _ => false,
        };
        self.is_guarded()
            && (request.effects().into_iter().any(keeps)
                || self.files.loses_name(request).is_some_and(is_used))
    }

    fn is_being_opened(&self, node: Node) -> bool {
        self.being_opened().any(|opened| opened == node)
    }

    pub(super) fn being_opened(&self) -> impl Iterator<Item = Node> {
        let flying = self.flying.values().filter_map(Flight::ask);
        flying.chain(&self.queue).filter_map(|ask| ask.request.opens().and_then(Opening::file))
    }

    /// A change was done by which that file has lost a name, or has been made without one, and has kept this one.
    pub(super) fn has_kept(
        &mut self,
        request: &Request,
        (name, loses_name): (Name, Option<Node>),
        reply: &mut Reply,
    ) {
        let makes = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Makes { linkable, .. } => Some(linkable),
            _ => None,
        });
        let kept = match (makes, reply) {
            (_, Reply::Error(_)) => None,
            (Some(linkable), Reply::Created(created)) => {
                // It was asked for without a name.
                created.entry.attr.nlink = 0;
                Some((created.entry.node, linkable))
            }
            _ => loses_name.map(|node| (node, false)),
        };
        if let Some((node, may_be_linked)) = kept {
            self.files.silly_rename.keep(node, name, may_be_linked);
            self.let_go(node);
        }
    }

    /// A handle is not used any more.
    pub(super) fn closed(&mut self, handle: Handle) {
        let node = self.files.close(handle);
        node.into_iter().for_each(|node| self.let_go(node));
    }

    /// Has the name removed that a file has kept, if it is not open. No program waits for that, but it is a change as others are:
    /// repeated after a death.
    pub(super) fn let_go(&mut self, node: Node) {
        if let Some(name) = self.files.silly_rename.superfluous(node)
            && !self.is_being_opened(node)
        {
            self.files.silly_rename.goes(node);
            let request = Unlink { dir: REMOVED, name }.into();
            self.queue.push_back(Ask::new(Credentials::ROOT, request, Requester::none()));
        }
    }
}
