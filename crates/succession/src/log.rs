// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes that were answered since the last checkpoint, with their replies, in the order of these.

use crate::files::Files;
use outrigger_core::ops::OpenFlags;
use outrigger_core::paths::{Subject, subjects};
use outrigger_core::rebind::Numbers;
use outrigger_core::{Credentials, Errno, Handle, Name, Node, Reply, Request, Wire};
use std::time::{Duration, Instant};

/// A checkpoint is due when the log has so many bytes,
const BYTES: usize = 32 << 20;
/// so many changes (the ring with their times holds twice as many),
const CHANGES: usize = 1 << 15;
/// or is that old.
const AGE: Duration = Duration::from_secs(5);
/// What an entry costs beside content, in bytes.
const COST: usize = 384;

/// A change.
pub struct Entry {
    /// The process that asked.
    pub cred: Credentials,
    /// The request, encoded: what it holds of a door's memory is not kept.
    pub request: Vec<u8>,
    /// What the reply said.
    pub outcome: Outcome,
    /// The number of the change, under which its time was noted.
    pub change: u64,
    /// Where the nodes were that no earlier entry names.
    pub places: Vec<(Node, Vec<Name>)>,
    /// What the open files are that it is about.
    pub open: Vec<(Handle, Node, Option<OpenFlags>)>,
}

/// What matters of a reply when it is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How much was done, where the reply says that.
    pub count: Option<u64>,
    /// How it failed.
    pub error: Option<Errno>,
    /// The file that was found or made.
    pub node: Option<Node>,
    /// The file that was opened.
    pub handle: Option<Handle>,
}

impl Outcome {
    /// What `reply` says.
    pub fn of(reply: &Reply) -> Self {
        let nothing = Outcome { count: None, error: None, node: None, handle: None };
        match reply {
            Reply::Error(error) => Outcome { error: Some(error.errno), ..nothing },
            Reply::Count(count) => Outcome { count: Some(count.0), ..nothing },
            Reply::Entry(entry) => Outcome { node: Some(entry.node), ..nothing },
            Reply::Opened(opened) => Outcome { handle: Some(opened.handle), ..nothing },
            Reply::Created(created) => {
                let (node, handle) = (created.entry.node, created.opened.handle);
                Outcome { node: Some(node), handle: Some(handle), ..nothing }
            }
            _ => nothing,
        }
    }

    /// Whether the other reply says the same about everything but numbers.
    pub fn agrees(&self, other: &Outcome) -> bool {
        (self.count, self.error) == (other.count, other.error)
    }
}

/// See the [module](self).
pub struct Log {
    /// The changes, oldest first; none where they are only counted.
    pub entries: Vec<Entry>,
    is_kept: bool,
    changes: usize,
    bytes: usize,
    begun: Option<Instant>,
    /// When the last checkpoint failed, if it did.
    failed: Option<Instant>,
    /// It is due with so many changes: the process that does them again holds the files of all of them.
    most: usize,
    /// How many checkpoints there were when the first one was logged.
    pub checkpoints: u64,
}

/// How much there is in a log that counts only.
#[derive(Wire)]
#[wire(internal)]
pub struct Counted {
    is_empty: bool,
    changes: usize,
    bytes: usize,
    checkpoints: u64,
}

impl Log {
    /// An empty one, for a worker that is to hold so many files. If it is not kept, changes are only counted.
    pub fn new(files: usize, is_kept: bool) -> Self {
        let most = files.min(CHANGES);
        Log {
            entries: Vec::new(),
            is_kept,
            changes: 0,
            bytes: 0,
            begun: None,
            failed: None,
            most,
            checkpoints: 0,
        }
    }

    /// How much there is, for [`Log::restored`].
    pub fn counted(&self) -> Counted {
        let (changes, bytes) = (self.changes, self.bytes);
        Counted { is_empty: self.is_empty(), changes, bytes, checkpoints: self.checkpoints }
    }

    /// A log that counts on, for a worker that is to hold so many files. It is young again.
    pub fn restored(files: usize, Counted { is_empty, changes, bytes, checkpoints }: Counted) -> Self {
        let begun = (!is_empty).then(Instant::now);
        Log { begun, changes, bytes, checkpoints, ..Log::new(files, false) }
    }

    /// Everything logged is in the image, after so many checkpoints.
    pub fn clear(&mut self, checkpoints: u64) {
        *self = Log { checkpoints, ..Log::new(self.most, self.is_kept) };
    }

    /// Whether nothing was changed since the checkpoint, also while the entries are elsewhere.
    pub fn is_empty(&self) -> bool {
        self.begun.is_none()
    }

    /// A checkpoint has failed: the next one is due in a while only, for the host needs time to have room again.
    pub fn could_not_clear(&mut self) {
        self.failed = Some(Instant::now());
    }

    /// How long until the failure of a checkpoint is long enough ago for the next one.
    fn pause(&self) -> Duration {
        self.failed.map_or(Duration::ZERO, |failed| AGE.saturating_sub(failed.elapsed()))
    }

    /// Whether it is time for a checkpoint.
    pub fn is_due(&self) -> bool {
        self.pause().is_zero() && self.is_long()
    }

    fn is_long(&self) -> bool {
        self.bytes >= BYTES
            || self.changes >= self.most
            || self.begun.is_some_and(|begun| begun.elapsed() >= AGE)
    }

    /// Whether nothing more can be taken.
    pub fn is_full(&self) -> bool {
        self.bytes >= 4 * BYTES || self.changes >= self.most + self.most / 2
    }

    /// How long it will be until it is time for a checkpoint because of its age.
    pub fn due_after(&self) -> Option<Duration> {
        self.begun.map(|begun| AGE.saturating_sub(begun.elapsed()).max(self.pause()))
    }

    /// Whether a change that was answered like this has to be repeated.
    pub fn takes(request: &Request, reply: &Reply) -> bool {
        // What has failed has changed nothing, except where one request is several changes.
        reply.error().is_none() || matches!(request, Request::SetAttr(_))
    }

    /// Describes a change before what it did to names is learnt.
    pub fn describe(
        &self,
        files: &mut Files,
        (cred, change): (Credentials, u64),
        request: &mut Request,
        reply: &Reply,
    ) -> Option<Entry> {
        if !self.is_kept {
            return None;
        }
        let mut about = Numbers::of(request);
        let mut entry = Entry {
            cred,
            request: Vec::new(),
            outcome: Outcome::of(reply),
            change,
            places: Vec::new(),
            open: Vec::new(),
        };
        // What has a name that goes away may be in use.
        let named = subjects(request).into_iter().filter_map(|subject| match &subject.names[..] {
            [name] => files.get(subject.node, name),
            _ => None,
        });
        about.nodes.extend(named);
        for node in about.nodes {
            if files.log(node, self.checkpoints)
                && let Ok(path) = files.path(node)
            {
                entry.places.push((node, path));
            }
        }
        for handle in about.handles {
            if let Ok(open) = files.open(handle) {
                entry.open.push((handle, open.node, open.flags));
            }
        }
        request.put(&mut entry.request);
        Some(entry)
    }

    /// Adds a change, with our numbers in its reply.
    pub fn push(&mut self, request: &Request, entry: Option<Entry>, files: &mut Files, reply: &Reply) {
        self.changes += 1;
        self.bytes += COST + content(request);
        self.begun.get_or_insert_with(Instant::now);
        let Some(mut entry) = entry else { return };
        entry.outcome = Outcome::of(reply);
        if let Some(node) = entry.outcome.node {
            files.log(node, self.checkpoints);
        }
        self.entries.push(entry);
    }
}

/// How many bytes of content a request has.
fn content(request: &Request) -> usize {
    match request {
        Request::Write(op) => op.data.len(),
        Request::SetXattr(op) => op.value.len(),
        _ => 0,
    }
}

/// The subject of a request, for people.
pub fn printable(request: &mut Request) -> String {
    let names: Vec<String> = subjects(request)
        .iter()
        .flat_map(|Subject { names, .. }| names.iter().map(ToString::to_string))
        .collect();
    format!("{} {}", request.op().name(), names.join(" "))
}
