// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: requests in, worked on side by side, replies as they are ready.

use crate::answer::Session;
use crate::convert;
use crate::server::{Client, Shared};
use bytes::{Buf, Bytes, BytesMut};
use outrigger_core::{Cancel, Errno, lock};
use outrigger_proto_ninep::{
    DecodeError, Dialect, HEAD, IO_HEAD, NO_TAG, Reply, Request as Message, Rflush, Rversion, Text, Tversion,
    frame_len, tag,
};
use outrigger_toolkit_serve::{Caught, Claim, PATIENCE, Share, Unsent, send};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::mem::{replace, take};
use std::sync::{Arc, Mutex as Plain};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::timeout;

/// Requests of one connection that are worked on at once; others wait at the client.
const REQUESTS: usize = 512;
/// The largest message.
const MESSAGE_MAX: u32 = crate::IO_MAX + IO_HEAD;
/// The smallest size of messages that a client can want.
const MESSAGE_MIN: u32 = 4096;
/// What a message before the agreement on a size can have.
const FIRST_MAX: u32 = 8192;
/// Bytes of a message that is copied out of the buffer of the connection: a slice would keep all of that.
const COPIED: usize = 16 << 10;
const BUFFER: usize = 64 << 10;
/// How long the connection of a client at a port that any user can use is kept without a request.
const STRANGERS_IDLE: Duration = Duration::from_secs(10);

/// Why a connection ends before its client ends it.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Message(#[from] DecodeError),
    #[error("the first message is no Tversion")]
    NoVersion,
    #[error("the tag {0} is in use")]
    Tag(u16),
    #[error("nothing moved for {} s", PATIENCE.as_secs())]
    Stuck,
    #[error("a reply could not be delivered")]
    Undelivered,
}

/// What is being worked on, by its tag.
struct Running {
    cancel: Cancel,
    /// Closed when the reply has been sent.
    done: watch::Receiver<()>,
}

/// What a request has until its reply was sent.
type Holds = (OwnedSemaphorePermit, Claim, watch::Sender<()>);

/// A reply that can be sent.
struct Ready {
    number: u16,
    head: Bytes,
    body: Bytes,
    _holds: Holds,
}

/// Replies that can be sent.
#[derive(Default)]
struct Queue {
    ready: Vec<Ready>,
    /// Whether a task sends all that comes.
    is_sent: bool,
}

/// What tasks of a connection share.
struct Outlet<W> {
    to: Mutex<W>,
    queue: Plain<Queue>,
    running: Plain<HashMap<u16, Running>>,
    /// Notified when a reply could not be sent.
    broken: Notify,
}

struct Connection<W> {
    shared: Arc<Shared>,
    client: Client,
    share: Share,
    outlet: Arc<Outlet<W>>,
    requests: Arc<Semaphore>,
    /// Those that wait for another one to end, which must not be held up by the others.
    flushes: Arc<Semaphore>,
}

/// Serves a connection to its end.
pub(crate) async fn serve<R, W>(shared: Arc<Shared>, (from, to): (R, W), client: Client)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (queue, running) = Default::default();
    let outlet = Outlet { to: Mutex::new(to), queue, running, broken: Notify::new() };
    let [requests, flushes] = [REQUESTS; 2].map(|count| Arc::new(Semaphore::new(count)));
    let share = Share::of(&shared.budget);
    let connection = Connection { shared, client, share, outlet: Arc::new(outlet), requests, flushes };
    let mut session = None;
    let ended = connection.run(from, &mut session).await;
    // The client gets no more replies: queries are dropped, changes run to their end.
    connection.quiet().await;
    if let Some(session) = session {
        session.end().await;
    }
    match (ended, &connection.client.at) {
        (Ok(()), at) => tracing::debug!(%at, "the connection was closed"),
        (Err(error), at) => tracing::info!(%at, %error, "the connection ends"),
    }
}

/// The messages of a connection as they come.
struct Messages {
    buffer: BytesMut,
    max: usize,
}

impl Messages {
    /// The next one, if it is whole.
    fn next(&mut self) -> Result<Option<Bytes>, DecodeError> {
        match frame_len(&self.buffer, self.max)? {
            Some(len) if self.buffer.len() >= len => Ok(Some(match len {
                ..=COPIED => {
                    let message = Bytes::copy_from_slice(&self.buffer[..len]);
                    self.buffer.advance(len);
                    message
                }
                _ => self.buffer.split_to(len).freeze(),
            })),
            _ => Ok(None),
        }
    }

    /// How long the message is that has begun to come, where it is a long one.
    fn expected(&self) -> Option<usize> {
        frame_len(&self.buffer, self.max).ok().flatten().filter(|&len| len > COPIED)
    }

    /// Where more of it goes.
    fn space(&mut self) -> &mut BytesMut {
        let more = self.expected().map_or(BUFFER, |len| len - self.buffer.len());
        if self.buffer.capacity() - self.buffer.len() < more {
            self.buffer.reserve(more);
        }
        &mut self.buffer
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> Connection<W> {
    async fn run(
        &self,
        mut from: impl AsyncRead + Unpin,
        session: &mut Option<Arc<Session>>,
    ) -> Result<(), Broken> {
        let mut messages = Messages { buffer: BytesMut::new(), max: FIRST_MAX as usize };
        let mut closing = self.shared.closing.subscribe();
        // Of a long message that has begun to come.
        let mut coming: Option<Claim> = None;
        loop {
            while let Some(message) = messages.next()? {
                let claim = coming.take();
                self.take(message, claim, session).await?;
                let most = session.as_ref().map_or(FIRST_MAX, |session| session.msize);
                messages.max = most as usize;
            }
            if let Some(len) = messages.expected().filter(|_| coming.is_none()) {
                coming = Some(self.share.claim(len).await);
            }
            let is_between = messages.buffer.is_empty();
            let idle = (!self.client.is_trusted).then_some(STRANGERS_IDLE);
            let patience = if is_between { idle } else { Some(PATIENCE) };
            let read = async {
                let read = from.read_buf(messages.space());
                match patience {
                    Some(patience) => timeout(patience, read).await.map_err(|_| Broken::Stuck)?,
                    None => read.await,
                }
                .map_err(Broken::from)
            };
            let count = tokio::select! {
                read = read => read?,
                _ = closing.wait_for(|&closing| closing) => return Ok(()),
                () = self.outlet.broken.notified() => return Err(Broken::Undelivered),
            };
            match (count, is_between) {
                (0, true) => return Ok(()),
                (0, false) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                _ => {}
            }
        }
    }

    /// Begins with a request.
    async fn take(
        &self,
        message: Bytes,
        claim: Option<Claim>,
        session: &mut Option<Arc<Session>>,
    ) -> Result<(), Broken> {
        let number = tag(&message).ok_or(DecodeError::Short)?;
        let dialect = session.as_ref().map_or(Dialect::Linux, |session| session.dialect);
        let request = Message::decode(&message, dialect);
        if let Ok((_, Message::Tversion(call))) = &request {
            return self.negotiate(number, call, session).await;
        }
        let Some(session) = session else { return Err(Broken::NoVersion) };
        let flushes = matches!(request, Ok((_, Message::Tflush(_))));
        let places = if flushes { &self.flushes } else { &self.requests };
        let memory = match (claim, &request) {
            (Some(claim), _) => claim,
            (None, Ok((_, request))) => self.share.claim(memory_of(request, session.msize)).await,
            (None, Err(_)) => Claim::default(),
        };
        let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
        let cancel = Cancel::default();
        let (sender, done) = watch::channel(());
        let flushed = match &request {
            Ok((_, Message::Tflush(call))) if call.oldtag != number => self.flush(call.oldtag),
            _ => None,
        };
        match lock(&self.outlet.running).entry(number) {
            Entry::Vacant(place) if number != NO_TAG => {
                place.insert(Running { cancel: cancel.clone(), done });
            }
            _ => return Err(Broken::Tag(number)),
        }
        let holds = (place, memory, sender);
        match request {
            Ok((_, Message::Tflush(_))) => self.begin(number, dialect, holds, async move {
                if let Some(mut flushed) = flushed {
                    // It never changes: it is closed.
                    let _ = flushed.changed().await;
                }
                Rflush {}.into()
            }),
            Ok((_, request)) => {
                let job = session.begin(request);
                self.begin(number, dialect, holds, job.answer(cancel));
            }
            Err(error) => {
                let errno =
                    if matches!(error, DecodeError::Kind(_)) { Errno::EOPNOTSUPP } else { Errno::EPROTO };
                let refused = convert::refused(&errno.because(error.to_string()), dialect);
                self.begin(number, dialect, holds, std::future::ready(refused));
            }
        }
        Ok(())
    }

    /// Asks a request to stop; what is closed when its reply has been sent.
    fn flush(&self, oldtag: u16) -> Option<watch::Receiver<()>> {
        let running = lock(&self.outlet.running);
        let Running { cancel, done } = running.get(&oldtag)?;
        cancel.raise();
        Some(done.clone())
    }

    /// Has a task answer a request. What it `holds` is given back when the reply has been sent.
    fn begin(
        &self,
        number: u16,
        dialect: Dialect,
        holds: Holds,
        answer: impl Future<Output = Reply> + Send + 'static,
    ) {
        let failure = move || convert::refused(&Errno::EIO.into(), dialect);
        let answer = Caught::new(answer, Arc::clone(&self.shared.inside), failure);
        let outlet = Arc::clone(&self.outlet);
        tokio::spawn(async move {
            let (head, body) = answer.await.encode_parts(number, dialect);
            outlet.deliver(Ready { number, head: head.freeze(), body, _holds: holds }).await;
        });
    }

    /// Waits until nothing is worked on; what is, is asked to stop.
    async fn quiet(&self) {
        lock(&self.outlet.running).values().for_each(|running| running.cancel.raise());
        for places in [&self.requests, &self.flushes] {
            let _ = places.acquire_many(REQUESTS as u32).await;
        }
    }

    /// Begins a session, which ends the former one.
    async fn negotiate(
        &self,
        number: u16,
        call: &Tversion,
        session: &mut Option<Arc<Session>>,
    ) -> Result<(), Broken> {
        timeout(PATIENCE, self.quiet()).await.map_err(|_| Broken::Stuck)?;
        if let Some(former) = take(session) {
            former.end().await;
        }
        let dialect = spoken(&call.version);
        let msize = call.msize.min(MESSAGE_MAX);
        let reply = match dialect {
            _ if msize < MESSAGE_MIN => {
                let error = Errno::EMSGSIZE.because(format!("messages of {msize} bytes are too small"));
                convert::refused(&error, dialect.unwrap_or(Dialect::Plain))
            }
            Some(dialect) => {
                *session = Some(Session::new(&self.shared, &self.client, dialect, msize));
                Rversion { msize, version: Text::new(dialect.name()).unwrap_or_default() }.into()
            }
            None => Rversion { msize, version: Text::new("unknown").unwrap_or_default() }.into(),
        };
        let sent = self.outlet.send(number, dialect.unwrap_or(Dialect::Plain), reply).await;
        sent.map_err(|_| Broken::Undelivered)
    }
}

impl<W: AsyncWrite + Unpin> Outlet<W> {
    async fn send(&self, number: u16, dialect: Dialect, reply: Reply) -> Result<(), Unsent> {
        let (head, body) = reply.encode_parts(number, dialect);
        send(&mut *self.to.lock().await, &head, &body).await
    }

    /// Sends a reply, or leaves that to the task that sends others. What the request holds is given back then.
    async fn deliver(&self, reply: Ready) {
        let is_sent = {
            let mut queue = lock(&self.queue);
            queue.ready.push(reply);
            replace(&mut queue.is_sent, true)
        };
        if !is_sent {
            self.send_ready().await;
        }
    }

    /// Sends what is ready, until nothing is.
    async fn send_ready(&self) {
        loop {
            if lock(&self.running).len() > 1 {
                // Requests that came with this one are answered meanwhile: their replies are one write.
                yield_now().await;
            }
            let replies = {
                let mut queue = lock(&self.queue);
                queue.is_sent = !queue.ready.is_empty();
                take(&mut queue.ready)
            };
            if replies.is_empty() {
                return;
            }
            if let Err(error) = self.send_all(&replies).await {
                tracing::debug!(%error, "a reply was not delivered");
                self.broken.notify_one();
            }
        }
    }

    /// Sends replies, short ones together.
    async fn send_all(&self, replies: &[Ready]) -> Result<(), Unsent> {
        let mut to = self.to.lock().await;
        {
            // The client may use a tag again as soon as it has the reply, and a flush of it is answered behind that.
            let mut running = lock(&self.running);
            replies.iter().for_each(|reply| drop(running.remove(&reply.number)));
        }
        let mut together = BytesMut::new();
        for (at, Ready { head, body, .. }) in replies.iter().enumerate() {
            let is_last = at + 1 == replies.len();
            if together.is_empty() && is_last {
                return send(&mut *to, head, body).await;
            }
            together.extend_from_slice(head);
            if body.len() <= COPIED {
                together.extend_from_slice(body);
            } else {
                send(&mut *to, &together, body).await?;
                together.clear();
            }
        }
        send(&mut *to, &together, &[]).await
    }
}

/// The dialect that is spoken with a client that proposes this one (version(5) of Plan 9).
fn spoken(version: &[u8]) -> Option<Dialect> {
    let known = Dialect::of(version);
    known.or_else(|| Dialect::of(version.split(|&byte| byte == b'.').next()?))
}

/// How much memory a request takes with its reply, in bytes, beside what is small.
fn memory_of(request: &Message, msize: u32) -> usize {
    let count = match request {
        Message::Tread(call) => call.count,
        Message::Treaddir(call) => call.count,
        Message::Twrite(call) => call.data.len() as u32,
        _ => 0,
    };
    HEAD + count.min(msize) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_not_known_are_what_they_are_based_on() {
        for (version, dialect) in [
            ("9P2000.L", Some(Dialect::Linux)),
            ("9P2000.u", Some(Dialect::Unix)),
            ("9P2000", Some(Dialect::Plain)),
            ("9P2000.X", Some(Dialect::Plain)),
            ("9P2001", None),
            ("", None),
        ] {
            assert_eq!(spoken(version.as_bytes()), dialect, "{version}");
        }
    }

    #[test]
    fn messages_come_in_pieces_and_those_that_are_too_long_do_not_come() {
        let mut messages = Messages { buffer: BytesMut::new(), max: 100_000 };
        let message = |len: u32| [&len.to_le_bytes()[..], &vec![7; len as usize - 4]].concat();
        let whole = [message(7), message(50_000)].concat();
        messages.space().extend_from_slice(&whole[..20]);
        assert_eq!(messages.next().unwrap().unwrap().len(), 7);
        assert_eq!((messages.next(), messages.expected()), (Ok(None), Some(50_000)));
        messages.space().extend_from_slice(&whole[20..]);
        assert_eq!(messages.next().unwrap().unwrap().len(), 50_000);
        assert_eq!((messages.next(), messages.expected()), (Ok(None), None));
        messages.buffer.extend_from_slice(&message(100_001));
        assert!(messages.next().is_err());
    }
}
