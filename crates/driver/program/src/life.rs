// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a program, one after the other.

use crate::greeting::{Answer, Offer, greet};
use crate::place::Place;
use bytes::{Bytes, BytesMut};
use outrigger_core::supervise::{Policy, Supervisor};
use outrigger_core::wire::{Body, FRAME_MAX, Frame};
use outrigger_core::{Cx, Errno, Error, Notify, Reply, Request, Result, Runtime, lock};
use outrigger_host::Confined;
use outrigger_mux::{Frame as Packet, Limits, Mux, Protocol};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// A program that dies at once is not started without end.
const POLICY: Policy =
    Policy { at_once: 4, attempts: 5, hold: Duration::ZERO, settled: Duration::from_secs(10) };

/// What is longer counts as moving content, and must not delay small requests.
const SMALL: usize = 8 << 10;
/// The most bytes of the last line that a program said.
const LINE: usize = 300;
/// Where the number of a frame begins: after its length and kind.
const NUMBER: std::ops::Range<usize> = 5..13;

/// Where notices of the program go, from the moment at which a door wants them.
pub(crate) type Notices = Arc<OnceLock<Arc<dyn Notify>>>;

/// The multiplexer's view of the protocol.
struct Frames(Notices);

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

    /// A notice is no reply, and is passed on. One that a door does not wait for yet concerns nothing that it has cached.
    fn is_stray(&self, frame: &[u8]) -> bool {
        let body = Frame::decode(Bytes::copy_from_slice(&frame[4..])).map(|frame| frame.body);
        let Ok(Body::Notice(notice)) = body else { return false };
        if let Some(notify) = self.0.get() {
            notify.notify(notice);
        }
        true
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
    runtime: Arc<dyn Runtime>,
    /// What it said last.
    said: Arc<Said>,
    _process: Process,
}

/// The last line that a program wrote to its standard error.
#[derive(Default)]
struct Said(std::sync::Mutex<Vec<u8>>);

impl Said {
    /// Passes on what the program says until it ends: to our standard error, and the last line to requests that ask why it ended.
    async fn listen(&self, mut errors: pipe::Receiver) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = errors.read(&mut buffer).await {
            // Without a place to say it, it is lost.
            let _ = std::io::stderr().write_all(&buffer[..count]);
            let mut line = lock(&self.0);
            line.extend_from_slice(&buffer[..count]);
            let rest = line.trim_ascii_end();
            let start = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let start = start.max(rest.len().saturating_sub(LINE));
            line.drain(..start);
        }
    }

    /// The line, after a colon; nothing if it said nothing.
    fn shown(&self) -> String {
        let line = lock(&self.0);
        match line.trim_ascii() {
            [] => String::new(),
            line => format!(": it said '{}'", line.escape_ascii()),
        }
    }
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
    pub(crate) async fn ask(&self, cx: &Cx, request: Request) -> Result<Reply, Lost> {
        let left = cx.deadline.map(|deadline| deadline.saturating_sub(self.runtime.monotonic()).as_millis());
        let within = left.map(|millis| u32::try_from(millis).unwrap_or(u32::MAX));
        let op = request.op().name();
        let body = Body::Request { cred: cx.cred.clone(), within, request };
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
                let why = match other {
                    Err(error) => format!("its reply to {op} is {error}"),
                    Ok(_) => format!("it sent no reply to {op} but another message with its number"),
                };
                self.mux.close(&why);
                Err(Lost { why, sent: true })
            }
        }
    }
}

/// Which process of the program serves.
struct Current {
    life: Arc<Life>,
    supervisor: Supervisor,
}

/// How a process of the program is started.
pub(crate) struct Starter {
    command: Vec<OsString>,
    offer: Offer,
    patience: Duration,
    hold: Duration,
    place: Place,
    runtime: Arc<dyn Runtime>,
    notices: Notices,
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
    pub(crate) async fn begin(starter: Starter) -> Result<(Self, Answer)> {
        let starter = Arc::new(starter);
        let (life, answer) = starter.start(1).await?;
        let mut supervisor = Supervisor::new(POLICY.held(starter.hold));
        supervisor.started(starter.runtime.monotonic());
        let current = Mutex::new(Current { life: Arc::new(life), supervisor });
        Ok((Lives { starter, answer: answer.clone(), current }, answer))
    }

    /// Passes notices of the program on to a door.
    pub(crate) fn attach(&self, notify: Arc<dyn Notify>) {
        // A door attaches once.
        let _ = self.starter.notices.set(notify);
    }

    /// The process that serves: a new one, if the last one has ended.
    ///
    /// # Errors
    /// `EIO` when it cannot be started again, or has been too often.
    pub(crate) async fn current(&self) -> Result<Arc<Life>> {
        let mut current = self.current.lock().await;
        let Some(why) = current.life.mux.ended() else { return Ok(Arc::clone(&current.life)) };
        let why = format!("{why}{}", current.life.said.shown());
        let refused = |reason: String| Errno::EIO.because(format!("the program was lost: {why}; {reason}"));
        if !self.answer.persistent {
            return Err(refused("its node numbers do not outlive it".into()));
        }
        let (mut last, runtime) = (String::new(), &self.starter.runtime);
        if current.supervisor.serves() {
            current.supervisor.failed(runtime.monotonic(), false);
        }
        loop {
            let now = runtime.monotonic();
            if current.supervisor.is_given_up(now) {
                return Err(refused(format!(
                    "it has failed too often, and is not started for a while{last}"
                )));
            }
            runtime.sleep_until(now.saturating_add(current.supervisor.pause())).await;
            tracing::warn!("the program was lost ({why}) and is started again");
            let error = match self.starter.start(current.life.number + 1).await {
                Ok((_, answer)) if answer != self.answer => {
                    Errno::EIO.because("it does not answer the offer as it did before")
                }
                Ok((life, _)) => {
                    current.life = Arc::new(life);
                    current.supervisor.started(runtime.monotonic());
                    return Ok(Arc::clone(&current.life));
                }
                Err(error) => error,
            };
            current.supervisor.failed(runtime.monotonic(), false);
            // Another error than that it died before it said anything would only come again at once.
            if error.errno != Errno::EPROTO && self.starter.hold.is_zero() {
                return Err(refused(error.to_string()));
            }
            last = format!(", and then {error}");
        }
    }
}

impl Starter {
    /// Starts `command` with this offer at `place`: it may take `patience` to answer, and starts are not given up before `hold`.
    pub(crate) fn new(
        command: Vec<OsString>,
        offer: Offer,
        (patience, hold): (Duration, Duration),
        place: Place,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        Starter { command, offer, patience, hold, place, runtime, notices: Notices::default() }
    }

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
        let (mut process, errors) = spawn(&self.command, &self.place, theirs)?;
        let (said, listener) = (Arc::<Said>::default(), pipe::Receiver::from_owned_fd(errors)?);
        let listening = Arc::clone(&said);
        self.runtime.spawn(Box::pin(async move { listening.listen(listener).await }));
        ours.set_nonblocking(true)?;
        let greeting =
            greet(Frames(Arc::clone(&self.notices)), UnixStream::from_std(ours)?.into_split(), &self.offer);
        let (framed, answer) = match timeout(self.patience, greeting).await {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(error)) => return Err(ended(&mut process, error, &said).await),
            Err(_) => {
                let seconds = self.patience.as_secs_f32();
                return Err(Errno::ETIMEDOUT.because(format!("the program said nothing for {seconds} s")));
            }
        };
        let (mux, connection) = framed.start(Limits { patience: self.patience, ..Limits::default() });
        self.runtime.spawn(Box::pin(connection));
        Ok((Life { number, mux, runtime: Arc::clone(&self.runtime), said, _process: process }, answer))
    }
}

/// Runs the program with the socket as its input and output.
fn spawn(command: &[OsString], place: &Place, socket: Socket) -> Result<(Process, OwnedFd)> {
    let [program, arguments @ ..] = command else {
        return Err(Errno::EINVAL.because("no program is named"));
    };
    let (input, output) = (OwnedFd::from(socket.try_clone()?), OwnedFd::from(socket));
    let mut command = Command::new(program);
    // Ctrl-C ends what uses the tree first, and the program after it.
    command.args(arguments).process_group(0).current_dir(place.path());
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::piped());
    let mut process = command.confined(&[]).spawn().map_err(|error| {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        errno.because(format!("cannot start {}: {error}", program.display()))
    })?;
    let errors = process.stderr.take().map(OwnedFd::from);
    let errors = errors.ok_or_else(|| Errno::EIO.because("the program has no standard error"))?;
    Ok((Process(process), errors))
}

/// The error with how the process ended, if it has, where it said nothing itself.
async fn ended(process: &mut Process, error: Error, said: &Said) -> Error {
    match process.end().await {
        Some(status) if error.errno == Errno::EPROTO => {
            let why = error.reason.as_deref().unwrap_or("it did not greet");
            error.errno.because(format!("the program has ended ({status}): {why}{}", said.shown()))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{Node, Notice};

    #[derive(Default)]
    struct Noted(std::sync::Mutex<Vec<Notice>>);

    impl Notify for Noted {
        fn notify(&self, notice: Notice) {
            self.0.lock().expect("no panic").push(notice);
        }
    }

    #[test]
    fn a_notice_of_the_program_reaches_the_door_and_is_no_reply() {
        let (frames, noted) = (Frames(Notices::default()), Arc::new(Noted::default()));
        let notice = Notice::InvalidateNode { node: Node(7), offset: 0, len: 0 };
        let frame = |body| Frame { id: Frame::UNANSWERED, body }.encode().expect("a small frame");
        assert!(
            frames.is_stray(&frame(Body::Notice(notice.clone()))),
            "before a door is there it is dropped"
        );
        assert!(frames.0.set(noted.clone()).is_ok());
        assert!(frames.is_stray(&frame(Body::Notice(notice.clone()))));
        assert_eq!(*noted.0.lock().expect("no panic"), [notice]);
        assert!(!frames.is_stray(&frame(Body::Reply(Reply::Done(())))));
        assert!(!frames.is_stray(&frame(Body::Cancel)[..12]), "nonsense ends the connection");
    }
}
