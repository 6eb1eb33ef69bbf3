// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server exports, by the MOUNT program, and all of it as one tree: directories above exports, which the server does not have,
//! and exports that lie in others, which it does not show there.

use crate::inner::Inner;
use outrigger_core::{Attr, Errno, Error, FileKind, Name, Node, Result};
use outrigger_proto_nfs3::mount::{self, DirPath, Mounted, procedure as mounting};
use outrigger_proto_nfs3::nfs;
use outrigger_proto_nfs3::xdr::Procedure;
use outrigger_proto_nfs3::xdr::rpc::{AUTH_NONE, AUTH_SYS, Auth};
use outrigger_toolkit_remote::{KnownFile, RpcClient, auth_sys, hash, own_credentials};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// For so long the list of exports is believed, as names and attributes are.
const VALID: Duration = Duration::from_secs(1);

/// Paths of exports, without slashes at their ends.
type Paths = BTreeSet<Vec<u8>>;

/// What a server exports.
#[derive(Clone)]
struct List {
    all: Arc<Paths>,
    /// Those that lie in others.
    nested: Arc<Paths>,
}

/// What a server has exported when it was last asked.
#[derive(Default)]
pub(crate) struct Exports(Mutex<Option<(Duration, Result<List>)>>);

impl List {
    fn new(paths: impl Iterator<Item = Vec<u8>>) -> Self {
        let all: Paths = paths.map(|path| trimmed(&path).to_vec()).collect();
        let lies_in_another =
            |path: &&Vec<u8>| (0..path.len()).any(|at| path[at] == b'/' && all.contains(&path[..at]));
        let nested = all.iter().filter(lies_in_another).cloned().collect();
        List { all: Arc::new(all), nested: Arc::new(nested) }
    }
}

/// The path of an export without slashes at its end: `/` is empty.
pub(crate) fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// What `paths` have below the directory `dir`, without its path.
fn below<'a>(paths: &'a Paths, dir: &[u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let dir = [dir, b"/"].concat();
    paths.range(dir.clone()..).map_while(move |path| path.strip_prefix(&dir[..]))
}

/// Asks the MOUNT program, which may be at the port of NFS.
async fn ask<P: Procedure>(
    rpc: Arc<RpcClient>,
    (port, mountport): (Option<u16>, Option<u16>),
    args: P::Args,
) -> Result<P::Results> {
    let refused = match mountport.or(port) {
        None => None,
        Some(port) => match rpc.once::<P>(port, &args).await {
            Err(error) if mountport.is_none() => Some(error),
            answer => return answer,
        },
    };
    match (rpc.registered(mount::PROGRAM, mount::VERSION).await, refused) {
        (Ok(Some(port)), _) => rpc.once::<P>(port, &args).await,
        (_, Some(error)) | (Err(error), None) => Err(error),
        (Ok(None), None) => rpc.once::<P>(nfs::PORT, &args).await,
    }
}

/// Whether a server does not tell what it exports, which it need not.
fn is_untold(error: &Error) -> bool {
    matches!(error.errno, Errno::EPROTO | Errno::EOPNOTSUPP)
}

impl Inner {
    async fn ask_mount<P: Procedure<Args: Send + Sync + 'static, Results: Send + 'static> + 'static>(
        &self,
        args: P::Args,
    ) -> Result<P::Results> {
        let ports = (self.options.port, self.options.mountport);
        self.rpc.apart(ask::<P>(Arc::clone(&self.rpc), ports, args)).await
    }

    /// The directory at `path` of the server.
    ///
    /// # Errors
    /// Why the server does not let it be mounted or does not answer; `EACCES` where it wants other credentials than ours.
    async fn mounted(&self, auth: &Auth, path: &[u8]) -> Result<(KnownFile, Attr)> {
        let long = |_| Errno::ENAMETOOLONG.because("the path of an export has at most 1024 bytes");
        let dir = DirPath::new(path.to_vec()).map_err(long)?;
        let (host, shown) = (self.rpc.host(), path.escape_ascii());
        let Mounted { handle, flavors } = self.ask_mount::<mounting::Mnt>(dir).await?.map_err(|status| {
            let errno = match status {
                mount::Status::PERM | mount::Status::ACCES => Errno::EACCES,
                mount::Status::NOENT => Errno::ENOENT,
                mount::Status::NOTDIR => Errno::ENOTDIR,
                mount::Status::NAMETOOLONG => Errno::ENAMETOOLONG,
                _ => Errno::EIO,
            };
            errno.because(format!("{host} does not export {}: {status}", path.escape_ascii()))
        })?;
        if !flavors.is_empty() && !flavors.iter().any(|&flavor| matches!(flavor, AUTH_SYS | AUTH_NONE)) {
            let why = format!("{host}:{shown} wants other credentials than AUTH_SYS");
            return Err(Errno::EACCES.because(why));
        }
        self.complete(auth, handle, None).await
    }

    /// What the server exports, as it said a moment ago, or at any time if `any_time`: a listing of exports asks once.
    async fn exports(&self, any_time: bool) -> Result<List> {
        let mut last = self.exports.0.lock().await;
        let is_recent = |at: &Duration| self.runtime.monotonic() < *at + VALID;
        match &*last {
            Some((at, list)) if is_recent(at) => return list.clone(),
            Some((_, list)) if any_time && list.as_ref().err().is_none_or(is_untold) => return list.clone(),
            _ => {}
        }
        let told = self.ask_mount::<mounting::Export>(()).await;
        let list = told.map(|told| List::new(told.0.into_iter().map(|export| export.path.to_vec())));
        *last = Some((self.runtime.monotonic(), list.clone()));
        list
    }

    /// Finds the root: the directory `path` of the server, or the one that has all exports.
    pub(crate) async fn find_root(&self, path: Option<&[u8]>) -> Result<()> {
        let auth = auth_sys(&own_credentials(), 0);
        let path = match path {
            Some(path) => Some(path),
            None => match self.exports(false).await {
                Err(error) if !is_untold(&error) => return Err(error),
                list => list.is_ok_and(|list| list.all.contains(&b""[..])).then_some(&b"/"[..]),
            },
        };
        let root = match path {
            Some(path) => self.mounted(&auth, path).await?.0,
            None => above(b"")?,
        };
        self.files.note(Node::ROOT, root)
    }

    /// The names in a directory of an export that lead to other exports.
    pub(crate) async fn nested_in(&self, dir: Node) -> Result<Vec<Name>> {
        if !self.has_all {
            return Ok(Vec::new());
        }
        let nested = match self.exports(true).await {
            Err(error) if is_untold(&error) => return Ok(Vec::new()),
            list => list?.nested,
        };
        if nested.is_empty() {
            return Ok(Vec::new());
        }
        // Others are below directories that are in the export.
        let names = below(&nested, &self.path(dir)?).map(|rest| Name::new(rest.to_vec()));
        Ok(names.flatten().collect())
    }

    /// The names of exports, and of directories above them, in a directory above exports.
    pub(crate) async fn names_above(&self, dir: Node) -> Result<Vec<Name>> {
        let all = self.exports(false).await?.all;
        let first = |rest: &[u8]| Name::new(rest.split(|&byte| byte == b'/').next()?.to_vec()).ok();
        Ok(below(&all, &self.path(dir)?).filter_map(first).collect())
    }

    /// What `name` in a directory above exports leads to: an export, a directory in one, or another one above.
    pub(crate) async fn below(&self, auth: &Auth, dir: Node, name: &Name) -> Result<(KnownFile, Attr)> {
        let path = [&self.path(dir)?[..], b"/", name].concat();
        let above = || above(&path).map(|above| (above, attr_above(&above)));
        let all = self.exports(false).await.map(|list| list.all);
        if all.as_ref().is_ok_and(|all| !all.contains(&path) && below(all, &path).next().is_some()) {
            return above();
        }
        match self.mounted(auth, &path).await {
            // A server that does not tell what it exports may have something further down.
            Err(error) if all.is_err() && matches!(error.errno, Errno::ENOENT | Errno::EACCES) => above(),
            mounted => mounted,
        }
    }
}

/// A directory above exports, which the server does not have: it has no handle.
fn above(path: &[u8]) -> Result<KnownFile> {
    KnownFile::new(&[], hash(&[b"above exports", path]) >> 1, FileKind::Directory)
}

pub(crate) fn is_above(known: &KnownFile) -> bool {
    known.handle().is_empty()
}

/// The attributes of a directory above exports.
pub(crate) fn attr_above(known: &KnownFile) -> Attr {
    let mode = FileKind::Directory.bits() | 0o555;
    Attr { ino: known.ino, mode, nlink: 2, blksize: 4096, ..Attr::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_that_lie_in_others_are_found_and_listed_where_they_are() {
        let paths = ["/", "/b/", "/bc", "/b/d/e", "/b/f"].map(|path| path.as_bytes().to_vec());
        let list = List::new(paths.into_iter());
        assert!(list.all.contains(&b""[..]) && list.nested.len() == 4);
        assert!(below(&list.all, b"/b").eq([&b"d/e"[..], b"f"]), "a name that begins with another is apart");
        assert!(below(&list.all, b"").eq([&b"b"[..], b"b/d/e", b"b/f", b"bc"]));
        let apart = List::new([b"/a/b".to_vec(), b"/a/c".to_vec()].into_iter());
        assert!(apart.nested.is_empty());
    }
}
