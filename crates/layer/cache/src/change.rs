// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of our own: each one alters exactly what is known of what it changes.

use crate::clock::{Begun, Ended, Place};
use crate::contents::Changed;
use crate::inner::Inner;
use crate::moment::{Moment, after, ttl};
use crate::names::{File, Names, What};
use crate::table::Table;
use outrigger_core::ops::{Forget, Lookup, RenameFlags};
use outrigger_core::paths::{Subject, subjects};
use outrigger_core::reply::{Entry, OpenHow, Ttl};
use outrigger_core::{Added, Answer, Cx, Effect, Errno, Error, Name, Node, Reply, Request, ask, lock};
use std::sync::{Arc, Mutex};

/// A change under way: what it concerns is not used meanwhile.
struct PendingChange<'a> {
    inner: &'a Inner,
    subjects: Vec<Subject>,
    knowledge: Knowledge,
    contents: Option<Changed>,
    /// `None` once it has ended.
    begun: Option<Begun>,
}

/// What a name led to when a change was sent.
#[derive(Clone, Copy)]
struct PriorLookup {
    /// As far as that was fresh: with others about, what was known once is not enough.
    fresh: What,
    /// As far as that was ever known.
    last_known: What,
}

/// What becomes of what is known of names and files by a change, apart from what its reply tells.
enum Knowledge {
    /// Attributes of the nodes it mentions.
    Attributes,
    /// A file appears under a name, and whether it is a new one; which one, if it existed before.
    Appears(Place, bool, Option<Node>),
    /// A file, or a directory, disappears from a name, which led there.
    Disappears(Place, bool, PriorLookup),
    /// A file moves from one name to another; what both led to before.
    Moves([Place; 2], RenameFlags, PriorLookup, PriorLookup),
    /// Nothing that is known here.
    Nothing,
}

impl Knowledge {
    fn of(request: &Request, table: &mut Table, now: Moment) -> Self {
        let of_names = request.effects().into_iter().find_map(|effect| match effect {
            Effect::Adds { dir, name, file } => {
                let existed = if let Added::Existing(node) = file { Some(node) } else { None };
                let is_new = matches!(file, Added::New { exclusive: true, .. })
                    || matches!(PriorLookup::by(table, dir, name, now).fresh, What::Absent);
                Some(Knowledge::Appears((dir, name.clone()), is_new, existed))
            }
            Effect::Removes { dir, name, directory } => {
                let prior = PriorLookup::by(table, dir, name, now);
                Some(Knowledge::Disappears((dir, name.clone()), directory, prior))
            }
            Effect::Moves { dir, name, to_dir, to_name, flags } => {
                let from = PriorLookup::by(table, dir, name, now);
                let over = PriorLookup::by(table, to_dir, to_name, now);
                Some(Knowledge::Moves([(dir, name.clone()), (to_dir, to_name.clone())], flags, from, over))
            }
            _ => None,
        });
        of_names.unwrap_or(match request.changes_tree() {
            true => Knowledge::Attributes,
            false => Knowledge::Nothing,
        })
    }
}

impl PriorLookup {
    fn by(table: &mut Table, dir: Node, name: &Name, now: Moment) -> Self {
        let Some(names) = table.names_of(dir) else {
            return PriorLookup { fresh: What::Unknown, last_known: What::Unknown };
        };
        let names = lock(&names);
        PriorLookup { fresh: names.find(name, now).0, last_known: names.last_known(name) }
    }

    fn nodes(self) -> impl Iterator<Item = Node> {
        [self.fresh, self.last_known].into_iter().filter_map(What::node)
    }
}

/// What is uncertain after a change that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// Nothing: it was not made, for a reason that says nothing about what is known.
    Nothing,
    /// It was not made, but the names are not what was cached.
    Names,
    /// Perhaps it was made.
    All,
}

impl Doubt {
    fn after(error: &Error) -> Self {
        const REFUSED: &[Errno] = &[
            Errno::EPERM,
            Errno::EACCES,
            Errno::EINVAL,
            Errno::ENOSPC,
            Errno::EDQUOT,
            Errno::EROFS,
            Errno::EMLINK,
            Errno::ENAMETOOLONG,
            Errno::ENOSYS,
            Errno::EOPNOTSUPP,
            Errno::ENODATA,
            Errno::EXDEV,
            Errno::EFBIG,
            Errno::EBADF,
            Errno::EAGAIN,
            Errno::EINTR,
            Errno::ERANGE,
            Errno::E2BIG,
            Errno::ENOTTY,
        ];
        const OTHERWISE: &[Errno] =
            &[Errno::ENOENT, Errno::EEXIST, Errno::ENOTEMPTY, Errno::ENOTDIR, Errno::EISDIR, Errno::EBUSY];
        match error.errno {
            errno if REFUSED.contains(&errno) => Doubt::Nothing,
            errno if OTHERWISE.contains(&errno) => Doubt::Names,
            _ => Doubt::All,
        }
    }
}

impl PendingChange<'_> {
    /// It has ended with this reply.
    fn end(&mut self, reply: &mut Reply) {
        self.inner.contents_changed(self.contents.take(), reply);
        let Some(begun) = self.begun.take() else { return };
        if !matches!(self.knowledge, Knowledge::Nothing) {
            self.inner.mark_change();
        }
        let mut table = lock(&self.inner.table);
        let ended = table.end(begun);
        let doubt = match &*reply {
            _ if matches!(self.knowledge, Knowledge::Nothing) => Doubt::Nothing,
            Reply::Error(error) => Doubt::after(error),
            _ if ended.crossed => Doubt::All,
            _ => return self.learn(&mut table, &ended, reply),
        };
        match reply {
            Reply::Entry(entry) => must_be_asked(entry),
            Reply::Created(created) => must_be_asked(&mut created.entry),
            _ => {}
        }
        self.doubt(&mut table, doubt);
    }

    fn learn(&self, table: &mut Table, ended: &Ended, reply: &mut Reply) {
        match &self.knowledge {
            Knowledge::Nothing => {}
            Knowledge::Attributes => self.learn_attributes(table, ended, reply),
            Knowledge::Appears((dir, name), is_new, existed) => {
                table.invalidate_attr(*dir);
                // It has a link more, also where the reply crossed another change of the file and is not used.
                existed.iter().for_each(|&node| table.invalidate_attr(node));
                match reply {
                    Reply::Entry(entry) => self.appears(table, ended, (*dir, name), entry),
                    Reply::Created(created) if created.opened.how.contains(OpenHow::PENDING_CREATE) => {
                        self.learn_pending(table, ended, (*dir, name), &mut created.entry);
                    }
                    Reply::Created(created) => {
                        self.appears(table, ended, (*dir, name), &mut created.entry);
                        if *is_new {
                            table.has_no_capability(created.entry.node, self.inner.now());
                        }
                    }
                    _ => self.doubt(table, Doubt::All),
                }
            }
            Knowledge::Disappears((dir, name), is_dir, prior) => {
                table.invalidate_attr(*dir);
                self.learn_name(table, *dir, name, What::Absent);
                // If there was a negative entry for it, that was wrong.
                let fresh = if prior.fresh == What::Absent { What::Unknown } else { prior.fresh };
                lost(table, PriorLookup { fresh, ..*prior }, *is_dir);
            }
            Knowledge::Moves(places, flags, from, over) => self.moves(table, places, *flags, *from, *over),
        }
    }

    /// What was known of all it mentions may not be true any more.
    fn doubt(&self, table: &mut Table, doubt: Doubt) {
        if doubt == Doubt::Nothing {
            return;
        }
        for Subject { node, names } in &self.subjects {
            table.invalidate_attr(*node);
            if let [name] = &names[..] {
                self.learn_name(table, *node, name, What::Unknown);
            }
        }
        if doubt == Doubt::All {
            table.forget_paths();
            match self.knowledge {
                Knowledge::Disappears(.., prior) => {
                    lost(table, PriorLookup { fresh: What::Unknown, ..prior }, false)
                }
                Knowledge::Moves(_, _, _, over) => {
                    lost(table, PriorLookup { fresh: What::Unknown, ..over }, false)
                }
                _ => {}
            }
        }
    }

    fn learn_attributes(&self, table: &mut Table, ended: &Ended, reply: &mut Reply) {
        for Subject { node, names } in &self.subjects {
            table.invalidate_attr(*node);
            // What becomes of names is not known of this change.
            names.iter().for_each(|name| self.learn_name(table, *node, name, What::Unknown));
        }
        match (reply, &self.subjects[..]) {
            (Reply::Attrs(attrs), [subject]) => {
                let until = table.learn_attr(subject.node, &mut attrs.attr, ended.asked(subject.node));
                attrs.ttl = ttl(self.inner.now(), until);
            }
            // A file without a name.
            (Reply::Created(created), _) => {
                let Entry { node, generation, attr, .. } = &mut created.entry;
                table.identify(*node, *generation);
                table.learn_attr(*node, attr, ended.asked(*node));
            }
            _ => {}
        }
    }

    fn learn_name(&self, table: &mut Table, dir: Node, name: &Name, what: What) {
        let now = self.inner.now();
        let ttls = table.ttls(dir);
        let until = after(now, if what == What::Absent { ttls.negative() } else { ttls.least() });
        table.change_names(dir, |names| names.learn(name, what, (now, until)));
    }

    fn appears(&self, table: &mut Table, ended: &Ended, (dir, name): (Node, &Name), entry: &mut Entry) {
        let until = self.inner.learn_file(table, dir, name, entry, ended.asked(entry.node));
        self.has_name(table, (dir, name), entry, until);
        let (now, Entry { node, attr, .. }) = (self.inner.now(), &*entry);
        if attr.is_dir() {
            // It was made just now: there is nothing in it.
            let until = after(now, table.ttls(*node).period(attr, ended.asked(*node).when.wall));
            table.install(*node, Arc::new(Mutex::new(Names::none(until, self.inner.placing()))));
        }
    }

    /// A file appears that is being made, and whose attributes are predicted.
    fn learn_pending(&self, table: &mut Table, ended: &Ended, (dir, name): (Node, &Name), entry: &mut Entry) {
        let asked = ended.asked(entry.node);
        table.identify(entry.node, entry.generation);
        table.learn_place(entry.node, dir, name);
        table.learn_predicted(entry.node, &entry.attr, asked);
        entry.attr_ttl = Ttl::NEVER;
        let until = self.inner.predicted_until(table, entry.node, &entry.attr);
        self.has_name(table, (dir, name), entry, until);
    }

    /// A name leads to the file of an entry, which is fresh until then.
    fn has_name(&self, table: &mut Table, (dir, name): (Node, &Name), entry: &mut Entry, until: Moment) {
        table.linked(entry.node);
        let Entry { node, generation, attr, .. } = &*entry;
        let file = File { node: *node, generation: *generation, ino: attr.ino, kind: Some(attr.kind()) };
        let now = self.inner.now();
        table.change_names(dir, |names| names.learn(name, What::File(file), (now, until)));
        entry.entry_ttl = ttl(now, until);
    }

    fn moves(
        &self,
        table: &mut Table,
        places: &[Place; 2],
        flags: RenameFlags,
        from: PriorLookup,
        over: PriorLookup,
    ) {
        let [(dir, name), (to_dir, to_name)] = places;
        for node in from.nodes().chain(over.nodes()) {
            table.invalidate_attr(node);
            table.touch_content(node);
        }
        table.invalidate_attr(*dir);
        table.invalidate_attr(*to_dir);
        table.forget_paths();
        if flags.contains(RenameFlags::EXCHANGE) {
            self.learn_name(table, *dir, name, over.fresh);
            self.learn_name(table, *to_dir, to_name, from.fresh);
            return;
        }
        let both_stay = match (from.fresh, over.fresh) {
            (What::File(from), What::File(to)) => from.node == to.node,
            // A file that has the new name already keeps both, and that name may be one that is not known here.
            (What::File(file), What::Unknown) => table.has_several_names(file.node),
            // It was there; so nothing is certain.
            (What::Unknown | What::Absent, _) => true,
            _ => false,
        };
        if both_stay {
            self.learn_name(table, *dir, name, What::Unknown);
            self.learn_name(table, *to_dir, to_name, What::Unknown);
            lost(table, PriorLookup { fresh: What::Unknown, ..over }, false);
            return;
        }
        let left = if flags.contains(RenameFlags::WHITEOUT) { What::Unknown } else { What::Absent };
        self.learn_name(table, *dir, name, left);
        self.learn_name(table, *to_dir, to_name, from.fresh);
        lost(table, over, false);
    }
}

impl Drop for PendingChange<'_> {
    /// Given up half-way: it may have been made or not.
    fn drop(&mut self) {
        if self.begun.is_some() {
            self.end(&mut Reply::Error(Errno::EIO.into()));
        }
    }
}

impl Inner {
    /// Makes a change, and learns from it.
    pub(crate) fn change<'a>(self: &'a Arc<Self>, cx: &'a Cx, request: Request) -> Answer<'a> {
        Answer::later(self.make_change(cx, request))
    }

    /// Makes a change, and learns from it.
    pub(crate) async fn make_change(self: &Arc<Self>, cx: &Cx, mut request: Request) -> Reply {
        if let Err(error) = self.write_first(&mut request).await {
            return Reply::Error(error);
        }
        if let Err(error) = self.translate(cx, &mut request).await {
            return Reply::Error(error);
        }
        self.open_what_is_unlinked(cx, &request).await;
        let subjects = subjects(&mut request);
        let makes = |effect| matches!(effect, Effect::Adds { file: Added::New { exclusive: true, .. }, .. });
        let exclusive = request.effects().into_iter().any(makes);
        let mut pending = self.set_out(cx, &request, subjects);
        let mut reply = self.below().service.call(cx, request).await;
        if exclusive {
            self.learn_creator(&reply);
        }
        pending.end(&mut reply);
        drop(pending);
        self.settle(cx).await;
        reply
    }

    /// Opens below, before a change takes a name from a file, what is open here alone.
    async fn open_what_is_unlinked(&self, cx: &Cx, request: &Request) {
        let Some((dir, name)) = request.effects().into_iter().find_map(Effect::lost_name) else { return };
        if !self.handles.has_own() {
            return;
        }
        let now = self.now();
        let prior = PriorLookup::by(&mut lock(&self.table), dir, name, now);
        for node in prior.nodes() {
            self.open_below(cx, node).await;
        }
        if (prior.fresh, prior.last_known) == (What::Unknown, What::Unknown)
            && let Ok(Entry { node, .. }) =
                ask(&*self.below().service, cx, Lookup { dir, name: name.clone() }).await
        {
            self.open_below(cx, node).await;
            self.tell(cx, Forget { node, count: 1 }).await;
        }
    }

    fn set_out(&self, cx: &Cx, request: &Request, subjects: Vec<Subject>) -> PendingChange<'_> {
        let when = self.when();
        let mut table = lock(&self.table);
        let knowledge = Knowledge::of(request, &mut table, when.now);
        let (mut nodes, mut places) = (Vec::with_capacity(4), Vec::new());
        for Subject { node, names } in subjects.iter().filter(|_| !matches!(knowledge, Knowledge::Nothing)) {
            nodes.push(*node);
            if let [name] = &names[..] {
                nodes.extend(PriorLookup::by(&mut table, *node, name, when.now).nodes());
                places.push((*node, name.clone()));
            }
        }
        nodes.retain(|&node| node != Node::default());
        nodes.sort_unstable();
        nodes.dedup();
        nodes.iter().for_each(|&node| table.forget_predicted(node));
        let begun = Some(table.begin(nodes, places, when));
        drop(table);
        if !matches!(knowledge, Knowledge::Nothing) {
            self.mark_change();
        }
        let contents = self.change_contents(cx, request);
        PendingChange { inner: self, subjects, knowledge, contents, begun }
    }
}

/// Nothing in an entry may be cached.
fn must_be_asked(entry: &mut Entry) {
    (entry.entry_ttl, entry.attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
}

/// A name no longer leads to what it led to.
fn lost(table: &mut Table, prior: PriorLookup, is_dir: bool) {
    match (prior.fresh, prior.last_known) {
        (What::File(file), _) => table.unlinked(file.node, is_dir),
        (What::Unknown, What::File(file)) => table.unlinked_some(Some(file.node)),
        (What::Unknown, _) => table.unlinked_some(None),
        (What::Absent, _) => {}
    }
}
