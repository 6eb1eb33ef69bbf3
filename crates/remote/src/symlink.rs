// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of symbolic links as this side sees them.
//!
//! A server chooses the targets of its links, and whoever follows them does so on this machine: an absolute target leads to
//! files of ours.

use bytes::Bytes;
use outrigger_core::{Errno, Result};

/// The target that is shown for one of the server, of a link `depth` levels below the root, which is at `base` there: as a path relative
/// to the link where it is an absolute one inside the tree, if `relates`, and otherwise refused, if `contains`.
///
/// # Errors
/// `EPERM` for one that is refused.
pub fn shown_target(
    target: &Bytes,
    (base, depth): (&[u8], usize),
    relates: bool,
    contains: bool,
) -> Result<Bytes> {
    let relates = relates || contains;
    let target = if relates { relative_target(target, base, depth) } else { target.clone() };
    if contains { contained(target, depth) } else { Ok(target) }
}

/// The target as a path relative to its link, `depth` levels below the root, where it is an absolute one inside the tree, whose
/// root is at `base` on the server.
fn relative_target(target: &Bytes, base: &[u8], depth: usize) -> Bytes {
    let inside = target.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
    match inside {
        Some(rest) if target.starts_with(b"/") => Bytes::from(relative(rest, depth)),
        _ => target.clone(),
    }
}

/// The target, if following it cannot lead out of the tree.
///
/// # Errors
/// `EPERM` otherwise.
fn contained(target: Bytes, depth: usize) -> Result<Bytes> {
    if stays_inside(&target, depth) {
        return Ok(target);
    }
    Err(Errno::EPERM.because(format!(
        "the symbolic link leads out of the tree, to {}: contain_symlinks refuses that",
        target.escape_ascii()
    )))
}

/// The way from a link `depth` levels below the root to a path from the root.
fn relative(path: &[u8], depth: usize) -> Vec<u8> {
    let path = path.iter().position(|&byte| byte != b'/').map_or(&b""[..], |start| &path[start..]);
    let mut target = b"../".repeat(depth.saturating_sub(1));
    target.extend_from_slice(path);
    if target.ends_with(b"/") {
        target.pop();
    }
    if target.is_empty() { b".".to_vec() } else { target }
}

/// Whether a target cannot lead out of the tree: it climbs at its beginning only, where each step is to the directory above,
/// and not above the root. Further on a step up may follow another link, to wherever that leads.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let names = || target.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".");
    let climbs = names().take_while(|name| name == b"..").count();
    climbs < depth.max(1) && names().skip(climbs).all(|name| name != b"..")
}
