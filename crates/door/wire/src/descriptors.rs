// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of pipes and sockets as streams.

use rustix::fs::{FileType, fstat};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// Something to read from.
///
/// # Errors
/// When it is neither a pipe nor a socket.
pub(crate) fn reader(stream: OwnedFd) -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    Ok(match is_socket(&stream)? {
        true => Box::new(connected(stream)?),
        false => Box::new(pipe::Receiver::from_owned_fd(stream)?),
    })
}

/// Something to write to.
///
/// # Errors
/// When it is neither a pipe nor a socket.
pub(crate) fn writer(stream: OwnedFd) -> io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
    Ok(match is_socket(&stream)? {
        true => Box::new(connected(stream)?),
        false => Box::new(pipe::Sender::from_owned_fd(stream)?),
    })
}

fn is_socket(stream: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(stream)?.st_mode) == FileType::Socket)
}

fn connected(stream: OwnedFd) -> io::Result<UnixStream> {
    let stream = Socket::from(stream);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
