// SPDX-License-Identifier: MIT OR Apache-2.0
//! Positions in directories.

use crate::hash::siphash13;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::COOKIE_MAX;

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
