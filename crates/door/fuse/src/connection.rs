// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection to the kernel before it is served.
use crate::device::{Device, ReadBuffer, Received};
use crate::mount::{MountError, Mounted, mount};
use crate::negotiate::{Negotiated, agree};
use crate::options::Options;
use outrigger_core::Abilities;
use outrigger_proto_fuse::{InHeader, InitFlags, InitIn, Notification, OutHeader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Largest write through a proxy, in bytes. The kernel copies a packet into memory that is contiguous but for a few pages,
/// and has few larger pieces.
const PROXIED_WRITE: u32 = 128 << 10;
/// What is around the data of the largest packet, in bytes: the kernel's own room in the buffer (`unix_dgram_sendmsg`),
/// headers and arguments.
const PROXIED_ROOM: usize = 32 + 4096;
const PAGE: u32 = 4096;

/// Where requests come from and replies go: `/dev/fuse`, or a proxy that speaks for it.
///
/// Any descriptor becomes one with [`From`].
pub struct Connection {
    pub(crate) device: Device,
    pub(crate) mounted: Option<Mounted>,
    /// INIT, if it was read already.
    pub(crate) first: Option<ReadBuffer>,
    pub(crate) proxied: bool,
}

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self { device: Device::from_fd(fd), mounted: None, first: None, proxied: false }
    }
}

impl Connection {
    /// Makes a mount for a service with these abilities.
    ///
    /// # Errors
    /// [`MountError`] when there is no mount afterwards.
    pub fn mount(mountpoint: &Path, abilities: &Abilities, options: &Options) -> Result<Self, MountError> {
        let read_only = options.read_only || abilities.read_only;
        let options = Options { read_only, ..options.clone() };
        let (device, mounted) = mount(mountpoint, abilities.driver, &abilities.tree, &options)?;
        Ok(Self { device, mounted: Some(mounted), first: None, proxied: false })
    }

    /// A socket to a proxy: by itself it sends requests that a dead process left unanswered to the process that serves next.
    #[must_use]
    pub fn proxied(socket: OwnedFd) -> Self {
        Self { proxied: true, ..Self::from(socket) }
    }

    /// Whether the other side sends such requests again: a kernel from Linux 6.9 on. Waits for its first message.
    ///
    /// # Errors
    /// `TimedOut` when there is none in time; what else prevents reading it.
    pub fn sends_again(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.proxied {
            return Ok(true);
        }
        let message = self.first(timeout)?.message();
        let (_, body) = InHeader::decode(message).map_err(io::Error::other)?;
        let init = InitIn::decode(body).map_err(io::Error::other)?;
        Ok(init.flags.contains(InitFlags::HAS_RESEND))
    }

    /// Answers the first message, INIT, on behalf of another process that will [`resume`](crate::Session::resume) the
    /// session from its very beginning.
    ///
    /// # Errors
    /// `TimedOut` when there is none in time; `Unsupported` when there is no common version; what else prevents the answer.
    pub fn negotiate(
        &mut self,
        timeout: Duration,
        abilities: &Abilities,
        options: &Options,
    ) -> io::Result<Negotiated> {
        let message = self.first(timeout)?.message();
        let (header, body) = InHeader::decode(message).map_err(io::Error::other)?;
        let init = InitIn::decode(body).map_err(io::Error::other)?;
        let idmap = self.mounted.as_ref().is_some_and(|mounted| mounted.idmap);
        let agreed = agree(&init, options, abilities, idmap).map_err(io::Error::other)?;
        let negotiated = agreed.ok_or(io::ErrorKind::Unsupported)?;
        let reply = negotiated.reply().encode();
        let head = OutHeader::ok(header.unique, reply.len()).encode();
        self.device.send(&[IoSlice::new(&head), IoSlice::new(&reply)])?;
        self.first = None;
        if let Some(mounted) = &self.mounted {
            mounted.raise_readahead(options.max_readahead);
        }
        Ok(negotiated)
    }

    /// Another descriptor of the connection.
    ///
    /// # Errors
    /// What fcntl(2) says.
    pub fn device_fd(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Whether the kernel still has the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.device.is_connected()
    }

    /// Makes the kernel ask for every name and its attributes again before it uses them (Linux 6.16 and newer).
    pub fn invalidate_all(&self) {
        // A kernel that does not know it goes on as before.
        let _ = self.device.send(&[IoSlice::new(&Notification::IncEpoch.encode())]);
    }

    /// Puts a proxy in between: it gets the device and the first message, and gives the socket to serve instead.
    ///
    /// # Errors
    /// Those of `proxy`, and as [`Connection::sends_again`].
    pub fn through<E: From<io::Error>>(
        mut self,
        timeout: Duration,
        proxy: impl FnOnce(OwnedFd, &[u8]) -> Result<OwnedFd, E>,
    ) -> Result<Self, E> {
        self.first(timeout)?;
        let Self { device, mounted, first, .. } = self;
        let socket = proxy(device.into_fd(), first.as_ref().map_or(&[], ReadBuffer::message))?;
        Ok(Self { mounted, ..Self::proxied(socket) })
    }

    /// INIT.
    fn first(&mut self, timeout: Duration) -> io::Result<&ReadBuffer> {
        if self.first.is_none() {
            let limit = Timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            if poll(&mut [PollFd::new(&self.device.as_fd(), PollFlags::IN)], Some(&limit))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut buffer = ReadBuffer::new(PAGE, false);
            match self.device.receive(&mut buffer) {
                Received::Message => self.first = Some(buffer),
                Received::Failed(error) => return Err(error),
                Received::Unmounted | Received::Aborted => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
        self.first.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What a socket cannot do is not asked of it.
    pub(crate) fn limit(&self, options: &mut Options) {
        if self.proxied {
            let buffer = sockopt::socket_send_buffer_size(&self.device).unwrap_or(0);
            let room = u32::try_from(buffer.saturating_sub(PROXIED_ROOM)).unwrap_or(PROXIED_WRITE);
            options.max_write = options.max_write.min(PROXIED_WRITE).min((room / PAGE * PAGE).max(PAGE));
            options.passthrough = false;
            options.splice = false;
        }
    }
}
