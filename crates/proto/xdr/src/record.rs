// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages on a byte stream: record marking (RFC 5531, 11).
//!
//! A record is a message in fragments, each after a mark of four bytes: whether it is the last one, and its length. Nearly all
//! peers send one fragment a message; those cost no copy.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes of the mark before a fragment.
pub const MARK_LEN: usize = 4;

const LAST: u32 = 1 << 31;

/// Room for the first bytes of a record; more comes with what has arrived.
const FIRST: usize = 8 << 10;

/// After this many bytes of a record there is room for all of it: a peer that only promises a large one gets no more than this.
const ENOUGH: usize = 64 << 10;

/// A record is longer than is accepted. The stream is of no use after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record of {len} bytes or more, at most {max} are accepted")]
pub struct RecordTooLong {
    /// How much of it is known.
    pub len: usize,
    /// How many bytes are accepted.
    pub max: usize,
}

impl RecordTooLong {
    fn check(len: usize, max: usize) -> Result<(), Self> {
        if len <= max { Ok(()) } else { Err(RecordTooLong { len, max }) }
    }
}

/// The mark of a record of one fragment of `len` bytes; `None` when no fragment can be that long.
pub fn mark(len: usize) -> Option<[u8; MARK_LEN]> {
    let len = u32::try_from(len).ok().filter(|len| len & LAST == 0)?;
    Some((LAST | len).to_be_bytes())
}

/// Whether the fragment after the mark at the beginning of `bytes` is the last one, and its length.
fn parse(bytes: &[u8]) -> Option<(bool, usize)> {
    let mark = u32::from_be_bytes(*bytes.first_chunk()?);
    Some((mark & LAST != 0, (mark & !LAST) as usize))
}

/// Cuts what arrives on a connection into messages.
///
/// The reader of the connection appends to [`Records::space`], and takes messages with [`Records::next`] until there is none. What
/// is held is at most twice the longest record, and what was received beyond it in one read. Connections that are idle hold
/// nothing after [`Records::release`].
#[derive(Debug)]
pub struct Records {
    /// Received and not yet given out.
    received: BytesMut,
    /// Earlier fragments of a record that has several.
    begun: BytesMut,
    max: usize,
}

impl Records {
    /// Accepts messages of up to `max` bytes.
    pub fn new(max: usize) -> Self {
        Records { received: BytesMut::new(), begun: BytesMut::new(), max }
    }

    /// Where to append what the connection has; has spare capacity. As much as is known to follow, but not before a good part of it
    /// is there.
    pub fn space(&mut self) -> &mut BytesMut {
        let here = self.received.len();
        let expected = parse(&self.received).map_or(FIRST, |(_, len)| (MARK_LEN + len).saturating_sub(here));
        self.received.reserve(if here < ENOUGH {
            expected.clamp(FIRST, ENOUGH)
        } else {
            expected.max(FIRST)
        });
        &mut self.received
    }

    /// The next message, without its marks; `None` when more must arrive first.
    ///
    /// # Errors
    /// When it is too long, as soon as that is known.
    #[expect(clippy::should_implement_trait, reason = "an iterator would be over after its first None")]
    pub fn next(&mut self) -> Result<Option<Bytes>, RecordTooLong> {
        while let Some((is_last, len)) = parse(&self.received) {
            RecordTooLong::check(self.begun.len() + len, self.max)?;
            if self.received.len() < MARK_LEN + len {
                return Ok(None);
            }
            self.received.advance(MARK_LEN);
            let fragment = self.received.split_to(len);
            if is_last && self.begun.is_empty() {
                return Ok(Some(fragment.freeze()));
            }
            self.begun.extend_from_slice(&fragment);
            if is_last {
                return Ok(Some(std::mem::take(&mut self.begun).freeze()));
            }
        }
        Ok(None)
    }

    /// How many bytes the record takes that is coming, as soon as there is room for all of it; 0 before that.
    pub fn expected(&self) -> usize {
        match parse(&self.received) {
            Some((_, len)) if self.begun.len() + self.received.len() >= ENOUGH => self.begun.len() + len,
            _ => 0,
        }
    }

    /// Gives memory back while nothing of a message is there.
    pub fn release(&mut self) {
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
    }

    /// Whether the stream may end here: no part of a message is there.
    pub fn is_between(&self) -> bool {
        self.received.is_empty() && self.begun.is_empty()
    }
}

/// The whole length of the record that begins with `head`, marks included; `None` while its last mark is not there. For those who cut
/// frames themselves, and then give each to [`contents`].
///
/// # Errors
/// When it is longer than `max`, marks included.
pub fn frame_len(head: &[u8], max: usize) -> Result<Option<usize>, RecordTooLong> {
    let mut whole = 0;
    while let Some((is_last, len)) = head.get(whole..).and_then(parse) {
        whole += MARK_LEN + len;
        RecordTooLong::check(whole, max)?;
        if is_last {
            return Ok(Some(whole));
        }
    }
    RecordTooLong::check(whole, max.saturating_sub(MARK_LEN))?;
    Ok(None)
}

/// The message in a whole record; `None` when it is no whole record. Copies only a record of several fragments.
pub fn contents(mut frame: Bytes) -> Option<Bytes> {
    let mut joined = BytesMut::new();
    loop {
        let (is_last, len) = parse(&frame)?;
        frame.advance(MARK_LEN);
        let fragment = (len <= frame.len()).then(|| frame.split_to(len))?;
        if is_last && joined.is_empty() {
            return frame.is_empty().then_some(fragment);
        }
        joined.extend_from_slice(&fragment);
        if is_last {
            return frame.is_empty().then(|| joined.freeze());
        }
    }
}
