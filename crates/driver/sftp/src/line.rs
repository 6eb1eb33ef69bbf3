// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection that outlives the process that serves it.
//!
//! A process may die at any moment, also between the system call that moves bytes and the note of how many it moved; then
//! it would not be known where in a message the stream is. So the note is left to the kernel: what is received is spliced from
//! the pipe into a memory file, and what is sent from another one into the other pipe, at the position of the open file.
//! Both descriptors outlive the process, and a system call that has begun ends before its process does. So wherever that is
//! killed, the positions are right.
//!
//! The files are used as rings. Of what is sent a word says where whole messages end: what is after it was never
//! said. Of what is received one says up to where messages were given to the requests that wait for them: what is after
//! it the next process reads once more. Replies to what a former process asked have no receiver and are dropped.
//!
//! Splicing into a pipe moves no bytes but refers to the pages of the file. So a part of the ring is free only when the other
//! side has read it from the pipe, which the pipe shows.

use crate::kept::Kept;
use outrigger_core::{Error, Result};
use outrigger_proto_sftp::{Extensions, PACKET_MAX};
use rustix::fs::{MemfdFlags, SeekFrom, ftruncate, memfd_create, seek, tell};
use rustix::io::{Errno as Os, ioctl_fionread, pread, pwrite};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

/// Bytes of a ring: any message fits, and all that is sent at once.
const RING: u64 = 2 << 20;
const _: () = assert!(RING > PACKET_MAX as u64 + (512 << 10));
/// Bytes of a pipe: enough for the largest messages not to be cut into many pieces.
const PIPE: usize = 256 << 10;

outrigger_core::fields! {
    /// What is noted of connections.
    pub(crate) struct LineWords {
        /// The number of the connection, 0 when there is none.
        epoch: u64,
        /// The same of the last one there was.
        last: u64,
        /// Of the connection and of the one before it, whose end may come late.
        connections: [ConnectionWords<'static>; 2],
    }
}

outrigger_core::fields! {
    /// What is noted of one connection.
    pub(crate) struct ConnectionWords {
        /// Where whole messages end that are to be sent.
        end: u64,
        /// Where messages end that were received and given out.
        taken: u64,
        /// The last number that was given to a request.
        tag: u64,
        /// What its server can do.
        extensions: u64,
        max_read: u64,
        max_write: u64,
        /// Numbers of the descriptors.
        descriptors: [u64; 5],
    }
}

/// Our ends of the pipes of a process that carries a connection.
pub struct Ends {
    /// What goes to it.
    pub(crate) to: OwnedFd,
    /// What comes from it.
    pub(crate) from: OwnedFd,
    /// What it says to people.
    pub(crate) errors: OwnedFd,
}

/// Its ends of them.
pub(crate) struct OtherEnds {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// The pipes of a process that carries a connection.
///
/// # Errors
/// When there are no descriptors left.
pub(crate) fn pipes() -> io::Result<(Ends, OtherEnds)> {
    let flags = PipeFlags::CLOEXEC;
    let ((stdin, to), (from, stdout), (errors, stderr)) =
        (pipe_with(flags)?, pipe_with(flags)?, pipe_with(flags)?);
    // The usual size does as well.
    let _ = (fcntl_setpipe_size(&to, PIPE), fcntl_setpipe_size(&from, PIPE));
    Ok((Ends { to, from, errors }, OtherEnds { stdin, stdout, stderr }))
}

/// What a connection is known by when a process takes it over.
pub(crate) struct Inherited {
    pub(crate) line: Line,
    pub(crate) extensions: Extensions,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
}

/// Both directions of a connection.
pub(crate) struct Line {
    pub(crate) reader: LineReader,
    pub(crate) writer: LineWriter,
    pub(crate) notes: Notes,
}

/// What is noted of one connection.
#[derive(Clone)]
pub(crate) struct Notes {
    pub(crate) kept: Arc<Kept>,
    pub(crate) epoch: u64,
}

impl Notes {
    fn of(kept: &Arc<Kept>, epoch: u64) -> Self {
        Notes { kept: Arc::clone(kept), epoch }
    }

    fn words(&self) -> ConnectionWords<'_> {
        self.kept.line().connections().at((self.epoch % 2) as usize)
    }

    /// The last number that was given to a request.
    pub(crate) fn last_tag(&self) -> u32 {
        self.words().tag().get() as u32
    }

    /// A request is given a number.
    pub(crate) fn tag(&self, tag: u32) {
        self.words().tag().set(tag.into());
    }

    /// So many bytes more were given to the requests that wait for them.
    pub(crate) fn taken(&self, len: usize) {
        self.words().taken().increase(len as u64);
    }

    /// It works, and a process that takes over goes on with it: its descriptors, and what its server can do.
    pub(crate) fn establish(&self, held: [RawFd; 5], server: (Extensions, u32, u32)) {
        let (words, line) = (self.words(), self.kept.line());
        words.descriptors().iter().zip(held).for_each(|(word, fd)| word.set(fd as u64));
        words.extensions().set(server.0.bits().into());
        words.max_read().set(server.1.into());
        words.max_write().set(server.2.into());
        line.last().set(self.epoch);
        line.epoch().set(self.epoch);
    }

    /// It has ended.
    pub(crate) fn end(&self) {
        let _ = self.kept.line().epoch().atomic().compare_exchange(self.epoch, 0, AcqRel, Acquire);
    }
}

impl Line {
    /// A new connection through these pipes, on which nothing was said.
    ///
    /// # Errors
    /// When there is no memory or descriptor left.
    pub(crate) fn new(kept: &Arc<Kept>, epoch: u64, ends: Ends) -> io::Result<Self> {
        let notes = Notes::of(kept, epoch);
        let words = notes.words();
        [words.end(), words.taken(), words.tag()].into_iter().for_each(|word| word.set(0));
        kept.begin_epoch(epoch);
        let Ends { to, from, errors } = ends;
        Line::over(notes, (to, ring()?), (from, ring()?), errors)
    }

    fn over(
        notes: Notes,
        to: (OwnedFd, OwnedFd),
        from: (OwnedFd, OwnedFd),
        errors: OwnedFd,
    ) -> io::Result<Self> {
        let (sent, received) = (position(&to.1)?, position(&from.1)?);
        let (end, taken) = (notes.words().end().get(), notes.words().taken().get());
        let received = taken + (received + RING - taken % RING) % RING;
        let sent = end - (end + RING - sent) % RING;
        let pipe = Some(pipe::Sender::from_owned_fd(to.0)?);
        let read = sent.saturating_sub(PIPE as u64);
        let writer = LineWriter { notes: notes.clone(), pipe, ring: to.1, queued: end, sent, read };
        let pipe = pipe::Receiver::from_owned_fd(from.0)?;
        let reader = LineReader { notes: notes.clone(), pipe, ring: from.1, errors, read: taken, received };
        Ok(Line { reader, writer, notes })
    }

    /// Has the descriptors held; their numbers.
    ///
    /// # Errors
    /// When no more can be.
    pub(crate) fn hold(&self) -> Result<[RawFd; 5]> {
        let Line { reader, writer, notes } = self;
        let errors = reader.errors.as_fd();
        let to = writer.pipe.as_ref().map_or(errors, AsFd::as_fd);
        let all = [to, writer.ring.as_fd(), reader.pipe.as_fd(), reader.ring.as_fd(), errors];
        all.iter().try_for_each(|fd| notes.kept.keep.hold(*fd))?;
        Ok(all.map(|fd| fd.as_raw_fd()))
    }

    /// What is said to people by what carries it.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn errors(&self) -> io::Result<OwnedFd> {
        self.reader.errors.try_clone()
    }

    /// The connection that a former process had, if there is one.
    ///
    /// # Errors
    /// When its descriptors are not there any more: then it is none.
    pub(crate) fn inherit(kept: &Arc<Kept>) -> Result<Option<Inherited>> {
        let epoch = kept.line().epoch().get();
        if epoch == 0 {
            return Ok(None);
        }
        let notes = Notes::of(kept, epoch);
        let inherited = Line::adopt(notes.clone());
        if inherited.is_err() {
            notes.end();
        }
        inherited.map(Some)
    }

    fn adopt(notes: Notes) -> Result<Inherited> {
        let kept = &notes.kept;
        let words = notes.words();
        let adopt = |index: usize| kept.keep.adopt(words.descriptors().at(index).get() as RawFd);
        let (to, to_ring, from, from_ring) = (adopt(0)?, adopt(1)?, adopt(2)?, adopt(3)?);
        let errors = adopt(4)?;
        let extensions = Extensions::from_bits_truncate(words.extensions().get() as u32);
        let (max_read, max_write) = (words.max_read().get() as u32, words.max_write().get() as u32);
        let line =
            Line::over(notes.clone(), (to, to_ring), (from, from_ring), errors).map_err(Error::from)?;
        let held = line.hold()?;
        line.notes.establish(held, (extensions, max_read, max_write));
        Ok(Inherited { line, extensions, max_read, max_write })
    }
}

/// The number of the last connection that worked.
pub(crate) fn last_epoch(kept: &Kept) -> u64 {
    kept.line().last().get()
}

fn ring() -> io::Result<OwnedFd> {
    let ring = memfd_create("outrigger-sftp", MemfdFlags::CLOEXEC)?;
    ftruncate(&ring, RING)?;
    Ok(ring)
}

/// Where in its ring a file is; from the end of it it goes back to the beginning.
fn position(ring: &OwnedFd) -> io::Result<u64> {
    let position = tell(ring)?;
    Ok(if position == RING { seek(ring, SeekFrom::Start(0))? } else { position })
}

/// Moves at most `len` bytes of those there are, as the positions of both say.
fn shift(from: impl AsFd, to: impl AsFd, len: u64) -> io::Result<usize> {
    loop {
        match splice(&from, None, &to, None, len as usize, SpliceFlags::NONBLOCK) {
            Err(Os::INTR) => {}
            moved => return Ok(moved?),
        }
    }
}

/// What comes.
pub(crate) struct LineReader {
    notes: Notes,
    pipe: pipe::Receiver,
    ring: OwnedFd,
    errors: OwnedFd,
    /// Up to where this process has read.
    read: u64,
    /// Up to where there is something to read.
    received: u64,
}

impl LineReader {
    /// Receives what there is room for; 0 at the end.
    fn receive(&mut self) -> io::Result<usize> {
        let room = RING - 1 - (self.received - self.notes.words().taken().get());
        let len = room.min(RING - self.received % RING);
        let moved = self.pipe.try_io(|| shift(&self.pipe, &self.ring, len))?;
        self.received += moved as u64;
        if moved > 0 && self.received.is_multiple_of(RING) {
            seek(&self.ring, SeekFrom::Start(0))?;
        }
        Ok(moved)
    }
}

impl AsyncRead for LineReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.read == this.received {
            match this.receive() {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(this.pipe.poll_read_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let at = this.read % RING;
        let len = (this.received - this.read).min(RING - at).min(buffer.remaining() as u64) as usize;
        let read = pread(&this.ring, buffer.initialize_unfilled_to(len), at)?;
        buffer.advance(read);
        this.read += read as u64;
        Poll::Ready(Ok(()))
    }
}

impl Drop for LineReader {
    fn drop(&mut self) {
        for fd in [self.pipe.as_fd(), self.ring.as_fd(), self.errors.as_fd()] {
            self.notes.kept.keep.let_go(fd);
        }
    }
}

/// What goes.
pub(crate) struct LineWriter {
    notes: Notes,
    /// `None` when nothing more is to be said.
    pipe: Option<pipe::Sender>,
    ring: OwnedFd,
    /// Up to where this process has something to say; the other side gets no more than is noted as whole.
    queued: u64,
    /// Up to where it is in the pipe.
    sent: u64,
    /// Up to where the other side is known to have read.
    read: u64,
}

impl LineWriter {
    fn room(&mut self) -> io::Result<u64> {
        if let Some(pipe) = &self.pipe {
            self.read = self.sent - ioctl_fionread(pipe)?.min(self.sent);
        }
        Ok(RING - 1 - (self.queued - self.read))
    }

    /// Sends what is noted as whole.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let end = self.notes.words().end().get();
        while self.sent < end {
            let Some(pipe) = &self.pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
            let len = (end - self.sent).min(RING - self.sent % RING);
            match pipe.try_io(|| shift(&self.ring, pipe, len)) {
                Ok(moved) => self.sent += moved as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(pipe.poll_write_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if self.sent.is_multiple_of(RING) {
                seek(&self.ring, SeekFrom::Start(0))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = self.queued % RING;
            let len = rest.len().min((RING - at) as usize);
            let written = pwrite(&self.ring, &rest[..len], at)?;
            self.queued += written as u64;
            rest = &rest[written..];
        }
        Ok(())
    }
}

impl AsyncWrite for LineWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if total as u64 > RING - 1 - (self.queued - self.read) && total as u64 > self.room()? {
            // When all that is whole is in the pipe, the rest of the ring is free.
            ready!(self.poll_send(context))?;
            if total as u64 > self.room()? {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        slices.iter().try_for_each(|slice| self.put(slice))?;
        Poll::Ready(Ok(total))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written until now are whole messages.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.notes.words().end().set(self.queued);
        self.poll_send(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        if let Some(pipe) = self.pipe.take() {
            self.notes.kept.keep.let_go(pipe.as_fd());
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        if let Some(pipe) = &self.pipe {
            self.notes.kept.keep.let_go(pipe.as_fd());
        }
        self.notes.kept.keep.let_go(self.ring.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use std::io::{Read, Write};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn kept(keep: &Arc<HeapKeep>) -> Arc<Kept> {
        let keep = Arc::clone(keep);
        Arc::new(Kept::open(keep).expect("regions"))
    }

    /// A connection, and its other side: what it gets, and what it says.
    fn line(keep: &Arc<HeapKeep>) -> (Line, std::fs::File, std::fs::File) {
        let (ends, theirs) = pipes().expect("pipes");
        let line = Line::new(&kept(keep), 1, ends).expect("a line");
        line.notes.establish(line.hold().expect("held"), (Extensions::empty(), 1, 2));
        (line, theirs.stdin.into(), theirs.stdout.into())
    }

    /// Dies: nothing is closed in order, and nothing said.
    fn succeed(line: Line, keep: &Arc<HeapKeep>) -> Line {
        std::mem::forget(line);
        let next = Line::inherit(&kept(keep)).expect("descriptors").expect("a line");
        assert_eq!((next.max_read, next.max_write, next.line.notes.epoch), (1, 2, 1));
        next.line
    }

    fn message(round: usize) -> Vec<u8> {
        (0..(round * 37_123) % 900_000 + 1).map(|index| (index + round) as u8).collect()
    }

    const ROUNDS: usize = 40;

    #[tokio::test]
    async fn whole_messages_are_sent_whichever_process_dies_in_the_middle() {
        let keep = Arc::new(HeapKeep::default());
        let (mut line, mut gets, _says) = line(&keep);
        let expected: Vec<u8> = (0..ROUNDS).flat_map(message).collect();
        let mut got = vec![0; expected.len()];
        let got = tokio::task::spawn_blocking(move || {
            gets.read_exact(&mut got).expect("a pipe");
            got
        });
        for round in 0..ROUNDS {
            line.writer.write_all(&message(round)).await.expect("room");
            // As far as the pipe takes it at once.
            let flush = tokio::time::timeout(std::time::Duration::ZERO, line.writer.flush());
            let _ = flush.await;
            if round % 3 == 0 {
                line.writer.write_all(b"the beginning of a message").await.expect("room");
            }
            line = succeed(line, &keep);
        }
        line.writer.shutdown().await.expect("sent");
        assert!(got.await.expect("read") == expected);
    }

    #[tokio::test]
    async fn what_was_not_delivered_is_received_once_more() {
        let keep = Arc::new(HeapKeep::default());
        let (mut line, _gets, mut says) = line(&keep);
        std::thread::spawn(move || {
            (0..ROUNDS).for_each(|round| says.write_all(&message(round)).expect("a pipe"))
        });
        for round in 0..ROUNDS - 1 {
            for (number, taken) in [(round, true), (round + 1, false)] {
                let mut read = vec![0; message(number).len()];
                line.reader.read_exact(&mut read).await.expect("a message");
                assert!(read == message(number), "{number} in round {round}");
                if taken {
                    line.notes.taken(read.len());
                }
            }
            line = succeed(line, &keep);
        }
    }
}
