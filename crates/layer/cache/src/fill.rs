// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receiving a listing: all of a directory with the attributes of its files, ahead of those who read it.

use crate::clock::Asked;
use crate::inner::Inner;
use crate::moment::after;
use crate::names::{File, Names, Placing, Slot};
use crate::record::{SharedNames, stamp};
use outrigger_core::gate::Gate;
use outrigger_core::listing::Circle;
use outrigger_core::ops::{OpenDir, ReadDir, ReadDirPlus, ReleaseDir};
use outrigger_core::reply::{DirentPlus, DirentsPlus, Entry, Ttl};
use outrigger_core::{
    Attr, Cx, Errno, Error, FileKind, Generation, Handle, Node, OpCode, Result, Runtime, Service, Time, ask,
    lock,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of entries asked for at once.
const PIECE: u32 = 256 << 10;
/// Names that are received of one directory before a program wants them.
const UNREAD_MAX: usize = 20_000;
/// A stamp this young may be given out again for a later change, in seconds: clocks count in steps, and that of the tree may
/// be behind ours.
const YOUNG: i64 = 5;

/// A listing that is being received.
pub(crate) struct Fill {
    /// What has come so far.
    pub(crate) names: SharedNames,
    /// When it was asked for: the tree below may have listed it as soon as the directory was opened, or before.
    pub(crate) asked: Asked,
    /// Whether attributes come with it.
    pub(crate) plus: bool,
    stage: Mutex<Stage>,
    /// A program waits for it, or has read of it.
    wanted: AtomicBool,
    pub(crate) gate: Gate,
}

/// A directory that is open below; dropping it closes it there.
pub(crate) struct DirBelow {
    pub(crate) handle: Handle,
    /// When it was opened: what is listed by it may have been asked for then.
    pub(crate) asked: Option<Asked>,
    end: Option<Closing>,
}

type Closing = (Arc<dyn Service>, Arc<dyn Runtime>, Cx, ReleaseDir);

impl Drop for DirBelow {
    fn drop(&mut self) {
        if let Some((service, runtime, cx, release)) = self.end.take() {
            runtime.spawn(Box::pin(async move {
                service.call(&cx, release.into()).await;
            }));
        }
    }
}

/// How far it has come.
#[derive(Clone)]
pub(crate) enum Stage {
    /// The directory is being opened.
    Opening,
    /// Names come.
    Receiving,
    /// All have come.
    Done,
    /// No more come.
    Failed(Error),
    /// There are so many that they are passed on instead of kept; from this handle.
    Large(Arc<DirBelow>),
}

impl Fill {
    /// How far it has come.
    pub(crate) fn stage(&self) -> Stage {
        lock(&self.stage).clone()
    }

    fn reach(&self, stage: Stage) {
        *lock(&self.stage) = stage;
        self.gate.open();
    }
}

/// Whether a change after `now` is sure to give another stamp than this one.
pub(crate) fn is_settled(attr: &Attr, now: Time) -> bool {
    attr.change != 0 || now.secs.saturating_sub(attr.mtime.max(attr.ctime).secs) > YOUNG
}

/// An entry that says no more than that there is such a name.
pub(crate) fn name_only(file: &File) -> Entry {
    let mode = file.kind.map_or(0, |kind| kind.bits());
    Entry {
        node: Node::default(),
        generation: Generation::default(),
        attr: Attr { ino: file.ino, mode, ..Attr::default() },
        entry_ttl: Ttl::NEVER,
        attr_ttl: Ttl::NEVER,
    }
}

impl Inner {
    /// The listing of `dir` that is being received, or a new one on behalf of `cx` where that is too old, or was begun
    /// before a change of ours: what it says of the time before would not be used. It has the attributes of the files if these are
    /// wanted, or cost nothing.
    pub(crate) fn fill(self: &Arc<Self>, cx: &Cx, dir: Node, attrs: bool) -> Arc<Fill> {
        let when = self.when();
        let plus = self.has(OpCode::ReadDirPlus) && (attrs || !self.lists_names_alone());
        let mut table = lock(&self.table);
        let asked = table.asked(when);
        if let Some(fill) = &table.directory(dir).fill
            && fill.asked.sequence == asked.sequence
            && lock(&fill.names).will_tell(when.now)
            && (fill.plus || !plus)
        {
            fill.wanted.fetch_or(!cx.ahead, Ordering::Relaxed);
            return Arc::clone(fill);
        }
        let ttls = table.ttls(dir);
        let attr = table.attrs(dir, when.now).map(|attrs| attrs.attr);
        let period = attr.as_ref().map_or(ttls.least(), |attr| ttls.period(attr, when.wall));
        let stamp = attr.filter(|attr| is_settled(attr, when.wall)).map(|attr| stamp(&attr));
        let mut names = Names::filling(stamp, (when.now, after(when.now, period)), self.placing());
        names.negative_until = table.absent_until(ttls, when.now);
        if !plus {
            names.come_alone();
        }
        let fill = Arc::new(Fill {
            names: Arc::new(Mutex::new(names)),
            asked,
            plus,
            stage: Mutex::new(Stage::Opening),
            wanted: AtomicBool::new(!cx.ahead),
            gate: Gate::default(),
        });
        let directory = table.directory(dir);
        directory.fill = Some(Arc::clone(&fill));
        drop(table);
        let (inner, own) = (Arc::clone(self), Arc::clone(&fill));
        let cx = Cx { ahead: cx.ahead, ..self.cx(cx) };
        self.runtime.spawn(Box::pin(async move {
            let stage = inner.receive(&cx, dir, &own).await.unwrap_or_else(Stage::Failed);
            inner.finish(dir, &own, stage);
            inner.listing_ended(&cx, dir, &own);
            inner.settle(&cx).await;
        }));
        fill
    }

    /// Whether a listing has attributes only if each file is asked about.
    pub(crate) fn lists_names_alone(&self) -> bool {
        self.below().abilities.plus_asks_each && self.has(OpCode::ReadDir)
    }

    /// Where names are put that are made here: so that a position which was given out means the same to the next process.
    pub(crate) fn placing(&self) -> Placing {
        match self.below().abilities.cookies_by_name {
            true => Placing::ByName,
            false if self.has_successor => Placing::Unknown,
            false => Placing::Last,
        }
    }

    /// Opens a directory below.
    pub(crate) async fn open_dir(&self, cx: &Cx, node: Node) -> Result<DirBelow> {
        if !self.has(OpCode::OpenDir) {
            return Ok(DirBelow { handle: Handle(0), asked: None, end: None });
        }
        let (asked, service) = (Some(self.asked()), Arc::clone(&self.below().service));
        let handle = ask(&*service, cx, OpenDir { node }).await?.handle;
        let (runtime, release) = (Arc::clone(&self.runtime), ReleaseDir { node, handle });
        Ok(DirBelow { handle, asked, end: Some((service, runtime, self.cx(cx), release)) })
    }

    async fn receive(&self, cx: &Cx, dir: Node, fill: &Fill) -> Result<Stage> {
        let real = self.open_dir(cx, dir).await?;
        fill.reach(Stage::Receiving);
        let (mut cookie, mut circle) = (0, Circle::default());
        loop {
            let piece = self.piece(cx, (dir, real.handle), cookie, fill.plus).await?;
            let (eof, last) = (piece.eof, piece.entries.last().map(|entry| entry.cookie));
            let closes = piece.entries.iter().any(|entry| circle.closes(entry.cookie));
            let complete = eof || last.is_none();
            let large = self.add_piece(dir, fill, piece.entries, complete);
            self.settle(cx).await;
            if complete {
                return Ok(Stage::Done);
            }
            if self.is_too_long(dir, fill) {
                return Err(Errno::E2BIG.because("a longer listing than is received ahead"));
            }
            if large {
                return Ok(Stage::Large(Arc::new(real)));
            }
            if closes {
                return Err(Errno::EIO.because("the directory listing goes in a circle"));
            }
            if last == Some(cookie) {
                return Err(Errno::EIO.because("the directory listing does not move on"));
            }
            cookie = last.unwrap_or(cookie);
            fill.gate.open();
        }
    }

    /// One piece of a listing, perhaps with attributes.
    async fn piece(
        &self,
        cx: &Cx,
        (node, handle): (Node, Handle),
        cookie: u64,
        plus: bool,
    ) -> Result<DirentsPlus> {
        let below = self.below();
        if plus {
            return ask(&*below.service, cx, ReadDirPlus { node, handle, cookie, size: PIECE }).await;
        }
        let plain = ask(&*below.service, cx, ReadDir { node, handle, cookie, size: PIECE }).await?;
        let entries = plain.entries.into_iter().map(|dirent| {
            let (node, generation) = (Node::default(), Generation::default());
            let file = File { node, generation, ino: dirent.ino, kind: dirent.kind };
            DirentPlus { cookie: dirent.cookie, name: dirent.name, entry: name_only(&file) }
        });
        Ok(DirentsPlus { entries: entries.collect(), eof: plain.eof })
    }

    /// Remembers a piece, after which the listing may be complete; answers whether the directory has become too large to be
    /// remembered. The reader of the last name sees that it is the last one.
    fn add_piece(&self, dir: Node, fill: &Fill, entries: Vec<DirentPlus>, complete: bool) -> bool {
        let mut table = lock(&self.table);
        let follows = table.follows(dir, &fill.names);
        for DirentPlus { cookie, name, mut entry } in entries {
            let Entry { node, generation, attr, .. } = &mut entry;
            let kind = FileKind::of_mode(attr.mode);
            let file = File { node: *node, generation: *generation, ino: attr.ino, kind };
            let slot = Slot { name: Some(name.clone()), cookie, file };
            let is_there = lock(&fill.names).receive(slot);
            if *node == Node::default() {
                continue;
            }
            if !is_there || !follows {
                // This listing leads no caller to the node.
                table.return_references(*node, 1);
                continue;
            }
            table.received(*node);
            table.identify(*node, *generation);
            table.learn_place(*node, dir, &name);
            let until = table.learn_attr(*node, attr, fill.asked);
            lock(&fill.names).attrs_hold(until);
        }
        let (bytes, names) = table.directory_max();
        let mut received = lock(&fill.names);
        if complete {
            received.finish();
        }
        received.weight() > bytes || received.len() > names
    }

    /// Whether a listing is too long to be received before a program wants it. Who opens the directory from now on begins
    /// another one.
    fn is_too_long(&self, dir: Node, fill: &Fill) -> bool {
        let mut table = lock(&self.table);
        // Under the lock, or a program could begin to wait for it at this moment.
        let too_long = !fill.wanted.load(Ordering::Relaxed) && lock(&fill.names).len() > UNREAD_MAX;
        if too_long && table.follows(dir, &fill.names) {
            table.directory(dir).fill = None;
        }
        too_long
    }

    /// The listing is complete, or will never be.
    fn finish(&self, dir: Node, fill: &Arc<Fill>, stage: Stage) {
        let mut table = lock(&self.table);
        let is_current = table.directory(dir).fill.as_ref().is_some_and(|current| Arc::ptr_eq(current, fill));
        if is_current && matches!(stage, Stage::Done) {
            table.install(dir, Arc::clone(&fill.names));
        }
        if is_current {
            table.directory(dir).fill = None;
        }
        drop(table);
        fill.reach(stage);
    }
}
