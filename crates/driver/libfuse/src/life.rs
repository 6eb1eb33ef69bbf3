// SPDX-License-Identifier: MIT OR Apache-2.0
//! One running program after the other.

use crate::conn::{Conn, Ends, OnNotice};
use crate::launch::{End, LaunchError, Mounted, Processes, Program};
use crate::message::{Caller, Fault, Lost, Message};
use crate::nodes::Epoch;
use crate::options::Options;
use crate::turn::forget;
use outrigger_core::runtime::until;
use outrigger_core::{Cancel, Errno, Error, Result, Runtime, lock};
use outrigger_proto_fuse::{BatchForgetIn, ForgetOne, InitFlags, InitIn, InitOut, MAJOR, MINOR, Opcode};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The largest read or write, in bytes.
const MOST_IO: u32 = 1 << 20;
/// The largest read or write of a program that does not count in pages (32 of them).
const OLD_IO: u32 = 128 << 10;
const PAGE: u32 = 4096;
/// Room beside the content of a message: header and arguments.
const ARGUMENTS: usize = 8192;
/// The oldest minor version whose messages read as those of today: since 7.12 MKNOD and CREATE have a umask. What 7.13
/// and later added is fields at the end of INIT, which count as zero, and requests that a program may not know.
const OLDEST_MINOR: u32 = 12;
/// Since this minor version there is BATCH_FORGET.
const BATCH_FORGET_MINOR: u32 = 16;
/// How long a killed program may take to end until the next one is started beside it.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// Starts the program; tests stand between it and us.
pub type Starter = Box<dyn Fn(Instant) -> Result<Program, LaunchError> + Send + Sync>;

/// A running program.
pub(crate) struct Life {
    pub(crate) epoch: Epoch,
    pub(crate) conn: Arc<Conn>,
    pub(crate) agreed: InitOut,
    /// The most bytes of one read. Writes are cut to what was agreed.
    pub(crate) max_io: u32,
    pub(crate) mounted: Mounted,
    /// It was asked for the inode number of the root.
    pub(crate) knows_root: AtomicBool,
    /// How much it had answered when it was given the tree.
    begun_at: u64,
    processes: Processes,
    /// How it ended, once that is known.
    end: OnceLock<End>,
}

impl Life {
    /// Starts a program and agrees with it on the protocol. Blocks.
    ///
    /// # Errors
    /// What went wrong, with what the program said.
    pub(crate) fn begin(
        epoch: Epoch,
        starter: &Starter,
        options: &Options,
        runtime: &Arc<dyn Runtime>,
        on_notice: OnNotice,
    ) -> Result<Self> {
        let deadline = Instant::now() + options.start_timeout;
        let program = starter(deadline).map_err(|error| Errno::EIO.because(error.to_string()))?;
        let Program { socket, message_max, mounted, processes } = program;
        let limit = message_max.min(MOST_IO as usize + ARGUMENTS);
        let ends = Ends { socket, watch: processes.ended().ok() };
        let conn = Conn::new(ends, limit, options.restart_on_hang, runtime, on_notice)?;
        let room = u32::try_from(limit.saturating_sub(ARGUMENTS)).unwrap_or(MOST_IO) / PAGE * PAGE;
        let agreed = match init(&conn, room, &**runtime, options.start_timeout) {
            Ok(agreed) => agreed,
            Err(error) => {
                conn.close("it could not be agreed on a protocol");
                processes.kill();
                let said = processes.said();
                return Err(error.errno.because(with_output(&error.why(), &said)));
            }
        };
        let pages = if agreed.flags.contains(InitFlags::MAX_PAGES) {
            u32::from(agreed.max_pages).max(1) * PAGE
        } else {
            OLD_IO
        };
        let max_read =
            option(&mounted, "max_read").and_then(|value| value.parse().ok()).filter(|&max| max > 0);
        let max_io = pages.min(max_read.unwrap_or(u32::MAX)).clamp(PAGE, room.max(PAGE));
        let (knows_root, end) = (AtomicBool::new(false), OnceLock::new());
        Ok(Life { epoch, conn, agreed, max_io, mounted, knows_root, begun_at: 0, processes, end })
    }

    /// It is given the tree: what it answers from now on serves.
    pub(crate) fn begins(&mut self) {
        self.begun_at = self.conn.answered();
    }

    /// Whether it has answered a request since it was given the tree.
    pub(crate) fn has_served(&self) -> bool {
        self.conn.answered() > self.begun_at
    }

    /// Ends the program. Blocks until it has ended, but not for ever.
    pub(crate) fn end(&self) -> Option<End> {
        self.conn.close("the program was ended");
        self.processes.kill();
        let exit = self.processes.wait(Instant::now() + LAST_BREATH)?;
        Some(*self.end.get_or_init(|| exit.end))
    }

    /// Whether another process ended it, and no request: its connection hung up, and the signal was the one that
    /// no program ends itself by. What the kernel kills for want of memory is counted here, too.
    pub(crate) fn was_killed(&self) -> bool {
        self.conn.hung_up() && self.end.get() == Some(&End::Signal(libc::SIGKILL))
    }

    /// Tells the program that the tree is closed, and waits until it has ended: it may store only then what it was given.
    /// After `patience` it is killed. Blocks.
    ///
    /// # Errors
    /// `ETIMEDOUT` when it had to be killed.
    pub(crate) fn goodbye(&self, patience: Duration) -> Result<()> {
        let cancel = Cancel::default();
        let mut exchange = pin!(self.conn.ask(Message::new(Opcode::Destroy, 0), Caller::default(), &cancel));
        let deadline = Instant::now() + patience;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        while exchange.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) => thread::park_timeout(left),
                None => break,
            }
        }
        // Its connection hangs up: it may end by itself.
        self.conn.close("the tree was closed");
        if self.processes.wait(deadline).is_some() {
            return Ok(());
        }
        self.end();
        let why = "the program did not end and was killed: it may not have stored everything";
        tracing::error!("{why}");
        Err(Errno::ETIMEDOUT.because(why))
    }

    /// What the door knows of it.
    pub(crate) fn terms(&self) -> Terms {
        Terms {
            flags: self.agreed.flags,
            max_io: self.max_io,
            read_only: self.mounted.flags & libc::MS_RDONLY != 0 || option(&self.mounted, "ro").is_some(),
            allow_other: option(&self.mounted, "allow_other").is_some(),
            // A kernel that obeys access lists checks all permissions.
            default_permissions: option(&self.mounted, "default_permissions").is_some()
                || self.has(InitFlags::POSIX_ACL),
        }
    }

    /// What the program said last, for people.
    pub(crate) fn said(&self) -> String {
        self.processes.said()
    }

    /// Returns references, as pairs of the program's numbers and counts.
    pub(crate) fn forget(&self, forgotten: &[(u64, u64)]) {
        if forgotten.len() < 2 || self.agreed.minor < BATCH_FORGET_MINOR {
            return forgotten.iter().for_each(|&(node, count)| self.conn.send_only(forget(node, count)));
        }
        let count = u32::try_from(forgotten.len()).unwrap_or(u32::MAX);
        let batch = Message::new(Opcode::BatchForget, 0).with(&BatchForgetIn { count }.encode());
        let add = |message: Message, &(nodeid, nlookup): &(u64, u64)| {
            message.with(&ForgetOne { nodeid, nlookup }.encode())
        };
        self.conn.send_only(forgotten.iter().fold(batch, add));
    }

    /// Whether it agreed to do this.
    pub(crate) fn has(&self, ability: InitFlags) -> bool {
        self.agreed.flags.contains(ability)
    }
}

/// What the door knows of the first program, and all that follow must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) flags: InitFlags,
    pub(crate) max_io: u32,
    pub(crate) read_only: bool,
    pub(crate) allow_other: bool,
    pub(crate) default_permissions: bool,
}

impl Terms {
    /// Whether a program that brings `other` can take over.
    ///
    /// # Errors
    /// `EPROTO` with what is different.
    pub(crate) fn suit(&self, other: &Terms) -> Result<()> {
        let refuse = |why: String| Err(Errno::EPROTO.because(why));
        for (name, ours, theirs) in [
            ("ro", self.read_only, other.read_only),
            ("allow_other", self.allow_other, other.allow_other),
            ("default_permissions", self.default_permissions, other.default_permissions),
        ] {
            let with = |has| if has { "with" } else { "without" };
            if ours != theirs {
                let (ours, theirs) = (with(ours), with(theirs));
                return refuse(format!(
                    "it mounts {theirs} the option {name}, and the mount was made {ours}"
                ));
            }
        }
        for (flag, what) in [
            (InitFlags::POSIX_LOCKS, "POSIX locks"),
            (InitFlags::FLOCK_LOCKS, "BSD locks"),
            (InitFlags::DO_READDIRPLUS, "listings with attributes"),
            (InitFlags::POSIX_ACL, "access lists"),
        ] {
            if self.flags.contains(flag) && !other.flags.contains(flag) {
                return refuse(format!("it does not support {what}, as the mount was promised"));
            }
        }
        if other.max_io < self.max_io {
            let (theirs, ours) = (other.max_io, self.max_io);
            return refuse(format!("it reads {theirs} bytes at most, and the mount was promised {ours}"));
        }
        Ok(())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.conn.close("the program was ended");
        self.processes.kill();
    }
}

/// `error` and the last that the program said.
pub(crate) fn with_output(error: &str, said: &str) -> String {
    let last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    match last.is_empty() {
        true => error.to_owned(),
        false => format!("{error}; it said: {}", last.into_iter().rev().collect::<Vec<_>>().join("; ")),
    }
}

/// The value of a mount option; empty when it has none.
pub(crate) fn option<'a>(mounted: &'a Mounted, name: &str) -> Option<&'a str> {
    let mut options = mounted.options.to_str()?.split(',');
    options.find_map(|item| match item.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => (item == name).then_some(""),
    })
}

/// What we can honour as a kernel does. Not offered: splicing (a socket copies anyway), a cache that collects writes,
/// security contexts, passthrough.
fn offer() -> InitIn {
    let flags = InitFlags::ASYNC_READ
        | InitFlags::POSIX_LOCKS
        | InitFlags::FLOCK_LOCKS
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::NO_OPEN_SUPPORT
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::POSIX_ACL
        | InitFlags::SETXATTR_EXT
        | InitFlags::MAX_PAGES
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::EXPLICIT_INVAL_DATA
        | InitFlags::INIT_EXT;
    InitIn { major: MAJOR, minor: MINOR, max_readahead: MOST_IO, flags }
}

fn init(conn: &Conn, room: u32, runtime: &dyn Runtime, within: Duration) -> Result<InitOut> {
    let message = Message::new(Opcode::Init, 0).with(&offer().encode());
    let cancel = Cancel::default();
    let deadline = runtime.monotonic().saturating_add(within);
    let exchange = conn.ask(message, Caller::default(), &cancel);
    let replied = match block_on(until(runtime, deadline, exchange)) {
        None => {
            return Err(Errno::ETIMEDOUT.because("the program has not answered the first message in time"));
        }
        Some(Err(Lost { why, .. })) => return Err(Errno::EIO.because(why)),
        Some(Ok(replied)) if replied.errno != 0 => {
            let why = format!("the program refused the protocol: {}", Errno(replied.errno));
            return Err(Errno::EPROTO.because(why));
        }
        Some(Ok(replied)) => replied,
    };
    let mut agreed =
        InitOut::decode(&replied.body).map_err(|error| Errno::EPROTO.because(error.to_string()))?;
    if agreed.minor < OLDEST_MINOR {
        return Err(
            Errno::EPROTO.because(format!("the program speaks FUSE 7.{}, which is too old", agreed.minor))
        );
    }
    agreed.minor = agreed.minor.min(MINOR);
    agreed.flags &= offer().flags;
    agreed.max_write = match agreed.flags.contains(InitFlags::BIG_WRITES) {
        true => agreed.max_write.clamp(PAGE, room.max(PAGE)),
        false => PAGE,
    };
    Ok(agreed)
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Which program runs now.
pub(crate) struct Lives {
    state: Mutex<State>,
}

enum State {
    Running(Arc<Life>),
    /// The next one is being started; these wait for it.
    Starting(Vec<Waker>),
    /// Nothing helps for a while.
    GivenUp(Error),
    Ended,
}

/// What a request that needs a program has to do.
pub(crate) enum Need {
    /// Use it.
    Use(Arc<Life>),
    /// Wait: the next one is being started.
    Wait,
    /// Start the next one, after this one if there is one; the duty is yours alone.
    Start(Option<Arc<Life>>),
}

impl Lives {
    pub(crate) fn new(first: Arc<Life>) -> Self {
        Lives { state: Mutex::new(State::Running(first)) }
    }

    /// The running program; an error while starts are given up.
    pub(crate) fn need(&self, waker: &Waker, is_given_up: bool) -> Result<Need, Fault> {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Running(life) if life.conn.over().is_none() => Ok(Need::Use(Arc::clone(life))),
            State::Running(life) => {
                let dead = Arc::clone(life);
                *state = State::Starting(vec![waker.clone()]);
                Ok(Need::Start(Some(dead)))
            }
            State::Starting(waiting) => {
                waiting.push(waker.clone());
                Ok(Need::Wait)
            }
            State::GivenUp(error) if is_given_up => Err(error.clone().into()),
            State::GivenUp(..) => {
                *state = State::Starting(vec![waker.clone()]);
                Ok(Need::Start(None))
            }
            State::Ended => Err(Errno::ENOTCONN.because("the tree was closed").into()),
        }
    }

    /// Holds requests back, as between two programs, until [`Lives::started`]: gives the program that served.
    ///
    /// # Errors
    /// `EBUSY` while a program is being started, `ENOTCONN` when the tree was closed.
    pub(crate) fn suspend(&self) -> Result<Option<Arc<Life>>> {
        let mut state = lock(&self.state);
        match &*state {
            State::Starting(_) => {
                return Err(Errno::EBUSY.because("the program is just being started: try again"));
            }
            State::Ended => return Err(Errno::ENOTCONN.because("the tree was closed")),
            State::Running(_) | State::GivenUp(..) => {}
        }
        match std::mem::replace(&mut *state, State::Starting(Vec::new())) {
            State::Running(life) => Ok(Some(life)),
            _ => Ok(None),
        }
    }

    /// Wakes the requests that wait, with the outcome of the start.
    pub(crate) fn started(&self, outcome: Result<Arc<Life>>) {
        let next = match outcome {
            Ok(life) => State::Running(life),
            Err(error) => State::GivenUp(error),
        };
        let mut state = lock(&self.state);
        if matches!(*state, State::Ended) {
            return;
        }
        let before = std::mem::replace(&mut *state, next);
        drop(state);
        if let State::Starting(waiting) = before {
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// No program runs any more.
    pub(crate) fn end(&self) -> Option<Arc<Life>> {
        match std::mem::replace(&mut *lock(&self.state), State::Ended) {
            State::Running(life) => Some(life),
            State::Starting(waiting) => {
                waiting.into_iter().for_each(Waker::wake);
                None
            }
            _ => None,
        }
    }

    /// Whether the tree was closed.
    pub(crate) fn ended(&self) -> bool {
        matches!(*lock(&self.state), State::Ended)
    }

    /// The running program, if one runs.
    pub(crate) fn now(&self) -> Option<Arc<Life>> {
        match &*lock(&self.state) {
            State::Running(life) => Some(Arc::clone(life)),
            _ => None,
        }
    }
}
