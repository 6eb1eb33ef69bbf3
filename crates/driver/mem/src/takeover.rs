// SPDX-License-Identifier: MIT OR Apache-2.0
//! Building the tree again from its log.
//!
//! What the log cannot say is how often doors refer to an inode, only whether they do; `Inode::unreference` has what
//! follows from that.

use crate::Mem;
use crate::content::{Content, Extent};
use crate::inode::{Body, Inode, State, time_of_nanos};
use crate::locks::Locks;
use crate::names::Names;
use crate::options::Options;
use crate::record::{Facts, Record};
use crate::store::{PAGES_MAX, Run, Store};
use crate::table::ByNumber;
use crate::xattr::Xattrs;
use outrigger_core::survive::{Layout, Log, Stored};
use outrigger_core::{Clock, Errno, Error, FileKind, Generation, Keep, Name, Node, Result, Target};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// The region of the log.
const LAYOUT: Layout = Layout::of("mem-log");
/// The most words of a log as short as can be: 32 GiB, of which only what is used takes memory.
const WORDS_MAX: u64 = 4 << 30;

outrigger_core::fields! {
    struct Head {
        /// The number of the memory file, plus 1.
        file: u64,
        /// Not 0 since there is a tree: a log without any is damaged.
        begun: u64,
    }
}

/// How many words describe a tree with these limits at most, roughly: for each inode with its name 128, for each page of
/// content 8. Trees of longer names and many links may find it too small.
fn words_for(options: &Options) -> usize {
    options.inodes.saturating_mul(128).saturating_add(options.size / 512).min(WORDS_MAX) as usize
}

/// What is said of a log that no version of this program can have written.
fn senseless() -> Error {
    Errno::EUCLEAN.because("the log of the tree in memory makes no sense; the tree is lost")
}

/// An inode of which the log has been read in part.
struct Draft {
    facts: Facts,
    referenced: bool,
    xattrs: Xattrs,
    content: Content,
    names: BTreeMap<u64, (Name, u64)>,
    last_number: u64,
    target: Option<Target>,
    locks: Locks,
}

impl Draft {
    fn new(facts: Facts) -> Self {
        Draft {
            facts,
            // The request that makes an inode refers to it.
            referenced: true,
            xattrs: Xattrs::default(),
            content: Content::default(),
            names: BTreeMap::new(),
            last_number: 0,
            target: None,
            locks: Locks::default(),
        }
    }
}

/// What has been read of a log.
struct Replay {
    store: Arc<Store>,
    drafts: ByNumber<Box<Draft>>,
    generation: Option<u64>,
    last: u64,
    next: u64,
}

impl Mem {
    /// The tree a former process left in `keep`, or an empty one; either survives this process.
    ///
    /// Of `options` the root directory's attributes matter for a new tree only.
    ///
    /// # Errors
    /// Those of the keep; `ENOSPC` for a region too small; `EPROTO` for a tree of another version of this program;
    /// `EUCLEAN` for one that makes no sense.
    pub fn with_keep(options: Options, clock: Arc<dyn Clock>, keep: Arc<dyn Keep>) -> Result<Self> {
        let words = <Head<'_>>::WORDS + Log::words_for(words_for(&options));
        let mut area = LAYOUT.attach(&*keep, words)?.area;
        let head = area.take_for::<Head<'_>>()?;
        let (noted, log) = (head.view::<Head<'_>>(), Log::open(area)?);
        let file = match noted.file().get().checked_sub(1).and_then(|number| RawFd::try_from(number).ok()) {
            _ if log.is_empty() && noted.begun().get() != 0 => return Err(senseless()),
            Some(number) => keep.adopt(number)?,
            None if !log.is_empty() => return Err(senseless()),
            None => {
                let file = Store::create()?;
                keep.hold(file.as_fd())?;
                file
            }
        };
        noted.file().set(file.as_raw_fd() as u64 + 1);
        let store = Store::kept(file);
        if log.is_empty() {
            store.begin(0);
            let mem = Mem::planted(options, clock, store, Some(log));
            noted.begun().set(1);
            return Ok(mem);
        }
        noted.begun().set(1);
        let mut replay = Replay { store, drafts: ByNumber::default(), generation: None, last: 0, next: 0 };
        let words = log.read();
        let mut rest = &words[..];
        while !rest.is_empty() {
            replay.take(Record::take(&mut rest)?)?;
        }
        replay.finish(options, clock, log)
    }
}

impl Replay {
    /// Adds what a record says. Of an inode that is not known it says nothing: that one is gone, or all of it follows.
    fn take(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Tree { generation, last, next } => {
                self.generation = Some(generation);
                (self.last, self.next) = (self.last.max(last), self.next.max(next));
                if self.next > PAGES_MAX || self.last == u64::MAX {
                    return Err(senseless());
                }
            }
            Record::Inode(facts) => self.take_facts(facts)?,
            Record::Gone(ino) => drop(self.drafts.remove(&ino)),
            Record::Referenced { ino, yes } => self.of(ino, |draft| draft.referenced = yes),
            Record::Name { dir, number, ino, name } => self.of(dir, |draft| {
                draft.last_number = draft.last_number.max(number);
                draft.names.insert(number, (name, ino));
            }),
            Record::NameGone { dir, number } => self.of(dir, |draft| drop(draft.names.remove(&number))),
            Record::Numbers { dir, last } => {
                self.of(dir, |draft| draft.last_number = draft.last_number.max(last));
            }
            Record::Content { ino, change } => {
                if let Some(draft) = self.drafts.get_mut(&ino)
                    && !draft.content.redo(change, &self.store)
                {
                    return Err(senseless());
                }
            }
            Record::Xattr { ino, name, value } => {
                self.of(ino, |draft| drop(draft.xattrs.0.insert(name, value)));
            }
            Record::XattrGone { ino, name } => self.of(ino, |draft| drop(draft.xattrs.0.remove(&name))),
            Record::Target { ino, target } => self.of(ino, |draft| draft.target = Some(target)),
            Record::Lock { ino, flock, owner, lock } => {
                self.of(ino, |draft| draft.locks.apply(flock, owner, lock));
            }
            Record::Unlocked { ino, flock, owner } => {
                self.of(ino, |draft| _ = draft.locks.release(flock, owner));
            }
            Record::Read { ino, nanos } => self.of(ino, |draft| draft.facts.atime = time_of_nanos(nanos)),
        }
        Ok(())
    }

    fn of(&mut self, ino: u64, change: impl FnOnce(&mut Draft)) {
        if let Some(draft) = self.drafts.get_mut(&ino) {
            change(draft);
        }
    }

    fn take_facts(&mut self, facts: Facts) -> Result<()> {
        if facts.ino == u64::MAX {
            return Err(senseless());
        }
        self.last = self.last.max(facts.ino);
        match self.drafts.get_mut(&facts.ino) {
            Some(draft) if draft.facts.kind != facts.kind => return Err(senseless()),
            Some(draft) => draft.facts = facts,
            None => drop(self.drafts.insert(facts.ino, Box::new(Draft::new(facts)))),
        }
        Ok(())
    }

    fn finish(mut self, options: Options, clock: Arc<dyn Clock>, log: Log) -> Result<Mem> {
        // Their last name and the last reference are gone, only that they are gone themselves was not written any more.
        self.drafts.retain(|_, draft| draft.facts.nlink > 0 || draft.referenced);
        self.settle_pages();
        self.check_directories()?;
        let generation = Generation(self.generation.ok_or_else(senseless)?);
        let mut mem = Mem::bare(options, clock, Arc::clone(&self.store), Some(log), generation);
        let mut listings = Vec::new();
        for (_, mut draft) in self.drafts.drain() {
            if !draft.names.is_empty() {
                listings.push((draft.facts.ino, std::mem::take(&mut draft.names)));
            }
            // A file that never had a name may be about to be handed out, in a reply that is sent again.
            if draft.facts.nlink == 0 && !draft.facts.unnamed {
                mem.doubtful.push(Node(draft.facts.ino));
            }
            let inode = draft.into_inode()?;
            let state = inode.state.read();
            mem.space.restore(state.content().map_or(0, Content::pages), state.xattrs.charge());
            drop(state);
            mem.table.insert(Arc::new(inode));
        }
        for (dir, names) in listings {
            mem.restore_names(dir, names)?;
        }
        mem.table.set_last(self.last);
        mem.store.begin(self.next);
        Ok(mem)
    }

    /// Decides which extents share pages, and empties the pages of the memory file that no file has.
    fn settle_pages(&mut self) {
        let contents = self.drafts.values_mut().map(|draft| &mut draft.content);
        let mut extents: Vec<&mut Extent> = contents.flat_map(Content::stored_mut).collect();
        extents.sort_unstable_by_key(|extent| extent.start());
        let (mut end, mut at) = (0, 0);
        while let Some(first) = extents.get(at).and_then(|extent| extent.start()) {
            self.store.empty(end, first - end);
            let from = at;
            end = first;
            while let Some(extent) = extents.get(at)
                && let Some(start) = extent.start().filter(|&start| start < end || at == from)
            {
                end = end.max(start + extent.pages);
                at += 1;
            }
            let run = Arc::new(Run::new(&self.store, first, end - first));
            extents[from..at].iter_mut().for_each(|extent| extent.belong_to(Arc::clone(&run)));
        }
        self.store.empty(end, PAGES_MAX - end);
        self.next = self.next.max(end);
    }

    /// Every directory is reached from the root in one way, or was removed.
    fn check_directories(&self) -> Result<()> {
        let is_dir = |draft: &Draft| draft.facts.kind == FileKind::Directory;
        let mut reached = HashSet::from([Node::ROOT.0]);
        let mut todo =
            vec![self.drafts.get(&Node::ROOT.0).filter(|draft| is_dir(draft)).ok_or_else(senseless)?];
        while let Some(dir) = todo.pop() {
            let below =
                dir.names.values().filter_map(|(_, ino)| self.drafts.get(ino).filter(|draft| is_dir(draft)));
            for below in below {
                if below.facts.parent != dir.facts.ino || !reached.insert(below.facts.ino) {
                    return Err(senseless());
                }
                todo.push(below);
            }
        }
        let in_use = |draft: &Draft| is_dir(draft) && draft.facts.nlink > 0 || !draft.names.is_empty();
        let count = self.drafts.values().filter(|draft| in_use(draft)).count();
        if reached.len() == count { Ok(()) } else { Err(senseless()) }
    }
}

impl Draft {
    fn into_inode(self) -> Result<Inode> {
        let mut content = self.content;
        content.size = self.facts.size;
        let body = match self.facts.kind {
            FileKind::Regular => Body::File(content),
            FileKind::Directory => Body::Dir(Names::starting_after(self.last_number)),
            FileKind::Symlink => Body::Link(self.target.ok_or_else(senseless)?),
            _ => Body::Special,
        };
        Ok(Inode::restored(self.facts, self.referenced, self.xattrs, body, self.locks))
    }
}

impl Mem {
    fn restore_names(&self, dir: u64, names: BTreeMap<u64, (Name, u64)>) -> Result<()> {
        let dir = self.table.get(Node(dir))?;
        let mut state = dir.state.write();
        let State { body: Body::Dir(listing), .. } = &mut *state else { return Err(senseless()) };
        for (number, (name, ino)) in names {
            let inode = self.table.get(Node(ino)).map_err(|_| senseless())?;
            if !listing.restore(number, name, inode) {
                return Err(senseless());
            }
        }
        Ok(())
    }
}
