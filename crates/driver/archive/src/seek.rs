// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random access to a compressed stream.
//!
//! A read takes the block from the cache, else from the spill file, else decodes it: with the decoder that stands
//! nearest before it (the one the last read left behind, or a new one at a [`Point`]). Decoders are kept where they
//! stopped, so reading forwards never decodes a byte twice. Readers that want what another is already decoding wait
//! for it instead of decoding it again.

use crate::{
    Error, Kind, Limits, Result, Watch,
    blocks::{BLOCK, BlockCache},
    decode::{Codec, Decode, Expected, Point, Setup},
    source::Origin,
    spill::Spill,
};
use bytes::{Bytes, BytesMut};
use outrigger_core::lock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Decoders kept at rest; each holds a window or dictionary.
const KEEP: usize = 3;
/// Blocks decoded on the way to the wanted one that are cached, for readers slightly out of order.
const NEAR: u64 = 16;

/// A decoder that stands at a block boundary.
struct Live {
    decoder: Box<dyn Decode>,
    /// The block it decodes next.
    at: u64,
}

#[derive(Default)]
struct State {
    points: Vec<Point>,
    spacing: u64,
    idle: Vec<Live>,
    /// Blocks being decoded: from the first to the last, where the decoder will then stand after.
    busy: Vec<(u64, u64)>,
    /// Blocks decoded only to get to others. Once there are many of them, all that is decoded is kept on disk.
    waste: u64,
}

/// A compressed stream that can be read anywhere.
pub(crate) struct SeekStream {
    id: u32,
    setup: Setup,
    cache: Arc<BlockCache>,
    spill: OnceLock<Spill>,
    /// Size of the decompressed data, once known.
    size: OnceLock<u64>,
    /// Why the last block is short when it should not be.
    damage: OnceLock<Error>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Marks blocks as being decoded, until dropped.
struct Busy<'a> {
    stream: &'a SeekStream,
    range: (u64, u64),
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if let Some(i) = state.busy.iter().position(|b| *b == self.range) {
            state.busy.swap_remove(i);
        }
        self.stream.changed.notify_all();
    }
}

/// What to decode with.
enum Plan {
    Wait,
    Idle(usize),
    Point(Option<Point>, u64),
}

impl SeekStream {
    /// The stream of `codec` in the bytes `range` of `origin`; `id` tells its blocks apart in `cache`.
    pub fn new(
        id: u32,
        origin: Origin,
        codec: Codec,
        range: (u64, u64),
        limits: &Limits,
        cache: Arc<BlockCache>,
    ) -> Self {
        let state = State { spacing: codec.spacing(), ..State::default() };
        let setup = Setup::new(origin, codec, range, limits);
        let size = OnceLock::new();
        if let Some(t) = &setup.xz {
            let _ = size.set(t.size());
        }
        let (spill, state) = (OnceLock::new(), Mutex::new(state));
        let damage = OnceLock::new();
        SeekStream { id, setup, cache, spill, size, damage, state, changed: Condvar::new() }
    }

    /// The same stream, whose content must be this.
    pub fn expecting(mut self, expected: Expected) -> Self {
        self.setup.expected = Some(expected);
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The format of the stream.
    pub fn codec(&self) -> Codec {
        self.setup.codec
    }

    /// Decompressed size, once it is known.
    pub fn size(&self) -> Option<u64> {
        self.size.get().copied()
    }

    /// Sets what an earlier pass found; a `size` of 0 is unknown (the pass met damage).
    pub fn restore(&self, size: u64, points: Vec<Point>) {
        if size > 0 {
            let _ = self.size.set(size);
        }
        self.lock().points = points;
    }

    /// The points found so far, for the index cache.
    pub fn points(&self) -> Vec<Point> {
        self.lock().points.clone()
    }

    /// Gives the stream a place on disk for blocks that are expensive to reach.
    pub fn set_spill(&self, spill: Spill) {
        if !spill.is_empty() {
            // An earlier opening had reason to store blocks: go on where it ended.
            self.lock().waste = u64::MAX;
        }
        let _ = self.spill.set(spill);
    }

    /// Starts one pass from the beginning to the end.
    pub fn pass(&self) -> Result<Pass<'_>> {
        Ok(Pass { decoder: self.setup.decoder(None)?, stream: self, out: 0 })
    }

    fn learn(&self, point: Point) {
        let mut s = self.lock();
        match s.points.last() {
            Some(last) if point.out < last.out.saturating_add(s.spacing) => return,
            _ => s.points.push(point),
        }
        if s.points.len() > self.setup.codec.max_points() {
            let mut i = 0;
            s.points.retain(|_| {
                i += 1;
                i % 2 == 0
            });
            s.spacing *= 2;
        }
    }

    /// Decompressed bytes `offset..offset + len`, fewer only at the end.
    ///
    /// # Errors
    /// The damage that lies in the way.
    pub fn read(&self, offset: u64, len: usize, watch: &dyn Watch) -> Result<Bytes> {
        let mut all = BytesMut::new();
        let mut at = offset;
        let end = offset.saturating_add(len as u64);
        while at < end {
            let block = self.block(at / BLOCK as u64, watch)?;
            let from = (at % BLOCK as u64) as usize;
            let to = block.len().min(from.saturating_add(usize::try_from(end - at).unwrap_or(usize::MAX)));
            if from >= to {
                break;
            }
            if at == offset && at + (to - from) as u64 == end {
                return Ok(block.slice(from..to));
            }
            if all.is_empty() {
                all.reserve(len.min(64 * BLOCK));
            }
            all.extend_from_slice(&block[from..to]);
            at += (to - from) as u64;
            if block.len() < BLOCK {
                break;
            }
        }
        match self.damage.get() {
            Some(e) if all.len() < len => Err(e.clone()),
            _ => Ok(all.freeze()),
        }
    }

    /// Block `number`; empty beyond the end.
    fn block(&self, number: u64, watch: &dyn Watch) -> Result<Bytes> {
        if self.size().is_some_and(|s| number.saturating_mul(BLOCK as u64) >= s) {
            return Ok(Bytes::new());
        }
        let key = (self.id, number);
        loop {
            if let Some(b) = self.cache.get(key) {
                return Ok(b);
            }
            if let Some(b) = self.spill.get().and_then(|s| s.get(number)) {
                self.cache.put(key, b.clone());
                return Ok(b);
            }
            let mut state = self.lock();
            if let Some(b) = self.cache.get(key) {
                // Another reader finished it just now.
                return Ok(b);
            }
            let (live, first) = match self.plan(&state, number) {
                Plan::Wait => {
                    drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
                    continue;
                }
                Plan::Idle(i) => {
                    let live = state.idle.remove(i);
                    let first = live.at;
                    (Ok(live), first)
                }
                Plan::Point(p, first) => (Err(p), first),
            };
            state.waste = state.waste.saturating_add(number - first);
            let spill = self.setup.codec.spill_after().is_some_and(|w| state.waste >= w);
            state.busy.push((first, number));
            drop(state);
            // Dropped after the decoder is back, so that those who waited find it.
            let busy = Busy { stream: self, range: (first, number) };
            let (live, block) = self.run(live, number, spill, watch)?;
            if let Some(live) = live {
                self.lay_down(live);
            }
            drop(busy);
            return Ok(block);
        }
    }

    /// Keeps a decoder for the next read, forgetting the one unused for longest.
    fn lay_down(&self, live: Live) {
        let mut state = self.lock();
        if state.idle.len() >= KEEP {
            state.idle.remove(0);
        }
        state.idle.push(live);
    }

    /// Chooses the decoder with the shortest way to `number`.
    fn plan(&self, state: &State, number: u64) -> Plan {
        if state.busy.iter().any(|(first, last)| (*first..=*last).contains(&number)) {
            return Plan::Wait;
        }
        let point = self.point(state, number);
        let mut start = first_block(point.as_ref());
        let mut plan = None;
        for (i, l) in state.idle.iter().enumerate() {
            if l.at <= number && l.at >= start {
                start = l.at;
                plan = Some(Plan::Idle(i));
            }
        }
        // A decoder at work will stand closer than any other: worth waiting for, unless it still has further to go
        // than the way it would save.
        for (first, last) in &state.busy {
            if *last < number && *last >= start && last - first <= last - start {
                return Plan::Wait;
            }
        }
        plan.unwrap_or(Plan::Point(point, start))
    }

    /// The last point from which block `number` can be decoded entirely.
    fn point(&self, state: &State, number: u64) -> Option<Point> {
        let out = number.saturating_mul(BLOCK as u64);
        if let Some(t) = &self.setup.xz {
            return t.point(out);
        }
        let i = state.points.partition_point(|p| p.out <= out).checked_sub(1)?;
        state.points.get(i).cloned()
    }

    /// Decodes up to and with block `number`, and gives the decoder back unless it has come to an end. An empty block
    /// means that the stream ends before it.
    fn run(
        &self,
        live: Result<Live, Option<Point>>,
        number: u64,
        spill: bool,
        watch: &dyn Watch,
    ) -> Result<(Option<Live>, Bytes)> {
        let mut live = match live {
            Ok(l) => l,
            Err(p) => self.start(p.as_ref())?,
        };
        let mut buf = Vec::new();
        loop {
            if watch.cancelled() {
                let at = self.setup.range.0.saturating_add(live.decoder.consumed());
                return Err(self.setup.origin.error(Kind::Cancelled, at, "reading was cancelled"));
            }
            let at = live.at;
            live.at += 1;
            let full = self.decode_block(&mut *live.decoder, at, &mut buf)?;
            if spill
                && !buf.is_empty()
                && let Some(s) = self.spill.get().filter(|s| !s.has(at))
            {
                s.put(at, &buf);
            }
            if number - at <= NEAR && !buf.is_empty() {
                let block = Bytes::from(std::mem::take(&mut buf));
                self.cache.put((self.id, at), block.clone());
                if at == number {
                    return Ok((full.then_some(live), block));
                }
            }
            if !full {
                return Ok((None, Bytes::new()));
            }
        }
    }

    /// Decodes block `at` into `buf`; `false` when the stream ends in it, rightly or by damage.
    fn decode_block(&self, decoder: &mut dyn Decode, at: u64, buf: &mut Vec<u8>) -> Result<bool> {
        buf.resize(BLOCK, 0);
        let mut done = 0;
        while done < BLOCK {
            let read = decoder.read(&mut buf[done..]);
            if let Some(p) = decoder.take_point() {
                self.learn(p);
            }
            match read {
                Ok(0) => {
                    let _ = self.size.set(at * BLOCK as u64 + done as u64);
                    break;
                }
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(e) => {
                    // What came before the damage is good.
                    let _ = self.damage.set(e);
                    break;
                }
            }
        }
        buf.truncate(done);
        Ok(done == BLOCK)
    }

    /// A decoder at the first block boundary at or after `point`.
    fn start(&self, point: Option<&Point>) -> Result<Live> {
        let mut decoder = self.setup.decoder(point)?;
        let at = first_block(point);
        let mut skip = usize::try_from(at * BLOCK as u64 - point.map_or(0, |p| p.out)).unwrap_or(0);
        let mut buf = vec![0; skip.min(BLOCK)];
        while skip > 0 {
            let max = skip.min(buf.len());
            let n = decoder.read(&mut buf[..max])?;
            if n == 0 {
                break;
            }
            skip -= n;
        }
        Ok(Live { decoder, at })
    }
}

/// The first block that a decoder at `point` can give entirely.
fn first_block(point: Option<&Point>) -> u64 {
    point.map_or(0, |p| p.out.div_ceil(BLOCK as u64))
}

/// One sequential pass over a stream, which learns its points and size.
pub(crate) struct Pass<'a> {
    stream: &'a SeekStream,
    decoder: Box<dyn Decode>,
    out: u64,
}

impl Pass<'_> {
    /// The next decompressed bytes; 0 only at the end.
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let n = self.decoder.read(buf)?;
        if let Some(p) = self.decoder.take_point() {
            self.stream.learn(p);
        }
        self.out += n as u64;
        if n == 0 && !buf.is_empty() {
            let _ = self.stream.size.set(self.out);
        }
        Ok(n)
    }

    /// Compressed bytes consumed so far.
    pub fn consumed(&self) -> u64 {
        self.decoder.consumed()
    }

    /// An error at the present place of the compressed file.
    pub fn error(&self, kind: Kind, what: String) -> Error {
        let at = self.stream.setup.range.0.saturating_add(self.decoder.consumed());
        self.stream.setup.origin.error(kind, at, what)
    }
}
