// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file `mark` beside saved metadata: which process changes the tree, and until when.
//!
//! What is saved is of the time before the next change. So a process writes here before it changes something, that it does so for the
//! next second, which spares writing it for each change. Metadata that was learnt before such a moment counts as fresh only if the
//! same process has saved it and not written here since. Nobody waits for another one: who finds the mark of another process keeps
//! its time in mind for what it saves itself.

use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;

/// A process says in advance for so long that it changes the tree, in milliseconds.
const PERIOD: u64 = 1000;

/// What the file holds: a process, and until when it said that it changes the tree, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    pub(crate) writer: u64,
    pub(crate) until: u64,
}

/// The file, as one process uses it.
pub(crate) struct Marks {
    file: OwnedFd,
    /// What this process wrote last.
    own: Mark,
    /// Something was saved since: the next change must show.
    saved: bool,
    /// The last moment until which other processes were known to change the tree.
    others: u64,
}

impl Marks {
    /// The file as the process called `writer` finds it.
    pub(crate) fn new(file: OwnedFd, writer: u64) -> Self {
        Marks { file, own: Mark { writer, until: 0 }, saved: false, others: 0 }
    }

    /// What is written there; `None` for what cannot be understood.
    pub(crate) fn read(&self) -> Option<Mark> {
        let mut stored = [0; 16];
        match pread(&self.file, &mut stored, 0) {
            Ok(0) => Some(Mark::default()),
            Ok(16) => {
                let both = u128::from_le_bytes(stored);
                Some(Mark { writer: both as u64, until: (both >> 64) as u64 })
            }
            _ => None,
        }
    }

    /// This process changes something at the time of day `now`.
    pub(crate) fn change(&mut self, now: u64) {
        if !self.saved && now < self.own.until {
            return;
        }
        self.look();
        self.own.until = (now + PERIOD).max(self.own.until + 1);
        self.saved = false;
        let both = u128::from(self.own.until) << 64 | u128::from(self.own.writer);
        // If that fails, others see the change when what they know is not fresh any more.
        let _ = pwrite(&self.file, &both.to_le_bytes(), 0);
    }

    /// All that is known now is about to be saved: answers the mark of this process, and the last moment until which others changed
    /// the tree.
    pub(crate) fn save(&mut self) -> (Mark, u64) {
        self.look();
        self.saved = true;
        (self.own, self.others)
    }

    /// Learns of others.
    fn look(&mut self) {
        match self.read() {
            Some(mark) if mark.writer == self.own.writer => {}
            Some(mark) => self.others = self.others.max(mark.until),
            None => self.others = u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn marks(path: &std::path::Path, writer: u64) -> Marks {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        Marks::new(file.expect("the file").into(), writer)
    }

    #[test]
    fn one_learns_of_the_changes_of_the_other_and_each_save_is_followed_by_a_new_mark() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mark");
        let (mut one, mut two) = (marks(&path, 1), marks(&path, 2));
        assert_eq!((one.read(), one.save()), (Some(Mark::default()), (Mark { writer: 1, until: 0 }, 0)));
        one.change(5000);
        one.change(5900);
        assert_eq!(two.read(), Some(Mark { writer: 1, until: 6000 }));
        two.change(6000);
        assert_eq!((two.save().1, one.save().1), (6000, 7000));
        one.change(6001);
        assert_eq!((one.read(), two.save().1), (Some(Mark { writer: 1, until: 7001 }), 7001));
        // A clock that was set back.
        assert_eq!(one.save().0.until, 7001);
        one.change(1);
        assert_eq!(two.save().1, 7002);
        std::fs::write(&path, "torn").expect("written");
        assert_eq!((two.read(), two.save().1), (None, u64::MAX));
    }
}
