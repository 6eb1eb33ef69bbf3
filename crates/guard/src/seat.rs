// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's place: what it got from those before it, and what it leaves to those after it.

use crate::death;
use crate::exec::become_keeper;
use crate::keeper::{self, monotonic};
use crate::proxy;
use crate::region::SharedRegion;
use crate::state::{Phase, RECOVERIES, State, UNGUARDED};
use outrigger_core::supervise::{Death, History};
use outrigger_core::survive::Reads;
use outrigger_core::{Errno, Error, Keep, Region, Result, lock};
use outrigger_host::close_all_but;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

/// How long the keeper may take to end a worker for another program.
const KEEPER_DEADLINE: Duration = Duration::from_secs(5);

/// What a worker has to do with its keeper. It is the [`Keep`] of everything the worker assembles.
///
/// A process that serves without a keeper has one, too ([`Seat::alone`]): what it knows is then lost with it, but it can become
/// the keeper of workers that go on ([`Seat::upgrade`]).
#[derive(Debug)]
pub struct Seat {
    state: State,
    /// Where relative paths on the command line begin.
    directory: PathBuf,
    stands_in: bool,
    /// Held while a region is looked for and made.
    making: Mutex<()>,
}

/// What a worker takes over.
#[derive(Debug)]
pub struct Inherited {
    /// The connection to the kernel.
    pub device: OwnedFd,
    /// What was negotiated on it.
    pub negotiated: Vec<u8>,
    /// Whether it is a connection to a proxy: see [`Seat::interpose`].
    pub proxied: bool,
}

impl Seat {
    pub(crate) fn new(state: State, directory: PathBuf, stands_in: bool) -> Self {
        Seat { state, directory, stands_in, making: Mutex::new(()) }
    }

    /// The place of a process that has no keeper. Called in the directory it was started in.
    ///
    /// # Errors
    /// When there is no memory, or that directory is gone.
    pub fn alone() -> Result<Self> {
        UNGUARDED.store(true, Relaxed);
        let state = State::create()?;
        state.words().started().set(1);
        Ok(Seat::new(state, std::env::current_dir()?, false))
    }

    /// How many workers there were before this one.
    pub fn predecessors(&self) -> u64 {
        self.state.words().started().get().saturating_sub(1)
    }

    /// The mount to go on with; `None` when there is none yet.
    ///
    /// # Errors
    /// When the descriptor of a former worker is not there any more.
    pub fn inherited(&self) -> Result<Option<Inherited>> {
        if self.state.phase() == Phase::Starting {
            return Ok(None);
        }
        let device = self.adopt(self.state.words().device().get() as RawFd - 1)?;
        let negotiated = self.state.words().negotiated().get().unwrap_or_default();
        match self.state.words().proxy().get() as RawFd {
            0 => Ok(Some(Inherited { device, negotiated, proxied: false })),
            control => {
                let device = self.reconnect(control - 1, device)?;
                Ok(Some(Inherited { device, negotiated, proxied: true }))
            }
        }
    }

    /// Puts a process between the kernel and the workers, for a kernel that does not send requests again: the process
    /// does. It gets `device`, from which `init` was read already, the first message. Gives what is to be served instead.
    ///
    /// # Errors
    /// When there is no process or descriptor left.
    pub fn interpose(&self, device: OwnedFd, init: &[u8]) -> Result<OwnedFd> {
        let failed = |error| Error::from(error).errno.because("the proxy of the mount cannot be started");
        let (control, process) = proxy::start().map_err(failed)?;
        let served = proxy::connect(control.as_fd(), device.as_fd(), init).map_err(failed)?;
        self.hold(control.as_fd())?;
        self.state.words().proxy_process().set(process.into());
        // Open for all workers to come; no object here owns it.
        self.state.words().proxy().set(control.into_raw_fd() as u64 + 1);
        Ok(served)
    }

    /// Takes the connection of a worker that served `former` to the proxy at `control`.
    fn reconnect(&self, control: RawFd, former: OwnedFd) -> Result<OwnedFd> {
        let failed = |error| Error::from(error).errno.because("the proxy of the mount has ended");
        let served = proxy::reconnect(borrow(&self.state, control)?, former.as_fd()).map_err(failed)?;
        // From this store on it stays open: a worker that dies before leaves nothing that is not recorded.
        self.state.words().device().set(served.as_raw_fd() as u64 + 1);
        self.hold(served.as_fd())?;
        self.let_go(former.as_fd());
        Ok(served)
    }

    /// Notes that there is a mount and that programs are served: from now on a death is repaired. `device` is held.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn mounted(&self, device: OwnedFd, negotiated: &[u8]) -> Result<()> {
        self.state.words().negotiated().set(negotiated)?;
        self.hold(device.as_fd())?;
        // It stays open for all workers to come; no object here owns it.
        self.state.words().device().set(device.into_raw_fd() as u64 + 1);
        self.state.set_phase(Phase::Serving);
        if self.is_guarded() {
            keeper::leave_foreground();
            keeper::tell(&self.state);
        }
        Ok(())
    }

    /// Notes that this worker has taken over: it serves, and handles signals.
    pub fn took_over(&self) {
        let died = self.state.words().died_monotonic().get();
        self.state.note_recovery(monotonic().saturating_sub(died));
        if self.is_guarded() {
            keeper::tell(&self.state);
        }
    }

    /// Notes that the mount is being ended: no death is repaired any more.
    pub fn ending(&self) {
        self.state.set_phase(Phase::Ending);
    }

    /// Whether workers were given up: this one only answers with errors and ends the mount when it is told to. It ends with
    /// [`TRY_AGAIN`](crate::TRY_AGAIN) when another worker is to be tried.
    pub fn stands_in(&self) -> bool {
        self.stands_in
    }

    /// The process that watches over the workers; this one when it never had a keeper.
    pub fn owner(&self) -> u32 {
        match self.state.words().keeper().get() as u32 {
            0 => std::process::id(),
            keeper => keeper,
        }
    }

    /// Whether a keeper would replace this worker.
    pub fn is_guarded(&self) -> bool {
        !UNGUARDED.load(Relaxed)
    }

    /// The directory in which relative paths on the command line begin.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Goes on as `program`: the keeper ends this worker and becomes it. Without a keeper this process does, and is the keeper of a
    /// new worker; a process that never had one has no journal, so no change may be in progress then. Returns only when that is
    /// impossible.
    ///
    /// # Errors
    /// When the path is too long, `ETIMEDOUT` when the keeper does nothing, or without one what execve(2) says.
    pub fn upgrade(&self, program: &Path) -> Error {
        if let Err(error) = self.state.words().program().set(program.as_os_str().as_bytes()) {
            return error;
        }
        self.state.words().upgrade().set(1);
        if self.is_guarded() {
            keeper::tell(&self.state);
        }
        let until = monotonic() + KEEPER_DEADLINE.as_nanos() as u64;
        while self.is_guarded() && monotonic() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.state.words().upgrade().set(0);
        if self.is_guarded() {
            return Errno(libc::ETIMEDOUT).because("the keeper of the mount does not react");
        }
        self.state.words().died_monotonic().set(monotonic());
        become_keeper(&self.state, program, &self.directory)
    }

    /// Whether a program that reads these layouts can go on with what this mount keeps.
    ///
    /// # Errors
    /// `EPROTO` with what it cannot read.
    pub fn is_read_by(&self, layouts: &[Reads]) -> Result<()> {
        self.state.is_read_by(layouts)
    }

    /// What happened to the workers so far; `None` in a process that never had a keeper.
    pub fn history(&self) -> Option<History> {
        let words = self.state.words();
        if words.keeper().get() == 0 {
            return None;
        }
        let (deaths, recovered) = (words.deaths().get(), words.recovered().get());
        let kept = recovered.saturating_sub(RECOVERIES as u64)..recovered;
        let last_death = (deaths > 0).then(|| Death {
            at: UNIX_EPOCH + Duration::from_nanos(words.died_at().get()),
            reason: death::last(&self.state),
        });
        let time = |index: u64| words.recovery_times().at(index as usize % RECOVERIES).get();
        let recovery_times = kept.map(|index| Duration::from_nanos(time(index))).collect();
        Some(History { started: words.started().get(), deaths, last_death, recovery_times })
    }

    /// The process that watches; `None` when it has died, or never was.
    pub fn keeper(&self) -> Option<u32> {
        self.is_guarded().then(|| self.state.words().keeper().get() as u32)
    }

    /// The process between the kernel and the workers, if there is one.
    pub fn proxy(&self) -> Option<u32> {
        Some(self.state.words().proxy_process().get() as u32).filter(|&process| process != 0)
    }

    /// The request in which the worker before this one hung.
    pub fn hung_in(&self) -> Option<u64> {
        self.state.words().hung().get().checked_sub(1)
    }

    /// The shared words, for the crash handler.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Closes every descriptor that former workers left and that is not held. Called before anything else is opened.
    pub(crate) fn close_unheld(&self) -> Result<()> {
        // SAFETY: nothing in this process was opened before, so whatever else is open belongs to a worker that is dead.
        Ok(unsafe { close_all_but(|number| self.state.is_held(number)) }?)
    }
}

impl Keep for Seat {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        let _making = lock(&self.making);
        if let Some((number, _)) = self.state.region(name) {
            let fd = borrow(&self.state, number)?.try_clone_to_owned().map_err(Error::from)?;
            return Ok(Arc::new(SharedRegion::open(fd)?));
        }
        let region = SharedRegion::create(name, words)?;
        let kept = region.fd().try_clone_to_owned().map_err(Error::from)?;
        self.state.hold(kept.as_raw_fd())?;
        self.state.add_region(name, kept.as_raw_fd(), words)?;
        // Open for all workers to come; no object here owns it.
        std::mem::forget(kept);
        Ok(Arc::new(region))
    }

    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.state.hold(fd.as_raw_fd())
    }

    fn let_go(&self, fd: BorrowedFd<'_>) {
        self.state.let_go(fd.as_raw_fd());
    }

    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        borrow(&self.state, number)?;
        // SAFETY: a held descriptor is open, belongs to a worker that is dead, and is adopted once by the code that noted it.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// A held descriptor.
fn borrow(state: &State, number: RawFd) -> Result<BorrowedFd<'_>> {
    let missing = || Errno::EBADF.because(format!("no descriptor is held under the number {number}"));
    if !state.is_held(number) {
        return Err(missing());
    }
    // SAFETY: held numbers are open while they are held, as the check below proves for now.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).map_err(|_| missing())?;
    Ok(fd)
}
