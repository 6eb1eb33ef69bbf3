// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies, to clients that may not take them.

use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long the rest of a message, and room for a reply, may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Why a reply was not sent.
#[derive(Debug, thiserror::Error)]
pub enum Unsent {
    /// The connection is broken.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client takes nothing.
    #[error("nothing moved for {} s", PATIENCE.as_secs())]
    Stuck,
}

/// Sends a reply, which is `head` and then `body`. A client that does not take it loses the connection.
///
/// # Errors
/// When it was not sent as a whole: nothing more is sent then.
pub async fn send(to: &mut (impl AsyncWrite + Unpin), head: &[u8], body: &[u8]) -> Result<(), Unsent> {
    let (mut head, mut body, mut sent) = (head, body, Ok(()));
    while sent.is_ok() && !(head.is_empty() && body.is_empty()) {
        sent = match timeout(PATIENCE, some_of(to, head, body)).await {
            Err(_) => Err(Unsent::Stuck),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(count)) => {
                let of_head = count.min(head.len());
                head = &head[of_head..];
                body = &body[count - of_head..];
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
    let count = to.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await?;
    if count == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) }
}
