// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: records in, calls side by side, replies as they are ready.

use crate::answer::Dispatch;
use bytes::{Buf, Bytes};
use outrigger_proto_nfs3::xdr::Encoded;
use outrigger_proto_nfs3::xdr::record::Records;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The longest call: content of a write and what is around it.
pub(crate) const RECORD_MAX: usize = crate::IO_MAX as usize + (8 << 10);
/// Calls of one connection that are worked on at once; others wait at the client.
const CALLS: usize = 128;
/// How long the rest of a record, and room for a reply, may take.
const PATIENCE: Duration = Duration::from_secs(60);

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
}

/// Serves a connection to its end.
pub(crate) async fn serve(dispatch: Arc<Dispatch>, stream: TcpStream, peer: SocketAddr, session: u64) {
    // Replies are whole when they are written.
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    let connection = Connection {
        dispatch,
        peer,
        session,
        calls: Arc::new(Semaphore::new(CALLS)),
        to: Arc::new(Mutex::new(to)),
    };
    match connection.run(from).await {
        Ok(()) => tracing::debug!(%peer, "the client has closed the connection"),
        Err(error) => tracing::info!(%peer, %error, "the connection ends"),
    }
}

struct Connection {
    dispatch: Arc<Dispatch>,
    peer: SocketAddr,
    session: u64,
    calls: Arc<Semaphore>,
    to: Arc<Mutex<OwnedWriteHalf>>,
}

impl Connection {
    async fn run(&self, mut from: OwnedReadHalf) -> Result<(), Broken> {
        let mut records = Records::new(RECORD_MAX);
        loop {
            while let Some(message) = records.next()? {
                let call = Arc::clone(&self.calls).acquire_owned().await.map_err(io::Error::other)?;
                self.begin(message, call).await?;
            }
            records.release();
            let whole = records.is_between();
            let read = from.read_buf(records.space());
            let count = match whole {
                true => read.await?,
                false => timeout(PATIENCE, read).await.map_err(|_| Broken::Stuck)??,
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

    /// Works on a call until it has to wait for something; a task of its own goes on with it from there.
    async fn begin(&self, message: Bytes, call: OwnedSemaphorePermit) -> Result<(), Broken> {
        let dispatch = Arc::clone(&self.dispatch);
        let (peer, session) = (self.peer, self.session);
        let mut answer = Box::pin(async move { dispatch.answer(message, peer, session).await });
        let at_once = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        match at_once {
            Poll::Ready(reply) => {
                let reply = reply.ok_or(Broken::NoCall)?;
                send(&self.to, reply).await
            }
            Poll::Pending => {
                let to = Arc::clone(&self.to);
                tokio::spawn(async move {
                    let Some(reply) = answer.await else { return };
                    if let Err(error) = send(&to, reply).await {
                        tracing::debug!(%peer, %error, "a reply was not delivered");
                    }
                    drop(call);
                });
                Ok(())
            }
        }
    }
}

/// Sends a reply. A client that does not take it loses the connection.
async fn send(to: &Mutex<OwnedWriteHalf>, reply: Encoded) -> Result<(), Broken> {
    let mut to = to.lock().await;
    let (mut head, mut body) = reply.into_head_and_body();
    let mut sent = Ok(());
    while sent.is_ok() && (head.has_remaining() || body.has_remaining()) {
        sent = match timeout(PATIENCE, some_of(&mut *to, &head, &body)).await {
            Err(_) => Err(Broken::Stuck),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(count)) => {
                let of_head = count.min(head.len());
                head.advance(of_head);
                body.advance(count - of_head);
                Ok(())
            }
        };
    }
    if sent.is_err() {
        // Half a reply may have been sent: nothing that follows would be understood.
        let _ = to.shutdown().await;
    }
    sent
}

/// Writes what goes into the socket at once.
async fn some_of(to: &mut (impl AsyncWrite + Unpin), head: &[u8], body: &[u8]) -> io::Result<usize> {
    let pieces = [io::IoSlice::new(head), io::IoSlice::new(body)];
    let count = to.write_vectored(&pieces).await?;
    if count == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) }
}
