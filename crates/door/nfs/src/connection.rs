// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: records in, calls side by side, replies as they are ready.
//!
//! Each call is a task of its own: a tree may take its time at once, as a file of the host does whose disk is slow, and what is
//! read from the connection meanwhile goes on ([`outrigger_toolkit_serve::Caught`]).

use crate::answer::Dispatch;
use bytes::Bytes;
use outrigger_proto_nfs3::xdr::record::Records;
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus};
use outrigger_toolkit_serve::{Caught, Claim, PATIENCE, Share, Unsent, send};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The longest call: content of a write and what is around it.
pub(crate) const RECORD_MAX: usize = crate::IO_MAX as usize + (8 << 10);
/// Calls of one connection that are worked on at once; others wait at the client.
const CALLS: usize = 128;
/// How long a connection is kept on which nothing is asked: a client that comes back connects again.
const IDLE: Duration = Duration::from_secs(3600);

/// The longest call of a client at a port that any user can use, and how long its connection is kept without one.
const STRANGERS_MAX: usize = 4 << 10;
const STRANGERS_IDLE: Duration = Duration::from_secs(10);

/// Why a connection ends before its client ends it.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Record(#[from] outrigger_proto_nfs3::xdr::record::RecordTooLong),
    #[error("a message is no call")]
    NoCall,
    #[error("nothing moved for {} s", PATIENCE.as_secs())]
    Stuck,
    #[error("a reply could not be delivered")]
    Undelivered,
    #[error(transparent)]
    Unsent(#[from] Unsent),
}

/// Serves a connection to its end.
pub(crate) async fn serve(dispatch: Arc<Dispatch>, stream: TcpStream, peer: SocketAddr, session: u64) {
    let is_trusted = dispatch.trusts(peer);
    // Replies are whole when they are written.
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    let share = Share::of(&dispatch.budget);
    let connection = Connection {
        dispatch,
        peer,
        share,
        session,
        calls: Arc::new(Semaphore::new(CALLS)),
        to: Arc::new(Mutex::new(to)),
        broken: Arc::default(),
        is_trusted,
    };
    let ended = connection.run(from).await;
    // What has begun is answered, as far as the client takes it.
    let _ = connection.calls.acquire_many(CALLS as u32).await;
    match ended {
        Ok(()) => tracing::debug!(%peer, "the client has closed the connection"),
        Err(error) => tracing::info!(%peer, %error, "the connection ends"),
    }
}

struct Connection {
    dispatch: Arc<Dispatch>,
    peer: SocketAddr,
    session: u64,
    calls: Arc<Semaphore>,
    share: Share,
    to: Arc<Mutex<OwnedWriteHalf>>,
    /// Notified when a reply could not be sent.
    broken: Arc<Notify>,
    is_trusted: bool,
}

impl Connection {
    async fn run(&self, mut from: OwnedReadHalf) -> Result<(), Broken> {
        // Those who are not trusted can ask what is exported, and that is short.
        let (max, idle) = if self.is_trusted { (RECORD_MAX, IDLE) } else { (STRANGERS_MAX, STRANGERS_IDLE) };
        let mut records = Records::new(max);
        let mut closing = self.dispatch.closing.subscribe();
        // Of a long call that has begun to come.
        let mut coming: Option<Claim> = None;
        loop {
            while let Some(message) = records.next()? {
                if !rpc::is_call(&message) {
                    return Err(Broken::NoCall);
                }
                let memory = match coming.take() {
                    Some(claim) => claim,
                    None => self.share.claim(crate::answer::memory_of(&message)).await,
                };
                let call = Arc::clone(&self.calls).acquire_owned().await.map_err(io::Error::other)?;
                self.begin(message, (call, memory));
            }
            records.release();
            if coming.is_none() && records.expected() > 0 {
                coming = Some(self.share.claim(records.expected()).await);
            }
            let whole = records.is_between();
            let patience = if whole { idle } else { PATIENCE.min(idle) };
            let read = tokio::select! {
                read = timeout(patience, from.read_buf(records.space())) => read,
                _ = closing.wait_for(|&closing| closing) => return Ok(()),
                () = self.broken.notified() => return Err(Broken::Undelivered),
            };
            let count = match read {
                Ok(count) => count?,
                Err(_) if whole => return Ok(()),
                Err(_) => return Err(Broken::Stuck),
            };
            if count == 0 {
                return if whole {
                    Ok(())
                } else {
                    Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
                };
            }
        }
    }

    /// Has a task answer a call. What it `holds` is given back when the reply has been sent.
    fn begin(&self, message: Bytes, holds: (OwnedSemaphorePermit, Claim)) {
        let (dispatch, inside) = (Arc::clone(&self.dispatch), Arc::clone(&self.dispatch.inside));
        let (peer, session) = (self.peer, self.session);
        let xid = rpc::xid(&message).unwrap_or_default();
        let answer = async move { dispatch.answer(message, peer, session).await };
        let failure = move || Some(rpc::reply(xid, rpc::accepted(AcceptStatus::SystemError)).finish());
        let answer = Caught::new(answer, inside, failure);
        let (to, broken) = (Arc::clone(&self.to), Arc::clone(&self.broken));
        tokio::spawn(async move {
            let sent = match answer.await {
                Some(reply) => {
                    let (head, body) = reply.into_head_and_body();
                    send(&mut *to.lock().await, &head, &body).await.map_err(Broken::from)
                }
                None => Err(Broken::NoCall),
            };
            if let Err(error) = sent {
                tracing::debug!(%peer, %error, "a reply was not delivered");
                broken.notify_one();
            }
            drop(holds);
        });
    }
}
