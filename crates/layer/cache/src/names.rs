// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about the names in one directory: all of them in the order in which the tree lists them, or some.

use crate::moment::Moment;
use crate::siblings::Order;
use bytes::Bytes;
use hashbrown::HashTable;
use outrigger_core::listing::cookie_of;
use outrigger_core::reply::COOKIE_MAX;
use outrigger_core::{FileKind, Generation, Name, Node, Time};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// A file as a listing tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    /// Its node; 0 when that is not known.
    pub(crate) node: Node,
    pub(crate) generation: Generation,
    pub(crate) ino: u64,
    pub(crate) kind: Option<FileKind>,
}

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// This file.
    File(File),
    /// Nothing: there is no such name.
    Absent,
    /// That has to be asked.
    Unknown,
}

impl What {
    /// The node of the file, if there is one.
    pub(crate) fn node(self) -> Option<Node> {
        match self {
            What::File(file) => Some(file.node),
            What::Absent | What::Unknown => None,
        }
    }
}

/// One name of a listing.
pub(crate) struct Slot {
    /// The name; `None` when it was removed meanwhile.
    pub(crate) name: Option<Name>,
    pub(crate) cookie: u64,
    pub(crate) file: File,
}

/// When a directory was changed: as long as that stays the same, so do its names.
pub(crate) type Stamp = (Time, Time);

/// How much is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Single names that were asked for.
    Some,
    /// A listing is being received.
    Filling,
    /// Every name.
    All,
}

/// Where a new name comes in a listing that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Behind all others.
    #[default]
    Last,
    /// Where the tree has it, which follows from the name.
    ByName,
    /// Only the tree knows, and the process that takes over will ask it.
    Unknown,
}

/// The names in one directory.
pub(crate) struct Names {
    stage: Stage,
    placing: Placing,
    /// The listing, in the tree's order.
    slots: Vec<Slot>,
    /// Slots by name.
    index: HashTable<u32>,
    hasher: RandomState,
    /// Names about which more is known than the listing tells.
    overrides: HashMap<Bytes, (What, Moment)>,
    /// When it was asked for, or last known to be as it is.
    pub(crate) asked: Moment,
    /// How long the listing is fresh.
    pub(crate) until: Moment,
    /// How long the absence of names that are not listed is fresh.
    pub(crate) negative_until: Moment,
    /// How long the attributes are fresh that came with it.
    pub(crate) attrs_until: Moment,
    stamp: Option<Stamp>,
    /// Whether each cookie is larger than those before it.
    ascending: bool,
    /// Whether the slots are exactly what a listing shows.
    listable: bool,
    /// Slots whose name was removed.
    removed: usize,
    /// Bytes of all names.
    text: usize,
}

/// Removed names that are kept at least, to spare the work of leaving them out.
const REMOVED_KEPT: usize = 64;
/// What a name costs beside its slot and its bytes.
const NAME_COST: usize = 56;

impl Default for Names {
    fn default() -> Self {
        Names {
            stage: Stage::Some,
            placing: Placing::Last,
            slots: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            overrides: HashMap::new(),
            asked: 0,
            until: 0,
            negative_until: Moment::MAX,
            attrs_until: Moment::MAX,
            stamp: None,
            ascending: true,
            listable: true,
            removed: 0,
            text: 0,
        }
    }
}

/// A name of its own: one of a message may be a slice of all of the message.
fn own(name: &Name) -> Name {
    Name::new(Bytes::copy_from_slice(name)).unwrap_or_else(|_| name.clone())
}

impl Names {
    /// No names yet of a listing that is asked for at one moment, of a directory with this stamp; it will be fresh `until` another.
    pub(crate) fn filling(stamp: Option<Stamp>, (asked, until): (Moment, Moment), placing: Placing) -> Self {
        Names { stage: Stage::Filling, stamp, asked, until, placing, ..Names::default() }
    }

    /// The names of a directory that has none, which is fresh `until` then.
    pub(crate) fn none(until: Moment, placing: Placing) -> Self {
        Names { stage: Stage::All, until, placing, ..Names::default() }
    }

    /// Memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.slots.len() * (size_of::<Slot>() + NAME_COST)
            + self.overrides.len() * (64 + NAME_COST)
            + self.text
    }

    /// How many names are listed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.removed
    }

    /// What is known about a name at `now`, and how long that is fresh.
    pub(crate) fn find(&self, name: &[u8], now: Moment) -> (What, Moment) {
        match self.overrides.get(name) {
            Some(&(what, until)) if now < until => return (what, until),
            // The listing does not tell of it.
            Some(_) => return (What::Unknown, 0),
            None => {}
        }
        if !self.is_fresh(now) {
            return (What::Unknown, 0);
        }
        match self.slot_of(name).map(|at| &self.slots[at as usize]) {
            Some(slot) if slot.file.node == Node::default() => (What::Unknown, 0),
            Some(slot) => (What::File(slot.file), self.until),
            None if now < self.negative_until => (What::Absent, self.until.min(self.negative_until)),
            None => (What::Unknown, 0),
        }
    }

    /// What a name led to when that was last known.
    pub(crate) fn last_known(&self, name: &[u8]) -> What {
        if let Some(&(what, _)) = self.overrides.get(name) {
            return what;
        }
        match self.slot_of(name).map(|at| &self.slots[at as usize]) {
            Some(slot) if slot.file.node != Node::default() => What::File(slot.file),
            None if self.stage == Stage::All => What::Absent,
            _ => What::Unknown,
        }
    }

    /// Whether all names are known and fresh at `now`.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.stage == Stage::All && now < self.until
    }

    /// Whether a listing can be answered from here at `now`.
    pub(crate) fn is_listable(&self, now: Moment) -> bool {
        self.listable && self.is_fresh(now)
    }

    /// Whether the listing, which is being received, will be fresh for who opens the directory
    /// at `now`.
    pub(crate) fn will_tell(&self, now: Moment) -> bool {
        self.listable && self.stage == Stage::Filling && now < self.until
    }

    /// Whether something happened to a name and it is not known what.
    pub(crate) fn is_in_doubt(&self, name: &[u8]) -> bool {
        matches!(self.overrides.get(name), Some((What::Unknown, _)))
    }

    /// Whether the listing has been received.
    pub(crate) fn is_complete(&self) -> bool {
        self.stage == Stage::All
    }

    /// Attributes that came with it are fresh until then.
    pub(crate) fn attrs_hold(&mut self, until: Moment) {
        self.attrs_until = self.attrs_until.min(until);
    }

    /// It comes without attributes.
    pub(crate) fn come_alone(&mut self) {
        self.attrs_until = 0;
    }

    /// Whether it came with attributes, as a whole.
    pub(crate) fn have_attrs(&self) -> bool {
        self.stage == Stage::All && self.attrs_until > 0
    }

    /// What is listed under a name, if all names are known and fresh at `now`.
    pub(crate) fn listed(&self, name: &[u8], now: Moment) -> Option<File> {
        let at = self.slot_of(name).filter(|_| self.is_fresh(now))?;
        Some(self.slots[at as usize].file)
    }

    /// How much of the listing has been received.
    pub(crate) fn extent(&self) -> usize {
        self.slots.len()
    }

    /// The listing is no longer fresh.
    pub(crate) fn invalidate(&mut self) {
        (self.until, self.stamp) = (0, None);
        self.text -= self.overrides.keys().map(Bytes::len).sum::<usize>();
        self.overrides.clear();
    }

    /// The directory had this stamp when that was `asked`: if the listing was made under it, that is fresh until then, and the
    /// absence of other names until `absent`.
    pub(crate) fn confirm(&mut self, stamp: Stamp, asked: Moment, (until, absent): (Moment, Moment)) {
        if self.stage != Stage::All {
            return;
        }
        match self.stamp {
            Some(known) if known == stamp => {
                self.asked = self.asked.max(asked);
                (self.until, self.negative_until) = (self.until.max(until), self.negative_until.max(absent));
            }
            // Our own changes left no stamp; it ends when it would have ended.
            None => {}
            Some(_) => self.invalidate(),
        }
    }

    /// A change of ours gave the directory another stamp.
    pub(crate) fn restamp(&mut self) {
        self.stamp = None;
    }

    /// Learns at `now` what a name leads to, and until when that is fresh.
    pub(crate) fn learn(&mut self, name: &Name, what: What, (now, until): (Moment, Moment)) {
        let listed = self.is_fresh(now);
        if !listed && self.stage == Stage::All {
            // The listing was fresh once, and must not be again because the directory still has its stamp.
            self.restamp();
        }
        match what {
            What::File(file) if listed => self.learn_file(name, file, until),
            What::File(_) => self.put_override(name, what, until),
            What::Absent => {
                self.drop_slot(name);
                match listed && until <= self.negative_until {
                    true => self.drop_override(name),
                    false => self.put_override(name, What::Absent, until),
                }
            }
            What::Unknown if self.stage == Stage::Some => self.drop_override(name),
            What::Unknown => {
                self.listable = false;
                self.put_override(name, What::Unknown, Moment::MAX);
            }
        }
    }

    fn learn_file(&mut self, name: &Name, file: File, until: Moment) {
        if let Some(at) = self.slot_of(name) {
            self.drop_override(name);
            self.slots[at as usize].file = file;
        } else if let Some(cookie) = self.new_cookie(name) {
            self.drop_override(name);
            self.add(Slot { name: Some(own(name)), cookie, file });
        } else {
            self.listable = false;
            self.put_override(name, What::File(file), until);
        }
    }

    /// The cookie of a name that is new, if there can be one.
    fn new_cookie(&self, name: &[u8]) -> Option<u64> {
        let last = self.slots.last().map_or(0, |slot| slot.cookie);
        match self.placing {
            Placing::Last => (self.ascending && last < COOKIE_MAX).then_some(last + 1),
            Placing::ByName => Some(cookie_of(name)),
            Placing::Unknown => None,
        }
    }

    /// When the listing was last known to be as it is, and the stamp of the directory then, if it is all that is known of the
    /// names and was not called in question.
    pub(crate) fn undoubted(&self) -> Option<(Moment, Option<Stamp>)> {
        let known = self.until > 0 || self.stamp.is_some();
        let is_all = self.stage == Stage::All && self.listable && self.overrides.is_empty();
        (is_all && known).then_some((self.asked, self.stamp))
    }

    /// The files that single names led to when that was asked, where no listing tells, as far as that is fresh at `now`.
    pub(crate) fn single(&self, now: Moment) -> impl Iterator<Item = (&Bytes, File)> {
        let fresh = self.overrides.iter().filter(move |(_, (_, until))| now < *until);
        fresh.filter_map(
            |(name, (what, _))| if let What::File(file) = what { Some((name, *file)) } else { None },
        )
    }

    /// Puts names that came later where they belong, before the listing is read.
    pub(crate) fn put_in_order(&mut self) {
        if self.placing == Placing::ByName && !self.ascending {
            self.compact();
        }
    }

    /// Receives the next name of a listing; answers whether it leads where the listing says. What a change of ours tells of
    /// it is known better.
    pub(crate) fn receive(&mut self, mut slot: Slot) -> bool {
        let Some(name) = &slot.name else { return false };
        let listed = slot.file.node;
        match self.overrides.get(&name[..]) {
            Some((What::Absent, _)) => return false,
            Some((What::File(file), _)) => slot.file = *file,
            _ => {}
        }
        // A server that tells a name twice does not get two of them into the index.
        if self.slot_of(name).is_some() {
            return false;
        }
        let leads_there = slot.file.node == listed;
        self.add(Slot { name: Some(own(name)), ..slot });
        leads_there
    }

    /// The listing has been received.
    pub(crate) fn finish(&mut self) {
        self.stage = Stage::All;
        for (name, (what, until)) in std::mem::take(&mut self.overrides) {
            self.text -= name.len();
            let Ok(name) = Name::new(name) else { continue };
            match what {
                What::File(file) => self.learn_file(&name, file, until),
                What::Unknown => self.put_override(&name, what, until),
                What::Absent => {}
            }
        }
    }

    /// Where a listing goes on behind `cookie`; `None` when no such cookie was given out.
    pub(crate) fn position(&self, cookie: u64) -> Option<usize> {
        if cookie == 0 {
            return Some(0);
        }
        if self.ascending {
            return Some(self.slots.partition_point(|slot| slot.cookie <= cookie));
        }
        self.slots.iter().position(|slot| slot.cookie == cookie).map(|at| at + 1)
    }

    /// The files after that with node `after` in this order, as many as `count`; none when it is not listed.
    pub(crate) fn successors(&self, after: Node, order: Order, count: usize) -> Vec<Node> {
        let is_file = |(_, slot): &(&Name, &Slot)| slot.file.kind == Some(FileKind::Regular);
        let mut rest = self.from(0);
        let Some((last, _)) = rest.find(|(_, slot)| slot.file.node == after) else { return Vec::new() };
        if order == Order::Listed {
            return rest.filter(is_file).take(count).map(|(_, slot)| slot.file.node).collect();
        }
        let behind = self.from(0).filter(is_file).filter(|(name, _)| name[..] > last[..]);
        let mut files: Vec<(&[u8], Node)> = behind.map(|(name, slot)| (&name[..], slot.file.node)).collect();
        if files.len() > count {
            files.select_nth_unstable(count);
            files.truncate(count);
        }
        files.sort_unstable();
        files.into_iter().map(|(_, node)| node).collect()
    }

    /// The listing from a position on.
    pub(crate) fn from(&self, position: usize) -> impl Iterator<Item = (&Name, &Slot)> {
        let rest = self.slots.get(position..).unwrap_or_default();
        rest.iter().filter_map(|slot| Some((slot.name.as_ref()?, slot)))
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    fn slot_of(&self, name: &[u8]) -> Option<u32> {
        let is_it = |&at: &u32| self.slots[at as usize].name.as_deref() == Some(name);
        self.index.find(self.hash(name), is_it).copied()
    }

    fn put_override(&mut self, name: &Name, what: What, until: Moment) {
        if self.overrides.insert(Bytes::copy_from_slice(name), (what, until)).is_none() {
            self.text += name.len();
        }
    }

    fn drop_override(&mut self, name: &Name) {
        if self.overrides.remove(&name[..]).is_some() {
            self.text -= name.len();
        }
    }

    fn add(&mut self, slot: Slot) {
        let Some(name) = &slot.name else { return };
        self.ascending &= self.slots.last().is_none_or(|last| last.cookie < slot.cookie);
        self.text += name.len();
        let (hash, at) = (self.hash(name), self.slots.len() as u32);
        self.slots.push(slot);
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |&at: &u32| hasher.hash_one(slots[at as usize].name.as_deref().unwrap_or_default());
        self.index.insert_unique(hash, at, rehash);
    }

    fn drop_slot(&mut self, name: &Name) {
        let hash = self.hash(name);
        let slots = &self.slots;
        let is_it = |&at: &u32| slots[at as usize].name.as_deref() == Some(&name[..]);
        let Ok(found) = self.index.find_entry(hash, is_it) else { return };
        let (at, _) = found.remove();
        self.slots[at as usize].name = None;
        self.text -= name.len();
        self.removed += 1;
        if self.removed > REMOVED_KEPT && self.removed * 2 > self.slots.len() {
            self.compact();
        }
    }

    /// Positions are found again without the removed names only where cookies ascend; else the listing has to be fetched
    /// anew one day, so that it does not grow for ever. What is still being received is left alone.
    fn compact(&mut self) {
        if self.stage == Stage::Filling {
            return;
        }
        if !self.ascending && self.placing != Placing::ByName {
            return self.invalidate();
        }
        (self.removed, self.ascending) = (0, true);
        self.index.clear();
        let mut slots = std::mem::take(&mut self.slots);
        slots.retain(|slot| slot.name.is_some());
        slots.sort_by_key(|slot| slot.cookie);
        self.text -= slots.iter().filter_map(|slot| slot.name.as_deref()).map(<[u8]>::len).sum::<usize>();
        slots.into_iter().for_each(|slot| self.add(slot));
    }
}

#[cfg(test)]
mod tests;
