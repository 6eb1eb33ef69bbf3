// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remote procedure calls (RFC 5531) to the programs of a server over TCP: many at once on one connection, which is made again when it
//! is lost.
//!
//! A call that was lost is made again with its number (XID) on the next connection: a server that has seen it knows it by that
//! and by the port, which is the same one where it can be chosen.

use crate::reconnect::Outage;
use crate::reserved::{connect_reserved, groups_of};
use crate::transport::connect_tcp;
use bytes::Bytes;
use outrigger_core::{BoxFuture, Credentials, Errno, Error, Groups, Result, Runtime, lock};
use outrigger_mux::{Error as Lost, Frame, Framed, Limits, Mux, Protocol};
use outrigger_proto_xdr::portmap::{self, Mapping};
use outrigger_proto_xdr::rpc::{
    self, AcceptStatus, Accepted, Auth, AuthSys, Body, Denied, GROUPS_MAX, Message, Reply,
};
use outrigger_proto_xdr::{Array, Decoder, Procedure, Text, Xdr, record};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

/// The longest reply, in bytes: nothing larger than a quarter of that is asked for.
const REPLY_MAX: usize = 4 << 20;
/// The first pause before a call that a server wants later, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// How long to wait for a server that could not be reached (`hard`).
const AWAY: Duration = Duration::from_secs(1);

/// The multiplexer's view of the protocol: its numbers are those of one connection, those of calls (XIDs) are not.
#[derive(Debug, Default)]
struct Records(Mutex<HashMap<u32, u32>>);

impl Protocol for Records {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        record::frame_len(head, REPLY_MAX).map_err(|error| match greeting(head) {
            Some(text) => {
                format!("this is no server of remote procedure calls, such as NFS: it says '{text}'")
            }
            None => error.to_string(),
        })
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

/// What servers of other protocols begin with: a line of text. No record that is accepted does, as its length would be 512 MiB.
fn greeting(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| b"\r\n".contains(byte)).next()?;
    let is_text = line.len() >= record::MARK_LEN && line.iter().all(|byte| (b' '..=b'~').contains(byte));
    str::from_utf8(line).ok().filter(|_| is_text)
}

/// How patient an [`RpcClient`] is, and how it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcPolicy {
    /// How long the server may say nothing to a call, and how long one that was there may be gone.
    pub timeout: Duration,
    /// How often a call is made again.
    pub retrans: u32,
    /// Whether it is made again for ever.
    pub hard: bool,
    /// Whether a port below 1024 is used where that is permitted: many servers serve no other.
    pub reserved: bool,
}

/// A program of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcProgram {
    /// Its number.
    pub number: u32,
    /// Its version.
    pub version: u32,
    /// Its port, where that is known.
    pub port: Option<u16>,
    /// Its usual port, for a server without a portmapper.
    pub usual_port: u16,
}

/// Does what has to be done on each new connection before anything else is asked.
pub trait OnConnect: Send + Sync {
    /// Does it.
    ///
    /// # Errors
    /// That the connection is lost.
    fn on_connect<'a>(&'a self, mux: &'a Mux) -> BoxFuture<'a, Result<()>>;
}

/// Calls to a program of a server.
pub struct RpcClient {
    host: String,
    program: RpcProgram,
    policy: RpcPolicy,
    runtime: Arc<dyn Runtime>,
    /// The port of this side that was used last, where it was chosen.
    own_port: AtomicU16,
    xids: AtomicU32,
    mux: Arc<AsyncMutex<Option<Mux>>>,
    outage: Outage,
    owner: Weak<dyn OnConnect>,
}

/// What came of a call, and whether it was made more than once.
pub type Called<T> = (Result<T>, bool);

impl RpcClient {
    /// For a server that a former process has acknowledged writes to, perhaps, if `takes_over`.
    pub fn new(
        host: String,
        program: RpcProgram,
        policy: RpcPolicy,
        runtime: Arc<dyn Runtime>,
        takes_over: bool,
        owner: Weak<dyn OnConnect>,
    ) -> Self {
        let outage = if takes_over { Outage::after_takeover() } else { Outage::new(false) };
        // A server that remembers replies must not take the calls of this process for those of a former one.
        let xids = AtomicU32::new(fastrand::u32(..));
        let (own_port, mux) = (AtomicU16::new(0), Arc::default());
        RpcClient { host, program, policy, runtime, own_port, xids, mux, outage, owner }
    }

    /// The server.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether a call of which `losses` connections were lost is given up.
    pub fn gives_up(&self, losses: u32) -> bool {
        !self.policy.hard && losses > self.policy.retrans
    }

    /// Makes a call: by the connection `via` once, otherwise by the one there is, as often as need be. `bytes` of content go or come
    /// along. Where `is_later` says that the server wants it later, it is made anew as long as that may take.
    pub async fn call<P: Procedure>(
        self: &Arc<Self>,
        via: Option<&Mux>,
        auth: &Auth,
        args: &P::Args,
        bytes: u32,
        is_later: impl Fn(&P::Results) -> bool,
    ) -> Called<P::Results> {
        let (mut xid, mut losses, mut was_sent) = (self.next_xid(), 0, false);
        let (mut pause, limit) = (PAUSES[0], self.runtime.monotonic() + self.policy.timeout);
        loop {
            let mux = match via {
                Some(mux) => mux.clone(),
                None => match self.mux().await {
                    Ok(mux) => mux,
                    Err(error) => return (Err(error), was_sent),
                },
            };
            match exchange::<P>(&mux, xid, auth, args, bytes).await {
                Ok(Ok(results)) if is_later(&results) && self.may_wait(pause, limit) => {
                    self.sleep(pause).await;
                    pause = (pause * 2).min(PAUSES[1]);
                    // The reply to this number is known.
                    xid = self.next_xid();
                }
                Ok(results) => return (results, was_sent),
                Err(error) => {
                    losses += 1;
                    was_sent |= error.was_sent();
                    if matches!(error, Lost::TimedOut { .. }) {
                        // Whether the server can be reached at all, the next connection shows.
                        mux.close("the server does not answer");
                    }
                    if via.is_some() || self.gives_up(losses) {
                        return (Err(lost(&error)), was_sent);
                    }
                }
            }
        }
    }

    fn may_wait(&self, pause: Duration, limit: Duration) -> bool {
        self.policy.hard || self.runtime.monotonic() + pause < limit
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
    pub async fn mux(self: &Arc<Self>) -> Result<Mux> {
        loop {
            match self.present().await {
                Err(error) if self.policy.hard && error.errno != Errno::EACCES => self.sleep(AWAY).await,
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
        let client = Arc::clone(self);
        let dialing = async move {
            let dialed = client.outage.connect(client.policy.timeout, || client.dial()).await;
            *present = dialed.as_ref().ok().cloned();
            dialed
        };
        self.apart(dialing).await
    }

    /// Does something by a task of its own: connections are made where the runtime is, and whoever waits for it.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn apart<T: Send + 'static>(
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
        let RpcProgram { number, version, port, usual_port } = self.program;
        let port = match port {
            Some(port) => port,
            None => self.registered(number, version).await?.unwrap_or(usual_port),
        };
        let mux = self.start(self.connect(port, &self.own_port).await?);
        match self.owner.upgrade() {
            Some(owner) => owner.on_connect(&mux).await.map(|()| mux),
            None => Ok(mux),
        }
    }

    async fn connect(&self, port: u16, last: &AtomicU16) -> Result<TcpStream> {
        match self.policy.reserved {
            true => connect_reserved(&self.host, port, self.policy.timeout, last).await,
            false => connect_tcp(&self.host, port, self.policy.timeout).await,
        }
    }

    fn start(&self, stream: TcpStream) -> Mux {
        let (reader, writer) = stream.into_split();
        let limits = Limits { patience: self.policy.timeout, ..Limits::default() };
        let (mux, connection) = Framed::new(Records::default(), reader, writer).start(limits);
        self.runtime.spawn(Box::pin(connection));
        mux
    }

    /// One call to the program at a port, on a connection of its own.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn once<P: Procedure>(self: &Arc<Self>, port: u16, args: &P::Args) -> Result<P::Results> {
        let mux = self.start(self.connect(port, &AtomicU16::new(0)).await?);
        let own = auth_sys(&own_credentials(), 0);
        let answer = exchange::<P>(&mux, self.next_xid(), &own, args, 0).await;
        mux.close("it has answered");
        answer.unwrap_or_else(|error| {
            let Error { errno, reason } = lost(&error);
            Err(errno.because(format!("{}, port {port}: {}", self.host, reason.unwrap_or_default())))
        })
    }

    /// The port of a program as the portmapper says; `None` where there is no portmapper.
    ///
    /// # Errors
    /// Why it does not say.
    pub async fn registered(self: &Arc<Self>, program: u32, version: u32) -> Result<Option<u16>> {
        let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
        match self.once::<portmap::procedure::GetPort>(portmap::PORT, &mapping).await {
            Ok(0) => Err(Errno::EPROTO.because(format!(
                "the portmapper of {} has no program {program} version {version} over TCP; port=N and mountport=N name ports",
                self.host
            ))),
            Ok(port) => Ok(u16::try_from(port).ok()),
            Err(error) if error.errno == Errno::ECONNREFUSED => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for RpcClient {
    fn drop(&mut self) {
        if let Ok(present) = self.mux.try_lock() {
            present.iter().for_each(Mux::finish);
        }
    }
}

/// Who this process is.
pub fn own_credentials() -> Credentials {
    let groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Credentials { uid, gid, groups: Groups::of(&groups) }
}

/// Credentials as a server gets them (`AUTH_SYS`), of the process `pid` of this machine. Of more than 16 supplementary groups the first
/// are told.
pub fn auth_sys(cred: &Credentials, pid: u32) -> Auth {
    let groups = match cred.groups.known() {
        Some(groups) => groups.to_vec(),
        None => groups_of(cred.uid, pid).unwrap_or_default(),
    };
    let others = groups.into_iter().filter(|&group| group != cred.gid).take(GROUPS_MAX).collect();
    let machine = rustix::system::uname().nodename().to_bytes().to_vec();
    Auth::from(&AuthSys {
        stamp: 0,
        machine: Text::new(machine).unwrap_or_default(),
        uid: cred.uid,
        gid: cred.gid,
        gids: Array::new(others).unwrap_or_default(),
    })
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
        Body::Reply(Reply::Accepted(Accepted { status: AcceptStatus::ProcedureUnavailable, .. })) => {
            Err(Errno::EOPNOTSUPP.because("the server does not have the procedure"))
        }
        Body::Reply(Reply::Denied(Denied::AuthError(status))) => Err(Errno::EACCES.because(format!(
            "the server does not accept the caller ({status}): many want a port below 1024, which only root can have"
        ))),
        Body::Reply(refused) => Err(Errno::EPROTO.because(format!("the server refuses the call: {refused}"))),
        Body::Call(_) => Err(odd(&"it is a call")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_another_protocol_is_told_by_what_it_says() {
        let said = |head: &[u8]| Records::default().frame_len(head).unwrap_err();
        for greeting in ["SSH-2.0-OpenSSH_9.2", "220 Welcome"] {
            let told = said(format!("{greeting}\r\nmore").as_bytes());
            assert!(told.ends_with(&format!("it says '{greeting}'")), "{told}");
        }
        assert!(said(&[0xff, 0xff, 0xff, 0xff]).contains("a record of"));
    }

    #[test]
    fn callers_are_told_with_their_groups() {
        let sys = |cred: &Credentials, pid| auth_sys(cred, pid).sys().unwrap();
        let many: Vec<u32> = (100..200).collect();
        let known = Credentials { groups: Groups::of(&many), ..Credentials::new(7, 100) };
        assert_eq!(sys(&known, 0).gids.to_vec(), (101..117).collect::<Vec<_>>());
    }
}
