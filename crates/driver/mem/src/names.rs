// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names in one directory, found by name and listed by cookie.
//!
//! Each name gets the next number when it is added and keeps it: a listing continues after the last number it saw,
//! whatever was added or removed meanwhile, and never shows a name twice unless it was removed and added again.

use crate::inode::Inode;
use bytes::Bytes;
use outrigger_core::{Name, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The names in one directory.
#[derive(Default)]
pub(crate) struct Names {
    cookies: HashMap<Name, u64>,
    slots: BTreeMap<u64, (Name, Arc<Inode>)>,
    last: u64,
}

impl Names {
    /// No names, in a directory that has given out cookies up to `last`.
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
        let cookie = self.cookies.get(name)?;
        self.slots.get(cookie).map(|(_, inode)| inode)
    }

    /// The last cookie that was given out.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Adds a name that is not there yet; answers its cookie.
    pub fn insert(&mut self, name: &Name, inode: Arc<Inode>) -> Result<u64> {
        // The name may be a slice of a whole request: keep no more than the name alive.
        let name = Name::new(Bytes::copy_from_slice(name))?;
        self.last += 1;
        self.cookies.insert(name.clone(), self.last);
        self.slots.insert(self.last, (name, inode));
        Ok(self.last)
    }

    /// Puts a name where it was in a former process; `false` when it is there already.
    pub fn restore(&mut self, cookie: u64, name: Name, inode: Arc<Inode>) -> bool {
        let is_new = self.cookies.insert(name.clone(), cookie).is_none();
        is_new && self.slots.insert(cookie, (name, inode)).is_none()
    }

    /// Makes an existing name lead elsewhere; answers its cookie.
    pub fn replace(&mut self, name: &Name, inode: Arc<Inode>) -> Option<u64> {
        let &cookie = self.cookies.get(name)?;
        self.slots.get_mut(&cookie)?.1 = inode;
        Some(cookie)
    }

    /// Removes a name; answers the cookie it had.
    pub fn remove(&mut self, name: &Name) -> Option<u64> {
        let cookie = self.cookies.remove(name)?;
        self.slots.remove(&cookie).map(|_| cookie)
    }

    /// The names after `cookie`, each with its own.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, &Arc<Inode>)> {
        let first = cookie.saturating_add(1);
        self.slots.range(first..).map(|(&cookie, (name, inode))| (cookie, name, inode))
    }
}
