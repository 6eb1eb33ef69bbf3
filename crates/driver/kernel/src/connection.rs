// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests in flight to a worker. Whoever asks writes; one thread reads the replies and wakes who waits for them.

use crate::worker::Worker;
use bytes::{Bytes, BytesMut};
use futures_channel::oneshot::{self, Receiver, Sender};
use outrigger_core::wire::{Body, FRAME_MAX, Frame, Hello};
use outrigger_core::{Credentials, Errno, Error, Reply, Request, Result};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How much is read at once, in bytes, unless a longer frame has begun. Small: it is filled with zeroes first.
const PORTION: usize = 16 << 10;

/// With so many bytes of frames held back, they leave without a further one.
const HELD_BACK: usize = 4 << 10;

/// The connection to a worker.
pub(crate) struct Connection {
    worker: Worker,
    socket: UnixStream,
    asked: Mutex<Asked>,
    lost: OnceLock<Error>,
    reader: Mutex<Option<Reader>>,
    patience: Duration,
}

/// How long mounting and unmounting may take, if nothing else is said. The memory of the kernel code bounds what is left
/// to be written.
const PATIENCE: Duration = Duration::from_secs(120);

/// The thread that reads replies. The channel closes when it ends.
struct Reader {
    thread: JoinHandle<()>,
    ended: mpsc::Receiver<()>,
}

/// Who waits for what.
#[derive(Default)]
struct Asked {
    next: u64,
    /// Frames that leave with the next one.
    held_back: Vec<u8>,
    waiting: HashMap<u64, Sender<Reply>>,
    ended: bool,
}

impl Asked {
    /// Encodes a request, to leave with the others; gives its number.
    fn hold_back(&mut self, cred: Credentials, request: Request) -> Result<u64> {
        let body = Body::Request { uid: cred.uid, gid: cred.gid, request };
        let frame = Frame { id: self.next + 1, body }.encode()?;
        self.next += 1;
        self.held_back.extend_from_slice(&frame);
        Ok(self.next)
    }

    /// Sends what was held back. The caller's lock keeps frames apart; the reader empties the other direction
    /// meanwhile, so this ends.
    fn send(&mut self, mut socket: &UnixStream) -> io::Result<()> {
        let sent = socket.write_all(&self.held_back);
        self.held_back.clear();
        sent
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Greets the worker and waits until it has mounted the image.
    ///
    /// # Errors
    /// What it says about the image, or how it ended.
    pub(crate) fn open(
        worker: Worker,
        mut socket: UnixStream,
        patience: Option<Duration>,
    ) -> Result<Arc<Self>> {
        let patience = patience.unwrap_or(PATIENCE);
        socket.set_read_timeout(Some(patience))?;
        let mut input = Input { socket: socket.try_clone()?, bytes: BytesMut::new() };
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
                return Err(Errno::ETIMEDOUT.because(format!(
                    "the kernel code did not mount it within {seconds} s (patience=){words}"
                )));
            }
            Err(error) => {
                drop((socket, input));
                let why = worker.wait().unwrap_or_else(|| error.to_string());
                return Err(Errno::EIO.because(why));
            }
        }
        socket.set_read_timeout(None)?;
        let (asked, reader) = (Mutex::default(), Mutex::default());
        let connection =
            Arc::new(Connection { worker, socket, asked, lost: OnceLock::new(), reader, patience });
        let shared = Arc::clone(&connection);
        let (alive, ended) = mpsc::channel();
        let read = move || {
            shared.read(input);
            drop(alive);
        };
        let thread = std::thread::Builder::new().name("outrigger-kernel".into()).spawn(read)?;
        *locked(&connection.reader) = Some(Reader { thread, ended });
        Ok(connection)
    }

    /// Sends a request; its reply arrives where the receiver waits.
    ///
    /// # Errors
    /// When the worker has ended, or the request fits no frame.
    pub(crate) fn ask(&self, cred: Credentials, request: Request) -> Result<Receiver<Reply>> {
        let (sender, receiver) = oneshot::channel();
        let mut asked = locked(&self.asked);
        let id = asked.hold_back(cred, request)?;
        asked.waiting.insert(id, sender);
        if asked.ended || asked.send(&self.socket).is_err() {
            asked.waiting.remove(&id);
            drop(asked);
            return Err(self.lost());
        }
        Ok(receiver)
    }

    /// Sends a request whose reply nobody waits for, at the latest with the next one.
    pub(crate) fn tell(&self, cred: Credentials, request: Request) {
        let mut asked = locked(&self.asked);
        // A worker that has ended needs not be told anything.
        let sent = asked.hold_back(cred, request).map(drop);
        if sent.is_ok() && asked.held_back.len() >= HELD_BACK {
            drop(asked.send(&self.socket));
        }
    }

    /// Why there is no worker any more.
    pub(crate) fn lost(&self) -> Error {
        let why =
            || Errno::EIO.because(self.worker.wait().unwrap_or_else(|| "the image was unmounted".to_owned()));
        self.lost.get_or_init(why).clone()
    }

    /// Delivers replies until the worker hangs up.
    fn read(&self, mut input: Input) {
        let ended = loop {
            match input.frame() {
                Ok(Frame { id, body: Body::Reply(reply) }) => {
                    if let Some(sender) = locked(&self.asked).waiting.remove(&id) {
                        // Nobody may be waiting any more; then the reply has no taker.
                        drop(sender.send(reply));
                    }
                }
                Ok(_) => break Errno::EPROTO.because("the worker sends what is no reply"),
                Err(error) => break error,
            }
        };
        tracing::debug!(%ended, "the worker's connection has ended");
        let mut asked = locked(&self.asked);
        asked.ended = true;
        // Who waits finds out why by asking for it.
        asked.waiting.clear();
        drop(asked);
        drop(self.socket.shutdown(Shutdown::Both));
    }

    /// Hangs up, and waits until the worker has unmounted the image; kills it when that takes too long.
    ///
    /// # Errors
    /// `EIO` when it did not end well, with the reason.
    pub(crate) fn end(&self) -> Result<()> {
        // It may have hung up first.
        drop(self.socket.shutdown(Shutdown::Write));
        let mut late = "";
        if let Some(Reader { thread, ended }) = locked(&self.reader).take() {
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
        None => error.errno.because(format!("the kernel code cannot mount it{words}")),
    }
}

/// Frames from a socket.
struct Input {
    socket: UnixStream,
    bytes: BytesMut,
}

impl Input {
    /// The next frame.
    ///
    /// # Errors
    /// At the end of the stream, and when what arrives is no frame.
    fn frame(&mut self) -> Result<Frame> {
        loop {
            let mut wanted = PORTION;
            if let Some(length) = self.bytes.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > FRAME_MAX {
                    return Err(Errno::EPROTO.because("a frame that is too long"));
                }
                if self.bytes.len() >= 4 + length {
                    let frame = self.bytes.split_to(4 + length).freeze().slice(4..);
                    return Ok(Frame::decode(frame)?);
                }
                wanted = wanted.max(4 + length - self.bytes.len());
            }
            let known = self.bytes.len();
            self.bytes.resize(known + wanted, 0);
            let count = self.socket.read(&mut self.bytes[known..]);
            self.bytes.truncate(known + *count.as_ref().unwrap_or(&0));
            match count {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
        }
    }
}
