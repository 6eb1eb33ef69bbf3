// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a request is made again, and when a server is tried again: one policy for all drivers of servers.
//!
//! A server that was there and is gone is dialed again, with pauses that grow, for as long as one may be silent: it may be
//! starting. A process that takes over waits for longer, since it has to keep what the former one has acknowledged. After that each failure is the answer for a second, and the next request tries once. A server that was never there is
//! tried once, so that a wrong host or port is told at once; a refused login is never tried again.

use crate::fault::Fault;
use outrigger_core::{Errno, Error, Result, lock};
use std::future::Future;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a request is made again when connections are lost in the middle of it.
pub const REPEATS: u32 = 3;
/// For how long a failure to connect is the answer, before it is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// For so long at least a process that takes over tries to reach a server.
const AFTER_TAKEOVER: Duration = Duration::from_secs(120);
/// The first pause between attempts, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// What is known about reaching a server.
#[derive(Debug, Default)]
pub struct Outage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether it was ever there.
    was_there: bool,
    /// For how long it is waited for at least.
    least: Duration,
    /// Since when it is not.
    since: Option<Instant>,
    /// The last failure after which no other attempt was to follow at once.
    given_up: Option<(Error, Instant)>,
}

impl Outage {
    /// Of a server that a former process had a connection to, if it did.
    pub fn new(was_there: bool) -> Self {
        Outage(Mutex::new(State { was_there, ..State::default() }))
    }

    /// Of a server that a former process has acknowledged writes to, perhaps.
    pub fn after_takeover() -> Self {
        Outage(Mutex::new(State { was_there: true, least: AFTER_TAKEOVER, ..State::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// A connection that `dial` makes, if need be after attempts for as long as `patience`.
    ///
    /// # Errors
    /// The last error of `dial`. Where the server was there, `ENOENT` and `ENOTDIR`, as for a socket whose name is gone, become `ENOTCONN`:
    /// programs would take their files for removed.
    pub async fn connect<T, F: Future<Output = Result<T>>>(
        &self,
        patience: Duration,
        dial: impl Fn() -> F,
    ) -> Result<T> {
        let mut pause = PAUSES[0];
        loop {
            let begun = Instant::now();
            if let Some(error) = self.recent(begun) {
                return Err(error);
            }
            let error = match dial().await {
                Ok(connection) => {
                    *self.lock() = State { was_there: true, ..State::default() };
                    return Ok(connection);
                }
                Err(error) => self.about_the_server(error),
            };
            if !self.failed(&error, begun, patience.saturating_sub(pause)) {
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    fn about_the_server(&self, error: Error) -> Error {
        match error.errno {
            Errno::ENOENT | Errno::ENOTDIR if self.lock().was_there => Errno::ENOTCONN.because(error.why()),
            _ => error,
        }
    }

    /// The last failure, if no other attempt is to be made yet.
    fn recent(&self, now: Instant) -> Option<Error> {
        let state = self.lock();
        let (error, at) = state.given_up.as_ref()?;
        (now < *at + AFTER_FAILURE).then(|| error.clone())
    }

    /// An attempt failed; whether another one is to be made.
    fn failed(&self, error: &Error, begun: Instant, patience: Duration) -> bool {
        let (mut state, now) = (self.lock(), Instant::now());
        let since = *state.since.get_or_insert(begun);
        let waits = state.was_there && state.given_up.is_none() && is_passing(error.errno);
        let again = waits && now < since + patience.max(state.least);
        if !again {
            state.given_up = Some((error.clone(), now));
        }
        again
    }
}

/// Whether an attempt some time later may have another outcome.
fn is_passing(errno: Errno) -> bool {
    !matches!(errno, Errno::EACCES | Errno::EPERM | Errno::EINVAL | Errno::EPROTO | Errno::ENOENT)
}

/// How often a request was made again.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    count: u32,
    timed_out: bool,
}

impl Repeats {
    /// Whether it is made again after this loss of the connection. A connection may be dead without a sign, but a server that was silent
    /// on two, each for as long as it may be, is taken to hang.
    pub(crate) fn another(&mut self, lost: &Error) -> bool {
        let hangs = lost.errno == Errno::ETIMEDOUT && std::mem::replace(&mut self.timed_out, true);
        self.count += 1;
        !hangs && self.count <= REPEATS
    }
}

/// Does `work` again when a connection is lost in the middle of it. It gets the number of the attempt.
///
/// # Errors
/// The last fault of `work`.
pub async fn repeated<T, R, F: Future<Output = Result<T, Fault<R>>>>(
    mut work: impl FnMut(u32) -> F,
) -> Result<T, Fault<R>> {
    let mut repeats = Repeats::default();
    loop {
        match work(repeats.count).await {
            Err(Fault::Lost(error)) if repeats.another(&error) => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const PATIENCE: Duration = Duration::from_secs(30);

    struct Server {
        dialed: AtomicU32,
        /// It is there from this moment on.
        from: Instant,
        errno: Errno,
    }

    impl Server {
        fn new(gone: u64, errno: Errno) -> Self {
            Server { dialed: AtomicU32::new(0), from: Instant::now() + Duration::from_secs(gone), errno }
        }

        async fn dial(&self) -> Result<()> {
            self.dialed.fetch_add(1, Relaxed);
            if Instant::now() < self.from { Err(self.errno.into()) } else { Ok(()) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_gone_for_three_seconds_is_waited_for() {
        let (outage, server) = (Outage::new(true), Server::new(3, Errno::ECONNREFUSED));
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Ok(()));
        assert!(server.dialed.load(Relaxed) < 10, "the pauses grow");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_stays_away_is_given_up_and_then_tried_once_a_second() {
        let (outage, server) = (Outage::new(true), Server::new(300, Errno::ECONNREFUSED));
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Err(Errno::ECONNREFUSED.into()));
        let dialed = server.dialed.load(Relaxed);
        assert!(dialed > 10);
        for more in [0, 1] {
            sleep(Duration::from_millis(900)).await;
            assert!(outage.connect(PATIENCE, || server.dial()).await.is_err());
            assert_eq!(server.dialed.load(Relaxed), dialed + more);
        }
        sleep(Duration::from_secs(300)).await;
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_takes_over_waits_for_a_server_for_longer_once() {
        let (outage, server) = (Outage::after_takeover(), Server::new(100, Errno::ECONNREFUSED));
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Ok(()));
        let server = Server::new(100, Errno::ECONNREFUSED);
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Err(Errno::ECONNREFUSED.into()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_was_there_or_refuses_the_login_is_tried_once() {
        for (was_there, errno) in [(false, Errno::ECONNREFUSED), (true, Errno::EACCES)] {
            let (outage, server) = (Outage::new(was_there), Server::new(3, errno));
            assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Err(errno.into()));
            assert_eq!(server.dialed.load(Relaxed), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_the_socket_of_a_server_is_gone_is_not_that_a_file_is() {
        let (outage, server) = (Outage::new(true), Server::new(3, Errno::ENOENT));
        assert_eq!(outage.connect(PATIENCE, || server.dial()).await, Ok(()), "it is made again");
        let server = Server::new(300, Errno::ENOENT);
        let error = outage.connect(PATIENCE, || server.dial()).await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOTCONN);
        let never = Outage::new(false).connect(PATIENCE, || server.dial()).await;
        assert_eq!(never, Err(Errno::ENOENT.into()));
    }

    #[tokio::test]
    async fn a_server_that_is_silent_twice_hangs_and_other_losses_are_repeated_three_times() {
        for (errnos, expected) in [
            (&[Errno::ETIMEDOUT][..], 2),
            (&[Errno::EIO], 4),
            (&[Errno::EIO, Errno::ETIMEDOUT, Errno::EIO, Errno::ETIMEDOUT], 4),
            (&[Errno::ETIMEDOUT, Errno::EIO, Errno::ETIMEDOUT], 3),
        ] {
            let mut asked = 0;
            let outcome: Result<(), Fault<()>> = repeated(|attempt| {
                asked += 1;
                let errno = errnos[attempt as usize % errnos.len()];
                async move { Err(Fault::Lost(errno.into())) }
            })
            .await;
            assert!(matches!(outcome, Err(Fault::Lost(_))));
            assert_eq!(asked, expected, "{errnos:?}");
        }
    }
}
