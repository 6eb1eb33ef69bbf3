// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service manager (systemd): readiness, watchdog, and the store that keeps descriptors while no process does.
//!
//! The protocol is that of sd_notify(3): datagrams of `KEY=VALUE` lines to the socket `NOTIFY_SOCKET` names, descriptors
//! beside them; stored ones come back as `LISTEN_FDS` with their names in `LISTEN_FDNAMES` (sd_listen_fds(3)).

use crate::state::State;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg_addr, socket_with,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors that come from the store have numbers from this on.
const FIRST: RawFd = 3;
/// How descriptors are called in the store: one of these and the number they have to have.
const STATE: &str = "outrigger-state-";
const HELD: &str = "outrigger-held-";

/// A connection to the service manager.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: OwnedFd,
    address: SocketAddrUnix,
    /// How often it wants to hear that we live.
    pub(crate) watchdog: Option<Duration>,
}

impl Manager {
    /// The manager that started this process, if there is one.
    pub(crate) fn from_environment() -> Option<Self> {
        let path = std::env::var("NOTIFY_SOCKET").ok()?;
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?,
            None => SocketAddrUnix::new(&path).ok()?,
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        let period = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        Some(Manager {
            socket,
            address,
            watchdog: period.map(|micros: u64| Duration::from_micros(micros / 2)),
        })
    }

    /// The descriptor of the connection.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Tells the manager something.
    ///
    /// # Errors
    /// When it does not listen.
    pub(crate) fn tell(&self, text: &str) -> io::Result<()> {
        self.send(text, &[])
    }

    fn store(&self, fd: BorrowedFd<'_>, prefix: &str) -> io::Result<()> {
        self.send(&format!("FDSTORE=1\nFDPOLL=0\nFDNAME={prefix}{}", fd.as_raw_fd()), &[fd])
    }

    /// Gives it everything that has to survive the keeper, the state first.
    ///
    /// # Errors
    /// When it does not listen.
    pub(crate) fn store_all(&self, state: &State) -> io::Result<()> {
        self.store(state.fd(), STATE)?;
        let own = [state.fd().as_raw_fd(), self.number()];
        for number in state.held().filter(|number| !own.contains(number)) {
            // SAFETY: held descriptors stay open.
            self.store(unsafe { BorrowedFd::borrow_raw(number) }, HELD)?;
        }
        Ok(())
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let data = [IoSlice::new(text.as_bytes())];
        sendmsg_addr(&self.socket, &self.address, &data, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Tells the service manager that started this process something (sd_notify(3)). Without one, or one that listens, nothing happens.
pub fn tell_manager(text: &str) {
    if let Some(manager) = Manager::from_environment() {
        // What does not listen waits for nothing either.
        let _ = manager.tell(text);
    }
}

/// Puts what the store gave back under the numbers it had, and gives the number of the state.
pub(crate) fn restore() -> Option<RawFd> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
        return None;
    }
    let stored = named(variable("LISTEN_FDS").parse().ok()?, &variable("LISTEN_FDNAMES"));
    let above = stored.iter().flat_map(|one| [one.now, one.then]).max()? + 1;
    // Out of each other's way first.
    let moved: Vec<RawFd> = stored
        .iter()
        // SAFETY: numbers only; those the manager passed are ours.
        .map(|one| unsafe {
            let copy = libc::fcntl(one.now, libc::F_DUPFD_CLOEXEC, above);
            libc::close(one.now);
            copy
        })
        .collect();
    for (one, copy) in stored.iter().zip(moved) {
        // SAFETY: as above; nothing else is open in a process that has just started.
        unsafe {
            libc::dup3(copy, one.then, libc::O_CLOEXEC);
            libc::close(copy);
        }
    }
    let state = stored.iter().find(|one| one.is_state)?.then;
    // SAFETY: the descriptor was put there above.
    let fd = unsafe { BorrowedFd::borrow_raw(state) };
    let opened = State::open(fd.try_clone_to_owned().ok()?).ok()?;
    // Files that programs had open were not stored: their numbers will be given to others.
    let lost: Vec<RawFd> = opened.held().filter(|held| stored.iter().all(|one| one.then != *held)).collect();
    lost.into_iter().for_each(|number| opened.let_go(number));
    Some(state)
}

/// A descriptor from the store.
#[derive(Debug, PartialEq, Eq)]
struct Stored {
    now: RawFd,
    /// The number it has to have.
    then: RawFd,
    is_state: bool,
}

fn named(count: RawFd, names: &str) -> Vec<Stored> {
    let stored = |(now, name): (RawFd, &str)| {
        let (number, is_state) = match name.strip_prefix(STATE) {
            Some(number) => (number, true),
            None => (name.strip_prefix(HELD)?, false),
        };
        Some(Stored { now, then: number.parse().ok()?, is_state })
    };
    (FIRST..FIRST.saturating_add(count)).zip(names.split(':')).filter_map(stored).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_descriptors_know_their_numbers() {
        let found = named(3, "outrigger-state-9:socket:outrigger-held-70");
        let expected =
            [Stored { now: 3, then: 9, is_state: true }, Stored { now: 5, then: 70, is_state: false }];
        assert_eq!(found, expected);
        assert_eq!(named(0, ""), []);
        assert_eq!(named(1, "outrigger-held-x"), []);
    }
}
