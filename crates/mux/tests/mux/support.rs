// SPDX-License-Identifier: MIT OR Apache-2.0
//! A protocol of length, number and content, and its other side.

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_mux::{Connection, Frame, Framed, Limits, Mux, Protocol};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};

/// The longest frame.
pub const FRAME_MAX: usize = 1 << 20;

/// Four bytes of length (of all), four of number, then the content.
pub struct Toy;

impl Protocol for Toy {
    fn frame_len(&self, head: &[u8]) -> Result<Option<usize>, String> {
        let Some((len, _)) = head.split_first_chunk() else { return Ok(None) };
        let len = u32::from_be_bytes(*len) as usize;
        if (4..=FRAME_MAX).contains(&len) { Ok(Some(len)) } else { Err(format!("a frame of {len} bytes")) }
    }
    fn tag(&self, frame: &[u8]) -> Option<u32> {
        frame.get(4..8).map(|tag| u32::from_be_bytes(tag.try_into().expect("four bytes")))
    }
    fn set_tag(&self, head: &mut [u8], tag: u32) {
        head[4..8].copy_from_slice(&tag.to_be_bytes());
    }
}

/// A whole frame.
pub fn frame(tag: u32, content: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u32(8 + content.len() as u32);
    out.put_u32(tag);
    out.put_slice(content);
    out
}

/// A small request.
pub fn ask(content: &str) -> Frame {
    Frame::first(frame(0, content.as_bytes()))
}

/// A request that moves `bytes` bytes.
pub fn move_bytes(content: &str, bytes: usize) -> Frame {
    Frame::bulk(frame(0, content.as_bytes()), Bytes::new(), bytes)
}

/// The content of a reply.
pub fn text(reply: Result<Bytes, outrigger_mux::Error>) -> String {
    String::from_utf8(reply.expect("a reply")[8..].to_vec()).expect("text")
}

/// The other side of a connection.
pub struct Peer {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
}

impl Peer {
    /// The next request, if there is one: its number and content.
    pub async fn next(&mut self) -> io::Result<(u32, String)> {
        let len = self.reader.read_u32().await? as usize;
        let tag = self.reader.read_u32().await?;
        let mut content = vec![0; len - 8];
        self.reader.read_exact(&mut content).await?;
        Ok((tag, String::from_utf8(content).expect("text")))
    }

    /// The next request, which has to come.
    pub async fn asked(&mut self) -> (u32, String) {
        self.next().await.expect("a request")
    }

    /// Answers a request.
    pub async fn answer(&mut self, tag: u32, content: &str) {
        self.send(&frame(tag, content.as_bytes())).await;
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.expect("the other side is there");
    }

    /// Hangs up, after what was sent; what comes is still read.
    pub async fn hang_up(&mut self) {
        self.writer.shutdown().await.expect("the other side is there");
    }

    /// Reader and writer apart.
    pub fn parts(self) -> (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>) {
        (self.reader, self.writer)
    }
}

/// A connection over a pipe that holds `capacity` bytes, and its other side.
pub fn unserved(limits: Limits, capacity: usize) -> (Mux, Connection, Peer) {
    let (ours, theirs) = duplex(capacity);
    let ((reader, writer), (their_reader, their_writer)) = (split(ours), split(theirs));
    let (mux, connection) = Framed::new(Toy, reader, writer).start(limits);
    (mux, connection, Peer { reader: their_reader, writer: their_writer })
}

/// The same, served.
pub fn connected(limits: Limits) -> (Mux, Peer) {
    let (mux, connection, peer) = unserved(limits, 1 << 16);
    tokio::spawn(connection);
    (mux, peer)
}
