// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are answered before they have their names: in a directory that is leased, a creation takes a file without a name that the
//! other side has made ahead, so that its number is known, and sends the name right behind.
//!
//! Where the name exists all the same, a program at the other side has made it, or another client after the lease had ended: then the
//! creation fails, and what asks for its outcome says so. So it does when the connection is lost before the name has arrived.

use crate::inner::{Inner, OpenFile, identity, own_cx};
use crate::leases::{Kind, Nameless, Order};
use crate::session::{Fault, Session};
use futures_util::future::join_all;
use outrigger_core::ops::{Create, Link, OpenFlags, Release, SetAttr, TmpFile};
use outrigger_core::order::{Kind as Turns, Turn};
use outrigger_core::paths::subjects;
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{
    Added, BoxFuture, Cx, Effect, Errno, Error, FileKind, Handle, LockOwner, Name, Node, Reply, Request,
    Result, Runtime, SetAttrs, SetTime, Time, Traverse, Visit, lock,
};
use outrigger_toolkit_remote::OwnWords;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Why a file has no name, if it has none.
pub(crate) type Refusal = OnceLock<Error>;

/// How a file is to be made that was answered by a process which may have died before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unmade {
    mode: u32,
    umask: u32,
}

/// In the first word of the note of an open file.
const UNMADE: u64 = 1 << 63;

impl Unmade {
    pub(crate) fn of(op: &Create) -> Self {
        Unmade { mode: op.mode, umask: op.umask }
    }

    /// What is noted of it.
    pub(crate) fn note(self) -> OwnWords {
        [UNMADE | u64::from(self.mode & 0o7777) | u64::from(self.umask & 0o7777) << 16, 0, 0, 0]
    }

    pub(crate) fn noted(&[word, ..]: &OwnWords) -> Option<Self> {
        let bits = |from| (word >> from) as u32 & 0o7777;
        (word & UNMADE != 0).then(|| Unmade { mode: bits(0), umask: bits(16) })
    }
}

/// A name that is on its way.
#[derive(Debug, Clone)]
pub(crate) struct OnWay {
    pub(crate) dir: Node,
    pub(crate) name: Name,
}

impl Inner {
    /// Makes a file, perhaps after the reply.
    pub(crate) async fn create(self: &Arc<Self>, cx: &Cx, mut op: Create) -> Result<Reply> {
        if op.flags.contains(OpenFlags::ASYNC_CREATE) {
            op.flags -= OpenFlags::ASYNC_CREATE;
            if let Some(created) = self.create_async(cx, &op).await? {
                return Ok(Reply::Created(created));
            }
        }
        self.ask(cx, &op.into()).await
    }

    async fn create_async(self: &Arc<Self>, cx: &Cx, op: &Create) -> Result<Option<Created>> {
        let Some(session) = self.present().filter(|_| self.abilities.leases && op.initial.is_none()) else {
            return Ok(None);
        };
        let Some(dir) = session.numbers.theirs(op.dir) else { return Ok(None) };
        let kind = Kind { dir, mode: op.mode, umask: op.umask, cred: cx.cred.clone() };
        let (file, order) = session.leases.create(&kind, self.runtime().monotonic()).await;
        order.into_iter().for_each(|order| self.order(&session, order));
        file.map(|file| self.give_name(&session, cx, op, (dir, file))).transpose()
    }

    /// Asks for a lease, and for files without a name.
    fn order(self: &Arc<Self>, session: &Arc<Session>, order: Order) {
        let (inner, session) = (Arc::clone(self), Arc::clone(session));
        self.runtime().spawn(Box::pin(async move {
            let Kind { dir, mode, umask, cred } = order.kind.clone();
            let cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(0, cred, "wire") };
            let ask = || -> BoxFuture<'_, Result<Reply, Fault>> {
                let op = TmpFile { dir, mode, umask, flags: OpenFlags::READ_WRITE };
                Box::pin(session.ask(&cx, inner.runtime(), op.into()))
            };
            let mut all: Vec<BoxFuture<'_, Result<Reply, Fault>>> = Vec::new();
            if order.lease {
                all.push(Box::pin(session.lease(dir)));
            }
            all.extend((0..order.count).map(|_| ask()));
            let mut replies = join_all(all).await.into_iter();
            let came = inner.runtime().monotonic();
            if order.lease {
                let granted = matches!(replies.next(), Some(Ok(Reply::Done(()))));
                session.leases.answered(dir, granted, came);
            }
            let (mut files, mut is_able) = (Vec::new(), true);
            for reply in replies {
                match reply {
                    Ok(Reply::Created(created)) if created.entry.attr.kind() == FileKind::Regular => {
                        files.push(Nameless { created, came });
                    }
                    Ok(Reply::Error(error)) => {
                        is_able &= !matches!(error.errno, Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EISDIR);
                    }
                    _ => {}
                }
            }
            if !is_able {
                session.leases.unable();
            } else if files.is_empty() && order.count > 0 {
                // Without them a lease is of no use.
                session.leases.recall(dir);
            }
            let useless = session.leases.came(&order, files);
            session.give_up(&cx, useless);
        }));
    }

    /// Gives leases back when they are wanted, to the end of the connection.
    pub(crate) async fn give_back(session: Arc<Session>, runtime: Arc<dyn Runtime>) {
        while let Some((dir, files)) = session.leases.returned(|| runtime.monotonic()).await {
            session.give_up(&own_cx(), files);
            session.give_lease_back(dir);
        }
    }

    /// Answers with a file, and sends its name.
    fn give_name(
        self: &Arc<Self>,
        session: &Arc<Session>,
        cx: &Cx,
        op: &Create,
        (dir, file): (Node, Nameless),
    ) -> Result<Created> {
        let Nameless { created: Created { mut entry, mut opened }, came } = file;
        let theirs = (entry.node, opened.handle);
        let age = self.runtime().monotonic().saturating_sub(came);
        let now = later(entry.attr.ctime, age);
        (entry.attr.atime, entry.attr.mtime, entry.attr.ctime, entry.attr.nlink) = (now, now, now, 1);
        opened.how |= OpenHow::PENDING_CREATE;
        let request = op.clone().into();
        let noted = self.entry((session, cx), op.dir, &op.name, &mut entry);
        let noted = noted.and_then(|()| self.opened((session, cx), entry.node, &request, &mut opened));
        let noted = noted.and_then(|()| self.open.get(opened.handle));
        let file = match noted {
            Ok(file) => file,
            Err(error) => {
                session.close(cx, theirs);
                session.leases.arrived(dir);
                return Err(error);
            }
        };
        let on_way = OnWay { dir: op.dir, name: op.name.clone() };
        lock(&self.on_way).insert(entry.node, on_way.clone());
        let (turn, handle) = (file.order.turn(Turns::Set), opened.handle);
        let (inner, session, cx) = (Arc::clone(self), Arc::clone(session), cx.aside());
        self.runtime().spawn(Box::pin(async move {
            let named = inner.send_name(&session, &cx, (dir, &on_way.name, theirs), (now, turn)).await;
            inner.arrived((&session, &cx), &file, &on_way, named);
            session.leases.arrived(dir);
            inner.note_made(handle);
        }));
        Ok(Created { entry, opened })
    }

    /// Gives a file its name, and the times that were answered.
    async fn send_name(
        &self,
        session: &Session,
        cx: &Cx,
        (dir, name, (node, handle)): (Node, &Name, (Node, Handle)),
        (now, turn): (Time, Turn),
    ) -> Result<Node> {
        let time = Some(SetTime::To(now));
        let attrs = SetAttrs { atime: time, mtime: time, ..SetAttrs::default() };
        let link = session.ask(cx, self.runtime(), Link { node, dir, name: name.clone() }.into());
        let set = SetAttr { node, handle: Some(handle), attrs }.into();
        let set = session.ask_in_turn(cx, self.runtime(), set, Some(&turn));
        let all: Vec<BoxFuture<'_, Result<Reply, Fault>>> = vec![Box::pin(link), Box::pin(set)];
        match join_all(all).await.swap_remove(0) {
            Ok(Reply::Entry(entry)) => Ok(entry.node),
            Ok(Reply::Error(error)) => Err(error),
            Ok(_) => Err(Errno::EPROTO.because("what came is no entry")),
            Err(Fault::Lost(error) | Fault::Known(error)) => Err(Errno::EIO.because(format!(
                "the connection was lost, so whether it has its name is not known: {}",
                error.why()
            ))),
            Err(Fault::Refused(never)) => match never {},
        }
    }

    /// A name has arrived, or was refused.
    fn arrived(&self, (session, cx): (&Session, &Cx), file: &OpenFile, of: &OnWay, named: Result<Node>) {
        match named {
            Ok(theirs) => {
                if let Some(before) = session.numbers.note(file.node, theirs).1 {
                    session.forget(cx, before.node, before.references);
                }
            }
            Err(error) => {
                self.files.table().removed(of.dir, &of.name);
                let _ = file.refusal.set(error);
            }
        }
        lock(&self.on_way).remove(&file.node);
        self.let_go(cx, of.dir);
        self.named.open();
    }

    /// The next process need not make a file.
    fn note_made(&self, handle: Handle) {
        self.open.notes().into_iter().for_each(|notes| notes.change(handle, |own| own[0] = 0));
    }

    /// The open file of a node that may have to be made.
    pub(crate) fn unmade(&self, node: Node) -> Option<(Handle, Arc<OpenFile>)> {
        let files = self.open.handles(node).into_iter();
        files
            .filter_map(|handle| Some((handle, self.open.get(handle).ok()?)))
            .find(|(_, file)| lock(&file.unmade).is_some())
    }

    /// It has been made.
    pub(crate) fn is_made(&self, (handle, file): &(Handle, Arc<OpenFile>)) {
        *lock(&file.unmade) = None;
        self.note_made(*handle);
    }

    /// Makes a file that a former process has answered, whose name has not arrived: another one, of which nothing has been written.
    pub(crate) async fn make_again(
        &self,
        session: &Session,
        cx: &Cx,
        unmade: &(Handle, Arc<OpenFile>),
    ) -> Result<(), Fault> {
        let file = &unmade.1;
        let names = self.files.table().names(file.node)?.into_iter().next();
        let (dir, name) = names.ok_or_else(|| Error::from(Errno::ESTALE))?;
        let Some(dir) = session.numbers.theirs(dir) else {
            // Boxed, for finding a file may make it.
            return Box::pin(self.find(session, cx, dir)).await;
        };
        let Some(Unmade { mode, umask }) = *lock(&file.unmade) else { return Ok(()) };
        let flags = file.flags | OpenFlags::EXCL;
        let create = Create { dir, name, mode, umask, flags, initial: None };
        match session.ask(cx, self.runtime(), create.into()).await? {
            Reply::Created(Created { entry, opened }) => {
                self.files.note(file.node, identity(&entry.attr)?)?;
                session.numbers.note(file.node, entry.node);
                *lock(&file.by) = Some((session.number, opened.handle));
                self.is_made(unmade);
                Ok(())
            }
            Reply::Error(error) => Err(error.into()),
            _ => Err(Errno::EPROTO.because("what came is no new file").into()),
        }
    }

    /// Whether the name of a file is on its way.
    pub(crate) fn is_on_way(&self, node: Node) -> bool {
        lock(&self.on_way).contains_key(&node)
    }

    /// Waits until a file has its name, or was refused it.
    pub(crate) async fn until_named(&self, node: Node) {
        self.named.wait(|| (!self.is_on_way(node)).then_some(())).await;
    }

    /// Waits for the names that a request depends on.
    ///
    /// # Errors
    /// Why the file has no name that the request is about by a handle.
    pub(crate) async fn after_names(&self, request: &Request) -> Result<()> {
        let by = by_handle(request);
        let file = by.and_then(|handle| self.open.get(handle).ok());
        let waits = !matches!(request, Request::Read(_) | Request::Write(_))
            && !matches!(request, Request::SetAttr(op) if op.handle.is_some());
        if waits && !lock(&self.on_way).is_empty() {
            let first = self.names_before(request);
            self.named.wait(|| first.iter().all(|&node| !self.is_on_way(node)).then_some(())).await;
        }
        file.and_then(|file| file.refusal.get().cloned()).map_or(Ok(()), Err)
    }

    /// The files whose names have to arrive before a request.
    fn names_before(&self, request: &Request) -> Vec<Node> {
        let on_way = lock(&self.on_way);
        let adds = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Adds { dir, name, file } => Some((dir, name.clone(), file)),
            _ => None,
        });
        let nodes: Vec<Node> =
            subjects(&mut request.clone()).into_iter().map(|subject| subject.node).collect();
        let is_first = |node: Node, at: &OnWay| match &adds {
            // Other names in the directory do not matter to a new one.
            Some((dir, name, file)) => {
                (at.dir, &at.name) == (*dir, name) || matches!(file, Added::Existing(file) if *file == node)
            }
            None => nodes.contains(&node) || nodes.contains(&at.dir),
        };
        on_way.iter().filter(|(node, at)| is_first(**node, at)).map(|(node, _)| *node).collect()
    }
}

impl Session {
    /// Closes a file that has no name, and forgets it.
    fn close(&self, cx: &Cx, (node, handle): (Node, Handle)) {
        let (flags, owner) = (OpenFlags::READ_WRITE, LockOwner::default());
        self.tell(cx, Release { node, handle, flags, owner, flock_release: false }.into());
        self.forget(cx, node, 1);
    }

    fn give_up(&self, cx: &Cx, files: Vec<Nameless>) {
        for Nameless { created: Created { entry, opened }, .. } in files {
            self.close(cx, (entry.node, opened.handle));
        }
    }
}

/// The handle that a request is made by.
fn by_handle(request: &Request) -> Option<Handle> {
    struct Last(Option<Handle>);
    impl Visit for Last {
        fn handle(&mut self, handle: &mut Handle) {
            self.0 = Some(*handle);
        }
    }
    let mut last = Last(None);
    request.clone().traverse(&mut last);
    last.0
}

/// A time of the other side's clock, so much later.
fn later(time: Time, age: Duration) -> Time {
    let nanos = u64::from(time.nanos) + u64::from(age.subsec_nanos());
    let carry = nanos / 1_000_000_000;
    let secs = time.secs.saturating_add_unsigned(age.as_secs() + carry);
    Time::new(secs, (nanos % 1_000_000_000) as u32)
}
