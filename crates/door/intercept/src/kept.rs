// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's side of a keeper: a process that has the listener, too, and takes over when the server is gone (`notify/keeper.rs`).

use crate::failed;
use crate::launch::{Prefix, order_with_socket, pair};
use crate::proc::stat_field;
use crate::{INJECT, KEEP, LISTENING};
use outrigger_host::{receive_with, send_with};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Said by a process that connects to the keeper: it wants to be the server.
pub(crate) const ATTACH_TO: &[u8] = b"a";
/// Said by a process that connects, by the keeper to the server, and by the server to the keeper: no trees are shown any more.
pub(crate) const DETACH: &[u8] = b"d";
/// Said after that, by the server to the keeper and by this to who wanted it: what programs wrote is stored.
pub(crate) const STORED: &[u8] = b"s";
/// What a server says first of what it shows: whether others may go on without it.
const OPEN: &str = "open";
const CLOSED: &str = "closed";
/// Said to a process that wants to be the server: there is one.
pub(crate) const BUSY: &[u8] = b"busy";
/// How many processes may wait for the keeper.
const WAITING: i32 = 16;
/// How long a server may take to store what programs have written.
const DEADLINE: Duration = Duration::from_secs(60);
/// After that it is said what is waited for.
const SOON: Duration = Duration::from_secs(1);
/// How long a keeper may take to end without programs.
const END: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The calls of a program, and the keeper that goes on when this process is gone.
#[derive(Debug)]
pub struct Kept {
    pub(crate) listener: OwnedFd,
    /// The memory of calls without an answer.
    pub(crate) calls: OwnedFd,
    /// Where servers that were killed have left copies.
    pub(crate) mirrors: Vec<PathBuf>,
    pub(crate) keeper: Link,
}

/// The connection to the keeper. It learns from its end that this process is gone, and with it all threads.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

/// What a server tells its keeper that it shows; the memory of the gate comes with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shows {
    pub(crate) mirror: PathBuf,
    pub(crate) prefixes: Vec<Prefix>,
    /// Whether nothing can be done without the server, nor by another one.
    pub(crate) is_closed: bool,
}

/// The address of the keeper of a process. Each network namespace has its own addresses, and there is nothing to be removed.
fn address(pid: u32) -> io::Result<SocketAddrUnix> {
    // The time when it was started: numbers of processes are used again.
    let started: u64 = stat_field(pid, 22).ok_or(io::ErrorKind::NotFound)?;
    let name = format!("outrigger-keep-{}-{pid}-{started}", geteuid().as_raw());
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// A socket that keeps messages apart.
fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Where the next server of a process asks its keeper.
pub(crate) fn open_door(pid: u32) -> io::Result<OwnedFd> {
    let (socket, address) = (socket()?, address(pid)?);
    bind(&socket, &address)?;
    listen(&socket, WAITING)?;
    Ok(socket)
}

/// Connects to the keeper of a process, if it has one of this user.
fn connect(pid: u32) -> Option<OwnedFd> {
    let socket = socket().ok()?;
    rustix::net::connect(&socket, &address(pid).ok()?).ok()?;
    let is_own = socket_peercred(&socket).is_ok_and(|peer| peer.uid == geteuid());
    is_own.then_some(socket)
}

impl Kept {
    /// Starts a keeper for a program that is started here.
    ///
    /// # Errors
    /// A sentence about what this system does not permit.
    pub fn start(pid: u32, listener: &OwnedFd) -> Result<Self, String> {
        let (keeper, theirs) = pair().map_err(failed("no socket"))?;
        order_with_socket(KEEP, pid, theirs)?;
        send_with(&keeper, LISTENING, &[listener.as_fd()]).map_err(failed("the keeper"))?;
        Self::receive(keeper)
    }

    /// Puts a process that runs under a filter, or takes over from its keeper.
    ///
    /// # Errors
    /// A sentence about why that cannot be done.
    pub fn attach(pid: u32, prefixes: &[Prefix]) -> Result<Self, String> {
        for prefix in prefixes {
            prefix.check(prefixes)?;
        }
        if let Some(keeper) = connect(pid) {
            // The first use of ptrace(2) would come with the first call of the program: too late for a clear error.
            let what =
                format!("process {pid} cannot be looked at (yama(5): only by its parents, or the superuser)");
            fs::File::open(format!("/proc/{pid}/mem")).map_err(failed(what))?;
            send_with(&keeper, ATTACH_TO, &[]).map_err(failed("the keeper"))?;
            return Self::receive(keeper);
        }
        let (keeper, theirs) = pair().map_err(failed("no socket"))?;
        order_with_socket(INJECT, pid, theirs)?;
        Self::receive(keeper)
    }

    fn receive(keeper: OwnedFd) -> Result<Self, String> {
        let mut message = vec![0; Shows::SIZE_MAX];
        let (length, mut files) =
            receive_with(&keeper, &mut message, RecvFlags::empty()).map_err(failed("the keeper"))?;
        let message = &message[..length];
        match (message.strip_prefix(LISTENING), files.pop(), files.pop()) {
            (Some(mirrors), Some(calls), Some(listener)) => {
                let mirrors = mirrors.split(|&byte| byte == 0).filter(|path| !path.is_empty());
                let mirrors = mirrors.map(|path| OsStr::from_bytes(path).into()).collect();
                Ok(Kept { listener, calls, mirrors, keeper: Link(keeper) })
            }
            _ if message == BUSY => {
                Err("another `outrigger` shows trees to it: `outrigger detach` ends that".to_owned())
            }
            _ if message.is_empty() => Err("the keeper has ended".to_owned()),
            _ => Err(String::from_utf8_lossy(message).into_owned()),
        }
    }
}

impl Link {
    /// Says what is shown, before any call is answered.
    ///
    /// # Errors
    /// A sentence about what the keeper cannot know.
    pub(crate) fn shows(&self, shows: &Shows, gate: Option<BorrowedFd<'_>>) -> Result<(), String> {
        let message = shows.message();
        if message.len() > Shows::SIZE_MAX {
            return Err(format!(
                "there are too many trees: their paths take {} bytes, and {} are the most; show fewer (--map, --mounts)",
                message.len(),
                Shows::SIZE_MAX
            ));
        }
        send_with(&self.0, &message, gate.as_slice()).map(drop).map_err(failed("the keeper"))
    }

    /// Says one of the words. Without a keeper, that is of no use.
    pub(crate) fn say(&self, word: &[u8]) {
        let _ = send_with(&self.0, word, &[]);
    }

    /// Waits until the trees are to be taken away; `false` when the keeper is gone.
    pub(crate) fn is_to_detach(&self) -> bool {
        let mut message = [0; 1];
        let received = receive_with(&self.0, &mut message, RecvFlags::empty());
        received.is_ok_and(|(length, _)| length == 1 && message == *DETACH)
    }

    /// Waits until the keeper has ended.
    pub(crate) fn wait(&self) {
        // One that takes longer ends by itself.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::empty())], Some(&END));
    }
}

impl Shows {
    /// The most bytes of a message about it.
    pub(crate) const SIZE_MAX: usize = 64 << 10;

    fn message(&self) -> Vec<u8> {
        let closed = if self.is_closed { CLOSED } else { OPEN };
        let paths = self.prefixes.iter().flat_map(|Prefix { path, name }| [path.as_os_str(), name]);
        let all: Vec<&[u8]> = [OsStr::new(closed), self.mirror.as_os_str()]
            .into_iter()
            .chain(paths)
            .map(OsStrExt::as_bytes)
            .collect();
        all.join(&0)
    }

    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let mut parts = message.split(|&byte| byte == 0).map(|part| OsString::from_vec(part.to_vec()));
        let is_closed = match parts.next()?.to_str()? {
            CLOSED => true,
            OPEN => false,
            _ => return None,
        };
        let (mirror, mut prefixes) = (parts.next()?.into(), Vec::new());
        while let Some(path) = parts.next() {
            prefixes.push(Prefix { path: path.into(), name: parts.next()? });
        }
        Some(Shows { mirror, prefixes, is_closed })
    }
}

/// Has the server of a process show nothing any more, and waits until it has stored what programs wrote; `false` where there is none. If that
/// takes long, `tell` is called.
///
/// # Errors
/// A sentence when that takes too long, or the server dies meanwhile.
pub fn detach_kept(pid: u32, tell: impl FnOnce()) -> Result<bool, String> {
    let Some(keeper) = connect(pid) else { return Ok(false) };
    send_with(&keeper, DETACH, &[]).map_err(failed("the keeper"))?;
    let is_done = |limit| {
        set_socket_timeout(&keeper, Timeout::Recv, Some(limit)).map_err(failed("the keeper"))?;
        match receive_with(&keeper, &mut [0; 1], RecvFlags::empty()) {
            Ok((0, _)) => Err("its server died before it had stored what programs wrote".to_owned()),
            received => Ok(received.is_ok()),
        }
    };
    if is_done(SOON)? {
        return Ok(true);
    }
    tell();
    match is_done(DEADLINE)? {
        true => Ok(true),
        false => Err("files are open still, which are stored when they are closed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keeper_reads_what_the_server_shows() {
        let prefix = |path: &str, name: &str| Prefix { path: path.into(), name: name.into() };
        for prefixes in [vec![], vec![prefix("/data", "map-0"), prefix("/a b", "map-1")]] {
            for is_closed in [false, true] {
                let shows = Shows { mirror: "/tmp/copies".into(), prefixes: prefixes.clone(), is_closed };
                assert_eq!(Shows::parse(&shows.message()), Some(shows));
            }
        }
        assert_eq!((Shows::parse(b"open\0/tmp\0/data"), Shows::parse(b"/tmp")), (None, None));
    }
}
