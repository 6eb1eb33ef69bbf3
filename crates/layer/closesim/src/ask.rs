// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is done about each request.

use crate::held::{Held, Kind, Open, position};
use crate::inner::{Inner, is_refusal};
use crate::outcome::Outcome;
use outrigger_core::attr::MODE_PERMISSIONS;
use outrigger_core::ops::{Create, Forget, Lookup, MkNod, OpenFlags};
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{
    Answer, Cx, Effect, Errno, Error, FileKind, Handle, Name, Node, OpCode, Reply, Request, Result, Synced,
    Traverse, Visit, ask, lock,
};
use std::sync::Arc;

/// No operation has more handles.
const MOST: usize = 2;

/// What a mode has to give the owner of a file who opens it for reading and writing.
const OWNER_OPENS: u32 = 0o600;

/// The handles that a request lacks.
type Needs = [Option<(Node, Kind)>; MOST];
/// The handles that it gets.
type Holds = [Option<Arc<Held>>; MOST];

/// Finds the nodes of which a request has no handle: each handle stands behind its node.
#[derive(Default)]
struct Lacking {
    latest: Node,
    nodes: [Option<Node>; MOST],
}

impl Visit for Lacking {
    fn node(&mut self, node: &mut Node) {
        self.latest = *node;
    }
    fn handle(&mut self, handle: &mut Handle) {
        if *handle == Handle::NONE
            && let Some(free) = self.nodes.iter_mut().find(|node| node.is_none())
        {
            *free = Some(self.latest);
        }
    }
}

/// Puts handles where there are none.
struct Fill<'a>(std::iter::Flatten<std::slice::Iter<'a, Option<Arc<Held>>>>);

impl Visit for Fill<'_> {
    fn handle(&mut self, handle: &mut Handle) {
        if *handle == Handle::NONE
            && let Some(held) = self.0.next()
        {
            *handle = held.open.handle;
        }
    }
}

fn later<'a>(work: impl Future<Output = Result<Reply>> + Send + 'a) -> Answer<'a> {
    Answer::later(async move { work.await.unwrap_or_else(Reply::Error) })
}

impl Inner {
    pub(crate) fn call<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let mut lacking = Lacking::default();
        request.traverse(&mut lacking);
        let Some(node) = lacking.nodes[0] else { return self.beside(cx, request) };
        let (below, synced) = (self.below(), request.syncs());
        let lists = position(&mut request).is_some() || matches!(synced, Some(Synced::Directory(_)));
        let stays_below = |effect| matches!(effect, Effect::Locks { .. } | Effect::Ends { .. });
        let supplies = if lists { below.supplied.dirs } else { below.supplied.files };
        if request.effects().into_iter().any(stays_below) {
            return below.service.call(cx, request);
        }
        if !supplies {
            return if lists {
                below.service.call(cx, request)
            } else {
                self.made_open(cx, request, &lacking)
            };
        }
        if synced == Some(Synced::File(node)) {
            return later(self.sync(cx, request, node));
        }
        if !below.ops.has(request.op()) {
            return below.service.call(cx, request);
        }
        let kind = |node| {
            let writes = |effect| matches!(effect, Effect::Writes { node: to, .. } if to == node);
            let writes = request.effects().into_iter().any(writes);
            if lists { Kind::List } else { Kind::of(writes) }
        };
        let needs = lacking.nodes.map(|node| node.map(|node| (node, kind(node))));
        match self.find(cx, &needs, position(&mut request)) {
            Err(error) => Answer::error(error),
            Ok(Some(holds)) => self.ask(cx, request, holds),
            Ok(None) => later(async move {
                let mut holds = Holds::default();
                for (place, (node, kind)) in holds.iter_mut().zip(needs.into_iter().flatten()) {
                    *place = Some(self.hold(cx, node, kind).await?);
                }
                Ok(self.ask(cx, request, holds).await)
            }),
        }
    }

    /// A request to a tree that needs no handles. A file may be open here all the same, because its owner could not open it.
    fn made_open<'a>(&'a self, cx: &'a Cx, request: Request, lacking: &Lacking) -> Answer<'a> {
        let (now, mut holds) = (self.runtime.monotonic(), Holds::default());
        let mut table = lock(&self.table);
        if table.is_empty() {
            drop(table);
            return self.below().service.call(cx, request);
        }
        for (place, node) in holds.iter_mut().zip(lacking.nodes) {
            let found = node.map_or(Ok(None), |node| table.find(node, &cx.cred, Kind::Write));
            match found {
                Ok(held) => *place = held.inspect(|held| held.touch(now)),
                Err(error) => return Answer::error(error),
            }
        }
        drop(table);
        // Of two files, both are open here or the tree opens both.
        match lacking.nodes.iter().zip(&holds).all(|(node, held)| node.is_some() == held.is_some()) {
            true => self.ask(cx, request, holds),
            false => self.below().service.call(cx, request),
        }
    }

    /// How a regular file is made that stays open here: one that its owner cannot open by its mode, as an open file has no more to ask
    /// for permission, and any in a tree that makes files by opening them only.
    fn opens_new(&self, request: &Request) -> Option<Create> {
        let Request::MkNod(MkNod { dir, name, mode, umask, initial, .. }) = request else { return None };
        let below = self.below();
        let is_file = FileKind::of_mode(*mode) == Some(FileKind::Regular) && below.ops.has(OpCode::Create);
        if !is_file || mode & !umask & OWNER_OPENS == OWNER_OPENS && below.ops.has(OpCode::MkNod) {
            return None;
        }
        let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL;
        let (dir, name, umask, initial) = (*dir, name.clone(), *umask, initial.clone());
        Some(Create { dir, name, mode: mode & MODE_PERMISSIONS, umask, flags, initial })
    }

    /// Makes a file and keeps it open for its caller.
    async fn make_open(self: &Arc<Self>, cx: &Cx, create: Create) -> Result<Reply> {
        let flags = create.flags;
        let Created { entry, opened } = ask(&*self.below().service, cx, create).await?;
        let flush = !opened.how.contains(OpenHow::NO_FLUSH);
        let (node, handle, kind) = (entry.node, opened.handle, Kind::Write);
        if handle != Handle::NONE {
            drop(self.keep(Open { node, handle, kind, flags, flush, cx: cx.aside() }));
        }
        Ok(Reply::Entry(entry))
    }

    /// What lacks no handle, but may be about files that are open here.
    fn beside<'a>(self: &'a Arc<Self>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if let Some(create) = self.opens_new(&request) {
            return later(self.make_open(cx, create));
        }
        if request.returns().is_some_and(|(node, count)| lock(&self.table).owe(node, count)) {
            return Answer::Ready(Reply::Done(()));
        }
        let lost = request.effects().into_iter().find_map(Effect::lost_name);
        let lost = lost.map(|(dir, name)| (dir, name.clone()));
        let syncs = request.syncs() == Some(Synced::Tree);
        if !syncs && lost.is_none() || lock(&self.table).is_empty() {
            return self.below().service.call(cx, request);
        }
        later(async move {
            match lost {
                Some((dir, name)) => self.remove(cx, request, dir, name).await,
                None => self.sync_tree(cx, request).await,
            }
        })
    }

    /// The open handles for a request, if all are there; `position` becomes the tree's cookie.
    fn find(&self, cx: &Cx, needs: &Needs, position: Option<&mut u64>) -> Result<Option<Holds>> {
        let (now, mut table, mut holds) = (self.runtime.monotonic(), lock(&self.table), Holds::default());
        if let &[Some((node, Kind::List)), _] = needs {
            let held = table.find_listing(node, &cx.cred, position, self.below().supplied.cookies_last)?;
            holds[0] = held.inspect(|held| held.touch(now));
            return Ok(holds[0].is_some().then_some(holds));
        }
        for (place, (node, kind)) in holds.iter_mut().zip(needs.iter().copied().flatten()) {
            let Some(held) = table.find(node, &cx.cred, kind)? else { return Ok(None) };
            // What reads does not put off the moment when what was written is stored.
            if held.open.kind == kind {
                held.touch(now);
            }
            *place = Some(held);
        }
        Ok(Some(holds))
    }

    /// Asks with these handles, which are in use until the reply is there.
    fn ask<'a>(&'a self, cx: &'a Cx, mut request: Request, holds: Holds) -> Answer<'a> {
        request.traverse(&mut Fill(holds.iter().flatten()));
        self.below().service.call(cx, request).map(move |mut reply| {
            let is_unknown = |error: &Error| matches!(error.errno, Errno::EBADF | Errno::ESTALE);
            let unknown = reply.error().is_some_and(is_unknown);
            for held in holds.iter().flatten() {
                held.cookies.iter().for_each(|cookies| cookies.hand_out(&mut reply));
                if unknown {
                    self.retire(|other| std::ptr::eq(other, &**held));
                }
            }
            reply
        })
    }

    /// Puts the content of a file on stable storage.
    async fn sync(self: &Arc<Self>, cx: &Cx, request: Request, node: Node) -> Result<Reply> {
        self.stored(cx, node).await?;
        if !self.below().ops.has(OpCode::FSync) {
            self.retire(|held| held.is_written(Some(node)));
            self.stored(cx, node).await?;
            return Ok(Reply::Done(()));
        }
        // What one caller has written may be known by its handle alone.
        let mut handles = lock(&self.table).open(|held| held.is_written(Some(node)));
        if handles.is_empty() {
            let reader = self.hold(cx, node, Kind::Read).await;
            handles.push(match reader {
                Err(error) if is_refusal(&error) => self.hold(cx, node, Kind::Write).await?,
                other => other?,
            });
        }
        let mut reply = Reply::Done(());
        for held in handles {
            reply = self.ask(cx, request.clone(), [Some(held), None]).await;
            if reply.error().is_some() {
                break;
            }
        }
        Ok(reply)
    }

    /// Waits until what was taken out of the table is closed.
    ///
    /// # Errors
    /// Why content of the file was lost then or earlier.
    async fn stored(self: &Arc<Self>, cx: &Cx, node: Node) -> Result<()> {
        self.has_left(cx, Some(node)).await?;
        let failure = lock(&self.table).take_failure(node);
        self.settle(node);
        failure.map_or(Ok(()), Err)
    }

    /// Puts everything on stable storage. A failure stays for the `fsync` of its file.
    async fn sync_tree(&self, cx: &Cx, request: Request) -> Result<Reply> {
        let below = self.below();
        if !below.ops.has(OpCode::FSync) {
            self.retire(|held| held.is_written(None));
        }
        self.has_left(cx, None).await?;
        let reply = below.service.call(cx, request).await;
        let failure = lock(&self.table).any_failure().filter(|_| reply.error().is_none());
        Ok(failure.map_or(reply, Reply::Error))
    }

    /// Takes a name away, and closes the file that had it.
    async fn remove(self: &Arc<Self>, cx: &Cx, request: Request, dir: Node, name: Name) -> Result<Reply> {
        let (outcome, inner, own) = (Arc::<Outcome<Node>>::default(), Arc::clone(self), cx.aside());
        self.carry_out(dir, &outcome, async move {
            let service = &*inner.below().service;
            let node = ask(service, &own, Lookup { dir, name }).await?.node;
            ask(service, &own, Forget { node, count: 1 }).await.map(|()| node)
        });
        let node = cx.cancel.unless_raised(outcome.wait()).await.ok_or(Errno::EINTR)?;
        let reply = self.below().service.call(cx, request).await;
        if let Ok(node) = node
            && reply.error().is_none()
        {
            self.retire(|held| held.open.node == node);
        }
        Ok(reply)
    }
}
