// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a request to its reply.

use crate::convert;
use crate::export::DOOR;
use crate::fids::{Coming, Fids, Grip, State};
use crate::plain::linked;
use crate::server::{Client, Shared};
use outrigger_core::{Cancel, Credentials, Cx, Errno, Error, Result};
use outrigger_proto_ninep::{
    Dialect, Rclunk, Reply, Request as Message, Rfsync, Rlerror, Rlopen, Rremove, Tclunk, Tremove,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::Semaphore;

/// Open files of one connection.
const OPENS: usize = 1 << 14;
/// Fids of one connection that stand for values of extended attributes, of 64 KiB at most.
const VALUES: usize = 256;

/// What a client and this server have agreed on, and what the client has since.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    /// Another one for each session.
    pub(crate) number: u64,
    pub(crate) dialect: Dialect,
    /// The largest message, in bytes.
    pub(crate) msize: u32,
    pub(crate) fids: Fids,
    pub(crate) opens: Arc<Semaphore>,
    pub(crate) values: Arc<Semaphore>,
}

impl Session {
    pub(crate) fn new(shared: &Arc<Shared>, client: &Client, dialect: Dialect, msize: u32) -> Arc<Self> {
        let [opens, values] = [OPENS, VALUES].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Session {
            fids: Fids::new(&shared.fids),
            shared: Arc::clone(shared),
            client: client.clone(),
            number: shared.sessions.fetch_add(1, Relaxed),
            dialect,
            msize,
            opens,
            values,
        })
    }

    /// Gives back all that the client has not.
    pub(crate) async fn end(self: &Arc<Self>) {
        let asking = Asking { session: Arc::clone(self), cancel: Cancel::default() };
        for grip in self.fids.drain() {
            // No reply is sent for it.
            if let Ok(State::File(file)) = grip.ready().await.take()
                && let Some(open) = file.open
                && let Err(error) = open.close(&asking.cx(&file.at.who.cred)).await
            {
                tracing::warn!(%error, "what a client has written is lost");
            }
        }
    }

    /// A request of the dialect, with hold of the fids that it names. Called for one request after the other, in their order.
    pub(crate) fn begin(self: &Arc<Self>, request: Message) -> Job {
        let (mut one, mut two, mut new) = (Coming::default(), Coming::default(), Coming::default());
        let mut new_fid = None;
        let fids = &self.fids;
        match &request {
            Message::Tversion(_) | Message::Tauth(_) | Message::Tflush(_) => {}
            _ if !is_of(self.dialect, &request) => {}
            Message::Tattach(call) => new_fid = Some(call.fid),
            Message::Twalk(call) if call.fid == call.newfid => one = fids.change(call.fid),
            Message::Twalk(call) => (one, new_fid) = (fids.share(call.fid), Some(call.newfid)),
            Message::Txattrwalk(call) => (one, new_fid) = (fids.share(call.fid), Some(call.newfid)),
            Message::Tlopen(call) => one = fids.change(call.fid),
            Message::Tlcreate(call) => one = fids.change(call.fid),
            Message::Topen(call) => one = fids.change(call.fid),
            Message::Tcreate(call) => {
                one = fids.change(call.fid);
                let other = linked(call).filter(|&other| other != call.fid);
                two = other.map_or_else(Coming::default, |other| fids.share(other));
            }
            Message::Txattrcreate(call) => one = fids.change(call.fid),
            Message::Twstat(call) => one = fids.change(call.fid),
            Message::Tclunk(call) => one = fids.end(call.fid),
            Message::Tremove(call) => one = fids.end(call.fid),
            Message::Trename(call) if call.fid == call.dfid => {}
            Message::Trename(call) => (one, two) = (fids.change(call.fid), fids.share(call.dfid)),
            Message::Tlink(call) => (one, two) = (fids.share(call.dfid), fids.share(call.fid)),
            Message::Trenameat(call) => (one, two) = (fids.share(call.old_dfid), fids.share(call.new_dfid)),
            Message::Tstatfs(call) => one = fids.share(call.fid),
            Message::Tsymlink(call) => one = fids.share(call.dfid),
            Message::Tmknod(call) => one = fids.share(call.dfid),
            Message::Treadlink(call) => one = fids.share(call.fid),
            Message::Tgetattr(call) => one = fids.share(call.fid),
            Message::Tsetattr(call) => one = fids.share(call.fid),
            Message::Treaddir(call) => one = fids.share(call.fid),
            Message::Tfsync(call) => one = fids.share(call.fid),
            Message::Tlock(call) => one = fids.share(call.fid),
            Message::Tgetlock(call) => one = fids.share(call.fid),
            Message::Tmkdir(call) => one = fids.share(call.dfid),
            Message::Tunlinkat(call) => one = fids.share(call.dfid),
            Message::Tread(call) => one = fids.share(call.fid),
            Message::Twrite(call) => one = fids.share(call.fid),
            Message::Tstat(call) => one = fids.share(call.fid),
        }
        if let Some(fid) = new_fid {
            new = fids.begin(fid);
        }
        Job { session: Arc::clone(self), request, one, two, new, new_fid }
    }
}

/// Whether the dialect has this request.
fn is_of(dialect: Dialect, request: &Message) -> bool {
    /// The first kind that all dialects have: those before are of 9P2000.L.
    const COMMON: u8 = 100;
    let is_plain =
        matches!(request, Message::Topen(_) | Message::Tcreate(_) | Message::Tstat(_) | Message::Twstat(_));
    if dialect == Dialect::Linux { !is_plain } else { request.kind() >= COMMON }
}

/// A request with hold of its fids.
pub(crate) struct Job {
    session: Arc<Session>,
    request: Message,
    one: Coming,
    two: Coming,
    new: Coming,
    new_fid: Option<u32>,
}

/// What a request is worked on with.
pub(crate) struct Asking {
    pub(crate) session: Arc<Session>,
    pub(crate) cancel: Cancel,
}

impl Asking {
    /// For a request to the tree on behalf of this user.
    pub(crate) fn cx(&self, cred: &Credentials) -> Cx {
        let id = self.session.shared.requests.fetch_add(1, Relaxed);
        let mut cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(id, cred.clone(), DOOR) };
        cx.cancel = self.cancel.clone();
        cx.origin.peer = Some(Arc::clone(&self.session.client.peer));
        cx
    }

    async fn clunk(&self, mut grip: Grip) -> Result<()> {
        match grip.take()? {
            State::Gone => Err(Errno::EBADF.into()),
            State::Value { .. } => Ok(()),
            State::Setting(setting) => self.set_xattr(setting).await,
            State::File(file) => {
                let Some(open) = file.open else { return Ok(()) };
                let is_removed = open.is_removed_at_end;
                let closed = open.close(&self.cx(&file.at.who.cred)).await;
                if is_removed {
                    self.remove(&file.at).await?;
                }
                closed
            }
        }
    }

    /// Removes the file of a fid, which is given back whatever comes of it.
    async fn tremove(&self, mut grip: Grip) -> Result<()> {
        let State::File(file) = grip.take()? else { return Err(Errno::EBADF.into()) };
        let removed = self.remove(&file.at).await;
        let closed = match file.open {
            Some(open) => open.close(&self.cx(&file.at.who.cred)).await,
            None => Ok(()),
        };
        removed.and(closed)
    }
}

impl Job {
    /// Carries the request out.
    pub(crate) async fn answer(self, cancel: Cancel) -> Reply {
        let Job { session, request, one, two, new, new_fid } = self;
        let dialect = session.dialect;
        let asking = Asking { session: Arc::clone(&session), cancel };
        let (mut one, two, mut new) = (one.ready().await, two.ready().await, new.ready().await);
        let kind = request.kind();
        let answered = match request {
            Message::Tclunk(Tclunk { .. }) => asking.clunk(one).await.map(|()| Rclunk {}.into()),
            Message::Tremove(Tremove { .. }) => asking.tremove(one).await.map(|()| Rremove {}.into()),
            request => {
                let answered = asking.answer(request, (&mut one, &two), &mut new).await;
                if let Some(fid) = new_fid
                    && new.state_mut().is_ok_and(|state| matches!(state, State::Gone))
                {
                    session.fids.abandon(fid, new);
                }
                answered
            }
        };
        answered.unwrap_or_else(|error| {
            tracing::debug!(kind, %error, "a request was refused");
            convert::refused(&error, dialect)
        })
    }
}

impl Asking {
    async fn answer(&self, request: Message, grips: (&mut Grip, &Grip), new: &mut Grip) -> Result<Reply> {
        if !is_of(self.session.dialect, &request) {
            return Err(Errno::EOPNOTSUPP.because("a request of another dialect"));
        }
        let (one, two) = grips;
        match request {
            // As diod answers, whose tools take any other number for a failure.
            Message::Tauth(_) if self.session.dialect == Dialect::Linux => Ok(Rlerror { ecode: 0 }.into()),
            Message::Tauth(_) => Err(Errno::EOPNOTSUPP.because("authentication not required")),
            Message::Tattach(call) => self.attach(call, new).await,
            Message::Twalk(call) => self.walk(&call, one, new).await,
            Message::Txattrwalk(call) => self.xattrwalk(&call, one.file()?, new).await.map(Reply::from),
            Message::Txattrcreate(call) => self.xattrcreate(&call, one).map(Reply::from),
            Message::Tread(call) => self.read(&call, one).await.map(Reply::from),
            Message::Twrite(call) => self.write(call, one).await.map(Reply::from),
            Message::Trename(call) => self.rename(&call, one.file_mut()?, two.file()?).await.map(Reply::from),
            Message::Tlink(call) => self.link(&call, one.file()?, two.file()?).await.map(Reply::from),
            Message::Trenameat(call) => self.renameat(&call, one.file()?, two.file()?).await.map(Reply::from),
            Message::Tlopen(call) => {
                let file = one.file_mut()?;
                self.open(file, call.flags).await?;
                let (attr, iounit) = (self.attr(file).await, self.iounit(&file.at));
                let qid = attr.map(|attr| convert::qid(&attr)).inspect_err(|_| file.open = None)?;
                Ok(Rlopen { qid, iounit }.into())
            }
            Message::Tlcreate(call) => self.lcreate(&call, one.file_mut()?).await.map(Reply::from),
            Message::Topen(call) => self.topen(&call, one.file_mut()?).await.map(Reply::from),
            Message::Tcreate(call) => self.tcreate(&call, one.file_mut()?, two).await.map(Reply::from),
            Message::Twstat(call) => self.wstat(&call, one.file_mut()?).await.map(Reply::from),
            request => self.about_one(request, one).await,
        }
    }

    /// What is about one fid that stays as it is.
    async fn about_one(&self, request: Message, grip: &Grip) -> Result<Reply> {
        let file = grip.file()?;
        Ok(match request {
            Message::Tstatfs(_) => self.statfs(file).await?.into(),
            Message::Tsymlink(call) => self.symlink(&call, file).await?.into(),
            Message::Tmknod(call) => self.mknod(&call, file).await?.into(),
            Message::Treadlink(_) => self.readlink(file).await?.into(),
            Message::Tgetattr(call) => self.getattr(&call, file).await?.into(),
            Message::Tsetattr(call) => self.setattr(&call, file).await?.into(),
            Message::Treaddir(call) => self.readdir(&call, file).await?.into(),
            Message::Tfsync(call) => {
                self.fsync(file, call.data_only != 0).await?;
                Rfsync {}.into()
            }
            Message::Tlock(call) => self.lock(&call, file).await?.into(),
            Message::Tgetlock(call) => self.getlock(&call, file).await?.into(),
            Message::Tmkdir(call) => self.mkdir(&call, file).await?.into(),
            Message::Tunlinkat(call) => self.unlinkat(&call, file).await?.into(),
            Message::Tstat(_) => self.stat(file).await?.into(),
            other => return Err(odd(&other)),
        })
    }
}

fn odd(request: &Message) -> Error {
    Errno::EOPNOTSUPP.because(format!("a request of the kind {}", request.kind()))
}
