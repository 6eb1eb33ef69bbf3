// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls on `/dev/fuse`.
use bytes::{Bytes, BytesMut};
use outrigger_proto_fuse::device::{BackingMap, IOC_BACKING_CLOSE, IOC_BACKING_OPEN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

/// A connection to the kernel's FUSE.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

/// What came of waiting for a request.
pub(crate) enum Received {
    /// A message.
    Message,
    /// The file system was unmounted.
    Unmounted,
    /// The connection was cut.
    Aborted,
    /// The device failed.
    Failed(io::Error),
}

impl Device {
    /// Opens `/dev/fuse`: a connection that a mount can be made of.
    ///
    /// # Errors
    /// What open(2) says; `ENOENT` or `ENODEV` when the kernel has no FUSE.
    pub fn open() -> io::Result<Self> {
        let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Takes a descriptor that is or will be connected to a mount by somebody else.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Takes over a descriptor that this process was started with, named by its number: `/dev/fd/N`, `--fuse-fd N`.
    ///
    /// # Errors
    /// `EBADF` when there is no such descriptor.
    pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
        if number < 0 {
            return Err(Errno::BADF.into());
        }
        // SAFETY: the borrow lasts for one fcntl, which says EBADF when nothing is open under the number.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 0)?)
    }

    /// Another descriptor of the same connection, to be kept while a worker dies.
    ///
    /// # Errors
    /// What fcntl(2) says.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Whether the connection is there.
    pub(crate) fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err()
            || !fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Waits for a request and reads it into `buffer`.
    pub(crate) fn receive(&self, buffer: &mut ReadBuffer) -> Received {
        loop {
            match buffer.read(self.fd.as_fd()) {
                Ok(0) | Err(Errno::NODEV) => return Received::Unmounted,
                Ok(_) => return Received::Message,
                Err(Errno::CONNABORTED | Errno::NOTCONN) => return Received::Aborted,
                // ENOENT: the program was killed between the wake-up and the copy.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => {
                    // A descriptor from elsewhere may be non-blocking; a failed wait shows at the next read.
                    let _ = poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None);
                }
                Err(errno) => return Received::Failed(errno.into()),
            }
        }
    }

    /// Writes one whole reply or notification.
    ///
    /// # Errors
    /// `ENOENT` when the kernel does not wait for this reply any more, `ENODEV` after the end of the mount, `EINVAL` for a
    /// malformed message.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            let written = match parts {
                [one] => rustix::io::write(&self.fd, one),
                _ => rustix::io::writev(&self.fd, parts),
            };
            match written {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Only a socket says so: the kernel's memory is in pieces that are too small just now.
                Err(Errno::NOBUFS) => thread::sleep(Duration::from_millis(1)),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Registers a file for passthrough and gives its id.
    pub(crate) fn backing_open(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0 }.encode();
        // SAFETY: the argument points to the 16 bytes the call reads, which outlive it.
        let id = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_BACKING_OPEN.into(), map.as_ptr()) };
        if id > 0 { Ok(id) } else { Err(io::Error::last_os_error()) }
    }

    /// Forgets the id of a file registered for passthrough.
    pub(crate) fn backing_close(&self, id: i32) -> io::Result<()> {
        let id = id.to_ne_bytes();
        // SAFETY: the argument points to the 4 bytes the call reads, which outlive it.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_BACKING_CLOSE.into(), id.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where a reader receives requests, used again and again.
///
/// Large write data leaves as [`Bytes`] of this very memory. If it is not kept until the next request, the memory is
/// taken back; else the buffer gets new memory and the old lives as long as it is wanted. Locked memory is dearer than a copy:
/// once somebody has kept any, copies leave.
pub(crate) struct ReadBuffer {
    bytes: BytesMut,
    capacity: usize,
    lock: bool,
    /// Whether data leaves as copies.
    copies: bool,
    /// The address of the memory in use.
    start: usize,
}

/// The kernel puts header and arguments of a write before up to `max_write` bytes of data.
const HEADROOM: usize = 4096;

impl ReadBuffer {
    /// For requests with up to `max_write` bytes of data.
    pub(crate) fn new(max_write: u32, lock: bool) -> Self {
        let capacity = max_write as usize + HEADROOM;
        let mut buffer = Self { bytes: BytesMut::new(), capacity, lock, copies: false, start: 0 };
        buffer.renew();
        buffer
    }

    /// Makes the whole capacity available again. Whether that took new memory, which has to be locked.
    fn renew(&mut self) -> bool {
        self.bytes.clear();
        if self.bytes.capacity() < self.capacity {
            self.bytes.reserve(self.capacity);
        }
        // What is kept by others is still there when the new memory is taken, so they cannot have one address.
        let is_new = self.bytes.as_ptr().addr() != self.start;
        if is_new {
            self.copies = self.lock && self.start != 0;
            self.start = self.bytes.as_ptr().addr();
            if self.lock {
                self.lock_memory();
            }
        }
        is_new
    }

    /// Faults all pages in and keeps them, so that the kernel can copy a request without stopping in between.
    fn lock_memory(&mut self) {
        let spare = self.bytes.spare_capacity_mut();
        // Touching works without the right to lock; locking makes it last.
        spare.fill(std::mem::MaybeUninit::new(0));
        // SAFETY: the range is memory we own; locking does not change its content.
        if unsafe { libc::mlock(spare.as_ptr().cast(), spare.len()) } != 0 {
            tracing::warn!(error = %io::Error::last_os_error(), "request buffer is not locked into memory");
        }
    }

    fn read(&mut self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.renew();
        let (read, _) = rustix::io::read(fd, &mut self.bytes.spare_capacity_mut()[..self.capacity])?;
        let len = read.len();
        // SAFETY: the first `len` bytes of the spare capacity were just written.
        unsafe { self.bytes.set_len(len) };
        Ok(len)
    }

    /// The request read last.
    pub(crate) fn message(&self) -> &[u8] {
        &self.bytes
    }

    /// The request read last, as shared memory.
    pub(crate) fn share(&mut self) -> Bytes {
        if self.copies { Bytes::copy_from_slice(&self.bytes) } else { self.bytes.split().freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn inherited_descriptors_are_checked() {
        assert!(Device::inherited(0).is_ok());
        for number in [-1, i32::MAX] {
            assert_eq!(Device::inherited(number).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }

    #[test]
    fn memory_is_locked_once_and_not_for_each_large_write() {
        let (mut kernel, server) = UnixStream::pair().unwrap();
        let mut buffer = ReadBuffer::new(8192, true);
        let mut write = |buffer: &mut ReadBuffer| {
            kernel.write_all(&[1; 100]).unwrap();
            buffer.read(server.as_fd()).unwrap();
            buffer.share()
        };
        for _ in 0..3 {
            drop(write(&mut buffer));
            assert!(!buffer.renew(), "it is locked already");
        }
        let _kept = write(&mut buffer);
        assert!(buffer.renew(), "new memory has to be locked");
        let _kept = [write(&mut buffer), write(&mut buffer)];
        assert!(!buffer.renew(), "but only once");
    }

    #[test]
    fn memory_comes_back_unless_somebody_keeps_it() {
        let (mut kernel, server) = UnixStream::pair().unwrap();
        let mut buffer = ReadBuffer::new(8192, false);
        kernel.write_all(&[1; 100]).unwrap();
        buffer.read(server.as_fd()).unwrap();
        let first = buffer.share();
        let address = first.as_ptr();
        drop(first);
        kernel.write_all(&[2; 100]).unwrap();
        buffer.read(server.as_fd()).unwrap();
        let kept = buffer.share();
        assert_eq!(kept.as_ptr(), address, "dropped data gives the memory back");
        kernel.write_all(&[3; 100]).unwrap();
        buffer.read(server.as_fd()).unwrap();
        assert_ne!(buffer.message().as_ptr(), address, "kept data keeps its memory");
        assert_eq!((&kept[..], buffer.message()), (&[2; 100][..], &[3; 100][..]));
    }
}
