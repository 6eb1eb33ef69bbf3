// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing trees that nothing uses.

use crate::inner::Inner;
use crate::numbers::Life;
use crate::state::{Open, Phase, State};
use outrigger_core::{Name, Node, Notice};
use std::sync::Arc;
use std::time::Duration;

/// How long the door gets to return references before a tree is looked at again, at least and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What one look at all open trees finds.
#[derive(Default)]
struct Look {
    /// Trees that are being closed from now on.
    closing: Vec<(u64, Arc<Open>)>,
    /// Idle trees to which only the door refers, and by which nodes.
    referred: Vec<Life>,
    unneeded: Vec<Node>,
    /// Names that lead to nothing, in directories of those trees.
    missing: Vec<(Node, Name)>,
    /// When to look again.
    next: Option<Duration>,
}

impl Look {
    fn again(&mut self, at: Duration) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Inner {
    /// Makes sure that a task looks for idle trees as long as one is open.
    pub(crate) fn watch_idleness(self: &Arc<Self>) {
        let Some(limit) = self.options.idle else { return };
        if std::mem::replace(&mut self.lock().watches, true) {
            return;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            while let Some(next) = inner.tend(limit) {
                inner.runtime.sleep_until(next).await;
            }
        }));
    }

    /// Closes what is idle; answers when to look again, or nothing when no tree is open that could become so.
    fn tend(self: &Arc<Self>, limit: Duration) -> Option<Duration> {
        let now = self.runtime.monotonic();
        // Asked without the lock: what answers may have something to tell the door meanwhile.
        let due = self.lock().due(now, limit);
        let unwritten = due.into_iter().filter(|(_, open)| open.hosted.ending.unwritten().is_some());
        let unwritten: Vec<Life> = unwritten.map(|(life, _)| life).collect();
        let look = self.lock().look(now, limit, &unwritten);
        look.closing.into_iter().for_each(|(root, open)| self.close(root, open, None));
        if let Some(above) = self.above.get().filter(|_| !look.unneeded.is_empty()) {
            // No program can be in one, but a kernel keeps their directories as long as it remembers them.
            for (dir, name) in look.missing {
                above.notify(Notice::InvalidateEntry { dir, name });
            }
            above.notify(Notice::Prune { nodes: look.unneeded });
        }
        look.referred.into_iter().for_each(|life| self.close_unseen(life, now));
        look.next
    }

    /// Closes a tree to which only a door refers that cannot be asked to return references.
    fn close_unseen(self: &Arc<Self>, life: Life, now: Duration) {
        let Some(is_used) = &self.options.is_used else { return };
        let Some(path) = self.with_tree(life.tree, |tree| tree.shown()) else { return };
        if is_used(&path) {
            return;
        }
        let mut state = self.lock();
        // A request may have come meanwhile.
        let closing = state.idle(life).and_then(|_| state.begin_closing(life, now));
        drop(state);
        closing.into_iter().for_each(|open| self.close(life.tree, open, None));
    }
}

impl State {
    /// The trees that no request has used for so long.
    fn due(&self, now: Duration, limit: Duration) -> Vec<(Life, Arc<Open>)> {
        let due = self.trees.iter().filter(|(_, tree)| tree.last_used + limit <= now);
        let open = due.filter_map(|(&root, tree)| {
            let life = tree.life_of(root)?;
            Some((life, tree.open_in(life)?))
        });
        open.collect()
    }

    fn look(&mut self, now: Duration, limit: Duration, unwritten: &[Life]) -> Look {
        let mut look = Look::default();
        let open = self.trees.iter().filter_map(|(&root, tree)| Some((tree.life_of(root)?, tree.last_used)));
        let open: Vec<(Life, Duration)> = open.collect();
        let again = now + (limit / 8).clamp(AGAIN.0, AGAIN.1);
        for (life, used) in open {
            if used + limit > now {
                look.again(used + limit);
                continue;
            }
            match self.idle(life).filter(|_| !unwritten.contains(&life)) {
                Some(nodes) if nodes.is_empty() => {
                    let open = self.begin_closing(life, now);
                    look.closing.extend(open.map(|open| (life.tree, open)));
                }
                Some(nodes) => {
                    let missing =
                        self.trees.get_mut(&life.tree).map(|tree| std::mem::take(&mut tree.missing));
                    look.missing.extend(missing.into_iter().flatten());
                    look.unneeded.extend(nodes);
                    look.referred.push(life);
                    look.again(again);
                }
                None => look.again(again),
            }
        }
        self.watches = look.next.is_some();
        look
    }

    /// The nodes of a tree that is idle to which the door refers, the root last; `None` when the tree is in use or has to stay.
    fn idle(&self, life: Life) -> Option<Vec<Node>> {
        let tree = self.trees.get(&life.tree)?;
        let open = tree.open_in(life)?;
        let is_quiet = tree.in_flight == 0 && tree.opens == 0;
        if !is_quiet || !open.hosted.is_lasting {
            return None;
        }
        let mut nodes = self.numbers.of_life(life);
        let root = Node(life.tree);
        nodes.extend((self.numbers.references(root) > 0).then_some(root));
        Some(nodes)
    }

    /// The tree, which is closed from now on.
    pub(crate) fn begin_closing(&mut self, life: Life, now: Duration) -> Option<Arc<Open>> {
        let tree = self.trees.get_mut(&life.tree)?;
        let open = tree.open_in(life)?;
        tree.enter_phase(Phase::Closing(Arc::clone(&open)), now);
        Some(open)
    }
}
