// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names in one directory, found by name and listed by cookie.
//!
//! Each name gets the next number when it is added and keeps it. A listing goes from the newest name to the oldest: it ends
//! although names are added meanwhile, goes on where it was although others are removed, and never shows a name twice.

use crate::inode::Inode;
use bytes::Bytes;
use outrigger_core::reply::COOKIE_MAX;
use outrigger_core::{Name, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the number of a name and its cookie add up to. Above the cookie of the oldest name there is room for those that a cache
/// gives to names it knows to be new.
const SUM: u64 = COOKIE_MAX / 2 + 1;

/// The names in one directory.
#[derive(Default)]
pub(crate) struct Names {
    numbers: HashMap<Name, u64>,
    slots: BTreeMap<u64, (Name, Arc<Inode>)>,
    last: u64,
}

impl Names {
    /// No names, in a directory that has given out numbers up to `last`.
    pub fn starting_after(last: u64) -> Self {
        Names { last, ..Names::default() }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn get(&self, name: &Name) -> Option<&Arc<Inode>> {
        let number = self.numbers.get(name)?;
        self.slots.get(number).map(|(_, inode)| inode)
    }

    /// The last number that was given out.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a name that is not there yet; answers its number.
    pub fn insert(&mut self, name: &Name, inode: Arc<Inode>) -> Result<u64> {
        // The name may be a slice of a whole request: keep no more than the name alive.
        let name = Name::new(Bytes::copy_from_slice(name))?;
        self.last += 1;
        self.numbers.insert(name.clone(), self.last);
        self.slots.insert(self.last, (name, inode));
        Ok(self.last)
    }

    /// Puts a name where it was in a former process; `false` when it is there already.
    pub fn restore(&mut self, number: u64, name: Name, inode: Arc<Inode>) -> bool {
        let is_new = self.numbers.insert(name.clone(), number).is_none();
        is_new && self.slots.insert(number, (name, inode)).is_none()
    }

    /// Makes an existing name lead elsewhere; answers its number.
    pub fn replace(&mut self, name: &Name, inode: Arc<Inode>) -> Option<u64> {
        let &number = self.numbers.get(name)?;
        self.slots.get_mut(&number)?.1 = inode;
        Some(number)
    }

    /// Removes a name; answers the number it had.
    pub fn remove(&mut self, name: &Name) -> Option<u64> {
        let number = self.numbers.remove(name)?;
        self.slots.remove(&number).map(|_| number)
    }

    /// The names that were added after the one with this number, each with its own.
    pub fn after(&self, number: u64) -> impl Iterator<Item = (u64, &Name, &Arc<Inode>)> {
        let first = number.saturating_add(1);
        self.slots.range(first..).map(|(&number, (name, inode))| (number, name, inode))
    }

    /// The names that a listing shows after `cookie`, each with its cookie.
    pub fn listed(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, &Arc<Inode>)> {
        let older = ..SUM.saturating_sub(cookie);
        self.slots.range(older).rev().map(|(&number, (name, inode))| (SUM - number, name, inode))
    }
}
