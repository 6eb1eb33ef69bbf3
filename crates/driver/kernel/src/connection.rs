// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests in flight to a worker. The caller writes, and reads for a moment: most replies come at once, and no thread has
//! to be woken for them. What takes longer is read by one thread that wakes the callers.

use crate::worker::{Worker, send_with};
use bytes::{Bytes, BytesMut};
use futures_channel::oneshot::{self, Receiver, Sender};
use outrigger_core::wire::{Body, FRAME_MAX, Frame, Hello};
use outrigger_core::{Credentials, Cx, Errno, Error, Reply, Request, Result, Spin, lock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How much is read at once, in bytes, unless a longer frame has begun. Small: it is filled with zeroes first.
const PORTION: usize = 16 << 10;

/// With so many bytes of frames held back, they leave without a further one.
const HELD_BACK: usize = 4 << 10;

/// How long a caller reads, at most.
pub(crate) const MOMENT: Duration = Duration::from_millis(2);

/// The connection to a worker.
pub(crate) struct Connection {
    worker: Worker,
    socket: UnixStream,
    output: Mutex<Output>,
    asked: Mutex<Asked>,
    /// Something is left for the thread that reads.
    left: Condvar,
    /// The thread that has set [`Asked::reading`] takes it.
    input: Mutex<Input>,
    lost: OnceLock<Error>,
    reader: Mutex<Option<Reader>>,
    patience: Duration,
}

/// How long mounting and unmounting may take, if nothing else is said. The memory of the kernel code bounds what is left
/// to be written.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The thread that reads replies. The channel closes when it ends.
struct Reader {
    thread: JoinHandle<()>,
    ended: mpsc::Receiver<()>,
}

/// Requests on their way out.
struct Output {
    socket: UnixStream,
    next: u64,
    /// Frames that leave with the next one.
    held_back: Vec<u8>,
}

impl Output {
    /// Encodes a request, to leave with the others; gives its number.
    fn hold_back(&mut self, cred: Credentials, request: Request) -> Result<u64> {
        self.add(self.next + 1, cred, request)?;
        self.next += 1;
        Ok(self.next)
    }

    fn add(&mut self, id: u64, cred: Credentials, request: Request) -> Result<()> {
        let body = Body::Request { cred, within: None, request };
        Frame { id, body }.encode_to(&mut self.held_back)
    }

    /// Sends what was held back. The other direction is emptied meanwhile, for that takes another lock.
    fn send(&mut self) -> io::Result<()> {
        self.send_or(|| {})
    }

    /// The same. `full` is called before it waits for room.
    fn send_or(&mut self, full: impl FnOnce()) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let begun = match send(&self.socket, &self.held_back, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            begun => begun.map_err(io::Error::from),
        };
        let sent = begun.and_then(|begun| match &self.held_back[begun..] {
            [] => Ok(()),
            rest => {
                full();
                self.socket.write_all(rest)
            }
        });
        self.held_back.clear();
        sent
    }
}

/// Which caller waits for what. Its lock is never held while the worker is waited for.
#[derive(Default)]
struct Asked {
    waiting: HashMap<u64, Sender<Reply>>,
    /// Somebody reads.
    reading: bool,
    /// We have hung up: what is read next is the end.
    hung_up: bool,
    ended: bool,
}

impl Asked {
    /// Whether there is something to read for.
    fn has_work(&self) -> bool {
        self.hung_up || !self.waiting.is_empty()
    }
}

impl Connection {
    /// Greets the worker and waits until it has mounted the image.
    ///
    /// # Errors
    /// What it says about the image, or how it ended.
    pub(crate) fn open(worker: Worker, socket: UnixStream, patience: Option<Duration>) -> Result<Arc<Self>> {
        let patience = patience.unwrap_or(PATIENCE);
        let (socket, input) = greeted(&worker, socket, patience)?;
        let output = Output { socket: socket.try_clone()?, next: 0, held_back: Vec::new() };
        let connection = Arc::new(Connection {
            output: Mutex::new(output),
            worker,
            socket,
            asked: Mutex::default(),
            left: Condvar::new(),
            input: Mutex::new(input),
            lost: OnceLock::new(),
            reader: Mutex::default(),
            patience,
        });
        let shared = Arc::clone(&connection);
        let (alive, ended) = mpsc::channel();
        let read = move || {
            shared.read();
            drop(alive);
        };
        let thread = std::thread::Builder::new().name("outrigger-kernel".into()).spawn(read)?;
        *lock(&connection.reader) = Some(Reader { thread, ended });
        Ok(connection)
    }

    /// The process at the other end.
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Sends a request; its reply arrives where the receiver waits, and is there already if the worker was quick.
    ///
    /// # Errors
    /// When the worker has ended, or the request fits no frame.
    pub(crate) fn ask(&self, cx: &Cx, request: Request) -> Result<Receiver<Reply>> {
        let (sender, receiver) = oneshot::channel();
        let mut output = lock(&self.output);
        let id = output.hold_back(cx.cred.clone(), request)?;
        let mut asked = lock(&self.asked);
        let ended = asked.ended;
        if !ended {
            asked.waiting.insert(id, sender);
        }
        drop(asked);
        if !ended && cx.more_to_follow && output.held_back.len() < HELD_BACK {
            return Ok(receiver);
        }
        // The worker may not take more before somebody reads what it has to say.
        let sent = output.send_or(|| self.left.notify_one());
        drop(output);
        let mut asked = lock(&self.asked);
        if ended || sent.is_err() {
            asked.waiting.remove(&id);
            drop(asked);
            return Err(self.lost());
        }
        match (asked.reading, cx.more_to_follow) {
            // The next caller, or one that waits for this, sees to it that a thread reads.
            (true, _) | (false, true) => {}
            (false, false) => {
                asked.reading = true;
                drop(asked);
                self.read_until_answered(id);
            }
        }
        Ok(receiver)
    }

    /// Sends an order, with a descriptor if one belongs to it; its reply arrives where the receiver waits.
    ///
    /// # Errors
    /// When the worker has ended, or the order fits no frame.
    pub(crate) fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Result<Receiver<Reply>> {
        let (sender, receiver) = oneshot::channel();
        let mut output = lock(&self.output);
        let id = output.next + 1;
        let frame = Frame { id, body: Body::Control(order) }.encode()?;
        output.next = id;
        let mut asked = lock(&self.asked);
        if asked.ended {
            drop((output, asked));
            return Err(self.lost());
        }
        asked.waiting.insert(id, sender);
        drop(asked);
        let sent = output.send().and_then(|()| send_with(&output.socket, &frame, file.as_slice()));
        drop(output);
        if sent.is_err() {
            lock(&self.asked).waiting.remove(&id);
            return Err(self.lost());
        }
        self.left.notify_one();
        Ok(receiver)
    }

    /// Waits for the reply to a request.
    pub(crate) async fn reply(&self, mut receiver: Receiver<Reply>) -> Reply {
        // The last caller has often read the replies to all.
        if let Ok(Some(reply)) = receiver.try_recv() {
            return reply;
        }
        self.send_rest();
        receiver.await.unwrap_or_else(|_| Reply::Error(self.lost()))
    }

    /// Sends what was held back, and sees to it that somebody reads.
    fn send_rest(&self) {
        let mut output = lock(&self.output);
        let sent = if output.held_back.is_empty() { Ok(()) } else { output.send() };
        drop(output);
        let mut asked = lock(&self.asked);
        if sent.is_err() {
            asked.waiting.clear();
        }
        if !asked.reading {
            self.left.notify_one();
        }
    }

    /// Reads until request `id` is answered, but not for long.
    fn read_until_answered(&self, id: u64) {
        let mut input = lock(&self.input);
        let end = Instant::now() + MOMENT;
        let outcome = loop {
            match input.frame_before(end).map(|frame| frame.map(|frame| self.deliver(frame))) {
                Ok(Some(Ok(delivered))) if delivered == id => break Ok(()),
                Ok(Some(Ok(_))) => {}
                Ok(None) => break Ok(()),
                Ok(Some(Err(error))) | Err(error) => break Err(error),
            }
        };
        drop(input);
        self.stop_reading(outcome);
    }

    /// Leaves the rest to the thread that reads, or to the next caller.
    fn stop_reading(&self, outcome: Result<()>) {
        let mut asked = lock(&self.asked);
        asked.reading = false;
        if let Err(error) = outcome {
            tracing::debug!(%error, "the worker's connection has ended");
            asked.ended = true;
            // A caller that waits finds out why by asking for it.
            asked.waiting.clear();
            drop(self.socket.shutdown(Shutdown::Both));
        }
        if asked.has_work() || asked.ended {
            self.left.notify_one();
        }
    }

    /// Sends a request without waiting for its reply, at the latest with the next one.
    pub(crate) fn tell(&self, cred: Credentials, request: Request) {
        let mut output = lock(&self.output);
        // A worker that has ended needs no message.
        let added = output.add(Frame::UNANSWERED, cred, request);
        if added.is_ok() && output.held_back.len() >= HELD_BACK {
            drop(output.send());
        }
    }

    /// Why there is no worker any more.
    pub(crate) fn lost(&self) -> Error {
        let why =
            || Errno::EIO.because(self.worker.wait().unwrap_or_else(|| "the image was unmounted".to_owned()));
        self.lost.get_or_init(why).clone()
    }

    /// Gives a reply to the caller that waits for it; returns which it was.
    fn deliver(&self, frame: Frame) -> Result<u64> {
        let Body::Reply(reply) = frame.body else {
            return Err(Errno::EPROTO.because("the worker sends what is no reply"));
        };
        let waiting = lock(&self.asked).waiting.remove(&frame.id);
        if let Some(sender) = waiting {
            // The caller may have gone; then the reply has no taker.
            drop(sender.send(reply));
        }
        Ok(frame.id)
    }

    /// Delivers what takes longer than a moment, until the worker hangs up.
    fn read(&self) {
        loop {
            let asked = lock(&self.asked);
            let idle = |asked: &mut Asked| !asked.ended && (asked.reading || !asked.has_work());
            let mut asked = self.left.wait_while(asked, idle).unwrap_or_else(PoisonError::into_inner);
            if asked.ended {
                return;
            }
            asked.reading = true;
            drop(asked);
            let mut input = lock(&self.input);
            let mut outcome = Ok(());
            while outcome.is_ok() && lock(&self.asked).has_work() {
                outcome = input.frame().and_then(|frame| self.deliver(frame).map(drop));
            }
            drop(input);
            self.stop_reading(outcome);
        }
    }

    /// Hangs up, and waits until the worker has unmounted the image; kills it when that takes too long.
    ///
    /// # Errors
    /// `EIO` when it did not end well, with the reason.
    pub(crate) fn end(&self) -> Result<()> {
        // It may have hung up first.
        drop(self.socket.shutdown(Shutdown::Write));
        lock(&self.asked).hung_up = true;
        self.left.notify_one();
        let mut late = "";
        if let Some(Reader { thread, ended }) = lock(&self.reader).take() {
            if ended.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
                self.worker.kill();
                late = "unmounting took too long (patience=): ";
            }
            drop(thread.join());
        }
        match self.worker.wait().map(|why| format!("{late}{why}")) {
            Some(why) => Err(Errno::EIO.because(why)),
            None => Ok(()),
        }
    }
}

/// Greets the worker and waits until it has mounted the image.
///
/// # Errors
/// What it says about the image, or how it ended.
pub(crate) fn greeted(
    worker: &Worker,
    mut socket: UnixStream,
    patience: Duration,
) -> Result<(UnixStream, Input)> {
    socket.set_read_timeout(Some(patience))?;
    let mut input = Input { socket: socket.try_clone()?, bytes: BytesMut::new(), spin: Spin::default() };
    match greet(&mut socket, &mut input) {
        Ok(Reply::Error(error)) => {
            let words = worker.last_words();
            drop((socket, input));
            drop(worker.wait());
            return Err(explained(error, &words));
        }
        Ok(_) => {}
        Err(error) if matches!(error.errno, Errno::EAGAIN) => {
            worker.kill();
            drop(worker.wait());
            let words = worker.last_words();
            let seconds = patience.as_secs();
            return Err(Errno::ETIMEDOUT
                .because(format!("the kernel code did not mount it within {seconds} s (patience=){words}")));
        }
        Err(error) => {
            drop((socket, input));
            let why = worker.wait().unwrap_or_else(|| error.to_string());
            return Err(Errno::EIO.because(why));
        }
    }
    socket.set_read_timeout(None)?;
    Ok((socket, input))
}

fn greet(socket: &mut UnixStream, input: &mut Input) -> Result<Reply> {
    socket.write_all(&Hello::bytes())?;
    let mut greeting = [0; Hello::LEN];
    input.socket.read_exact(&mut greeting)?;
    Hello::check(Bytes::copy_from_slice(&greeting))?;
    match input.frame()?.body {
        Body::Reply(reply) => Ok(reply),
        _ => Err(Errno::EPROTO.because("the worker begins with what is no reply")),
    }
}

/// The error with the kernel's own words as its reason.
fn explained(error: Error, words: &str) -> Error {
    match error.reason {
        Some(_) => error,
        None => {
            let hint = match error.errno {
                Errno::ENOMEM => " (memory=BYTES gives it more)",
                _ => HINTS.iter().find(|(said, _)| words.contains(said)).map_or("", |(_, hint)| hint),
            };
            error.errno.because(format!("outrigger-kernel cannot mount it{words}{hint}"))
        }
    }
}

/// What helps when the kernel code says this.
const HINTS: [(&str, &str); 3] = [
    (" is missing: BTRFS error", " (device=FILE names the others, or `degraded` does without)"),
    ("failed to open journal device", " (journal_path=FILE names it)"),
    ("specify logdev", " (logdev=FILE)"),
];

/// Frames from a socket.
pub(crate) struct Input {
    socket: UnixStream,
    bytes: BytesMut,
    spin: Spin,
}

impl Input {
    /// The next frame.
    ///
    /// # Errors
    /// At the end of the stream, and when what arrives is no frame.
    pub(crate) fn frame(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            self.receive(RecvFlags::empty())?;
        }
    }

    /// The next frame, if it comes before `end`.
    ///
    /// # Errors
    /// As [`Input::frame`].
    pub(crate) fn frame_before(&mut self, end: Instant) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            let mut spin = std::mem::take(&mut self.spin);
            let received = spin.until(|| self.receive(RecvFlags::DONTWAIT).transpose());
            self.spin = spin;
            match received.transpose()? {
                Some(()) => {}
                None if !self.is_ready_before(end)? => return Ok(None),
                None => {}
            }
        }
    }

    fn is_ready_before(&self, end: Instant) -> Result<bool> {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: 0, tv_nsec: left.min(MOMENT).as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// Ends the connection, for all callers.
    pub(crate) fn hang_up(&self) {
        // The other side may have been first.
        drop(self.socket.shutdown(Shutdown::Both));
    }

    /// Takes a frame of what was received.
    fn take_frame(&mut self) -> Result<Option<Frame>> {
        let Some(length) = self.frame_length()? else { return Ok(None) };
        if self.bytes.len() < length {
            return Ok(None);
        }
        let frame = self.bytes.split_to(length).freeze().slice(4..);
        Frame::decode(frame).map(Some).map_err(Into::into)
    }

    /// How long the frame that has begun is.
    fn frame_length(&self) -> Result<Option<usize>> {
        let Some(length) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        match u32::from_le_bytes(*length) as usize {
            length if length > FRAME_MAX => Err(Errno::EPROTO.because("a frame that is too long")),
            length => Ok(Some(4 + length)),
        }
    }

    /// Receives once; nothing when that would mean waiting and `flags` forbid it.
    ///
    /// # Errors
    /// At the end of the stream, and when the connection breaks.
    fn receive(&mut self, flags: RecvFlags) -> Result<Option<()>> {
        let known = self.bytes.len();
        let wanted = self.frame_length()?.map_or(0, |length| length - known);
        self.bytes.resize(known + wanted.max(PORTION), 0);
        let received = recv(&self.socket, &mut self.bytes[known..], flags);
        self.bytes.truncate(known + received.map_or(0, |(count, _)| count));
        match received {
            Ok((0, _)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => Ok(Some(())),
            Err(rustix::io::Errno::INTR) => Ok(Some(())),
            Err(rustix::io::Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => Ok(None),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}
