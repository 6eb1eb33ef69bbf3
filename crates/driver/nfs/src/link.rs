// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a server, made again when it is lost, and calls on it.
//!
//! A call that was lost is made again with its number on the next connection: a server that has seen it knows it by that
//! and by the port, which is the same one where it can be chosen.

use crate::convert::{self, Failed};
use crate::inner::Inner;
use crate::options::Options;
use bytes::Bytes;
use outrigger_core::{Errno, Error, Result, Runtime, lock};
use outrigger_mux::{Error as Lost, Frame, Framed, Limits, Mux, Protocol};
use outrigger_proto_nfs3::types::Status;
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus, Accepted, Auth, Body, Denied, Message, Reply};
use outrigger_proto_nfs3::xdr::{Decoder, Procedure, Xdr, record};
use outrigger_toolkit_remote::Outage;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

/// The longest reply, in bytes: nothing larger than a quarter of that is asked for.
const REPLY_MAX: usize = 4 << 20;
/// The first pause before a call that a server wants later (`NFS3ERR_JUKEBOX`), and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// How long to wait for a server that could not be reached (`hard`).
const AWAY: Duration = Duration::from_secs(1);

/// The multiplexer's view of the protocol: its numbers are those of one connection, those of calls (XIDs) are not.
#[derive(Debug, Default)]
struct Records(Mutex<HashMap<u32, u32>>);

impl Protocol for Records {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        record::frame_len(head, REPLY_MAX).map_err(|error| error.to_string())
    }

    fn tag(&self, frame: &[u8]) -> Option<u32> {
        let xid = rpc::xid(frame.get(record::MARK_LEN..)?)?;
        // No request has the number 0.
        Some(lock(&self.0).remove(&xid).unwrap_or(0))
    }

    fn set_tag(&self, head: &mut [u8], tag: u32) {
        if let Some(xid) = head.get(record::MARK_LEN..).and_then(rpc::xid) {
            lock(&self.0).insert(xid, tag);
        }
    }
}

/// The connection to a server.
pub(crate) struct Link {
    pub(crate) host: String,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The port of this side that was used last, where it was chosen.
    own_port: AtomicU16,
    xids: AtomicU32,
    mux: Arc<AsyncMutex<Option<Mux>>>,
    outage: Outage,
    /// What has to be done on a new connection before anything else.
    owner: Weak<Inner>,
}

/// What came of a call, and whether it was made more than once.
pub(crate) type Asked<T> = (Result<T>, bool);

impl Link {
    /// Of a server that a former process has acknowledged writes to, perhaps, if `takes_over`.
    pub(crate) fn new(
        host: String,
        options: Options,
        runtime: Arc<dyn Runtime>,
        takes_over: bool,
        owner: Weak<Inner>,
    ) -> Self {
        let outage = if takes_over { Outage::after_takeover() } else { Outage::new(false) };
        // A server that remembers replies must not take the calls of this process for those of a former one.
        let xids = AtomicU32::new(fastrand::u32(..));
        Link { host, options, runtime, own_port: AtomicU16::new(0), xids, mux: Arc::default(), outage, owner }
    }

    /// Asks one thing. `bytes` of content go or come along.
    ///
    /// # Errors
    /// What the server says, and why there is no answer.
    pub(crate) async fn ask<P, T, F>(self: &Arc<Self>, auth: &Auth, args: &P::Args, bytes: u32) -> Result<T>
    where
        P: Procedure<Results = Result<T, F>>,
        F: Failed,
    {
        self.ask_via::<P, T, F>(None, auth, args, bytes).await.0
    }

    /// The same by the connection `via`, once; otherwise by the one there is, as often as need be.
    pub(crate) async fn ask_via<P, T, F>(
        self: &Arc<Self>,
        via: Option<&Mux>,
        auth: &Auth,
        args: &P::Args,
        bytes: u32,
    ) -> Asked<T>
    where
        P: Procedure<Results = Result<T, F>>,
        F: Failed,
    {
        let (mut xid, mut losses, mut was_sent) = (self.next_xid(), 0, false);
        let (mut pause, limit) = (PAUSES[0], self.runtime.monotonic() + self.options.timeout);
        loop {
            let mux = match via {
                Some(mux) => mux.clone(),
                None => match self.mux().await {
                    Ok(mux) => mux,
                    Err(error) => return (Err(error), was_sent),
                },
            };
            match exchange::<P>(&mux, xid, auth, args, bytes).await {
                Ok(Ok(Ok(done))) => return (Ok(done), was_sent),
                Ok(Ok(Err(failed))) if failed.status() == Status::JUKEBOX && self.may_wait(pause, limit) => {
                    self.sleep(pause).await;
                    pause = (pause * 2).min(PAUSES[1]);
                    // The reply to this number is known.
                    xid = self.next_xid();
                }
                Ok(Ok(Err(failed))) => return (Err(convert::error(failed.status())), was_sent),
                Ok(Err(error)) => return (Err(error), was_sent),
                Err(error) => {
                    losses += 1;
                    was_sent |= error.was_sent();
                    if matches!(error, Lost::TimedOut { .. }) {
                        // Whether the server can be reached at all, the next connection shows.
                        mux.close("the server does not answer");
                    }
                    if via.is_some() || !self.options.hard && losses > self.options.retrans {
                        return (Err(lost(&error)), was_sent);
                    }
                }
            }
        }
    }

    fn may_wait(&self, pause: Duration, limit: Duration) -> bool {
        self.options.hard || self.runtime.monotonic() + pause < limit
    }

    async fn sleep(&self, pause: Duration) {
        self.runtime.sleep_until(self.runtime.monotonic() + pause).await;
    }

    fn next_xid(&self) -> u32 {
        self.xids.fetch_add(1, Ordering::Relaxed)
    }

    /// The connection; made when there is none.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn mux(self: &Arc<Self>) -> Result<Mux> {
        loop {
            match self.present().await {
                Err(error) if self.options.hard && error.errno != Errno::EACCES => self.sleep(AWAY).await,
                present => return present,
            }
        }
    }

    /// The connection; made once.
    async fn present(self: &Arc<Self>) -> Result<Mux> {
        let mut present = Arc::clone(&self.mux).lock_owned().await;
        if let Some(mux) = present.as_ref().filter(|mux| mux.is_open()) {
            return Ok(mux.clone());
        }
        let link = Arc::clone(self);
        let dialing = async move {
            let dialed = link.outage.connect(link.options.timeout, || link.dial()).await;
            *present = dialed.as_ref().ok().cloned();
            dialed
        };
        self.apart(dialing).await
    }

    /// Does something by a task of its own: connections are made where the runtime is, and whoever waits for it.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.runtime.spawn(Box::pin(async move {
            let _ = sender.send(work.await);
        }));
        receiver.await.unwrap_or_else(|_| Err(Errno::ENOTCONN.because("the program is ending")))
    }

    async fn dial(self: &Arc<Self>) -> Result<Mux> {
        let mux = self.start(self.connect(self.nfs_port().await?, &self.own_port).await?);
        match self.owner.upgrade() {
            Some(inner) => inner.recover(&mux).await.map(|()| mux),
            None => Ok(mux),
        }
    }

    fn start(&self, stream: tokio::net::TcpStream) -> Mux {
        let (reader, writer) = stream.into_split();
        let limits = Limits { patience: self.options.timeout, ..Limits::default() };
        let (mux, connection) = Framed::new(Records::default(), reader, writer).start(limits);
        self.runtime.spawn(Box::pin(connection));
        mux
    }

    /// One call to the program at a port, on a connection of its own.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) async fn once<P: Procedure>(
        self: &Arc<Self>,
        port: u16,
        args: &P::Args,
    ) -> Result<P::Results> {
        let mux = self.start(self.connect(port, &AtomicU16::new(0)).await?);
        let own = convert::auth(&own_credentials(), 0);
        let answer = exchange::<P>(&mux, self.next_xid(), &own, args, 0).await;
        mux.close("it has answered");
        answer.unwrap_or_else(|error| Err(lost(&error)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Ok(present) = self.mux.try_lock() {
            present.iter().for_each(Mux::finish);
        }
    }
}

/// Who this process is.
pub(crate) fn own_credentials() -> outrigger_core::Credentials {
    let groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    outrigger_core::Credentials { uid, gid, groups: outrigger_core::Groups::of(&groups) }
}

/// The error for a call whose reply did not come.
fn lost(error: &Lost) -> Error {
    let errno = if matches!(error, Lost::TimedOut { .. }) { Errno::ETIMEDOUT } else { Errno::EIO };
    errno.because(error.to_string())
}

/// Makes one call on one connection.
async fn exchange<P: Procedure>(
    mux: &Mux,
    xid: u32,
    auth: &Auth,
    args: &P::Args,
    bytes: u32,
) -> Result<Result<P::Results>, Lost> {
    let (head, body) = rpc::call::<P>(xid, auth, args).finish().into_head_and_body();
    let frame = match bytes {
        0 => Frame { body, ..Frame::first(head) },
        bytes => Frame::bulk(head, body, bytes as usize),
    };
    mux.call(frame).await.map(results::<P>)
}

/// What a reply says.
fn results<P: Procedure>(frame: Bytes) -> Result<P::Results> {
    let odd =
        |why: &dyn fmt::Display| Errno::EIO.because(format!("the server's answer makes no sense: {why}"));
    let mut input = Decoder::new(record::contents(frame).ok_or_else(|| odd(&"it is no record"))?);
    match Message::decode(&mut input).map_err(|error| odd(&error))?.body {
        Body::Reply(Reply::Accepted(Accepted { status: AcceptStatus::Success, .. })) => {
            P::Results::decode(&mut input).map_err(|error| odd(&error))
        }
        Body::Reply(Reply::Denied(Denied::AuthError(status))) => Err(Errno::EACCES.because(format!(
            "the server does not accept the caller ({status}): many want a port below 1024, which only root can have"
        ))),
        Body::Reply(refused) => Err(Errno::EPROTO.because(format!("the server refuses the call: {refused}"))),
        Body::Call(_) => Err(odd(&"it is a call")),
    }
}
