// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection there is now, made again when it is lost.
//!
//! No connection is made ahead of need: a request that finds no connection has one made, and all that come meanwhile wait for the
//! same. A server that owes an answer and has been silent for the whole patience is given up, so that the next request
//! finds out whether it can be reached at all.

use crate::dial::{self, Connected, Dial};
use crate::fault::Fault;
use crate::kept::Kept;
use crate::line::{self, Inherited, Line, Notes};
use crate::options::Options;
use crate::session::{Pending, Session};
use outrigger_core::{Errno, Error, Runtime, lock};
use outrigger_mux::Connection;
use outrigger_proto_sftp::{Extensions, Limits, Request};
use outrigger_toolkit_remote::{Carrier, Outage, REPEATS};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// Whether something may be done once more when the connection was lost while it was on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It only asks.
    Always,
    /// However often it is done, the outcome is one; but not when it is done late, after other things.
    IfServerExited,
    /// Its repetition has another outcome.
    Never,
}

impl Again {
    /// Finds out what has to be known before the connection is lost.
    pub(crate) async fn prepare(self, session: &Session) {
        if self == Again::IfServerExited {
            session.origin().await;
        }
    }
}

/// The connection to a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    dial: Box<dyn Dial>,
    options: Options,
    runtime: Arc<dyn Runtime>,
    epochs: AtomicU64,
    state: Mutex<State>,
    outage: Outage,
    /// Where connections are noted that outlive this process.
    kept: Option<Arc<Kept>>,
}

type Outcome = Result<Session, Error>;

enum State {
    /// There is one, or was until a moment ago.
    Up(Session),
    /// One is being made.
    Dialing(watch::Receiver<Option<Outcome>>),
    /// There is none.
    Down,
}

impl Link {
    /// Called with a tokio runtime around it. With `kept`, the connection of a former process is gone on with.
    pub(crate) fn new(
        dial: Box<dyn Dial>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        kept: Option<Arc<Kept>>,
    ) -> Self {
        let (epochs, state) = (AtomicU64::new(1), Mutex::new(State::Down));
        let outage = Outage::new(kept.as_ref().is_some_and(|kept| line::last_epoch(kept) > 0));
        let link = Link(Arc::new(Shared { dial, options, runtime, epochs, state, outage, kept }));
        link.inherit();
        link
    }

    fn inherit(&self) {
        let Some(kept) = &self.0.kept else { return };
        self.0.epochs.store(line::last_epoch(kept) + 1, Ordering::Relaxed);
        let inherited = match Line::inherit(kept) {
            Ok(inherited) => inherited,
            Err(error) => return tracing::warn!(%error, "a connection was lost"),
        };
        let Some(Inherited { line, extensions, max_read, max_write }) = inherited else { return };
        let carrier = line.errors().map_err(Error::from).and_then(dial::inherited);
        let Ok(carrier) = carrier else { return };
        let server = (extensions, max_read, max_write);
        let (session, connection) = Session::resume(line, server, self.0.options.timeout);
        self.0.serve(&session, connection, carrier);
        *self.0.lock() = State::Up(session);
    }

    /// The connection of a former process, if it is still there.
    pub(crate) fn present(&self) -> Option<Session> {
        match &*self.0.lock() {
            State::Up(session) if session.is_open() => Some(session.clone()),
            _ => None,
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.runtime
    }

    /// The connection; made when there is none.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn session(&self) -> Outcome {
        let mut dialing = {
            let mut state = self.0.lock();
            match &*state {
                State::Up(session) if session.is_open() => return Ok(session.clone()),
                State::Dialing(dialing) => dialing.clone(),
                State::Up(_) | State::Down => {
                    let (sender, receiver) = watch::channel(None);
                    *state = State::Dialing(receiver.clone());
                    self.0.runtime.spawn(Box::pin(Arc::clone(&self.0).dial(sender)));
                    receiver
                }
            }
        };
        match dialing.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(ended())),
            Err(_) => Err(ended()),
        }
    }

    /// Does `work` on the connection there is, and again on the next one when it is lost: if that does no harm, or if the
    /// server cannot have seen it.
    pub(crate) async fn run<T, F>(&self, again: Again, mut work: impl FnMut(Session) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut repeats = 0;
        loop {
            let session = self.session().await?;
            again.prepare(&session).await;
            let fault = match work(session.clone()).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            repeats += 1;
            if repeats > REPEATS || !self.may_repeat(again, &session, &fault).await {
                return Err(fault);
            }
        }
    }

    /// Asks one thing, as [`Link::run`] does work; `answer` waits for the reply.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        again: Again,
        request: &Request<'_>,
        answer: impl Fn(Pending) -> F,
    ) -> Result<T, Fault> {
        self.run(again, async |session: Session| answer(session.begin(request).await).await).await
    }

    /// Whether what failed with `fault` on the connection `lost` may be done once more.
    pub(crate) async fn may_repeat(&self, again: Again, lost: &Session, fault: &Fault) -> bool {
        match again {
            _ if fault.is_unsent() => true,
            _ if !fault.is_lost_connection() => false,
            Again::Always => true,
            Again::IfServerExited => self.is_gone(lost).await,
            Again::Never => false,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let State::Up(session) = &*self.lock() {
            session.finish();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    async fn dial(self: Arc<Self>, sender: watch::Sender<Option<Outcome>>) {
        let outcome = self.outage.connect(self.options.timeout, || self.connect()).await;
        let state = match &outcome {
            Ok(session) => State::Up(session.clone()),
            Err(_) => State::Down,
        };
        *self.lock() = state;
        let _ = sender.send(Some(outcome));
    }

    async fn connect(&self) -> Outcome {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        let by_pipes = self.kept.as_ref().and_then(|kept| Some((kept, self.dial.dial_by_pipes()?)));
        let Some((kept, dialed)) = by_pipes else {
            let Connected { reader, writer, carrier } = self.dial.dial().await?;
            return self.greet(reader, writer, carrier, (epoch, None)).await;
        };
        let (ends, carrier) = dialed?;
        let line = Line::new(kept, epoch, ends).map_err(Error::from)?;
        let held = line.hold()?;
        let Line { reader, writer, notes } = line;
        let session = self.greet(reader, writer, carrier, (epoch, Some(notes.clone()))).await?;
        notes.establish(held, (session.extensions, session.max_read, session.max_write));
        Ok(session)
    }

    async fn greet<R, W>(
        &self,
        reader: R,
        writer: W,
        carrier: Box<dyn Carrier>,
        (epoch, notes): (u64, Option<Notes>),
    ) -> Outcome
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let limit = self.options.connect_timeout;
        let greeting = Session::greet(reader, writer, (epoch, notes), self.options.timeout);
        let (mut session, connection) = match tokio::time::timeout(limit, greeting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(carrier.last_words(error).await),
            Err(_) => {
                let why = format!("no connection within {} s", limit.as_secs_f32());
                return Err(carrier.cut_short(Errno::ETIMEDOUT.because(why)).await);
            }
        };
        self.serve(&session, connection, carrier);
        if session.has(Extensions::LIMITS) {
            let limits = session.begin(&Request::Limits).await.extended().await?;
            session.limit(Limits::decode(&limits).map_err(Fault::from)?);
        }
        Ok(session)
    }

    /// Moves its bytes until it ends, and finds out what is at its other end.
    fn serve(&self, session: &Session, connection: Connection, carrier: Box<dyn Carrier>) {
        let (served, asking) = (session.clone(), session.clone());
        self.runtime.spawn(Box::pin(async move {
            connection.await;
            see_off(&served, carrier).await;
        }));
        // No request has to wait for it later on.
        self.runtime.spawn(Box::pin(async move {
            asking.origin().await;
        }));
    }
}

/// The connection has ended: what carried it may say why.
async fn see_off(session: &Session, carrier: Box<dyn Carrier>) {
    if let Some(notes) = session.notes() {
        notes.end();
    }
    let why = Errno::ENOTCONN.because(session.ended().unwrap_or_default());
    let error = carrier.last_words(why).await;
    if !session.is_finishing() {
        tracing::warn!(%error, "a connection was lost");
    }
}

fn ended() -> Error {
    Errno::ENOTCONN.because("the program is ending")
}
