// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's side of a keeper: a process that has the listener, too, and takes over when the server is gone (`notify/keeper.rs`).

use crate::failed;
use crate::launch::{Prefix, order_with_socket, pair};
use crate::{INJECT, KEEP, LISTENING, MESSAGE_MAX};
use outrigger_host::{receive_with, send_with};
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// Who connects wants to be the server.
pub(crate) const ATTACH_TO: &[u8] = b"a";
/// Who connects wants the server to show nothing any more; the server is told so.
pub(crate) const DETACH_FROM: &[u8] = b"d";
/// There is a server.
pub(crate) const BUSY: &[u8] = b"busy";
/// How long a keeper may take to answer, and a server to end.
const DEADLINE: Duration = Duration::from_secs(60);

/// The calls of a program, and the keeper that goes on when this process is gone.
#[derive(Debug)]
pub struct Kept {
    pub(crate) listener: OwnedFd,
    /// The file with the numbers of calls.
    pub(crate) calls: OwnedFd,
    pub(crate) keeper: OwnedFd,
    /// Whether this process goes on when it shows nothing any more.
    pub(crate) stays: bool,
}

/// The address of the keeper of a process. Each network namespace has its own addresses, and there is nothing to be removed.
pub(crate) fn address(pid: u32) -> io::Result<SocketAddr> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The time when it was started: numbers of processes are used again.
    let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
    let started = started.ok_or(io::ErrorKind::NotFound)?;
    SocketAddr::from_abstract_name(format!("outrigger-keep-{}-{pid}-{started}", geteuid().as_raw()))
}

/// Connects to the keeper of a process, if it has one of this user.
fn connect(pid: u32) -> Option<UnixStream> {
    let stream = UnixStream::connect_addr(&address(pid).ok()?).ok()?;
    let is_own = socket_peercred(&stream).is_ok_and(|peer| peer.uid == geteuid());
    is_own.then_some(stream)
}

impl Kept {
    /// Starts a keeper for a program that is started here.
    ///
    /// # Errors
    /// A sentence about what this system does not permit.
    pub fn start(pid: u32, listener: OwnedFd) -> Result<Self, String> {
        let (keeper, theirs) = pair().map_err(failed("no socket"))?;
        order_with_socket(KEEP, pid, theirs)?;
        send_with(&keeper, LISTENING, &[listener.as_fd()]).map_err(failed("the keeper"))?;
        Self::receive(keeper, true)
    }

    /// Puts a process that runs under a filter, or takes over from its keeper.
    ///
    /// # Errors
    /// A sentence about why that cannot be done.
    pub fn attach(pid: u32, prefixes: &[Prefix]) -> Result<Self, String> {
        for prefix in prefixes {
            prefix.check(prefixes)?;
        }
        if let Some(stream) = connect(pid) {
            // As stopping it is then asked for later only.
            let what =
                format!("process {pid} cannot be looked at (yama(5): only by its parents, or the superuser)");
            fs::File::open(format!("/proc/{pid}/mem")).map_err(failed(what))?;
            send_with(&stream, ATTACH_TO, &[]).map_err(failed("the keeper"))?;
            return Self::receive(stream.into(), false);
        }
        let (keeper, theirs) = pair().map_err(failed("no socket"))?;
        order_with_socket(INJECT, pid, theirs)?;
        Self::receive(keeper, false)
    }

    fn receive(keeper: OwnedFd, stays: bool) -> Result<Self, String> {
        let mut message = [0; MESSAGE_MAX];
        let (length, mut files) =
            receive_with(&keeper, &mut message, RecvFlags::empty()).map_err(failed("the keeper"))?;
        match (&message[..length], files.pop(), files.pop()) {
            (LISTENING, Some(calls), Some(listener)) => Ok(Kept { listener, calls, keeper, stays }),
            (BUSY, ..) => {
                Err("another `outrigger` shows trees to it: `outrigger detach` ends that".to_owned())
            }
            ([], ..) => Err("the keeper has ended".to_owned()),
            (said, ..) => Err(String::from_utf8_lossy(said).into_owned()),
        }
    }
}

/// Has the server of a process show nothing any more, and waits until it has stored what programs wrote; `false` where there is none.
///
/// # Errors
/// A sentence when that takes too long.
pub fn detach_kept(pid: u32) -> Result<bool, String> {
    let Some(stream) = connect(pid) else { return Ok(false) };
    stream.set_read_timeout(Some(DEADLINE)).map_err(failed("the keeper"))?;
    send_with(&stream, DETACH_FROM, &[]).map_err(failed("the keeper"))?;
    receive_with(&stream, &mut [0; 1], RecvFlags::empty())
        .map_err(|_| "files are open still, which are stored when they are closed".to_owned())?;
    Ok(true)
}
