// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that go with a message over a UNIX socket (unix(7), `SCM_RIGHTS`).

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends bytes, which are not none, and descriptors with the first of them. Gives how many bytes were sent.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_with(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(files).size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes, and at most two descriptors that come with them. Gives how many bytes there are: none at the end.
///
/// # Errors
/// Those of recvmsg(2) but `EINTR`.
pub fn receive_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::io::retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags))?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received.bytes, descriptors.flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_arrive_with_the_bytes_they_were_sent_with() {
        let (one, other) = UnixStream::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        assert_eq!(send_with(&one, b"ab", &[reader.as_fd(), writer.as_fd()]).unwrap(), 2);
        drop((reader, writer));
        let mut bytes = [0; 8];
        let (length, mut files) = receive_with(&other, &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!((&bytes[..length], files.len()), (&b"ab"[..], 2));
        let (writer, reader) = (files.pop().unwrap(), files.pop().unwrap());
        assert_eq!(rustix::io::write(writer, b"x").unwrap(), 1);
        assert_eq!(rustix::io::read(reader, &mut bytes[..]).unwrap(), 1);
        assert_eq!(send_with(&one, b"c", &[]).unwrap(), 1);
        assert_eq!(receive_with(&other, &mut bytes, RecvFlags::empty()).unwrap().1.len(), 0);
        drop(one);
        assert_eq!(receive_with(&other, &mut bytes, RecvFlags::empty()).unwrap().0, 0);
    }
}
