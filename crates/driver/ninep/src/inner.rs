// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: the state of a tree, finding files, and how they look.

use crate::convert;
use crate::dialect::People;
use crate::dirs::Dirs;
use crate::files::is_misled;
use crate::hidden::As;
use crate::late::{Doings, NameChanges};
use crate::link::{Line, Place, Trees, text};
use crate::lock_state::Locks;
use crate::near::{Goal, NearDirs, Trail};
use crate::opened::{self, Files, OpenFile, Use};
use crate::options::Options;
use crate::wire::{Fault, Fid, Session};
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Attr, Cx, Errno, FileKind, Handle, Keep, Name, Node, NodeTable, Result, Runtime};
use outrigger_proto_ninep::{self as ninep, Dialect, Qid, Text};
use outrigger_toolkit_remote::known::moment;
use outrigger_toolkit_remote::{
    HandleTable, KnownFile, NodeLocks, Outage, SillyNames, SillyRename, hash, own_credentials,
};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The tree, for tasks that outlive requests.
pub(crate) type Me = Arc<OnceLock<Weak<Inner>>>;

/// A tree of a server.
pub(crate) struct Inner {
    pub(crate) me: Me,
    pub(crate) place: Place,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The connections: of the superuser, and of all other users, since servers may let everyone do everything on a connection
    /// by which the superuser has attached, as diod does.
    pub(crate) lines: [Line; 2],
    pub(crate) outage: Arc<Outage>,
    /// What the server calls the tree; `None` where paths begin with that.
    pub(crate) aname: Option<Vec<u8>>,
    /// Where paths begin with that: what is known of it.
    pub(crate) trees: Mutex<Trees>,
    pub(crate) uname: String,
    pub(crate) own_uid: u32,
    /// What the server speaks, from the first connection on.
    pub(crate) dialect: Arc<OnceLock<Dialect>>,
    /// Who the users are that it names.
    pub(crate) people: Arc<People>,
    pub(crate) files: HandleTable,
    pub(crate) open: Files,
    /// Names of removed files that are open.
    pub(crate) silly: SillyNames,
    pub(crate) dirs: Dirs,
    pub(crate) near: NearDirs,
    pub(crate) changes: NameChanges,
    /// What begins and ends here that changes something.
    pub(crate) doings: Doings,
    pub(crate) locks: Locks,
    /// One after the other: appending asks for the size first.
    pub(crate) appends: NodeLocks,
}

impl Inner {
    pub(crate) async fn connect(
        (place, user): (Place, Option<String>),
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Arc<Self>> {
        let keep = keep.as_deref();
        let files = HandleTable::open(keep)?;
        let open = opened::files(keep)?;
        let silly = SillyNames::open(keep)?;
        for node in silly.given(files.table()) {
            open.mark_removed(node);
        }
        let locks = Locks::open(keep)?;
        let takes_over = files.get(Node::ROOT).is_some();
        let outage = if takes_over { Outage::after_takeover() } else { Outage::new(false) };
        let uname = options.uname.clone().or(user).or_else(|| std::env::var("USER").ok());
        let (uname, own) = (uname.unwrap_or_default(), own_credentials());
        let people = People::new(&uname, (options.uid.unwrap_or(own.uid), own.gid));
        let mut inner = Inner {
            me: Me::default(),
            dirs: Dirs::default(),
            near: NearDirs::default(),
            changes: NameChanges::default(),
            doings: Doings::default(),
            locks,
            place,
            options,
            runtime,
            lines: Default::default(),
            outage: Arc::new(outage),
            aname: None,
            trees: Mutex::default(),
            uname,
            own_uid: own.uid,
            dialect: Arc::default(),
            people: Arc::new(people),
            files,
            open,
            silly,
            appends: NodeLocks::default(),
        };
        inner.aname = inner.find_aname().await?;
        inner.has_wanted_locks()?;
        let inner = Arc::new(inner);
        let _ = inner.me.set(Arc::downgrade(&inner));
        match takes_over {
            true => inner.runtime.spawn(Box::pin(Arc::clone(&inner).settle())),
            false => inner.find_root().await?,
        }
        Ok(inner)
    }

    /// Goes on with files that former processes have renamed because they had lost their names.
    async fn settle(self: Arc<Self>) {
        self.silly_rename(self.own_user()).settle().await;
        self.lock_all_again().await;
    }

    async fn find_root(&self) -> Result<()> {
        let uid = self.own_user();
        let find = |session| async move { self.find(&session, uid, Goal::Node(Node::ROOT)).await };
        let ((known, _), _) = self.with(uid, find).await?;
        if known.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        self.files.note(Node::ROOT, known)
    }

    /// What there is, and how it looks; of a directory how it was found, too.
    pub(crate) async fn find(
        &self,
        session: &Arc<Session>,
        uid: u32,
        goal: Goal<'_>,
    ) -> Result<((KnownFile, Attr), Option<Trail>), Fault> {
        loop {
            let way = match self.way(session, uid, goal).await? {
                Ok(way) => way,
                Err(path) => return Ok((above(&path)?, None)),
            };
            let looked = session.look(way.from, &way.names).await.and_then(|(fid, told, walked)| {
                // The server walks by names: another client may have given that of the directory to another one.
                if let Goal::Name(dir, _) = goal {
                    is_it(self.files.get(dir), walked.above)?;
                }
                Ok((fid, told))
            });
            match looked {
                Err(fault) if is_stale(&fault) && self.is_astray(&way, &fault) => {}
                looked => {
                    let (fid, told) = looked?;
                    let (known, path) = (convert::known(&told)?, way.path);
                    let is_dir = known.kind == FileKind::Directory && !path.is_empty();
                    let trail = is_dir.then_some(Trail { uid, path, fid });
                    return Ok(((known, convert::attr(&told)), trail));
                }
            }
        }
    }

    /// The attributes of a node that has a name.
    async fn look(&self, session: &Arc<Session>, uid: u32, node: Node) -> Result<ninep::Attrs, Fault> {
        loop {
            let known = self.files.get(node);
            let Ok(way) = self.way(session, uid, Goal::Node(node)).await? else {
                return Err(refused_above());
            };
            let looked = match &way.names[..] {
                [] => session.attrs(way.from).await,
                names => session.look(way.from, names).await.map(|(_, attrs, _)| attrs),
            };
            let looked = looked.and_then(|attrs| {
                convert::known(&attrs)?;
                is_it(known, Some(attrs.qid)).map(|()| attrs)
            });
            match looked {
                Err(fault) if self.is_astray(&way, &fault) => {}
                Err(fault) if self.has_another_name(node, &way.path, &fault) => {}
                looked => return looked,
            }
        }
    }

    /// A fid of a node.
    pub(crate) async fn reach(&self, session: &Arc<Session>, uid: u32, node: Node) -> Result<Fid, Fault> {
        loop {
            let known = self.files.get(node);
            let Ok(way) = self.way(session, uid, Goal::Walk(node)).await? else {
                return Err(refused_above());
            };
            let walked = session.walk_to(way.from, &way.names).await;
            match walked.and_then(|(fid, walked)| is_it(known, walked.to).map(|()| fid)) {
                Err(fault) if self.is_astray(&way, &fault) => {}
                Err(fault) if self.has_another_name(node, &way.path, &fault) => {}
                reached => return reached,
            }
        }
    }

    /// Whether there is another path to a node than the one that has led nowhere, which is dropped: a file with several names may have lost one of
    /// them to another client, or to this one while a listing was received.
    fn has_another_name(&self, node: Node, path: &[Name], fault: &Fault) -> bool {
        let table = self.files.table();
        let (Ok(present), true) = (table.path(node), is_misled(fault)) else { return false };
        if present != path {
            return true;
        }
        match &table.names(node).unwrap_or_default()[..] {
            // The path is by the name that was found last, which is the first of them.
            [(dir, name), _, ..] => table.removed(*dir, name),
            _ => return false,
        }
        true
    }

    /// The fid of a directory, and the name in it as it is sent.
    pub(crate) async fn place(
        &self,
        session: &Arc<Session>,
        uid: u32,
        dir: Node,
        name: &Name,
    ) -> Result<(Fid, Text), Fault> {
        Ok((self.reach(session, uid, dir).await?, text(name)?))
    }

    /// What `name` in `dir` leads to at the server.
    pub(crate) async fn look_up(&self, uid: u32, dir: Node, name: &Name) -> Result<(KnownFile, Attr)> {
        let find = |session| async move { self.find(&session, uid, Goal::Name(dir, name)).await };
        self.with(uid, find).await.map(|(found, _)| found)
    }

    /// What `name` in `dir` leads to, with a reference.
    pub(crate) async fn lookup(&self, cx: &Cx, dir: Node, name: &Name) -> Result<Entry> {
        if self.files.get(dir).is_some_and(|known| known.kind != FileKind::Directory) {
            return Err(Errno::ENOTDIR.into());
        }
        let uid = self.uid(cx);
        if self.silly_rename(uid).has(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        let find = async |session: Arc<Session>| {
            Ok((self.find(&session, uid, Goal::Name(dir, name)).await?, session))
        };
        loop {
            let (asked, question) = (moment(), self.changes.ask());
            let found = self.with(uid, find).await;
            let is_gone = found.as_ref().is_err_and(|error| error.errno == Errno::ENOENT);
            let noted = question.unless_changed(dir, name, || match found {
                Ok((found, session)) => Ok((self.reached(dir, name, found)?, session)),
                Err(error) => {
                    if is_gone {
                        self.files.table().removed(dir, name);
                    }
                    Err(error)
                }
            });
            let Some(noted) = noted else { continue };
            let (entry, session) = noted?;
            self.saw(&session, entry.node, &entry.attr, asked);
            return Ok(entry);
        }
    }

    /// The entry of a name that a walk has found, from which the next one may begin; counts a reference.
    pub(crate) fn reached(
        &self,
        dir: Node,
        name: &Name,
        (found, trail): ((KnownFile, Attr), Option<Trail>),
    ) -> Result<Entry> {
        let entry = self.entry(dir, name, found)?;
        trail.into_iter().for_each(|trail| self.near.keep(entry.node, trail));
        Ok(entry)
    }

    /// The entry of a name; counts a reference.
    pub(crate) fn entry(&self, dir: Node, name: &Name, (known, attr): (KnownFile, Attr)) -> Result<Entry> {
        let node = self.files.found(dir, name, known)?;
        let generation = NodeTable::generation(node);
        Ok(Entry { node, generation, attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND })
    }

    /// The attributes of a node as they are now; of one that has lost its names by the handle of one who has it open.
    pub(crate) async fn attrs(&self, cx: &Cx, node: Node, handle: Option<Handle>) -> Result<Attrs> {
        if self.files.get(node).is_some_and(|known| is_above(&known)) {
            return Ok(Attrs { attr: above(&self.files.table().path(node)?)?.1, ttl: Ttl::SECOND });
        }
        let handle = handle.filter(|handle| self.open.get(*handle).is_ok());
        let handle = handle.or_else(|| self.nameless_handle(node));
        let uid = handle.and_then(|handle| self.open.get(handle).ok()).map_or(self.uid(cx), |file| file.uid);
        let told = self.with(uid, |session| async move {
            let asked = moment();
            let told = self.attrs_by(&session, uid, (node, handle)).await?;
            self.saw(&session, node, &convert::attr(&told), asked);
            Ok(told)
        });
        let told = told.await?;
        convert::known(&told)?;
        Ok(Attrs { attr: self.shown(node, &told), ttl: Ttl::SECOND })
    }

    async fn attrs_by(
        &self,
        session: &Arc<Session>,
        uid: u32,
        (node, handle): (Node, Option<Handle>),
    ) -> Result<ninep::Attrs, Fault> {
        if let Some(handle) = handle {
            let file = self.fid_of(session, node, handle).await?;
            match self.told_of(session, node, file.fid.number).await {
                Err(fault) if is_misled(&fault) && !self.is_nameless(node) => {}
                told => return told,
            }
        }
        self.look(session, uid, node).await
    }

    /// Attributes of a node, as they are shown: a file that has only a silly name has none.
    pub(crate) fn shown(&self, node: Node, told: &ninep::Attrs) -> Attr {
        let attr = convert::attr(told);
        let nlink = if self.open.is_removed(node) { attr.nlink.saturating_sub(1) } else { attr.nlink };
        Attr { nlink, ..attr }
    }

    /// A handle of a node that has no name any more.
    pub(crate) fn nameless_handle(&self, node: Node) -> Option<Handle> {
        self.is_nameless(node).then(|| self.open.handles(node).first().copied()).flatten()
    }

    /// Whether an open node has no name any more, not even a silly one.
    pub(crate) fn is_nameless(&self, node: Node) -> bool {
        self.open.is_removed(node) && self.files.table().names(node).is_ok_and(|names| names.is_empty())
    }

    /// What becomes of open files that lose their names, for a user.
    pub(crate) fn silly_rename(&self, uid: u32) -> SillyRename<'_, Arc<OpenFile>, Use, As<'_>> {
        let (names, table, open) = (&self.silly, self.files.table(), &self.open);
        SillyRename { names, table, open, server: As { inner: self, uid } }
    }

    /// A name of a file is gone. The server may give its identity to another file when the last one is.
    pub(crate) fn lost_name(&self, node: Option<Node>) {
        let Some(node) =
            node.filter(|node| self.files.table().names(*node).is_ok_and(|names| names.is_empty()))
        else {
            return;
        };
        self.open.mark_removed(node);
        if let Some(known) = self.files.get(node) {
            let gone = [known.handle(), b"gone", &node.0.to_le_bytes()].concat();
            // Without room for the note, the node is taken for the next file of that identity.
            let _ = KnownFile::new(&gone, known.ino, known.kind).and_then(|gone| self.files.note(node, gone));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lines.iter().for_each(Line::finish);
    }
}

/// A directory above what the server attaches: it may be passed, and nothing is known of what is in it.
fn above(names: &[Name]) -> Result<(KnownFile, Attr)> {
    let parts: Vec<&[u8]> = names.iter().flat_map(|name| [&b"/"[..], &name[..]]).collect();
    let ino = hash(&parts) | 1;
    let mode = FileKind::Directory.bits() | 0o111;
    let attr = Attr { ino, mode, nlink: 2, ..Attr::default() };
    Ok((KnownFile::new(&[], ino, FileKind::Directory)?, attr))
}

/// Whether a file is a directory above what the server attaches.
pub(crate) fn is_above(known: &KnownFile) -> bool {
    known.handle().is_empty()
}

fn refused_above() -> Fault {
    let why =
        "the server has no such tree, or does not let this user attach to it; what it has below is not known";
    Fault::Known(Errno::EACCES.because(why))
}

/// Whether a walk has led to the file that is meant.
fn is_it(known: Option<KnownFile>, qid: Option<Qid>) -> Result<(), Fault> {
    match (known, qid) {
        (Some(known), Some(qid)) if known.handle() != convert::handle(&qid) => {
            Err(Fault::Known(Errno::ESTALE.because("another file has its name at the server now")))
        }
        _ => Ok(()),
    }
}

fn is_stale(fault: &Fault) -> bool {
    matches!(fault, Fault::Known(error) if error.errno == Errno::ESTALE)
}
