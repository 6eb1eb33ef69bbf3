// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `crypt`: keeps a tree encrypted and authenticated in another tree, which may be any that can be written.
//!
//! Contents, names, targets of symbolic links, and attributes of users (`user.*`) are encrypted; sizes, times, owners, permissions, the shape
//! of the tree and other attributes are not. What was changed below is answered with `EBADMSG` and a reason that names the file and the
//! block. docs/CRYPT-FORMAT.md describes the bytes, docs/design/0023-crypt.md says why they are so and what an attacker can do.
//!
//! | module | |
//! |---|---|
//! | `keys` | the master key, and what follows from it |
//! | `config` | how a passphrase or a key file gives the master key |
//! | `format` | headers and blocks of files |
//! | `names` | names, targets, attributes |
//! | `state` | what is known of open files and of directories |
//! | `below` | requests to the tree below that belong to no request from above |
//! | `content`, `files` | reading, writing, sizes |
//! | `directory` | names |
//! | `held` | keeping others away |
//! | `reader` | looking at single names and headers |
//! | `admin` | making a tree, and another passphrase |
//!
//! # Limits
//! * One process at a time changes a tree ([`Held`]); where the tree below cannot be locked, that is left to the user.
//! * Changes of the layout of a file (`FALLOC_FL_COLLAPSE_RANGE`, `INSERT_RANGE`) are `EOPNOTSUPP`, ioctl(2) is `ENOTTY`.
//! * The target of a link has at most 3039 bytes, the name of a user's attribute 173.
//! * A file that cannot be read cannot be opened for writing, since parts of blocks are read first. Removing a directory takes the permission
//!   to write it: it has a file of the layer's own.
//! * Where files need no opening below, the size of a file is noted in its header with each request that changes it.
#![forbid(unsafe_code)]

mod admin;
mod below;
mod config;
mod content;
mod directory;
mod files;
mod format;
mod held;
mod keys;
mod names;
mod notices;
mod reader;
mod secret;
mod state;

pub use admin::{can_initialise, change_secret, configuration, initialise};
pub use config::{CONFIG_MAX, Config, Cost, Secret};
pub use format::{BLOCK, HEADER, OVERHEAD, Record, SIZE_MAX, SLOT, plain_size, sealed_size, slot_at};
pub use held::Held;
pub use keys::{ID, Id, Keys, MASTER, Master};
pub use names::CONFIG;
pub use reader::Reader;
pub use secret::Source;

use secret::Argument;

use below::Below;
use format::Sizes;
use notices::Translated;
use outrigger_core::mutex::lock;
use outrigger_core::option::option;
use outrigger_core::registry::{LayerInfo, Made, Site};
use outrigger_core::survive::{Layout, Text};
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Error, Layer, Name, Node, Notify, OpCode, OpSet, OptionTable, Place, Reply,
    Request, Result, Service, Traverse,
};
use state::Inner;
use std::sync::{Arc, Mutex};

/// `--layer crypt[=KEY=VALUE,...]`.
pub const LAYER: LayerInfo = LayerInfo {
    name: "crypt",
    argument: "KEY=VALUE,...",
    does: "shows what `outrigger crypt init` keeps encrypted in the tree; without passfile or keyfile it asks at the terminal",
    options: &[&OPTIONS],
    make: make_layer,
};

/// The keys of the layer's argument.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "crypt",
    options: &[
        option("passfile", "FILE", "", "a private file whose first line is the passphrase"),
        option("keyfile", "FILE", "", "a private file that is the key"),
        option("plain", "", "", "trees without a configuration are shown, and changed, as they are"),
    ],
};

const KEPT: Layout = Layout::of("crypt-key");

outrigger_core::fields! {
    /// The master key, for the process that takes over: in memory that only these processes share.
    struct Kept {
        master: Text<'static, 8>,
    }
}

/// Names below that are not ours, each with its directory.
#[derive(Clone, Default)]
pub struct Strangers(Arc<Mutex<Vec<(Node, Name)>>>);

impl Strangers {
    pub(crate) fn add(&self, dir: Node, name: Name) {
        lock(&self.0).push((dir, name));
    }

    /// Those that were found since this was called last.
    pub fn take(&self) -> Vec<(Node, Name)> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// What takes the place of the layer on a tree that is not encrypted.
struct Plain;

impl Layer for Plain {
    fn place(&self) -> Place {
        PLACE
    }
}

/// It has to see each write, and asks for what a driver may lack.
const PLACE: Place = Place { name: "crypt", above: &["simulate"], below: &[] };

fn make_layer(list: &str, site: &Site<'_>) -> Result<Made> {
    let argument = Argument::parse(list)?;
    match Crypt::open(&argument.source, site) {
        Err(error) if argument.plain && error.errno == Errno::ENOENT => Ok(Made::layer(Plain)),
        Err(Error { errno: Errno::ENOENT, reason }) => Err(Errno::ENOENT.because(format!(
            "{}; with `plain` (--layer crypt=plain) trees without one are shown, and changed, as they are",
            reason.unwrap_or_default()
        ))),
        opened => opened.map(Made::layer),
    }
}

/// The layer, and what keeps others away from the tree.
pub struct Crypt {
    inner: Arc<Inner>,
    _held: Option<Held>,
}

impl Crypt {
    /// The layer, where another process goes on when this one dies.
    fn with_successor(mut self) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.has_successor = true;
        }
        self
    }

    /// The layer with these keys.
    pub fn new(keys: Keys) -> Self {
        Crypt { inner: Arc::new(Inner::new(keys, None)), _held: None }
    }

    /// The same, which notes what it finds in directories and cannot show.
    pub fn noting(keys: Keys, strangers: Strangers) -> Self {
        Crypt { inner: Arc::new(Inner::new(keys, Some(strangers))), _held: None }
    }

    /// The layer for the tree below, whose configuration is there.
    fn open(source: &Source, site: &Site<'_>) -> Result<Self> {
        if site.same_below > 0 {
            return Err(Errno::EINVAL.because("a tree is encrypted once"));
        }
        let kept =
            site.keep.map(|keep| KEPT.attach(&**keep, <Kept as outrigger_core::survive::Stored>::WORDS));
        let kept = kept.transpose()?.map(|region| region.area);
        let noted = kept.as_ref().and_then(|area| area.view::<Kept<'_>>().master().get());
        if let Some(master) = noted.and_then(|bytes| Master::of(&bytes)) {
            let layer = Crypt { _held: Crypt::still_held(site), ..Crypt::new(Keys::of(&master)) };
            return Ok(layer.with_successor());
        }
        let below = site.below.ok_or_else(|| Errno::EINVAL.because("there is no tree below"))?;
        let service = Arc::clone(below);
        let config = site.wait_for(async move { configuration(&*service).await })?;
        // Whom others keep away is told before a passphrase is asked for.
        let held = Crypt::held(site)?;
        let master = config.unwrap(&source.secret(&config)?)?;
        let layer = Crypt { _held: Some(held), ..Crypt::new(Keys::of(&master)) };
        let Some(area) = kept else { return Ok(layer) };
        area.view::<Kept<'_>>().master().set(&master.0[..])?;
        Ok(layer.with_successor())
    }

    /// Keeps others away, also when another process goes on.
    fn held(site: &Site<'_>) -> Result<Held> {
        let below = site.below.ok_or_else(|| Errno::EINVAL.because("there is no tree below"))?;
        let (service, runtime, usage) = (Arc::clone(below), Arc::clone(site.runtime), site.usage);
        let held = site.wait_for(async move { Held::new(&*service, &*runtime, usage).await })?;
        site.keep.map_or(Ok(()), |keep| held.leave_to(&**keep))?;
        Ok(held)
    }

    /// The same for a process that takes over. Whatever hinders it, the mount goes on.
    fn still_held(site: &Site<'_>) -> Option<Held> {
        let former = site.keep.map_or(Ok(None), |keep| Held::of_predecessor(&**keep));
        match former.and_then(|held| held.map_or_else(|| Crypt::held(site), Ok)) {
            Ok(held) => Some(held),
            Err(error) => {
                tracing::warn!(%error, "the encrypted tree is not locked any more");
                None
            }
        }
    }
}

/// What the layer answers, if the tree below has what it takes.
const ANSWERED: &[OpCode] = &[
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
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::FSyncDir,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
    OpCode::GetLock,
    OpCode::SetLock,
    OpCode::StatFs,
    OpCode::Poll,
    OpCode::Forget,
    OpCode::Access,
    OpCode::SyncFs,
    OpCode::Locate,
    OpCode::Parent,
    OpCode::Resolve,
];

fn later<'a, T>(work: impl Future<Output = Result<T>> + Send + 'a) -> Answer<'a>
where
    Reply: From<Result<T>>,
{
    Answer::later(async move { work.await.into() })
}

impl Layer for Crypt {
    fn place(&self) -> Place {
        PLACE
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let below = Below::new(&self.inner, next, cx);
        match request {
            Request::Read(op) => later(async move { below.read(op).await }),
            Request::Write(op) => later(async move { below.write(op).await }),
            Request::Lookup(op) => later(async move { below.lookup(op).await }),
            Request::Walk(op) => later(async move { below.walk(op).await }),
            Request::SetAttr(op) => later(async move { below.setattr(op).await }),
            Request::ReadLink(op) => later(async move { below.readlink(op).await }),
            Request::MkNod(op) => later(async move { below.mknod(op).await }),
            Request::MkDir(op) => later(async move { below.mkdir(op).await }),
            Request::SymLink(op) => later(async move { below.symlink(op).await }),
            Request::Link(op) => later(async move { below.link(op).await }),
            Request::Unlink(op) => later(async move { below.unlink(op).await }),
            Request::RmDir(op) => later(async move { below.rmdir(op).await }),
            Request::Rename(op) => later(async move { below.rename(op).await }),
            Request::Open(op) => later(async move { below.open(op).await }),
            Request::Create(op) => later(async move { below.create(op).await }),
            Request::TmpFile(op) => later(async move { below.tmpfile(op).await }),
            Request::Flush(op) => later(async move { below.flush(op).await }),
            Request::FSync(op) => later(async move { below.fsync(op).await }),
            Request::Fallocate(op) => later(async move { below.fallocate(op).await }),
            Request::Seek(op) => later(async move { below.lseek(op).await }),
            Request::CopyRange(op) => {
                // As Linux does for callers without CAP_FSETID.
                let kill_setid = cx.cred.uid != 0;
                later(async move { below.copy_range(op, kill_setid).await })
            }
            Request::Release(op) => later(async move { below.release(op).await }),
            Request::ReadDir(op) => later(async move { below.readdir(op).await }),
            Request::ReadDirPlus(op) => later(async move { below.readdirplus(op).await }),
            Request::GetXattr(op) => later(async move { below.getxattr(op).await }),
            Request::SetXattr(op) => later(async move { below.setxattr(op).await }),
            Request::ListXattr(op) => later(async move { below.listxattr(op).await }),
            Request::RemoveXattr(op) => later(async move { below.removexattr(op).await }),
            Request::StatFs(op) => later(async move { below.statfs(op).await }),
            Request::SyncFs(op) => later(async move { below.syncfs(op).await }),
            Request::Locate(op) => later(async move {
                let path = below.path(op.node).await?;
                outrigger_core::Target::new(path)
            }),
            other => self.pass(next, cx, other),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let mut ops = below.ops.without(OpSet::all().without(OpSet::of(ANSWERED)));
        if ops.has(OpCode::Read) && ops.has(OpCode::Write) {
            ops = ops.union(OpSet::of(&[OpCode::CopyRange]));
        }
        if ops.has(OpCode::Lookup) {
            ops = ops.union(OpSet::of(&[OpCode::Walk]));
        }
        let max_io = (content::blocks_at_once(below.max_io) * BLOCK) as u32;
        Abilities {
            ops,
            max_io,
            cookies_by_name: false,
            root_at: None,
            initial_attrs: false,
            async_create: false,
            in_order: false,
            recalls: false,
            ..below
        }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        Arc::new(Translated { inner: Arc::clone(&self.inner), above })
    }
}

impl Crypt {
    /// What is the same above and below, but for the sizes of files. What is not known here may have content or names.
    fn pass<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let op = request.op();
        if op == OpCode::Ioctl {
            return Answer::error(Errno::ENOTTY);
        }
        if !ANSWERED.contains(&op) {
            return Answer::error(Errno::ENOSYS);
        }
        if let Some((node, _)) = request.returns() {
            self.inner.forget(node);
        }
        next.call(cx, request).map(|mut reply| {
            reply.traverse(&mut Sizes);
            reply
        })
    }
}

#[cfg(test)]
mod tests;
