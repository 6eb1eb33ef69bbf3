// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was last seen of files, and when it was seen that another client had changed one.
//!
//! A node is a place in the tree, and a handle of the server is a file: when others replace the file by renaming another one
//! over it, the handle still leads to the old one. So reading goes on by a handle that was opened after the last sight of the
//! file that differed from the one before, and what was read ahead under an earlier sight is dropped.

use crate::attr::changed_at;
use outrigger_core::{Node, Time, lock};
use outrigger_proto_sftp::Attrs;
use outrigger_toolkit_remote::known::{Known, Looks};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// How many files are remembered.
const FILES_MAX: usize = 1 << 16;
/// A file changed this recently may be changed again and look the same, in seconds: times have whole ones, and the server's clock
/// may be behind ours. Where it is ahead, a file is as old as the first sight of it as it looks now.
const YOUNG: i64 = 5;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Seen(Mutex<State>);

#[derive(Default)]
struct State {
    files: HashMap<Node, File>,
    /// The last change by another client that was seen.
    last: u64,
    /// Files that are not remembered may have been changed then.
    others: u64,
}

struct File {
    readable: bool,
    /// Its size and the time of its last change.
    version: (Option<u64>, Option<u32>),
    /// When it was seen to have changed.
    changed: u64,
    /// The first and the last time of day it was taken for another, with this version. What is changed after the first may look
    /// the same for a second; so if the last is later than that, nothing looks the same that was changed since.
    taken: (i64, i64),
    /// What was known of it when it was closed, unless it was seen since.
    closed: Option<Arc<Known>>,
}

impl Seen {
    /// Sees a file at the time of day `now`, which the server probably lets us read or not; answers whether it may be another
    /// than before.
    pub(crate) fn saw(&self, node: Node, attrs: &Attrs, readable: bool, now: Time) -> bool {
        let mtime = attrs.times.map(|times| times.mtime);
        let version = (attrs.size, mtime);
        let settled = mtime.is_some_and(|mtime| now.secs - i64::from(mtime) > YOUNG);
        let mut state = lock(&self.0);
        let mut first = now.secs;
        if mtime.is_some()
            && let Some(file) = state.files.get_mut(&node)
            && file.version == version
        {
            if settled || file.taken.1 - file.taken.0 > YOUNG {
                (file.readable, file.closed) = (readable, None);
                return false;
            }
            first = file.taken.0;
        }
        state.last += 1;
        let changed = state.last;
        if state.files.len() >= FILES_MAX && !state.files.contains_key(&node) {
            state.files.clear();
            state.others = changed;
        }
        let file = File { readable, version, changed, taken: (first, now.secs), closed: None };
        state.files.insert(node, file);
        true
    }

    /// The number of the last change that was seen, of any file.
    pub(crate) fn last(&self) -> u64 {
        lock(&self.0).last
    }

    /// Whether a file was seen to have changed after the change with the number `since`.
    pub(crate) fn changed_after(&self, node: Node, since: u64) -> bool {
        let state = lock(&self.0);
        state.files.get(&node).map_or(state.others, |file| file.changed) > since
    }

    /// Whether a file is known that the server will probably let us read.
    pub(crate) fn is_readable(&self, node: Node) -> bool {
        lock(&self.0).files.get(&node).is_some_and(|file| file.readable)
    }

    /// What is known of a file that is being opened.
    pub(crate) fn known(&self, node: Node) -> Arc<Known> {
        let state = lock(&self.0);
        let Some(file) = state.files.get(&node) else { return Arc::default() };
        let (size, mtime) = file.version;
        file.closed.clone().unwrap_or_else(|| Known::of(Looks { size, changed: mtime.map(changed_at) }))
    }

    /// What is known of a file that is not open any more.
    pub(crate) fn closed(&self, node: Node, known: Arc<Known>) {
        if let Some(file) = lock(&self.0).files.get_mut(&node) {
            file.closed = Some(known);
        }
    }

    /// There are no references to it any more.
    pub(crate) fn forget(&self, node: Node) {
        lock(&self.0).files.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_proto_sftp::Times;

    fn attrs(size: u64, mtime: u32) -> Attrs {
        Attrs { size: Some(size), times: Some(Times { atime: 0, mtime }), ..Attrs::NONE }
    }

    #[test]
    fn a_file_that_looks_the_same_is_the_same_unless_it_is_young() {
        let (seen, node) = (Seen::default(), Node(7));
        let saw = |attrs, now| seen.saw(node, &attrs, true, Time::new(now, 0));
        assert!(saw(attrs(10, 100), 200), "nothing was known");
        let since = seen.last();
        assert!(!saw(attrs(10, 100), 200) && !seen.changed_after(node, since));
        assert!(saw(attrs(11, 100), 200) && seen.changed_after(node, since));
        assert!(saw(attrs(11, 150), 200));
        assert!(
            saw(attrs(11, 198), 200) && saw(attrs(11, 198), 201),
            "it may have been changed twice in one second"
        );
        assert!(!saw(attrs(11, 198), 204));
    }

    #[test]
    fn a_server_whose_clock_is_ahead_does_not_make_files_change_for_ever() {
        let (seen, node) = (Seen::default(), Node(7));
        let saw = |attrs, now| seen.saw(node, &attrs, true, Time::new(now, 0));
        let young = [200, 201, 203, 205].map(|now| saw(attrs(10, 3800), now));
        assert_eq!(young, [true; 4], "an hour ahead, and perhaps changed twice in one second");
        assert!(saw(attrs(10, 3800), 206), "once more, for it was young the last time");
        let since = seen.last();
        assert!(!saw(attrs(10, 3800), 207) && !saw(attrs(10, 3800), 300) && !seen.changed_after(node, since));
        assert!(saw(attrs(10, 3900), 301) && saw(attrs(10, 3900), 302), "changed again");
        let timeless = Attrs { size: Some(1), ..Attrs::NONE };
        assert!((0..20).all(|now| saw(timeless, now)), "without times nothing is known");
    }

    #[test]
    fn files_that_are_not_remembered_may_have_changed() {
        let seen = Seen::default();
        let see = |node| seen.saw(Node(node), &attrs(1, 1), true, Time::new(100, 0));
        see(1);
        let since = seen.last();
        (2..=FILES_MAX as u64 + 1).for_each(|node| assert!(see(node)));
        assert!(seen.changed_after(Node(1), since));
    }
}
