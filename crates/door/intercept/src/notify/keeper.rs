// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that answers calls when the server has died, and hands them to the next server: without anybody who holds the listener, the
//! kernel would know none of them any more, and programs could not even open local files.
//!
//! It is this program under another name, in a session of its own, so that the terminal does not end it, and holds nothing but the listener, a
//! connection to the server, and the server's list of calls without an answer. While the server lives it waits. When the server is gone, local
//! files are the kernel's, and everything in trees is `ENOTCONN`, as without the server of a mount: the kernel must not see such a path,
//! because there may be a local directory under the prefix, and the working directory of a program may be one in the mirror, from which
//! nothing is stored in the tree any more. If the server had taken the trees away before, only the latter is left of that.

use super::decode::Asked;
use super::gate;
use super::listener::Listener;
use super::names::{Names, Where};
use super::process::Process;
use super::progress::Progress;
use super::source::{Call, Source};
use crate::failed;
use crate::kept::{ATTACH_TO, BUSY, DETACH, STORED, Shows, open_door};
use crate::proc::ptrace_restriction;
use crate::{KEEPER, LISTENING};
use outrigger_core::{Errno, Result};
use outrigger_host::{receive_with, send_with};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use rustix::process::{geteuid, setsid};
use rustix::thread::set_name;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// How many calls may have been interrupted between the last one that was written down and one that was received just before the server
/// died.
const GONE_MAX: u64 = 1024;
/// How long a process that connects may take to say what for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the process knows.
struct Keeper {
    listener: Listener,
    progress: Progress,
    server: Option<OwnedFd>,
    /// What the server shows; none before it has begun.
    shown: Option<KeptView>,
    /// The copies of servers that were killed before.
    former: Vec<Names>,
    /// They wait until the server has stored what programs wrote.
    detaching: Vec<OwnedFd>,
    /// Where the next server asks; none where the system lets no process have power over others of its user.
    door: Option<OwnedFd>,
}

/// What a server shows.
struct KeptView {
    names: Names,
    /// The memory of programs that reach local files by themselves.
    gate: Option<OwnedFd>,
    /// Nothing is local without the server: changes of local files were kept apart.
    is_closed: bool,
}

/// Hands the listener of process `pid` to the server at the other end of a socket, and stays until no program is under its filter. `newest` is
/// the number of the last call that has its answer; a process that makes its first one has none.
///
/// # Errors
/// A sentence about what this system does not permit; the listener is closed then.
pub(crate) fn keep(
    pid: u32,
    (listener, newest): (OwnedFd, Option<u64>),
    server: OwnedFd,
) -> std::result::Result<(), String> {
    // Neither the end of a terminal nor Ctrl-C is to reach it.
    nix::sys::signal::SigSet::all().thread_block().map_err(failed("signals"))?;
    let _ = (setsid(), set_name(&CString::new(KEEPER).unwrap_or_default()));
    let mut keeper = Keeper {
        listener: Listener::new(listener),
        progress: Progress::new().map_err(failed("no memory"))?,
        server: None,
        shown: None,
        former: Vec::new(),
        detaching: Vec::new(),
        door: may_be_traced().then(|| open_door(pid)).and_then(std::result::Result::ok),
    };
    newest.into_iter().for_each(|id| keeper.progress.note(id));
    keeper.hand_to(server);
    keeper.attend().map_err(failed("the keeper"))
}

/// Says to a process that wanted the trees to be taken away that nothing is left to be stored.
fn tell_stored(peer: &OwnedFd) {
    // It may not wait for it any more.
    let _ = send_with(peer, STORED, &[]);
}

/// Whether other processes of the user may have power over the program: the one that answers its calls has that.
fn may_be_traced() -> bool {
    geteuid().is_root() || ptrace_restriction().is_none()
}

impl Keeper {
    /// Makes a process the server, and tells it where the copies of killed servers are. If it has died already, its connection ends.
    fn hand_to(&mut self, server: OwnedFd) {
        let last = self.shown.as_ref().map(|shown| shown.names.mirror());
        let is_known = |mirror: &&Path| self.former.iter().any(|names| names.mirror() == *mirror);
        let last = last.filter(|mirror| !is_known(mirror)).map(Names::without_trees);
        self.former.extend(last);
        // Others have kept what was in them.
        self.former.retain(|names| names.mirror().exists());
        let mirrors: Vec<_> = self.former.iter().map(|names| names.mirror().as_os_str().as_bytes()).collect();
        let message = [LISTENING, &mirrors.join(&0)].concat();
        let _ = send_with(&server, &message, &[self.listener.as_fd(), self.progress.as_fd()]);
        self.server = Some(server);
    }

    /// Does what comes, until there are no programs any more.
    fn attend(&mut self) -> io::Result<()> {
        loop {
            let calls = if self.server.is_none() { PollFlags::IN } else { PollFlags::empty() };
            let mut files = vec![PollFd::new(&self.listener, calls)];
            files.extend(self.server.as_ref().map(|server| PollFd::new(server, PollFlags::IN)));
            files.extend(self.door.as_ref().map(|door| PollFd::new(door, PollFlags::IN)));
            rustix::io::retry_on_intr(|| poll(&mut files, None))?;
            let came: Vec<PollFlags> = files.iter().map(PollFd::revents).collect();
            if came[0].intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
            if self.server.is_some() && !came[1].is_empty() {
                self.hear();
            } else if self.door.is_some() && came.last().is_some_and(|came| !came.is_empty()) {
                self.admit();
            } else if came[0].contains(PollFlags::IN)
                && let Some(call) = self.listener.receive()?
            {
                self.progress.note(call.id);
                self.handle(&call);
            }
        }
    }

    /// The server says what it shows, or is gone.
    fn hear(&mut self) {
        let Some(server) = &self.server else { return };
        let mut message = vec![0; Shows::SIZE_MAX];
        let heard = receive_with(server, &mut message, RecvFlags::empty());
        let (length, files) = heard.unwrap_or_default();
        match &message[..length] {
            [] => self.take_over(),
            DETACH => self.show_nothing(),
            STORED => self.detaching.drain(..).for_each(|peer| tell_stored(&peer)),
            shows => {
                self.shown = KeptView::of(shows, files);
                if self.is_closed() {
                    // Another server would change the real files.
                    self.door = None;
                }
            }
        }
    }

    /// The server is gone. What it had received is answered first; programs ask about all files from now on.
    fn take_over(&mut self) {
        self.server = None;
        self.detaching.clear();
        if let Some(gate) = self.shown.as_ref().and_then(|shown| shown.gate.as_ref()) {
            // It fails where there is no memory; what programs find by themselves is local then.
            let _ = gate::close(gate);
        }
        self.progress.take().iter().for_each(|call| self.handle(call));
        let Some(newest) = self.progress.newest() else { return };
        // It may have died before it wrote the last one down. The kernel numbers calls in the order in which it passes them on. What the call
        // is, is not known; nothing of it was done.
        for ahead in 1..=GONE_MAX {
            match self.listener.refuse(newest.wrapping_add(ahead), libc::EINTR) {
                // No such call, or none any more.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                // That was it; or this one was not passed on, and so were none after it.
                _ => return,
            }
        }
    }

    /// There are no trees any more.
    fn show_nothing(&mut self) {
        if let Some(shown) = &mut self.shown {
            shown.names = Names::without_trees(shown.names.mirror());
        }
    }

    /// A process connects: the next server, or one that wants this one to take the trees away.
    fn admit(&mut self) {
        let accepted = self.door.as_ref().map(|door| accept_with(door, SocketFlags::CLOEXEC));
        let Some(Ok(peer)) = accepted else { return };
        let is_own =
            socket_peercred(&peer).is_ok_and(|peer| [geteuid().as_raw(), 0].contains(&peer.uid.as_raw()));
        if !is_own {
            return;
        }
        let mut wish = [0; 1];
        let limited = set_socket_timeout(&peer, Timeout::Recv, Some(PATIENCE)).map_err(io::Error::from);
        if limited.and_then(|()| receive_with(&peer, &mut wish, RecvFlags::empty())).is_err() {
            return;
        }
        match (&wish[..], &self.server) {
            (ATTACH_TO, None) => self.hand_to(peer),
            (ATTACH_TO, Some(_)) => {
                let _ = send_with(&peer, BUSY, &[]);
            }
            (DETACH, Some(server)) if send_with(server, DETACH, &[]).is_ok() => self.detaching.push(peer),
            (DETACH, None) => {
                self.show_nothing();
                tell_stored(&peer);
            }
            _ => {}
        }
    }

    fn is_closed(&self) -> bool {
        self.shown.as_ref().is_some_and(|shown| shown.is_closed)
    }

    fn handle(&self, call: &Call) {
        if self.is_closed() {
            // What is open stays usable.
            return match Asked::of(call) {
                Ok(Some(Asked::StatOpen { .. } | Asked::StatxOpen { .. })) => self.listener.pass(call),
                _ => self.listener.answer(call, Err(libc::ENOTCONN)),
            };
        }
        let mut all = self.former.iter().chain(self.shown.as_ref().map(|shown| &shown.names));
        match all.try_for_each(|names| names.check(call)) {
            Ok(()) => self.listener.pass(call),
            Err(error) => self.listener.answer(call, Err(error.errno.0)),
        }
    }
}

impl KeptView {
    /// What the server says with [`Shows`].
    fn of(message: &[u8], mut files: Vec<OwnedFd>) -> Option<Self> {
        let Shows { mirror, prefixes, is_closed } = Shows::parse(message)?;
        let names = Names::new(&prefixes, None, &mirror).ok()?;
        Some(KeptView { names, gate: files.pop(), is_closed })
    }
}

impl Names {
    /// Whether a call concerns local files only.
    ///
    /// # Errors
    /// What it gets otherwise.
    pub(super) fn check(&self, call: &Call) -> Result<()> {
        let process = Process { thread: call.pid.cast_signed() };
        let request = match Asked::of(call) {
            Ok(Some(request)) => request,
            Err(error) if error.errno == Errno::EPERM => return self.check_unread(call, process),
            // What cannot be read the kernel cannot read either.
            Ok(None) | Err(_) => return Ok(()),
        };
        match request {
            Asked::CurrentDir { .. } => return self.check_open(process, libc::AT_FDCWD),
            Asked::Sync { file, .. } => return self.check_open(process, file),
            _ => {}
        }
        for (at, how) in request.places() {
            match process.find(self, at, how, &|| ())? {
                Where::Local | Where::Fixed(_) | Where::Apart(_) => {}
                Where::Beyond(_) | Where::Tree(_) => return Err(Errno::ENOTCONN.into()),
            }
        }
        Ok(())
    }

    /// The same where the memory of a program may not be read, and the paths are not known: by the keeper where only ancestors may (yama(5)), by
    /// all where the program may be executed and not read. Without a local directory under a prefix, a path that begins at the root leads to
    /// no other file than it did.
    pub(super) fn check_unread(&self, call: &Call, process: Process) -> Result<()> {
        if self.covers {
            return Err(Errno::ENOTCONN.into());
        }
        let [first, _, third, ..] = call.data.args.map(|argument| argument as i32);
        [libc::AT_FDCWD, first, third].into_iter().try_for_each(|file| self.check_open(process, file))
    }

    /// Whether a file that a program has open, or its working directory, is a local one.
    fn check_open(&self, process: Process, file: i32) -> Result<()> {
        let is_copy = process.file(file).is_ok_and(|path| self.shown(&path).is_some());
        if is_copy { Err(Errno::ENOTCONN.into()) } else { Ok(()) }
    }
}
