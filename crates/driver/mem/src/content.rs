// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of one file: a sparse map of extents, each some pages of the [`Store`] or pages that are only reserved.
//!
//! A page is written in place while its file alone refers to it, and replaced by a new one once a copy or a reader does:
//! what was read once never changes. Pages the file no longer has are not freed at once but handed to the caller
//! for the change: until the change is in the log, the file still has them if this process dies.
//!
//! Bytes beyond the end of the file may be anything; they become zeroes when the file is extended over them. So making
//! a file shorter touches no page that it keeps.

use crate::space::Space;
use crate::store::{Pinned, Run, Store};
use bytes::BytesMut;
use outrigger_core::{FileSlice, Payload, Result, Wire};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The unit of allocation in bytes.
pub(crate) const PAGE: u64 = 4096;
/// Below this are the numbers of a file's pages: those its size allows, and reserved ones a gap has moved up.
pub(crate) const PAGES_MAX: u64 = 1 << 52;
/// The most pages in a run. Longer ones mean fewer extents, but one surviving page of a copy keeps the whole run.
const RUN: u64 = 16;
/// Reads of this many bytes and more are not copied: the door takes them from the memory file.
const UNCOPIED: u64 = 128 << 10;

static ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

/// Some pages of a file.
#[derive(Clone)]
pub(crate) struct Extent {
    /// The pages of the store and who else refers to them; none for pages that are reserved and read as zeroes.
    run: Option<Arc<Run>>,
    /// The first of them in the store.
    start: u64,
    /// How many pages it covers.
    pub pages: u64,
}

impl Extent {
    /// Pages that are reserved and read as zeroes.
    fn reserved(pages: u64) -> Self {
        Extent { run: None, start: 0, pages }
    }

    /// All pages of a run.
    fn of(run: Run) -> Self {
        Extent { start: run.first, pages: run.pages, run: Some(Arc::new(run)) }
    }

    /// The first page in the store, unless the pages are only reserved.
    pub fn start(&self) -> Option<u64> {
        self.run.as_ref().map(|_| self.start)
    }

    /// Makes `run` what its pages belong to.
    pub fn belong_to(&mut self, run: Arc<Run>) {
        self.run = Some(run);
    }

    /// `pages` pages from page `first` of this extent on, shared with it.
    fn part(&self, first: u64, pages: u64) -> Self {
        Extent { run: self.run.clone(), start: self.start + first, pages }
    }

    /// The first `pages` pages and the others.
    fn split(self, pages: u64) -> (Self, Self) {
        let at = self.start + pages;
        let (head, tail) = match self.run.map(Arc::try_unwrap) {
            None => (None, None),
            Some(Err(shared)) => (Some(Arc::clone(&shared)), Some(shared)),
            Some(Ok(own)) => {
                let (head, tail) = own.split(at);
                (Some(Arc::new(head)), Some(Arc::new(tail)))
            }
        };
        (
            Extent { run: head, start: self.start, pages },
            Extent { run: tail, start: at, pages: self.pages - pages },
        )
    }

    /// Takes over what `next` has, which follows in the file, when one run can hold both.
    fn join(&mut self, next: &mut Extent) -> bool {
        let joined = match (&mut self.run, &mut next.run) {
            (None, None) => true,
            (Some(run), Some(other)) => match (Arc::get_mut(run), Arc::get_mut(other)) {
                (Some(run), Some(other)) => {
                    let follows = self.start + self.pages == next.start && run.end() == other.first;
                    let fits = follows && run.pages + other.pages <= RUN;
                    if fits {
                        run.join(other);
                    }
                    fits
                }
                _ => false,
            },
            _ => false,
        };
        if joined {
            self.pages += next.pages;
        }
        joined
    }
}

/// A change of a file's content as the log has it. Pages are those of the file.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
#[wire(internal)]
pub(crate) enum Change {
    /// `pages` pages from `page` on are those of the store from `start` on, or reserved without `start`.
    #[wire(1)]
    Put { page: u64, pages: u64, start: Option<u64> },
    /// A hole.
    #[wire(2)]
    Cut(Range<u64>),
    /// Holes in the range became reserved.
    #[wire(3)]
    Reserve(Range<u64>),
    /// The range was removed, and what follows moved down.
    #[wire(4)]
    Collapse(Range<u64>),
    /// A hole was made by moving up what follows.
    #[wire(5)]
    Gap(Range<u64>),
}

/// What a change of content takes from and leaves to others.
pub(crate) struct Edit<'a> {
    space: &'a Space,
    store: &'a Arc<Store>,
    /// What changed, in this order.
    pub changes: Vec<Change>,
    /// Pages the file no longer has, to be freed once the changes are in the log.
    pub freed: Vec<Extent>,
}

impl<'a> Edit<'a> {
    pub fn new(space: &'a Space, store: &'a Arc<Store>) -> Self {
        Edit { space, store, changes: Vec::new(), freed: Vec::new() }
    }
}

/// The content of one file.
#[derive(Default)]
pub(crate) struct Content {
    /// The file's size in bytes.
    pub size: u64,
    /// By the number of their first page; they do not overlap.
    extents: BTreeMap<u64, Extent>,
    pages: u64,
}

impl Content {
    /// How many pages are allocated.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// All extents by their first pages.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &Extent)> {
        self.extents.iter().map(|(&first, extent)| (first, extent))
    }

    /// All extents that have pages in the store.
    pub fn stored_mut(&mut self) -> impl Iterator<Item = &mut Extent> {
        self.extents.values_mut().filter(|extent| extent.run.is_some())
    }

    fn covering(&self, page: u64) -> Option<(u64, &Extent)> {
        let (&first, extent) = self.extents.range(..=page).next_back()?;
        (first + extent.pages > page).then_some((first, extent))
    }

    fn next_from(&self, page: u64) -> Option<u64> {
        self.extents.range(page..).next().map(|(&first, _)| first)
    }

    /// Makes `page` the start of an extent if one covers it.
    fn split_at(&mut self, page: u64) {
        let Some((first, _)) = self.covering(page).filter(|(first, _)| *first < page) else { return };
        if let Some(extent) = self.extents.remove(&first) {
            let (head, tail) = extent.split(page - first);
            self.extents.insert(first, head);
            self.extents.insert(page, tail);
        }
    }

    /// Makes a hole of these pages; answers how many were allocated.
    fn remove(&mut self, pages: Range<u64>, freed: &mut Vec<Extent>) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        self.split_at(pages.start);
        self.split_at(pages.end);
        let mut removed = 0;
        for (_, extent) in self.extents.extract_if(pages, |_, _| true) {
            removed += extent.pages;
            freed.push(extent);
        }
        self.pages -= removed;
        removed
    }

    /// Puts an extent, already charged, into a hole.
    fn insert(&mut self, page: u64, mut extent: Extent) {
        self.pages += extent.pages;
        let before = self.extents.range_mut(..page).next_back();
        let joined =
            before.is_some_and(|(first, before)| first + before.pages == page && before.join(&mut extent));
        if !joined {
            self.extents.insert(page, extent);
        }
    }

    /// Makes a hole of these pages and gives back their space.
    fn cut(&mut self, pages: Range<u64>, edit: &mut Edit<'_>) {
        let removed = self.remove(pages.clone(), &mut edit.freed);
        if removed > 0 {
            edit.space.give_back_pages(removed);
            edit.changes.push(Change::Cut(pages));
        }
    }

    /// Puts a charged extent in the place of whatever is there, which is charged no more.
    fn put(&mut self, page: u64, extent: Extent, edit: &mut Edit<'_>) {
        edit.changes.push(Change::Put { page, pages: extent.pages, start: extent.start() });
        self.remove(page..page + extent.pages, &mut edit.freed);
        self.insert(page, extent);
    }

    /// Repeats a change of a former process; `false` when no file can have it. Pages then belong to no other file.
    pub fn redo(&mut self, change: Change, store: &Arc<Store>) -> bool {
        let freed = &mut Vec::new();
        let end = self.extents.last_key_value().map_or(0, |(first, extent)| first + extent.pages);
        if matches!(&change, Change::Gap(pages) if end + (pages.end - pages.start) > PAGES_MAX) {
            return false;
        }
        match change {
            Change::Put { page, pages, start } => {
                self.remove(page..page + pages, freed);
                let run = start.map(|start| Run::new(store, start, pages));
                self.insert(page, run.map_or_else(|| Extent::reserved(pages), Extent::of));
            }
            Change::Cut(pages) => drop(self.remove(pages, freed)),
            Change::Reserve(pages) => self.fill(self.holes(pages)),
            Change::Collapse(pages) => self.move_down(pages, freed),
            Change::Gap(pages) => self.move_up(pages),
        }
        true
    }

    /// Reads up to `len` bytes at `offset`.
    pub fn read(&self, offset: u64, len: u64, store: &Arc<Store>) -> Result<Payload> {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return Ok(Payload::EMPTY);
        }
        if end - offset >= UNCOPIED
            && let Some(slice) = self.in_one_piece(offset..end, store)
        {
            return Ok(Payload::File(slice));
        }
        let mut data = BytesMut::zeroed((end - offset) as usize);
        let start = self.covering(offset / PAGE).map_or(offset / PAGE, |(first, _)| first);
        for (&first, extent) in self.extents.range(start..end.div_ceil(PAGE)) {
            let (from, to) = ((first * PAGE).max(offset), ((first + extent.pages) * PAGE).min(end));
            if extent.run.is_some() {
                let at = extent.start * PAGE + (from - first * PAGE);
                store.read(at, &mut data[(from - offset) as usize..(to - offset) as usize])?;
            }
        }
        Ok(Payload::Bytes(data.freeze()))
    }

    /// The bytes of a range that is not empty where they are in the store, when they follow each other there.
    fn in_one_piece(&self, range: Range<u64>, store: &Arc<Store>) -> Option<FileSlice> {
        let (first, extent) = self.covering(range.start / PAGE)?;
        let offset = extent.start()? * PAGE + (range.start - first * PAGE);
        let (mut page, mut next, mut runs) = (first, extent.start, Vec::new());
        for (&first, extent) in self.extents.range(first..range.end.div_ceil(PAGE)) {
            if first != page || extent.start()? != next {
                return None;
            }
            runs.push(Arc::clone(extent.run.as_ref()?));
            (page, next) = (page + extent.pages, next + extent.pages);
        }
        let whole = page * PAGE >= range.end;
        let len = u32::try_from(range.end - range.start).ok()?;
        whole.then(|| FileSlice { file: Arc::new(Pinned::new(store, runs)), offset, len })
    }

    /// Writes as much of `data` at `offset` as there is space for; answers how many bytes.
    pub fn write(&mut self, offset: u64, data: &[u8], edit: &mut Edit<'_>) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.clear_tail(offset, edit)?;
        let done = self.overwrite(offset, data, edit)?;
        if done > 0 {
            self.size = self.size.max(offset + done as u64);
        }
        Ok(done)
    }

    /// Writes like [`Content::write`], but leaves the size alone.
    fn overwrite(&mut self, offset: u64, data: &[u8], edit: &mut Edit<'_>) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let (at, rest) = (offset + done as u64, &data[done..]);
            let written = match self.write_in_place(at, rest, edit) {
                Ok(0) => self.write_to_new(at, rest, edit),
                written => written,
            };
            match written {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes into the pages that hold `at`, when there are some and nothing else refers to them.
    fn write_in_place(&mut self, at: u64, data: &[u8], edit: &mut Edit<'_>) -> Result<usize> {
        let page = at / PAGE;
        let Some((&first, extent)) = self.extents.range_mut(..=page).next_back() else { return Ok(0) };
        let (from, len) = (at - first * PAGE, extent.pages * PAGE);
        if from >= len || extent.run.as_mut().is_none_or(|run| Arc::get_mut(run).is_none()) {
            return Ok(0);
        }
        let count = data.len().min((len - from) as usize);
        edit.store.write(extent.start * PAGE + from, &data[..count])?;
        Ok(count)
    }

    /// Writes into new pages, which take the place of those they cover.
    fn write_to_new(&mut self, at: u64, data: &[u8], edit: &mut Edit<'_>) -> Result<usize> {
        let (page, skip) = (at / PAGE, at % PAGE);
        let old = self
            .covering(page)
            .map(|(first, extent)| extent.part(page - first, extent.pages - (page - first)));
        let room = match &old {
            Some(old) => old.pages,
            None => self.next_from(page).map_or(u64::MAX, |next| next - page),
        };
        let mut end = (room.min(RUN) * PAGE).min(skip + data.len() as u64);
        let mut charged = 0;
        if old.is_none() {
            charged = edit.space.take_some_pages(end.div_ceil(PAGE));
            end = end.min(charged * PAGE);
        }
        if end == 0 {
            return Ok(0);
        }
        let data = &data[..(end - skip) as usize];
        match new_pages(old.as_ref(), skip, data, edit.store) {
            Ok(extent) => self.put(page, extent, edit),
            Err(error) => {
                edit.space.give_back_pages(charged);
                return Err(error);
            }
        }
        Ok(data.len())
    }

    /// Makes `range`, which lies within one page, read as zeroes.
    fn zero_within_page(&mut self, range: Range<u64>, edit: &mut Edit<'_>) -> Result<()> {
        let stored = self.covering(range.start / PAGE).is_some_and(|(_, extent)| extent.run.is_some());
        if stored && range.start < range.end {
            // The page is allocated, so this never takes space.
            self.overwrite(range.start, &ZEROES[..(range.end - range.start) as usize], edit)?;
        }
        Ok(())
    }

    /// Makes zeroes of the bytes between the end of the file and `to`, to which the file is about to be extended.
    fn clear_tail(&mut self, to: u64, edit: &mut Edit<'_>) -> Result<()> {
        let page_end = self.size.div_ceil(PAGE) * PAGE;
        self.zero_within_page(self.size..to.min(page_end), edit)
    }

    /// Zeroes the parts of pages at both ends of `range`; answers the whole pages in between.
    fn zero_edges(&mut self, range: Range<u64>, edit: &mut Edit<'_>) -> Result<Range<u64>> {
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if range.start < first * PAGE {
            self.zero_within_page(range.start..range.end.min(first * PAGE), edit)?;
        }
        if first <= last && last * PAGE < range.end {
            self.zero_within_page(last * PAGE..range.end, edit)?;
        }
        Ok(first..last.max(first))
    }

    /// Makes a hole of the bytes in `range`: whole pages are freed, parts of pages zeroed.
    pub fn punch(&mut self, range: Range<u64>, edit: &mut Edit<'_>) -> Result<()> {
        let whole = self.zero_edges(range, edit)?;
        self.cut(whole, edit);
        Ok(())
    }

    /// Makes the bytes in `range`, all of them allocated, read as zeroes.
    pub fn zero(&mut self, range: Range<u64>, edit: &mut Edit<'_>) -> Result<()> {
        let whole = self.zero_edges(range, edit)?;
        if !whole.is_empty() {
            self.put(whole.start, Extent::reserved(whole.end - whole.start), edit);
        }
        Ok(())
    }

    /// Sets the size: frees what lies beyond, or extends with a hole.
    pub fn truncate(&mut self, size: u64, edit: &mut Edit<'_>) -> Result<()> {
        self.clear_tail(size, edit)?;
        self.cut(size.div_ceil(PAGE)..u64::MAX, edit);
        self.size = size;
        Ok(())
    }

    /// Frees everything.
    pub fn clear(&mut self, edit: &mut Edit<'_>) {
        self.cut(0..u64::MAX, edit);
        self.size = 0;
    }

    /// Makes the size at least `size`.
    pub fn extend(&mut self, size: u64, edit: &mut Edit<'_>) -> Result<()> {
        self.clear_tail(size, edit)?;
        self.size = self.size.max(size);
        Ok(())
    }

    /// Allocates every page of `pages` that is a hole.
    pub fn reserve(&mut self, pages: Range<u64>, edit: &mut Edit<'_>) -> Result<()> {
        let holes = self.holes(pages.clone());
        if !holes.is_empty() {
            edit.space.take_pages(holes.iter().map(|hole| hole.end - hole.start).sum())?;
            self.fill(holes);
            edit.changes.push(Change::Reserve(pages));
        }
        Ok(())
    }

    fn fill(&mut self, holes: Vec<Range<u64>>) {
        for hole in holes {
            self.insert(hole.start, Extent::reserved(hole.end - hole.start));
        }
    }

    fn holes(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut at = self.covering(pages.start).map_or(pages.start, |(first, extent)| first + extent.pages);
        let mut holes = Vec::new();
        for (&first, extent) in self.extents.range(at.min(pages.end)..pages.end) {
            if at < first {
                holes.push(at..first);
            }
            at = first + extent.pages;
        }
        if at < pages.end {
            holes.push(at..pages.end);
        }
        holes
    }

    /// Removes `pages` and moves what follows down.
    pub fn collapse(&mut self, pages: Range<u64>, edit: &mut Edit<'_>) {
        let before = self.pages;
        self.move_down(pages.clone(), &mut edit.freed);
        edit.space.give_back_pages(before - self.pages);
        self.size -= (pages.end - pages.start) * PAGE;
        edit.changes.push(Change::Collapse(pages));
    }

    fn move_down(&mut self, pages: Range<u64>, freed: &mut Vec<Extent>) {
        let count = pages.end - pages.start;
        self.remove(pages.clone(), freed);
        let tail = self.extents.split_off(&pages.end);
        self.extents.extend(tail.into_iter().map(|(first, extent)| (first - count, extent)));
    }

    /// Moves what follows page `pages.start` up to make a hole of `pages`.
    pub fn open_gap(&mut self, pages: Range<u64>, edit: &mut Edit<'_>) {
        self.move_up(pages.clone());
        self.size += (pages.end - pages.start) * PAGE;
        edit.changes.push(Change::Gap(pages));
    }

    fn move_up(&mut self, pages: Range<u64>) {
        let count = pages.end - pages.start;
        self.split_at(pages.start);
        let tail = self.extents.split_off(&pages.start);
        self.extents.extend(tail.into_iter().map(|(first, extent)| (first + count, extent)));
    }

    /// The first `most` extents of `pages`, cut to it, sharing their runs; and up to which page they are all there are.
    pub fn share(&self, pages: Range<u64>, most: usize) -> (Vec<(u64, Extent)>, u64) {
        let start = self.covering(pages.start).map_or(pages.start, |(first, _)| first);
        let cut = |(&first, extent): (&u64, &Extent)| {
            let from = first.max(pages.start);
            let to = (first + extent.pages).min(pages.end);
            (from, extent.part(from - first, to - from))
        };
        let mut found = self.extents.range(start..pages.end).map(cut);
        let shared: Vec<_> = found.by_ref().take(most).collect();
        let end = found.next().map_or(pages.end, |(first, _)| first);
        (shared, end)
    }

    /// Makes `pages` what [`Content::share`] found, which is charged already.
    pub fn take_in(
        &mut self,
        pages: Range<u64>,
        extents: Vec<(u64, Extent)>,
        edit: &mut Edit<'_>,
    ) -> Result<()> {
        self.clear_tail(pages.start * PAGE, edit)?;
        self.cut(pages.clone(), edit);
        for (page, extent) in extents {
            self.put(page, extent, edit);
        }
        self.size = self.size.max(pages.end * PAGE);
        Ok(())
    }

    /// The first byte at or after `offset` that is not in a hole.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let page = offset / PAGE;
        let found = match self.covering(page) {
            Some(_) => offset,
            None => self.next_from(page)? * PAGE,
        };
        (found < self.size).then_some(found)
    }

    /// The first byte at or after `offset` that is in a hole; the end of the file counts as one.
    pub fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut page = offset / PAGE;
        while let Some((first, extent)) = self.covering(page) {
            page = first + extent.pages;
        }
        Some((page * PAGE).max(offset).min(self.size))
    }
}

/// New pages that hold `data` from byte `skip` on, and around it what `old` has.
fn new_pages(old: Option<&Extent>, skip: u64, data: &[u8], store: &Arc<Store>) -> Result<Extent> {
    let end = skip + data.len() as u64;
    let run = store.allocate(end.div_ceil(PAGE))?;
    let copy = |range: Range<u64>| -> Result<()> {
        let Some(from) = old.and_then(Extent::start).filter(|_| !range.is_empty()) else { return Ok(()) };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        store.read(from * PAGE + range.start, &mut bytes)?;
        store.write(run.first * PAGE + range.start, &bytes)
    };
    copy(0..skip)?;
    copy(end..run.pages * PAGE)?;
    store.write(run.first * PAGE + skip, data)?;
    Ok(Extent::of(run))
}

#[cfg(test)]
mod tests;
