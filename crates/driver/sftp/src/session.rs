// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection to a server: its greeting, what it can do, and asking it something.

use crate::fault::Fault;
use crate::line::{Line, Notes};
use crate::origin::Origin;
use bytes::Bytes;
use outrigger_core::{Errno, Error, lock};
use outrigger_mux::{Connection, Frame, Framed, Limits as MuxLimits, Mux, Protocol};
use outrigger_proto_sftp::{
    self as sftp, Attrs, Extensions, Limits, Named, Reply, Request, StatusCode, VERSION, Version,
};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OnceCell, oneshot};

/// What every server takes in one read or write, in bytes (the draft's 34,000 byte packets).
const CONTENT: u32 = 32 << 10;
/// The most content in one read or write, whatever a server offers, in bytes.
const CONTENT_MAX: u64 = 256 << 10;
/// What a packet has beside its content at most, in bytes.
const PACKET_HEAD: u64 = 1024;
/// What a piece of a listing is thought to take before any was seen, in bytes; and over how many the average goes.
const PIECE: usize = 4 << 10;
const PIECES: usize = 8;

/// The multiplexer's view of the protocol.
pub(crate) struct Sftp3 {
    /// Of a connection that outlives this process.
    notes: Option<Notes>,
    /// The last number that a former process gave out.
    last_tag: u32,
    orphaned: Orphaned,
}

/// Handles that were given to a former process, which will not be used.
type Orphaned = Arc<Mutex<Vec<Bytes>>>;

impl Protocol for Sftp3 {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        sftp::packet_len(head).map_err(|error| format!("{error}{}", hint(head)))
    }
    fn tag(&self, frame: &[u8]) -> Option<u32> {
        sftp::number(frame)
    }
    fn set_tag(&self, head: &mut [u8], tag: u32) {
        if let Some(notes) = &self.notes {
            notes.tag(tag);
        }
        sftp::set_number(head, tag);
    }
    fn last_tag(&self) -> u32 {
        self.last_tag
    }
    fn is_stray(&self, frame: &[u8]) -> bool {
        let asked_before = sftp::number(frame).is_some_and(|tag| tag != 0 && tag <= self.last_tag);
        if asked_before
            && let Ok((_, Reply::Handle(handle))) = Reply::decode(&Bytes::copy_from_slice(&frame[4..]))
        {
            lock(&self.orphaned).push(handle);
        }
        asked_before
    }
    fn taken(&self, len: usize) {
        if let Some(notes) = &self.notes {
            notes.taken(len);
        }
    }
}

/// What a login shell prints gets in the way of the protocol, and is by far the most common reason for nonsense.
fn hint(head: &[u8]) -> String {
    let text: Vec<u8> = head.iter().copied().take_while(|byte| (32..127).contains(byte)).take(60).collect();
    if text.len() < 4 {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    format!("; it began with the text '{text}': does the login shell there print something?")
}

/// A connection and what its server can do.
#[derive(Clone)]
pub(crate) struct Session {
    /// Tells connections apart: handles belong to one.
    pub(crate) epoch: u64,
    pub(crate) extensions: Extensions,
    /// The most one read and one write may move, in bytes.
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    mux: Mux,
    /// How long the server may be silent when it owes something.
    patience: Duration,
    /// What pieces of listings have taken on average, in bytes.
    piece: Arc<AtomicUsize>,
    origin: Arc<OnceCell<Option<Origin>>>,
    /// Of a connection that outlives this process.
    notes: Option<Notes>,
    orphaned: Orphaned,
}

/// A reply that will come. Dropping it lets it go unread, and content that was not asked for yet is not asked for.
pub(crate) struct Pending {
    reply: oneshot::Receiver<Result<Reply, Fault>>,
    /// What is still to be sent is sent while there is this.
    _wanted: Option<Arc<()>>,
}

impl Pending {
    /// Waits for it.
    pub(crate) async fn reply(self) -> Result<Reply, Fault> {
        self.reply.await.unwrap_or_else(|_| Err(Fault::Odd("a reply got lost".into())))
    }

    /// Waits for success.
    pub(crate) async fn done(self) -> Result<(), Fault> {
        match self.reply().await? {
            Reply::Status(status) if status.code == StatusCode::Ok => Ok(()),
            other => Err(Fault::unfit(other)),
        }
    }

    /// Waits for attributes.
    pub(crate) async fn attrs(self) -> Result<Attrs, Fault> {
        match self.reply().await? {
            Reply::Attrs(attrs) => Ok(attrs),
            other => Err(Fault::unfit(other)),
        }
    }

    /// Waits for a handle.
    pub(crate) async fn handle(self) -> Result<Bytes, Fault> {
        match self.reply().await? {
            // The draft's limit.
            Reply::Handle(handle) if handle.len() <= 256 => Ok(handle),
            Reply::Handle(handle) => Err(Fault::Odd(format!("a handle of {} bytes", handle.len()))),
            other => Err(Fault::unfit(other)),
        }
    }

    /// Waits for names; none at the end of a directory.
    pub(crate) async fn names(self) -> Result<Vec<Named>, Fault> {
        match self.reply().await? {
            Reply::Names(names) => Ok(names),
            Reply::Status(status) if status.code == StatusCode::Eof => Ok(Vec::new()),
            other => Err(Fault::unfit(other)),
        }
    }

    /// Waits for one name.
    pub(crate) async fn name(self) -> Result<Bytes, Fault> {
        let names = self.names().await?;
        let one = names.into_iter().next().ok_or_else(|| Fault::Odd("it answered with no name".into()))?;
        Ok(one.name)
    }

    /// Waits for content; none at the end of the file.
    pub(crate) async fn data(&mut self) -> Result<Bytes, Fault> {
        let reply = (&mut self.reply).await;
        content(reply.unwrap_or_else(|_| Err(Fault::Odd("a reply got lost".into()))))
    }

    /// Waits for the answer to an extended request.
    pub(crate) async fn extended(self) -> Result<Bytes, Fault> {
        match self.reply().await? {
            Reply::Extended(body) => Ok(body),
            other => Err(Fault::unfit(other)),
        }
    }
}

impl Session {
    /// Exchanges greetings. The connection has to be served from then on.
    ///
    /// # Errors
    /// What is wrong with the other side.
    pub(crate) async fn greet<R, W>(
        reader: R,
        writer: W,
        (epoch, notes): (u64, Option<Notes>),
        patience: Duration,
    ) -> Result<(Self, Connection), Error>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let orphaned = Orphaned::default();
        let protocol = Sftp3 { notes: notes.clone(), last_tag: 0, orphaned: Arc::clone(&orphaned) };
        let mut framed = Framed::new(protocol, reader, writer);
        let sent = framed.send(&Request::Init.encode(0)).await;
        // A server that does not read may have said why.
        let Some(greeting) = framed.receive().await.map_err(broken)? else {
            return Err(Errno::ENOTCONN.because("the connection ended before the server said anything"));
        };
        sent.map_err(broken)?;
        let version = Version::decode(&greeting.slice(4..)).map_err(Fault::from)?;
        if version.version != VERSION {
            let theirs = version.version;
            let why = format!("the server speaks version {theirs} of the protocol, not {VERSION}");
            return Err(Errno::EPROTO.because(why));
        }
        let (mux, connection) = framed.start(MuxLimits { patience, ..MuxLimits::default() });
        let extensions = version.promised();
        let (max_read, max_write) = (CONTENT, CONTENT);
        let (piece, origin) = (Arc::new(AtomicUsize::new(PIECE)), Arc::default());
        let session =
            Session { epoch, extensions, max_read, max_write, mux, patience, piece, origin, notes, orphaned };
        Ok((session, connection))
    }

    /// Goes on with a connection of a former process. It has to be served from then on.
    pub(crate) fn resume(
        line: Line,
        (extensions, max_read, max_write): (Extensions, u32, u32),
        patience: Duration,
    ) -> (Self, Connection) {
        let Line { reader, writer, notes } = line;
        let orphaned = Orphaned::default();
        let (last_tag, epoch) = (notes.last_tag(), notes.epoch);
        let protocol = Sftp3 { notes: Some(notes.clone()), last_tag, orphaned: Arc::clone(&orphaned) };
        let framed = Framed::new(protocol, reader, writer);
        let (mux, connection) = framed.start(MuxLimits { patience, ..MuxLimits::default() });
        let (piece, origin) = (Arc::new(AtomicUsize::new(PIECE)), Arc::default());
        let notes = Some(notes);
        let session =
            Session { epoch, extensions, max_read, max_write, mux, patience, piece, origin, notes, orphaned };
        (session, connection)
    }

    /// Takes over what the server says it accepts.
    pub(crate) fn limit(&mut self, limits: Limits) {
        // 0 is no statement.
        let stated = |bytes: u64| if bytes == 0 { u64::from(CONTENT) } else { bytes };
        let packet = stated(limits.packet).max(u64::from(CONTENT) + PACKET_HEAD) - PACKET_HEAD;
        self.max_read = stated(limits.read).min(packet).min(CONTENT_MAX) as u32;
        self.max_write = stated(limits.write).min(packet).min(CONTENT_MAX) as u32;
    }

    /// Whether the server has an extension.
    pub(crate) fn has(&self, extension: Extensions) -> bool {
        self.extensions.contains(extension)
    }

    /// Sends a request as soon as there is room for it; its reply is waited for separately, so that several can be on
    /// their way.
    pub(crate) async fn begin(&self, request: &Request<'_>) -> Pending {
        if let Some(extension) = request.extension().filter(|&extension| !self.has(extension)) {
            let name = extension.names().next().map_or("", |(name, _)| name);
            return Pending::failed(Fault::Known(
                Errno::EOPNOTSUPP.because(format!("the server does not have {name}")),
            ));
        }
        let packet = request.encode(0);
        let Request::Read { len, .. } = request else { return self.begin_frame(Frame::first(packet)).await };
        let wanted = Arc::new(());
        let frame = Frame {
            wanted: Some(Arc::downgrade(&wanted)),
            ..Frame::bulk(packet, Bytes::new(), *len as usize)
        };
        Pending { _wanted: Some(wanted), ..self.begin_frame(frame).await }
    }

    /// As [`Session::begin`] for a piece of a listing that no request waits for yet.
    pub(crate) async fn begin_ahead(&self, request: &Request<'_>) -> Pending {
        let expected = self.piece.load(Ordering::Relaxed);
        self.begin_frame(Frame::bulk(request.encode(0), Bytes::new(), expected)).await
    }

    /// As [`Session::begin`] for what is to be done after the writes that were asked for before.
    pub(crate) async fn begin_after(&self, request: &Request<'_>) -> Pending {
        self.begin_frame(Frame::bulk(request.encode(0), Bytes::new(), 0)).await
    }

    /// A piece of a listing took about this many bytes.
    pub(crate) fn note_piece(&self, bytes: usize) {
        let before = self.piece.load(Ordering::Relaxed);
        self.piece.store((before * (PIECES - 1) + bytes) / PIECES + 1, Ordering::Relaxed);
    }

    /// As [`Session::begin`] for a write, whose content is not copied.
    pub(crate) async fn begin_write(&self, handle: &[u8], offset: u64, data: Bytes) -> Pending {
        let len = data.len();
        let head = sftp::write_head(0, handle, offset, len as u32);
        self.begin_frame(Frame::bulk(head, data, len)).await
    }

    async fn begin_frame(&self, frame: Frame) -> Pending {
        let orphaned = std::mem::take(&mut *lock(&self.orphaned));
        orphaned.iter().for_each(|handle| self.close(handle));
        let (sender, receiver) = oneshot::channel();
        let (mux, patience, notes) = (self.mux.clone(), self.patience, self.notes.clone());
        let answered = move |packet: Result<Bytes, outrigger_mux::Error>| {
            if matches!(packet, Err(outrigger_mux::Error::TimedOut { .. })) && mux.silence() >= patience {
                // Whether the server can be reached at all, the next connection shows.
                mux.close("the server does not answer");
            }
            let reply = packet.map_err(Fault::from).and_then(|packet| {
                Reply::decode(&packet.slice(4..)).map(|(_, reply)| reply).map_err(Fault::from)
            });
            if let (Some(notes), Ok(Reply::Handle(handle))) = (&notes, &reply) {
                notes.kept.note_handle(notes.epoch, handle);
            }
            // The request that waited may be gone, and then nothing else would close what was opened.
            if let Err(Ok(Reply::Handle(handle))) = sender.send(reply) {
                close(&mux, notes.as_ref(), &handle);
            }
        };
        self.mux.call_then(frame, answered).await;
        Pending { reply: receiver, _wanted: None }
    }

    /// Closes a handle without waiting.
    pub(crate) fn close(&self, handle: &Bytes) {
        close(&self.mux, self.notes.as_ref(), handle);
    }

    /// Notes what a handle is for, so that a process that takes over uses it for the same.
    pub(crate) fn note_owner(&self, handle: &Bytes, owner: u64) {
        if let Some(notes) = &self.notes {
            notes.kept.owns(notes.epoch, handle, owner);
        }
    }

    /// What is noted of it, if it outlives this process.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.notes.as_ref()
    }

    /// How much one read or write of much content should move, in bytes, when at most `max` fit.
    pub(crate) fn chunk(&self, max: u32) -> usize {
        self.mux.chunk().min(max as usize).max(1)
    }

    /// Whether requests are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.mux.is_open()
    }

    /// The process that serves it, where the server shows that. The first request waits for the answer.
    pub(crate) async fn origin(&self) -> Option<&Origin> {
        self.origin.get_or_init(|| Origin::of(self)).await.as_ref()
    }

    /// The same, as far as it was asked for while there was a connection.
    pub(crate) fn known_origin(&self) -> Option<&Origin> {
        self.origin.get().and_then(Option::as_ref)
    }

    /// Whether it is ending in order.
    pub(crate) fn is_finishing(&self) -> bool {
        self.mux.is_finishing()
    }

    /// Why it ended.
    pub(crate) fn ended(&self) -> Option<Arc<str>> {
        self.mux.ended()
    }

    /// Ends the connection in order.
    pub(crate) fn finish(&self) {
        self.mux.finish();
    }
}

impl Pending {
    fn failed(fault: Fault) -> Self {
        let (sender, receiver) = oneshot::channel();
        drop(sender.send(Err(fault)));
        Pending { reply: receiver, _wanted: None }
    }
}

fn content(reply: Result<Reply, Fault>) -> Result<Bytes, Fault> {
    match reply? {
        Reply::Data(data) => Ok(data),
        Reply::Status(status) if status.code == StatusCode::Eof => Ok(Bytes::new()),
        other => Err(Fault::unfit(other)),
    }
}

/// After all requests that use the handle, in whatever lane they wait: one that came to the server later would be about whatever
/// has been given the same handle there since.
fn close(mux: &Mux, notes: Option<&Notes>, handle: &Bytes) {
    if let Some(notes) = notes {
        notes.kept.erase_handle(notes.epoch, handle);
    }
    mux.send(Frame::bulk(Request::Close { handle }.encode(0), Bytes::new(), 0));
}

fn broken(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Errno::EPROTO.because(format!("the other side does not speak SFTP: {error}"))
        }
        _ => Errno::ENOTCONN.because(format!("the connection ended: {}", Error::from(error))),
    }
}
