// SPDX-License-Identifier: MIT OR Apache-2.0
//! The copy of another process's state: what happened there happens here, until it is gone on with.

use super::{Role, State};
use crate::flight::{Ask, Flight};
use crate::record::Event;

impl State {
    /// A request that another process had taken, and whose reply it did not deliver, gets that now or when it comes.
    pub(super) fn expected(&mut self, ask: Ask) -> Option<Ask> {
        if !self.undelivered.may_have(&ask.requester) {
            return Some(ask);
        }
        if let Some(reply) = self.undelivered.take(&ask.requester) {
            self.answered.push((ask.requester, reply));
            return None;
        }
        let flying = self.flying.values_mut().filter_map(Flight::ask_mut);
        let asked = flying.chain(&mut self.queue).map(|ask| &mut ask.requester);
        let waiting = self.checkpoint.iter_mut().flat_map(|checkpoint| &mut checkpoint.waiting);
        match asked
            .chain(waiting.map(|(requester, _)| requester))
            .find(|before| before.is_the_same(&ask.requester))
        {
            Some(before) => {
                *before = ask.requester;
                None
            }
            None => Some(ask),
        }
    }

    /// What the serving process has recorded happens in this copy, too.
    pub fn follow(&mut self, event: Event) {
        match event {
            Event::Asked { requester, cred, request } => self.take(Ask::new(cred, request, requester)),
            Event::Replied { id, reply } => self.receive(id, reply),
            Event::Forgotten { node, count } => self.forget(node, count),
            Event::Checkpoint => {
                self.want_checkpoint(None);
                self.go_on_with_checkpoint();
            }
            Event::Returned { nodes } => {
                let returned = self.files.give_back(&nodes);
                self.give_back(returned);
            }
        }
        // That is done where the event comes from.
        self.outgoing.clear();
        drop(self.answers());
    }

    /// From here on it is the state of this process, which has followed that of another so far.
    pub fn take_over(&mut self) {
        self.undelivered.expect();
        self.role = Role::Own;
    }
}
