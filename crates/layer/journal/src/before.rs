// SPDX-License-Identifier: MIT OR Apache-2.0
//! What there was before a change: known only where the change cannot be judged by its traces afterwards.

use crate::entry::nanos;
use crate::recent::{Recent, directory, name_in};
use outrigger_core::ops::{Forget, GetAttr, GetXattr, Lookup, RenameFlags};
use outrigger_core::reply::Entry;
use outrigger_core::{
    Added, Cx, Effect, Errno, Handle, Name, Node, Request, Result, Service, XattrName, ask,
};
use std::sync::Arc;

/// The service below the journal.
pub(crate) type Below = Arc<dyn Service>;

/// What there was before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It need not be known, or looking failed.
    Unknown,
    /// The name, or the attribute, did not exist.
    Absent,
    /// The name led to this inode; or the attribute existed.
    Present(Inode),
    /// The two names of an exchange led to these inode numbers.
    Pair(u64, u64),
    /// The size of the file in bytes.
    Size(u64),
}

/// Which file it was. The time of birth tells a new file from an old one whose number it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) ino: u64,
    pub(crate) birth: i64,
}

impl Inode {
    pub(crate) fn of(entry: &Entry) -> Self {
        Inode { ino: entry.attr.ino, birth: entry.attr.btime.map_or(0, nanos) }
    }
}

impl Before {
    pub(crate) fn encode(self) -> [u64; 3] {
        match self {
            Before::Unknown => [0, 0, 0],
            Before::Absent => [1, 0, 0],
            Before::Present(Inode { ino, birth }) => [2, ino, birth as u64],
            Before::Pair(one, two) => [3, one, two],
            Before::Size(size) => [4, size, 0],
        }
    }

    pub(crate) fn decode(words: [u64; 3]) -> Self {
        match words {
            [1, ..] => Before::Absent,
            [2, ino, birth] => Before::Present(Inode { ino, birth: birth as i64 }),
            [3, one, two] => Before::Pair(one, two),
            [4, size, _] => Before::Size(size),
            _ => Before::Unknown,
        }
    }
}

/// What decides whether traces will tell afterwards.
pub(crate) struct Traces<'a> {
    /// Whether times of birth are known and come from the clock of the journal.
    pub(crate) born: bool,
    /// What was changed a moment ago.
    pub(crate) recent: &'a Recent,
    /// The time of the intent.
    pub(crate) now: i64,
    /// Whether the bytes of the write go to the end of its file.
    pub(crate) appends: bool,
}

/// Whether it has to be known what there was before.
///
/// * A name that is made: only when something under this name was changed a moment ago, or no births are known.
/// * A name that is removed: likewise for anything in its directory, whose time of change is the trace.
/// * Moves and links leave a change time that any other change leaves too: always.
/// * Appends, and ranges taken out or put in, shift with each repetition: the size before tells.
/// * Attributes that must or must not exist leave no time of their own: always.
pub(crate) fn is_needed(request: &Request, traces: &Traces) -> bool {
    let Traces { born, recent, now, appends } = traces;
    match repetition_changes(request) {
        Some(Effect::Adds { dir, name, file: Added::New { .. } }) => {
            !born || recent.is_hot(name_in(dir, name), *now)
        }
        Some(Effect::Removes { dir, .. }) => !born || recent.is_hot(directory(dir), *now),
        Some(Effect::Appends { .. }) => *appends,
        Some(effect) => leaves_traces(effect),
        None => false,
    }
}

/// The effect for which it matters whether the request was carried out before it is repeated.
pub(crate) fn repetition_changes(request: &Request) -> Option<Effect<'_>> {
    request.effects().into_iter().find(|effect| effect.changes_tree() && !effect.is_idempotent())
}

/// Whether looking before and after tells that the effect happened.
fn leaves_traces(effect: Effect<'_>) -> bool {
    // A file without a name that is made twice is removed by its own, and of an ioctl(2) nothing is known.
    !matches!(effect, Effect::Makes { .. } | Effect::Anything { .. })
}

/// Looks at what `request` is about to change.
pub(crate) async fn look(below: &Below, cx: &Cx, request: &Request) -> Before {
    let looked = match repetition_changes(request) {
        Some(Effect::Adds { dir, name: of, .. } | Effect::Removes { dir, name: of, .. }) => {
            name(below, cx, dir, of).await
        }
        Some(Effect::Moves { dir, name: from, to_dir, to_name, flags }) => {
            match (name(below, cx, dir, from).await, flags.contains(RenameFlags::EXCHANGE)) {
                (Ok(one), true) => name(below, cx, to_dir, to_name).await.map(|two| pair(one, two)),
                (one, _) => one,
            }
        }
        Some(Effect::SetsXattr { node, name, .. } | Effect::RemovesXattr { node, name }) => {
            attribute(below, cx, node, name).await
        }
        Some(Effect::Appends { node, handle, .. } | Effect::Shifts { node, handle, .. }) => {
            size(below, cx, node, handle).await.map(Before::Size)
        }
        _ => Ok(Before::Unknown),
    };
    looked.unwrap_or(Before::Unknown)
}

/// What two names that are exchanged lead to.
pub(crate) fn pair(one: Before, two: Before) -> Before {
    match (one, two) {
        (Before::Present(one), Before::Present(two)) => Before::Pair(one.ino, two.ino),
        _ => Before::Unknown,
    }
}

async fn name(below: &Below, cx: &Cx, dir: Node, name: &Name) -> Result<Before> {
    let inode = inode(below, cx, dir, name).await?;
    Ok(inode.map_or(Before::Absent, Before::Present))
}

async fn attribute(below: &Below, cx: &Cx, node: Node, name: &XattrName) -> Result<Before> {
    match ask(&**below, cx, GetXattr { node, name: name.clone() }).await {
        Ok(_) => Ok(Before::Present(Inode { ino: 0, birth: 0 })),
        Err(error) if error.errno == Errno::ENODATA => Ok(Before::Absent),
        Err(error) => Err(error),
    }
}

/// The size of an open file in bytes.
pub(crate) async fn size(below: &Below, cx: &Cx, node: Node, handle: Handle) -> Result<u64> {
    let attrs = ask(&**below, cx, GetAttr { node, handle: Some(handle) }).await?;
    Ok(attrs.attr.size)
}

/// What `name` leads to; `None` when it does not exist. Counts a reference.
pub(crate) async fn find(below: &Below, cx: &Cx, dir: Node, name: &Name) -> Result<Option<Entry>> {
    match ask(&**below, cx, Lookup { dir, name: name.clone() }).await {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which inode `name` leads to, without keeping a reference.
pub(crate) async fn inode(below: &Below, cx: &Cx, dir: Node, name: &Name) -> Result<Option<Inode>> {
    let Some(entry) = find(below, cx, dir, name).await? else { return Ok(None) };
    give_back(below, cx, entry.node).await;
    Ok(Some(Inode::of(&entry)))
}

/// Returns the reference that a lookup counted.
pub(crate) async fn give_back(below: &Below, cx: &Cx, node: Node) {
    below.call(cx, Forget { node, count: 1 }.into()).await;
}
