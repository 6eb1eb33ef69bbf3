// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known about the names in one directory: all of them in the order in which the tree lists them, or some.

use crate::moment::Moment;
use crate::siblings::Order;
use bytes::Bytes;
use hashbrown::HashTable;
use outrigger_core::reply::COOKIE_MAX;
use outrigger_core::{FileKind, Generation, Name, Node, Time};
use std::collections::{BinaryHeap, HashMap};
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
    /// Single names that somebody asked for.
    Some,
    /// A listing is being received.
    Filling,
    /// Every name.
    All,
}

/// The names in one directory.
pub(crate) struct Names {
    stage: Stage,
    /// The listing, in the tree's order.
    slots: Vec<Slot>,
    /// Slots by name.
    index: HashTable<u32>,
    hasher: RandomState,
    /// Names about which more is known than the listing tells.
    odd: HashMap<Bytes, (What, Moment)>,
    /// How long the listing is believed.
    until: Moment,
    /// How long the attributes are believed that came with it.
    attrs_until: Moment,
    stamp: Option<Stamp>,
    /// Whether each cookie is larger than those before it.
    ascending: bool,
    /// Whether the slots are exactly what a listing shows.
    listable: bool,
    /// Slots whose name was removed.
    gone: usize,
    /// Bytes of all names.
    text: usize,
}

/// Removed names that are kept at least, to spare the work of leaving them out.
const GONE_KEPT: usize = 64;
/// What a name costs beside its slot and its bytes.
const NAME_COST: usize = 56;

impl Default for Names {
    fn default() -> Self {
        Names {
            stage: Stage::Some,
            slots: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            odd: HashMap::new(),
            until: 0,
            attrs_until: Moment::MAX,
            stamp: None,
            ascending: true,
            listable: true,
            gone: 0,
            text: 0,
        }
    }
}

/// A name of its own: one of a message may be a slice of all of the message.
fn own(name: &Name) -> Name {
    Name::new(Bytes::copy_from_slice(name)).unwrap_or_else(|_| name.clone())
}

impl Names {
    /// No names yet of a listing that is to come, of a directory with this stamp; it will be believed `until` then.
    pub(crate) fn filling(stamp: Option<Stamp>, until: Moment) -> Self {
        Names { stage: Stage::Filling, stamp, until, ..Names::default() }
    }

    /// Memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.slots.len() * (size_of::<Slot>() + NAME_COST) + self.odd.len() * (64 + NAME_COST) + self.text
    }

    /// How many names are listed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.gone
    }

    /// What is known about a name at `now`, and how long that is believed.
    pub(crate) fn find(&self, name: &[u8], now: Moment) -> (What, Moment) {
        if let Some(&(what, until)) = self.odd.get(name)
            && now < until
        {
            return (what, until);
        }
        if !self.is_believed(now) {
            return (What::Unknown, 0);
        }
        match self.slot_of(name).map(|at| &self.slots[at as usize]) {
            Some(slot) if slot.file.node == Node::default() => (What::Unknown, 0),
            Some(slot) => (What::File(slot.file), self.until),
            None => (What::Absent, self.until),
        }
    }

    /// What a name led to when that was last known.
    pub(crate) fn last_known(&self, name: &[u8]) -> What {
        if let Some(&(what, _)) = self.odd.get(name) {
            return what;
        }
        match self.slot_of(name).map(|at| &self.slots[at as usize]) {
            Some(slot) if slot.file.node != Node::default() => What::File(slot.file),
            None if self.stage == Stage::All => What::Absent,
            _ => What::Unknown,
        }
    }

    /// Whether all names are known and believed at `now`.
    pub(crate) fn is_believed(&self, now: Moment) -> bool {
        self.stage == Stage::All && now < self.until
    }

    /// Whether a listing can be answered from here at `now`.
    pub(crate) fn is_listable(&self, now: Moment) -> bool {
        self.listable && self.is_believed(now)
    }

    /// Whether the listing, which is being received, will tell what there is at `now`: whoever opens the directory now
    /// need not ask for another.
    pub(crate) fn will_tell(&self, now: Moment) -> bool {
        self.listable && self.stage == Stage::Filling && now < self.until
    }

    /// Whether something happened to a name and it is not known what.
    pub(crate) fn is_in_doubt(&self, name: &[u8]) -> bool {
        matches!(self.odd.get(name), Some((What::Unknown, _)))
    }

    /// Whether the listing has been received.
    pub(crate) fn is_complete(&self) -> bool {
        self.stage == Stage::All
    }

    /// How long the listing is believed.
    pub(crate) fn until(&self) -> Moment {
        self.until
    }

    /// How long all attributes are believed that came with it.
    pub(crate) fn attrs_until(&self) -> Moment {
        self.attrs_until
    }

    /// Attributes that came with it are believed until then.
    pub(crate) fn attrs_hold(&mut self, until: Moment) {
        self.attrs_until = self.attrs_until.min(until);
    }

    /// How much of the listing has been received.
    pub(crate) fn extent(&self) -> usize {
        self.slots.len()
    }

    /// No longer believes the listing.
    pub(crate) fn distrust(&mut self) {
        (self.until, self.stamp) = (0, None);
        self.text -= self.odd.keys().map(Bytes::len).sum::<usize>();
        self.odd.clear();
    }

    /// The directory now has this stamp: believes the listing until then if that is the stamp it was made under.
    pub(crate) fn confirm(&mut self, stamp: Stamp, until: Moment) {
        if self.stage != Stage::All {
            return;
        }
        match self.stamp {
            Some(known) if known == stamp => self.until = self.until.max(until),
            // Our own changes left no stamp; it ends when it would have ended.
            None => {}
            Some(_) => self.distrust(),
        }
    }

    /// A change of ours gave the directory another stamp.
    pub(crate) fn restamp(&mut self) {
        self.stamp = None;
    }

    /// Learns at `now` what a name leads to, and until when that is believed.
    pub(crate) fn learn(&mut self, name: &Name, what: What, (now, until): (Moment, Moment)) {
        let listed = self.is_believed(now);
        if !listed && self.stage == Stage::All {
            // The listing was believed once, and must not be again because the directory still has its stamp.
            self.restamp();
        }
        match what {
            What::File(file) if listed => self.learn_file(name, file, until),
            What::File(_) => self.put_odd(name, what, until),
            What::Absent => {
                self.drop_slot(name);
                match listed {
                    true => self.drop_odd(name),
                    false => self.put_odd(name, What::Absent, until),
                }
            }
            What::Unknown if self.stage == Stage::Some => self.drop_odd(name),
            What::Unknown => {
                self.listable = false;
                self.put_odd(name, What::Unknown, Moment::MAX);
            }
        }
    }

    fn learn_file(&mut self, name: &Name, file: File, until: Moment) {
        if let Some(at) = self.slot_of(name) {
            self.drop_odd(name);
            self.slots[at as usize].file = file;
        } else if let Some(cookie) = self.next_cookie() {
            self.drop_odd(name);
            self.add(Slot { name: Some(own(name)), cookie, file });
        } else {
            self.listable = false;
            self.put_odd(name, What::File(file), until);
        }
    }

    /// A cookie behind all others, if there is such a thing.
    fn next_cookie(&self) -> Option<u64> {
        let last = self.slots.last().map_or(0, |slot| slot.cookie);
        (self.ascending && last < COOKIE_MAX).then_some(last + 1)
    }

    /// Receives the next name of a listing; answers whether it leads where the listing says. What a change of ours tells of
    /// it is known better.
    pub(crate) fn receive(&mut self, mut slot: Slot) -> bool {
        let Some(name) = &slot.name else { return false };
        let told = slot.file.node;
        match self.odd.get(&name[..]) {
            Some((What::Absent, _)) => return false,
            Some((What::File(file), _)) => slot.file = *file,
            _ => {}
        }
        // A server that tells a name twice does not get two of them into the index.
        if self.slot_of(name).is_some() {
            return false;
        }
        let leads_there = slot.file.node == told;
        self.add(Slot { name: Some(own(name)), ..slot });
        leads_there
    }

    /// The listing has been received.
    pub(crate) fn finish(&mut self) {
        self.stage = Stage::All;
        for (name, (what, until)) in std::mem::take(&mut self.odd) {
            self.text -= name.len();
            let Ok(name) = Name::new(name) else { continue };
            match what {
                What::File(file) => self.learn_file(&name, file, until),
                What::Unknown => self.put_odd(&name, what, until),
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
        // The first of those behind it, the last of them on top.
        let mut first: BinaryHeap<(&[u8], Node)> = BinaryHeap::new();
        for (name, slot) in self.from(0).filter(is_file).filter(|(name, _)| name[..] > last[..]) {
            if first.len() == count && first.peek().is_none_or(|(most, _)| &name[..] >= *most) {
                continue;
            }
            first.push((name, slot.file.node));
            if first.len() > count {
                first.pop();
            }
        }
        first.into_sorted_vec().into_iter().map(|(_, node)| node).collect()
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

    fn put_odd(&mut self, name: &Name, what: What, until: Moment) {
        if self.odd.insert(Bytes::copy_from_slice(name), (what, until)).is_none() {
            self.text += name.len();
        }
    }

    fn drop_odd(&mut self, name: &Name) {
        if self.odd.remove(&name[..]).is_some() {
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
        self.gone += 1;
        if self.gone > GONE_KEPT && self.gone * 2 > self.slots.len() {
            self.leave_out_gone();
        }
    }

    /// Positions are found again without the removed names only where cookies ascend; else the listing has to be fetched
    /// anew one day, so that it does not grow for ever. What is still being received is left alone.
    fn leave_out_gone(&mut self) {
        if self.stage == Stage::Filling {
            return;
        }
        if !self.ascending {
            return self.distrust();
        }
        self.gone = 0;
        self.index.clear();
        let slots = std::mem::take(&mut self.slots);
        self.text -= slots.iter().filter_map(|slot| slot.name.as_deref()).map(<[u8]>::len).sum::<usize>();
        slots.into_iter().filter(|slot| slot.name.is_some()).for_each(|slot| self.add(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("a name")
    }

    fn leading(node: u64) -> File {
        File { node: Node(node), generation: Generation(1), ino: node, kind: None }
    }

    fn file(node: u64) -> What {
        What::File(leading(node))
    }

    fn slot(text: &str, cookie: u64, node: u64) -> Slot {
        Slot { name: Some(name(text)), cookie, file: leading(node) }
    }

    fn listed(cookies: [u64; 3]) -> Names {
        let mut names = Names::filling(Some((Time::new(1, 0), Time::new(1, 0))), 100);
        for (text, cookie) in ["a", "b", "c"].iter().zip(cookies) {
            names.receive(slot(text, cookie, cookie + 10));
        }
        names.finish();
        names
    }

    fn shown(names: &Names, cookie: u64) -> String {
        let position = names.position(cookie).expect("a known cookie");
        names.from(position).map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn single_names_are_believed_as_long_as_told() {
        let mut names = Names::default();
        names.learn(&name("a"), file(2), (0, 10));
        names.learn(&name("b"), What::Absent, (0, 20));
        assert_eq!(names.find(b"a", 9), (file(2), 10));
        assert_eq!(names.find(b"a", 10).0, What::Unknown);
        assert_eq!(names.find(b"b", 10), (What::Absent, 20));
        assert_eq!(names.find(b"c", 0).0, What::Unknown);
        names.learn(&name("b"), What::Unknown, (0, 0));
        assert_eq!(names.find(b"b", 0).0, What::Unknown);
    }

    #[test]
    fn a_listing_tells_what_is_not_there_and_follows_changes() {
        let mut names = listed([1, 2, 3]);
        assert_eq!((names.find(b"b", 99).0, names.find(b"x", 99).0), (file(12), What::Absent));
        assert_eq!(names.find(b"x", 100).0, What::Unknown);
        names.learn(&name("b"), What::Absent, (0, 0));
        names.learn(&name("x"), file(7), (0, 0));
        names.learn(&name("c"), file(8), (0, 0));
        assert_eq!((names.find(b"b", 0).0, names.find(b"x", 0).0), (What::Absent, file(7)));
        assert_eq!(names.find(b"c", 0).0, file(8));
        assert_eq!((shown(&names, 0), shown(&names, 2)), ("a c x".into(), "c x".into()));
        assert!(names.is_listable(0));
        names.learn(&name("a"), What::Unknown, (0, 0));
        assert_eq!(names.find(b"a", 0).0, What::Unknown);
        assert!(!names.is_listable(0) && names.is_believed(0));
    }

    #[test]
    fn what_happens_while_a_listing_arrives_wins() {
        let mut names = Names::filling(None, 100);
        names.receive(slot("a", 1, 11));
        names.receive(slot("b", 2, 12));
        names.learn(&name("a"), What::Absent, (0, 9));
        names.learn(&name("c"), What::Absent, (0, 9));
        names.learn(&name("d"), file(14), (0, 9));
        names.learn(&name("f"), What::Unknown, (0, 9));
        for (text, cookie) in [("c", 3), ("d", 4), ("b", 5), ("e", 6), ("f", 7)] {
            names.receive(slot(text, cookie, 20 + cookie));
        }
        names.finish();
        for (text, what) in
            [("a", What::Absent), ("b", file(12)), ("d", file(14)), ("e", file(26)), ("f", What::Unknown)]
        {
            assert_eq!(names.find(text.as_bytes(), 50).0, what, "{text}");
        }
        assert_eq!(shown(&names, 0), "b d e f");
        assert!(!names.is_listable(50), "f may be there or not");
    }

    /// A directory that was made while it was listed, and could not be removed then because it was not empty, was once
    /// missing from what whoever opened its parent then was shown.
    #[test]
    fn a_name_in_doubt_is_not_missing_from_the_listing_that_arrives() {
        let mut names = Names::filling(None, 100);
        names.learn(&name("d"), file(14), (0, 9));
        assert!(names.will_tell(50));
        names.receive(slot("d", 1, 21));
        names.learn(&name("d"), What::Unknown, (0, 9));
        assert!(!names.will_tell(50), "whoever comes now gets another listing");
        names.finish();
        assert_eq!(shown(&names, 0), "d");
        assert!(names.is_in_doubt(b"d") && names.find(b"d", 0).0 == What::Unknown);
    }

    #[test]
    fn a_listing_that_grew_old_and_was_contradicted_does_not_come_back() {
        for what in [file(7), What::Absent, What::Unknown] {
            let mut names = listed([1, 2, 3]);
            names.learn(&name("b"), what, (150, 160));
            names.confirm((Time::new(1, 0), Time::new(1, 0)), 300);
            assert!(!names.is_believed(200), "{what:?}");
        }
    }

    #[test]
    fn a_listing_holds_while_the_directory_has_its_stamp() {
        let stamp = |secs| (Time::new(secs, 0), Time::new(secs, 0));
        let mut names = listed([1, 2, 3]);
        names.confirm(stamp(1), 200);
        assert!(names.is_believed(199));
        names.restamp();
        names.confirm(stamp(2), 300);
        assert!(
            names.is_believed(199) && !names.is_believed(200),
            "a change of ours neither ends nor extends it"
        );
        let mut names = listed([1, 2, 3]);
        names.confirm(stamp(2), 200);
        assert!(!names.is_believed(0));
    }

    #[test]
    fn cookies_in_any_order_are_found_again() {
        let mut names = listed([30, 10, 20]);
        assert_eq!((shown(&names, 30), shown(&names, 10)), ("b c".into(), "c".into()));
        assert!(names.position(15).is_none());
        names.learn(&name("b"), What::Absent, (0, 0));
        assert_eq!(shown(&names, 10), "c");
        names.learn(&name("d"), file(5), (0, 50));
        assert!(!names.is_listable(0) && names.find(b"d", 0).0 == file(5));
    }

    #[test]
    fn making_and_removing_names_for_ever_needs_no_more_memory() {
        let mut names = listed([1, 2, 3]);
        let before = names.weight();
        for round in 0..10_000 {
            let text = name(&format!("temporary-{round}"));
            names.learn(&text, file(9), (0, 50));
            names.learn(&text, What::Absent, (0, 50));
        }
        assert!(names.weight() < before + 200 * (size_of::<Slot>() + NAME_COST), "{}", names.weight());
        assert_eq!(shown(&names, 1), "b c");
        assert_eq!(names.len(), 3);
    }
}
