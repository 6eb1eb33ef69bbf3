// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `simulate`: supplies operations a driver lacks from those it has.
//!
//! | operation | from |
//! |---|---|
//! | `lookup` | `walk` with one name |
//! | `walk` | one `lookup` for each name |
//! | `readdir` | `readdirplus`, giving back its references |
//! | `readdirplus` | `readdir` and one `lookup` for each name |
//! | `parent` | `locate`, and `walk` from the root |
//! | `create` | `mknod` and `open` |
//! | `copy_range` | `read` and `write` |
//! | `lseek` | `getattr`: all data up to the size, then a hole |
//! | `access` | `getattr` and the permission bits |
//! | `statfs` | nothing is known but the longest name |
//! | `open` | `setattr` when the file is to be emptied; the driver is stateless |
//! | `opendir`, `release`, `releasedir`, `flush`, `fsyncdir`, `forget` | nothing to do |
//!
//! What the driver has itself passes untouched. [`Abilities::ops`] grows by what is supplied, and a driver without
//! `open` or `opendir` is declared stateless.
//!
//! Limits: a supplied operation is several operations of the driver, so others may change the tree between them, and a
//! failure half way leaves what was done (`create` may leave an empty file). `access` knows no access lists. `fsync` is never supplied: only the driver knows what is stable.
#![forbid(unsafe_code)]

mod copy;
mod directory;
mod file;

use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::reply::{FsStat, Opened};
use outrigger_core::{Abilities, Answer, Cx, Layer, OpCode, OpSet, Place, Reply, Request, Service};
use std::sync::{Arc, OnceLock};

/// `--layer simulate`.
pub const LAYER: LayerInfo =
    LayerInfo::new("simulate", "emulates operations that a driver lacks by others that it has", |_, _| {
        Ok(Made::layer(Simulate::new()))
    });

/// The layer.
#[derive(Debug)]
pub struct Simulate {
    permitted: OpSet,
    /// What the driver lacks and this layer supplies, known from the first request on.
    supplied: OnceLock<OpSet>,
}

impl Default for Simulate {
    fn default() -> Self {
        Simulate::new()
    }
}

impl Simulate {
    /// Supplies whatever can be supplied.
    pub fn new() -> Self {
        Simulate::only(OpSet::all())
    }

    /// Supplies no other operations than these.
    pub fn only(permitted: OpSet) -> Self {
        Simulate { permitted, supplied: OnceLock::new() }
    }

    /// What is added to a driver that has `ops`.
    fn additions(&self, ops: OpSet) -> OpSet {
        let mut added = OpSet::NONE;
        for (op, needs) in SOURCES {
            let possible = needs.iter().any(|all| all.iter().all(|&need| ops.has(need)));
            if possible && !ops.has(*op) && self.permitted.has(*op) {
                added = added.union(OpSet::of(&[*op]));
            }
        }
        added
    }

    fn supplies(&self, next: &Arc<dyn Service>, op: OpCode) -> bool {
        self.supplied.get_or_init(|| self.additions(next.abilities().ops)).has(op)
    }
}

/// Each operation that can be supplied, with the sets of operations of which one suffices.
const SOURCES: &[(OpCode, &[&[OpCode]])] = &[
    (OpCode::Lookup, &[&[OpCode::Walk]]),
    (OpCode::Walk, &[&[OpCode::Lookup]]),
    (OpCode::ReadDir, &[&[OpCode::ReadDirPlus]]),
    (OpCode::ReadDirPlus, &[&[OpCode::ReadDir, OpCode::Lookup], &[OpCode::ReadDir, OpCode::Walk]]),
    (OpCode::Create, &[&[OpCode::MkNod, OpCode::Lookup], &[OpCode::MkNod, OpCode::Walk]]),
    (
        OpCode::Parent,
        &[
            &[OpCode::Locate, OpCode::GetAttr, OpCode::Lookup],
            &[OpCode::Locate, OpCode::GetAttr, OpCode::Walk],
        ],
    ),
    (OpCode::CopyRange, &[&[OpCode::Read, OpCode::Write]]),
    (OpCode::Seek, &[&[OpCode::GetAttr]]),
    (OpCode::Access, &[&[OpCode::GetAttr]]),
    (OpCode::StatFs, &[&[]]),
    (OpCode::Open, &[&[]]),
    (OpCode::OpenDir, &[&[]]),
    (OpCode::Release, &[&[]]),
    (OpCode::ReleaseDir, &[&[]]),
    (OpCode::Flush, &[&[]]),
    (OpCode::FSyncDir, &[&[]]),
    (OpCode::Forget, &[&[]]),
];

/// What statvfs(3) says of a tree of unknown size.
const UNKNOWN_SIZE: FsStat =
    FsStat { blocks: 0, bfree: 0, bavail: 0, files: 0, ffree: 0, bsize: 4096, frsize: 4096, namelen: 255 };

impl Layer for Simulate {
    fn place(&self) -> Place {
        Place::anywhere("simulate")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if !self.supplies(next, request.op()) {
            return next.call(cx, request);
        }
        let below = Below { layer: self, next, cx };
        match request {
            Request::Lookup(op) => Answer::later(async move { below.lookup(op).await.into() }),
            Request::Walk(op) => Answer::later(async move { below.walk(op).await.into() }),
            Request::ReadDir(op) => Answer::later(async move { below.readdir(op).await.into() }),
            Request::ReadDirPlus(op) => Answer::later(async move { below.readdirplus(op).await.into() }),
            Request::Parent(op) => Answer::later(async move { below.parent(op).await.into() }),
            Request::Create(op) => Answer::later(async move { below.create(op).await.into() }),
            Request::CopyRange(op) => Answer::later(async move { below.copy_range(op).await.into() }),
            Request::Seek(op) => Answer::later(async move { below.lseek(op).await.into() }),
            Request::Access(op) => Answer::later(async move { below.access(op).await.into() }),
            Request::Open(op) => below.open(op),
            Request::OpenDir(_) => Answer::Ready(Reply::Opened(Opened::default())),
            Request::StatFs(_) => Answer::Ready(Reply::FsStat(UNKNOWN_SIZE)),
            Request::Release(_)
            | Request::ReleaseDir(_)
            | Request::Flush(_)
            | Request::FSyncDir(_)
            | Request::Forget(_) => Answer::Ready(Reply::Done(())),
            other => next.call(cx, other),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let added = self.additions(below.ops);
        Abilities {
            ops: below.ops.union(added),
            stateless_files: below.stateless_files || added.has(OpCode::Open),
            stateless_dirs: below.stateless_dirs || added.has(OpCode::OpenDir),
            ..below
        }
    }
}

/// The driver as the supplied operations see it: with what this layer adds, on behalf of one request.
#[derive(Clone, Copy)]
struct Below<'a> {
    layer: &'a Simulate,
    next: &'a Arc<dyn Service>,
    cx: &'a Cx,
}

impl Below<'_> {
    fn supplied(&self, op: OpCode) -> bool {
        self.layer.supplies(self.next, op)
    }
}

#[cfg(test)]
mod tests;
