// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections by TLS, on which both sides show a certificate.
//!
//! A client has ended its handshake when the server begins to look at its certificate (TLS 1.3). So why the server does not want it comes
//! when the first message is waited for, and is kept for who asks why the connection has ended.

use crate::options::Options;
use crate::place::Connected;
use outrigger_core::wire::peer::ALPN;
use outrigger_core::{BoxFuture, Errno, Error, Result};
use outrigger_toolkit_remote::{Carrier, Stream, Tls, connect_tcp, keep_alive};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf, ReadHalf};

/// Why TLS has ended a connection.
type Why = Arc<OnceLock<Error>>;

/// Connects to the server at a port of a host, with the certificates as their files have them now.
///
/// # Errors
/// Why there is no connection: `EACCES` where one side does not know the other.
pub(crate) async fn connect(host: &str, port: u16, options: &Options) -> Result<Connected> {
    let limit = options.connect_timeout;
    let (name, wanted) = (host.to_owned(), options.clone());
    let tls = tokio::task::spawn_blocking(move || tls(&name, &wanted)).await;
    let tls = tls.unwrap_or_else(|_| Err(Errno::ENOTCONN.because("the program is ending")))?;
    let stream = connect_tcp(host, port, limit).await?;
    keep_alive(&stream).map_err(io::Error::from)?;
    let (reader, writer) = tokio::io::split(tls.wrap(Box::new(stream), limit).await?);
    let why = Why::default();
    let reader = Reader { half: reader, tls, why: Arc::clone(&why) };
    Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), carrier: Box::new(Ended(why)) })
}

fn tls(host: &str, options: &Options) -> Result<Tls> {
    let own = options.cert.as_deref().map(|cert| (cert, options.key.as_deref().unwrap_or(cert)));
    Tls::new(host, options.ca.as_deref())?.showing(own, ALPN)
}

/// What the server says.
struct Reader {
    half: ReadHalf<Box<dyn Stream>>,
    tls: Tls,
    why: Why,
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.half).poll_read(context, into);
        match read {
            // A message ends where it says, so nothing is taken for whole that is not.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => {
                let why = self.tls.why_lost(&error);
                if why.errno == Errno::EACCES {
                    // The first one says why.
                    let _ = self.why.set(why);
                }
                Poll::Ready(Err(error))
            }
            read => read,
        }
    }
}

/// A connection that has ended.
struct Ended(Why);

impl Carrier for Ended {
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(async move { self.0.get().cloned().unwrap_or(otherwise) })
    }

    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        self.last_words(otherwise)
    }
}
