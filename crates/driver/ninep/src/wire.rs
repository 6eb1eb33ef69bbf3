// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection: its tags, its fids, and calls by it.

use crate::convert;
use crate::dialect::version::{Agreed, agree};
use crate::dialect::{People, error_in};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, Result, Runtime, lock};
use outrigger_mux::{Error as Lost, Frame, Framed, Limits, Mux, Protocol};
use outrigger_proto_ninep::{
    Attrs, Call, Dialect, HEAD, IO_HEAD, List, NO_FID, NO_TAG, Reply, Request, Rerror, Rlerror, Tattach,
    Tclunk, Tflush, Twalk, Twrite, WALK_MAX, frame_len, set_tag, tag, write_head,
};
use outrigger_proto_ninep::{Qid, Text};
use outrigger_toolkit_remote::{Stream, within};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most content in one message, in bytes.
pub(crate) const IO_MAX: u32 = 1 << 20;
/// The least that a server may want messages to be: a name and what is beside it must fit in.
pub(crate) const MESSAGE_MIN: u32 = 4096;
/// How many fids there are at once, since servers keep something of each, and how many requests: more than listings ask for side by
/// side.
const FIDS: usize = 4096;

/// Why something was not done: the server says so, or the connection was lost.
pub(crate) type Fault = outrigger_toolkit_remote::Fault<Infallible>;

/// Of a request that follows a change: the change is not made again.
pub(crate) fn once(fault: Fault) -> Fault {
    match fault {
        Fault::Lost(error) => Fault::Known(error),
        fault => fault,
    }
}

/// What a request is that was sent: its number in the multiplexer, and the one that it takes back.
type Sent = (u32, Option<u16>);

/// The multiplexer's view of the protocol: tags have 16 bits.
#[derive(Default)]
pub(crate) struct Tags(Mutex<TagTable>);

#[derive(Default)]
struct TagTable {
    sent: HashMap<u16, Sent>,
    last: u16,
}

impl Protocol for Tags {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        frame_len(head, (IO_MAX + IO_HEAD) as usize)
            .map_err(|error| format!("the server does not speak 9P: {error}"))
    }

    fn tag(&self, frame: &[u8]) -> Option<u32> {
        // No request has the number 0.
        Some(lock(&self.0).sent.remove(&tag(frame)?).map_or(0, |(number, _)| number))
    }

    fn set_tag(&self, head: &mut [u8], number: u32) {
        let mut table = lock(&self.0);
        loop {
            table.last = table.last.wrapping_add(1);
            if table.last != NO_TAG && !table.sent.contains_key(&table.last) {
                break;
            }
        }
        let (own, old) = (table.last, flushed(head));
        table.sent.insert(own, (number, old));
        set_tag(head, own);
    }

    fn take_back(&self, number: u32) -> Option<BytesMut> {
        let table = lock(&self.0);
        let (&oldtag, _) = table.sent.iter().find(|(_, (sent, old))| *sent == number && old.is_none())?;
        Some(Request::from(Tflush { oldtag }).encode(NO_TAG, Dialect::Linux))
    }

    fn also_ends(&self, frame: &[u8]) -> Option<u32> {
        let mut table = lock(&self.0);
        let (_, old) = *table.sent.get(&tag(frame)?)?;
        table.sent.remove(&old?).map(|(number, _)| number)
    }
}

/// The tag that a [`Tflush`] is about.
fn flushed(head: &[u8]) -> Option<u16> {
    let (head, tag) = head.split_at_checked(HEAD)?;
    let kind = Request::Tflush(Tflush { oldtag: 0 }).kind();
    (head[4] == kind).then_some(u16::from_le_bytes(tag.try_into().ok()?))
}

/// What is wanted of a connection.
#[derive(Clone)]
pub(crate) struct Terms {
    /// The dialects that the server is asked for, one after the other.
    pub(crate) offers: Vec<Dialect>,
    /// Who the users are that the server names.
    pub(crate) people: Arc<People>,
}

/// A connection on which a dialect was agreed.
pub(crate) struct Session {
    pub(crate) mux: Mux,
    pub(crate) dialect: Dialect,
    pub(crate) people: Arc<People>,
    /// The longest message, in bytes.
    msize: u32,
    fids: Mutex<Fids>,
    room: Arc<Semaphore>,
    patience: Duration,
    runtime: Arc<dyn Runtime>,
    /// The roots of trees, by user and name; for as long as the connection is there.
    roots: Mutex<HashMap<(u32, Vec<u8>), u32>>,
    /// Whether a request for what a walk leads to, sent right behind the walk, finds it done.
    is_in_order: AtomicBool,
    /// Whether the server lacks the requests that name a file by its directory and name (`Tunlinkat`, `Trenameat`).
    pub(crate) lacks_at: AtomicBool,
}

#[derive(Default)]
struct Fids {
    last: u32,
    used: HashSet<u32>,
}

impl Fids {
    /// A number that no other file has.
    fn take(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != NO_FID && self.used.insert(self.last) {
                return self.last;
            }
        }
    }
}

/// A file at the server. Dropping it gives its number back.
pub(crate) struct Fid {
    pub(crate) session: Arc<Session>,
    pub(crate) number: u32,
    /// Whether the server knows it, perhaps.
    is_known: AtomicBool,
    _room: OwnedSemaphorePermit,
}

impl Drop for Fid {
    fn drop(&mut self) {
        match self.is_known.load(Ordering::Relaxed) {
            true => self.session.clunk(self.number),
            false => _ = lock(&self.session.fids).used.remove(&self.number),
        }
    }
}

impl Fid {
    /// Does what makes the server know it, unless that fails.
    pub(crate) async fn made<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        // Who waits for it may leave before there is an answer.
        let was_known = self.is_known.swap(true, Ordering::Relaxed);
        let made = work.await;
        if made.is_err() {
            self.is_known.store(was_known, Ordering::Relaxed);
        }
        made
    }

    /// The server gives it back on its own account.
    pub(crate) fn forget(&self) {
        self.is_known.store(false, Ordering::Relaxed);
    }

    /// Gives it back, and waits for what the server answers to that: some store what was written only then, and some say only then that
    /// they could not. A server that is gone has answered every write before.
    pub(crate) async fn end(&self) -> Result<()> {
        if !self.is_known.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        match self.session.ask(Tclunk { fid: self.number }).await {
            Err(Fault::Known(error)) => {
                let why = error.why();
                Err(error.errno.because(format!("the server answers when the file is closed: {why}")))
            }
            Ok(_) | Err(Fault::Lost(_)) => Ok(()),
        }
    }
}

/// What the last two names of a walk have led to, if there were so many.
#[derive(Clone, Copy)]
pub(crate) struct Walked {
    /// The directory that the last name was found in.
    pub(crate) above: Option<Qid>,
    pub(crate) to: Option<Qid>,
}

impl Session {
    /// Agrees on size, and the dialect at the place `at` of the offers. The inner error leaves the next one open.
    pub(crate) async fn start(
        stream: Box<dyn Stream>,
        (limit, runtime): (Duration, &Arc<dyn Runtime>),
        (Terms { offers, people }, at): (&Terms, usize),
        spawn: impl FnOnce(outrigger_mux::Connection),
    ) -> Result<Result<Arc<Self>>> {
        let (reader, writer) = tokio::io::split(stream);
        let mut framed = Framed::new(Tags::default(), reader, writer);
        let agreed = within(limit, "agreeing on a version of 9P", agree(&mut framed, offers, at));
        let Agreed { dialect, msize } = match agreed.await? {
            Ok(agreed) => agreed,
            Err(refused) => return Ok(Err(refused)),
        };
        let (mux, connection) = framed.start(Limits { requests: FIDS, patience: limit, ..Limits::default() });
        spawn(connection);
        Ok(Ok(Arc::new(Session {
            mux,
            dialect,
            people: Arc::clone(people),
            msize,
            fids: Mutex::default(),
            room: Arc::new(Semaphore::new(FIDS)),
            patience: limit,
            runtime: Arc::clone(runtime),
            roots: Mutex::default(),
            is_in_order: AtomicBool::new(true),
            lacks_at: AtomicBool::new(false),
        })))
    }

    /// How much content goes into one message of a file whose server likes `iounit` bytes, if it says so.
    pub(crate) fn io_size(&self, iounit: u32) -> u32 {
        let most = self.msize - IO_HEAD;
        if iounit == 0 { most } else { most.min(iounit) }
    }

    /// A fid that stands for nothing yet.
    pub(crate) async fn fid(self: &Arc<Self>) -> Result<Fid, Fault> {
        let room = match Arc::clone(&self.room).try_acquire_owned() {
            Ok(room) => room,
            Err(_) => self.room().await?,
        };
        let number = lock(&self.fids).take();
        Ok(Fid { session: Arc::clone(self), number, is_known: AtomicBool::new(false), _room: room })
    }

    /// Waits for a fid to be given back.
    async fn room(&self) -> Result<OwnedSemaphorePermit> {
        tokio::select! {
            room = Arc::clone(&self.room).acquire_owned() => room.map_err(|_| Errno::ENFILE.into()),
            () = self.runtime.sleep_until(self.runtime.monotonic() + self.patience) => {
                let why = format!("{FIDS} files of the server are in use at once, which is the most");
                Err(Errno::ENFILE.because(why))
            }
        }
    }

    /// A request that the dialect has.
    fn frame<C: Call>(&self, call: C) -> Result<Frame> {
        let request = call.into();
        match self.dialect {
            Dialect::Plain | Dialect::Unix if request.is_of_linux() => {
                let name = self.dialect.name();
                Err(Errno::ENOSYS.because(format!("the server speaks {name}, which has no such request")))
            }
            dialect => Ok(Frame::first(request.encode(NO_TAG, dialect))),
        }
    }

    /// Asks one thing, which may be asked again.
    pub(crate) async fn ask<C: Call>(&self, call: C) -> Result<C::Reply, Fault> {
        let frame = self.frame(call)?;
        self.send::<C>(frame).await.map_err(|lost| self.lost(&lost))?.map_err(Fault::Known)
    }

    /// Asks for a change: where it is not known whether it was made, it is not made again.
    pub(crate) async fn change<C: Call>(&self, call: C) -> Result<C::Reply, Fault> {
        let frame = self.frame(call)?;
        match self.send::<C>(frame).await {
            Ok(reply) => reply.map_err(Fault::Known),
            Err(lost) if lost.was_sent() => {
                self.lost(&lost);
                Err(Fault::Known(Errno::EIO.because(format!(
                    "the connection was lost, so whether the server has made this change is not known: {lost}"
                ))))
            }
            Err(lost) => Err(self.lost(&lost)),
        }
    }

    /// Moves `len` bytes of content to here.
    pub(crate) async fn ask_bulk<C: Call>(&self, call: C, len: u32) -> Result<C::Reply, Fault> {
        let frame = Frame::bulk(call.into().encode(NO_TAG, self.dialect), Bytes::new(), len as usize);
        self.send::<C>(frame).await.map_err(|lost| self.lost(&lost))?.map_err(Fault::Known)
    }

    /// Writes `data`; how much of it was written.
    pub(crate) async fn write(&self, fid: u32, offset: u64, data: Bytes) -> Result<usize, Fault> {
        let len = data.len();
        let frame = Frame::bulk(write_head(NO_TAG, fid, offset, len as u32), data, len);
        let reply =
            self.send::<Twrite>(frame).await.map_err(|lost| self.lost(&lost))?.map_err(Fault::Known)?;
        match reply.count as usize {
            count if count == 0 || count > len => Err(Fault::Known(
                Errno::EIO
                    .because(format!("the server was sent {len} bytes, and says to have written {count}")),
            )),
            count => Ok(count),
        }
    }

    /// Sends a request; what the server answers.
    async fn send<C: Call>(&self, frame: Frame) -> Result<Result<C::Reply>, Lost> {
        Ok(understood::<C>(&self.mux.call(frame).await?, self.dialect))
    }

    fn lost(&self, lost: &Lost) -> Fault {
        let errno = match lost {
            Lost::TimedOut { .. } => {
                // Whether the server can be reached at all, the next connection shows.
                self.mux.close("the server does not answer");
                Errno::ETIMEDOUT
            }
            Lost::Lost { .. } => Errno::EIO,
        };
        Fault::Lost(errno.because(lost.to_string()))
    }

    /// The root of the tree called `aname`, for a user. Nothing waits for another request here: who asks for that may have to be asked
    /// first.
    pub(crate) async fn root(self: &Arc<Self>, uid: u32, uname: &str, aname: &[u8]) -> Result<u32, Fault> {
        let key = (uid, aname.to_vec());
        if let Some(&fid) = lock(&self.roots).get(&key) {
            return Ok(fid);
        }
        let text = |bytes: &[u8]| Text::new(bytes.to_vec()).ok_or(Errno::ENAMETOOLONG);
        let (uname, aname) = (text(uname.as_bytes())?, text(aname)?);
        let fid = lock(&self.fids).take();
        let attached = self.ask(Tattach { fid, afid: NO_FID, uname, aname, n_uname: Some(uid) }).await;
        if let Err(fault) = attached {
            lock(&self.fids).used.remove(&fid);
            return Err(fault);
        }
        match lock(&self.roots).entry(key) {
            Entry::Vacant(place) => Ok(*place.insert(fid)),
            Entry::Occupied(other) => {
                self.clunk(fid);
                Ok(*other.get())
            }
        }
    }

    /// Gives a fid back.
    fn clunk(&self, fid: u32) {
        lock(&self.fids).used.remove(&fid);
        self.mux.send(Frame::first(Request::from(Tclunk { fid }).encode(NO_TAG, self.dialect)));
    }

    /// What `names` below a fid lead to, one below the other: its fid, and its attributes, which are asked for at the same time.
    ///
    /// A server may begin with that before it has walked. Then it answers with an error, or with the attributes of what it has come to on its
    /// way, which are not those of the file that the walk has led to: they are asked for again.
    pub(crate) async fn look(
        self: &Arc<Self>,
        from: u32,
        names: &[Text],
    ) -> Result<(Fid, Attrs, Walked), Fault> {
        if !self.is_in_order.load(Ordering::Relaxed) || names.len() > WALK_MAX {
            let (fid, walked) = self.walk_to(from, names).await?;
            let told = self.attrs(fid.number).await?;
            return Ok((fid, told, walked));
        }
        let fid = self.fid().await?;
        let (walked, early) = tokio::join!(self.step(from, &fid, names), self.attrs(fid.number));
        let walked = walked?;
        let told = match early {
            Ok(told) if walked.to.is_none_or(|qid| qid.path == told.qid.path) => told,
            Err(lost @ Fault::Lost(_)) => return Err(lost),
            _ => {
                self.is_in_order.store(false, Ordering::Relaxed);
                self.attrs(fid.number).await?
            }
        };
        Ok((fid, told, walked))
    }

    /// The fid of what `names` below a fid lead to, one below the other, and what that is.
    pub(crate) async fn walk_to(self: &Arc<Self>, from: u32, names: &[Text]) -> Result<(Fid, Walked), Fault> {
        let fid = self.fid().await?;
        let (first, others) = names.split_at(names.len().min(WALK_MAX));
        let mut walked = self.step(from, &fid, first).await?;
        for part in others.chunks(WALK_MAX) {
            let Walked { above, to } = self.step(fid.number, &fid, part).await?;
            walked = Walked { above: above.or(walked.to), to };
        }
        Ok((fid, walked))
    }

    /// One message of a walk.
    pub(crate) async fn step(&self, from: u32, to: &Fid, names: &[Text]) -> Result<Walked, Fault> {
        let list = List::new(names.to_vec()).ok_or(Errno::EINVAL)?;
        to.made(async {
            let walked = self.ask(Twalk { fid: from, newfid: to.number, names: list }).await?;
            match walked.qids.len() {
                count if count == names.len() => {
                    let mut back = walked.qids.iter().rev().copied();
                    let (to, above) = (back.next(), back.next());
                    Ok(Walked { above, to })
                }
                count if count < names.len() => Err(Errno::ENOENT.into()),
                _ => Err(Errno::EIO.because("the server has walked farther than it was asked to").into()),
            }
        })
        .await
    }
}

/// The reply to a request, or the error that the server answers.
fn understood<C: Call>(frame: &Bytes, dialect: Dialect) -> Result<C::Reply> {
    let odd = |why: &dyn std::fmt::Display| {
        Errno::EIO.because(format!("the server's answer makes no sense: {why}"))
    };
    let (_, reply) = Reply::decode(frame, dialect).map_err(|error| odd(&error))?;
    C::reply(reply).map_err(|other| match *other {
        Reply::Rlerror(Rlerror { ecode }) => convert::error(ecode),
        Reply::Rerror(Rerror { ename, errno }) => error_in(&ename, errno),
        other => odd(&format_args!("it is of the kind {}, which answers something else", other.kind())),
    })
}
