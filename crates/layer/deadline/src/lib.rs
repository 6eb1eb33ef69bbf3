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

use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::runtime::until;
use outrigger_core::{
    Answer, Asked, BoxFuture, Class, Cx, Errno, Layer, Place, Reply, Request, Result, Runtime, Service,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// `--layer deadline=SECONDS`.
pub const LAYER: LayerInfo =
    LayerInfo::new("deadline", "answers ETIMEDOUT for a request that takes longer", |argument, site| {
        Ok(Made::layer(Deadline::new(seconds(argument)?, Arc::clone(site.runtime))))
    })
    .with_argument("SECONDS");

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
        if request.waits() || request.returns().is_some() {
            return next.call(cx, request);
        }
        let latest = self.runtime.monotonic().saturating_add(self.limit);
        let deadline = cx.deadline.map_or(latest, |earlier| earlier.min(latest));
        let cx = Cx { deadline: Some(deadline), ..cx.clone() };
        let mut running = Running::new(Arc::clone(next), cx, request, Arc::clone(&self.runtime));
        Answer::later(async move {
            let reply = until(&*self.runtime, deadline, &mut running).await;
            reply.unwrap_or_else(|| running.timed_out())
        })
    }
}

/// A request below this layer. Dropping it never drops what has to end: that goes on as a task.
struct Running {
    /// `None` once it has come.
    reply: Option<BoxFuture<'static, Reply>>,
    /// Whether it must end once it has begun.
    must_end: bool,
    /// Whether it must end now: what gives something back need not have begun.
    goes_on: bool,
    may_cancel: bool,
    asked: Asked,
    next: Arc<dyn Service>,
    cx: Cx,
    runtime: Arc<dyn Runtime>,
}

impl Running {
    fn new(next: Arc<dyn Service>, cx: Cx, request: Request, runtime: Arc<dyn Runtime>) -> Self {
        let (asked, must_end, goes_on) = (Asked::of(&request), request.must_end(), request.gives_back());
        let may_cancel = request.class() == Class::Query && !goes_on;
        let (service, own) = (Arc::clone(&next), cx.clone());
        let reply: BoxFuture<'static, Reply> = Box::pin(async move { service.call(&own, request).await });
        Running { reply: Some(reply), must_end, goes_on, may_cancel, asked, next, cx, runtime }
    }

    fn timed_out(&self) -> Reply {
        let driver = self.next.abilities().driver;
        let reason = format!("the driver {driver} did not answer {} in time", self.asked.op().name());
        Reply::Error(Errno::ETIMEDOUT.because(reason))
    }
}

impl Future for Running {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        self.goes_on = self.must_end;
        let Some(reply) = &mut self.reply else { return Poll::Pending };
        let reply = ready!(reply.as_mut().poll(context));
        self.reply = None;
        Poll::Ready(reply)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(reply) = self.reply.take() else { return };
        if self.may_cancel {
            self.cx.cancel.raise();
        }
        if self.goes_on {
            let (next, cx, asked) = (Arc::clone(&self.next), self.cx.clone(), self.asked);
            self.runtime.spawn(Box::pin(async move {
                let (reply, op) = (reply.await, asked.op().name());
                tracing::warn!(request = cx.id, op, ?reply, "the caller has gone: a late reply is dropped");
                asked.give_back(&*next, &cx, &reply).await;
            }));
        }
    }
}

#[cfg(test)]
mod tests;
