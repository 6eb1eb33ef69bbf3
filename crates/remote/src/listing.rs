// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings that another process can go on with: cookies follow from names.

use outrigger_core::listing::cookie_of;
use outrigger_core::reply::{Entry, Ttl};
use outrigger_core::{Attr, Error, FileKind, Generation, Name, Node, Result};

/// What an entry counts beside its name when a listing is cut into pieces, in bytes: without attributes, and with them.
pub const DIRENT: usize = 24;
/// See [`DIRENT`].
pub const DIRENT_PLUS: usize = 152;

/// The entry of a listed name about which the server says nothing more. It has a number: those without one are passed over by readdir(3).
pub fn name_only(ino: u64, kind: Option<FileKind>) -> Entry {
    Entry {
        node: Node(0),
        generation: Generation(0),
        attr: Attr { ino, mode: kind.map_or(0, FileKind::bits), ..Attr::default() },
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    }
}

/// What is listed under a name.
pub trait Named: Clone {
    /// The name.
    fn name(&self) -> &Name;
}

/// All that is listed in a directory with its cookies, in that order.
#[derive(Debug)]
pub struct Ordered<T> {
    items: Vec<(u64, T)>,
    incomplete: Option<Error>,
}

impl<T: Named> Ordered<T> {
    /// Each name once, however often the server lists it; `incomplete` says why there may be more.
    pub fn new(items: Vec<T>, incomplete: Option<Error>) -> Self {
        let mut items: Vec<(u64, T)> = items.into_iter().map(|item| (cookie_of(item.name()), item)).collect();
        items.sort_by(|(one, a), (other, b)| (one, &a.name()[..]).cmp(&(other, &b.name()[..])));
        items.dedup_by(|(_, b), (_, a)| a.name() == b.name());
        let mut last = 0;
        for (cookie, _) in &mut items {
            *cookie = (*cookie).max(last + 1);
            last = *cookie;
        }
        Ordered { items, incomplete }
    }

    /// What comes after `cookie` and is shown, as much as fits into `size` when each counts `each` and its name; and whether the
    /// directory ends with it.
    ///
    /// # Errors
    /// After all items, why there may be more: a program that copies or compares must not take the rest for all.
    pub fn after(
        &self,
        cookie: u64,
        (mut size, each): (usize, usize),
        is_shown: impl Fn(&Name) -> bool,
    ) -> Result<(Vec<(u64, T)>, bool)> {
        let rest = &self.items[self.items.partition_point(|(at, _)| *at <= cookie)..];
        let mut items = Vec::new();
        for (at, item) in rest.iter().filter(|(_, item)| is_shown(item.name())) {
            let takes = each + item.name().len();
            // At least one, or a listing would never get further.
            if takes > size && !items.is_empty() {
                return Ok((items, false));
            }
            size = size.saturating_sub(takes);
            items.push((*at, item.clone()));
        }
        match &self.incomplete {
            Some(error) if items.is_empty() => Err(error.clone()),
            incomplete => Ok((items, incomplete.is_none())),
        }
    }
}
