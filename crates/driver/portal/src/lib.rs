// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in which opening a file makes a connection (portalfs of 4.4BSD; Kantee 2008 has one over puffs).
//!
//! A configuration says which prefixes of paths lead to which providers (see `config.rs`): TCP, TLS, UNIX sockets, programs and
//! files of this machine. Names below a prefix are made up when they are looked for: nothing is asked anywhere, but for those of
//! sockets and files, which this machine has.
//!
//! | operation | what happens |
//! |---|---|
//! | lookup, getattr | nothing; for `unix` and `fs` this machine is asked |
//! | open | the connection is made, or the program is started: it is that of this open file alone |
//! | read | waits for the next bytes; none is the end |
//! | write | waits until the other end has taken them, or the system in its place |
//! | poll | there is something to read once some of it has been received; writing never has to wait |
//! | flush, fsync | nothing: each close of a duplicate is a flush, and must not end the connection for others |
//! | release | what was written is sent, the sending side is shut down, and what comes is dropped until the other end closes, or `linger=` is over; where reading was possible and nothing was written, it is closed at once |
//! | setattr | a size of 0 and times are accepted without effect; a size of a file of this machine is set |
//!
//! * **Files are regular** with a size of 0. The kernel would serve named pipes and devices by itself. They are opened with
//!   [`OpenHow::DIRECT_IO`](outrigger_core::reply::OpenHow::DIRECT_IO) and as streams, so that each read comes here and none has a position.
//! * **Half of a connection** cannot be closed by a program: a file system has only one close.
//! * **`exec`**: opened for reading, the program's standard output is read; for writing, its standard input is written; the other one is
//!   `/dev/null`. A program that fails has the read at the end of its output fail with `EIO`. On close it may end by itself in `linger=`
//!   if it has had input or has closed its output; otherwise it gets `SIGTERM`, and a second later all of its group `SIGKILL`. At the
//!   end of the tree open files are closed, and programs that are left are killed; with the process that serves it the kernel kills the
//!   programs, but not what they have started.
//! * **Signals**: any ends waiting for a peer (`EINTR`), as with pipes and sockets; what was received stays for the next read.
//! * **The death of the process** that serves a mount ends all connections: `ENOTCONN` for files that are open; what is opened
//!   anew works.
//! * **Limits**: `connections=` files are open at once, those that linger included; each has at most 64 KiB received ahead.
#![forbid(unsafe_code)]

mod config;
mod connection;
mod dial;
mod files;
mod kept;
mod machine;
mod ops;
mod options;
mod places;
mod process;
mod programs;

pub use options::{DRIVER, OPTIONS, Options};

use config::Config;
use files::Files;
use outrigger_core::registry::Site;
use outrigger_core::reply::{Attrs, Ttl};
use outrigger_core::{Attr, Errno, FileKind, Name, Node, NodeTable, Notify, Result, Runtime, Time};
use places::{Place, Target};
use programs::Programs;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for the names that are known, in bytes; taken as it fills.
const NAMES: usize = 1 << 28;
/// So many handles belong to one process that serves a tree.
const HANDLES: u32 = 40;
/// How long ending programs may take in the end.
const END: Duration = Duration::from_secs(5);

/// The driver.
pub struct Portal {
    config: Config,
    options: Options,
    runtime: Arc<dyn Runtime>,
    names: NodeTable,
    files: Arc<Files>,
    room: Arc<Semaphore>,
    programs: Arc<Programs>,
    notify: Arc<OnceLock<Arc<dyn Notify>>>,
    owner: (u32, u32),
    made: Time,
}

impl Portal {
    /// A tree as the configuration in `file` says; without a name, the built-in one.
    ///
    /// # Errors
    /// Why the file cannot be read, what is wrong in it, and those of the site's [`Keep`](outrigger_core::Keep).
    pub fn open(file: &str, options: Options, site: &Site<'_>) -> Result<Self> {
        let keep = site.keep.map(|keep| &**keep);
        let (config, process) = kept::read(file, keep, site.may_start_programs)?;
        let names = match keep {
            Some(keep) => NodeTable::attach(keep.region("portal-nodes", NAMES / 8)?)?,
            None => NodeTable::in_memory(NAMES)?,
        };
        let programs = Arc::<Programs>::default();
        let files = Arc::new(Files::new((process << HANDLES) + 1, Arc::clone(programs.groups())));
        if let Some(at_end) = site.at_end {
            let (files, runtime) = (Arc::clone(&files), Arc::clone(site.runtime));
            // To send the rest, to wait for a program, and to end it.
            let limit = options.linger * 2 + END;
            at_end.add(move || files.end(&*runtime, limit));
        }
        Ok(Portal {
            config,
            programs,
            room: Arc::new(Semaphore::new(options.connections)),
            options,
            made: site.runtime.wall(),
            runtime: Arc::clone(site.runtime),
            names,
            files,
            notify: Arc::default(),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        })
    }

    /// What a node leads to.
    fn place(&self, node: Node) -> Result<Place> {
        self.find(&self.names.path(node)?)
    }

    fn find(&self, path: &[Name]) -> Result<Place> {
        self.config.find(path).ok_or_else(|| {
            let shown: String = path.iter().map(|name| format!("/{}", name.escape_ascii())).collect();
            Errno::ENOENT.because(format!("{shown}: the configuration leads nowhere there"))
        })
    }

    /// The kind of file at a place, which may have to be asked for.
    async fn kind(&self, place: Place) -> Result<FileKind> {
        match place {
            Place::Above | Place::MadeUp => Ok(FileKind::Directory),
            Place::File(_) => Ok(FileKind::Regular),
            Place::Machine(there) => machine::aside(&*self.runtime, move || there.kind()).await,
        }
    }

    /// What opening a node connects to.
    async fn target(&self, node: Node) -> Result<Target> {
        match self.place(node)? {
            Place::File(target) => Ok(target),
            Place::Machine(there) => match self.kind(Place::Machine(there.clone())).await? {
                FileKind::Directory => Err(Errno::EISDIR.into()),
                _ => Ok(Target::Machine(there)),
            },
            Place::Above | Place::MadeUp => Err(Errno::EISDIR.into()),
        }
    }

    fn attrs(&self, node: Node, kind: FileKind) -> Attrs {
        let permissions = match kind {
            // Who may read can search.
            FileKind::Directory => self.options.mode & 0o444 | (self.options.mode & 0o444) >> 2,
            _ => self.options.mode,
        };
        let (links, made) = (if kind == FileKind::Directory { 2 } else { 1 }, self.made);
        let attr = Attr {
            ino: node.0,
            mode: kind.bits() | permissions,
            nlink: links,
            uid: self.owner.0,
            gid: self.owner.1,
            atime: made,
            mtime: made,
            ctime: made,
            blksize: 1 << 16,
            ..Attr::default()
        };
        Attrs { attr, ttl: Ttl::NEVER }
    }

    /// Room for one more connection.
    fn room(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            let most = self.options.connections;
            Errno::ENFILE.because(format!("{most} files are open already; connections=N permits more"))
        })
    }
}
