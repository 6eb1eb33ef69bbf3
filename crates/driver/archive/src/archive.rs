// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open archive: its index, and how the bytes of a file are found.

use crate::{
    Codec, Kind, Options, Result, Watch, ar,
    blocks::{BLOCK, BlockCache},
    cache::Slot,
    cpio,
    cursor::Cursor,
    decode::{Expected, mismatch},
    detect::{Format, Layout, detect_at},
    entry::{Entry, Extra, Packed, Run, S_IFMT, S_IFREG, Time},
    index::{Index, Inode, Warning, Warnings},
    pieces::Pieces,
    seek::SeekStream,
    source::{Origin, Source},
    sparse, tar,
    tree::Tree,
    zip,
};
use bytes::{Bytes, BytesMut};
use outrigger_core::hash::fnv1a;
use outrigger_core::lock;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

/// Zip members whose decoders are kept at rest.
const MEMBERS: usize = 16;
/// The stream number of the archive itself in the block cache; members have their inode number plus one.
const WHOLE: u32 = 0;

/// Where the bytes of the entries come from.
enum Backing {
    /// The source itself.
    Plain,
    /// The compressed stream around the whole archive.
    Stream(Box<SeekStream>),
}

/// An open archive.
pub struct Archive {
    origin: Origin,
    format: Format,
    index: Index,
    backing: Backing,
    blocks: Arc<BlockCache>,
    options: Options,
    /// Recently read zip members, the last used at the back.
    members: Mutex<VecDeque<(u32, Arc<SeekStream>)>>,
    /// What was read of zip members that are not compressed.
    pieces: Pieces,
    /// The sparse map last used.
    sparse: Mutex<Option<(u32, Arc<Vec<Run>>)>>,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("name", &self.origin.name).field("format", &self.format).finish()
    }
}

impl Archive {
    /// Opens `source`: takes its index from the cache, or makes one in a single pass over the source and stores it.
    ///
    /// # Errors
    /// [`Kind::NotAnArchive`] for unknown content, [`Kind::Limit`] for a bomb, [`Kind::Cancelled`] on request, and
    /// what reading or parsing fails with; with [`Options::partial`] damage is only a warning.
    pub fn open(source: Arc<dyn Source>, options: Options, watch: &dyn Watch) -> Result<Archive> {
        let origin = Origin::new(source);
        let identity = origin.source.identity();
        let slot = options
            .cache
            .as_ref()
            .zip(identity)
            .map(|(c, id)| Slot::new(c, &id, &variant(&origin, &options)));
        let cached = slot.as_ref().and_then(Slot::load);
        if let Some(archive) = cached.and_then(|b| Archive::restored(&origin, b, &options)) {
            archive.use_spill(slot.as_ref());
            return Ok(archive);
        }
        let format = detect_at(&origin, &options.limits)?.ok_or_else(|| {
            let looked_for =
                "neither an archive (tar, zip, cpio, ar) nor a compressed file (gzip, bzip2, xz, zstd)";
            origin.error(Kind::NotAnArchive, 0, looked_for)
        })?;
        let mut archive = Archive::assemble(origin, format, Index::empty(), options);
        archive.index = archive.indexed(watch)?;
        archive.use_spill(slot.as_ref());
        if let Some(slot) = slot
            && let Err(e) = slot.store(&archive.saved_index())
        {
            tracing::debug!(archive = %archive.origin.name, "the index is not cached: {e}");
        }
        Ok(archive)
    }

    /// Opens `source` with an index saved by [`Archive::saved_index`], reading nothing; `None` when the bytes are no
    /// such index. The caller vouches that the index belongs to the source: if not, reads fail or give wrong bytes.
    pub fn with_index(source: Arc<dyn Source>, index: Bytes, options: &Options) -> Option<Archive> {
        Archive::restored(&Origin::new(source), index, options)
    }

    /// The index as bytes, with all that random access needs.
    pub fn saved_index(&self) -> Vec<u8> {
        self.index.encode(&self.stream().map(SeekStream::points).unwrap_or_default())
    }

    fn restored(origin: &Origin, bytes: Bytes, options: &Options) -> Option<Archive> {
        let (index, points) = Index::decode(bytes)?;
        let format = Format::from_number(index.format)?;
        let archive = Archive::assemble(origin.clone(), format, index, options.clone());
        if let Some(stream) = archive.stream() {
            stream.restore(archive.index.stream_size, points);
        }
        Some(archive)
    }

    fn assemble(origin: Origin, format: Format, index: Index, options: Options) -> Archive {
        let blocks = Arc::new(BlockCache::new(options.limits.block_cache));
        let range = (0, origin.source.size());
        let stream =
            |c| SeekStream::new(WHOLE, origin.clone(), c, range, &options.limits, Arc::clone(&blocks));
        let backing = format.codec.map_or(Backing::Plain, |c| Backing::Stream(Box::new(stream(c))));
        let (members, pieces, sparse) = Default::default();
        Archive { origin, format, index, backing, blocks, options, members, pieces, sparse }
    }

    /// Gives a stream that is expensive to enter in the middle a place for its blocks.
    fn use_spill(&self, slot: Option<&Slot>) {
        if let (Some(stream), Some(slot)) = (self.stream(), slot)
            && stream.codec().spill_after().is_some()
            && let Some(spill) = slot.spill()
        {
            stream.set_spill(spill);
        }
    }

    /// Makes the index in one pass.
    fn indexed(&self, watch: &dyn Watch) -> Result<Index> {
        let mut tree = Tree::new(self.origin.clone(), &self.options.limits);
        if let Err(e) = self.parse(&mut tree, watch) {
            if !(self.options.partial && e.is_damage()) {
                return Err(e);
            }
            let text = e.to_string();
            tracing::warn!("{text}: showing what was readable");
            tree.warnings.add(Warning::Damaged, text.as_bytes());
        }
        let mut index = tree.finish()?;
        index.format = self.format.to_number();
        index.stream_size = self.stream().and_then(SeekStream::size).unwrap_or(0);
        Ok(index)
    }

    fn parse(&self, tree: &mut Tree, watch: &dyn Watch) -> Result<()> {
        let limits = &self.options.limits;
        if self.format.layout == Layout::Zip {
            return zip::parse(&self.origin, tree, (limits, self.options.partial), watch);
        }
        let mut cursor = match &self.backing {
            Backing::Plain => Cursor::plain(self.origin.clone(), limits, watch),
            Backing::Stream(s) => Cursor::stream(s.pass()?, self.origin.clone(), limits, watch),
        };
        match self.format.layout {
            Layout::Tar => tar::parse(&mut cursor, tree)?,
            Layout::Cpio => cpio::parse(&mut cursor, tree)?,
            Layout::Ar => ar::parse(&mut cursor, tree)?,
            Layout::Single | Layout::Zip => return self.single(&mut cursor, tree),
        }
        cursor.drain()
    }

    /// One compressed file, shown under the archive's name without its suffix.
    fn single(&self, cursor: &mut Cursor<'_>, tree: &mut Tree) -> Result<()> {
        let drained = cursor.drain();
        let version = self.origin.source.identity().map_or(0, |id| id.version);
        let mtime = Time {
            sec: i64::try_from(version.div_euclid(1_000_000_000)).unwrap_or(0),
            nsec: version.rem_euclid(1_000_000_000) as u32,
        };
        let mode = S_IFREG | 0o644;
        let entry = Entry { mode, size: cursor.pos(), mtime, ..Entry::default() };
        if drained.is_ok() || self.options.partial {
            tree.add(0, &single_name(&self.origin.name), &entry)?;
        }
        drained
    }

    /// What the archive is.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The name of the source.
    pub fn name(&self) -> &str {
        &self.origin.name
    }

    /// Bytes of the archive file.
    pub fn packed_size(&self) -> u64 {
        self.origin.source.size()
    }

    /// What was unusual, with counts.
    pub fn warnings(&self) -> &Warnings {
        &self.index.warnings
    }

    /// Files, directories and other inodes, the root included.
    pub fn inodes(&self) -> u32 {
        self.index.len()
    }

    /// Bytes of memory taken by the index (not by caches and decoders).
    pub fn index_memory(&self) -> usize {
        let points = self.stream().map(SeekStream::points).unwrap_or_default();
        self.index.memory() + points.iter().map(|p| size_of_val(p) + p.window.len()).sum::<usize>()
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn damaged(&self, number: u32) -> crate::Error {
        self.origin.error(Kind::Corrupt, 0, format!("entry {number} of the index is damaged"))
    }

    /// The rarer attributes of an inode.
    pub(crate) fn extra(&self, number: u32, inode: &Inode) -> Result<Extra> {
        self.index.extra(inode).ok_or_else(|| self.damaged(number))
    }

    fn stream(&self) -> Option<&SeekStream> {
        match &self.backing {
            Backing::Plain => None,
            Backing::Stream(s) => Some(s),
        }
    }

    /// Bytes `offset..offset + len` of the regular file `number`, fewer only at its end.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for an encrypted member or an unknown method; damage met in the data.
    pub(crate) fn read(
        &self,
        number: u32,
        inode: &Inode,
        offset: u64,
        len: usize,
        watch: &dyn Watch,
    ) -> Result<Bytes> {
        if inode.mode & S_IFMT != S_IFREG || offset >= inode.size {
            return Ok(Bytes::new());
        }
        let len = usize::try_from(inode.size - offset).unwrap_or(len).min(len);
        if let Some(runs) = self.runs(number, inode)? {
            return self.read_sparse(&runs, inode, offset, len, watch);
        }
        let data = match self.packed(number, inode)? {
            None => self.bytes(inode.data().saturating_add(offset), len, watch)?,
            Some(p) => self.read_member(number, inode, &p, offset, len, watch)?,
        };
        if data.len() < len {
            let at = inode.data();
            return Err(self.origin.error(
                Kind::Truncated,
                at,
                "the data of a file is shorter than its entry says",
            ));
        }
        Ok(data)
    }

    /// Bytes of the (decompressed) archive.
    fn bytes(&self, offset: u64, len: usize, watch: &dyn Watch) -> Result<Bytes> {
        match &self.backing {
            Backing::Stream(s) => s.read(offset, len, watch),
            Backing::Plain => {
                let mut buf = BytesMut::zeroed(len);
                self.origin.exact(&mut buf, offset, "the data of a file")?;
                Ok(buf.freeze())
            }
        }
    }

    fn read_sparse(
        &self,
        runs: &[Run],
        inode: &Inode,
        offset: u64,
        len: usize,
        watch: &dyn Watch,
    ) -> Result<Bytes> {
        let mut out = BytesMut::with_capacity(len);
        while out.len() < len {
            let (n, stored) = sparse::at(runs, inode.size, offset + out.len() as u64);
            let n = usize::try_from(n).unwrap_or(len).min(len - out.len());
            if n == 0 {
                break;
            }
            match stored {
                None => out.resize(out.len() + n, 0),
                Some(s) => out.extend_from_slice(&self.bytes(inode.data().saturating_add(s), n, watch)?),
            }
        }
        Ok(out.freeze())
    }

    /// The sparse map of a file, checked and with running sums of the stored data.
    pub(crate) fn runs(&self, number: u32, inode: &Inode) -> Result<Option<Arc<Vec<Run>>>> {
        let mut last = lock(&self.sparse);
        if let Some((_, runs)) = last.as_ref().filter(|(n, _)| *n == number) {
            return Ok(Some(runs.clone()));
        }
        let Some(runs) = self.extra(number, inode)?.sparse else { return Ok(None) };
        if !sparse::is_valid(&runs, inode.size, u64::MAX) {
            return Err(self.damaged(number));
        }
        let runs = Arc::new(runs);
        *last = Some((number, runs.clone()));
        Ok(Some(runs))
    }

    /// A number that changes when the archive does; 0 for a source without identity.
    pub fn generation(&self) -> u64 {
        let id = self.origin.source.identity();
        // 32 bits, which is all some protocols have room for.
        id.map_or(0, |id| fnv1a(format!("{id:?}").into_bytes()) & 0xffff_ffff)
    }

    /// Whether a read needs neither decoding nor a slow source.
    pub(crate) fn is_at_hand(&self, number: u32, inode: &Inode, offset: u64, len: usize) -> bool {
        if offset >= inode.size || len == 0 {
            return true;
        }
        let extra = self.index.extra(inode).unwrap_or_default();
        if extra.sparse.is_some() {
            return false;
        }
        let last = offset + (inode.size - offset).min(len as u64) - 1;
        let (stream, from) = match (&self.backing, extra.packed) {
            (Backing::Plain, None) => return self.origin.source.is_prompt(),
            (Backing::Plain, Some(_)) => (number + 1, 0),
            (Backing::Stream(_), _) => (WHOLE, inode.data()),
        };
        let block = |at: u64| from.saturating_add(at) / BLOCK as u64;
        (block(offset)..=block(last)).all(|b| self.blocks.get((stream, b)).is_some())
    }

    fn packed(&self, number: u32, inode: &Inode) -> Result<Option<Packed>> {
        Ok(self.extra(number, inode)?.packed)
    }

    fn read_member(
        &self,
        number: u32,
        inode: &Inode,
        packed: &Packed,
        offset: u64,
        len: usize,
        watch: &dyn Watch,
    ) -> Result<Bytes> {
        let at = inode.data();
        if packed.encrypted {
            return Err(self.origin.error(Kind::Unsupported, at, "the zip member is encrypted"));
        }
        let Some(codec) = zip::codec(packed.method) else {
            let what = format!("zip compression method {} is not supported", packed.method);
            return Err(self.origin.error(Kind::Unsupported, at, what));
        };
        let Some(codec) = codec else {
            let start = zip::data_start(&self.origin, at)?;
            let data = self.bytes(start.saturating_add(offset), len, watch)?;
            // Such members are read anywhere without what is before, so not all of them can be compared.
            let expected = Expected { crc: packed.crc, size: inode.size };
            if packed.size != inode.size || !self.pieces.is_good(number, expected, offset, &data) {
                return Err(mismatch(&self.origin, at));
            }
            return Ok(data);
        };
        self.member(number, inode, packed, codec)?.read(offset, len, watch)
    }

    /// The stream of a zip member, kept for the next read.
    fn member(&self, number: u32, inode: &Inode, packed: &Packed, codec: Codec) -> Result<Arc<SeekStream>> {
        let mut members = lock(&self.members);
        if let Some(i) = members.iter().position(|(n, _)| *n == number)
            && let Some(m) = members.remove(i)
        {
            members.push_back(m.clone());
            return Ok(m.1);
        }
        drop(members);
        let start = zip::data_start(&self.origin, inode.data())?;
        let range = (start, start.saturating_add(packed.size));
        let (limits, blocks) = (&self.options.limits, self.blocks.clone());
        let stream = SeekStream::new(number + 1, self.origin.clone(), codec, range, limits, blocks);
        let stream = Arc::new(stream.expecting(Expected { crc: packed.crc, size: inode.size }));
        let mut members = lock(&self.members);
        if members.len() >= MEMBERS {
            members.pop_front();
        }
        members.push_back((number, stream.clone()));
        Ok(stream)
    }
}

/// The options that change what the index says.
fn variant(origin: &Origin, options: &Options) -> String {
    // A single file is shown under a name made from the archive's.
    let single = String::from_utf8_lossy(&single_name(&origin.name)).into_owned();
    format!("partial={} single={single}", options.partial)
}

/// The last component of `archive` without a suffix that says how it is compressed.
fn single_name(archive: &str) -> Vec<u8> {
    let name = archive.rsplit(['/', ':']).find(|n| !n.is_empty()).unwrap_or("data");
    let shown = ["gz", "bz2", "xz", "zst", "zstd", "z", "bz"]
        .iter()
        .find_map(|s| {
            Some(name.get(..name.len().checked_sub(s.len() + 1)?)?).filter(|n| {
                !n.is_empty()
                    && name.as_bytes()[n.len()] == b'.'
                    && name[n.len() + 1..].eq_ignore_ascii_case(s)
            })
        })
        .unwrap_or(name);
    let expanded = match shown.len() {
        n if n < name.len() => shown.to_owned(),
        _ => format!("{name}.out"),
    };
    expanded.into_bytes()
}
