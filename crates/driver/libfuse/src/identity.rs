// SPDX-License-Identifier: MIT OR Apache-2.0
//! By what a file is known again.
//!
//! An open file is opened again by its path, which may lead to another file by then: another client renamed one over it.
//! What the program shows at the path is compared with what is known of the file. The inode number decides where it is
//! one: programs also make numbers up, anew in each life. It counts when the root has a number that no program makes up,
//! the same as before, and until a file that has not changed at all has another number: some files that we did not change
//! are looked at first. Where it does not count, the
//! size and the time of the last change decide, as far as our own changes leave them known.

use crate::nodes::Nodes;
use outrigger_core::ops::{FallocateMode, OpenFlags};
use outrigger_core::{Attr, Request};

/// The store's clock may count so many seconds at once (FAT).
const TICK: i64 = 2;
/// The top bits of the numbers that go-fuse gives to files without one, counted from `1 << 63`.
const AUTOMATIC: u64 = 1 << 23;
const AUTOMATIC_SHIFT: u32 = 40;
/// What libfuse shows for a number that it does not know (`FUSE_UNKNOWN_INO`).
const UNKNOWN: u64 = 0xffff_ffff;

/// An inode number, and that of the root: numbers of different trees cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    root: u64,
    ino: u64,
}

/// What a program shows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    number: Option<Number>,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    links: u32,
}

impl Seen {
    /// The attributes of what the program calls `id`, in a tree whose root has the inode number `root`.
    pub(crate) fn new(attr: &Attr, id: u64, root: Option<u64>) -> Self {
        let ino = attr.ino;
        let made_up = matches!(ino, 0 | UNKNOWN) || ino == id || ino >> AUTOMATIC_SHIFT == AUTOMATIC;
        // A root without a number of its own is number one.
        let root = root.filter(|&root| root > 1 && !made_up);
        Seen {
            number: root.map(|root| Number { root, ino }),
            size: attr.size,
            mtime: (attr.mtime.secs, attr.mtime.nanos),
            ctime: (attr.ctime.secs, attr.ctime.nanos),
            links: attr.nlink,
        }
    }

    /// Everything but the number, which an unchanged file keeps.
    fn state(&self) -> (u64, (i64, u32), (i64, u32)) {
        (self.size, self.mtime, self.ctime)
    }
}

/// The occasion on which attributes were received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// They come from the same program as the last ones. That others make the file longer is seen as it happens.
    SameLife,
    /// Another program has found the path again.
    NextLife,
    /// We have asked for a change, and these are the answer.
    OwnChange,
}

/// What is known of a file; see the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    last: Seen,
    /// The sizes that it may have in the store: what we write may get there at any time until it is flushed.
    least: u64,
    most: u64,
    /// Its last change is not older; not known when we have set the time.
    changed: Option<i64>,
    /// Nothing that we have changed is unflushed.
    settled: bool,
    /// We have changed nothing since it was last seen.
    current: bool,
    /// It has names that the program may take for other files.
    linked: bool,
    /// How many files have had the path before, of those that were noticed.
    version: u32,
}

impl Identity {
    /// A file that is seen for the first time.
    pub(crate) fn new(seen: Seen) -> Self {
        let (least, most, changed) = (seen.size, seen.size, Some(seen.mtime.0));
        let (settled, current, linked) = (true, true, false);
        Identity { last: seen, least, most, changed, settled, current, linked, version: 0 }
    }

    /// Which of the files that have had the path it is.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// The path has these attributes; our own writes to the file have gone up to `written`. `renumbered` is set when
    /// numbers are seen to mean nothing.
    pub(crate) fn observe(&mut self, seen: Seen, written: u64, occasion: Occasion, renumbered: &mut bool) {
        if self.is_other(&seen, occasion, renumbered) {
            *self = Identity { version: self.version.wrapping_add(1), ..Identity::new(seen) };
            return;
        }
        if self.settled {
            // A program may show a size from before our writes for a while (sshfs keeps attributes).
            (self.least, self.most) = (seen.size, seen.size.max(written));
            self.changed = Some(seen.mtime.0);
        } else {
            (self.least, self.most) = (self.least.min(seen.size), self.most.max(seen.size));
        }
        self.last = seen;
        self.current = self.settled;
    }

    /// Whether it has the same number, where both are one.
    fn has_number_of(&self, seen: &Seen) -> Option<bool> {
        let (before, now) = (self.last.number?, seen.number?);
        (before.root == now.root).then_some(before.ino == now.ino)
    }

    fn is_unchanged(&self, seen: &Seen) -> bool {
        // Programs without times show zero.
        seen.state() == self.last.state() && seen.ctime.0 != 0
    }

    /// Whether the number shows, which does not change when content is lost, that others have replaced the file.
    pub(crate) fn is_replaced(&self, seen: &Seen) -> bool {
        self.has_number_of(seen) == Some(false) && !self.is_unchanged(seen)
    }

    fn is_other(&self, seen: &Seen, occasion: Occasion, renumbered: &mut bool) -> bool {
        let unchanged = self.is_unchanged(seen);
        match self.has_number_of(seen).filter(|_| !*renumbered) {
            Some(true) => return false,
            Some(false) => {
                *renumbered = unchanged;
                return !unchanged;
            }
            None => {}
        }
        // A change by another name of the file is not seen here.
        let by_other_names = self.linked || seen.links > 1 || self.last.links > 1;
        if unchanged || by_other_names || occasion == Occasion::OwnChange {
            return false;
        }
        let older = self.changed.is_some_and(|changed| seen.mtime.0.saturating_add(TICK) < changed);
        let longer = occasion == Occasion::NextLife && seen.size > self.most;
        older || longer || seen.size < self.least
    }

    /// We are about to ask for a change after which the size is between these two, or as it was.
    pub(crate) fn may_resize(&mut self, least: u64, most: u64) {
        (self.least, self.most) = (self.least.min(least), self.most.max(most));
        (self.settled, self.current) = (false, false);
    }

    /// We are about to make the file longer by up to so many bytes, anywhere.
    pub(crate) fn may_grow(&mut self, by: u64) {
        self.may_resize(self.least, self.most.saturating_add(by));
    }

    /// We are about to set the time of the last change.
    pub(crate) fn may_age(&mut self) {
        self.changed = None;
        (self.settled, self.current) = (false, false);
    }

    /// Everything is in the store.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// Whether its number and the next program's can show what numbers mean. It is asked once: a program may die of the
    /// file.
    pub(crate) fn take_witness(&mut self) -> bool {
        std::mem::take(&mut self.current) && self.last.number.is_some()
    }

    /// It has got another name.
    pub(crate) fn link(&mut self) {
        self.linked = true;
    }
}

impl Nodes {
    /// A request begins: what it may change of what files are known by, also when its answer is lost. Writes are noted
    /// when it is known where they go.
    pub(crate) fn expect_changes(&self, request: &Request) {
        let emptied = |file: &mut Identity| file.may_resize(0, 0);
        match request {
            Request::SetAttr(op) => self.identity(op.node, |file| {
                op.attrs.size.into_iter().for_each(|size| file.may_resize(size, size));
                op.attrs.mtime.iter().for_each(|_| file.may_age());
            }),
            Request::Open(op) if op.flags.contains(OpenFlags::TRUNC) => self.identity(op.node, emptied),
            Request::Create(op) if op.flags.contains(OpenFlags::TRUNC) => {
                let known = self.get(op.dir, &op.name);
                known.into_iter().for_each(|node| self.identity(node, emptied));
            }
            Request::Fallocate(op) => self.identity(op.node, |file| {
                if op.mode.contains(FallocateMode::COLLAPSE_RANGE) {
                    file.may_resize(0, 0);
                } else if op.mode.contains(FallocateMode::INSERT_RANGE) {
                    file.may_grow(op.len);
                } else {
                    file.may_resize(u64::MAX, op.offset.saturating_add(op.len));
                }
            }),
            Request::CopyRange(op) => {
                let end = op.to_offset.saturating_add(op.len);
                self.identity(op.to_node, |file| file.may_resize(u64::MAX, end));
            }
            // Whatever it does.
            Request::Ioctl(op) => self.identity(op.node, |file| {
                file.may_resize(0, u64::MAX);
                file.may_age();
            }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Time;

    const ROOT: Option<u64> = Some(700);

    fn seen(root: Option<u64>, ino: u64, size: u64, mtime: i64) -> Seen {
        let time = Time::new(mtime, 0);
        let attr = Attr { ino, size, mtime: time, ctime: time, nlink: 1, ..Attr::default() };
        Seen::new(&attr, 5, root)
    }

    /// Whether it is another file by then.
    fn is_other(file: &Identity, seen: Seen, occasion: Occasion) -> bool {
        let mut file = file.clone();
        let before = file.version();
        file.observe(seen, 0, occasion, &mut false);
        file.version() != before
    }

    #[test]
    fn a_number_decides_where_it_is_one() {
        let file = Identity::new(seen(ROOT, 8, 100, 1000));
        for (now, other) in [
            (seen(ROOT, 8, 100, 1000), false),
            (seen(ROOT, 8, 7, 20), false),
            (seen(ROOT, 9, 100, 1001), true),
            (seen(ROOT, 9, 100, 1000), false),
            (seen(Some(701), 9, 100, 1001), false),
            (seen(Some(701), 8, 50, 1001), true),
        ] {
            assert_eq!(is_other(&file, now, Occasion::NextLife), other, "{now:?}");
        }
        assert!(is_other(&file, seen(ROOT, 9, 100, 1001), Occasion::SameLife));
        assert!(is_other(&file, seen(ROOT, 9, 100, 1001), Occasion::OwnChange));
    }

    #[test]
    fn numbers_that_are_made_up_do_not_count() {
        for (root, before, now) in [
            (None, 8, 9),
            (Some(0), 8, 9),
            (Some(1), 8, 9),
            (ROOT, 5, 9),
            (ROOT, 0, 0),
            (ROOT, UNKNOWN, 9),
            (ROOT, (1 << 63) + 8, (1 << 63) + 9),
        ] {
            let file = Identity::new(seen(root, before, 100, 1000));
            assert!(!is_other(&file, seen(root, now, 100, 1001), Occasion::NextLife), "{root:?} {before}");
        }
    }

    #[test]
    fn a_file_that_is_unchanged_shows_that_numbers_are_made_up() {
        let mut renumbered = false;
        let mut unchanged = Identity::new(seen(ROOT, 8, 100, 1000));
        unchanged.observe(seen(ROOT, 18, 100, 1000), 0, Occasion::NextLife, &mut renumbered);
        assert!(renumbered);
        let mut written = Identity::new(seen(ROOT, 9, 100, 1000));
        written.may_resize(u64::MAX, 120);
        written.observe(seen(ROOT, 19, 120, 1001), 0, Occasion::NextLife, &mut renumbered);
        assert_eq!((unchanged.version(), written.version()), (0, 0));
    }

    #[test]
    fn without_numbers_size_and_time_decide() {
        let file = Identity::new(seen(None, 8, 100, 1000));
        for (size, mtime, next, same) in [
            (100, 1000, false, false),
            (100, 5000, false, false),
            (100, 999, false, false),
            (100, 997, true, true),
            (99, 5000, true, true),
            (101, 5000, true, false),
        ] {
            let now = seen(None, 9, size, mtime);
            assert_eq!(is_other(&file, now, Occasion::NextLife), next, "{size} {mtime}");
            assert_eq!(is_other(&file, now, Occasion::SameLife), same, "{size} {mtime}");
        }
    }

    #[test]
    fn our_own_changes_are_known_until_they_are_flushed_and_seen() {
        let mut file = Identity::new(seen(None, 8, 100, 1000));
        file.may_resize(u64::MAX, 150);
        file.observe(seen(None, 8, 150, 1003), 150, Occasion::SameLife, &mut false);
        // What was not flushed may be there or not.
        assert!(!is_other(&file, seen(None, 9, 100, 1000), Occasion::NextLife));
        assert!(!is_other(&file, seen(None, 9, 150, 1003), Occasion::NextLife));
        assert!(is_other(&file, seen(None, 9, 151, 1003), Occasion::NextLife));
        file.settle();
        file.observe(seen(None, 8, 100, 1000), 150, Occasion::SameLife, &mut false);
        assert!(!is_other(&file, seen(None, 9, 150, 1003), Occasion::NextLife));
        file.observe(seen(None, 8, 150, 1003), 150, Occasion::SameLife, &mut false);
        assert!(is_other(&file, seen(None, 9, 100, 1003), Occasion::NextLife));
        file.may_resize(40, 40);
        file.may_age();
        assert!(!is_other(&file, seen(None, 9, 40, 7), Occasion::NextLife));
        file.link();
        assert!(!is_other(&file, seen(None, 9, 1, 7), Occasion::NextLife));
    }
}
