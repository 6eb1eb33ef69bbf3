// SPDX-License-Identifier: MIT OR Apache-2.0
//! The MOUNT program: the handle of a tree by its path (RFC 1813, section 5).

use crate::answer::{Caller, Dispatch, success};
use crate::export::{Export, Outcome};
use outrigger_core::{Credentials, Cx, FileKind};
use outrigger_proto_nfs3::mount::{Call, DirPath, ExportEntry, HostName, MountEntry, Mounted, Status};
use outrigger_proto_nfs3::types::{self as nfs, FileType};
use outrigger_proto_nfs3::xdr::rpc::AUTH_SYS;
use outrigger_proto_nfs3::xdr::{Array, Encoded, List};
use std::sync::atomic::Ordering;

pub(crate) async fn answer(dispatch: &Dispatch, caller: &mut Caller, call: Call) -> Encoded {
    let xid = caller.xid;
    match call {
        // What a client has mounted is its own business: nothing is remembered.
        Call::Null(()) | Call::Umnt(_) | Call::UmntAll(()) => success(xid, &()),
        Call::Dump(()) => success(xid, &List::<MountEntry>(Vec::new())),
        Call::Export(()) => success(xid, &List(dispatch.exports.iter().map(exported).collect())),
        Call::Mnt(path) => success(xid, &mounted(dispatch, caller, &path).await),
    }
}

fn exported(export: &Export) -> ExportEntry {
    let path = DirPath::new(format!("/{}", export.name)).unwrap_or_default();
    let networks = export.callers.networks.iter();
    let groups = networks.filter_map(|network| HostName::new(network.to_string()).ok()).collect();
    ExportEntry { path, groups: List(groups) }
}

/// The handle of the directory at `path`: an export, or a directory in one.
async fn mounted(dispatch: &Dispatch, caller: &mut Caller, path: &[u8]) -> Result<Mounted, Status> {
    if !dispatch.mounts.load(Ordering::Relaxed) {
        return Err(Status::ACCES);
    }
    let Some((export, names)) = place(&dispatch.exports, path) else {
        if let Some(more) = dispatch.refusals.export.due() {
            let (peer, path) = (caller.peer(), path.escape_ascii());
            tracing::warn!("{peer} was refused: nothing is exported as '{path}'{more}");
        }
        return Err(Status::NOENT);
    };
    let cx = dispatch.enter(caller, export).map_err(code)?;
    let handle = descend(export, cx, &names).await.map_err(code)?;
    let flavors = Array::new(vec![AUTH_SYS]).map_err(|_| Status::SERVERFAULT)?;
    Ok(Mounted { handle, flavors })
}

/// The export with the longest path that `path` begins with, and the names that follow.
fn place<'a, 'b>(exports: &'a [Export], path: &'b [u8]) -> Option<(&'a Export, Vec<&'b [u8]>)> {
    let names: Vec<&[u8]> = names(path).collect();
    let depth = |export: &Export| {
        let own: Vec<&[u8]> = self::names(export.name.as_bytes()).collect();
        names.starts_with(&own).then_some(own.len())
    };
    let (export, depth) =
        exports.iter().filter_map(|export| Some((export, depth(export)?))).max_by_key(|(_, depth)| *depth)?;
    Some((export, names[depth..].to_vec()))
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

async fn descend(export: &Export, caller: &Cx, names: &[&[u8]]) -> Outcome<nfs::FileHandle> {
    // As the superuser: whether the client's users may use what is there, each call decides.
    let cx = &Cx { cred: Credentials::ROOT, ..caller.aside() };
    let mut id = export.files.root();
    for name in names {
        let dir = export.file(cx, id).await?;
        let name =
            nfs::Name::new(bytes::Bytes::copy_from_slice(name)).map_err(|_| nfs::Status::NAMETOOLONG)?;
        let (found, attrs) = export.found(cx, &dir, &name).await?;
        if attrs.kind != FileType::Directory {
            return Err(nfs::Status::NOTDIR);
        }
        id = found;
    }
    let root = export.file(cx, id).await?;
    match export.attr(cx, root.node).await?.kind() {
        FileKind::Directory => Ok(export.handle(id)),
        _ => Err(nfs::Status::NOTDIR),
    }
}

/// The code of MOUNT for one of NFS: the numbers are the same where MOUNT has one.
fn code(status: nfs::Status) -> Status {
    match status {
        nfs::Status::PERM => Status::PERM,
        nfs::Status::NOENT => Status::NOENT,
        nfs::Status::IO => Status::IO,
        nfs::Status::ACCES => Status::ACCES,
        nfs::Status::NOTDIR => Status::NOTDIR,
        nfs::Status::INVAL => Status::INVAL,
        nfs::Status::NAMETOOLONG => Status::NAMETOOLONG,
        nfs::Status::NOTSUPP => Status::NOTSUPP,
        _ => Status::SERVERFAULT,
    }
}
