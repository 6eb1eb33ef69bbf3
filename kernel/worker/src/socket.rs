// SPDX-License-Identifier: GPL-2.0-only
//! Reading from the socket, also the descriptors that come with bytes.

use libc::c_int;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;

/// The most descriptors that arrive at once; the same as Linux' `SCM_MAX_FD`.
const MOST: usize = 253;

/// Reads once into `buffer`, and adds the descriptors that came with it (unix(7), `SCM_RIGHTS`) to `files`. Gives how many
/// bytes there were: none when the other side has hung up.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(socket: &UnixStream, buffer: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    const DESCRIPTOR: usize = size_of::<c_int>();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Words, for the headers in it are aligned.
    let mut space = [0_u64; (MOST * DESCRIPTOR + 64) / 8];
    // SAFETY: all zeroes is a message without any part.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (space.as_mut_ptr().cast(), size_of_val(&space));
    // SAFETY: the message and everything it points to live during the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the message was filled by the call.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !header.is_null() {
        // SAFETY: the header is one of the message's, which ends where its length says.
        let (part, data) = unsafe { (&*header, libc::CMSG_DATA(header)) };
        // SAFETY: a plain calculation.
        let length = part.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize;
        if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for number in 0..length / DESCRIPTOR {
                // SAFETY: the descriptors are in the message one after the other, and are ours alone.
                files.push(unsafe { File::from_raw_fd(data.cast::<c_int>().add(number).read_unaligned()) });
            }
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(&message, header) };
    }
    Ok(count as usize)
}
