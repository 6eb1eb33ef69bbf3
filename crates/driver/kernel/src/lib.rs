// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images: the file systems of Linux themselves, unmodified, in an ordinary process.
//!
//! [`detect`] tells what is in an image. [`Kernel::start`] starts the program `outrigger-kernel` (licensed as Linux is, and
//! built from `kernel/`), hands it the open image and asks it over the core's wire protocol; requests and replies
//! travel in batches, as many as there are. The program gives up all its rights before it reads the image: it can change
//! the image and nothing else. When its kernel code panics, that process ends, and every request is answered `EIO`
//! with the kernel's last words as the reason.
//!
//! # What it can do
//!
//! Whatever the kernel's file system can: see [`TYPES`]. An image is mounted read-only first, and writably when the first
//! change comes, so looking at an image does not change it (but a journal that has to be replayed is, and XFS
//! notes in its log that it was unmounted). Options this
//! driver does not know are the file system's own, as mount(8) takes them.
//!
//! # What it cannot
//!
//! * Locks, ioctl and poll: doors do without.
//! * Nodes are known while somebody refers to them: what a mount knows does not outlive the process.
//! * One user at a time: the image is locked (flock(2)), shared by those who only read.
//! * Changes are on the medium after `FSync`, `SyncFs` or when the driver is dropped, which unmounts; as in the kernel.
//! * A worker that never answers is killed while it mounts or unmounts (`patience=`); requests end when their caller has
//!   waited long enough.
//! * x86-64 hosts only.
#![forbid(unsafe_code)]

mod connection;
mod detect;
mod options;
mod worker;

pub use detect::{FsType, TYPES, detect};
pub use options::Options;
pub use worker::program;

use connection::Connection;
use outrigger_core::reply::Ttl;
use outrigger_core::{
    Abilities, Answer, Cx, DriverClass, Errno, Notify, OpCode, OpSet, Reply, Request, Result, Service,
};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use worker::Worker;

/// What the kernel's file systems are not asked for.
const NOT_SERVED: OpSet = OpSet::of(&[
    OpCode::Access,
    OpCode::Flush,
    OpCode::GetLock,
    OpCode::Ioctl,
    OpCode::Locate,
    OpCode::Poll,
    OpCode::SetLock,
]);

/// A mounted image.
pub struct Kernel {
    connection: Arc<Connection>,
    abilities: Abilities,
}

impl Kernel {
    /// Mounts the image in the file `path`.
    ///
    /// # Errors
    /// When it cannot be opened or is in use (`EBUSY`), when nothing in it is known (`EINVAL`), when the program is
    /// missing (`ENOENT`), and what the file system says about the image, with the kernel's messages as the reason.
    pub fn start(path: &Path, options: &Options) -> Result<Self> {
        let (image, writable) = open(path, options)?;
        let kind = match &options.kind {
            Some(name) => FsType::named(name)?,
            None => detect(&image)?
                .ok_or_else(|| Errno::EINVAL.because("no file system is known that looks like this"))?,
        };
        let writable = writable && kind.writable;
        let (worker, socket) = Worker::start(&image, kind, writable, options)?;
        let connection = Connection::open(worker, socket, options.patience)?;
        let abilities = Abilities {
            class: DriverClass::Block,
            read_only: !writable,
            negative_ttl: Ttl::FOREVER,
            ..Abilities::new("kernel", path.display().to_string(), OpSet::all().without(NOT_SERVED))
        };
        Ok(Kernel { connection, abilities })
    }

    /// Unmounts, and waits until everything is in the image. Later requests are answered `EIO`. Dropping does the same.
    ///
    /// # Errors
    /// `EIO` when the worker did not end in good order, with its last words as the reason.
    pub fn unmount(&self) -> Result<()> {
        self.connection.end()
    }
}

/// Opens and locks the image; tells whether it may be changed.
fn open(path: &Path, options: &Options) -> Result<(File, bool)> {
    let both = || File::options().read(true).write(true).open(path);
    let (file, writable) = if options.read_only {
        (File::open(path)?, false)
    } else {
        match both() {
            Ok(file) => (file, true),
            Err(_) => (File::open(path)?, false),
        }
    };
    let lock = if writable {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(&file, lock) {
        Ok(()) => Ok((file, writable)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Errno::EBUSY
            .because("another process uses this image; several may only read it (--opt ro, mount: -o ro)")),
        Err(errno) => Err(Errno(errno.raw_os_error()).into()),
    }
}

impl Service for Kernel {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if NOT_SERVED.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        if let Request::Forget(_) = request {
            self.connection.tell(cx.cred, request);
            return Answer::Ready(Reply::Done(()));
        }
        match self.connection.ask(cx.cred, request) {
            Ok(reply) => {
                Answer::later(
                    async move { reply.await.unwrap_or_else(|_| Reply::Error(self.connection.lost())) },
                )
            }
            Err(error) => Answer::error(error),
        }
    }

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    /// Nobody else changes the image, so there is nothing to tell.
    fn attach(&self, _: Arc<dyn Notify>) {}
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::error!("{error}");
        }
    }
}
