// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the listing of an open directory is, and what was delivered.
//!
//! Cookies are ours: the place in the list of all names delivered so far. So a program that is started again, whose own
//! positions mean nothing any more, is asked from the beginning, and names that were delivered are dropped.

use outrigger_core::{FileKind, Name};
use std::collections::HashSet;

/// A name as the program listed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: Name,
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileKind>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Everything delivered, in order; the cookie of a name is its place, counted from 1.
    pub(crate) delivered: Vec<Listed>,
    /// Where the program goes on.
    pub(crate) offset: u64,
    pub(crate) eof: bool,
    /// Names delivered before the program was started again, which it lists once more.
    repeated: HashSet<Name>,
}

impl Listing {
    /// Starts from the beginning.
    pub(crate) fn rewind(&mut self) {
        *self = Listing::default();
    }

    /// The program has been started again and lists from its beginning.
    pub(crate) fn restart(&mut self) {
        if !self.eof {
            self.offset = 0;
            self.repeated = self.delivered.iter().map(|listed| listed.name.clone()).collect();
        }
    }

    /// Takes the next name of the program's listing: its cookie, or `None` when it was delivered before.
    pub(crate) fn add(&mut self, listed: Listed) -> Option<u64> {
        if self.repeated.remove(&listed.name) {
            return None;
        }
        self.delivered.push(listed);
        Some(self.delivered.len() as u64)
    }

    /// What was delivered after `cookie`, with cookies.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Listed)> {
        let from = usize::try_from(cookie).unwrap_or(usize::MAX).min(self.delivered.len());
        (cookie + 1..).zip(&self.delivered[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str) -> Listed {
        Listed { name: Name::try_from(name).unwrap(), ino: 1, kind: None }
    }

    #[test]
    fn a_restart_neither_repeats_nor_skips() {
        let mut listing = Listing::default();
        assert_eq!(listing.add(listed("a")), Some(1));
        assert_eq!(listing.add(listed("b")), Some(2));
        listing.restart();
        let again: Vec<_> = ["b", "c", "a", "d"].map(|name| listing.add(listed(name))).into();
        assert_eq!(again, [None, Some(3), None, Some(4)]);
        let names: Vec<_> =
            listing.after(1).map(|(cookie, listed)| (cookie, listed.name.to_string())).collect();
        assert_eq!(names, [(2, "b".into()), (3, "c".into()), (4, "d".into())]);
        assert_eq!(listing.after(99).count(), 0);
    }
}
