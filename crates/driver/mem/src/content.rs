// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of one file: a sparse map of extents whose buffers are shared with readers and copies.
//!
//! An extent covers whole pages of [`PAGE`] bytes. Its buffer may end before its last page does; the rest reads as
//! zeroes. So a small file costs little, and a reserved or zeroed range of any length costs nothing but its charge.
//! A buffer is changed in place while the file alone holds it, and replaced page-wise once a reader or a copy does:
//! what was read once never changes.
//!
//! Bytes beyond the end of the file are zeroes or holes at all times, so extending it needs no work.

use crate::space::Space;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

/// The unit of allocation in bytes.
pub(crate) const PAGE: u64 = 4096;
/// The most bytes one buffer holds. Larger ones mean fewer extents, but one surviving page keeps the whole buffer.
const RUN: u64 = 64 << 10;
/// The smallest buffer, in bytes: small appends do not reallocate each time.
const SMALLEST: u64 = 64;

static ZEROES: [u8; RUN as usize] = [0; RUN as usize];

/// Some pages of a file.
#[derive(Clone)]
pub(crate) struct Extent {
    buf: Arc<[u8]>,
    /// Where the extent starts in `buf`, in bytes.
    start: u64,
    /// How many pages it covers.
    pub pages: u64,
}

impl Extent {
    /// Pages that read as zeroes.
    pub fn zeroes(pages: u64) -> Self {
        Extent { buf: Arc::new([]), start: 0, pages }
    }

    /// The part of `buf` that belongs to the extent.
    fn filled(&self) -> Range<u64> {
        let end = (self.start + self.pages * PAGE).min(self.buf.len() as u64);
        self.start.min(end)..end
    }

    /// `pages` pages from page `first` of this extent on.
    fn part(&self, first: u64, pages: u64) -> Self {
        let start = self.start + first * PAGE;
        if start >= self.buf.len() as u64 {
            return Extent::zeroes(pages);
        }
        Extent { buf: Arc::clone(&self.buf), start, pages }
    }

    /// The filled bytes of `range`, counted from the extent's start, without a copy.
    fn bytes(&self, range: Range<u64>) -> Bytes {
        let filled = self.filled();
        let start = (filled.start + range.start).min(filled.end);
        let end = (filled.start + range.end).min(filled.end);
        Bytes::from_owner(Slice { buf: Arc::clone(&self.buf), range: start as usize..end as usize })
    }
}

/// A piece of a shared buffer on its way to a reader.
struct Slice {
    buf: Arc<[u8]>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.buf[self.range.clone()]
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

    fn covering(&self, page: u64) -> Option<(u64, &Extent)> {
        let (&first, extent) = self.extents.range(..=page).next_back()?;
        (first + extent.pages > page).then_some((first, extent))
    }

    fn next_from(&self, page: u64) -> Option<u64> {
        self.extents.range(page..).next().map(|(&first, _)| first)
    }

    /// Makes `page` the start of an extent if one covers it.
    fn split_at(&mut self, page: u64) {
        let Some((first, extent)) = self.covering(page) else { return };
        let before = page - first;
        if before > 0 {
            let (head, tail) = (extent.part(0, before), extent.part(before, extent.pages - before));
            self.extents.insert(first, head);
            self.extents.insert(page, tail);
        }
    }

    /// Makes a hole of these pages; answers how many were allocated.
    pub fn remove(&mut self, pages: Range<u64>) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        self.split_at(pages.start);
        self.split_at(pages.end);
        let removed = self.extents.extract_if(pages, |_, _| true).map(|(_, extent)| extent.pages).sum();
        self.pages -= removed;
        removed
    }

    /// Puts an extent, already charged, into a hole.
    pub fn insert(&mut self, page: u64, extent: Extent) {
        self.pages += extent.pages;
        self.extents.insert(page, extent);
    }

    /// Reads up to `len` bytes at `offset`: buffers to be taken one after the other.
    pub fn read(&self, offset: u64, len: u64) -> Vec<Bytes> {
        let end = offset.saturating_add(len).min(self.size);
        let mut at = offset;
        let mut chunks = Vec::new();
        if at >= end {
            return chunks;
        }
        let start = self.covering(at / PAGE).map_or(at / PAGE, |(first, _)| first);
        for (&first, extent) in self.extents.range(start..end.div_ceil(PAGE)) {
            let (from, to) = (first * PAGE, ((first + extent.pages) * PAGE).min(end));
            push_zeroes(&mut chunks, from.saturating_sub(at));
            at = at.max(from);
            let bytes = extent.bytes(at - from..to - from);
            at += bytes.len() as u64;
            if !bytes.is_empty() {
                chunks.push(bytes);
            }
            push_zeroes(&mut chunks, to - at);
            at = to;
        }
        push_zeroes(&mut chunks, end - at);
        chunks
    }

    /// Writes as much of `data` at `offset` as there is space for; answers how many bytes.
    pub fn write(&mut self, offset: u64, data: &[u8], space: &Space) -> usize {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let count = match self.write_in_place(at, &data[done..]) {
                0 => self.write_to_new(at, &data[done..], space),
                count => count,
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        if done > 0 {
            self.size = self.size.max(offset + done as u64);
        }
        done
    }

    /// Writes into the buffer that holds `at`, when there is one and nobody else reads it.
    fn write_in_place(&mut self, at: u64, data: &[u8]) -> usize {
        let page = at / PAGE;
        let Some((&first, extent)) = self.extents.range_mut(..=page).next_back() else { return 0 };
        let filled = extent.filled();
        let from = filled.start + (at - first * PAGE);
        if from >= filled.end {
            return 0;
        }
        let Some(buf) = Arc::get_mut(&mut extent.buf) else { return 0 };
        let count = data.len().min((filled.end - from) as usize);
        buf[from as usize..][..count].copy_from_slice(&data[..count]);
        count
    }

    /// Writes into a new buffer, which takes the place of the pages it covers.
    fn write_to_new(&mut self, at: u64, data: &[u8], space: &Space) -> usize {
        let page = at / PAGE;
        let skip = at % PAGE;
        let old = self
            .covering(page)
            .map(|(first, extent)| extent.part(page - first, extent.pages - (page - first)));
        let room = match &old {
            Some(old) => old.pages,
            None => self.next_from(page).map_or(u64::MAX, |next| next - page),
        };
        let mut end = room.saturating_mul(PAGE).min(RUN).min(skip + data.len() as u64);
        if old.is_none() {
            let granted = space.take_some_pages(end.div_ceil(PAGE));
            if granted == 0 {
                return 0;
            }
            end = end.min(granted * PAGE);
        }
        let pages = end.div_ceil(PAGE);
        let data = &data[..(end - skip) as usize];
        let old = old.map(|old| old.bytes(0..pages * PAGE)).unwrap_or_default();
        self.remove(page..page + pages);
        self.insert(page, Extent { buf: filled_buffer(&old, skip, data, pages), start: 0, pages });
        data.len()
    }

    /// Makes `range`, which lies within one page, read as zeroes.
    fn zero_within_page(&mut self, range: Range<u64>, space: &Space) {
        let Some((first, extent)) = self.covering(range.start / PAGE) else { return };
        let filled = extent.filled();
        let filled_end = first * PAGE + (filled.end - filled.start);
        let end = range.end.min(filled_end);
        if range.start < end {
            // The page is allocated, so this never takes space, and it never goes beyond the size.
            let size = self.size;
            self.write(range.start, &ZEROES[..(end - range.start) as usize], space);
            self.size = size;
        }
    }

    /// Zeroes the parts of pages at both ends of `range`; answers the whole pages in between.
    fn zero_edges(&mut self, range: Range<u64>, space: &Space) -> Range<u64> {
        let (first, last) = (range.start.div_ceil(PAGE), range.end / PAGE);
        if range.start < first * PAGE {
            self.zero_within_page(range.start..range.end.min(first * PAGE), space);
        }
        if first <= last && last * PAGE < range.end {
            self.zero_within_page(last * PAGE..range.end, space);
        }
        first..last.max(first)
    }

    /// Makes a hole of the bytes in `range`: whole pages are freed, parts of pages zeroed.
    pub fn punch(&mut self, range: Range<u64>, space: &Space) {
        let whole = self.zero_edges(range, space);
        space.give_back_pages(self.remove(whole));
    }

    /// Makes the bytes in `range`, all of them allocated, read as zeroes.
    pub fn zero(&mut self, range: Range<u64>, space: &Space) {
        let whole = self.zero_edges(range, space);
        let pages = self.remove(whole.clone());
        if pages > 0 {
            self.insert(whole.start, Extent::zeroes(pages));
        }
    }

    /// Sets the size: frees what lies beyond, or extends with a hole.
    pub fn truncate(&mut self, size: u64, space: &Space) {
        if size < self.size || self.pages > 0 {
            let last = size.div_ceil(PAGE);
            self.zero_within_page(size..last * PAGE, space);
            space.give_back_pages(self.remove(last..u64::MAX));
        }
        self.size = size;
    }

    /// Allocates every page of `pages` that is a hole.
    pub fn reserve(&mut self, pages: Range<u64>, space: &Space) -> outrigger_core::Result<()> {
        let holes = self.holes(pages);
        space.take_pages(holes.iter().map(|hole| hole.end - hole.start).sum())?;
        for hole in holes {
            self.insert(hole.start, Extent::zeroes(hole.end - hole.start));
        }
        Ok(())
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
    pub fn collapse(&mut self, pages: Range<u64>, space: &Space) {
        let count = pages.end - pages.start;
        space.give_back_pages(self.remove(pages.clone()));
        let tail = self.extents.split_off(&pages.end);
        self.extents.extend(tail.into_iter().map(|(first, extent)| (first - count, extent)));
        self.size -= count * PAGE;
    }

    /// Moves what follows page `pages.start` up to make a hole of `pages`.
    pub fn open_gap(&mut self, pages: Range<u64>) {
        let count = pages.end - pages.start;
        self.split_at(pages.start);
        let tail = self.extents.split_off(&pages.start);
        self.extents.extend(tail.into_iter().map(|(first, extent)| (first + count, extent)));
        self.size += count * PAGE;
    }

    /// The extents of `pages`, cut to it, sharing their buffers.
    pub fn share(&self, pages: Range<u64>) -> Vec<(u64, Extent)> {
        let start = self.covering(pages.start).map_or(pages.start, |(first, _)| first);
        let cut = |(&first, extent): (&u64, &Extent)| {
            let from = first.max(pages.start);
            let to = (first + extent.pages).min(pages.end);
            (from, extent.part(from - first, to - from))
        };
        self.extents.range(start..pages.end).map(cut).collect()
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

/// A buffer for `pages` pages with `data` at `skip` and `old` around it, with some room to grow in the last page.
fn filled_buffer(old: &[u8], skip: u64, data: &[u8], pages: u64) -> Arc<[u8]> {
    let needed = old.len().max(skip as usize + data.len());
    if data.len() == needed && needed as u64 == pages * PAGE {
        return Arc::from(data);
    }
    let before = (pages - 1) * PAGE;
    let last = (needed as u64).saturating_sub(before).max(SMALLEST).next_power_of_two().min(PAGE);
    let mut buf: Arc<[u8]> = iter::repeat_n(0, (before + last) as usize).collect();
    if let Some(bytes) = Arc::get_mut(&mut buf) {
        bytes[..old.len()].copy_from_slice(old);
        bytes[skip as usize..][..data.len()].copy_from_slice(data);
    }
    buf
}

fn push_zeroes(chunks: &mut Vec<Bytes>, mut count: u64) {
    while count > 0 {
        let part = count.min(RUN);
        chunks.push(Bytes::from_static(&ZEROES[..part as usize]));
        count -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::new(1 << 40, 1)
    }

    fn bytes(content: &Content, offset: u64, len: u64) -> Vec<u8> {
        content.read(offset, len).concat()
    }

    #[test]
    fn what_was_read_does_not_change() {
        let (space, mut content) = (space(), Content::default());
        content.write(0, &[1; 10_000], &space);
        let before = content.read(0, 10_000);
        content.write(5000, &[2; 100], &space);
        content.truncate(0, &space);
        assert!(before.concat().iter().all(|&byte| byte == 1));
        assert_eq!(space.bytes().1, 1 << 40, "all pages were given back");
    }

    #[test]
    fn small_appends_share_a_page() {
        let (space, mut content) = (space(), Content::default());
        let mut expected = Vec::new();
        for i in 0..3000_u64 {
            let piece = [i as u8; 7];
            assert_eq!(content.write(expected.len() as u64, &piece, &space), 7);
            expected.extend_from_slice(&piece);
        }
        assert_eq!(bytes(&content, 0, u64::MAX), expected);
        assert_eq!(content.pages(), 21_000_u64.div_ceil(PAGE));
    }

    #[test]
    fn a_write_stops_where_space_does() {
        let (space, mut content) = (Space::new(3 * PAGE, 1), Content::default());
        assert_eq!(content.write(PAGE / 2, &vec![1; 1 << 20], &space), (3 * PAGE - PAGE / 2) as usize);
        assert_eq!(content.write(0, &[2; 10], &space), 10, "an allocated page needs no space");
        assert_eq!(content.write(1 << 30, &[2; 10], &space), 0);
        assert_eq!(content.size, 3 * PAGE);
    }

    /// Every change against a plain vector, with offsets that meet, touch and miss page borders.
    #[test]
    fn ranges_do_what_a_plain_vector_would() {
        let (space, mut content, mut plain) = (space(), Content::default(), Vec::<u8>::new());
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..4000_u64 {
            let start = random(40) * PAGE / 2 + random(3);
            let len = 1 + random(8) * PAGE / 2 + random(3);
            let (from, to) = (start as usize, (start + len) as usize);
            match random(6) {
                0 | 1 => {
                    let data = vec![round as u8 | 1; len as usize];
                    content.write(start, &data, &space);
                    plain.resize(plain.len().max(to), 0);
                    plain[from..to].copy_from_slice(&data);
                }
                2 => {
                    content.truncate(start, &space);
                    plain.resize(from, 0);
                }
                3 => {
                    content.punch(start..start + len, &space);
                    let to = to.min(plain.len());
                    plain[from.min(to)..to].fill(0);
                }
                4 => {
                    let pages = start / PAGE..(start + len).div_ceil(PAGE);
                    content.reserve(pages, &space).unwrap();
                    content.zero(start..start + len, &space);
                    let to = to.min(plain.len());
                    plain[from.min(to)..to].fill(0);
                }
                _ if round % 2 == 0 && start > 0 && ((start / PAGE + 1) * PAGE) < plain.len() as u64 => {
                    let page = start / PAGE;
                    content.collapse(page..page + 1, &space);
                    plain.drain((page * PAGE) as usize..((page + 1) * PAGE) as usize);
                }
                _ if (start / PAGE * PAGE) < plain.len() as u64 => {
                    let page = start / PAGE;
                    content.open_gap(page..page + 1);
                    let at = (page * PAGE) as usize;
                    plain.splice(at..at, vec![0; PAGE as usize]);
                }
                _ => {}
            }
            assert_eq!(content.size, plain.len() as u64, "round {round}");
            assert!(bytes(&content, 0, u64::MAX) == plain, "round {round}");
        }
        content.truncate(0, &space);
        assert_eq!(space.bytes().1, 1 << 40);
    }
}
