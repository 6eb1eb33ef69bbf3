// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `deadline`: answers `ETIMEDOUT` when what is below takes too long.
//!
//! Each request gets [`Cx::deadline`](outrigger_core::Cx::deadline), unless its door set an earlier one. When the time
//! comes and no answer has,
//!
//! * the caller gets `ETIMEDOUT` with a reason that names the driver and the operation;
//! * a query is cancelled ([`Cancel`](outrigger_core::Cancel)) and dropped;
//! * a change goes on by itself until it ends: it was started, so stopping it half way would leave it unknown what
//!   happened. So does a query that hands out something which has to be given back (a handle, references to nodes),
//!   after it was cancelled, and what gives such a thing back. Their late replies are dropped and logged, and what they hand out is given back.
//!
//! The same happens when the door or a layer above drops such an answer before it came.
//!
//! Limits: requests for locks that wait, and forgets, have no deadline. A lock that was granted too late stays until
//! its owner closes the file: releasing it could take away a lock the owner held before. Every call costs an
//! allocation, as the context with the deadline has to outlive the call.
#![forbid(unsafe_code)]

mod late;

use late::Late;
use outrigger_core::registry::{LayerInfo, Made, Site};
use outrigger_core::{
    Answer, Asked, BoxFuture, Class, Cx, Errno, Layer, Place, Reply, Request, Result, Runtime,
    Service,
};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// `--layer deadline=SECONDS`.
pub const LAYER: LayerInfo = LayerInfo {
    name: "deadline",
    argument: "SECONDS",
    does: "answers ETIMEDOUT for a request that takes longer",
    options: &[],
    make: |argument, &Site { runtime, .. }| {
        Ok(Made::layer(Deadline::new(seconds(argument)?, Arc::clone(runtime))))
    },
};

fn seconds(argument: &str) -> Result<Duration> {
    let seconds = argument.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| Errno::EINVAL.because("a number of seconds is needed"))
}

/// The layer.
pub struct Deadline {
    limit: Duration,
    runtime: Arc<dyn Runtime>,
}

impl Deadline {
    /// Gives each request `limit`; time and tasks come from `runtime`.
    pub fn new(limit: Duration, runtime: Arc<dyn Runtime>) -> Self {
        Deadline { limit, runtime }
    }
}

impl Layer for Deadline {
    fn place(&self) -> Place {
        Place::anywhere("deadline")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if may_wait(&request) {
            return next.call(cx, request);
        }
        let latest = self.runtime.monotonic().saturating_add(self.limit);
        let deadline = cx.deadline.map_or(latest, |earlier| earlier.min(latest));
        let cx = Cx { deadline: Some(deadline), ..cx.clone() };
        let running = Running::start(Arc::clone(next), cx, request, Arc::clone(&self.runtime));
        Answer::later(running.until(deadline))
    }
}

/// Whether the request is one to wait, as long as it takes, or has no reply.
fn may_wait(request: &Request) -> bool {
    request.waits() || request.returns().is_some()
}

/// A request below this layer. Dropping it never drops what has to be finished: that goes on as a task.
struct Running {
    request: Option<BoxFuture<'static, Reply>>,
    started: bool,
    next: Arc<dyn Service>,
    cx: Cx,
    asked: Asked,
    /// What dropping it must not drop.
    kept: Kept,
    runtime: Arc<dyn Runtime>,
}

/// When a request goes on after its caller has stopped waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Always: it gives something back.
    Always,
    /// Once it was begun: it changes something.
    Begun,
    /// The same, but it may end early: it hands out something.
    Cancelled,
    /// Never.
    Dropped,
}

impl Kept {
    fn of(request: &Request) -> Self {
        match request {
            _ if request.gives_back() => Kept::Always,
            _ if request.class() == Class::Change => Kept::Begun,
            _ if request.hands_out() => Kept::Cancelled,
            _ => Kept::Dropped,
        }
    }
}

impl Running {
    fn start(next: Arc<dyn Service>, cx: Cx, request: Request, runtime: Arc<dyn Runtime>) -> Self {
        let (asked, kept) = (Asked::of(&request), Kept::of(&request));
        let (service, own) = (Arc::clone(&next), cx.clone());
        let request: BoxFuture<'static, Reply> = Box::pin(async move { service.call(&own, request).await });
        Running { request: Some(request), started: false, next, cx, asked, kept, runtime }
    }

    /// The reply, or `ETIMEDOUT` at `deadline`.
    async fn until(mut self, deadline: Duration) -> Reply {
        // Most requests are answered at the first poll and need no timer.
        let mut timer: Option<BoxFuture<'static, ()>> = None;
        poll_fn(|context| {
            if let Poll::Ready(reply) = self.poll_request(context) {
                return Poll::Ready(reply);
            }
            let timer = timer.get_or_insert_with(|| self.runtime.sleep_until(deadline));
            timer.as_mut().poll(context).map(|()| self.timed_out())
        })
        .await
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Reply> {
        self.started = true;
        let Some(request) = &mut self.request else {
            return Poll::Ready(Reply::Error(Errno::EIO.because("a request was awaited twice")));
        };
        let poll = Pin::new(request).poll(context);
        if poll.is_ready() {
            self.request = None;
        }
        poll
    }

    fn timed_out(&self) -> Reply {
        let driver = self.next.abilities().driver;
        let reason = format!("the driver {driver} did not answer {} in time", self.asked.op().name());
        Reply::Error(Errno::ETIMEDOUT.because(reason))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        if matches!(self.kept, Kept::Cancelled | Kept::Dropped) {
            self.cx.cancel.raise();
        }
        if self.kept == Kept::Always || self.started && self.kept != Kept::Dropped {
            let late = Late { next: Arc::clone(&self.next), cx: self.cx.clone(), asked: self.asked };
            self.runtime.spawn(Box::pin(async move { late.drop_reply(request.await).await }));
        }
    }
}

#[cfg(test)]
mod tests;
