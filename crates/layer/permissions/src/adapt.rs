// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests as a kernel would pass them on: the set-group-ID bit is for members of the group (chmod(2), inode(7)).

use crate::check::{Check, Stop};
use outrigger_core::attr::{MODE_PERMISSIONS, SET_GID, SET_ID};
use outrigger_core::ops::{Create, MkDir, MkNod, OpenFlags, SymLink, TmpFile, XattrFlags};
use outrigger_core::{Added, Effect, Errno, Name, Node, Request, SetAttrs};

/// Set-group-ID, and execute permission of the group: without that the bit is another thing.
const RUNS_AS_GROUP: u32 = SET_GID | 0o010;

/// The file and the permissions of a request for those.
pub(crate) fn probe(request: &Request) -> Option<(Node, u32)> {
    if let Request::Access(op) = request { Some((op.node, op.mask)) } else { None }
}

/// Makes a request that makes a file or opens it make one only.
pub(crate) fn make_exclusive(request: &mut Request) {
    if let Request::Create(op) = request {
        op.flags |= OpenFlags::EXCL;
    }
}

/// What makes a file, or opens the one that has the name.
pub(crate) fn makes_or_opens(request: &Request) -> Option<(Node, Name, OpenFlags)> {
    let flags = request.opens()?.flags?;
    request.effects().into_iter().find_map(|effect| match effect {
        Effect::Adds { dir, name, file: Added::New { exclusive: false, .. } } => {
            Some((dir, name.clone(), flags))
        }
        _ => None,
    })
}

/// Takes bits out of `request`, which is permitted, that its caller may not set.
pub(crate) fn adapt(check: &Check<'_>, request: &mut Request) -> Result<(), Stop> {
    match request {
        Request::SetAttr(op) => {
            if let Some(mode) = op.attrs.mode.as_mut().filter(|mode| **mode & SET_GID != 0) {
                let gid = op.attrs.gid.map_or_else(|| check.owner(op.node).map(|owner| owner.gid), Ok)?;
                strip(check, mode, gid);
            }
            if op.attrs.mode.is_none() && (op.attrs.uid.is_some() || op.attrs.gid.is_some()) {
                let owner = check.owner(op.node)?;
                let is_other_thing = owner.mode & RUNS_AS_GROUP == SET_GID && !owner.is_dir();
                // The tree below asks by a right of its own, which would leave the bit.
                if is_other_thing && !check.cred.in_group(owner.gid) {
                    op.attrs.mode = Some(owner.mode & MODE_PERMISSIONS & !SET_ID);
                }
            }
        }
        Request::SetXattr(op) if op.name.as_bytes() == b"system.posix_acl_access" => {
            let owner = check.owner(op.node)?;
            if owner.mode & SET_GID != 0 && !check.cred.in_group(owner.gid) {
                op.flags |= XattrFlags::KILL_SGID;
            }
        }
        Request::Create(Create { dir, mode, initial, .. })
        | Request::MkNod(MkNod { dir, mode, initial, .. }) => {
            makes(check, *dir, mode)?;
            begins(check, *dir, initial)?;
        }
        Request::TmpFile(TmpFile { dir, mode, .. }) => makes(check, *dir, mode)?,
        Request::MkDir(MkDir { dir, initial, .. }) | Request::SymLink(SymLink { dir, initial, .. }) => {
            begins(check, *dir, initial)?;
        }
        _ => {}
    }
    Ok(())
}

fn strip(check: &Check<'_>, mode: &mut u32, gid: u32) {
    if !check.cred.in_group(gid) {
        *mode &= !SET_GID;
    }
}

/// The mode of a new file, which may get the group of its directory (`mode_strip_sgid`).
fn makes(check: &Check<'_>, dir: Node, mode: &mut u32) -> Result<(), Stop> {
    if *mode & RUNS_AS_GROUP == RUNS_AS_GROUP {
        let owner = check.owner(dir)?;
        if owner.mode & SET_GID != 0 {
            strip(check, mode, owner.gid);
        }
    }
    Ok(())
}

/// What a new file, which belongs to its maker, is to have besides.
fn begins(check: &Check<'_>, dir: Node, initial: &mut Option<Box<SetAttrs>>) -> Result<(), Stop> {
    let Some(attrs) = initial else { return Ok(()) };
    let (owner, cred) = (check.owner(dir)?, check.cred);
    let gid = if owner.mode & SET_GID != 0 { owner.gid } else { cred.gid };
    let leaves_group = attrs.gid.is_some_and(|wanted| wanted != gid && !cred.in_group(wanted));
    if attrs.uid.is_some_and(|uid| uid != cred.uid) || leaves_group {
        return Err(Errno::EPERM.into());
    }
    if let Some(mode) = &mut attrs.mode {
        strip(check, mode, attrs.gid.unwrap_or(gid));
    }
    Ok(())
}
