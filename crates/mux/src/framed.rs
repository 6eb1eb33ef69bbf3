// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream of bytes as a stream of frames.

use crate::connection::Connection;
use crate::mux::Mux;
use crate::{Limits, Protocol};
use bytes::{Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How much is read at once, in bytes.
const READ: usize = 64 << 10;
/// Frames shorter than this are copied out of the buffer, so that one of them does not keep all of it in memory.
const COPIED: usize = READ / 4;

/// A connection on which frames are sent and received one by one, before requests have numbers.
pub struct Framed<P, R, W> {
    pub(crate) protocol: P,
    pub(crate) reader: FrameReader<R>,
    pub(crate) writer: W,
}

/// Cuts what is read into frames.
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
}

impl<P, R, W> Framed<P, R, W>
where
    P: Protocol,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    /// Frames of `protocol` on the two directions of a connection.
    pub fn new(protocol: P, reader: R, writer: W) -> Self {
        Framed { protocol, reader: FrameReader { stream: reader, buffer: BytesMut::new() }, writer }
    }

    /// Sends one frame as it is.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.writer.write_all(frame).await?;
        self.writer.flush().await
    }

    /// The next frame; `None` when the other side has ended the connection.
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` for what is no frame, `UnexpectedEof` for a part of one.
    pub async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        let frame = self.reader.next(&self.protocol).await?;
        frame.iter().for_each(|frame| self.protocol.taken(frame.len()));
        Ok(frame)
    }

    /// From now on requests have numbers. Somebody must run the connection.
    pub fn start(self, limits: Limits) -> (Mux, Connection) {
        Connection::start(self, limits)
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) async fn next(&mut self, protocol: &(impl Protocol + ?Sized)) -> io::Result<Option<Bytes>> {
        loop {
            let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
            let len = protocol.frame_len(&self.buffer).map_err(invalid)?;
            if let Some(len) = len.filter(|&len| len <= self.buffer.len()) {
                return Ok(Some(self.take(len)));
            }
            let missing = len.map_or(0, |len| len - self.buffer.len());
            self.buffer.reserve(missing.max(READ / 2));
            if self.stream.read_buf(&mut self.buffer).await? > 0 {
                continue;
            }
            return match self.buffer.is_empty() {
                true => Ok(None),
                false => {
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends in the middle of a message"))
                }
            };
        }
    }

    fn take(&mut self, len: usize) -> Bytes {
        let frame = self.buffer.split_to(len);
        if len < COPIED { Bytes::copy_from_slice(&frame) } else { frame.freeze() }
    }
}
