// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users, or groups, whose numbers differ on two sides: at a client and at a server, here and there.

use std::collections::HashMap;

/// Which number of one side stands for which of the other, one for one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap {
    /// Numbers there, by those here.
    there: HashMap<u32, u32>,
    /// Numbers here, by those there.
    here: HashMap<u32, u32>,
}

impl IdMap {
    /// Two numbers mean the same; false when one of them means another one already, or is the one that stands for none.
    #[must_use]
    pub fn add(&mut self, here: u32, there: u32) -> bool {
        let is_new = |map: &HashMap<u32, u32>, from, to| map.get(&from).is_none_or(|&known| known == to);
        let fits = here != u32::MAX && there != u32::MAX;
        let fits = fits && is_new(&self.there, here, there) && is_new(&self.here, there, here);
        if fits {
            self.there.insert(here, there);
            self.here.insert(there, here);
        }
        fits
    }

    /// The number there of one here, if the map has it.
    pub fn there(&self, here: u32) -> Option<u32> {
        self.there.get(&here).copied()
    }

    /// The number here of one there, if the map has it.
    pub fn here(&self, there: u32) -> Option<u32> {
        self.here.get(&there).copied()
    }

    /// Takes in the pairs of `others` that contradict none of these.
    pub fn complete(&mut self, others: &IdMap) {
        others.there.iter().for_each(|(&here, &there)| _ = self.add(here, there));
    }

    /// Whether no number means another one.
    pub fn is_empty(&self) -> bool {
        self.there.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_one_number_and_the_way_back_is_the_same() {
        let mut map = IdMap::default();
        assert!(map.is_empty());
        for (here, there, fits) in
            [(1000, 501, true), (501, 1000, true), (1000, 501, true), (1000, 7, false), (7, 501, false)]
        {
            assert_eq!(map.add(here, there), fits, "{here}:{there}");
        }
        let mut own = IdMap::default();
        assert!(own.add(1000, 502) && own.add(7, 8));
        own.complete(&map);
        assert_eq!([1000, 501, 7].map(|number| own.there(number)), [Some(502), Some(1000), Some(8)]);
        assert!(!map.add(u32::MAX, 8) && !map.add(8, u32::MAX), "it stands for none");
        assert_eq!((map.there(1000), map.here(501), map.there(501)), (Some(501), Some(1000), Some(1000)));
        assert_eq!(
            (map.there(7), map.here(7), map.there(8)),
            (None, None, None),
            "what is refused is not there"
        );
    }
}
