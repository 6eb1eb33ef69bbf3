// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes out on a connection: replies and notices, in the order in which they were put in line.

use outrigger_core::wire::peer::{self, Recall};
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Notice, lock};
use outrigger_toolkit_serve::Claim;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

/// Notices that wait. More of them become one: that anything may have changed.
const NOTICES: usize = 1024;
/// How much is written with one call, unless one message is longer.
const BATCH: usize = 256 << 10;
/// How long the other side may take nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What one reply holds until it is written: a place among the requests of its connection, and memory.
#[derive(Debug)]
pub(crate) struct Hold(
    #[expect(dead_code, reason = "held for what its drop does")] pub(crate) (OwnedSemaphorePermit, Claim),
);

/// What replies that are written together hold.
pub(crate) type Holds = Vec<Hold>;

/// The line.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    notices: usize,
    /// Whether the last notice says that anything may have changed.
    says_all: bool,
    ended: bool,
}

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    is_notice: bool,
    holds: Holds,
}

impl Outgoing {
    /// Puts a reply, or what begins the connection, in line.
    pub(crate) fn send(&self, bytes: Vec<u8>, holds: Holds) {
        let mut queue = lock(&self.queue);
        if !queue.ended {
            queue.messages.push_back(Message { bytes, is_notice: false, holds });
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Puts a notice in line. It never waits.
    pub(crate) fn notice(&self, notice: &Notice) {
        let mut queue = lock(&self.queue);
        let is_full = queue.notices >= NOTICES;
        if queue.says_all && (is_full || *notice == Notice::InvalidateAll) {
            return;
        }
        let notice = if is_full { Notice::InvalidateAll } else { notice.clone() };
        queue.says_all = notice == Notice::InvalidateAll;
        // Content in a notice has been replaced by its callers, so it always fits.
        let Ok(bytes) = (Frame { id: Frame::UNANSWERED, body: Body::Notice(notice) }).encode() else {
            return;
        };
        if queue.messages.back().is_some_and(|last| last.is_notice && last.bytes == bytes) {
            return;
        }
        if !queue.ended {
            queue.notices += 1;
            queue.messages.push_back(Message { bytes, is_notice: true, holds: Vec::new() });
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Puts in line that a lease is to be given back. A connection has few of them, and asks for each.
    pub(crate) fn recall(&self, recall: Recall) {
        if let Ok(bytes) = peer::framed(&recall) {
            self.send(bytes, Holds::new());
        }
    }

    /// Nothing more comes; what is in line is written.
    pub(crate) fn end(&self) {
        lock(&self.queue).ended = true;
        self.wake.notify_one();
    }

    /// The peer takes no more frames: those that wait are dropped.
    pub(crate) fn give_up(&self) {
        let mut queue = lock(&self.queue);
        queue.ended = true;
        let dropped = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(dropped);
    }

    /// What is to be written next; `None` at the end.
    async fn next(&self) -> Option<(Vec<u8>, Holds)> {
        loop {
            {
                let mut queue = lock(&self.queue);
                if let Some(batch) = queue.take() {
                    return Some(batch);
                }
                if queue.ended {
                    return None;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Writes until the end.
    ///
    /// # Errors
    /// When the other side is gone, or takes nothing for [`PATIENCE`].
    pub(crate) async fn write(&self, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        while let Some((bytes, holds)) = self.next().await {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let written = timeout(PATIENCE, to.write(rest)).await;
                match written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => rest = &rest[count..],
                }
            }
            timeout(PATIENCE, to.flush()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            drop(holds);
        }
        to.shutdown().await
    }
}

impl Queue {
    fn take(&mut self) -> Option<(Vec<u8>, Holds)> {
        let Message { mut bytes, is_notice, mut holds } = self.messages.pop_front()?;
        self.notices -= usize::from(is_notice);
        while let Some(next) = self.messages.front()
            && bytes.len() + next.bytes.len() <= BATCH
            && let Some(next) = self.messages.pop_front()
        {
            bytes.extend_from_slice(&next.bytes);
            self.notices -= usize::from(next.is_notice);
            holds.extend(next.holds);
        }
        if self.notices == 0 {
            self.says_all = false;
        }
        Some((bytes, holds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use outrigger_core::Node;

    fn notices(bytes: &[u8]) -> Vec<Notice> {
        let (mut rest, mut found) = (Bytes::copy_from_slice(bytes), Vec::new());
        while !rest.is_empty() {
            let len = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
            let frame = rest.split_to(4 + len).slice(4..);
            if let Body::Notice(notice) = Frame::decode(frame).unwrap().body {
                found.push(notice);
            }
        }
        found
    }

    #[tokio::test]
    async fn notices_that_are_not_taken_become_one() {
        let (out, node) =
            (Outgoing::default(), |node| Notice::InvalidateNode { node: Node(node), offset: 0, len: 0 });
        out.notice(&node(1));
        out.notice(&node(1));
        (2..5000).for_each(|number| out.notice(&node(number)));
        out.end();
        let mut written = Vec::new();
        out.write(&mut written).await.unwrap();
        let written = notices(&written);
        assert_eq!(written.len(), NOTICES + 1);
        assert_eq!((&written[0], &written[1]), (&node(1), &node(2)), "the same one once");
        assert_eq!(written.last(), Some(&Notice::InvalidateAll));
    }
}
