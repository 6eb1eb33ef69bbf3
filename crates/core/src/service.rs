// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one interface where doors, layers and drivers meet.

use crate::attr::FileKind;
use crate::cx::Cx;
use crate::error::{Errno, Result};
use crate::exchange::Exchange;
use crate::name::Name;
use crate::node::{Generation, Node};
use crate::notify::Notify;
use crate::ops::{Op, Request};
use crate::opset::OpSet;
use crate::reply::{Reply, Ttl};
use crate::runtime::BoxFuture;
use bytes::Bytes;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Answers requests.
pub trait Service: Send + Sync {
    /// Answers one request. Never blocks: what takes time is [`Answer::Later`].
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a>;

    /// What the service can do.
    fn abilities(&self) -> Abilities;

    /// Called once before the first request with the place to send notices to.
    fn attach(&self, notify: Arc<dyn Notify>);

    /// Moves content between an open file and a file of the host that `host` is open on, as a write or a read would.
    /// The answer is how many bytes: fewer than asked for at the end of what is read, and when an error struck later.
    ///
    /// Hardly any service does this (`ENOSYS`): reads and writes do the same everywhere. A layer, which may have to see
    /// content, never does.
    fn exchange<'a>(&'a self, cx: &'a Cx, exchange: Exchange, host: BorrowedFd<'_>) -> Answer<'a> {
        let _ = (cx, exchange, host);
        Answer::error(Errno::ENOSYS)
    }

    /// Makes a node for a name that led to a file of this kind in a former process, and counts a reference to it. No server is asked: if
    /// the name is gone, requests about the node fail.
    ///
    /// # Errors
    /// `ENOSYS` where [`Abilities::recalls`] is not set; as a lookup that finds the name, where no node can be made.
    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        let _ = (dir, name, kind);
        Err(Errno::ENOSYS.into())
    }
}

/// What [`Service::recall`] made of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recalled {
    /// The node, with a reference.
    pub node: Node,
    /// Its generation.
    pub generation: Generation,
    /// The inode number it shows.
    pub ino: u64,
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        (**self).call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        (**self).abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        (**self).attach(notify);
    }
    fn exchange<'a>(&'a self, cx: &'a Cx, exchange: Exchange, host: BorrowedFd<'_>) -> Answer<'a> {
        (**self).exchange(cx, exchange, host)
    }
    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        (**self).recall(dir, name, kind)
    }
}

/// A reply, or the promise of one. The first form costs neither an allocation nor a change of thread.
pub enum Answer<'a> {
    /// The reply.
    Ready(Reply),
    /// The reply will come.
    Later(BoxFuture<'a, Reply>),
}

impl<'a> Answer<'a> {
    /// An answer that `future` will give.
    pub fn later(future: impl Future<Output = Reply> + Send + 'a) -> Self {
        Answer::Later(Box::pin(future))
    }

    /// An answer that is an error.
    pub fn error(error: impl Into<crate::Error>) -> Self {
        Answer::Ready(Reply::Error(error.into()))
    }

    /// Applies `change` to the reply, now or when it comes.
    pub fn map(self, change: impl FnOnce(Reply) -> Reply + Send + 'a) -> Self {
        match self {
            Answer::Ready(reply) => Answer::Ready(change(reply)),
            Answer::Later(future) => Answer::later(async move { change(future.await) }),
        }
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ready(reply) => f.debug_tuple("Ready").field(reply).finish(),
            Answer::Later(_) => f.write_str("Later"),
        }
    }
}

impl<'a> IntoFuture for Answer<'a> {
    type Output = Reply;
    type IntoFuture = Wait<'a>;

    fn into_future(self) -> Wait<'a> {
        Wait(Some(self))
    }
}

/// Waits for an [`Answer`].
#[derive(Debug)]
pub struct Wait<'a>(Option<Answer<'a>>);

impl Future for Wait<'_> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        match self.0.take() {
            Some(Answer::Ready(reply)) => Poll::Ready(reply),
            Some(Answer::Later(mut future)) => {
                let poll = future.as_mut().poll(context);
                if poll.is_pending() {
                    self.0 = Some(Answer::Later(future));
                }
                poll
            }
            None => Poll::Ready(Reply::Error(Errno::EIO.because("an answer was awaited twice"))),
        }
    }
}

/// Asks `service` to do `op` and gives the typed result.
///
/// # Errors
/// Whatever the service answers; `EPROTO` when the reply belongs to another operation.
pub async fn ask<O: Op>(service: &dyn Service, cx: &Cx, op: O) -> Result<O::Out> {
    O::result(service.call(cx, op.into()).await)
}

/// How long a driver's [`crate::Node`] numbers mean the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// For ever: the driver finds the file from node and generation alone, also after it was restarted.
    Persistent,
    /// While a node table remembers which path the number stands for.
    ByPath,
}

/// What has to be done about a driver's state when its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverClass {
    /// Every change goes to another file system at once.
    PassThrough,
    /// Every change goes to a server; the connection may have to be made again.
    Network,
    /// Changes go to blocks of an image, and several of them belong together.
    Block,
    /// The tree lives in the driver's memory and dies with it.
    Memory,
}

/// How many requests of a kind are worth asking at once. By this a layer decides what to ask for before a program wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallel {
    /// Reads of one file. With 1 its content comes as one stream, which read-ahead would only interrupt.
    pub reads: u32,
    /// Listings of directories, each with the attributes of its files. With 1 none is asked for ahead.
    pub listings: u32,
}

impl Default for Parallel {
    fn default() -> Self {
        Parallel { reads: 16, listings: 1 }
    }
}

/// What a service can do, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// The driver's name, as in `local`.
    pub driver: &'static str,
    /// What it serves, as its user would name it.
    pub tree: String,
    /// The operations it answers with something else than `ENOSYS`.
    pub ops: OpSet,
    /// What its node numbers mean.
    pub identity: Identity,
    /// What a crash costs.
    pub class: DriverClass,
    /// Whether every change fails with `EROFS`.
    pub read_only: bool,
    /// Files need no [`crate::ops::Open`]: reads and writes work with handle 0.
    pub stateless_files: bool,
    /// Directories need no [`crate::ops::OpenDir`].
    pub stateless_dirs: bool,
    /// Names in directories come in the order of [`crate::listing::cookie_of`] them, and that is the cookie of each: whoever
    /// learns of a name knows its position, and another process goes on with a listing where this one was.
    pub cookies_by_name: bool,
    /// A cookie names its place in the directory for ever, also without an open directory and after a restart: for doors whose
    /// clients go on with a listing whenever they like (NFS `READDIR`).
    pub lasting_cookies: bool,
    /// [`Resolve`](crate::ops::Resolve) finds files of this tree only, whatever number it is given. Otherwise a door has to
    /// authenticate the numbers that its clients come with.
    pub resolves_inside: bool,
    /// Reads, writes and what else takes a handle of a file work with [`Handle::NONE`](crate::Handle::NONE) too.
    pub anonymous_io: bool,
    /// New files get attributes together with their names (`initial` of [`Create`](crate::ops::Create) and its relatives).
    pub initial_attrs: bool,
    /// What is asked by way of one handle of a file that writes is done in the order in which the calls were first polled: the
    /// later one may be called before the earlier one was answered.
    pub in_order: bool,
    /// What was written to a file is stored as a whole when the file is closed, and closing what is not open is no error.
    pub whole_files: bool,
    /// Why what was written to a file is lost may become known only when it is closed: [`Release`](crate::ops::Release) answers it.
    pub refuses_at_close: bool,
    /// Listings have names and kinds only, so [`ReadDirPlus`](crate::ops::ReadDirPlus) asks the other side about each name: who does not need
    /// attributes uses [`ReadDir`](crate::ops::ReadDir).
    pub plus_asks_each: bool,
    /// Files can be created asynchronously ([`crate::ops::OpenFlags::ASYNC_CREATE`]), and what is asked about their names later is answered as if
    /// they had been made.
    pub async_create: bool,
    /// While the tree answers creations in a directory asynchronously, no other client can change the names there. So creations with
    /// `O_EXCL` may be asynchronous, too.
    pub leases: bool,
    /// Permissions and times of files may be refused though they are the user's own: not every server can set them. One that has
    /// set them once can.
    pub attrs_may_fail: bool,
    /// The target of a symbolic link depends on where the link is, as it was made relative or was checked to stay in the tree: it
    /// is asked again each time.
    pub targets_by_place: bool,
    /// The path of the root at the server, without a slash at its end, if absolute targets of symbolic links lead there.
    pub root_at: Option<Bytes>,
    /// A program that opens a file expects what others had written when they closed it (close-to-open consistency): caches ask about
    /// a file each time it is opened.
    pub close_to_open: bool,
    /// Whether a user may open a file shows when it is opened only: the other side decides, by more than owner and mode, for each of
    /// several users. Caches open it there also where all its content is known, unless the superuser asks.
    pub decides_at_open: bool,
    /// What is answered side by side.
    pub parallel: Parallel,
    /// Access lists are kept as Linux does, in the attributes `system.posix_acl_access` and `system.posix_acl_default`
    /// (acl(5)): changes of the mode show in them, new files inherit them, and the umask of a request is applied.
    pub acl: bool,
    /// Times of files are multiples of so many nanoseconds; others are rounded down.
    pub time_unit: u32,
    /// There may be names that listings do not have, as of an HTTP server that leaves some out: a name that was not listed is asked for.
    pub hides_names: bool,
    /// Opening a file may connect to a peer or start a program, and its content is a stream ([`OpenHow::STREAM`](crate::reply::OpenHow::STREAM)):
    /// whoever goes through a directory opens no file that the user has not named.
    pub opens_streams: bool,
    /// [`Service::recall`] makes nodes for names that a former process knew, without asking the server.
    pub recalls: bool,
    /// How long a name that was not found stays so.
    pub negative_ttl: Ttl,
    /// The most bytes one read or write may have.
    pub max_io: u32,
}

impl Abilities {
    /// Those of a driver called `driver` for `tree` with `ops`; everything else at its most careful value.
    pub fn new(driver: &'static str, tree: impl Into<String>, ops: OpSet) -> Self {
        Abilities {
            driver,
            tree: tree.into(),
            ops,
            identity: Identity::ByPath,
            class: DriverClass::Network,
            read_only: false,
            stateless_files: false,
            stateless_dirs: false,
            cookies_by_name: false,
            lasting_cookies: false,
            resolves_inside: false,
            anonymous_io: false,
            initial_attrs: false,
            in_order: false,
            whole_files: false,
            refuses_at_close: false,
            plus_asks_each: false,
            async_create: false,
            leases: false,
            attrs_may_fail: false,
            targets_by_place: false,
            root_at: None,
            close_to_open: false,
            decides_at_open: false,
            hides_names: false,
            opens_streams: false,
            recalls: false,
            parallel: Parallel::default(),
            acl: false,
            time_unit: 1,
            negative_ttl: Ttl::NEVER,
            max_io: 1 << 20,
        }
    }
}
