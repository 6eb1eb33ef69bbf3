// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading: from what is known, or from below, ahead of the reader.

use crate::file::{Content, Flight};
use crate::inner::Inner;
use crate::open::OpenFile;
use crate::record::lock;
use bytes::Bytes;
use outrigger_core::ops::{GetAttr, Read};
use outrigger_core::{Answer, Cx, Errno, Error, Payload, Reply, Result, ask};
use std::sync::{Arc, Mutex};

/// Pieces that are read ahead have at least this size, in bytes.
const PIECE_MIN: u64 = 128 << 10;
/// How often a file is read that has grown meanwhile, or whose connection was lost.
const TRIES: u32 = 3;
/// A window is read ahead in about so many pieces.
const PIECES: u64 = 4;

/// Bytes of a file.
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
}

impl Inner {
    pub(crate) fn read<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: Read) -> Answer<'a> {
        let open = self.open_file(op.node, op.handle);
        if open.direct || !open.may_read() {
            return self.pass(cx, op.into());
        }
        if let Some(pieces) = self.read_known(cx, &open, &op) {
            return Answer::Ready(Reply::Data(Payload::Chunks(pieces)));
        }
        Answer::later(async move {
            match self.read_anew(cx, &open, &op).await {
                Ok(Some(pieces)) => Reply::Data(Payload::Chunks(pieces)),
                Ok(None) => self.pass(cx, op.into()).await,
                Err(error) => Reply::Error(error),
            }
        })
    }

    /// The bytes a read is about, when all of them are known and fresh.
    fn read_known(self: &Arc<Self>, cx: &Cx, open: &Arc<OpenFile>, op: &Read) -> Option<Vec<Bytes>> {
        let now = self.now();
        let mut content = lock(&open.file.content);
        let range = wanted(&content, op).filter(|_| now < content.until)?;
        let pieces = lock(&self.pool).get(content.id, range.start, range.end);
        let all: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if all < range.end - range.start {
            return None;
        }
        self.read_ahead(cx, open, &mut content, range, false);
        Some(pieces.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// Reads what is not known. `None` when nothing that is read of this file can be used.
    async fn read_anew(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        op: &Read,
    ) -> Result<Option<Vec<Bytes>>> {
        let mut tries = TRIES;
        loop {
            self.confirm(cx, open).await?;
            tries -= 1;
            match self.read_confirmed(cx, open, op).await {
                Ok(Some((_, true))) if tries > 0 => {}
                // What was asked ahead met a connection that was lost since; there may be another one.
                Err(error) if error.errno == Errno::ENOTCONN && tries > 0 => {}
                read => return Ok(read?.map(|(pieces, _)| pieces)),
            }
        }
    }

    /// As [`Inner::read_anew`], as far as the file is known to reach, and whether it reaches farther by now.
    async fn read_confirmed(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        op: &Read,
    ) -> Result<Option<(Vec<Bytes>, bool)>> {
        let (range, mut flights) = {
            let now = self.now();
            let mut content = lock(&open.file.content);
            let Some(range) = wanted(&content, op).filter(|_| now < content.until) else { return Ok(None) };
            let flights =
                self.launch(cx, open, &mut content, range, u64::from(self.below().abilities.max_io));
            self.read_ahead(cx, open, &mut content, range, true);
            (range, flights)
        };
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let piece = match self.next_piece(cx, open, &mut flights, Range { start: at, end: range.end }) {
                Ok(bytes) => bytes,
                Err(flight) => match open.file.gate.wait(|| flight.result()).await {
                    Ok(bytes) => part(&flight, &bytes, Range { start: at, end: range.end }),
                    Err(error) => return Err(error),
                },
            };
            if piece.is_empty() {
                break;
            }
            at += piece.len() as u64;
            pieces.push(piece);
        }
        Ok(Some((pieces, flights.iter().any(|flight| flight.has_more()))))
    }

    /// What is there at the start of `range`, or what to wait for.
    fn next_piece(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        flights: &mut Vec<Arc<Flight>>,
        range: Range,
    ) -> Result<Bytes, Arc<Flight>> {
        if let Some(flight) =
            flights.iter().find(|flight| flight.offset <= range.start && range.start < flight.end())
        {
            return Err(Arc::clone(flight));
        }
        let mut content = lock(&open.file.content);
        let known = lock(&self.pool).get(content.id, range.start, range.end);
        if let Some((offset, bytes)) = known.into_iter().next()
            && offset == range.start
        {
            return Ok(bytes);
        }
        // It was there when the flights were launched, and was dropped since.
        let more = self.launch(cx, open, &mut content, range, u64::from(self.below().abilities.max_io));
        flights.extend(more);
        drop(content);
        self.next_piece(cx, open, flights, range)
    }

    /// Has everything of `range` that is neither known nor on its way read, in requests of at most `piece` bytes; answers
    /// all that is on its way.
    fn launch(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        range: Range,
        piece: u64,
    ) -> Vec<Arc<Flight>> {
        let mut taken: Vec<(u64, u64)> = lock(&self.pool)
            .get(content.id, range.start, range.end)
            .into_iter()
            .map(|(offset, bytes)| (offset, offset + bytes.len() as u64))
            .collect();
        let overlaps = |flight: &&Arc<Flight>| {
            let current = (flight.id, flight.changes) == (content.id, content.changes);
            current && flight.offset < range.end && range.start < flight.end()
        };
        let mut flights: Vec<Arc<Flight>> = content.flights.iter().filter(overlaps).cloned().collect();
        taken.extend(flights.iter().map(|flight| (flight.offset, flight.end())));
        taken.push((range.end, range.end));
        taken.sort_unstable();
        let mut at = range.start;
        for (start, end) in taken {
            while at < start {
                let len = (start - at).min(piece);
                flights.push(self.take_off(cx, open, content, at, len as u32));
                at += len;
            }
            at = at.max(end);
        }
        flights
    }

    /// Has one piece read.
    pub(crate) fn take_off(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        offset: u64,
        len: u32,
    ) -> Arc<Flight> {
        let (id, changes) = (content.id, content.changes);
        let last = content.size == Some(offset + u64::from(len));
        let flight = Arc::new(Flight { id, changes, offset, len, last, landed: Mutex::default() });
        content.flights.push(Arc::clone(&flight));
        let (inner, open, own) = (Arc::clone(self), Arc::clone(open), Arc::clone(&flight));
        let (cx, flying) = (self.cx(cx), open.flies());
        self.runtime.spawn(Box::pin(async move {
            match inner.read_from_disk(&open.file, &own).await {
                Some(bytes) => inner.end_flight(&open, &own, Ok(bytes)),
                None => {
                    let read = inner.fly(&cx, &open, &own).await;
                    inner.land(&open, &own, read);
                    inner.keep_on_disk(&cx, &open).await;
                }
            }
            drop(flying);
        }));
        flight
    }

    async fn fly(self: &Arc<Self>, cx: &Cx, open: &OpenFile, flight: &Flight) -> Result<Bytes> {
        self.written(open.node, &open.file).await;
        let (node, handle, offset) = (open.node, self.really_open(cx, open).await?, flight.offset);
        let below = self.below();
        let len = (flight.len + u32::from(flight.last)).min(below.abilities.max_io);
        let mut bytes = ask(&*below.service, cx, Read { node, handle, offset, len }).await?.into_bytes()?;
        bytes.truncate(len as usize);
        Ok(bytes)
    }

    /// Keeps what came, unless the content was changed meanwhile.
    fn land(&self, open: &OpenFile, flight: &Arc<Flight>, read: Result<Bytes, Error>) {
        let mut changed = false;
        let mut content = lock(&open.file.content);
        if let Ok(bytes) = &read
            && (content.id, content.changes) == (flight.id, flight.changes)
        {
            let longer = bytes.len() > flight.len as usize;
            let bytes = bytes.slice(..bytes.len().min(flight.len as usize));
            lock(&self.pool).insert(content.id, flight.offset, bytes.clone());
            content.any = true;
            let end = flight.offset + bytes.len() as u64;
            if self.disk.is_some() {
                content.unkept.add(flight.offset, end);
            }
            let shorter = bytes.len() < flight.len as usize && content.size.is_some_and(|size| end < size);
            changed = shorter || longer;
            if changed {
                // By another client.
                content.until = 0;
            }
        }
        drop(content);
        if changed {
            lock(&self.table).changed_elsewhere(open.node);
        }
        self.end_flight(open, flight, read);
    }

    /// Tells those who wait for a piece what came of it.
    fn end_flight(&self, open: &OpenFile, flight: &Arc<Flight>, read: Result<Bytes>) {
        lock(&open.file.content).flights.retain(|other| !Arc::ptr_eq(other, flight));
        *lock(&flight.landed) = Some(read);
        open.file.gate.open();
    }

    /// Reads ahead of a reader that has come to `range`.
    fn read_ahead(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        range: Range,
        waited: bool,
    ) {
        let most = if self.below().abilities.parallel.reads > 1 { self.read_ahead } else { 0 };
        let Some((start, end)) = lock(&open.ahead).advance(range.start, range.end, waited, most) else {
            return;
        };
        let end = content.size.map_or(end, |size| end.min(size));
        if start >= end {
            return;
        }
        let piece = ((end - start) / PIECES).max(PIECE_MIN).min(u64::from(self.below().abilities.max_io));
        self.launch(cx, open, content, Range { start, end }, piece);
    }

    /// Makes sure that the content is fresh, if it can be.
    async fn confirm(self: &Arc<Self>, cx: &Cx, open: &OpenFile) -> Result<()> {
        /// Says that nobody asks any more, however the asking ended.
        struct Asking<'a>(&'a OpenFile);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                lock(&self.0.file.content).asking = false;
                self.0.file.gate.open();
            }
        }
        enum Turn {
            Believed,
            Ask,
        }
        let turn = || {
            let mut content = lock(&open.file.content);
            match (self.now() < content.until, content.asking) {
                (true, _) => Some(Turn::Believed),
                (false, true) => None,
                (false, false) => {
                    content.asking = true;
                    Some(Turn::Ask)
                }
            }
        };
        if let Turn::Believed = open.file.gate.wait(turn).await {
            return Ok(());
        }
        let _asking = Asking(open);
        let handle = open.real();
        match self.getattr_below(cx, GetAttr { node: open.node, handle }).await {
            Reply::Error(error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The bytes a read is about, as far as the file reaches; `None` when that is not known. A file that is said to be empty may
/// be one whose content is made when it is read.
fn wanted(content: &Content, op: &Read) -> Option<Range> {
    let size = content.size.filter(|&size| size > 0)?;
    let start = op.offset.min(size);
    Some(Range { start, end: start.saturating_add(u64::from(op.len)).min(size) })
}

/// What a flight brought of `range`.
fn part(flight: &Flight, bytes: &Bytes, range: Range) -> Bytes {
    let from = usize::try_from(range.start - flight.offset).unwrap_or(usize::MAX).min(bytes.len());
    let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    bytes.slice(from..bytes.len().min(from.saturating_add(most)))
}
