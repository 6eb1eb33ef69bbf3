// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: the connection, the nodes, what is open.

use crate::attr;
use crate::dial::Dial;
use crate::dirs::OpenDir;
use crate::fault::Fault;
use crate::idmap::People;
use crate::kept::{Kept, Origins};
use crate::link::{Again, Link};
use crate::look::Look;
use crate::opened::Files;
use crate::options::Options;
use crate::origin::{Earlier, Unsynced};
use crate::pending_create::Usual;
use crate::seen::Seen;
use crate::session::{Pending, Session};
use outrigger_core::reply::{Attrs as AttrsReply, Entry, Ttl};
use outrigger_core::{Attr, Errno, Error, FileKind, Name, Node, NodeTable, Result, Runtime, lock};
use outrigger_proto_sftp::{Attrs, Extensions, Owner, Request};
use outrigger_toolkit_remote::{HiddenNames, InodeTable, OpenDirs, SillyNames};
use rustix::process::{getegid, geteuid};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A tree of a server.
pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) inodes: InodeTable,
    pub(crate) people: People,
    pub(crate) files: Files,
    pub(crate) unsynced: Unsynced,
    pub(crate) dirs: OpenDirs<Arc<OpenDir>>,
    pub(crate) home: Vec<u8>,
    /// What the user calls it.
    pub(crate) tree: String,
    /// What the server could do when it was asked first.
    pub(crate) extensions: Extensions,
    /// Attributes of files that were removed while there were references to them, and were not open.
    pub(crate) removed: Mutex<HashMap<Node, Attr>>,
    /// Names of removed files that are open.
    pub(crate) silly: Arc<SillyNames>,
    /// Files that are not open any more and that are being removed.
    pub(crate) removing: Arc<HiddenNames>,
    /// What new files look like.
    pub(crate) usual: Usual,
    /// What was last seen of files.
    pub(crate) seen: Seen,
    /// What outlives this process.
    pub(crate) kept: Option<Arc<Kept>>,
    /// Until when requests may come that a former process has worked on.
    repeats_until: Option<Duration>,
}

/// For how long requests may come that a former process has worked on: the kernel sends them again at once.
const REPEATS: Duration = Duration::from_secs(30);

impl Inner {
    pub(crate) async fn connect(
        dial: Box<dyn Dial>,
        host: &str,
        path: &[u8],
        options: Options,
        runtime: Arc<dyn Runtime>,
        kept: Option<Arc<Kept>>,
    ) -> Result<Self> {
        let keep = kept.as_ref().map(|kept| Arc::clone(&kept.keep));
        let people = People::open(&options, keep.as_deref())?;
        let files = Files::open(keep.as_deref())?;
        let link = Link::new(dial, options, Arc::clone(&runtime), kept.clone());
        let shown = String::from_utf8_lossy(path).into_owned();
        let known = kept.as_ref().and_then(|kept| kept.origins());
        let repeats_until = known.as_ref().map(|_| runtime.monotonic() + REPEATS);
        let (origins, root) = match known {
            Some(known) => (known, None),
            None => greeted(&link, host, path, &shown).await?,
        };
        let here = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let people = people.between(origins.owner, here);
        root.map(|root| people.shown(root)).transpose().map_err(|error| about(&shown, host, error))?;
        if let (Some(kept), None) = (&kept, repeats_until) {
            kept.note_origins(&origins);
        }
        let inner = Inner {
            inodes: InodeTable::open(keep.as_deref(), origins.base)?,
            people,
            files,
            unsynced: Unsynced::default(),
            dirs: OpenDirs::default(),
            home: origins.home.to_vec(),
            tree: format!("{host}:{shown}"),
            extensions: origins.extensions,
            removed: Mutex::default(),
            silly: Arc::new(SillyNames::open(keep.as_deref())?),
            removing: Arc::default(),
            usual: Usual::default(),
            seen: Seen::default(),
            kept,
            repeats_until,
            link,
        };
        inner.take_over().await;
        Ok(inner)
    }

    /// Goes on with what a former process had open.
    async fn take_over(&self) {
        let Some(kept) = &self.kept else { return };
        kept.unsynced().into_iter().for_each(|by| self.unsynced.note_all(Earlier::Former(by)));
        if self.repeats_until.is_none() {
            return;
        }
        if let Some(session) = self.link.present() {
            self.files.adopt(&session, kept);
            self.ask_for_pending(&session).await;
        }
        self.silly_rename().settle().await;
    }

    /// Whether requests may come that a former process has worked on.
    pub(crate) fn repeats(&self) -> bool {
        self.repeats_until.is_some_and(|until| self.link.runtime().monotonic() < until)
    }

    pub(crate) fn options(&self) -> &Options {
        self.link.options()
    }

    /// Attributes of what is at a path: of symbolic links themselves, unless the user wants to see what they lead to.
    pub(crate) async fn look(&self, path: &[u8]) -> Result<Attrs, Fault> {
        self.look_at(path, self.link.follows()).await
    }

    async fn look_at(&self, path: &[u8], follow: bool) -> Result<Attrs, Fault> {
        let look = |session| async move { Look::at(&session, path, follow).await.attrs().await };
        self.link.run(Again::Always, look).await
    }

    /// The absolute path of one that is relative to the home of the user, or begins with `~`.
    pub(crate) async fn absolute(&self, path: &[u8]) -> Result<Vec<u8>> {
        let Some(path) = path.strip_prefix(b"~") else { return join_home(&self.home, path) };
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (user, rest) = path.split_at(end);
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        if user.is_empty() {
            return join_home(&self.home, rest);
        }
        let home = [b"~", user].concat();
        let expand = Request::ExpandPath { path: &home };
        join_home(&self.link.ask(Again::Always, &expand, Pending::name).await?, rest)
    }

    /// Asks for a change whose repetition may do harm.
    pub(crate) async fn change(&self, request: &Request<'_>) -> Result<(), Fault> {
        self.link.ask(Again::Never, request, Pending::done).await
    }

    /// Asks for a change, and how the file at `path` looks then, in one round trip.
    pub(crate) async fn change_and_look(&self, request: &Request<'_>, path: &[u8]) -> Result<Attrs, Fault> {
        // The reply to the making of a link shows a link: kernels take nothing else for an answer.
        let follow = self.link.follows() && !matches!(request, Request::SymLink { .. });
        let made = self.link.run(Again::Never, |session| async move {
            let change = session.begin(request).await;
            let look = Look::at(&session, path, follow).await;
            change.done().await?;
            Ok(look.attrs().await)
        });
        match made.await? {
            Ok(attrs) => Ok(attrs),
            // The connection was lost in between, or the server does not keep the order.
            Err(_) => self.look_at(path, follow).await,
        }
    }

    /// The attributes that a node shows.
    ///
    /// # Errors
    /// As [`People::shown`].
    fn shown(&self, node: Node, ino: u64, attrs: &Attrs) -> Result<Attr> {
        let mut attr = attr::attr(attrs, ino, &self.people)?;
        match attr.kind() {
            _ if self.files.is_removed(node) => attr.nlink = 0,
            FileKind::Directory => {}
            // Links that were made or found here are known; the server does not list others.
            _ => attr.nlink = self.inodes.table().links(node).max(1) as u32,
        }
        if attr.kind() == FileKind::Regular {
            let now = self.link.runtime().coarse_wall();
            self.seen.saw(node, attrs, self.permits_reading(attrs), now);
        }
        Ok(attr)
    }

    /// The entry of a name that the server says leads to a file with these attributes. Counts a reference.
    pub(crate) fn entry(&self, dir: Node, name: &Name, attrs: &Attrs) -> Result<Entry> {
        // Before a reference is counted that would never be given back.
        self.people.shown(attrs.owner.unwrap_or_default())?;
        let (node, ino) = self.inodes.found(dir, name, attr::kind(attrs))?;
        self.entry_of(node, ino, attrs)
    }

    /// The entry of a known node.
    pub(crate) fn entry_of(&self, node: Node, ino: u64, attrs: &Attrs) -> Result<Entry> {
        Ok(Entry {
            node,
            generation: NodeTable::generation(node),
            attr: self.shown(node, ino, attrs)?,
            entry_ttl: Ttl::SECOND,
            attr_ttl: Ttl::SECOND,
        })
    }

    /// What getattr answers for a node with these attributes.
    pub(crate) fn attrs_of(&self, node: Node, attrs: &Attrs) -> Result<AttrsReply> {
        let ino = self.inodes.ino(node)?;
        Ok(AttrsReply { attr: self.shown(node, ino, attrs)?, ttl: Ttl::SECOND })
    }

    /// Remembers what `name` in `dir` leads to, though there may be no reference to it.
    pub(crate) fn keep(&self, dir: Node, name: &Name) {
        if let Some(oldest) = self.inodes.pin(dir, name) {
            self.forget(oldest, 1);
        }
    }

    /// Whether the user at the server may read a file with these attributes, as far as they show that.
    fn permits_reading(&self, attrs: &Attrs) -> bool {
        let (Some(us), Some(mode), Some(owner)) = (self.people.there(), attrs.permissions, attrs.owner)
        else {
            return false;
        };
        let class = match owner {
            _ if us.uid == 0 => return true,
            Owner { uid, .. } if uid == us.uid => 0o400,
            // Of the other groups of the user nothing is known.
            Owner { gid, .. } if gid == us.gid => 0o040,
            _ => 0o044,
        };
        mode & class == class
    }

    /// Drops what is known of a node without references.
    pub(crate) fn forget(&self, node: Node, count: u64) {
        self.inodes.table().forget(node, count);
        if self.inodes.table().key(node).is_err() {
            lock(&self.removed).remove(&node);
            self.seen.forget(node);
            self.usual.forget(node);
        }
    }
}

fn join_home(home: &[u8], path: &[u8]) -> Result<Vec<u8>> {
    if path.is_empty() { Ok(home.to_vec()) } else { outrigger_toolkit_remote::join(home.to_vec(), path) }
}

/// Finds out where a tree begins, and to whom that place belongs, if that is known.
///
/// # Errors
/// Why it cannot be served.
async fn greeted(link: &Link, host: &str, path: &[u8], shown: &str) -> Result<(Origins, Option<Owner>)> {
    // Why there is no connection is said as it is.
    link.session().await?;
    let greeting = link.run(Again::Always, |session| ask_about(session, path)).await;
    greeting.map_err(|fault| about(shown, host, fault.into()))
}

/// Asks where the tree begins and for our identity, at once.
async fn ask_about(session: Session, path: &[u8]) -> Result<(Origins, Option<Owner>), Fault> {
    let (home, owner) =
        (session.begin(&Request::RealPath { path: b"." }), session.begin(&Request::Stat { path: b"." }));
    let (home, owner) = (home.await, owner.await);
    let base = match path.strip_prefix(b"~") {
        Some(_) if session.has(Extensions::EXPAND_PATH) => session.begin(&Request::ExpandPath { path }).await,
        Some(b"" | b"/") => session.begin(&Request::RealPath { path: b"." }).await,
        Some([b'/', rest @ ..]) => session.begin(&Request::RealPath { path: rest }).await,
        _ if path.is_empty() => session.begin(&Request::RealPath { path: b"." }).await,
        _ => session.begin(&Request::RealPath { path }).await,
    };
    let (home, owner, base) = (home.name().await?, owner.attrs().await?.owner, base.name().await?);
    let attrs = session.begin(&Request::Stat { path: &base }).await.attrs().await?;
    if !base.starts_with(b"/") || base.contains(&0) {
        return Err(Fault::Odd(format!("it calls a directory '{}'", base.escape_ascii())));
    }
    if attr::kind(&attrs) != FileKind::Directory {
        return Err(Errno::ENOTDIR.into());
    }
    Ok((Origins { home, owner, base, extensions: session.extensions }, attrs.owner))
}

fn about(path: &str, host: &str, error: Error) -> Error {
    let what = match path {
        "" => format!("the home directory at {host}"),
        path => format!("{path} at {host}"),
    };
    match &error.reason {
        Some(reason) => error.errno.because(format!("{what}: {reason}")),
        // The number says it all.
        None => error,
    }
}
