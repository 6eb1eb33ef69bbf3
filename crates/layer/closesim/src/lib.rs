// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `closesim`, the close simulator: opens and closes files for callers that cannot.
//!
//! Some protocols have no open and no close (NFSv3, RFC 1813). Their doors ask by [`Handle::NONE`](outrigger_core::Handle::NONE), and
//! many trees need an open handle. This layer opens what is asked for without a handle, keeps it for a while, and closes it: it
//! adds [`Abilities::anonymous_io`], and [`Abilities::lasting_cookies`] where cookies follow from names. Requests with a handle
//! pass as they are, and so does everything where the tree needs no handles.
//!
//! # When it opens
//! The first request of a caller (by user, group and supplementary groups) opens a file with that caller's credentials, for
//! reading, or for reading and writing when it changes content; where the tree refuses that for want of permission, for writing
//! alone. Requests that come meanwhile wait for the same open. A caller that writes to a file reads by the same handle.
//!
//! A new file ([`MkNod`](outrigger_core::ops::MkNod)) that its owner cannot open by its mode, as one of mode 0444, is made open and
//! stays so for its caller as if it had been opened, whether or not the tree needs handles: at the client it is open. In a tree that
//! makes files by opening them alone all are.
//!
//! # When it closes
//! With [`Flush`](outrigger_core::ops::Flush), where a file was written and the tree wants it, and
//! [`Release`](outrigger_core::ops::Release), as soon as no request is in flight:
//!
//! * `idle`, `write_idle` or `list_idle` after the last request;
//! * when more than `max` are open, that which was unused for longest;
//! * when the file loses a name: an NFS client that has it open renames it instead (silly rename);
//! * at an `fsync` of a tree that has none, since it stores files when they are closed;
//! * when the tree does not know the handle any more (`EBADF`, `ESTALE`), so that the next request opens the file anew;
//! * when the layer is dropped, and by [`Control::end`], which waits for it.
//!
//! A file that is being closed after it was written is not opened before that has ended: the open finds what was written.
//! References to a node that come back ([`Forget`](outrigger_core::ops::Forget)) while it is open are returned after it is closed.
//!
//! # How accurate it is
//!
//! | what programs expect of open(2) and close(2) | with this layer |
//! |---|---|
//! | a file is stored when close(2) returns | `write_idle` after the last write, or at the client's next `fsync` (`COMMIT`), which an NFS client sends in close(2) when it has unstable writes |
//! | close(2) tells that storing failed | the next `fsync` of the file does, of any caller, and the next write once; a warning is logged |
//! | what others see of a file that is written, before that is closed | what the tree shows them: it has one handle for each caller's credentials, not for each program |
//! | permissions are checked at open(2) | checked again after each time the file was closed: a program that keeps a file open for longer than `idle` may lose it, and the owner cannot write to a file without write permission where the tree refuses to open it, unless it was just made |
//! | a removed file lives as long as it is open | until the next close here; then `ESTALE`, unless the client renamed it instead, as NFS clients do |
//! | locks | none: they end with a handle, and its end is not theirs. They pass as they are |
//! | readdir(3) shows one state of the directory | while the directory is open here; then `ESTALE` for a cookie that leads nowhere, and a client lists anew. With cookies that follow from names it goes on |
//!
//! A lost write is answered at an `fsync`, not at a read or a query: these may be of other programs, and the writer would not get
//! it. At most [`MAX_FAILURES`] files are remembered by their nodes; of further ones the next `fsync` of any file fails.
//!
//! # Limits
//! What a tree keeps open for another process that goes on when this one dies is not closed by that: the layer there knows
//! nothing of it. Removing or replacing a name costs a lookup below while files are open here. The handle of a new file
//! ([`Create`](outrigger_core::ops::Create)) is its caller's: writing without it opens the file again.
#![forbid(unsafe_code)]

mod ask;
mod held;
mod inner;
mod outcome;
mod table;

pub use table::MAX_FAILURES;

use held::Kind;
use inner::{Inner, Supplied};
use outrigger_core::option::option;
use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::{
    Abilities, Answer, Cx, Error, Layer, OpCode, OpSet, OptionTable, Place, Request, Result, Runtime, Service,
};
use std::sync::Arc;
use std::time::Duration;

/// `--layer closesim=KEY=VALUE,...`, whose control is a [`Control`].
pub const LAYER: LayerInfo = LayerInfo {
    name: "closesim",
    argument: "KEY=VALUE,...",
    does: "opens a file when it is asked for and closes it when it is idle, for clients that do neither, such as those of NFSv3",
    options: &[&OPTIONS],
    make: |list, site| {
        let layer = CloseSim::new(Options::parse(list)?, Arc::clone(site.runtime));
        let control = layer.control();
        Ok(Made::with_control(layer, control))
    },
};

/// The keys of [`Options`].
pub const OPTIONS: OptionTable = OptionTable {
    owner: "closesim",
    options: &[
        option("idle", "SECONDS", "30", "how long after the last request a file is closed that is only read"),
        option("write_idle", "SECONDS", "5", "the same for a file that is written"),
        option("list_idle", "SECONDS", "60", "the same for a directory"),
        option("max", "N", "256", "the most files and directories that are open at once"),
    ],
};

/// How long, and how much, is kept open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// After the last request to a file that is only read.
    pub idle: Duration,
    /// After the last write to a file.
    pub write_idle: Duration,
    /// After the last request to a directory.
    pub list_idle: Duration,
    /// The most files and directories.
    pub max: usize,
}

impl Default for Options {
    fn default() -> Self {
        let [idle, write_idle, list_idle] = [30, 5, 60].map(Duration::from_secs);
        Options { idle, write_idle, list_idle, max: 256 }
    }
}

impl Options {
    fn period(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Read => self.idle,
            Kind::Write => self.write_idle,
            Kind::List => self.list_idle,
        }
    }

    /// Reads what follows `--layer closesim=`.
    ///
    /// # Errors
    /// `EINVAL` with a reason, for an unknown key or a value that it cannot have.
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Options::default();
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            match key {
                "idle" => options.idle = OPTIONS.time_limit(key, value)?,
                "write_idle" => options.write_idle = OPTIONS.time_limit(key, value)?,
                "list_idle" => options.list_idle = OPTIONS.time_limit(key, value)?,
                "max" => options.max = OPTIONS.number(key, value, 1..)?,
                _ => return Err(OPTIONS.unknown(key)),
            }
        }
        Ok(options)
    }
}

/// The layer. What is open when it is dropped is closed by tasks of the runtime.
pub struct CloseSim(Arc<Inner>);

impl CloseSim {
    /// A layer that has nothing open yet; timers and tasks come from `runtime`.
    pub fn new(options: Options, runtime: Arc<dyn Runtime>) -> Self {
        CloseSim(Arc::new(Inner::new(options, runtime)))
    }

    /// To be kept when the layer is put into its stack.
    pub fn control(&self) -> Control {
        Control(Arc::clone(&self.0))
    }
}

impl Drop for CloseSim {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What can be done with a [`CloseSim`] while it stands in a stack. Clones belong to the same one.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

impl Control {
    /// Closes everything, for a tree that is asked no more, and waits until that is done. What is opened later is closed after
    /// one request.
    ///
    /// # Errors
    /// Why content was lost at a close, if no `fsync` has answered it yet; of several files, that of one.
    pub async fn end(&self) -> Result<(), Error> {
        self.0.end();
        self.0.closed().await
    }
}

impl Layer for CloseSim {
    fn place(&self) -> Place {
        // A cache learns of opened files what it cannot learn of single requests.
        Place { name: "closesim", above: &["simulate", "cache"], below: &[] }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.stand_on(next);
        self.0.call(cx, request)
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let supplied = Supplied::of(&below);
        let anonymous_io = below.anonymous_io || below.stateless_files || supplied.files;
        let lasting_cookies = below.lasting_cookies || supplied.dirs && below.cookies_by_name;
        // Without an fsync of its own, a tree stores at the close, which an fsync without a handle brings about.
        let fsync = if supplied.files { OpSet::of(&[OpCode::FSync]) } else { OpSet::of(&[]) };
        let makes = if below.ops.has(OpCode::Create) { OpSet::of(&[OpCode::MkNod]) } else { OpSet::of(&[]) };
        Abilities { anonymous_io, lasting_cookies, ops: below.ops.union(fsync).union(makes), ..below }
    }
}

#[cfg(test)]
mod tests;
