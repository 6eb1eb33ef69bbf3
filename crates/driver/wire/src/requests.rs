// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests on their way out, with the numbers of the other side, and replies on their way back, with ours.

use crate::creation::Unmade;
use crate::inner::{Inner, OpenFile, identity};
use crate::session::{Fault, Session};
use outrigger_core::ops::{Forget, OpenFlags, RenameFlags, Walk};
use outrigger_core::order::{Kind, Turn};
use outrigger_core::paths::subjects;
use outrigger_core::rebind::{Bindings, Missing, bind, reopen};
use outrigger_core::reply::{Entry, OpenHow, Opened, Ttl};
use outrigger_core::{
    Attr, Cx, Effect, Errno, Handle, Name, Node, NodeTable, OpCode, Reply, Request, Result, Traverse, Visit,
    lock,
};
use outrigger_toolkit_remote::{OwnWords, repeated};
use std::sync::Arc;

/// What the other side calls our numbers on one connection.
struct Bound<'a>(&'a Inner, &'a Session);

impl Bindings for Bound<'_> {
    fn node(&mut self, node: Node) -> Result<Option<Node>> {
        Ok(self.1.numbers.theirs(node))
    }

    fn handle(&mut self, handle: Handle) -> Result<Option<Handle>> {
        if handle == Handle::NONE {
            return Ok(Some(handle));
        }
        let by = *lock(&self.0.open.get(handle)?.by);
        Ok(by.filter(|(session, _)| *session == self.1.number).map(|(_, theirs)| theirs))
    }
}

/// Sizes that no file has are not passed on.
struct Sizes(Result<()>);

impl Visit for Sizes {
    fn attr(&mut self, attr: &mut Attr) {
        if i64::try_from(attr.size).is_err() {
            let why = format!("the other side says that a file has {} bytes", attr.size);
            self.0 = Err(Errno::EIO.because(why));
        }
    }
}

impl Inner {
    /// Asks by the connection there is, and again by another one where that is lost before a change was sent.
    pub(crate) async fn ask(&self, cx: &Cx, request: &Request) -> Result<Reply> {
        // Before anything is waited for: the order is that of the calls.
        let turn = self.turn(request);
        self.after_names(request).await?;
        let done = repeated(|_| self.attempt(cx, request, turn.as_ref())).await;
        done.map_err(|fault| match fault {
            Fault::Lost(error) | Fault::Known(error) => error,
            Fault::Refused(never) => match never {},
        })
    }

    /// The place of a request in what is done by its handle, where the other side keeps that.
    fn turn(&self, request: &Request) -> Option<Turn> {
        let (kind, handle) = match request {
            Request::Write(op) => (Kind::Write, op.handle),
            Request::SetAttr(op) => (Kind::Set, op.handle?),
            _ => return None,
        };
        let file = self.open.get(handle).ok().filter(|_| self.abilities.in_order)?;
        Some(file.order.turn(kind))
    }

    async fn attempt(&self, cx: &Cx, request: &Request, turn: Option<&Turn>) -> Result<Reply, Fault> {
        let session = self.session().await?;
        let bound = self.bound(&session, cx, request).await?;
        let reply = session.ask_in_turn(cx, self.runtime(), bound, turn).await?;
        Ok(self.learn(&session, cx, request, reply))
    }

    /// The request with the numbers of the other side. What these are not known of is looked for first.
    async fn bound(&self, session: &Session, cx: &Cx, request: &Request) -> Result<Request, Fault> {
        loop {
            let mut bound = request.clone();
            match bind(&mut bound, &mut Bound(self, session))? {
                None => return Ok(bound),
                Some(Missing::Node(node)) => self.find(session, cx, node).await?,
                Some(Missing::Handle(handle)) => self.open_again(session, cx, handle).await?,
            }
        }
    }

    /// Finds a node by its path, if that still leads to the same file.
    pub(crate) async fn find(&self, session: &Session, cx: &Cx, node: Node) -> Result<(), Fault> {
        let names = self.files.table().path(node)?;
        let count = names.len();
        let reply = session.ask(cx, self.runtime(), Walk { dir: Node::ROOT, names }.into()).await?;
        let gone = || Errno::ESTALE.because("it is not found any more under its name at the other side");
        let entries = match reply {
            Reply::Entries(entries) => entries,
            Reply::Error(error) if error.errno == Errno::ENOENT => Vec::new(),
            Reply::Error(error) => return Err(error.into()),
            _ => return Err(Errno::EPROTO.because("what came is no path").into()),
        };
        let is_it = |entry: &&Entry| {
            entries.len() == count
                && identity(&entry.attr).ok().is_some_and(|now| Some(now) == self.files.get(node))
        };
        let found = entries.last().filter(is_it).map(|entry| entry.node);
        let others = entries.iter().filter(|entry| Some(entry.node) != found);
        others.for_each(|entry| session.forget(cx, entry.node, 1));
        let Some(found) = found else {
            return match self.unmade(node) {
                Some(file) => self.make_again(session, cx, &file).await,
                None => Err(gone().into()),
            };
        };
        self.unmade(node).into_iter().for_each(|file| self.is_made(&file));
        if let (_, Some(before)) = session.numbers.note(node, found) {
            session.forget(cx, before.node, before.references);
        }
        Ok(())
    }

    /// Opens a file once more, on another connection than the one on which it was opened.
    async fn open_again(&self, session: &Session, cx: &Cx, handle: Handle) -> Result<(), Fault> {
        let file = self.open.get(handle)?;
        let Some(node) = session.numbers.theirs(file.node) else {
            return self.find(session, cx, file.node).await;
        };
        match session.ask(cx, self.runtime(), reopen(node, Some(file.flags))).await? {
            Reply::Opened(opened) => *lock(&file.by) = Some((session.number, opened.handle)),
            Reply::Error(error) => return Err(error.into()),
            _ => return Err(Errno::EPROTO.because("what came is no open file").into()),
        }
        Ok(())
    }

    /// Notes what a reply tells, and puts our numbers into it.
    fn learn(&self, session: &Session, cx: &Cx, request: &Request, mut reply: Reply) -> Reply {
        let mut sizes = Sizes(Ok(()));
        reply.traverse(&mut sizes);
        let learnt = sizes.0.and_then(|()| self.note(session, cx, request, &mut reply));
        if let (Request::Read(op), Reply::Data(data)) = (request, &reply)
            && data.len() > op.len as usize
        {
            return Reply::Error(Errno::EIO.because("more came than was asked for"));
        }
        learnt.map_or_else(Reply::Error, |()| reply)
    }

    fn note(&self, session: &Session, cx: &Cx, request: &Request, reply: &mut Reply) -> Result<()> {
        let subject = subjects(&mut request.clone()).pop();
        let (dir, names) = subject.map_or((Node::ROOT, Vec::new()), |subject| (subject.node, subject.names));
        let name =
            |at: usize| names.get(at).ok_or_else(|| Errno::EPROTO.because("more files came than were named"));
        match reply {
            Reply::Error(error) => {
                if error.errno == Errno::ENOENT && request.op() == OpCode::Lookup {
                    self.files.table().removed(dir, name(0)?);
                }
                return Ok(());
            }
            Reply::Entry(entry) => {
                if request.op() == OpCode::MkDir {
                    session.leases.made(entry.node);
                }
                self.entry((session, cx), dir, name(0)?, entry)?;
            }
            Reply::Entries(entries) => {
                let mut dir = dir;
                for (at, entry) in entries.iter_mut().enumerate() {
                    self.entry((session, cx), dir, name(at)?, entry)?;
                    dir = entry.node;
                }
            }
            Reply::DirentsPlus(list) => {
                let counts = list.entries.iter_mut().filter(|dirent| dirent.entry.node != Node::default());
                for dirent in counts {
                    self.entry((session, cx), dir, &dirent.name, &mut dirent.entry)?;
                }
            }
            Reply::Created(created) => {
                self.entry((session, cx), dir, name(0)?, &mut created.entry)?;
                self.opened((session, cx), created.entry.node, request, &mut created.opened)?;
            }
            Reply::Opened(opened) => self.opened((session, cx), dir, request, opened)?,
            _ => {}
        }
        self.follow(request)
    }

    /// A name leads to a file, for which the other side has counted a reference.
    pub(crate) fn entry(
        &self,
        (session, cx): (&Session, &Cx),
        dir: Node,
        name: &Name,
        entry: &mut Entry,
    ) -> Result<()> {
        let (theirs, told) = (entry.node, identity(&entry.attr)?);
        if theirs == Node::ROOT || theirs == Node::default() {
            return Err(Errno::EIO.because("a name that leads to the root"));
        }
        // On one connection the other side knows best which file is which.
        let known = session.numbers.ours(theirs).and_then(|ours| self.files.get(ours));
        let known = known.filter(|known| known.kind == told.kind).unwrap_or(told);
        let ours = self.files.found(dir, name, known).inspect_err(|_| session.forget(cx, theirs, 1))?;
        let (is_doubted, before) = session.numbers.note(ours, theirs);
        if let Some(before) = before {
            session.forget(cx, before.node, before.references);
        }
        if is_doubted {
            (entry.entry_ttl, entry.attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
        }
        (entry.node, entry.generation) = (ours, NodeTable::generation(ours));
        Ok(())
    }

    /// A file was opened.
    pub(crate) fn opened(
        &self,
        (session, cx): (&Session, &Cx),
        node: Node,
        request: &Request,
        opened: &mut Opened,
    ) -> Result<()> {
        let flags = request.opens().and_then(|opens| opens.flags).unwrap_or(OpenFlags::empty());
        let flags = flags - (OpenFlags::TRUNC | OpenFlags::EXCL);
        let file = OpenFile::new(node, flags, Some((session.number, opened.handle)));
        let own = match request {
            Request::Create(op) if opened.how.contains(OpenHow::PENDING_CREATE) => Unmade::of(op).note(),
            _ => OwnWords::default(),
        };
        let own = (cx.slot == Cx::NO_SLOT, own);
        opened.handle = self.open.add(node, file.flags, own, |_, ()| Arc::new(file))?;
        Ok(())
    }

    /// Names follow what a request has done to them.
    fn follow(&self, request: &Request) -> Result<()> {
        let table = self.files.table();
        for effect in request.effects() {
            match effect {
                Effect::Removes { dir, name, .. } => table.removed(dir, name),
                Effect::Moves { dir, name, to_dir, to_name, flags } => {
                    match flags.contains(RenameFlags::EXCHANGE) {
                        true => table.exchanged((dir, name), (to_dir, to_name))?,
                        false => table.renamed((dir, name), (to_dir, to_name))?,
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// References come back.
    pub(crate) fn forget(&self, cx: &Cx, op: &Forget) {
        self.files.table().forget(op.node, op.count);
        self.let_go(cx, op.node);
    }

    /// A file was closed: closes it at the other side, too.
    pub(crate) fn close(&self, handle: Handle) -> Option<(Arc<Session>, Handle, Node)> {
        let file = self.open.close(handle).ok()?.file;
        let (number, theirs) = (*lock(&file.by))?;
        let session = self.present().filter(|session| session.number == number)?;
        Some((session, theirs, file.node))
    }

    /// Has the other side forget a node to which no reference is left.
    pub(crate) fn let_go(&self, cx: &Cx, node: Node) {
        let is_used = self.files.table().references(node).is_some_and(|count| count > 0)
            || self.open.is_open(node)
            || lock(&self.on_way).values().any(|on_way| on_way.dir == node);
        if node == Node::ROOT || is_used {
            return;
        }
        if let Some(session) = self.present()
            && let Some(theirs) = session.numbers.forget(node)
        {
            session.forget(cx, theirs.node, theirs.references);
        }
    }
}
