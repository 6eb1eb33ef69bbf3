// SPDX-License-Identifier: MIT OR Apache-2.0
//! One open file: a connection, a program or a file of this machine.

use crate::machine::aside;
use crate::process::Process;
use bytes::{BufMut, Bytes, BytesMut};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Cancel, Cx, Errno, Error, Result, Runtime, lock};
use rustix::event::PollFlags;
use std::fs::File;
use std::future::{Future, ready};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::timeout;

/// The most bytes that one read answers, and that are read before a program asks for them.
const PIECE: usize = 1 << 16;

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// What was opened.
pub(crate) enum Opened {
    /// Streams of a connection or a program.
    Streams { reader: Option<Reader>, writer: Option<Writer>, process: Option<Box<Process>> },
    /// A file of this machine.
    File(File),
}

/// An open file.
pub(crate) struct Connection {
    /// What there is to read.
    reading: Option<Mutex<Reading>>,
    /// The stream, until it is closed.
    writing: Option<Mutex<Option<Writer>>>,
    file: Option<Arc<File>>,
    process: Mutex<Option<Box<Process>>>,
    flags: OpenFlags,
    linger: Duration,
    /// Raised when the file is closed.
    closed: Cancel,
    /// Raised when the other end has had its time after that.
    over: Cancel,
    /// Whether something was written to the stream.
    was_written: AtomicBool,
    /// Whether something is read before a program asks.
    fills: AtomicBool,
    /// What is to be told when something has come.
    key: std::sync::Mutex<Option<u64>>,
    _room: OwnedSemaphorePermit,
}

struct Reading {
    reader: Reader,
    /// What has come, and was not asked for yet.
    ahead: BytesMut,
    end: Option<Result<()>>,
}

impl Reading {
    /// Receives something, where nothing is there yet. What was received is not lost when this is given up.
    async fn receive(&mut self, most: usize) {
        if self.ahead.is_empty() && self.end.is_none() {
            // A fresh buffer: what was answered before may be in use still.
            self.ahead = BytesMut::with_capacity(most);
            match self.reader.read_buf(&mut (&mut self.ahead).limit(most)).await {
                Ok(0) => self.end = Some(Ok(())),
                Ok(_) => {}
                Err(error) => self.end = Some(Err(error.into())),
            }
        }
    }
}

/// A request is about to wait for a peer: any signal ends that.
///
/// # Errors
/// `EINTR` when one has come already: what would be received then might be lost.
pub(crate) fn waits_for_peer(cx: &Cx) -> Result<()> {
    cx.cancel.heed_signals(true);
    if cx.cancel.is_raised() { Err(Errno::EINTR.into()) } else { Ok(()) }
}

impl Connection {
    pub(crate) fn new(
        opened: Opened,
        flags: OpenFlags,
        linger: Duration,
        room: OwnedSemaphorePermit,
    ) -> Self {
        let (reader, writer, process, file) = match opened {
            Opened::Streams { reader, writer, process } => (reader, writer, process, None),
            Opened::File(file) => (None, None, None, Some(Arc::new(file))),
        };
        let reading = |reader| Mutex::new(Reading { reader, ahead: BytesMut::new(), end: None });
        Connection {
            reading: reader.map(reading),
            writing: writer.map(|writer| Mutex::new(Some(writer))),
            file,
            process: Mutex::new(process),
            flags,
            linger,
            closed: Cancel::default(),
            over: Cancel::default(),
            was_written: AtomicBool::new(false),
            fills: AtomicBool::new(false),
            key: std::sync::Mutex::default(),
            _room: room,
        }
    }

    /// The next bytes, at most `len`: none at the end. Waits until there are some.
    ///
    /// # Errors
    /// Those of the connection; `EIO` at the end of what a program said that failed; `EINTR` when the caller gives up, and `EAGAIN`
    /// where it does not wait.
    pub(crate) async fn read(&self, cx: &Cx, len: usize, runtime: &dyn Runtime) -> Result<Bytes> {
        if !self.flags.reads() {
            return Err(Errno::EBADF.into());
        }
        let len = len.min(PIECE);
        if let Some(file) = &self.file {
            let file = Arc::clone(file);
            // It is not given up: what was read would be lost.
            return aside(runtime, move || {
                let mut buffer = vec![0; len];
                let count = (&*file).read(&mut buffer)?;
                buffer.truncate(count);
                Ok(Bytes::from(buffer))
            })
            .await;
        }
        let Some(reading) = &self.reading else { return Err(Errno::EBADF.into()) };
        self.unless_given_up(cx, async {
            let mut reading = reading.lock().await;
            reading.receive(len).await;
            if !reading.ahead.is_empty() {
                let count = reading.ahead.len().min(len);
                return Ok(reading.ahead.split_to(count).freeze());
            }
            reading.end.clone().unwrap_or(Ok(()))?;
            match self.failure(runtime).await {
                Some(error) => Err(error),
                None => Ok(Bytes::new()),
            }
        })
        .await?
    }

    /// Why the end is none, where a program was started.
    async fn failure(&self, runtime: &dyn Runtime) -> Option<Error> {
        let process = self.process.lock().await;
        match &*process {
            Some(process) => process.failure(self.linger, runtime).await,
            None => None,
        }
    }

    /// Writes bytes, and answers how many of them: fewer when the caller gives up.
    ///
    /// # Errors
    /// Those of the connection; `EINTR` when the caller gives up before anything was written, `EAGAIN` where it does not wait.
    pub(crate) async fn write(&self, cx: &Cx, data: Bytes, runtime: &dyn Runtime) -> Result<u64> {
        if let Some(file) = &self.file {
            let file = Arc::clone(file);
            return aside(runtime, move || write(&file, &data)).await;
        }
        let Some(writing) = &self.writing else { return Err(Errno::EBADF.into()) };
        let mut writer = self.unless_given_up(cx, writing.lock()).await?;
        let Some(writer) = &mut *writer else { return Err(Errno::EPIPE.into()) };
        self.was_written.store(true, Ordering::Relaxed);
        let mut done = 0;
        while done < data.len() {
            match self.unless_given_up(cx, writer.write(&data[done..])).await {
                Ok(Ok(0)) => return Err(Errno::EPIPE.into()),
                Ok(Ok(count)) => done += count,
                Ok(Err(_)) | Err(_) if done > 0 => return Ok(done as u64),
                Ok(Err(error)) => return Err(error.into()),
                Err(given_up) => return Err(given_up),
            }
        }
        // TLS has taken it; it is sent with what follows where the caller gives up here.
        match self.unless_given_up(cx, writer.flush()).await {
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(())) | Err(_) => Ok(done as u64),
        }
    }

    /// Has what was written to a file of this machine on stable storage; a stream has none.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) async fn sync(&self, data_only: bool, runtime: &dyn Runtime) -> Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let synced = move || if data_only { file.sync_data() } else { file.sync_all() };
        aside(runtime, move || Ok(synced()?)).await
    }

    /// The outcome of `work`, which is asked once only where the program that opened the file does not wait.
    async fn unless_given_up<T>(&self, cx: &Cx, work: impl Future<Output = T>) -> Result<T> {
        if self.flags.contains(OpenFlags::NONBLOCK) {
            return tokio::select! {
                biased;
                done = work => Ok(done),
                () = ready(()) => Err(Errno::EAGAIN.into()),
            };
        }
        waits_for_peer(cx)?;
        cx.cancel.unless_raised(work).await.ok_or_else(|| Errno::EINTR.into())
    }

    /// The file of this machine, if that is open for writing.
    pub(crate) fn writable_file(&self) -> Option<Arc<File>> {
        self.file.clone().filter(|_| self.flags.writes())
    }

    /// Which of these `POLL*` events there are. With a key, `wake` is called with it when there is something to read later.
    pub(crate) fn poll(
        self: &Arc<Self>,
        events: u32,
        key: Option<u64>,
        runtime: &dyn Runtime,
        wake: impl Fn(u64) + Send + 'static,
    ) -> u32 {
        let (input, mut now) = (PollFlags::IN | PollFlags::RDNORM, PollFlags::OUT | PollFlags::WRNORM);
        if key.is_some() {
            *lock(&self.key) = key;
        }
        let has_come = |reading: &Mutex<Reading>| {
            reading.try_lock().is_ok_and(|reading| !reading.ahead.is_empty() || reading.end.is_some())
        };
        if self.reading.as_ref().is_none_or(has_come) {
            now |= input;
        } else if events & u32::from(input.bits()) != 0 && !self.fills.swap(true, Ordering::AcqRel) {
            let connection = Arc::clone(self);
            runtime.spawn(Box::pin(async move {
                connection.fill().await;
                if let Some(key) = lock(&connection.key).take() {
                    wake(key);
                }
            }));
        }
        events & u32::from(now.bits())
    }

    /// Reads a piece before a program asks for it.
    async fn fill(&self) {
        if let Some(reading) = &self.reading {
            let come = async { reading.lock().await.receive(PIECE).await };
            self.closed.unless_raised(come).await;
        }
        self.fills.store(false, Ordering::Release);
    }

    /// Has what comes dropped while the file is open, for a program that only writes: the other end would wait for it otherwise.
    pub(crate) async fn drain_while_open(&self) {
        self.over.unless_raised(self.drain()).await;
    }

    /// Reads and drops all that comes.
    async fn drain(&self) {
        let Some(reading) = &self.reading else { return };
        let mut reading = reading.lock().await;
        while reading.end.is_none() {
            reading.ahead.clear();
            reading.receive(PIECE).await;
        }
    }

    /// Ends it: what was written is sent first, for which the other end has a while. Where the tree ends too and nothing was written,
    /// it has none.
    pub(crate) async fn end(&self, tree_ends: &Cancel) {
        self.closed.raise();
        match self.was_written.load(Ordering::Relaxed) {
            true => self.wind_up(true).await,
            // Cutting it short loses nothing.
            false => drop(tree_ends.unless_raised(self.wind_up(false)).await),
        }
        self.over.raise();
        let process = self.process.lock().await.take();
        if let Some(process) = process {
            process.end().await;
        }
    }

    /// Sends what was written, and waits for the other end.
    async fn wind_up(&self, was_written: bool) {
        let mut is_done = self.reading.as_ref().is_none_or(|reading| {
            reading.try_lock().is_ok_and(|reading| reading.end.is_some() && reading.ahead.is_empty())
        });
        // To a program that is only written to, getting nothing says something, too.
        let is_told = was_written || !self.flags.reads();
        if let Some(writing) = self.writing.as_ref().filter(|_| is_told) {
            is_done = true;
            // A connection that is closed while something is unread is reset, and what was written may be lost.
            let sent = timeout(self.linger, async {
                let writer = writing.lock().await.take();
                let ended = match writer {
                    Some(mut writer) => writer.shutdown().await,
                    None => Ok(()),
                };
                self.drain().await;
                ended
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!("what was written before a file was closed may be lost: {error}")
                }
                Err(_) => tracing::warn!("the other end has not taken all, or not ended, in time"),
            }
        }
        if let Some(process) = self.process.lock().await.as_ref().filter(|_| is_done) {
            process.has_ended(self.linger).await;
        }
    }
}

/// Writes to a file, and answers how much of the data it has: less than all when an error follows.
fn write(mut file: &File, data: &[u8]) -> Result<u64> {
    let mut done = 0;
    while done < data.len() {
        match file.write(&data[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done as u64)
}
