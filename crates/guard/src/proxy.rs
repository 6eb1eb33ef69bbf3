// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process between the kernel and the workers, where the kernel does not send again what a dead one left unanswered
//! (`FUSE_NOTIFY_RESEND`, Linux 6.9).
//!
//! It alone holds `/dev/fuse`. It passes messages on, in both directions and without looking further than their headers,
//! and keeps every request until the reply has come. A worker has the other end of a socket pair. The next worker shuts
//! that down and hands over an end of another pair, through a control socket that outlives workers; then everything
//! without a reply is sent again, marked as a kernel would, and messages that have no reply are taken back from where the
//! dead worker had not read them yet. So whatever is above cannot tell this from a kernel that sends again.
//!
//! When it dies, the last descriptor of `/dev/fuse` is closed: the mount ends, and waiting programs get an error. It ends with
//! the mount, or when neither keeper nor worker is left.

use outrigger_core::{Errno, lock};
use outrigger_host::{Confined, receive_with, send_with};
use outrigger_proto_fuse::{InHeader, Opcode, OutHeader, UNIQUE_RESEND};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as Failure;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair,
    sockopt,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The name the program is started under to be a proxy.
const NAME: &str = "outrigger-proxy";
/// The largest message in bytes: the largest write there is, with header and arguments.
const MESSAGE_MAX: usize = (1 << 20) + 4096;
/// Send buffer asked for, in bytes. Users without privileges may get less (net.core.wmem_max).
const BUFFER: usize = 4 << 20;
/// What goes with the descriptors when there is nothing to say.
const AGAIN: &[u8] = b"again";

/// A message on its way.
type Message = Box<[u8]>;

/// Whether the program was started under this name to be a proxy.
pub fn is_proxy(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// Starts this program as a proxy. Gives the control socket and the process.
///
/// # Errors
/// When there is no descriptor or process left.
pub(crate) fn start() -> io::Result<(OwnedFd, u32)> {
    let (ours, theirs) = pair()?;
    let child = Command::new("/proc/self/exe")
        .arg0(NAME)
        .current_dir("/")
        .confined(&[])
        .env_clear()
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((ours, child.id()))
}

/// Hands `device` to the proxy at `control`, from which `init` was read already. Gives what is to be served instead.
///
/// # Errors
/// When there is no proxy any more.
pub(crate) fn connect(control: BorrowedFd<'_>, device: BorrowedFd<'_>, init: &[u8]) -> io::Result<OwnedFd> {
    let (ours, theirs) = pair()?;
    send_with(control, init, &[theirs.as_fd(), device])?;
    Ok(ours)
}

/// The same for the successor of a worker that served `former`.
///
/// # Errors
/// When there is no proxy any more.
pub(crate) fn reconnect(control: BorrowedFd<'_>, former: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // The proxy may be waiting for a reader.
    shutdown(former, Shutdown::Both)?;
    connect(control, former, AGAIN)
}

/// Two ends of a connection that keeps messages apart.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for end in [&ends.0, &ends.1] {
        // The first goes beyond the limit of the system, and is for CAP_NET_ADMIN.
        sockopt::set_socket_send_buffer_size_force(end, BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(end, BUFFER))?;
    }
    Ok(ends)
}

/// Is a proxy, with the control socket as standard input, until the mount ends.
///
/// # Errors
/// When the parent breaks off, or there is no thread left.
pub fn run() -> io::Result<()> {
    crate::keeper::name_process(c"outrigger-proxy");
    live_on_our_own();
    attend(io::stdin().as_fd().try_clone_to_owned()?)
}

fn attend(control: OwnedFd) -> io::Result<()> {
    let Some((init, socket, device)) = receive(&control)? else { return Ok(()) };
    let (sender, notices) = mpsc::channel::<Message>();
    let socket = Arc::new(socket);
    let state = Mutex::new(State::new(Arc::clone(&socket)));
    let proxy = Arc::new(Proxy { device, control, state, notices: sender });
    proxy.enter(&init);
    let mut replies = proxy.serve(socket, Vec::new())?;
    let kernel = Arc::clone(&proxy);
    thread::Builder::new().name("requests".into()).spawn(move || kernel.pass_requests())?;
    let notified = Arc::clone(&proxy);
    // A notification can wait in the kernel for what only a reply ends.
    let notify = move || notices.iter().for_each(|message| notified.give(&message));
    thread::Builder::new().name("notices".into()).spawn(notify)?;
    while let Some((_, socket, former)) = receive(&proxy.control)? {
        // The former worker's connection was shut down, so this ends with its last reply.
        let _ = replies.join();
        replies = proxy.serve(Arc::new(socket), unread(&former))?;
    }
    Ok(())
}

/// Makes this process independent of its parent: only the end of the mount ends it.
fn live_on_our_own() {
    // Fails for the leader of a session, which is independent already.
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler of ours is set.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Waits for a message on the control socket: what is said, and two descriptors. Nothing when there will be none.
fn receive(control: &OwnedFd) -> io::Result<Option<(Message, OwnedFd, OwnedFd)>> {
    let mut said = [0; 4096];
    let (length, descriptors) = receive_with(control, &mut said, RecvFlags::empty())?;
    match <[OwnedFd; 2]>::try_from(descriptors) {
        _ if length == 0 => Ok(None),
        Ok([one, other]) => Ok(Some((said[..length].into(), one, other))),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Messages that a worker which has died did not read, if they have no reply.
fn unread(socket: &OwnedFd) -> Vec<Message> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut found = Vec::new();
    while let Ok((length @ 1.., _)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
        found.extend(unanswerable(&buffer[..length]).then(|| buffer[..length].into()));
    }
    found
}

/// Sends one message, and waits for room if need be.
fn send(socket: &OwnedFd, message: &[u8]) -> Result<(), Failure> {
    loop {
        match rustix::net::send(socket, message, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Failure::INTR) => {}
            // The kernel's memory is in pieces that are too small just now.
            Err(Failure::NOBUFS) => thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    }
}

/// Whether no program waits for a reply to a message.
fn unanswerable(message: &[u8]) -> bool {
    let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::NotifyReply];
    let header = InHeader::decode(message);
    header.is_ok_and(|(header, _)| silent.iter().any(|opcode| *opcode as u32 == header.opcode))
}

/// The number of a request in its message and in that of its reply.
const UNIQUE: std::ops::Range<usize> = 8..16;

fn unique(message: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(message.get(UNIQUE)?.try_into().ok()?))
}

struct Proxy {
    device: OwnedFd,
    control: OwnedFd,
    state: Mutex<State>,
    notices: Sender<Message>,
}

struct State {
    /// To the worker.
    socket: Arc<OwnedFd>,
    /// Requests that have no reply yet, in the order of their numbers, which is that of their coming.
    unanswered: BTreeMap<u64, Message>,
    /// Messages that have no reply and were not delivered.
    undelivered: Vec<Message>,
}

impl State {
    fn new(socket: Arc<OwnedFd>) -> Self {
        State { socket, unanswered: BTreeMap::new(), undelivered: Vec::new() }
    }
}

impl Proxy {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Keeps a request until it is answered; gives the worker that is to get it. One that comes later gets it with all that
    /// is unanswered.
    fn enter(&self, message: &[u8]) -> Arc<OwnedFd> {
        let mut state = self.state();
        if let Some(unique) = unique(message).filter(|_| !unanswerable(message)) {
            state.unanswered.insert(unique, message.into());
        }
        Arc::clone(&state.socket)
    }

    /// Messages of the kernel, until the mount ends.
    fn pass_requests(&self) {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            match rustix::io::read(&self.device, &mut buffer[..]) {
                Ok(0) => break,
                Ok(length) => self.pass_request(&buffer[..length]),
                // ENOENT: the program was killed between the wake-up and the copy.
                Err(Failure::INTR | Failure::NOENT) => {}
                Err(Failure::AGAIN) => {
                    // A failed wait shows at the next read.
                    let _ = poll(&mut [PollFd::new(&self.device, PollFlags::IN)], None);
                }
                Err(_) => break,
            }
        }
        // The worker and all that wait here learn it from these.
        let _ = shutdown(&*self.state().socket, Shutdown::Both);
        let _ = shutdown(&self.control, Shutdown::Both);
    }

    fn pass_request(&self, message: &[u8]) {
        let mut socket = self.enter(message);
        while send(&socket, message).is_err() && unanswerable(message) {
            let mut state = self.state();
            if Arc::ptr_eq(&socket, &state.socket) {
                return state.undelivered.push(message.into());
            }
            socket = Arc::clone(&state.socket);
        }
    }

    /// Begins with a worker: what its predecessors left comes first. Gives the thread that passes its replies on.
    fn serve(self: &Arc<Self>, socket: Arc<OwnedFd>, unread: Vec<Message>) -> io::Result<JoinHandle<()>> {
        let mut state = self.state();
        // In one step with the look at what is unanswered: whatever is entered later is sent by who enters it.
        state.socket = Arc::clone(&socket);
        let mut first: Vec<Message> = state.unanswered.values().cloned().collect();
        for request in &mut first {
            let marked = unique(request).unwrap_or(0) | UNIQUE_RESEND;
            request[UNIQUE].copy_from_slice(&marked.to_ne_bytes());
        }
        first.extend(unread);
        first.append(&mut state.undelivered);
        drop(state);
        let (proxy, worker) = (Arc::clone(self), Arc::clone(&socket));
        let replies = move || proxy.pass_replies(&worker);
        let replies = thread::Builder::new().name("replies".into()).spawn(replies)?;
        for message in first {
            if send(&socket, &message).is_err() {
                // It has died already. The next one gets all of this again.
                self.state().undelivered.extend(unanswerable(&message).then_some(message));
            }
        }
        Ok(replies)
    }

    /// Messages of a worker, until there are no more.
    fn pass_replies(&self, socket: &OwnedFd) {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let length = match recv(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length @ 1.., _)) => length,
                Err(Failure::INTR) => continue,
                Ok(_) | Err(_) => return,
            };
            let message = &mut buffer[..length];
            let Some(number) = unique(message) else { continue };
            if number == 0 {
                // An error means that the mount has ended.
                let _ = self.notices.send((*message).into());
                continue;
            }
            let number = number & !UNIQUE_RESEND;
            message[UNIQUE].copy_from_slice(&number.to_ne_bytes());
            self.state().unanswered.remove(&number);
            self.give(message);
        }
    }

    /// Gives the kernel a reply or a notification.
    fn give(&self, message: &[u8]) {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.device, message)) {
            // Its program no longer waits, or has ended.
            Ok(_) | Err(Failure::NOENT | Failure::NODEV | Failure::PERM | Failure::NOTCONN) => {}
            Err(_) => {
                // A reply that the kernel does not understand still owes one.
                let Some(number) = unique(message).filter(|&number| number != 0) else { return };
                let error = OutHeader::error(number, Errno::EIO.0).encode();
                let _ = rustix::io::write(&self.device, &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of the kernel without arguments.
    fn request(opcode: Opcode, unique: u64) -> Message {
        let len = InHeader::SIZE as u32;
        InHeader { len, opcode: opcode as u32, unique, ..InHeader::default() }.encode().into()
    }

    fn received(socket: &OwnedFd) -> Message {
        let mut buffer = [0; 4096];
        let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        buffer[..length].into()
    }

    #[test]
    fn the_next_worker_gets_what_was_not_answered_and_what_was_not_read() {
        let (control, theirs) = pair().unwrap();
        let (kernel, device) = pair().unwrap();
        let proxy = thread::spawn(|| attend(theirs));
        let (init, read, unread) = (Opcode::Init, Opcode::Read, Opcode::Getattr);
        let first = connect(control.as_fd(), device.as_fd(), &request(init, 2)).unwrap();
        drop(device);
        assert_eq!(received(&first), request(init, 2 | UNIQUE_RESEND));
        let reply = |unique: u64| OutHeader::ok(unique, 0).encode();
        send(&first, &reply(2 | UNIQUE_RESEND)).unwrap();
        assert_eq!(*received(&kernel), reply(2), "the kernel's own number");
        for message in [request(read, 4), request(unread, 6), request(Opcode::Forget, 8)] {
            send(&kernel, &message).unwrap();
        }
        assert_eq!(received(&first), request(read, 4));
        send(&first, &reply(0)).unwrap();
        assert_eq!(*received(&kernel), reply(0), "a notification");
        // The two that it does not read are with it.
        while rustix::io::ioctl_fionread(&first).unwrap() < 2 * InHeader::SIZE as u64 {
            thread::yield_now();
        }

        let second = reconnect(control.as_fd(), first.as_fd()).unwrap();
        let expected = [
            request(read, 4 | UNIQUE_RESEND),
            request(unread, 6 | UNIQUE_RESEND),
            request(Opcode::Forget, 8),
        ];
        assert_eq!(expected.clone().map(|_| received(&second)), expected);
        send(&second, &reply(4 | UNIQUE_RESEND)).unwrap();
        assert_eq!(*received(&kernel), reply(4));
        drop(kernel);
        assert_eq!(received(&second).len(), 0, "the end of the mount");
        proxy.join().unwrap().unwrap();
    }
}
