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
//! A disk is in a file as it is, or as an image: qcow2 (versions 2 and 3), VDI, VHD, VMDK or VHDX. Images may be in several files
//! and based on others: these are only read, and must be in the image's own directory or below, unless [`Options::backing`] says
//! otherwise. Of these forms qcow2 and VHD of fixed size are written.
//!
//! An image is locked as mount(8) does, and as QEMU does: it is refused while a virtual machine writes it, and the other way round.
//! One that the host's own kernel uses (mounted, under a loop device, swap, a part of another device) is not written.
//!
//! An image may be a file of another tree ([`open_served`]). It is only read, and needs no further file:
//! `docs/design/0036-media.md` says how.
//!
//! Whatever the kernel's file system can: see [`TYPES`]. An image is mounted read-only first, and writably when the first
//! change comes, so looking at an image does not change it (but a journal that has to be replayed is, XFS notes in its
//! log that it was unmounted, and an HFS+ volume gets the directory that files with several names need, if it has none).
//! Options this driver does not know are the file system's own, as mount(8) takes them.
//!
//! An image with a partition table is a tree with a directory for each partition whose content is known ([`open`]); each is
//! served by a process of its own, which starts when somebody looks into the directory. Of a qcow2 image the partition that
//! is looked into first is written, and the others are read only: [`Options::partition`] names another one.
//!
//! What a file system is on beside its image is named by [`Options::devices`]: btrfs on several devices, ext4 and XFS with an
//! external journal. All are locked alike, and one kernel has them all.
//!
//! [`Kernel::in_memory`] is a tmpfs: the same without an image. Images of flash memory (jffs2) are served as such.
//!
//! # When the worker dies
//!
//! With [`Options::guard`] no program notices: what the worker writes reaches the image at checkpoints only (`FSync`, `SyncFs`,
//! every five seconds, every 32 MiB), and the next worker does again what was answered since, at the times it was done.
//! Requests in flight are done then; one that was in flight when three workers died by themselves is answered `EIO`.
//! `docs/design/0007-guarded-images.md` says how.
//!
//! # A mount without a detour
//!
//! The worker can serve a mount by itself, with a door of its own: [`Kernel::hand_over`] hands it over. What is said then is the
//! door's (`outrigger_door_fuse::Order`); this driver passes it on. Of a guarded image it follows what the worker records, and
//! leaves that to the next one when it dies. `docs/design/0008-a-door-in-the-kernel-process.md` says how.
//!
//! # What it cannot
//!
//! * Guarded: a file system on several images, and jfs, whose journal only its fsck replays.
//! * Real-time devices of XFS.
//! * Guarded: a file that has lost its last name is known until the next checkpoint, or as long as it is open: then it keeps a
//!   hidden name at the root (`docs/design/0011-removed-files-that-are-open.md`), unless there is no room for it. Times of access
//!   that reading changed may be forgotten.
//!
//! * Locks, ioctl and poll: doors do without.
//! * Nodes are known while somebody refers to them: what a mount knows does not outlive the process.
//! * One user at a time: the image is locked (flock(2)), shared by those who only read.
//! * Neither guarded nor served by the worker itself: a file that somebody refers to stays in the memory of the kernel code,
//!   with nearly 2 KB, so beyond some 60,000 of them it needs more memory (`memory=`): without, the kernel code looks for
//!   memory for ever longer, and panics in the end. Otherwise a file that was not used for long is returned to it, and found
//!   by its path when it is used again; only files that are open, and those that have lost their last name, count.
//! * Changes are on the medium after `FSync`, `SyncFs` or when the driver is dropped, which unmounts; as in the kernel.
//! * A worker that never answers is killed while it mounts or unmounts (`patience=`); requests end when their caller has
//!   waited long enough.
//! * x86-64 hosts only.
#![deny(unsafe_code)]

mod connection;
mod detect;
mod disk;
mod files;
mod flash;
mod guarded;
mod host;
mod image;
mod inspect;
mod lock;
mod options;
mod partitions;
mod served;
mod worker;

pub use detect::{FsType, TYPES, detect};
pub use image::{is_disk, is_image};
pub use inspect::{Inspection, Piece, inspect, inspect_served};
pub use options::{DRIVER, Fixed, OPTIONS, Options};
pub use outrigger_proto_disk::Medium;
pub use outrigger_proto_disk::partition::{Partition, Scheme, Table};
pub use outrigger_proto_disk::volume::Volume;
pub use partitions::Partitions;
pub use worker::{HOW_TO_GET_IT, program};

use bytes::Bytes;
use connection::Connection;
use futures_channel::oneshot::Receiver;
use guarded::{Asked, Guarded};
use image::{Image, Part};
use outrigger_core::registry::Content;
use outrigger_core::reply::Ttl;
use outrigger_core::supervise::History;
use outrigger_core::{
    Abilities, Answer, Cx, DriverClass, Errno, Error, Exchange, Notify, Reply, Request, Result, Service, lock,
};
use outrigger_succession::ASKED;
use served::Served;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use worker::Worker;

/// Opens the image in the file `path`: the file system in it, or, where there is a partition table instead and the options
/// name no partition, all partitions.
///
/// # Errors
/// Those of [`Kernel::start`] and [`Partitions::start`].
pub fn open(path: &Path, options: &Options) -> Result<Opened> {
    mount_all(Image::open(path, options)?, options)
}

/// The same for an image in a file of another tree, which is only read.
///
/// # Errors
/// As [`open`], and `EINVAL` for options that need a file of the host.
pub fn open_served(content: Arc<dyn Content>, options: &Options) -> Result<Opened> {
    mount_all(Image::served(Served::new(content), options)?, options)
}

fn mount_all(image: Image, options: &Options) -> Result<Opened> {
    // Partitions start it when they are looked into, where it would be found missing too late.
    worker::program_or_why()?;
    let whole = options.partition.is_some()
        || options.offset.is_some()
        || options.kind.is_some()
        || image.detect(&Part::whole())?.is_some();
    match image.table()? {
        Some(_) if !whole && !options.devices.is_empty() => Err(Errno::EINVAL.because(format!(
            "option {}: which file system is on these devices? partition= names one, or type=",
            options.devices[0].0
        ))),
        Some(table) if !whole => {
            let partitions = Partitions::of(image, table, options);
            if !options.passed.is_empty() {
                partitions.try_one()?;
            }
            Ok(Opened::Several(Arc::new(partitions)))
        }
        _ => Ok(Opened::One(Arc::new(Kernel::of(Arc::new(image), options)?))),
    }
}

/// Who of the host's own kernel has the image in a file for writing or mounted, as a sentence. Such an image is not opened for
/// writing (`EBUSY`); what is read of it may be half written.
pub fn in_use_by_host(path: &Path) -> Option<String> {
    host::user_of(path).ok().flatten()
}

/// What [`open`] found in an image.
#[derive(Clone)]
pub enum Opened {
    /// One file system.
    One(Arc<Kernel>),
    /// Partitions.
    Several(Arc<Partitions>),
}

impl Opened {
    /// The tree.
    pub fn service(&self) -> Arc<dyn Service> {
        match self {
            Opened::One(kernel) => kernel.clone(),
            Opened::Several(partitions) => partitions.clone(),
        }
    }

    /// Whether there are partitions, and none has a known file system.
    pub fn is_bare(&self) -> bool {
        matches!(self, Opened::Several(partitions) if partitions.is_bare())
    }

    /// What became of the workers of a guarded image, all together where there are several.
    pub fn history(&self) -> Option<History> {
        match self {
            Opened::One(kernel) => kernel.history(),
            Opened::Several(partitions) => partitions.history(),
        }
    }

    /// Unmounts, and waits until everything is in the image.
    ///
    /// # Errors
    /// As [`Kernel::unmount`]; of several file systems the first that failed.
    pub fn unmount(&self) -> Result<()> {
        match self {
            Opened::One(kernel) => kernel.unmount(),
            Opened::Several(partitions) => partitions.unmount(),
        }
    }

    /// Has the host hold up every process that opens the image, until [`Opened::release`], or until it is unmounted, and at
    /// most for `/proc/sys/fs/lease-break-time`. This process gets `SIGIO` when one does.
    ///
    /// # Errors
    /// Those of `F_SETLEASE` in fcntl(2): `EAGAIN` while another process has it open, `EACCES` for another user's file,
    /// `EINVAL` for a block device and where the file system has no leases.
    pub fn reserve(&self) -> Result<()> {
        self.image().map_or(Ok(()), |image| image.reserve())
    }

    /// Ends [`Opened::reserve`].
    pub fn release(&self) {
        if let Some(image) = self.image() {
            image.release();
        }
    }

    /// None once it is unmounted.
    fn image(&self) -> Option<Arc<Image>> {
        match self {
            Opened::One(kernel) => lock(&kernel.image).clone(),
            Opened::Several(partitions) => Some(partitions.image()),
        }
    }
}

/// A mounted image.
pub struct Kernel {
    serves: Serves,
    abilities: Abilities,
    /// Why what could be written is not.
    read_only: Option<Arc<str>>,
    /// The type of the file system, where it starts, and how long its part of the image is if it is one, in bytes.
    place: (&'static FsType, u64, Option<u64>),
    /// Unlocked when the worker has ended.
    image: Mutex<Option<Arc<Image>>>,
}

/// Types whose journal is replayed by their fsck only, and of which syncfs(2) does not write everything.
const NEEDS_ITS_FSCK: [&str; 1] = ["jfs"];

/// Whether the death of the worker is the end.
enum Serves {
    Once(Arc<Connection>),
    Guarded(Guarded),
}

impl Kernel {
    /// Mounts the image in the file `path`, or the partition of it that the options name.
    ///
    /// # Errors
    /// When it cannot be opened or is in use (`EBUSY`), when nothing in it is known (`EINVAL`), when there is no such
    /// partition (`ENXIO`), when the program is missing (`ENOENT`), and what the file system says about the image, with
    /// the kernel's messages as the reason.
    pub fn start(path: &Path, options: &Options) -> Result<Self> {
        Self::of(Arc::new(Image::open(path, options)?), options)
    }

    fn of(image: Arc<Image>, options: &Options) -> Result<Self> {
        let part = match (options.partition, options.offset) {
            (Some(_), Some(_)) => {
                return Err(Errno::EINVAL.because("partition= and offset= name two places"));
            }
            (Some(number), None) => image.part(number)?,
            (None, Some(start)) if start >= image.size() => {
                return Err(Errno::EINVAL.because(format!("offset={start}: the image ends before")));
            }
            (None, start) => Part { start: start.unwrap_or(0), ..Part::whole() },
        };
        let kind = match &options.kind {
            Some(name) => {
                // What the content tells beside the name, such as which of two versions it is, counts.
                let named = FsType::named(name)?;
                image.detect(&part)?.filter(|found| found.name == named.name).unwrap_or(named)
            }
            None => image.detect(&part)?.ok_or_else(|| image.unknown(&part))?,
        };
        Self::mount(image, part, kind, options)
    }

    /// An empty tree in memory (tmpfs), which is gone when this is dropped. Of the options `memory=` counts, and those of the
    /// file system.
    ///
    /// # Errors
    /// `ENOENT` when the program is missing, and what the file system says about its options.
    pub fn in_memory(options: &Options) -> Result<Self> {
        let (kind, part) = (FsType::named("tmpfs")?, Part::whole());
        let settings = Options { memory: options.memory_for_tree(), ..options.clone() };
        let (worker, socket) =
            Worker::start(None, &part, kind, !options.read_only, &settings, worker::Log::new()?)?;
        let serves = Serves::Once(Connection::open(worker, socket, options.patience)?);
        let abilities = abilities(kind.name.to_owned(), options.read_only);
        let place = (kind, 0, None);
        Ok(Kernel { serves, abilities, read_only: None, place, image: Mutex::new(None) })
    }

    /// Mounts the file system of this type in a part of the image.
    fn mount(image: Arc<Image>, part: Part, kind: &'static FsType, options: &Options) -> Result<Self> {
        if kind.is_memory() {
            return Err(Errno::EINVAL.because("tmpfs is in no image: `tmpfs:` names an empty one"));
        }
        let part = if kind.is_flash() { image.as_flash(part, options.erase)? } else { part };
        let writable = image.writable() && kind.writable && part.read_only.is_none();
        let place = (kind, part.start, part.size);
        let read_only = part.read_only.clone().or_else(|| image.read_only().map(Arc::from));
        let name = image.name().to_owned();
        let survives = image.others().is_empty() && (!writable || !NEEDS_ITS_FSCK.contains(&kind.name));
        let serves = if options.guard && survives {
            let (settings, image) = (options.clone(), Arc::clone(&image));
            let start = move |log| Worker::start(Some(&image), &part, kind, writable, &settings, log);
            Serves::Guarded(Guarded::begin(Box::new(start), options)?)
        } else {
            let (worker, socket) =
                Worker::start(Some(&image), &part, kind, writable, options, worker::Log::new()?)?;
            let opened = Connection::open(worker, socket, options.patience);
            Serves::Once(opened.map_err(|error| image.explained(error))?)
        };
        let abilities = abilities(name, !writable);
        Ok(Kernel { serves, abilities, read_only, place, image: Mutex::new(Some(image)) })
    }

    /// The reply with the reason why this part of the image is not written, or cannot be read.
    fn explained(&self, reply: Reply) -> Reply {
        match (&self.read_only, reply) {
            (_, Reply::Error(error)) if error.errno == Errno::EIO && error.reason.is_none() => {
                Reply::Error(match &*lock(&self.image) {
                    Some(image) => self.unread(image, error),
                    None => error,
                })
            }
            (Some(why), Reply::Error(error)) if error.errno == Errno::EROFS => {
                Reply::Error(Errno::EROFS.because(Arc::clone(why)))
            }
            (_, reply) => reply,
        }
    }

    /// An error of the kernel code without a reason, with why the image cannot be read where that is known.
    fn unread(&self, image: &Image, error: Error) -> Error {
        let error = image.explained(error);
        let (kind, start, size) = self.place;
        match &error.reason {
            None => image.cut_off(kind, start, size).map_or(error, |why| Errno::EIO.because(why)),
            Some(_) => error,
        }
    }

    /// Unmounts, and waits until everything is in the image. Later requests are answered `EIO`. Dropping does the same.
    ///
    /// # Errors
    /// `EIO` when the worker did not end in good order, with its last words as the reason.
    pub fn unmount(&self) -> Result<()> {
        let ended = match &self.serves {
            Serves::Once(connection) => connection.end(),
            Serves::Guarded(guarded) => guarded.end(),
        };
        drop(lock(&self.image).take());
        ended
    }

    /// What the process of the kernel code has of its own instead of what the host has ("namespaces (user, mount)", ...), as a list
    /// for people; it depends on what the host permits. None where the image is guarded, for processes change there.
    pub fn isolation(&self) -> Option<String> {
        match &self.serves {
            Serves::Once(connection) => connection.worker().isolation(),
            Serves::Guarded(_) => None,
        }
    }

    /// Why a request was not answered.
    fn lost(&self) -> Error {
        match &self.serves {
            Serves::Once(connection) => connection.lost(),
            Serves::Guarded(_) => Errno::EIO.because("the kernel code serves no more"),
        }
    }

    /// Asks something of the worker itself, not of its tree: what that is, and what the answer means, is between the caller and
    /// the worker. A descriptor may go with it. Workers of guarded images take none (`EOPNOTSUPP`) but between
    /// [`Kernel::hand_over`] and the answer to that.
    pub fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_> {
        match &self.serves {
            Serves::Once(connection) => match connection.order(order, file) {
                Ok(reply) => Answer::later(connection.reply(reply)),
                Err(error) => Answer::error(error),
            },
            Serves::Guarded(guarded) => self.obeyed(guarded.order(order, file)),
        }
    }

    /// The order after which the worker serves programs by itself, until it is answered: nothing is asked of this tree
    /// meanwhile. When the worker of a guarded image dies, the next one is ordered the same. Where none can do that, the answer
    /// is an error, and the process that serves from here on gets the replies to requests that are sent again.
    pub fn hand_over(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_> {
        match &self.serves {
            Serves::Once(_) => self.order(order, file),
            Serves::Guarded(guarded) => self.obeyed(guarded.hand_over(order, file)),
        }
    }

    /// Gives this order, to which no answer comes, to every worker that is handed a mount from here on, before it is: see
    /// [`Kernel::hand_over`]. It replaces the one that was given like this before.
    pub fn before_hand_over(&self, order: Option<(Bytes, OwnedFd)>) {
        match &self.serves {
            // There is no next one.
            Serves::Once(_) => {}
            Serves::Guarded(guarded) => guarded.before_hand_over(order),
        }
    }

    fn obeyed(&self, reply: Result<Receiver<Reply>>) -> Answer<'_> {
        match reply {
            Ok(reply) => Answer::later(async { reply.await.unwrap_or_else(|_| Reply::Error(self.lost())) }),
            Err(error) => Answer::error(error),
        }
    }

    /// What became of the workers of a guarded image.
    pub fn history(&self) -> Option<History> {
        match &self.serves {
            Serves::Once(_) => None,
            Serves::Guarded(guarded) => Some(guarded.history()),
        }
    }

    /// The number of the process that serves the image, if it is a guarded one.
    pub fn worker(&self) -> Option<u32> {
        match &self.serves {
            Serves::Once(_) => None,
            Serves::Guarded(guarded) => Some(guarded.worker()),
        }
    }
}

fn abilities(name: String, read_only: bool) -> Abilities {
    Abilities {
        class: DriverClass::Block,
        read_only,
        acl: true,
        negative_ttl: Ttl::FOREVER,
        ..Abilities::new("kernel", name, ASKED)
    }
}

impl Service for Kernel {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if !ASKED.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        if let Some((node, count)) = request.returns() {
            match &self.serves {
                Serves::Once(connection) => connection.tell(cx.cred.clone(), request),
                Serves::Guarded(guarded) => guarded.forget(node, count),
            }
            return Answer::Ready(Reply::Done(()));
        }
        let connection = match &self.serves {
            Serves::Once(connection) => {
                // The reply has no information, and what is asked later comes later.
                if request.ends().is_some() {
                    connection.tell(cx.cred.clone(), request);
                    return Answer::Ready(Reply::Done(()));
                }
                connection
            }
            Serves::Guarded(guarded) => {
                return match guarded.ask(cx, request) {
                    Ok(Asked::Answered(reply)) => Answer::Ready(self.explained(reply)),
                    Ok(Asked::Waits(reply)) => Answer::later(async move {
                        self.explained(reply.await.unwrap_or_else(|_| Reply::Error(self.lost())))
                    }),
                    Err(error) => Answer::error(error),
                };
            }
        };
        match connection.ask(cx, request) {
            Ok(mut reply) => match reply.try_recv() {
                Ok(Some(reply)) => Answer::Ready(self.explained(reply)),
                Ok(None) => Answer::later(async move { self.explained(connection.reply(reply).await) }),
                Err(_) => Answer::error(self.lost()),
            },
            Err(error) => Answer::error(error),
        }
    }

    /// The worker reads or writes the file of the host by itself; that of a guarded image does not, whose requests have to be
    /// kept for its successor.
    fn exchange<'a>(&'a self, cx: &'a Cx, exchange: Exchange, host: BorrowedFd<'_>) -> Answer<'a> {
        self.order(exchange.to_order(cx.cred.clone()), Some(host)).map(|reply| self.explained(reply))
    }

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    /// No one else changes the image, so there are no notices.
    fn attach(&self, _: Arc<dyn Notify>) {}
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::error!("{error}");
        }
    }
}
