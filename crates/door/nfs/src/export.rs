// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that clients can mount, and what the procedures on it share.

use crate::convert;
use crate::files::{Files, Used};
use crate::handle::{ExportId, FileId, Sealer};
use crate::server::Paths;
use outrigger_core::ops::GetAttr;
use outrigger_core::{
    Abilities, Attr, Cx, Errno, Identity, Name, Node, Op, Result, Service, SetAttrs, ask, hash,
};
use outrigger_proto_nfs3::types::{self as nfs, FileHandle, Status, Verifier};
use outrigger_toolkit_serve::{Callers, Seldom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An exported tree.
pub(crate) struct Export {
    /// What clients mount it by, without the slash at its beginning.
    pub(crate) name: String,
    pub(crate) id: ExportId,
    pub(crate) files: Files,
    pub(crate) abilities: Abilities,
    /// Who may ask.
    pub(crate) callers: Callers,
    /// Says that someone who is squashed was refused.
    squashed: Seldom,
    service: Arc<dyn Service>,
    sealer: Arc<Sealer>,
    fsid: u64,
    /// Another one when writes that were not stable may have been lost.
    verifier: AtomicU64,
}

/// The result of a step of a procedure; the procedure adds attributes to the code of a failure.
pub(crate) type Outcome<T> = std::result::Result<T, Status>;

/// What tells an export from others: its name, and what alone its tree has.
pub fn number_of(name: &str, identity: &[u8]) -> u64 {
    hash::siphash13(&[name.trim_matches('/').as_bytes(), b"\0", identity].concat())
}

/// What all exports of a server have in common.
pub(crate) struct Common {
    pub(crate) sealer: Arc<Sealer>,
    /// How many files of each are remembered.
    pub(crate) held: usize,
    /// Drawn by each process.
    pub(crate) run: u64,
}

impl Export {
    /// The tree of `service`, which alone has `identity`, exported as `name`. The number of this run is in its handles unless the tree
    /// `is_lasting`.
    ///
    /// # Errors
    /// Those of [`Files::new`].
    pub(crate) fn new(
        (name, identity): (String, &[u8]),
        (service, is_lasting): (Arc<dyn Service>, bool),
        callers: Callers,
        common: &Common,
        paths: Option<Paths>,
    ) -> Result<Self> {
        let fsid = number_of(&name, identity);
        let id = ExportId(fsid as u32);
        Ok(Export {
            files: Files::new(id, service.clone(), common.held, (common.run, is_lasting), paths)?,
            abilities: service.abilities(),
            name,
            id,
            callers,
            squashed: Seldom::default(),
            service,
            sealer: common.sealer.clone(),
            fsid,
            verifier: AtomicU64::new(common.run),
        })
    }

    /// Asks the tree.
    pub(crate) async fn ask<O: Op>(&self, cx: &Cx, op: O) -> Outcome<O::Out> {
        ask(&*self.service, cx, op).await.map_err(|error| {
            if matches!(error.errno, Errno::EACCES | Errno::EPERM) {
                self.callers.tell_of_squashing(cx, (&self.name, O::CODE.name()), &self.squashed);
            }
            self.failed(O::CODE.name(), &error)
        })
    }

    /// The code of an error, of which the log has more.
    pub(crate) fn failed(&self, what: &str, error: &outrigger_core::Error) -> Status {
        let status = convert::status(error);
        match status {
            Status::IO | Status::JUKEBOX => {
                tracing::warn!(export = self.name, what, %error, "a request failed")
            }
            _ => tracing::debug!(export = self.name, what, %error, "a request failed"),
        }
        status
    }

    /// The file that a handle names.
    pub(crate) async fn file(&self, cx: &Cx, id: FileId) -> Outcome<Used<'_>> {
        self.files.find(cx, id).await.map_err(|error| self.failed("handle", &error))
    }

    pub(crate) fn handle(&self, id: FileId) -> FileHandle {
        FileHandle::new(&self.sealer.seal(id)).expect("a handle of 53 bytes where 64 are allowed")
    }

    /// Attributes as clients see them, with their own numbers of users and groups.
    pub(crate) fn attrs(&self, attr: &Attr) -> nfs::Attrs {
        let (uid, gid) = self.callers.shown((attr.uid, attr.gid));
        nfs::Attrs { uid, gid, ..convert::attrs(attr, self.fsid) }
    }

    /// What a client sets, with the tree's numbers of users and groups.
    pub(crate) fn set_attrs(&self, set: &nfs::SetAttrs) -> Outcome<SetAttrs> {
        self.callers.meant(convert::set_attrs(set)?).map_err(|error| convert::status(&error))
    }

    /// The attributes after an operation, which has not failed when they cannot be had.
    pub(crate) async fn after(&self, cx: &Cx, node: Node) -> Option<nfs::Attrs> {
        Some(self.attrs(&self.attr(cx, node).await.ok()?))
    }

    /// The attributes of a file.
    pub(crate) async fn attr(&self, cx: &Cx, node: Node) -> Outcome<Attr> {
        let attr = self.ask(cx, GetAttr { node, handle: None }).await?.attr;
        if self.is_gone(&attr) { Err(Status::STALE) } else { Ok(attr) }
    }

    /// Whether a file has lost its last name. A reference may keep it for a while, but what is written to it is lost.
    fn is_gone(&self, attr: &Attr) -> bool {
        // Other trees may not count links.
        attr.nlink == 0 && self.abilities.identity == Identity::Persistent
    }

    /// What came of a change of a file: it has failed if the file had lost its last name.
    pub(crate) async fn lasting<T>(
        &self,
        cx: &Cx,
        node: Node,
        (changed, wcc): (Outcome<T>, &nfs::Wcc),
    ) -> Outcome<T> {
        let changed = changed?;
        match wcc.after {
            None if self.attr(cx, node).await == Err(Status::STALE) => Err(Status::STALE),
            _ => Ok(changed),
        }
    }

    /// A file around a change that was made with `cx`.
    pub(crate) async fn wcc(&self, cx: &Cx, node: Node) -> nfs::Wcc {
        match cx.wcc.as_ref().and_then(|wcc| wcc.of(node)) {
            Some(around) if !self.is_gone(&around.after) => nfs::Wcc {
                before: Some(convert::before(&around.before)),
                after: Some(self.attrs(&around.after)),
            },
            // Attributes before the change that were asked for by themselves would hide the change of another in between.
            _ => nfs::Wcc { before: None, after: self.after(cx, node).await },
        }
    }

    /// What tells a client whether its writes are still there.
    pub(crate) fn verifier(&self) -> Verifier {
        self.verifier.load(Ordering::Relaxed).to_be_bytes()
    }

    /// Writes may have been lost: clients are to write again what was not committed.
    pub(crate) fn has_lost_writes(&self) {
        self.verifier.fetch_add(1, Ordering::Relaxed);
    }
}

/// A name as the core has it.
///
/// # Errors
/// The code for one that is none.
pub(crate) fn name(name: &nfs::Name) -> Outcome<Name> {
    Name::new(bytes::Bytes::copy_from_slice(name)).map_err(|error| match convert::status(&error) {
        Status::NAMETOOLONG => Status::NAMETOOLONG,
        // RFC 1813, 3.3.3 and others leave names that a server does not take to it.
        _ if name.is_empty() => Status::ACCES,
        _ => Status::INVAL,
    })
}
