// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection: what was agreed on it, its numbers, and requests by it.

use crate::leases::Leases;
use crate::numbers::Numbers;
use crate::place::Connected;
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{Forget, GetAttr};
use outrigger_core::order::Turn;
use outrigger_core::wire::peer::{self, Lease, Offered, Recall, Said, Wanted};
use outrigger_core::wire::{Body, FRAME_MAX, Frame};
use outrigger_core::{Class, Clock, Cx, Errno, Error, Node, Notify, OpSet, Reply, Request, Result, Wire};
use outrigger_mux::{Error as NoReply, Frame as Packet, Framed, Limits, Mux, Protocol};
use outrigger_toolkit_remote::{Carrier, quoted};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Why something was not done: the other side says so, or the connection was lost.
pub(crate) type Fault = outrigger_toolkit_remote::Fault<Infallible>;
/// Where notices go, from the moment at which a door wants them.
pub(crate) type Notices = Arc<OnceLock<Arc<dyn Notify>>>;

/// What is longer counts as moving content, and must not delay small requests.
const SMALL: usize = 8 << 10;
/// The longest message of the beginning.
const FIRST_MAX: usize = 64 << 10;
/// Where the kind of a frame, and its number, begin.
const KIND: usize = 4;
const NUMBER: std::ops::Range<usize> = 5..13;
/// The kinds of a notice, and of what the other side says about leases.
const NOTICE: u8 = 5;
const CONTROL: u8 = 4;
/// The number of no request.
const NO_TAG: u32 = u32::MAX;

/// The multiplexer's view of the protocol. Its numbers begin with 0, which a frame must not have.
struct Messages {
    numbers: Arc<Numbers>,
    leases: Arc<Leases>,
    notices: Notices,
}

impl Protocol for Messages {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        match head.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize) {
            Some(length) if length > FRAME_MAX => Err(format!("a message of {length} bytes")),
            length => Ok(length.map(|length| 4 + length)),
        }
    }

    fn tag(&self, frame: &[u8]) -> Option<u32> {
        let number = u64::from_le_bytes(frame.get(NUMBER)?.try_into().ok()?);
        match (frame[KIND], number) {
            (NOTICE, _) | (CONTROL, 0) => Some(NO_TAG),
            _ => u32::try_from(number.checked_sub(1)?).ok(),
        }
    }

    fn set_tag(&self, head: &mut [u8], tag: u32) {
        head[NUMBER].copy_from_slice(&(u64::from(tag) + 1).to_le_bytes());
    }

    fn is_stray(&self, frame: &[u8]) -> bool {
        let body = Frame::decode(Bytes::copy_from_slice(&frame[4..])).map(|frame| frame.body);
        let notice = match body {
            Ok(Body::Notice(notice)) => notice,
            Ok(Body::Control(mut bytes)) => {
                return Recall::get(&mut bytes).map(|Recall { dir }| self.leases.recall(dir)).is_ok();
            }
            _ => return false,
        };
        self.leases.notice(&notice);
        if let (Some(notice), Some(notify)) = (self.numbers.notice(notice), self.notices.get()) {
            notify.notify(notice);
        }
        true
    }

    fn take_back(&self, tag: u32) -> Option<BytesMut> {
        Some(said(Said::Cancel(u64::from(tag) + 1)))
    }
}

/// A message about a request, or a directory.
fn said(what: Said) -> BytesMut {
    let frame = Frame { id: Frame::UNANSWERED, body: Body::Control(what.bytes()) }.encode();
    BytesMut::from(&frame.unwrap_or_default()[..])
}

/// A connection.
pub(crate) struct Session {
    /// Which one: handles belong to one.
    pub(crate) number: u64,
    pub(crate) mux: Mux,
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) leases: Arc<Leases>,
    /// What the other side tells of its tree.
    pub(crate) offered: Offered,
    /// The operations that both sides encode alike.
    pub(crate) spoken: OpSet,
}

/// What a connection is made with.
pub(crate) struct Start {
    pub(crate) number: u64,
    /// This release, as messages name it.
    pub(crate) release: &'static str,
    /// What may be asked.
    pub(crate) ops: OpSet,
    pub(crate) notices: Notices,
    /// How long the beginning may take, and a reply.
    pub(crate) limits: (Duration, Duration),
}

/// A connection at work, and what carries it.
pub(crate) type Started = (Session, outrigger_mux::Connection, Box<dyn Carrier>);

impl Session {
    /// Agrees on what can be said.
    ///
    /// # Errors
    /// Why nothing can be, in the words of what carries the connection where it has any.
    pub(crate) async fn start(connected: Connected, start: &Start) -> Result<Started> {
        let Connected { reader, writer, carrier } = connected;
        let (connecting, patience) = start.limits;
        let (numbers, notices) = (Arc::<Numbers>::default(), Arc::clone(&start.notices));
        let leases = Arc::<Leases>::default();
        let protocol = Messages { numbers: Arc::clone(&numbers), leases: Arc::clone(&leases), notices };
        let wanted = Wanted::new(start.release, start.ops);
        let agreed = timeout(connecting, agree(protocol, (reader, writer), &wanted)).await;
        let (framed, offered) = match agreed {
            Ok(Ok(agreed)) => agreed,
            Ok(Err(error)) => return Err(carrier.last_words(error).await),
            Err(_) => {
                let why = format!("no connection within {} s", connecting.as_secs_f32());
                return Err(carrier.cut_short(Errno::ETIMEDOUT.because(why)).await);
            }
        };
        let spoken = peer::spoken(start.ops, &offered.operations);
        peer::check_spoken(spoken, (start.release, &offered.release))?;
        let (mux, connection) = framed.start(Limits { patience, ..Limits::default() });
        let number = start.number;
        Ok((Session { number, mux, numbers, leases, offered, spoken }, connection, carrier))
    }

    /// Asks for something.
    ///
    /// # Errors
    /// `Lost` when it may be asked again on another connection; a change that may have been made is `EIO`.
    pub(crate) async fn ask(&self, cx: &Cx, clock: &dyn Clock, request: Request) -> Result<Reply, Fault> {
        self.ask_in_turn(cx, clock, request, None).await
    }

    /// The same for what has a place in an order: it sets out when everything before it has, by the same way.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub(crate) async fn ask_in_turn(
        &self,
        cx: &Cx,
        clock: &dyn Clock,
        request: Request,
        turn: Option<&Turn>,
    ) -> Result<Reply, Fault> {
        let left = cx.deadline.map(|deadline| deadline.saturating_sub(clock.monotonic()).as_millis());
        let within = left.map(|millis| u32::try_from(millis).unwrap_or(u32::MAX));
        let (is_change, must_end, op) = (request.class() == Class::Change, request.must_end(), request.op());
        let moved = match &request {
            Request::Read(op) => op.len as usize,
            _ => 0,
        };
        let body = Body::Request { cred: cx.cred.clone(), within, request };
        let frame = Frame { id: Frame::UNANSWERED, body }.encode().map_err(Fault::Known)?;
        let mut frame = BytesMut::from(Bytes::from(frame));
        let packet = match frame.len().max(moved) {
            len if len > SMALL => {
                // What is in the body counts as content that the line has carried.
                let body = frame.split_off(NUMBER.end).freeze();
                Packet::bulk(frame, body, len)
            }
            // What goes first would overtake a write.
            _ if turn.is_some_and(|turn| !turn.is_calm()) => Packet::bulk(frame, Bytes::new(), 0),
            _ => Packet::first(frame),
        };
        let answered = match turn {
            Some(turn) => self.call_in_turn(packet, turn).await,
            None if must_end => self.mux.call(packet).await,
            None => match cx.cancel.unless_raised(self.mux.call(packet)).await {
                Some(answered) => answered,
                None => return Err(Errno::EINTR.into()),
            },
        };
        self.reply(&answered.map_err(|lost| self.lost(&lost, is_change))?, op.name())
    }

    fn reply(&self, frame: &Bytes, to: &str) -> Result<Reply, Fault> {
        match Frame::decode(frame.slice(4..)) {
            Ok(Frame { body: Body::Reply(reply), .. }) => Ok(reply),
            _ => {
                let why = format!("what came is no reply to {to}");
                self.mux.close(&why);
                Err(Fault::Known(Errno::EPROTO.because(why)))
            }
        }
    }

    /// Asks for a lease.
    ///
    /// # Errors
    /// `Lost` when there is no reply.
    pub(crate) async fn lease(&self, dir: Node) -> Result<Reply, Fault> {
        let wanted = said(Said::Lease(Lease { dir, wanted: true }));
        let answered = self.mux.call(Packet::first(wanted)).await;
        self.reply(&answered.map_err(|lost| self.lost(&lost, false))?, "a lease")
    }

    /// Gives one back.
    pub(crate) fn give_lease_back(&self, dir: Node) {
        self.mux.send(Packet::first(said(Said::Lease(Lease { dir, wanted: false }))));
    }

    async fn call_in_turn(&self, packet: Packet, turn: &Turn) -> Result<Bytes, NoReply> {
        turn.comes(self.number).await;
        let (sender, answered) = oneshot::channel();
        // The caller may be gone.
        self.mux.call_then(packet, move |reply| drop(sender.send(reply))).await;
        turn.sent(self.number);
        let gone = |_| Err(NoReply::Lost { why: "the connection is gone".into(), sent: true });
        answered.await.unwrap_or_else(gone)
    }

    /// Sends a request without waiting for its reply.
    pub(crate) fn tell(&self, cx: &Cx, request: Request) {
        let body = Body::Request { cred: cx.cred.clone(), within: None, request };
        if let Ok(frame) = (Frame { id: Frame::UNANSWERED, body }).encode() {
            self.mux.send(Packet::first(BytesMut::from(&frame[..])));
        }
    }

    /// Returns references.
    pub(crate) fn forget(&self, cx: &Cx, node: Node, count: u64) {
        self.tell(cx, Forget { node, count }.into());
    }

    /// What the root is.
    pub(crate) async fn root(&self, cx: &Cx, clock: &dyn Clock) -> Result<Reply, Fault> {
        self.ask(cx, clock, GetAttr { node: Node::ROOT, handle: None }.into()).await
    }

    fn lost(&self, lost: &NoReply, is_change: bool) -> Fault {
        let errno = match lost {
            NoReply::TimedOut { .. } => {
                // Whether the other side can be reached at all, the next connection shows.
                self.mux.close("the other side does not answer");
                Errno::ETIMEDOUT
            }
            NoReply::Lost { .. } => Errno::EIO,
        };
        match is_change && lost.was_sent() {
            true => Fault::Known(Errno::EIO.because(format!(
                "the connection was lost, so whether this change was made is not known: {lost}"
            ))),
            false => Fault::Lost(errno.because(lost.to_string())),
        }
    }
}

/// The beginning: greetings, what is wanted, what is offered.
async fn agree<P, R, W>(
    protocol: P,
    (mut reader, mut writer): (R, W),
    wanted: &Wanted,
) -> Result<(Framed<P, R, W>, Offered)>
where
    P: Protocol,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let first = [&peer::greeting()[..], &peer::framed(wanted)?].concat();
    // A process that does not listen may have said why; one that has ended has not.
    let _ = writer.write_all(&first).await;
    let _ = writer.flush().await;
    let ended = |_| Errno::EIO.because("the other side has ended without a greeting");
    let mut theirs = [0; 6];
    reader.read_exact(&mut theirs).await.map_err(ended)?;
    peer::check_greeting(&theirs)?;
    let mut framed = Framed::new(protocol, reader, writer);
    let frame = framed.receive().await?.filter(|frame| frame.len() <= FIRST_MAX);
    let frame = frame.ok_or_else(|| Errno::EPROTO.because("the other side has ended without an answer"))?;
    let offered: Offered = peer::unframed(frame.slice(4..))?;
    match &offered.refusal {
        Some(Error { errno, reason }) => {
            let why = reason.as_deref().unwrap_or(errno.message());
            Err(errno.because(quoted(why.as_bytes())))
        }
        None => Ok((framed, offered)),
    }
}
