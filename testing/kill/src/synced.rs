// SPDX-License-Identifier: MIT OR Apache-2.0
//! A load that records what it has synced, and a check that this is on the medium.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// How many files there are at most, and how many directories they are in.
const FILES: u32 = 40;
const DIRS: u32 = 3;
/// The longest piece that is written at once, in bytes.
const PIECE: usize = 60_000;

/// What names begin with that files are renamed to, below their directory.
const RENAMED: &str = "/other";

/// What may be found under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Nothing.
    Gone,
    /// A file with at least so many of these bytes, and no others within these.
    There { least: usize, bytes: Vec<u8> },
}

impl State {
    fn whole(bytes: Vec<u8>) -> Self {
        State::There { least: bytes.len(), bytes }
    }

    /// How what was found differs from this state; for people.
    fn unlike(&self, found: Option<&[u8]>) -> String {
        match (self, found) {
            (State::Gone, found) => format!("{:?} bytes, not removed", found.map(<[u8]>::len)),
            (State::There { least, bytes }, None) => format!("missing, not {least} to {} bytes", bytes.len()),
            (State::There { least, bytes }, Some(found)) => {
                let same = bytes.iter().zip(found).take_while(|(one, other)| one == other).count();
                let (most, length) = (bytes.len(), found.len());
                format!("{length} bytes, not {least} to {most}, the first {same} of them right")
            }
        }
    }

    fn allows(&self, found: Option<&[u8]>) -> bool {
        match (self, found) {
            (State::Gone, None) => true,
            (State::There { least, bytes }, Some(found)) => {
                (*least..=bytes.len()).contains(&found.len()) && found[..*least] == bytes[..*least]
            }
            _ => false,
        }
    }
}

/// A step of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Append,
    Rename,
    Unlink,
}

/// The load, and what it knows.
#[derive(Debug)]
pub struct Synced {
    random: fastrand::Rng,
    /// What each name may lead to: one state, but for the names of the step that was not finished.
    names: BTreeMap<String, Vec<State>>,
    /// Whether files are renamed: on a type without a journal both names may be gone in between.
    renames: bool,
    /// Steps that were finished.
    pub steps: u64,
}

impl Synced {
    /// On an empty tree.
    pub fn new(seed: u64, renames: bool) -> Self {
        Synced { random: fastrand::Rng::with_seed(seed), names: BTreeMap::new(), renames, steps: 0 }
    }

    /// Makes the directories.
    ///
    /// # Errors
    /// Those of making them.
    pub fn prepare(root: &Path) -> io::Result<()> {
        (0..DIRS).try_for_each(|dir| fs::create_dir(root.join(format!("dir{dir}"))))?;
        File::open(root)?.sync_all()
    }

    /// Does one step after the other until one fails, or `ends` says so.
    ///
    /// # Errors
    /// Of the step that failed.
    pub fn work(&mut self, root: &Path, ends: impl Fn() -> bool) -> io::Result<()> {
        self.remove_what_was_renamed(root)?;
        while !ends() {
            let name = format!("dir{}/file{}", self.random.u32(..DIRS), self.random.u32(..FILES));
            let now = self.now(&name);
            let step = match (&now, self.random.u8(..10)) {
                (State::Gone, _) => Step::Create,
                (_, 0..=4) => Step::Append,
                (_, 5..=7) if self.renames => Step::Rename,
                _ => Step::Unlink,
            };
            self.step(root, step, name, now)?;
            self.steps += 1;
        }
        Ok(())
    }

    /// Takes away new names that a death has left. On btrfs a file may have both names then: an fsync of the new directory puts
    /// the new one there, and only one of the old directory takes the other away, also where the host's kernel does that.
    fn remove_what_was_renamed(&mut self, root: &Path) -> io::Result<()> {
        let is_there = |states: &Vec<State>| states.last().is_some_and(|state| *state != State::Gone);
        let renamed = self.names.iter().filter(|(name, states)| name.contains(RENAMED) && is_there(states));
        let renamed: Vec<String> = renamed.map(|(name, _)| name.clone()).collect();
        for name in renamed {
            let path = root.join(&name);
            self.names.entry(name).or_default().push(State::Gone);
            fs::remove_file(path)?;
        }
        Ok(())
    }

    fn now(&self, name: &str) -> State {
        self.names.get(name).and_then(|states| states.last()).cloned().unwrap_or(State::Gone)
    }

    fn piece(&mut self) -> Vec<u8> {
        let length = self.random.usize(1..PIECE);
        let first = self.random.u8(..);
        (0..length).map(|at| first.wrapping_add((at >> 4) as u8)).collect()
    }

    fn step(&mut self, root: &Path, step: Step, name: String, now: State) -> io::Result<()> {
        let path = root.join(&name);
        let known = if let State::There { bytes, .. } = &now { bytes.clone() } else { Vec::new() };
        let dir = || File::open(path.parent().unwrap_or(root));
        match step {
            Step::Create | Step::Append => {
                let piece = self.piece();
                let (least, bytes) = (known.len(), [known, piece.clone()].concat());
                let new = State::whole(bytes.clone());
                self.names.insert(name.clone(), vec![now, State::There { least, bytes }]);
                let mut file =
                    OpenOptions::new().append(true).create_new(step == Step::Create).open(&path)?;
                file.write_all(&piece)?;
                if step == Step::Create { file.sync_all() } else { file.sync_data() }?;
                if step == Step::Create {
                    dir()?.sync_all()?;
                }
                self.names.insert(name, vec![new]);
            }
            Step::Rename => {
                let other = format!("dir{}{RENAMED}{}", self.random.u32(..DIRS), self.steps);
                self.names.insert(name.clone(), vec![now.clone(), State::Gone]);
                self.names.insert(other.clone(), vec![State::Gone, now.clone()]);
                let to = root.join(&other);
                fs::rename(&path, &to)?;
                File::open(to.parent().unwrap_or(root))?.sync_all()?;
                dir()?.sync_all()?;
                self.names.insert(name, vec![State::Gone]);
                // It makes room, and has been seen.
                fs::remove_file(&to)?;
                self.names.insert(other, vec![now, State::Gone]);
            }
            Step::Unlink => {
                self.names.insert(name.clone(), vec![now, State::Gone]);
                fs::remove_file(&path)?;
                dir()?.sync_all()?;
                self.names.insert(name, vec![State::Gone]);
            }
        }
        Ok(())
    }

    /// What a tree has that must not be there, or lacks. What it has is what is known from now on.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn compare(&mut self, root: &Path) -> Result<Vec<String>> {
        let mut found = BTreeMap::new();
        for dir in 0..DIRS {
            let dir = format!("dir{dir}");
            let entries = fs::read_dir(root.join(&dir)).with_context(|| dir.clone())?;
            for entry in entries {
                let name = entry?.file_name().to_string_lossy().into_owned();
                let name = format!("{dir}/{name}");
                let bytes = fs::read(root.join(&name)).with_context(|| name.clone())?;
                found.insert(name, bytes);
            }
        }
        let mut wrong = Vec::new();
        for (name, states) in &self.names {
            let bytes = found.get(name).map(Vec::as_slice);
            if !states.iter().any(|state| state.allows(bytes)) {
                let allowed: Vec<String> = states.iter().map(|state| state.unlike(bytes)).collect();
                wrong.push(format!("{name}: {}", allowed.join(", and ")));
            }
        }
        let unknown = found.keys().filter(|name| !self.names.contains_key(*name));
        wrong.extend(unknown.map(|name| format!("{name}: nobody has made it")));
        self.names = found.into_iter().map(|(name, bytes)| (name, vec![State::whole(bytes)])).collect();
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked() -> (tempfile::TempDir, Synced) {
        let dir = tempfile::tempdir().expect("a directory");
        Synced::prepare(dir.path()).expect("directories");
        let mut synced = Synced::new(7, true);
        let left = std::cell::Cell::new(200);
        synced.work(dir.path(), || left.replace(left.get() - 1) == 0).expect("it works");
        (dir, synced)
    }

    #[test]
    fn what_was_done_is_there() {
        let (dir, mut synced) = worked();
        assert_eq!((synced.steps, synced.compare(dir.path()).expect("it reads")), (200, vec![]));
    }

    #[test]
    fn what_is_lost_or_too_much_is_told() {
        let (dir, mut synced) = worked();
        let is_there = |row: &(&String, &Vec<State>)| !row.1.contains(&State::Gone);
        let mut names = synced.names.iter().filter(is_there).map(|(name, _)| name);
        let [lost, cut] = [(); 2].map(|()| dir.path().join(names.next().expect("a file")));
        fs::remove_file(lost).expect("unlink");
        File::options().write(true).open(cut).expect("a file").set_len(0).expect("a size");
        fs::write(dir.path().join("dir0/unknown"), "").expect("a file");
        assert_eq!(synced.compare(dir.path()).expect("it reads").len(), 3);
    }
}
