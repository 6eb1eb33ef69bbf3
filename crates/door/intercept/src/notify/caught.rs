// SPDX-License-Identifier: MIT OR Apache-2.0
//! How calls come to the server, and what those take that come by a filter.

use super::gate::{Grafts, Memory};
use super::listener::Listener;
use super::progress::Progress;
use super::trace::Tracer;
use crate::failed;
use crate::kept::{Kept, Link, Shows};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What calls take that come by a filter.
pub(crate) struct ByFilter {
    pub(crate) listener: Arc<Listener>,
    pub(crate) progress: Progress,
    /// Which programs reach local files by themselves; none where no program may.
    pub(crate) grafts: Option<Grafts>,
    pub(crate) keeper: Link,
}

impl ByFilter {
    /// Tells the keeper what is shown. With `gate`, programs reach local files by themselves where that is possible.
    pub(crate) fn new(
        (listener, calls, keeper): (OwnedFd, OwnedFd, Link),
        shows: &Shows,
        gate: bool,
    ) -> Result<Self, String> {
        // Without it all calls come here.
        let memory = gate.then(|| Memory::new(&shows.prefixes)).and_then(|memory| memory.ok()?);
        let grafts = memory.map(Grafts::new);
        keeper.shows(shows, grafts.as_ref().map(|grafts| grafts.memory().as_fd()))?;
        let progress = Progress::of(calls).map_err(failed("no memory"))?;
        Ok(ByFilter { listener: Arc::new(Listener::new(listener)), progress, grafts, keeper })
    }
}

/// How calls come to this process.
#[derive(Debug)]
pub enum Caught {
    /// By a filter of the kernel.
    Filtered(Kept),
    /// By tracing.
    Traced(Arc<Tracer>),
}
