// SPDX-License-Identifier: MIT OR Apache-2.0
//! An unmodified FUSE program as a tree, which is started again when it dies.
//!
//! [`launch`] starts the program with a socket in place of `/dev/fuse`; the rest plays the kernel's side of the protocol.
//! Nothing is mounted, and no privilege is needed.
//!
//! | module | what it holds |
//! |---|---|
//! | [`launch`] | starting a program, and ending it with all it has started |
//! | `conn`, `inbox`, `message` | the connection: many requests in flight, replies matched to them |
//! | `life` | INIT, and one running program after the other |
//! | `shared`, `turn`, `deadlines` | a request from its arrival to its reply, over as many programs as it takes |
//! | `replace`, `history` | another program in its place; what `status` shows of all of them |
//! | `ops`, `names`, `files`, `dirs`, `locks` | operations of the core as messages, and what a restart means for each |
//! | `nodes`, `handles`, `listing` | our numbers of files, open files and places in listings |
//! | `hidden`, `writes` | open files that are removed, writes that may be lost |
//! | `stored` | what programs have reported stored, and what of it was lost |
//!
//! # When the program dies
//!
//! It is killed with all it has started and started again. Files are looked up again by path and opened again when they
//! are next used, listings go on by name, locks are taken again, and writes that were acknowledged since the last FLUSH
//! or FSYNC are repeated. A request without a reply is repeated too: what the program may have done of it is judged by
//! the tree. A request that was in flight at three deaths, without anything being answered after it was sent, fails with
//! `EIO`, unless another process killed the program (SIGKILL). A start that fails is tried again, with pauses of up to a second,
//! and requests wait for it as long as [`Options::timeout`] and [`Options::retry`] allow.
//!
//! # Limits
//!
//! * What another client of the same store does while the program is dead may be taken for ours.
//! * A program that is killed between two steps of its own leaves what it leaves.
//! * A program with a cache that it writes back late, and without a request that says so, loses what it held there:
//!   those known by name are refused unless [`Options::unsafe_cache`] is set.
//! * An ioctl without a reply fails with `EIO`, since it may have been done, unless its number says that it only reads.
//! * Permissions are the door's where the program asks for it: see [`LibFuse::wants_default_permissions`].
//! * Locks are the program's only when it supports both POSIX and BSD locks; else they stay with the door.

mod async_mutex;
mod conn;
mod deadlines;
mod decode;
mod dirs;
mod files;
mod handles;
mod hidden;
mod history;
mod identity;
mod inbox;
pub mod launch;
mod life;
mod listing;
mod locks;
mod message;
mod names;
mod nodes;
mod ops;
mod options;
mod replace;
mod shared;
mod stored;
mod turn;
mod writes;

pub use history::{Death, History, OnReport, Replacement, Report};
pub use life::Starter;
pub use options::{DRIVER, OPTIONS, Options, keeps_changes};
pub use stored::Losses;

use launch::{Launch, Mounted, Mountpoint};
use outrigger_core::{
    Abilities, Answer, Cx, DriverClass, Errno, Identity, Notify, OpCode, OpSet, Request, Result, Runtime,
    Service, lock,
};
use outrigger_proto_fuse::InitFlags;
use shared::{Recipe, Running, Shared};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What each program is asked: `Turn::attempt` has a message for each of these and of the two below.
const ALWAYS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
    OpCode::Link,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
    OpCode::Open,
    OpCode::Create,
    OpCode::TmpFile,
    OpCode::Read,
    OpCode::Write,
    OpCode::Flush,
    OpCode::FSync,
    OpCode::Fallocate,
    OpCode::Seek,
    OpCode::CopyRange,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReleaseDir,
    OpCode::FSyncDir,
    OpCode::StatFs,
    OpCode::Ioctl,
    OpCode::Poll,
    OpCode::Forget,
    OpCode::Access,
    OpCode::SyncFs,
    OpCode::Locate,
]);

const LOCKS: OpSet = OpSet::of(&[OpCode::GetLock, OpCode::SetLock]);

const XATTRS: OpSet =
    OpSet::of(&[OpCode::GetXattr, OpCode::SetXattr, OpCode::ListXattr, OpCode::RemoveXattr]);

/// A FUSE program as a service.
pub struct LibFuse {
    shared: Arc<Shared>,
    abilities: Abilities,
    mounted: Mounted,
}

impl LibFuse {
    /// Starts the program. Blocks until it answers.
    ///
    /// # Errors
    /// `EINVAL` for a program that is not safe to restart; else what went wrong, with what the program said.
    pub fn start(launch: Launch, options: Options, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let Recipe { starter, command } = recipe(launch, &options)?;
        LibFuse::with_starter(command, starter, options, runtime)
    }

    /// Serves whatever `starter` starts, called `tree`. Blocks until it answers.
    ///
    /// # Errors
    /// What went wrong, with what the program said.
    pub fn with_starter(
        tree: String,
        starter: Starter,
        options: Options,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let recipe = Recipe { starter, command: tree.clone() };
        let shared = Shared::start(recipe, options, runtime)?;
        let life = shared.lives.now().ok_or(Errno::ENOTCONN)?;
        let mut abilities = Abilities::new("fuse", tree, ops(&shared, life.agreed.flags));
        abilities.identity = Identity::ByPath;
        abilities.class = DriverClass::Network;
        abilities.max_io = life.max_io;
        abilities.acl = life.has(InitFlags::POSIX_ACL);
        abilities.read_only = shared.terms.read_only;
        let mounted = life.mounted.clone();
        Ok(LibFuse { shared, abilities, mounted })
    }

    /// What the program passed to mount(2).
    pub fn mounted(&self) -> &Mounted {
        &self.mounted
    }

    /// Whether the program leaves the checking of permissions to the kernel.
    pub fn wants_default_permissions(&self) -> bool {
        self.shared.terms.default_permissions
    }

    /// Whether users other than the program's may use the tree.
    pub fn allows_others(&self) -> bool {
        self.shared.terms.allow_other
    }

    /// Ends the program and starts another in its place, which serves from then on all that is open; when that cannot be,
    /// the old one again. Requests in flight are finished first, if they can be within 5 s. Blocks.
    ///
    /// The new program must not find the tree mounted where it wants to mount: `launch` gives it another directory.
    ///
    /// # Errors
    /// `EINVAL` for a program that is not safe to restart, `EBUSY` while a program is being started, `EPROTO` for one that
    /// does not keep what was agreed with the first; else what went wrong, with what the program said.
    pub fn replace(&self, launch: Launch) -> Result<()> {
        self.shared.replace(recipe(launch, &self.shared.options)?)
    }

    /// Closes the tree: the program gets DESTROY, and ends. Blocks until it has, or else for [`Options::timeout`].
    ///
    /// # Errors
    /// `ETIMEDOUT` when it had to be killed.
    pub fn close(&self) -> Result<()> {
        self.shared.lives.end().map_or(Ok(()), |life| life.goodbye(self.shared.options.patience()))
    }

    /// Whether a program serves now, so far as it is known.
    pub fn is_running(&self) -> bool {
        self.shared.lives.now().is_some()
    }

    /// What became of the programs so far.
    pub fn history(&self) -> History {
        let command = lock(&self.shared.recipe).command.clone();
        let history = self.shared.chronicle.history(command, self.shared.nodes.epoch());
        History { losses: self.shared.nodes.stored.losses(), ..history }
    }

    /// Sets the receiver of reports about requests that programs die of, and of programs that cannot be started again. The first call
    /// counts.
    pub fn on_report(&self, on_report: OnReport) {
        self.shared.chronicle.on_report(on_report);
    }
}

/// How to start a program, and to start it again.
fn recipe(launch: Launch, options: &Options) -> Result<Recipe> {
    let program = launch.command.first().ok_or_else(|| Errno::EINVAL.because("fuse: no program is named"))?;
    if let Some(risk) = options::risk(Path::new(program)).filter(|_| !options.unsafe_cache) {
        return Err(Errno::EINVAL.because(risk));
    }
    let words: Vec<_> = launch.command.iter().map(|word| word.to_string_lossy()).collect();
    let command = words.join(" ");
    let launch = Mutex::new(launch);
    let starter: Starter = Box::new(move |deadline| {
        let mut launch = lock(&launch);
        let program = launch.start(deadline)?;
        // Later, the tree itself may be mounted where the program wants to mount, and no server would answer.
        launch.terminal = false;
        if let (Mountpoint::Named, Some(argument)) = (launch.mountpoint, program.mounted.argument) {
            launch.mountpoint = Mountpoint::Replaced(argument);
        }
        Ok(program)
    });
    Ok(Recipe { starter, command })
}

/// What a program that agreed to this can do, as far as it can be known without trying.
fn ops(shared: &Arc<Shared>, agreed: InitFlags) -> OpSet {
    let parts = [
        (agreed.contains(InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS), LOCKS),
        (agreed.contains(InitFlags::DO_READDIRPLUS), OpSet::of(&[OpCode::ReadDirPlus])),
        (life::block_on(shared.has_xattrs()), XATTRS),
    ];
    parts.into_iter().filter(|(has, _)| *has).fold(ALWAYS, |ops, (_, more)| ops.union(more))
}

impl Service for LibFuse {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        Answer::Later(Box::pin(Running::new(Arc::clone(&self.shared), cx, request)))
    }

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.shared.attach(notify);
    }
}

impl Drop for LibFuse {
    fn drop(&mut self) {
        // The log has it.
        let _ = self.close();
    }
}
