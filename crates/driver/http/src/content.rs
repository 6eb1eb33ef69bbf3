// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is sent with a request.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use outrigger_core::{Errno, Error};
use outrigger_toolkit_remote::Staged;
use reqwest::RequestBuilder;
use reqwest::header::CONTENT_LENGTH;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// How much of a file is read at once, in bytes.
const PIECE: usize = 1 << 17;

/// What is sent with a request. One that is made again sends the same.
#[derive(Clone)]
pub(crate) enum Content {
    /// Nothing.
    None,
    /// An XML document.
    Xml(&'static str),
    /// A whole file.
    File(Arc<Staged>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Content::None => "None",
            Content::Xml(text) => text,
            Content::File(_) => "File",
        })
    }
}

impl Content {
    /// The request with it, and how much of it was taken to be sent, in bytes.
    pub(crate) fn put_into(&self, request: RequestBuilder) -> (RequestBuilder, Arc<AtomicU64>) {
        let sent = Arc::default();
        let request = match self {
            Content::None => request,
            Content::Xml(text) => {
                request.header("content-type", "application/xml; charset=utf-8").body(*text)
            }
            Content::File(staged) => {
                let file = Sending {
                    staged: Arc::clone(staged),
                    size: staged.state().size,
                    sent: Arc::clone(&sent),
                };
                // Without content, the library would not say that there is none.
                let request = if file.size == 0 { request.header(CONTENT_LENGTH, "0") } else { request };
                request.body(reqwest::Body::wrap(file))
            }
        };
        (request, sent)
    }
}

/// A staged file on its way.
struct Sending {
    staged: Arc<Staged>,
    size: u64,
    sent: Arc<AtomicU64>,
}

impl Sending {
    fn rest(&self) -> u64 {
        self.size - self.sent.load(Ordering::Relaxed)
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let rest = self.rest();
        if rest == 0 {
            return Poll::Ready(None);
        }
        let len = usize::try_from(rest).map_or(PIECE, |rest| rest.min(PIECE));
        let piece = match self.staged.read(self.size - rest, len) {
            Ok(piece) if piece.is_empty() => Err(Errno::EIO.because("the spool file became shorter")),
            piece => piece,
        };
        let len = piece.as_ref().map_or(0, Bytes::len);
        self.sent.fetch_add(len as u64, Ordering::Relaxed);
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest())
    }
}
