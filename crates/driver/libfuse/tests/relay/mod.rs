// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stands between the driver and a program, and kills the program at a chosen request.

use outrigger_driver_libfuse::launch::Program;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
    sockopt,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// When the program dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// It has not seen the request.
    BeforeSending,
    /// It has the request, and may or may not have done it.
    Unanswered,
    /// It has answered, and the answer was dropped.
    AnswerDropped,
}

pub struct Relay {
    /// The request at which it is killed, and when.
    pub kill: Option<(u64, Point)>,
    /// The same for the first request with this opcode.
    pub kill_first: Option<(u32, Point)>,
    /// Requests with these bytes crash it, each time.
    pub poison: Option<&'static [u8]>,
    /// So many programs are killed when they get a request with these bytes.
    pub victims: Option<(&'static [u8], u64)>,
    /// Requests with these bytes do not reach it.
    pub silent: Option<&'static [u8]>,
    /// The same, for the first program only.
    pub hang: Option<&'static [u8]>,
    /// The answer to the first request with these bytes is held back until [`Relay::let_go`].
    pub hold: Option<&'static [u8]>,
    /// Kills each program at a moment between two replies that are drawn from this seed.
    pub now_and_then: Option<u64>,
    programs: AtomicU64,
    /// Ends the program, as it is, by a signal.
    killer: Box<dyn Fn(Signal) + Send + Sync>,
    seen: AtomicU64,
    /// The request whose answer is dropped, and the one whose answer is held back.
    dropped: AtomicU64,
    waited_for: AtomicU64,
    held: Mutex<Option<(Arc<Between>, Vec<u8>)>>,
    is_held: Condvar,
    /// Requests by opcode.
    counts: [AtomicU64; 64],
}

/// By when everything here must have happened, on the slowest machine.
const SOON: Duration = Duration::from_secs(60);
const FORGET: u32 = 2;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

impl Relay {
    pub fn new(killer: Box<dyn Fn(Signal) + Send + Sync>) -> Self {
        Relay {
            kill: None,
            poison: None,
            victims: None,
            silent: None,
            hang: None,
            kill_first: None,
            hold: None,
            now_and_then: None,
            programs: AtomicU64::new(0),
            killer,
            seen: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            waited_for: AtomicU64::new(0),
            held: Mutex::new(None),
            is_held: Condvar::new(),
            counts: [const { AtomicU64::new(0) }; 64],
        }
    }

    /// Requests seen so far, without those that only begin, end and forget.
    pub fn requests(&self) -> u64 {
        self.seen.load(SeqCst)
    }

    /// Programs started so far.
    pub fn programs(&self) -> u64 {
        self.programs.load(SeqCst)
    }

    /// Requests seen so far with this opcode.
    pub fn count(&self, opcode: u32) -> u64 {
        self.counts[opcode as usize].load(SeqCst)
    }

    /// Kills the program now.
    pub fn kill_now(&self) {
        (self.killer)(Signal::KILL);
    }

    /// Waits until an answer is held back.
    pub fn wait_until_held(&self) {
        let held = self.held.lock().unwrap();
        let (held, _) = self.is_held.wait_timeout_while(held, SOON, |held| held.is_none()).unwrap();
        assert!(held.is_some(), "nothing to hold back has come");
    }

    /// Passes on the answer that was held back.
    pub fn let_go(&self) {
        let (between, message) = self.held.lock().unwrap().take().unwrap();
        send(&between.near, &message, SendFlags::NOSIGNAL).unwrap();
    }

    /// Steps between the driver and `program`.
    pub fn put(self: &Arc<Self>, program: Program) -> Program {
        self.programs.fetch_add(1, SeqCst);
        let Program { socket, message_max, mounted, processes } = program;
        let (ours, near) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for end in [&ours, &near] {
            sockopt::set_socket_send_buffer_size(end, 1 << 20).unwrap();
        }
        let message_max = message_max.min(sockopt::socket_send_buffer_size(&near).unwrap() - 32);
        let between = Arc::new(Between { near, far: socket });
        let (relay, ends) = (Arc::clone(self), Arc::clone(&between));
        thread::spawn(move || relay.requests_pass(&ends));
        let relay = Arc::clone(self);
        thread::spawn(move || relay.replies_pass(&between));
        Program { socket: ours, message_max, mounted, processes }
    }

    fn die(&self, between: &Between) {
        (self.killer)(Signal::KILL);
        between.hang_up();
    }

    fn requests_pass(&self, between: &Between) {
        let mut buffer = vec![0; 2 << 20];
        while let Ok((_, length @ 1..)) = recv(&between.near, &mut buffer[..], RecvFlags::empty()) {
            let message = &buffer[..length];
            let word = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
            let counts = ![FORGET, INIT, DESTROY, BATCH_FORGET].contains(&word(4));
            let number = if counts { self.seen.fetch_add(1, SeqCst) + 1 } else { 0 };
            let unique = u64::from_ne_bytes(message[8..16].try_into().unwrap());
            let earlier = self.counts[word(4) as usize % 64].fetch_add(1, SeqCst);
            let first = self.kill_first.filter(|(opcode, _)| *opcode == word(4) && earlier == 0);
            let chosen = self.kill.filter(|(at, _)| *at == number).map(|(_, point)| point);
            let point = chosen.or(first.map(|(_, point)| point));
            let has = |bytes: &[u8]| message.windows(bytes.len()).any(|part| part == bytes);
            if self.silent.is_some_and(has) || (self.programs() == 1 && self.hang.is_some_and(has)) {
                continue;
            }
            if self.poison.is_some_and(has) {
                // How it ends is not for us to decide: its connection hangs up when it has.
                return (self.killer)(Signal::SEGV);
            }
            let is_victim = self.victims.is_some_and(|(bytes, most)| has(bytes) && self.programs() <= most);
            if point == Some(Point::BeforeSending) || is_victim {
                return self.die(between);
            }
            if point == Some(Point::AnswerDropped) {
                self.dropped.store(unique, SeqCst);
            }
            if self.hold.is_some_and(has) && self.waited_for.load(SeqCst) == 0 {
                self.waited_for.store(unique, SeqCst);
            }
            if send(&between.far, message, SendFlags::NOSIGNAL).is_err() {
                return self.die(between);
            }
            if point == Some(Point::Unanswered) {
                return self.die(between);
            }
        }
        between.hang_up();
    }

    fn replies_pass(self: &Arc<Self>, between: &Arc<Between>) {
        let drawn = self.now_and_then.map(|seed| {
            let mut random = fastrand::Rng::with_seed(seed + self.programs());
            let first = random.u64(15..60);
            (first, first + random.u64(1..20))
        });
        let (mut replies, mut killing) = (0, None);
        let mut buffer = vec![0; 2 << 20];
        while let Ok((_, length @ 1..)) = recv(&between.far, &mut buffer[..], RecvFlags::empty()) {
            let message = &buffer[..length];
            let unique = u64::from_ne_bytes(message[8..16].try_into().unwrap());
            replies += 1;
            if drawn.is_some_and(|(first, _)| replies == first) {
                // Not here, so that the program is anywhere when it dies.
                let relay = Arc::clone(self);
                killing = Some(thread::spawn(move || (relay.killer)(Signal::KILL)));
            }
            if drawn.is_some_and(|(_, last)| replies == last) {
                // A thread that has not run by now would come when all is done.
                killing.take().into_iter().for_each(|killing| killing.join().unwrap());
            }
            if unique != 0 && unique == self.dropped.load(SeqCst) {
                return self.die(between);
            }
            if unique != 0 && unique == self.waited_for.load(SeqCst) {
                *self.held.lock().unwrap() = Some((Arc::clone(between), message.to_vec()));
                self.is_held.notify_all();
                continue;
            }
            if send(&between.near, message, SendFlags::NOSIGNAL).is_err() {
                break;
            }
        }
        between.hang_up();
    }
}

/// Ends the processes called `program` whose arguments name `path`, as they are, by a signal.
pub fn kill(program: &str, path: &Path, signal: Signal) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = command.split(|&byte| byte == 0);
        let is_program = words.next().is_some_and(|word| word.ends_with(program.as_bytes()));
        let path = path.as_os_str().as_bytes();
        if is_program && words.any(|word| word.windows(path.len()).any(|part| part == path)) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }
}

struct Between {
    near: OwnedFd,
    far: OwnedFd,
}

impl Between {
    fn hang_up(&self) {
        // What hung up already stays so.
        let _ = shutdown(&self.near, Shutdown::Both);
        let _ = shutdown(&self.far, Shutdown::Both);
    }
}
