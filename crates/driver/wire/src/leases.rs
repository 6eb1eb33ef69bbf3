// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories in which nobody else makes names for a while, and files without names for those that are made there.
//!
//! A lease is asked for when names are made in a directory one after the other, and right away in one that was made here. With it come
//! files without a name, of the kind that was made there last: a creation takes one of them, is answered, and sends the name
//! (`creation.rs`). It is given back when the other side wants it, or tells of a change by others, and all names have arrived.

use outrigger_core::gate::Gate;
use outrigger_core::reply::Created;
use outrigger_core::{Credentials, Node, Notice, lock};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

/// The most directories that are leased at once. The other side grants twice as many.
const LEASES: usize = 32;
/// The most directories of which it is known whether names are made there.
const DIRECTORIES: usize = 1 << 12;
/// The most files without a name that wait to be taken.
const NAMELESS: usize = 256;
/// The most kinds of them.
const KINDS: usize = 64;
/// How many of one kind are asked for, at first and at most.
const BATCH: (usize, usize) = (16, 64);
/// So many creations make a row, when no more time passes between two.
const ROW: u32 = 2;
const SOON: Duration = Duration::from_secs(10);
/// For how long a lease that others wanted, or that was refused, is not asked for again.
const PAUSE: Duration = Duration::from_secs(10);

/// What of a creation decides what the new file is like, beside the directory, by their number for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) dir: Node,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) cred: Credentials,
}

/// A file without a name, open for reading and writing.
#[derive(Debug)]
pub(crate) struct Nameless {
    pub(crate) created: Created,
    /// When it came.
    pub(crate) came: Duration,
}

/// What is to be asked of the other side beside what a creation does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// A lease of the directory.
    pub(crate) lease: bool,
    pub(crate) kind: Kind,
    /// So many files of this kind.
    pub(crate) count: usize,
}

/// What becomes of a creation: it takes a file, or is asked of the other side; and what is to be asked besides.
pub(crate) type Step = (Option<Nameless>, Option<Order>);

/// Those of a connection.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    state: Mutex<State>,
    gate: Gate,
}

#[derive(Debug, Default)]
struct State {
    dirs: HashMap<Node, Directory>,
    /// Those that were taken from last are the last.
    stocks: Vec<Stock>,
    /// The other side makes no files without a name.
    unable: bool,
    ended: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Free,
    Asked,
    Held,
    /// It is to be given back.
    Recalled,
}

#[derive(Debug, Default)]
struct Directory {
    stage: Stage,
    /// Whether it is not known yet if the lease is granted.
    asking: bool,
    /// How many names were made in a row, and when the last one was.
    made: u32,
    last: Duration,
    not_before: Duration,
    /// How many names are on their way.
    on_way: usize,
}

#[derive(Debug)]
struct Stock {
    kind: Kind,
    files: VecDeque<Nameless>,
    ordered: usize,
    batch: usize,
    /// Some were ordered before, and have come: who finds none waits for those that are on their way.
    has_come: bool,
}

impl Leases {
    /// A file of this kind is to be made, whose name leads nowhere as far as this side knows.
    pub(crate) async fn create(&self, kind: &Kind, now: Duration) -> Step {
        self.gate.wait(|| lock(&self.state).step(kind, now)).await
    }

    /// A directory was made here.
    pub(crate) fn made(&self, dir: Node) {
        if let Some(directory) = lock(&self.state).directory(dir) {
            directory.made = ROW;
            directory.last = Duration::MAX;
        }
    }

    /// A lease was granted or not.
    pub(crate) fn answered(&self, dir: Node, granted: bool, now: Duration) {
        if let Some(directory) = lock(&self.state).dirs.get_mut(&dir) {
            directory.asking = false;
            match (directory.stage, granted) {
                (Stage::Asked, true) => directory.stage = Stage::Held,
                (_, true) => {}
                (_, false) => (directory.stage, directory.not_before) = (Stage::Free, now + PAUSE),
            }
        }
        self.gate.open();
    }

    /// So many files were ordered, and these came; returns those that are of no use.
    pub(crate) fn came(&self, order: &Order, files: Vec<Nameless>) -> Vec<Nameless> {
        let mut state = lock(&self.state);
        let is_used = state.dirs.get(&order.kind.dir).is_some_and(|dir| dir.stage == Stage::Held);
        let stock = state.stocks.iter_mut().find(|stock| stock.kind == order.kind);
        let mut useless = Vec::new();
        match stock {
            Some(stock) => {
                stock.ordered = stock.ordered.saturating_sub(order.count);
                stock.has_come = !files.is_empty();
                if is_used { stock.files.extend(files) } else { useless = files }
            }
            None => useless = files,
        }
        while let Some(at) = state.too_much() {
            useless.extend(state.stocks.remove(at).files);
        }
        drop(state);
        self.gate.open();
        useless
    }

    /// The other side makes no files without a name: nothing more is tried.
    pub(crate) fn unable(&self) {
        let mut state = lock(&self.state);
        state.unable = true;
        state.dirs.values_mut().for_each(Directory::recall);
        drop(state);
        self.gate.open();
    }

    /// A name has arrived in a directory, or was refused.
    pub(crate) fn arrived(&self, dir: Node) {
        if let Some(directory) = lock(&self.state).dirs.get_mut(&dir) {
            directory.on_way -= 1;
        }
        self.gate.open();
    }

    /// The other side wants a lease back.
    pub(crate) fn recall(&self, dir: Node) {
        lock(&self.state).dirs.get_mut(&dir).into_iter().for_each(Directory::recall);
        self.gate.open();
    }

    /// Others change something: where that is names, a lease is not worth much.
    pub(crate) fn notice(&self, notice: &Notice) {
        match notice {
            Notice::InvalidateEntry { dir, .. } | Notice::Deleted { dir, .. } => self.recall(*dir),
            Notice::InvalidateAll => {
                lock(&self.state).dirs.values_mut().for_each(Directory::recall);
                self.gate.open();
            }
            _ => {}
        }
    }

    /// The next lease that can be given back, with the files that are of no use then; `None` when the connection has ended.
    pub(crate) async fn returned(
        &self,
        now: impl Fn() -> Duration + Send + Sync,
    ) -> Option<(Node, Vec<Nameless>)> {
        self.gate
            .wait(|| {
                let mut state = lock(&self.state);
                if state.ended {
                    return Some(None);
                }
                state.returned(now()).map(Some)
            })
            .await
    }

    /// The connection has ended.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.gate.open();
    }
}

impl Directory {
    fn recall(&mut self) {
        if matches!(self.stage, Stage::Asked | Stage::Held) {
            self.stage = Stage::Recalled;
        }
    }
}

impl State {
    /// What is known of a directory, unless that is too many already.
    fn directory(&mut self, dir: Node) -> Option<&mut Directory> {
        if self.dirs.len() >= DIRECTORIES && !self.dirs.contains_key(&dir) {
            self.dirs.retain(|_, directory| directory.stage != Stage::Free);
        }
        (self.dirs.len() < DIRECTORIES || self.dirs.contains_key(&dir))
            .then(|| self.dirs.entry(dir).or_default())
    }

    /// `None` while it waits for files that are on their way.
    fn step(&mut self, kind: &Kind, now: Duration) -> Option<Step> {
        if self.unable || self.ended {
            return Some((None, None));
        }
        let Some(directory) = self.directory(kind.dir) else { return Some((None, None)) };
        match directory.stage {
            Stage::Asked | Stage::Recalled => Some((None, None)),
            Stage::Free => {
                let in_row = now.saturating_sub(directory.last) < SOON;
                directory.made = if in_row { directory.made.saturating_add(1) } else { 1 };
                directory.last = now;
                if directory.made < ROW || now < directory.not_before || !self.has_room() {
                    return Some((None, None));
                }
                if let Some(directory) = self.dirs.get_mut(&kind.dir) {
                    (directory.stage, directory.asking) = (Stage::Asked, true);
                }
                Some((None, self.order(kind, true)))
            }
            Stage::Held => {
                directory.last = now;
                self.take(kind)
            }
        }
    }

    /// Whether there may be one lease more. That which was used least is given back otherwise.
    fn has_room(&mut self) -> bool {
        let leased = self.dirs.values_mut().filter(|dir| dir.stage != Stage::Free);
        let (mut count, mut oldest) = (0, None::<&mut Directory>);
        for directory in leased {
            count += 1;
            if oldest.as_ref().is_none_or(|oldest| directory.last < oldest.last) {
                oldest = Some(directory);
            }
        }
        if count >= LEASES {
            oldest.into_iter().for_each(Directory::recall);
        }
        count < LEASES
    }

    fn take(&mut self, kind: &Kind) -> Option<Step> {
        let stock = self.stock(kind);
        let (file, ordered) = (stock.files.pop_front(), stock.ordered);
        match file {
            Some(file) => {
                if let Some(directory) = self.dirs.get_mut(&kind.dir) {
                    directory.on_way += 1;
                }
                Some((Some(file), self.order(kind, false)))
            }
            None if ordered > 0 && self.stock(kind).has_come => None,
            None => Some((None, self.order(kind, false))),
        }
    }

    /// The stock of a kind, which becomes the last.
    fn stock(&mut self, kind: &Kind) -> &mut Stock {
        let known = self.stocks.iter().position(|stock| stock.kind == *kind).map(|at| self.stocks.remove(at));
        let none = || Stock {
            kind: kind.clone(),
            files: VecDeque::new(),
            ordered: 0,
            batch: BATCH.0 / 2,
            has_come: false,
        };
        self.stocks.push(known.unwrap_or_else(none));
        let last = self.stocks.len() - 1;
        &mut self.stocks[last]
    }

    /// What is to be ordered of a kind, if few are left: each time twice as many.
    fn order(&mut self, kind: &Kind, lease: bool) -> Option<Order> {
        let stock = self.stock(kind);
        let mut count = 0;
        if stock.ordered == 0 && stock.files.len() <= stock.batch / 2 {
            stock.batch = (stock.batch * 2).min(BATCH.1);
            count = stock.batch - stock.files.len();
            stock.ordered = count;
        }
        (count > 0 || lease).then(|| Order { lease, kind: kind.clone(), count })
    }

    /// A stock that is to be given up for others, if there are too many files or stocks.
    fn too_much(&self) -> Option<usize> {
        let files: usize = self.stocks.iter().map(|stock| stock.files.len()).sum();
        let is_idle = |stock: &Stock| stock.ordered == 0;
        self.stocks.iter().position(is_idle).filter(|_| files > NAMELESS || self.stocks.len() > KINDS)
    }

    fn returned(&mut self, now: Duration) -> Option<(Node, Vec<Nameless>)> {
        let is_ready = |dir: &Directory| dir.stage == Stage::Recalled && dir.on_way == 0 && !dir.asking;
        let (&dir, directory) = self.dirs.iter_mut().find(|(_, directory)| is_ready(directory))?;
        *directory = Directory { not_before: now + PAUSE, ..Directory::default() };
        let (gone, kept) =
            std::mem::take(&mut self.stocks).into_iter().partition(|stock: &Stock| stock.kind.dir == dir);
        self.stocks = kept;
        let gone: Vec<Stock> = gone;
        Some((dir, gone.into_iter().flat_map(|stock| stock.files).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Attr;
    use outrigger_core::reply::{Entry, Opened, Ttl};

    const DIR: Node = Node(7);

    fn kind(dir: Node, mode: u32) -> Kind {
        Kind { dir, mode, umask: 0, cred: Credentials::ROOT }
    }

    fn files(count: usize) -> Vec<Nameless> {
        let file = |_| {
            let (node, attr) = (Node(100), Attr::default());
            let entry = Entry {
                node,
                generation: Default::default(),
                attr,
                entry_ttl: Ttl::NEVER,
                attr_ttl: Ttl::NEVER,
            };
            Nameless { created: Created { entry, opened: Opened::default() }, came: Duration::ZERO }
        };
        (0..count).map(file).collect()
    }

    fn step(leases: &Leases, kind: &Kind) -> Option<Step> {
        lock(&leases.state).step(kind, Duration::from_secs(100))
    }

    /// With the lease of a directory, and the first files.
    fn leased() -> Leases {
        let leases = Leases::default();
        assert!(matches!(step(&leases, &kind(DIR, 0o644)), Some((None, None))), "one makes no row");
        let Some((None, Some(order))) = step(&leases, &kind(DIR, 0o644)) else {
            panic!("a lease is asked for")
        };
        assert_eq!((order.lease, order.count), (true, BATCH.0));
        leases.answered(DIR, true, Duration::ZERO);
        assert!(leases.came(&order, files(order.count)).is_empty());
        leases
    }

    #[test]
    fn more_are_ordered_before_there_are_none_and_who_finds_none_waits() {
        let (leases, kind) = (leased(), kind(DIR, 0o644));
        let orders: Vec<_> = (0..BATCH.0).filter_map(|_| step(&leases, &kind).unwrap().1).collect();
        assert_eq!(orders.iter().map(|order| order.count).collect::<Vec<_>>(), [2 * BATCH.0 - BATCH.0 / 2]);
        assert!(step(&leases, &kind).is_none());
        leases.came(&orders[0], files(1));
        assert!(matches!(step(&leases, &kind), Some((Some(_), Some(_)))));
    }

    #[tokio::test]
    async fn a_lease_goes_back_when_all_names_have_arrived_and_its_files_with_it() {
        let (leases, kind) = (leased(), kind(DIR, 0o644));
        assert!(matches!(step(&leases, &kind), Some((Some(_), _))));
        leases.recall(Node(8));
        leases.recall(DIR);
        assert!(matches!(step(&leases, &kind), Some((None, None))), "nothing more is made under it");
        assert!(lock(&leases.state).returned(Duration::ZERO).is_none());
        leases.arrived(DIR);
        let (dir, left) = leases.returned(|| Duration::ZERO).await.unwrap();
        assert_eq!((dir, left.len()), (DIR, BATCH.0 - 1));
        leases.end();
        assert!(leases.returned(|| Duration::ZERO).await.is_none());
    }

    #[test]
    fn leases_kinds_and_files_are_bounded() {
        let leases = leased();
        for dir in 1000..1000 + 2 * LEASES as u64 {
            leases.made(Node(dir));
            let Some((None, order)) = step(&leases, &kind(Node(dir), 0o644)) else {
                panic!("nothing is there")
            };
            if let Some(order) = order {
                leases.answered(Node(dir), true, Duration::ZERO);
                leases.came(&order, files(1));
            }
        }
        let held = |state: &State| state.dirs.values().filter(|dir| dir.stage != Stage::Free).count();
        assert_eq!(held(&lock(&leases.state)), LEASES);
        let (leases, mut useless) = (leased(), 0);
        for mode in 0..2 * KINDS as u32 {
            let Some((None, Some(order))) = step(&leases, &kind(DIR, mode)) else { continue };
            useless += leases.came(&order, files(order.count)).len();
        }
        let state = lock(&leases.state);
        assert!(state.stocks.len() <= KINDS && useless > 0);
        assert!(state.stocks.iter().map(|stock| stock.files.len()).sum::<usize>() <= NAMELESS);
    }
}
