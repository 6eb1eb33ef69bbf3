// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `trace`: prints each request and its reply.
//!
//! ```text
//! 12:34:56.789012 #17 pid 4242 lookup /etc/passwd = node 5 regular 0644 2048 bytes 13us
//! 12:34:56.789103 #18 pid 4242 read /etc/passwd handle=1 len=4096 offset=0 ...
//! 12:34:57.002381 #18 pid 4242 read /etc/passwd handle=1 len=4096 offset=0 = ETIMEDOUT (host silent) 213278us
//! ```
//!
//! A request that is not answered at once has a line ending in `...` when it starts to wait and a second one when its
//! reply comes; `= dropped` when the request was given up. Times are UTC. Paths are learnt from the requests and
//! replies that pass while tracing is on; where that is not enough the driver is asked in the background (`locate`), and
//! `#5` stands for node 5 as long as its path is not known. [`Format::Json`] writes
//! one JSON object a line instead, described at [`Format`].
//!
//! [`TraceControl`] switches tracing on and off and replaces the place the lines go to, at any time. While off, a
//! request costs one atomic load. While on, requests never wait for the place the lines go to: lines queue up to
//! [`QUEUE_LINES`], beyond which they are dropped and counted. [`TraceControl::start_waiting`] is for commands, which wait.
//!
//! Limits: the bytes of files and values are not printed, only their lengths.
#![forbid(unsafe_code)]

mod control;
mod describe;
mod line;
mod locate;

pub use control::{QUEUE_LINES, TraceControl};
pub use line::{Format, text};

use line::{Line, Outcome};
use locate::Located;
use outrigger_core::paths::{Change, Climb, Paths, Subject, printable, subjects};
use outrigger_core::registry::{LayerInfo, Made, Site};
use outrigger_core::{
    Answer, BoxFuture, Cx, Errno, Layer, Place, Reply, Request, Result, Runtime, Service, lock,
};
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// How many nodes' paths are remembered at least.
const NODES: usize = 1 << 16;

/// `--layer trace[=json]`, which prints on standard error.
pub const LAYER: LayerInfo = LayerInfo {
    name: "trace",
    argument: "json",
    does: "prints each message that passes on standard error, as JSON or, without argument, as text; of a mount, outrigger-trace(1) shows them at any time",
    options: &[],
    make: |argument, site| Ok(Made::layer(Trace::printing(argument, site, Box::new(std::io::stderr()))?)),
};

/// The layer.
pub struct Trace {
    control: Arc<TraceControl>,
    paths: Mutex<Paths>,
    located: Located,
    /// Directories that are shown by another name.
    places: Vec<(Vec<u8>, Vec<u8>)>,
    runtime: Arc<dyn Runtime>,
}

impl Trace {
    /// A layer that is off, and its control; lines are written by blocking jobs of `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> (Self, Arc<TraceControl>) {
        let control = Arc::new(TraceControl::new(Arc::clone(&runtime)));
        (Trace::controlled(Arc::clone(&control), runtime), control)
    }

    /// A layer for one more tree, whose lines go where those of all layers with this control go.
    pub fn controlled(control: Arc<TraceControl>, runtime: Arc<dyn Runtime>) -> Self {
        let paths = Mutex::new(Paths::new(NODES));
        let (located, places) = (Located::default(), Vec::new());
        Trace { control, paths, located, places, runtime }
    }

    /// The same layer, whose lines have the second path of each pair where the first one is, or begins a path: programs find the tree
    /// there.
    pub fn with_places(self, places: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        Trace { places, ..self }
    }

    /// A path as programs know it.
    fn placed(&self, path: Vec<u8>) -> Vec<u8> {
        let found = self.places.iter().find_map(|(from, to)| {
            let rest = path.strip_prefix(&from[..])?;
            (rest.is_empty() || rest.starts_with(b"/")).then(|| [to, rest].concat())
        });
        found.unwrap_or(path)
    }

    /// A layer that prints on `out`, as `--layer trace` does: as JSON or, without a format, as text.
    ///
    /// # Errors
    /// `EINVAL` for another format.
    pub fn printing(format: &str, site: &Site<'_>, out: Box<dyn Write + Send>) -> Result<Self> {
        let format = match format {
            "" => Format::Human,
            "json" => Format::Json,
            _ => return Err(Errno::EINVAL.because("only json is known")),
        };
        let (trace, control) = Trace::new(Arc::clone(site.runtime));
        match site.serves_others {
            // A stopped terminal or a full pipe must not block the programs that use the mount.
            true => control.start(out, format),
            false => control.start_waiting(out, format),
        }
        Ok(trace)
    }

    /// Everything about the request that its lines show.
    fn begin<'a>(&'a self, next: &Arc<dyn Service>, cx: &'a Cx, request: &mut Request) -> Call<'a> {
        let subjects = subjects(request);
        let climbs: Vec<Climb> = {
            let mut paths = lock(&self.paths);
            subjects.iter().map(|subject| paths.climb(subject)).collect()
        };
        let shown = climbs.iter().map(|climb| {
            let start = self.located.path(climb.start, next, cx, &*self.runtime);
            printable(&self.placed(climb.spell(start.as_deref())))
        });
        let shown = shown.collect();
        Call {
            trace: self,
            cx,
            line: Line {
                id: cx.id,
                pid: cx.origin.pid,
                uid: cx.cred.uid,
                door: cx.origin.door,
                op: request.op(),
                paths: shown,
                arguments: describe::arguments(request),
            },
            change: Change::of(request),
            subjects,
            started: self.runtime.monotonic(),
        }
    }
}

impl Layer for Trace {
    fn place(&self) -> Place {
        Place::anywhere("trace")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if !self.control.is_on() {
            return next.call(cx, request);
        }
        let call = self.begin(next, cx, &mut request);
        match next.call(cx, request) {
            Answer::Ready(reply) => {
                call.replied(&reply);
                Answer::Ready(reply)
            }
            Answer::Later(answer) => Answer::later(Watched { answer, call: Some(call), waited: false }),
        }
    }
}

/// A request on its way.
struct Call<'a> {
    trace: &'a Trace,
    cx: &'a Cx,
    line: Line,
    change: Change,
    subjects: Vec<Subject>,
    started: Duration,
}

impl Call<'_> {
    fn replied(self, reply: &Reply) {
        let mut paths = lock(&self.trace.paths);
        paths.learn(self.change, &self.subjects, reply);
        drop(paths);
        if matches!(self.change, Change::Rename { .. }) && reply.error().is_none() {
            self.trace.located.clear();
        }
        self.print(&match reply {
            Reply::Error(error) => Outcome::Failed(error),
            reply => Outcome::Done { result: describe::result(reply), bytes: describe::bytes(reply) },
        });
    }

    fn print(&self, outcome: &Outcome<'_>) {
        if matches!(outcome, Outcome::Waiting) && self.trace.control.shows_ends_only() {
            return;
        }
        let took = self.trace.runtime.monotonic().saturating_sub(self.started);
        self.trace.control.print(|format| self.line.print(format, self.trace.runtime.wall(), outcome, took));
    }
}

/// An answer that is awaited, and seen when it starts to wait, when it comes and when it is dropped.
struct Watched<'a> {
    answer: BoxFuture<'a, Reply>,
    call: Option<Call<'a>>,
    waited: bool,
}

impl Future for Watched<'_> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let poll = self.answer.as_mut().poll(context);
        match &poll {
            Poll::Ready(reply) => {
                if let Some(call) = self.call.take() {
                    call.replied(reply);
                }
            }
            Poll::Pending if !self.waited => {
                self.waited = true;
                if let Some(call) = &self.call {
                    call.print(&Outcome::Waiting);
                }
            }
            Poll::Pending => {}
        }
        poll
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call.print(&Outcome::Dropped { cancelled: call.cx.cancel.is_raised() });
        }
    }
}

#[cfg(test)]
mod tests;
