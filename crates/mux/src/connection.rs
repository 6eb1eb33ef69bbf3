// SPDX-License-Identifier: MIT OR Apache-2.0
//! What moves the bytes of a connection.

use crate::framed::{FrameReader, Framed};
use crate::mux::Mux;
use crate::state::{Shared, Timer, Work};
use crate::{Limits, Protocol};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep_until;

/// How many pieces are written with one call.
const SLICES: usize = 64;

/// A connection at work: a future that is ready when the connection has ended. Dropping it ends the connection.
#[must_use = "nothing is sent or received unless it is run"]
pub struct Connection {
    shared: Arc<Shared>,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Connection {
    pub(crate) fn start<P, R, W>(framed: Framed<P, R, W>, limits: Limits) -> (Mux, Self)
    where
        P: Protocol,
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let Framed { protocol, reader, writer } = framed;
        let shared = Arc::new(Shared::new(Arc::new(protocol), limits));
        let connection = Connection { work: Box::pin(run(Arc::clone(&shared), reader, writer)), shared };
        (Mux(Arc::clone(&connection.shared)), connection)
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.work.as_mut().poll(context)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.close("the task of the connection has ended".into());
    }
}

async fn run<R, W>(shared: Arc<Shared>, reader: FrameReader<R>, mut writer: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let why: Arc<str> = tokio::select! {
        // What has come, and what can be sent, counts before what is late: this process may have been stopped for a while.
        biased;
        why = read(&shared, reader) => why,
        why = write(&shared, &mut writer) => why,
        () = watch(&shared) => "it was closed".into(),
    };
    shared.close(why);
}

/// Receives until the connection ends, and tells why it did.
async fn read<R: AsyncRead + Unpin>(shared: &Shared, mut reader: FrameReader<R>) -> Arc<str> {
    loop {
        match reader.next(&*shared.protocol).await {
            Ok(Some(frame)) => {
                let len = frame.len();
                if let Err(why) = shared.received(frame) {
                    return why.into();
                }
                shared.protocol.taken(len);
            }
            Ok(None) => return "the other side has closed the connection".into(),
            Err(error) => return format!("the connection broke: {error}").into(),
        }
    }
}

/// Sends until the connection ends, and tells why it did.
async fn write<W: AsyncWrite + Unpin>(shared: &Shared, writer: &mut W) -> Arc<str> {
    loop {
        let result = match shared.work() {
            Work::Frames(frames) => write_all(shared, writer, frames).await,
            Work::Nothing => {
                shared.to_send.notified().await;
                continue;
            }
            Work::Finished => match writer.shutdown().await {
                // The other side answers what it was asked, then hangs up.
                Ok(()) => pending().await,
                error => error,
            },
        };
        if let Err(error) = result {
            return format!("the connection broke: {error}").into();
        }
    }
}

async fn write_all<W: AsyncWrite + Unpin>(
    shared: &Shared,
    writer: &mut W,
    mut rest: VecDeque<Bytes>,
) -> io::Result<()> {
    while !rest.is_empty() {
        let slices: Vec<IoSlice<'_>> = rest.iter().take(SLICES).map(|frame| IoSlice::new(frame)).collect();
        let mut count = writer.write_vectored(&slices).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while count > 0 {
            let Some(front) = rest.front_mut() else { break };
            let done = count.min(front.len());
            front.advance(done);
            count -= done;
            if front.is_empty() {
                rest.pop_front();
            }
        }
        shared.wrote();
    }
    writer.flush().await
}

/// Gives up what waits too long, until the connection is closed.
async fn watch(shared: &Shared) {
    while shared.lock().ended.is_none() {
        match shared.give_up() {
            Timer::Idle => shared.to_time.notified().await,
            Timer::At(time) => tokio::select! {
                () = sleep_until(time) => {}
                () = shared.to_time.notified() => {}
            },
        }
    }
}
