// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading: one transfer for a file that is read from the front to the back.

use crate::inner::{Inner, lock};
use crate::session::{Data, Fault, Session, line};
use bytes::{Buf, Bytes, BytesMut};
use outrigger_core::{Errno, Node, Result};
use outrigger_proto_ftp::{Reply, timestamp};
use outrigger_toolkit_remote::{Attempt, Lease, REPEATS};

/// How much of what was received stays for requests that come out of their order, in bytes.
const WINDOW: usize = 2 << 20;
/// How far ahead of a transfer a request may be, so that the transfer goes on to there, in bytes.
const GAP: u64 = 1 << 20;

/// A transfer, and the last of what it brought.
pub(crate) struct Reading {
    /// Where in the file the window begins.
    start: u64,
    window: BytesMut,
    /// `None` when the file has ended.
    transfer: Option<(Lease<Session>, Data)>,
    seen: Seen,
}

/// Size and time of a file when a transfer began, where the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    size: Option<u64>,
    modified: Option<i64>,
}

impl Reading {
    pub(crate) fn holds_connection(&self) -> bool {
        self.transfer.is_some()
    }

    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    /// Whether a request at this place is best served by this transfer.
    fn serves(&self, offset: u64) -> bool {
        self.start <= offset
            && offset <= self.end().saturating_add(if self.transfer.is_some() { GAP } else { 0 })
    }

    fn take(&self, offset: u64, len: usize) -> Bytes {
        let from = usize::try_from(offset - self.start)
            .map_or(self.window.len(), |from| from.min(self.window.len()));
        Bytes::copy_from_slice(&self.window[from..self.window.len().min(from.saturating_add(len))])
    }
}

impl Inner {
    /// Up to `len` bytes at `offset` of the server's file; the caller holds the lock of the node.
    pub(crate) async fn read_at(&self, node: Node, offset: u64, len: usize) -> Result<Bytes> {
        let mut reading = lock(&self.reading).remove(&node).filter(|reading| reading.serves(offset));
        let mut seen = None;
        for _ in 0..=REPEATS {
            let mut current = match reading.take() {
                Some(reading) => reading,
                None => self.begin(node, offset, seen).await?,
            };
            match self.receive_until(&mut current, offset, len).await {
                Ok(()) => {
                    let data = current.take(offset, len);
                    lock(&self.reading).insert(node, current);
                    return Ok(data);
                }
                Err(Fault::Lost(_)) => seen = Some(current.seen),
                Err(fault) => return Err(fault.into()),
            }
        }
        Err(Errno::EIO.because("the connection was lost again and again"))
    }

    /// Begins a transfer at `offset`. One that follows on a lost connection must be of the same file.
    async fn begin(&self, node: Node, offset: u64, before: Option<Seen>) -> Result<Reading> {
        let path = self.inodes.path(node)?;
        // Asked in one go with the content, these cost no time.
        let mut lines = Vec::new();
        let (size, mdtm) = (self.has("SIZE").await?, self.has("MDTM").await?);
        lines.extend(size.then(|| line("SIZE", &path)).transpose()?);
        lines.extend(mdtm.then(|| line("MDTM", &path)).transpose()?);
        lines.extend((offset > 0).then(|| line("REST", offset.to_string().as_bytes())).transpose()?);
        lines.push(line("RETR", &path)?);
        let (session, data, replies) = match self.transfer(&lines).await {
            Ok(begun) => begun,
            Err(fault) => return self.nothing_there(fault, &path, offset).await,
        };
        let mut replies = replies.into_iter();
        let mut answer = |asked: bool| asked.then(|| replies.next()).flatten().filter(Reply::is_good);
        let size = answer(size).and_then(|reply| std::str::from_utf8(reply.text()).ok()?.trim().parse().ok());
        let seen =
            Seen { size, modified: answer(mdtm).and_then(|reply| timestamp(reply.text().trim_ascii())) };
        if offset > 0 && answer(true).is_none() {
            return Err(Errno::EOPNOTSUPP.because("the server cannot begin in the middle of a file (REST)"));
        }
        if before.is_some_and(|before| before != seen) {
            return Err(Errno::ESTALE.because("the file was changed while the connection was lost"));
        }
        Ok(Reading { start: offset, window: BytesMut::new(), transfer: Some((session, data)), seen })
    }

    /// Servers refuse to begin where a file has ended.
    async fn nothing_there(&self, fault: Fault, path: &[u8], offset: u64) -> Result<Reading> {
        if let (Fault::Refused(_), 1..) = (&fault, offset)
            && self.look(path).await?.size.is_some_and(|size| size <= offset)
        {
            return Ok(Reading {
                start: offset,
                window: BytesMut::new(),
                transfer: None,
                seen: Seen::default(),
            });
        }
        Err(self.why(fault, Attempt::Open { path, writes: false }).await)
    }

    async fn receive_until(&self, reading: &mut Reading, offset: u64, len: usize) -> Result<(), Fault> {
        let wanted = offset.saturating_add(len as u64);
        while reading.end() < wanted {
            let Some((_, data)) = &mut reading.transfer else { return Ok(()) };
            reading.window.reserve(1 << 17);
            let count = Session::receive(&self.dialer, data, &mut reading.window).await?;
            if count == 0
                && let Some((mut session, data)) = reading.transfer.take()
            {
                session.finish(&self.dialer, data).await?;
                session.give_back();
            }
            let excess = reading.window.len().saturating_sub(WINDOW);
            let before = usize::try_from(offset.saturating_sub(reading.start)).unwrap_or(usize::MAX);
            let dropped = excess.min(before);
            reading.window.advance(dropped);
            reading.start += dropped as u64;
        }
        Ok(())
    }
}
