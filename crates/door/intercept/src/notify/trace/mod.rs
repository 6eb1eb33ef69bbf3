// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of programs that this process traces (ptrace(2)): where the kernel passes none on to a listener, as in another run of that kind.
//!
//! One thread, the tracer, has all programs: the kernel takes requests about them from no other. It is woken by SIGCHLD when a thread of
//! a program stops, and by the threads that answer calls ([`Tracer`]). A thread of a program stops
//!
//! * at calls with paths only, where the process could get a filter that says so (`SECCOMP_RET_TRACE`),
//! * at the beginning and the end of each call otherwise: the answer of a filter that is there already, a container's or that of another
//!   run, would come before ours.
//!
//! Programs end with this process (`PTRACE_O_EXITKILL`): after its death they would find local files under the names of trees, and change real
//! files whose changes are to be kept apart.
//!
//! | module | what it holds |
//! |---|---|
//! | `mod.rs` | what the threads that answer calls have done |
//! | `stops.rs` | the thread that traces |
//! | `stopped.rs` | a thread of a program that stops |
//! | `lent.rs` | permissions that files have while a program opens them |

mod lent;
mod stopped;
mod stops;

use super::names::{Names, is_below};
use super::process::Process;
use super::redirect::is_mapped;
use super::source::{Call, Refused, Source};
use crate::failed;
use crate::launch::Filter;
use nix::errno::Errno;
use rustix::fs::{SeekFrom, seek};
use rustix::io::write;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use stops::Stops;

/// What a thread of a program is to do whose call waits.
enum Order {
    /// Make the call.
    Pass,
    /// Take this for what the call came to.
    Answer(i64),
    /// Open this file, which is open here; whether execve(2) closes it, and whether the call can be made once more.
    Give(OwnedFd, bool, bool),
    /// Have memory for arguments, and wait for another order. Whether it has is sent.
    Prepare(Sender<Result<(), Errno>>),
    /// Go to this place in a file that it has open, and wait for another order. Whether it has is sent.
    Seek(i32, u64, Sender<Result<(), Errno>>),
    /// Make the call with bytes in its memory and other arguments. Whether it does is sent.
    Redirect(Vec<u8>, Vec<(usize, u64)>, Sender<Result<(), Errno>>),
}

/// What the tracer and the threads that answer calls share.
#[derive(Default)]
struct State {
    calls: VecDeque<Call>,
    /// The threads of programs that wait, and the numbers of their calls.
    waiting: HashMap<i32, u64>,
    orders: Vec<(Call, Order)>,
    /// How the program that was started has ended.
    status: Option<ExitStatus>,
    /// No program is left.
    is_over: bool,
}

/// Programs that are traced.
pub struct Tracer {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the thread.
    wake: UnixStream,
    /// Which calls are answered.
    filter: Filter,
    /// The directories with the files of this server: the permissions of no others are changed.
    own: OnceLock<Vec<Vec<u8>>>,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}

impl Tracer {
    /// Traces a child of this process that waits, and all that it will start. `is_filtered` says that it stops at calls with paths only.
    ///
    /// # Errors
    /// A sentence about what this system does not permit.
    pub(crate) fn start(child: u32, is_filtered: bool, filter: Filter) -> Result<Arc<Self>, String> {
        let (wake, woken) = UnixStream::pair().map_err(failed("no socket"))?;
        for end in [&wake, &woken] {
            end.set_nonblocking(true).map_err(failed("no socket"))?;
        }
        let signalled = wake.try_clone().map_err(failed("no socket"))?;
        signal_hook::low_level::pipe::register(libc::SIGCHLD, signalled).map_err(failed("SIGCHLD"))?;
        let tracer = Arc::new(Tracer {
            state: Mutex::default(),
            changed: Condvar::new(),
            wake,
            filter,
            own: OnceLock::new(),
        });
        let (sender, begun) = channel();
        let shared = Arc::clone(&tracer);
        let trace = move || match Stops::begin(child, is_filtered, shared, woken) {
            Ok(mut stops) => {
                let _ = sender.send(Ok(()));
                stops.attend();
            }
            Err(why) => _ = sender.send(Err(why)),
        };
        thread::Builder::new().name("tracer".into()).spawn(trace).map_err(failed("no thread"))?;
        begun.recv().unwrap_or_else(|_| Err(crate::DEFECT.to_owned())).map(|()| tracer)
    }

    /// Waits for the end of the program that was started, which is no child to be waited for otherwise.
    pub fn wait(&self) -> ExitStatus {
        let mut state = self.lock();
        loop {
            match state.status {
                Some(status) => return status,
                // It has ended with its tracer.
                None if state.is_over => {
                    return std::os::unix::process::ExitStatusExt::from_raw(libc::SIGKILL);
                }
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Says where the files of this server are.
    pub(crate) fn knows(&self, names: &Names) {
        let mirror = names.mirror().as_os_str().as_bytes().to_vec();
        let upper = names.overlay().map(|overlay| overlay.real(b""));
        // The server says it once.
        let _ = self.own.set([mirror].into_iter().chain(upper).collect());
    }

    /// Whether the path of an open file is that of one of this server.
    fn is_own(&self, path: &[u8]) -> bool {
        self.own.get().is_some_and(|own| own.iter().any(|dir| is_below(path, dir)))
    }

    /// Whether local files are kept apart.
    fn is_apart(&self) -> bool {
        self.filter == Filter::Apart
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        outrigger_core::lock(&self.state)
    }

    /// Tells the tracer what is to become of a call.
    fn order(&self, call: &Call, order: Order) {
        let mut state = self.lock();
        if state.is_over {
            // Who waits for what becomes of one learns that there is no program any more.
            return;
        }
        state.orders.push((*call, order));
        drop(state);
        // When it is full the thread is about to look.
        let _ = write(&self.wake, &[0]);
    }
}

impl Source for Tracer {
    fn receive(&self) -> io::Result<Option<Call>> {
        let mut state = self.lock();
        loop {
            match state.calls.pop_front() {
                Some(call) => return Ok(Some(call)),
                None if state.is_over => return Ok(None),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn waits(&self, call: &Call) -> bool {
        self.lock().waiting.get(&call.pid.cast_signed()) == Some(&call.id)
    }

    fn pass(&self, call: &Call) {
        self.order(call, Order::Pass);
    }

    fn answer(&self, call: &Call, result: Result<i64, i32>) {
        self.order(call, Order::Answer(result.unwrap_or_else(|errno| -i64::from(errno))));
    }

    fn give(&self, call: &Call, file: OwnedFd, close_on_exec: bool) {
        self.order(call, Order::Give(file, close_on_exec, !makes_only(call)));
    }

    /// The program goes to the place itself.
    fn replace(&self, call: &Call, number: i32, file: BorrowedFd<'_>, _: bool) -> io::Result<()> {
        let place = seek(file, SeekFrom::Current(0))?;
        let (sender, done) = channel();
        self.order(call, Order::Seek(number, place, sender));
        // Without a tracer the program has ended.
        Ok(done.recv().unwrap_or(Err(Errno::ESRCH))?)
    }

    /// It opens them by their path here, which takes memory.
    fn can_give(&self, call: &Call, dir: &Path, changes: bool) -> Result<(), Refused> {
        let process = Process { thread: call.pid.cast_signed() };
        match process.sees(dir) {
            Ok(true) => {}
            Ok(false) => return Err(Refused::Root),
            Err(_) => return Err(Refused::Gone),
        }
        if changes && self.is_apart() && !process.has_privileges() {
            return Err(Refused::Privileges);
        }
        if is_mapped(process.memory()) {
            return Ok(());
        }
        let (sender, done) = channel();
        self.order(call, Order::Prepare(sender));
        match done.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(Refused::Memory(errno)),
            Err(_) => Err(Refused::Gone),
        }
    }

    fn redirect(
        self: Arc<Self>,
        call: &Call,
        bytes: Vec<u8>,
        arguments: Vec<(usize, u64)>,
    ) -> Result<(), Errno> {
        let (sender, done) = channel();
        self.order(call, Order::Redirect(bytes, arguments, sender));
        // Without a tracer the program has ended.
        done.recv().unwrap_or(Ok(()))
    }

    fn comes_again(&self) -> bool {
        false
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let (mut state, until) = (self.lock(), Instant::now() + limit);
        while !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Whether a call makes a file, and fails where there is one: it would find its own.
fn makes_only(call: &Call) -> bool {
    let flags = match i64::from(call.data.nr) {
        libc::SYS_open => call.data.args[1],
        libc::SYS_openat => call.data.args[2],
        // openat2(2) has them in memory.
        libc::SYS_openat2 => return true,
        _ => 0,
    };
    flags & libc::O_EXCL as u64 != 0
}
