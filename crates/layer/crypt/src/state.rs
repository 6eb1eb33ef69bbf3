// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of files and directories while they are in use. All of it can be found out again from the tree below, which a process
//! that takes over does.

use crate::format::Known;
use crate::keys::{Id, Keys};
use outrigger_core::gate::Gate;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Abilities, Handle, Node, lock};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

/// Lets several that only look at something in together, and one that changes it alone, in the order in which they come.
#[derive(Default)]
pub(crate) struct Turns {
    queue: Mutex<Queue>,
    gate: Gate,
}

#[derive(Default)]
struct Queue {
    /// How many look; -1 while one changes.
    held: i64,
    /// Who waits, by the numbers they drew; the first has the next turn.
    waiting: VecDeque<u64>,
    /// The number that is drawn next.
    next: u64,
}

/// A place in the queue, which is given up when it is dropped.
struct Waiting<'a> {
    turns: &'a Turns,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn new(turns: &'a Turns) -> Self {
        let mut queue = lock(&turns.queue);
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(number);
        Waiting { turns, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let others = {
            let waiting = &mut lock(&self.turns.queue).waiting;
            waiting.retain(|&number| number != self.number);
            !waiting.is_empty()
        };
        if others {
            // The next one may be able to look as well.
            self.turns.gate.open();
        }
    }
}

/// A turn, which ends when it is dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// For who only looks.
    pub(crate) async fn look(&self) -> Turn<'_> {
        self.take(|held| (held >= 0).then_some(held + 1)).await
    }

    /// For who changes.
    pub(crate) async fn change(&self) -> Turn<'_> {
        self.take(|held| (held == 0).then_some(-1)).await
    }

    async fn take(&self, next: fn(i64) -> Option<i64>) -> Turn<'_> {
        let place = Waiting::new(self);
        let take = || {
            let mut queue = lock(&self.queue);
            if queue.waiting.front() != Some(&place.number) {
                return None;
            }
            queue.held = next(queue.held)?;
            // From here on the turn ends when it is dropped.
            Some(Turn(self))
        };
        self.gate.wait(take).await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        {
            let held = &mut lock(&self.0.queue).held;
            *held = if *held < 0 { 0 } else { *held - 1 };
        }
        self.0.gate.open();
    }
}

/// A file in use.
#[derive(Default)]
pub(crate) struct File {
    pub(crate) turns: Turns,
    pub(crate) state: Mutex<State>,
}

/// What is known of a file.
#[derive(Default, Clone)]
pub(crate) struct State {
    /// Its header, as it is below.
    pub(crate) known: Option<Known>,
    /// Its size, if something was written since it was opened.
    pub(crate) size: Option<u64>,
    /// It has nothing below yet, not even a header, and is being made.
    pub(crate) fresh: bool,
    /// Open handles that were given out here.
    pub(crate) opens: usize,
    /// A handle that writes.
    pub(crate) writer: Option<Handle>,
}

impl State {
    /// Whether the header says less than there is. Where it says more, others have cut the file, and it must stay so.
    pub(crate) fn is_behind(&self) -> bool {
        match (&self.known, self.size) {
            (Some(known), Some(size)) => known.record.size < size,
            _ => self.fresh,
        }
    }
}

impl File {
    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut lock(&self.state))
    }
}

/// The state of the layer.
pub(crate) struct Inner {
    pub(crate) keys: Keys,
    /// What the tree below can do, from the first request on.
    pub(crate) below: OnceLock<Abilities>,
    files: Mutex<HashMap<Node, Arc<File>>>,
    /// How files were opened, and how often: a tree may give one number to all who open a file in the same way.
    opens: Mutex<HashMap<(Node, Handle), (OpenFlags, usize)>>,
    dirs: Mutex<HashMap<Node, Id>>,
    /// Who adds names looks; who removes directories, or what long names are written down in, or gives directories their numbers, changes.
    pub(crate) names: Turns,
    /// Collects the names below that cannot be decrypted, for `crypt check`.
    pub(crate) strangers: Option<crate::Strangers>,
    /// Another process may go on with files that are open here: those that are made have their header before they are answered.
    pub(crate) has_successor: bool,
}

/// The number of the root: its configuration says which tree it is.
const ROOT: Id = [0; 16];

impl Inner {
    pub(crate) fn new(keys: Keys, strangers: Option<crate::Strangers>) -> Self {
        let (files, opens, dirs) = Default::default();
        Inner {
            keys,
            below: OnceLock::new(),
            files,
            opens,
            dirs,
            names: Turns::default(),
            strangers,
            has_successor: false,
        }
    }

    pub(crate) fn file(&self, node: Node) -> Arc<File> {
        Arc::clone(lock(&self.files).entry(node).or_default())
    }

    /// Notes an open file.
    pub(crate) fn opened(&self, node: Node, handle: Handle, flags: OpenFlags) -> Arc<File> {
        let file = self.file(node);
        file.with(|state| {
            if state.opens == 0 && !state.fresh {
                // Others may have changed it meanwhile.
                (state.known, state.size) = (None, None);
            }
            state.opens += 1;
            if flags.writes() {
                state.writer = Some(handle);
            }
        });
        lock(&self.opens).entry((node, handle)).or_insert((flags, 0)).1 += 1;
        file
    }

    /// How it was opened, if that was here.
    pub(crate) fn flags(&self, node: Node, handle: Handle) -> Option<OpenFlags> {
        lock(&self.opens).get(&(node, handle)).map(|(flags, _)| *flags)
    }

    /// Forgets an open file, and what is known of it with the last one.
    pub(crate) fn closed(&self, node: Node, handle: Handle) {
        let is_last = {
            let mut opens = lock(&self.opens);
            let left = opens.get_mut(&(node, handle)).map_or(0, |(_, count)| {
                *count -= 1;
                *count
            });
            if left == 0 {
                opens.remove(&(node, handle));
            }
            left == 0
        };
        let mut files = lock(&self.files);
        let Some(file) = files.get(&node) else { return };
        let left = file.with(|state| {
            state.opens = state.opens.saturating_sub(1);
            if is_last && state.writer == Some(handle) {
                state.writer = None;
            }
            state.opens
        });
        if left == 0 && Arc::strong_count(file) == 1 {
            files.remove(&node);
        }
    }

    /// Files that were written and whose headers are behind, with handles to write these.
    pub(crate) fn behind(&self) -> Vec<(Node, Handle)> {
        let files = lock(&self.files);
        let behind = |(node, file): (&Node, &Arc<File>)| {
            let state = file.state();
            state.is_behind().then_some((*node, state.writer?))
        };
        files.iter().filter_map(behind).collect()
    }

    pub(crate) fn forget(&self, node: Node) {
        lock(&self.dirs).remove(&node);
        let mut files = lock(&self.files);
        let idle = |file: &Arc<File>| file.state().opens == 0 && Arc::strong_count(file) == 1;
        if files.get(&node).is_some_and(idle) {
            files.remove(&node);
        }
    }

    pub(crate) fn dir(&self, node: Node) -> Option<Id> {
        if node == Node::ROOT { Some(ROOT) } else { lock(&self.dirs).get(&node).copied() }
    }

    pub(crate) fn set_dir(&self, node: Node, id: Option<Id>) {
        match id {
            Some(id) => lock(&self.dirs).insert(node, id),
            None => lock(&self.dirs).remove(&node),
        };
    }
}
