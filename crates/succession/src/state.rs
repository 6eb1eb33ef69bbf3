// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked, what waits, and what was answered: everything but the processes.
//!
//! It is what follows from the [`Event`]s that have come, so the mount's process can follow in a copy what becomes of the state
//! of a process that serves by itself: see [`Role`].

mod copy;
mod looking;
mod removal;
mod saved;

use crate::files::{Files, Returned};
use crate::flight::{Ask, Flight, Purpose, takes_name};
use crate::log::Log;
use crate::place::{FIRST_CHANGE, KEEPS};
use crate::record::{Event, Recorder};
use crate::silly_rename::silly_name;
use crate::undelivered::{Requester, Undelivered};
use futures_channel::oneshot::Sender;
use looking::Look;
use outrigger_core::ops::{Forget, OpenFlags, Release, SyncFs, Walk};
use outrigger_core::rebind::{Missing, Numbers, bind, reopen};
use outrigger_core::reply::Entries;
use outrigger_core::wire::Frame;
use outrigger_core::{
    Class, Credentials, Errno, Error, Handle, LockOwner, Node, Opening, Reply, Request, Result,
};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

/// A checkpoint that is wanted. Changes wait until it is over.
#[derive(Default)]
struct Checkpoint {
    asked: bool,
    /// The requesters that wait for it, and their replies.
    waiting: Vec<(Requester, Reply)>,
}

/// What the worker is to do.
pub struct Task {
    /// The number of the frame that it is asked with: changes have numbers of their own, and [`Frame::UNANSWERED`] is not replied to.
    pub id: u64,
    /// On whose behalf.
    pub cred: Credentials,
    /// In the numbers of the worker. Of a guarded image `SyncFs` asks for a checkpoint.
    pub request: Request,
    /// Whether the reply is for [`State::looked_at`], not for [`State::receive`].
    pub only_looks: bool,
}

/// Whose state it is.
pub enum Role {
    /// That of the process that keeps it.
    Own,
    /// That of this process, which is recorded for the mount's.
    Recorded(Recorder),
    /// The copy of that of another process: nothing is decided here.
    Copied,
    /// That of this process, with which everything ends: nothing is logged, and there are no checkpoints.
    Unguarded,
}

/// See the [module](self).
pub struct State {
    /// Whose it is.
    pub role: Role,
    /// Whether there is a worker.
    pub serves: bool,
    /// Whether it is to unmount when it has read what was sent.
    pub hangs_up: bool,
    /// Which files are known.
    pub files: Files,
    /// What has changed since the last checkpoint.
    pub log: Log,
    /// What is to be sent.
    pub outgoing: Vec<Task>,
    /// Replies to be given.
    answered: Vec<(Requester, Reply)>,
    undelivered: Undelivered,
    /// What is being looked at beside the requests in flight.
    looking: BTreeMap<u64, Look>,
    /// How many requests were looked at so far.
    looks: u64,
    /// Why no server will be started again.
    pub failed: Option<Error>,
    /// Whether that is because the image is unmounted.
    pub ending: bool,
    flying: BTreeMap<u64, Flight>,
    /// How many of these are changes.
    changing: usize,
    /// How many of them take names from something, and how many follow paths: never both.
    taking: usize,
    following: usize,
    queue: VecDeque<Ask>,
    /// Whether one that is suspicious is in flight.
    alone: bool,
    checkpoint: Option<Checkpoint>,
    /// Why the last checkpoint failed, if it did.
    refused: Option<Error>,
    next_query: u64,
    next_change: u64,
}

impl State {
    /// With a worker that is to hold so many files at most.
    pub fn new(role: Role, most: usize) -> Result<Self> {
        let log = Log::new(most, matches!(role, Role::Own | Role::Copied));
        Ok(State {
            role,
            serves: true,
            hangs_up: false,
            files: Files::new(most)?,
            log,
            outgoing: Vec::new(),
            answered: Vec::new(),
            undelivered: Undelivered::default(),
            looking: BTreeMap::new(),
            looks: 0,
            failed: None,
            ending: false,
            flying: BTreeMap::new(),
            changing: 0,
            taking: 0,
            following: 0,
            queue: VecDeque::new(),
            alone: false,
            checkpoint: None,
            refused: None,
            next_query: 1,
            next_change: 0,
        })
    }

    /// Takes a request.
    pub fn take(&mut self, ask: Ask) {
        let Some(ask) = self.expected(ask) else { return };
        if self.failed.is_some() || self.ending {
            let error = self.failed.clone().unwrap_or_else(unmounted);
            return self.refuse(ask.requester, error);
        }
        if let Role::Recorded(recorder) = &mut self.role {
            recorder.asked(&ask.requester, &ask.cred, &ask.request);
        }
        if let Some((_, handle)) = ask.request.ends() {
            self.files.closes(handle);
        }
        if ask.request.syncs().is_some() && self.is_guarded() {
            self.want_checkpoint(Some((ask.requester, Reply::Done(()))));
        } else if let Some(error) = self.refusal(&ask.request) {
            self.refuse(ask.requester, error);
        } else {
            self.queue.push_back(ask);
        }
        self.go_on();
    }

    /// Why a change cannot be taken. Content cannot once a checkpoint has failed: it would be lost with what that could not bring
    /// into the image. Other changes need little room and can make some, so they are taken while the log has room.
    fn refusal(&self, request: &Request) -> Option<Error> {
        let is_refused = self.refused.is_some() && request.changes_content()
            || self.log.is_full() && request.class() == Class::Change;
        let full =
            || Errno::EIO.because("the image cannot be brought up to date, so nothing more is written");
        is_refused.then(|| self.refused.clone().unwrap_or_else(full))
    }

    fn is_guarded(&self) -> bool {
        !matches!(self.role, Role::Unguarded)
    }

    /// Replies whose askers wait for them. Those of the others are kept until they ask again.
    pub fn answers(&mut self) -> Vec<(Sender<Reply>, Reply)> {
        let answered = std::mem::take(&mut self.answered);
        answered
            .into_iter()
            .filter_map(|(requester, reply)| match requester.sender {
                Some(sender) => Some((sender, reply)),
                None => {
                    self.undelivered.keep(requester, reply);
                    None
                }
            })
            .collect()
    }

    /// Returns references.
    pub fn forget(&mut self, node: Node, count: u64) {
        if let Role::Recorded(recorder) = &mut self.role {
            recorder.note(&Event::Forgotten { node, count });
        }
        let returned = self.files.forget(node, count);
        self.give_back(returned);
    }

    /// Sends what waits and may be sent.
    pub fn go_on(&mut self) {
        let mut kept = VecDeque::new();
        // A request that waits for paths or names is not overtaken by others that would make it wait longer.
        let mut waits = false;
        while self.serves
            && !self.alone
            && let Some(ask) = self.queue.pop_front()
        {
            if self.checkpoint.is_some() && ask.request.class() == Class::Change && !ask.is_done() {
                kept.push_back(ask);
            } else if !ask.suspect.is_suspicious() || self.flying.is_empty() {
                self.alone = ask.suspect.is_suspicious();
                kept.extend(self.dispatch(ask, &mut waits));
                self.alone &= !self.flying.is_empty();
            } else {
                self.queue.push_front(ask);
                break;
            }
        }
        kept.append(&mut self.queue);
        self.queue = kept;
        if self.is_checkpoint_due() {
            self.want_checkpoint(None);
        }
        self.go_on_with_checkpoint();
        if self.ending && self.checkpoint.is_none() && self.flying.is_empty() && self.queue.is_empty() {
            self.hang_up();
        }
    }

    /// Decided where the state is kept, not where this is a copy of it, and recorded.
    fn is_checkpoint_due(&mut self) -> bool {
        let is_due = !self.is_copied() && self.checkpoint.is_none() && self.log.is_due();
        if let (true, Role::Recorded(recorder)) = (is_due, &mut self.role) {
            recorder.note(&Event::Checkpoint);
        }
        is_due
    }

    /// Asks for the checkpoint that is wanted, if no change is in flight.
    fn go_on_with_checkpoint(&mut self) {
        let waits = self.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.asked);
        let is_untold = |ask: &Ask| ask.is_done() && ask.request.class() == Class::Change;
        if !waits || self.changing > 0 || !self.serves || self.alone {
            return;
        }
        if self.queue.iter().any(is_untold) {
            return;
        }
        for Returned { theirs, count } in self.files.give_up_removed(self.being_opened().collect()) {
            self.send(Credentials::ROOT, Forget { node: theirs, count }.into(), Flight::GivenUp);
        }
        if self.changing > 0 {
            return;
        }
        self.checkpoint.iter_mut().for_each(|checkpoint| checkpoint.asked = true);
        self.send(Credentials::ROOT, SyncFs { node: Node::ROOT }.into(), Flight::Checkpoint);
    }

    /// Takes no more requests. The worker unmounts when it has done the rest.
    pub fn end(&mut self) {
        self.ending = true;
        self.want_checkpoint(None);
        self.go_on();
    }

    /// The worker unmounts when it has read what was sent.
    pub fn hang_up(&mut self) {
        if std::mem::take(&mut self.serves) {
            self.fail(&unmounted());
            self.hangs_up = true;
        }
    }

    /// Sends a request, or what has to be asked before it. What has to wait for others comes back.
    fn dispatch(&mut self, ask: Ask, waits: &mut bool) -> Option<Ask> {
        if let Some((_, handle)) = ask.request.ends().filter(|(_, handle)| !self.files.is_open(*handle)) {
            self.closed(handle);
            self.answered.push((ask.requester, Reply::Done(())));
            return None;
        }
        let mut request = ask.request.clone();
        let sent = match self.missing(&ask, &mut request) {
            Ok(None) if ask.is_done() => {
                self.answer(ask);
                return None;
            }
            Ok(None) if takes_name(&request) && (*waits || self.following > 0) => {
                *waits = true;
                return Some(ask);
            }
            Ok(None) => Ok((ask.cred.clone(), request, Purpose::Asked)),
            Ok(Some(Missing::Node(_))) if *waits || self.taking > 0 => {
                *waits = true;
                return Some(ask);
            }
            Ok(Some(Missing::Node(node))) => self.files.path(node).map(|names| {
                (Credentials::ROOT, Walk { dir: Node::ROOT, names }.into(), Purpose::Found(node))
            }),
            Ok(Some(Missing::Handle(handle))) => reopening(&mut self.files, handle)
                .map(|request| (Credentials::ROOT, request, Purpose::Opened(handle))),
            Err(error) => Err(error),
        };
        match sent {
            Ok((cred, request, purpose)) => self.send(cred, request, Flight::Request(purpose, ask)),
            Err(error) => self.refuse(ask.requester, error),
        }
        None
    }

    fn refuse(&mut self, requester: Requester, error: Error) {
        self.answered.push((requester, Reply::Error(error)));
    }

    /// What the worker has to be asked for before `request`, which gets its numbers, or before the reply can be given.
    fn missing(&mut self, ask: &Ask, request: &mut Request) -> Result<Option<Missing>> {
        if let Some((_, reply)) = &ask.reply {
            return Ok(self.files.perhaps_in(reply).map(Missing::Node));
        }
        let missing = bind(request, &mut self.files)?;
        Ok(missing.or_else(|| self.files.victim_to_find(&ask.request).map(Missing::Node)))
    }

    fn send(&mut self, cred: Credentials, request: Request, flight: Flight) {
        let id = if let Flight::Request(Purpose::Asked, ask) = &flight
            && ask.request.class() == Class::Change
        {
            self.next_change += 1;
            FIRST_CHANGE + self.next_change + if self.keeps_name(&ask.request) { KEEPS } else { 0 }
        } else {
            self.next_query += 1;
            self.next_query
        };
        self.outgoing.push(Task { id, cred, request, only_looks: false });
        self.changing += usize::from(flight.is_change());
        self.taking += usize::from(flight.takes_name());
        self.following += usize::from(flight.follows_path());
        self.flying.insert(id, flight);
    }

    /// Sends a request that has no reply.
    pub fn send_only(&mut self, request: impl Into<Request>) {
        if self.serves {
            let (id, cred) = (Frame::UNANSWERED, Credentials::ROOT);
            self.outgoing.push(Task { id, cred, request: request.into(), only_looks: false });
        }
    }

    /// Returns references to the worker.
    pub fn give_back(&mut self, returned: impl IntoIterator<Item = Returned>) {
        for Returned { theirs, count } in returned {
            self.send_only(Forget { node: theirs, count });
        }
    }

    /// The worker has found a node again, under `theirs`, with so many references: what is too much is returned.
    pub fn found_again(&mut self, node: Node, theirs: Node, references: u64) {
        let returned = self.files.found_again(node, theirs, references);
        self.give_back(returned);
    }

    /// The worker has opened a file again: a handle that is not needed is returned.
    pub fn opened_again(&mut self, handle: Handle, theirs: Handle) {
        let Some(handle) = self.files.opened_again(handle, theirs) else { return };
        let (node, flags, owner) = (Node::ROOT, OpenFlags::empty(), LockOwner(0));
        self.send_only(Release { node, handle, flags, owner, flock_release: false });
    }

    /// Whether there are replies to come.
    pub fn has_work(&self) -> bool {
        !self.flying.is_empty()
    }

    /// After which time a checkpoint is due because of the log's age, if none is wanted.
    pub fn due_after(&self) -> Option<Duration> {
        self.log.due_after().filter(|_| self.checkpoint.is_none())
    }

    /// Whether nothing is asked, and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty()
            && self.queue.is_empty()
            && self.looking.is_empty()
            && self.checkpoint.is_none()
    }

    /// Whether another process serves.
    pub fn is_copied(&self) -> bool {
        matches!(self.role, Role::Copied)
    }

    /// A reply has come.
    pub fn receive(&mut self, id: u64, reply: Reply) {
        if let Role::Recorded(recorder) = &mut self.role {
            recorder.replied(id, &reply);
        }
        let Some(flight) = self.flying.remove(&id) else { return };
        self.changing -= usize::from(flight.is_change());
        self.taking -= usize::from(flight.takes_name());
        self.following -= usize::from(flight.follows_path());
        match flight {
            Flight::Request(Purpose::Asked, ask) => {
                self.queue.push_front(Ask { reply: Some((id, reply)), ..ask });
            }
            Flight::Request(Purpose::Found(node), ask) => self.looked(node, ask, &reply),
            Flight::Request(Purpose::Opened(handle), ask) => match reply {
                Reply::Opened(opened) => {
                    self.opened_again(handle, opened.handle);
                    self.queue.push_front(ask);
                }
                reply => {
                    let error = reply.error().cloned().unwrap_or(Errno::EIO.into());
                    self.refuse(ask.requester, error);
                }
            },
            Flight::Checkpoint => match reply {
                Reply::Error(error) => {
                    self.log.could_not_clear();
                    self.refused = Some(error.clone());
                    self.no_checkpoint(&error);
                }
                _ => self.was_checkpoint(self.log.checkpoints + 1),
            },
            Flight::GivenUp => {}
        }
        self.alone &= !self.flying.is_empty();
        self.go_on();
        self.make_room();
    }

    /// The worker has followed the path of a node.
    fn looked(&mut self, node: Node, ask: Ask, reply: &Reply) {
        match (reply, self.files.path(node)) {
            (Reply::Entries(entries), Ok(names)) if entries.len() == names.len() => {
                self.found(node, entries);
                self.queue.push_front(ask);
            }
            _ if ask.is_done() => {
                self.files.no_longer_linked(node);
                self.queue.push_front(ask);
            }
            _ => {
                let error = reply.error().cloned().unwrap_or(Errno::ESTALE.into());
                self.refuse(ask.requester, error);
            }
        }
    }

    /// Returns to the worker what it need not hold, if that is much.
    fn make_room(&mut self) {
        if self.is_copied() || !self.files.is_crowded() {
            return;
        }
        let mut in_use = HashSet::new();
        let flying = self.flying.values_mut().filter_map(Flight::ask_mut);
        for ask in flying.chain(&mut self.queue) {
            in_use.extend(Numbers::of(&mut ask.request).nodes);
            in_use.extend(self.files.victim(&ask.request));
        }
        self.looking.values_mut().for_each(|look| in_use.extend(Numbers::of(&mut look.request).nodes));
        let nodes = self.files.make_room(&in_use);
        let returned = self.files.give_back(&nodes);
        if let Role::Recorded(recorder) = &mut self.role {
            recorder.note(&Event::Returned { nodes });
        }
        self.give_back(returned);
    }

    /// Of the way to a node the end is needed.
    fn found(&mut self, node: Node, entries: &Entries) {
        let Some((last, above)) = entries.split_last() else { return };
        self.give_back(above.iter().map(|entry| Returned { theirs: entry.node, count: 1 }));
        self.found_again(node, last.node, 1);
    }

    /// Gives a reply, which is logged first if anything was changed.
    fn answer(&mut self, mut ask: Ask) {
        let Some((id, mut reply)) = ask.reply.take() else { return };
        let is_logged =
            self.is_guarded() && ask.request.class() == Class::Change && Log::takes(&ask.request, &reply);
        let entry = is_logged
            .then(|| {
                let requester = (ask.cred.clone(), id - FIRST_CHANGE);
                self.log.describe(&mut self.files, requester, &mut ask.request, &reply)
            })
            .flatten();
        let kept = silly_name(id).map(|name| (name, self.files.loses_name(&ask.request)));
        if let Err(error) = self.files.learn(&mut ask.request, &mut reply) {
            reply = Reply::Error(error);
        }
        if is_logged {
            self.log.push(&ask.request, entry, &mut self.files, &reply);
        }
        if let Some(kept) = kept {
            self.has_kept(&ask.request, kept, &mut reply);
        }
        if let Some((_, handle)) = ask.request.ends() {
            self.closed(handle);
        }
        if reply.error().is_some() {
            ask.request.opens().and_then(Opening::file).into_iter().for_each(|node| self.let_go(node));
        } else if let Request::Write(op) = &ask.request
            && self.is_synchronous(op.handle)
        {
            return self.want_checkpoint(Some((ask.requester, reply)));
        }
        self.answered.push((ask.requester, reply));
    }

    fn is_synchronous(&self, handle: Handle) -> bool {
        if !self.is_guarded() {
            return false;
        }
        let flags = self.files.open(handle).ok().and_then(|open| open.flags);
        flags.is_some_and(|flags| flags.contains(OpenFlags::DSYNC))
    }

    /// Asks for a checkpoint, and gives the reply when it is over; at once when nothing has changed.
    pub fn want_checkpoint(&mut self, waiting: Option<(Requester, Reply)>) {
        if self.log.is_empty() && self.checkpoint.is_none() {
            return self.answered.extend(waiting);
        }
        self.checkpoint.get_or_insert_default().waiting.extend(waiting);
    }

    /// Everything logged is in the image.
    pub fn was_checkpoint(&mut self, checkpoints: u64) {
        self.log.clear(checkpoints);
        self.refused = None;
        self.answered.extend(self.checkpoint.take().into_iter().flat_map(|checkpoint| checkpoint.waiting));
    }

    fn no_checkpoint(&mut self, error: &Error) {
        let waiting = self.checkpoint.take().into_iter().flat_map(|checkpoint| checkpoint.waiting);
        waiting.for_each(|(requester, _)| self.refuse(requester, error.clone()));
    }

    /// The worker has died: what was in flight waits for the next one. `guilty`: by itself.
    pub fn died(&mut self, guilty: bool, why: &Error) {
        self.serves = false;
        self.refused = None;
        self.outgoing.clear();
        (self.changing, self.taking, self.following) = (0, 0, 0);
        self.alone = false;
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.asked = false;
        }
        // What was done without a reply is done again.
        self.queue.iter_mut().for_each(|ask| ask.reply = None);
        let flying = std::mem::take(&mut self.flying);
        for mut ask in flying.into_values().filter_map(Flight::into_ask).rev() {
            if guilty {
                ask.suspect.lost(true);
            }
            ask.reply = None;
            match ask.suspect.is_poisonous() {
                true => self.refuse(ask.requester, why.clone()),
                false => self.queue.push_front(ask),
            }
        }
        self.files.next_life();
    }

    /// No server will be started any more.
    pub fn fail(&mut self, why: &Error) {
        self.failed = Some(why.clone());
        let queue = std::mem::take(&mut self.queue);
        queue.into_iter().for_each(|ask| self.refuse(ask.requester, why.clone()));
        self.no_checkpoint(why);
    }
}

fn unmounted() -> Error {
    Errno::EIO.because("the image was unmounted")
}

/// The request that opens an open file again, with the worker's numbers.
fn reopening(files: &mut Files, handle: Handle) -> Result<Request> {
    let open = files.open(handle)?;
    let mut request = reopen(open.node, open.flags);
    match bind(&mut request, files)? {
        None => Ok(request),
        Some(_) => Err(Errno::ESTALE.into()),
    }
}
