// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of our own: each one alters exactly what is known of what it changes.

use crate::inner::Inner;
use crate::moment::{after, ttl};
use crate::names::{File, What};
use crate::table::{Table, lock};
use outrigger_core::ops::{Link, OpenFlags, Rename, RenameFlags};
use outrigger_core::paths::{Subject, subjects};
use outrigger_core::reply::Entry;
use outrigger_core::{Answer, Cx, Errno, Error, Name, Node, Reply, Request};
use std::sync::Arc;

/// A change under way: what it concerns is not believed meanwhile.
struct Underway<'a> {
    inner: &'a Inner,
    nodes: Vec<Node>,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        lock(&self.inner.table).end(&self.nodes);
    }
}

/// A name in a directory.
type Place = (Node, Name);

/// What a change does to names and files, apart from what its reply tells.
enum Effect {
    /// Attributes of the nodes it mentions.
    Attributes,
    /// A file appears under a name.
    Appears(Place),
    /// An existing file appears under a name.
    Links(Link),
    /// A file, or a directory, disappears from a name.
    Disappears(Place, bool),
    /// A file goes from one name to another.
    Moves(Rename),
    /// Nothing that is known here.
    Nothing,
}

impl Effect {
    fn of(request: &Request) -> Self {
        match request {
            Request::MkNod(op) => Effect::Appears((op.dir, op.name.clone())),
            Request::MkDir(op) => Effect::Appears((op.dir, op.name.clone())),
            Request::SymLink(op) => Effect::Appears((op.dir, op.name.clone())),
            Request::Create(op) => Effect::Appears((op.dir, op.name.clone())),
            Request::Link(op) => Effect::Links(op.clone()),
            Request::Unlink(op) => Effect::Disappears((op.dir, op.name.clone()), false),
            Request::RmDir(op) => Effect::Disappears((op.dir, op.name.clone()), true),
            Request::Rename(op) => Effect::Moves(op.clone()),
            Request::SetLock(_) => Effect::Nothing,
            Request::Open(op) if !op.flags.contains(OpenFlags::TRUNC) => Effect::Nothing,
            _ => Effect::Attributes,
        }
    }
}

/// Whether it is uncertain, after this error, what the change has done.
fn leaves_doubt(error: &Error) -> bool {
    const CERTAIN: &[Errno] = &[
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
    !CERTAIN.contains(&error.errno)
}

impl Inner {
    /// Makes a change, and learns from it.
    pub(crate) fn change<'a>(self: &'a Arc<Self>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        Answer::later(async move {
            if let Err(error) = self.translate(cx, &mut request).await {
                return Reply::Error(error);
            }
            let effect = Effect::of(&request);
            let subjects = subjects(&mut request);
            let underway = self.set_out(&subjects, &effect);
            let mut reply = self.below().service.call(cx, request).await;
            drop(underway);
            self.learn_change(&subjects, effect, &mut reply);
            self.settle(cx).await;
            reply
        })
    }

    fn set_out(&self, subjects: &[Subject], effect: &Effect) -> Underway<'_> {
        let mut nodes: Vec<Node> = Vec::with_capacity(4);
        let mut table = lock(&self.table);
        for subject in subjects {
            nodes.push(subject.node);
            if let [name] = &subject.names[..]
                && let What::File(file) = table.last_known(subject.node, name)
            {
                nodes.push(file.node);
            }
        }
        nodes.retain(|&node| node != Node::default());
        if matches!(effect, Effect::Nothing) {
            nodes.clear();
        }
        nodes.sort_unstable();
        nodes.dedup();
        table.begin(&nodes);
        drop(table);
        Underway { inner: self, nodes }
    }

    fn learn_change(&self, subjects: &[Subject], effect: Effect, reply: &mut Reply) {
        let mut table = lock(&self.table);
        let table = &mut *table;
        if let Reply::Error(error) = reply {
            if leaves_doubt(error) && !matches!(effect, Effect::Nothing) {
                self.doubt(table, subjects);
            }
            return;
        }
        match effect {
            Effect::Nothing => {}
            Effect::Attributes => self.learn_attributes(table, subjects, reply),
            Effect::Appears((dir, name)) => {
                table.forget_attr(dir);
                match reply {
                    Reply::Entry(entry) => self.appears(table, dir, &name, entry),
                    Reply::Created(created) => self.appears(table, dir, &name, &mut created.entry),
                    _ => self.doubt(table, subjects),
                }
            }
            Effect::Links(op) => {
                table.forget_attr(op.dir);
                match reply {
                    Reply::Entry(entry) => self.appears(table, op.dir, &op.name, entry),
                    _ => self.doubt(table, subjects),
                }
            }
            Effect::Disappears((dir, name), is_dir) => {
                table.forget_attr(dir);
                self.disappears(table, dir, &name, is_dir);
            }
            Effect::Moves(op) => self.moves(table, &op),
        }
    }

    /// Anything may have happened to what a request mentions.
    fn doubt(&self, table: &mut Table, subjects: &[Subject]) {
        for Subject { node, names } in subjects {
            table.forget_attr(*node);
            if let [name] = &names[..] {
                self.learn_change_of_name(table, *node, name, What::Unknown);
            }
        }
    }

    fn learn_attributes(&self, table: &mut Table, subjects: &[Subject], reply: &mut Reply) {
        for subject in subjects {
            table.forget_attr(subject.node);
        }
        let (ticket, when) = (table.ticket(), self.when());
        match (reply, subjects) {
            (Reply::Attrs(attrs), [subject]) => {
                let until = table.learn_attr(subject.node, &attrs.attr, ticket, when);
                attrs.ttl = ttl(when.now, until);
            }
            // A file without a name.
            (Reply::Created(created), _) => {
                let Entry { node, generation, attr, .. } = &created.entry;
                table.make(*node).generation = Some(*generation);
                table.learn_attr(*node, attr, ticket, when);
            }
            _ => {}
        }
    }

    fn learn_change_of_name(&self, table: &mut Table, dir: Node, name: &Name, what: What) {
        let now = self.now();
        let until = after(now, table.belief(dir).of_absence());
        table.change_names(dir, |names| names.learn(name, what, (now, until)));
    }

    fn appears(&self, table: &mut Table, dir: Node, name: &Name, entry: &mut Entry) {
        let ticket = table.ticket();
        let until = self.learn_file(table, dir, name, entry, ticket);
        table.has_a_name(entry.node);
        let Entry { node, generation, attr, .. } = &*entry;
        let file = File { node: *node, generation: *generation, ino: attr.ino, kind: Some(attr.kind()) };
        let now = self.now();
        table.change_names(dir, |names| names.learn(name, What::File(file), (now, until)));
        entry.entry_ttl = ttl(now, until);
    }

    /// What a name led to, as far as that is believed: with others about, what was known once is not enough.
    fn believed(&self, table: &mut Table, dir: Node, name: &Name) -> What {
        let now = self.now();
        table.names_of(dir).map_or(What::Unknown, |names| lock(&names).find(name, now).0)
    }

    fn disappears(&self, table: &mut Table, dir: Node, name: &Name, is_dir: bool) {
        let (removed, hint) = (self.believed(table, dir, name), table.last_known(dir, name));
        self.learn_change_of_name(table, dir, name, What::Absent);
        lost(table, removed, hint, is_dir);
    }

    fn moves(&self, table: &mut Table, op: &Rename) {
        let Rename { dir, name, to_dir, to_name, flags } = op;
        let (from, to) = (self.believed(table, *dir, name), self.believed(table, *to_dir, to_name));
        let hint = table.last_known(*to_dir, to_name);
        for what in [from, to] {
            if let What::File(file) = what {
                table.forget_attr(file.node);
            }
        }
        table.forget_attr(*dir);
        table.forget_attr(*to_dir);
        table.forget_parts();
        if flags.contains(RenameFlags::EXCHANGE) {
            self.learn_change_of_name(table, *dir, name, to);
            self.learn_change_of_name(table, *to_dir, to_name, from);
            return;
        }
        let both_stay = match (from, to) {
            (What::File(from), What::File(to)) => from.node == to.node,
            // A file that has the new name already keeps both, and that name may be one that is not known here.
            (What::File(file), What::Unknown) => table.has_several_names(file.node),
            (What::Unknown, _) => true,
            _ => false,
        };
        if both_stay {
            self.learn_change_of_name(table, *dir, name, What::Unknown);
            self.learn_change_of_name(table, *to_dir, to_name, What::Unknown);
            lost(table, What::Unknown, hint, false);
            return;
        }
        let left = if flags.contains(RenameFlags::WHITEOUT) { What::Unknown } else { What::Absent };
        self.learn_change_of_name(table, *dir, name, left);
        self.learn_change_of_name(table, *to_dir, to_name, from);
        lost(table, to, hint, false);
        if let What::File(file) = from {
            table.make(file.node).parent = Some(*to_dir);
        }
    }
}

/// A name that led there, perhaps as `hint` says, does so no more.
fn lost(table: &mut Table, what: What, hint: What, is_dir: bool) {
    match (what, hint) {
        (What::File(file), _) => table.lost_a_name(file.node, is_dir),
        (What::Unknown, What::File(file)) => table.somebody_lost_a_name(Some(file.node)),
        (What::Unknown, _) => table.somebody_lost_a_name(None),
        (What::Absent, _) => {}
    }
}
