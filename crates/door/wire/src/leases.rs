// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases: for a while the names in a directory are those of one connection, which may answer its programs before it has asked.
//!
//! Whoever else asks about the directory waits until the holder has given the lease back, for [`RECALL`] at most. What a holder sends
//! is not trusted more for its lease: it is a request as any other, and fails where the name exists.

use outrigger_core::gate::Gate;
use outrigger_core::ops::Lookup;
use outrigger_core::reply::Reply;
use outrigger_core::runtime::until;
use outrigger_core::{Effect, Errno, Name, Node, Request, Result, Runtime, lock, paths};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

/// The most directories that are leased to one connection.
pub(crate) const LEASES: usize = 64;
/// How long others wait for a lease that is to be given back.
pub(crate) const RECALL: Duration = Duration::from_secs(3);

/// Those of all connections.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    state: Mutex<State>,
    gate: Gate,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<Node, Held>,
    /// The connections whose requests about a directory are at work, one for each request.
    visits: HashMap<Node, Vec<u64>>,
    /// Connections that have not given a lease back in time: they get no others.
    late: HashSet<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    session: u64,
    /// When it ends if it is not given back before, once it has been recalled.
    due: Option<Duration>,
}

/// A request is at work: until this is dropped, no other connection gets a lease of what it is about.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    leases: &'a Leases,
    session: u64,
    nodes: Vec<Node>,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.leases.state);
        for node in &self.nodes {
            let Some(sessions) = state.visits.get_mut(node) else { continue };
            if let Some(at) = sessions.iter().position(|&session| session == self.session) {
                sessions.swap_remove(at);
            }
            if sessions.is_empty() {
                state.visits.remove(node);
            }
        }
    }
}

/// What a request is about. What comes back says nothing about names.
pub(crate) fn about(request: &Request) -> Vec<Node> {
    let comes_back = |effect| matches!(effect, Effect::Returns { .. } | Effect::Ends { .. });
    if request.effects().into_iter().any(comes_back) {
        return Vec::new();
    }
    paths::subjects(&mut request.clone()).into_iter().map(|subject| subject.node).collect()
}

/// The names in a request that may lead to directories which have to be empty.
pub(crate) fn emptied(request: &Request) -> Vec<Lookup> {
    let place = |(dir, name): (Node, &Name)| Lookup { dir, name: name.clone() };
    let mut names = Vec::new();
    for effect in request.effects() {
        match effect {
            Effect::Removes { directory: true, .. } | Effect::Moves { .. } => {
                names.extend(effect.names().map(place));
            }
            _ => {}
        }
    }
    names
}

/// The directories whose attributes are in a reply.
pub(crate) fn told(reply: &Reply) -> Vec<Node> {
    let dirs = crate::known::given_out(reply).0.into_iter().filter(|entry| entry.attr.is_dir());
    dirs.map(|entry| entry.node).collect()
}

impl Leases {
    /// Grants a connection a lease of a directory.
    ///
    /// # Errors
    /// `EAGAIN` when others have it or are at work there, when the connection has [`LEASES`], or was late to give one back.
    pub(crate) fn grant(&self, session: u64, dir: Node) -> Result<()> {
        let mut state = lock(&self.state);
        let visits = state.visits.get(&dir);
        let is_free = state.held.get(&dir).is_none_or(|held| held.session == session && held.due.is_none())
            && visits.is_none_or(|sessions| sessions.iter().all(|&other| other == session));
        let count = state.held.values().filter(|held| held.session == session).count();
        if !is_free || count >= LEASES || state.late.contains(&session) {
            return Err(Errno::EAGAIN.because("no lease of the directory is granted"));
        }
        state.held.insert(dir, Held { session, due: None });
        Ok(())
    }

    /// A connection gives a lease back; one that it does not have changes nothing.
    pub(crate) fn give_back(&self, session: u64, dir: Node) {
        lock(&self.state).held.retain(|&node, held| node != dir || held.session != session);
        self.gate.open();
    }

    /// A connection has ended.
    pub(crate) fn end(&self, session: u64) {
        let mut state = lock(&self.state);
        state.held.retain(|_, held| held.session != session);
        state.late.remove(&session);
        drop(state);
        self.gate.open();
    }

    /// Whether others than `session` have any.
    pub(crate) fn are_others(&self, session: u64) -> bool {
        lock(&self.state).held.values().any(|held| held.session != session)
    }

    /// Those of `nodes` that others than `session` have a lease of.
    pub(crate) fn of_others(&self, session: u64, nodes: Vec<Node>) -> Vec<Node> {
        let state = lock(&self.state);
        let is_others = |node: &Node| state.held.get(node).is_some_and(|held| held.session != session);
        nodes.into_iter().filter(is_others).collect()
    }

    /// A request of `session` is about to be made: has others give back what leases they have of `nodes`, by `recall`, and waits for
    /// that, until [`RECALL`] has passed since.
    pub(crate) async fn visit(
        &self,
        runtime: &dyn Runtime,
        session: u64,
        nodes: Vec<Node>,
        recall: impl Fn(u64, Node),
    ) -> Visit<'_> {
        {
            let mut state = lock(&self.state);
            nodes.iter().for_each(|&node| state.visits.entry(node).or_default().push(session));
        }
        let visit = Visit { leases: self, session, nodes };
        for node in self.of_others(session, visit.nodes.clone()) {
            let due = runtime.monotonic() + RECALL;
            let first = lock(&self.state).held.get_mut(&node).filter(|held| held.due.is_none()).map(|held| {
                held.due = Some(due);
                held.session
            });
            first.into_iter().for_each(|holder| recall(holder, node));
        }
        for &node in &visit.nodes {
            if let Some(due) = self.due(session, node) {
                let is_back = || self.due(session, node).is_none().then_some(());
                if until(runtime, due, self.gate.wait(is_back)).await.is_none() {
                    self.revoke(node, due);
                }
            }
        }
        visit
    }

    /// When a lease ends that another connection than `session` has of a directory.
    fn due(&self, session: u64, dir: Node) -> Option<Duration> {
        lock(&self.state).held.get(&dir).filter(|held| held.session != session)?.due
    }

    fn revoke(&self, dir: Node, due: Duration) {
        let mut state = lock(&self.state);
        if let Some(held) = state.held.get(&dir).copied().filter(|held| held.due == Some(due)) {
            state.held.remove(&dir);
            tracing::info!(connection = held.session, "a lease was not given back in time");
            state.late.insert(held.session);
        }
        drop(state);
        self.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Node = Node(7);

    fn visit(leases: &Leases, session: u64) -> Visit<'_> {
        let mut state = lock(&leases.state);
        state.visits.entry(DIR).or_default().push(session);
        Visit { leases, session, nodes: vec![DIR] }
    }

    #[test]
    fn a_directory_is_leased_to_one_and_only_while_nobody_else_is_at_work_in_it() {
        let leases = Leases::default();
        let guest = visit(&leases, 2);
        let own = visit(&leases, 1);
        assert!(leases.grant(1, DIR).is_err());
        drop(guest);
        assert_eq!(leases.grant(1, DIR), Ok(()), "its own request does not stand in the way");
        drop(own);
        assert!(lock(&leases.state).visits.is_empty());
        assert!(leases.grant(2, DIR).is_err());
        leases.give_back(2, DIR);
        assert_eq!(leases.of_others(2, vec![DIR, Node(8)]), [DIR], "only its holder gives it back");
        leases.end(1);
        assert_eq!(leases.grant(2, DIR), Ok(()));
    }

    #[test]
    fn a_connection_has_so_many_leases_and_none_after_it_was_late() {
        let leases = Leases::default();
        (0..LEASES as u64).for_each(|dir| leases.grant(1, Node(100 + dir)).unwrap());
        assert!(leases.grant(1, DIR).is_err());
        assert_eq!(leases.grant(2, DIR), Ok(()));
        lock(&leases.state).held.insert(Node(100), Held { session: 1, due: Some(RECALL) });
        leases.revoke(Node(100), RECALL);
        assert!(leases.grant(1, Node(100)).is_err());
        leases.end(1);
        assert!(lock(&leases.state).late.is_empty(), "nothing is remembered of connections that have ended");
    }
}
