// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffered sequential input from a range of a source.

use crate::{Error, Kind, Result, source::Origin};

const CHUNK: usize = 128 << 10;

/// The compressed bytes of one stream, read forwards.
pub(crate) struct Input {
    origin: Origin,
    start: u64,
    end: u64,
    /// File offset just after the bytes in `buf`.
    next: u64,
    buf: Vec<u8>,
    head: usize,
}

impl Input {
    /// Reads from `skip` bytes after the start of `range`.
    pub fn new(origin: Origin, range: (u64, u64), skip: u64) -> Result<Self> {
        let (start, end) = range;
        match start.checked_add(skip) {
            Some(next) if next <= end => Ok(Input { origin, start, end, next, buf: Vec::new(), head: 0 }),
            _ => {
                Err(origin.error(Kind::Corrupt, end, "a stored position lies outside of the compressed data"))
            }
        }
    }

    /// The bytes at hand, reading more when there are none; empty only at the end.
    pub fn fill(&mut self) -> Result<&[u8]> {
        if self.head == self.buf.len() {
            let n = usize::try_from(self.end - self.next).unwrap_or(CHUNK).min(CHUNK);
            self.buf.resize(n, 0);
            self.head = 0;
            let got = crate::source::read_full(&*self.origin.source, &mut self.buf, self.next);
            let got = got.map_err(|e| {
                self.buf.clear();
                Error::io(&self.origin.name, self.next, &e)
            })?;
            self.buf.truncate(got);
            self.next += got as u64;
            if got < n {
                self.end = self.next;
            }
        }
        Ok(&self.buf[self.head..])
    }

    /// Marks `n` bytes of those last given by [`Input::fill`] as used.
    pub fn consume(&mut self, n: usize) {
        self.head = (self.head + n).min(self.buf.len());
    }

    /// Moves to `offset` bytes after the start of the stream.
    pub fn seek(&mut self, offset: u64) {
        self.buf.clear();
        self.head = 0;
        self.next = self.start.saturating_add(offset).min(self.end);
    }

    /// Bytes consumed from the start of the stream.
    pub fn offset(&self) -> u64 {
        self.next - (self.buf.len() - self.head) as u64 - self.start
    }

    /// The next byte, `None` at the end.
    pub fn byte(&mut self) -> Result<Option<u8>> {
        let b = self.fill()?.first().copied();
        self.consume(usize::from(b.is_some()));
        Ok(b)
    }

    /// The next `N` bytes; an error naming `what` when the input ends within.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut a = [0; N];
        for b in &mut a {
            *b = self.byte()?.ok_or_else(|| self.truncated(what))?;
        }
        Ok(a)
    }

    /// An error of `kind` at the present position.
    pub fn error(&self, kind: Kind, what: impl Into<String>) -> Error {
        self.origin.error(kind, self.start + self.offset(), what)
    }

    /// The input ended inside `what`.
    pub fn truncated(&self, what: &str) -> Error {
        self.error(Kind::Truncated, format!("the file ends inside {what}"))
    }

    /// The input is not what the format demands.
    pub fn corrupt(&self, what: impl Into<String>) -> Error {
        self.error(Kind::Corrupt, what)
    }
}
