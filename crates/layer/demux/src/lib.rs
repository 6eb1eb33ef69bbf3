// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many trees under one root, each opened when its name is used.
//!
//! [`Demux`] is a service whose upper directories are its own. [`Names`] says what is in them; below a name that leads to a tree, every
//! request goes to that tree, which [`OpenTree`] opens for the first one.
//!
//! * **Numbers.** A node above is a number of this service, never given twice; it stands for a node of one opening of one tree. Inode
//!   numbers of the trees are moved apart by multiples of 2^48: the files of a tree keep different ones whatever they are, and files of
//!   two trees have different ones as long as the trees' own are below 2^48. Handles are those of the trees: they come with a node.
//! * **Nothing waits for a tree but what is asked of it.** Its root is answered here: `lookup` of its name, `readdir` above it, its
//!   extended attributes, and `getattr` as long as it is not open. From an open tree `getattr` of the root is awaited for [`GRACE`] only,
//!   and answered from memory then. So looking at the directory of all trees opens none and waits for none, and a kernel, which locks a
//!   directory while a name in it is looked up, never holds that lock for the time of a network. With [`Options::looking_opens`],
//!   `getattr` of the root opens the tree, and the attributes that come with names count for no time.
//! * **Across trees** `rename`, `link` and `copy_range` answer `EXDEV`; the upper directories refuse changes (`EACCES`).
//! * **Failures.** A tree that cannot be opened answers its error and the reason to everything asked in it; after a back-off, which
//!   doubles each time, the next request tries again. One that takes longer than [`Options::opening`] answers `ETIMEDOUT` meanwhile.
//! * **Idle trees** are closed when nothing was asked for [`Options::idle`], nothing is open, nothing is unwritten, and the door has
//!   returned all references: it is asked to return those that no program uses ([`Notice::Prune`]). What a door that cannot be asked
//!   refers to is in use, unless [`Options::is_used`] knows better: then references to a tree that was closed are `ESTALE`, for which a
//!   kernel looks names up again.
//!
//! What a tree lacks and a kernel would stop asking all of them for (`ENOSYS`) is answered here, as a kernel would: see [`Demux`] and
//! `lacking`. Locks are not passed on: a kernel keeps them itself, for its own programs only.
#![forbid(unsafe_code)]

mod apart;
mod control;
mod directory;
mod idle;
mod inner;
mod names;
mod notices;
mod numbers;
mod route;
mod state;
mod up;

pub use apart::Apart;
pub use control::{Control, Left, TreeStatus};
pub use names::{Ending, Found, Hosted, Names, OpenTree};

use inner::Inner;
use outrigger_core::{Abilities, Answer, Cx, Notify, OpCode, OpSet, Request, Runtime, Service};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use outrigger_core::Notice;

/// How long the attributes of a tree's root are waited for before those known are shown.
pub const GRACE: Duration = Duration::from_millis(25);

/// How a [`Demux`] behaves.
#[derive(Clone)]
pub struct Options {
    /// After how long a tree that nothing uses is closed; `None` for never.
    pub idle: Option<Duration>,
    /// How long a request waits for a tree to be opened.
    pub opening: Duration,
    /// How long a tree that could not be opened is left alone: at first, and at most.
    pub back_off: (Duration, Duration),
    /// User and group that own the upper directories.
    pub owner: (u32, u32),
    /// Whether looking at the root of a tree opens it and waits for it: what a program sees of the root is then always what it is.
    pub looking_opens: bool,
    /// Whom to tell of trees that do not answer.
    pub silence: Option<Silence>,
    /// Whether a program uses the tree at this path, for doors that cannot tell: a working directory is within, for example.
    pub is_used: Option<Arc<IsUsed>>,
}

/// Who is told, once for each tree, that it has not answered a request for long.
#[derive(Clone)]
pub struct Silence {
    /// How long that is. Where a request waits for a peer, as reading from a pipe does
    /// ([`Cancel::heed_signals`](outrigger_core::Cancel::heed_signals)), no time is long.
    pub after: Duration,
    /// Gets what the name of the tree leads to.
    pub tell: Arc<TellOfSilence>,
}

/// See [`Silence::tell`].
pub type TellOfSilence = dyn Fn(&str) + Send + Sync;

/// See [`Options::is_used`].
pub type IsUsed = dyn Fn(&str) -> bool + Send + Sync;

impl Default for Options {
    fn default() -> Self {
        Options {
            idle: Some(Duration::from_secs(600)),
            opening: Duration::from_secs(30),
            back_off: (Duration::from_secs(1), Duration::from_secs(60)),
            owner: (0, 0),
            looking_opens: false,
            silence: None,
            is_used: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { idle, opening, back_off, owner, .. } = self;
        write!(
            f,
            "Options {{ idle: {idle:?}, opening: {opening:?}, back_off: {back_off:?}, owner: {owner:?} }}"
        )
    }
}

/// The service; see the crate's documentation.
pub struct Demux(Arc<Inner>);

/// What is not passed on: locks, which a kernel would otherwise not keep for trees without; what answers for a node by its number alone
/// or leads out of a tree upwards; and what the layer `simulate` makes of the rest.
const NOT_PASSED: OpSet =
    OpSet::of(&[OpCode::GetLock, OpCode::SetLock, OpCode::Resolve, OpCode::Parent, OpCode::Walk]);

impl Demux {
    /// A service whose upper directories are those of `names`.
    pub fn new(names: Arc<dyn Names>, runtime: Arc<dyn Runtime>, options: Options) -> Self {
        Demux(Arc::new(Inner::new(names, runtime, options)))
    }

    /// To be kept when the service is put into its stack.
    pub fn control(&self) -> Control {
        Control(Arc::clone(&self.0))
    }
}

impl Service for Demux {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.route(cx, request)
    }

    fn abilities(&self) -> Abilities {
        let ops = OpSet::all().without(NOT_PASSED);
        // Of trees that are opened later, some may be like this.
        Abilities { targets_by_place: true, ..Abilities::new("demux", "many trees", ops) }
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        // Attached once; a second door would hear nothing.
        let _ = self.0.above.set(notify);
    }
}

#[cfg(test)]
mod tests;
