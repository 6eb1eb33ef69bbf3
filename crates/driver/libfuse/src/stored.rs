// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs have reported stored, and what of it is missing after one died: some keep changes in memory until they
//! end (fuse-zip).

use crate::nodes::{Epoch, Nodes};
use outrigger_core::ops::{FallocateMode, OpenFlags};
use outrigger_core::{Effect, Errno, Error, Name, Request, lock};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Names from the root.
pub(crate) type Names = Vec<Name>;

/// Files and directories that are remembered; what is beyond is not looked for. As many that were lost.
const MOST: usize = 16 << 10;
/// Paths that people are shown.
const SHOWN: usize = 8;
/// For so long after the first time a lost path fails with `EIO`: one system call looks it up more than once. Then it is
/// as absent as it is, and can be made anew.
const TOLD_FOR: Duration = Duration::from_secs(5);

/// What was lost, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// How many files and directories.
    pub count: u64,
    /// The paths of the first of them.
    pub paths: Vec<String>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Stored {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// In the order of their names, so that those below a directory are together.
    expected: BTreeMap<Names, Expected>,
    /// Names that requests in flight take away: a program that died may have done so.
    leaving: Vec<Names>,
    /// Paths that programs may not know to be lost.
    lost: BTreeMap<Names, Lost>,
    losses: Losses,
}

/// What was found missing.
struct Lost {
    /// The program that did not have it any more.
    epoch: Epoch,
    /// When it was first reported to a program.
    told: Option<Instant>,
}

impl Lost {
    fn is_known(&self) -> bool {
        self.told.is_some_and(|told| told.elapsed() >= TOLD_FOR)
    }
}

/// What a program that is started later must find.
#[derive(Clone, Copy)]
struct Expected {
    /// The program that reported it.
    epoch: Epoch,
    /// At least so many bytes.
    size: u64,
}

impl Stored {
    /// The program has made `path`, or reported that its content goes at least up to `size`.
    pub(crate) fn add(&self, path: Names, size: u64, epoch: Epoch) {
        let mut inner = lock(&self.inner);
        inner.lost.remove(&path);
        if inner.expected.len() < MOST || inner.expected.contains_key(&path) {
            inner.expected.insert(path, Expected { epoch, size });
        }
    }

    /// The program has cut the file to `size`.
    pub(crate) fn cut(&self, path: &Names, size: u64) {
        if let Some(expected) = lock(&self.inner).expected.get_mut(path) {
            expected.size = expected.size.min(size);
        }
    }

    /// The program has removed `path`.
    pub(crate) fn removed(&self, path: &Names) {
        let mut inner = lock(&self.inner);
        take_below(&mut inner.expected, path);
        take_below(&mut inner.lost, path);
    }

    /// The program has renamed `from` to `to`.
    pub(crate) fn renamed(&self, from: &Names, to: Names, epoch: Epoch) {
        self.removed(&to);
        let moved = take_below(&mut lock(&self.inner).expected, from);
        let mut size = 0;
        for (path, expected) in moved {
            if path.len() == from.len() {
                size = expected.size;
            } else {
                let path = [&to[..], &path[from.len()..]].concat();
                self.add(path, expected.size, expected.epoch);
            }
        }
        self.add(to, size, epoch);
    }

    /// What earlier programs than `epoch` have reported.
    pub(crate) fn of_earlier(&self, epoch: Epoch) -> Vec<Names> {
        let inner = lock(&self.inner);
        inner
            .expected
            .iter()
            .filter(|(_, expected)| expected.epoch < epoch)
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// `path` was looked up: its size, if it is there. What has survived a death is stored indeed.
    pub(crate) fn seen(&self, path: &Names, size: Option<u64>, epoch: Epoch) {
        let mut inner = lock(&self.inner);
        if inner.leaving.iter().any(|leaving| path.starts_with(leaving)) {
            return;
        }
        let Some(expected) = inner.expected.remove(path) else { return };
        let is_there = size.is_some_and(|size| size >= expected.size);
        if expected.epoch < epoch {
            if !is_there {
                inner.lose(path, epoch);
            }
            return;
        }
        // The program lives: where its answer differs, another client has changed the file.
        if let Some(size) = size {
            inner.expected.insert(path.clone(), Expected { size: size.min(expected.size), ..expected });
        }
    }

    /// These names may go from now on, until [`Stored::settled`].
    fn may_leave(&self, paths: &[Names]) {
        lock(&self.inner).leaving.extend_from_slice(paths);
    }

    /// The requests that took these names away are answered.
    pub(crate) fn settled(&self, paths: &[Names]) {
        let leaving = &mut lock(&self.inner).leaving;
        for path in paths {
            if let Some(at) = leaving.iter().position(|leaving| leaving == path) {
                leaving.swap_remove(at);
            }
        }
    }

    /// An error when what is at `path` was lost, and programs may not know.
    pub(crate) fn check(&self, path: &Names) -> Result<(), Error> {
        let mut inner = lock(&self.inner);
        let Some(lost) = inner.lost.get_mut(path) else { return Ok(()) };
        lost.told.get_or_insert_with(Instant::now);
        if lost.is_known() {
            inner.lost.remove(path);
            return Ok(());
        }
        Err(Errno::EIO.because("the program had reported it stored, and lost it when it died"))
    }

    /// Whether nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = lock(&self.inner);
        inner.expected.is_empty() && inner.lost.is_empty()
    }

    /// What was lost so far.
    pub(crate) fn losses(&self) -> Losses {
        lock(&self.inner).losses.clone()
    }
}

/// Takes `path` and what is below it out of `known`, without a look at the rest: removing a tree would else cost the square of its
/// size.
fn take_below<N: Ord + Clone, T>(known: &mut BTreeMap<Vec<N>, T>, path: &[N]) -> Vec<(Vec<N>, T)> {
    let from = (Bound::Included(path), Bound::Unbounded);
    let below = known.range::<[N], _>(from).take_while(|(known, _)| known.starts_with(path));
    let below: Vec<Vec<N>> = below.map(|(known, _)| known.clone()).collect();
    below.into_iter().filter_map(|path| known.remove_entry(&path)).collect()
}

impl Nodes {
    /// A request begins: the names that it takes away, for [`Stored::settled`]. What it cuts off is not expected any more.
    pub(crate) fn expect_less(&self, request: &Request) -> Vec<Names> {
        let leaving = request.effects().into_iter().filter(|effect| !matches!(effect, Effect::Adds { .. }));
        let leaving = leaving.flat_map(Effect::names).filter_map(|(dir, name)| self.path_of(dir, name));
        let leaving: Vec<Names> = leaving.collect();
        let cut = match request {
            Request::SetAttr(op) => op.attrs.size.map(|size| (self.path(op.node).ok(), size)),
            Request::Open(op) => op.flags.contains(OpenFlags::TRUNC).then(|| (self.path(op.node).ok(), 0)),
            Request::Create(op) => {
                op.flags.contains(OpenFlags::TRUNC).then(|| (self.path_of(op.dir, &op.name), 0))
            }
            Request::Fallocate(op) => {
                let shortens = op.mode.contains(FallocateMode::COLLAPSE_RANGE);
                shortens.then(|| (self.path(op.node).ok(), 0))
            }
            _ => None,
        };
        if let Some((Some(path), size)) = cut {
            self.stored.cut(&path, size);
        }
        self.stored.may_leave(&leaving);
        leaving
    }
}

impl Inner {
    fn lose(&mut self, path: &Names, epoch: Epoch) {
        // For logs and terminals: names may hold anything.
        let shown: String = path.iter().map(|name| format!("/{}", name.to_string().escape_debug())).collect();
        tracing::error!(path = shown, "the program had reported this stored, and lost it when it died");
        self.losses.count += 1;
        if self.losses.paths.len() < SHOWN {
            self.losses.paths.push(shown);
        }
        if self.lost.len() >= MOST {
            // No request may ever ask for what was lost at earlier deaths; the log and `losses` have it.
            self.lost.retain(|_, lost| lost.epoch >= epoch && !lost.is_known());
        }
        if self.lost.len() < MOST {
            self.lost.insert(path.clone(), Lost { epoch, told: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    fn path(text: &str) -> Names {
        text.split('/').map(|name| Name::new(name.as_bytes().to_vec()).unwrap()).collect()
    }

    /// A name that counts what it is compared with.
    #[derive(Clone)]
    struct Counted(u32);

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }

    impl Eq for Counted {}

    #[test]
    fn taking_a_name_away_looks_at_few_others() {
        let path = |names: &[u32]| names.iter().map(|&name| Counted(name)).collect();
        let mut known: BTreeMap<Vec<Counted>, ()> =
            (0..MOST as u32).map(|number| (path(&[number / 4, number % 4]), ())).collect();
        known.insert(path(&[7]), ());
        COMPARED.set(0);
        assert_eq!(take_below(&mut known, &path(&[100, 2])).len(), 1, "a file");
        assert_eq!(take_below(&mut known, &path(&[7])).len(), 5, "a directory with what is in it");
        assert!(known.len() == MOST - 5 && COMPARED.get() < MOST / 8, "{} of {MOST}", COMPARED.get());
    }

    #[test]
    fn what_is_missing_or_short_after_a_death_is_lost() {
        let stored = Stored::default();
        stored.add(path("d"), 0, 1);
        stored.add(path("d/a"), 7, 1);
        stored.renamed(&path("d"), path("e"), 1);
        stored.add(path("sh\x1bort"), 9, 1);
        stored.add(path("cut"), 9, 1);
        stored.cut(&path("cut"), 3);
        stored.add(path("gone"), 1, 1);
        stored.removed(&path("gone"));
        stored.add(path("of-others"), 1, 1);
        stored.seen(&path("of-others"), None, 1);
        stored.add(path("leaving/a"), 1, 1);
        stored.may_leave(&[path("leaving")]);
        stored.seen(&path("leaving/a"), None, 2);
        stored.settled(&[path("leaving")]);
        stored.removed(&path("leaving"));
        stored.add(path("new"), 1, 2);
        let mut earlier = stored.of_earlier(2);
        earlier.sort();
        assert_eq!(earlier, ["cut", "e", "e/a", "sh\x1bort"].map(path));
        for (name, size) in [("cut", Some(3)), ("e", Some(0)), ("e/a", None), ("sh\x1bort", Some(8))] {
            stored.seen(&path(name), size, 2);
        }
        let losses = stored.losses();
        assert_eq!((losses.count, losses.paths), (2, vec!["/e/a".to_owned(), "/sh\\u{1b}ort".to_owned()]));
        assert!(stored.check(&path("e/a")).is_err() && stored.check(&path("cut")).is_ok());
        stored.add(path("e/a"), 0, 2);
        assert!(stored.check(&path("e/a")).is_ok(), "made anew");
    }

    #[test]
    fn what_was_lost_at_earlier_deaths_is_forgotten_when_there_is_too_much() {
        let stored = Stored::default();
        let file = |death: u32, number: usize| path(&format!("d{death}/f{number}"));
        for death in 1..=3 {
            let files = (0..MOST - 1).map(|number| file(death, number));
            for path in files {
                stored.add(path.clone(), 1, death);
                stored.seen(&path, None, death + 1);
            }
            assert!(lock(&stored.inner).lost.len() <= MOST, "after death {death}");
        }
        assert_eq!(stored.losses().count, 3 * (MOST as u64 - 1), "all of it is counted");
        assert!((0..MOST - 1).all(|number| stored.check(&file(3, number)).is_err()), "the last are told");
        assert!((0..MOST - 1).all(|number| stored.check(&file(1, number)).is_ok()));
        stored.removed(&path("d3"));
        assert!(stored.is_empty(), "what was below a directory goes with it");
    }
}
