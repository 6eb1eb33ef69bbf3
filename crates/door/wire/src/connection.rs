// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: frames in, requests side by side, replies as they are ready.

use crate::hub::Member;
use crate::known::Known;
use crate::leases::{Visit, about, emptied, told};
use crate::outgoing::{Hold, Holds, Outgoing, PATIENCE};
use crate::server::Shared;
use bytes::{Bytes, BytesMut};
use outrigger_core::handed_out::Asked;
use outrigger_core::wire::peer::{self, Lease, Offered, Said, Wanted};
use outrigger_core::wire::{Body, FRAME_MAX, Frame, Malformed};
use outrigger_core::{
    Cancel, Class, Credentials, Cx, Errno, Error, Node, Notice, OpSet, Origin, Peer, Reply, Request, Result,
    lock,
};
use outrigger_toolkit_serve::Share;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, Semaphore};
use tokio::task::block_in_place;
use tokio::time::timeout;

/// Requests of one connection that are worked on at once; others wait at the client.
const REQUESTS: usize = 256;
/// How long a client may take to begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// The longest message of the beginning.
const FIRST_MAX: usize = 64 << 10;
/// The most bytes of a listing or of content that one reply has.
const LIST_MAX: u32 = 768 << 10;
const DATA_MAX: u32 = 1 << 20;

/// Why a connection ends before its client ends it.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Refused(#[from] Error),
    #[error("a message of {0} bytes")]
    Length(usize),
    #[error("a message that only a server sends, or a number that is in use")]
    Unexpected,
    #[error("nothing moved for {} s", PATIENCE.as_secs())]
    Stuck,
    #[error("it did not begin within {} s", BEGINNING.as_secs())]
    Silent,
    #[error("it does not speak Outrigger's protocol: it ends before it has said which version it speaks")]
    Unsaid,
}

impl Broken {
    /// Whether the other side is no client of ours, or one that is damaged; others leave, or get stuck.
    fn is_nonsense(&self) -> bool {
        !matches!(self, Broken::Io(_) | Broken::Stuck)
    }
}

/// A connection.
struct Connection {
    shared: Arc<Shared>,
    member: Arc<Member>,
    peer: Arc<Peer>,
    ops: OpSet,
    running: Mutex<HashMap<u64, Cancel>>,
    requests: Arc<Semaphore>,
    share: Share,
    /// Notified when nothing can be sent any more.
    broken: Arc<Notify>,
}

/// Serves a connection to its end.
///
/// # Errors
/// `EPROTO` where the other side has said what no client says.
pub(crate) async fn serve<R, W>(shared: Arc<Shared>, reader: R, writer: W, address: String) -> Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let session = shared.sessions.fetch_add(1, Ordering::Relaxed);
    let (known, out) = (Known::default(), Outgoing::default());
    let member = Arc::new(Member { session, known, out });
    let (broken, member_out) = (Arc::<Notify>::default(), Arc::clone(&member));
    let breaks = Arc::clone(&broken);
    let writing = tokio::spawn(async move {
        if let Err(error) = member_out.out.write(writer).await {
            tracing::debug!(%error, "a client takes no messages");
        }
        // Frames that wait to be sent hold memory, and will not be sent.
        member_out.out.give_up();
        breaks.notify_one();
    });
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let begun = timeout(BEGINNING, begin(&shared, &member, &mut reader)).await;
    let outcome = match begun.unwrap_or(Err(Broken::Silent)) {
        Ok(ops) => {
            shared.hub.join(Arc::clone(&member));
            let peer = Arc::new(Peer { address: address.clone(), session });
            let connection = Arc::new(Connection {
                shared: Arc::clone(&shared),
                member: Arc::clone(&member),
                peer,
                ops,
                running: Mutex::default(),
                requests: Arc::new(Semaphore::new(REQUESTS)),
                share: Share::of(&shared.budget),
                broken,
            });
            let outcome = connection.run(reader).await;
            connection.end().await;
            outcome
        }
        Err(error) => Err(error),
    };
    match &outcome {
        Ok(()) => tracing::debug!(%address, "the client has closed the connection"),
        Err(error) => tracing::info!(%address, %error, "the connection ends"),
    }
    member.out.end();
    // It ends when what is in line was taken, or nothing is taken for long.
    let _ = writing.await;
    match outcome {
        Err(error) if error.is_nonsense() => Err(Errno::EPROTO.because(match error {
            Broken::Refused(error) => error.why().to_string(),
            error => error.to_string(),
        })),
        _ => Ok(()),
    }
}

/// Agrees with the client on what can be said; the operations that it may ask for.
async fn begin(
    shared: &Shared,
    member: &Member,
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<OpSet, Broken> {
    member.out.send(peer::greeting().to_vec(), Holds::new());
    let mut theirs = [0; 6];
    match reader.read_exact(&mut theirs).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Broken::Unsaid),
        read => read?,
    };
    peer::check_greeting(&theirs)?;
    let first = frame(reader, FIRST_MAX).await?;
    let first = first.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let wanted: Wanted = peer::unframed(first)?;
    let ops = peer::spoken(shared.ops, &wanted.operations);
    let agreed = peer::check_spoken(ops, (&shared.release, &wanted.release));
    let refusal = agreed.clone().err();
    let offered = Offered { refusal, ..Offered::new(&shared.release, &shared.abilities, shared.ops) };
    member.out.send(peer::framed(&offered)?, Holds::new());
    agreed?;
    Ok(ops)
}

/// The next frame, without its length; `None` at the end.
async fn frame(reader: &mut (impl AsyncRead + Unpin), max: usize) -> Result<Option<Bytes>, Broken> {
    let mut length = [0; 4];
    if reader.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    let rest = async {
        reader.read_exact(&mut length[1..]).await?;
        let length = u32::from_le_bytes(length) as usize;
        if length > max {
            return Err(Broken::Length(length));
        }
        let mut frame = BytesMut::with_capacity(length);
        while frame.len() < length {
            let missing = length - frame.len();
            if (&mut *reader).take(missing as u64).read_buf(&mut frame).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(frame.freeze())
    };
    timeout(PATIENCE, rest).await.unwrap_or(Err(Broken::Stuck)).map(Some)
}

impl Connection {
    async fn run(self: &Arc<Self>, mut reader: impl AsyncRead + Unpin) -> Result<(), Broken> {
        let mut closing = self.shared.closing.subscribe();
        loop {
            let frame = tokio::select! {
                frame = frame(&mut reader, FRAME_MAX) => frame?,
                _ = closing.wait_for(|&closing| closing) => return Ok(()),
                () = self.broken.notified() => return Err(Broken::Stuck),
            };
            let Some(frame) = frame else { return Ok(()) };
            let length = frame.len();
            let Frame { id, body } = Frame::decode(frame)?;
            match body {
                Body::Request { cred, within, request } => {
                    let holds = self.room(length, &request).await;
                    let cancel = self.begins(id)?;
                    let cx = self.context(cred, within, cancel);
                    self.start(id, cx, request, holds);
                }
                Body::Cancel => self.cancel(id),
                Body::Control(said) => {
                    let reply = match Said::of(said)? {
                        Said::Cancel(number) => {
                            self.cancel(number);
                            Reply::Done(())
                        }
                        Said::Lease(lease) => self.lease(lease).into(),
                    };
                    let reply = Frame { id, body: Body::Reply(reply) }.encode()?;
                    self.member.out.send(reply, self.room_of(0).await);
                }
                Body::Reply(_) | Body::Notice(_) => return Err(Broken::Unexpected),
            }
        }
    }

    /// Waits until there is room for a request and its reply.
    async fn room(&self, length: usize, request: &Request) -> Holds {
        let reply = match request {
            Request::Read(op) => op.len.min(DATA_MAX),
            Request::ReadDir(op) => op.size.min(LIST_MAX),
            Request::ReadDirPlus(op) => op.size.min(LIST_MAX),
            _ => 0,
        };
        self.room_of(length + reply as usize).await
    }

    async fn room_of(&self, bytes: usize) -> Holds {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&self.requests).acquire_owned().await else { return Holds::new() };
        vec![Hold((place, self.share.claim(bytes).await))]
    }

    /// A token for the request with this number.
    fn begins(&self, id: u64) -> Result<Cancel, Broken> {
        let cancel = Cancel::default();
        if id != Frame::UNANSWERED && lock(&self.running).insert(id, cancel.clone()).is_some() {
            return Err(Broken::Unexpected);
        }
        Ok(cancel)
    }

    fn cancel(&self, id: u64) {
        let cancel = lock(&self.running).get(&id).cloned();
        cancel.iter().for_each(Cancel::raise);
    }

    /// Grants a lease, or takes one back.
    fn lease(&self, Lease { dir, wanted }: Lease) -> Result<()> {
        let (shared, session) = (&self.shared, self.member.session);
        if !wanted {
            shared.leases.give_back(session, dir);
            return Ok(());
        }
        if !shared.abilities.leases {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if !self.member.known.has(dir) {
            return Err(Errno::ESTALE.because("this connection was not given that node"));
        }
        shared.leases.grant(session, dir)?;
        // From now on they ask.
        shared.hub.tell(Some(session), &Notice::InvalidateNode { node: dir, offset: -1, len: 0 });
        Ok(())
    }

    /// The directories of which a request asks or changes something.
    async fn about(&self, cx: &Cx, request: &Request) -> Vec<Node> {
        let mut nodes = about(request);
        if self.shared.leases.are_others(self.member.session) {
            for name in emptied(request) {
                let asked = Asked::of(&name.clone().into());
                let found = self.shared.service.call(&cx.aside(), name.into()).await;
                nodes.extend(told(&found));
                asked.give_back(&*self.shared.service, cx, &found).await;
            }
        }
        nodes
    }

    /// Begins to work on something about these nodes, when nobody else has a lease of them.
    async fn visit(&self, nodes: Vec<Node>) -> Visit<'_> {
        let (shared, session) = (&self.shared, self.member.session);
        let recall = |holder, dir| shared.hub.recall(holder, dir);
        shared.leases.visit(&*shared.runtime, session, nodes, recall).await
    }

    fn context(&self, cred: Credentials, within: Option<u32>, cancel: Cancel) -> Cx {
        let shared = &self.shared;
        let id = shared.requests.fetch_add(1, Ordering::Relaxed);
        let cred = shared.one_user.clone().unwrap_or(cred);
        let deadline = within.map(|millis| shared.runtime.monotonic() + Duration::from_millis(millis.into()));
        let origin = Origin { door: "wire", pid: 0, peer: Some(Arc::clone(&self.peer)) };
        Cx { slot: Cx::NO_SLOT, origin, deadline, cancel, ..Cx::new(id, cred, "wire") }
    }

    /// Has a task answer a request. What it holds is given back when the reply has been sent.
    fn start(self: &Arc<Self>, id: u64, cx: Cx, mut request: Request, holds: Holds) {
        let connection = Arc::clone(self);
        let turn = self.member.known.turn(&mut request);
        tokio::spawn(async move {
            if let Some(turn) = &turn {
                turn.is_first().await;
            }
            let reply = connection.answer(id, &cx, request).await;
            drop(turn);
            // The client may use the number again once it has the reply.
            lock(&connection.running).remove(&id);
            if id != Frame::UNANSWERED {
                connection.member.out.send(reply, holds);
            }
        });
    }

    /// The reply as a frame.
    async fn answer(&self, id: u64, cx: &Cx, request: Request) -> Vec<u8> {
        let asked = Asked::of(&request);
        let mut request = Some(request);
        let reply = unharmed(async { self.reply(cx, request.take()).await }).await;
        let hands_out = !asked.returns(&reply).is_empty();
        let kept = hands_out.then(|| reply.clone());
        match (Frame { id, body: Body::Reply(reply) }).encode() {
            Ok(frame) => frame,
            Err(error) => {
                let returned = kept.map(|reply| asked.returns(&reply)).unwrap_or_default();
                for mut request in returned {
                    if self.member.known.admit(&mut request).is_ok() {
                        self.shared.service.call(&cx.aside(), request).await;
                    }
                }
                (Frame { id, body: Body::Reply(Reply::Error(error)) }).encode().unwrap_or_default()
            }
        }
    }

    async fn reply(&self, cx: &Cx, request: Option<Request>) -> Reply {
        let Some(mut request) = request.filter(|request| self.ops.has(request.op())) else {
            return Reply::Error(Errno::ENOSYS.into());
        };
        bound(&mut request);
        if let Err(error) = self.member.known.admit(&mut request) {
            return Reply::Error(error);
        }
        let (shared, session) = (&self.shared, self.member.session);
        let _visit = self.visit(self.about(cx, &request).await).await;
        let running = match &shared.watch {
            Some(watch) => Some(watch.begins(&shared.service, cx, &request).await),
            None => None,
        };
        let mut reply = shared.service.call(cx, request.clone()).await;
        let leased = shared.leases.of_others(session, told(&reply));
        if !leased.is_empty() && request.class() == Class::Query {
            // What it tells of directories is older than what their holders have answered.
            Asked::of(&request).give_back(&*shared.service, cx, &reply).await;
            let _visit = self.visit(leased).await;
            reply = shared.service.call(cx, request.clone()).await;
        }
        if let Some(running) = running {
            running.ended(&reply);
        }
        // Before the reply: who hears of the change from its maker finds it announced.
        shared.hub.changed(session, &request, &reply);
        if let Err(why) = self.member.known.note(&request, &reply) {
            let returns = Asked::of(&request).returns(&reply);
            for request in returns {
                shared.service.call(&cx.aside(), request).await;
            }
            return Reply::Error(why);
        }
        reply
    }

    /// What has begun is finished, and everything that was given out comes back.
    async fn end(&self) {
        self.shared.leases.end(self.member.session);
        lock(&self.running).values().for_each(Cancel::raise);
        let _ = self.requests.acquire_many(REQUESTS as u32).await;
        self.shared.hub.leave(self.member.session);
        let cred = self.shared.one_user.clone().unwrap_or(Credentials::ROOT);
        let cx = self.context(cred, None, Cancel::default());
        for request in self.member.known.end() {
            let op = request.op();
            if let Reply::Error(error) = self.shared.service.call(&cx.aside(), request).await {
                tracing::warn!(%error, op = op.name(), "what a client had open when its connection ended was not given back");
            }
        }
    }
}

/// What one reply has at most.
fn bound(request: &mut Request) {
    match request {
        Request::Read(op) => op.len = op.len.min(DATA_MAX),
        Request::ReadDir(op) => op.size = op.size.min(LIST_MAX),
        Request::ReadDirPlus(op) => op.size = op.size.min(LIST_MAX),
        _ => {}
    }
}

/// The reply that `work` gives, and `EIO` when it panics: other requests go on. A tree may hold the thread for a while, so another one
/// takes over what else that has to do.
async fn unharmed(work: impl Future<Output = Reply>) -> Reply {
    let mut work = pin!(work);
    let may_block = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    poll_fn(move |context| {
        let poll = AssertUnwindSafe(|| match may_block {
            true => block_in_place(|| work.as_mut().poll(context)),
            false => work.as_mut().poll(context),
        });
        catch_unwind(poll).unwrap_or_else(|_| {
            tracing::error!("working on a request panicked");
            Poll::Ready(Reply::Error(Errno::EIO.because("the server failed at this request")))
        })
    })
    .await
}
