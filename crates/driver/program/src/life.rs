// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a program, one after the other.

use crate::greeting::{Answer, Offer, greet};
use crate::options::Options;
use bytes::{Bytes, BytesMut};
use outrigger_core::wire::{Body, FRAME_MAX, Frame};
use outrigger_core::{Credentials, Errno, Error, OpSet, Reply, Request, Result, Runtime};
use outrigger_host::Confined;
use outrigger_mux::{Frame as Packet, Limits, Mux, Protocol};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// So many starts in such a time are the most: a program that dies at once would be started for ever.
const STARTS: usize = 5;
const STARTS_IN: Duration = Duration::from_secs(10);

/// What is longer counts as moving content, and must not delay small requests.
const SMALL: usize = 8 << 10;
/// Where the number of a frame begins: after its length and kind.
const NUMBER: std::ops::Range<usize> = 5..13;

/// The multiplexer's view of the protocol.
struct Frames;

impl Protocol for Frames {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        match head.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize) {
            Some(length) if length > FRAME_MAX => Err(format!("a message of {length} bytes")),
            length => Ok(length.map(|length| 4 + length)),
        }
    }

    fn tag(&self, frame: &[u8]) -> Option<u32> {
        let number = frame.get(NUMBER)?.try_into().ok()?;
        u32::try_from(u64::from_le_bytes(number)).ok()
    }

    fn set_tag(&self, head: &mut [u8], tag: u32) {
        head[NUMBER].copy_from_slice(&u64::from(tag).to_le_bytes());
    }
}

/// A request without a reply.
#[derive(Debug)]
pub(crate) struct Lost {
    /// How the program was lost.
    pub(crate) why: String,
    /// Whether it may have seen the request.
    pub(crate) sent: bool,
}

/// One process of the program.
pub(crate) struct Life {
    /// Which one: handles belong to one life.
    pub(crate) number: u64,
    mux: Mux,
    _process: Process,
}

/// A process and those it starts, which are killed when this is dropped.
struct Process(Child);

impl Process {
    /// How it has ended, if it does within a moment.
    async fn end(&mut self) -> Option<ExitStatus> {
        const LOOKS: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(10);
        for _ in 0..LOOKS {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status);
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Until it is waited for, its number cannot come to mean another group.
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        // It has ended already, or does so at once; if the kernel keeps it, it is left to init.
        let _ = self.0.try_wait();
    }
}

impl Life {
    /// Asks the program.
    ///
    /// # Errors
    /// [`Lost`] when it does not answer, or not with a message; it has ended then.
    pub(crate) async fn ask(&self, cred: Credentials, request: Request) -> Result<Reply, Lost> {
        let body = Body::Request { uid: cred.uid, gid: cred.gid, request };
        let frame = match (Frame { id: Frame::UNANSWERED, body }).encode() {
            Ok(frame) => BytesMut::from(&frame[..]),
            Err(error) => return Ok(Reply::Error(error)),
        };
        let packet = match frame.len() {
            len if len > SMALL => Packet::bulk(frame, Bytes::new(), len),
            _ => Packet::first(frame),
        };
        let answered = self.mux.call(packet).await.map_err(|error| {
            // A program that does not answer is not waited for by the next request as well.
            self.mux.close(&error.to_string());
            Lost { why: error.to_string(), sent: error.was_sent() }
        })?;
        match Frame::decode(answered.slice(4..)) {
            Ok(Frame { body: Body::Reply(reply), .. }) => Ok(reply),
            other => {
                let why = other.err().map_or("no reply to a request".into(), |error| error.to_string());
                self.mux.close(&why);
                Err(Lost { why, sent: true })
            }
        }
    }
}

/// Which process of the program serves.
struct Current {
    life: Arc<Life>,
    /// When the last ones were started.
    starts: Vec<Duration>,
}

/// How a process of the program is started.
struct Starter {
    command: Vec<OsString>,
    offer: Offer,
    patience: Duration,
    runtime: Arc<dyn Runtime>,
}

/// How each process is started, and which one serves.
pub(crate) struct Lives {
    starter: Arc<Starter>,
    /// What the first one answered.
    answer: Answer,
    current: Mutex<Current>,
}

impl Lives {
    /// Starts the first one.
    ///
    /// # Errors
    /// Why it cannot be started or does not serve.
    pub(crate) async fn begin(
        command: Vec<OsString>,
        location: &str,
        options: Options,
        ops: OpSet,
        runtime: Arc<dyn Runtime>,
    ) -> Result<(Self, Answer)> {
        let offer = Offer::new(location, &options.passed, ops);
        let now = runtime.monotonic();
        let starter = Arc::new(Starter { command, offer, patience: options.patience, runtime });
        let (life, answer) = starter.start(1).await?;
        let current = Mutex::new(Current { life: Arc::new(life), starts: vec![now] });
        Ok((Lives { starter, answer: answer.clone(), current }, answer))
    }

    /// The process that serves: a new one, if the last one has ended.
    ///
    /// # Errors
    /// `EIO` when it cannot be started again, or has been too often.
    pub(crate) async fn current(&self) -> Result<Arc<Life>> {
        let mut current = self.current.lock().await;
        let Some(why) = current.life.mux.ended() else { return Ok(Arc::clone(&current.life)) };
        let refused = |reason: String| Errno::EIO.because(format!("the program was lost: {why}; {reason}"));
        if !self.answer.persistent {
            return Err(refused("its node numbers do not outlive it".into()));
        }
        let now = self.starter.runtime.monotonic();
        current.starts.retain(|&start| now.saturating_sub(start) < STARTS_IN);
        if current.starts.len() >= STARTS {
            return Err(refused(format!("it was started {STARTS} times in {} s", STARTS_IN.as_secs())));
        }
        current.starts.push(now);
        tracing::warn!("the program was lost ({why}) and is started again");
        let started = self.starter.start(current.life.number + 1).await;
        let (life, answer) = started.map_err(|error| refused(error.to_string()))?;
        if answer != self.answer {
            return Err(refused("it does not answer the offer as it did before".into()));
        }
        current.life = Arc::new(life);
        Ok(Arc::clone(&current.life))
    }
}

impl Starter {
    /// Starts a process in a task of its own: only there can sockets be opened, and giving up a request does not stop it
    /// half-way.
    async fn start(self: &Arc<Self>, number: u64) -> Result<(Life, Answer)> {
        let (sender, receiver) = oneshot::channel();
        let starter = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            // Where the request was given up, the process ends with what is dropped here.
            let _ = sender.send(starter.start_here(number).await);
        }));
        let stopped = |_| Err(Errno::EIO.because("this program is ending"));
        receiver.await.unwrap_or_else(stopped)
    }

    async fn start_here(&self, number: u64) -> Result<(Life, Answer)> {
        let (ours, theirs) = Socket::pair()?;
        let mut process = spawn(&self.command, theirs)?;
        ours.set_nonblocking(true)?;
        let greeting = greet(Frames, UnixStream::from_std(ours)?.into_split(), &self.offer);
        let (framed, answer) = match timeout(self.patience, greeting).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error)) => return Err(ended(&mut process, error).await),
            Err(_) => {
                let seconds = self.patience.as_secs_f32();
                return Err(Errno::ETIMEDOUT.because(format!("the program said nothing for {seconds} s")));
            }
        };
        let (mux, connection) = framed.start(Limits { patience: self.patience, ..Limits::default() });
        self.runtime.spawn(Box::pin(connection));
        Ok((Life { number, mux, _process: process }, answer))
    }
}

/// Runs the program with the socket as its input and output.
fn spawn(command: &[OsString], socket: Socket) -> Result<Process> {
    let [program, arguments @ ..] = command else {
        return Err(Errno::EINVAL.because("no program is named"));
    };
    let (input, output) = (OwnedFd::from(socket.try_clone()?), OwnedFd::from(socket));
    let mut command = Command::new(program);
    // Ctrl-C ends what uses the tree first, and the program after it.
    command.args(arguments).process_group(0).stdin(Stdio::from(input)).stdout(Stdio::from(output));
    command.confined(&[]).spawn().map(Process).map_err(|error| {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        errno.because(format!("cannot start {}: {error}", program.display()))
    })
}

/// The error with how the process ended, if it has, where it said nothing itself.
async fn ended(process: &mut Process, error: Error) -> Error {
    match process.end().await {
        Some(status) if error.errno == Errno::EPROTO => {
            let why = error.reason.as_deref().unwrap_or("it said nothing");
            error.errno.because(format!("the program has ended ({status}): {why}"))
        }
        _ => error,
    }
}
