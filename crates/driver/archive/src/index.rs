// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of an archive: one flat run of bytes, the same in memory and in the cache.
//!
//! Sections: inodes (52 bytes each), dirents (12), dirents by name (4), names, extra parts, warnings, points. The
//! dirents of a directory lie together in the order of the archive, which is the fastest order to read files in.
//! 68 bytes an entry and its name, plus what is rare (link targets, extended attributes, sparse maps).

use crate::{
    decode::Point,
    entry::{Extra, S_IFDIR, S_IFMT, Time},
    tree::{Dirent, NAME_MAX, ROOT, Tree, dirent_name},
};
use bytes::{Buf, Bytes};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"outridx\x01";
const HEADER: usize = 64;
const INODE: usize = 52;
const DIRENT: usize = 12;

/// What was unusual in an archive, without making it unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warning {
    /// A name that starts with `/`; the slash was ignored.
    Absolute,
    /// A name with `..`; it was resolved inside the tree and cannot leave it.
    DotDot,
    /// A component longer than 255 bytes; the entry was skipped.
    NameTooLong,
    /// An empty name or one with a NUL byte; the entry was skipped.
    BadName,
    /// A later entry replaced an earlier one with the same name.
    Duplicate,
    /// A directory and something else claim the same name; the later entry was skipped.
    KindConflict,
    /// A hard link to something missing or to a directory; it was skipped.
    BadLink,
    /// An entry of a kind that has no place in a tree; it was skipped.
    UnknownKind,
    /// Bytes after the end of the archive; they were ignored.
    TrailingData,
    /// The archive is damaged from here on; what came before is shown because of `partial`.
    Damaged,
}

impl Warning {
    const ALL: [Warning; 10] = [
        Warning::Absolute,
        Warning::DotDot,
        Warning::NameTooLong,
        Warning::BadName,
        Warning::Duplicate,
        Warning::KindConflict,
        Warning::BadLink,
        Warning::UnknownKind,
        Warning::TrailingData,
        Warning::Damaged,
    ];

    /// Whether the entries concerned are missing in the tree, although the archive is whole.
    pub fn is_loss(self) -> bool {
        matches!(self, Warning::NameTooLong | Warning::BadName | Warning::KindConflict | Warning::BadLink)
    }

    /// A sentence for people; it completes "N entries: ".
    pub fn text(self) -> &'static str {
        match self {
            Warning::Absolute => "absolute name, shown inside the tree",
            Warning::DotDot => "name with \"..\", kept inside the tree",
            Warning::NameTooLong => "skipped: a name component is longer than 255 bytes",
            Warning::BadName => "skipped: not a possible name",
            Warning::Duplicate => "replaced by a later entry of the same name",
            Warning::KindConflict => "skipped: a directory and something else have the same name",
            Warning::BadLink => "skipped: hard link without a target",
            Warning::UnknownKind => "skipped: entry of an unknown kind",
            Warning::TrailingData => "data after the end of the archive ignored",
            Warning::Damaged => "the archive is damaged; only what was readable is shown",
        }
    }
}

/// Counts of warnings, each with the first example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings {
    counts: [u32; Warning::ALL.len()],
    examples: Vec<(u8, Vec<u8>)>,
}

impl Warnings {
    /// Counts one more; the first `example` (a name or a text) of each kind is kept, up to 256 bytes of it.
    pub(crate) fn add(&mut self, what: Warning, example: &[u8]) {
        let n = &mut self.counts[what as usize];
        if *n == 0 {
            self.examples.push((what as u8, example[..example.len().min(256)].to_vec()));
        }
        *n = n.saturating_add(1);
    }

    /// The kinds that occurred: how often, and the first name (or text) concerned.
    pub fn iter(&self) -> impl Iterator<Item = (Warning, u32, &[u8])> {
        Warning::ALL.into_iter().zip(self.counts).filter(|(_, n)| *n > 0).map(|(w, n)| {
            let example = self.examples.iter().find(|(k, _)| *k == w as u8);
            (w, n, example.map_or(&b""[..], |(_, e)| e))
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for n in self.counts {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for (kind, example) in &self.examples {
            out.push(*kind);
            out.extend_from_slice(&(example.len() as u16).to_le_bytes());
            out.extend_from_slice(example);
        }
    }

    fn decode(mut from: Bytes) -> Option<Warnings> {
        let mut w = Warnings::default();
        for n in &mut w.counts {
            *n = from.try_get_u32_le().ok()?;
        }
        while let Ok(kind) = from.try_get_u8() {
            let len = usize::from(from.try_get_u16_le().ok()?);
            if len > from.len() {
                return None;
            }
            w.examples.push((kind, from.split_to(len).to_vec()));
        }
        Some(w)
    }
}

/// An inode as the index has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub mtime: Time,
    /// Of a regular file or a link target.
    pub size: u64,
    /// Where the data of a regular file starts. Of a directory: its first dirent, and how many (high half).
    data: u64,
    extra: u32,
    parent: u32,
}

impl Inode {
    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Where the data of a regular file starts in the (decompressed) archive.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// The directory that contains this directory.
    pub fn parent(&self) -> u32 {
        self.parent
    }

    fn dirents(&self) -> Range<u32> {
        if !self.is_dir() {
            return 0..0;
        }
        let (first, count) = (self.data as u32, (self.data >> 32) as u32);
        first..first.saturating_add(count)
    }
}

/// The index of one archive.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    bytes: Bytes,
    counts: Counts,
    pub warnings: Warnings,
    /// Decompressed size of a compressed archive.
    pub stream_size: u64,
    /// Which format the archive has, as its number.
    pub format: u32,
}

/// Lengths of the sections.
#[derive(Debug, Clone, Copy)]
struct Counts {
    inodes: usize,
    dirents: usize,
    names: usize,
    extras: usize,
}

impl Counts {
    fn dirents_at(&self) -> usize {
        HEADER + self.inodes * INODE
    }
    fn sorted_at(&self) -> usize {
        self.dirents_at() + self.dirents * DIRENT
    }
    fn names_at(&self) -> usize {
        self.sorted_at() + self.dirents * 4
    }
    fn extras_at(&self) -> usize {
        self.names_at() + self.names
    }
    fn end(&self) -> usize {
        self.extras_at() + self.extras
    }
}

impl Index {
    /// Flattens a tree, consuming it section by section.
    pub(crate) fn build(mut tree: Tree) -> Index {
        let (order, firsts) = group(&tree);
        for (i, inode) in tree.inodes.iter_mut().enumerate() {
            if inode.mode & S_IFMT == S_IFDIR {
                inode.data = u64::from(firsts[i]) | u64::from(firsts[i + 1] - firsts[i]) << 32;
            }
        }
        let counts = Counts {
            inodes: tree.inodes.len(),
            dirents: tree.dirents.len(),
            names: tree.names.len(),
            extras: tree.extras.len(),
        };
        let mut out = Vec::with_capacity(counts.end());
        out.resize(HEADER, 0);
        for i in &tree.inodes {
            put_inode(&mut out, i);
        }
        for d in &order {
            let e = &tree.dirents[*d as usize];
            for v in [e.name, e.inode, u32::from(e.name_len)] {
                out.extend_from_slice(&v.to_le_bytes());
            }
        }
        let name = |i: &u32| dirent_name(&tree.names, &tree.dirents[order[*i as usize] as usize]);
        let mut sorted: Vec<u32> = (0..order.len() as u32).collect();
        for w in firsts.windows(2) {
            sorted[w[0] as usize..w[1] as usize].sort_unstable_by(|a, b| name(a).cmp(name(b)));
        }
        for s in &sorted {
            out.extend_from_slice(&s.to_le_bytes());
        }
        out.extend_from_slice(&tree.names);
        out.extend_from_slice(&tree.extras);
        let (bytes, warnings) = (Bytes::from(out), tree.warnings);
        Index { bytes, counts, warnings, stream_size: 0, format: 0 }
    }

    /// An index of nothing but a root directory.
    pub fn empty() -> Index {
        let root = crate::tree::directory(ROOT);
        let mut out = vec![0; HEADER];
        put_inode(&mut out, &root);
        let counts = Counts { inodes: 1, dirents: 0, names: 0, extras: 0 };
        Index { bytes: out.into(), counts, warnings: Warnings::default(), stream_size: 0, format: 0 }
    }

    /// Number of inodes; valid numbers are below it.
    pub fn len(&self) -> u32 {
        self.counts.inodes as u32
    }

    /// Bytes the index takes in memory.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Inode `number`.
    pub fn inode(&self, number: u32) -> Option<Inode> {
        if number as usize >= self.counts.inodes {
            return None;
        }
        let at = HEADER + number as usize * INODE;
        let mut b = self.bytes.get(at..at + INODE)?;
        Some(Inode {
            mode: b.get_u32_le(),
            uid: b.get_u32_le(),
            gid: b.get_u32_le(),
            nlink: b.get_u32_le(),
            mtime: Time { nsec: b.get_u32_le(), sec: b.get_i64_le() },
            size: b.get_u64_le(),
            data: b.get_u64_le(),
            extra: b.get_u32_le(),
            parent: b.get_u32_le(),
        })
    }

    /// The rarer parts of an inode.
    pub fn extra(&self, inode: &Inode) -> Option<Extra> {
        if inode.extra == 0 {
            return Some(Extra::default());
        }
        let at = self.counts.extras_at().checked_add(inode.extra as usize - 1)?;
        Extra::decode(self.bytes.get(at..self.counts.end())?)
    }

    /// The `position`th dirent of a directory: its name and inode number.
    pub fn dirent(&self, dir: &Inode, position: u64) -> Option<(Bytes, u32)> {
        let range = dir.dirents();
        let i = u32::try_from(position).ok()?.checked_add(range.start)?;
        if i >= range.end { None } else { self.dirent_at(i) }
    }

    /// The inode number of `name` in a directory.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Option<u32> {
        let range = dir.dirents();
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let mid = low + (high - low) / 2;
            let at = self.counts.sorted_at() + mid as usize * 4;
            let (found, inode) = self.dirent_at(self.bytes.get(at..at + 4)?.get_u32_le())?;
            match found[..].cmp(name) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Some(inode),
            }
        }
        None
    }

    fn dirent_at(&self, i: u32) -> Option<(Bytes, u32)> {
        if i as usize >= self.counts.dirents {
            return None;
        }
        let at = self.counts.dirents_at() + i as usize * DIRENT;
        let mut b = self.bytes.get(at..at + DIRENT)?;
        let (name, inode, len) = (b.get_u32_le() as usize, b.get_u32_le(), b.get_u32_le() as usize);
        let start = self.counts.names_at().checked_add(name)?;
        let end = start.checked_add(len).filter(|e| *e <= self.counts.extras_at())?;
        Some((self.bytes.slice(start..end), inode))
    }

    /// The whole index with the points of the archive's stream as bytes for the cache, which adds a checksum.
    pub fn encode(&self, points: &[Point]) -> Vec<u8> {
        let mut out = self.bytes.to_vec();
        let warnings_at = out.len();
        self.warnings.encode(&mut out);
        let points_at = out.len();
        for p in points {
            out.extend_from_slice(&p.out.to_le_bytes());
            out.extend_from_slice(&p.input.to_le_bytes());
            out.extend_from_slice(&[p.bits, p.bit_buf, u8::from(p.inside)]);
            out.extend_from_slice(&(p.window.len() as u32).to_le_bytes());
            out.extend_from_slice(&p.window);
        }
        let mut header = MAGIC.to_vec();
        let c = &self.counts;
        for v in [c.inodes, c.dirents, c.names, c.extras, points_at - warnings_at] {
            header.extend_from_slice(&(v as u64).to_le_bytes());
        }
        header.extend_from_slice(&self.stream_size.to_le_bytes());
        header.extend_from_slice(&self.format.to_le_bytes());
        out[..header.len()].copy_from_slice(&header);
        out
    }

    /// Takes over bytes made by [`Index::encode`], checking every reference; `None` when anything is wrong.
    pub fn decode(bytes: Bytes) -> Option<(Index, Vec<Point>)> {
        let mut h = bytes.get(..HEADER)?;
        if !h.starts_with(MAGIC) {
            return None;
        }
        h.advance(MAGIC.len());
        let mut section = |unit: usize| {
            let n = usize::try_from(h.get_u64_le()).ok()?;
            n.checked_mul(unit).filter(|size| *size <= bytes.len())?;
            Some(n)
        };
        let (inodes, dirents) = (section(INODE)?, section(DIRENT + 4)?);
        let (names, extras, warnings_len) = (section(1)?, section(1)?, section(1)?);
        let (stream_size, format) = (h.get_u64_le(), h.get_u32_le());
        let counts = Counts { inodes, dirents, names, extras };
        let points_at = counts.end().checked_add(warnings_len).filter(|p| *p <= bytes.len())?;
        let warnings = Warnings::decode(bytes.slice(counts.end()..points_at))?;
        let points = decode_points(bytes.slice(points_at..))?;
        let index = Index { bytes: bytes.slice(..counts.end()), counts, warnings, stream_size, format };
        index.check().then_some((index, points))
    }

    /// Whether all references stay inside the sections and the root is a directory.
    fn check(&self) -> bool {
        let inode_ok = |i: Inode| {
            let range = i.dirents();
            i.mtime.nsec < 1_000_000_000
                && i.parent < self.len()
                && i.extra as usize <= self.counts.extras
                && range.end as usize <= self.counts.dirents
                && (u64::from(range.end - range.start) == i.data >> 32 || !i.is_dir())
        };
        let dirent_ok = |d: u32| {
            self.dirent_at(d).is_some_and(|(name, inode)| {
                (1..=NAME_MAX).contains(&name.len()) && inode < self.len() && inode != ROOT
            })
        };
        self.inode(ROOT).is_some_and(|r| r.is_dir())
            && (0..self.len()).all(|i| self.inode(i).is_some_and(inode_ok))
            && (0..self.counts.dirents as u32).all(dirent_ok)
    }
}

/// The dirents grouped by directory in archive order, and where the group of each inode starts (with one more as the
/// end).
fn group(tree: &Tree) -> (Vec<u32>, Vec<u32>) {
    let mut firsts = vec![0u32; tree.inodes.len() + 1];
    for Dirent { parent, .. } in &tree.dirents {
        firsts[*parent as usize + 1] += 1;
    }
    for i in 1..firsts.len() {
        firsts[i] += firsts[i - 1];
    }
    let mut next = firsts.clone();
    let mut order = vec![0u32; tree.dirents.len()];
    for (d, e) in tree.dirents.iter().enumerate() {
        let at = &mut next[e.parent as usize];
        order[*at as usize] = d as u32;
        *at += 1;
    }
    (order, firsts)
}

fn put_inode(out: &mut Vec<u8>, i: &crate::tree::Inode) {
    for v in [i.mode, i.uid, i.gid, i.nlink, i.mtime.nsec] {
        out.extend_from_slice(&v.to_le_bytes());
    }
    out.extend_from_slice(&i.mtime.sec.to_le_bytes());
    out.extend_from_slice(&i.size.to_le_bytes());
    out.extend_from_slice(&i.data.to_le_bytes());
    out.extend_from_slice(&i.extra.to_le_bytes());
    out.extend_from_slice(&i.parent.to_le_bytes());
}

/// Points in ascending order.
fn decode_points(mut from: Bytes) -> Option<Vec<Point>> {
    let mut points: Vec<Point> = Vec::new();
    while from.has_remaining() {
        let (out, input) = (from.try_get_u64_le().ok()?, from.try_get_u64_le().ok()?);
        let (bits, bit_buf) = (from.try_get_u8().ok()?, from.try_get_u8().ok()?);
        let inside = from.try_get_u8().ok()? != 0;
        let len = from.try_get_u32_le().ok()? as usize;
        if len > from.len() || points.last().is_some_and(|p| p.out >= out) {
            return None;
        }
        points.push(Point { out, input, bits, bit_buf, inside, window: from.split_to(len) });
    }
    Some(points)
}
