// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing directories.

use crate::clock::Asked;
use crate::fill::{DirBelow, Fill, Stage, name_only};
use crate::inner::Inner;
use crate::moment::Moment;
use crate::open::{OpenDirectory, View};
use crate::record::SharedNames;
use crate::table::Table;
use outrigger_core::ops::{OpenDir, ReadDir, ReadDirPlus, ReleaseDir};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Opened};
use outrigger_core::{Answer, Cx, Error, Handle, Name, Node, OpCode, Reply, Request, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a piece of a listing counts for each entry beside its name, in bytes (see [`ReadDir`] and [`ReadDirPlus`]).
const PLAIN: usize = 24;
const PLUS: usize = 152;
/// How long attributes that came with a listing may be listed with it although they must not be used, in milliseconds.
const FRESH: Moment = 60_000;

/// Which piece of which listing is asked for.
#[derive(Clone, Copy)]
struct Wanted {
    node: Node,
    handle: Handle,
    cookie: u64,
    size: u32,
    plus: bool,
    /// It is to be what is there now, not what was there when the directory was opened.
    anew: bool,
}

/// What an attempt to answer from what is known came to.
enum Served {
    Reply(Reply),
    /// More names have to arrive than so many.
    Wait(Arc<Fill>, usize),
    /// What is known is too old.
    Old,
    /// The tree below has to be asked, with this handle if there is one already.
    Below(Option<Arc<DirBelow>>),
}

impl Inner {
    /// Opens a directory. What can be answered from what is known is not opened below.
    pub(crate) fn opendir<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: OpenDir) -> Answer<'a> {
        if !self.has(OpCode::ReadDir) && !self.has(OpCode::ReadDirPlus) {
            return self.pass(cx, op.into());
        }
        let now = self.now();
        let known = self.listable(&mut lock(&self.table), op.node, now, false);
        if let Some(names) = known {
            self.walks_into(cx, op.node, true);
            return Answer::Ready(self.opened(op.node, View::Known(names, now)));
        }
        Answer::later(async move {
            self.know_path(cx, op.node).await;
            let opened = self.open_anew(cx, op.node, self.walk_wants_attrs(op.node));
            self.walks_into(cx, op.node, false);
            match opened.await {
                Ok(fill) => self.opened(op.node, View::Arriving(fill)),
                Err(error) => Reply::Error(error),
            }
        })
    }

    fn opened(&self, node: Node, view: View) -> Reply {
        let handle = self.handles.open_directory(node, view);
        Reply::Opened(Opened { handle, ..Opened::default() })
    }

    /// Names from which a whole listing can be answered; with `plus`, only while the attributes that came with them are
    /// fresh as well.
    fn listable(&self, table: &mut Table, dir: Node, now: Moment, plus: bool) -> Option<SharedNames> {
        let shared = table.names_of(dir)?;
        let names = lock(&shared);
        if !names.is_listable(now) || (plus && names.attrs_until <= now) {
            return None;
        }
        drop(names);
        Some(shared)
    }

    /// Has a listing received, and waits until the directory is open.
    fn open_anew(
        self: &Arc<Self>,
        cx: &Cx,
        dir: Node,
        attrs: bool,
    ) -> impl Future<Output = Result<Arc<Fill>, Error>> + use<> {
        let fill = self.fill(cx, dir, attrs);
        async move {
            let opened = || match fill.stage() {
                Stage::Opening => None,
                Stage::Failed(error) => Some(Err(error)),
                _ => Some(Ok(())),
            };
            fill.gate.wait(opened).await.map(|()| Arc::clone(&fill))
        }
    }

    /// Closes a directory.
    pub(crate) fn releasedir<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: ReleaseDir) -> Answer<'a> {
        if self.handles.close_directory(op.node, op.handle) {
            return Answer::Ready(Reply::Done(()));
        }
        self.pass(cx, op.into())
    }

    pub(crate) fn readdir<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: ReadDir) -> Answer<'a> {
        let ReadDir { node, handle, cookie, size } = op;
        self.list(cx, Wanted { node, handle, cookie, size, plus: false, anew: false })
    }

    pub(crate) fn readdirplus<'a>(self: &'a Arc<Self>, cx: &'a Cx, op: ReadDirPlus) -> Answer<'a> {
        let ReadDirPlus { node, handle, cookie, size } = op;
        self.list(cx, Wanted { node, handle, cookie, size, plus: true, anew: false })
    }

    fn list<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut wanted: Wanted) -> Answer<'a> {
        let Some(open) = self.handles.directory(wanted.node, wanted.handle) else {
            return Answer::later(self.list_below(cx, wanted, None));
        };
        wanted.anew = wanted.cookie == 0 && open.read.swap(true, Ordering::Relaxed);
        match self.serve(&open, wanted) {
            Served::Reply(reply) => Answer::Ready(reply),
            served => Answer::later(self.list_later(cx, open, wanted, served)),
        }
    }

    async fn list_later(
        self: &Arc<Self>,
        cx: &Cx,
        open: Arc<OpenDirectory>,
        mut wanted: Wanted,
        mut served: Served,
    ) -> Reply {
        wanted.anew = false;
        loop {
            match served {
                Served::Reply(reply) => return reply,
                Served::Wait(fill, seen) => {
                    let moved = || {
                        let more = lock(&fill.names).extent() > seen;
                        (more || !matches!(fill.stage(), Stage::Opening | Stage::Receiving)).then_some(())
                    };
                    fill.gate.wait(moved).await;
                }
                Served::Old => match self.open_anew(cx, wanted.node, wanted.plus).await {
                    Ok(fill) => *lock(&open.view) = View::Arriving(fill),
                    Err(error) => return Reply::Error(error),
                },
                Served::Below(real) => {
                    let real = match real {
                        Some(real) => Ok(real),
                        None => self.open_dir(cx, wanted.node).await.map(Arc::new),
                    };
                    let Ok(real) = real else { return real.map(|_| ()).into() };
                    *lock(&open.view) = View::Direct(Arc::clone(&real));
                    let wanted = Wanted { handle: real.handle, ..wanted };
                    return self.list_below(cx, wanted, real.asked).await;
                }
            }
            served = self.serve(&open, wanted);
        }
    }

    /// Asks below for a piece, and learns from it.
    async fn list_below(self: &Arc<Self>, cx: &Cx, wanted: Wanted, asked: Option<Asked>) -> Reply {
        let Wanted { node, handle, cookie, size, plus, .. } = wanted;
        let asked = asked.unwrap_or_else(|| self.asked());
        let request: Request = match plus {
            true => ReadDirPlus { node, handle, cookie, size }.into(),
            false => ReadDir { node, handle, cookie, size }.into(),
        };
        let mut reply = self.below().service.call(cx, request).await;
        if let Reply::DirentsPlus(list) = &mut reply {
            let mut table = lock(&self.table);
            for DirentPlus { name, entry, .. } in &mut list.entries {
                if entry.node != Node::default() {
                    self.learn_entry(&mut table, node, name, entry, asked);
                }
            }
        }
        self.settle(cx).await;
        reply
    }

    /// Answers from what is known, as far as that goes.
    fn serve(&self, open: &OpenDirectory, wanted: Wanted) -> Served {
        let now = self.now();
        let mut table = lock(&self.table);
        let mut view = lock(&open.view);
        let stale = match &*view {
            View::Known(names, _) => wanted.plus && wanted.cookie == 0 && lock(names).attrs_until <= now,
            View::Arriving(fill) => {
                wanted.plus && wanted.cookie == 0 && !fill.plus && self.has(OpCode::ReadDirPlus)
            }
            _ => false,
        };
        if wanted.anew || stale {
            match self.listable(&mut table, open.node, now, wanted.plus) {
                Some(names) => *view = View::Known(names, now),
                None => return Served::Old,
            }
        }
        let (names, since, fill) = match &*view {
            View::Nothing => return Served::Below(None),
            View::Direct(real) => return Served::Below(Some(Arc::clone(real))),
            View::Known(names, since) => (Arc::clone(names), *since, None),
            View::Arriving(fill) => (Arc::clone(&fill.names), fill.asked.when.now, Some(Arc::clone(fill))),
        };
        // Looked at before the names: all that came before it is complete is seen.
        let stage = fill.as_ref().map_or(Stage::Done, |fill| fill.stage());
        let Some((reply, count, extent)) = collect(&mut table, &names, wanted, (now, since)) else {
            return Served::Below(None);
        };
        match stage {
            _ if count > 0 => Served::Reply(reply),
            Stage::Done => Served::Reply(reply),
            Stage::Failed(error) => Served::Reply(Reply::Error(error)),
            Stage::Large(real) => Served::Below(Some(real)),
            Stage::Opening | Stage::Receiving => match fill {
                Some(fill) => Served::Wait(fill, extent),
                None => Served::Old,
            },
        }
    }
}

/// The names after a cookie, as many as were asked for, how many that is, and how much of the listing was there; `None` when the
/// cookie is unknown.
fn collect(
    table: &mut Table,
    names: &SharedNames,
    wanted: Wanted,
    (now, since): (Moment, Moment),
) -> Option<(Reply, usize, usize)> {
    // Other names than those that follow our changes may lead to files that are not there any more.
    let follows = table.follows(wanted.node, names);
    let mut names = lock(names);
    names.put_in_order();
    let (complete, until, extent) = (names.is_complete(), names.until, names.extent());
    let mut rest = names.from(names.position(wanted.cookie)?).peekable();
    let (each, mut used) = (if wanted.plus { PLUS } else { PLAIN }, 0);
    let mut fits = |name: &Name| {
        let first = used == 0;
        used += each + name.len();
        first || used <= wanted.size as usize
    };
    // What came with this very listing is listed with it, even if it must be asked again for anything else.
    let as_of = since.max(now.saturating_sub(FRESH)).saturating_sub(1);
    let (mut plain, mut plus) = (Dirents::default(), DirentsPlus::default());
    while let Some((name, slot)) = rest.next_if(|(name, _)| fits(name)) {
        let (file, cookie, name) = (slot.file, slot.cookie, name.clone());
        if wanted.plus {
            let entry = match follows && !names.is_in_doubt(&name) {
                true => table.hand_out(file.node, file.generation, as_of, (now, until)),
                false => None,
            };
            plus.entries.push(DirentPlus { cookie, name, entry: entry.unwrap_or_else(|| name_only(&file)) });
        } else {
            plain.entries.push(Dirent { ino: file.ino, cookie, kind: file.kind, name });
        }
    }
    let count = plain.entries.len() + plus.entries.len();
    (plain.eof, plus.eof) = (complete && rest.peek().is_none(), complete && rest.peek().is_none());
    let reply = if wanted.plus { Reply::DirentsPlus(plus) } else { Reply::Dirents(plain) };
    Some((reply, count, extent))
}
