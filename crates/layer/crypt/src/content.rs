// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading and writing files.
//!
//! Who reads a file has a turn with others who read it; who writes has it alone, because a part of a block is read before it is written.

use crate::below::Below;
use crate::format::{
    BLOCK, Damage, HEADER, Known, OVERHEAD, Record, SIZE_MAX, SLOT, header, open_blocks, plain_size,
    read_header, seal_blocks, sealed_size, slot_at,
};
use crate::keys::{NONCE, TAG, new_id};
use crate::state::File;
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{GetAttr, OpenFlags, Read, SetAttr, Write};
use outrigger_core::reply::Count;
use outrigger_core::{Errno, Error, Handle, Node, Payload, Result, SetAttrs};
use std::sync::Arc;

const BLOCK_BYTES: u64 = BLOCK as u64;
const ZEROES: [u8; BLOCK] = [0; BLOCK];

/// How many blocks a request to a tree may have that takes `max_io` bytes at once: one byte more tells whether the file goes on.
pub(crate) fn blocks_at_once(max_io: u32) -> usize {
    (max_io as usize).saturating_sub(1 + HEADER).checked_div(SLOT).unwrap_or(0).max(1)
}

/// A file that a request is about.
pub(crate) struct At<'a> {
    pub(crate) file: &'a File,
    pub(crate) node: Node,
    pub(crate) handle: Handle,
    pub(crate) cached: bool,
    pub(crate) kill_setid: bool,
}

impl<'a> At<'a> {
    pub(crate) fn new(file: &'a File, node: Node, handle: Handle) -> Self {
        At { file, node, handle, cached: false, kill_setid: false }
    }

    fn write(&self, offset: u64) -> Write {
        let At { node, handle, cached, kill_setid, .. } = *self;
        Write { node, handle, offset, data: Payload::EMPTY, cached, kill_setid }
    }
}

impl Below<'_> {
    /// The key and the record of a file; `None` when it is being made and has none yet.
    pub(crate) async fn known(&self, at: &At<'_>) -> Result<Option<Known>> {
        let state = at.file.state();
        match state.known {
            Some(known) => Ok(Some(known)),
            None if state.fresh => Ok(None),
            None => self.look_at_header(at).await.map(Some),
        }
    }

    /// Reads the header, and looks whether a file that should have content has any.
    pub(crate) async fn look_at_header(&self, at: &At<'_>) -> Result<Known> {
        let bytes = self.raw(at.node, at.handle, 0, HEADER + OVERHEAD + 1).await?;
        if bytes.is_empty() {
            let what = "the file has lost its header, or was never closed after it was made";
            return Err(self.damaged(at.node, what).await);
        }
        let Some(known) = read_header(&self.inner.keys, &bytes) else {
            return Err(self.damaged(at.node, "the header is damaged").await);
        };
        at.file.with(|state| state.known = Some(known.clone()));
        if known.record.size > 0 && bytes.len() <= HEADER + OVERHEAD {
            return Err(self.cut(at.node, &known, 0).await);
        }
        Ok(known)
    }

    pub(crate) async fn cut(&self, node: Node, known: &Known, end: u64) -> Error {
        let (block, size) = (end / BLOCK_BYTES, known.record.size);
        let what = format!("the file was cut: it ends in block {block} with {end} bytes, of {size} at least");
        self.damaged(node, &what).await
    }

    async fn bad(&self, node: Node, damage: Damage) -> Error {
        let Damage { block, empty } = damage;
        let what =
            if empty { "is empty, and the file has no holes" } else { "is damaged, or of another place" };
        self.damaged(node, &format!("block {block} {what}")).await
    }

    /// The content of at most `count` blocks from `first` on, fewer at the end of the file.
    pub(crate) async fn blocks(
        &self,
        at: &At<'_>,
        known: &Known,
        first: u64,
        count: usize,
    ) -> Result<BytesMut> {
        let (end, mut known) = ((first + count as u64) * BLOCK_BYTES, known.clone());
        for last_try in [false, true] {
            // One byte more tells whether the file goes on, where it has to.
            let more = usize::from(known.record.size > end);
            let mut bytes = self.raw(at.node, at.handle, slot_at(first), count * SLOT + more).await?;
            let goes_on = bytes.len() > count * SLOT;
            bytes.truncate(count * SLOT);
            let opened = open_blocks(&known, first, &mut bytes);
            let found = match opened {
                Ok(len) => {
                    bytes.truncate(len);
                    let is_cut = !goes_on && known.record.size > first * BLOCK_BYTES + len as u64;
                    if !is_cut {
                        return Ok(bytes);
                    }
                    Ok(first * BLOCK_BYTES + len as u64)
                }
                Err(damage) => Err(damage),
            };
            // Another process may have made the file anew, or cut it.
            let now = if last_try { known.clone() } else { self.look_at_header(at).await? };
            if last_try || now.key.id == known.key.id && now.record == known.record {
                return Err(match found {
                    Ok(end) => self.cut(at.node, &known, end).await,
                    Err(damage) => self.bad(at.node, damage).await,
                });
            }
            known = now;
        }
        Err(Errno::EIO.into())
    }

    pub(crate) async fn read(&self, op: Read) -> Result<Payload> {
        let file = self.inner.file(op.node);
        let _turn = file.turns.look().await;
        self.content(&At::new(&file, op.node, op.handle), op.offset, op.len as usize).await
    }

    /// `len` bytes of a file, fewer at its end, for who has a turn.
    async fn content(&self, at: &At<'_>, offset: u64, len: usize) -> Result<Payload> {
        let Some(known) = self.known(at).await? else { return Ok(Payload::EMPTY) };
        let most = blocks_at_once(self.abilities().max_io) as u64;
        let end = offset.saturating_add(len as u64).min(SIZE_MAX);
        let (mut place, mut pieces) = (offset, Vec::new());
        while place < end {
            let first = place / BLOCK_BYTES;
            let last = end.div_ceil(BLOCK_BYTES).min(first + most);
            let bytes = self.blocks(at, &known, first, (last - first) as usize).await?.freeze();
            let skip = (place - first * BLOCK_BYTES) as usize;
            let whole = bytes.len() as u64 == (last - first) * BLOCK_BYTES;
            let piece = bytes.slice(skip.min(bytes.len())..bytes.len().min(skip + (end - place) as usize));
            place += piece.len() as u64;
            pieces.push(piece);
            if !whole {
                break;
            }
        }
        Ok(match pieces.len() {
            0 => Payload::EMPTY,
            1 => Payload::Bytes(pieces.swap_remove(0)),
            _ => Payload::Chunks(pieces),
        })
    }

    /// The size of a file, for who has a turn.
    pub(crate) async fn size(&self, at: &At<'_>) -> Result<u64> {
        if let Some(size) = at.file.state().size {
            return Ok(size);
        }
        let handle = Some(at.handle).filter(|&handle| handle != Handle::NONE);
        let size = plain_size(self.ask(GetAttr { node: at.node, handle }).await?.attr.size);
        at.file.with(|state| state.size = Some(size));
        Ok(size)
    }

    pub(crate) async fn write(&self, op: Write) -> Result<Count> {
        let file = self.inner.file(op.node);
        let _turn = file.turns.change().await;
        let Write { node, handle, cached, kill_setid, .. } = op;
        let at = At { file: &file, node, handle, cached, kill_setid };
        let data = op.data.into_bytes()?;
        if data.is_empty() {
            return Ok(Count(0));
        }
        let size = self.size(&at).await?;
        let opened = self.inner.flags(node, handle);
        self.must_write(node, handle, true)?;
        let appends = opened.is_some_and(|flags| flags.contains(OpenFlags::APPEND));
        let at_end = !cached && self.appends.unwrap_or(appends);
        let offset = if at_end { size } else { op.offset };
        self.put(&at, offset, &data).await
    }

    /// Writes `data` at `offset`, for who has a turn.
    async fn put(&self, at: &At<'_>, offset: u64, data: &[u8]) -> Result<Count> {
        let size = self.size(at).await?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > SIZE_MAX) {
            return Err(Errno::EFBIG.into());
        }
        // A header that vouches for less would hide that the file was cut.
        if let Some(known) = self.known(at).await?.filter(|known| known.record.size > size) {
            return Err(self.cut(at.node, &known, size).await);
        }
        if offset > size {
            self.stretch(at, size, offset, false).await?;
        }
        let stored = self.store(at, offset, data).await;
        if at.handle == Handle::NONE {
            // Nobody will close the file, and others may change it before the next request.
            let settled = self.settle(at).await;
            at.file.with(|state| state.size = None);
            if stored.is_ok() {
                settled?;
            }
        }
        Ok(Count(stored? as u64))
    }

    /// Prepares a file of `from` bytes for content at `to`: its last block becomes a whole one, and if blocks between that and `to` are to
    /// be a hole, or that of `to` is, the header says first that there may be holes.
    async fn stretch(&self, at: &At<'_>, from: u64, to: u64, hole_at_end: bool) -> Result<()> {
        let (last, next) = (from / BLOCK_BYTES, to / BLOCK_BYTES);
        if last == next && !from.is_multiple_of(BLOCK_BYTES) {
            // What is stored in a block has zeroes before it.
            return Ok(());
        }
        let whole = from.next_multiple_of(BLOCK_BYTES);
        if to > whole && (hole_at_end || next * BLOCK_BYTES > whole) {
            self.permit_holes(at).await?;
        }
        if whole > from {
            self.store(at, from, &ZEROES[..(whole - from) as usize]).await?;
        }
        Ok(())
    }

    async fn permit_holes(&self, at: &At<'_>) -> Result<()> {
        match self.known(at).await? {
            Some(known) if known.record.sparse => Ok(()),
            known => {
                let size = known.map_or(0, |known| known.record.size);
                self.write_header(at, Record { size, sparse: true }).await
            }
        }
    }

    /// Writes the header with this record.
    async fn write_header(&self, at: &At<'_>, record: Record) -> Result<()> {
        let key = match self.known(at).await? {
            Some(known) => known.key,
            None => Arc::new(self.inner.keys.file(new_id()?)),
        };
        let bytes = Bytes::copy_from_slice(&header(&key, record)?);
        let (done, written) = self.write_all(at.write(0), bytes).await;
        if let Err(error) = written {
            if done > 0
                && let Some(old) = at.file.state().known
            {
                let bytes = Bytes::copy_from_slice(&header(&old.key, old.record)?);
                self.put_back(at, 0, bytes).await;
            }
            return Err(error);
        }
        at.file.with(|state| (state.known, state.fresh) = (Some(Known { key, record }), false));
        Ok(())
    }

    /// Writes `data`, which begins in a block that is there or right behind the last one. The answer is less when there is no room.
    async fn store(&self, at: &At<'_>, offset: u64, data: &[u8]) -> Result<usize> {
        let most = blocks_at_once(self.abilities().max_io) * BLOCK;
        let mut done = 0;
        while done < data.len() {
            let start = offset + done as u64;
            let room = most - (start % BLOCK_BYTES) as usize;
            let piece = &data[done..data.len().min(done + room)];
            match self.store_piece(at, start, piece).await {
                Ok(()) => done += piece.len(),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    async fn store_piece(&self, at: &At<'_>, start: u64, data: &[u8]) -> Result<()> {
        let size = self.size(at).await?;
        let end = start + data.len() as u64;
        let (first, last) = (start / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        if self.known(at).await?.is_none() && first > 0 {
            self.write_header(at, Record::default()).await?;
        }
        let known = self.known(at).await?;
        // What of the first and the last block stays as it is.
        let (base, stays_to) = (first * BLOCK_BYTES, size.min((last + 1) * BLOCK_BYTES));
        let mut head = BytesMut::new();
        let mut tail = BytesMut::new();
        if let Some(known) = &known {
            if start > base && size > base {
                head = self.blocks(at, known, first, 1).await?;
            }
            if stays_to > end && (first != last || head.is_empty()) {
                tail = self.blocks(at, known, last, 1).await?;
            } else if stays_to > end {
                tail = head.clone();
            }
        }
        let kept = tail.get((end - last * BLOCK_BYTES) as usize..).unwrap_or_default();
        let stays = (start - base) as usize;
        let new_end = end + kept.len() as u64;
        let (key, lead) = match &known {
            Some(known) => (Arc::clone(&known.key), 0),
            None => (Arc::new(self.inner.keys.file(new_id()?)), HEADER),
        };
        let whole = (new_end - base) as usize;
        let mut bytes = BytesMut::zeroed(lead + (sealed_size(whole as u64) as usize - HEADER));
        let slots = &mut bytes[lead..];
        spread(slots, 0, &head[..stays.min(head.len())]);
        spread(slots, stays, data);
        spread(slots, (end - base) as usize, kept);
        seal_blocks(&key, first, slots)?;
        let record = Record { size: new_end, sparse: false };
        if lead > 0 {
            bytes[..lead].copy_from_slice(&header(&key, record)?);
        }
        let place = if lead > 0 { 0 } else { slot_at(first) };
        let (done, written) = self.write_all(at.write(place), bytes.freeze()).await;
        if let Err(error) = written {
            self.give_up(at, size, place + done as u64).await;
            // The block where it ended, and the last one of the file, behind which is nothing now.
            for block in [first + (done / SLOT) as u64, size / BLOCK_BYTES] {
                let old = match block {
                    _ if block == first && !head.is_empty() => &head[..],
                    _ if block == last && !tail.is_empty() => &tail[..],
                    // The caller writes all of it: as much as there is room for.
                    _ => data.get((block * BLOCK_BYTES).saturating_sub(start) as usize..).unwrap_or_default(),
                };
                let len = size.saturating_sub(block * BLOCK_BYTES).min(old.len() as u64) as usize;
                if let Some(known) = known.as_ref().filter(|_| (first..=last).contains(&block)) {
                    self.mend(at, known, block, &old[..len.min(BLOCK)]).await;
                }
            }
            return Err(error);
        }
        at.file.with(|state| {
            state.size = Some(size.max(new_end));
            if lead > 0 {
                (state.known, state.fresh) = (Some(Known { key, record }), false);
            }
        });
        Ok(())
    }

    /// Takes away what a write has left behind the end of the file that found no room.
    async fn give_up(&self, at: &At<'_>, size: u64, end: u64) {
        let was = if at.file.state().fresh { 0 } else { sealed_size(size) };
        let mut known = Some(size);
        if end > was {
            let attrs = SetAttrs { size: Some(was), ..SetAttrs::default() };
            let handle = Some(at.handle).filter(|&handle| handle != Handle::NONE);
            if self.ask(SetAttr { node: at.node, handle, attrs }).await.is_err() {
                known = None;
            }
        }
        at.file.with(|state| state.size = known);
    }

    /// Puts `content` into a block that a write below has torn. The slot is there, so that this finds room where the write found none.
    async fn mend(&self, at: &At<'_>, known: &Known, block: u64, content: &[u8]) {
        if content.is_empty() || self.blocks(at, known, block, 1).await.is_ok() {
            return;
        }
        let place = slot_at(block);
        let mut slot = BytesMut::zeroed(content.len() + OVERHEAD);
        if known.record.sparse
            && let Ok(torn) = self.raw(at.node, at.handle, place, slot.len()).await
            && torn.ends_with(&[0; TAG])
        {
            // It was a hole, for whose rest there may be no room.
            let used = torn.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            return self.put_back(at, place, vec![0; used].into()).await;
        }
        spread(&mut slot, 0, content);
        match seal_blocks(&known.key, block, &mut slot) {
            Ok(()) => self.put_back(at, place, slot.freeze()).await,
            Err(error) => tracing::error!(node = ?at.node, block, %error, "a block stays torn"),
        }
    }

    /// Writes once more what an interrupted write has torn.
    async fn put_back(&self, at: &At<'_>, place: u64, bytes: Bytes) {
        if let Err(error) = self.write_all(at.write(place), bytes).await.1 {
            tracing::error!(node = ?at.node, place, %error, "what an interrupted write has torn stays so");
        }
    }

    /// Makes the header vouch for all that is there, for who has a turn.
    pub(crate) async fn settle(&self, at: &At<'_>) -> Result<()> {
        let state = at.file.state();
        if !state.is_behind() {
            return Ok(());
        }
        let (size, sparse) = (state.size.unwrap_or(0), state.known.is_some_and(|known| known.record.sparse));
        self.write_header(at, Record { size, sparse }).await
    }

    /// The same for a handle, which may be one that only reads. After a process died nothing is known of the file.
    pub(crate) async fn settle_through(&self, node: Node, handle: Handle) -> Result<()> {
        let flags = self.inner.flags(node, handle);
        if flags.is_some_and(|flags| !flags.writes()) {
            return Ok(());
        }
        let file = self.inner.file(node);
        let _turn = file.turns.change().await;
        let at = At::new(&file, node, handle);
        if flags.is_some() {
            return self.settle(&at).await;
        }
        let handle = Some(handle).filter(|&handle| handle != Handle::NONE);
        let sealed = self.ask(GetAttr { node, handle }).await?.attr.size;
        let size = plain_size(sealed);
        file.with(|state| (state.known, state.size, state.fresh) = (None, Some(size), sealed == 0));
        // Of a file that is damaged, or that others have cut, the header stays as it is.
        let vouched = self.known(&at).await.ok().map(|known| known.map_or(0, |known| known.record.size));
        let settled = match vouched {
            Some(vouched) if vouched <= size => self.settle(&at).await,
            _ => Ok(()),
        };
        file.with(|state| (state.size, state.fresh) = (None, false));
        match settled {
            // It was opened for reading only.
            Err(error) if error.errno == Errno::EBADF => Ok(()),
            settled => settled,
        }
    }

    /// Gives a file this size, for who has a turn. `others` is what is set at the same time.
    pub(crate) async fn resize(&self, at: &At<'_>, size: u64, others: SetAttrs) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let handle = Some(at.handle).filter(|&handle| handle != Handle::NONE);
        let cut_to = |sealed| SetAttr {
            node: at.node,
            handle,
            attrs: SetAttrs { size: Some(sealed), ..others.clone() },
        };
        match self.known(at).await {
            Ok(Some(_)) => {}
            Ok(None) => self.write_header(at, Record::default()).await?,
            // What is damaged can be made empty.
            Err(error) if size == 0 && error.errno == Errno::EBADMSG => {
                self.ask(cut_to(0)).await?;
                at.file.with(|state| (state.known, state.size, state.fresh) = (None, Some(0), true));
                return self.write_header(at, Record::default()).await;
            }
            // What was cut can be given another size.
            Err(error) if at.file.state().known.is_none() => return Err(error),
            Err(_) => {}
        }
        let now = self.size(at).await?;
        let sparse = size > 0 && self.known(at).await?.is_some_and(|known| known.record.sparse);
        if size > now {
            let rest = now % BLOCK_BYTES;
            self.stretch(at, now, size, true).await?;
            if rest != 0 && size / BLOCK_BYTES == now / BLOCK_BYTES {
                self.store(at, now, &ZEROES[..(size - now) as usize]).await?;
            }
        } else {
            self.write_header(at, Record { size, sparse }).await?;
            let kept = (size % BLOCK_BYTES) as usize;
            if kept > 0 && size < now {
                self.shorten(at, size / BLOCK_BYTES, kept).await?;
            }
        }
        self.ask(cut_to(sealed_size(size))).await?;
        at.file.with(|state| state.size = Some(size));
        match self.known(at).await? {
            // It was cut, and has another size now.
            Some(Known { record, .. }) if record.size > size => {
                self.write_header(at, Record { size, ..record }).await
            }
            _ => self.settle(at).await,
        }
    }

    /// Leaves `kept` bytes of a block, which becomes the last one.
    async fn shorten(&self, at: &At<'_>, block: u64, kept: usize) -> Result<()> {
        let Some(known) = self.known(at).await? else { return Ok(()) };
        let bytes = self.blocks(at, &known, block, 1).await?;
        let mut slot = BytesMut::zeroed(kept + OVERHEAD);
        spread(&mut slot, 0, &bytes[..kept.min(bytes.len())]);
        seal_blocks(&known.key, block, &mut slot)?;
        let written = self.write_all(at.write(slot_at(block)), slot.freeze()).await.1;
        if written.is_err() {
            self.mend(at, &known, block, &bytes).await;
        }
        written
    }

    /// Puts zeroes into a range of a file, for who has a turn; whole blocks are given back by `punch`.
    pub(crate) async fn erase(&self, at: &At<'_>, from: u64, to: u64) -> Result<Option<(u64, u64)>> {
        let to = to.min(self.size(at).await?);
        if from >= to {
            return Ok(None);
        }
        let (first, last) = (from.div_ceil(BLOCK_BYTES), to / BLOCK_BYTES);
        if first >= last {
            let mut place = from;
            while place < to {
                let next = to.min((place / BLOCK_BYTES + 1) * BLOCK_BYTES);
                self.store(at, place, &ZEROES[..(next - place) as usize]).await?;
                place = next;
            }
            return Ok(None);
        }
        for (start, end) in [(from, first * BLOCK_BYTES), (last * BLOCK_BYTES, to)] {
            if start < end {
                self.store(at, start, &ZEROES[..(end - start) as usize]).await?;
            }
        }
        self.permit_holes(at).await?;
        Ok(Some((first, last)))
    }

    /// Copies at most one request's worth between two files, or within one.
    pub(crate) async fn copy_some(
        &self,
        (from, offset): (&At<'_>, u64),
        (to, to_offset): (&At<'_>, u64),
        len: u64,
    ) -> Result<u64> {
        let most = (blocks_at_once(self.abilities().max_io) * BLOCK) as u64;
        let data = {
            let _turn = from.file.turns.look().await;
            self.content(from, offset, len.min(most) as usize).await?.into_bytes()?
        };
        if data.is_empty() {
            return Ok(0);
        }
        let _turn = to.file.turns.change().await;
        Ok(self.put(to, to_offset, &data).await?.0)
    }
}

/// Puts bytes of a file into the slots of its blocks, from `place` on.
fn spread(slots: &mut [u8], place: usize, mut data: &[u8]) {
    let mut place = place;
    while !data.is_empty() {
        let (block, within) = (place / BLOCK, place % BLOCK);
        let count = data.len().min(BLOCK - within);
        let at = block * SLOT + NONCE + within;
        slots[at..at + count].copy_from_slice(&data[..count]);
        data = &data[count..];
        place += count;
    }
}

const _: () = assert!(OVERHEAD == NONCE + TAG);
