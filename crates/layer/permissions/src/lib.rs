// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `permissions`: refuses what a caller may not do, by the rules of Linux (path_resolution(7)).
//!
//! For doors that have no kernel in front of them, which would check by itself: a client of a network says who its caller is, and asks
//! for files by numbers. Who the caller is comes from [`Cx::cred`]; the door has to know.
//!
//! | what a request does | who may |
//! |---|---|
//! | follows a name in a directory | who may search it; of a [`Walk`](outrigger_core::ops::Walk) each on the way |
//! | opens, lists | who may read or write it, as its flags say; `O_NOATIME` the owner |
//! | reads, writes, changes the size without a handle | the same each time |
//! | adds, removes, moves a name | who may write and search the directory |
//! | removes or replaces a name in a sticky directory | of those the owner of the file or of the directory |
//! | moves a directory to another parent | of those who may write the directory itself |
//! | makes a device | the superuser |
//! | sets the mode, times other than now; `system` attributes; ioctl(2) | the owner |
//! | sets times to now | the owner, and who may write |
//! | sets the group | the owner, to a group of theirs |
//! | sets the owner | the superuser |
//! | `user` attributes | who may read or write the file |
//! | `trusted` attributes, changes of `security` attributes | the superuser |
//!
//! The superuser (user 0) may do everything. A mode that gives a group's rights (set-group-ID) loses that bit where the caller is not a
//! member, as with chmod(2). [`Access`](outrigger_core::ops::Access) is answered here. Whoever has a handle may use it: doors keep apart
//! whose handles are whose. Nobody is asked for permission to look at attributes, to read a symbolic link, or to find a file by
//! its number ([`Resolve`](outrigger_core::ops::Resolve)).
//!
//! # Access lists
//!
//! A tree that keeps access lists (acl(5), [`Abilities::acl`]) and answers `Access` (`mem`) is asked which permissions are granted. Of one
//! that does not (`local`) the layer reads the list of a file for callers who are not its owner. Elsewhere owner, group and mode
//! decide.
//!
//! # Requests
//!
//! Owners and modes come from entries that pass, and are remembered for as long as the driver says, at most a second. What is
//! not known is asked for first, and so are access lists that are read. The superuser's requests pass as they are. Others cost more: a name in a sticky directory or that leaves
//! its directory one lookup, making a file one lookup, and a refusal one where it depends on it which error is told first.
//!
//! # Limits
//!
//! * A check and its operation are two steps; others may change the tree in between, as between a kernel and a FUSE server with
//!   `default_permissions`. Making a file never opens one that was not checked: a name that was free is made exclusively.
//! * Supplementary groups count where the door knows them.
//! * Where opening gives no handle (drivers without `Open`), each read and write is checked as if nothing had been opened. Without
//!   [`Permissions::lenient_owner`] the owner then cannot write to a new file whose mode forbids it.
//! * It stands above the layers `cache` and `simulate`: those do for one caller what another one asked for.
#![forbid(unsafe_code)]

mod adapt;
mod check;
mod known;
mod question;

use check::{CHANGE_NAMES, Check, Stop};
use known::{Known, Noticed, Owner};
use outrigger_core::attr::X_OK;
use outrigger_core::ops::{Forget, GetAttr, Lookup, Open, OpenFlags};
use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::reply::{Created, Entry, Granted, Ttl};
use outrigger_core::{
    Abilities, Answer, Asked, Attr, Cx, Errno, FileKind, Handle, Layer, Name, Node, Notify, OpCode, OpSet,
    Place, Reply, Request, Result, Runtime, Service, ask,
};
use question::{Fact, Facts, Lists, Question};
use std::sync::{Arc, OnceLock};

/// `--layer permissions[=lenient_owner]`.
pub const LAYER: LayerInfo = LayerInfo::new(
    "permissions",
    "refuses what a file's owner, group, mode and access list do not allow, as a kernel does for local files; with lenient_owner the owner of a file can always read and write it, which clients of NFS expect of files that they have open",
    |argument, site| {
        let layer = Permissions::new(Arc::clone(site.runtime));
        match argument {
            "" => Ok(Made::layer(layer)),
            "lenient_owner" => Ok(Made::layer(layer.lenient_owner())),
            other => Err(Errno::EINVAL.because(format!("{other} is not `lenient_owner`"))),
        }
    },
)
.with_argument("lenient_owner");

/// How often making a file starts again because others make and remove its name.
const TRIES: u32 = 5;

/// The layer.
pub struct Permissions {
    known: Arc<Known>,
    lenient_owner: bool,
    /// What the tree below can do, from the first request on.
    below: OnceLock<Below>,
}

#[derive(Clone, Copy)]
struct Below {
    read_only: bool,
    opens: bool,
    lists: Lists,
}

/// What becomes of a request.
enum Verdict {
    /// It is passed on; of a listing the entries are hidden, if so.
    Passes { hides: bool },
    /// This is the answer.
    Answered(Reply),
}

impl Permissions {
    /// The layer; the time comes from `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Permissions { known: Arc::new(Known::new(runtime)), lenient_owner: false, below: OnceLock::new() }
    }

    /// The same for a door without opens: without a handle the owner may always read and write a file, which may be open at the
    /// client, and who may execute a file may read it (RFC 1813, section 4.4).
    pub fn lenient_owner(self) -> Self {
        Permissions { lenient_owner: true, ..self }
    }

    fn below(&self, next: &Arc<dyn Service>) -> Below {
        *self.below.get_or_init(|| {
            let Abilities { read_only, acl, ops, .. } = next.abilities();
            let lists = match (ops.has(OpCode::Access), ops.has(OpCode::GetXattr)) {
                (true, _) if acl => Lists::Asked,
                (_, true) if acl => Lists::Read,
                _ => Lists::None,
            };
            Below { read_only, opens: ops.has(OpCode::Open), lists }
        })
    }

    fn check<'a>(&'a self, below: Below, cx: &'a Cx, facts: &'a Facts) -> Check<'a> {
        let Permissions { known, lenient_owner, .. } = self;
        Check { cred: &cx.cred, facts, known, lists: below.lists, lenient_owner: *lenient_owner }
    }

    fn judge(&self, below: Below, cx: &Cx, request: &mut Request, facts: &Facts) -> Result<Verdict, Stop> {
        let check = self.check(below, cx, facts);
        if let Some((node, mask)) = adapt::probe(request) {
            // The file has to exist, also where nothing is asked about it.
            check.owner(node)?;
            let granted = check.grants(node, mask)?;
            return Ok(Verdict::Answered(Reply::Granted(Granted(granted))));
        }
        let hides = check.decide(request)?;
        adapt::adapt(&check, request)?;
        Ok(Verdict::Passes { hides })
    }

    /// Gives a permitted request to what is below.
    fn pass<'a>(
        &'a self,
        next: &'a Arc<dyn Service>,
        cx: &'a Cx,
        request: Request,
        hides: bool,
    ) -> Answer<'a> {
        let learns = request.hands_out() && cx.cred.uid != 0;
        let (asked, changes) = (Asked::of(&request), self.known.changes());
        let changing = self.known.changing(&request);
        let answer = next.call(cx, request);
        let answer = match changing {
            None => answer,
            Some(changing) => answer.map(move |reply| {
                drop(changing);
                reply
            }),
        };
        match answer {
            answer if !learns => answer,
            Answer::Ready(reply) if !hides && !matches!(&reply, Reply::Entries(found) if found.len() > 1) => {
                self.known.learn_found(changes, &reply);
                Answer::Ready(reply)
            }
            answer => Answer::later(async move {
                let reply = answer.await;
                self.known.learn_found(changes, &reply);
                self.shown(next, cx, asked, reply, hides).await
            }),
        }
    }

    /// What the caller may see of a reply that finds several files.
    async fn shown(
        &self,
        next: &Arc<dyn Service>,
        cx: &Cx,
        asked: Asked,
        mut reply: Reply,
        hides: bool,
    ) -> Reply {
        match &mut reply {
            Reply::Entries(entries) => {
                let mut allowed = 1;
                while allowed < entries.len() && self.searches(next, cx, &entries[allowed - 1]).await {
                    allowed += 1;
                }
                if allowed < entries.len() {
                    let hidden = Reply::Entries(entries.split_off(allowed));
                    asked.give_back(&**next, cx, &hidden).await;
                }
            }
            Reply::DirentsPlus(_) if hides => {
                asked.give_back(&**next, cx, &reply).await;
                if let Reply::DirentsPlus(list) = &mut reply {
                    list.entries.iter_mut().for_each(|dirent| hide(&mut dirent.entry));
                }
            }
            _ => {}
        }
        reply
    }

    async fn searches(&self, next: &Arc<dyn Service>, cx: &Cx, dir: &Entry) -> bool {
        let (mut facts, below) = (Facts::default(), self.below(next));
        let known = facts.add(Question::Attr(dir.node), Fact::Attr(Owner::from(&dir.attr)));
        let searches = |facts: &Facts| self.check(below, cx, facts).granted(dir.node, X_OK);
        known.is_ok() && self.decided(next, cx, &mut facts, searches).await.unwrap_or(false)
    }

    /// Notes the answer to a question, and gives back the reference to what was found.
    async fn answered(
        &self,
        (next, cx): (&Arc<dyn Service>, &Cx),
        facts: &mut Facts,
        (question, changes): (Question, u64),
        answer: Answer<'_>,
    ) -> Result<()> {
        let reply = answer.await;
        if let (Question::Entry(..), Reply::Entry(entry)) = (&question, &reply) {
            forget(next, cx, entry.node).await;
        }
        self.note(facts, question, changes, reply)
    }

    fn note(&self, facts: &mut Facts, question: Question, changes: u64, reply: Reply) -> Result<()> {
        let fact = question.fact(reply, &self.known, changes)?;
        facts.add(question, fact)
    }

    /// The outcome of `decide`, asking what has to be known for it.
    async fn decided<T>(
        &self,
        next: &Arc<dyn Service>,
        cx: &Cx,
        facts: &mut Facts,
        mut decide: impl FnMut(&Facts) -> Result<T, Stop>,
    ) -> Result<T> {
        loop {
            match decide(facts) {
                Ok(outcome) => return Ok(outcome),
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Unknown(question)) => {
                    let changes = self.known.changes();
                    let answer = next.call(cx, question.request());
                    self.answered((next, cx), facts, (question, changes), answer).await?;
                }
            }
        }
    }

    /// Goes on with a request once the first question that took time is answered.
    async fn later(
        &self,
        (next, cx): (&Arc<dyn Service>, &Cx),
        mut request: Request,
        mut facts: Facts,
        (question, changes): (Question, u64),
        answer: Answer<'_>,
    ) -> Result<Reply> {
        self.answered((next, cx), &mut facts, (question, changes), answer).await?;
        let below = self.below(next);
        let judge = |facts: &Facts| self.judge(below, cx, &mut request, facts);
        match self.decided(next, cx, &mut facts, judge).await? {
            Verdict::Answered(reply) => Ok(reply),
            Verdict::Passes { hides } => Ok(self.pass(next, cx, request, hides).await),
        }
    }

    /// Makes a file, or opens the one that has the name: two operations, for one of them would do what was not checked
    /// when others make or remove the name meanwhile.
    async fn make_or_open(
        &self,
        (next, cx): (&Arc<dyn Service>, &Cx),
        mut request: Request,
        (dir, name, flags): (Node, Name, OpenFlags),
    ) -> Result<Reply> {
        let below = self.below(next);
        for _ in 0..TRIES {
            let mut facts = Facts::default();
            self.decided(next, cx, &mut facts, |facts| self.check(below, cx, facts).need(dir, X_OK)).await?;
            match ask(&**next, cx, Lookup { dir, name: name.clone() }).await {
                Ok(entry) => return self.open_found((next, cx), request, entry, flags).await,
                Err(error) if error.errno != Errno::ENOENT => return Err(error),
                Err(_) => {}
            }
            let makes = |facts: &Facts| {
                let check = self.check(below, cx, facts);
                check.need(dir, CHANGE_NAMES)?;
                adapt::adapt(&check, &mut request)
            };
            self.decided(next, cx, &mut facts, makes).await?;
            let mut made = request.clone();
            adapt::make_exclusive(&mut made);
            match self.pass(next, cx, made, false).await {
                Reply::Error(error) if error.errno == Errno::EEXIST => {}
                reply => return Ok(reply),
            }
        }
        Err(Errno::ESTALE.because("others make and remove the name all the time"))
    }

    /// Opens the file that has the name. Its reference goes to the caller, or back.
    async fn open_found(
        &self,
        (next, cx): (&Arc<dyn Service>, &Cx),
        request: Request,
        mut entry: Entry,
        flags: OpenFlags,
    ) -> Result<Reply> {
        let (below, node) = (self.below(next), entry.node);
        let mut facts = Facts::default();
        facts.add(Question::Attr(node), Fact::Attr(Owner::from(&entry.attr)))?;
        let opens = |facts: &Facts| match entry.attr.kind() {
            FileKind::Directory => Err(Errno::EISDIR.into()),
            FileKind::Symlink => Err(Errno::ELOOP.into()),
            _ => self.check(below, cx, facts).opens(node, flags),
        };
        if let Err(error) = self.decided(next, cx, &mut facts, opens).await {
            forget(next, cx, node).await;
            return Err(error);
        }
        if !below.opens {
            forget(next, cx, node).await;
            return Ok(self.pass(next, cx, request, false).await);
        }
        let of_making = OpenFlags::EXCL | OpenFlags::ASYNC_CREATE;
        let opened = match ask(&**next, cx, Open { node, flags: flags.difference(of_making) }).await {
            Ok(opened) => opened,
            Err(error) => {
                forget(next, cx, node).await;
                return Err(error);
            }
        };
        if flags.contains(OpenFlags::TRUNC) && entry.attr.size > 0 {
            let handle = Some(opened.handle).filter(|handle| *handle != Handle::NONE);
            match ask(&**next, cx, GetAttr { node, handle }).await {
                Ok(now) => (entry.attr, entry.attr_ttl) = (now.attr, now.ttl),
                Err(_) => (entry.attr.size, entry.attr_ttl) = (0, Ttl::NEVER),
            }
        }
        Ok(Reply::Created(Created { entry, opened }))
    }
}

/// Leaves what a listing without attributes tells: such an entry says that its name exists.
fn hide(entry: &mut Entry) {
    let Attr { ino, .. } = entry.attr;
    let attr = Attr { ino, mode: entry.attr.kind().bits(), ..Attr::default() };
    *entry = Entry { node: Node::default(), attr, attr_ttl: Ttl::NEVER, entry_ttl: Ttl::NEVER, ..*entry };
}

/// Returns one reference.
async fn forget(next: &Arc<dyn Service>, cx: &Cx, node: Node) {
    next.call(&cx.aside(), Forget { node, count: 1 }.into()).await;
}

fn reply(result: Result<Reply>) -> Reply {
    result.unwrap_or_else(Reply::Error)
}

impl Layer for Permissions {
    fn place(&self) -> Place {
        Place { name: "permissions", above: &["cache", "simulate"], below: &[] }
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let below = self.below(next);
        let probes = adapt::probe(&request).is_some();
        if if probes { below.lists == Lists::Asked } else { cx.cred.uid == 0 } {
            return self.pass(next, cx, request, false);
        }
        if below.read_only && request.needs_changeable() {
            return Answer::error(Errno::EROFS);
        }
        if let Some(made) = adapt::makes_or_opens(&request) {
            return Answer::later(async move { reply(self.make_or_open((next, cx), request, made).await) });
        }
        let mut facts = Facts::default();
        loop {
            let question = match self.judge(below, cx, &mut request, &facts) {
                Ok(Verdict::Answered(reply)) => return Answer::Ready(reply),
                Ok(Verdict::Passes { hides }) => return self.pass(next, cx, request, hides),
                Err(Stop::Refused(error)) => return Answer::error(error),
                Err(Stop::Unknown(question)) => question,
            };
            let asked = (question, self.known.changes());
            match (next.call(cx, asked.0.request()), &asked.0) {
                (Answer::Ready(reply), Question::Attr(_) | Question::Granted(..) | Question::List(_)) => {
                    if let Err(error) = self.note(&mut facts, asked.0, asked.1, reply) {
                        return Answer::error(error);
                    }
                }
                // What takes time, and references that have to be given back.
                (answer, _) => {
                    let later = self.later((next, cx), request, facts, asked, answer);
                    return Answer::later(async move { reply(later.await) });
                }
            }
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        let (opens, lists) = (below.ops.has(OpCode::Open), below.ops.has(OpCode::OpenDir));
        Abilities {
            ops: below.ops.union(OpSet::of(&[OpCode::Access])),
            // Whether a file may be used is decided when it is opened.
            stateless_files: below.stateless_files && !opens,
            stateless_dirs: below.stateless_dirs && !lists,
            ..below
        }
    }

    fn notify(&self, above: Arc<dyn Notify>) -> Arc<dyn Notify> {
        Arc::new(Noticed { known: Arc::clone(&self.known), above })
    }
}

#[cfg(test)]
mod tests;
