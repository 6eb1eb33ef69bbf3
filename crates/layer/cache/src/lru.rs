// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values in the order in which they were used last.

/// No value.
const NONE: u32 = u32::MAX;

/// Values, each at a place that stays the same while it is there.
pub(crate) struct Lru<T> {
    cells: Vec<Cell<T>>,
    free: Vec<u32>,
    /// The value used last.
    newest: u32,
    /// The value unused for longest.
    oldest: u32,
}

struct Cell<T> {
    value: Option<T>,
    newer: u32,
    older: u32,
}

impl<T> Default for Lru<T> {
    fn default() -> Self {
        Lru { cells: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<T> Lru<T> {
    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Adds a value as the one used last; answers its place.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let cell = Cell { value: Some(value), newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.cells[at as usize] = cell;
                at
            }
            None => {
                self.cells.push(cell);
                (self.cells.len() - 1) as u32
            }
        };
        self.link(at);
        at
    }

    /// Takes out the value at `at`.
    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.cells.get_mut(at as usize)?.value.take()?;
        self.unlink(at);
        self.free.push(at);
        // A tree that was walked once leaves no big table behind.
        if self.len() == 0 {
            *self = Lru::default();
        }
        Some(value)
    }

    /// The value at `at`.
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.cells.get(at as usize)?.value.as_ref()
    }

    /// The value at `at`, to be changed.
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.cells.get_mut(at as usize)?.value.as_mut()
    }

    /// Makes the value at `at` the one used last.
    pub(crate) fn touch(&mut self, at: u32) {
        if self.newest != at && self.get(at).is_some() {
            self.unlink(at);
            self.link(at);
        }
    }

    /// The place of the value unused for longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Every value, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.cells.iter_mut().filter_map(|cell| cell.value.as_mut())
    }

    fn link(&mut self, at: u32) {
        let next = self.newest;
        let cell = &mut self.cells[at as usize];
        (cell.newer, cell.older) = (NONE, next);
        match self.cells.get_mut(next as usize) {
            Some(cell) => cell.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Cell { newer, older, .. } = self.cells[at as usize];
        match self.cells.get_mut(newer as usize) {
            Some(cell) => cell.older = older,
            None => self.newest = older,
        }
        match self.cells.get_mut(older as usize) {
            Some(cell) => cell.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_use_is_kept() {
        let mut lru = Lru::default();
        let places: Vec<u32> = (0..5).map(|value| lru.insert(value)).collect();
        lru.touch(places[0]);
        lru.touch(places[3]);
        assert_eq!(lru.remove(places[2]), Some(2));
        assert_eq!(lru.remove(places[2]), None);
        let mut order = Vec::new();
        while let Some(at) = lru.oldest() {
            order.extend(lru.remove(at));
        }
        assert_eq!((order, lru.len()), (vec![1, 4, 0, 3], 0));
    }

    #[test]
    fn places_are_used_again() {
        let mut lru = Lru::default();
        let (_, b) = (lru.insert('a'), lru.insert('b'));
        lru.remove(b);
        assert_eq!(lru.insert('c'), b);
        assert_eq!((lru.get(b), lru.len()), (Some(&'c'), 2));
    }
}
