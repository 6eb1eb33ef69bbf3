// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes on in a session.
use crate::negotiate::Negotiated;
use crate::slot::RequestInFlight;
use outrigger_core::{Errno, Error, Node, lock};
use outrigger_proto_fuse::Opcode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// A picture of a session at one moment.
#[derive(Debug, Clone)]
pub struct Status {
    /// What server and kernel have agreed on; `None` before INIT.
    pub negotiated: Option<Negotiated>,
    /// Requests being worked on, the oldest first.
    pub in_flight: Vec<InFlight>,
    /// Requests and failures so far, by operation; only those that occurred.
    pub counts: Vec<OpCount>,
    /// The last failure.
    pub last_failure: Option<Failure>,
    /// Reader threads.
    pub readers: usize,
}

/// A request being worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Its identity, as in [`Cx::id`](outrigger_core::Cx::id).
    pub id: u64,
    /// FUSE operation.
    pub op: &'static str,
    /// The node it is about.
    pub node: Node,
    /// Thread of the program that asked; zero when the kernel asks by itself.
    pub pid: u32,
    /// Time since it was received, a few milliseconds coarse.
    pub age: Duration,
}

/// How often an operation was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpCount {
    /// FUSE operation.
    pub op: &'static str,
    /// Requests.
    pub requests: u64,
    /// Requests that failed; ordinary answers such as `ENOENT` are none.
    pub errors: u64,
}

/// An error that was answered.
#[derive(Debug, Clone)]
pub struct Failure {
    /// FUSE operation.
    pub op: &'static str,
    /// The node it was about.
    pub node: Node,
    /// The error with its reason.
    pub error: Error,
    /// When.
    pub at: SystemTime,
}

/// Operation codes are below this number.
const CODES: usize = 64;

/// Counters of a session.
pub(crate) struct Counters {
    requests: [AtomicU64; CODES],
    errors: [AtomicU64; CODES],
    last: Mutex<Option<Failure>>,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; CODES],
            errors: [const { AtomicU64::new(0) }; CODES],
            last: Mutex::default(),
        }
    }
}

/// Errors that answer what programs ask every day. One that comes with a reason is a failure all the same.
fn is_ordinary(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOENT
            | Errno::EEXIST
            | Errno::ENOTEMPTY
            | Errno::ENODATA
            | Errno::ENOSYS
            | Errno::ERANGE
            | Errno::EAGAIN
            | Errno::EINTR
            | Errno::EACCES
            | Errno::EPERM
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::ENXIO
            | Errno::EOPNOTSUPP
            | Errno::ENOTTY
    )
}

/// Short name of an operation code.
pub(crate) fn op_name(opcode: u32) -> &'static str {
    Opcode::from_u32(opcode).map_or("unknown", Opcode::name)
}

impl Counters {
    /// Counts a request.
    pub(crate) fn request(&self, opcode: u32) {
        if let Some(count) = self.requests.get(opcode as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts and remembers an error unless it is an ordinary answer: what is counted is also what is shown.
    #[cold]
    pub(crate) fn failure(&self, opcode: u32, node: u64, error: &Error) {
        if error.reason.is_none() && is_ordinary(error.errno) {
            return;
        }
        if let Some(count) = self.errors.get(opcode as usize) {
            count.fetch_add(1, Relaxed);
        }
        let op = op_name(opcode);
        tracing::debug!(op, node, %error, "request failed");
        let failure = Failure { op, node: Node(node), error: error.clone(), at: SystemTime::now() };
        *lock(&self.last) = Some(failure);
    }

    /// Counts by operation.
    pub(crate) fn counts(&self) -> Vec<OpCount> {
        let count = |opcode: &Opcode| OpCount {
            op: opcode.name(),
            requests: self.requests[*opcode as usize].load(Relaxed),
            errors: self.errors[*opcode as usize].load(Relaxed),
        };
        Opcode::ALL.iter().map(count).filter(|count| count.requests != 0).collect()
    }

    /// The last failure.
    pub(crate) fn last_failure(&self) -> Option<Failure> {
        lock(&self.last).clone()
    }
}

impl From<RequestInFlight> for InFlight {
    fn from(found: RequestInFlight) -> Self {
        let RequestInFlight { request, opcode, node, pid, age } = found;
        Self { id: request, op: op_name(opcode), node, pid, age }
    }
}

const _: () = assert!((Opcode::CopyFileRange64 as usize) < CODES, "an operation code has no counter");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_count_and_the_last_of_them_is_shown() {
        let counters = Counters::default();
        let lookup = Opcode::Lookup as u32;
        for errno in [Errno::ENOENT, Errno::EEXIST, Errno::ENODATA, Errno::ENOTEMPTY] {
            counters.request(lookup);
            counters.failure(lookup, 1, &errno.into());
        }
        assert_eq!(counters.counts()[0].errors, 0);
        assert!(counters.last_failure().is_none());
        counters.failure(lookup, 7, &Errno::EIO.into());
        counters.failure(lookup, 8, &Errno::ENOENT.because("the server went away"));
        let counted = counters.counts();
        assert_eq!((counted[0].requests, counted[0].errors), (4, 2));
        assert!(counters.last_failure().is_some_and(|last| last.node == Node(8)));
    }
}
