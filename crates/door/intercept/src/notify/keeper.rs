// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a small process that has the listener of a program, too. When the server is gone, it has the kernel do all calls, and hands the
//! listener to the next server. Without it, every call with a path would fail (`ENOSYS`), for as long as the program runs.

use super::listener::Listener;
use super::slots::Slots;
use crate::LISTENING;
use crate::failed;
use crate::kept::{ATTACH_TO, BUSY, DETACH_FROM, address};
use outrigger_host::{receive_with, send_with};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{chdir, geteuid, setsid};
use rustix::thread::set_name;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// What the process is called in listings.
const PROCESS: &std::ffi::CStr = c"outrigger-keep";
/// How long who connects may take to say what for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the process knows.
struct Keeper {
    listener: Listener,
    slots: Slots,
    /// The file of `slots`.
    file: OwnedFd,
    server: Option<OwnedFd>,
    /// They wait until the server shows nothing any more.
    detaching: Vec<UnixStream>,
    /// Where the next server asks; none where the system lets no process have power over others of its user.
    door: Option<UnixListener>,
}

/// Hands the listener of process `pid` to the server at the other end of a socket, and stays until no program is under its filter.
///
/// # Errors
/// A sentence about what this system does not permit; the listener is closed then.
pub(crate) fn keep(pid: u32, listener: OwnedFd, server: OwnedFd) -> Result<(), String> {
    // Neither the end of a terminal nor Ctrl-C is to reach it, and it is to use no directory.
    nix::sys::signal::SigSet::all().thread_block().map_err(failed("signals"))?;
    let _ = (setsid(), chdir("/"), set_name(PROCESS));
    let (file, slots) = Slots::new().map_err(failed("memory"))?;
    let door = if may_be_traced() { open_door(pid) } else { None };
    let mut keeper = Keeper {
        listener: Listener::new(listener, None),
        slots,
        file,
        server: None,
        detaching: Vec::new(),
        door,
    };
    keeper.hand_to(server);
    keeper.attend().map_err(failed("the keeper"))
}

/// Where the next server asks.
fn open_door(pid: u32) -> Option<UnixListener> {
    address(pid).and_then(|address| UnixListener::bind_addr(&address)).ok()
}

/// Whether other processes of the user may have power over the program: who answers its calls has that.
fn may_be_traced() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    geteuid().is_root() || ["", "0"].contains(&scope.trim())
}

impl Keeper {
    /// Makes a process the server. One that is gone already is seen to be so.
    fn hand_to(&mut self, server: OwnedFd) {
        let files = [self.listener.as_fd(), self.file.as_fd()];
        let _ = send_with(&server, LISTENING, &files);
        self.server = Some(server);
    }

    /// Does what comes, until there are no programs any more.
    fn attend(&mut self) -> io::Result<()> {
        loop {
            let calls = if self.server.is_none() { PollFlags::IN } else { PollFlags::empty() };
            let mut files = vec![PollFd::new(&self.listener, calls)];
            files.extend(self.door.as_ref().map(|door| PollFd::new(door, PollFlags::IN)));
            files.extend(self.server.as_ref().map(|server| PollFd::new(server, PollFlags::IN)));
            rustix::io::retry_on_intr(|| poll(&mut files, None))?;
            let came: Vec<PollFlags> = files.iter().map(PollFd::revents).collect();
            if came[0].intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            let (has_door, has_server) = (self.door.is_some(), self.server.is_some());
            if has_server && came.last().is_some_and(|came| !came.is_empty()) {
                self.hear();
            } else if has_door && !came[1].is_empty() {
                self.admit();
            } else if came[0].contains(PollFlags::IN)
                && let Ok(Some(call)) = self.listener.receive()
            {
                self.listener.pass(&call);
            }
        }
    }

    /// The server says that it shows nothing any more, or is gone. The kernel does what it has not answered.
    fn hear(&mut self) {
        let Some(server) = &self.server else { return };
        let is_gone =
            receive_with(server, &mut [0; 1], RecvFlags::empty()).is_ok_and(|(length, _)| length == 0);
        self.detaching.clear();
        if is_gone {
            self.server = None;
            self.slots.take().into_iter().for_each(|id| self.listener.go_on(id));
        }
    }

    /// Somebody connects: the next server, or who wants this one to end.
    fn admit(&mut self) {
        let Some(Ok((stream, _))) = self.door.as_ref().map(UnixListener::accept) else { return };
        let is_own =
            socket_peercred(&stream).is_ok_and(|peer| [geteuid().as_raw(), 0].contains(&peer.uid.as_raw()));
        if !is_own {
            return;
        }
        let mut wish = [0; 1];
        let limited = stream.set_read_timeout(Some(PATIENCE));
        if limited.and_then(|()| receive_with(&stream, &mut wish, RecvFlags::empty())).is_err() {
            return;
        }
        match (&wish[..], &self.server) {
            (ATTACH_TO, None) => self.hand_to(stream.into()),
            (ATTACH_TO, Some(_)) => {
                let _ = send_with(&stream, BUSY, &[]);
            }
            (DETACH_FROM, Some(server)) if send_with(server, DETACH_FROM, &[]).is_ok() => {
                self.detaching.push(stream);
            }
            _ => {}
        }
    }
}
