// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of one file: which version of it is in memory, how long that is fresh, and what is on its way.

use crate::delayed::Delayed;
use crate::disk::Unsaved;
use crate::moment::Moment;
use crate::pool::ContentId;
use bytes::Bytes;
use outrigger_core::gate::Gate;
use outrigger_core::{Attr, Error, Handle, Result, Time, lock};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// What changes when content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// The number of its change, where the tree has one.
    pub(crate) change: u64,
}

impl Version {
    pub(crate) fn of(attr: &Attr) -> Self {
        let Attr { ino, size, mtime, ctime, change, .. } = *attr;
        Version { ino, size, mtime, ctime, change }
    }
}

/// A file of which content is known.
pub(crate) struct File {
    pub(crate) content: Mutex<Content>,
    /// Writes that were answered and have not been made yet.
    pub(crate) delayed: Mutex<Delayed>,
    /// Handles of the tree below by which it is open for writing at places.
    pub(crate) writers: Mutex<Vec<Handle>>,
    /// Whether a lock was taken since it was opened first: it may end when any descriptor of the file is closed.
    pub(crate) may_be_locked: AtomicBool,
    /// Opens when content comes, when it is known whether it is still right, and when writes have been made.
    pub(crate) gate: Gate,
}

/// Content that is known.
#[derive(Default)]
pub(crate) struct Content {
    /// What it is called in the pool.
    pub(crate) id: ContentId,
    /// Which version it is; `None` when it was changed by us.
    version: Option<Version>,
    /// No other version looks the same as that.
    settled: bool,
    /// Its size in bytes, when that is known.
    pub(crate) size: Option<u64>,
    /// How long it is fresh.
    pub(crate) until: Moment,
    /// Whether any of it was put into the pool.
    pub(crate) any: bool,
    /// We changed something else about the file: its time of change says nothing until it is known again.
    touched: bool,
    /// How often we changed it; what was read across a change is not kept.
    pub(crate) changes: u64,
    /// The content that pages of the kernel are of.
    pub(crate) kernel: Option<ContentId>,
    /// When it was read ahead of the program that is expected to open the file.
    pub(crate) ahead: Option<Moment>,
    /// Pieces that are on their way.
    pub(crate) fetches: Vec<Arc<Fetch>>,
    /// A task revalidates it.
    pub(crate) asking: bool,
    /// What has come and is to be kept on disk.
    pub(crate) unsaved: Unsaved,
    /// It was emptied by its node, as the kernel does for `O_TRUNC`, and nothing was done to its content by us since.
    pub(crate) emptied: bool,
}

/// A piece of content on its way.
pub(crate) struct Fetch {
    pub(crate) id: ContentId,
    pub(crate) changes: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// It reaches the end of the file: a byte more is asked for, which tells whether the file has grown.
    pub(crate) last: bool,
    pub(crate) outcome: Mutex<Option<Result<Bytes>>>,
}

impl Fetch {
    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether more came than the file was known to have.
    pub(crate) fn has_more(&self) -> bool {
        matches!(&*lock(&self.outcome), Some(Ok(bytes)) if bytes.len() > self.len as usize)
    }

    /// What came, once it has come.
    pub(crate) fn result(&self) -> Option<Result<Bytes, Error>> {
        lock(&self.outcome).clone()
    }
}

impl File {
    /// A file whose content is called `id`.
    pub(crate) fn new(id: ContentId) -> Self {
        let content = Mutex::new(Content { id, ..Content::default() });
        File {
            content,
            delayed: Mutex::default(),
            writers: Mutex::default(),
            may_be_locked: AtomicBool::new(false),
            gate: Gate::default(),
        }
    }
}

impl Content {
    /// Learns that the file now has these attributes, fresh `until` then; `settled` when a later change is sure to give
    /// other ones. Answers whether the content is still right, or nothing is known about it.
    pub(crate) fn learn(&mut self, attr: &Attr, settled: bool, (now, until): (Moment, Moment)) -> bool {
        let version = Version::of(attr);
        // What is on its way was asked for before this was known.
        let holds = self.any || !self.fetches.is_empty();
        let same = match self.version {
            _ if !holds => true,
            Some(known) if self.touched => {
                self.lasts(now) && Version { ctime: version.ctime, ..known } == version
            }
            Some(known) => self.lasts(now) && known == version,
            None => self.lasts(now) && self.size.is_none_or(|size| size == attr.size),
        };
        if holds && same && !self.is_certain() {
            self.size = Some(attr.size);
            return true;
        }
        (self.touched, self.settled) = (false, settled);
        self.version = Some(version);
        (self.size, self.until) = (Some(attr.size), until);
        same
    }

    /// Whether the file has other attributes than the tree below has told before, and others have changed it: without pages of it, too, the
    /// kernel has a size up to which it would read.
    pub(crate) fn is_changed_since_told(&self, attr: &Attr) -> bool {
        !self.touched && self.version.is_some_and(|known| known != Version::of(attr))
    }

    /// Whether some of it may be kept, here or in pages of the kernel: what is read beside that must be of the same version.
    pub(crate) fn is_kept(&self) -> bool {
        self.any || self.kernel.is_some()
    }

    /// The version of what is kept, as the tree below has told it, unless we have changed anything about the file since.
    pub(crate) fn kept_version(&self) -> Option<Version> {
        self.version.filter(|_| self.is_kept() && !self.touched)
    }

    /// Whether it is a version that the tree below has told, and not ours.
    pub(crate) fn has_version(&self) -> bool {
        self.version.is_some()
    }

    /// Whether a version that looks the same is the same.
    fn is_certain(&self) -> bool {
        self.version.is_some() && self.settled
    }

    /// Whether it may still be right now. Content that is ours, or too young to differ from another, is fresh as long as it was.
    fn lasts(&self, now: Moment) -> bool {
        self.is_certain() || now < self.until
    }

    /// Whether what a fetch brings is of this content, and was not changed since it set out.
    pub(crate) fn is_current(&self, fetch: &Fetch) -> bool {
        (self.id, self.changes) == (fetch.id, fetch.changes)
    }

    /// Begins anew under another name in the pool.
    pub(crate) fn replace(&mut self, id: ContentId) {
        (self.id, self.any) = (id, false);
        self.changes += 1;
        self.unsaved.blocks.clear();
    }

    /// Which version it is, if no other content looks like that: it may be kept for other times.
    pub(crate) fn lasting(&self) -> Option<Version> {
        self.version.filter(|_| self.settled && !self.touched)
    }

    /// We write to it: no version that the tree below tells is known to be the same.
    pub(crate) fn is_ours(&mut self) {
        self.version = None;
        self.is_changed();
    }

    /// A change of ours to its content sets out.
    pub(crate) fn is_changed(&mut self) {
        self.changes += 1;
        self.emptied = false;
    }

    /// We give it a time of modification: that tells nothing about its content.
    pub(crate) fn has_our_time(&mut self) {
        self.version = None;
    }

    /// We change names or attributes of the file.
    pub(crate) fn is_touched(&mut self) {
        self.touched = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(size: u64, mtime: i64) -> Attr {
        Attr { size, mtime: Time::new(mtime, 0), ..Attr::default() }
    }

    fn known(settled: bool) -> Content {
        let file = File::new(1);
        let mut content = file.content.into_inner().expect("not poisoned");
        assert!(content.learn(&attr(10, 5), settled, (0, 100)));
        content.any = true;
        content
    }

    #[test]
    fn a_version_that_is_the_same_is_believed_for_longer() {
        let mut content = known(true);
        assert!(content.learn(&attr(10, 5), true, (200, 300)));
        assert_eq!((content.until, content.size), (300, Some(10)));
        assert!(!content.learn(&attr(10, 6), true, (201, 301)));
        assert!(content.learn(&attr(10, 6), true, (202, 302)));
        assert!(!content.learn(&attr(11, 6), true, (203, 303)));
    }

    #[test]
    fn content_that_cannot_be_told_from_another_ends_when_it_would_have_ended() {
        let mut content = known(false);
        assert!(content.learn(&attr(10, 5), true, (50, 150)));
        assert_eq!(content.until, 100);
        assert!(!content.learn(&attr(10, 5), true, (100, 200)));
        let mut content = known(false);
        assert!(!content.learn(&attr(10, 6), true, (50, 150)), "it differs, however young it was");
        let mut content = known(true);
        content.is_ours();
        assert!(content.learn(&attr(10, 7), true, (99, 199)));
        assert!(!content.learn(&attr(12, 7), true, (99, 199)), "another client changed it as well");
    }

    #[test]
    fn a_time_of_change_that_we_gave_says_nothing() {
        let later = |mtime| Attr { ctime: Time::new(9, 0), ..attr(10, mtime) };
        let mut content = known(true);
        content.is_touched();
        assert!(content.learn(&later(5), true, (0, 100)));
        assert!(!content.learn(&attr(10, 5), true, (0, 100)));
        let mut content = known(true);
        content.is_touched();
        assert!(!content.learn(&later(6), true, (0, 100)));
    }

    #[test]
    fn what_is_on_its_way_is_not_kept_as_a_version_that_is_learnt_meanwhile() {
        let mut content = known(true);
        content.any = false;
        let fetch = Fetch { id: 1, changes: 0, offset: 0, len: 10, last: false, outcome: Mutex::default() };
        content.fetches.push(Arc::new(fetch));
        assert!(content.learn(&attr(10, 5), true, (1, 101)));
        assert!(!content.learn(&attr(10, 6), true, (2, 102)));
    }

    #[test]
    fn where_there_is_no_content_yet_any_version_will_do() {
        let mut content = known(true);
        content.replace(2);
        assert!(content.learn(&attr(99, 99), true, (0, 1)));
        assert_eq!(content.size, Some(99));
    }
}
