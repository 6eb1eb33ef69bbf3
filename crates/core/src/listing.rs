// SPDX-License-Identifier: MIT OR Apache-2.0
//! Positions in directories.

use crate::hash::siphash13;
use crate::reply::Dirent;
use std::collections::VecDeque;

/// The cookie of a name where positions follow from names ([`crate::Abilities::cookies_by_name`]): a hash of its length and its
/// bytes, the same in every process and every build, and far from the largest cookies, which doors use. Never 0.
pub fn cookie_of(name: &[u8]) -> u64 {
    siphash13(&[&(name.len() as u64).to_le_bytes(), name].concat()) >> 3 | 1
}

/// Sees that a listing goes in a circle, as that of a damaged directory may: a cookie that was remembered comes again after
/// others. Which one is remembered changes ever less often (Brent 1980). Names side by side may share a cookie.
#[derive(Debug, Default)]
pub struct Circle {
    remembered: Option<u64>,
    others: bool,
    seen: u64,
}

impl Circle {
    /// Looks at the next cookie of the listing; true when it was there before.
    pub fn closes(&mut self, cookie: u64) -> bool {
        if self.remembered == Some(cookie) {
            return self.others;
        }
        self.others = true;
        self.seen += 1;
        if self.seen.is_power_of_two() {
            (self.remembered, self.others) = (Some(cookie), false);
        }
        false
    }
}

/// The entries around the place where a directory of the host, or of a kernel, is being read.
///
/// A caller may keep fewer entries than a reply has and ask again from the last one it kept. That place is found here: seeking
/// in the directory would show names that were added since it was opened, without end when each entry makes the caller add
/// one. Only cookie 0 (rewinddir(3)) begins anew.
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<Dirent>,
    /// The cookie before `entries`; none when the directory stands elsewhere.
    at: Option<u64>,
    /// How many of `entries` the last reply has.
    given: usize,
    /// Whether the directory was opened and not read yet.
    fresh: bool,
}

impl Window {
    /// Of a directory that was just opened.
    pub fn opened() -> Self {
        Window { at: Some(0), fresh: true, ..Window::default() }
    }

    /// Of a directory that was read before, up to an unknown place.
    pub fn elsewhere() -> Self {
        Window::default()
    }

    /// Moves to the place after `cookie`. When it answers `false`, the directory has to be sought there and [`Window::restart`] called.
    pub fn go_to(&mut self, cookie: u64) -> bool {
        if cookie == 0 {
            return std::mem::take(&mut self.fresh);
        }
        let is_last = |last: &usize| self.entries.get(*last).is_some_and(|entry| entry.cookie == cookie);
        // Names side by side may share a cookie: the last one given counts.
        let last = self.given.checked_sub(1).filter(is_last);
        match last.or_else(|| self.entries.iter().position(|entry| entry.cookie == cookie)) {
            Some(index) => drop(self.entries.drain(..=index)),
            None if self.at == Some(cookie) => {}
            None => return false,
        }
        (self.at, self.given) = (Some(cookie), 0);
        true
    }

    /// Begins after `cookie`, where the directory stands now.
    pub fn restart(&mut self, cookie: u64) {
        *self = Window { at: Some(cookie), ..Window::default() };
    }

    /// Appends an entry that was read.
    pub fn push(&mut self, entry: Dirent) {
        self.entries.push_back(entry);
    }

    /// The next entry of the reply; none when more has to be read.
    pub fn peek(&self) -> Option<&Dirent> {
        self.entries.get(self.given)
    }

    /// The reply has the entry that [`Window::peek`] showed.
    pub fn advance(&mut self) {
        self.given += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;
    use crate::reply::COOKIE_MAX;

    fn taken(window: &mut Window, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(entry) = window.peek().filter(|_| names.len() < count) {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            window.advance();
        }
        names
    }

    fn window(entries: &[(u64, &str)]) -> Window {
        let mut window = Window::opened();
        assert!(window.go_to(0));
        for &(cookie, name) in entries {
            let name = Name::new(name.as_bytes().to_vec()).unwrap();
            window.push(Dirent { ino: 1, cookie, kind: None, name });
        }
        window
    }

    #[test]
    fn a_caller_that_kept_fewer_entries_is_served_without_seeking() {
        let mut window = window(&[(3, "a"), (5, "b"), (9, "c"), (11, "d")]);
        assert_eq!(taken(&mut window, 3), ["a", "b", "c"]);
        assert!(window.go_to(3));
        assert_eq!(taken(&mut window, 2), ["b", "c"]);
        assert!(window.go_to(9));
        assert_eq!(taken(&mut window, 2), ["d"]);
        assert!(window.go_to(9) && window.go_to(11) && window.go_to(11));
        assert!(!window.go_to(9), "that is gone");
        window.restart(9);
        assert!(window.go_to(9) && window.peek().is_none());
    }

    #[test]
    fn a_rewound_directory_is_read_anew() {
        let mut window = window(&[]);
        assert!(window.peek().is_none());
        assert!(!window.go_to(0));
        window.restart(0);
        assert!(!window.go_to(0));
        assert!(!Window::elsewhere().go_to(0) && !Window::elsewhere().go_to(7));
    }

    #[test]
    fn names_that_share_a_cookie_are_given_once() {
        let mut window = window(&[(3, "a"), (3, "b"), (3, "c"), (4, "d")]);
        assert_eq!(taken(&mut window, 2), ["a", "b"]);
        assert!(window.go_to(3));
        assert_eq!(taken(&mut window, 1), ["c"]);
        assert!(window.go_to(3));
        assert_eq!(taken(&mut window, 9), ["d"]);
    }

    fn closes(cookies: impl IntoIterator<Item = u64>) -> bool {
        let mut circle = Circle::default();
        cookies.into_iter().any(|cookie| circle.closes(cookie))
    }

    #[test]
    fn a_listing_in_a_circle_is_seen_and_a_long_one_is_none() {
        for (head, round) in [(0, 2), (1, 2), (5, 3), (100, 37), (3, 1000)] {
            let cookies = (0..).map(|at| if at < head { at } else { head + (at - head) % round });
            assert!(closes(cookies.take(10_000)), "{head} and {round}");
        }
        assert!(!closes(0..100_000));
        assert!(!closes((0..100_000).map(|at| at / 3)));
        assert!(!closes((0..100_000).rev()));
    }

    #[test]
    fn cookies_are_the_same_in_every_build() {
        for (name, hash) in [
            ("a", 0xbeb9_a6bb_f61b_58b4_u64),
            ("abcdefg", 0x513c_7fe9_4668_9722),
            ("abcdefgh", 0xc1a2_1d00_9ceb_0ef5),
            ("the quick brown fox", 0x6868_ee30_7cfa_9b6d),
        ] {
            assert_eq!(cookie_of(name.as_bytes()), hash >> 3 | 1, "{name}");
        }
    }

    #[test]
    fn cookies_of_names_are_cookies() {
        for name in ["a", "b", "\u{fffd}", &"x".repeat(255)] {
            assert!((1..COOKIE_MAX / 2).contains(&cookie_of(name.as_bytes())), "{name}");
        }
    }
}
