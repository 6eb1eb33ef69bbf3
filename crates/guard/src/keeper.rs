// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that supervises the workers of one mount.
//!
//! It has one thread and waits for one thing: a signal or a tick of its timer. It opens, locks and allocates nothing
//! while programs are served, so there is little in it that could fail.

use crate::death;
use crate::exec::{become_keeper, inherited};
use crate::manager::Manager;
use crate::region::Mapping;
use crate::seat::Seat;
use crate::signals::{
    AWAITED, ENDING, OWN, READY_SIGNAL, block_signals, next_signal, on_signal, stay_pending, unblock_signals,
};
use crate::stand_in::{GIVE_UP, StandIn, TRY_AGAIN};
use crate::state::{Phase, State, UNGUARDED};
use outrigger_core::supervise::{Policy, Supervisor};
use outrigger_core::{Errno, Result, Time};
use outrigger_host::{close_inherited, named_descriptors, seal_descriptors};
use outrigger_layer_journal::{REGION, Watch};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How a mount is watched.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Replace a worker whose oldest request is older than this.
    pub restart_on_hang: Option<Duration>,
    /// Tell the parent process through standard output when programs are served, and leave the terminal then.
    pub background: bool,
    /// Deaths in a row do not end the mount before the first of them is so long ago.
    pub hold: Duration,
    /// What the first worker starts may ask something at the terminal until programs are served.
    pub asks: bool,
    /// The mount ends by unmounting only.
    pub stand_in: Option<StandIn>,
}

/// What standard output says in the background once the mount is there.
pub const READY: &str = "ready\n";

/// A worker whose main thread panicked leaves with this status.
const PANICKED: i32 = 101;
/// How often the keeper looks for a worker that hangs, at least.
const TICK: Duration = Duration::from_secs(1);
/// After four deaths in a row without an answer in between a poisonous request has been found; after twelve the mount is given up,
/// unless it is to be held for longer.
const POLICY: Policy = Policy { at_once: 4, attempts: 12, hold: Duration::ZERO, settled: Duration::MAX };
/// In place of a request's number: the worker hung in none. Requests have even numbers.
const NO_REQUEST: u64 = u64::MAX - 2;
/// SIGHUP is passed on at most this often: it has no effect that two have not, and a flood would leave the worker no time.
const HANGUP_PERIOD: Duration = Duration::from_millis(2);
/// For so long, or for as long as the mount is held, what is to end the mount waits for a worker that is taking over.
const TAKING_OVER: Duration = Duration::from_secs(10);
/// How long a worker may take to record how it crashed.
const CRASHING: Duration = Duration::from_secs(2);

/// Supervises a mount: runs `worker` in a process of its own, and again each time it dies while programs are served.
/// Returns in the keeper, with the status to exit with, when the mount has ended; `worker` never returns into it.
///
/// The process must have one thread.
///
/// # Errors
/// When no worker can be made at all.
pub fn supervise(settings: Settings, worker: &mut dyn FnMut(Seat) -> i32) -> Result<i32> {
    let state = match inherited()? {
        Some(state) => state,
        None => State::create()?,
    };
    let mut mine = named_descriptors(std::env::args_os());
    mine.extend(state.held().chain([state.fd().as_raw_fd()]));
    // SAFETY: a Rust program marks each descriptor that it makes, and those left by a keeper before us are held.
    unsafe { close_inherited(&mine)? };
    seal_descriptors();
    let mut keeper = Keeper::new(settings, state)?;
    if settings.background && !settings.asks && keeper.state.phase() == Phase::Starting {
        rustix::process::setsid().map_err(|errno| Errno(errno.raw_os_error()))?;
    }
    block_signals();
    name_process(c"outrigger-keep");
    loop {
        let verdict = match keeper.start(worker) {
            Ok(()) => {
                let status = keeper.attend();
                keeper.judge(status)
            }
            Err(error) if keeper.state.phase() == Phase::Starting => return Err(error),
            // Memory is short at times, above all when a worker was killed for it.
            Err(_) => keeper.again(false),
        };
        match verdict {
            Verdict::Over(code) => return Ok(code),
            Verdict::Upgrade => keeper.execute(),
            Verdict::Again(pause) => keeper.pause(pause),
        }
    }
}

/// Where this process was started. One that takes over does not stay there, which would only keep that file system busy: each
/// worker returns by itself.
fn start_directory(takes_over: bool) -> PathBuf {
    let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    if takes_over {
        let _ = std::env::set_current_dir("/");
    }
    directory
}

/// What is to be done about the end of a worker.
enum Verdict {
    Over(i32),
    Upgrade,
    Again(Duration),
}

struct Keeper {
    settings: Settings,
    state: State,
    worker: libc::pid_t,
    /// The parent that waits for the mount has its answer.
    told: bool,
    /// The request in which the worker hung, plus one.
    hung: u64,
    /// Since when the worker is stopped by a signal, in monotonic nanoseconds.
    stopped: Option<u64>,
    supervisor: Supervisor,
    /// The worker stands in for those that were given up.
    stands_in: bool,
    /// Of a worker that takes a mount over: how many had done so before it, and since when, in monotonic nanoseconds.
    taking_over: Option<(u64, u64)>,
    /// When the last SIGHUP was passed on, in monotonic nanoseconds.
    hangup_at: u64,
    /// What the worker had answered when it began.
    answered: u64,
    watch: Option<Watch>,
    manager: Option<Manager>,
    /// Where the keeper was started: relative paths on its command line begin there.
    directory: PathBuf,
    /// When the manager last got a sign of life.
    alive_at: u64,
}

impl Keeper {
    fn new(settings: Settings, state: State) -> Result<Self> {
        state.words().keeper().set(u64::from(std::process::id()));
        let told = state.phase() != Phase::Starting;
        let manager = Manager::from_environment();
        if let Some(manager) = &manager {
            state.hold(manager.number())?;
        }
        let policy = POLICY.held(settings.hold);
        let policy = settings.stand_in.map_or(policy, |stand_in| stand_in.policy(policy));
        Ok(Keeper {
            settings,
            state,
            worker: 0,
            told,
            hung: 0,
            stopped: None,
            supervisor: Supervisor::new(policy),
            stands_in: false,
            taking_over: None,
            hangup_at: 0,
            answered: 0,
            watch: None,
            manager,
            directory: start_directory(told),
            alive_at: 0,
        })
    }

    /// Makes the next worker.
    fn start(&mut self, worker: &mut dyn FnMut(Seat) -> i32) -> Result<()> {
        self.state.words().started().set(self.state.words().started().get() + 1);
        let is_mounted = self.state.phase() == Phase::Serving;
        self.taking_over = is_mounted.then(|| (self.state.words().recovered().get(), monotonic()));
        self.look();
        self.answered = self.watch.as_ref().map_or(0, |watch| watch.counts().answered);
        match clone_sharing_descriptors()? {
            0 => {
                let seat = Seat::new(self.state.clone(), self.directory.clone(), self.stands_in);
                std::process::exit(begin(self.settings, seat, worker))
            }
            pid => {
                self.worker = pid;
                self.state.words().worker().set(pid as u64);
                Ok(())
            }
        }
    }

    /// Waits until the worker ends, and does what signals and time demand. Gives its status as waitpid(2) does.
    fn attend(&mut self) -> i32 {
        let tick =
            self.manager.as_ref().and_then(|manager| manager.watchdog).map_or(TICK, |half| half.min(TICK));
        let (mut crashing, mut ending) = (None, None);
        (self.hung, self.stopped) = (0, None);
        loop {
            let (signals, wait) = self.awaited(tick);
            let signal = next_signal(signals, wait);
            if let Some(status) = self.reap() {
                // What it cannot have handled is for the next one; one that has handled what ends a mount has none.
                let unhandled = [signal.filter(|signal| !OWN.contains(signal)), ending];
                unhandled.into_iter().flatten().for_each(stay_pending);
                return status;
            }
            match signal {
                // The worker serves until here: it does not rely on a keeper that dies meanwhile.
                Some(READY_SIGNAL) if self.state.words().upgrade().get() != 0 => self.forward(libc::SIGKILL),
                Some(READY_SIGNAL) => {
                    if !self.stands_in {
                        self.supervisor.started(Duration::from_nanos(monotonic()));
                    }
                    self.mount_is_ready();
                }
                Some(libc::SIGCHLD) | None => {}
                // It does not come to an end, and nothing else can end the mount in good order.
                Some(signal) if self.takes_over_since().is_some() => {
                    self.forward(libc::SIGKILL);
                    self.exit_with_connection(signal);
                }
                Some(signal) => {
                    match signal {
                        libc::SIGHUP => self.hangup_at = monotonic(),
                        _ => ending = Some(signal),
                    }
                    self.forward(signal);
                }
            }
            if let Some(request) = self.hanging() {
                self.hung = request + 1;
                self.forward(libc::SIGKILL);
            }
            self.tell_alive();
            crashing = (self.state.words().crashed().get() != 0).then(|| crashing.unwrap_or_else(monotonic));
            if crashing.is_some_and(|since| Duration::from_nanos(monotonic() - since) > CRASHING) {
                self.forward(libc::SIGKILL);
            }
        }
    }

    /// Since when the worker is taking over, if it still is, in monotonic nanoseconds.
    fn takes_over_since(&self) -> Option<u64> {
        let (before, since) = self.taking_over?;
        let is_at_it = self.state.phase() == Phase::Serving && self.state.words().recovered().get() == before;
        is_at_it.then_some(since)
    }

    /// The signals to take now, and for how long to wait for them. All others stay pending, where several of one kind are one: those
    /// for a worker that is still taking over, which would die of them, and a SIGHUP that follows another one closely.
    fn awaited(&self, tick: Duration) -> (&'static [i32], Duration) {
        if let Some(since) = self.takes_over_since() {
            let age = Duration::from_nanos(monotonic() - since);
            return if age < TAKING_OVER.max(self.settings.hold) { (OWN, tick) } else { (ENDING, tick) };
        }
        let rest = HANGUP_PERIOD.saturating_sub(Duration::from_nanos(monotonic() - self.hangup_at));
        match rest {
            Duration::ZERO => (AWAITED, tick),
            rest => (ENDING, rest.min(tick)),
        }
    }

    /// Finds the journal, which the first worker makes. Reading it allocates nothing.
    fn look(&mut self) {
        if self.watch.is_none()
            && let Some((number, _)) = self.state.region(REGION)
        {
            // SAFETY: regions stay open under their number.
            let region = Mapping::of(unsafe { BorrowedFd::borrow_raw(number) });
            // A worker that died may have only begun to make it.
            self.watch = region.and_then(|region| Watch::open(Arc::new(region))).ok();
        }
    }

    /// The status of a worker that has ended. Notes whether one that has not is stopped. Other children are those of a process that
    /// served without a keeper and became this one.
    fn reap(&mut self) -> Option<i32> {
        let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the result.
            let changed = unsafe { libc::waitpid(-1, &raw mut status, flags) };
            match changed {
                ..=0 => return None,
                pid if pid != self.worker => {}
                _ if libc::WIFSTOPPED(status) => self.stopped = Some(monotonic()),
                _ if libc::WIFCONTINUED(status) => self.stopped = None,
                _ => return Some(status),
            }
        }
    }

    fn forward(&self, signal: i32) {
        // SAFETY: the worker was not reaped, so its number is still its own.
        unsafe { libc::kill(self.worker, signal) };
    }

    /// The request that has been worked on for too long, or [`NO_REQUEST`] when the worker is stopped for too long: what
    /// waits then is still in the kernel, and not in the journal.
    fn hanging(&mut self) -> Option<u64> {
        let limit = self.settings.restart_on_hang?;
        if self.state.phase() != Phase::Serving {
            return None;
        }
        if self.stopped.is_some_and(|since| Duration::from_nanos(monotonic() - since) > limit) {
            return Some(NO_REQUEST);
        }
        self.look();
        let now = wall();
        let now = Time::new((now / 1_000_000_000).cast_signed(), (now % 1_000_000_000) as u32);
        let oldest = self.watch.as_ref()?.oldest(now).filter(|request| request.age > limit);
        oldest.map(|request| request.id)
    }

    /// Releases the parent process, and the terminal.
    fn mount_is_ready(&mut self) {
        if self.told {
            return;
        }
        self.told = true;
        give_code_back();
        if let Some(manager) = &self.manager {
            // Without the store the mount works as well, only a restart of the keeper ends it.
            let _ = manager.store_all(&self.state);
            let _ = manager.tell("READY=1");
        }
        if !self.settings.background {
            return;
        }
        // It was left already unless the user might be asked there.
        let _ = rustix::process::setsid();
        // From now on the parent's end means nothing.
        // SAFETY: takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
        let told = io::stdout().write_all(READY.as_bytes()).and_then(|()| io::stdout().flush());
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        // The workers share these descriptors.
        if let (Ok(()), Ok(null)) = (told, null) {
            for standard in 0..=2 {
                // SAFETY: replaces one open descriptor by another.
                unsafe { libc::dup2(null.as_raw_fd(), standard) };
            }
        }
        // Staying where we are would only keep that file system busy.
        let _ = std::env::set_current_dir("/");
    }

    /// Feeds the manager's watchdog.
    fn tell_alive(&mut self) {
        let Some(manager) = &self.manager else { return };
        let Some(period) = manager.watchdog else { return };
        let now = monotonic();
        if now - self.alive_at >= period.as_nanos() as u64 {
            self.alive_at = now;
            // It will tell us what it thinks of silence.
            let _ = manager.tell("WATCHDOG=1");
        }
    }

    fn judge(&mut self, status: i32) -> Verdict {
        let upgrade = self.state.words().upgrade().get() != 0;
        self.state.words().upgrade().set(0);
        // One that has ended by itself meanwhile has unmounted.
        if upgrade && libc::WIFSIGNALED(status) {
            self.state.words().died_monotonic().set(monotonic());
            return Verdict::Upgrade;
        }
        if libc::WIFEXITED(status) {
            match libc::WEXITSTATUS(status) {
                PANICKED => {}
                _ if self.outlives_workers() => {}
                code => return Verdict::Over(code),
            }
        }
        match self.state.phase() {
            Phase::Starting => {
                warn(format_args!(
                    "outrigger: the process that serves the mount has died: {}",
                    death::words(status, false)
                ));
                return Verdict::Over(1);
            }
            Phase::Ending => return Verdict::Over(0),
            Phase::Serving => {}
        }
        if let Some(verdict) = self.stand_in(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))) {
            return verdict;
        }
        self.look();
        let state = &self.state;
        state.words().deaths().set(state.words().deaths().get() + 1);
        state.words().last_death().set(status as u64);
        state.words().hung().set(self.hung);
        state.words().died_at().set(wall());
        state.words().died_monotonic().set(monotonic());
        let progress = self.watch.as_ref().is_some_and(|watch| watch.counts().answered != self.answered);
        self.again(progress)
    }

    /// Whether and when to try again, after a worker that made progress or not.
    fn again(&mut self, progress: bool) -> Verdict {
        let now = Duration::from_nanos(monotonic());
        self.supervisor.failed(now, progress);
        if !self.supervisor.is_given_up(now) {
            return Verdict::Again(self.supervisor.pause());
        }
        if self.outlives_workers() {
            // One that stands in may fail to start, too.
            let stood_in = std::mem::replace(&mut self.stands_in, true);
            return Verdict::Again(if stood_in { TICK } else { Duration::ZERO });
        }
        warn(format_args!(
            "outrigger: the mount has ended: {} of the processes that serve it died, the last one of {}; what programs had written \
             and was not stored yet is lost",
            self.state.words().deaths().get(),
            death::last(&self.state)
        ));
        Verdict::Over(1)
    }

    /// What is to be done where the next worker is not one like all others: one that ends with `code`, or by a signal, stood in for
    /// others or wants that.
    fn stand_in(&mut self, code: Option<i32>) -> Option<Verdict> {
        let (stood_in, gives_up) = (self.stands_in, code == Some(GIVE_UP));
        self.stands_in = gives_up || stood_in && code != Some(TRY_AGAIN);
        // One that cannot even stand in is not started again at once.
        let pause = if stood_in && self.stands_in { TICK } else { Duration::ZERO };
        (stood_in || gives_up).then_some(Verdict::Again(pause))
    }

    /// Whether there is a mount that only a worker can end.
    fn outlives_workers(&self) -> bool {
        self.settings.stand_in.is_some() && self.state.phase() == Phase::Serving
    }

    /// Waits, but ends the mount when asked to meanwhile.
    fn pause(&self, pause: Duration) {
        let until = monotonic() + pause.as_nanos() as u64;
        while let Some(rest) = until.checked_sub(monotonic()).filter(|&rest| rest > 0) {
            // Others are for the next worker.
            if let Some(signal) = next_signal(&[libc::SIGTERM, libc::SIGINT], Duration::from_nanos(rest)) {
                return self.exit_with_connection(signal);
            }
        }
    }

    /// Ends the mount without a worker, as a signal demands: the connection ends with its last descriptor. Where a worker is needed to
    /// end it, the signal waits for the next one.
    fn exit_with_connection(&self, signal: i32) {
        match self.outlives_workers() {
            true => stay_pending(signal),
            false => std::process::exit(1),
        }
    }

    /// Becomes the program the last worker named. When that is impossible, the present one goes on.
    fn execute(&self) {
        let program =
            PathBuf::from(OsString::from_vec(self.state.words().program().get().unwrap_or_default()));
        let error = become_keeper(&self.state, &program, &self.directory);
        warn(format_args!("outrigger: {}", error.why()));
        let _ = std::env::set_current_dir("/");
    }
}

/// The start of a worker: makes an ordinary process of what is a copy of the keeper.
fn begin(settings: Settings, seat: Seat, worker: &mut dyn FnMut(Seat) -> i32) -> i32 {
    let state = seat.state().clone();
    name_process(c"outrigger");
    // A terminal takes input only for processes in its foreground.
    if !settings.asks || state.phase() != Phase::Starting {
        leave_foreground();
    }
    on_signal(READY_SIGNAL, keeper_died);
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, READY_SIGNAL) };
    if rustix::process::getppid()
        .is_none_or(|parent| parent.as_raw_nonzero().get() as u64 != state.words().keeper().get())
    {
        UNGUARDED.store(true, Relaxed);
    }
    unblock_signals();
    if seat.predecessors() > 0 {
        if let Err(error) = seat.close_unheld() {
            warn(format_args!("outrigger: descriptors of the process before: {error}"));
            return 1;
        }
        // Only relative paths on the command line need it, and they say so themselves where it is gone.
        let _ = std::env::set_current_dir(seat.directory());
    }
    crate::crash::install(seat.state());
    worker(seat)
}

/// Ctrl-C in a terminal reaches the keeper, which passes it on.
pub(crate) fn leave_foreground() {
    let _ = rustix::process::setpgid(None, None);
}

extern "C" fn keeper_died(_: libc::c_int) {
    UNGUARDED.store(true, Relaxed);
}

/// Sends the keeper [`READY_SIGNAL`].
pub(crate) fn tell(state: &State) {
    // SAFETY: takes no pointers; the parent of a worker is its keeper.
    unsafe { libc::kill(state.words().keeper().get() as libc::pid_t, READY_SIGNAL) };
}

/// clone(2): a child with its own memory that shares our table of descriptors.
///
/// glibc knows nothing of it, so in the child its record of the thread's number (`gettid` of the keeper) is stale. That number
/// only matters to robust, recursive and error-checking mutexes of glibc, which compare it with their owner: the keeper
/// holds none when it clones, and threads that the child starts get numbers of their own from the kernel.
///
/// # Errors
/// `EBUSY` when there are other threads, whose locks the child would wait for; those of clone(2).
fn clone_sharing_descriptors() -> Result<libc::pid_t> {
    // Where /proc is not mounted there is no telling.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        let why = format!(
            "the keeper has {threads} threads: a process cannot be cloned safely from one of several"
        );
        return Err(Errno::EBUSY.because(why));
    }
    let flags = (libc::CLONE_FILES | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: like fork(2): with a stack of 0 the child goes on here with a copy of our memory. The process has one
    // thread, as was just seen, so no lock is held by a thread the child does not have. Descriptors are shared on purpose; `Seat::close_unheld`
    // says who closes what.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    match pid {
        -1 => Err(Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN))
            .because("cannot start the process that serves the mount")),
        pid => Ok(pid as libc::pid_t),
    }
}

/// Lets go of the pages of code that starting took: waiting needs a handful, and a page that is wanted again comes back
/// from the page cache.
fn give_code_back() {
    for range in crate::crash::code_ranges() {
        let len = (range.end - range.start) as usize;
        // SAFETY: code is mapped from files and never written, so dropping its pages loses nothing.
        unsafe { libc::madvise(range.start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
    }
}

pub(crate) fn name_process(name: &std::ffi::CStr) {
    // Names are for people only.
    let _ = rustix::thread::set_name(name);
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Nanoseconds since the epoch, as coarse as the times of inodes.
pub(crate) fn wall() -> u64 {
    now(ClockId::RealtimeCoarse)
}

/// Nanoseconds on a clock that all processes share.
pub(crate) fn monotonic() -> u64 {
    now(ClockId::Monotonic)
}

/// A line on standard error; when that cannot be written there is nowhere left to say so.
fn warn(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
