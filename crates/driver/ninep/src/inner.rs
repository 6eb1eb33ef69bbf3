// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: the state of a tree, finding files, and how they look.

use crate::convert;
use crate::dirs::Dirs;
use crate::files::OpenFile;
use crate::link::{Place, Present, text};
use crate::options::Options;
use crate::wire::{Fault, Fid, Session};
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Attr, Cx, Errno, FileKind, Handle, Keep, Name, Node, NodeTable, Result, Runtime, lock};
use outrigger_proto_ninep::{self as ninep, AttrMask, Qid, Text, Tgetattr};
use outrigger_toolkit_remote::{HandleTable, KnownFile, NodeLocks, OpenFiles, Outage, hash, own_credentials};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A tree of a server.
pub(crate) struct Inner {
    pub(crate) place: Place,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) present: Arc<Mutex<Present>>,
    pub(crate) outage: Arc<Outage>,
    /// What the server calls the tree; `None` where paths begin with that.
    pub(crate) aname: Option<Vec<u8>>,
    /// What the server has attached to, where paths begin with that.
    pub(crate) trees: Mutex<HashSet<Vec<u8>>>,
    pub(crate) uname: String,
    pub(crate) own_uid: u32,
    pub(crate) files: HandleTable,
    pub(crate) open: OpenFiles<Arc<OpenFile>>,
    pub(crate) dirs: Dirs,
    /// One after the other: appending asks for the size first.
    pub(crate) appends: NodeLocks,
}

impl Inner {
    pub(crate) async fn connect(
        (place, user): (Place, Option<String>),
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let keep = keep.as_deref();
        let files = HandleTable::open(keep)?;
        let open = OpenFiles::open(keep, |_, was, _| Arc::new(OpenFile::of_former(&was)))?;
        let takes_over = files.get(Node::ROOT).is_some();
        let outage = if takes_over { Outage::after_takeover() } else { Outage::new(false) };
        let uname = options.uname.clone().or(user).or_else(|| std::env::var("USER").ok());
        let mut inner = Inner {
            dirs: Dirs::default(),
            place,
            options,
            runtime,
            present: Arc::default(),
            outage: Arc::new(outage),
            aname: None,
            trees: Mutex::default(),
            uname: uname.unwrap_or_default(),
            own_uid: own_credentials().uid,
            files,
            open,
            appends: NodeLocks::default(),
        };
        inner.aname = inner.find_aname().await?;
        if !takes_over {
            inner.find_root().await?;
        }
        Ok(inner)
    }

    async fn find_root(&self) -> Result<()> {
        let uid = self.options.uid.unwrap_or(self.own_uid);
        let (known, _) = self.with(|session| async move { self.find(&session, uid, &[]).await }).await?;
        if known.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        self.files.note(Node::ROOT, known)
    }

    /// What has these names, and how it looks.
    pub(crate) async fn find(
        &self,
        session: &Arc<Session>,
        uid: u32,
        names: &[Name],
    ) -> Result<(KnownFile, Attr), Fault> {
        let Some((root, names)) = self.start(session, uid, names).await? else { return Ok(above(names)?) };
        let (_, attrs) = session.look(root, &names).await?;
        Ok((convert::known(&attrs)?, convert::attr(&attrs)))
    }

    /// The names that lead to a node from the root, and what it is.
    pub(crate) fn place_of(&self, node: Node) -> Result<(Vec<Name>, Option<KnownFile>)> {
        Ok((self.files.table().path(node)?, self.files.get(node)))
    }

    /// The attributes of a node that has a name.
    async fn look(&self, session: &Arc<Session>, uid: u32, node: Node) -> Result<ninep::Attrs, Fault> {
        let (names, known) = self.place_of(node)?;
        let Some((root, names)) = self.start(session, uid, &names).await? else {
            return Err(refused_above());
        };
        let (_, attrs) = session.look(root, &names).await?;
        convert::known(&attrs)?;
        is_it(known, Some(attrs.qid))?;
        Ok(attrs)
    }

    /// A fid of a node.
    pub(crate) async fn reach(&self, session: &Arc<Session>, uid: u32, node: Node) -> Result<Fid, Fault> {
        let (names, known) = self.place_of(node)?;
        let Some((root, names)) = self.start(session, uid, &names).await? else {
            return Err(refused_above());
        };
        let (fid, qid) = session.walk_to(root, &names).await?;
        is_it(known, qid)?;
        Ok(fid)
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

    /// What `name` in `dir` leads to, with a reference.
    pub(crate) async fn lookup(&self, cx: &Cx, dir: Node, name: &Name) -> Result<Entry> {
        let (mut names, known) = self.place_of(dir)?;
        if known.is_some_and(|known| known.kind != FileKind::Directory) {
            return Err(Errno::ENOTDIR.into());
        }
        names.push(name.clone());
        let (uid, names) = (self.uid(cx), &names[..]);
        match self.with(|session| async move { self.find(&session, uid, names).await }).await {
            Ok(found) => self.entry(dir, name, found),
            Err(error) => {
                if error.errno == Errno::ENOENT {
                    self.files.table().removed(dir, name);
                }
                Err(error)
            }
        }
    }

    /// The entry of a name; counts a reference.
    pub(crate) fn entry(&self, dir: Node, name: &Name, (known, attr): (KnownFile, Attr)) -> Result<Entry> {
        let node = self.files.found(dir, name, known)?;
        let generation = NodeTable::generation(node);
        Ok(Entry { node, generation, attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND })
    }

    /// The attributes of a node as they are now; of one that has lost its names by the handle of one who has it open.
    pub(crate) async fn attrs(&self, cx: &Cx, node: Node, handle: Option<Handle>) -> Result<Attrs> {
        let uid = self.uid(cx);
        let handle = handle.filter(|handle| self.open.get(*handle).is_ok());
        let handle = handle.or_else(|| self.nameless_handle(node));
        let told = self.with(|session| async move {
            if let Some(handle) = handle {
                let file = self.fid_of(&session, node, handle).await?;
                return self.told_of(&session, node, file.fid.number).await.map(Some);
            }
            match self.files.get(node).is_some_and(|known| is_above(&known)) {
                true => Ok(None),
                false => self.look(&session, uid, node).await.map(Some),
            }
        });
        let attr = match told.await? {
            Some(attrs) => {
                convert::known(&attrs)?;
                convert::attr(&attrs)
            }
            None => above(&self.files.table().path(node)?)?.1,
        };
        Ok(Attrs { attr, ttl: Ttl::SECOND })
    }

    /// The attributes of an open file: servers that look for them under the name that it had may tell those of another one.
    pub(crate) async fn told_of(
        &self,
        session: &Session,
        node: Node,
        fid: u32,
    ) -> Result<ninep::Attrs, Fault> {
        let told = session.ask(Tgetattr { fid, mask: AttrMask::BASIC }).await?.attrs;
        let handle = convert::handle(&told.qid);
        match self.files.get(node).is_none_or(|known| known.handle().starts_with(&handle)) {
            true => Ok(told),
            false => Err(Errno::ESTALE
                .because("the server takes the file that has its name now for the open one")
                .into()),
        }
    }

    /// A handle of a node that has no name any more.
    pub(crate) fn nameless_handle(&self, node: Node) -> Option<Handle> {
        self.open.is_removed(node).then(|| self.open.handles(node).first().copied()).flatten()
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
        if let Present::Open(session) = &*lock(&self.present) {
            session.mux.finish();
        }
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
