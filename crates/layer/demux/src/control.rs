// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be done with a [`Demux`](crate::Demux) while it stands in a stack.

use crate::inner::Inner;
use crate::numbers::Life;
use crate::state::{Open, Phase, Tree};
use futures_channel::oneshot;
use outrigger_core::runtime::until;
use outrigger_core::{Cancel, Error};
use std::sync::Arc;
use std::time::Duration;

/// How long it may take to find out the names of files that are not written.
const NAMING: Duration = Duration::from_secs(1);
/// How many of them are told.
const NAMED: usize = 10;

/// What is known of the trees. Clones belong to the same service.
#[derive(Clone)]
pub struct Control(pub(crate) Arc<Inner>);

/// A tree that is or was in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeStatus {
    /// Its path from the root.
    pub path: String,
    /// What its name leads to.
    pub location: String,
    /// `opening`, `open`, `closing`, `broken` or `closed`.
    pub state: &'static str,
    /// Since when.
    pub age: Duration,
    /// Since when nothing was asked, where it is open.
    pub idle: Option<Duration>,
    /// Requests in it.
    pub in_flight: usize,
    /// Files and directories that are open.
    pub open_files: u64,
    /// Why it cannot be opened, or what was lost when it was closed, until [`Control::close`].
    pub reason: Option<Error>,
    /// When it is tried again, at the earliest.
    pub retry: Option<Duration>,
}

/// What was not done when all trees were closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The path of the tree.
    pub path: String,
    /// What is lost, or may be, in words.
    pub what: String,
}

/// A tree that is being closed: its path, what answers in it, and how that went.
type BeingClosed = (String, Arc<Open>, oneshot::Receiver<Result<(), Error>>);

impl Phase {
    /// In one word.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Phase::Closed => "closed",
            Phase::Opening => "opening",
            Phase::Open(_) => "open",
            Phase::Closing(_) => "closing",
            Phase::Broken { .. } => "broken",
        }
    }
}

impl Tree {
    fn status(&self, now: Duration) -> TreeStatus {
        let is_open = matches!(self.phase, Phase::Open(_));
        let (reason, retry) = match &self.phase {
            Phase::Broken { error, retry } => (Some(error.clone()), Some(retry.saturating_sub(now))),
            _ => (self.lost.clone(), None),
        };
        TreeStatus {
            path: self.shown(),
            location: self.opener.location().to_owned(),
            state: self.phase.name(),
            age: now.saturating_sub(self.since),
            idle: (is_open && self.in_flight == 0).then(|| now.saturating_sub(self.last_used)),
            in_flight: self.in_flight,
            open_files: self.opens,
            reason,
            retry,
        }
    }

    /// Whether there is more to tell of it than its name.
    fn is_worth_telling(&self) -> bool {
        !matches!(self.phase, Phase::Closed) || self.lost.is_some()
    }
}

impl Control {
    /// The trees that are not closed, and those that lost something, by path.
    pub fn status(&self) -> Vec<TreeStatus> {
        let now = self.0.runtime.monotonic();
        let state = self.0.lock();
        let told = state.trees.values().filter(|tree| tree.is_worth_telling());
        let mut all: Vec<TreeStatus> = told.map(|tree| tree.status(now)).collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    /// Drops what open trees have cached, and lets those that cannot be opened be tried again at once.
    pub fn flush(&self) {
        let now = self.0.runtime.monotonic();
        let mut open = Vec::new();
        for tree in self.0.lock().trees.values_mut() {
            match &mut tree.phase {
                Phase::Open(this) => open.push(Arc::clone(this)),
                Phase::Broken { retry, .. } => (*retry, tree.failures) = (now, 0),
                Phase::Closed | Phase::Opening | Phase::Closing(_) => {}
            }
        }
        open.iter().for_each(|open| open.hosted.ending.flush());
    }

    /// What programs have written and trees have not got that are open or being closed: paths, and the amount in words.
    pub fn unwritten(&self) -> Vec<Left> {
        let open: Vec<(String, Arc<Open>)> = {
            let state = self.0.lock();
            let open = state.trees.values().filter_map(|tree| match &tree.phase {
                Phase::Open(open) | Phase::Closing(open) => Some((tree.shown(), Arc::clone(open))),
                _ => None,
            });
            open.collect()
        };
        let left =
            |(path, open): (String, Arc<Open>)| Some(Left { path, what: open.hosted.ending.unwritten()? });
        open.into_iter().filter_map(left).collect()
    }

    /// Closes all trees at once, within `patience`, and until `enough` is raised. Answers what is lost for certain, now or before, and
    /// what did not answer until then.
    pub async fn close(&self, patience: Duration, enough: &Cancel) -> Vec<Left> {
        let limit = self.0.runtime.monotonic() + patience;
        let closing = self.begin_closing();
        let mut left = Vec::new();
        for (path, open, outcome) in closing {
            let what = match enough.unless_raised(until(&*self.0.runtime, limit, outcome)).await {
                // What it lost is told below.
                Some(Some(Ok(_))) => continue,
                Some(Some(Err(_))) => "the task that closes it ended".to_owned(),
                Some(None) => {
                    format!("no answer for {} s, {}", patience.as_secs_f64(), self.unwritten_in(&open).await)
                }
                None => format!("given up, {}", self.unwritten_in(&open).await),
            };
            left.push(Left { path, what });
        }
        left.extend(self.lost());
        left
    }

    /// What a tree has not got that is waited for no more, with the names of files.
    async fn unwritten_in(&self, open: &Open) -> String {
        let ending = &open.hosted.ending;
        // A server of whole files may lack one that is written, but not closed there.
        let amount = ending.unwritten();
        let amount = amount.unwrap_or_else(|| "it may not have all that was written".to_owned());
        let limit = self.0.runtime.monotonic() + NAMING;
        let mut files = until(&*self.0.runtime, limit, ending.unwritten_files()).await.unwrap_or_default();
        if files.len() > NAMED {
            files.truncate(NAMED);
            files.push("...".to_owned());
        }
        if files.is_empty() { amount } else { format!("{amount}: {}", files.join(", ")) }
    }

    /// What was lost when trees were closed, once.
    fn lost(&self) -> Vec<Left> {
        let mut state = self.0.lock();
        let lost = state.trees.values_mut().filter_map(|tree| {
            let what = tree.lost.take()?.why();
            Some(Left { path: tree.shown(), what })
        });
        lost.collect()
    }

    fn begin_closing(&self) -> Vec<BeingClosed> {
        let now = self.0.runtime.monotonic();
        let mut state = self.0.lock();
        let lives: Vec<(Life, String)> = state
            .trees
            .iter()
            .filter_map(|(&root, tree)| Some((tree.life_of(root)?, tree.shown())))
            .collect();
        let begun =
            lives.into_iter().filter_map(|(life, path)| Some((life, path, state.begin_closing(life, now)?)));
        let begun: Vec<(Life, String, Arc<Open>)> = begun.collect();
        drop(state);
        let watched = begun.into_iter().map(|(life, path, open)| {
            let (sender, receiver) = oneshot::channel();
            self.0.close(life.tree, Arc::clone(&open), Some(sender));
            (path, open, receiver)
        });
        watched.collect()
    }
}
