// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and directories changed a moment ago.
//!
//! The time of an intent is that of the kernel's coarse clock, which lags by up to [`LAG`]. So what was changed
//! less than that before an intent may seem to have been changed after it, and the journal looks beforehand. Which names
//! that concerns is remembered here by a hash: two with the same place cost a needless look, nothing else.

use crate::entry::mix;
use outrigger_core::{Effect, Name, Node, Request};
use std::sync::atomic::{AtomicI64, Ordering};

const PLACES: usize = 1024;
/// The most the coarse clock lags, in nanoseconds: a tick of 10 ms (`HZ=100`), and the part of one that the kernel
/// had not accounted for when the tick came. File systems with fine time stamps (Linux 6.13) do not wait for either.
const LAG: i64 = 20_000_000;

/// When something with each hash was changed last.
pub(crate) struct Recent {
    times: Box<[AtomicI64]>,
}

/// The hash of something that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(usize);

impl Key {
    fn new(hash: u64) -> Self {
        // The upper bits of a product depend on all bits of its factors.
        Key((hash >> 32) as usize % PLACES)
    }
}

/// The directory `dir` as a whole.
pub(crate) fn directory(dir: Node) -> Key {
    Key::new(mix(1, dir.0))
}

/// The name `name` in `dir`.
pub(crate) fn name_in(dir: Node, name: &Name) -> Key {
    let (words, rest) = name.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    Key::new(words.fold(mix(2, dir.0), mix))
}

/// What a request changes.
pub(crate) type Keys = [Option<Key>; 4];

/// The names and directories that `request` changes.
pub(crate) fn keys(request: &Request) -> Keys {
    let mut keys = [None; 4];
    let mut free = keys.iter_mut();
    for effect in request.effects() {
        let names = effect.names().flat_map(|(dir, name)| [directory(dir), name_in(dir, name)]);
        let node = match effect {
            // A directory's own time of change can be set.
            Effect::Attributes { node, .. } => Some(directory(node)),
            _ => None,
        };
        names.chain(node).zip(free.by_ref()).for_each(|(key, place)| *place = Some(key));
    }
    keys
}

impl Recent {
    /// As if everything had been changed at `now`: what happened before this process is not known.
    pub(crate) fn new(now: i64) -> Self {
        Recent { times: (0..PLACES).map(|_| AtomicI64::new(now)).collect() }
    }

    /// Notes that what `keys` stand for was changed not later than `now`.
    pub(crate) fn mark(&self, keys: &Keys, now: i64) {
        for key in keys.iter().flatten() {
            self.times[key.0].fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Whether something may have been changed at `now` or later, by the clock that stamps files.
    pub(crate) fn is_hot(&self, key: Key, now: i64) -> bool {
        self.times[key.0].load(Ordering::Relaxed).saturating_add(LAG) >= now
    }
}
