// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is saved of a tree for all of which there is no room: directories as a whole, those used last first; then single files.

use super::form::{SavedDir, SavedEntry, SavedTree};
use outrigger_core::Wire;
use std::collections::{BTreeSet, VecDeque};

/// How long ago the directories and entries of a [`SavedTree`] were used, as places in an order: the lower, the later.
#[derive(Default)]
pub(crate) struct Used {
    pub(crate) dirs: Vec<usize>,
    pub(crate) entries: Vec<Vec<usize>>,
}

/// What of a directory is saved.
#[derive(Clone, PartialEq, Eq)]
enum Part {
    Nothing,
    /// These entries.
    Some(BTreeSet<usize>),
    Whole,
}

/// Chooses what is saved.
struct Choice<'a> {
    tree: &'a SavedTree,
    parts: Vec<Part>,
    /// For each directory, the one in which it is and its entry there.
    places: Vec<Option<(usize, usize)>>,
    room: usize,
}

fn size(value: &impl Wire) -> usize {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes.len()
}

/// What a directory takes without its entries, in bytes, at most.
fn size_of_dir() -> usize {
    let time = outrigger_core::Time::new(0, 0);
    size(&SavedDir { listed: Some(0), stamp: Some((time, time)), entries: Vec::new() })
}

/// A part of `tree` that takes at most `room` bytes, beside what does not belong to a directory.
pub(super) fn fit(tree: SavedTree, used: &Used, room: usize) -> SavedTree {
    let mut choice = Choice::new(&tree, room);
    let mut order: Vec<usize> = (0..tree.dirs.len()).collect();
    order.sort_by_key(|&dir| used.dirs[dir]);
    let missed: Vec<usize> = order.into_iter().filter(|&dir| !choice.take_whole(dir)).collect();
    let known = |&(dir, entry): &(usize, usize)| tree.dirs[dir].entries[entry].known.is_some();
    let entries = missed.iter().flat_map(|&dir| (0..tree.dirs[dir].entries.len()).map(move |at| (dir, at)));
    let mut entries: Vec<(usize, usize)> = entries.filter(known).collect();
    entries.sort_by_key(|&(dir, entry)| used.entries[dir][entry]);
    // The first one that does not fit ends it: what is smaller and was used earlier is worth less.
    let _ = entries.into_iter().all(|(dir, entry)| choice.take_entry(dir, entry));
    let parts = choice.parts;
    cut(tree, &parts)
}

impl<'a> Choice<'a> {
    fn new(tree: &'a SavedTree, room: usize) -> Self {
        let mut places = vec![None];
        for (dir, saved) in tree.dirs.iter().enumerate() {
            let open = saved.entries.iter().enumerate().filter(|(_, entry)| entry.is_open);
            places.extend(open.map(|(at, _)| Some((dir, at))));
        }
        Choice { tree, parts: vec![Part::Nothing; tree.dirs.len()], places, room }
    }

    /// The entries that lead to a directory, the nearest first, up to one in a directory of which something is had.
    fn way(&self, mut dir: usize) -> Vec<(usize, usize)> {
        let mut way = Vec::new();
        while let Some((above, entry)) = self.places[dir] {
            way.push((above, entry));
            if !matches!(self.parts[above], Part::Nothing) {
                break;
            }
            dir = above;
        }
        way
    }

    /// What it costs to have an entry, without the way to its directory.
    fn own_cost(&self, dir: usize, entry: usize) -> usize {
        let size = || size(&self.tree.dirs[dir].entries[entry]);
        match &self.parts[dir] {
            Part::Whole => 0,
            Part::Some(entries) if entries.contains(&entry) => 0,
            Part::Some(_) => size(),
            Part::Nothing => size() + size_of_dir(),
        }
    }

    /// What it costs to have an entry of a directory, and the way to that.
    fn cost(&self, dir: usize, entry: usize) -> usize {
        let way = if matches!(self.parts[dir], Part::Nothing) { self.cost_of_way(dir) } else { 0 };
        way + self.own_cost(dir, entry)
    }

    fn cost_of_way(&self, dir: usize) -> usize {
        self.way(dir).into_iter().map(|(above, entry)| self.own_cost(above, entry)).sum()
    }

    /// Has an entry, and the way to that.
    fn add(&mut self, dir: usize, entry: usize) {
        self.add_way(dir);
        self.put(dir, entry);
    }

    fn add_way(&mut self, dir: usize) {
        self.way(dir).into_iter().for_each(|(above, entry)| self.put(above, entry));
    }

    fn put(&mut self, dir: usize, entry: usize) {
        match &mut self.parts[dir] {
            Part::Whole => {}
            Part::Some(entries) => {
                entries.insert(entry);
            }
            Part::Nothing => self.parts[dir] = Part::Some(BTreeSet::from([entry])),
        }
    }

    /// Takes all of a directory if it fits; answers whether.
    fn take_whole(&mut self, dir: usize) -> bool {
        let all: usize = self.tree.dirs[dir].entries.iter().map(size).sum();
        let had = match &self.parts[dir] {
            Part::Some(entries) => {
                let had = entries.iter().map(|&entry| size(&self.tree.dirs[dir].entries[entry]));
                had.sum::<usize>() + size_of_dir()
            }
            _ => 0,
        };
        let way = if had == 0 { self.cost_of_way(dir) } else { 0 };
        let Some(left) = self.room.checked_sub(way + all + size_of_dir() - had) else { return false };
        self.room = left;
        self.add_way(dir);
        self.parts[dir] = Part::Whole;
        true
    }

    /// Takes an entry of a directory if it fits; answers whether.
    fn take_entry(&mut self, dir: usize, entry: usize) -> bool {
        let Some(left) = self.room.checked_sub(self.cost(dir, entry)) else { return false };
        self.room = left;
        self.add(dir, entry);
        true
    }
}

/// The tree with these parts of its directories.
fn cut(tree: SavedTree, parts: &[Part]) -> SavedTree {
    let mut dirs = Vec::new();
    // Directories that are left out are no more than files.
    let mut next = 1;
    let mut is_kept = VecDeque::from([true]);
    for (mut dir, part) in tree.dirs.into_iter().zip(parts) {
        let (mut at, kept) = (0, is_kept.pop_front().unwrap_or_default());
        dir.entries.retain_mut(|entry: &mut SavedEntry| {
            let stays = match part {
                Part::Nothing => false,
                Part::Some(entries) => entries.contains(&at),
                Part::Whole => true,
            };
            at += 1;
            if entry.is_open {
                entry.is_open = parts[next] != Part::Nothing;
                is_kept.push_back(entry.is_open);
                next += 1;
            }
            stays
        });
        if *part != Part::Whole {
            (dir.listed, dir.stamp) = (None, None);
        }
        if kept {
            dirs.push(dir);
        }
    }
    SavedTree { dirs, ..tree }
}

#[cfg(test)]
mod tests {
    use super::super::form::Known;
    use super::*;
    use bytes::Bytes;
    use outrigger_core::{Attr, FileKind, Name};

    /// A root with `dirs` directories with `files` files each.
    fn tree(dirs: usize, files: usize) -> SavedTree {
        let entry = |kind: FileKind, name: String, cookie: usize| {
            let attr = Attr { mode: kind.bits() | 0o644, ..Attr::default() };
            let known = Some(Known { learnt: 5, attr, target: None });
            let (name, is_open) = (Name::new(name).expect("a name"), kind == FileKind::Directory);
            SavedEntry { name, cookie: cookie as u64 + 1, ino: 7, kind: Some(kind), known, is_open }
        };
        let listed = |entries| SavedDir { listed: Some(5), stamp: None, entries };
        let root = (0..dirs).map(|dir| entry(FileKind::Directory, format!("dir-{dir}"), dir)).collect();
        let inside = |dir| {
            let file = |file| entry(FileKind::Regular, format!("file-{dir}-{file}"), file);
            listed((0..files).map(file).collect())
        };
        let dirs = std::iter::once(listed(root)).chain((0..dirs).map(inside)).collect();
        SavedTree { dirs, ..SavedTree::default() }
    }

    /// The same, where what comes last was used last.
    fn used(tree: &SavedTree) -> Used {
        let most = 1_000_000;
        let entries = |(number, dir): (usize, &SavedDir)| {
            (0..dir.entries.len()).map(|at| most - number * 1000 - at).collect()
        };
        let dirs = (0..tree.dirs.len()).map(|number| most - number * 1000).collect();
        Used { dirs, entries: tree.dirs.iter().enumerate().map(entries).collect() }
    }

    fn of_dirs(tree: &SavedTree) -> usize {
        tree.encode("").len() - SavedTree::default().encode("").len()
    }

    #[test]
    fn whatever_the_room_it_is_kept_to_and_what_is_left_can_be_read() {
        let whole = tree(6, 5);
        for room in 0..of_dirs(&whole) + 10 {
            let part = fit(whole.clone(), &used(&whole), room);
            assert!(of_dirs(&part) <= room.max(size_of_dir()), "{room}");
            let read = SavedTree::decode(Bytes::from(part.encode("x")), "x", 1000);
            assert_eq!(read, Some(part), "{room}");
        }
        let all = of_dirs(&whole) + whole.dirs.len() * size_of_dir();
        assert_eq!(fit(whole.clone(), &used(&whole), all), whole);
    }

    #[test]
    fn directories_that_were_used_last_are_kept_as_a_whole() {
        let whole = tree(6, 50);
        let part = fit(whole.clone(), &used(&whole), of_dirs(&whole) / 3);
        let names =
            |dir: &SavedDir| dir.entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>();
        let listed: Vec<_> = part.dirs.iter().filter(|dir| dir.listed.is_some()).map(names).collect();
        assert!(listed.contains(&names(&whole.dirs[6])) && !listed.contains(&names(&whole.dirs[1])));
    }

    #[test]
    fn of_a_directory_that_is_too_large_the_files_are_kept_that_were_used_last() {
        let whole = tree(1, 500);
        let part = fit(whole.clone(), &used(&whole), of_dirs(&whole) / 10);
        let kept = &part.dirs.last().expect("a directory").entries;
        assert!((40..50).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[..], whole.dirs[1].entries[500 - kept.len()..]);
    }
}
