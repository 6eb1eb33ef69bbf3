// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values by key, in the order in which they were used last.

use std::collections::HashMap;
use std::hash::Hash;

/// No value.
const NONE: u32 = u32::MAX;

/// Values by key.
pub(crate) struct Lru<K, V> {
    places: HashMap<K, u32>,
    cells: Vec<Cell<K, V>>,
    free: Vec<u32>,
    /// The value used last.
    newest: u32,
    /// The value unused for longest.
    oldest: u32,
}

struct Cell<K, V> {
    entry: Option<(K, V)>,
    newer: u32,
    older: u32,
}

impl<K, V> Default for Lru<K, V> {
    fn default() -> Self {
        Lru { places: HashMap::new(), cells: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds a value under a key that has none, as the one used last.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let cell = Cell { entry: Some((key, value)), newer: NONE, older: NONE };
        let at = self.free.pop().unwrap_or(self.cells.len() as u32);
        match self.cells.get_mut(at as usize) {
            Some(free) => *free = cell,
            None => self.cells.push(cell),
        }
        self.places.insert(key, at);
        self.link(at);
    }

    /// Takes out a value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.places.remove(key)?;
        let (_, value) = self.cells[at as usize].entry.take()?;
        self.unlink(at);
        self.free.push(at);
        // A tree that was walked once leaves no big table in memory.
        if self.places.is_empty() {
            *self = Lru::default();
        }
        Some(value)
    }

    /// A value, which does not count as used.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        let &at = self.places.get(key)?;
        self.cells[at as usize].entry.as_ref().map(|(_, value)| value)
    }

    /// A value to be changed, which does not count as used.
    pub(crate) fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        let &at = self.places.get(key)?;
        self.cells[at as usize].entry.as_mut().map(|(_, value)| value)
    }

    /// A value, which becomes the one used last.
    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V> {
        let &at = self.places.get(key)?;
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
        self.cells[at as usize].entry.as_mut().map(|(_, value)| value)
    }

    /// The key of the value unused for longest.
    pub(crate) fn oldest(&self) -> Option<K> {
        Some(self.cells.get(self.oldest as usize)?.entry.as_ref()?.0)
    }

    /// All keys, that of the value used last first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = K> {
        let mut at = self.newest;
        std::iter::from_fn(move || {
            let cell = self.cells.get(at as usize)?;
            at = cell.older;
            Some(cell.entry.as_ref()?.0)
        })
    }

    /// All keys and values, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.cells.iter_mut().filter_map(|cell| cell.entry.as_mut()).map(|(key, value)| (*key, value))
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
        (0..5).for_each(|key| lru.insert(key, key * 10));
        assert_eq!(lru.get(&0), Some(&mut 0));
        assert_eq!(lru.get(&3), Some(&mut 30));
        assert_eq!(lru.peek(&1), Some(&10));
        assert_eq!(lru.remove(&2), Some(20));
        assert_eq!(lru.remove(&2), None);
        assert_eq!(lru.newest_first().collect::<Vec<_>>(), [3, 0, 4, 1]);
        let mut order = Vec::new();
        while let Some(key) = lru.oldest() {
            order.extend(lru.remove(&key));
        }
        assert_eq!((order, lru.len()), (vec![10, 40, 0, 30], 0));
    }

    #[test]
    fn places_are_used_again() {
        let mut lru = Lru::default();
        ['a', 'b'].into_iter().for_each(|key| lru.insert(key, key));
        lru.remove(&'b');
        lru.insert('c', 'c');
        assert_eq!((lru.peek(&'c'), lru.len(), lru.cells.len()), (Some(&'c'), 2, 2));
    }
}
