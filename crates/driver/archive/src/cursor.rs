// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading an archive from front to back while it is indexed, whether it is compressed or not.

use crate::{
    Error, Kind, Limits, Progress, Result, Watch,
    seek::Pass,
    source::{Origin, read_full},
};

const CHUNK: usize = 256 << 10;
/// Bytes between two reports of progress.
const REPORT: u64 = 1 << 20;

enum From<'a> {
    /// An uncompressed archive: skipping costs nothing.
    Plain(Origin),
    Stream(Pass<'a>),
}

/// A forward reader of an archive's (decompressed) bytes.
pub(crate) struct Cursor<'a> {
    from: From<'a>,
    origin: Origin,
    buf: Vec<u8>,
    head: usize,
    /// Position of `buf[0]`.
    base: u64,
    limits: &'a Limits,
    watch: &'a dyn Watch,
    entries: u64,
    report_at: u64,
}

impl<'a> Cursor<'a> {
    /// Reads an uncompressed archive.
    pub fn plain(origin: Origin, limits: &'a Limits, watch: &'a dyn Watch) -> Self {
        Self::new(From::Plain(origin.clone()), origin, limits, watch)
    }

    /// Reads a compressed archive.
    pub fn stream(pass: Pass<'a>, origin: Origin, limits: &'a Limits, watch: &'a dyn Watch) -> Self {
        Self::new(From::Stream(pass), origin, limits, watch)
    }

    fn new(from: From<'a>, origin: Origin, limits: &'a Limits, watch: &'a dyn Watch) -> Self {
        let buf = Vec::new();
        Cursor { from, origin, buf, head: 0, base: 0, limits, watch, entries: 0, report_at: 0 }
    }

    /// Bytes before the present position.
    pub fn pos(&self) -> u64 {
        self.base + self.head as u64
    }

    /// Counts an entry for the progress reports.
    pub fn count(&mut self) {
        self.entries += 1;
    }

    /// An error at the present position; in a compressed archive the text names the position inside too.
    pub fn error(&self, kind: Kind, what: impl Into<String>) -> Error {
        match &self.from {
            From::Plain(o) => o.error(kind, self.pos(), what),
            From::Stream(p) => p.error(kind, format!("{} (decompressed byte {})", what.into(), self.pos())),
        }
    }

    /// The archive is not what its format demands.
    pub fn corrupt(&self, what: impl Into<String>) -> Error {
        self.error(Kind::Corrupt, what)
    }

    /// The bytes at hand, reading more when there are none; empty only at the end.
    pub fn fill(&mut self) -> Result<&[u8]> {
        if self.head == self.buf.len() {
            self.base += self.buf.len() as u64;
            self.head = 0;
            self.buf.resize(CHUNK, 0);
            let n = match self.read_chunk() {
                Ok(n) => n,
                Err(e) => {
                    self.buf.clear();
                    return Err(e);
                }
            };
            self.buf.truncate(n);
            self.check()?;
        }
        Ok(&self.buf[self.head..])
    }

    fn read_chunk(&mut self) -> Result<usize> {
        match &mut self.from {
            From::Plain(o) => {
                // Headers only: small reads, since the data between is skipped.
                let n = read_full(&*o.source, &mut self.buf[..CHUNK / 4], self.base);
                n.map_err(|e| Error::io(&o.name, self.base, &e))
            }
            From::Stream(p) => p.read(&mut self.buf),
        }
    }

    /// Reports progress, and enforces cancellation and the compression ratio.
    fn check(&mut self) -> Result<()> {
        let pos = self.base + self.buf.len() as u64;
        let read = match &self.from {
            From::Plain(_) => pos,
            From::Stream(p) => p.consumed(),
        };
        if let From::Stream(_) = self.from
            && pos > self.limits.free_output
            && pos - self.limits.free_output > read.saturating_mul(self.limits.ratio)
        {
            return Err(self.error(
                Kind::Limit,
                format!("{pos} bytes came out of {read}: a decompression bomb? If not, raise max_ratio"),
            ));
        }
        if pos >= self.report_at {
            self.report_at = pos + REPORT;
            if self.watch.cancelled() {
                return Err(self.error(Kind::Cancelled, "opening was cancelled"));
            }
            self.watch.progress(Progress { read, size: self.origin.source.size(), entries: self.entries });
        }
        Ok(())
    }

    /// Marks `n` bytes of those at hand as used.
    pub fn consume(&mut self, n: usize) {
        self.head = (self.head + n).min(self.buf.len());
    }

    /// Fills `buf` as far as there are bytes, and returns how many.
    pub fn read_up_to(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let have = self.fill()?;
            if have.is_empty() {
                break;
            }
            let n = have.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&have[..n]);
            self.consume(n);
            done += n;
        }
        Ok(done)
    }

    /// Fills `buf`, or fails with the archive ending inside `what`.
    pub fn exact(&mut self, buf: &mut [u8], what: &str) -> Result<()> {
        if self.read_up_to(buf)? < buf.len() {
            return Err(self.truncated(what));
        }
        Ok(())
    }

    /// The next `n` bytes. The caller has bounded `n`; memory grows only as bytes really come.
    pub fn take(&mut self, n: usize, what: &str) -> Result<Vec<u8>> {
        let mut v = Vec::new();
        while v.len() < n {
            let have = self.fill()?;
            if have.is_empty() {
                return Err(self.truncated(what));
            }
            let m = have.len().min(n - v.len());
            v.extend_from_slice(&have[..m]);
            self.consume(m);
        }
        Ok(v)
    }

    /// Passes over `n` bytes, or fails with the archive ending inside `what`.
    pub fn skip(&mut self, mut n: u64, what: &str) -> Result<()> {
        let at_hand = (self.buf.len() - self.head) as u64;
        if let (From::Plain(o), true) = (&self.from, n > at_hand) {
            let (to, size) = (self.pos().checked_add(n), o.source.size());
            let Some(to) = to.filter(|t| *t <= size) else {
                let end = o.error(Kind::Truncated, size, format!("the file ends inside {what}"));
                return Err(end);
            };
            self.buf.clear();
            (self.head, self.base) = (0, to);
            return Ok(());
        }
        while n > 0 {
            let have = self.fill()?.len();
            if have == 0 {
                return Err(self.truncated(what));
            }
            let m = usize::try_from(n).unwrap_or(have).min(have);
            self.consume(m);
            n -= m as u64;
        }
        Ok(())
    }

    /// Reads a compressed stream to its end, so that its checksums are verified and its size known.
    pub fn drain(&mut self) -> Result<()> {
        while matches!(self.from, From::Stream(_)) && !self.fill()?.is_empty() {
            self.consume(usize::MAX - self.head);
        }
        Ok(())
    }

    /// The archive ended inside `what`.
    pub fn truncated(&self, what: &str) -> Error {
        self.error(Kind::Truncated, format!("the archive ends inside {what}"))
    }
}
