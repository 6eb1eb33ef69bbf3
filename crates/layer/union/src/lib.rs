// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `union`: two trees as one, whose changes go to the upper one while the lower one stays as it is.
//!
//! The lower tree is what the layer stands on, the upper one is named: `--layer union=upper=/home/me/changes image.sqfs`. A
//! directory that is in both shows the names of both; what else is in both is shown from the upper one. More than one lower tree comes
//! by more than one layer.
//!
//! | what programs do | what happens |
//! |---|---|
//! | open a file for writing, change attributes, link it | it is copied to the upper tree first, with the directories above it: content in pieces and with its holes, owner, permissions, times, extended attributes |
//! | cut a file | what is cut off is not copied |
//! | remove, replace or rename something of the lower tree | a whiteout hides it |
//! | rename a directory that has names of the lower tree | `EXDEV`: mv(1) copies then |
//! | list a directory | in an order that follows from the names, with bounded memory (`list.rs`) |
//!
//! # The upper tree
//! Whiteouts are empty files `.wh.NAME`, as in layers of OCI images and in aufs: any tree can have them. What the kernel's
//! overlayfs writes is read. Names that begin with `.wh.` cannot be used, and names of more than 251 bytes of the lower
//! tree cannot be removed. Copies are made in `.wh..wh.work` at the root; what a power failure leaves there may be removed.
//!
//! # Deaths
//! A copy gets its name when it is complete and on stable storage, and a whiteout is made before a name of the upper tree is taken
//! away. Numbers of nodes, and how far a copy is, outlive the process where the stack does.
//!
//! # Limits
//! * A file with several names in the lower tree loses them when it is copied: the others lead to the original.
//! * A file that was open for reading when it was copied goes on with the copy, but not where a program has mapped it. One that had lost
//!   its name before it was to be copied cannot be (`ESTALE`).
//! * Inode numbers stay for as long as a file is known, also when it is copied; not those of files with several names.
//! * Locks are left to the door, ioctl(2) is not passed on.
//! * Nobody else changes the trees meanwhile: what comes of that is not defined. Who has to live with it is told what is hidden
//!   ([`Hides`]), and can find out later whether that has changed.
#![forbid(unsafe_code)]

mod copy_up;
mod files;
mod hidden;
mod list;
mod locks;
mod look;
mod names;
mod nodes;
mod notices;

pub use hidden::Hides;

use files::{Replace, Subject, decode};
use list::Kept;
use locks::Locks;
use nodes::{Nodes, Side};
use notices::Renumbering;
use outrigger_core::ops::{FSyncDir, StatFs, SyncFs};
use outrigger_core::option::option;
use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{
    Abilities, Answer, Attr, Credentials, Cx, Errno, Handle, Identity, Keep, Layer, Name, Node, Notify,
    OpCode, OpSet, OptionTable, Place, Reply, Request, Result, Runtime, Service, Target, Traverse, ask,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// `--layer union=upper=LOCATION`.
pub const LAYER: LayerInfo = LayerInfo {
    name: "union",
    argument: "[owner=keep|mine,]upper=LOCATION",
    does: "shows the tree and another one above it as one: changes go to the upper one, and this one stays as it is",
    options: &[&OPTIONS],
    make: |list, site| {
        let (options, upper) = Options::parse(list)?;
        let trees = site.trees.ok_or_else(|| Errno::EINVAL.because("no other tree can be opened here"))?;
        let keep = site.part_of_keep("union");
        let upper = trees.open(upper, keep.as_ref())?;
        if let Some(lower) = site.below {
            must_be_apart(&lower.abilities(), &upper.abilities())?;
        }
        let union = Union::new(upper, options, Arc::clone(site.runtime), keep.as_deref())?;
        Ok(Made::layer(union))
    },
};

/// What goes to the upper tree must not change the one that stays as it is.
fn must_be_apart(lower: &Abilities, upper: &Abilities) -> Result<()> {
    let [below, above] = [lower, upper].map(|tree| Path::new(&tree.tree));
    let overlaps = match lower.driver {
        "local" => below.starts_with(above) || above.starts_with(below),
        // Trees in memory have no names.
        "mem" | "null" => false,
        _ => below == above,
    };
    if lower.driver != upper.driver || !overlaps {
        return Ok(());
    }
    let advice =
        if lower.tree == "/" { "; for commands DIR::/PATH is in the tree of the directory DIR" } else { "" };
    Err(Errno::EINVAL.because(format!(
        "union: the upper tree '{}' and the tree '{}' that stays as it is must lie apart{advice}",
        upper.tree, lower.tree
    )))
}

/// The keys of the argument.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "union",
    options: &[
        option(
            "owner",
            "keep|mine",
            "keep",
            "whether copies belong to the file's owner, or to whoever makes them: for users without privileges",
        ),
        option(
            "upper",
            "LOCATION",
            "",
            "the tree that changes go to; the last key, up to the end of the argument",
        ),
    ],
};

/// What overlayfs calls its trees, and how they are named here.
const OVERLAY_OPTIONS: &[(&str, &str)] = &[
    ("lowerdir", "the lower tree is the LOCATION that the layer is put on"),
    ("upperdir", "upper=LOCATION is the upper tree, and the LOCATION itself the lower one"),
    ("workdir", "copies are made in the upper tree"),
];

/// How copies are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Copies belong to whoever makes them, but show the owner and the permissions of the file while the lower one is known.
    pub own_copies: bool,
}

impl Options {
    /// Reads what follows `--layer union=`: the options and the LOCATION of the upper tree.
    ///
    /// # Errors
    /// `EINVAL` with a reason, for an unknown key, a value that it cannot have, or a missing upper tree.
    pub fn parse(list: &str) -> Result<(Self, &str)> {
        let (mut options, mut rest) = (Options::default(), list);
        loop {
            if let Some(upper) = rest.strip_prefix("upper=").filter(|upper| !upper.is_empty()) {
                return Ok((options, upper));
            }
            let (item, after) = rest.split_once(',').unwrap_or((rest, ""));
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            match key {
                "owner" => {
                    options.own_copies = OPTIONS.one_of(key, value, &[("keep", false), ("mine", true)])?;
                }
                "" | "upper" => {
                    return Err(Errno::EINVAL.because("union: upper=LOCATION says where changes go"));
                }
                _ => return Err(OPTIONS.unknown_beside(key, OVERLAY_OPTIONS, std::iter::empty())),
            }
            rest = after;
        }
    }
}

/// The layer.
pub struct Union {
    upper: Arc<dyn Service>,
    options: Options,
    nodes: Arc<Nodes>,
    locks: Locks,
    runtime: Arc<dyn Runtime>,
    /// Who is told what is hidden.
    hidden: Option<Box<dyn Hides>>,
    /// Windows of listings, the oldest first.
    windows: Mutex<Vec<Kept>>,
    /// Handles of copies, by those of originals that were open before.
    switched: Mutex<HashMap<Handle, Handle>>,
    /// Where copies are made.
    work: Mutex<Option<Node>>,
    upper_ops: OpSet,
    /// Known from the first request on.
    lower_ops: OnceLock<OpSet>,
    max_io: u32,
}

impl Union {
    /// The layer with this upper tree, and what former processes have left in `keep`.
    ///
    /// # Errors
    /// Those of [`Keep::region`]; `EROFS` when the upper tree cannot be changed.
    pub fn new(
        upper: Arc<dyn Service>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<&dyn Keep>,
    ) -> Result<Self> {
        let Abilities { read_only, ops, max_io, .. } = upper.abilities();
        if read_only {
            return Err(Errno::EROFS.because("union: the upper tree cannot be changed"));
        }
        Ok(Union {
            upper,
            options,
            nodes: Arc::new(Nodes::open(keep)?),
            locks: Locks::default(),
            runtime,
            hidden: None,
            windows: Mutex::default(),
            switched: Mutex::default(),
            work: Mutex::default(),
            upper_ops: ops,
            lower_ops: OnceLock::new(),
            max_io,
        })
    }

    /// The same layer, which tells `hidden` what the upper tree hides of the lower one from now on, before it does so. The lower
    /// tree's root is `root`: the upper one's may belong to somebody else.
    pub fn telling(mut self, hidden: Box<dyn Hides>, root: &Attr) -> Self {
        if self.options.own_copies {
            self.nodes.root_is_of(root);
        }
        self.hidden = Some(hidden);
        self
    }

    /// A request by a handle of the tree that the file is shown from, as that tree gets it.
    fn straight(&self, request: &mut Request) -> Option<Side> {
        let by_handle = [OpCode::Read, OpCode::Write, OpCode::Flush, OpCode::FSync, OpCode::Seek];
        if !by_handle.contains(&request.op()) {
            return None;
        }
        let mut subject = Subject::default();
        request.traverse(&mut subject);
        let (side, handle) = decode(subject.handle?)?;
        let (shown, node) = self.nodes.bound(subject.node?).ok()?.shown().ok()?;
        let fits = shown == side && (side == Side::Upper || !request.needs_changeable());
        fits.then(|| request.traverse(&mut Replace(node, handle)))?;
        Some(side)
    }
}

/// What the layer has by itself, or has of both trees.
const OWN: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::Open,
    OpCode::Read,
    OpCode::Write,
    OpCode::Flush,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::FSyncDir,
    OpCode::CopyRange,
    OpCode::Forget,
    OpCode::Locate,
    OpCode::Parent,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
]);
/// What there is where the upper tree has it.
const UPPERS: OpSet = OpSet::of(&[
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
    OpCode::Link,
    OpCode::Create,
    OpCode::TmpFile,
    OpCode::FSync,
    OpCode::Fallocate,
    OpCode::Seek,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
    OpCode::StatFs,
    OpCode::SyncFs,
]);

impl Layer for Union {
    fn place(&self) -> Place {
        Place::anywhere("union")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if cx.wcc.is_none()
            && let Some(side) = self.straight(&mut request)
        {
            let tree = if side == Side::Upper { &self.upper } else { next };
            return tree.call(cx, request);
        }
        Answer::later(async move {
            // Attributes around a change would have the numbers of the tree.
            let plain = cx.wcc.as_ref().map(|_| Cx { wcc: None, ..cx.clone() });
            let both = Both::new(self, next, plain.as_ref().unwrap_or(cx));
            both.answer(request).await.unwrap_or_else(Reply::Error)
        })
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let upper = self.upper.abilities();
        Abilities {
            tree: format!("{} over {}", upper.tree, below.tree),
            ops: OWN.union(only(UPPERS, upper.ops)),
            identity: Identity::ByPath,
            read_only: false,
            stateless_files: upper.stateless_files && below.stateless_files,
            stateless_dirs: true,
            cookies_by_name: true,
            lasting_cookies: true,
            resolves_inside: false,
            anonymous_io: upper.anonymous_io && below.anonymous_io,
            initial_attrs: false,
            in_order: false,
            recalls: false,
            whole_files: false,
            refuses_at_close: upper.refuses_at_close,
            plus_asks_each: upper.plus_asks_each || below.plus_asks_each,
            async_create: false,
            attrs_may_fail: upper.attrs_may_fail,
            targets_by_place: upper.targets_by_place || below.targets_by_place,
            root_at: None,
            acl: upper.acl,
            time_unit: upper.time_unit.max(below.time_unit),
            negative_ttl: upper.negative_ttl.min(below.negative_ttl),
            max_io: upper.max_io.min(below.max_io),
            ..upper
        }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        let of = |side| Renumbering { side, nodes: Arc::clone(&self.nodes), above: Arc::clone(&above) };
        self.upper.attach(Arc::new(of(Side::Upper)));
        Arc::new(of(Side::Lower))
    }
}

/// Those of `ops` that are in `there`.
fn only(ops: OpSet, there: OpSet) -> OpSet {
    ops.without(ops.without(there))
}

/// The trees, on behalf of one request.
struct Both<'a> {
    union: &'a Union,
    lower: &'a Arc<dyn Service>,
    cx: &'a Cx,
    /// For what the layer asks by itself: whether the caller may do what it leads to, was decided above.
    own: Cx,
    upper_ops: OpSet,
    lower_ops: OpSet,
}

impl<'a> Both<'a> {
    fn new(union: &'a Union, lower: &'a Arc<dyn Service>, cx: &'a Cx) -> Self {
        let own = Cx { cred: Credentials::ROOT, ..cx.aside() };
        let lower_ops = *union.lower_ops.get_or_init(|| lower.abilities().ops);
        Both { union, lower, cx, own, upper_ops: union.upper_ops, lower_ops }
    }
}

impl Both<'_> {
    fn nodes(&self) -> &Nodes {
        &self.union.nodes
    }

    fn locks(&self) -> &Locks {
        &self.union.locks
    }

    fn tree(&self, side: Side) -> &dyn Service {
        match side {
            Side::Upper => &*self.union.upper,
            Side::Lower => &**self.lower,
        }
    }

    fn ops(&self, side: Side) -> OpSet {
        match side {
            Side::Upper => self.upper_ops,
            Side::Lower => self.lower_ops,
        }
    }

    async fn answer(&self, request: Request) -> Result<Reply> {
        Ok(match request {
            Request::Lookup(op) => Reply::Entry(self.lookup(op.dir, &op.name).await?),
            Request::Walk(op) => Reply::Entries(self.walk(op.dir, &op.names).await?),
            Request::GetAttr(op) => Reply::Attrs(self.getattr(op).await?),
            Request::SetAttr(op) => Reply::Attrs(self.setattr(op).await?),
            Request::MkNod(_) | Request::MkDir(_) | Request::SymLink(_) | Request::Link(_) => {
                self.add(request).await?
            }
            Request::Create(op) => Reply::Created(self.create(op).await?),
            Request::TmpFile(op) => Reply::Created(self.tmpfile(op).await?),
            Request::Unlink(op) => Reply::Done(self.remove(op.dir, &op.name, false).await?),
            Request::RmDir(op) => Reply::Done(self.remove(op.dir, &op.name, true).await?),
            Request::Rename(op) => Reply::Done(self.rename(op).await?),
            Request::Open(op) => Reply::Opened(self.open(op.node, op.flags).await?),
            Request::Release(op) => Reply::Done(self.release(op).await?),
            Request::CopyRange(op) => Reply::Count(self.copy_range(op).await?),
            Request::OpenDir(_) => Reply::Opened(Opened::default()),
            Request::ReleaseDir(_) => Reply::Done(()),
            Request::ReadDir(op) => Reply::Dirents(self.readdir(op).await?),
            Request::ReadDirPlus(op) => {
                Reply::DirentsPlus(self.readdirplus(op.node, op.cookie, op.size).await?)
            }
            Request::FSyncDir(op) => Reply::Done(self.fsyncdir(op).await?),
            Request::Forget(op) => {
                self.forget(op.node, op.count).await;
                Reply::Done(())
            }
            Request::Locate(op) => Reply::Target(self.locate(op.node)?),
            Request::Parent(op) => Reply::Entry(self.parent(op.dir).await?),
            Request::StatFs(_) => {
                Reply::FsStat(ask(self.tree(Side::Upper), self.cx, StatFs { node: Node::ROOT }).await?)
            }
            Request::SyncFs(_) => {
                Reply::Done(ask(self.tree(Side::Upper), self.cx, SyncFs { node: Node::ROOT }).await?)
            }
            other => self.plain(other).await?,
        })
    }

    async fn walk(&self, mut dir: Node, names: &[Name]) -> Result<Vec<Entry>> {
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match self.lookup(dir, name).await {
                Ok(entry) => {
                    dir = entry.node;
                    found.push(entry);
                }
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(found)
    }

    /// Names of a directory that has no copy were not changed.
    async fn fsyncdir(&self, op: FSyncDir) -> Result<()> {
        match self.nodes().bound(op.node)?.upper {
            Some(node) if self.upper_ops.has(OpCode::FSyncDir) => {
                let handle = self.open_dir(Side::Upper, node).await?;
                let synced = ask(self.tree(Side::Upper), self.cx, FSyncDir { node, handle, ..op }).await;
                self.close_dir(Side::Upper, node, handle).await;
                synced
            }
            _ => Ok(()),
        }
    }

    async fn forget(&self, node: Node, count: u64) {
        let spare = self.nodes().forget(node, count);
        self.forget_all(spare).await;
    }

    fn locate(&self, node: Node) -> Result<Target> {
        self.nodes().table().locate(node)
    }
}

#[cfg(test)]
mod tests;
