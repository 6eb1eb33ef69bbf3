// SPDX-License-Identifier: MIT OR Apache-2.0
//! What names lead to, as far as replies of the last second say: a change of such a name needs no lookup before it.
//!
//! A program, or the kernel for it, looks a name up before it removes or moves it, so what the journal would ask has nearly always
//! just been answered. A name is forgotten when a change of it begins and again when it ends, and a lookup that was on its way
//! meanwhile teaches nothing. Each name has one place, by its hash; another name with that place takes it over.

use crate::before::{Before, Inode, pair, repetition_changes};
use outrigger_core::ops::RenameFlags;
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{Effect, Errno, Name, Node, Reply, Request, lock};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};

const PLACES: usize = 1024;
/// For how long a reply is valid, in nanoseconds: other clients change names, too.
const VALID: i64 = 1_000_000_000;

/// The table. It is not kept for another process, which looks beforehand until it has seen replies of its own.
pub(crate) struct Names {
    hashes: RandomState,
    places: Box<[Mutex<Place>]>,
}

#[derive(Debug, Default)]
struct Place {
    /// How often a change of a name with this place began or ended.
    changes: u64,
    seen: Option<Seen>,
}

/// What a reply said.
#[derive(Debug, Clone, Copy)]
struct Seen {
    tag: Tag,
    /// What the name leads to, if anything.
    file: Option<Inode>,
    /// When the request was made, in nanoseconds since 1970.
    at: i64,
}

/// A name in a directory, by a hash that no client can predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag(u64);

/// A lookup on its way.
pub(crate) struct Asking {
    tag: Tag,
    changes: u64,
    at: i64,
}

/// A change of names on its way.
pub(crate) struct Changing {
    tags: [Option<Tag>; 2],
    /// The names are those of a move, not of an exchange.
    moves: bool,
}

impl Names {
    pub(crate) fn new() -> Self {
        Names { hashes: RandomState::new(), places: (0..PLACES).map(|_| Mutex::default()).collect() }
    }

    fn tag(&self, dir: Node, name: &Name) -> Tag {
        Tag(self.hashes.hash_one((dir.0, name.as_bytes())))
    }

    fn place(&self, tag: Tag) -> MutexGuard<'_, Place> {
        lock(&self.places[tag.0 as usize % PLACES])
    }

    /// To be noted of a request at `now` before it is passed on; `None` when its reply tells of no name.
    pub(crate) fn asking(&self, request: &Request, now: i64) -> Option<Asking> {
        let Request::Lookup(lookup) = request else { return None };
        let tag = self.tag(lookup.dir, &lookup.name);
        Some(Asking { tag, changes: self.place(tag).changes, at: now })
    }

    /// Learns from the reply to a lookup.
    pub(crate) fn answered(&self, Asking { tag, changes, at }: &Asking, reply: &Reply) {
        let file = match reply {
            Reply::Entry(entry) => Some(Inode::of(entry)),
            Reply::Error(error) if error.errno == Errno::ENOENT => None,
            _ => return,
        };
        let mut place = self.place(*tag);
        if place.changes == *changes {
            place.seen = Some(Seen { tag: *tag, file, at: *at });
        }
    }

    /// What there was before `request`, if that is known at `now`.
    pub(crate) fn before(&self, request: &Request, now: i64) -> Option<Before> {
        let known = |dir, name| {
            let tag = self.tag(dir, name);
            let seen = self.place(tag).seen.filter(|seen| seen.tag == tag);
            let fresh = seen.filter(|seen| seen.at.saturating_add(VALID) >= now)?;
            Some(fresh.file.map_or(Before::Absent, Before::Present))
        };
        match repetition_changes(request)? {
            Effect::Adds { dir, name, .. } | Effect::Removes { dir, name, .. } => known(dir, name),
            Effect::Moves { dir, name, to_dir, to_name, flags } => {
                let one = known(dir, name)?;
                let exchanges = flags.contains(RenameFlags::EXCHANGE);
                if exchanges { Some(pair(one, known(to_dir, to_name)?)) } else { Some(one) }
            }
            _ => None,
        }
    }

    /// Forgets the names that `request` changes, which is about to be asked below.
    pub(crate) fn changing(&self, request: &Request) -> Changing {
        let mut changing = Changing { tags: [None; 2], moves: false };
        let mut free = changing.tags.iter_mut();
        for effect in request.effects() {
            let tags = effect.names().map(|(dir, name)| self.tag(dir, name));
            tags.zip(free.by_ref()).for_each(|(tag, place)| *place = Some(tag));
            if let Effect::Moves { flags, .. } = effect {
                changing.moves = !flags.contains(RenameFlags::EXCHANGE);
            }
        }
        self.forget(&changing);
        changing
    }

    /// Forgets what names lead to.
    pub(crate) fn forget(&self, changing: &Changing) {
        changing.tags.iter().flatten().for_each(|tag| self.change(*tag, None));
    }

    /// Learns from the reply to a change at `now`, before which there was `before`.
    pub(crate) fn changed(
        &self,
        Changing { tags, moves }: &Changing,
        before: Before,
        reply: &Reply,
        now: i64,
    ) {
        let files = match (reply, before) {
            (Reply::Entry(entry), _) => [Some(Inode::of(entry)), None],
            // What was made ahead of an answer from elsewhere is only foretold.
            (Reply::Created(Created { entry, opened }), _)
                if !opened.how.contains(OpenHow::PENDING_CREATE) =>
            {
                [Some(Inode::of(entry)), None]
            }
            (Reply::Done(()), Before::Present(inode)) if *moves => [None, Some(inode)],
            _ => [None, None],
        };
        for (tag, file) in tags.iter().zip(files) {
            let Some(tag) = *tag else { continue };
            self.change(tag, file.map(|file| Seen { tag, file: Some(file), at: now }));
        }
    }

    fn change(&self, tag: Tag, seen: Option<Seen>) {
        let mut place = self.place(tag);
        place.changes += 1;
        place.seen = seen;
    }
}
