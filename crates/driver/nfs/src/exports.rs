// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server exports, by the MOUNT program, and all of it as one tree: directories above exports, which the server does not have,
//! and exports that lie in others, which it does not show there.

use crate::inner::{Inner, nfs_name, sent};
use outrigger_core::{Attr, Errno, Error, FileKind, Name, Node, Result};
use outrigger_proto_nfs3::mount::{self, DirPath, Mounted, procedure as mounting};
use outrigger_proto_nfs3::nfs::{self, procedure};
use outrigger_proto_nfs3::types::DirName;
use outrigger_proto_nfs3::xdr::Procedure;
use outrigger_proto_nfs3::xdr::rpc::{AUTH_NONE, AUTH_SYS, Auth};
use outrigger_toolkit_remote::{KnownFile, RpcClient, auth_sys, hash, own_credentials};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};

/// For so long the list of exports is believed, as names and attributes are.
const VALID: Duration = Duration::from_secs(1);

/// Paths of exports, without slashes at their ends.
type Paths = BTreeSet<Vec<u8>>;

/// What a server exports.
#[derive(Default)]
pub(crate) struct Exports {
    /// When it was asked last, and what it said.
    last: Mutex<Option<(Duration, Result<Arc<Paths>>)>>,
    /// Exports that lie in others, as the server said first: nothing in an export waits for the MOUNT program after that.
    nested: OnceCell<Paths>,
}

fn paths(told: impl Iterator<Item = Vec<u8>>) -> Paths {
    told.map(|path| trimmed(&path).to_vec()).collect()
}

/// Those of `all` that lie in others.
fn nested(all: &Paths) -> Paths {
    let lies_in_another =
        |path: &&Vec<u8>| (0..path.len()).any(|at| path[at] == b'/' && all.contains(&path[..at]));
    all.iter().filter(lies_in_another).cloned().collect()
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

    /// What the server exports, as it said a moment ago: a listing of exports asks once.
    async fn exports(&self) -> Result<Arc<Paths>> {
        let mut last = self.exports.last.lock().await;
        if let Some((at, told)) = &*last
            && self.runtime.monotonic() < *at + VALID
        {
            return told.clone();
        }
        let told = self.ask_mount::<mounting::Export>(()).await;
        let all = told.map(|told| Arc::new(paths(told.0.into_iter().map(|export| export.path.to_vec()))));
        if let Ok(all) = &all {
            let _ = self.exports.nested.set(nested(all));
        }
        *last = Some((self.runtime.monotonic(), all.clone()));
        all
    }

    /// Finds the root: the directory `path` of the server, or the one that has all exports.
    pub(crate) async fn find_root(&self, path: Option<&[u8]>) -> Result<()> {
        let auth = auth_sys(&own_credentials(), 0);
        let path = match path {
            Some(path) => Some(path),
            None => match self.exports().await {
                Err(error) if !is_untold(&error) => return Err(error),
                all => all.is_ok_and(|all| all.contains(&b""[..])).then_some(&b"/"[..]),
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
        let nested = self.exports.nested.get_or_try_init(async || match self.exports().await {
            Err(error) if is_untold(&error) => Ok(Paths::new()),
            all => all.map(|all| nested(&all)),
        });
        let nested = nested.await?;
        if nested.is_empty() {
            return Ok(Vec::new());
        }
        let path = self.path(dir)?;
        // Others are below directories that are in the export.
        let names = below(nested, &path).map(|rest| Name::new(rest.to_vec()));
        Ok(names.flatten().collect())
    }

    /// The names of exports, and of directories above them, in a directory above exports.
    pub(crate) async fn names_above(&self, dir: Node) -> Result<Vec<Name>> {
        let all = self.exports().await?;
        let first = |rest: &[u8]| Name::new(rest.split(|&byte| byte == b'/').next()?.to_vec()).ok();
        Ok(below(&all, &self.path(dir)?).filter_map(first).collect())
    }

    /// What `name` in a directory above exports leads to: an export, a directory in one, or another one above.
    pub(crate) async fn below(&self, auth: &Auth, dir: Node, name: &Name) -> Result<(KnownFile, Attr)> {
        let path = [&self.path(dir)?[..], b"/", name].concat();
        let above = || above(&path).map(|above| (above, attr_above(&above)));
        let all = self.exports().await;
        if all.as_ref().is_ok_and(|all| !all.contains(&path) && below(all, &path).next().is_some()) {
            return above();
        }
        let refused = match self.mounted(auth, &path).await {
            Err(error) if all.as_ref().is_ok_and(|all| !all.is_empty()) => return Err(error),
            Err(error) => error,
            mounted => return mounted,
        };
        // A server that does not tell what it exports may have a file there, which cannot be mounted by its path, or something further
        // down.
        match (self.in_mounted(auth, dir, name).await, refused.errno) {
            (Ok(found), _) => Ok(found),
            (Err(_), Errno::ENOENT | Errno::EACCES) if all.is_err() => above(),
            (Err(_), _) => Err(refused),
        }
    }

    /// What `name` leads to in a directory that may be in an export although it is taken for one above them.
    async fn in_mounted(&self, auth: &Auth, dir: Node, name: &Name) -> Result<(KnownFile, Attr)> {
        let path = [&self.path(dir)?[..], b"/"].concat();
        let dir = self.mounted(auth, if path.len() > 1 { trimmed(&path) } else { &path }).await?.0;
        let at = DirName { dir: sent(&dir)?, name: nfs_name(name)? };
        let found = self.ask::<procedure::Lookup>(auth, &at).await?;
        self.complete(auth, found.object, found.attrs).await
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
        let of = |told: &[&str]| paths(told.iter().map(|path| path.as_bytes().to_vec()));
        let all = of(&["/", "/b/", "/bc", "/b/d/e", "/b/f"]);
        assert!(all.contains(&b""[..]) && nested(&all).len() == 4);
        assert!(below(&all, b"/b").eq([&b"d/e"[..], b"f"]), "a name that begins with another is apart");
        assert!(below(&all, b"").eq([&b"b"[..], b"b/d/e", b"b/f", b"bc"]));
        assert!(nested(&of(&["/a/b", "/a/c"])).is_empty());
    }
}
