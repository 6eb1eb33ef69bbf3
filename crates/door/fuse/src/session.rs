// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session: a service that answers on a connection to the kernel.
use crate::answer::View;
use crate::backing::{self, Backings, Notes};
use crate::connection::Connection;
use crate::device::Device;
use crate::interrupt::group_of;
use crate::mount::{MountError, Mounted};
use crate::negotiate::Negotiated;
use crate::notify::{Notifier, notifier};
use crate::options::{Kept, Options};
use crate::pool::ReaderPool;
use crate::reader;
use crate::sender;
use crate::slot::{Slots, coarse_now};
use crate::status::{Counters, InFlight, Status};
use crate::translate::Rules;
use crate::unmount::{Force, UnmountError, unmount};
use outrigger_core::{Abilities, Notice, Notify, Runtime, Service, lock};
use outrigger_proto_fuse::{Dialect, InitFlags, Notification, Opcode};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The file system was unmounted, by us or by others.
    Unmounted,
    /// The connection was cut.
    Aborted,
    /// The device or the negotiation failed, for this reason.
    Failed(String),
}

/// Everything the threads of a session share.
pub(crate) struct Shared {
    pub(crate) device: Arc<Device>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) options: Options,
    pub(crate) abilities: Abilities,
    pub(crate) view: View,
    pub(crate) slots: Slots,
    pub(crate) counters: Counters,
    pub(crate) pool: ReaderPool,
    pub(crate) backings: Backings,
    pub(crate) idmap: bool,
    agreed: OnceLock<Agreed>,
    pub(crate) notifier: Notifier,
    end: Mutex<Option<End>>,
    /// Signalled when `agreed` or `end` is set.
    changed: Condvar,
}

/// What is known after INIT.
pub(crate) struct Agreed {
    pub(crate) negotiated: Negotiated,
    pub(crate) rules: Rules,
}

impl Shared {
    /// How messages are decoded.
    pub(crate) fn dialect(&self) -> Dialect {
        self.agreed.get().map_or_else(Dialect::default, |agreed| agreed.negotiated.dialect())
    }

    /// What INIT has settled.
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// Settles what INIT negotiated; a second INIT changes nothing.
    pub(crate) fn settle(&self, negotiated: Negotiated) {
        // What is not asked to open files has none for the kernel.
        if negotiated.has(InitFlags::PASSTHROUGH) && !self.abilities.stateless_files {
            self.backings.enable();
        }
        if negotiated.minor() >= Notification::IncEpoch.since() {
            self.notifier.kernel_knows_epochs();
        }
        self.view.settle(&negotiated);
        let rules = Rules::new(&self.abilities, &negotiated);
        let _guard = lock(&self.end);
        // The kernel sends INIT once in the life of a connection.
        let _ = self.agreed.set(Agreed { negotiated, rules });
        self.changed.notify_all();
    }

    /// Notes why the session ends; the first reason counts.
    pub(crate) fn ends(&self, end: End) {
        lock(&self.end).get_or_insert(end);
        self.pool.finish();
        self.notifier.stop();
    }

    /// Called by the last reader.
    pub(crate) fn all_left(&self) {
        self.changed.notify_all();
    }

    /// Largest write of a request, which decides how large the buffers are.
    pub(crate) fn max_write(&self) -> u32 {
        self.agreed.get().map_or(self.options.max_write, |agreed| agreed.negotiated.max_write())
    }
}

/// Where open files are noted, if a successor shall know them.
fn notes(options: &Options) -> io::Result<Option<Notes>> {
    let notes = options.keep.as_ref().map(|Kept(keep)| backing::notes(&**keep)).transpose();
    notes.map_err(|error| io::Error::from_raw_os_error(error.errno.0))
}

/// A running session. Dropping it unmounts what it has mounted.
pub struct Session {
    shared: Arc<Shared>,
    mounted: Mutex<Option<Mounted>>,
}

/// How long unmounting may wait for the server when a session is dropped.
const DROP_DEADLINE: Duration = Duration::from_millis(500);

/// How often a pause looks whether requests are answered.
const PAUSE_PERIOD: Duration = Duration::from_millis(1);

impl Session {
    /// Mounts the service.
    ///
    /// # Errors
    /// [`MountError`] when there is no mount afterwards.
    pub fn mount(
        mountpoint: &Path,
        service: Arc<dyn Service>,
        runtime: Arc<dyn Runtime>,
        options: Options,
    ) -> Result<Self, MountError> {
        let connection = Connection::mount(mountpoint, &service.abilities(), &options)?;
        Self::serve(connection, service, runtime, options)
            .map_err(|error| MountError::Refused { path: mountpoint.to_owned(), error })
    }

    /// Serves a connection.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(
        connection: Connection,
        service: Arc<dyn Service>,
        runtime: Arc<dyn Runtime>,
        options: Options,
    ) -> io::Result<Self> {
        Self::start(connection, service, runtime, options, None)
    }

    /// Goes on with a session whose process has died and been reaped: `connection` is another descriptor of the same
    /// connection to the kernel, or a new one to the same proxy. Every request that was not answered comes once more.
    ///
    /// Handles the dead process gave out come again in requests; the service must know them. Files it had registered
    /// for passthrough are known from [`Options::keep`]; without that they stay registered until the mount ends, and the
    /// kernel refuses to open those in passthrough again that are still open.
    ///
    /// # Errors
    /// When no thread can be started, or `EOPNOTSUPP` when the kernel cannot send requests again (before 6.9).
    pub fn resume(
        connection: Connection,
        negotiated: Negotiated,
        service: Arc<dyn Service>,
        runtime: Arc<dyn Runtime>,
        options: Options,
    ) -> io::Result<Self> {
        if !connection.proxied {
            if !negotiated.sends_again() {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            // Before anybody reads: the kernel would send again what a reader of ours has just taken, and it would be
            // done twice.
            connection.device.send(&[IoSlice::new(&Notification::Resend.encode())])?;
        }
        Self::start(connection, service, runtime, options, Some(negotiated))
    }

    fn start(
        connection: Connection,
        service: Arc<dyn Service>,
        runtime: Arc<dyn Runtime>,
        mut options: Options,
        negotiated: Option<Negotiated>,
    ) -> io::Result<Self> {
        connection.limit(&mut options);
        let Connection { device, mounted, first, .. } = connection;
        let device = Arc::new(device);
        let (notifier, courier) = notifier(Arc::clone(&device));
        let notes = notes(&options)?;
        let backings = match negotiated {
            None => Backings::new(Arc::clone(&device), notes),
            Some(_) => Backings::reopen(Arc::clone(&device), notes),
        };
        let abilities = service.abilities();
        service.attach(Arc::new(notifier.clone()));
        let shared = Arc::new(Shared {
            view: View::new(&options, &abilities),
            slots: Slots::new(options.watch_programs),
            counters: Counters::default(),
            pool: ReaderPool::new(options.readers, options.max_readers),
            backings,
            idmap: mounted.as_ref().is_some_and(|mounted| mounted.idmap),
            agreed: OnceLock::new(),
            notifier,
            end: Mutex::default(),
            changed: Condvar::new(),
            device,
            service,
            runtime,
            options,
            abilities,
        });
        if let Some(negotiated) = negotiated {
            shared.settle(negotiated);
        }
        let session = Self { shared, mounted: Mutex::new(mounted) };
        let shared = Arc::downgrade(&session.shared);
        let lost = move |node| _ = shared.upgrade().inspect(|shared| sender::forget_lost(shared, node));
        thread::Builder::new().name("fuse-notify".into()).spawn(move || courier.run(lost))?;
        reader::start(&session.shared, first)?;
        let shared = Arc::clone(&session.shared);
        thread::Builder::new().name("fuse-pool".into()).spawn(move || reader::watch(&shared))?;
        Ok(session)
    }

    /// Waits until the kernel has agreed on a protocol: from then on programs are served.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; the reason when the session ended before.
    pub fn wait_ready(&self, timeout: Duration) -> io::Result<Negotiated> {
        let shared = &self.shared;
        let waiting = |end: &mut Option<End>| shared.agreed.get().is_none() && end.is_none();
        let (end, _) = shared
            .changed
            .wait_timeout_while(lock(&shared.end), timeout, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match (shared.agreed.get(), &*end) {
            (_, Some(end)) => Err(io::Error::other(format!("the session has ended: {end:?}"))),
            (Some(agreed), None) => {
                drop(end);
                if let Some(mounted) = lock(&self.mounted).as_ref() {
                    mounted.raise_readahead(shared.options.max_readahead);
                }
                Ok(agreed.negotiated)
            }
            (None, None) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Waits until the session has ended and no reader is left.
    pub fn wait(&self) -> End {
        self.wait_until(None).unwrap_or(End::Unmounted)
    }

    /// As [`Session::wait`], but at most this long; `None` when the session goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<End> {
        self.wait_until(Some(timeout))
    }

    fn wait_until(&self, timeout: Option<Duration>) -> Option<End> {
        let shared = &self.shared;
        let going_on = |end: &mut Option<End>| end.is_none() || shared.pool.total() != 0;
        let guard = lock(&shared.end);
        let end = match timeout {
            None => shared.changed.wait_while(guard, going_on).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = shared.changed.wait_timeout_while(guard, timeout, going_on);
                let (end, result) = waited.unwrap_or_else(PoisonError::into_inner);
                if result.timed_out() {
                    return None;
                }
                end
            }
        };
        end.clone()
    }

    /// Unmounts what the session has mounted; with [`Force::No`] this fails while programs use it. Also true for a
    /// mount that others have removed already. A session over a descriptor ends when its mount or process does.
    ///
    /// # Errors
    /// [`UnmountError`] when it is still mounted.
    pub fn stop(&self, force: Force, deadline: Duration) -> Result<(), UnmountError> {
        let mut mounted = lock(&self.mounted);
        let Some(mount) = mounted.as_ref() else { return Ok(()) };
        if !mount.is_there() {
            *mounted = None;
            return Ok(());
        }
        match unmount(&mount.mountpoint, force, deadline) {
            Ok(()) | Err(UnmountError::NotMounted { .. }) => {
                *mounted = None;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Gives up what exiting programs of the group of a process (setpgid(2)) wait for now: that what they have written to an open file has
    /// arrived. The kernel interrupts that for nothing. A shell with job control gives what it starts groups of their own.
    pub fn hurry_exits(&self, process: u32) {
        if let Some(group) = group_of(process) {
            self.shared.slots.cancel_last(group);
        }
    }

    /// Whether the kernel still has the connection, also when no reader has noticed its end yet.
    pub fn is_connected(&self) -> bool {
        self.shared.device.is_connected()
    }

    /// A picture of what goes on.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        Status {
            negotiated: shared.agreed.get().map(|agreed| agreed.negotiated),
            in_flight: shared.slots.in_flight().into_iter().map(InFlight::from).collect(),
            counts: shared.counters.counts(),
            last_failure: shared.counters.last_failure(),
            readers: shared.pool.total(),
        }
    }

    /// Holds requests that come from now on, and waits until those before are answered: at most this long. Waiting for a lock is not
    /// waited for, for asking again changes nothing. After success another process can [`Session::resume`] from
    /// [`Session::device_fd`]; what is held here is sent to it. [`Session::go_on`] ends that.
    ///
    /// # Errors
    /// The requests that are not answered, the oldest first; then nothing is held.
    pub fn pause(&self, timeout: Duration) -> Result<(), Vec<InFlight>> {
        let shared = &self.shared;
        let until = coarse_now().saturating_add(timeout);
        shared.pool.pause();
        loop {
            let quiet = shared.pool.all_wait();
            let mut left = shared.slots.in_flight();
            left.retain(|request| request.opcode != Opcode::Setlkw as u32);
            if quiet && left.is_empty() {
                return Ok(());
            }
            if coarse_now() > until {
                self.go_on();
                return Err(left.into_iter().map(InFlight::from).collect());
            }
            thread::sleep(PAUSE_PERIOD);
        }
    }

    /// Goes on with what was held since [`Session::pause`].
    pub fn go_on(&self) {
        self.shared.pool.resume();
    }

    /// Makes the kernel ask for every name and its attributes again before it uses them (Linux 6.16 and newer).
    pub fn invalidate_all(&self) {
        self.shared.notifier.notify(Notice::InvalidateAll);
    }

    /// Another descriptor of the connection, for a keeper that lets a later process [`Session::resume`].
    ///
    /// # Errors
    /// What fcntl(2) says.
    pub fn device_fd(&self) -> io::Result<OwnedFd> {
        self.shared.device.try_clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if lock(&self.mounted).is_none() {
            return;
        }
        // In use or not, the server is gone after this.
        for force in [Force::No, Force::Abort] {
            if self.stop(force, DROP_DEADLINE).is_ok() {
                return;
            }
        }
        tracing::warn!("the mount could not be removed");
    }
}
