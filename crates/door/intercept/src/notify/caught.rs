// SPDX-License-Identifier: MIT OR Apache-2.0
//! How calls come to the server, and what those take that come by a filter.

use super::gate::{Grafts, Memory};
use super::listener::Listener;
use super::names::Names;
use super::progress::Progress;
use super::source::Source;
use super::trace::Tracer;
use crate::failed;
use crate::kept::{Kept, Link, Shows};
use crate::launch::Prefix;
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

impl Caught {
    /// Where calls come from, and what those by a filter take. `names` is what is shown, with trees at `prefixes`.
    pub(crate) fn source(
        self,
        names: &Names,
        prefixes: &[Prefix],
        gate: bool,
    ) -> Result<(Arc<dyn Source>, Option<ByFilter>), String> {
        match self {
            Caught::Traced(tracer) => {
                tracer.knows(names);
                Ok((tracer, None))
            }
            Caught::Filtered(kept) => {
                let (mirror, prefixes) = (names.mirror().to_owned(), prefixes.to_vec());
                let shows = Shows { mirror, prefixes, is_closed: names.overlay().is_some() };
                let filter = ByFilter::new((kept.listener, kept.calls, kept.keeper), &shows, gate)?;
                Ok((Arc::clone(&filter.listener) as _, Some(filter)))
            }
        }
    }
}
