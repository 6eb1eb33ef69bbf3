// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading: from what is known, or from below, ahead of the reader.

use crate::file::{Content, Fetch};
use crate::inner::Inner;
use crate::open::OpenFile;
use bytes::Bytes;
use outrigger_core::ops::{GetAttr, Read};
use outrigger_core::{Answer, Cx, Errno, Error, Payload, Reply, Result, ask, lock};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Pieces that are read ahead have at least this size, in bytes.
const PIECE_MIN: u64 = 128 << 10;
/// How often a file is read that has grown meanwhile, or whose connection was lost.
const TRIES: u32 = 3;
/// A window is read ahead in about so many pieces.
const PIECES: u64 = 4;

/// Where bytes come from.
enum Source {
    /// They are known, and begin here.
    Known(u64, Bytes),
    /// They are on their way.
    Coming(Arc<Fetch>),
}

impl Source {
    /// Which bytes of the file they are.
    fn extent(&self) -> (u64, u64) {
        match self {
            Source::Known(offset, bytes) => (*offset, offset + bytes.len() as u64),
            Source::Coming(fetch) => (fetch.offset, fetch.end()),
        }
    }
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
        open.is_one_version().ok()?;
        let now = self.now();
        let mut content = lock(&open.file.content);
        let range = wanted(&content, op).filter(|_| now < content.until)?;
        let pieces = lock(&self.pool).get(content.id, range.start, range.end);
        let all: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if all < range.end - range.start {
            return None;
        }
        self.read_ahead(cx, open, &mut content, &range, false);
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
            open.is_one_version()?;
            tries -= 1;
            let Some((range, sources)) = self.sources(cx, open, op) else { return Ok(None) };
            match collect(open, range, sources).await {
                // It reaches farther by now.
                Ok((_, true)) if tries > 0 => {}
                // What was asked ahead met a connection that was lost since; there may be another one.
                Err(error) if error.errno == Errno::ENOTCONN && tries > 0 => {}
                read => return Ok(Some(read?.0)),
            }
        }
    }

    /// The bytes a read is about, as far as the file is known to reach, and where they come from.
    fn sources(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        op: &Read,
    ) -> Option<(Range<u64>, Vec<Source>)> {
        let now = self.now();
        let mut content = lock(&open.file.content);
        let range = wanted(&content, op).filter(|_| now < content.until)?;
        let most = u64::from(self.below().abilities.max_io);
        let sources = self.launch(cx, open, &mut content, range.clone(), most);
        self.read_ahead(cx, open, &mut content, &range, true);
        Some((range, sources))
    }

    /// Has everything of `range` that is neither known nor on its way read, in requests of at most `piece` bytes; answers
    /// where all of it comes from, in order.
    fn launch(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        range: Range<u64>,
        piece: u64,
    ) -> Vec<Source> {
        let known = lock(&self.pool).get(content.id, range.start, range.end);
        let coming = content.fetches.iter().filter(|fetch| {
            content.is_current(fetch) && fetch.offset < range.end && range.start < fetch.end()
        });
        let mut sources: Vec<Source> = coming.cloned().map(Source::Coming).collect();
        sources.extend(known.into_iter().map(|(offset, bytes)| Source::Known(offset, bytes)));
        sources.sort_by_key(Source::extent);
        let (mut at, mut missing) = (range.start, Vec::new());
        for (start, end) in sources.iter().map(Source::extent).chain([(range.end, range.end)]) {
            while at < start {
                let len = (start - at).min(piece);
                missing.push(Source::Coming(self.start_fetch(cx, open, content, at, len as u32)));
                at += len;
            }
            at = at.max(end);
        }
        sources.extend(missing);
        sources.sort_by_key(Source::extent);
        sources
    }

    /// Has one piece read.
    pub(crate) fn start_fetch(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        offset: u64,
        len: u32,
    ) -> Arc<Fetch> {
        let (id, changes) = (content.id, content.changes);
        let last = content.size == Some(offset + u64::from(len));
        let fetch = Arc::new(Fetch { id, changes, offset, len, last, outcome: Mutex::default() });
        content.fetches.push(Arc::clone(&fetch));
        let (inner, open, own) = (Arc::clone(self), Arc::clone(open), Arc::clone(&fetch));
        let (cx, in_use) = (self.cx(cx), open.in_use());
        self.runtime.spawn(Box::pin(async move {
            match inner.read_from_disk(&open.file, &own).await {
                Some(bytes) => inner.end_fetch(&open, &own, Ok(bytes)),
                None => {
                    let read = inner.fetch(&cx, &open, &own).await;
                    inner.fetched(&open, &own, read);
                    inner.save_to_disk(&cx, &open).await;
                }
            }
            drop(in_use);
        }));
        fetch
    }

    async fn fetch(self: &Arc<Self>, cx: &Cx, open: &OpenFile, fetch: &Fetch) -> Result<Bytes> {
        self.written(open.node, &open.file).await;
        let (node, handle, offset) = (open.node, self.open_to_read_on(cx, open).await?, fetch.offset);
        let below = self.below();
        let len = (fetch.len + u32::from(fetch.last)).min(below.abilities.max_io);
        let mut bytes = ask(&*below.service, cx, Read { node, handle, offset, len }).await?.into_bytes()?;
        bytes.truncate(len as usize);
        Ok(bytes)
    }

    /// Keeps what came, unless the content was changed meanwhile.
    fn fetched(&self, open: &OpenFile, fetch: &Arc<Fetch>, read: Result<Bytes, Error>) {
        let mut changed = false;
        let mut content = lock(&open.file.content);
        if let Ok(bytes) = &read
            && content.is_current(fetch)
        {
            let longer = bytes.len() > fetch.len as usize;
            let bytes = bytes.slice(..bytes.len().min(fetch.len as usize));
            lock(&self.pool).insert(content.id, fetch.offset, bytes.clone());
            content.any = true;
            let end = fetch.offset + bytes.len() as u64;
            if self.disk.is_some() {
                content.unsaved.add(fetch.offset, end);
            }
            let shorter = bytes.len() < fetch.len as usize && content.size.is_some_and(|size| end < size);
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
        self.end_fetch(open, fetch, read);
    }

    /// Tells those who wait for a piece what came of it.
    fn end_fetch(&self, open: &OpenFile, fetch: &Arc<Fetch>, read: Result<Bytes>) {
        lock(&open.file.content).fetches.retain(|other| !Arc::ptr_eq(other, fetch));
        *lock(&fetch.outcome) = Some(read);
        open.file.gate.open();
    }

    /// Reads ahead of a reader that has come to `range`.
    fn read_ahead(
        self: &Arc<Self>,
        cx: &Cx,
        open: &Arc<OpenFile>,
        content: &mut Content,
        range: &Range<u64>,
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
        self.launch(cx, open, content, start..end, piece);
    }

    /// Makes sure that the content is fresh, if it can be.
    async fn confirm(self: &Arc<Self>, cx: &Cx, open: &OpenFile) -> Result<()> {
        /// Ends the revalidation, however it went.
        struct Asking<'a>(&'a OpenFile);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                lock(&self.0.file.content).asking = false;
                self.0.file.gate.open();
            }
        }
        let is_fresh = || {
            let mut content = lock(&open.file.content);
            let fresh = self.now() < content.until;
            // One asks; the others wait for what comes of it.
            (fresh || !std::mem::replace(&mut content.asking, true)).then_some(fresh)
        };
        if open.file.gate.wait(is_fresh).await {
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
fn wanted(content: &Content, op: &Read) -> Option<Range<u64>> {
    let size = content.size.filter(|&size| size > 0)?;
    let start = op.offset.min(size);
    Some(start..start.saturating_add(u64::from(op.len)).min(size))
}

/// The bytes of `range`, as far as they come one behind the other, and whether the file has more than was known.
async fn collect(open: &OpenFile, range: Range<u64>, sources: Vec<Source>) -> Result<(Vec<Bytes>, bool)> {
    let (mut at, mut pieces, mut has_more) = (range.start, Vec::new(), false);
    for source in sources {
        let (start, _) = source.extent();
        if start > at {
            break;
        }
        let bytes = match source {
            Source::Known(_, bytes) => bytes,
            Source::Coming(fetch) => {
                let bytes = open.file.gate.wait(|| fetch.result()).await?;
                has_more |= fetch.has_more();
                bytes
            }
        };
        let end = range.end.min(start + bytes.len() as u64);
        if at < end {
            pieces.push(bytes.slice((at - start) as usize..(end - start) as usize));
            at = end;
        }
    }
    Ok((pieces, has_more))
}
