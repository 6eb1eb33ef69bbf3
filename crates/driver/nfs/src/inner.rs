// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operations share: the state of a tree, finding files, and how they look.

use crate::content::OpenFile;
use crate::convert::{self, attr};
use crate::dirs::Dirs;
use crate::exports::{Exports, attr_above, is_above, trimmed};
use crate::link;
use crate::names::As;
use crate::options::{IO_MAX, Options};
use outrigger_core::reply::{Attrs, Entry, Ttl};
use outrigger_core::{Attr, Cx, Errno, FileKind, Keep, Name, Node, NodeTable, Result, Runtime};
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::types::{self, DirName, FileHandle};
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{
    HandleTable, KnownFile, OpenFiles, RpcClient, SillyNames, SillyRename, Uncommitted, auth_sys,
    own_credentials,
};
use std::sync::{Arc, OnceLock};
use tokio::sync::OnceCell;

/// The least that is asked for of a directory at once, in bytes: what a server likes is often less than a round trip is worth.
const LISTING_MIN: u32 = 128 << 10;

/// A tree of a server.
pub(crate) struct Inner {
    pub(crate) rpc: Arc<RpcClient>,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) files: HandleTable,
    pub(crate) open: OpenFiles<Arc<OpenFile>>,
    /// Names of removed files that are open.
    pub(crate) silly: SillyNames,
    pub(crate) unstable: Uncommitted<Auth>,
    pub(crate) dirs: Dirs,
    /// The path of the root at the server; empty where that is the root there, or above all exports.
    pub(crate) base: Vec<u8>,
    limits: OnceCell<Limits>,
    /// The file system that was seen first.
    home: OnceLock<u64>,
    /// Whether the tree is all exports.
    pub(crate) has_all: bool,
    pub(crate) exports: Exports,
}

/// How much is asked for at once, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) listing: u32,
}

impl Inner {
    /// The tree of the directory `path` of `host`, or of all that it exports.
    pub(crate) async fn connect(
        host: String,
        path: Option<&[u8]>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Arc<Self>> {
        let keep = keep.as_deref();
        let files = HandleTable::open(keep)?;
        let open = OpenFiles::open(keep, |_, was, _| Arc::new(OpenFile::of_former(&was)))?;
        let silly = SillyNames::open(keep)?;
        for node in silly.given(files.table()) {
            open.mark_removed(node);
        }
        let unstable = Uncommitted::open(keep)?;
        let takes_over = files.get(Node::ROOT).is_some();
        let inner = Arc::new_cyclic(|owner| Inner {
            rpc: link::client(host, &options, Arc::clone(&runtime), takes_over, owner.clone()),
            dirs: Dirs::new(options.max_listing),
            options,
            runtime,
            files,
            open,
            silly,
            unstable,
            base: trimmed(path.unwrap_or_default()).to_vec(),
            limits: OnceCell::new(),
            home: OnceLock::new(),
            has_all: path.is_none(),
            exports: Exports::default(),
        });
        match takes_over {
            true => inner.runtime.spawn(Box::pin(Arc::clone(&inner).settle())),
            false => inner.find_root(path).await?,
        }
        Ok(inner)
    }

    /// Goes on with what former processes have begun.
    async fn settle(self: Arc<Self>) {
        // A new connection finds out about what was written.
        let connected = self.rpc.mux().await;
        let auth = auth_sys(&own_credentials(), 0);
        if let Err(error) = connected {
            tracing::warn!(%error, "the server is not reached");
        }
        self.silly_rename(&auth).settle().await;
    }

    /// Who asks.
    pub(crate) fn auth(&self, cx: &Cx) -> Auth {
        // Numbers of processes are those of this machine.
        auth_sys(&cx.cred, if cx.origin.peer.is_none() { cx.origin.pid } else { 0 })
    }

    /// The file system that was seen first: others in the tree get other device numbers.
    pub(crate) fn home(&self, attrs: &types::Attrs) -> u64 {
        *self.home.get_or_init(|| attrs.fsid)
    }

    /// Attributes of a node that the server has told.
    pub(crate) fn attr(&self, attrs: &types::Attrs) -> Attr {
        attr(attrs, self.home(attrs))
    }

    /// What a node is: looked up again along its path where a former process has died before it could be noted.
    pub(crate) async fn known(&self, auth: &Auth, node: Node) -> Result<KnownFile> {
        if let Some(known) = self.files.get(node) {
            return Ok(known);
        }
        let (mut at, table) = (Node::ROOT, self.files.table());
        for name in table.path(node)? {
            let next = table.get(at, &name).ok_or(Errno::ESTALE)?;
            if self.files.get(next).is_none() {
                self.files.note(next, self.step(auth, at, &name).await?.0)?;
            }
            at = next;
        }
        self.files.get(node).ok_or_else(|| Errno::ESTALE.into())
    }

    /// The handle of a node that the server has.
    pub(crate) async fn handle(&self, auth: &Auth, node: Node) -> Result<FileHandle> {
        let known = self.known(auth, node).await?;
        match is_above(&known) {
            true => Err(Errno::EROFS
                .because("this directory is above the exports of the server, which has no such thing")),
            false => sent(&known),
        }
    }

    /// The handle of a node that is known: nothing is asked.
    pub(crate) fn sent_handle(&self, node: Node) -> Result<FileHandle> {
        sent(&self.files.get(node).ok_or(Errno::ESTALE)?)
    }

    /// A name in a directory, as the server gets it.
    pub(crate) async fn place(&self, auth: &Auth, dir: Node, name: &Name) -> Result<DirName> {
        Ok(DirName { dir: self.handle(auth, dir).await?, name: nfs_name(name)? })
    }

    /// What `name` in a directory whose node has a handle, or is above exports, leads to.
    pub(crate) async fn step(&self, auth: &Auth, dir: Node, name: &Name) -> Result<(KnownFile, Attr)> {
        let Some(known) = self.files.get(dir) else { return Err(Errno::ESTALE.into()) };
        if known.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if is_above(&known) || self.nested_in(dir).await?.contains(name) {
            return self.below(auth, dir, name).await;
        }
        let at = DirName { dir: sent(&known)?, name: nfs_name(name)? };
        let found = match self.ask::<nfs::Lookup>(auth, &at).await {
            Err(error) if error.errno == Errno::ENOENT => {
                self.files.table().removed(dir, name);
                return Err(error);
            }
            found => found?,
        };
        self.complete(auth, found.object, found.attrs).await
    }

    /// A file with its attributes, which are asked for where the server has not told them.
    pub(crate) async fn complete(
        &self,
        auth: &Auth,
        handle: FileHandle,
        attrs: Option<types::Attrs>,
    ) -> Result<(KnownFile, Attr)> {
        if handle.is_empty() {
            return Err(Errno::EIO.because("the server gives an empty handle"));
        }
        let attrs = match attrs {
            Some(attrs) => attrs,
            None => self.ask::<nfs::GetAttr>(auth, &handle).await?,
        };
        Ok((known(&handle, &attrs)?, self.attr(&attrs)))
    }

    /// The path of a node in the tree; empty for the root.
    pub(crate) fn path(&self, node: Node) -> Result<Vec<u8>> {
        let names = self.files.table().path(node)?;
        Ok(names.iter().flat_map(|name| [b"/", &name[..]].concat()).collect())
    }

    /// What `name` in `dir` leads to, with a reference.
    pub(crate) async fn lookup(&self, cx: &Cx, dir: Node, name: &Name) -> Result<Entry> {
        let auth = self.auth(cx);
        if self.silly_rename(&auth).has(dir, name) {
            return Err(Errno::ENOENT.into());
        }
        self.known(&auth, dir).await?;
        let found = self.step(&auth, dir, name).await?;
        self.entry(dir, name, found)
    }

    /// The entry of a name; counts a reference.
    pub(crate) fn entry(&self, dir: Node, name: &Name, (known, attr): (KnownFile, Attr)) -> Result<Entry> {
        let node = self.files.found(dir, name, known)?;
        let generation = NodeTable::generation(node);
        Ok(Entry { node, generation, attr, entry_ttl: Ttl::SECOND, attr_ttl: Ttl::SECOND })
    }

    /// What becomes of open files that lose their names, for a user.
    pub(crate) fn silly_rename<'a>(&'a self, auth: &'a Auth) -> SillyRename<'a, Arc<OpenFile>, (), As<'a>> {
        let (names, table, open) = (&self.silly, self.files.table(), &self.open);
        SillyRename { names, table, open, server: As { inner: self, auth } }
    }

    /// The attributes of a node as they are now.
    pub(crate) async fn attrs(&self, auth: &Auth, node: Node) -> Result<Attrs> {
        let known = self.known(auth, node).await?;
        let mut attr = match is_above(&known) {
            true => attr_above(&known),
            false => self.attr(&self.ask::<nfs::GetAttr>(auth, &sent(&known)?).await?),
        };
        if self.open.is_removed(node) {
            attr.nlink = 0;
        }
        Ok(Attrs { attr, ttl: Ttl::SECOND })
    }

    /// How much can be asked for at once.
    pub(crate) async fn limits(&self, auth: &Auth, file: FileHandle) -> Result<Limits> {
        let limits = self.limits.get_or_try_init(async || {
            let info = self.ask::<nfs::FsInfo>(auth, &file).await?;
            let [read, write] = self.options.sizes;
            // What makes no sense is no statement.
            let at_most = |most: u32, own: u32| if most < 512 { own.min(8 << 10) } else { own.min(most) };
            Ok::<_, outrigger_core::Error>(Limits {
                read: at_most(info.read_max, read),
                write: at_most(info.write_max, write),
                listing: info.read_dir_preferred.clamp(LISTING_MIN, IO_MAX),
            })
        });
        limits.await.copied()
    }
}

/// A file that the server has.
pub(crate) fn known(handle: &FileHandle, attrs: &types::Attrs) -> Result<KnownFile> {
    KnownFile::new(handle, attrs.fileid, convert::kind(attrs.kind))
}

/// The handle of a file, as it is sent.
pub(crate) fn sent(known: &KnownFile) -> Result<FileHandle> {
    FileHandle::new(known.handle()).map_err(|_| Errno::ESTALE.into())
}

pub(crate) fn nfs_name(name: &Name) -> Result<types::Name> {
    types::Name::new(name.as_bytes().to_vec()).map_err(|_| Errno::ENAMETOOLONG.into())
}
