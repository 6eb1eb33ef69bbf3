// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking again and again for something before sleeping for it.

use std::time::{Duration, Instant};

/// How long it is looked for, at most: about what falling asleep and being woken cost.
const AT_MOST: Duration = Duration::from_micros(30);
/// After so many unsuccessful searches, most are left out.
const IN_VAIN: u32 = 8;
/// One search in so many is made all the same: the other side may have got a processor of its own.
const NOW_AND_THEN: u32 = 64;

/// Whether it pays to look for an answer again and again before sleeping for it: it does while the other side works on
/// another processor and is quick. A spin that often fails is left out, so one that never pays costs little.
///
/// ```
/// let mut spin = outrigger_core::Spin::default();
/// let mut looks = 0;
/// let found = spin.until(|| {
///     looks += 1;
///     (looks == 2).then_some("it")
/// });
/// assert_eq!(found, Some("it"));
/// assert_eq!(spin.until(|| None::<()>), None);
/// ```
#[derive(Debug, Default)]
pub struct Spin {
    in_vain: u32,
}

impl Spin {
    /// Looks with `look`, once or for some microseconds, until it finds something.
    pub fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        let start = self.pays().then(Instant::now);
        self.in_vain = self.in_vain.wrapping_add(1);
        let start = start?;
        loop {
            if let Some(found) = look() {
                self.in_vain = 0;
                return Some(found);
            }
            if start.elapsed() >= AT_MOST {
                return None;
            }
        }
    }

    fn pays(&self) -> bool {
        self.in_vain < IN_VAIN || self.in_vain.is_multiple_of(NOW_AND_THEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_left_out_but_now_and_then() {
        let mut spin = Spin::default();
        let search = || {
            let pays = spin.pays();
            assert_eq!(spin.until(|| None::<()>), None);
            pays
        };
        let searches: Vec<bool> = std::iter::repeat_with(search).take(200).collect();
        let made: Vec<usize> = (0..200).filter(|&number| searches[number]).collect();
        assert_eq!(made, [0, 1, 2, 3, 4, 5, 6, 7, 64, 128, 192]);
    }

    #[test]
    fn success_makes_it_search_again() {
        let mut spin = Spin { in_vain: NOW_AND_THEN };
        let mut left = 2;
        let found = spin.until(|| {
            left -= 1;
            (left == 0).then_some(())
        });
        assert_eq!((found, spin.in_vain), (Some(()), 0));
    }
}
