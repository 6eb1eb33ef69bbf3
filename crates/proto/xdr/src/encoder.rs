// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting a message together.

use crate::record;
use bytes::{BufMut, Bytes, BytesMut};

/// [`Data`](crate::Data) of up to this many bytes is copied into the message: one piece is written faster than three.
pub const COPIED_MAX: usize = 1024;

/// A message that grows.
#[derive(Debug, Default)]
pub struct Encoder {
    message: Encoded,
    has_mark: bool,
}

/// A whole message in three pieces, to be sent one after the other; most have only the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// What is before the content, with the record mark if there is one.
    pub head: BytesMut,
    /// Content that was not copied.
    pub data: Bytes,
    /// What is after it: padding, and fields if any follow.
    pub tail: BytesMut,
}

impl Encoder {
    /// A message without a record mark, for up to `capacity` bytes before it must grow.
    pub fn new(capacity: usize) -> Self {
        let head = BytesMut::with_capacity(capacity);
        Encoder { message: Encoded { head, ..Encoded::default() }, has_mark: false }
    }

    /// A message that begins with a record mark (RFC 5531, 11), which [`Encoder::finish`] fills in; one fragment.
    pub fn record(capacity: usize) -> Self {
        let mut encoder = Encoder::new(record::MARK_LEN + capacity);
        encoder.message.head.put_bytes(0, record::MARK_LEN);
        encoder.has_mark = true;
        encoder
    }

    fn out(&mut self) -> &mut BytesMut {
        if self.message.data.is_empty() { &mut self.message.head } else { &mut self.message.tail }
    }

    /// Bytes as they are: a multiple of four.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.out().put_slice(bytes);
    }

    /// Bytes and their padding (RFC 4506, 4.9).
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.out().put_bytes(0, padding(bytes.len()));
    }

    /// A length, that many bytes, and padding (RFC 4506, 4.10). The types that are put so bound their length.
    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.out().put_u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// The same without a copy, once in a message.
    pub(crate) fn data(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPIED_MAX || !self.message.data.is_empty() {
            return self.opaque(bytes);
        }
        self.out().put_u32(bytes.len() as u32);
        self.message.data = bytes.clone();
        self.message.tail.put_bytes(0, padding(bytes.len()));
    }

    /// The message.
    ///
    /// # Panics
    /// When a record of 2 GiB was made: no fragment can be that long.
    pub fn finish(mut self) -> Encoded {
        let len = self.message.len();
        self.mark(len);
        self.message
    }

    /// The message whose last field is [`Data`](crate::Data) that is empty, and of which the caller sends `len` bytes after it from
    /// elsewhere (sendfile(2), splice(2)), and then [`Encoded::tail`].
    ///
    /// # Panics
    /// When the last field is no empty data, and as [`Encoder::finish`].
    pub fn finish_without_data(mut self, len: u32) -> Encoded {
        let Encoded { head, data, tail } = &mut self.message;
        let last = head.len().checked_sub(4).filter(|&last| data.is_empty() && head[last..] == [0; 4]);
        head[last.expect("the last field is empty data")..].copy_from_slice(&len.to_be_bytes());
        tail.put_bytes(0, padding(len as usize));
        let whole = self.message.len() + len as usize;
        self.mark(whole);
        self.message
    }

    /// Fills in the record mark of a message of `len` bytes, mark included.
    fn mark(&mut self, len: usize) {
        if self.has_mark {
            let mark = record::mark(len - record::MARK_LEN).expect("a record of less than 2 GiB");
            self.message.head[..record::MARK_LEN].copy_from_slice(&mark);
        }
    }
}

/// How many zeros follow opaque data of `len` bytes.
fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

impl Encoded {
    /// Bytes of all pieces.
    #[expect(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len() + self.tail.len()
    }

    /// All pieces in one; copies the content if it is a piece of its own.
    pub fn into_bytes(self) -> Bytes {
        let mut whole = self.head;
        whole.put_slice(&self.data);
        whole.put_slice(&self.tail);
        whole.freeze()
    }

    /// Two pieces, the second empty or of content; copies that only if padding or more follows it.
    pub fn into_head_and_body(self) -> (BytesMut, Bytes) {
        if self.tail.is_empty() {
            return (self.head, self.data);
        }
        let mut body = BytesMut::with_capacity(self.data.len() + self.tail.len());
        body.put_slice(&self.data);
        body.put_slice(&self.tail);
        (self.head, body.freeze())
    }
}
