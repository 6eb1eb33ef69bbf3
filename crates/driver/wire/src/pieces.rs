// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content in pieces that suit the line: on a slow one, much at once would delay everything small that is asked after it.

use crate::inner::Inner;
use bytes::Bytes;
use futures_util::future::join_all;
use outrigger_core::ops::{OpenFlags, Read, Write};
use outrigger_core::reply::Count;
use outrigger_core::{BoxFuture, Cx, Errno, Payload, Reply, Result};
use outrigger_toolkit_remote::pieces;
use std::sync::atomic::Ordering;

/// A line that carries so much in a moment carries the most that is read or written at once in a few of them.
const FAST: usize = 128 << 10;
/// So many pieces are read before the others are asked for from the beginning of a file on, and from where its end was found: most files
/// are small, and who reads them does not say so, and reads on to see that there is no more.
const FIRST: usize = 4;

impl Inner {
    /// How many bytes one request should move now; `None` where any number will do, and where content may be a stream, of which pieces
    /// side by side would come in any order.
    fn piece(&self) -> Option<u32> {
        if self.abilities.opens_streams {
            return None;
        }
        let chunk = self.present()?.mux.chunk();
        (chunk < FAST).then_some(chunk as u32)
    }

    /// Reads, all pieces at once, but for the first ones where the end may be near.
    ///
    /// # Errors
    /// Of the first piece that cannot be read.
    pub(crate) async fn read(&self, cx: &Cx, op: Read) -> Result<Reply> {
        let Some(each) = self.piece().filter(|&each| op.len > each) else {
            return self.ask(cx, &op.into()).await;
        };
        let ask = |(at, len): (usize, usize)| -> BoxFuture<'_, Result<(usize, Bytes)>> {
            let piece = Read { offset: op.offset.saturating_add(at as u64), len: len as u32, ..op.clone() };
            Box::pin(async move {
                match self.ask(cx, &piece.into()).await? {
                    Reply::Data(data) => Ok((len, data.into_bytes()?)),
                    Reply::Error(error) => Err(error),
                    _ => Err(Errno::EPROTO.because("what came is no content")),
                }
            })
        };
        let file = self.open.get(op.handle).ok();
        let end = file.as_ref().map_or(u64::MAX, |file| file.end.load(Ordering::Relaxed));
        let first = if op.offset == 0 || op.offset == end { FIRST } else { usize::MAX };
        let read = up_to_the_end(pieces(op.len as usize, each), first, ask).await?;
        let len = read.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        if let Some(file) = file.filter(|_| len < op.len.into()) {
            file.end.store(op.offset.saturating_add(len), Ordering::Relaxed);
        }
        Ok(Reply::Data(Payload::Chunks(read)))
    }

    /// Writes, all pieces at once.
    ///
    /// # Errors
    /// Of the first piece, when that cannot be written. When it is a later one, those before it count.
    pub(crate) async fn write(&self, cx: &Cx, op: Write) -> Result<Reply> {
        let appends = self.open.get(op.handle).is_ok_and(|file| file.flags.contains(OpenFlags::APPEND));
        let Some(each) = self.piece().filter(|&each| !appends && op.data.len() > each as usize) else {
            return self.ask(cx, &op.into()).await;
        };
        let data = op.data.clone().into_bytes()?;
        let ask = |(at, len): (usize, usize)| -> BoxFuture<'_, Result<(usize, u64)>> {
            let (offset, data) = (op.offset.checked_add(at as u64), data.slice(at..at + len));
            let (node, handle, cached, kill_setid) = (op.node, op.handle, op.cached, op.kill_setid);
            Box::pin(async move {
                let offset = offset.ok_or(Errno::EFBIG)?;
                let data = Payload::Bytes(data);
                let piece = Write { node, handle, offset, data, cached, kill_setid };
                match self.ask(cx, &piece.into()).await? {
                    Reply::Count(Count(count)) => Ok((len, count)),
                    Reply::Error(error) => Err(error),
                    _ => Err(Errno::EPROTO.because("what came is no count")),
                }
            })
        };
        let mut written = 0;
        for piece in join_all(pieces(data.len(), each).map(ask)).await {
            match piece {
                Ok((len, count)) => {
                    written += count;
                    if count < len as u64 {
                        break;
                    }
                }
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Reply::Count(Count(written)))
    }
}

/// Reads pieces up to the first one that is not full, which is the end: so many of them at once, and then all others.
async fn up_to_the_end<F: Future<Output = Result<(usize, Bytes)>>>(
    mut pieces: impl Iterator<Item = (usize, usize)>,
    first: usize,
    ask: impl Fn((usize, usize)) -> F,
) -> Result<Vec<Bytes>> {
    let mut read = Vec::new();
    for at_once in [first, usize::MAX] {
        for piece in join_all(pieces.by_ref().take(at_once).map(&ask)).await {
            let (len, bytes) = piece?;
            let is_end = bytes.len() < len;
            read.push(bytes);
            if is_end {
                return Ok(read);
            }
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::Cell;

    #[test]
    fn a_small_file_is_read_with_few_requests_and_a_large_one_to_its_end() {
        for (size, asked) in [(0, 4), (100, 4), (3999, 4), (4000, 128), (100_000, 128), (1 << 20, 128)] {
            let count = Cell::new(0);
            let ask = |(at, len): (usize, usize)| {
                count.set(count.get() + 1);
                let there = usize::min(len, usize::saturating_sub(size, at));
                std::future::ready(Ok((len, Bytes::from(vec![1; there]))))
            };
            let read = up_to_the_end(pieces(128_000, 1000), FIRST, ask).now_or_never();
            let read = read.expect("nothing is waited for").expect("content");
            assert_eq!((read.concat().len(), count.get()), (size.min(128_000), asked), "{size}");
        }
    }
}
